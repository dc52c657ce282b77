/* SPDX-License-Identifier: Apache-2.0 */
/** @file message.h  The control messages of TensorRT-LLM's ranks: frames to structs, and back.
 *
 *  A message is several frames: an ASCII tag, then what the tag says. Numbers in frames of their own are decimal text.
 *  Everything read here may be hostile: no length is used before it is bounded, and a refusal names the field. Nothing
 *  is sent and nothing logged here. Pure functions; any thread.
 */
#ifndef KVFI_TRTLLM_MESSAGE_H
#define KVFI_TRTLLM_MESSAGE_H

#include <stdbool.h>

#include "kvferry/trtllm.h"

enum {
    KVFI_TRTLLM_MAX_FRAMES = 5,             /* of one message, tag included */
    KVFI_TRTLLM_RESULT_BYTES = 34,          /* of a KV_AGENT_RESULT's prefix */
    KVFI_TRTLLM_MAX_REQUEST_BYTES = 16777216 /* of a REQUEST_DATA's payload */
};

enum kvfi_trtllm_tag {
    KVFI_TRTLLM_UNKNOWN = 0,
    KVFI_TRTLLM_REQUEST_INSTANCE_INFO = 1, /* generation to the context's info endpoint; answered with a rank info */
    KVFI_TRTLLM_REGISTER_RANK_INFO = 2,    /* generation to each context rank */
    KVFI_TRTLLM_REQUEST_DATA = 3,          /* generation to context */
    KVFI_TRTLLM_KV_AGENT_RESULT = 4,       /* context to generation */
    KVFI_TRTLLM_AUX_AGENT_RESULT = 5,      /* context to generation */
    KVFI_TRTLLM_CANCEL_SESSION = 6,        /* both ways */
    KVFI_TRTLLM_SESSION_QUIESCED = 7,      /* context to generation */
    KVFI_TRTLLM_TERMINATION = 8,           /* a process to itself; from a peer it means nothing */
    KVFI_TRTLLM_TAGS
};

/** What a writer says of one piece, or of auxiliary data. The numbers travel on the wire. */
enum kvfi_trtllm_word {
    KVFI_TRTLLM_SUCCESS = 0,
    KVFI_TRTLLM_WRITE_FAILED = 1,    /* its write is over, or never began */
    KVFI_TRTLLM_IN_DOUBT = 2,        /* it may still be writing */
    KVFI_TRTLLM_FAILED_QUIESCED = 3, /* what was in doubt is over */
    KVFI_TRTLLM_WORDS
};

struct kvfi_trtllm_frame {
    const void *bytes;
    size_t byte_count;
};

struct kvfi_trtllm_result {
    int64_t ctx_rank, rid, slice;
    bool is_last;
    bool is_bounced; /* read only: three frames of a bounce buffer follow, which kvferry never asks for */
    int word;        /* an enum kvfi_trtllm_word */
    int64_t transfer_bytes;
};

struct kvfi_trtllm_aux_result {
    int64_t ctx_rank, rid;
    int word;
};

struct kvfi_trtllm_cancel {
    int64_t rid;
    bool has_requester; /* newest senders say which rank asks; older ones do not */
    const char *instance_name; /* not zero terminated when read: `name_bytes` */
    size_t name_bytes;
    int64_t instance_rank;
};

struct kvfi_trtllm_quiesced {
    int64_t ctx_rank, rid;
};

/** One message as read. Pointers lead into the frames. */
struct kvfi_trtllm_message {
    int tag;                                /* an enum kvfi_trtllm_tag */
    struct kvfi_trtllm_frame payload;       /* REGISTER_RANK_INFO, REQUEST_DATA: still to be decoded */
    union {
        struct kvfi_trtllm_result result;
        struct kvfi_trtllm_aux_result aux;
        struct kvfi_trtllm_cancel cancel;
        struct kvfi_trtllm_quiesced quiesced;
    };
};

/** Names a tag as on the wire, and a word ("SUCCESS" ...). Never NULL. */
const char *kvfi_trtllm_tag_text(int tag);
const char *kvfi_trtllm_word_text(int word);

