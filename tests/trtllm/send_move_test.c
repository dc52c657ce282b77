/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that cross processes: groups that go with the last piece, auxiliary data, ranks that die; and what a piece may
 * not be. */
#include "send_kit.h"

#include <stdio.h>
#include <string.h>

enum { OK = KVFI_TRTLLM_SUCCESS, FAILED = KVFI_TRTLLM_WRITE_FAILED };

/* ---- windows and state ------------------------------------------------------------------------------------------- */

enum { BLOCK_BYTES = 64, STATE_BYTES = 96, SLOTS = 8 };

/* Three groups of one layer each, equal on both sides: full attention, a window of 4 tokens, a state. */
static void make_groups(struct rank_kit *kit, struct memory *memory)
{
    unsigned char *at = memory->bytes;

    kit->spec.tp_size = 1;
    kit->spec.tp_rank = kit->spec.instance_rank = 0;
    kit->attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = 4, .tokens_per_block = 2, .dims_per_head = 2,
                                                   .element_eighths = 16};
    kit->table = (struct kvf_trtllm_page_table){.tokens_per_block = 2, .groups = kit->groups,
                                                .pool_groups = kit->pool_groups};
    rank_kit_stages(kit, 1, (int64_t)3);
    for (int g = 0; g < 3; g++) {
        int64_t bytes = g == 2 ? STATE_BYTES : BLOCK_BYTES;
        kit->groups[g].layer_count = kit->groups[g].view_count = 0;
        kit->pool_groups[g].pool_count = 0;
        rank_kit_group(kit, g == 2 ? KVF_TRTLLM_STATE : KVF_TRTLLM_PAGED, g);
        memset(kit->views[g], 0, sizeof kit->views[g]);
        rank_kit_view(kit, (size_t)g, g == 2 ? KVF_TRTLLM_REPLICATED : KVF_TRTLLM_INDEXED, 0);
        rank_kit_pool(kit, (size_t)g, (uint64_t)(uintptr_t)at, bytes, SLOTS);
        rank_kit_layer(kit, (size_t)g, 0, g);
        rank_kit_entry(kit, (size_t)g, 0, 0, 0, g == 2 ? bytes : bytes / 2);
        if (g < 2) {
            rank_kit_entry(kit, (size_t)g, 0, 0, bytes / 2, bytes / 2);
            kit->groups[g].kv_heads_per_rank = kit->views[g][0].num_kv_heads = 4;
        } else {
            kit->views[g][0].bytes_per_layer = bytes;
        }
        rank_kit_role(kit, (size_t)g, 0, g == 0 ? "full" : g == 1 ? "window" : "state");
        at += bytes * SLOTS;
    }
    kit->groups[1].sliding_window_size = 4;
}

static int same_slot(const struct ctx *ctx, const struct peer *peer, int group, int src, int dst)
{
    size_t bytes = group == 2 ? STATE_BYTES : BLOCK_BYTES, base = (size_t)group * BLOCK_BYTES * SLOTS;

    return memcmp(ctx->memory.bytes + base + (size_t)src * bytes, peer->memory.bytes + base + (size_t)dst * bytes,
                  bytes) == 0;
}

static int is_untouched(const struct peer *peer, int group, int slot)
{
    size_t bytes = group == 2 ? STATE_BYTES : BLOCK_BYTES, base = (size_t)group * BLOCK_BYTES * SLOTS;
    const unsigned char *at = peer->memory.bytes + base + (size_t)slot * bytes;

    for (size_t i = 0; i < bytes; i++)
        if (at[i] != 0xee) return 0;
    return 1;
}

static int hand_over(struct ctx *ctx, int64_t begin, int64_t end, int is_last, const struct kvf_trtllm_blocks *groups)
{
    struct kvf_trtllm_piece piece;
    struct kvf_error error = {0};
    int status;

    kvf_trtllm_piece_init(&piece, sizeof piece);
    piece.rid = 1;
    piece.token_begin = begin;
    piece.token_end = end;
    piece.is_last = is_last;
    piece.groups = groups;
    piece.group_count = 3;
    status = (int)kvf_trtllm_worker_send_piece(ctx->worker, &piece, &error);
    if (status != KVF_OK) print_message("%s\n", error.text);
    return status;
}

