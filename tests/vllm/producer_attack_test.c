/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever comes at the side channel: clear answers, and the listener goes on. Then everything at random: each pull
 * gets its last reply, each request ends once. */
#include "producer_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define LAYER_0 "model.layers.0.self_attn"

static const struct kvf_vllm_region OWN[] = {{.layer_name = LAYER_0, .base_addr = 0x1000, .block_len = 4096,
                                              .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region THEIRS[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 4096,
                                                 .kv_block_len = 4096, .row_offset = KVF_VLLM_NO_ROW}};
static const struct kvf_vllm_region HALVES[] = {{.layer_name = LAYER_0, .base_addr = 0x200000, .block_len = 2048,
                                                 .kv_block_len = 2048, .row_offset = KVF_VLLM_NO_ROW}};
static const struct asker D = {.regions = THEIRS, .region_count = 1};

static void good_pull(struct producer *producer, const char *transfer_id)
{
    void *pull;

    producer_ready(producer, "p-good", transfer_id, ONE_GROUP(1));
    pull = pull_one(producer, &D, "d-good", transfer_id, ONE_GROUP(3));
    pull_expect(pull, KVFI_VLLM_FINISH, "d-good", NULL, NULL);
    pull_close(pull);
}

/* ---- 16.12: frames --------------------------------------------------------------------------------------------- */

static void gap_16_12_frames_of_any_number(void **state)
{
    const struct kvfi_frame empty = {"", 0}, nil = {"\xC0", 1}, word = {"hello", 5}, map = {"\x80", 1};
    const struct {
        struct kvfi_frame frames[20];
        size_t count;
        const char *text; /* begins so */
    } rows[] = {
        {{empty}, 1, ""},
        {{empty, map}, 2, "A pull is one frame, this message has 2."}, /* as a REQ socket sends it */
        {{map, map}, 2, "A pull is one frame, this message has 2."},
        {{word, word, word, word, word}, 5, "A pull is one frame, this message has 5."},
        {{word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word,
          word, word}, 20, "vllm pull: message has 20 frames"},
        {{nil}, 1, "Expected"},
        {{word}, 1, ""},
        {{map}, 1, "Object missing required field `remote_hostname`"},
    };
    struct producer producer;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1});
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        void *pull = pull_raw(&producer, rows[i].frames, rows[i].count);
        struct kvfi_vllm_reply reply = pull_reply(pull);

        assert_int_equal(reply.verdict, KVFI_VLLM_ERROR);
        assert_int_equal(reply.ok_count + reply.err_count, 0);
        assert_non_null(reply.err_msg);
        if (strncmp(reply.err_msg, rows[i].text, strlen(rows[i].text)) != 0)
            fail_msg("row %zu: \"%s\", expected \"%s...\"", i, reply.err_msg, rows[i].text);
        kvfi_vllm_reply_fini(&reply);
        pull_close(pull);
    }
    assert_int_equal(producer_stats(&producer).malformed, sizeof rows / sizeof rows[0]);
    assert_int_equal(producer_stats(&producer).pulls_received, 0);
    good_pull(&producer, "xfer-good");
    producer_close(&producer);
}

/* A pull that is cut anywhere, or has any byte changed. */
static void damaged_pulls(void **state)
{
    const struct kvf_vllm_ids group = IDS(3, 4);
    const struct kvfi_vllm_wanted wanted = {"d-req", "xfer", &group, 1};
    struct kvfi_vllm_asker encoded;
    kvf_vllm_regions *regions;
    struct kvf_vllm_peer peer;
    struct producer producer;
    unsigned char *bytes;
    size_t count;

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .abort_ms = 100});
    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = "consumer-host";
    peer.port = 54321;
    assert_int_equal(kvf_vllm_regions_create(THEIRS, 1, &regions, NULL), KVF_OK);
    kvf_vllm_regions_arrays(regions, &peer.regions);
    assert_int_equal(kvfi_vllm_asker_init(&encoded, &peer, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_pull_encode(&encoded, &wanted, 1, true, &bytes, &count, NULL), KVF_OK);
    for (size_t i = 0; i < count; i++) {
        void *pull = pull_raw(&producer, &(struct kvfi_frame){bytes, i}, 1);
        struct kvfi_vllm_reply reply = pull_reply(pull);

        assert_int_equal(reply.verdict, KVFI_VLLM_ERROR);
        kvfi_vllm_reply_fini(&reply);
        pull_close(pull);
    }
    producer_ready(&producer, "p-req", "xfer", ONE_GROUP(1, 2));
    for (size_t i = 0; i < count; i++) {
        unsigned char *changed = malloc(count);
        void *pull;
        struct kvfi_vllm_reply reply;

        memcpy(changed, bytes, count);
        changed[i] ^= (unsigned char)(1 << i % 8);
        pull = pull_raw(&producer, &(struct kvfi_frame){changed, count}, 1);
        free(changed);
        do { /* any reply will do, but there is a last one */
            reply = pull_reply(pull);
            kvfi_vllm_reply_fini(&reply);
        } while (reply.verdict == KVFI_VLLM_CONTINUE);
        pull_close(pull);
    }
    free(bytes);
    kvfi_vllm_asker_fini(&encoded);
    kvf_vllm_regions_release(regions);
    good_pull(&producer, "xfer-good");
    assert_int_equal(producer_stats(&producer).pulls_waiting, 0);
    producer_close(&producer);
}

