/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that cross processes and are ended in the middle: after the last word, SETTLED or close none is written. */
#include "send_kit.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { OK = KVFI_TRTLLM_SUCCESS, FAILED = KVFI_TRTLLM_WRITE_FAILED };

enum { BIG_SLOTS = 8, BIG_SLOT = 4 << 20 };

/* The kit's ranks with blocks of 8 MiB: 32 MiB go to the four blocks of a request. */
struct big {
    struct stage stage;
    struct memory source, destination, other;
};

static void big_place(struct rank_kit *kit, const struct memory *memory)
{
    kit->spec.tp_size = 1;
    kit->attention.kv_heads_per_rank = 8;
    kit->groups[0].kv_heads_per_rank = 8;
    for (int v = 0; v < 2; v++) {
        kit->views[0][v].num_kv_heads = 8;
        for (int e = 0; e < 2; e++)
            kit->entries[0][v][e] = (struct kvf_trtllm_entry){v, e * BIG_SLOT / 2, BIG_SLOT / 2};
        kit->pools[0][v] = (struct kvf_trtllm_pool){(uint64_t)(uintptr_t)memory->bytes +
                                                    (uint64_t)v * BIG_SLOT * BIG_SLOTS, BIG_SLOT, BIG_SLOTS, BIG_SLOT,
                                                    KVF_TRTLLM_NONE};
    }
}

static void big_lives_in(struct big *big, const struct memory *memory)
{
    big_place(&big->stage.a.kit, memory);
    snprintf(big->stage.a.engine, sizeof big->stage.a.engine, "kvferry-cma/1 pid=%d", (int)memory->pid);
    big->stage.a.kit.spec.transfer_engine_info_bytes = strlen(big->stage.a.engine);
}

static void big_open(struct big *big)
{
    size_t bytes = (size_t)2 * BIG_SLOT * BIG_SLOTS;

    memory_open(&big->source, bytes, 0);
    memory_open(&big->destination, bytes, 1);
    memory_open(&big->other, bytes, 1);
    stage_init(&big->stage, 0);
    big_place(&big->stage.ctx.kit, &big->source);
    big_lives_in(big, &big->destination);
    memset(big->source.bytes, 0x77, bytes);
    ctx_open(&big->stage.ctx);
    peer_open(&big->stage.a, &big->stage.ctx);
    peer_open(&big->stage.b, &big->stage.ctx);
    peer_register(&big->stage.a);
}

static void big_close(struct big *big)
{
    stage_close(&big->stage);
    memory_close(&big->source);
    memory_close(&big->destination);
    memory_close(&big->other);
}

static void by_user(struct big *big) { assert_int_equal(ctx_cancel(&big->stage.ctx, 1), KVF_OK); }
static void by_peer(struct big *big) { peer_cancel(&big->stage.a, 1); }

static void by_moving(struct big *big)
{
    big_lives_in(big, &big->other);
    peer_register(&big->stage.a);
}

static void by_asking_anew(struct big *big)
{
    static const int64_t others[4] = {7, 6, 5, 4};
    struct kvf_trtllm_blocks groups[1];
    struct kvfi_trtllm_ask ask;

    peer_ask_init(&big->stage.a, &ask, groups, 1);
    groups[0].ids = others;
    peer_ask_for(&big->stage.a, &ask);
}

static void is_untouched(const struct memory *memory, unsigned char value)
{
    for (size_t i = 0; i < memory->byte_count; i += 64)
        if (memory->bytes[i] != value) fail_msg("byte %zu is 0x%02x", i, memory->bytes[i]);
}

/* Whatever ends a request while it is written, at any moment of the write: once its rank has the last word and the
 * memory is told settled, both sides may use it for something else. */
static void test_nothing_is_written_after_the_end(void **state)
{
    static void (*const ends[])(struct big *big) = {by_user, by_peer, by_moving, by_asking_anew};

    (void)state;
    for (size_t i = 0; i < 3 * sizeof ends / sizeof ends[0]; i++) {
        struct kvf_trtllm_event event;
        struct word word;
        struct big big;

        big_open(&big);
        ctx_send_open(&big.stage.ctx, 1);
        peer_ask(&big.stage.a, 1);
        ctx_event(&big.stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
        assert_int_equal(ctx_piece(&big.stage.ctx, 1, 0, 8, 1), KVF_OK);
        for (volatile size_t spin = 0; spin < i / 4 * 1500000; spin++) continue;
        ends[i % 4](&big);
        while ((word = peer_word(&big.stage.a)).tag != KVFI_TRTLLM_KV_AGENT_RESULT || !word.is_last) continue;
        assert_true(word.word == OK || word.word == FAILED);
        memset(big.destination.bytes, 0x11, big.destination.byte_count); /* its blocks are its own again */
        do
            assert_int_equal(kvf_trtllm_worker_wait(big.stage.ctx.worker, &event, 1, INT64_C(20000000000)), 1);
        while (event.kind != KVF_TRTLLM_EVENT_SETTLED);
        memset(big.source.bytes, 0x99, big.source.byte_count);
        peer_catch_up(&big.stage.a);
        poll(NULL, 0, 5);
        is_untouched(&big.destination, 0x11);
        is_untouched(&big.other, 0);
        big_close(&big);
    }
}

/* After close returns this side touches nothing, whatever was being written. */
static void test_nothing_is_written_after_close(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct big big;

        big_open(&big);
        ctx_send_open(&big.stage.ctx, 1);
        peer_ask(&big.stage.a, 1);
        ctx_event(&big.stage.ctx, KVF_TRTLLM_EVENT_READY, 1);
        assert_int_equal(ctx_piece(&big.stage.ctx, 1, 0, 8, 1), KVF_OK);
        for (volatile size_t spin = 0; spin < i * 1000000; spin++) continue;
        kvf_trtllm_worker_close(big.stage.ctx.worker);
        big.stage.ctx.worker = NULL;
        memset(big.destination.bytes, 0x11, big.destination.byte_count);
        poll(NULL, 0, 5);
        is_untouched(&big.destination, 0x11);
        big_close(&big);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_written_after_the_end),
        cmocka_unit_test(test_nothing_is_written_after_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