/* `given`: which pieces come with the window's blocks and the state: 1 the first, 2 the last, 3 both. */
static void try_groups_of_the_last_piece(int given)
{
    static const int64_t full[4] = {7, 6, 5, 4}, window[4] = {-1, -1, 1, 2}, state[1] = {3}, none[4] = {-1, -1, -1, -1};
    static const int64_t wanted[4] = {0, 1, 2, 3}, wanted_state[1] = {6};
    const struct kvf_trtllm_blocks whole[3] = {{full, 4}, {window, 4}, {state, 1}};
    const struct kvf_trtllm_blocks bare[3] = {{full, 4}, {none, 4}, {NULL, 0}};
    const struct kvf_trtllm_blocks dst[3] = {{wanted, 4}, {wanted, 4}, {wanted_state, 1}};
    struct kvf_trtllm_blocks usual[1];
    struct kvfi_trtllm_ask ask;
    struct stage stage;

    stage_init(&stage, 0);
    make_groups(&stage.ctx.kit, &stage.ctx.memory);
    make_groups(&stage.a.kit, &stage.a.memory);
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    peer_register(&stage.a);
    ctx_send_open(&stage.ctx, 1);
    peer_ask_init(&stage.a, &ask, usual, 1);
    ask.groups = dst;
    ask.group_count = 3;
    peer_ask_for(&stage.a, &ask);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
    assert_int_equal(hand_over(&stage.ctx, 0, 4, 0, given & 1 ? whole : bare), KVF_OK);
    peer_kv(&stage.a, 1, OK, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(same_slot(&stage.ctx, &stage.a, 0, 7 - i, i), i < 2);
        assert_true(is_untouched(&stage.a, 1, i));
    }
    assert_true(is_untouched(&stage.a, 2, 6));
    assert_int_equal(hand_over(&stage.ctx, 4, 8, 1, given & 2 ? whole : bare), KVF_OK);
    peer_kv(&stage.a, 1, OK, 1);
    for (int i = 0; i < 4; i++) {
        assert_true(same_slot(&stage.ctx, &stage.a, 0, 7 - i, i));
        assert_int_equal(i < 2 ? is_untouched(&stage.a, 1, i) : same_slot(&stage.ctx, &stage.a, 1, i - 1, i), 1);
    }
    assert_true(same_slot(&stage.ctx, &stage.a, 2, 3, 6));
    for (int i = 4; i < SLOTS; i++) assert_true(is_untouched(&stage.a, 0, i) && is_untouched(&stage.a, 1, i));
    stage_close(&stage);
}

static void test_windows_and_state_go_with_the_last_piece(void **state)
{
    (void)state;
    for (int given = 1; given <= 3; given++) try_groups_of_the_last_piece(given);
}

/* ---- auxiliary data ---------------------------------------------------------------------------------------------- */

static unsigned char *aux_slot(struct memory *memory, int slot)
{
    return memory->bytes + memory->byte_count - (size_t)(KIT_AUX_SLOTS - slot) * KIT_AUX_BYTES;
}

static void test_auxiliary_data_follows_the_last_piece(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 0);
    memcpy(aux_slot(&stage.ctx.memory, 2), "ABCDEFGH", 8);
    ctx_send_open_aux(&stage.ctx, 1);
    peer_ask_aux(&stage.a, 1, 0);
    peer_ask_aux(&stage.b, 1, 3);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
    /* too early */
    assert_int_equal(kvf_trtllm_worker_send_aux(stage.ctx.worker, 1, 2, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    peer_kv(&stage.a, 1, OK, 1);
    peer_kv(&stage.b, 1, OK, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_PIECE, 1);
    peer_silent(&stage.a);
    ctx_no_event(&stage.ctx);
    assert_int_equal(kvf_trtllm_worker_send_aux(stage.ctx.worker, 1, KIT_AUX_SLOTS, NULL), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(kvf_trtllm_worker_send_aux(stage.ctx.worker, 1, -1, NULL), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(kvf_trtllm_worker_send_aux(stage.ctx.worker, 1, 2, NULL), KVF_OK);
    assert_int_not_equal(kvf_trtllm_worker_send_aux(stage.ctx.worker, 1, 2, NULL), KVF_OK); /* once */
    peer_aux(&stage.a, 1, OK);
    peer_aux(&stage.b, 1, OK);
    assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 1).state, KVF_TRTLLM_STATE_TRANSFERRED);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 1);
    assert_memory_equal(aux_slot(&stage.a.memory, 0), "ABCDEFGH", 8);
    assert_memory_equal(aux_slot(&stage.b.memory, 3), "ABCDEFGH", 8);
    assert_int_equal(*aux_slot(&stage.a.memory, 1), 0xee);
    peer_has_blocks(&stage.ctx, &stage.a, 0, 4);
    peer_silent(&stage.a);
    peer_silent(&stage.b);
    stage_close(&stage);
}

