/* SPDX-License-Identifier: Apache-2.0 */
/* What CPU time deciding and speaking take between ranks of vLLM's dialect, 80 layers, head-major. Answers each line of
 * standard input with one, or one that is given as arguments:
 *
 *   prepare SHAPE ROUNDS             a peer that was never seen -> median µs, pairs of regions
 *   cached SHAPE ROUNDS              the same peer again, its arrays with it -> median µs, pairs
 *   named SHAPE ROUNDS               the same, its layout id instead -> median µs, pairs
 *   ready SHAPE ORDER BLOCKS ROUNDS  a request's blocks, peer known, ready to be sent -> median µs, descriptors
 *   walk SHAPE ORDER BLOCKS ROUNDS   the same, and all descriptors taken one by one -> median µs, a sum over them
 *   peers COUNT                      -> µs of the first and of the last tenth of them, bytes per peer
 *   encode IDS ROUNDS                a pull of so many blocks -> median µs, a sum over its bytes
 *   decode IDS ROUNDS                -> median µs, bytes
 *
 * SHAPE is `split` (TP 4 to TP 2), `equal` (TP 4 to TP 4) or `wide` (TP 40 to TP 20); ORDER `contiguous` or
 * `scattered`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "kit.h"
#include "vllm/message.h"

enum { LAYERS = 80, LOCAL_BYTES = 16384, SLOTS = 131072, MOST_ROUNDS = 10001 };

static struct kvf_error error;
static struct vllm_cache local, remote;
static double seconds[MOST_ROUNDS];

struct shape {
    const char *name;
    int64_t local_tp, remote_tp, heads;
};

static const struct shape shapes[] = {{"split", 4, 2, 8}, {"equal", 4, 4, 8}, {"wide", 40, 20, 80}};

static const struct shape *shape_of(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    bench_fail("no shape %s", name);
}

static kvf_vllm_producer *make_producer(const struct shape *shape)
{
    static const int32_t kinds[] = {KVF_VLLM_ATTENTION};
    struct kvf_vllm_producer_spec spec;
    kvf_vllm_producer *producer = NULL;

    vllm_cache_init(&local, UINT64_C(0x7f0000000000), LAYERS, SLOTS, LOCAL_BYTES);
    vllm_cache_init(&remote, UINT64_C(0x7e0000000000), LAYERS, SLOTS, LOCAL_BYTES * shape->local_tp / shape->remote_tp);
    kvf_vllm_producer_spec_init(&spec, sizeof spec);
    spec.tp_size = shape->local_tp;
    spec.total_kv_heads = shape->heads;
    spec.group_kinds = kinds;
    spec.group_count = 1;
    spec.layers = local.layers;
    spec.layer_count = LAYERS;
    spec.regions = local.arrays;
    vllm_check(kvf_vllm_producer_create(&spec, &producer, &error), &error, "producer");
    return producer;
}

static struct kvf_vllm_peer make_peer(const struct shape *shape, int64_t port)
{
    struct kvf_vllm_peer peer;

    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = "192.0.2.2";
    peer.port = port;
    peer.tp_size = shape->remote_tp;
    peer.regions = remote.arrays;
    return peer;
}

static kvf_vllm_prepared *prepare(kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer)
{
    kvf_vllm_prepared *prepared = NULL;

    vllm_check(kvf_vllm_prepare(producer, peer, &prepared, &error), &error, "prepare");
    return prepared;
}

/* CPU time, so that other programs do not count. */
static int64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double since(int64_t started_ns) { return (double)(cpu_ns() - started_ns) / 1e9; }

static double median_us(int64_t rounds) { return bench_summary(seconds, (size_t)rounds).median_s * 1e6; }

