/* SPDX-License-Identifier: Apache-2.0 */
/* What one request between two ranks costs: bytes, kvferry's runs, upstream's descriptors. */
#include <stdlib.h>
#include <string.h>

#include "cli/trtllm_pairs.h"

#define RUNS_AT_ONCE 1024
#define BLOCKS_MAX (INT64_C(1) << 26)

/** Block lists of one rank. */
struct lists {
    struct kvf_trtllm_blocks *groups;
    size_t count;
};

static void lists_fini(struct lists *lists)
{
    for (size_t g = 0; g < lists->count; g++)
        free((int64_t *)lists->groups[g].ids);
    free(lists->groups);
    *lists = (struct lists){0};
}

static bool take_ids(const json_t *array, struct kvf_trtllm_blocks *out)
{
    size_t count = json_array_size(array);
    int64_t *ids = calloc(count + 1, sizeof(*ids));
    if (ids == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        ids[i] = json_integer_value(json_array_get(array, i));
    *out = (struct kvf_trtllm_blocks){ids, count};
    return true;
}

static bool count_up(int64_t count, struct kvf_trtllm_blocks *out)
{
    int64_t *ids = count <= BLOCKS_MAX ? calloc((size_t)count + 1, sizeof(*ids)) : NULL;
    if (ids == NULL)
        return false;
    for (int64_t i = 0; i < count; i++)
        ids[i] = i;
    *out = (struct kvf_trtllm_blocks){ids, (size_t)count};
    return true;
}

/** The lists that a file has for a rank: under its side, or under its name and number. NULL when it has none. */
static const json_t *lists_of(const struct trtllm_request *request, const struct kvf_trtllm_rank_spec *rank,
                              const char *member)
{
    char name[512];
    const json_t *root = request->blocks, *inner = json_object_get(root, "request");
    const json_t *lists = json_object_get(inner != NULL ? inner : root, member);
    snprintf(name, sizeof(name), "%.480s%lld", rank->instance_name, (long long)rank->instance_rank);
    return lists != NULL ? lists : json_object_get(json_object_get(root, "blocks"), name);
}

bool trtllm_has_blocks(const struct trtllm_request *request, const struct kvf_trtllm_rank_spec *rank,
                       const char *member)
{
    return request->blocks == NULL || json_is_array(lists_of(request, rank, member));
}

static bool lists_init(const struct trtllm_pairs *pairs, const struct kvf_trtllm_rank_spec *rank, const char *member,
                       struct lists *out)
{
    const json_t *given = pairs->request->blocks != NULL ? lists_of(pairs->request, rank, member) : NULL;
    const struct kvf_trtllm_page_table *table = rank->page_table;
    size_t count = given != NULL ? json_array_size(given) : table->group_count;
    *out = (struct lists){.groups = calloc(count + 1, sizeof(*out->groups))};
    if (out->groups == NULL)
        return false;
    for (; out->count < count; out->count++) {
        bool is_state = given == NULL && table->groups[out->count].cache == KVF_TRTLLM_STATE;
        if (!(given != NULL ? take_ids(json_array_get(given, out->count), &out->groups[out->count])
                            : count_up(is_state ? 1 : trtllm_block_count(rank, pairs->tokens),
                                       &out->groups[out->count])))
            return false;
    }
    return true;
}

/** The views of self that are not `only`. */
static struct kvf_trtllm_view_key *others(const struct kvf_trtllm_page_table *table,
                                          const struct kvf_trtllm_view_key *only, size_t *count)
{
    size_t most = 0;
    for (size_t g = 0; g < table->group_count; g++)
        most += table->groups[g].view_count;
    struct kvf_trtllm_view_key *keys = calloc(most + 1, sizeof(*keys));
    *count = 0;
    for (size_t g = 0; keys != NULL && g < table->group_count; g++) {
        for (size_t v = 0; v < table->groups[g].view_count; v++) {
            if ((int64_t)g != only->group || (int64_t)v != only->view)
                keys[(*count)++] = (struct kvf_trtllm_view_key){(int64_t)g, (int64_t)v};
        }
    }
    return keys;
}

/** Counts the contiguous copies of a write. */
static int64_t count_runs(const kvf_trtllm_write *write)
{
    struct kvf_trtllm_fragment runs[RUNS_AT_ONCE];
    struct kvf_error error = {.position = -1};
    kvf_trtllm_cursor *cursor = NULL;
    int64_t count = 0;
    if (kvf_trtllm_cursor_create(write, &cursor, &error) != KVF_OK)
        return -1;
    for (size_t got; (got = kvf_trtllm_cursor_next(cursor, runs, RUNS_AT_ONCE)) > 0;)
        count += (int64_t)got;
    kvf_trtllm_cursor_destroy(cursor);
    return count;
}

static void count_write(const kvf_trtllm_write *write, struct trtllm_cost *out)
{
    struct kvf_error error = {.position = -1};
    size_t descriptors = 0;
    out->bytes = kvf_trtllm_write_bytes(write);
    out->runs = count_runs(write);
    out->descriptors = kvf_trtllm_write_fragments(write, NULL, 0, &descriptors, &error) == KVF_OK
                           ? (int64_t)descriptors
                           : -1;
}

static int64_t start_token(const struct trtllm_request *request)
{
    const json_t *root = request->blocks, *inner = json_object_get(root, "request");
    const json_t *start = json_object_get(inner != NULL ? inner : root, "dst_start_token");
    return json_is_integer(start) ? json_integer_value(start) : KVF_TRTLLM_NONE;
}

void trtllm_pairs_cost(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row, const kvf_trtllm_pair *pair,
                       const struct kvf_trtllm_view_key *only, struct trtllm_cost *out)
{
    const struct kvf_trtllm_rank_spec *self = trtllm_side_spec(&pairs->src, row->src);
    const struct kvf_trtllm_rank_spec *peer = trtllm_side_spec(&pairs->dst, row->dst);
    struct lists src = {0}, dst = {0};
    struct kvf_trtllm_view_key *excluded = NULL;
    struct kvf_trtllm_request request;
    struct kvf_error error = {.position = -1};
    kvf_trtllm_write *write = NULL;
    *out = (struct trtllm_cost){.status = KVF_ERR_NO_MEMORY, .descriptors = -1};
    kvf_trtllm_request_init(&request, sizeof(request));
    if (!lists_init(pairs, self, "src_blocks", &src) || !lists_init(pairs, peer, "dst_blocks", &dst))
        goto done;
    if (only != NULL && (excluded = others(self->page_table, only, &request.excluded_count)) == NULL)
        goto done;
    request.prompt_tokens = pairs->tokens;
    request.src = src.groups;
    request.src_count = src.count;
    request.dst = dst.groups;
    request.dst_count = dst.count;
    request.dst_start_token = start_token(pairs->request);
    request.excluded = excluded;
    out->status = kvf_trtllm_pair_bind(pair, &request, &write, &error);
    if (out->status == KVF_OK)
        count_write(write, out);
    snprintf(out->text, sizeof(out->text), "%s", out->status == KVF_OK ? "" : error.text);
done:
    if (out->status == KVF_ERR_NO_MEMORY)
        snprintf(out->text, sizeof(out->text), "no memory for the block ids");
    kvf_trtllm_write_destroy(write);
    free(excluded);
    lists_fini(&dst);
    lists_fini(&src);
}