/* Of two ranks that hold the same auxiliary data one sends it; the other reports all the same, once. */
static void test_a_rank_that_is_not_elected_reports(void **state)
{
    struct stage stage;

    (void)state;
    stage_init(&stage, 0);
    stage.ctx.kit.spec.tp_size = 4;
    stage.ctx.kit.spec.tp_rank = stage.ctx.kit.spec.instance_rank = 1;
    stage.ctx.kit.attention.kv_heads_per_rank = 8;
    ctx_open(&stage.ctx);
    peer_open(&stage.a, &stage.ctx);
    peer_open(&stage.b, &stage.ctx);
    stage.a.kit.attention.kv_heads_per_rank = 8;
    stage.a.kit.spec.page_table = &stage.ctx.kit.table; /* same heads twice on each side: not this rank's to send */
    peer_register(&stage.a);
    ctx_send_open_aux(&stage.ctx, 1);
    peer_ask_aux(&stage.a, 1, 0);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    peer_kv(&stage.a, 1, OK, 1);
    assert_int_equal(kvf_trtllm_worker_send_aux(stage.ctx.worker, 1, 2, NULL), KVF_OK);
    peer_aux(&stage.a, 1, OK);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_PIECE, 1);
    assert_int_equal(ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 1).bytes, 0);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 1);
    stage_close(&stage);
}

/* ---- ranks that die ---------------------------------------------------------------------------------------------- */

static void test_a_dead_rank_fails_its_session(void **state)
{
    struct stage stage;
    struct kvf_trtllm_event event;

    (void)state;
    stage_open(&stage, 0);
    peer_silent(&stage.a);
    ctx_send_open(&stage.ctx, 1);
    peer_ask(&stage.a, 1);
    peer_ask(&stage.b, 1);
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
    memory_kill(&stage.a.memory);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    event = ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_ENDED, 1);
    assert_int_equal(event.state, KVF_TRTLLM_STATE_ERROR);
    assert_string_equal(event.peer, "gen0");
    ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 1);
    peer_kv(&stage.a, 1, FAILED, 1); /* its sockets are the test's */
    assert_int_equal(ctx_close_session(&stage.ctx, 1), KVF_OK);
    stage_close(&stage);
}

/* Killed at some time during a write of 96 MiB: it ends well or badly, and memory is settled in both cases. */
static void test_killed_while_it_is_written(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        const int64_t slot = 12 << 20;
        struct memory source, destination;
        struct kvf_trtllm_event event;
        struct stage stage;

        memory_open(&source, (size_t)(2 * slot * SLOTS), 0);
        memory_open(&destination, (size_t)(2 * slot * SLOTS), 1);
        stage_init(&stage, 0);
        for (int i = 0; i < 2; i++) {
            struct rank_kit *kit = i == 0 ? &stage.ctx.kit : &stage.a.kit;
            struct memory *memory = i == 0 ? &source : &destination;
            kit->spec.tp_size = 1;
            kit->attention.kv_heads_per_rank = 8;
            kit->groups[0].kv_heads_per_rank = 8;
            for (int v = 0; v < 2; v++) {
                kit->views[0][v].num_kv_heads = 8;
                for (int e = 0; e < 2; e++)
                    kit->entries[0][v][e] = (struct kvf_trtllm_entry){v, e * slot / 2, slot / 2};
                kit->pools[0][v] = (struct kvf_trtllm_pool){(uint64_t)(uintptr_t)memory->bytes +
                                                            (uint64_t)(v * slot * SLOTS), slot, SLOTS, slot,
                                                            KVF_TRTLLM_NONE};
            }
        }
        snprintf(stage.a.engine, sizeof stage.a.engine, "kvferry-cma/1 pid=%d", (int)destination.pid);
        stage.a.kit.spec.transfer_engine_info_bytes = strlen(stage.a.engine);
        ctx_open(&stage.ctx);
        peer_open(&stage.a, &stage.ctx);
        peer_open(&stage.b, &stage.ctx);
        peer_register(&stage.a);
        ctx_send_open(&stage.ctx, 1);
        peer_ask(&stage.a, 1);
        ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
        assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
        for (volatile int spin = 0; spin < round * 2000000; spin++) continue;
        memory_kill(&destination);
        while (kvf_trtllm_worker_wait(stage.ctx.worker, &event, 1, INT64_C(20000000000)) == 1 &&
               event.kind == KVF_TRTLLM_EVENT_PIECE)
            continue;
        assert_int_equal(event.kind, KVF_TRTLLM_EVENT_ENDED);
        assert_true(event.state == KVF_TRTLLM_STATE_TRANSFERRED || event.state == KVF_TRTLLM_STATE_ERROR);
        peer_kv(&stage.a, 1, event.state == KVF_TRTLLM_STATE_TRANSFERRED ? OK : FAILED, 1);
        ctx_event(&stage.ctx, KVF_TRTLLM_EVENT_SETTLED, 1);
        assert_int_equal(ctx_close_session(&stage.ctx, 1), KVF_OK);
        stage_close(&stage);
        memory_close(&source);
        memory_close(&destination);
    }
}

