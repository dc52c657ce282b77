/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests at once, and answers of several producers in any order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "consumer_kit.h"

/* Hundreds of steps of one request each: as many connections at once. */
static void fetches_hundreds_at_once(void **state)
{
    enum { STEPS = 300, FILES = STEPS * 10 };
    struct ask *asks = calloc(STEPS, sizeof *asks);
    struct rlimit files;
    struct scene scene;
    int received = 0;

    (void)state;
    assert_non_null(asks);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur < FILES) {
        files.rlim_cur = FILES;
        if (setrlimit(RLIMIT_NOFILE, &files) != 0) {
            free(asks);
            skip();
        }
    }
    scene_open(&scene);
    for (int i = 0; i < STEPS; i++) {
        char id[32];

        snprintf(id, sizeof id, "s%d", i);
        dec_pull(&scene.dec, id, i, 1);
    }
    for (int i = 0; i < STEPS; i++)
        prod_ask(&scene.prod, &asks[i]);
    for (int i = STEPS - 1; i >= 0; i--) {
        const int64_t block = asks[i].pull.requests[0].groups[0].ids[0];

        if (i % 50 == 0)
            assert_int_equal(ask_write(&asks[i], &block, 1, 0x77), KVF_OK);
        prod_finish(&scene.prod, &asks[i], asks[i].pull.requests[0].d_req_id);
        ask_close(&asks[i]);
    }
    while (received < STEPS) {
        struct kvf_vllm_event event;

        assert_int_equal(kvf_vllm_worker_wait(scene.dec.worker, &event, 1, 10 * KVFI_SECOND), 1);
        assert_true(event.kind == KVF_VLLM_EVENT_ASKED || event.kind == KVF_VLLM_EVENT_RECEIVED);
        received += event.kind == KVF_VLLM_EVENT_RECEIVED;
    }
    assert_int_equal(dec_stats(&scene.dec).requests_received, STEPS);
    assert_int_equal(dec_stats(&scene.dec).queries, 1);
    free(asks);
    scene_close(&scene);
}

/* With few descriptors some pulls wait until others have ended; none is lost. */
static void waits_for_descriptors(void **state)
{
    enum { STEPS = 100, FILES = 400, MOST = FILES / 8 - FILES / 8 / 4 };
    struct rlimit before, files;
    struct scene scene;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    files = before;
    files.rlim_cur = FILES;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    scene_open(&scene);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0); /* the producer is in this process, too */
    for (int i = 0; i < STEPS; i++) {
        char id[32];

        snprintf(id, sizeof id, "s%d", i);
        dec_pull(&scene.dec, id, i, 1);
    }
    while (dec_stats(&scene.dec).pulls_sent < MOST)
        dec_skip_event(&scene.dec);
    dec_skip_event(&scene.dec);
    assert_int_equal(dec_stats(&scene.dec).pulls_sent, MOST);
    for (int i = 0; i < STEPS; i++) {
        struct ask ask;

        prod_ask(&scene.prod, &ask);
        prod_finish(&scene.prod, &ask, ask.pull.requests[0].d_req_id);
        ask_close(&ask);
    }
    assert_int_equal(kvf_vllm_worker_shutdown(scene.dec.worker, 10 * KVFI_SECOND, NULL), KVF_OK);
    assert_int_equal(dec_stats(&scene.dec).requests_received, STEPS);
    scene_close(&scene);
}

/* A worker that never answers keeps many connections, and leaves some to others. */
static void worker_that_stands_still_leaves_connections_to_others(void **state)
{
    enum { STEPS = 100, FILES = 400, OTHERS = 3 };
    struct rlimit before, files;
    struct prod other;
    struct scene scene;
    char id[32];

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    files = before;
    files.rlim_cur = FILES;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    scene_open(&scene);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    prod_open(&other, 0);
    reg_add(&scene.reg, "other", 1, 0, 0, other.address);
    for (int i = 0; i < STEPS; i++) {
        snprintf(id, sizeof id, "still%d", i);
        dec_pull(&scene.dec, id, i, 1);
    }
    for (int i = 0; i < OTHERS; i++) {
        struct ask ask;

        snprintf(id, sizeof id, "other%d", i);
        dec_pull_from(&scene.dec, "other", id, STEPS + i, 1);
        prod_ask(&other, &ask);
        prod_finish(&other, &ask, id);
        ask_close(&ask);
    }
    while (dec_stats(&scene.dec).requests_received < OTHERS)
        dec_skip_event(&scene.dec);
    prod_close(&other);
    scene_close(&scene);
}

