/* SPDX-License-Identifier: Apache-2.0 */
/* Requests, pieces, cancels and the agent's words in any order, and what must hold of every request whatever came:
 * one last word of each kind to each rank that asked, none after it; one end, then memory settled once, and not while
 * anything is written. */
#include "send_kit.h"

#include <inttypes.h>
#include <string.h>

enum { OK = KVFI_TRTLLM_SUCCESS, FAILED = KVFI_TRTLLM_WRITE_FAILED, IN_DOUBT = KVFI_TRTLLM_IN_DOUBT,
       QUIESCED = KVFI_TRTLLM_FAILED_QUIESCED, ROUNDS = 500, STEPS = 24 };

static uint64_t seed = 88172645463325252u;

static unsigned chance(unsigned below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed >> 20) % below;
}

struct round {
    struct stage *stage;
    int64_t rid, tokens;
    int has_aux, opened, last_handed, aux_handed, pieces;
    int asked[2], cancelled[2];
    int doubted[KIT_WORDS];
    int ended, settled, state, told_pieces;
};

static struct peer *peer_of(struct round *round, unsigned index) { return index ? &round->stage->b : &round->stage->a; }

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void on_event(struct round *round, const struct kvf_trtllm_event *event)
{
    if (event->rid != round->rid) fail_msg("rid %" PRId64 ": event of %" PRId64, round->rid, event->rid);
    switch (event->kind) {
    case KVF_TRTLLM_EVENT_READY:
        assert_int_equal(round->ended, 0);
        break;
    case KVF_TRTLLM_EVENT_PIECE:
        assert_int_equal(round->ended, 0);
        assert_int_equal(event->piece, round->told_pieces++);
        break;
    case KVF_TRTLLM_EVENT_ENDED:
        assert_int_equal(round->ended++, 0);
        round->state = event->state;
        break;
    case KVF_TRTLLM_EVENT_SETTLED:
        assert_int_equal(round->ended, 1);
        assert_int_equal(round->settled++, 0);
        assert_int_equal(fake_any(&round->stage->ctx.fake, 0), -1);
        break;
    default: fail_msg("rid %" PRId64 ": event %d", round->rid, event->kind); break;
    }
}

