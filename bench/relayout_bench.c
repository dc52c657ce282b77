/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's re-layout at 256 MiB: 30 layers, 3 heads of 64 f16, head-major blocks of 16 tokens with K and V in two
 * pools, to token-major blocks of 64 tokens with both in one pool. kvferry over shm against bare loop nests that do
 * the same. */
#include "pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 30,
    HEADS = 3,
    ROW_BYTES = 128,
    SRC_TOKENS = 16,
    DST_TOKENS = 64,
    SRC_PART_BYTES = HEADS * SRC_TOKENS * ROW_BYTES, /* K or V of one layer in one block */
    DST_PART_BYTES = HEADS * DST_TOKENS * ROW_BYTES,
    SRC_SLOT_BYTES = LAYERS * SRC_PART_BYTES,
    DST_SLOT_BYTES = 2 * LAYERS * DST_PART_BYTES + 256,
    TOKEN_BYTES = 2 * LAYERS * HEADS * ROW_BYTES,
    MAX_REPETITIONS = 99
};

struct bench {
    int64_t tokens, src_blocks, dst_blocks;
    int64_t *src_ids, *dst_ids;
    struct bench_memory src, dst;
};

static const char *src_part(const struct bench *bench, int64_t block, int64_t layer, int kv)
{
    return bench->src.address + kv * bench->src_blocks * SRC_SLOT_BYTES + bench->src_ids[block] * SRC_SLOT_BYTES +
           layer * SRC_PART_BYTES;
}

static char *dst_part(const struct bench *bench, int64_t block, int64_t layer, int kv)
{
    return bench->dst.address + bench->dst_ids[block] * DST_SLOT_BYTES + (2 * layer + kv) * DST_PART_BYTES;
}

/* A nest that walks the destination in address order. */
static void nest_by_destination(const struct bench *bench)
{
    for (int64_t block = 0; block < bench->dst_blocks; block++) {
        for (int64_t layer = 0; layer < LAYERS; layer++) {
            for (int kv = 0; kv < 2; kv++) {
                char *to = dst_part(bench, block, layer, kv);
                for (int64_t token = 0; token < DST_TOKENS; token++) {
                    const char *from = src_part(bench, (block * DST_TOKENS + token) / SRC_TOKENS, layer, kv) +
                                       token % SRC_TOKENS * ROW_BYTES;
                    for (int64_t head = 0; head < HEADS; head++) {
                        memcpy(to, from + head * SRC_TOKENS * ROW_BYTES, ROW_BYTES);
                        to += ROW_BYTES;
                    }
                }
            }
        }
    }
}

/* A nest that walks the source in address order. */
static void nest_by_source(const struct bench *bench)
{
    for (int64_t block = 0; block < bench->src_blocks; block++) {
        int64_t first = block * SRC_TOKENS;
        for (int kv = 0; kv < 2; kv++) {
            for (int64_t layer = 0; layer < LAYERS; layer++) {
                const char *from = src_part(bench, block, layer, kv);
                char *to = dst_part(bench, first / DST_TOKENS, layer, kv) + first % DST_TOKENS * HEADS * ROW_BYTES;
                for (int64_t head = 0; head < HEADS; head++) {
                    for (int64_t token = 0; token < SRC_TOKENS; token++) {
                        memcpy(to + (token * HEADS + head) * ROW_BYTES, from, ROW_BYTES);
                        from += ROW_BYTES;
                    }
                }
            }
        }
    }
}

static kvf_layout *make_layout(const struct bench *bench, bool is_src)
{
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout = NULL;
    struct kvf_place places[2][LAYERS];
    int64_t tokens = is_src ? SRC_TOKENS : DST_TOKENS, blocks = is_src ? bench->src_blocks : bench->dst_blocks;
    int64_t memory_bytes = is_src ? bench->src.bytes : bench->dst.bytes;
    struct kvf_group group = {.tokens_per_block = tokens, .stripes = 1};
    struct kvf_pool pools[2] = {
        {.slot_stride_bytes = is_src ? SRC_SLOT_BYTES : DST_SLOT_BYTES, .slots = blocks},
        {.slot_stride_bytes = SRC_SLOT_BYTES, .slots = blocks, .base_offset_bytes = blocks * SRC_SLOT_BYTES}};
    struct kvf_view views[2];

    for (int kv = 0; kv < 2; kv++) {
        for (int64_t layer = 0; layer < LAYERS; layer++) {
            places[kv][layer] = (struct kvf_place){
                .layer = layer, .pool = is_src ? kv : 0,
                .offset_bytes = is_src ? layer * SRC_PART_BYTES : (2 * layer + kv) * DST_PART_BYTES};
        }
        views[kv] = (struct kvf_view){
            .role = kv == 0 ? "k" : "v", .tag = "f16", .row_bytes = ROW_BYTES, .byte_count = ROW_BYTES,
            .unit_total = HEADS, .unit_count = HEADS, .entries = tokens, .slots_per_block = 1,
            .unit_stride_bytes = is_src ? SRC_TOKENS * ROW_BYTES : ROW_BYTES,
            .entry_stride_bytes = is_src ? ROW_BYTES : HEADS * ROW_BYTES, .places = places[kv], .place_count = LAYERS};
    }
    kvf_layout_spec_init(&spec, sizeof(spec));
    spec.memory_bytes = &memory_bytes;
    spec.pools = pools;
    spec.pool_count = is_src ? 2 : 1;
    spec.groups = &group;
    spec.views = views;
    spec.view_count = 2;
    spec.memory_count = spec.group_count = 1;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) {
        bench_fail("layout: %s", error.text);
    }
    return layout;
}

