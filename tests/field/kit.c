/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct worker tiny(int64_t heads, int64_t tp_count, int64_t tp, int64_t blocks)
{
    struct worker worker = {.rank = {.tp = tp}, .layers = 2, .heads = heads, .head_first = tp * heads / tp_count,
                            .row_bytes = 16, .tokens_per_block = 16, .blocks = blocks, .stripes = 1};

    worker.head_count = tp_count > heads ? 1 : (tp + 1) * heads / tp_count - worker.head_first;
    for (worker.id_count = 0; (int64_t)worker.id_count < blocks && worker.id_count < MOST_IDS; worker.id_count++) {
        worker.ids[worker.id_count] = (int64_t)worker.id_count;
    }
    return worker;
}

void worker_ids(struct worker *worker, size_t count, const int64_t *ids)
{
    memcpy(worker->ids, ids, count * sizeof *ids);
    worker->id_count = count;
}

static int parts_of(const struct worker *worker)
{
    return worker->latent ? 1 : 2;
}

/* Bytes of one part of one layer in one block. */
static int64_t part_bytes(const struct worker *worker)
{
    return worker->head_count * worker->tokens_per_block * worker->row_bytes;
}

/* Parts that lie side by side in one slot. */
static int slot_parts(const struct worker *worker)
{
    return worker->apart ? 1 : parts_of(worker);
}

static int64_t offset_of(const struct worker *worker, int part, int64_t layer)
{
    return ((layer - worker->layer_first) * slot_parts(worker) + (worker->apart ? 0 : part)) * part_bytes(worker);
}

static int64_t head_stride(const struct worker *worker, int part)
{
    return worker->tokens_first[part] ? worker->row_bytes : worker->tokens_per_block * worker->row_bytes;
}

static int64_t token_stride(const struct worker *worker, int part)
{
    return worker->tokens_first[part] ? worker->head_count * worker->row_bytes : worker->row_bytes;
}

unsigned char *worker_row(const struct worker *worker, int part, int64_t layer, int64_t slot, int64_t head,
                          int64_t token_in_block)
{
    return worker->memory[worker->apart ? part : 0] + slot * worker->slot_bytes + offset_of(worker, part, layer) +
           (head - worker->head_first) * head_stride(worker, part) + token_in_block * token_stride(worker, part);
}

/* ---- layouts ---- */

static void describe(struct worker *worker, struct kvf_view *views, struct kvf_place places[2][8])
{
    for (int part = 0; part < parts_of(worker); part++) {
        for (int64_t i = 0; i < worker->layers; i++) {
            int64_t layer = worker->layer_first + i;

            places[part][i] = (struct kvf_place){layer, worker->apart ? part : 0, offset_of(worker, part, layer)};
        }
        views[part] = (struct kvf_view){
            .role = worker->latent ? "mla" : part ? "v" : "k", .tag = "f16", .row_bytes = worker->row_bytes,
            .byte_count = worker->row_bytes, .unit_total = worker->heads, .unit_first = worker->head_first,
            .unit_count = worker->head_count, .unit_stride_bytes = head_stride(worker, part),
            .entry_stride_bytes = token_stride(worker, part), .entries = worker->tokens_per_block,
            .slots_per_block = 1, .places = places[part], .place_count = (size_t)worker->layers};
    }
}

static void create_layout(struct worker *worker, size_t memories)
{
    struct kvf_group group = {worker->tokens_per_block, 0, worker->stripes, worker->stripe,
                              worker->dealing == BY_BLOCK ? worker->tokens_per_block : 0};
    struct kvf_pool pools[2];
    struct kvf_view views[2];
    struct kvf_place places[2][8];
    struct kvf_layout_spec spec;
    struct kvf_error error = {0};

    describe(worker, views, places);
    for (size_t i = 0; i < memories; i++) {
        pools[i] = (struct kvf_pool){(int64_t)i, 0, worker->slot_bytes, worker->blocks};
    }
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = worker->memory_bytes;
    spec.memory_count = memories;
    spec.pools = pools;
    spec.pool_count = memories;
    spec.groups = &group;
    spec.group_count = 1;
    spec.views = views;
    spec.view_count = (size_t)parts_of(worker);
    if (kvf_layout_create(&spec, &worker->layout, &error) != KVF_OK) fail_msg("%s", error.text);
    if (kvf_holdings_from_layout(worker->layout, &worker->holdings, &error) != KVF_OK) fail_msg("%s", error.text);
}

void worker_open(struct worker *worker)
{
    size_t memories = worker->apart ? 2 : 1;

    worker->slot_bytes = worker->layers * slot_parts(worker) * part_bytes(worker) + worker->padding_bytes;
    for (size_t i = 0; i < memories; i++) {
        worker->memory_bytes[i] = worker->blocks * worker->slot_bytes;
        worker->memory[i] = malloc((size_t)worker->memory_bytes[i]);
        assert_non_null(worker->memory[i]);
        memset(worker->memory[i], GUARD, (size_t)worker->memory_bytes[i]);
    }
    create_layout(worker, memories);
}

