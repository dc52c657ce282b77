/* SPDX-License-Identifier: Apache-2.0 */
/* Producers that answer with anything: a consumer fails what it must, settles what it can, and goes on. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "consumer_kit.h"

/* A healthy request: the worker goes on. */
static void still_works(struct scene *scene)
{
    struct ask ask;

    dec_pull(&scene->dec, "well", 40, 1);
    prod_ask(&scene->prod, &ask);
    prod_finish(&scene->prod, &ask, "well");
    dec_event(&scene->dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene->dec, KVF_VLLM_EVENT_RECEIVED, "well");
    dec_collect(&scene->dec, "well", "", "");
    ask_close(&ask);
}

/* ---- what cannot be read fails the pull, and says nothing about its writes -------------------------------------- */

static void garbage_fails_but_does_not_settle(void **state)
{
    static const struct {
        const char *name, *bytes;
        size_t byte_count;
    } rows[] = {
        {"empty", "", 0},
        {"nil", "\xc0", 1},
        {"text", "hello", 5},
        {"an array", "\x93\x00\x01\x02", 4},
        {"no status", "\x80", 1},
        {"status is a text", "\x81\xa6status\xa1" "0", 10},
        {"status is true", "\x81\xa6status\xc3", 9},
        {"status is 0.0", "\x81\xa6status\xca\x00\x00\x00\x00", 13},
        {"status 4", "\x81\xa6status\x04", 9},
        {"status -1", "\x81\xa6status\xff", 9},
        {"ids are numbers", "\x82\xa6status\x00\xa7ok_reqs\x91\x01", 19},
        {"ids are a text", "\x82\xa6status\x00\xa7ok_reqs\xa1" "a", 19},
        {"ids are a map", "\x82\xa6status\x00\xa7ok_reqs\x80", 18},
        {"a list without its end", "\x82\xa6status\x00\xa7ok_reqs\xdd\xff\xff\xff\xff", 22},
        {"a text without its end", "\x82\xa6status\x00\xa7" "err_msg\xdb\xff\xff\xff\xff", 22},
        {"something behind it", "\x81\xa6status\x00\x00", 10},
        {"cut", "\x81\xa6stat", 6},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_event event;
        struct scene scene;
        struct ask ask;

        scene_open(&scene);
        scene_ask(&scene, "a", 4, 1, &ask);
        prod_say_bytes(&scene.prod, &ask, rows[i].bytes, rows[i].byte_count);
        event = dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a");
        if (event.status != KVF_ERR_PROTOCOL || strncmp(event.text, "transfer failed: ", 17) != 0)
            fail_msg("%s: %d %s", rows[i].name, event.status, event.text);
        prod_say_bytes(&scene.prod, &ask, rows[i].bytes, rows[i].byte_count); /* more of it changes nothing */
        dec_no_event(&scene.dec);
        dec_collect(&scene.dec, "", "", "");
        assert_int_equal(dec_stats(&scene.dec).malformed, 2);
        prod_say(&scene.prod, &ask, KVFI_VLLM_FINISH, "a", NULL, NULL, 0);
        dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
        dec_collect(&scene.dec, "a", "", "4");
        still_works(&scene);
        ask_close(&ask);
        scene_close(&scene);
    }
}

static void several_frames_are_no_answer(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_open(&scene);
    scene_ask(&scene, "a", 4, 1, &ask);
    prod_say_frames(&scene.prod, &ask, 2);
    dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a");
    prod_say_frames(&scene.prod, &ask, 40);
    prod_say(&scene.prod, &ask, KVFI_VLLM_ERROR, NULL, NULL, NULL, 0);
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "4");
    still_works(&scene);
    ask_close(&ask);
    scene_close(&scene);
}

/* LAYOUT_MISS is no word of 0.32.0's. */
static void status_3_without_a_layout_id_is_garbage(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_init(&scene);
    scene.dec.options.layout_ids = 0;
    dec_open(&scene.dec);
    scene_ask(&scene, "a", 4, 1, &ask);
    prod_say_bytes(&scene.prod, &ask, "\x81\xa6status\x03", 9);
    assert_int_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a").status, KVF_ERR_PROTOCOL);
    dec_no_event(&scene.dec);
    prod_finish(&scene.prod, &ask, "a");
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&scene.dec, "a", "", "4");
    ask_close(&ask);
    scene_close(&scene);
}

/* ---- what is too long cuts the connection ----------------------------------------------------------------------- */

