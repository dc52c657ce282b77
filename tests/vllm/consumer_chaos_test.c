/* SPDX-License-Identifier: Apache-2.0 */
/* Two producers that do anything, in any order: answer well, badly, late, in pieces, with garbage, not at all, or die
 * and come back. Whatever they do, each request is told once, a failure never before its completion, and all of it
 * ends. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "consumer_kit.h"

enum { PRODS = 2, ORDERS = 8, WANTS = 3, ROUNDS = 12, KEPT = 64 };

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

struct chaos {
    struct rng rng;
    struct reg reg;
    struct prod prods[PRODS];
    struct dec dec;
    struct ask late[KEPT]; /* answered at the end, perhaps */
    int late_of[KEPT], late_count;
    int events[ORDERS * WANTS][3]; /* received, failed, settled */
};

static int number_of(const char *id) { return (id[1] - '0') * WANTS + (id[2] - '0'); }

/* Some of a pull's ids. */
static void draw_ids(struct chaos *chaos, const struct ask *ask, char *text, size_t bytes)
{
    text[0] = '\0';
    for (size_t i = 0; i < ask->pull.request_count; i++)
        if (draw(&chaos->rng, 2) == 0)
            snprintf(text + strlen(text), bytes - strlen(text), "%s ", ask->pull.requests[i].d_req_id);
}

static void restart(struct chaos *chaos, int p)
{
    int port = prod_port(&chaos->prods[p]);

    for (int i = 0; i < chaos->late_count; i++)
        if (chaos->late_of[i] == p)
            chaos->late_of[i] = -1; /* that connection is no more */
    prod_close(&chaos->prods[p]);
    prod_open(&chaos->prods[p], port);
}

static void keep(struct chaos *chaos, int p, struct ask *ask)
{
    if (chaos->late_count == KEPT) {
        ask_close(ask);
        return;
    }
    chaos->late_of[chaos->late_count] = p;
    chaos->late[chaos->late_count++] = *ask;
}

static void act(struct chaos *chaos, int p, struct ask *ask)
{
    struct prod *prod = &chaos->prods[p];
    char ok[256], err[256];

    draw_ids(chaos, ask, ok, sizeof ok);
    draw_ids(chaos, ask, err, sizeof err);
    switch (draw(&chaos->rng, 9)) {
    case 0:
    case 1:
        prod_say(prod, ask, KVFI_VLLM_CONTINUE, ok, NULL, NULL, ask->pull.peer.layout_id);
        prod_say(prod, ask, KVFI_VLLM_FINISH, ok, err, NULL, ask->pull.peer.layout_id);
        break;
    case 2:
        prod_say(prod, ask, KVFI_VLLM_ERROR, NULL, NULL, "no", 0);
        break;
    case 3:
        prod_say(prod, ask, KVFI_VLLM_LAYOUT_MISS, NULL, NULL, "not cached", 0);
        break;
    case 4:
        prod_say_bytes(prod, ask, "\xc1", 1);
        keep(chaos, p, ask);
        return;
    case 5:
        prod_say(prod, ask, KVFI_VLLM_CONTINUE, ok, err, NULL, ask->pull.peer.layout_id);
        keep(chaos, p, ask);
        return;
    case 6:
        restart(chaos, p);
        break;
    default:
        keep(chaos, p, ask);
        return;
    }
    ask_close(ask);
}

static void take_events(struct chaos *chaos)
{
    struct kvf_vllm_event event;

    while (kvf_vllm_worker_poll(chaos->dec.worker, &event, 1) == 1) {
        int *counts;

        if (event.kind == KVF_VLLM_EVENT_ASKED)
            continue;
        counts = chaos->events[number_of(event.req_id)];
        counts[event.kind == KVF_VLLM_EVENT_RECEIVED ? 0 : event.kind == KVF_VLLM_EVENT_FAILED ? 1 : 2]++;
        assert_true(counts[2] <= counts[1]); /* failed comes before settled */
    }
}