/* What peers can make grow is bounded: the pull that is too much is refused, and says why. */
static void more_pulls_than_there_is_room_for(void **state)
{
    const struct kvf_vllm_ids group = IDS(3);
    const struct kvfi_vllm_wanted two[] = {{"d-a", "y", &group, 1}, {"d-b", "z", &group, 1}};
    struct producer producer;
    void *pulls[3];

    (void)state;
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .max_pulls = 2});
    pulls[0] = pull_one(&producer, &D, "d-0", "x", ONE_GROUP(3));
    pulls[1] = pull_one(&producer, &D, "d-1", "x", ONE_GROUP(3));
    producer_took(&producer, 2);
    pulls[2] = pull_one(&producer, &D, "d-2", "x", ONE_GROUP(3));
    pull_expect(pulls[2], KVFI_VLLM_ERROR, NULL, NULL, "The P side answers 2 pulls already, at most 2.");
    for (int i = 0; i < 3; i++) pull_close(pulls[i]);
    producer_close(&producer);
    producer_open(&producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .max_transfers = 2});
    pulls[0] = pull_one(&producer, &D, "d-0", "x", ONE_GROUP(3));
    producer_took(&producer, 1);
    pulls[1] = pull_send(&producer, &D, two, 2);
    pull_expect(pulls[1], KVFI_VLLM_ERROR, NULL, NULL, "The P side tracks 2 transfers already, at most 2.");
    assert_int_equal(producer_stats(&producer).transfers_tracked, 1); /* nothing is left of it */
    producer_ready(&producer, "p", "x", ONE_GROUP(1));
    pull_expect(pulls[0], KVFI_VLLM_FINISH, "d-0", NULL, NULL);
    pull_close(pulls[0]);
    pull_close(pulls[1]);
    producer_close(&producer);
}

/* ---- everything at random -------------------------------------------------------------------------------------- */

enum { PULLS = 60, TURNS = 1500, TRANSFERS = 12, WANTED = 3, REQUESTS = 4096 };

struct open_pull {
    void *socket; /* NULL: free */
    unsigned wanted, answered;
};

struct walk {
    struct producer producer;
    struct open_pull pulls[PULLS];
    uint64_t seed;
    int requests;             /* that were ready */
    uint8_t ended[REQUESTS];  /* how often each was told over */
    int holding;
};

static unsigned pick(struct walk *walk, unsigned below)
{
    walk->seed = walk->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(walk->seed >> 33) % below;
}

static void note_ids(struct open_pull *pull, const char *const *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned bit = 1U << (ids[i][2] - '0');

        assert_true(pull->wanted & bit);
        assert_false(pull->answered & bit); /* each once */
        pull->answered |= bit;
    }
}

/* Takes what has come for a pull; true when it was the last reply. */
static bool hear(struct open_pull *pull, long wait_ms)
{
    zmq_pollitem_t item = {.socket = pull->socket, .events = ZMQ_POLLIN};
    bool last = false;

    while (!last && zmq_poll(&item, 1, wait_ms) == 1) {
        struct kvfi_vllm_reply reply = pull_reply(pull->socket);

        note_ids(pull, reply.ok_reqs, reply.ok_count);
        note_ids(pull, reply.err_reqs, reply.err_count);
        assert_true(reply.verdict == KVFI_VLLM_FINISH || reply.verdict == KVFI_VLLM_CONTINUE);
        last = reply.verdict == KVFI_VLLM_FINISH;
        assert_int_equal(last, pull->answered == pull->wanted);
        kvfi_vllm_reply_fini(&reply);
    }
    if (last) {
        pull_close(pull->socket);
        pull->socket = NULL;
    }
    return last;
}

