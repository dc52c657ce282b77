/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds every event to every state of every machine: the answer is always defined, and the rows that matter are
 * spelled out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "life/block.h"
#include "life/offer.h"
#include "life/peer.h"
#include "life/transfer.h"
#include "life/writer.h"

union machine {
    struct kvfi_transfer transfer;
    struct kvfi_writer writer;
    struct kvfi_block block;
    struct kvfi_offer_life offer;
    struct kvfi_sink sink;
    struct kvfi_peer_life peer;
};

enum kind { TRANSFER, WRITER, BLOCK, OFFER, SINK, PEER, KINDS };

static enum kvfi_verdict step(enum kind kind, union machine *machine, const struct kvfi_life_event *event,
                              struct kvfi_actions *actions)
{
    switch (kind) {
    case TRANSFER:
        return kvfi_transfer_step(&machine->transfer, event, actions);
    case WRITER:
        return kvfi_writer_step(&machine->writer, event, actions);
    case BLOCK:
        return kvfi_block_step(&machine->block, event, actions);
    case OFFER:
        return kvfi_offer_step(&machine->offer, event, actions);
    case SINK:
        return kvfi_sink_step(&machine->sink, event, actions);
    default:
        return kvfi_peer_step(&machine->peer, event, actions);
    }
}

/* A machine as it may stand in `state`. */
static union machine stand(enum kind kind, int state)
{
    union machine machine;
    memset(&machine, 0, sizeof machine);
    switch (kind) {
    case TRANSFER:
        machine.transfer = (struct kvfi_transfer){.state = (uint8_t)state, .writers = 2, .deadline_ns = 100};
        break;
    case WRITER:
        machine.writer = (struct kvfi_writer){.state = (uint8_t)state, .must_arrive = true, .expected_bytes = 10};
        break;
    case BLOCK:
        machine.block = (struct kvfi_block){.state = (uint8_t)state};
        machine.block.accesses = state == KVFI_BLOCK_ACCESSED || state == KVFI_BLOCK_IN_DOUBT;
        break;
    case OFFER:
        machine.offer = (struct kvfi_offer_life){.state = (uint8_t)state, .sinks = 2, .deadline_ns = 100};
        break;
    case SINK:
        machine.sink = (struct kvfi_sink){.state = (uint8_t)state};
        machine.sink.posts_out = state == KVFI_SINK_FLUSHING || state == KVFI_SINK_DRAINING;
        break;
    default:
        machine.peer = (struct kvfi_peer_life){.state = (uint8_t)state};
        break;
    }
    return machine;
}

static const struct {
    const char *name;
    int states, events, actions;
} SIZES[KINDS] = {
    [TRANSFER] = {"transfer", KVFI_TRANSFER_STATES, KVFI_TRANSFER_EVENTS, KVFI_TRANSFER_DO_END_BLOCKS + 1},
    [WRITER] = {"writer", KVFI_WRITER_STATES, KVFI_WRITER_EVENTS, KVFI_WRITER_DO_QUIET + 1},
    [BLOCK] = {"block", KVFI_BLOCK_STATES, KVFI_BLOCK_EVENTS, KVFI_BLOCK_DO_REPORT_REUSABLE + 1},
    [OFFER] = {"offer", KVFI_OFFER_STATES, KVFI_OFFER_EVENTS, KVFI_OFFER_DO_END_BLOCKS + 1},
    [SINK] = {"sink", KVFI_SINK_STATES, KVFI_SINK_EVENTS, KVFI_SINK_DO_END_FAILED + 1},
    [PEER] = {"peer", KVFI_PEER_STATES, KVFI_PEER_EVENTS, KVFI_PEER_DO_FORGET + 1},
};

static int state_of(const union machine *machine) { return machine->transfer.state; /* the first byte of each */ }

