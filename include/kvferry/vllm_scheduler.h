/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_scheduler.h  vLLM's MooncakeConnector, the scheduler half: which requests are fetched, sent or dropped.
 *
 *  One per engine, beside the host's scheduler, whose hooks call these functions. Pure: no sockets, clock, threads or
 *  environment; it logs warnings to the sink it was given, in upstream's words. One thread at a time.
 *
 *  The order of calls, per request:
 *
 *      kvf_vllm_scheduler_new_request    once, when it comes
 *      kvf_vllm_scheduler_matched_tokens at each attempt to schedule it. Tokens that come later (is_async): the host
 *                                        allocates blocks for them and parks the request until the engine's workers
 *                                        have told it as received (kvf_vllm_worker_collect), or as failed
 *      kvf_vllm_scheduler_allocated      once blocks are allocated, after a preemption again
 *      kvf_vllm_scheduler_finished       at its end; with delay_free the host keeps its blocks until all workers of the
 *                                        engine have told it as sent
 *
 *  and kvf_vllm_scheduler_step at the end of each engine step, one with nothing scheduled too: its result goes to every
 *  worker of the engine (kvf_vllm_worker_step) before the next call.
 *
 *  An id or address that no worker would take counts as absent: one that is empty, longer than KVF_VLLM_ID_BYTES or
 *  KVF_VLLM_ADDRESS_BYTES allow, or no UTF-8. A request that names no transfer id, engine and registry in full is
 *  promised no tokens, so that it is computed here; upstream parks it, and it waits for good.
 *
 *  A function that fails has changed nothing; it may be called again.
 */
#ifndef KVFERRY_VLLM_SCHEDULER_H
#define KVFERRY_VLLM_SCHEDULER_H

#include "kvferry/log.h"
#include "kvferry/vllm.h"
#include "kvferry/vllm_worker.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A cache group of the engine. */
struct kvf_vllm_group {
    int32_t kind;            /**< KVF_VLLM_ATTENTION, KVF_VLLM_MLA, KVF_VLLM_MAMBA (one of its layers is) or
                                  KVF_VLLM_CIRCULAR */
    int32_t is_transferred;  /**< 0: its blocks never travel */
    int64_t block_tokens;    /**< at least 1 */
    int64_t window_tokens;   /**< of a sliding window that all its layers have, MLA ones too; else 0 */
};

/** How a scheduler half is made. Arrays are copied. */
struct kvf_vllm_scheduler_options {
    size_t struct_size;      /**< set by kvf_vllm_scheduler_options_init */
    int32_t role;            /**< an enum kvf_vllm_role; required */
    int32_t hybrid_manager;  /**< 1: the hybrid cache manager is enabled: blocks before a sliding window are not sent
                                  and not fetched. Default 1 */
    int32_t bounded_replay;  /**< 1: a model with a bounded-replay sliding window. Default 0 */
    int32_t send_stopped;    /**< 1: a prefill of one token (max_tokens 1) that ended because this token is a stop token
                                  is sent as one that ended by its cap: its prompt is computed all the same. 0: as
                                  upstream, it is dropped, and the consumer's request fails. Default 0 */
    const struct kvf_vllm_group *groups; /**< all of the engine, in its order */
    size_t group_count;      /**< 1 to 1024 */
    struct kvf_log_sink log;
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_vllm_scheduler_options) as the caller compiled it. */
KVF_API void kvf_vllm_scheduler_options_init(struct kvf_vllm_scheduler_options *options, size_t size);

/** One scheduler half. */
typedef struct kvf_vllm_scheduler kvf_vllm_scheduler;

/** @param out  returned to the caller (free with kvf_vllm_scheduler_destroy)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming option or group, expected and found; KVF_ERR_NEWER_OPTION;
 *          KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_scheduler_create(const struct kvf_vllm_scheduler_options *options,
                                                  kvf_vllm_scheduler **out, struct kvf_error *error);
KVF_API void kvf_vllm_scheduler_destroy(kvf_vllm_scheduler *scheduler);

/** A request as the host's scheduler has it, with its transfer parameters. The host keeps it; functions change the
 *  fields that are marked *in and out*, which the host must keep with the request. Nothing of it is kept here. */
