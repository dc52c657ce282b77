/* SPDX-License-Identifier: Apache-2.0 */
/* Random walks: whole pulls and whole offers under events in any order, with the promises to the user checked after
 * each step. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "life/block.h"
#include "life/offer.h"
#include "life/transfer.h"
#include "life/writer.h"

enum { MEMBERS = 3, WALKS = 20000, STEPS = 60 };

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* ---- a pull with its writers and blocks ---- */

struct pull {
    struct kvfi_transfer transfer;
    struct kvfi_writer writers[MEMBERS];
    struct kvfi_block block;
    uint64_t *seed;
    bool asked[MEMBERS], quiet[MEMBERS];
    int words[MEMBERS];
    int terminals, reusables;
    bool succeeded;
};

static void pull_feed_transfer(struct pull *pull, int kind, enum kvf_status status, int64_t value);

static void pull_feed_block(struct pull *pull, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;
    kvfi_block_step(&pull->block, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        pull->reusables++;
        assert_int_equal(pull->terminals, 1);
        for (int w = 0; w < MEMBERS; w++)
            assert_true(!pull->asked[w] || pull->quiet[w]);
    }
}

static void pull_feed_writer(struct pull *pull, int w, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value};
    struct kvfi_actions actions;
    kvfi_writer_step(&pull->writers[w], &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_WRITER_DO_DISARM:
            pull_feed_writer(pull, w, KVFI_WRITER_ON_DISARMED, KVF_OK, (int64_t)(next(pull->seed) % 2));
            break;
        case KVFI_WRITER_DO_WORD_DONE:
            pull->words[w]++;
            pull_feed_transfer(pull, KVFI_TRANSFER_ON_WRITER_DONE, KVF_OK, 0);
            break;
        case KVFI_WRITER_DO_WORD_FAILED:
            pull->words[w]++;
            pull_feed_transfer(pull, KVFI_TRANSFER_ON_FAIL, pull->writers[w].reason, 0);
            break;
        case KVFI_WRITER_DO_QUIET:
            assert_false(pull->quiet[w]);
            pull->quiet[w] = true;
            pull_feed_block(pull, KVFI_BLOCK_ON_ACCESS_END);
            break;
        default:
            break;
        }
    }
}

static void pull_feed_transfer(struct pull *pull, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value, .now_ns = value};
    struct kvfi_actions actions;
    kvfi_transfer_step(&pull->transfer, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_TRANSFER_DO_ASK:
            for (int w = 0; w < MEMBERS; w++) {
                pull->asked[w] = true;
                pull_feed_block(pull, KVFI_BLOCK_ON_ACCESS_BEGIN);
                pull_feed_writer(pull, w, KVFI_WRITER_ON_ASK, KVF_OK, 10);
            }
            break;
        case KVFI_TRANSFER_DO_STOP_WRITERS:
            for (int w = 0; w < MEMBERS; w++)
                pull_feed_writer(pull, w, KVFI_WRITER_ON_STOP, pull->transfer.reason, 0);
            break;
        case KVFI_TRANSFER_DO_REPORT_DONE:
            pull->terminals++;
            pull->succeeded = true;
            for (int w = 0; w < MEMBERS; w++)
                assert_int_equal(pull->writers[w].state, KVFI_WRITER_DONE);
            break;
        case KVFI_TRANSFER_DO_REPORT_FAILED:
            pull->terminals++;
            break;
        case KVFI_TRANSFER_DO_END_BLOCKS:
            pull_feed_block(pull, KVFI_BLOCK_ON_OWNER_ENDED);
            break;
        default:
            break;
        }
    }
    assert_true(pull->terminals <= 1);
}

