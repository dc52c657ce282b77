/* SPDX-License-Identifier: Apache-2.0 */
#include "moves.h"

#include <stdlib.h>
#include <string.h>

static size_t count_ids(const json_t *lists)
{
    size_t count = 0;

    for (size_t i = 0; i < json_array_size(lists); i++) count += json_array_size(json_array_get(lists, i));
    return count;
}

/** Reads one side's lists; ids go to `*ids`, which moves on. */
static bool read_lists(struct kvf_trtllm_blocks *blocks, const json_t *lists, int64_t **ids)
{
    bool good = json_is_array(lists);

    for (size_t i = 0; i < json_array_size(lists) && good; i++) {
        const json_t *list = json_array_get(lists, i);

        blocks[i] = (struct kvf_trtllm_blocks){*ids, json_array_size(list)};
        good = json_is_array(list);
        for (size_t j = 0; j < json_array_size(list) && good; j++) {
            good = json_is_integer(json_array_get(list, j));
            *(*ids)++ = json_integer_value(json_array_get(list, j));
        }
    }
    return good;
}

bool moves_request_init(struct moves_request *out, int64_t prompt, const json_t *src_blocks, const json_t *dst_blocks)
{
    int64_t *at;

    memset(out, 0, sizeof *out);
    kvf_trtllm_request_init(&out->request, sizeof out->request);
    out->src = calloc(json_array_size(src_blocks) + 1, sizeof *out->src);
    out->dst = calloc(json_array_size(dst_blocks) + 1, sizeof *out->dst);
    out->ids = calloc(count_ids(src_blocks) + count_ids(dst_blocks) + 1, sizeof *out->ids);
    out->request.prompt_tokens = prompt;
    out->request.src = out->src;
    out->request.src_count = json_array_size(src_blocks);
    out->request.dst = out->dst;
    out->request.dst_count = json_array_size(dst_blocks);
    at = out->ids;
    return out->src && out->dst && out->ids && read_lists(out->src, src_blocks, &at) &&
           read_lists(out->dst, dst_blocks, &at);
}

void moves_request_fini(struct moves_request *request)
{
    free(request->ids);
    free(request->dst);
    free(request->src);
}

bool moves_collect(struct moves_list *list, const kvf_trtllm_write *write)
{
    kvf_trtllm_cursor *cursor = NULL;
    bool good = kvf_trtllm_cursor_create(write, &cursor, NULL) == KVF_OK;

    for (size_t taken = 1; good && taken > 0;) {
        if (list->capacity - list->count < 64) {
            size_t capacity = 2 * list->capacity + 256;
            void *items = realloc(list->items, capacity * sizeof *list->items);

            good = items != NULL;
            if (!good) break;
            list->items = items;
            list->capacity = capacity;
        }
        taken = kvf_trtllm_cursor_next(cursor, list->items + list->count, list->capacity - list->count);
        list->count += taken;
    }
    kvf_trtllm_cursor_destroy(cursor);
    return good;
}

static int by_distance(const void *left, const void *right)
{
    const struct kvf_trtllm_fragment *a = left, *b = right;
    uint64_t x = a->dst_address - a->src_address, y = b->dst_address - b->src_address;

    if (x != y) return x > y ? 1 : -1;
    return (a->src_address > b->src_address) - (a->src_address < b->src_address);
}

/** Sorts a list, and joins what touches or is there twice. */
static void normalise(struct moves_list *list)
{
    size_t kept = 0;

    if (list->count) qsort(list->items, list->count, sizeof *list->items, by_distance);
    for (size_t i = 0; i < list->count; i++) {
        const struct kvf_trtllm_fragment *item = &list->items[i];
        struct kvf_trtllm_fragment *last = kept ? &list->items[kept - 1] : NULL;

        if (last && last->dst_address - last->src_address == item->dst_address - item->src_address &&
            item->src_address - last->src_address <= (uint64_t)last->bytes) {
            int64_t end = (int64_t)(item->src_address - last->src_address) + item->bytes;

            if (end > last->bytes) last->bytes = end;
        } else {
            list->items[kept++] = *item;
        }
    }
    list->count = kept;
}

bool moves_equal(struct moves_list *a, struct moves_list *b)
{
    normalise(a);
    normalise(b);
    return a->count == b->count && (!a->count || memcmp(a->items, b->items, a->count * sizeof *a->items) == 0);
}

static int by_destination(const void *left, const void *right)
{
    const struct kvf_trtllm_fragment *a = left, *b = right;

    return (a->dst_address > b->dst_address) - (a->dst_address < b->dst_address);
}

int64_t moves_doubles(struct moves_list *list)
{
    uint64_t end = 0;
    int64_t doubles = 0;

    if (list->count) qsort(list->items, list->count, sizeof *list->items, by_destination);
    for (size_t i = 0; i < list->count; i++) {
        uint64_t own = list->items[i].dst_address + (uint64_t)list->items[i].bytes;

        if (list->items[i].dst_address < end)
            doubles += (int64_t)((own < end ? own : end) - list->items[i].dst_address);
        if (own > end) end = own;
    }
    return doubles;
}

json_t *moves_json(const struct kvf_trtllm_fragment *fragment)
{
    return json_pack("[I, I, I]", (json_int_t)fragment->src_address, (json_int_t)fragment->dst_address,
                     (json_int_t)fragment->bytes);
}
