/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer and a scripted producer: whole pulls, whom it asks, and layout ids. */
#include "consumer_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one request, whole ----------------------------------------------------------------------------------------- */

static void pulls_end_to_end(void **state)
{
    const int64_t blocks[] = {7, 8};
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_open(&scene);
    dec_pull(&scene.dec, "a", 7, 2);
    prod_ask(&scene.prod, &ask);
    assert_int_equal(ask.pull.request_count, 1);
    assert_string_equal(ask.pull.requests[0].transfer_id, "x-a");
    assert_int_equal(ask_write(&ask, blocks, 2, 0x5a), KVF_OK);
    prod_finish(&scene.prod, &ask, "a");
    assert_int_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL).requests, 1);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
    dec_collect(&scene.dec, "a", "", "");
    dec_collect(&scene.dec, "", "", "");
    for (size_t i = 0; i < (size_t)DEC_BLOCKS * DEC_BLOCK_BYTES; i++)
        if (scene.dec.memory[i] != (i / DEC_BLOCK_BYTES == 7 || i / DEC_BLOCK_BYTES == 8 ? 0x5a : 0))
            fail_msg("byte %zu is %d", i, scene.dec.memory[i]);
    assert_int_equal(dec_stats(&scene.dec).requests_received, 1);
    assert_int_equal(dec_stats(&scene.dec).pulls_sent, 1);
    ask_close(&ask);
    scene_close(&scene);
}

/* The bytes of vector V1 ("kv_consumuer" of the seed), from tests/golden/vllm/pull_consumer.hex; the port in it, at
 * V1_PORT, is any. */
static const char V1[] =
    "8aaf72656d6f74655f686f73746e616d65a93132372e302e302e31ab72656d6f74655f706f7274cdd431ae72656d6f74655f74705f73697a65"
    "01ae72656d6f74655f74705f72616e6b00aa7265715f626c6f636b7381a7642d7265712d3192aa786665722d7265712d3191926465b36b765f"
    "6361636865735f626173655f6164647291cd1000aa626c6f636b5f6c656e7391cd1000ad6b765f626c6f636b5f6c656e7391cd1000b6726567"
    "697374657265645f6c617965725f6e616d657391b86d6f64656c2e6c61796572732e302e73656c665f6174746eb87265676973746572"
    "65645f6c617965725f696e64696365739100";
enum { V1_BYTES = 243, V1_PORT = 40, V1_KEYS = 10 };

static void read_v1(unsigned char bytes[V1_BYTES], int64_t port)
{
    char pair[3] = "";

    assert_int_equal(strlen(V1), 2 * V1_BYTES);
    for (size_t i = 0; i < V1_BYTES; i++) {
        memcpy(pair, V1 + 2 * i, 2);
        bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    assert_int_equal(bytes[V1_PORT - 1], 0xcd);
    bytes[V1_PORT] = (unsigned char)(port >> 8);
    bytes[V1_PORT + 1] = (unsigned char)port;
}

/* The seed's own region: nobody writes there. */
static void register_v1(struct dec *dec)
{
    struct kvf_vllm_region region = {.layer_name = "model.layers.0.self_attn", .base_addr = 0x1000, .block_len = 4096,
                                     .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW};
    struct kvf_vllm_storage storage = {.base_addr = 0x1000, .bytes = 4096 * 102};
    kvf_vllm_regions *regions = NULL;

    assert_int_equal(kvf_vllm_regions_create(&region, 1, &regions, NULL), KVF_OK);
    assert_int_equal(kvf_vllm_worker_register(dec->worker, &storage, 1, regions, 0, NULL), KVF_OK);
    kvf_vllm_regions_release(regions);
}

/* What a worker sends has V1's ten keys, byte for byte, and behind them the three of the packed-row line. */
static void kv_consumuer(void **state)
{
    struct kvf_vllm_endpoints ends = {.struct_size = sizeof ends};
    struct kvf_vllm_ids ids = {.ids = (const int64_t[]){100, 101}, .count = 2};
    struct kvf_vllm_recv recv = {.d_req_id = "d-req-1", .transfer_id = "xfer-req-1", .remote_engine_id = "p-engine",
                                 .groups = &ids, .group_count = 1};
    unsigned char wanted[V1_BYTES];
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_init(&scene);
    scene.dec.options.layout_ids = 0;
    dec_open(&scene.dec);
    register_v1(&scene.dec);
    assert_int_equal(kvf_vllm_worker_endpoints(scene.dec.worker, &ends, NULL), KVF_OK);
    recv.remote_bootstrap_addr = scene.reg.url;
    dec_step(&scene.dec, &recv, 1);
    prod_ask(&scene.prod, &ask);
    read_v1(wanted, ends.rpc_port);
    assert_true(ask.byte_count > V1_BYTES);
    assert_int_equal(ask.bytes[0], 0x80 | (V1_KEYS + 3));
    assert_memory_equal(ask.bytes + 1, wanted + 1, V1_BYTES - 1);
    assert_int_equal(ask.pull.peer.layout_id, 0);
    assert_int_equal(ask.pull.peer.pp_size, 1);
    assert_int_equal(ask.pull.peer.regions.row_offset_count, 1);
    assert_int_equal(ask.pull.peer.regions.row_offsets[0], -1);
    prod_finish(&scene.prod, &ask, "d-req-1");
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "d-req-1");
    dec_collect(&scene.dec, "d-req-1", "", "");
    ask_close(&ask);
    scene_close(&scene);
}

