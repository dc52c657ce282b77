/* SPDX-License-Identifier: Apache-2.0 */
#include "meeting_kit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "session_kit.h"

static size_t pool_bytes(const struct meeting_rank *rank)
{
    return (size_t)(MEETING_BLOCKS * rank->heads * 2 * MEETING_HEAD_BYTES);
}

static unsigned char *at(const struct meeting_rank *rank, int64_t layer, int64_t id, int kv, int64_t head)
{
    int64_t slot = id * rank->heads * 2 * MEETING_HEAD_BYTES;
    return rank->pools[layer] + slot + (kv * rank->heads + head) * MEETING_HEAD_BYTES;
}

static unsigned char pattern(int64_t rid, int64_t ordinal, int64_t layer, int kv, int64_t head, int byte)
{
    uint64_t x = (uint64_t)rid * 1000003u + (uint64_t)ordinal * 10007u + (uint64_t)layer * 101u + (uint64_t)kv * 53u +
                 (uint64_t)head * 17u + (uint64_t)byte * 7u;

    x ^= x >> 7;
    x *= UINT64_C(0x9E3779B97F4A7C15);
    return (unsigned char)((x >> 56) | 1); /* never 0 */
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

void meeting_init(struct meeting_side *side, const char *name, int64_t tp, int64_t pp, bool dp)
{
    memset(side, 0, sizeof *side);
    side->name = name;
    side->tp = tp;
    side->pp = pp;
    side->dp = dp;
    side->count = (size_t)(tp * pp);
    kvf_trtllm_worker_options_init(&side->options, sizeof side->options);
    side->options.log = (struct kvf_log_sink){.fd = 2, .level = KVF_LOG_ERROR};
}

static void describe(const struct meeting_side *side, size_t number, struct rank_kit *kit)
{
    const struct meeting_rank *rank = &side->ranks[number];

    rank_kit_init(kit, side->name);
    kit->spec.instance_rank = (int64_t)number;
    kit->spec.tp_size = side->tp;
    kit->spec.tp_rank = (int64_t)number % side->tp;
    kit->spec.pp_size = side->pp;
    kit->spec.pp_rank = (int64_t)number / side->tp;
    kit->spec.dp_size = side->dp ? side->tp : 1;
    kit->spec.dp_rank = side->dp ? kit->spec.tp_rank : 0;
    kit->attention = (struct kvf_trtllm_attention){.kv_heads_per_rank = rank->heads, .tokens_per_block = 2,
                                                   .dims_per_head = 2, .element_eighths = 16,
                                                   .enable_attention_dp = side->dp};
    if (side->pp == 2)
        rank_kit_stages(kit, 2, INT64_C(1), INT64_C(1));
    rank_kit_pv(kit, KVF_TRTLLM_INDEXED, (size_t)rank->layers, (int)rank->heads, (int)rank->heads);
    for (int64_t i = 0; i < rank->layers; i++) {
        kit->layers[0][i].global_layer = rank->first_layer + i;
        kit->pools[0][i].base_address = (uint64_t)(uintptr_t)rank->pools[i];
        kit->pools[0][i].num_slots = MEETING_BLOCKS;
    }
    rank_kit_aux(kit, 1, (int64_t)(uintptr_t)rank->aux, (int64_t)(MEETING_AUX_SLOTS * MEETING_AUX_BYTES),
                 (int64_t)MEETING_AUX_BYTES);
}

static void open_rank(struct meeting_side *side, size_t number)
{
    struct meeting_rank *rank = &side->ranks[number];
    struct kvf_trtllm_worker_options options = side->options;
    struct rank_kit *kit = malloc(sizeof *kit);
    struct kvf_error error = {0};
    kvf_trtllm_rank *info;

    assert_non_null(kit);
    rank->layers = MEETING_LAYERS / side->pp;
    rank->first_layer = (int64_t)number / side->tp * rank->layers;
    rank->heads = side->dp ? MEETING_HEADS : MEETING_HEADS / side->tp;
    rank->first_head = side->dp ? 0 : (int64_t)number % side->tp * rank->heads;
    for (int64_t i = 0; i < rank->layers; i++)
        rank->pools[i] = calloc(1, pool_bytes(rank));
    rank->aux = calloc(MEETING_AUX_SLOTS, MEETING_AUX_BYTES);
    describe(side, number, kit);
    info = rank_kit_make(kit);
    options.rank = info;
    options.serve_info = number == 0;
    if (kvf_trtllm_worker_open(&options, &rank->worker, &error) != KVF_OK)
        fail_msg("%s", error.text);
    rank->ends.struct_size = sizeof rank->ends;
    assert_int_equal(kvf_trtllm_worker_endpoints(rank->worker, &rank->ends, NULL), KVF_OK);
    kvf_trtllm_rank_release(info);
    free(kit);
}

void meeting_open(struct meeting_side *side)
{
    const char *senders[MEETING_RANKS];
    struct kvf_error error = {0};

    for (size_t i = 0; i < side->count; i++)
        open_rank(side, i);
    for (size_t i = 0; i < side->count; i++)
        senders[i] = side->ranks[i].ends.sender;
    for (size_t i = 0; i < side->count; i++)
        if (kvf_trtllm_worker_complete(side->ranks[i].worker, NULL, 0, senders, side->count, &error) != KVF_OK)
            fail_msg("%s", error.text);
}

void meeting_close(struct meeting_side *side)
{
    for (size_t i = 0; i < side->count; i++)
        kvf_trtllm_worker_close(side->ranks[i].worker);
    for (size_t i = 0; i < side->count; i++) {
        for (int64_t layer = 0; layer < side->ranks[i].layers; layer++)
            free(side->ranks[i].pools[layer]);
        free(side->ranks[i].aux);
    }
    memset(side, 0, sizeof *side);
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

static void fill_rank(struct meeting_rank *rank, int64_t rid, int64_t ordinal, int64_t id)
{
    for (int64_t layer = 0; layer < rank->layers; layer++)
        for (int kv = 0; kv < 2; kv++)
            for (int64_t head = 0; head < rank->heads; head++)
                for (int byte = 0; byte < MEETING_HEAD_BYTES; byte++)
                    at(rank, layer, id, kv, head)[byte] = pattern(rid, ordinal, rank->first_layer + layer, kv,
                                                                  rank->first_head + head, byte);
}

void meeting_fill(struct meeting_side *side, int64_t rid, int64_t ordinal, int64_t id)
{
    for (size_t i = 0; i < side->count; i++)
        fill_rank(&side->ranks[i], rid, ordinal, id);
}

static void check_rank(const struct meeting_rank *rank, size_t number, int64_t rid, int64_t ordinal, int64_t id)
{
    for (int64_t layer = 0; layer < rank->layers; layer++)
        for (int kv = 0; kv < 2; kv++)
            for (int64_t head = 0; head < rank->heads; head++)
                for (int byte = 0; byte < MEETING_HEAD_BYTES; byte++) {
                    unsigned char found = at(rank, layer, id, kv, head)[byte];
                    unsigned char wanted = ordinal < 0 ? 0 : pattern(rid, ordinal, rank->first_layer + layer, kv,
                                                                     rank->first_head + head, byte);
                    if (found != wanted)
                        fail_msg("rid %" PRId64 ", rank %zu, block %" PRId64 " in %" PRId64 ", layer %" PRId64
                                 ", %s, head %" PRId64 ", byte %d: 0x%02x, expected 0x%02x", rid, number, ordinal, id,
                                 rank->first_layer + layer, kv ? "V" : "K", rank->first_head + head, byte, found,
                                 wanted);
                }
}

void meeting_check(struct meeting_side *side, int64_t rid, int64_t ordinal, int64_t id)
{
    for (size_t i = 0; i < side->count; i++)
        check_rank(&side->ranks[i], i, rid, ordinal, id);
}

/* ---- sessions ----------------------------------------------------------------------------------------------- */

void meeting_send_open(struct meeting_side *side, size_t first, size_t count, int64_t rid, int64_t blocks, int schedule)
{
    for (size_t i = first; i < first + count; i++) {
        struct kvf_trtllm_send send;
        struct kvf_error error = {0};

        kvf_trtllm_send_init(&send, sizeof send);
        send.rid = rid;
        send.schedule = schedule;
        send.prompt_tokens = blocks * MEETING_BLOCK_TOKENS;
        if (kvf_trtllm_worker_send_open(side->ranks[i].worker, &send, &error) != KVF_OK)
            fail_msg("%s", error.text);
    }
}

void meeting_send(struct meeting_side *side, size_t first, size_t count, int64_t rid, const int64_t *ids,
                  int64_t blocks, int64_t begin, int64_t end, int is_last)
{
    int64_t own[MEETING_BLOCKS];
    struct kvf_trtllm_blocks group = {own, (size_t)blocks};

    for (int64_t i = 0; i < blocks; i++)
        own[i] = i >= begin && i < end ? ids[i] : -1;
    for (size_t i = first; i < first + count; i++) {
        struct kvf_trtllm_piece piece;
        struct kvf_error error = {0};

        kvf_trtllm_piece_init(&piece, sizeof piece);
        piece.rid = rid;
        piece.token_begin = begin * MEETING_BLOCK_TOKENS;
        piece.token_end = end * MEETING_BLOCK_TOKENS;
        piece.is_last = is_last;
        piece.groups = &group;
        piece.group_count = 1;
        if (kvf_trtllm_worker_send_piece(side->ranks[i].worker, &piece, &error) != KVF_OK)
            fail_msg("%s", error.text);
    }
}

void meeting_receive(struct meeting_side *side, int64_t rid, const char *info, const int64_t *ids, int64_t blocks,
                     int64_t dp_rank, int64_t aux_slot)
{
    struct kvf_trtllm_blocks group = {ids, (size_t)blocks};

    for (size_t i = 0; i < side->count; i++) {
        struct kvf_trtllm_receive receive;
        struct kvf_error error = {0};

        kvf_trtllm_receive_init(&receive, sizeof receive);
        receive.rid = rid;
        receive.info_endpoint = info;
        receive.ctx_dp_rank = dp_rank;
        receive.schedule = aux_slot == KVF_TRTLLM_NONE ? KVF_TRTLLM_CONTEXT_FIRST : KVF_TRTLLM_GENERATION_FIRST;
        receive.aux_slot = aux_slot;
        receive.prompt_tokens = blocks * MEETING_BLOCK_TOKENS;
        receive.groups = &group;
        receive.group_count = 1;
        if (kvf_trtllm_worker_receive(side->ranks[i].worker, &receive, &error) != KVF_OK)
            fail_msg("%s", error.text);
    }
}

struct kvf_trtllm_event meeting_event(struct meeting_rank *rank, int kind, int direction, int64_t rid)
{
    struct kvf_trtllm_event event;

    do {
        event = session_next(rank->worker);
    } while (event.kind != kind && (event.kind == KVF_TRTLLM_EVENT_PIECE || event.kind == KVF_TRTLLM_EVENT_READY));
    session_is(&event, kind, direction, rid);
    return event;
}

void meeting_done(struct meeting_side *side, size_t first, size_t count, int direction, int64_t rid)
{
    for (size_t i = first; i < first + count; i++) {
        struct kvf_trtllm_event event = meeting_event(&side->ranks[i], KVF_TRTLLM_EVENT_ENDED, direction, rid);
        struct kvf_error error = {0};

        if (event.state != KVF_TRTLLM_STATE_TRANSFERRED)
            fail_msg("rid %" PRId64 " ended as %s: %s", rid, kvf_trtllm_state_text(event.state), event.text);
        meeting_event(&side->ranks[i], KVF_TRTLLM_EVENT_SETTLED, direction, rid);
        if (kvf_trtllm_worker_close_session(side->ranks[i].worker, direction, rid, &error) != KVF_OK)
            fail_msg("%s", error.text);
    }
}
