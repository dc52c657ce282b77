/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/pair_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct moves {
    struct kvf_trtllm_fragment *items;
    size_t count;
};

void pair_kit_init(struct pair_kit *kit)
{
    memset(kit, 0, sizeof *kit);
    rank_kit_init(&kit->self, "self");
    rank_kit_init(&kit->peer, "peer");
}

void pair_kit_view(struct rank_kit *kit, int64_t kind, int64_t heads, int64_t tokens, int64_t layer_bytes,
                     int64_t buffers, const int64_t *offsets)
{
    size_t group = rank_kit_group(kit, KVF_TRTLLM_PAGED, 0), view = rank_kit_view(kit, group, kind, 0);

    kit->attention.kv_heads_per_rank = heads;
    kit->attention.tokens_per_block = tokens;
    kit->table.tokens_per_block = tokens;
    kit->views[group][view].num_kv_heads = kind == KVF_TRTLLM_REPLICATED ? KVF_TRTLLM_NONE : heads;
    rank_kit_pool(kit, 0, 0, 4096, 8);
    for (int64_t i = 0; offsets[i] >= 0; i++) {
        rank_kit_layer(kit, group, i, i);
        for (int64_t k = 0; k < buffers; k++)
            rank_kit_entry(kit, group, view, i, offsets[i] + k * (layer_bytes / buffers), layer_bytes / buffers);
    }
}

void pair_kit_make_ranks(struct pair_kit *kit)
{
    kit->ranks[0] = rank_kit_make(&kit->self);
    kit->ranks[1] = rank_kit_make(&kit->peer);
    kvf_trtllm_request_init(&kit->request, sizeof kit->request);
    kit->request.src = kit->src;
    kit->request.src_count = kit->self.table.group_count;
    kit->request.dst = kit->dst;
    kit->request.dst_count = kit->peer.table.group_count;
}