/* kind: 'p' prepare, 'c' cached, 'n' named */
static void run_prepare(int kind, const struct shape *shape, int64_t rounds)
{
    kvf_vllm_producer *producer = make_producer(shape);
    struct kvf_vllm_prepared_info info = {.struct_size = sizeof info};

    for (int64_t i = -1; i < rounds; i++) {
        struct kvf_vllm_peer peer = make_peer(shape, kind == 'p' ? i + 2 : 1);
        kvf_vllm_prepared *prepared;
        int64_t started_ns;

        if (kind == 'n')
            peer.layout_id = 7;
        if (kind == 'n' && i >= 0)
            memset(&peer.regions, 0, sizeof peer.regions);
        started_ns = cpu_ns();
        prepared = prepare(producer, &peer);
        if (i >= 0)
            seconds[i] = since(started_ns);
        kvf_vllm_prepared_get_info(prepared, &info, &error);
        kvf_vllm_prepared_release(prepared);
    }
    printf("%.2f %" PRId64 "\n", median_us(rounds), info.pairs);
    kvf_vllm_producer_destroy(producer);
}

/* Takes all descriptors; the sum depends on each and on their order. */
static uint64_t walk(kvf_vllm_write *write)
{
    static struct kvf_vllm_descriptor some[4096];
    uint64_t sum = 0, at = 0;
    size_t count;

    while ((count = kvf_vllm_write_next(write, some, sizeof some / sizeof some[0])) > 0)
        for (size_t i = 0; i < count; i++)
            sum += ++at * (some[i].src_address + 3 * some[i].dst_address + 5 * (uint64_t)some[i].bytes);
    return sum;
}

static void run_ready(bool walks, const struct shape *shape, const char *order, int64_t blocks, int64_t rounds)
{
    bool scattered = strcmp(order, "scattered") == 0;
    kvf_vllm_producer *producer = make_producer(shape);
    struct kvf_vllm_peer peer = make_peer(shape, 1);
    kvf_vllm_prepared *prepared = prepare(producer, &peer);
    int64_t *from = scattered ? bench_shuffled((size_t)blocks, 1) : vllm_ids(0, blocks);
    int64_t *to = scattered ? bench_shuffled((size_t)blocks, 2) : vllm_ids(1000, blocks);
    struct kvf_vllm_ids src = {from, (size_t)blocks}, dst = {to, (size_t)blocks};
    uint64_t told = 0;

    for (int64_t i = 0; i < rounds; i++) {
        kvf_vllm_write *write = NULL;
        int64_t started_ns = cpu_ns();

        vllm_check(kvf_vllm_write_create(prepared, &src, 1, &dst, 1, &write, &error), &error, "write");
        told = walks ? walk(write) : (uint64_t)kvf_vllm_write_count(write);
        seconds[i] = since(started_ns);
        kvf_vllm_write_destroy(write);
    }
    printf("%.2f %" PRIu64 "\n", median_us(rounds), told);
    free(from);
    free(to);
    kvf_vllm_prepared_release(prepared);
    kvf_vllm_producer_destroy(producer);
}

static void run_peers(int64_t peers)
{
    const struct shape *shape = shape_of("split");
    kvf_vllm_producer *producer = make_producer(shape);
    size_t part = peers >= 20 ? (size_t)peers / 10 : (size_t)peers / 2;
    double first_us, last_us;
    int64_t bytes;

    if (peers < 2 || peers > MOST_ROUNDS)
        bench_fail("peers are %" PRId64 ", expected 2 to %d", peers, MOST_ROUNDS);
    bytes = bench_resident_bytes();
    for (int64_t i = 0; i < peers; i++) {
        struct kvf_vllm_peer peer = make_peer(shape, i + 1);
        int64_t started_ns = cpu_ns();

        kvf_vllm_prepared_release(prepare(producer, &peer));
        seconds[i] = since(started_ns);
    }
    bytes = bench_resident_bytes() - bytes;
    first_us = bench_summary(seconds, part).median_s * 1e6;
    last_us = bench_summary(seconds + ((size_t)peers - part), part).median_s * 1e6;
    printf("%.2f %.2f %" PRId64 "\n", first_us, last_us, bytes / peers);
    kvf_vllm_producer_destroy(producer);
}

