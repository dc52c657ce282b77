/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls and replies: bytes to structs. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "vllm/message_walk.h"

/* ---- pulls -------------------------------------------------------------------------------------------------- */

enum pull_key { HOSTNAME, PORT, TP_SIZE, TP_RANK, REQ_BLOCKS, BASE_ADDRS, BLOCK_LENS, KV_BLOCK_LENS, LAYER_NAMES,
                LAYER_INDICES, GROUP_INDICES, SHARED_GROUPS, ROW_OFFSETS, PP_SIZE, LAYOUT_ID, REPLAY_PROTOCOL,
                REPLAY_LAYOUT, REPLAY_CHECKPOINTS, PULL_KEYS };

static const struct kvfi_vllm_key pull_keys[PULL_KEYS] = {
    {"remote_hostname", KVFI_VLLM_STR, true},
    {"remote_port", KVFI_VLLM_INT, true},
    {"remote_tp_size", KVFI_VLLM_INT, true},
    {"remote_tp_rank", KVFI_VLLM_INT, true},
    {"req_blocks", KVFI_VLLM_REQUESTS, true},
    {"kv_caches_base_addr", KVFI_VLLM_UINTS, true},
    {"block_lens", KVFI_VLLM_INTS, true},
    {"kv_block_lens", KVFI_VLLM_INTS, true},
    {"registered_layer_names", KVFI_VLLM_STRS, false},
    {"registered_layer_indices", KVFI_VLLM_INTS, false},
    {"registered_group_indices", KVFI_VLLM_INTS, false},
    {"registered_shared_group_ids", KVFI_VLLM_LISTS, false},
    {"registered_row_offsets", KVFI_VLLM_INTS, false},
    {"remote_pp_size", KVFI_VLLM_INT, false},
    {"layout_id", KVFI_VLLM_UINT, false},
    {"prefix_replay_protocol", KVFI_VLLM_ANYTHING, false},
    {"prefix_replay_layout", KVFI_VLLM_ANYTHING, false},
    {"prefix_replay_checkpoints", KVFI_VLLM_ANYTHING, false},
};

static void read_arrays(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found,
                        struct kvf_vllm_arrays *out)
{
    out->base_addrs = (const uint64_t *)kvfi_vllm_get_ints(store, &found[BASE_ADDRS], &out->base_addr_count);
    out->block_lens = kvfi_vllm_get_ints(store, &found[BLOCK_LENS], &out->block_len_count);
    out->kv_block_lens = kvfi_vllm_get_ints(store, &found[KV_BLOCK_LENS], &out->kv_block_len_count);
    out->layer_names = kvfi_vllm_get_strs(store, &found[LAYER_NAMES], &out->layer_name_count);
    out->layer_indices = kvfi_vllm_get_ints(store, &found[LAYER_INDICES], &out->layer_index_count);
    out->group_indices = kvfi_vllm_get_ints(store, &found[GROUP_INDICES], &out->group_index_count);
    out->shared_groups = kvfi_vllm_get_lists(store, &found[SHARED_GROUPS], &out->shared_group_count);
    out->row_offsets = kvfi_vllm_get_ints(store, &found[ROW_OFFSETS], &out->row_offset_count);
}

static void read_peer(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found, struct kvf_vllm_peer *out)
{
    kvf_vllm_peer_init(out, sizeof *out);
    out->hostname = kvfi_vllm_get_str(store, &found[HOSTNAME]);
    out->port = kvfi_vllm_get_int(&found[PORT], 0);
    out->tp_size = kvfi_vllm_get_int(&found[TP_SIZE], 1);
    out->tp_rank = kvfi_vllm_get_int(&found[TP_RANK], 0);
    out->pp_size = kvfi_vllm_get_int(&found[PP_SIZE], 1);
    out->layout_id = (uint64_t)kvfi_vllm_get_int(&found[LAYOUT_ID], 0);
    read_arrays(store, found, &out->regions);
}

/* The value under a key of any type; nil when it is absent. */
static struct kvfi_value peek(const struct kvfi_vllm_found *found)
{
    struct kvfi_value value = {.type = KVFI_VALUE_NIL};
    struct kvfi_value_reader reader = found->start;

    if (reader.bytes != NULL) (void)kvfi_value_next(&reader, &value);
    return value;
}

static struct kvfi_vllm_replay read_replay(const struct kvfi_vllm_found *found)
{
    struct kvfi_value protocol = peek(&found[REPLAY_PROTOCOL]), layout = peek(&found[REPLAY_LAYOUT]);
    struct kvfi_value checkpoints = peek(&found[REPLAY_CHECKPOINTS]);
    struct kvfi_vllm_replay replay = {0};

