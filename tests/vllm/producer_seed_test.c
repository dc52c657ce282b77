/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's own tests of a producer worker, by their names and with their numbers. */
#include "producer_kit.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define LAYER_0 "model.layers.0.self_attn"
#define LAYER_1 "model.layers.1.self_attn"

static void asked(struct producer *producer, size_t index, const char *session,
                  const struct kvf_vllm_descriptor *list, size_t count)
{
    const struct fake_call *call = fake_call(producer, index);

    assert_string_equal(call->session, session);
    assert_int_equal(call->count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(call->list[i].src_address, list[i].src_address);
        assert_int_equal(call->list[i].dst_address, list[i].dst_address);
        assert_int_equal(call->list[i].bytes, list[i].bytes);
    }
}

static void send_kv_to_decode_aligns_consumer_regions_by_layer_metadata(void **state)
{
    const struct kvf_vllm_region own[] = {region_of(LAYER_1, 1, 0x1000, 4096, 0)};
    const struct kvf_vllm_region theirs[] = {region_of(LAYER_0, 0, 0xA000, 4096, 0),
                                             region_of(LAYER_1, 1, 0xB000, 4096, 0)};
    const struct kvf_vllm_descriptor list[] = {{0x1000 + 40960, 0xB000 + 81920, 4096}};
    const struct asker asker = {.regions = theirs, .region_count = 2};
    struct producer producer;
    void *pull;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = own, .region_count = 1});
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(10));
    pull = pull_one(&producer, &asker, "d-req-layer-align", "xfer", ONE_GROUP(20));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req-layer-align", NULL, NULL);
    asked(&producer, 0, "consumer-host:54321", list, 1);
    pull_close(pull);
    producer_close(&producer);
}

/* Two TP ranks of the consumer are expected, so one alone does not release the request. */
static void resolve_need_send_accounts_for_remote_tp_fanout(void **state)
{
    const struct kvf_vllm_region own[] = {region_of(LAYER_0, 0, 0x1000, 4096, 0)};
    const struct kvf_vllm_region theirs[] = {region_of(LAYER_0, 0, 0x2000, 2048, 0)};
    struct asker asker = {.regions = theirs, .region_count = 1, .tp_size = 2};
    struct producer producer;
    void *pulls[2];

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = own, .region_count = 1});
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1));
    for (int rank = 0; rank < 2; rank++) {
        asker.tp_rank = rank;
        asker.port = 1000 + rank;
        pulls[rank] = pull_one(&producer, &asker, "d-req", "xfer", ONE_GROUP(2));
        pull_expect(pulls[rank], KVFI_VLLM_FINISH, "d-req", NULL, NULL);
        assert_string_equal(producer_finished(&producer, (size_t)rank), rank == 0 ? "" : "p-req");
        assert_int_equal(producer_stats(&producer).transfers_tracked, 1 - rank);
        pull_close(pulls[rank]);
    }
    producer_close(&producer);
}

