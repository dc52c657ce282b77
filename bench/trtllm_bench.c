/* SPDX-License-Identifier: Apache-2.0 */
/* What deciding costs between ranks of TensorRT-LLM's dialect: registering a peer and planning all its views, 80 layers
 * from TP 4 to TP 2; binding a request of 8,192 blocks, head-major and token-major, beside a transcription of the
 * documented arithmetic in numpy, run in turns; and 1,000 peers in one registrar.
 * `--only N` does one of them a few times and nothing else, for counting instructions: 1 register and plan, 2 bind
 * head-major, 3 bind token-major, 4 the peers. */
#include "bench.h"
#include "kvferry/kvferry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 80, HEADS = 8, TOKENS = 32, ROW_BYTES = 256, ROUNDS = 21, SLOTS = 16384, RANKS = 8 };
enum { ONLY_REGISTER = 1, ONLY_INDEXED = 2, ONLY_NHD = 3, ONLY_PEERS = 4 };

static struct kvf_error error;

static void check(enum kvf_status status, const char *what)
{
    if (status != KVF_OK) bench_fail("%s: %s", what, error.text);
}

/** A rank of a model of 80 layers: K and V of all layers, one behind the other, in the slots of one pool. */
static kvf_trtllm_rank *make_rank(const char *name, int64_t tp, int64_t rank, int64_t mapper)
{
    static struct kvf_trtllm_layer layers[LAYERS];
    static struct kvf_trtllm_entry entries[2 * LAYERS];
    const char *roles[] = {"key", "value"}, *endpoints[RANKS];
    int64_t heads = HEADS / tp, buffer = heads * TOKENS * ROW_BYTES, stage = LAYERS;
    struct kvf_trtllm_pool pool = {.base_address = UINT64_C(0x7f0000000000) + ((uint64_t)rank << 40),
                                   .slot_bytes = 2 * LAYERS * buffer, .num_slots = SLOTS,
                                   .slot_stride_bytes = 2 * LAYERS * buffer, .layer_stride_bytes = KVF_TRTLLM_NONE};
    struct kvf_trtllm_pool_group pools = {&pool, 1};
    struct kvf_trtllm_view view = {.entries = entries, .entry_count = 2 * LAYERS, .roles = roles, .role_count = 2,
                                   .mapper = mapper, .bytes_per_layer = 2 * buffer, .num_kv_heads = heads,
                                   .bytes_per_head = KVF_TRTLLM_NONE, .ring_slot_bytes = KVF_TRTLLM_NONE};
    struct kvf_trtllm_group group = {.layers = layers, .layer_count = LAYERS, .views = &view, .view_count = 1,
                                     .kv_heads_per_rank = heads, .sliding_window_size = KVF_TRTLLM_NONE,
                                     .slot_major_layout = KVF_TRTLLM_NONE};
    struct kvf_trtllm_page_table table = {TOKENS, &group, 1, &pools, 1};
    struct kvf_trtllm_attention attention = {.kv_heads_per_rank = heads, .tokens_per_block = TOKENS,
                                             .dims_per_head = ROW_BYTES / 2, .element_eighths = 16};
    struct kvf_trtllm_rank_spec spec;
    kvf_trtllm_rank *made = NULL;

    for (int64_t i = 0; i < LAYERS; i++) layers[i] = (struct kvf_trtllm_layer){i, i};
    for (int64_t i = 0; i < 2 * LAYERS; i++) entries[i] = (struct kvf_trtllm_entry){i / 2, i * buffer, buffer};
    for (int64_t i = 0; i < tp; i++) endpoints[i] = "tcp://192.0.2.1:50000";
    kvf_trtllm_rank_spec_init(&spec, sizeof(spec));
    spec.instance_name = name;
    spec.instance_rank = spec.tp_rank = rank;
    spec.tp_size = tp;
    spec.layer_num_per_pp = &stage;
    spec.layer_num_count = 1;
    spec.sender_endpoints = endpoints;
    spec.sender_endpoint_count = (size_t)tp;
    spec.self_endpoint = "tcp://192.0.2.1:50001";
    spec.attention = &attention;
    spec.page_table = &table;
    check(kvf_trtllm_rank_create(&spec, &made, &error), "rank");
    return made;
}

static kvf_trtllm_registrar *make_registrar(const kvf_trtllm_rank *self)
{
    kvf_trtllm_registrar *registrar = NULL;

    check(kvf_trtllm_registrar_create(self, NULL, &registrar, &error), "registrar");
    return registrar;
}

static kvf_trtllm_pair *contact(kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(peer);
    kvf_trtllm_pair *pair = NULL;

    check(kvf_trtllm_registrar_register(registrar, peer, NULL, &error), "register");
    check(kvf_trtllm_registrar_pair(registrar, spec->instance_name, spec->instance_rank, &pair, &error), "pair");
    return pair;
}