static void check_cell(enum kind kind, int state, int number, enum kvf_status status, int64_t value)
{
    union machine machine = stand(kind, state), before = machine;
    struct kvfi_life_event event = {.kind = number, .status = status, .value = value, .now_ns = 50};
    struct kvfi_actions actions;
    enum kvfi_verdict verdict;

    memset(&actions, 0xff, sizeof actions);
    verdict = step(kind, &machine, &event, &actions);
    if (actions.count >= KVFI_LIFE_ACTIONS || state_of(&machine) >= SIZES[kind].states)
        fail_msg("%s state %d event %d: %u actions, state %d", SIZES[kind].name, state, number, actions.count,
                 state_of(&machine));
    for (uint32_t i = 0; i < actions.count; i++)
        assert_true(actions.items[i] < SIZES[kind].actions);
    if (verdict == KVFI_IGNORED) {
        assert_int_equal(actions.count, 0);
        assert_memory_equal(&machine, &before, sizeof machine);
    }
}

static void test_all_events_in_all_states(void **unused)
{
    static const enum kvf_status statuses[] = {KVF_OK, KVF_ERR_EXPIRED};
    (void)unused;
    for (int kind = 0; kind < KINDS; kind++)
        for (int state = 0; state < SIZES[kind].states; state++)
            for (int event = -1; event <= SIZES[kind].events; event++)
                for (size_t s = 0; s < 2; s++)
                    for (int64_t value = -1; value <= 2; value++)
                        check_cell((enum kind)kind, state, event, statuses[s], value);
}

struct row {
    const char *name;
    enum kind kind;
    int state, event;
    enum kvf_status status;
    int64_t value, now_ns;
    int verdict, after;
    int actions[5]; /* -1 ends */
};

#define T(x) KVFI_TRANSFER_##x
#define W(x) KVFI_WRITER_##x
#define B(x) KVFI_BLOCK_##x
#define O(x) KVFI_OFFER_##x
#define S(x) KVFI_SINK_##x
#define P(x) KVFI_PEER_##x