    if (checkpoints.type == KVFI_VALUE_DICT) replay.requests = (int64_t)checkpoints.count;
    replay.is_named = (protocol.type == KVFI_VALUE_UNSIGNED && protocol.number != 0) ||
                      layout.type != KVFI_VALUE_NIL || replay.requests != 0;
    return replay;
}

enum kvf_status kvfi_vllm_pull_decode(const void *bytes, size_t byte_count, struct kvfi_vllm_pull *out,
                                      struct kvf_error *error)
{
    struct kvfi_vllm_found found[PULL_KEYS] = {0};
    struct kvfi_vllm_store store = {0};
    struct kvfi_vllm_pull pull = {0};
    enum kvf_status status = kvfi_vllm_walk(bytes, byte_count, pull_keys, PULL_KEYS, found, error);

    if (status == KVF_OK) status = kvfi_vllm_store_init(&store, found, PULL_KEYS, error);
    if (status != KVF_OK) goto done;
    pull.memory = store.memory;
    read_peer(&store, found, &pull.peer);
    pull.replay = read_replay(found);
    status = kvfi_vllm_get_requests(&store, &found[REQ_BLOCKS], &pull.requests, &pull.request_count, error);
    if (status != KVF_OK) goto done;
    *out = pull;
    store.memory = NULL;
done:
    free(store.memory);
    return status;
}

void kvfi_vllm_pull_fini(struct kvfi_vllm_pull *pull)
{
    free(pull->memory);
    *pull = (struct kvfi_vllm_pull){0};
}

/* ---- replies ------------------------------------------------------------------------------------------------ */

enum reply_key { STATUS, OK_REQS, ERR_REQS, ERR_MSG, REPLY_LAYOUT_ID, REPLY_CHECKPOINTS, REPLY_KEYS };

static const struct kvfi_vllm_key reply_keys[REPLY_KEYS] = {
    {"status", KVFI_VLLM_VERDICT, true},
    {"ok_reqs", KVFI_VLLM_STRS_OR_NIL, false},
    {"err_reqs", KVFI_VLLM_STRS_OR_NIL, false},
    {"err_msg", KVFI_VLLM_STR_OR_NIL, false},
    {"layout_id", KVFI_VLLM_UINT, false},
    {"prefix_replay_checkpoints", KVFI_VLLM_ANYTHING, false},
};

const char *kvfi_vllm_verdict_text(int verdict)
{
    static const char *const texts[] = {"FINISH", "CONTINUE", "ERROR", "LAYOUT_MISS"};

    return verdict >= KVFI_VLLM_FINISH && verdict <= KVFI_VLLM_LAYOUT_MISS ? texts[verdict] : "unknown";
}

enum kvf_status kvfi_vllm_reply_decode(const void *bytes, size_t byte_count, bool layout_ids,
                                       struct kvfi_vllm_reply *out, struct kvf_error *error)
{
    struct kvfi_vllm_key keys[REPLY_KEYS];
    struct kvfi_vllm_found found[REPLY_KEYS] = {0};
    struct kvfi_vllm_store store = {0};
    struct kvfi_vllm_reply reply = {0};
    enum kvf_status status;

    for (size_t i = 0; i < REPLY_KEYS; i++) keys[i] = reply_keys[i];
    if (!layout_ids) keys[STATUS].shape = KVFI_VLLM_OLD_VERDICT;
    status = kvfi_vllm_walk(bytes, byte_count, keys, REPLY_KEYS, found, error);
    if (status == KVF_OK) status = kvfi_vllm_store_init(&store, found, REPLY_KEYS, error);
    if (status != KVF_OK) return status;
    reply.verdict = (int32_t)kvfi_vllm_get_int(&found[STATUS], 0);
    reply.ok_reqs = kvfi_vllm_get_strs(&store, &found[OK_REQS], &reply.ok_count);
    reply.err_reqs = kvfi_vllm_get_strs(&store, &found[ERR_REQS], &reply.err_count);
    reply.err_msg = kvfi_vllm_get_str(&store, &found[ERR_MSG]);
    reply.layout_id = (uint64_t)kvfi_vllm_get_int(&found[REPLY_LAYOUT_ID], 0);
    reply.confirms_replay = peek(&found[REPLY_CHECKPOINTS]).type != KVFI_VALUE_NIL;
    reply.memory = store.memory;
    *out = reply;
    return KVF_OK;
}

void kvfi_vllm_reply_fini(struct kvfi_vllm_reply *reply)
{
    free(reply->memory);
    *reply = (struct kvfi_vllm_reply){0};
}