static void pull_random_event(struct pull *pull)
{
    static const int64_t bytes[] = {10, 10, 10, 10, 9, 0};
    uint64_t pick = next(pull->seed);
    int w = (int)(next(pull->seed) % MEMBERS);

    if (pull->transfer.state == KVFI_TRANSFER_RESOLVING && pick % 2 == 0)
        pull_feed_transfer(pull, KVFI_TRANSFER_ON_RESOLVED, KVF_OK, 0);
    else if (pull->transfer.state == KVFI_TRANSFER_JOINING && pick % 2 == 0)
        pull_feed_transfer(pull, KVFI_TRANSFER_ON_JOINED, KVF_OK, MEMBERS);
    else if (pick % 24 == 1)
        pull_feed_transfer(pull, (int)(KVFI_TRANSFER_ON_FAIL + next(pull->seed) % 4), KVF_ERR_INTERNAL,
                           (int64_t)(next(pull->seed) % 200));
    else if (pick % 3 != 0)
        /* the well-behaved order, mostly */
        pull_feed_writer(pull, w, pull->writers[w].state == KVFI_WRITER_ASKED ? KVFI_WRITER_ON_STARTED
                                  : pick % 2                                  ? KVFI_WRITER_ON_DONE
                                                                              : KVFI_WRITER_ON_ARRIVED,
                         KVF_OK, pull->writers[w].state == KVFI_WRITER_ASKED ? (int64_t)(pick / 8 % 4) : 10);
    else
        pull_feed_writer(pull, w, (int)(KVFI_WRITER_ON_STARTED + next(pull->seed) % (KVFI_WRITER_ON_NEVER)),
                         KVF_ERR_REFUSED, bytes[next(pull->seed) % 6]);
}

static void settle_pull(struct pull *pull)
{
    pull_feed_transfer(pull, KVFI_TRANSFER_ON_TIME, KVF_OK, 1000);
    for (int w = 0; w < MEMBERS; w++)
        pull_feed_writer(pull, w, KVFI_WRITER_ON_QUIESCED, KVF_OK, 0);
    assert_int_equal(pull->terminals, 1);
    assert_int_equal(pull->reusables, 1);
    for (int w = 0; w < MEMBERS; w++) {
        assert_true(pull->words[w] <= 1 && (pull->words[w] == 1 || !pull->asked[w]));
        assert_true(pull->quiet[w] == pull->asked[w]);
        assert_true(kvfi_writer_quiet(&pull->writers[w]));
    }
}

static void test_pulls(void **unused)
{
    int succeeded = 0;
    (void)unused;
    for (uint64_t walk = 1; walk <= WALKS; walk++) {
        uint64_t seed = walk * UINT64_C(0x9E3779B97F4A7C15);
        struct pull pull = {.seed = &seed};
        kvfi_transfer_init(&pull.transfer, 150);
        kvfi_block_init(&pull.block);
        for (int w = 0; w < MEMBERS; w++)
            kvfi_writer_init(&pull.writers[w]);
        for (int i = 0; i < STEPS; i++) {
            pull_random_event(&pull);
            assert_true(pull.reusables <= 1);
        }
        settle_pull(&pull);
        succeeded += pull.succeeded;
    }
    assert_in_range(succeeded, WALKS / 50, WALKS - WALKS / 50); /* the walks see both ends */
}

/* ---- a pull whose writers are candidates: one of two groups writes, the other is spared ---- */

enum { GROUPS = 2, GROUP = 2 };

struct broadcast {
    struct kvfi_transfer transfer;
    struct kvfi_writer writers[GROUPS][GROUP];
    struct kvfi_block block;
    bool quiet[GROUPS][GROUP];
    int writing; /* the group that writes */
    int terminals, reusables;
    bool quarantined;
};

static void broadcast_feed_transfer(struct broadcast *all, int kind, enum kvf_status status, int64_t value);

static void broadcast_feed_block(struct broadcast *all, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;
    kvfi_block_step(&all->block, &event, &actions);
    if (actions.count == 0)
        return;
    all->reusables++;
    assert_int_equal(all->terminals, 1);
    assert_false(all->quarantined);
    for (int w = 0; w < GROUP; w++)
        assert_true(all->quiet[all->writing][w]);
}