static void heterogeneous_pp_waits_for_consumer_without_shared_layers(void **state)
{
    const struct kvf_vllm_region own[] = {region_of(LAYER_0, 0, 0x1000, 256, 0)};
    const struct kvf_vllm_region first[] = {region_of(LAYER_0, 0, 0x2000, 256, 0)};
    const struct kvf_vllm_region second[] = {region_of(LAYER_1, 1, 0x2000, 256, 0)};
    const struct kvf_vllm_descriptor list[] = {{0x1100, 0x2200, 256}};
    struct asker asker = {.host = "consumer", .port = 1234, .pp_size = 2, .regions = first, .region_count = 1};
    struct producer producer;
    void *pull;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = own, .region_count = 1, .pp_size = 4});
    producer_ready(&producer, "p-req", "transfer", ONE_GROUP(1));
    pull = pull_one(&producer, &asker, "d-req", "transfer", ONE_GROUP(2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_int_equal(producer_stats(&producer).transfers_tracked, 1);
    assert_string_equal(producer_finished(&producer, 0), "");
    asker.port = 1235;
    asker.regions = second;
    pull = pull_one(&producer, &asker, "d-req", "transfer", ONE_GROUP(2));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-req", NULL, NULL);
    pull_close(pull);
    assert_string_equal(producer_finished(&producer, 1), "p-req");
    assert_int_equal(producer_stats(&producer).transfers_tracked, 0);
    assert_int_equal(fake_call_count(&producer), 1);
    asked(&producer, 0, "consumer:1234", list, 1);
    producer_close(&producer);
}

static void kv_producer(void **state)
{
    const struct kvf_vllm_region own[] = {region_of(LAYER_0, 0, 0x1000, 4096, 0)};
    const struct kvf_vllm_region theirs[] = {region_of(LAYER_0, 0, 0x2000, 4096, 0)};
    const struct kvf_vllm_descriptor both[] = {{0x1000 + 40960, 0x2000 + 81920, 8192}};
    const struct kvf_vllm_descriptor last[] = {{0x1000 + 11 * 4096, 0x2000 + 81920, 4096}};
    const struct asker asker = {.regions = theirs, .region_count = 1};
    const struct {
        const char *transfer_id;
        const struct kvf_vllm_ids wanted;
        const char *text;
        const struct kvf_vllm_descriptor *list; /* NULL: the engine is not asked */
        bool ready;
        int code;
    } cases[] = {
        {"xfer-1", IDS(20, 21), NULL, both, true, 0},
        {"xfer-1", IDS(20), NULL, last, true, 0},
        {"xfer-1", IDS(20, 21, 22), "P num blocks less than D", NULL, true, 0},
        {"xfer-4", IDS(20, 21), "Timeout waiting for P side ready.", NULL, false, 0},
        {"xfer-5", IDS(20, 21), "Mooncake transfer engine returned 123", both, true, 123},
    };
    struct producer producer;
    size_t calls = 0;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = own, .region_count = 1, .abort_ms = 1000});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t began_ns = kvfi_now_ns();
        void *pull;

        fake_return(&producer, cases[i].code);
        producer_ready(&producer, "p-req-1", cases[i].transfer_id, (const struct kvf_vllm_ids[]){IDS(10, 11)},
                       cases[i].ready);
        pull = pull_one(&producer, &asker, "d-req-1", cases[i].transfer_id, &cases[i].wanted, 1);
        pull_expect(pull, KVFI_VLLM_FINISH, cases[i].text == NULL ? "d-req-1" : NULL,
                    cases[i].text == NULL ? NULL : "d-req-1", cases[i].text);
        pull_close(pull);
        if (!cases[i].ready)
            assert_true(kvfi_now_ns() - began_ns >= KVFI_SECOND);
        if (cases[i].list != NULL)
            asked(&producer, calls++, "consumer-host:54321", cases[i].list, 1);
        assert_int_equal(fake_call_count(&producer), calls);
        if (cases[i].text == NULL)
            assert_string_equal(producer_finished(&producer, 1), "p-req-1");
    }
    producer_close(&producer);
}

