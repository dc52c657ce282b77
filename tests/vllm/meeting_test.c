/* SPDX-License-Identifier: Apache-2.0 */
/* Producers and a consumer of this library's own, with a real registry and real bytes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "consumer_kit.h"

enum { MOST_RANKS = 4, BLOCKS = 32, HEADS = 8 };

struct meeting {
    struct reg reg;
    kvf_vllm_worker *producers[MOST_RANKS];
    unsigned char *memories[MOST_RANKS];
    size_t ranks;
    struct dec dec;
};

static unsigned char byte_of(size_t rank, size_t block, size_t offset)
{
    return (unsigned char)(rank * 89 + block * 31 + offset * 7 + 1);
}

static void register_memory(kvf_vllm_worker *worker, const unsigned char *memory, int64_t block_bytes)
{
    int64_t group = 0;
    struct kvf_vllm_region region = {.layer_name = "model.layers.0.self_attn",
                                     .base_addr = (uint64_t)(uintptr_t)memory, .block_len = block_bytes,
                                     .kv_block_len = block_bytes, .shared_groups = {.ids = &group, .count = 1},
                                     .row_offset = KVF_VLLM_NO_ROW};
    struct kvf_vllm_storage storage = {.base_addr = region.base_addr, .bytes = block_bytes * BLOCKS};
    kvf_vllm_regions *regions = NULL;
    struct kvf_error error;

    assert_int_equal(kvf_vllm_regions_create(&region, 1, &regions, &error), KVF_OK);
    if (kvf_vllm_worker_register(worker, &storage, 1, regions, 0, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_vllm_regions_release(regions);
}

static void open_producer(struct meeting *meeting, size_t rank)
{
    static const struct kvf_vllm_layer layer = {.name = "model.layers.0.self_attn", .kind = KVF_VLLM_ATTENTION,
                                                .page_bytes = DEC_BLOCK_BYTES, .unpadded_page_bytes = DEC_BLOCK_BYTES};
    static const int32_t kind = KVF_VLLM_ATTENTION;
    size_t block_bytes = DEC_BLOCK_BYTES / meeting->ranks;
    struct kvf_vllm_worker_options options;
    struct kvf_error error;

    kvf_vllm_worker_options_init(&options, sizeof options);
    options.role = KVF_VLLM_PRODUCER;
    options.engine_id = "p-engine";
    options.bootstrap_url = meeting->reg.url;
    options.tp_rank = (int64_t)rank;
    options.tp_size = (int64_t)meeting->ranks;
    options.total_kv_heads = HEADS;
    options.group_kinds = &kind;
    options.group_count = 1;
    options.layers = &layer;
    options.layer_count = 1;
    if (kvf_vllm_worker_open(&options, &meeting->producers[rank], &error) != KVF_OK)
        fail_msg("%s", error.text);
    meeting->memories[rank] = malloc(BLOCKS * block_bytes);
    assert_non_null(meeting->memories[rank]);
    for (size_t block = 0; block < BLOCKS; block++)
        for (size_t i = 0; i < block_bytes; i++)
            meeting->memories[rank][block * block_bytes + i] = byte_of(rank, block, i);
    register_memory(meeting->producers[rank], meeting->memories[rank], (int64_t)block_bytes);
}

static void meet(struct meeting *meeting, size_t ranks)
{
    *meeting = (struct meeting){.ranks = ranks};
    reg_open(&meeting->reg);
    for (size_t rank = 0; rank < ranks; rank++)
        open_producer(meeting, rank);
    dec_init(&meeting->dec, &meeting->reg);
    dec_open(&meeting->dec);
}

static void part(struct meeting *meeting)
{
    dec_close(&meeting->dec);
    for (size_t rank = 0; rank < meeting->ranks; rank++) {
        kvf_vllm_worker_close(meeting->producers[rank]);
        free(meeting->memories[rank]);
    }
    reg_close(&meeting->reg);
}

/* Blocks 20 and on of each producer are ready for request "ID" of dec_pull. */
static void make_ready(struct meeting *meeting, const char *id, size_t count)
{
    int64_t ids[BLOCKS];
    char transfer[64], request[64];
    struct kvf_vllm_ids group = {.ids = ids, .count = count};
    struct kvf_vllm_send send = {.p_req_id = request, .transfer_id = transfer, .groups = &group, .group_count = 1};
    struct kvf_vllm_step step = {.struct_size = sizeof step, .sends = &send, .send_count = 1};
    struct kvf_error error;

    for (size_t i = 0; i < count; i++)
        ids[i] = 20 + (int64_t)i;
    snprintf(transfer, sizeof transfer, "x-%s", id);
    snprintf(request, sizeof request, "p-%s", id);
    for (size_t rank = 0; rank < meeting->ranks; rank++)
        if (kvf_vllm_worker_step(meeting->producers[rank], &step, &error) != KVF_OK)
            fail_msg("%s", error.text);
}

/* All of the consumer's memory: blocks `first` on came from blocks 20 on, everything else is 0. */
static void check_bytes(const struct meeting *meeting, size_t first, size_t count)
{
    size_t part_bytes = DEC_BLOCK_BYTES / meeting->ranks;

    for (size_t i = 0; i < (size_t)DEC_BLOCKS * DEC_BLOCK_BYTES; i++) {
        size_t block = i / DEC_BLOCK_BYTES, offset = i % DEC_BLOCK_BYTES;
        bool came = block >= first && block < first + count;
        unsigned char wanted = came ? byte_of(offset / part_bytes, 20 + block - first, offset % part_bytes) : 0;

        if (meeting->dec.memory[i] != wanted)
            fail_msg("%zu ranks: block %zu, byte %zu is %d, expected %d", meeting->ranks, block, offset,
                     meeting->dec.memory[i], wanted);
    }
}