static const struct row ROWS[] = {
    {"a pull is resolved", TRANSFER, T(RESOLVING), T(ON_RESOLVED), 0, 0, 0, KVFI_TAKEN, T(JOINING), {T(DO_JOIN), -1}},
    {"all peers are ready", TRANSFER, T(JOINING), T(ON_JOINED), 0, 2, 0, KVFI_TAKEN, T(MOVING), {T(DO_ASK), -1}},
    {"no source rank has a share", TRANSFER, T(JOINING), T(ON_JOINED), 0, 0, 0, KVFI_TAKEN, T(DONE),
     {T(DO_REPORT_DONE), T(DO_END_BLOCKS), -1}},
    {"one of two writers is done", TRANSFER, T(MOVING), T(ON_WRITER_DONE), 0, 0, 0, KVFI_TAKEN, T(MOVING), {-1}},
    {"a writer is done before it was asked", TRANSFER, T(JOINING), T(ON_WRITER_DONE), 0, 0, 0, KVFI_VIOLATION,
     T(JOINING),
     {-1}},
    {"a writer fails", TRANSFER, T(MOVING), T(ON_FAIL), KVF_ERR_PEER_LOST, 0, 0, KVFI_TAKEN, T(FAILED),
     {T(DO_REPORT_FAILED), T(DO_STOP_WRITERS), T(DO_END_BLOCKS), -1}},
    {"cancel before any writer was asked", TRANSFER, T(RESOLVING), T(ON_CANCEL), 0, 0, 0, KVFI_TAKEN, T(FAILED),
     {T(DO_REPORT_FAILED), T(DO_END_BLOCKS), -1}},
    {"the deadline is not there yet", TRANSFER, T(MOVING), T(ON_TIME), 0, 0, 99, KVFI_TAKEN, T(MOVING), {-1}},
    {"the deadline is there", TRANSFER, T(MOVING), T(ON_TIME), 0, 0, 100, KVFI_TAKEN, T(FAILED),
     {T(DO_REPORT_FAILED), T(DO_STOP_WRITERS), T(DO_END_BLOCKS), -1}},
    {"cancel after done", TRANSFER, T(DONE), T(ON_CANCEL), 0, 0, 0, KVFI_IGNORED, T(DONE), {-1}},

    {"done before the bytes are seen here", WRITER, W(STARTED), W(ON_DONE), 0, 10, 0, KVFI_TAKEN, W(SAID_DONE), {-1}},
    {"then the bytes are seen", WRITER, W(SAID_DONE), W(ON_ARRIVED), 0, 0, 0, KVFI_TAKEN, W(DONE),
     {W(DO_DISARM), W(DO_QUIET), W(DO_WORD_DONE), -1}},
    {"done with too few bytes", WRITER, W(STARTED), W(ON_DONE), 0, 9, 0, KVFI_VIOLATION, W(FAILED),
     {W(DO_DISARM), W(DO_QUIET), W(DO_WORD_FAILED), -1}},
    {"done without started", WRITER, W(ASKED), W(ON_DONE), 0, 10, 0, KVFI_VIOLATION, W(FAILED),
     {W(DO_DISARM), W(DO_QUIET), W(DO_WORD_FAILED), -1}},
    {"done without having been asked", WRITER, W(IDLE), W(ON_DONE), 0, 10, 0, KVFI_VIOLATION, W(IDLE), {-1}},
    {"lost in mid-bytes", WRITER, W(STARTED), W(ON_LOST), 0, 0, 0, KVFI_TAKEN, W(IN_DOUBT),
     {W(DO_SEND_CANCEL), W(DO_WORD_FAILED), W(DO_DISARM), -1}},
    {"the peer may still write after disarm", WRITER, W(IN_DOUBT), W(ON_DISARMED), 0, 0, 0, KVFI_TAKEN, W(IN_DOUBT),
     {-1}},
    {"nobody can write after disarm", WRITER, W(IN_DOUBT), W(ON_DISARMED), 0, 1, 0, KVFI_TAKEN, W(FAILED),
     {W(DO_QUIET), -1}},
    {"in doubt, then quiesced", WRITER, W(IN_DOUBT), W(ON_QUIESCED), 0, 0, 0, KVFI_TAKEN, W(FAILED), {W(DO_QUIET), -1}},
    {"in doubt, then gone", WRITER, W(IN_DOUBT), W(ON_GONE), 0, 0, 0, KVFI_TAKEN, W(FAILED), {W(DO_QUIET), -1}},
    {"gone, though it does not write here", WRITER, W(STARTED), W(ON_GONE), 0, 0, 0, KVFI_IGNORED, W(STARTED), {-1}},
    {"started, and writes here itself", WRITER, W(ASKED), W(ON_STARTED), 0, 3, 0, KVFI_TAKEN, W(STARTED), {-1}},
    {"lost does not settle a doubt", WRITER, W(IN_DOUBT), W(ON_LOST), 0, 0, 0, KVFI_IGNORED, W(IN_DOUBT), {-1}},
    {"stopped before it was asked", WRITER, W(IDLE), W(ON_STOP), KVF_ERR_CANCELLED, 0, 0, KVFI_TAKEN, W(FAILED),
     {W(DO_WORD_FAILED), -1}},
    {"never, without having been stopped", WRITER, W(STARTED), W(ON_NEVER), 0, 0, 0, KVFI_IGNORED, W(STARTED), {-1}},
    {"stopped, and never", WRITER, W(IN_DOUBT), W(ON_NEVER), 0, 0, 0, KVFI_TAKEN, W(FAILED), {W(DO_QUIET), -1}},
    {"another one writes", WRITER, W(ASKED), W(ON_SPARED), 0, 0, 0, KVFI_TAKEN, W(DONE),
     {W(DO_DISARM), W(DO_QUIET), -1}},
    {"another one writes, after the stop", WRITER, W(IN_DOUBT), W(ON_SPARED), 0, 0, 0, KVFI_TAKEN, W(FAILED),
     {W(DO_QUIET), -1}},
    {"done twice", WRITER, W(DONE), W(ON_DONE), 0, 10, 0, KVFI_IGNORED, W(DONE), {-1}},

    {"the owner ends, nobody touches", BLOCK, B(HELD), B(ON_OWNER_ENDED), 0, 0, 0, KVFI_TAKEN, B(REUSABLE),
     {B(DO_REPORT_REUSABLE), -1}},
    {"the owner ends while written", BLOCK, B(ACCESSED), B(ON_OWNER_ENDED), 0, 0, 0, KVFI_TAKEN, B(IN_DOUBT), {-1}},
    {"the last access ends after the owner", BLOCK, B(IN_DOUBT), B(ON_ACCESS_END), 0, 0, 0, KVFI_TAKEN, B(REUSABLE),
     {B(DO_REPORT_REUSABLE), -1}},
    {"nothing begins after the owner ended", BLOCK, B(IN_DOUBT), B(ON_ACCESS_BEGIN), 0, 0, 0, KVFI_VIOLATION,
     B(IN_DOUBT), {-1}},
    {"an access ends in quarantine", BLOCK, B(QUARANTINED), B(ON_ACCESS_END), 0, 0, 0, KVFI_IGNORED, B(QUARANTINED),
     {-1}},
    {"the owner ends in quarantine", BLOCK, B(QUARANTINED), B(ON_OWNER_ENDED), 0, 0, 0, KVFI_IGNORED, B(QUARANTINED),
     {-1}},
    {"quarantine while in doubt", BLOCK, B(IN_DOUBT), B(ON_QUARANTINE), 0, 0, 0, KVFI_TAKEN, B(QUARANTINED), {-1}},
    {"quarantine comes too late", BLOCK, B(REUSABLE), B(ON_QUARANTINE), 0, 0, 0, KVFI_VIOLATION, B(REUSABLE), {-1}},
    {"an access ends that never began", BLOCK, B(HELD), B(ON_ACCESS_END), 0, 0, 0, KVFI_VIOLATION, B(HELD), {-1}},

    {"the deadline of an offer nobody pulled", OFFER, O(WAITING), O(ON_TIME), 0, 0, 100, KVFI_TAKEN, O(FAILED),
     {O(DO_REPORT_FAILED), O(DO_STOP_SINKS), O(DO_END_BLOCKS), -1}},
    {"the first of two sinks fails", OFFER, O(SERVING), O(ON_SINK_FAILED), KVF_ERR_PEER_LOST, 0, 0, KVFI_TAKEN,
     O(SERVING), {-1}},
    {"a sink ends before the sinks are known", OFFER, O(WAITING), O(ON_SINK_DONE), 0, 0, 0, KVFI_VIOLATION, O(WAITING),
     {-1}},

    {"a pull of nothing", SINK, S(IDLE), S(ON_PULL), 0, 0, 0, KVFI_TAKEN, S(DONE),
     {S(DO_READ_BEGIN), S(DO_SEND_DONE), S(DO_READ_END), S(DO_END_DONE), -1}},
    {"a pull", SINK, S(IDLE), S(ON_PULL), 0, 10, 0, KVFI_TAKEN, S(CONNECTING), {S(DO_READ_BEGIN), S(DO_CONNECT), -1}},
    {"a release", SINK, S(IDLE), S(ON_RELEASE), 0, 0, 0, KVFI_TAKEN, S(DONE), {S(DO_END_DONE), -1}},
    {"the last post is placed", SINK, S(FLUSHING), S(ON_POSTED), 0, 0, 0, KVFI_TAKEN, S(DONE),
     {S(DO_SEND_DONE), S(DO_READ_END), S(DO_END_DONE), -1}},
    {"cancelled with a post out", SINK, S(FLUSHING), S(ON_CANCEL), KVF_ERR_CANCELLED, 0, 0, KVFI_TAKEN, S(DRAINING),
     {S(DO_SEND_IN_DOUBT), S(DO_ABORT), -1}},
    {"then the post comes back", SINK, S(DRAINING), S(ON_POSTED), KVF_ERR_CANCELLED, 0, 0, KVFI_TAKEN, S(FAILED),
     {S(DO_SEND_QUIESCED), S(DO_READ_END), S(DO_END_FAILED), -1}},
    {"cancelled with no post out", SINK, S(SENDING), S(ON_CANCEL), KVF_ERR_CANCELLED, 0, 0, KVFI_TAKEN, S(FAILED),
     {S(DO_SEND_FAILED), S(DO_READ_END), S(DO_END_FAILED), -1}},
    {"a cancel after the end is answered", SINK, S(DONE), S(ON_CANCEL), 0, 0, 0, KVFI_TAKEN, S(DONE),
     {S(DO_SEND_QUIESCED), -1}},
    {"pulled twice", SINK, S(SENDING), S(ON_PULL), 0, 10, 0, KVFI_VIOLATION, S(SENDING), {-1}},

    {"a new peer is needed", PEER, P(UNKNOWN), P(ON_NEED), 0, 0, 0, KVFI_TAKEN, P(GREETING), {P(DO_GREET), -1}},
    {"a refused peer is needed", PEER, P(REFUSED), P(ON_NEED), 0, 0, 0, KVFI_TAKEN, P(REFUSED), {P(DO_FAIL_WAITING),
                                                                                                 -1}},
    {"a lost peer is needed", PEER, P(LOST), P(ON_NEED), 0, 0, 0, KVFI_TAKEN, P(GREETING), {P(DO_GREET), -1}},
    {"digests differ the first time", PEER, P(GREETING), P(ON_STALE), KVF_ERR_STALE, 0, 0, KVFI_TAKEN, P(GREETING),
     {P(DO_GREET_AGAIN), -1}},
    {"a restart while ready", PEER, P(READY), P(ON_RESTART), 0, 0, 0, KVFI_TAKEN, P(UNKNOWN),
     {P(DO_FAIL_ACTIVE), P(DO_FORGET), -1}},
    {"a restart ends a refusal", PEER, P(REFUSED), P(ON_RESTART), 0, 0, 0, KVFI_TAKEN, P(UNKNOWN), {P(DO_FORGET), -1}},
    {"an epoch rises while ready", PEER, P(READY), P(ON_EPOCH), 0, 0, 0, KVFI_TAKEN, P(UNKNOWN), {P(DO_FORGET), -1}},
    {"an answer nobody asked for", PEER, P(UNKNOWN), P(ON_ACCEPT), 0, 0, 0, KVFI_IGNORED, P(UNKNOWN), {-1}},
};