/* ---- what a piece may not be ------------------------------------------------------------------------------------- */

struct bad_piece {
    const char *name;
    int64_t begin, end;
    int is_last;
    size_t group_count;
    int64_t id;
    int status;
    const char *text;
};

static const struct bad_piece bad_pieces[] = {
    {"begins late", 2, 8, 1, 1, 0, KVF_ERR_INVALID_ARGUMENT, "piece 0 begins at token 2, expected 0"},
    {"ends before it begins", 0, -1, 0, 1, 0, KVF_ERR_INVALID_ARGUMENT, "piece 0 ends at token -1, expected 0 to 8"},
    {"ends behind the prompt", 0, 9, 1, 1, 0, KVF_ERR_INVALID_ARGUMENT, "piece 0 ends at token 9, expected 0 to 8"},
    {"the last one stops short", 0, 6, 1, 1, 0, KVF_ERR_INVALID_ARGUMENT, "the last piece ends at token 6 of 8"},
    {"no group", 0, 8, 1, 0, 0, KVF_ERR_INVALID_ARGUMENT, "piece has 0 groups, this rank has 1 layer groups"},
    {"two groups", 0, 8, 1, 2, 0, KVF_ERR_INVALID_ARGUMENT, "piece has 2 groups"},
    {"an id past the pool", 0, 8, 1, 1, 8, KVF_ERR_IDS, "group 0: block id 3 is 8, expected -1 to 7"},
    {"an id below the hole", 0, 8, 1, 1, -2, KVF_ERR_IDS, "group 0: block id 3 is -2, expected -1 to 7"},
};

static void test_bad_pieces(void **state)
{
    struct stage stage;

    (void)state;
    stage_open(&stage, 1);
    ctx_send_open(&stage.ctx, 1);
    for (size_t i = 0; i < sizeof bad_pieces / sizeof bad_pieces[0]; i++) {
        const struct bad_piece *row = &bad_pieces[i];
        const int64_t ids[4] = {0, 1, 2, row->id};
        const struct kvf_trtllm_blocks groups[2] = {{ids, 4}, {ids, 4}};
        struct kvf_trtllm_piece piece;
        struct kvf_error error = {0};
        int status;

        kvf_trtllm_piece_init(&piece, sizeof piece);
        piece.rid = 1;
        piece.token_begin = row->begin;
        piece.token_end = row->end;
        piece.is_last = row->is_last;
        piece.groups = groups;
        piece.group_count = row->group_count;
        status = (int)kvf_trtllm_worker_send_piece(stage.ctx.worker, &piece, &error);
        if (status != row->status || strstr(error.text, row->text) == NULL)
            fail_msg("%s: %d \"%s\"", row->name, status, error.text);
    }
    assert_int_equal(ctx_status(&stage.ctx, 1).pieces, 0);
    assert_int_equal(ctx_piece(&stage.ctx, 2, 0, 8, 1), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_worker_send_aux(stage.ctx.worker, 1, 0, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 0, 8, 1), KVF_OK);
    assert_int_equal(ctx_piece(&stage.ctx, 1, 8, 8, 1), KVF_ERR_INVALID_ARGUMENT);
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_and_state_go_with_the_last_piece),
        cmocka_unit_test(test_auxiliary_data_follows_the_last_piece),
        cmocka_unit_test(test_a_rank_that_is_not_elected_reports),
        cmocka_unit_test(test_a_dead_rank_fails_its_session),
        cmocka_unit_test(test_killed_while_it_is_written),
        cmocka_unit_test(test_bad_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
