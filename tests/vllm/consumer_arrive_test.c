/* SPDX-License-Identifier: Apache-2.0 */
/* What peers may write of a consumer's memory, and whether what producers say that they wrote is there. */
#include "consumer_kit.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/mooncake/frame.h"

#define SHORT_NS (200 * KVFI_MS)

/* A consumer that counts, and has asked for blocks [9, 9 + count) as request "a". */
static void open_counting(struct scene *scene, struct ask *ask, size_t count, int64_t arrival_timeout_ns)
{
    scene_init(scene);
    scene->dec.options.check_arrivals = 1;
    scene->dec.options.arrival_timeout_ns = arrival_timeout_ns;
    dec_open(&scene->dec);
    scene_ask(scene, "a", 9, count, ask);
}

static void close_all(struct scene *scene, struct ask *ask)
{
    ask_close(ask);
    scene_close(scene);
}

static bool holds(const struct dec *dec, int64_t block, unsigned char value)
{
    for (size_t i = 0; i < DEC_BLOCK_BYTES; i++)
        if (dec->memory[(size_t)block * DEC_BLOCK_BYTES + i] != value)
            return false;
    return true;
}

/* ---- what may be written ---------------------------------------------------------------------------------------- */

/* Blocks that nobody fetches, beside those that are; reading; and the request that is fetched stays right. */
static void refuses_what_was_not_granted(void **state)
{
    const int64_t own[] = {9, 10}, foreign[] = {8, 11, 0, DEC_BLOCKS - 1};
    struct scene scene;
    struct ask ask;

    (void)state;
    open_counting(&scene, &ask, 2, 20 * KVFI_SECOND);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        assert_int_not_equal(ask_write(&ask, &foreign[i], 1, 0xbb), KVF_OK);
        assert_true(holds(&scene.dec, foreign[i], 0));
    }
    assert_int_not_equal(ask_read(&ask, 9), KVF_OK);
    assert_int_equal(ask_write(&ask, own, 2, 0x11), KVF_OK);
    scene_finish(&scene, &ask, "a");
    assert_true(holds(&scene.dec, 9, 0x11) && holds(&scene.dec, 10, 0x11));
    assert_int_equal(dec_stats(&scene.dec).refused_accesses, 5);
    close_all(&scene, &ask);
}

/* The blocks of a request that is over, also when they are another one's by now. */
static void refuses_what_comes_late(void **state)
{
    const int64_t block = 9;
    struct scene scene;
    struct ask ask, again;

    (void)state;
    open_counting(&scene, &ask, 1, 20 * KVFI_SECOND);
    assert_int_equal(ask_write(&ask, &block, 1, 0x11), KVF_OK);
    scene_finish(&scene, &ask, "a");
    assert_int_not_equal(ask_write(&ask, &block, 1, 0x22), KVF_OK);
    assert_true(holds(&scene.dec, 9, 0x11));
    scene_ask(&scene, "b", 9, 1, &again);
    assert_int_equal(ask_write(&ask, &block, 1, 0x33), KVF_OK); /* the second one came without arrays */
    scene_finish(&scene, &again, "b");
    assert_int_not_equal(ask_write(&ask, &block, 1, 0x44), KVF_OK);
    assert_true(holds(&scene.dec, 9, 0x33));
    ask_close(&again);
    close_all(&scene, &ask);
}

/* Two requests of one block, by a host that shares it: it stays granted until both are over. */
static void grants_for_as_long_as_one_needs_it(void **state)
{
    const int64_t block = 9;
    struct scene scene;
    struct ask ask, other;

    (void)state;
    open_counting(&scene, &ask, 1, 20 * KVFI_SECOND);
    scene_ask(&scene, "b", 9, 1, &other);
    assert_int_equal(ask_write(&ask, &block, 1, 0x11), KVF_OK);
    scene_finish(&scene, &ask, "a");
    assert_int_equal(ask_write(&other, &block, 1, 0x22), KVF_OK);
    scene_finish(&scene, &other, "b");
    assert_int_not_equal(ask_write(&other, &block, 1, 0x33), KVF_OK);
    ask_close(&other);
    close_all(&scene, &ask);
}