static void broadcast_feed(struct broadcast *all, int g, int w, int kind, enum kvf_status status)
{
    struct kvfi_life_event event = {.kind = kind, .status = status};
    struct kvfi_actions actions;
    if (kvfi_writer_step(&all->writers[g][w], &event, &actions) == KVFI_VIOLATION &&
        all->block.state != KVFI_BLOCK_REUSABLE) {
        all->quarantined = true;
        broadcast_feed_block(all, KVFI_BLOCK_ON_QUARANTINE);
    }
    for (uint32_t i = 0; i < actions.count; i++) {
        if (actions.items[i] == KVFI_WRITER_DO_WORD_DONE)
            broadcast_feed_transfer(all, KVFI_TRANSFER_ON_WRITER_DONE, KVF_OK, 0);
        else if (actions.items[i] == KVFI_WRITER_DO_WORD_FAILED)
            broadcast_feed_transfer(all, KVFI_TRANSFER_ON_FAIL, all->writers[g][w].reason, 0);
        else if (actions.items[i] == KVFI_WRITER_DO_QUIET) {
            assert_false(all->quiet[g][w]);
            all->quiet[g][w] = true;
            broadcast_feed_block(all, KVFI_BLOCK_ON_ACCESS_END);
        }
    }
}

static void broadcast_feed_all(struct broadcast *all, int kind, enum kvf_status status)
{
    for (int g = 0; g < GROUPS; g++)
        for (int w = 0; w < GROUP; w++)
            broadcast_feed(all, g, w, kind, status);
}

static void broadcast_feed_transfer(struct broadcast *all, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value, .now_ns = value};
    struct kvfi_actions actions;
    kvfi_transfer_step(&all->transfer, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_TRANSFER_DO_ASK:
            for (int n = 0; n < GROUPS * GROUP; n++)
                broadcast_feed_block(all, KVFI_BLOCK_ON_ACCESS_BEGIN);
            broadcast_feed_all(all, KVFI_WRITER_ON_ASK, KVF_OK);
            break;
        case KVFI_TRANSFER_DO_STOP_WRITERS:
            broadcast_feed_all(all, KVFI_WRITER_ON_STOP, all->transfer.reason);
            break;
        case KVFI_TRANSFER_DO_REPORT_DONE:
        case KVFI_TRANSFER_DO_REPORT_FAILED:
            all->terminals++;
            break;
        case KVFI_TRANSFER_DO_END_BLOCKS:
            if (all->transfer.state == KVFI_TRANSFER_DONE)
                broadcast_feed_all(all, KVFI_WRITER_ON_SPARED, KVF_OK);
            broadcast_feed_block(all, KVFI_BLOCK_ON_OWNER_ENDED);
            break;
        default:
            break;
        }
    }
}