static struct bench_pair *open_pair(const struct bench *bench)
{
    kvf_layout *src = make_layout(bench, true), *dst = make_layout(bench, false);
    struct bench_pair_options options = {
        .transports = "shm", .src_layout = src, .dst_layout = dst, .src = &bench->src, .dst = &bench->dst,
        .request_tokens = bench->tokens,
        .src_ids = {.ids = bench->src_ids, .count = (size_t)bench->src_blocks},
        .dst_ids = {.ids = bench->dst_ids, .count = (size_t)bench->dst_blocks}};
    struct bench_pair *pair = bench_pair_fork(&options);

    bench_pair_start(pair);
    kvf_layout_release(src);
    kvf_layout_release(dst);
    return pair;
}

static double measure(struct bench *bench, struct bench_pair *pair, int way)
{
    int64_t started_ns = bench_now_ns();
    if (way == 2) {
        return bench_pair_pull(pair, NULL);
    }
    (way == 0 ? nest_by_destination : nest_by_source)(bench);
    return (double)(bench_now_ns() - started_ns) / 1e9;
}

/* Every way must leave the same bytes: compared with those of the first. */
static void check_all(struct bench *bench, struct bench_pair *pair)
{
    size_t bytes = (size_t)bench->dst.bytes;
    char *expected = malloc(bytes);

    for (int way = 0; expected != NULL && way < 3; way++) {
        memset(bench->dst.address, 0x5a, bytes);
        measure(bench, pair, way);
        if (way == 0) {
            memcpy(expected, bench->dst.address, bytes);
        } else if (memcmp(expected, bench->dst.address, bytes) != 0) {
            bench_fail("%s leaves other bytes", way == 1 ? "the nest by source" : "kvferry");
        }
    }
    free(expected);
}

int main(int argc, char **argv)
{
    static const char *const names[3] = {"loop nest, destination order", "loop nest, source order", "kvferry shm"};
    struct bench bench = {0};
    double seconds[3][MAX_REPETITIONS];
    struct bench_samples samples[3];
    int64_t mib = bench_option(argc, argv, "mib", 256), repetitions = bench_option(argc, argv, "repetitions", 7);

    if (repetitions > MAX_REPETITIONS) {
        bench_fail("at most %d repetitions", MAX_REPETITIONS);
    }
    bench.dst_blocks = mib * 1048576 / TOKEN_BYTES / DST_TOKENS;
    bench.tokens = bench.dst_blocks * DST_TOKENS;
    bench.src_blocks = bench.tokens / SRC_TOKENS;
    bench.src_ids = bench_shuffled((size_t)bench.src_blocks, 1);
    bench.dst_ids = bench_shuffled((size_t)bench.dst_blocks, 2);
    bench.src = bench_memory_create(2 * bench.src_blocks * SRC_SLOT_BYTES);
    bench.dst = bench_memory_create(bench.dst_blocks * DST_SLOT_BYTES);
    for (int64_t i = 0; i + 8 <= bench.src.bytes; i += 8) {
        memcpy(bench.src.address + i, &i, sizeof(i));
    }

    double pingpong_ns = bench_pingpong_ns();
    struct bench_pair *pair = open_pair(&bench);
    check_all(&bench, pair);
    for (int64_t round = 0; round < repetitions; round++) {
        for (int way = 0; way < 3; way++) {
            seconds[way][round] = measure(&bench, pair, way);
        }
    }
    double bytes = (double)(bench.tokens * TOKEN_BYTES);
    printf("{\"bench\": \"relayout\", \"mib\": %.0f, \"repetitions\": %lld, \"pingpong_ns\": %.0f, "
           "\"placement\": \"%s\"}\n", bytes / 1048576, (long long)repetitions, pingpong_ns,
           bench_placement(pingpong_ns));
    for (int way = 0; way < 3; way++) {
        samples[way] = bench_summary(seconds[way], (size_t)repetitions);
        bench_print_way("relayout", names[way], bytes, samples[way]);
    }
    struct bench_samples nest = samples[samples[1].median_s < samples[0].median_s];
    bench_print_ratio("relayout", "shm against the better loop nest", samples[2], nest, 0.6);
    bench_pair_close(pair);
    bench_memory_destroy(&bench.src);
    bench_memory_destroy(&bench.dst);
    free(bench.src_ids);
    free(bench.dst_ids);
    return 0;
}