static void turn(struct chaos *chaos)
{
    struct ask ask = {0};

    for (int p = 0; p < PRODS; p++)
        if (prod_try_ask(&chaos->prods[p], &ask)) {
            act(chaos, p, &ask);
            memset(&ask, 0, sizeof ask);
        }
    if (chaos->late_count > 0 && draw(&chaos->rng, 20) == 0) {
        int i = (int)draw(&chaos->rng, (uint64_t)chaos->late_count);

        if (chaos->late_of[i] >= 0)
            prod_finish(&chaos->prods[chaos->late_of[i]], &chaos->late[i],
                        chaos->late[i].pull.requests[0].d_req_id);
        ask_close(&chaos->late[i]);
        chaos->late[i] = chaos->late[--chaos->late_count];
        chaos->late_of[i] = chaos->late_of[chaos->late_count];
    }
    take_events(chaos);
}

static void open_chaos(struct chaos *chaos, uint64_t seed)
{
    memset(chaos, 0, sizeof *chaos);
    chaos->rng.state = UINT64_C(0x9e3779b97f4a7c15) * (seed + 1);
    reg_open(&chaos->reg);
    for (int p = 0; p < PRODS; p++) {
        prod_open(&chaos->prods[p], 0);
        reg_add(&chaos->reg, "p-engine", 0, p, 0, chaos->prods[p].address);
    }
    dec_init(&chaos->dec, &chaos->reg);
    chaos->dec.options.abort_request_timeout_ns = 60 * KVFI_MS;
    chaos->dec.options.receive_slack_ns = 0;
    chaos->dec.options.settle_timeout_ns = 200 * KVFI_MS;
    dec_open(&chaos->dec);
}

static void close_chaos(struct chaos *chaos)
{
    dec_close(&chaos->dec);
    for (int i = 0; i < chaos->late_count; i++)
        ask_close(&chaos->late[i]);
    for (int p = 0; p < PRODS; p++)
        prod_close(&chaos->prods[p]);
    reg_close(&chaos->reg);
}

/* Each request is received, or failed and settled: once, and collected once. */
static void check_all(struct chaos *chaos)
{
    struct kvf_vllm_done done = {.struct_size = sizeof done};
    struct kvf_vllm_worker_stats stats = dec_stats(&chaos->dec);
    int seen[ORDERS * WANTS] = {0};
    int64_t failed = 0;

    take_events(chaos);
    assert_int_equal(kvf_vllm_worker_collect(chaos->dec.worker, &done, NULL), KVF_OK);
    assert_int_equal(done.finished_recving_count, ORDERS * WANTS);
    for (size_t i = 0; i < done.finished_recving_count; i++)
        seen[number_of(done.finished_recving[i])]++;
    for (int i = 0; i < ORDERS * WANTS; i++) {
        const int *counts = chaos->events[i];

        assert_int_equal(seen[i], 1);
        assert_int_equal(counts[0] + counts[1], 1);
        assert_int_equal(counts[1], counts[2]);
        failed += counts[1];
    }
    assert_int_equal(stats.failed_recvs, failed);
    assert_int_equal(stats.unsettled, 0);
    kvf_vllm_done_release(&done);
}

static void everything_ends_once(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct chaos *chaos = malloc(sizeof *chaos);
        int64_t end_ns = kvfi_now_ns() + 20 * KVFI_SECOND;
        char prefix[4] = "r0";

        assert_non_null(chaos);
        open_chaos(chaos, round);
        for (int i = 0; i < ORDERS; i++) {
            prefix[1] = (char)('0' + i);
            dec_pull_many(&chaos->dec, prefix, WANTS);
            for (uint64_t k = draw(&chaos->rng, 4); k > 0; k--)
                turn(chaos);
        }
        while (kvf_vllm_worker_shutdown(chaos->dec.worker, KVFI_MS, NULL) != KVF_OK) {
            if (kvfi_now_ns() > end_ns)
                fail_msg("round %" PRIu64 " does not end", round);
            turn(chaos);
        }
        check_all(chaos);
        close_chaos(chaos);
        free(chaos);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_ends_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