static void test_broadcasts(void **unused)
{
    int settled = 0, quarantined = 0;
    (void)unused;
    for (uint64_t walk = 1; walk <= WALKS; walk++) {
        static const int words[] = {KVFI_WRITER_ON_DONE,    KVFI_WRITER_ON_DONE,     KVFI_WRITER_ON_DONE,
                                    KVFI_WRITER_ON_DONE,    KVFI_WRITER_ON_NEVER,    KVFI_WRITER_ON_FAILED,
                                    KVFI_WRITER_ON_DOUBT,   KVFI_WRITER_ON_QUIESCED, KVFI_WRITER_ON_NEVER,
                                    KVFI_WRITER_ON_DONE};
        uint64_t seed = walk * UINT64_C(0xA0761D6478BD642F);
        struct broadcast all = {.writing = (int)(next(&seed) % GROUPS)};

        kvfi_transfer_init(&all.transfer, 150);
        kvfi_block_init(&all.block);
        broadcast_feed_transfer(&all, KVFI_TRANSFER_ON_RESOLVED, KVF_OK, 0);
        broadcast_feed_transfer(&all, KVFI_TRANSFER_ON_JOINED, KVF_OK, GROUP);
        for (int i = 0; i < 8; i++) {
            int w = (int)(next(&seed) % GROUP), word = words[next(&seed) % 10];
            if (next(&seed) % 8 == 0)
                broadcast_feed_transfer(&all, KVFI_TRANSFER_ON_CANCEL, KVF_OK, 0);
            /* the group that does not run it says nothing but never */
            broadcast_feed(&all, all.writing, w, word, KVF_ERR_REFUSED);
            broadcast_feed(&all, 1 - all.writing, w, KVFI_WRITER_ON_NEVER, KVF_OK);
        }
        broadcast_feed_transfer(&all, KVFI_TRANSFER_ON_TIME, KVF_OK, 1000);
        broadcast_feed_all(&all, KVFI_WRITER_ON_QUIESCED, KVF_OK);
        assert_int_equal(all.terminals, 1);
        assert_int_equal(all.reusables + all.quarantined, 1);
        settled += all.reusables;
        quarantined += all.quarantined;
    }
    assert_true(settled > WALKS / 10 && quarantined > WALKS / 100);
}

/* ---- an offer with its sinks and blocks ---- */

struct offer {
    struct kvfi_offer_life life;
    struct kvfi_sink sinks[MEMBERS];
    struct kvfi_block block;
    uint64_t *seed;
    int terminals, reusables;
    int ends[MEMBERS], words[MEMBERS], reads[MEMBERS];
    bool succeeded;
};

static void offer_feed_life(struct offer *offer, int kind, enum kvf_status status, int64_t value);

static void offer_feed_block(struct offer *offer, int kind)
{
    struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;
    kvfi_block_step(&offer->block, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        offer->reusables++;
        assert_int_equal(offer->terminals, 1);
        for (int s = 0; s < MEMBERS; s++)
            assert_true(offer->reads[s] == 0 && offer->sinks[s].posts_out == 0);
    }
}

static void offer_feed_sink(struct offer *offer, int s, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value};
    struct kvfi_actions actions;
    kvfi_sink_step(&offer->sinks[s], &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_SINK_DO_READ_BEGIN:
            offer->reads[s]++;
            offer_feed_block(offer, KVFI_BLOCK_ON_ACCESS_BEGIN);
            break;
        case KVFI_SINK_DO_READ_END:
            offer->reads[s]--;
            offer_feed_block(offer, KVFI_BLOCK_ON_ACCESS_END);
            break;
        case KVFI_SINK_DO_SEND_DONE:
            assert_int_equal(offer->sinks[s].posts_out, 0);
            offer->words[s]++;
            break;
        case KVFI_SINK_DO_SEND_FAILED:
            assert_int_equal(offer->sinks[s].posts_out, 0);
            offer->words[s]++;
            break;
        case KVFI_SINK_DO_SEND_IN_DOUBT:
            offer->words[s]++;
            break;
        case KVFI_SINK_DO_SEND_QUIESCED:
            assert_int_equal(offer->sinks[s].posts_out, 0);
            break;
        case KVFI_SINK_DO_END_DONE:
            offer->ends[s]++;
            offer_feed_life(offer, KVFI_OFFER_ON_SINK_DONE, KVF_OK, 0);
            break;
        case KVFI_SINK_DO_END_FAILED:
            offer->ends[s]++;
            offer_feed_life(offer, KVFI_OFFER_ON_SINK_FAILED, offer->sinks[s].reason, 0);
            break;
        default:
            break;
        }
    }
    assert_true(offer->words[s] <= 1 && offer->ends[s] <= 1);
}