/* ---- whom it asks ----------------------------------------------------------------------------------------------- */

enum { MOST_PRODS = 8 };

/* An engine of `tp` x `pp` producers, and which of them a consumer rank asks. */
struct pairing {
    const char *name;
    int tp, pp;
    int own_tp_rank, own_tp, own_pp_rank, own_pp;
    const char *asked; /* "1" for each one that is, in the order tp, pp */
};

static void check_pairing(const struct pairing *row)
{
    struct prod prods[MOST_PRODS];
    struct reg reg;
    struct dec dec;
    struct ask ask;
    int asked = 0;

    reg_open(&reg);
    for (int i = 0; i < row->tp * row->pp; i++) {
        prod_open(&prods[i], 0);
        reg_add(&reg, "p-engine", 0, i / row->pp, i % row->pp, prods[i].address);
    }
    dec_init(&dec, &reg);
    dec.options.tp_rank = row->own_tp_rank;
    dec.options.tp_size = row->own_tp;
    dec.options.pp_rank = row->own_pp_rank;
    dec.options.pp_size = row->own_pp;
    dec_open(&dec);
    dec_pull(&dec, "a", 0, 1);
    for (int i = 0; i < row->tp * row->pp; i++) {
        if (row->asked[i] != '1') {
            prod_no_ask(&prods[i]);
            continue;
        }
        dec_collect(&dec, "", "", ""); /* until the last has answered */
        prod_ask(&prods[i], &ask);
        assert_int_equal(ask.pull.peer.tp_size, row->own_tp);
        assert_int_equal(ask.pull.peer.tp_rank, row->own_tp_rank);
        assert_int_equal(ask.pull.peer.pp_size, row->own_pp);
        prod_finish(&prods[i], &ask, "a");
        ask_close(&ask);
        dec_event(&dec, KVF_VLLM_EVENT_ASKED, NULL);
        asked++;
    }
    dec_event(&dec, KVF_VLLM_EVENT_RECEIVED, "a");
    dec_collect(&dec, "a", "", "");
    assert_int_equal(dec_stats(&dec).pulls_sent, asked);
    dec_close(&dec);
    for (int i = 0; i < row->tp * row->pp; i++)
        prod_close(&prods[i]);
    reg_close(&reg);
}