static void measure_register(int64_t mapper, int rounds)
{
    kvf_trtllm_rank *self = make_rank("ctx", 4, 0, mapper), *peer = make_rank("gen", 2, 0, mapper);
    static char bytes[1 << 20];
    double decode_s[ROUNDS], contact_s[ROUNDS];
    struct kvf_plan_info info = {0};
    size_t count = 0;

    check(kvf_trtllm_rank_encode(peer, bytes, sizeof(bytes), &count, &error), "encode");
    for (int round = 0; round < rounds; round++) {
        kvf_trtllm_registrar *registrar = make_registrar(self);
        kvf_trtllm_rank *decoded = NULL;
        int64_t started_ns = bench_now_ns(), decoded_ns;
        kvf_trtllm_pair *pair;

        check(kvf_trtllm_rank_decode(bytes, count, &decoded, &error), "decode");
        decoded_ns = bench_now_ns();
        pair = contact(registrar, decoded);
        contact_s[round] = (double)(bench_now_ns() - decoded_ns) / 1e9;
        decode_s[round] = (double)(decoded_ns - started_ns) / 1e9;
        kvf_plan_get_info(kvf_trtllm_pair_plan(pair), &info);
        kvf_trtllm_pair_release(pair);
        kvf_trtllm_rank_release(decoded);
        kvf_trtllm_registrar_destroy(registrar);
    }
    printf("{\"bench\": \"trtllm\", \"what\": \"first contact\", \"order\": \"%s\", \"layers\": %d, \"from\": \"TP4\", "
           "\"to\": \"TP2\", \"decode_us\": %.1f, \"register_and_plan_us\": %.1f, \"aim_us\": 200, \"boxes\": %lld}\n",
           mapper == KVF_TRTLLM_NHD ? "nhd" : "indexed", LAYERS, bench_summary(decode_s, (size_t)rounds).median_s * 1e6,
           bench_summary(contact_s, (size_t)rounds).median_s * 1e6, (long long)info.boxes);
    kvf_trtllm_rank_release(peer);
    kvf_trtllm_rank_release(self);
}

/** One figure of the transcription in numpy: seconds of first contact and of a write's arrays. */
struct transcript {
    double contact_s, write_s;
    long long fragments, bytes;
};

static struct transcript run_numpy(const char *order, int64_t blocks)
{
    struct transcript found = {0, 0, 0, 0};
    char command[1024];
    FILE *output;

    snprintf(command, sizeof(command), "/usr/bin/python3 '%s' %s %lld %d %d %d %d %d 1", BENCH_TRTLLM_NUMPY, order,
             (long long)blocks, LAYERS, TOKENS, HEADS / 4, HEADS / 2, ROW_BYTES);
    output = popen(command, "r");
    if (!output || fscanf(output, "%lf %lf %lld %lld", &found.contact_s, &found.write_s, &found.fragments,
                          &found.bytes) != 4)
        bench_fail("the transcription in numpy failed");
    pclose(output);
    return found;
}

static double bind_once(const kvf_trtllm_pair *pair, const int64_t *src_ids, const int64_t *dst_ids, int64_t blocks,
                        kvf_trtllm_write **write)
{
    struct kvf_trtllm_blocks src = {src_ids, (size_t)blocks}, dst = {dst_ids, (size_t)blocks};
    struct kvf_trtllm_request request;
    int64_t started_ns;

    kvf_trtllm_request_init(&request, sizeof(request));
    request.prompt_tokens = blocks * TOKENS;
    request.src = &src;
    request.dst = &dst;
    request.src_count = request.dst_count = 1;
    started_ns = bench_now_ns();
    check(kvf_trtllm_pair_bind(pair, &request, write, &error), "bind");
    return (double)(bench_now_ns() - started_ns) / 1e9;
}

/** Copies that the cursor gives, and the seconds it takes to walk them. */
static double walk(const kvf_trtllm_write *write, long long *copies)
{
    static struct kvf_trtllm_fragment some[4096];
    kvf_trtllm_cursor *cursor = NULL;
    int64_t started_ns = bench_now_ns();
    size_t count;

    *copies = 0;
    check(kvf_trtllm_cursor_create(write, &cursor, &error), "cursor");
    while ((count = kvf_trtllm_cursor_next(cursor, some, 4096)) > 0) *copies += (long long)count;
    kvf_trtllm_cursor_destroy(cursor);
    return (double)(bench_now_ns() - started_ns) / 1e9;
}