/* ---- the side channel ------------------------------------------------------------------------------------------ */

static void run_message(bool decodes, int64_t ids, int64_t rounds)
{
    const struct shape *shape = shape_of("split");
    kvf_vllm_producer *producer = make_producer(shape);
    struct kvf_vllm_peer peer = make_peer(shape, 1);
    int64_t *blocks = vllm_ids(1000, ids);
    struct kvf_vllm_ids group = {blocks, (size_t)ids};
    struct kvfi_vllm_wanted wanted = {"chatcmpl-0123456789abcdef", "xfer-0123456789abcdef", &group, 1};
    struct kvfi_vllm_asker asker;
    unsigned char *bytes = NULL;
    uint64_t sum = 0;
    size_t count = 0;

    vllm_check(kvfi_vllm_asker_init(&asker, &peer, &error), &error, "asker");
    for (int64_t i = -1; i < rounds; i++) {
        struct kvfi_vllm_pull pull;
        int64_t started_ns = cpu_ns();

        if (!decodes || i < 0) {
            free(bytes);
            vllm_check(kvfi_vllm_pull_encode(&asker, &wanted, 1, true, &bytes, &count, &error), &error, "encode");
        } else {
            vllm_check(kvfi_vllm_pull_decode(bytes, count, &pull, &error), &error, "decode");
        }
        if (i >= 0)
            seconds[i] = since(started_ns);
        if (decodes && i >= 0)
            kvfi_vllm_pull_fini(&pull);
    }
    for (size_t i = 0; i < count; i++)
        sum += (i + 1) * bytes[i];
    printf("%.2f %" PRIu64 "\n", median_us(rounds), decodes ? (uint64_t)count : sum);
    free(bytes);
    free(blocks);
    kvfi_vllm_asker_fini(&asker);
    kvf_vllm_producer_destroy(producer);
}

/* ---- lines ----------------------------------------------------------------------------------------------------- */

static int64_t number(const char *text)
{
    int64_t value = strtoll(text, NULL, 10);

    if (value < 1 || value > 1000000)
        bench_fail("\"%s\" is no number from 1 to 1000000", text);
    return value;
}

static int64_t rounds_of(const char *text)
{
    int64_t rounds = number(text);

    if (rounds > MOST_ROUNDS)
        bench_fail("%" PRId64 " rounds, at most %d", rounds, MOST_ROUNDS);
    return rounds;
}

static void run(char *const *word, int count)
{
    const char *what = count > 0 ? word[0] : "";

    if (count == 3 && (strcmp(what, "prepare") == 0 || strcmp(what, "cached") == 0 || strcmp(what, "named") == 0))
        run_prepare(what[0], shape_of(word[1]), rounds_of(word[2]));
    else if (count == 5 && (strcmp(what, "ready") == 0 || strcmp(what, "walk") == 0))
        run_ready(what[0] == 'w', shape_of(word[1]), word[2], number(word[3]), rounds_of(word[4]));
    else if (count == 2 && strcmp(what, "peers") == 0)
        run_peers(number(word[1]));
    else if (count == 3 && (strcmp(what, "encode") == 0 || strcmp(what, "decode") == 0))
        run_message(what[0] == 'd', number(word[1]), rounds_of(word[2]));
    else
        bench_fail("what is \"%s\" with %d words?", what, count);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[256];

    if (argc > 1)
        run(argv + 1, argc - 1);
    while (argc == 1 && fgets(line, sizeof line, stdin) != NULL) {
        char *words[8], *rest = NULL;
        int count = 0;

        for (char *at = strtok_r(line, " \n", &rest); at != NULL && count < 8; at = strtok_r(NULL, " \n", &rest))
            words[count++] = at;
        run(words, count);
    }
    return 0;
}