static void some_pull(struct walk *walk)
{
    struct open_pull *pull = &walk->pulls[pick(walk, PULLS)];
    const struct kvf_vllm_ids group = IDS(3, 4);
    struct kvfi_vllm_wanted wanted[WANTED];
    char ids[WANTED][2][8];
    unsigned count = 1 + pick(walk, WANTED), rank = pick(walk, 2);
    const struct asker asker = {.regions = HALVES, .region_count = 1, .tp_size = 2, .tp_rank = rank,
                                .port = 100 + rank};

    if (pull->socket != NULL) {
        hear(pull, 0);
        return;
    }
    *pull = (struct open_pull){.wanted = (1U << count) - 1};
    for (unsigned i = 0; i < count; i++) {
        snprintf(ids[i][0], sizeof ids[i][0], "d-%u", i);
        snprintf(ids[i][1], sizeof ids[i][1], "x-%u", pick(walk, TRANSFERS));
        wanted[i] = (struct kvfi_vllm_wanted){ids[i][0], ids[i][1], &group, pick(walk, 8) != 0};
    }
    pull->socket = pull_send(&walk->producer, &asker, wanted, count);
}

static void some_step(struct walk *walk)
{
    char transfer_id[8], p_req_id[16];
    unsigned what = pick(walk, 4);
    struct kvf_vllm_send sends[2];
    const struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = sends,
                                       .send_count = what == 3 ? 2 : 1}; /* it may be told twice */

    snprintf(transfer_id, sizeof transfer_id, "x-%u", pick(walk, TRANSFERS));
    if (what == 0) {
        producer_drop(&walk->producer, transfer_id);
    } else if (what == 1) {
        producer_ready(&walk->producer, "p-known", transfer_id, NULL, 0);
    } else if (walk->requests < REQUESTS) {
        snprintf(p_req_id, sizeof p_req_id, "p-%d", walk->requests++);
        sends[0] = sends[1] = (struct kvf_vllm_send){p_req_id, transfer_id, ONE_GROUP(1, 2)};
        assert_int_equal(kvf_vllm_worker_step(walk->producer.worker, &step, NULL), KVF_OK);
    }
}

static void collect(struct walk *walk)
{
    struct kvf_vllm_done done = {.struct_size = sizeof done};

    assert_int_equal(kvf_vllm_worker_collect(walk->producer.worker, &done, NULL), KVF_OK);
    for (size_t i = 0; i < done.finished_sending_count; i++)
        walk->ended[strtol(done.finished_sending[i] + 2, NULL, 10)]++;
    kvf_vllm_done_release(&done);
}

static void turn(struct walk *walk)
{
    switch (pick(walk, 8)) {
    case 0:
        fake_return(&walk->producer, pick(walk, 3) == 0 ? -1 : 0);
        break;
    case 1:
        walk->holding = !walk->holding;
        fake_hold(&walk->producer, walk->holding ? (pick(walk, 2) ? "consumer-host:100" : "") : NULL);
        break;
    case 2:
        collect(walk);
        break;
    case 3:
    case 4:
        some_step(walk);
        break;
    default:
        some_pull(walk);
        break;
    }
}

static void finish(struct walk *walk)
{
    struct kvf_vllm_worker_stats stats;
    int64_t deadline = kvfi_now_ns() + 20 * KVFI_SECOND;
    int ended;

    fake_hold(&walk->producer, NULL);
    for (int i = 0; i < PULLS; i++)
        if (walk->pulls[i].socket != NULL) assert_true(hear(&walk->pulls[i], 20000));
    for (int i = 0; i < TRANSFERS; i++) {
        char transfer_id[8];

        snprintf(transfer_id, sizeof transfer_id, "x-%d", i);
        producer_drop(&walk->producer, transfer_id);
    }
    do {
        collect(walk);
        ended = 0;
        for (int i = 0; i < walk->requests; i++) {
            assert_true(walk->ended[i] <= 1);
            ended += walk->ended[i];
        }
    } while (ended < walk->requests && kvfi_now_ns() < deadline);
    assert_int_equal(ended, walk->requests); /* each once */
    stats = producer_stats(&walk->producer);
    assert_int_equal(stats.transfers_tracked, 0);
    assert_int_equal(stats.pulls_waiting, 0);
    assert_int_equal(kvf_vllm_worker_shutdown(walk->producer.worker, 0, NULL), KVF_OK);
}

static void everything_at_random(void **state)
{
    static struct walk walk;

    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        memset(&walk, 0, sizeof walk);
        walk.seed = seed;
        producer_open(&walk.producer, &(struct producer_setup){.regions = OWN, .region_count = 1, .abort_ms = 60});
        for (int i = 0; i < TURNS; i++) turn(&walk);
        finish(&walk);
        producer_close(&walk.producer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gap_16_12_frames_of_any_number),
        cmocka_unit_test(damaged_pulls),
        cmocka_unit_test(more_pulls_than_there_is_room_for),
        cmocka_unit_test(everything_at_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