static void guards_through_sleep_and_registering_anew(void **state)
{
    const int64_t block = 9;
    struct scene scene;
    struct ask ask, again;

    (void)state;
    open_counting(&scene, &ask, 1, 20 * KVFI_SECOND);
    assert_int_equal(ask_write(&ask, &block, 1, 0x11), KVF_OK);
    scene_finish(&scene, &ask, "a");
    assert_int_equal(kvf_vllm_worker_sleep(scene.dec.worker, KVFI_SECOND, NULL), KVF_OK);
    assert_int_equal(kvf_vllm_worker_wake(scene.dec.worker, NULL), KVF_OK);
    assert_int_not_equal(ask_write(&ask, &block, 1, 0x22), KVF_OK);
    dec_register(&scene.dec);
    assert_int_not_equal(ask_write(&ask, &block, 1, 0x22), KVF_OK);
    assert_true(holds(&scene.dec, 9, 0x11));
    scene_ask(&scene, "b", 9, 1, &again);
    assert_int_equal(ask_write(&again, &block, 1, 0x33), KVF_OK);
    scene_finish(&scene, &again, "b");
    ask_close(&again);
    close_all(&scene, &ask);
}

/* Writes ten bytes into block 9, waits for the answer, and is amid a write into block 10 then: 100 bytes are out. */
static int begin_write(struct dec *dec, const struct ask *ask)
{
    const uint64_t base = ask->pull.peer.regions.base_addrs[0];
    struct kvf_vllm_endpoints ends = {.struct_size = sizeof ends};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct kvfi_moon_header whole = {10, base + (uint64_t)9 * DEC_BLOCK_BYTES, KVFI_MOON_WRITE_2};
    struct kvfi_moon_header part = {DEC_BLOCK_BYTES, base + (uint64_t)10 * DEC_BLOCK_BYTES, KVFI_MOON_WRITE_2};
    uint8_t bytes[2 * KVFI_MOON_HEADER_BYTES + 10 + 100], status[KVFI_MOON_STATUS_BYTES];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(kvf_vllm_worker_endpoints(dec->worker, &ends, NULL), KVF_OK);
    address.sin_port = htons((uint16_t)ends.data_port);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    memset(bytes, 0x55, sizeof bytes);
    kvfi_moon_pack_header(&whole, bytes);
    kvfi_moon_pack_header(&part, bytes + KVFI_MOON_HEADER_BYTES + 10);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    assert_int_equal(recv(fd, status, sizeof status, MSG_WAITALL), sizeof status);
    return fd;
}

/* The request is told when that write is broken off, whether it failed or not, and nothing of it comes afterwards. */
static void breaks_off_what_is_under_way(void **state)
{
    const int64_t own[] = {9, 10};

    (void)state;
    for (int i = 0; i < 20; i++) {
        bool fails = i % 2 == 0;
        uint8_t rest[DEC_BLOCK_BYTES] = {0x55}, status[KVFI_MOON_STATUS_BYTES];
        struct scene scene;
        struct ask ask;
        int fd;

        open_counting(&scene, &ask, 2, 20 * KVFI_SECOND);
        assert_int_equal(ask_write(&ask, own, 2, 0x11), KVF_OK);
        fd = begin_write(&scene.dec, &ask);
        prod_say(&scene.prod, &ask, KVFI_VLLM_FINISH, fails ? NULL : "a", fails ? "a" : NULL, NULL, 0);
        if (fails)
            dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a");
        dec_event(&scene.dec, fails ? KVF_VLLM_EVENT_SETTLED : KVF_VLLM_EVENT_RECEIVED, "a");
        memset(scene.dec.memory + (size_t)10 * DEC_BLOCK_BYTES, 0x77, DEC_BLOCK_BYTES); /* it is this side's now */
        send(fd, rest, sizeof rest - 100, MSG_NOSIGNAL);
        assert_true(recv(fd, status, sizeof status, MSG_WAITALL) <= 0);
        assert_true(holds(&scene.dec, 10, 0x77));
        close(fd);
        close_all(&scene, &ask);
    }
}

static void without_grants_all_is_open(void **state)
{
    const int64_t block = 77;
    struct scene scene;
    struct ask ask;

    (void)state;
    scene_init(&scene);
    scene.dec.options.check_grants = 0;
    scene.dec.options.check_arrivals = 1; /* of no use without */
    dec_open(&scene.dec);
    scene_ask(&scene, "a", 9, 1, &ask);
    assert_int_equal(ask_write(&ask, &block, 1, 0x11), KVF_OK);
    assert_int_equal(ask_read(&ask, 77), KVF_OK);
    scene_finish(&scene, &ask, "a");
    close_all(&scene, &ask);
}

