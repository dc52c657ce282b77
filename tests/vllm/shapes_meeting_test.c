/* SPDX-License-Identifier: Apache-2.0 */
/* Whole workers meet: registry, side channel and bytes are real, and no other program is part of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kvferry/directory.h"
#include "kvferry/vllm_worker.h"
#include "sys/clock.h"

enum { LAYERS = 4, BLOCKS = 64, HEAD = 512, HEADS = 4, MOST_RANKS = 4 };

#define PATIENCE_NS (20 * KVFI_SECOND)

static const char *const NAMES[LAYERS] = {"model.layers.0.self_attn", "model.layers.1.self_attn",
                                          "model.layers.2.self_attn", "model.layers.3.self_attn"};

/* One rank of an engine: its share of heads and layers, in memory of its own. */
struct rank {
    kvf_vllm_worker *worker;
    unsigned char *memory;
    int64_t tp_rank, tp_size, pp_rank, pp_size;
    size_t block; /* bytes of a block of a layer */
    int first, layers;
};

static unsigned char *place(const struct rank *rank, int layer, int64_t block)
{
    return rank->memory + ((size_t)(layer - rank->first) * BLOCKS + (size_t)block) * rank->block;
}

/* What head `head` of the model has in a block of a producer, at byte `at`. */
static unsigned char byte_of(int layer, int64_t block, int head, int at)
{
    return (unsigned char)(layer * 61 + block * 17 + head * 5 + at * 3 + 1);
}

static void fill(struct rank *rank)
{
    int heads = HEADS / (int)rank->tp_size;

    for (int layer = rank->first; layer < rank->first + rank->layers; layer++)
        for (int64_t block = 0; block < BLOCKS; block++)
            for (int head = 0; head < heads; head++)
                for (int at = 0; at < HEAD; at++)
                    place(rank, layer, block)[head * HEAD + at] =
                        byte_of(layer, block, (int)rank->tp_rank * heads + head, at);
}

/* Its block `to` is the producer's block `from`. */
static void check(const struct rank *rank, int64_t from, int64_t to)
{
    int heads = HEADS / (int)rank->tp_size;

    for (int layer = rank->first; layer < rank->first + rank->layers; layer++)
        for (int head = 0; head < heads; head++)
            for (int at = 0; at < HEAD; at++)
                assert_int_equal(place(rank, layer, to)[head * HEAD + at],
                                 byte_of(layer, from, (int)rank->tp_rank * heads + head, at));
}

static void set_options(const struct rank *rank, int role, const char *engine_id, const char *url,
                        struct kvf_vllm_layer layers[LAYERS], struct kvf_vllm_worker_options *options)
{
    static const int32_t kinds[] = {KVF_VLLM_ATTENTION};

    for (int i = 0; i < LAYERS; i++)
        layers[i] = (struct kvf_vllm_layer){NAMES[i], 0, KVF_VLLM_ATTENTION, 0, (int64_t)rank->block,
                                            (int64_t)rank->block};
    kvf_vllm_worker_options_init(options, sizeof *options);
    options->role = role;
    options->engine_id = engine_id;
    options->tp_rank = rank->tp_rank;
    options->tp_size = rank->tp_size;
    options->pp_rank = rank->pp_rank;
    options->pp_size = rank->pp_size;
    options->total_kv_heads = HEADS;
    options->group_kinds = kinds;
    options->group_count = 1;
    options->layers = layers;
    options->layer_count = LAYERS;
    options->bootstrap_url = role == KVF_VLLM_CONSUMER ? NULL : url;
}