static void take_events(struct round *round, int64_t wait_ns)
{
    struct kvf_trtllm_event event;

    while (kvf_trtllm_worker_wait(round->stage->ctx.worker, &event, 1, wait_ns) == 1) {
        on_event(round, &event);
        wait_ns = 0;
    }
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void ask(struct round *round, unsigned index)
{
    if (round->cancelled[index]) return;
    peer_ask_aux(peer_of(round, index), round->rid, round->has_aux ? (int64_t)index : KVF_TRTLLM_NONE);
    round->asked[index] = 1;
}

static void hand_over(struct round *round)
{
    int64_t end = round->tokens + 2 * (int64_t)chance(4);
    int is_last, status;

    if (!round->opened || round->last_handed) return;
    if (end > 8) end = 8;
    is_last = end == 8 && chance(2);
    status = ctx_piece(&round->stage->ctx, round->rid, round->tokens, end, is_last);
    if (status != KVF_OK) return; /* it has ended */
    round->tokens = end;
    round->pieces++;
    round->last_handed = is_last;
}

static void tell(struct round *round)
{
    static const int kinds[] = {KVF_TRTLLM_AGENT_DONE, KVF_TRTLLM_AGENT_DONE, KVF_TRTLLM_AGENT_DONE,
                                KVF_TRTLLM_AGENT_DONE, KVF_TRTLLM_AGENT_FAILED, KVF_TRTLLM_AGENT_IN_DOUBT};
    struct fake_agent *fake = &round->stage->ctx.fake;
    int index = fake_any(fake, chance(KIT_WORDS)), kind = kinds[chance(6)];

    if (index < 0 || (kind == KVF_TRTLLM_AGENT_IN_DOUBT && round->doubted[index])) return;
    if (kind == KVF_TRTLLM_AGENT_IN_DOUBT) round->doubted[index] = 1;
    fake_tell(fake, index, kind);
}

static void cancel(struct round *round)
{
    unsigned who = chance(8);

    if (who < 2) {
        peer_cancel(peer_of(round, who), round->rid);
        round->cancelled[who] = 1;
    } else if (who == 2) {
        peer_cancel_nameless(peer_of(round, 0), round->rid);
    } else if (who == 3 && round->opened) {
        ctx_cancel(&round->stage->ctx, round->rid);
    }
}

static void step(struct round *round)
{
    switch (chance(7)) {
    case 0:
        if (!round->opened && round->has_aux) ctx_send_open_aux(&round->stage->ctx, round->rid);
        else if (!round->opened) ctx_send_open(&round->stage->ctx, round->rid);
        round->opened = 1;
        break;
    case 1: ask(round, chance(2)); break;
    case 2: hand_over(round); break;
    case 3:
        if (round->has_aux && round->last_handed && !round->aux_handed)
            round->aux_handed =
                kvf_trtllm_worker_send_aux(round->stage->ctx.worker, round->rid, 1, NULL) == KVF_OK;
        break;
    case 4: cancel(round); break;
    default: tell(round); break;
    }
    take_events(round, chance(3) ? 0 : 200000);
}

/* ---- what must hold ---------------------------------------------------------------------------------------------- */

static void check_words(struct round *round, unsigned index)
{
    struct peer *peer = peer_of(round, index);
    int last_kv = -1, last_aux = -1, doubts = 0, parts = 0, aux_doubts = 0, quiesced = 0, bytes = 0;

    peer_catch_up(peer);
    for (int i = 0; i < peer->tail; i++) {
        const struct word *word = &peer->words[i];
        if (word->rid != round->rid) fail_msg("rid %" PRId64 ": word of %" PRId64, round->rid, word->rid);
        if (word->tag == KVFI_TRTLLM_KV_AGENT_RESULT) {
            /* who asks again for what was refused is refused again */
            if (last_kv >= 0 && (last_kv != FAILED || word->word != FAILED))
                fail_msg("rid %" PRId64 " rank %u: word %d after %d", round->rid, index, word->word, last_kv);
            doubts += word->word == IN_DOUBT;
            parts += word->word == OK && !word->is_last;
            bytes += (int)word->bytes;
            if (word->word != IN_DOUBT && (word->word != OK || word->is_last)) last_kv = word->word;
        } else if (word->tag == KVFI_TRTLLM_AUX_AGENT_RESULT) {
            assert_true(last_aux < 0 || (last_aux == FAILED && word->word == FAILED));
            aux_doubts += word->word == IN_DOUBT;
            if (word->word != IN_DOUBT) last_aux = word->word;
        } else if (word->tag == KVFI_TRTLLM_SESSION_QUIESCED) {
            quiesced++;
            assert_true(last_kv >= 0 || !round->asked[index]);
        }
    }
    if ((last_kv >= 0) != round->asked[index])
        fail_msg("rid %" PRId64 " rank %u asked %d: last word %d", round->rid, index, round->asked[index], last_kv);
    assert_int_equal(last_aux >= 0, round->asked[index] && round->has_aux);
    assert_true(doubts <= 1 && aux_doubts <= 1 && parts <= round->pieces);
    assert_int_equal(last_kv == QUIESCED, doubts);
    assert_int_equal(last_aux == QUIESCED, aux_doubts);
    assert_true(quiesced >= round->cancelled[index]);
    if (round->state == KVF_TRTLLM_STATE_TRANSFERRED) {
        assert_int_equal(last_kv, OK);
        assert_int_equal(bytes, 2 * 4 * 64);
        assert_true(!round->has_aux || last_aux == OK);
    }
    peer->head = peer->tail = 0;
}

static void play(struct stage *stage, int64_t rid, int *transferred)
{
    struct round round = {.stage = stage, .rid = rid, .has_aux = (int)chance(2)};

    for (int i = 0; i < STEPS; i++) step(&round);
    if (!round.opened && round.has_aux) ctx_send_open_aux(&stage->ctx, rid);
    else if (!round.opened) ctx_send_open(&stage->ctx, rid);
    round.opened = 1;
    if (chance(4)) { /* give it a good end, where it still may have one */
        for (unsigned i = 0; i < 2; i++)
            if (!round.asked[i]) ask(&round, i);
        while (!round.last_handed && ctx_piece(&stage->ctx, rid, round.tokens, 8, 1) == KVF_OK) {
            round.tokens = 8;
            round.pieces++;
            round.last_handed = 1;
        }
        if (round.has_aux && round.last_handed && !round.aux_handed)
            (void)kvf_trtllm_worker_send_aux(stage->ctx.worker, rid, 1, NULL);
    }
    for (int i = 0; i < 50 && !round.ended; i++) {
        fake_finish_all(&stage->ctx.fake);
        take_events(&round, 1000000);
    }
    if (!round.ended) ctx_cancel(&stage->ctx, rid);
    for (int i = 0; i < 5000 && !round.settled; i++) {
        fake_finish_all(&stage->ctx.fake);
        take_events(&round, 2000000);
    }
    assert_int_equal(round.ended, 1);
    assert_int_equal(round.settled, 1);
    check_words(&round, 0);
    check_words(&round, 1);
    take_events(&round, 0);
    assert_int_equal(ctx_close_session(&stage->ctx, rid), KVF_OK);
    fake_reset(&stage->ctx.fake);
    *transferred += round.state == KVF_TRTLLM_STATE_TRANSFERRED;
}

static void test_any_order(void **state)
{
    struct stage stage;
    int transferred = 0;

    (void)state;
    stage_open(&stage, 1);
    for (int64_t rid = 1; rid <= ROUNDS; rid++) play(&stage, rid, &transferred);
    print_message("%d of %d requests were transferred\n", transferred, (int)ROUNDS);
    assert_true(transferred > ROUNDS / 50);
    assert_int_equal(ctx_stats(&stage.ctx).unsettled, 0);
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