void worker_close(struct worker *worker)
{
    kvf_layout_release(worker->layout);
    kvf_holdings_release(worker->holdings);
    free(worker->memory[0]);
    free(worker->memory[1]);
}

/* ---- marks ---- */

/* Stripe that owns a block of a request, dealt out one block after the other. */
static int64_t owner(const struct worker *worker, int64_t block, int64_t blocks)
{
    int64_t at = 0;

    if (worker->dealing == NOT_DEALT) return 0;
    if (worker->dealing == BY_BLOCK) return block % worker->stripes;
    for (int64_t stripe = 0; stripe < worker->stripes; stripe++) {
        at += blocks / worker->stripes + (stripe < blocks % worker->stripes);
        if (block < at) return stripe;
    }
    return -1;
}

int64_t worker_slot(const struct worker *worker, int64_t token, int64_t tokens)
{
    int64_t blocks = (tokens + worker->tokens_per_block - 1) / worker->tokens_per_block;
    int64_t block = token / worker->tokens_per_block, ordinal = 0;

    if (owner(worker, block, blocks) != worker->stripe) return -1;
    for (int64_t before = 0; before < block; before++) ordinal += owner(worker, before, blocks) == worker->stripe;
    ordinal -= worker->id_first;
    return ordinal < 0 || ordinal >= (int64_t)worker->id_count ? -1 : worker->ids[ordinal];
}

static void make_mark(unsigned char *row, int64_t row_bytes, int part, int64_t layer, int64_t head, int64_t token)
{
    uint64_t number = (((uint64_t)layer * 2 + (uint64_t)part) * 64 + (uint64_t)head) * 65536 + (uint64_t)token;

    for (int64_t i = 0; i < row_bytes; i++) {
        uint64_t mixed = (number * 4096 + (uint64_t)i) * UINT64_C(0x9e3779b97f4a7c15);

        row[i] = (unsigned char)(mixed >> 56);
    }
}

void worker_fill(struct worker *worker, int64_t tokens)
{
    int64_t end = (tokens + worker->tokens_per_block - 1) / worker->tokens_per_block * worker->tokens_per_block;

    for (int64_t token = 0; token < end; token++) {
        int64_t slot = worker_slot(worker, token, tokens);

        if (slot < 0) continue;
        for (int part = 0; part < parts_of(worker); part++)
            for (int64_t layer = worker->layer_first; layer < worker->layer_first + worker->layers; layer++)
                for (int64_t head = worker->head_first; head < worker->head_first + worker->head_count; head++)
                    make_mark(worker_row(worker, part, layer, slot, head, token % worker->tokens_per_block),
                              worker->row_bytes, part, layer, head, token);
    }
}

/* Compares one row and takes it out of the bytes that must be guards. */
static void check_row(const struct worker *worker, unsigned char *copies[2], int part, int64_t layer, int64_t slot,
                      int64_t head, int64_t token, const char *name)
{
    const unsigned char *row = worker_row(worker, part, layer, slot, head, token % worker->tokens_per_block);
    size_t memory = worker->apart ? (size_t)part : 0;
    unsigned char expected[2048];

    make_mark(expected, worker->row_bytes, part, layer, head, token);
    if (memcmp(row, expected, (size_t)worker->row_bytes) != 0) {
        fail_msg("%s: %s layer %d head %d token %d is wrong", name, part ? "v" : "k", (int)layer, (int)head,
                 (int)token);
    }
    memset(copies[memory] + (row - worker->memory[memory]), GUARD, (size_t)worker->row_bytes);
}

static void check_guards(const struct worker *worker, unsigned char *copies[2], const char *name)
{
    for (int i = 0; i < 2; i++) {
        for (int64_t at = 0; at < worker->memory_bytes[i]; at++) {
            if (copies[i][at] != GUARD) fail_msg("%s: byte %d of memory %d was overwritten", name, (int)at, i);
        }
        free(copies[i]);
    }
}

void worker_check(const struct worker *worker, int64_t begin, int64_t end, int64_t tokens, const char *name)
{
    unsigned char *copies[2] = {NULL, NULL};

    for (int i = 0; i < 2; i++) {
        copies[i] = malloc((size_t)worker->memory_bytes[i] + 1);
        assert_non_null(copies[i]);
        if (worker->memory_bytes[i]) memcpy(copies[i], worker->memory[i], (size_t)worker->memory_bytes[i]);
    }
    for (int64_t token = begin; token < end; token++) {
        int64_t slot = worker_slot(worker, token, tokens);

        if (slot < 0) continue;
        for (int part = 0; part < parts_of(worker); part++)
            for (int64_t layer = worker->layer_first; layer < worker->layer_first + worker->layers; layer++)
                for (int64_t head = worker->head_first; head < worker->head_first + worker->head_count; head++)
                    check_row(worker, copies, part, layer, slot, head, token, name);
    }
    check_guards(worker, copies, name);
}