static void rank_open(struct rank *rank, int role, const char *engine_id, const char *url)
{
    struct kvf_vllm_worker_options options;
    struct kvf_vllm_layer layers[LAYERS];
    struct kvf_vllm_region regions[LAYERS];
    struct kvf_vllm_storage memory;
    kvf_vllm_regions *list;
    struct kvf_error error = {.text = ""};

    rank->block = HEAD * HEADS / (size_t)rank->tp_size;
    rank->layers = LAYERS / (int)rank->pp_size;
    rank->first = (int)rank->pp_rank * rank->layers;
    rank->memory = calloc((size_t)rank->layers * BLOCKS, rank->block);
    memory = (struct kvf_vllm_storage){(uint64_t)(uintptr_t)rank->memory,
                                       (int64_t)((size_t)rank->layers * BLOCKS * rank->block)};
    for (int i = 0; i < rank->layers; i++)
        regions[i] = (struct kvf_vllm_region){
            .layer_name = NAMES[rank->first + i], .layer_index = rank->first + i,
            .base_addr = (uint64_t)(uintptr_t)place(rank, rank->first + i, 0), .block_len = (int64_t)rank->block,
            .kv_block_len = (int64_t)rank->block, .row_offset = KVF_VLLM_NO_ROW};
    set_options(rank, role, engine_id, url, layers, &options);
    if (kvf_vllm_worker_open(&options, &rank->worker, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(kvf_vllm_regions_create(regions, (size_t)rank->layers, &list, NULL), KVF_OK);
    if (kvf_vllm_worker_register(rank->worker, &memory, 1, list, 0, &error) != KVF_OK) fail_msg("%s", error.text);
    kvf_vllm_regions_release(list);
}

static void rank_close(struct rank *rank)
{
    assert_int_equal(kvf_vllm_worker_shutdown(rank->worker, PATIENCE_NS, NULL), KVF_OK);
    kvf_vllm_worker_close(rank->worker);
    free(rank->memory);
}

/* A request of two blocks: 1 and 2 of the producer become 8 and 5 of the consumer. */
static void offer(struct rank *rank, const char *p_req_id, const char *transfer_id)
{
    const int64_t ids[] = {1, 2};
    const struct kvf_vllm_ids group = {ids, 2};
    const struct kvf_vllm_send send = {p_req_id, transfer_id, &group, 1};
    const struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = &send, .send_count = 1};

    assert_int_equal(kvf_vllm_worker_step(rank->worker, &step, NULL), KVF_OK);
}

static void fetch(struct rank *rank, const char *d_req_id, const char *transfer_id, const char *engine_id,
                  const char *url)
{
    const int64_t ids[] = {8, 5};
    const struct kvf_vllm_ids group = {ids, 2};
    const struct kvf_vllm_recv recv = {d_req_id, transfer_id, engine_id, url, &group, 1};
    const struct kvf_vllm_step step = {.struct_size = sizeof step, .recvs = &recv, .recv_count = 1};
    struct kvf_error error = {.text = ""};

    if (kvf_vllm_worker_step(rank->worker, &step, &error) != KVF_OK) fail_msg("%s", error.text);
}

/* Waits until the worker tells one request as over. */
static void over(struct rank *rank, const char *sent, const char *received)
{
    int64_t deadline = kvfi_now_ns() + PATIENCE_NS;
    bool there = false;

    while (!there) {
        struct kvf_vllm_done done = {.struct_size = sizeof done};
        struct kvf_vllm_event event;

        assert_int_equal(kvf_vllm_worker_collect(rank->worker, &done, NULL), KVF_OK);
        there = done.finished_sending_count + done.finished_recving_count > 0;
        if (there) {
            assert_int_equal(done.finished_sending_count, sent != NULL);
            assert_int_equal(done.finished_recving_count, received != NULL);
            assert_int_equal(done.failed_recving_count + done.invalid_block_count, 0);
            if (sent != NULL) assert_string_equal(done.finished_sending[0], sent);
            if (received != NULL) assert_string_equal(done.finished_recving[0], received);
        }
        kvf_vllm_done_release(&done);
        if (!there && kvfi_now_ns() > deadline) fail_msg("%s is not over", sent != NULL ? sent : received);
        if (!there) kvf_vllm_worker_wait(rank->worker, &event, 1, 10 * KVFI_MS);
    }
}

static kvf_directory *open_registry(void)
{
    struct kvf_directory_options options;
    kvf_directory *directory;

    kvf_directory_options_init(&options, sizeof options);
    options.flags = KVF_DIRECTORY_VLLM_BOOTSTRAP;
    assert_int_equal(kvf_directory_open(&options, &directory, NULL), KVF_OK);
    return directory;
}

/* Producers and consumers of any shapes: every consumer rank gets its heads of its layers from whoever has them. */
static void shapes_meet(void **state)
{
    static const struct {
        int p_tp, p_pp, d_tp, d_pp;
        bool fetch_first;
    } rows[] = {{1, 1, 1, 1, true},  {1, 1, 1, 1, false}, {2, 1, 4, 1, true}, {4, 1, 2, 1, true},
                {1, 2, 1, 1, true},  {2, 1, 1, 2, true},  {1, 2, 1, 2, true}, {4, 1, 1, 1, false}};

    (void)state;
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        int p_count = rows[row].p_tp * rows[row].p_pp, d_count = rows[row].d_tp * rows[row].d_pp;
        struct rank producers[MOST_RANKS], consumers[MOST_RANKS];
        kvf_directory *directory = open_registry();
        const char *url = kvf_directory_url(directory);

        memset(producers, 0, sizeof producers);
        memset(consumers, 0, sizeof consumers);
        for (int i = 0; i < p_count; i++) {
            producers[i].tp_size = rows[row].p_tp;
            producers[i].pp_size = rows[row].p_pp;
            producers[i].tp_rank = i % rows[row].p_tp;
            producers[i].pp_rank = i / rows[row].p_tp;
            rank_open(&producers[i], KVF_VLLM_PRODUCER, "p-engine", url);
            fill(&producers[i]);
        }
        for (int i = 0; i < d_count; i++) {
            consumers[i].tp_size = rows[row].d_tp;
            consumers[i].pp_size = rows[row].d_pp;
            consumers[i].tp_rank = i % rows[row].d_tp;
            consumers[i].pp_rank = i / rows[row].d_tp;
            rank_open(&consumers[i], KVF_VLLM_CONSUMER, "d-engine", url);
        }
        for (int turn = 0; turn < 2; turn++) { /* the second time without arrays */
            char transfer_id[16];

            snprintf(transfer_id, sizeof transfer_id, "xfer-%d", turn);
            for (int i = 0; !rows[row].fetch_first && i < p_count; i++) offer(&producers[i], "p-req", transfer_id);
            for (int i = 0; i < d_count; i++) fetch(&consumers[i], "d-req", transfer_id, "p-engine", url);
            for (int i = 0; rows[row].fetch_first && i < p_count; i++) offer(&producers[i], "p-req", transfer_id);
            for (int i = 0; i < d_count; i++) over(&consumers[i], NULL, "d-req");
            for (int i = 0; i < p_count; i++) over(&producers[i], "p-req", NULL);
            for (int i = 0; i < d_count; i++) {
                check(&consumers[i], 1, 8);
                check(&consumers[i], 2, 5);
                memset(consumers[i].memory, 0, (size_t)consumers[i].layers * BLOCKS * consumers[i].block);
            }
        }
        for (int i = 0; i < d_count; i++) rank_close(&consumers[i]);
        for (int i = 0; i < p_count; i++) rank_close(&producers[i]);
        kvf_directory_close(directory);
    }
}