/* Nothing is asked for, and the others of the step are. */
static void fails_blocks_that_are_not_there(void **state)
{
    const int64_t block = 3;
    struct kvf_vllm_event event;
    struct scene scene;
    struct ask ask;
    int64_t ids[] = {DEC_BLOCKS - 1, DEC_BLOCKS};
    struct kvf_vllm_ids groups[] = {{.ids = ids, .count = 2}, {.ids = &block, .count = 1}};
    struct kvf_vllm_recv recvs[] = {
        {.d_req_id = "past", .transfer_id = "x", .groups = &groups[0], .group_count = 1},
        {.d_req_id = "good", .transfer_id = "y", .groups = &groups[1], .group_count = 1},
    };

    (void)state;
    scene_open(&scene);
    for (size_t i = 0; i < 2; i++) {
        recvs[i].remote_engine_id = scene.dec.engine_id;
        recvs[i].remote_bootstrap_addr = scene.dec.bootstrap;
    }
    dec_step(&scene.dec, recvs, 2);
    event = dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "past");
    assert_int_equal(event.status, KVF_ERR_OUT_OF_RANGE);
    assert_non_null(strstr(event.text, "block id 4096, expected 0 to 4095"));
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "past");
    prod_ask(&scene.prod, &ask);
    assert_true(ask_has(&ask, "good") && !ask_has(&ask, "past"));
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    scene_finish(&scene, &ask, "good");
    dec_collect(&scene.dec, "past good", "", "4095 4096");
    close_all(&scene, &ask);
}

/* ---- what must have come ---------------------------------------------------------------------------------------- */

/* Nothing; a half of a block; one of two blocks; that one twice. */
static void fails_what_is_not_all_there(void **state)
{
    const struct {
        size_t first, second; /* bytes of blocks 9 and 10 */
        int times;
        const char *of, *block;
    } rows[] = {
        {0, 0, 1, "of 512 bytes 0 arrived",
         "block 9 has 0 of 256 bytes in the layers that go with model.layers.0.self_attn"},
        {256, 128, 1, "of 512 bytes 384 arrived", "block 10 has 128 of 256 bytes"},
        {256, 0, 1, "of 512 bytes 256 arrived", "block 10 has 0 of"},
        {0, 256, 3, "of 512 bytes 256 arrived", "block 9 has 0 of"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvf_vllm_event event;
        struct scene scene;
        struct ask ask;

        open_counting(&scene, &ask, 2, SHORT_NS);
        for (int k = 0; k < rows[i].times; k++) {
            if (rows[i].first > 0)
                assert_int_equal(ask_write_part(&ask, 9, 0, rows[i].first, 0x11), KVF_OK);
            if (rows[i].second > 0)
                assert_int_equal(ask_write_part(&ask, 10, 0, rows[i].second, 0x11), KVF_OK);
        }
        prod_finish(&scene.prod, &ask, "a");
        event = dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a");
        assert_int_equal(event.status, KVF_ERR_INCOMPLETE_TRANSFER);
        if (strstr(event.text, rows[i].of) == NULL || strstr(event.text, rows[i].block) == NULL ||
            strstr(event.text, scene.prod.address) == NULL || strstr(event.text, "request a ") == NULL)
            fail_msg("row %zu: %s", i, event.text);
        assert_int_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a").status, KVF_OK);
        dec_collect(&scene.dec, "a", "", "9 10");
        assert_int_equal(dec_stats(&scene.dec).short_arrivals, 1);
        assert_int_equal(dec_stats(&scene.dec).failed_recvs, 1);
        assert_int_equal(dec_stats(&scene.dec).unsettled, 0);
        assert_int_not_equal(ask_write_part(&ask, 9, 0, 1, 0x22), KVF_OK);
        close_all(&scene, &ask);
    }
}

struct late {
    const struct ask *ask;
    int64_t blocks[2];
    enum kvf_status status;
};

static void *write_late(void *argument)
{
    struct late *late = argument;

    late->status = ask_write(late->ask, late->blocks, 2, 0x11);
    return NULL;
}

/* The word is there before the bytes, as it is with writers of data protocol 1. */
static void waits_for_bytes_that_come_late(void **state)
{
    struct scene scene;
    struct ask ask;
    struct late late = {.ask = &ask, .blocks = {9, 10}};
    pthread_t thread;

    (void)state;
    open_counting(&scene, &ask, 2, 20 * KVFI_SECOND);
    prod_finish(&scene.prod, &ask, "a");
    dec_no_event(&scene.dec);
    dec_collect(&scene.dec, "", "", "");
    assert_int_equal(pthread_create(&thread, NULL, write_late, &late), 0);
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
    pthread_join(thread, NULL);
    assert_int_equal(late.status, KVF_OK);
    assert_true(holds(&scene.dec, 9, 0x11) && holds(&scene.dec, 10, 0x11));
    dec_collect(&scene.dec, "a", "", "");
    assert_int_equal(dec_stats(&scene.dec).late_arrivals, 1);
    assert_int_equal(dec_stats(&scene.dec).requests_received, 1);
    close_all(&scene, &ask);
}

/* While one waits for its bytes, another one goes its way; closing waits for none. */
static void waits_beside_others(void **state)
{
    const int64_t block = 20;
    struct scene scene;
    struct ask ask, other;

    (void)state;
    open_counting(&scene, &ask, 1, 20 * KVFI_SECOND);
    prod_finish(&scene.prod, &ask, "a");
    scene_ask(&scene, "b", 20, 1, &other);
    assert_int_equal(ask_write(&ask, &block, 1, 0x11), KVF_OK);
    scene_finish(&scene, &other, "b");
    dec_no_event(&scene.dec);
    ask_close(&other);
    close_all(&scene, &ask);
}

static void does_not_wait_when_told_so(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    open_counting(&scene, &ask, 1, 0);
    prod_finish(&scene.prod, &ask, "a");
    assert_int_equal(dec_event(&scene.dec, KVF_VLLM_EVENT_FAILED, "a").status, KVF_ERR_INCOMPLETE_TRANSFER);
    dec_event(&scene.dec, KVF_VLLM_EVENT_SETTLED, "a");
    close_all(&scene, &ask);
}

/* With the last of several. */
static void counts_when_all_have_answered(void **state)
{
    struct scene scene;
    struct prod second;
    struct ask asks[2];

    (void)state;
    scene_init(&scene);
    scene.dec.options.check_arrivals = 1;
    scene.dec.options.arrival_timeout_ns = SHORT_NS;
    prod_open(&second, 0);
    reg_add(&scene.reg, "p-engine", 0, 1, 0, second.address);
    dec_open(&scene.dec);
    dec_pull(&scene.dec, "a", 9, 1);
    prod_ask(&scene.prod, &asks[0]);
    prod_ask(&second, &asks[1]);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    assert_int_equal(ask_write_part(&asks[0], 9, 0, 128, 0x11), KVF_OK);
    prod_finish(&scene.prod, &asks[0], "a");
    for (int i = 0; i < 10; i++)
        dec_no_event(&scene.dec); /* longer than bytes are waited for */
    assert_int_equal(ask_write_part(&asks[1], 9, 128, 128, 0x11), KVF_OK);
    prod_finish(&second, &asks[1], "a");
    dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, "a");
    ask_close(&asks[1]);
    prod_close(&second);
    close_all(&scene, &asks[0]);
}