static void receive_kv_selects_remote_pp_workers(void **state)
{
    static const struct pairing rows[] = {
        {"one stage asks both", 1, 2, 0, 1, 0, 1, "11"},
        {"stage asks stage", 1, 2, 0, 1, 1, 2, "01"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_pairing(&rows[i]);
}

static void pairs_ranks(void **state)
{
    static const struct pairing rows[] = {
        {"as many", 2, 1, 1, 2, 0, 1, "01"},
        {"fewer here", 4, 1, 1, 2, 0, 1, "0011"},
        {"more here", 2, 1, 3, 4, 0, 1, "01"},
        {"all of four", 4, 1, 0, 1, 0, 1, "1111"},
        {"two stages here, one there", 1, 1, 0, 1, 1, 2, "1"},
        {"three stages here, two there", 2, 2, 0, 2, 2, 3, "1100"},
        {"both at once", 2, 2, 0, 1, 0, 2, "1010"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_pairing(&rows[i]);
}

/* All requests of a step and engine go in one pull; each engine has its own. */
static void asks_once_per_step_and_engine(void **state)
{
    struct prod other;
    struct scene scene;
    struct ask ask;
    struct kvf_vllm_ids ids = {.ids = (const int64_t[]){1}, .count = 1};
    struct kvf_vllm_recv recvs[4];

    (void)state;
    scene_open(&scene);
    prod_open(&other, 0);
    reg_add(&scene.reg, "q-engine", 1, 0, 0, other.address);
    for (int i = 0; i < 4; i++)
        recvs[i] = (struct kvf_vllm_recv){.d_req_id = (const char *[]){"a", "b", "c", "d"}[i], .transfer_id = "x",
                                          .remote_engine_id = i == 1 ? "q-engine" : "p-engine",
                                          .remote_bootstrap_addr = scene.reg.url, .groups = &ids, .group_count = 1};
    dec_step(&scene.dec, recvs, 4);
    prod_ask(&other, &ask);
    assert_int_equal(ask.pull.request_count, 1);
    assert_true(ask_has(&ask, "b"));
    prod_finish(&other, &ask, "b");
    ask_close(&ask);
    prod_ask(&scene.prod, &ask);
    assert_int_equal(ask.pull.request_count, 3);
    assert_true(ask_has(&ask, "a") && ask_has(&ask, "c") && ask_has(&ask, "d"));
    prod_say(&scene.prod, &ask, KVFI_VLLM_CONTINUE, "c", NULL, NULL, 0);
    prod_say(&scene.prod, &ask, KVFI_VLLM_CONTINUE, NULL, "d", "KV group count mismatch", 0);
    prod_finish(&scene.prod, &ask, "a");
    ask_close(&ask);
    for (int received = 0, failed = 0, settled = 0; received < 3 || settled < 1;) {
        struct kvf_vllm_event event;

        assert_int_equal(kvf_vllm_worker_wait(scene.dec.worker, &event, 1, 10 * KVFI_SECOND), 1);
        received += event.kind == KVF_VLLM_EVENT_RECEIVED;
        failed += event.kind == KVF_VLLM_EVENT_FAILED;
        settled += event.kind == KVF_VLLM_EVENT_SETTLED;
        assert_true(failed >= settled);
        if (event.kind == KVF_VLLM_EVENT_FAILED)
            assert_string_equal(event.text, "KV group count mismatch");
    }
    dec_collect(&scene.dec, "a b c d", "", "1");
    prod_close(&other);
    scene_close(&scene);
}

/* ---- layout ids ------------------------------------------------------------------------------------------------- */

/* One request, answered at once; says whether its pull had arrays. */
static bool pull_once(struct scene *scene, const char *id, uint64_t echo)
{
    struct ask ask;
    bool with_arrays;

    dec_pull(&scene->dec, id, 0, 1);
    prod_ask(&scene->prod, &ask);
    with_arrays = ask.pull.peer.regions.base_addr_count > 0;
    assert_int_equal(with_arrays, ask.pull.peer.regions.layer_name_count > 0);
    prod_say(&scene->prod, &ask, KVFI_VLLM_FINISH, id, NULL, NULL, echo == 1 ? ask.pull.peer.layout_id : echo);
    dec_event(&scene->dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene->dec, KVF_VLLM_EVENT_RECEIVED, id);
    dec_collect(&scene->dec, id, "", "");
    ask_close(&ask);
    return with_arrays;
}

static void leaves_arrays_out_once_they_are_known(void **state)
{
    struct scene scene;

    (void)state;
    scene_open(&scene);
    assert_true(pull_once(&scene, "a", 0));     /* of 0.32.0: it never says so */
    assert_true(pull_once(&scene, "b", 12345)); /* another id says nothing */
    assert_true(pull_once(&scene, "c", 1));
    assert_false(pull_once(&scene, "d", 1));
    assert_false(pull_once(&scene, "e", 0));    /* once said is enough */
    dec_register(&scene.dec);
    assert_true(pull_once(&scene, "f", 1));
    assert_false(pull_once(&scene, "g", 1));
    scene_close(&scene);
}

static void asks_again_with_arrays_after_a_miss(void **state)
{
    struct scene scene;
    struct ask first, second;

    (void)state;
    scene_open(&scene);
    pull_once(&scene, "a", 1);
    dec_pull_many(&scene.dec, "r", 3);
    prod_ask(&scene.prod, &first);
    assert_int_equal(first.pull.peer.regions.base_addr_count, 0);
    prod_say(&scene.prod, &first, KVFI_VLLM_CONTINUE, "r1", NULL, NULL, first.pull.peer.layout_id);
    prod_say(&scene.prod, &first, KVFI_VLLM_LAYOUT_MISS, NULL, NULL, "not cached", 0);
    prod_ask(&scene.prod, &second);
    assert_false(first.id_bytes == second.id_bytes && memcmp(first.id, second.id, first.id_bytes) == 0);
    assert_int_equal(second.pull.peer.regions.base_addr_count, 1);
    assert_int_equal(second.pull.peer.layout_id, first.pull.peer.layout_id);
    assert_int_equal(second.pull.request_count, 2); /* the unsettled ones */
    assert_true(ask_has(&second, "r0") && ask_has(&second, "r2"));
    prod_finish(&scene.prod, &second, "r0 r2");
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r1");
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r0");
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r2");
    dec_collect(&scene.dec, "r0 r1 r2", "", "");
    assert_int_equal(dec_stats(&scene.dec).layout_misses, 1);
    ask_close(&first);
    ask_close(&second);
    scene_close(&scene);
}

/* With arrays sent, a miss is an error like any other; so is one that follows a miss. */
static void takes_a_miss_with_arrays_for_an_error(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_open(&scene);
    dec_pull(&scene.dec, "a", 5, 1);
    prod_ask(&scene.prod, &ask);
    prod_say(&scene.prod, &ask, KVFI_VLLM_LAYOUT_MISS, NULL, NULL, "no room", 0);
    ask_close(&ask);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    assert_string_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a").text, "no room");
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "5");
    pull_once(&scene, "b", 1);
    dec_pull(&scene.dec, "c", 6, 1);
    for (int i = 0; i < 2; i++) {
        prod_ask(&scene.prod, &ask);
        assert_int_equal(ask.pull.peer.regions.base_addr_count, i);
        prod_say(&scene.prod, &ask, KVFI_VLLM_LAYOUT_MISS, NULL, NULL, "no room", 0);
        ask_close(&ask);
        dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    }
    dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "c");
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "c");
    dec_collect(&scene.dec, "c", "", "6");
    assert_true(pull_once(&scene, "d", 1));
    scene_close(&scene);
}

/* A worker of 0.32.0's generation sends no id, and arrays always. */
static void has_no_layout_id_where_it_is_switched_off(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_init(&scene);
    scene.dec.options.layout_ids = 0;
    dec_open(&scene.dec);
    for (int i = 0; i < 2; i++) {
        dec_pull(&scene.dec, "a", 0, 1);
        prod_ask(&scene.prod, &ask);
        assert_int_equal(ask.pull.peer.layout_id, 0);
        assert_int_equal(ask.pull.peer.regions.base_addr_count, 1);
        assert_null(memmem(ask.bytes, ask.byte_count, "layout_id", 9));
        prod_finish(&scene.prod, &ask, "a");
        ask_close(&ask);
        dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
        dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
        dec_collect(&scene.dec, "a", "", "");
    }
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pulls_end_to_end),
        cmocka_unit_test(kv_consumuer),
        cmocka_unit_test(receive_kv_selects_remote_pp_workers),
        cmocka_unit_test(pairs_ranks),
        cmocka_unit_test(asks_once_per_step_and_engine),
        cmocka_unit_test(leaves_arrays_out_once_they_are_known),
        cmocka_unit_test(asks_again_with_arrays_after_a_miss),
        cmocka_unit_test(takes_a_miss_with_arrays_for_an_error),
        cmocka_unit_test(has_no_layout_id_where_it_is_switched_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
