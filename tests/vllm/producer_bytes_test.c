/* SPDX-License-Identifier: Apache-2.0 */
/* A producer over the real transfer engine: bytes are there when the reply is, and nowhere else. */
#include "producer_kit.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvferry/mooncake.h"
#include "transport/mooncake/engine.h"
#include "transport/mooncake/server.h"

#define LAYER_0 "model.layers.0.self_attn"
#define LAYER_1 "model.layers.1.self_attn"

enum { BLOCKS = 32, BLOCK = 4096, LAYER = BLOCKS * BLOCK, BYTES = 2 * LAYER };

/* A consumer's transfer engine with two layers of memory. */
struct consumer {
    kvf_mooncake *engine;
    unsigned char *memory;
    struct kvf_vllm_region regions[2];
    struct asker asker;
};

/* A producer with memory whose bytes tell where they are. */
struct source {
    struct producer producer;
    unsigned char *memory;
    struct kvf_vllm_region regions[2];
};

static void publish(struct consumer *consumer)
{
    const struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)consumer->memory, BYTES};

    assert_int_equal(kvf_mooncake_register(consumer->engine, &buffer, 1, NULL), KVF_OK);
}

static void set_regions(struct kvf_vllm_region regions[2], const unsigned char *memory)
{
    regions[0] = region_of(LAYER_0, 0, (uint64_t)(uintptr_t)memory, BLOCK, 0);
    regions[1] = region_of(LAYER_1, 1, (uint64_t)(uintptr_t)memory + LAYER, BLOCK, 0);
}

static void consumer_open(struct consumer *consumer, const char *host)
{
    struct kvf_mooncake_options options;

    memset(consumer, 0, sizeof *consumer);
    kvf_mooncake_options_init(&options, sizeof options);
    options.host = host;
    assert_int_equal(kvf_mooncake_open(&options, &consumer->engine, NULL), KVF_OK);
    consumer->memory = calloc(1, BYTES);
    publish(consumer);
    set_regions(consumer->regions, consumer->memory);
    consumer->asker = (struct asker){.host = host, .port = kvf_mooncake_rpc_port(consumer->engine),
                                     .regions = consumer->regions, .region_count = 2};
}

static void consumer_close(struct consumer *consumer)
{
    kvf_mooncake_close(consumer->engine);
    free(consumer->memory);
}

static unsigned char byte_at(size_t at) { return (unsigned char)(at * 31 + (at >> 12) * 7 + 1); }

static void source_open(struct source *source, int64_t abort_ms)
{
    struct producer_setup setup = {.real = true, .regions = source->regions, .region_count = 2, .abort_ms = abort_ms};

    source->memory = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) source->memory[i] = byte_at(i);
    set_regions(source->regions, source->memory);
    setup.memory = (struct kvf_vllm_storage){(uint64_t)(uintptr_t)source->memory, BYTES};
    producer_open(&source->producer, &setup);
}

static void source_close(struct source *source)
{
    producer_close(&source->producer);
    free(source->memory);
}

/* Of both layers: `from` has come to `to`; what is listed nowhere is still zero. */
static void check_bytes(const struct consumer *consumer, const int64_t *from, const int64_t *to, size_t count)
{
    unsigned char *expected = calloc(1, BYTES);

    for (size_t layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < BLOCK; k++)
                expected[layer * LAYER + (size_t)to[i] * BLOCK + k] =
                    byte_at(layer * LAYER + (size_t)from[i] * BLOCK + k);
    assert_memory_equal(consumer->memory, expected, BYTES);
    free(expected);
}

static void gap_16_3_bytes_are_there_at_finish(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    const int64_t from[] = {3, 4, 9}, to[] = {20, 21, 7};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct consumer consumer;
        struct source source;
        struct kvf_vllm_event event;
        void *pull;

        consumer_open(&consumer, hosts[i]);
        source_open(&source, 0);
        producer_ready(&source.producer, "p-req", "xfer", ONE_GROUP(1, 3, 4, 9)); /* the consumer has the first one */
        pull = pull_one(&source.producer, &consumer.asker, "d-req", "xfer", ONE_GROUP(20, 21, 7));
        pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
        check_bytes(&consumer, from, to, 3);
        event = producer_event(&source.producer, KVF_VLLM_EVENT_SENT);
        assert_int_equal(event.bytes, 6 * BLOCK);
        assert_int_equal(event.descriptors, 4);
        assert_string_equal(event.peer, kvf_mooncake_segment_name(consumer.engine));
        assert_string_equal(producer_finished(&source.producer, 1), "p-req");
        pull_close(pull);
        source_close(&source);
        consumer_close(&consumer);
    }
}