static void a_hundred_megabytes_are_not_taken(void **state)
{
    enum { HUGE_BYTES = 100 << 20 };
    unsigned char *huge = calloc(1, HUGE_BYTES);
    struct scene scene;
    struct ask ask;

    (void)state;
    assert_non_null(huge);
    scene_open(&scene);
    scene_ask(&scene, "a", 4, 1, &ask);
    prod_say_bytes(&scene.prod, &ask, huge, HUGE_BYTES);
    assert_int_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a").status, KVF_ERR_PEER_LOST);
    dec_collect(&scene.dec, "", "", "");
    still_works(&scene);
    ask_close(&ask);
    scene_close(&scene);
    free(huge);
}

/* A text of many megabytes that may be: it is cut to fit. */
static void long_texts_are_cut(void **state)
{
    enum { LONG_BYTES = 8 << 20 };
    char *text = malloc(LONG_BYTES + 1);
    struct kvf_vllm_event event;
    struct scene scene;
    struct ask ask;

    (void)state;
    assert_non_null(text);
    memset(text, 'x', LONG_BYTES);
    text[LONG_BYTES] = '\0';
    scene_open(&scene);
    scene_ask(&scene, "a", 4, 1, &ask);
    prod_say(&scene.prod, &ask, KVFI_VLLM_ERROR, NULL, NULL, text, 0);
    event = dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a");
    assert_int_equal(strlen(event.text), KVF_ERROR_TEXT_BYTES - 1);
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    ask_close(&ask);
    scene_close(&scene);
    free(text);
}

/* ---- ids that were not asked for, or are told twice ------------------------------------------------------------- */

static void unknown_ids_are_ignored(void **state)
{
    struct scene scene;
    struct ask ask, other;

    (void)state;
    scene_open(&scene);
    scene_ask(&scene, "a", 4, 1, &ask);
    scene_ask(&scene, "b", 5, 1, &other);
    prod_say(&scene.prod, &ask, KVFI_VLLM_CONTINUE, "b c", "b d", NULL, 0); /* b is of another pull */
    dec_no_event(&scene.dec);
    assert_int_equal(dec_stats(&scene.dec).ignored_ids, 4);
    scene_finish(&scene, &other, "b");
    scene_finish(&scene, &ask, "a");
    dec_collect(&scene.dec, "a b", "", "");
    ask_close(&ask);
    ask_close(&other);
    scene_close(&scene);
}

static void the_first_word_holds(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_open(&scene);
    dec_pull_many(&scene.dec, "r", 3);
    prod_ask(&scene.prod, &ask);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    prod_say(&scene.prod, &ask, KVFI_VLLM_CONTINUE, "r0 r0", "r1", NULL, 0);
    dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "r1");
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "r1");
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r0");
    prod_say(&scene.prod, &ask, KVFI_VLLM_CONTINUE, "r1", "r0", NULL, 0);
    prod_say(&scene.prod, &ask, KVFI_VLLM_FINISH, "r2", "r0", NULL, 0);
    prod_say(&scene.prod, &ask, KVFI_VLLM_FINISH, "r1", "r0 r2", NULL, 0); /* after the last one */
    prod_say(&scene.prod, &ask, KVFI_VLLM_ERROR, NULL, NULL, NULL, 0);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r2");
    dec_no_event(&scene.dec);
    dec_collect(&scene.dec, "r0 r1 r2", "", "1");
    still_works(&scene);
    ask_close(&ask);
    scene_close(&scene);
}

/* ---- steps without sense ---------------------------------------------------------------------------------------- */

static void expect_step(struct dec *dec, const struct kvf_vllm_recv *recv, size_t count, enum kvf_status status,
                        const char *text)
{
    struct kvf_vllm_step step = {.struct_size = sizeof step, .recvs = recv, .recv_count = count};
    struct kvf_error error = {0};

    assert_int_equal(kvf_vllm_worker_step(dec->worker, &step, &error), status);
    if (strstr(error.text, text) == NULL)
        fail_msg("%s, expected %s", error.text, text);
}

