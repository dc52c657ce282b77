/* SPDX-License-Identifier: Apache-2.0 */
/* Whole instances of workers that meet: every byte of every rank is looked at. */
#include "meeting_kit.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/clock.h"

enum { BLOCKS = 5 };

static const int64_t SRC[BLOCKS] = {7, 1, 5, 60, 0};
static const int64_t DST[BLOCKS] = {2, 63, 0, 9, 33};

struct meeting {
    struct meeting_side ctx, gen;
};

static void begin(struct meeting *meeting, int64_t ctx_tp, int64_t ctx_pp, int64_t gen_tp, int64_t gen_pp)
{
    meeting_init(&meeting->ctx, "ctx", ctx_tp, ctx_pp, false);
    meeting_init(&meeting->gen, "gen", gen_tp, gen_pp, false);
    meeting_open(&meeting->ctx);
    meeting_open(&meeting->gen);
}

static void end(struct meeting *meeting)
{
    meeting_close(&meeting->gen);
    meeting_close(&meeting->ctx);
}

static void fill_all(struct meeting *meeting, int64_t rid)
{
    for (int64_t i = 0; i < BLOCKS; i++)
        meeting_fill(&meeting->ctx, rid, i, SRC[i]);
}

/* The blocks hold what they should, and no other block holds anything. */
static void check_all(struct meeting *meeting, int64_t rid, int64_t first)
{
    for (int64_t id = 0; id < MEETING_BLOCKS; id++) {
        int64_t ordinal = -1;
        for (int64_t i = first; i < BLOCKS; i++)
            if (DST[i] == id)
                ordinal = i;
        meeting_check(&meeting->gen, rid, ordinal, id);
    }
}

/* ---- shapes ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int64_t ctx_tp, ctx_pp, gen_tp, gen_pp;
} SHAPES[] = {
    {"tp1 to tp1", 1, 1, 1, 1},       {"tp2 to tp1", 2, 1, 1, 1},       {"tp1 to tp2", 1, 1, 2, 1},
    {"tp4 to tp2", 4, 1, 2, 1},       {"tp2 pp2 to tp1", 2, 2, 1, 1},   {"tp1 to tp2 pp2", 1, 1, 2, 2},
    {"tp2 pp2 to tp2", 2, 2, 2, 1},   {"tp2 to tp2 pp2", 2, 1, 2, 2},
};

static void move_shapes(uint64_t flags)
{
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        struct meeting meeting;
        meeting_init(&meeting.ctx, "ctx", SHAPES[i].ctx_tp, SHAPES[i].ctx_pp, false);
        meeting_init(&meeting.gen, "gen", SHAPES[i].gen_tp, SHAPES[i].gen_pp, false);
        meeting.ctx.options.flags = meeting.gen.options.flags = flags;
        meeting_open(&meeting.ctx);
        meeting_open(&meeting.gen);
        fill_all(&meeting, 1);
        meeting_send_open(&meeting.ctx, 0, meeting.ctx.count, 1, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
        meeting_send(&meeting.ctx, 0, meeting.ctx.count, 1, SRC, BLOCKS, 0, BLOCKS, 1);
        meeting_receive(&meeting.gen, 1, meeting.ctx.ranks[0].ends.info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
        meeting_done(&meeting.gen, 0, meeting.gen.count, KVF_TRTLLM_RECEIVE, 1);
        meeting_done(&meeting.ctx, 0, meeting.ctx.count, KVF_TRTLLM_SEND, 1);
        check_all(&meeting, 1, 0);
        end(&meeting);
    }
}

static void test_shapes(void **unused)
{
    (void)unused;
    move_shapes(KVF_TRTLLM_STRICT_UPSTREAM);
}

/* Where kvferry elects, every rank of the DP group is asked, and all that is wanted comes. */
static void test_shapes_natively(void **unused)
{
    (void)unused;
    move_shapes(0);
}

/* ---- a request before, during and after the send ---------------------------------------------------------------- */

static void wait_stored(struct meeting_rank *rank, int64_t count)
{
    int64_t deadline = kvfi_now_ns() + 10 * KVFI_SECOND;
    struct kvf_trtllm_worker_stats stats;

    do {
        memset(&stats, 0, sizeof stats);
        stats.struct_size = sizeof stats;
        kvf_trtllm_worker_get_stats(rank->worker, &stats, NULL);
        assert_true(kvfi_now_ns() < deadline);
    } while (stats.requests_received < count);
}