/* Eight consumers with many pulls each, all at once. */
static void many_pulls_of_many_peers(void **state)
{
    enum { PEERS = 8, PULLS = BLOCKS };
    static struct consumer consumers[PEERS];
    static void *pulls[PEERS][PULLS];
    int64_t from[PULLS], to[PULLS];
    struct source source;
    char ids[2][32];

    (void)state;
    source_open(&source, 0);
    for (int i = 0; i < PEERS; i++) consumer_open(&consumers[i], "127.0.0.1");
    for (int k = 0; k < PULLS; k++)
        for (int i = 0; i < PEERS; i++) {
            const int64_t block = PULLS - 1 - k;
            const struct kvf_vllm_ids group = {&block, 1};

            snprintf(ids[0], sizeof ids[0], "d-%d-%d", i, k);
            snprintf(ids[1], sizeof ids[1], "xfer-%d-%d", i, k);
            pulls[i][k] = pull_one(&source.producer, &consumers[i].asker, ids[0], ids[1], &group, 1);
        }
    for (int i = 0; i < PEERS; i++)
        for (int k = 0; k < PULLS; k++) {
            const int64_t block = k;
            const struct kvf_vllm_ids group = {&block, 1};

            snprintf(ids[0], sizeof ids[0], "p-%d-%d", i, k);
            snprintf(ids[1], sizeof ids[1], "xfer-%d-%d", i, k);
            producer_ready(&source.producer, ids[0], ids[1], &group, 1);
        }
    for (int k = 0; k < PULLS; k++) {
        from[k] = k;
        to[k] = PULLS - 1 - k;
    }
    for (int i = 0; i < PEERS; i++) {
        for (int k = 0; k < PULLS; k++) {
            snprintf(ids[0], sizeof ids[0], "d-%d-%d", i, k);
            pull_expect(pulls[i][k], KVFI_VLLM_FINISH, ids[0], NULL, NULL);
            pull_close(pulls[i][k]);
        }
        check_bytes(&consumers[i], from, to, PULLS);
    }
    assert_int_equal(producer_stats(&source.producer).bytes_transferred, (int64_t)PEERS * BYTES);
    assert_int_equal(producer_stats(&source.producer).failed_transfers, 0);
    source_close(&source);
    for (int i = 0; i < PEERS; i++) consumer_close(&consumers[i]);
}

/* ---- 16.12: where bytes may go, and come from ------------------------------------------------------------------ */

/* Memory that the consumer's engine does not publish is not written, whatever a pull says. */
static void gap_16_12_destination_not_published(void **state)
{
    const struct {
        int64_t first, second; /* blocks that are asked for */
    } rows[] = {{BLOCKS, 0}, {0, BLOCKS * 1000}};
    struct consumer consumer;
    struct source source;
    void *pull;

    (void)state;
    consumer_open(&consumer, "127.0.0.1");
    source_open(&source, 0);
    producer_ready(&source.producer, "p-req", "xfer", ONE_GROUP(1, 2));
    for (size_t i = 0; i < 2; i++) { /* past the second layer there is nothing */
        const int64_t ids[] = {rows[i].first, rows[i].second};
        const struct kvf_vllm_ids group = {ids, 2};
        struct kvf_vllm_event event;

        pull = pull_one(&source.producer, &consumer.asker, "d-req", "xfer", &group, 1);
        pull_expect(pull, KVFI_VLLM_FINISH, NULL, "d-req", "Mooncake transfer engine returned -1");
        pull_close(pull);
        event = producer_event(&source.producer, KVF_VLLM_EVENT_SEND_FAILED);
        assert_int_equal(event.status, KVF_ERR_OUT_OF_RANGE);
        assert_non_null(strstr(event.text, "not in the memory that it publishes"));
    }
    check_bytes(&consumer, NULL, NULL, 0);
    source_close(&source);
    consumer_close(&consumer);
}