static void offer_feed_life(struct offer *offer, int kind, enum kvf_status status, int64_t value)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .value = value, .now_ns = value};
    struct kvfi_actions actions;
    kvfi_offer_step(&offer->life, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_OFFER_DO_REPORT_DONE:
            offer->succeeded = true;
            for (int s = 0; s < MEMBERS; s++)
                assert_int_equal(offer->sinks[s].state, KVFI_SINK_DONE);
            offer->terminals++;
            break;
        case KVFI_OFFER_DO_REPORT_FAILED:
            offer->terminals++;
            break;
        case KVFI_OFFER_DO_STOP_SINKS:
            for (int s = 0; s < MEMBERS; s++)
                offer_feed_sink(offer, s, KVFI_SINK_ON_STOP, offer->life.reason, 0);
            break;
        default:
            offer_feed_block(offer, KVFI_BLOCK_ON_OWNER_ENDED);
            break;
        }
    }
    assert_true(offer->terminals <= 1);
}

static void offer_random_event(struct offer *offer)
{
    static const int good[KVFI_SINK_STATES] = {
        [KVFI_SINK_IDLE] = KVFI_SINK_ON_PULL,      [KVFI_SINK_CONNECTING] = KVFI_SINK_ON_CONNECTED,
        [KVFI_SINK_SENDING] = KVFI_SINK_ON_POST,   [KVFI_SINK_FLUSHING] = KVFI_SINK_ON_POSTED,
        [KVFI_SINK_DRAINING] = KVFI_SINK_ON_POSTED};
    uint64_t pick = next(offer->seed);
    int s = (int)(next(offer->seed) % MEMBERS);

    if (offer->life.state == KVFI_OFFER_WAITING)
        offer_feed_life(offer, pick % 8 ? KVFI_OFFER_ON_SINKS : KVFI_OFFER_ON_CANCEL, KVF_OK, MEMBERS);
    else if (pick % 40 == 1)
        offer_feed_life(offer, (int)(KVFI_OFFER_ON_CANCEL + next(offer->seed) % 4), KVF_ERR_INTERNAL,
                        (int64_t)(next(offer->seed) % 200));
    else if (kvfi_offer_ended(&offer->life) && offer->sinks[s].state == KVFI_SINK_IDLE)
        return; /* the owner feeds nothing new to an ended offer */
    else if (pick % 8 != 0)
        offer_feed_sink(offer, s, good[offer->sinks[s].state], KVF_OK, (int64_t)(next(offer->seed) % 3));
    else
        offer_feed_sink(offer, s, (int)(next(offer->seed) % KVFI_SINK_EVENTS), KVF_ERR_PEER_LOST, 10);
}

static void settle_offer(struct offer *offer)
{
    offer_feed_life(offer, KVFI_OFFER_ON_TIME, KVF_OK, 1000);
    for (int s = 0; s < MEMBERS; s++)
        while (offer->sinks[s].posts_out > 0)
            offer_feed_sink(offer, s, KVFI_SINK_ON_POSTED, KVF_ERR_CANCELLED, 0);
    assert_int_equal(offer->terminals, 1);
    assert_int_equal(offer->reusables, 1);
}

static void test_offers(void **unused)
{
    int succeeded = 0;
    (void)unused;
    for (uint64_t walk = 1; walk <= WALKS; walk++) {
        uint64_t seed = walk * UINT64_C(0xD1B54A32D192ED03);
        struct offer offer = {.seed = &seed};
        kvfi_offer_init(&offer.life, 150);
        kvfi_block_init(&offer.block);
        for (int s = 0; s < MEMBERS; s++)
            kvfi_sink_init(&offer.sinks[s]);
        for (int i = 0; i < STEPS; i++) {
            offer_random_event(&offer);
            assert_true(offer.reusables <= 1);
        }
        settle_offer(&offer);
        succeeded += offer.succeeded;
    }
    assert_in_range(succeeded, WALKS / 50, WALKS - WALKS / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pulls), cmocka_unit_test(test_broadcasts),
                                       cmocka_unit_test(test_offers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