/* ---- moving ---- */

static void copy_run(struct pull *pull, const struct worker *src, const struct worker *dst, const struct kvf_move *move,
                     int64_t from, int64_t to)
{
    assert_in_range(from, 0, src->memory_bytes[move->src_memory] - move->run_bytes);
    assert_in_range(to, 0, dst->memory_bytes[move->dst_memory] - move->run_bytes);
    memcpy(dst->memory[move->dst_memory] + to, src->memory[move->src_memory] + from, (size_t)move->run_bytes);
    if (from + move->run_bytes > pull->source_end) pull->source_end = from + move->run_bytes;
    if (move->run_bytes > pull->longest_run) pull->longest_run = move->run_bytes;
}

static void copy_move(struct pull *pull, const struct worker *src, const struct worker *dst,
                      const struct kvf_move *move, int64_t level, int64_t from, int64_t to)
{
    if (level == move->loop_count || level == (int64_t)(sizeof move->loops / sizeof *move->loops)) {
        copy_run(pull, src, dst, move, from, to);
    } else {
        for (int64_t i = 0; i < move->loops[level].count; i++) {
            copy_move(pull, src, dst, move, level + 1, from + i * move->loops[level].src_stride_bytes,
                      to + i * move->loops[level].dst_stride_bytes);
        }
    }
}

static void copy_binding(struct pull *pull, const struct worker *src, const struct worker *dst,
                         const kvf_binding *binding)
{
    struct kvf_move move;
    kvf_cursor *cursor = NULL;

    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    while (kvf_cursor_next(cursor, &move) == KVF_OK) {
        copy_move(pull, src, dst, &move, 0, move.src_offset_bytes, move.dst_offset_bytes);
    }
    kvf_cursor_destroy(cursor);
}

static enum kvf_status pull_from(struct pull *pull, const struct worker *src, const struct worker *dst,
                                 const kvf_share *share, int64_t *bytes)
{
    const struct kvf_id_list from = {src->ids, src->id_count, src->id_first};
    const struct kvf_id_list to = {dst->ids, dst->id_count, dst->id_first};
    struct kvf_bind_request request;
    struct kvf_binding_info info;
    kvf_plan *plan = NULL;
    kvf_binding *binding = NULL;
    enum kvf_status status;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = pull->flags;
    request.token_begin = pull->begin;
    request.token_end = pull->end;
    request.request_tokens = pull->tokens;
    request.src = &from;
    request.dst = &to;
    request.src_count = request.dst_count = 1;
    status = kvf_plan_create(src->layout, dst->layout, share, NULL, &plan, &pull->error);
    if (status == KVF_OK) status = kvf_bind(plan, &request, &binding, &pull->error);
    if (status == KVF_OK) {
        copy_binding(pull, src, dst, binding);
        kvf_binding_get_info(binding, &info);
        *bytes = info.bytes;
        pull->bytes += info.bytes;
        pull->runs += info.runs;
        pull->valid_tokens = info.valid_tokens;
        pull->first_missing = info.first_missing;
    }
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    return status;
}

enum kvf_status pull(struct pull *pull, const struct worker *src, size_t src_count, const struct worker *dst,
                     size_t dst_count, size_t destination, int only)
{
    struct kvf_member src_members[MOST_WORKERS] = {{{0}, NULL}}, dst_members[MOST_WORKERS] = {{{0}, NULL}};
    kvf_election *election = NULL;
    enum kvf_status status;

    for (size_t i = 0; i < src_count; i++) src_members[i] = (struct kvf_member){src[i].rank, src[i].holdings};
    for (size_t i = 0; i < dst_count; i++) dst_members[i] = (struct kvf_member){dst[i].rank, dst[i].holdings};
    pull->bytes = pull->runs = pull->longest_run = pull->source_end = 0;
    status = kvf_elect(src_members, src_count, dst_members, dst_count, destination, &election, &pull->error);
    for (size_t i = 0; i < src_count && status == KVF_OK; i++) {
        const kvf_share *share = kvf_election_share(election, i);

        pull->bytes_from[i] = -1;
        if (share && (only < 0 || (size_t)only == i)) {
            status = pull_from(pull, &src[i], &dst[destination], share, &pull->bytes_from[i]);
        }
    }
    kvf_election_destroy(election);
    return status;
}

void instance_open(struct worker *workers, int64_t heads, int64_t count, int64_t blocks, int64_t tokens, bool filled)
{
    for (int64_t i = 0; i < count; i++) {
        workers[i] = tiny(heads, count, i, blocks);
        worker_open(&workers[i]);
        if (filled) worker_fill(&workers[i], tokens);
    }
}

void instance_close(struct worker *workers, size_t count)
{
    for (size_t i = 0; i < count; i++) worker_close(&workers[i]);
}