/* A consumer that registers other memory is asked again what it publishes. */
static void gap_16_12_destination_published_anew(void **state)
{
    const int64_t from[] = {1}, to[] = {2};
    struct consumer consumer;
    struct source source;
    unsigned char *before;
    uint64_t address;
    void *pull;

    (void)state;
    consumer_open(&consumer, "127.0.0.1");
    source_open(&source, 0);
    producer_ready(&source.producer, "p-1", "xfer-1", ONE_GROUP(1));
    pull = pull_one(&source.producer, &consumer.asker, "d-1", "xfer-1", ONE_GROUP(2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-1", NULL, NULL);
    pull_close(pull);
    before = consumer.memory;
    address = (uint64_t)(uintptr_t)before;
    assert_int_equal(kvf_mooncake_unregister(consumer.engine, &address, 1, KVFI_SECOND, NULL), KVF_OK);
    consumer.memory = calloc(1, BYTES);
    publish(&consumer);
    set_regions(consumer.regions, consumer.memory);
    producer_ready(&source.producer, "p-2", "xfer-2", ONE_GROUP(1));
    pull = pull_one(&source.producer, &consumer.asker, "d-2", "xfer-2", ONE_GROUP(2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-2", NULL, NULL);
    pull_close(pull);
    check_bytes(&consumer, from, to, 1);
    source_close(&source);
    consumer_close(&consumer);
    free(before);
}

/* Addresses past the end of all addresses, on both sides; blocks past this side's memory. */
static void gap_16_12_addresses_past_the_end(void **state)
{
    const struct kvf_vllm_region high[] = {region_of(LAYER_0, 0, UINT64_MAX - 3 * BLOCK, BLOCK, 0),
                                           region_of(LAYER_1, 1, UINT64_MAX - 3 * BLOCK, BLOCK, 0)};
    struct consumer consumer;
    struct source source;
    struct asker asker;
    void *pull;

    (void)state;
    consumer_open(&consumer, "127.0.0.1");
    source_open(&source, 0);
    producer_ready(&source.producer, "p-req", "xfer", ONE_GROUP(1));
    producer_ready(&source.producer, "p-far", "xfer-far", ONE_GROUP(2 * BLOCKS));
    producer_ready(&source.producer, "p-end", "xfer-end", ONE_GROUP(INT64_MAX));
    asker = consumer.asker;
    asker.regions = high;
    for (int i = 0; i < 3; i++) {
        static const char *const transfers[] = {"xfer", "xfer-far", "xfer-end"};
        struct kvf_vllm_event event;
        struct kvfi_vllm_reply reply;

        pull = pull_one(&source.producer, i == 0 ? &asker : &consumer.asker, "d-req", transfers[i], ONE_GROUP(5));
        reply = pull_reply(pull);
        assert_int_equal(reply.verdict, KVFI_VLLM_FINISH);
        assert_int_equal(reply.err_count, 1);
        kvfi_vllm_reply_fini(&reply);
        pull_close(pull);
        event = producer_event(&source.producer, KVF_VLLM_EVENT_SEND_FAILED);
        assert_int_equal(event.status, KVF_ERR_OUT_OF_RANGE);
    }
    assert_int_equal(producer_stats(&source.producer).failed_transfers, 0); /* nothing was tried */
    check_bytes(&consumer, NULL, NULL, 0);
    source_close(&source);
    consumer_close(&consumer);
}

/* ---- peers that are not there ---------------------------------------------------------------------------------- */

static int stand_still(int32_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* Pulls that name nobody, somebody who never answers, no host, no port: each fails alone, others go on. */
static void peers_that_are_not_there(void **state)
{
    const struct {
        const char *host;
        int64_t port;
    } rows[] = {{"127.0.0.1", 1}, {"127.0.0.1", 0}, {"127.0.0.1", 65536}, {"127.0.0.1", -5}, {"", 5000},
                {"no such host", 5000}, {"/etc/passwd", 5000}};
    enum { ROWS = sizeof rows / sizeof rows[0] };
    struct consumer consumer;
    struct source source;
    char ids[2][32];
    void *pulls[ROWS], *still, *pull;
    int32_t port;
    int fd = stand_still(&port);

    (void)state;
    consumer_open(&consumer, "127.0.0.1");
    source_open(&source, 3000);
    producer_ready(&source.producer, "p-still", "xfer-still", ONE_GROUP(1));
    {
        struct asker asker = consumer.asker;

        asker.port = port;
        still = pull_one(&source.producer, &asker, "d-still", "xfer-still", ONE_GROUP(2));
    }
    for (int i = 0; i < ROWS; i++) {
        struct asker asker = consumer.asker;

        asker.host = rows[i].host;
        asker.port = rows[i].port == 0 ? INT64_MAX : rows[i].port;
        snprintf(ids[0], sizeof ids[0], "p-%d", i);
        snprintf(ids[1], sizeof ids[1], "xfer-%d", i);
        producer_ready(&source.producer, ids[0], ids[1], ONE_GROUP(1));
        pulls[i] = pull_one(&source.producer, &asker, "d-req", ids[1], ONE_GROUP(2));
    }
    producer_ready(&source.producer, "p-good", "xfer-good", ONE_GROUP(1));
    pull = pull_one(&source.producer, &consumer.asker, "d-good", "xfer-good", ONE_GROUP(2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-good", NULL, NULL);
    pull_close(pull);
    for (int i = 0; i < ROWS; i++) {
        pull_expect(pulls[i], KVFI_VLLM_FINISH, NULL, "d-req", "Mooncake transfer engine returned -1");
        pull_close(pulls[i]);
    }
    pull_expect(still, KVFI_VLLM_FINISH, NULL, "d-still", "Mooncake transfer engine returned -1");
    pull_close(still);
    source_close(&source);
    consumer_close(&consumer);
    close(fd);
}

/* A consumer that ends and comes back at the same address is found again. */
static void peer_that_comes_back(void **state)
{
    const int64_t from[] = {1}, to[] = {2};
    struct kvf_mooncake_options options;
    struct consumer consumer;
    struct source source;
    int32_t port;
    void *pull;

    (void)state;
    consumer_open(&consumer, "127.0.0.1");
    source_open(&source, 0);
    port = kvf_mooncake_rpc_port(consumer.engine);
    producer_ready(&source.producer, "p-1", "xfer-1", ONE_GROUP(1));
    pull = pull_one(&source.producer, &consumer.asker, "d-1", "xfer-1", ONE_GROUP(9));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-1", NULL, NULL);
    pull_close(pull);
    kvf_mooncake_close(consumer.engine);
    memset(consumer.memory, 0, BYTES);
    kvf_mooncake_options_init(&options, sizeof options);
    options.rpc_port = port;
    assert_int_equal(kvf_mooncake_open(&options, &consumer.engine, NULL), KVF_OK);
    publish(&consumer);
    producer_ready(&source.producer, "p-2", "xfer-2", ONE_GROUP(1));
    pull = pull_one(&source.producer, &consumer.asker, "d-2", "xfer-2", ONE_GROUP(2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-2", NULL, NULL);
    pull_close(pull);
    check_bytes(&consumer, from, to, 1);
    source_close(&source);
    consumer_close(&consumer);
}

/* One comes back with another data port, and its old one is another process's: nothing goes there. */
static void data_port_that_is_another_peer_s_by_now(void **state)
{
    const int64_t from[] = {1}, to[] = {2};
    struct kvf_mooncake_options options, other_options;
    struct kvf_mooncake_buffer buffer;
    struct consumer consumer;
    struct source source;
    kvf_mooncake *other;
    void *pull;

    (void)state;
    consumer_open(&consumer, "127.0.0.1");
    source_open(&source, 0);
    kvf_mooncake_options_init(&options, sizeof options);
    kvf_mooncake_options_init(&other_options, sizeof other_options);
    options.rpc_port = kvf_mooncake_rpc_port(consumer.engine);
    other_options.data_port = kvf_mooncake_data_port(consumer.engine);
    producer_ready(&source.producer, "p-1", "xfer-1", ONE_GROUP(1));
    pull = pull_one(&source.producer, &consumer.asker, "d-1", "xfer-1", ONE_GROUP(9));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-1", NULL, NULL);
    pull_close(pull);
    kvf_mooncake_close(consumer.engine);
    memset(consumer.memory, 0, BYTES);
    /* Another process often has memory at the same addresses; this one has the very same. */
    assert_int_equal(kvf_mooncake_open(&other_options, &other, NULL), KVF_OK);
    buffer = (struct kvf_mooncake_buffer){(uint64_t)(uintptr_t)consumer.memory, BYTES};
    assert_int_equal(kvf_mooncake_register(other, &buffer, 1, NULL), KVF_OK);
    assert_int_equal(kvf_mooncake_open(&options, &consumer.engine, NULL), KVF_OK);
    publish(&consumer);
    producer_ready(&source.producer, "p-2", "xfer-2", ONE_GROUP(1));
    pull = pull_one(&source.producer, &consumer.asker, "d-2", "xfer-2", ONE_GROUP(2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-2", NULL, NULL);
    pull_close(pull);
    check_bytes(&consumer, from, to, 1);
    assert_int_equal(kvfi_moon_server_count_from(other->server, "127.0.0.1"), 0);
    kvf_mooncake_close(other);
    source_close(&source);
    consumer_close(&consumer);
}

static size_t open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    size_t count = 0;

    assert_non_null(directory);
    while (readdir(directory) != NULL) count++;
    closedir(directory);
    return count;
}

/* Consumers that are gone for good leave no connections behind. */
static void consumers_that_come_and_go(void **state)
{
    enum { ROUNDS = 24 };
    struct consumer consumer;
    struct source source;
    char ids[2][32];
    size_t before = 0;
    void *pull;

    (void)state;
    source_open(&source, 0);
    for (int i = 0; i < ROUNDS; i++) {
        consumer_open(&consumer, "127.0.0.1");
        snprintf(ids[0], sizeof ids[0], "p-%d", i);
        snprintf(ids[1], sizeof ids[1], "xfer-%d", i);
        producer_ready(&source.producer, ids[0], ids[1], ONE_GROUP(1, 2, 3));
        pull = pull_one(&source.producer, &consumer.asker, "d-req", ids[1], ONE_GROUP(4, 9, 2));
        pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
        pull_close(pull);
        consumer_close(&consumer);
        if (i == 3) before = open_descriptors();
    }
    assert_true(open_descriptors() < before + ROUNDS / 2);
    source_close(&source);
}

/* Closing breaks off what is being written. */
static void closing_while_a_peer_stands_still(void **state)
{
    struct consumer consumer;
    struct source source;
    struct asker asker;
    int32_t port;
    int fd = stand_still(&port);
    void *pull;

    (void)state;
    consumer_open(&consumer, "127.0.0.1");
    source_open(&source, 0);
    producer_ready(&source.producer, "p-req", "xfer", ONE_GROUP(1));
    asker = consumer.asker;
    asker.port = port;
    pull = pull_one(&source.producer, &asker, "d-req", "xfer", ONE_GROUP(2));
    producer_took(&source.producer, 1);
    pull_close(pull);
    source_close(&source);
    consumer_close(&consumer);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gap_16_3_bytes_are_there_at_finish),
        cmocka_unit_test(many_pulls_of_many_peers),
        cmocka_unit_test(gap_16_12_destination_not_published),
        cmocka_unit_test(gap_16_12_destination_published_anew),
        cmocka_unit_test(gap_16_12_addresses_past_the_end),
        cmocka_unit_test(peers_that_are_not_there),
        cmocka_unit_test(peer_that_comes_back),
        cmocka_unit_test(data_port_that_is_another_peer_s_by_now),
        cmocka_unit_test(consumers_that_come_and_go),
        cmocka_unit_test(closing_while_a_peer_stands_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