static void kv_producer_heterogeneous_tp(void **state)
{
    const struct {
        int64_t tp_size, block_len;
        int ranks;
    } cases[] = {{1, 8192, 1}, {4, 2048, 2}};
    const struct kvf_vllm_region own[] = {region_of(LAYER_0, 0, 0x1000, 4096, 0)};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const struct kvf_vllm_region theirs[] = {region_of(LAYER_0, 0, 0x2000, cases[i].block_len, 0)};
        struct asker asker = {.regions = theirs, .region_count = 1, .tp_size = cases[i].tp_size};
        struct producer producer;

        producer_open(&producer, &(struct producer_setup){.regions = own, .region_count = 1, .tp_size = 2});
        producer_ready(&producer, "p-req-h1", "xfer-h1", ONE_GROUP(10, 11));
        for (int64_t rank = 0; rank < cases[i].ranks; rank++) {
            const int64_t ids[] = {20 + 10 * rank, 21 + 10 * rank};
            const struct kvf_vllm_ids group = {ids, 2};
            int64_t bytes = cases[i].tp_size == 1 ? 4096 : 2048, skip = cases[i].tp_size == 1 ? 0 : 2048 * rank;
            struct kvf_vllm_descriptor list[2];
            char name[] = "d-req-h1-r0";
            void *pull;

            name[10] = (char)('0' + rank);
            for (int k = 0; k < 2; k++)
                list[k] = (struct kvf_vllm_descriptor){(uint64_t)(0x1000 + (10 + k) * 4096 + skip),
                                                       (uint64_t)(0x2000 + ids[k] * cases[i].block_len), bytes};
            asker.tp_rank = rank;
            asker.port = 54321 + rank;
            pull = pull_one(&producer, &asker, name, "xfer-h1", &group, 1);
            pull_expect(pull, KVFI_VLLM_FINISH, name, NULL, NULL);
            pull_close(pull);
            asked(&producer, (size_t)rank, rank == 0 ? "consumer-host:54321" : "consumer-host:54322", list, 2);
            assert_string_equal(producer_finished(&producer, rank + 1 == cases[i].ranks),
                                rank + 1 == cases[i].ranks ? "p-req-h1" : "");
        }
        assert_int_equal(producer_stats(&producer).transfers_tracked, 0);
        producer_close(&producer);
    }
}

static void worker_get_finished_timeout(void **state)
{
    const struct kvf_vllm_region own[] = {region_of(LAYER_0, 0, 0x1000, 4096, 0)};
    struct producer producer;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = own, .region_count = 1, .abort_ms = 400});
    producer_ready(&producer, "p-req-expired", "tx-expired", ONE_GROUP(1));
    producer_event(&producer, KVF_VLLM_EVENT_EXPIRED);
    producer_ready(&producer, "p-req-active", "tx-active", ONE_GROUP(2));
    assert_string_equal(producer_finished(&producer, 1), "p-req-expired");
    assert_int_equal(producer_stats(&producer).transfers_tracked, 1);
    assert_int_equal(producer_stats(&producer).expired_reqs, 1);
    producer_close(&producer);
}

/* What the listener could not do comes back from registering: no registry is there, the address is taken. */
static void sender_listener_failure_propagates_to_caller(void **state)
{
    const struct kvf_vllm_region own[] = {region_of(LAYER_0, 0, 0x1000, 4096, 0)};
    struct producer_setup setup = {.regions = own, .region_count = 1, .bootstrap_url = "http://127.0.0.1:1"};
    struct kvf_vllm_endpoints endpoints = {.struct_size = sizeof endpoints};
    struct producer producer, second;
    struct kvf_error error = {.text = ""};

    (void)state;
    assert_int_equal(producer_try_open(&producer, &setup, &error), KVF_ERR_UNREACHABLE);
    assert_non_null(strstr(error.text, "Failed to register"));
    assert_non_null(strstr(error.text, "http://127.0.0.1:1/register after 1 attempts."));
    assert_int_equal(kvf_vllm_worker_endpoints(producer.worker, &endpoints, NULL), KVF_OK);
    assert_string_equal(endpoints.side_channel, "");
    assert_int_equal(endpoints.layout_id, 0);
    producer_close(&producer);
    setup.bootstrap_url = NULL;
    producer_open(&producer, &setup);
    setup.side_port = (int32_t)strtol(strrchr(producer.address, ':') + 1, NULL, 10);
    assert_int_equal(producer_try_open(&second, &setup, &error), KVF_ERR_ADDRESS_IN_USE);
    producer_close(&second);
    producer_close(&producer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(send_kv_to_decode_aligns_consumer_regions_by_layer_metadata),
        cmocka_unit_test(resolve_need_send_accounts_for_remote_tp_fanout),
        cmocka_unit_test(heterogeneous_pp_waits_for_consumer_without_shared_layers),
        cmocka_unit_test(kv_producer),
        cmocka_unit_test(kv_producer_heterogeneous_tp),
        cmocka_unit_test(worker_get_finished_timeout),
        cmocka_unit_test(sender_listener_failure_propagates_to_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