struct kvf_vllm_request {
    size_t struct_size;          /**< set by kvf_vllm_request_init */
    const char *req_id;          /**< of this engine: 1 to KVF_VLLM_ID_BYTES - 1 bytes of UTF-8 */
    int32_t has_params;          /**< 0: an ordinary request, or one with empty parameters; what follows is ignored */
    int32_t do_remote_decode;    /**< its prompt is computed here, for another engine */
    int32_t do_remote_prefill;   /**< in and out: another engine computes its prompt; one fetch per request */
    int32_t p_side_truncated;    /**< in and out ("_p_side_truncated") */
    const char *transfer_id;     /**< NULL = absent */
    const char *remote_engine_id;
    const char *remote_bootstrap_addr; /**< whether anything answers there is not looked at here; a number as text */
    int64_t prompt_tokens;       /**< in and out: one less for some models on the producer */
    int64_t max_tokens;          /**< in and out */
    int32_t skips_prefix_cache;  /**< 1: the request asks for prompt logprobs */
    int32_t is_embeds;           /**< 1: the prompt is given as embeddings, without token ids: it is never fetched */
};

/** Fills `request` with the defaults. `size` is sizeof(struct kvf_vllm_request) as the caller compiled it. */
KVF_API void kvf_vllm_request_init(struct kvf_vllm_request *request, size_t size);

/** A request has come. With do_remote_decode, a model that has Mamba layers or a bounded-replay window leaves the last
 *  of several prompt tokens to the consumer: prompt_tokens is one less, max_tokens 1 and p_side_truncated set, once.
 *  The host then drops that token.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NEWER_OPTION */
KVF_API enum kvf_status kvf_vllm_scheduler_new_request(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                                       struct kvf_error *error);

/** How many tokens more than `computed_tokens` will come from the other engine, and whether they come later than this
 *  step: the rest of the prompt (its last token left out for the models above) and 1, or 0 and 0.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a pure producer that is asked to fetch); KVF_ERR_NEWER_OPTION */
KVF_API enum kvf_status kvf_vllm_scheduler_matched_tokens(kvf_vllm_scheduler *scheduler,
                                                          const struct kvf_vllm_request *request,
                                                          int64_t computed_tokens, int64_t *tokens, int32_t *is_async,
                                                          struct kvf_error *error);

/** Blocks have been allocated for a request. One that is fetched is told with the next step, without blocks when
 *  `external_tokens` is 0 (the producer may release its own), and do_remote_prefill is cleared; one that is sent is
 *  told as known, not yet ready.
 *  @param groups  per group of the engine, or per transferred group: new blocks that no hash names, without null ones.
 *                 Looked at only when they are fetched into
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (the role does not do this; "Expected {n} KV cache groups, got {m}.");
 *          KVF_ERR_IDS (an id below 0); KVF_ERR_NEWER_OPTION; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_scheduler_allocated(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                                     const struct kvf_vllm_ids *groups, size_t group_count,
                                                     int64_t external_tokens, struct kvf_error *error);

/** How a request ended. */
enum kvf_vllm_finish {
    KVF_VLLM_FINISHED_LENGTH = 0,  /**< by its cap: a prefill that is to be sent */
    KVF_VLLM_FINISHED_STOPPED = 1, /**< by a stop token */
    KVF_VLLM_FINISHED_ABORTED = 2,
    KVF_VLLM_FINISHED_OTHER = 3
};

/** A request is over on this engine. One that was to be fetched and never had blocks is told without any, so that the
 *  producer releases its own; a prefill that ended by its cap is told as ready; one that ended otherwise as not to be
 *  sent.
 *  @param finish  an enum kvf_vllm_finish
 *  @param groups  all of its blocks, per group of the engine, or per transferred group
 *  @param delay_free  1: its blocks must be kept until a worker tells it as sent
 *  @return as kvf_vllm_scheduler_allocated */
KVF_API enum kvf_status kvf_vllm_scheduler_finished(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                                    int finish, const struct kvf_vllm_ids *groups, size_t group_count,
                                                    int32_t *delay_free, struct kvf_error *error);

/** What the workers are to be told with this step; what is told is forgotten here. Of several calls for one request the
 *  last one counts.
 *  @param out  struct_size is set by the caller; borrowed until this function succeeds the next time, or destroy
 *  @return KVF_OK; KVF_ERR_NO_MEMORY, and nothing is lost; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_vllm_scheduler_step(kvf_vllm_scheduler *scheduler, struct kvf_vllm_step *out,
                                                struct kvf_error *error);

#ifdef __cplusplus
}
#endif

#endif