static void test_rows(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        const struct row *row = &ROWS[i];
        union machine machine = stand(row->kind, row->state);
        struct kvfi_life_event event = {row->event, row->status, row->value, row->now_ns};
        struct kvfi_actions actions;
        uint32_t count = 0;
        int verdict = (int)step(row->kind, &machine, &event, &actions);

        while (row->actions[count] != -1)
            count++;
        if (verdict != row->verdict || state_of(&machine) != row->after || actions.count != count)
            fail_msg("%s \"%s\": verdict %d, state %d, %u actions", SIZES[row->kind].name, row->name, verdict,
                     state_of(&machine), actions.count);
        for (uint32_t a = 0; a < count; a++)
            if (actions.items[a] != row->actions[a])
                fail_msg("%s \"%s\": action %u is %u", SIZES[row->kind].name, row->name, a, actions.items[a]);
    }
}

static void test_digests_differ_twice(void **unused)
{
    struct kvfi_peer_life peer;
    struct kvfi_actions actions;
    struct kvfi_life_event need = {.kind = P(ON_NEED)}, stale = {.kind = P(ON_STALE), .status = KVF_ERR_STALE};
    (void)unused;
    kvfi_peer_init(&peer);
    kvfi_peer_step(&peer, &need, &actions);
    kvfi_peer_step(&peer, &stale, &actions);
    assert_int_equal(kvfi_peer_step(&peer, &stale, &actions), KVFI_TAKEN);
    assert_int_equal(peer.state, P(REFUSED));
    assert_int_equal(peer.reason, KVF_ERR_STALE);
    assert_int_equal(actions.items[0], P(DO_FAIL_WAITING));
}