static void check_released(struct meeting *meeting, const char *p_req_id)
{
    for (size_t rank = 0; rank < meeting->ranks; rank++) {
        struct kvf_vllm_done done = {.struct_size = sizeof done};
        int64_t end_ns = kvfi_now_ns() + 10 * KVFI_SECOND;

        while (done.finished_sending_count == 0 && kvfi_now_ns() < end_ns) {
            kvf_vllm_done_release(&done);
            done = (struct kvf_vllm_done){.struct_size = sizeof done};
            assert_int_equal(kvf_vllm_worker_collect(meeting->producers[rank], &done, NULL), KVF_OK);
        }
        assert_int_equal(done.finished_sending_count, 1);
        assert_string_equal(done.finished_sending[0], p_req_id);
        kvf_vllm_done_release(&done);
    }
}

/* One, two and four producer ranks; blocks that are ready before the pull, or after it; a second pull leaves the arrays
 * out. */
static void moves_bytes(void **state)
{
    (void)state;
    for (size_t ranks = 1; ranks <= MOST_RANKS; ranks *= 2) {
        struct meeting meeting;

        meet(&meeting, ranks);
        for (int round = 0; round < 3; round++) {
            const char *id = (const char *[]){"a", "b", "c"}[round];
            const char *p_req_id = (const char *[]){"p-a", "p-b", "p-c"}[round];
            bool early = round == 1;

            memset(meeting.dec.memory, 0, (size_t)DEC_BLOCKS * DEC_BLOCK_BYTES);
            if (!early)
                make_ready(&meeting, id, 5);
            dec_pull(&meeting.dec, id, 7, 5);
            for (size_t i = 0; i < ranks; i++)
                dec_event(&meeting.dec, KVF_VLLM_EVENT_ASKED, NULL);
            if (early)
                make_ready(&meeting, id, 5);
            dec_event(&meeting.dec, KVF_VLLM_EVENT_RECEIVED, id);
            dec_collect(&meeting.dec, id, "", "");
            check_released(&meeting, p_req_id); /* and this thread has heard of the writes by other ways than ZeroMQ */
            check_bytes(&meeting, 7, 5);
        }
        assert_int_equal(dec_stats(&meeting.dec).layout_misses, 0);
        part(&meeting);
    }
}

/* Row "P request aborted": the consumer hears of it at once, not after its receive has timed out. */
static void gap_16_2_aborted_request_is_told_at_once(void **state)
{
    const char *transfer = "x-a";
    struct kvf_vllm_step step = {.struct_size = sizeof step, .not_processed = &transfer, .not_processed_count = 1};
    struct meeting meeting;

    (void)state;
    meet(&meeting, 2);
    dec_pull(&meeting.dec, "a", 7, 2);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_skip_event(&meeting.dec); /* both have it by now, most likely */
    for (size_t rank = 0; rank < meeting.ranks; rank++)
        assert_int_equal(kvf_vllm_worker_step(meeting.producers[rank], &step, NULL), KVF_OK);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_FAILED, "a");
    dec_event(&meeting.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&meeting.dec, "a", "", "7 8");
    part(&meeting);
}

/* Row "D wants more blocks", and a pull that wants none. */
static void rows_of_a_real_producer(void **state)
{
    struct meeting meeting;

    (void)state;
    meet(&meeting, 1);
    make_ready(&meeting, "a", 2);
    dec_pull(&meeting.dec, "a", 7, 3);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_ASKED, NULL);
    assert_string_equal(dec_event(&meeting.dec, KVF_VLLM_EVENT_FAILED, "a").text, "P num blocks less than D");
    dec_event(&meeting.dec, KVF_VLLM_EVENT_SETTLED, "a");
    dec_collect(&meeting.dec, "a", "", "7 8 9");
    make_ready(&meeting, "b", 2);
    dec_pull(&meeting.dec, "b", 0, 0);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_RECEIVED, "b");
    dec_collect(&meeting.dec, "", "", "");
    check_released(&meeting, "p-b");
    part(&meeting);
}

/* Row "P dies": with its data connections gone its blocks are settled. */
static void row_p_dies(void **state)
{
    struct meeting meeting;

    (void)state;
    meet(&meeting, 1);
    make_ready(&meeting, "a", 2);
    dec_pull(&meeting.dec, "a", 7, 2);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_ASKED, NULL);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_RECEIVED, "a");
    dec_collect(&meeting.dec, "a", "", "");
    dec_pull(&meeting.dec, "b", 9, 1);
    dec_event(&meeting.dec, KVF_VLLM_EVENT_ASKED, NULL);
    kvf_vllm_worker_close(meeting.producers[0]);
    meeting.producers[0] = NULL;
    dec_event(&meeting.dec, KVF_VLLM_EVENT_FAILED, "b");
    dec_event(&meeting.dec, KVF_VLLM_EVENT_SETTLED, "b");
    dec_collect(&meeting.dec, "b", "", "9");
    part(&meeting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_bytes),
        cmocka_unit_test(gap_16_2_aborted_request_is_told_at_once),
        cmocka_unit_test(rows_of_a_real_producer),
        cmocka_unit_test(row_p_dies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