static void measure_bind(int64_t mapper, int64_t blocks, int rounds, int turns)
{
    const char *order = mapper == KVF_TRTLLM_NHD ? "nhd" : "indexed";
    kvf_trtllm_rank *self = make_rank("ctx", 4, 0, mapper), *peer = make_rank("gen", 2, 0, mapper);
    kvf_trtllm_registrar *registrar = make_registrar(self);
    kvf_trtllm_pair *pair = contact(registrar, peer);
    int64_t *src_ids = bench_shuffled((size_t)blocks, 1), *dst_ids = bench_shuffled((size_t)blocks, 2);
    double bind_s[ROUNDS], numpy_s[ROUNDS], contact_s[ROUNDS], walk_s = 0;
    struct transcript transcript = {0, 0, 0, 0};
    long long copies = 0;
    struct bench_samples ours, theirs;

    for (int round = 0; round < rounds; round++) {
        kvf_trtllm_write *write = NULL;

        bind_s[round] = bind_once(pair, src_ids, dst_ids, blocks, &write);
        if (round < turns) {
            transcript = run_numpy(order, blocks);
            numpy_s[round] = transcript.write_s;
            contact_s[round] = transcript.contact_s;
        }
        if (round == 0 && turns > 0) walk_s = walk(write, &copies);
        kvf_trtllm_write_destroy(write);
    }
    ours = bench_summary(bind_s, (size_t)rounds);
    printf("{\"bench\": \"trtllm\", \"what\": \"bind\", \"order\": \"%s\", \"blocks\": %lld, \"layers\": %d, "
           "\"bind_us\": %.1f, \"aim_us\": 1000, \"copies\": %lld, \"walk_us\": %.1f}\n", order, (long long)blocks,
           LAYERS, ours.median_s * 1e6, copies, walk_s * 1e6);
    if (turns > 0) {
        theirs = bench_summary(numpy_s, (size_t)turns);
        printf("{\"bench\": \"trtllm\", \"what\": \"numpy\", \"order\": \"%s\", \"blocks\": %lld, "
               "\"offsets_us\": %.1f, \"write_us\": %.1f, \"fragments\": %lld, \"array_bytes\": %lld, "
               "\"write_against_bind\": %.1f}\n", order,
               (long long)blocks, bench_summary(contact_s, (size_t)turns).median_s * 1e6, theirs.median_s * 1e6,
               transcript.fragments, transcript.bytes, theirs.median_s / ours.median_s);
    }
    free(src_ids);
    free(dst_ids);
    kvf_trtllm_pair_release(pair);
    kvf_trtllm_registrar_destroy(registrar);
    kvf_trtllm_rank_release(peer);
    kvf_trtllm_rank_release(self);
}

/** Peers of one registrar, each with its plan: instances of 8 ranks. */
static void measure_peers(int64_t peers)
{
    kvf_trtllm_rank *self = make_rank("ctx", 4, 0, KVF_TRTLLM_INDEXED);
    kvf_trtllm_registrar *registrar = make_registrar(self);
    double *seconds = calloc((size_t)peers, sizeof(*seconds));
    size_t part = peers >= 200 ? 100 : (size_t)peers / 2;
    struct bench_samples first, last;
    int64_t before;

    if (!seconds) bench_fail("no memory for %lld samples", (long long)peers);
    kvf_trtllm_rank_release(make_rank("warm", RANKS, 0, KVF_TRTLLM_INDEXED));
    before = bench_resident_bytes();
    for (int64_t i = 0; i < peers; i++) {
        kvf_trtllm_rank *peer;
        int64_t started_ns;
        char name[32];

        snprintf(name, sizeof(name), "gen%lld", (long long)(i / RANKS));
        peer = make_rank(name, RANKS, i % RANKS, KVF_TRTLLM_INDEXED);
        started_ns = bench_now_ns();
        kvf_trtllm_pair_release(contact(registrar, peer));
        seconds[i] = (double)(bench_now_ns() - started_ns) / 1e9;
        kvf_trtllm_rank_release(peer);
    }
    before = bench_resident_bytes() - before;
    first = bench_summary(seconds, part);
    last = bench_summary(seconds + ((size_t)peers - part), part);
    printf("{\"bench\": \"trtllm\", \"what\": \"peers\", \"peers\": %lld, \"layers\": %d, \"first_us\": %.1f, "
           "\"last_us\": %.1f, \"last_against_first\": %.2f, \"bytes_per_peer\": %lld, \"aim_bytes\": 65536}\n",
           (long long)peers, LAYERS, first.median_s * 1e6, last.median_s * 1e6, last.median_s / first.median_s,
           (long long)(before / peers));
    free(seconds);
    kvf_trtllm_registrar_destroy(registrar);
    kvf_trtllm_rank_release(self);
}

int main(int argc, char **argv)
{
    int64_t only = bench_option(argc, argv, "only", 99), blocks = bench_option(argc, argv, "blocks", 8192);
    int64_t peers = bench_option(argc, argv, "peers", 1000);
    int rounds = only == 99 ? ROUNDS : 1, turns = only == 99 ? 3 : 0;

    if (only == 99 || only == ONLY_REGISTER) measure_register(KVF_TRTLLM_INDEXED, rounds);
    if (only == 99) measure_register(KVF_TRTLLM_NHD, rounds);
    if (only == 99 || only == ONLY_INDEXED) measure_bind(KVF_TRTLLM_INDEXED, blocks, rounds, turns);
    if (only == 99 || only == ONLY_NHD) measure_bind(KVF_TRTLLM_NHD, blocks, rounds, turns);
    if (only == 99 || only == ONLY_PEERS) measure_peers(peers);
    return 0;
}