/* Two workers of both roles fetch from each other at once. */
static void both_roles_in_one_worker(void **state)
{
    struct rank ranks[2] = {{.tp_size = 1, .pp_size = 1}, {.tp_size = 1, .pp_size = 1}};
    kvf_directory *directories[2] = {open_registry(), open_registry()};

    (void)state;
    for (int i = 0; i < 2; i++) {
        rank_open(&ranks[i], KVF_VLLM_BOTH, i == 0 ? "engine-0" : "engine-1", kvf_directory_url(directories[i]));
        fill(&ranks[i]);
        memset(place(&ranks[i], 0, 5), 0, ranks[i].block);
    }
    for (int i = 0; i < 2; i++)
        fetch(&ranks[i], i == 0 ? "d-0" : "d-1", i == 0 ? "xfer-0" : "xfer-1", i == 0 ? "engine-1" : "engine-0",
              kvf_directory_url(directories[1 - i]));
    for (int i = 0; i < 2; i++) offer(&ranks[i], i == 0 ? "p-0" : "p-1", i == 0 ? "xfer-1" : "xfer-0");
    for (int i = 0; i < 2; i++) {
        int64_t deadline = kvfi_now_ns() + PATIENCE_NS;
        size_t sent = 0, received = 0;

        while (sent + received < 2 && kvfi_now_ns() < deadline) {
            struct kvf_vllm_done done = {.struct_size = sizeof done};
            struct kvf_vllm_event event;

            assert_int_equal(kvf_vllm_worker_collect(ranks[i].worker, &done, NULL), KVF_OK);
            sent += done.finished_sending_count;
            received += done.finished_recving_count;
            kvf_vllm_done_release(&done);
            kvf_vllm_worker_wait(ranks[i].worker, &event, 1, 5 * KVFI_MS);
        }
        assert_int_equal(sent, 1);
        assert_int_equal(received, 1);
    }
    for (int i = 0; i < 2; i++) {
        check(&ranks[i], 1, 8);
        check(&ranks[i], 2, 5);
    }
    for (int i = 0; i < 2; i++) rank_close(&ranks[i]);
    for (int i = 0; i < 2; i++) kvf_directory_close(directories[i]);
}