/* One step of a thousand requests is one pull. */
static void fetches_a_thousand_in_one_step(void **state)
{
    enum { WANTS = 1000 };
    char *all = malloc(WANTS * 8);
    struct kvf_vllm_done done = {.struct_size = sizeof done};
    struct scene scene;
    struct ask ask;
    size_t length = 0;

    (void)state;
    assert_non_null(all);
    scene_open(&scene);
    dec_pull_many(&scene.dec, "r", WANTS);
    prod_ask(&scene.prod, &ask);
    assert_int_equal(ask.pull.request_count, WANTS);
    for (int i = 0; i < WANTS; i++)
        length += (size_t)snprintf(all + length, 8, "r%d ", i);
    prod_finish(&scene.prod, &ask, all);
    dec_event(&scene.dec, KVF_VLLM_EVENT_ASKED, NULL);
    for (int i = 0; i < WANTS; i++)
        dec_event(&scene.dec, KVF_VLLM_EVENT_RECEIVED, NULL);
    assert_int_equal(kvf_vllm_worker_collect(scene.dec.worker, &done, NULL), KVF_OK);
    assert_int_equal(done.finished_recving_count, WANTS);
    kvf_vllm_done_release(&done);
    ask_close(&ask);
    free(all);
    scene_close(&scene);
}

/* ---- any order -------------------------------------------------------------------------------------------------- */

enum { PRODS = 3, WANTS = 6, MOST_STEPS = 400 };

struct rng {
    uint64_t state;
};

static uint64_t draw(struct rng *rng, uint64_t below)
{
    rng->state ^= rng->state << 13;
    rng->state ^= rng->state >> 7;
    rng->state ^= rng->state << 17;
    return rng->state % below;
}

/** What the producers have said of a round's requests. */
struct round {
    struct ask asks[PRODS];
    bool ended[PRODS];
    bool said[PRODS][WANTS];
    bool failed[WANTS];
};

/* One answer: some of the requests, in one list or both, perhaps the last one. */
static void say(struct prod *prod, struct round *round, int p, struct rng *rng)
{
    char lists[2][256] = {"", ""};
    int verdict = draw(rng, 3) == 0 ? KVFI_VLLM_FINISH : draw(rng, 8) == 0 ? KVFI_VLLM_ERROR : KVFI_VLLM_CONTINUE;

    for (int i = 0; i < WANTS; i++) {
        size_t list = draw(rng, 5) == 0, length = strlen(lists[list]);

        if (draw(rng, 2) == 0)
            continue;
        snprintf(lists[list] + length, sizeof lists[list] - length, "r%d ", i);
        if (verdict != KVFI_VLLM_ERROR && !round->said[p][i])
            round->failed[i] = round->failed[i] || list == 1;
        if (verdict != KVFI_VLLM_ERROR)
            round->said[p][i] = true;
    }
    for (int i = 0; i < WANTS && verdict != KVFI_VLLM_CONTINUE; i++) {
        round->failed[i] = round->failed[i] || !round->said[p][i];
        round->said[p][i] = true;
    }
    round->ended[p] = verdict != KVFI_VLLM_CONTINUE;
    prod_say(prod, &round->asks[p], verdict, lists[0], lists[1], NULL, 0);
}

static bool is_over(const struct round *round, int want)
{
    for (int p = 0; p < PRODS; p++)
        if (!round->said[p][want])
            return false;
    return true;
}

static int count_over(const struct round *round)
{
    int count = 0;

    for (int i = 0; i < WANTS; i++)
        count += is_over(round, i);
    return count;
}

static bool is_open(const struct round *round, int p)
{
    for (int i = 0; !round->ended[p] && i < WANTS; i++)
        if (!round->said[p][i])
            return true;
    return false;
}