static void steps_are_taken_as_a_whole_or_not_at_all(void **state)
{
    char longest[KVF_VLLM_ID_BYTES + 1];
    struct kvf_vllm_ids ids = {.ids = (const int64_t[]){1, -1}, .count = 1}, bad = {.ids = ids.ids, .count = 2};
    struct kvf_vllm_recv good, recvs[2];
    struct scene scene;
    struct ask ask;

    (void)state;
    memset(longest, 'x', sizeof longest);
    longest[KVF_VLLM_ID_BYTES] = '\0';
    scene_open(&scene);
    good = (struct kvf_vllm_recv){.d_req_id = "a", .transfer_id = "x", .remote_engine_id = "p-engine",
                                  .remote_bootstrap_addr = scene.reg.url, .groups = &ids, .group_count = 1};
    recvs[0] = recvs[1] = good;
    expect_step(&scene.dec, recvs, 2, KVF_ERR_EXISTS, "recvs[1]: d_req_id a is being fetched already");
    recvs[1].d_req_id = "";
    expect_step(&scene.dec, recvs, 2, KVF_ERR_INVALID_ARGUMENT, "recvs[1]: d_req_id is empty");
    recvs[1].d_req_id = longest;
    expect_step(&scene.dec, recvs, 2, KVF_ERR_INVALID_ARGUMENT, "recvs[1]: d_req_id has 512 bytes or more");
    recvs[1].d_req_id = "\xff";
    expect_step(&scene.dec, recvs, 2, KVF_ERR_INVALID_ARGUMENT, "recvs[1]: d_req_id is not UTF-8");
    recvs[1].d_req_id = "b";
    recvs[1].transfer_id = NULL;
    expect_step(&scene.dec, recvs, 2, KVF_ERR_INVALID_ARGUMENT, "recvs[1]: transfer_id is empty");
    recvs[1].transfer_id = "x";
    recvs[1].remote_engine_id = "";
    expect_step(&scene.dec, recvs, 2, KVF_ERR_INVALID_ARGUMENT, "recvs[1]: remote_engine_id is empty");
    recvs[1].remote_engine_id = "p-engine";
    recvs[1].remote_bootstrap_addr = "";
    expect_step(&scene.dec, recvs, 2, KVF_ERR_INVALID_ARGUMENT, "recvs[1]: remote_bootstrap_addr is empty");
    recvs[1] = good;
    recvs[1].d_req_id = "b";
    recvs[1].groups = &bad;
    expect_step(&scene.dec, recvs, 2, KVF_ERR_IDS, "recvs[1]: group 0, block id 1 is -1");
    recvs[1].groups = NULL;
    expect_step(&scene.dec, recvs, 2, KVF_ERR_INVALID_ARGUMENT, "recvs[1]: groups is NULL");
    prod_no_ask(&scene.prod);
    dec_step(&scene.dec, &good, 1);
    expect_step(&scene.dec, &good, 1, KVF_ERR_EXISTS, "recvs[0]: d_req_id a is being fetched already");
    prod_ask(&scene.prod, &ask);
    prod_finish(&scene.prod, &ask, "a");
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
    dec_collect(&scene.dec, "a", "", "");
    ask_close(&ask);
    scene_close(&scene);
}

static void requests_are_bounded(void **state)
{
    struct kvf_vllm_ids ids = {.ids = (const int64_t[]){1}, .count = 1};
    struct kvf_vllm_recv recv;
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_init(&scene);
    scene.dec.options.max_transfers = 2;
    dec_open(&scene.dec);
    dec_pull_many(&scene.dec, "r", 2);
    recv = (struct kvf_vllm_recv){.d_req_id = "a", .transfer_id = "x", .remote_engine_id = "p-engine",
                                  .remote_bootstrap_addr = scene.reg.url, .groups = &ids, .group_count = 1};
    expect_step(&scene.dec, &recv, 1, KVF_ERR_LIMIT, "2 requests are known already, at most max_transfers 2");
    prod_ask(&scene.prod, &ask);
    prod_finish(&scene.prod, &ask, "r0 r1");
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r0");
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "r1");
    expect_step(&scene.dec, &recv, 1, KVF_ERR_LIMIT, "2 requests are known already"); /* until they are collected */
    dec_collect(&scene.dec, "r0 r1", "", "");
    still_works(&scene);
    ask_close(&ask);
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_fails_but_does_not_settle),
        cmocka_unit_test(several_frames_are_no_answer),
        cmocka_unit_test(status_3_without_a_layout_id_is_garbage),
        cmocka_unit_test(a_hundred_megabytes_are_not_taken),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(unknown_ids_are_ignored),
        cmocka_unit_test(the_first_word_holds),
        cmocka_unit_test(steps_are_taken_as_a_whole_or_not_at_all),
        cmocka_unit_test(requests_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