static void test_gone_ends_a_remote_writer(void **unused)
{
    struct kvfi_writer writer = {.state = W(STARTED), .must_arrive = true, .remote = true, .expected_bytes = 10};
    struct kvfi_life_event done = {.kind = W(ON_DONE), .value = 10}, gone = {.kind = W(ON_GONE)};
    struct kvfi_actions actions;
    (void)unused;
    kvfi_writer_step(&writer, &done, &actions);
    assert_int_equal(writer.state, W(SAID_DONE));
    kvfi_writer_step(&writer, &gone, &actions);
    assert_int_equal(writer.state, W(FAILED));
    assert_int_equal(writer.reason, KVF_ERR_PEER_LOST);
}

/* Words of one writer, one after the other: which of them settle, and which deny the first. */
static const struct {
    const char *name;
    int events[4]; /* -1 ends */
    int verdict, after; /* of the last */
} WORDS[] = {
    {"done, then failed", {W(ON_DONE), W(ON_FAILED), -1}, KVFI_VIOLATION, W(DONE)},
    {"failed, then done", {W(ON_FAILED), W(ON_DONE), -1}, KVFI_VIOLATION, W(FAILED)},
    {"failed, then in doubt", {W(ON_FAILED), W(ON_DOUBT), -1}, KVFI_VIOLATION, W(FAILED)},
    {"failed twice", {W(ON_FAILED), W(ON_FAILED), -1}, KVFI_IGNORED, W(FAILED)},
    {"its own doubt outlives another piece's failure", {W(ON_DOUBT), W(ON_FAILED), -1}, KVFI_IGNORED, W(IN_DOUBT)},
    {"its own doubt outlives never", {W(ON_DOUBT), W(ON_NEVER), -1}, KVFI_IGNORED, W(IN_DOUBT)},
    {"its own doubt, then done", {W(ON_DOUBT), W(ON_DONE), -1}, KVFI_VIOLATION, W(IN_DOUBT)},
    {"its own doubt, then quiesced", {W(ON_DOUBT), W(ON_QUIESCED), -1}, KVFI_TAKEN, W(FAILED)},
    {"its own doubt, quiesced twice", {W(ON_DOUBT), W(ON_QUIESCED), W(ON_QUIESCED), -1}, KVFI_IGNORED, W(FAILED)},
    {"stopped, then done", {W(ON_STOP), W(ON_DONE), -1}, KVFI_TAKEN, W(FAILED)},
    {"stopped, done, then failed", {W(ON_STOP), W(ON_DONE), W(ON_FAILED), -1}, KVFI_VIOLATION, W(FAILED)},
    {"stopped, then in doubt, then failed", {W(ON_STOP), W(ON_DOUBT), W(ON_FAILED), -1}, KVFI_IGNORED, W(IN_DOUBT)},
    {"stopped, never, then done", {W(ON_STOP), W(ON_NEVER), W(ON_DONE), -1}, KVFI_VIOLATION, W(FAILED)},
    {"stopped, never, then failed", {W(ON_STOP), W(ON_NEVER), W(ON_FAILED), -1}, KVFI_IGNORED, W(FAILED)},
    {"spared, then done", {W(ON_SPARED), W(ON_DONE), -1}, KVFI_VIOLATION, W(DONE)},
    {"spared, then failed", {W(ON_SPARED), W(ON_FAILED), -1}, KVFI_IGNORED, W(DONE)},
    {"stopped, gone, then done", {W(ON_STOP), W(ON_GONE), W(ON_DONE), -1}, KVFI_IGNORED, W(FAILED)},
};

static void test_words(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof WORDS / sizeof WORDS[0]; i++) {
        struct kvfi_writer writer = {.state = W(STARTED), .remote = true};
        struct kvfi_actions actions;
        int verdict = -1;

        for (size_t e = 0; WORDS[i].events[e] != -1; e++) {
            struct kvfi_life_event event = {.kind = WORDS[i].events[e], .status = KVF_ERR_REFUSED};
            verdict = (int)kvfi_writer_step(&writer, &event, &actions);
        }
        if (verdict != WORDS[i].verdict || writer.state != WORDS[i].after)
            fail_msg("\"%s\": verdict %d, state %d", WORDS[i].name, verdict, writer.state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_events_in_all_states), cmocka_unit_test(test_rows), cmocka_unit_test(test_words),
        cmocka_unit_test(test_digests_differ_twice), cmocka_unit_test(test_gone_ends_a_remote_writer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