static void test_request_before_during_after(void **unused)
{
    struct meeting meeting;
    const char *info;
    (void)unused;
    begin(&meeting, 2, 1, 1, 1);
    info = meeting.ctx.ranks[0].ends.info;
    for (int when = 0; when < 3; when++) {
        int64_t rid = 10 + when;
        fill_all(&meeting, rid);
        if (when == 0) {
            meeting_receive(&meeting.gen, rid, info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
            wait_stored(&meeting.ctx.ranks[1], 1);
        }
        meeting_send_open(&meeting.ctx, 0, 2, rid, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
        meeting_send(&meeting.ctx, 0, 2, rid, SRC, BLOCKS, 0, 2, 0);
        if (when == 1)
            meeting_receive(&meeting.gen, rid, info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
        meeting_send(&meeting.ctx, 0, 2, rid, SRC, BLOCKS, 2, BLOCKS, 0);
        meeting_send(&meeting.ctx, 0, 2, rid, SRC, BLOCKS, BLOCKS, BLOCKS, 1); /* the last one is empty */
        if (when == 2)
            meeting_receive(&meeting.gen, rid, info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
        meeting_done(&meeting.gen, 0, 1, KVF_TRTLLM_RECEIVE, rid);
        meeting_done(&meeting.ctx, 0, 2, KVF_TRTLLM_SEND, rid);
        check_all(&meeting, rid, 0);
    }
    end(&meeting);
}

/* A cached prefix on the generation side: holes are left alone. */
static void test_prefix_is_not_written(void **unused)
{
    struct meeting meeting;
    int64_t dst[BLOCKS];
    (void)unused;
    begin(&meeting, 2, 1, 1, 1);
    fill_all(&meeting, 3);
    memcpy(dst, DST, sizeof dst);
    dst[0] = dst[1] = -1;
    meeting_send_open(&meeting.ctx, 0, 2, 3, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
    meeting_send(&meeting.ctx, 0, 2, 3, SRC, BLOCKS, 0, BLOCKS, 1);
    meeting_receive(&meeting.gen, 3, meeting.ctx.ranks[0].ends.info, dst, BLOCKS, 0, KVF_TRTLLM_NONE);
    meeting_done(&meeting.gen, 0, 1, KVF_TRTLLM_RECEIVE, 3);
    meeting_done(&meeting.ctx, 0, 2, KVF_TRTLLM_SEND, 3);
    check_all(&meeting, 3, 2);
    end(&meeting);
}

/* ---- generation-first, one of several DP groups runs the prefill ---------------------------------------------- */

static void test_generation_first_broadcast(void **unused)
{
    struct meeting meeting;
    struct meeting_rank *runs;
    struct kvf_error error = {0};
    (void)unused;
    meeting_init(&meeting.ctx, "ctx", 2, 2, true);
    meeting_init(&meeting.gen, "gen", 2, 1, false);
    meeting.ctx.options.stale_request_ns = 300 * KVFI_MS;
    meeting_open(&meeting.ctx);
    meeting_open(&meeting.gen);
    fill_all(&meeting, 4);
    meeting_receive(&meeting.gen, 4, meeting.ctx.ranks[0].ends.info, DST, BLOCKS, KVF_TRTLLM_NONE, 9);
    for (size_t rank = 1; rank < 4; rank += 2) { /* DP group 1: ranks 1 and 3 */
        runs = &meeting.ctx.ranks[rank];
        for (int i = 0; i < MEETING_AUX_BYTES; i++)
            runs->aux[5 * MEETING_AUX_BYTES + i] = (unsigned char)(i + 1);
        meeting_send_open(&meeting.ctx, rank, 1, 4, BLOCKS, KVF_TRTLLM_GENERATION_FIRST);
        meeting_event(runs, KVF_TRTLLM_EVENT_READY, KVF_TRTLLM_SEND, 4);
        meeting_send(&meeting.ctx, rank, 1, 4, SRC, BLOCKS, 0, BLOCKS, 1);
        if (kvf_trtllm_worker_send_aux(runs->worker, 4, 5, &error) != KVF_OK)
            fail_msg("%s", error.text);
    }
    meeting_done(&meeting.gen, 0, 2, KVF_TRTLLM_RECEIVE, 4);
    meeting_done(&meeting.ctx, 1, 1, KVF_TRTLLM_SEND, 4);
    meeting_done(&meeting.ctx, 3, 1, KVF_TRTLLM_SEND, 4);
    check_all(&meeting, 4, 0);
    for (size_t rank = 0; rank < 2; rank++)
        for (int i = 0; i < MEETING_AUX_SLOTS * MEETING_AUX_BYTES; i++) {
            int slot = i / MEETING_AUX_BYTES, byte = i % MEETING_AUX_BYTES;
            assert_int_equal(meeting.gen.ranks[rank].aux[i], slot == 9 ? byte + 1 : 0);
        }
    { /* the requests that were left at the other group expire there, and harm nobody */
        struct kvf_trtllm_worker_stats stats = {.struct_size = sizeof stats};
        int64_t deadline = kvfi_now_ns() + 10 * KVFI_SECOND;
        do {
            assert_int_equal(kvf_trtllm_worker_get_stats(meeting.ctx.ranks[0].worker, &stats, NULL), KVF_OK);
            assert_true(kvfi_now_ns() < deadline);
        } while (stats.requests_expired < 2);
    }
    end(&meeting);
}

/* ---- cancelling --------------------------------------------------------------------------------------------- */

static void expect_end(struct meeting_rank *rank, int direction, int64_t rid, int state)
{
    struct kvf_trtllm_event event = meeting_event(rank, KVF_TRTLLM_EVENT_ENDED, direction, rid);

    if (event.state != state)
        fail_msg("rid %" PRId64 " ended as %s: %s", rid, kvf_trtllm_state_text(event.state), event.text);
    meeting_event(rank, KVF_TRTLLM_EVENT_SETTLED, direction, rid);
    assert_int_equal(kvf_trtllm_worker_close_session(rank->worker, direction, rid, NULL), KVF_OK);
}

static void test_generation_cancels(void **unused)
{
    struct meeting meeting;
    (void)unused;
    begin(&meeting, 2, 1, 1, 1);
    /* nobody has a session there: the rid is fenced and acknowledged */
    meeting_receive(&meeting.gen, 5, meeting.ctx.ranks[0].ends.info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
    wait_stored(&meeting.ctx.ranks[0], 1);
    wait_stored(&meeting.ctx.ranks[1], 1);
    kvf_trtllm_worker_cancel(meeting.gen.ranks[0].worker, KVF_TRTLLM_RECEIVE, 5, NULL);
    expect_end(&meeting.gen.ranks[0], KVF_TRTLLM_RECEIVE, 5, KVF_TRTLLM_STATE_CANCELLED);
    /* what is opened for it later is born cancelled */
    meeting_send_open(&meeting.ctx, 0, 2, 5, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
    for (size_t i = 0; i < 2; i++)
        expect_end(&meeting.ctx.ranks[i], KVF_TRTLLM_SEND, 5, KVF_TRTLLM_STATE_CANCELLED);
    end(&meeting);
}

static void test_generation_cancels_between_pieces(void **unused)
{
    struct meeting meeting;
    (void)unused;
    begin(&meeting, 2, 1, 1, 1);
    fill_all(&meeting, 6);
    meeting_send_open(&meeting.ctx, 0, 2, 6, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
    meeting_send(&meeting.ctx, 0, 2, 6, SRC, BLOCKS, 0, 2, 0);
    meeting_receive(&meeting.gen, 6, meeting.ctx.ranks[0].ends.info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
    for (size_t i = 0; i < 2; i++)
        meeting_event(&meeting.ctx.ranks[i], KVF_TRTLLM_EVENT_PIECE, KVF_TRTLLM_SEND, 6);
    kvf_trtllm_worker_cancel(meeting.gen.ranks[0].worker, KVF_TRTLLM_RECEIVE, 6, NULL);
    expect_end(&meeting.gen.ranks[0], KVF_TRTLLM_RECEIVE, 6, KVF_TRTLLM_STATE_CANCELLED);
    for (size_t i = 0; i < 2; i++)
        expect_end(&meeting.ctx.ranks[i], KVF_TRTLLM_SEND, 6, KVF_TRTLLM_STATE_CANCELLED);
    end(&meeting);
}

static void test_context_cancels(void **unused)
{
    struct meeting meeting;
    (void)unused;
    begin(&meeting, 2, 1, 1, 1);
    meeting_send_open(&meeting.ctx, 0, 2, 7, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
    meeting_receive(&meeting.gen, 7, meeting.ctx.ranks[0].ends.info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
    wait_stored(&meeting.ctx.ranks[0], 1);
    wait_stored(&meeting.ctx.ranks[1], 1);
    for (size_t i = 0; i < 2; i++) {
        kvf_trtllm_worker_cancel(meeting.ctx.ranks[i].worker, KVF_TRTLLM_SEND, 7, NULL);
        expect_end(&meeting.ctx.ranks[i], KVF_TRTLLM_SEND, 7, KVF_TRTLLM_STATE_CANCELLED);
    }
    {
        struct kvf_trtllm_event event = meeting_event(&meeting.gen.ranks[0], KVF_TRTLLM_EVENT_ENDED,
                                                      KVF_TRTLLM_RECEIVE, 7);
        assert_int_not_equal(event.state, KVF_TRTLLM_STATE_TRANSFERRED);
        meeting_event(&meeting.gen.ranks[0], KVF_TRTLLM_EVENT_SETTLED, KVF_TRTLLM_RECEIVE, 7);
    }
    end(&meeting);
}

/* ---- both roles in one worker ---------------------------------------------------------------------------------- */

static void test_both_ways_at_once(void **unused)
{
    struct meeting meeting;
    (void)unused;
    begin(&meeting, 1, 1, 1, 1);
    for (int64_t i = 0; i < BLOCKS; i++) {
        meeting_fill(&meeting.ctx, 1, i, 10 + i);
        meeting_fill(&meeting.gen, 1, i + 100, 20 + i);
    }
    {
        static const int64_t a[BLOCKS] = {10, 11, 12, 13, 14}, b[BLOCKS] = {20, 21, 22, 23, 24};
        static const int64_t c[BLOCKS] = {40, 41, 42, 43, 44};
        meeting_send_open(&meeting.ctx, 0, 1, 1, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
        meeting_send_open(&meeting.gen, 0, 1, 1, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
        meeting_send(&meeting.ctx, 0, 1, 1, a, BLOCKS, 0, BLOCKS, 1);
        meeting_send(&meeting.gen, 0, 1, 1, b, BLOCKS, 0, BLOCKS, 1);
        meeting_receive(&meeting.gen, 1, meeting.ctx.ranks[0].ends.info, c, BLOCKS, 0, KVF_TRTLLM_NONE);
        meeting_receive(&meeting.ctx, 1, meeting.gen.ranks[0].ends.info, c, BLOCKS, 0, KVF_TRTLLM_NONE);
    }
    for (int side = 0; side < 2; side++) {
        struct meeting_rank *rank = side == 0 ? &meeting.ctx.ranks[0] : &meeting.gen.ranks[0];
        for (int ended = 0, settled = 0; ended < 2 || settled < 2;) {
            struct kvf_trtllm_event event;
            assert_int_equal(kvf_trtllm_worker_wait(rank->worker, &event, 1, 20 * KVFI_SECOND), 1);
            ended += event.kind == KVF_TRTLLM_EVENT_ENDED && event.state == KVF_TRTLLM_STATE_TRANSFERRED;
            settled += event.kind == KVF_TRTLLM_EVENT_SETTLED;
        }
    }
    for (int64_t i = 0; i < BLOCKS; i++) {
        meeting_check(&meeting.gen, 1, i, 40 + i);
        meeting_check(&meeting.ctx, 1, i + 100, 40 + i);
    }
    end(&meeting);
}

/* ---- a context rank that is killed ------------------------------------------------------------------------------- */

/* Has half of the prompt sent, then waits to be killed. */
static void be_killed(int pipe_fd)
{
    struct meeting_side ctx;

    meeting_init(&ctx, "ctx", 1, 1, false);
    meeting_open(&ctx);
    for (int64_t i = 0; i < BLOCKS; i++)
        meeting_fill(&ctx, 8, i, SRC[i]);
    meeting_send_open(&ctx, 0, 1, 8, BLOCKS, KVF_TRTLLM_CONTEXT_FIRST);
    meeting_send(&ctx, 0, 1, 8, SRC, BLOCKS, 0, 2, 0);
    if (write(pipe_fd, ctx.ranks[0].ends.info, sizeof ctx.ranks[0].ends.info) < 0)
        _exit(2);
    meeting_event(&ctx.ranks[0], KVF_TRTLLM_EVENT_PIECE, KVF_TRTLLM_SEND, 8);
    if (write(pipe_fd, "p", 1) < 0)
        _exit(2);
    for (;;)
        pause();
}

static void test_killed_context_rank(void **unused)
{
    char info[KVF_TRTLLM_ENDPOINT_BYTES], letter;
    struct meeting_side gen;
    int pipes[2];
    pid_t child;
    (void)unused;
    assert_int_equal(pipe(pipes), 0);
    child = fork();
    if (child == 0) {
        be_killed(pipes[1]);
        _exit(1);
    }
    meeting_init(&gen, "gen", 1, 1, false);
    meeting_open(&gen);
    assert_int_equal(read(pipes[0], info, sizeof info), sizeof info);
    meeting_receive(&gen, 8, info, DST, BLOCKS, 0, KVF_TRTLLM_NONE);
    assert_int_equal(read(pipes[0], &letter, 1), 1);
    meeting_check(&gen, 8, 0, DST[0]);
    assert_int_equal(kill(child, SIGKILL), 0);
    {
        struct kvf_trtllm_event event = meeting_event(&gen.ranks[0], KVF_TRTLLM_EVENT_ENDED, KVF_TRTLLM_RECEIVE, 8);
        assert_int_equal(event.state, KVF_TRTLLM_STATE_ERROR);
        assert_int_equal(event.status, KVF_ERR_PEER_LOST);
        assert_string_equal(event.peer, "ctx0");
    }
    /* its process has ended, so it writes no more: the memory is free though it never said so */
    meeting_event(&gen.ranks[0], KVF_TRTLLM_EVENT_SETTLED, KVF_TRTLLM_RECEIVE, 8);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(pipes[0]);
    close(pipes[1]);
    meeting_close(&gen);
}

/* ---- many at once ------------------------------------------------------------------------------------------- */

enum { MANY = 300 };

static void show_left(struct meeting_rank *rank, int direction, int64_t rid)
{
    struct kvf_trtllm_status status = {.struct_size = sizeof status};

    if (kvf_trtllm_worker_status(rank->worker, direction, rid, &status, NULL) == KVF_OK)
        print_error("rid %" PRId64 " %s: %s, settled %d, asked %" PRId64 " of %" PRId64 ", pending %" PRId64
                    ", pieces %" PRId64 ": %s\n", rid, direction == KVF_TRTLLM_SEND ? "send" : "receive",
                    kvf_trtllm_state_text(status.state), status.is_settled, status.asked, status.expected,
                    status.pending, status.pieces, status.text);
}

/* Each request has a block of its own on the way: ids are reused only after SETTLED. Every third one is cancelled. */
static void test_many_requests(void **unused)
{
    struct meeting meeting;
    int64_t next = 1, running = 0, block_of[MANY + 1] = {0}, free_blocks[16], free_count = 16;
    int left[MANY + 1] = {0}, done = 0, cancelled = 0;
    int64_t deadline = kvfi_now_ns() + 60 * KVFI_SECOND;
    (void)unused;
    begin(&meeting, 2, 1, 1, 1);
    for (int64_t i = 0; i < 16; i++)
        free_blocks[i] = i;
    { /* they know each other from here on: a cancel reaches the context */
        meeting_send_open(&meeting.ctx, 0, 2, MANY + 1, 1, KVF_TRTLLM_CONTEXT_FIRST);
        meeting_send(&meeting.ctx, 0, 2, MANY + 1, free_blocks, 1, 0, 1, 1);
        meeting_receive(&meeting.gen, MANY + 1, meeting.ctx.ranks[0].ends.info, free_blocks, 1, 0, KVF_TRTLLM_NONE);
        meeting_done(&meeting.ctx, 0, 2, KVF_TRTLLM_SEND, MANY + 1);
        meeting_done(&meeting.gen, 0, 1, KVF_TRTLLM_RECEIVE, MANY + 1);
    }
    while (next <= MANY || running > 0) {
        struct kvf_trtllm_event event;
        int direction = KVF_TRTLLM_RECEIVE;
        if (kvfi_now_ns() > deadline) {
            for (int64_t rid = 1; rid < next; rid++)
                for (size_t r = 0; left[rid] > 0 && r < 3; r++)
                    show_left(r < 2 ? &meeting.ctx.ranks[r] : &meeting.gen.ranks[0],
                              r < 2 ? KVF_TRTLLM_SEND : KVF_TRTLLM_RECEIVE, rid);
            fail_msg("%" PRId64 " requests are left", running);
        }
        while (next <= MANY && free_count > 0) {
            int64_t rid = next++, id = free_blocks[--free_count];
            block_of[rid] = id;
            left[rid] = 3;
            running++;
            meeting_fill(&meeting.ctx, rid, 0, id);
            meeting_send_open(&meeting.ctx, 0, 2, rid, 1, KVF_TRTLLM_CONTEXT_FIRST);
            if (rid % 2)
                meeting_send(&meeting.ctx, 0, 2, rid, &id, 1, 0, 1, 1);
            meeting_receive(&meeting.gen, rid, meeting.ctx.ranks[0].ends.info, &id, 1, 0, KVF_TRTLLM_NONE);
            if (rid % 3 == 0)
                kvf_trtllm_worker_cancel(meeting.gen.ranks[0].worker, KVF_TRTLLM_RECEIVE, rid, NULL);
            if (rid % 2 == 0)
                for (size_t i = 0; i < 2; i++) { /* may be refused: it was cancelled */
                    struct kvf_trtllm_blocks group = {&id, 1};
                    struct kvf_trtllm_piece piece;
                    kvf_trtllm_piece_init(&piece, sizeof piece);
                    piece.rid = rid;
                    piece.groups = &group;
                    piece.group_count = 1;
                    kvf_trtllm_worker_send_piece(meeting.ctx.ranks[i].worker, &piece, NULL);
                }
        }
        for (size_t r = 0; r < 3; r++) {
            struct meeting_rank *rank = r < 2 ? &meeting.ctx.ranks[r] : &meeting.gen.ranks[0];
            direction = r < 2 ? KVF_TRTLLM_SEND : KVF_TRTLLM_RECEIVE;
            while (kvf_trtllm_worker_wait(rank->worker, &event, 1, KVFI_MS) == 1) {
                if (r == 2 && event.kind == KVF_TRTLLM_EVENT_ENDED) {
                    done += event.state == KVF_TRTLLM_STATE_TRANSFERRED;
                    cancelled += event.state == KVF_TRTLLM_STATE_CANCELLED;
                    if (event.state == KVF_TRTLLM_STATE_TRANSFERRED)
                        meeting_check(&meeting.gen, event.rid, 0, block_of[event.rid]);
                }
                if (event.kind != KVF_TRTLLM_EVENT_SETTLED)
                    continue;
                assert_int_equal(kvf_trtllm_worker_close_session(rank->worker, direction, event.rid, NULL), KVF_OK);
                if (--left[event.rid] == 0) {
                    free_blocks[free_count++] = block_of[event.rid];
                    running--;
                }
            }
        }
    }
    assert_int_equal(done + cancelled, MANY);
    assert_true(done >= MANY * 2 / 3 && cancelled > 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(kvf_trtllm_worker_shutdown(meeting.ctx.ranks[i].worker, KVFI_SECOND, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_worker_shutdown(meeting.gen.ranks[0].worker, KVFI_SECOND, NULL), KVF_OK);
    end(&meeting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_context_rank), /* first: it forks, and no thread runs yet */
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_shapes_natively),
        cmocka_unit_test(test_request_before_during_after),
        cmocka_unit_test(test_prefix_is_not_written),
        cmocka_unit_test(test_generation_first_broadcast),
        cmocka_unit_test(test_generation_cancels),
        cmocka_unit_test(test_generation_cancels_between_pieces),
        cmocka_unit_test(test_context_cancels),
        cmocka_unit_test(test_both_ways_at_once),
        cmocka_unit_test(test_many_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
