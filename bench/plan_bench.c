/* SPDX-License-Identifier: Apache-2.0 */
/* What planning costs: 80 layers from TP 4 to TP 2, and binding 8,192 blocks, contiguous and scattered. `--only N`
 * does one of them a few times and nothing else (1 plan, 2 contiguous, 3 scattered, 4 plan of 640 layers), for
 * counting instructions. */
#include "bench.h"
#include "kvferry/kvferry.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 80, HEADS = 8, ROW_BYTES = 256, TOKENS = 16, BLOCKS = 8192, ROUNDS = 21 };
enum { MAX_LAYERS = 1280, MAX_TP = 8 };
enum { ONLY_PLAN = 1, ONLY_CONTIGUOUS = 2, ONLY_SCATTERED = 3, ONLY_MANY_LAYERS = 4 };

static kvf_layout *make_layout(int64_t layers, int64_t tp, int64_t rank)
{
    static struct kvf_place places[2][MAX_LAYERS];
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout = NULL;
    int64_t heads = HEADS / tp, part_bytes = heads * TOKENS * ROW_BYTES, memory_bytes = -1;
    struct kvf_pool pool = {.slot_stride_bytes = 2 * layers * part_bytes, .slots = 4 * BLOCKS};
    struct kvf_group group = {.tokens_per_block = TOKENS, .stripes = 1};
    struct kvf_view views[2];

    for (int kv = 0; kv < 2; kv++) {
        for (int64_t layer = 0; layer < layers; layer++) {
            places[kv][layer] = (struct kvf_place){.layer = layer, .offset_bytes = (2 * layer + kv) * part_bytes};
        }
        views[kv] = (struct kvf_view){
            .role = kv == 0 ? "k" : "v", .tag = "bf16", .row_bytes = ROW_BYTES, .byte_count = ROW_BYTES,
            .unit_total = HEADS, .unit_first = rank * heads, .unit_count = heads, .unit_stride_bytes = ROW_BYTES,
            .entry_stride_bytes = heads * ROW_BYTES, .entries = TOKENS, .slots_per_block = 1, .places = places[kv],
            .place_count = (size_t)layers};
    }
    kvf_layout_spec_init(&spec, sizeof(spec));
    spec.memory_bytes = &memory_bytes;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = views;
    spec.view_count = 2;
    spec.memory_count = spec.pool_count = spec.group_count = 1;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) {
        bench_fail("layout: %s", error.text);
    }
    return layout;
}

struct instance {
    kvf_layout *layouts[MAX_TP];
    struct kvf_member members[MAX_TP];
    size_t count;
};

static void make_instance(struct instance *instance, int64_t layers, int64_t tp)
{
    instance->count = (size_t)tp;
    for (int64_t rank = 0; rank < tp; rank++) {
        kvf_holdings *holdings = NULL;
        struct kvf_error error;
        instance->layouts[rank] = make_layout(layers, tp, rank);
        if (kvf_holdings_from_layout(instance->layouts[rank], &holdings, &error) != KVF_OK) {
            bench_fail("holdings: %s", error.text);
        }
        instance->members[rank] = (struct kvf_member){.rank = {.tp = rank}, .holdings = holdings};
    }
}

static void free_instance(struct instance *instance)
{
    for (size_t rank = 0; rank < instance->count; rank++) {
        kvf_layout_release(instance->layouts[rank]);
        kvf_holdings_release((kvf_holdings *)instance->members[rank].holdings);
    }
}

static kvf_election *elect(const struct instance *src, const struct instance *dst)
{
    struct kvf_error error;
    kvf_election *election = NULL;
    if (kvf_elect(src->members, src->count, dst->members, dst->count, 0, &election, &error) != KVF_OK) {
        bench_fail("election: %s", error.text);
    }
    return election;
}

static kvf_plan *plan(const struct instance *src, const struct instance *dst, const kvf_election *election)
{
    struct kvf_error error;
    kvf_plan *plan = NULL;
    if (kvf_plan_create(src->layouts[0], dst->layouts[0], kvf_election_share(election, 0), NULL, &plan, &error) !=
        KVF_OK) {
        bench_fail("plan: %s", error.text);
    }
    return plan;
}