/* Of recurrent state id 0 is nobody's; so it may be where nothing is said of a group. */
static void expects_no_block_that_is_none(void **state)
{
    static const int32_t kinds[] = {KVF_VLLM_MAMBA};
    const int64_t block = 9;

    (void)state;
    for (int known = 0; known < 2; known++) {
        int64_t ids[] = {0, 9};
        struct kvf_vllm_ids group = {.ids = ids, .count = 2};
        struct kvf_vllm_recv recv = {.d_req_id = "a", .transfer_id = "x", .groups = &group, .group_count = 1};
        struct scene scene;
        struct ask ask;

        scene_init(&scene);
        scene.dec.options.check_arrivals = 1;
        scene.dec.options.arrival_timeout_ns = SHORT_NS;
        scene.dec.options.group_kinds = known ? kinds : NULL;
        scene.dec.options.group_count = (size_t)known;
        dec_open(&scene.dec);
        recv.remote_engine_id = scene.dec.engine_id;
        recv.remote_bootstrap_addr = scene.dec.bootstrap;
        dec_step(&scene.dec, &recv, 1);
        prod_ask(&scene.prod, &ask);
        dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
        assert_int_equal(ask_write(&ask, &block, 1, 0x11), KVF_OK);
        assert_int_equal(ask_write(&ask, &ids[0], 1, 0x11) == KVF_OK, !known);
        scene_finish(&scene, &ask, "a");
        close_all(&scene, &ask);
    }
}

/* Nothing is to come. */
static void expects_nothing_of_a_release(void **state)
{
    struct scene scene;
    struct ask ask;

    (void)state;
    open_counting(&scene, &ask, 0, 0);
    scene_finish(&scene, &ask, "a");
    close_all(&scene, &ask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_was_not_granted),
        cmocka_unit_test(refuses_what_comes_late),
        cmocka_unit_test(grants_for_as_long_as_one_needs_it),
        cmocka_unit_test(guards_through_sleep_and_registering_anew),
        cmocka_unit_test(breaks_off_what_is_under_way),
        cmocka_unit_test(without_grants_all_is_open),
        cmocka_unit_test(fails_blocks_that_are_not_there),
        cmocka_unit_test(fails_what_is_not_all_there),
        cmocka_unit_test(waits_for_bytes_that_come_late),
        cmocka_unit_test(waits_beside_others),
        cmocka_unit_test(does_not_wait_when_told_so),
        cmocka_unit_test(counts_when_all_have_answered),
        cmocka_unit_test(expects_no_block_that_is_none),
        cmocka_unit_test(expects_nothing_of_a_release),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
