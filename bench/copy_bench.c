/* SPDX-License-Identifier: Apache-2.0 */
/* kvf_copy and the packer in one process against bare loops: 256-byte runs in shuffled blocks whose destination
 * stride is twice the run, and a re-layout of 128-byte rows from heads-first blocks of 16 tokens to tokens-first
 * blocks of 64. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/copy.h"
#include "kvferry/plan.h"

enum { MAX_REPETITIONS = 99, STAGE_BYTES = 256 << 10 };

/* One kind of move: what kvferry is given, and the bare loop that does the same. */
struct work {
    const char *name;
    int64_t bytes;
    kvf_binding *binding;
    struct bench_memory src, dst;
    struct bench_runs runs;   /* of the first kind */
    int64_t heads, layers;    /* of the second */
    int64_t *src_ids, *dst_ids;
    int64_t src_blocks, dst_blocks;
    void (*bare)(const struct work *work);
};

struct side {
    int64_t block_tokens, slots, slot_bytes, units, unit_total, unit_stride, entry_stride, layers, layer_bytes, row;
    int64_t memory_bytes;
};

static kvf_layout *make_layout(const struct side *side)
{
    struct kvf_pool pool = {.slot_stride_bytes = side->slot_bytes, .slots = side->slots};
    struct kvf_group group = {.tokens_per_block = side->block_tokens, .stripes = 1};
    struct kvf_place *places = calloc((size_t)side->layers, sizeof *places);
    struct kvf_view view = {.role = "k", .tag = "f16", .row_bytes = side->row, .byte_count = side->row,
                            .unit_total = side->unit_total, .unit_count = side->units, .slots_per_block = 1,
                            .unit_stride_bytes = side->unit_stride, .entry_stride_bytes = side->entry_stride,
                            .entries = side->block_tokens, .places = places, .place_count = (size_t)side->layers};
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout = NULL;

    for (int64_t i = 0; i < side->layers; i++)
        places[i] = (struct kvf_place){.layer = i, .offset_bytes = i * side->layer_bytes};
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &side->memory_bytes;
    spec.memory_count = spec.pool_count = spec.group_count = spec.view_count = 1;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = &view;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) bench_fail("layout: %s", error.text);
    free(places);
    return layout;
}

static void bind_work(struct work *work, const struct side *src, const struct side *dst, int64_t tokens)
{
    kvf_layout *src_layout = make_layout(src), *dst_layout = make_layout(dst);
    struct kvf_id_list src_list = {.ids = work->src_ids, .count = (size_t)work->src_blocks};
    struct kvf_id_list dst_list = {.ids = work->dst_ids, .count = (size_t)work->dst_blocks};
    struct kvf_bind_request request;
    struct kvf_binding_info info;
    struct kvf_error error;
    kvf_plan *plan = NULL;

    kvf_bind_request_init(&request, sizeof request);
    request.token_end = request.request_tokens = tokens;
    request.src = &src_list;
    request.dst = &dst_list;
    request.src_count = request.dst_count = 1;
    if (kvf_plan_create(src_layout, dst_layout, NULL, NULL, &plan, &error) != KVF_OK ||
        kvf_bind(plan, &request, &work->binding, &error) != KVF_OK)
        bench_fail("%s: %s", work->name, error.text);
    kvf_binding_get_info(work->binding, &info);
    work->bytes = info.bytes;
    kvf_plan_release(plan);
    kvf_layout_release(src_layout);
    kvf_layout_release(dst_layout);
}

static void bare_runs(const struct work *work)
{
    bench_copy_streaming(&work->runs, work->dst.address, work->src.address);
}

static struct work make_runs(int64_t bytes)
{
    int64_t blocks = bytes / (16 * 256);
    struct work work = {.name = "runs-256", .src_blocks = blocks, .dst_blocks = blocks, .bare = bare_runs};
    struct side src = {.block_tokens = 16,
                       .slots = blocks,
                       .slot_bytes = 4096,
                       .units = 1,
                       .unit_total = 2,
                       .unit_stride = 4096,
                       .entry_stride = 256,
                       .layers = 1,
                       .row = 256,
                       .memory_bytes = blocks * 4096};
    struct side dst = {.block_tokens = 16, .slots = blocks, .slot_bytes = 8192, .units = 2, .unit_total = 2,
                       .unit_stride = 256, .entry_stride = 512, .layers = 1, .row = 256, .memory_bytes = blocks * 8192};

    work.src_ids = bench_shuffled((size_t)blocks, 1);
    work.dst_ids = bench_shuffled((size_t)blocks, 2);
    work.src = bench_memory_create(src.memory_bytes);
    work.dst = bench_memory_create(dst.memory_bytes);
    work.runs = (struct bench_runs){.blocks = blocks, .runs_per_block = 16, .run_bytes = 256, .src_slot_bytes = 4096,
                                    .src_stride_bytes = 256, .dst_slot_bytes = 8192, .dst_stride_bytes = 512,
                                    .src_ids = work.src_ids, .dst_ids = work.dst_ids};
    bench_fill(&work.runs, work.src.address);
    bind_work(&work, &src, &dst, blocks * 16);
    return work;
}

/* Walks the destination in address order. */
static void bare_relayout(const struct work *work)
{
    int64_t src_layer = work->heads * 16 * 128, dst_layer = work->heads * 64 * 128;

    for (int64_t block = 0; block < work->dst_blocks; block++) {
        for (int64_t layer = 0; layer < work->layers; layer++) {
            char *to = work->dst.address + work->dst_ids[block] * (dst_layer * work->layers + 256) + layer * dst_layer;

            for (int64_t token = 0; token < 64; token++) {
                const char *from = work->src.address +
                                   work->src_ids[block * 4 + token / 16] * src_layer * work->layers +
                                   layer * src_layer + token % 16 * 128;

                for (int64_t head = 0; head < work->heads; head++, to += 128) memcpy(to, from + head * 16 * 128, 128);
            }
        }
    }
}