/** Reads the frames of one message (without a ROUTER's identity frame). An unknown tag is KVF_OK with UNKNOWN: such a
 *  message is to be ignored.
 *  @param out  written on success; on failure only its `tag`, so that who asked can be answered
 *  @return KVF_OK; KVF_ERR_PROTOCOL naming message, field and what was found */
enum kvf_status kvfi_trtllm_read(const struct kvfi_trtllm_frame *frames, size_t count,
                                 struct kvfi_trtllm_message *out, struct kvf_error *error);

/** A message ready to be sent. Frames lead into `room` and into what was packed: neither may move before it is sent. */
struct kvfi_trtllm_packed {
    struct kvfi_trtllm_frame frames[KVFI_TRTLLM_MAX_FRAMES];
    size_t count;
    char room[64];
};

/** Tag alone (REQUEST_INSTANCE_INFO), or tag and payload, which is borrowed. */
void kvfi_trtllm_pack_tag(struct kvfi_trtllm_packed *out, int tag);
void kvfi_trtllm_pack_payload(struct kvfi_trtllm_packed *out, int tag, const void *bytes, size_t byte_count);
/** Never with a bounce tail. */
void kvfi_trtllm_pack_result(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_result *result);
void kvfi_trtllm_pack_aux(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_aux_result *aux);
/** Four frames when it has a requester, whose name is borrowed; else two. */
void kvfi_trtllm_pack_cancel(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_cancel *cancel);
void kvfi_trtllm_pack_quiesced(struct kvfi_trtllm_packed *out, const struct kvfi_trtllm_quiesced *quiesced);

/* ---- REQUEST_DATA's payload (upstream: RecvReqInfo) --------------------------------------------------------- */

/** What a generation rank asks for. */
struct kvfi_trtllm_ask {
    int64_t sender_req_id;
    const char *instance_name; /* who asks */
    int64_t instance_rank;
    const struct kvf_trtllm_blocks *groups; /* one per layer group of the asking rank */
    size_t group_count;
    int64_t rid;
    int64_t dst_start_token, aux_slot, slice; /* 0 or more, or KVF_TRTLLM_NONE */
    bool has_bounce; /* it offers a region to be written at once; writing in place instead is its other choice */
    uint64_t bounce_base;
    void *memory;    /* owns the texts and ids of a decoded one; NULL otherwise */
};

/** Reads the MessagePack map. Keys come in any order; unknown ones are skipped, integer keys included; of the four last
 *  fields each may be missing.
 *  @param out  free with kvfi_trtllm_ask_fini; written on success only
 *  @return KVF_OK; KVF_ERR_PROTOCOL naming the field; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trtllm_ask_decode(const void *bytes, size_t byte_count, struct kvfi_trtllm_ask *out,
                                       struct kvf_error *error);

/** Reads only who asks for what: for a request that is refused, so that the refusal reaches the one who waits. Missing
 *  or broken fields are left as they were: "" and KVF_TRTLLM_NONE in a fresh one.
 *  @param name  `name_capacity` bytes; "" when there is no such field. @return true when all three were there */
bool kvfi_trtllm_ask_peek(const void *bytes, size_t byte_count, int64_t *rid, int64_t *slice, char *name,
                          size_t name_capacity, int64_t *instance_rank);

/** Reads from a REGISTER_RANK_INFO's payload who it is from and where that one is told things, however broken or unfit
 *  the rest is: so that a refusal reaches the one who waits. Texts that do not fit are left empty.
 *  @return true when all three were there */
bool kvfi_trtllm_peek_rank(const void *bytes, size_t byte_count, char *name, size_t name_capacity,
                           int64_t *instance_rank, char *endpoint, size_t endpoint_capacity);

/** Frees what a decoded one owns. */
void kvfi_trtllm_ask_fini(struct kvfi_trtllm_ask *ask);

/** Writes the map as upstream does: nine keys in their order, absent numbers as nil.
 *  @param out  free with free()
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a name or a number that a peer would refuse); KVF_ERR_LIMIT;
 *          KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trtllm_ask_encode(const struct kvfi_trtllm_ask *ask, unsigned char **out, size_t *byte_count,
                                       struct kvf_error *error);

#endif