/* Events tell of the very requests that all producers have spoken of. */
static void check_events(struct dec *dec, struct round *round, bool over[WANTS])
{
    while (true) {
        struct kvf_vllm_event event;
        int told = 0, want;

        for (int i = 0; i < WANTS; i++)
            told += over[i];
        if (told == count_over(round))
            return;
        assert_int_equal(kvf_vllm_worker_wait(dec->worker, &event, 1, 10 * KVFI_SECOND), 1);
        if (event.kind == KVF_VLLM_EVENT_ASKED)
            continue;
        want = event.req_id[1] - '0';
        if (event.kind == KVF_VLLM_EVENT_FAILED) {
            assert_true(round->failed[want]);
            continue;
        }
        if (event.kind != (round->failed[want] ? KVF_VLLM_EVENT_SETTLED : KVF_VLLM_EVENT_RECEIVED) ||
            !is_over(round, want) || over[want])
            fail_msg("event %d of %s", event.kind, event.req_id);
        over[want] = true;
    }
}

static void collect_round(struct dec *dec, const struct round *round)
{
    struct kvf_vllm_done done = {.struct_size = sizeof done};
    size_t failed = 0;

    assert_int_equal(kvf_vllm_worker_collect(dec->worker, &done, NULL), KVF_OK);
    assert_int_equal(done.finished_recving_count, WANTS);
    for (int i = 0; i < WANTS; i++)
        if (round->failed[i])
            assert_int_equal(done.invalid_blocks[failed++], i);
    assert_int_equal(done.invalid_block_count, failed);
    kvf_vllm_done_release(&done);
}

static void run_round(struct dec *dec, struct prod prods[PRODS], struct rng *rng)
{
    struct round round = {0};
    bool over[WANTS] = {0};

    dec_pull_many(dec, "r", WANTS);
    for (int p = 0; p < PRODS; p++)
        prod_ask(&prods[p], &round.asks[p]);
    for (int step = 0; count_over(&round) < WANTS; step++) {
        int p = (int)draw(rng, PRODS);

        assert_true(step < MOST_STEPS);
        if (!is_open(&round, p))
            continue;
        say(&prods[p], &round, p, rng);
        check_events(dec, &round, over);
    }
    collect_round(dec, &round);
    for (int p = 0; p < PRODS; p++)
        ask_close(&round.asks[p]);
}

static void takes_answers_in_any_order(void **state)
{
    struct rng rng = {.state = UINT64_C(0x9e3779b97f4a7c15)};
    struct prod prods[PRODS];
    struct reg reg;
    struct dec dec;

    (void)state;
    reg_open(&reg);
    for (int p = 0; p < PRODS; p++) {
        prod_open(&prods[p], 0);
        reg_add(&reg, "p-engine", 0, p, 0, prods[p].address);
    }
    dec_init(&dec, &reg);
    dec_open(&dec);
    for (int i = 0; i < 60; i++)
        run_round(&dec, prods, &rng);
    assert_int_equal(dec_stats(&dec).unsettled, 0);
    dec_close(&dec);
    for (int p = 0; p < PRODS; p++)
        prod_close(&prods[p]);
    reg_close(&reg);
}

/* Close breaks off what is out, at any moment. */
static void closes_at_any_moment(void **state)
{
    (void)state;
    for (int moment = 0; moment < 5; moment++) {
        struct scene scene;
        struct ask ask = {0};

        scene_init(&scene);
        scene.dec.options.abort_request_timeout_ns = 20 * KVFI_MS;
        scene.dec.options.receive_slack_ns = 0;
        dec_open(&scene.dec);
        dec_pull_many(&scene.dec, "r", 3);
        if (moment >= 1)
            prod_ask(&scene.prod, &ask);
        if (moment >= 2)
            prod_say(&scene.prod, &ask, KVFI_VLLM_CONTINUE, "r0", "r1", NULL, 0);
        if (moment >= 3)
            while (dec_stats(&scene.dec).failed_recvs < 2)
                dec_skip_event(&scene.dec);
        if (moment == 4)
            prod_close(&scene.prod);
        dec_close(&scene.dec);
        scene.dec.worker = NULL;
        scene.dec.memory = NULL;
        ask_close(&ask);
        scene_close(&scene);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetches_hundreds_at_once),
        cmocka_unit_test(waits_for_descriptors),
        cmocka_unit_test(worker_that_stands_still_leaves_connections_to_others),
        cmocka_unit_test(fetches_a_thousand_in_one_step),
        cmocka_unit_test(takes_answers_in_any_order),
        cmocka_unit_test(closes_at_any_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