static struct work make_relayout(int64_t bytes)
{
    int64_t heads = 3, layers = 30, dst_blocks = bytes / (layers * heads * 64 * 128);
    struct work work = {.name = "relayout-128", .src_blocks = dst_blocks * 4, .dst_blocks = dst_blocks, .heads = heads,
                        .layers = layers, .bare = bare_relayout};
    struct side src = {.block_tokens = 16,
                       .slots = work.src_blocks,
                       .slot_bytes = layers * heads * 16 * 128,
                       .units = heads,
                       .unit_total = heads,
                       .unit_stride = 16 * 128,
                       .entry_stride = 128,
                       .layers = layers,
                       .layer_bytes = heads * 16 * 128,
                       .row = 128};
    struct side dst = {.block_tokens = 64, .slots = dst_blocks, .slot_bytes = layers * heads * 64 * 128 + 256,
                       .units = heads, .unit_total = heads, .unit_stride = 128, .entry_stride = heads * 128,
                       .layers = layers, .layer_bytes = heads * 64 * 128, .row = 128};

    src.memory_bytes = src.slots * src.slot_bytes;
    dst.memory_bytes = dst.slots * dst.slot_bytes;
    work.src_ids = bench_shuffled((size_t)work.src_blocks, 3);
    work.dst_ids = bench_shuffled((size_t)dst_blocks, 4);
    work.src = bench_memory_create(src.memory_bytes);
    work.dst = bench_memory_create(dst.memory_bytes);
    for (int64_t i = 0; i < src.memory_bytes; i++) work.src.address[i] = (char)(i * 31 + i / 509);
    bind_work(&work, &src, &dst, dst_blocks * 64);
    return work;
}

static void free_work(struct work *work)
{
    kvf_binding_destroy(work->binding);
    bench_memory_destroy(&work->src);
    bench_memory_destroy(&work->dst);
    free(work->src_ids);
    free(work->dst_ids);
}

/* ---- the ways --------------------------------------------------------------------------------------------------- */

static void copy_direct(const struct work *work)
{
    void *src = work->src.address, *dst = work->dst.address;
    struct kvf_error error;

    if (kvf_copy(work->binding, &src, 1, &dst, 1, &error) != KVF_OK) bench_fail("copy: %s", error.text);
}

/* Through a block that stays in the caches, as a transport without shared memory does it. */
static void copy_packed(const struct work *work)
{
    void *src = work->src.address, *dst = work->dst.address;
    char *stage = malloc(STAGE_BYTES);
    kvf_packer *packer = NULL, *unpacker = NULL;
    int64_t bytes;

    if (!stage || kvf_packer_create(work->binding, KVF_PACK, &src, 1, &packer, NULL) != KVF_OK ||
        kvf_packer_create(work->binding, KVF_UNPACK, &dst, 1, &unpacker, NULL) != KVF_OK)
        bench_fail("packer");
    while ((bytes = kvf_packer_run(packer, stage, STAGE_BYTES)) > 0) kvf_packer_run(unpacker, stage, bytes);
    kvf_packer_destroy(packer);
    kvf_packer_destroy(unpacker);
    free(stage);
}

static void measure(const struct work *work, int64_t repetitions)
{
    void (*const ways[])(const struct work *work) = {work->bare, copy_direct, copy_packed};
    static const char *const names[] = {"bare loop", "kvf_copy", "pack and unpack"};
    double seconds[3][MAX_REPETITIONS];
    struct bench_samples samples[3];
    char *expected = malloc((size_t)work->dst.bytes);

    if (!expected) bench_fail("out of memory");
    memset(work->dst.address, 0x55, (size_t)work->dst.bytes);
    work->bare(work);
    memcpy(expected, work->dst.address, (size_t)work->dst.bytes);
    for (int way = 1; way < 3; way++) {
        memset(work->dst.address, 0x55, (size_t)work->dst.bytes);
        ways[way](work);
        if (memcmp(expected, work->dst.address, (size_t)work->dst.bytes) != 0)
            bench_fail("%s: %s moves other bytes than the bare loop", work->name, names[way]);
    }
    free(expected);
    for (int64_t i = 0; i < repetitions; i++) {
        for (int way = 0; way < 3; way++) {
            int64_t start_ns = bench_now_ns();

            ways[way](work);
            seconds[way][i] = (double)(bench_now_ns() - start_ns) / 1e9;
        }
    }
    for (int way = 0; way < 3; way++) {
        samples[way] = bench_summary(seconds[way], (size_t)repetitions);
        bench_print_way(work->name, names[way], (double)work->bytes, samples[way]);
    }
    bench_print_ratio(work->name, "kvf_copy / bare loop", samples[1], samples[0], 0.8);
}

int main(int argc, char **argv)
{
    int64_t bytes = bench_option(argc, argv, "mib", 256) << 20;
    int64_t repetitions = bench_option(argc, argv, "repetitions", 9);
    struct work works[2];

    if (repetitions > MAX_REPETITIONS)
        bench_fail("--repetitions %lld, at most %d", (long long)repetitions, MAX_REPETITIONS);
    works[0] = make_runs(bytes);
    works[1] = make_relayout(bytes);
    for (int i = 0; i < 2; i++) {
        measure(&works[i], repetitions);
        free_work(&works[i]);
    }
    return 0;
}
