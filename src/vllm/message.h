/* SPDX-License-Identifier: Apache-2.0 */
/** @file message.h  The side channel of vLLM's MooncakeConnector: a consumer's pull and a producer's replies.
 *
 *  One MessagePack map per frame, of either wire generation: 0.32.0's, and 0.33.0's with layout ids. Keys come in any
 *  order, unknown ones are skipped, the last of several equal ones counts. Types are strict: nothing is coerced, and
 *  refusals read as upstream's decoder words them ("Expected `int`, got `str` - at `$.remote_port`"), since they travel
 *  to peers. Stricter than upstream are two things that no C caller could keep: an integer outside int64_t (an address
 *  below 0), and a zero byte in a text.
 *
 *  Everything read may be hostile. A decoded message owns one piece of memory, at most KVFI_VLLM_MEMORY_PER_BYTE times
 *  the message, allocated after every byte was looked at. Ids are not bounded in length here. Nothing is sent and
 *  nothing logged. Pure functions; any thread.
 */
#ifndef KVFI_VLLM_MESSAGE_H
#define KVFI_VLLM_MESSAGE_H

#include <stdbool.h>

#include "kvferry/vllm.h"

enum {
    KVFI_VLLM_MAX_MESSAGE_BYTES = 1 << 30, /* of any message */
    KVFI_VLLM_MEMORY_PER_BYTE = 17         /* at most, beside a few hundred bytes */
};

/* ---- pull: consumer to producer (upstream: MooncakeXferMetadata) ----------------------------------------------- */

/** One entry of a pull. */
struct kvfi_vllm_wanted {
    const char *d_req_id;
    const char *transfer_id;
    const struct kvf_vllm_ids *groups; /**< destination blocks; no groups, or empty ones: the blocks may be released */
    size_t group_count;
};

/** What a pull says of "prefix replay", which no release has. It is not done: such requests go on without, and fail on
 *  a consumer that requires it. For the log. */
struct kvfi_vllm_replay {
    bool is_named;     /**< one of its keys was there with another value than its default */
    int64_t requests;  /**< entries of prefix_replay_checkpoints */
};

/** A pull as read. */
struct kvfi_vllm_pull {
    struct kvf_vllm_peer peer;               /**< its arrays need not fit each other: kvf_vllm_prepare tells */
    const struct kvfi_vllm_wanted *requests; /**< each d_req_id once */
    size_t request_count;
    struct kvfi_vllm_replay replay;
    void *memory;                            /**< owns all of the above */
};

/** Reads a pull.
 *  @param out  free with kvfi_vllm_pull_fini; written on success only
 *  @return KVF_OK; KVF_ERR_PROTOCOL: to be answered by ERROR with the text; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_pull_decode(const void *bytes, size_t byte_count, struct kvfi_vllm_pull *out,
                                      struct kvf_error *error);

/** Frees what a decoded pull owns. A zeroed one is fine. */
void kvfi_vllm_pull_fini(struct kvfi_vllm_pull *pull);

/** Who pulls: all of a pull but its requests, encoded once for all peers. Immutable; any thread. */
struct kvfi_vllm_asker {
    unsigned char *bytes;      /* pulls' beginnings (with and without arrays) and ends, behind each other */
    size_t head_bytes;         /* of the beginning, whose first byte counts the keys */
    size_t full_bytes;         /* of the end with arrays */
    size_t short_bytes;        /* of the end without them; 0 = without a layout id there is none */
    unsigned char full_first, short_first;
};

/** Encodes `peer`, whose layout_id 0 makes pulls of 0.32.0's generation. Nothing is kept of it.
 *  @param out  free with kvfi_vllm_asker_fini; written on success only
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a text that is no UTF-8; arrays whose lengths differ, of the last three
 *          also from 0); KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_asker_init(struct kvfi_vllm_asker *out, const struct kvf_vllm_peer *peer,
                                     struct kvf_error *error);
void kvfi_vllm_asker_fini(struct kvfi_vllm_asker *asker);

/** Encodes a pull.
 *  @param with_arrays  false: they are left out, which only an asker with a layout id may do
 *  @param out  free with free(); written on success only
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (an id that is no UTF-8; arrays left out without a layout id);
 *          KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY. Each d_req_id must come once: this is not checked. */
enum kvf_status kvfi_vllm_pull_encode(const struct kvfi_vllm_asker *asker, const struct kvfi_vllm_wanted *requests,
                                      size_t request_count, bool with_arrays, unsigned char **out, size_t *byte_count,
                                      struct kvf_error *error);

/* ---- reply: producer to consumer (upstream: MooncakeXferResponse) ---------------------------------------------- */

/** What a reply says. The numbers travel. */
enum kvfi_vllm_verdict {
    KVFI_VLLM_FINISH = 0,     /**< the last reply to this pull */
    KVFI_VLLM_CONTINUE = 1,   /**< more will follow */
    KVFI_VLLM_ERROR = 2,      /**< the last one; all of the pull failed */
    KVFI_VLLM_LAYOUT_MISS = 3 /**< 0.33.0: the last one; send the pull again with its arrays */
};

struct kvfi_vllm_reply {
    int32_t verdict;              /**< an enum kvfi_vllm_verdict */
    bool confirms_replay;         /**< read only: it names prefix_replay_checkpoints, which were not asked for */
    const char *const *ok_reqs;   /**< d_req_ids; none is the same as absent */
    size_t ok_count;
    const char *const *err_reqs;
    size_t err_count;
    const char *err_msg;          /**< NULL = absent */
    uint64_t layout_id;           /**< 0 = absent */
    void *memory;                 /**< owns the texts of a decoded one; NULL otherwise */
};

/** "FINISH", "CONTINUE", ...; never NULL. */
const char *kvfi_vllm_verdict_text(int verdict);

/** Reads a reply.
 *  @param layout_ids  false: LAYOUT_MISS is no verdict, as for 0.32.0
 *  @param out  free with kvfi_vllm_reply_fini; written on success only
 *  @return as kvfi_vllm_pull_decode */
enum kvf_status kvfi_vllm_reply_decode(const void *bytes, size_t byte_count, bool layout_ids,
                                       struct kvfi_vllm_reply *out, struct kvf_error *error);

/** Frees what a decoded reply owns. A zeroed one is fine. */
void kvfi_vllm_reply_fini(struct kvfi_vllm_reply *reply);

/** Encodes a reply. It may not say LAYOUT_MISS, nor carry a layout id, to a pull that came without one.
 *  What may not be text in err_msg (wire/text.h), as where it was cut inside a character, is written as "?".
 *  @param out  free with free(); written on success only
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (an id that is no UTF-8, an unknown verdict); KVF_ERR_LIMIT;
 *          KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_reply_encode(const struct kvfi_vllm_reply *reply, unsigned char **out, size_t *byte_count,
                                       struct kvf_error *error);

#endif