static kvf_binding *bind_blocks(const kvf_plan *plan, const int64_t *src_ids, const int64_t *dst_ids)
{
    struct kvf_bind_request request;
    struct kvf_error error;
    kvf_binding *binding = NULL;
    struct kvf_id_list src = {.ids = src_ids, .count = BLOCKS}, dst = {.ids = dst_ids, .count = BLOCKS};

    kvf_bind_request_init(&request, sizeof(request));
    request.token_end = request.request_tokens = BLOCKS * TOKENS;
    request.src = &src;
    request.dst = &dst;
    request.src_count = request.dst_count = 1;
    if (kvf_bind(plan, &request, &binding, &error) != KVF_OK) {
        bench_fail("bind: %s", error.text);
    }
    return binding;
}

static void measure_plan(int64_t layers, int rounds)
{
    struct instance src, dst;
    double elect_s[ROUNDS], plan_s[ROUNDS];
    struct kvf_plan_info info = {0};

    make_instance(&src, layers, 4);
    make_instance(&dst, layers, 2);
    for (int round = 0; round < rounds; round++) {
        int64_t started_ns = bench_now_ns();
        kvf_election *election = elect(&src, &dst);
        int64_t elected_ns = bench_now_ns();
        kvf_plan *made = plan(&src, &dst, election);
        plan_s[round] = (double)(bench_now_ns() - elected_ns) / 1e9;
        elect_s[round] = (double)(elected_ns - started_ns) / 1e9;
        kvf_plan_get_info(made, &info);
        kvf_plan_release(made);
        kvf_election_destroy(election);
    }
    printf("{\"bench\": \"plan\", \"layers\": %lld, \"from\": \"TP4\", \"to\": \"TP2\", \"elect_us\": %.1f, "
           "\"plan_us\": %.1f, \"aim_us\": 1000, \"boxes\": %lld, \"plan_bytes\": %lld}\n", (long long)layers,
           bench_summary(elect_s, (size_t)rounds).median_s * 1e6, bench_summary(plan_s, (size_t)rounds).median_s * 1e6,
           (long long)info.boxes, (long long)info.plan_bytes);
    free_instance(&src);
    free_instance(&dst);
}

static void measure_bind(const char *name, const int64_t *src_ids, const int64_t *dst_ids, int rounds)
{
    struct instance src, dst;
    double seconds[ROUNDS];
    struct kvf_binding_info info = {0};

    make_instance(&src, LAYERS, 4);
    make_instance(&dst, LAYERS, 2);
    kvf_election *election = elect(&src, &dst);
    kvf_plan *made = plan(&src, &dst, election);
    for (int round = 0; round < rounds; round++) {
        int64_t started_ns = bench_now_ns();
        kvf_binding *binding = bind_blocks(made, src_ids, dst_ids);
        seconds[round] = (double)(bench_now_ns() - started_ns) / 1e9;
        kvf_binding_get_info(binding, &info);
        kvf_binding_destroy(binding);
    }
    printf("{\"bench\": \"bind\", \"blocks\": %d, \"layers\": %d, \"ids\": \"%s\", \"bind_us\": %.1f, "
           "\"aim_us\": 1000, \"block_runs\": %lld, \"binding_bytes\": %lld, \"runs\": %lld}\n", BLOCKS, LAYERS, name,
           bench_summary(seconds, (size_t)rounds).median_s * 1e6, (long long)info.block_runs,
           (long long)info.binding_bytes, (long long)info.runs);
    kvf_plan_release(made);
    kvf_election_destroy(election);
    free_instance(&src);
    free_instance(&dst);
}

int main(int argc, char **argv)
{
    int64_t only = bench_option(argc, argv, "only", 99);
    int rounds = only == 99 ? ROUNDS : 1;
    int64_t *scattered = bench_shuffled(BLOCKS, 1), *others = bench_shuffled(BLOCKS, 2);
    int64_t ordered[BLOCKS];

    for (int64_t i = 0; i < BLOCKS; i++) {
        ordered[i] = i;
    }
    if (only == 99) {
        measure_plan(LAYERS / 2, rounds);
    }
    if (only == 99 || only == ONLY_MANY_LAYERS) {
        measure_plan(LAYERS * 8, rounds);
    }
    if (only == 99 || only == ONLY_PLAN) {
        measure_plan(LAYERS, rounds);
    }
    if (only == 99 || only == ONLY_CONTIGUOUS) {
        measure_bind("contiguous", ordered, ordered, rounds);
    }
    if (only == 99 || only == ONLY_SCATTERED) {
        measure_bind("scattered", scattered, others, rounds);
    }
    free(scattered);
    free(others);
    return 0;
}