/* A consumer that sleeps and wakes, then registers again, is served all the while. */
static void consumers_sleep_and_register_again(void **state)
{
    struct rank producer = {.tp_size = 1, .pp_size = 1}, consumer = {.tp_size = 1, .pp_size = 1};
    kvf_directory *directory = open_registry();
    const char *url = kvf_directory_url(directory);
    struct kvf_vllm_endpoints endpoints = {.struct_size = sizeof endpoints};
    uint64_t layout_id;

    (void)state;
    rank_open(&producer, KVF_VLLM_PRODUCER, "p-engine", url);
    fill(&producer);
    rank_open(&consumer, KVF_VLLM_CONSUMER, "d-engine", url);
    assert_int_equal(kvf_vllm_worker_endpoints(consumer.worker, &endpoints, NULL), KVF_OK);
    layout_id = endpoints.layout_id;
    for (int turn = 0; turn < 3; turn++) {
        char transfer_id[16];

        snprintf(transfer_id, sizeof transfer_id, "xfer-%d", turn);
        offer(&producer, "p-req", transfer_id);
        fetch(&consumer, "d-req", transfer_id, "p-engine", url);
        over(&consumer, NULL, "d-req");
        over(&producer, "p-req", NULL);
        check(&consumer, 1, 8);
        memset(consumer.memory, 0, (size_t)consumer.layers * BLOCKS * consumer.block);
        assert_int_equal(kvf_vllm_worker_sleep(consumer.worker, KVFI_SECOND, NULL), KVF_OK);
        assert_int_equal(kvf_vllm_worker_sleep(producer.worker, KVFI_SECOND, NULL), KVF_OK);
        assert_int_equal(kvf_vllm_worker_wake(producer.worker, NULL), KVF_OK);
        assert_int_equal(kvf_vllm_worker_wake(consumer.worker, NULL), KVF_OK);
    }
    assert_int_equal(kvf_vllm_worker_endpoints(consumer.worker, &endpoints, NULL), KVF_OK);
    assert_int_equal(endpoints.layout_id, layout_id);
    rank_close(&consumer);
    rank_close(&producer);
    kvf_directory_close(directory);
}

/* A producer whose registry refuses it does not start; what the registry says is told. */
static void registry_that_refuses(void **state)
{
    struct rank first = {.tp_size = 1, .pp_size = 1}, second = {.tp_size = 1, .pp_size = 1};
    struct kvf_vllm_worker_options options;
    struct kvf_vllm_layer layers[LAYERS];
    struct kvf_vllm_endpoints endpoints = {.struct_size = sizeof endpoints};
    kvf_directory *directory = open_registry();
    kvf_vllm_regions *none;
    struct kvf_error error = {.text = ""};

    (void)state;
    rank_open(&first, KVF_VLLM_PRODUCER, "first", kvf_directory_url(directory));
    second.block = 1;
    set_options(&second, KVF_VLLM_PRODUCER, "second", kvf_directory_url(directory), layers, &options);
    assert_int_equal(kvf_vllm_worker_open(&options, &second.worker, NULL), KVF_OK);
    assert_int_equal(kvf_vllm_regions_create(NULL, 0, &none, NULL), KVF_OK);
    assert_int_equal(kvf_vllm_worker_register(second.worker, NULL, 0, none, 0, &error), KVF_ERR_REFUSED);
    assert_non_null(strstr(error.text, "Engine ID mismatch for dp_rank=0: expected first, got second"));
    assert_int_equal(kvf_vllm_worker_endpoints(second.worker, &endpoints, NULL), KVF_OK);
    assert_string_equal(endpoints.side_channel, "");
    kvf_vllm_worker_close(second.worker);
    kvf_vllm_regions_release(none);
    rank_close(&first);
    kvf_directory_close(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_meet),
        cmocka_unit_test(both_roles_in_one_worker),
        cmocka_unit_test(consumers_sleep_and_register_again),
        cmocka_unit_test(registry_that_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