void pair_kit_make(struct pair_kit *kit, bool strict)
{
    struct kvf_error error = {0};

    pair_kit_make_ranks(kit);
    if (kvfi_trt_pair_create(kit->ranks[0], kit->ranks[1], strict, &kit->pair, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void pair_kit_make_view(struct pair_kit *kit, size_t view)
{
    struct kvf_error error = {0};

    pair_kit_make_ranks(kit);
    if (kvfi_trt_pair_create_view(kit->ranks[0], kit->ranks[1], view, &kit->pair, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void pair_kit_refused(struct pair_kit *kit, bool strict, int status, const char *text)
{
    struct kvf_error error = {0};

    pair_kit_make_ranks(kit);
    assert_int_equal(kvfi_trt_pair_create(kit->ranks[0], kit->ranks[1], strict, &kit->pair, &error), status);
    assert_null(kit->pair);
    if (!strstr(error.text, text)) fail_msg("expected \"%s\", found \"%s\"", text, error.text);
}

void pair_kit_ids(struct pair_kit *kit, size_t src_group, size_t dst_group, struct kvf_trtllm_blocks src,
                  struct kvf_trtllm_blocks dst)
{
    kit->src[src_group] = src;
    kit->dst[dst_group] = dst;
}

/** Takes all copies of a cursor. */
static struct moves take_copies(const kvf_trtllm_write *write)
{
    struct moves moves = {malloc(sizeof *moves.items), 0};
    kvf_trtllm_cursor *cursor = NULL;

    assert_int_equal(kvf_trtllm_cursor_create(write, &cursor, NULL), KVF_OK);
    while (kvf_trtllm_cursor_next(cursor, &moves.items[moves.count], 1) == 1) {
        moves.items = realloc(moves.items, (++moves.count + 1) * sizeof *moves.items);
        assert_non_null(moves.items);
    }
    assert_int_equal(kvf_trtllm_cursor_next(cursor, &moves.items[moves.count], 1), 0);
    kvf_trtllm_cursor_destroy(cursor);
    return moves;
}

static struct moves take_fragments(const kvf_trtllm_write *write)
{
    struct moves moves = {NULL, 0};
    size_t count = 0;

    assert_int_equal(kvf_trtllm_write_fragments(write, NULL, 0, &moves.count, NULL), KVF_OK);
    moves.items = calloc(moves.count + 1, sizeof *moves.items);
    assert_non_null(moves.items);
    assert_int_equal(kvf_trtllm_write_fragments(write, moves.items, moves.count, &count, NULL), KVF_OK);
    assert_int_equal(count, moves.count);
    return moves;
}

static int by_distance(const void *left, const void *right)
{
    const struct kvf_trtllm_fragment *a = left, *b = right;
    uint64_t x = a->dst_address - a->src_address, y = b->dst_address - b->src_address;

    if (x != y) return x > y ? 1 : -1;
    return (a->src_address > b->src_address) - (a->src_address < b->src_address);
}

/** Sorts moves and joins what touches or is there twice: a set of byte moves. */
static size_t normal_form(struct kvf_trtllm_fragment *items, size_t count)
{
    size_t kept = 0;

    if (count) qsort(items, count, sizeof *items, by_distance);
    for (size_t i = 0; i < count; i++) {
        struct kvf_trtllm_fragment *last = kept ? &items[kept - 1] : NULL;

        if (last && last->dst_address - last->src_address == items[i].dst_address - items[i].src_address &&
            items[i].src_address <= last->src_address + (uint64_t)last->bytes) {
            int64_t end = (int64_t)(items[i].src_address - last->src_address) + items[i].bytes;

            if (end > last->bytes) last->bytes = end;
        } else {
            items[kept++] = items[i];
        }
    }
    return kept;
}

static void expect_same_bytes(const struct moves *fragments, const struct moves *copies)
{
    size_t count = normal_form(fragments->items, fragments->count);

    assert_int_equal(normal_form(copies->items, copies->count), count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(fragments->items[i].src_address, copies->items[i].src_address);
        assert_int_equal(fragments->items[i].dst_address, copies->items[i].dst_address);
        assert_int_equal(fragments->items[i].bytes, copies->items[i].bytes);
    }
}

static void print_moves(struct pair_kit *kit, const struct moves *moves)
{
    size_t at = 0;

    kit->text[0] = '\0';
    for (size_t i = 0; i < moves->count; i++) {
        int written = snprintf(kit->text + at, sizeof kit->text - at, "%s%" PRIu64 ">%" PRIu64 "+%" PRId64,
                               i ? " " : "", moves->items[i].src_address, moves->items[i].dst_address,
                               moves->items[i].bytes);

        assert_true(written > 0 && (size_t)written < sizeof kit->text - at);
        at += (size_t)written;
    }
}

const char *pair_kit_moves(struct pair_kit *kit)
{
    struct kvf_error error = {0};
    kvf_trtllm_write *write = NULL;
    struct moves copies, fragments = {NULL, 0};
    int64_t bytes = 0;

    if (kvf_trtllm_pair_bind(kit->pair, &kit->request, &write, &error) != KVF_OK) {
        assert_null(write);
        assert_true(error.status != KVF_OK);
        snprintf(kit->text, sizeof kit->text, "%s", error.text);
        return kit->text;
    }
    copies = take_copies(write);
    for (size_t i = 0; i < copies.count; i++) bytes += copies.items[i].bytes;
    assert_int_equal(bytes, kvf_trtllm_write_bytes(write));
    if (kit->pair->strict) {
        fragments = take_fragments(write);
        print_moves(kit, &fragments);
        expect_same_bytes(&fragments, &copies);
    } else {
        print_moves(kit, &copies);
    }
    free(fragments.items);
    free(copies.items);
    kvf_trtllm_write_destroy(write);
    return kit->text;
}

int pair_kit_mapper(const struct pair_kit *kit, size_t view)
{
    struct kvf_trtllm_pair_view found;

    assert_int_equal(kvf_trtllm_pair_view(kit->pair, view, &found), KVF_OK);
    return found.mapper;
}

void pair_kit_fini(struct pair_kit *kit)
{
    kvf_trtllm_pair_release(kit->pair);
    kvf_trtllm_rank_release(kit->ranks[0]);
    kvf_trtllm_rank_release(kit->ranks[1]);
    kit->pair = NULL;
}
