/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_scheduler.h  vLLM's MooncakeConnector, the scheduler half: which requests are fetched, sent or dropped.
 *
 *  One per engine, beside the host's scheduler, whose hooks call these functions. Pure: no sockets, clock, threads or
 *  environment; it logs warnings to the sink it was given. One thread at a time.
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
    int32_t kind;            /**< KVF_VLLM_ATTENTION, KVF_VLLM_MLA, KVF_VLLM_MAMBA or KVF_VLLM_CIRCULAR */
    int32_t is_transferred;  /**< 0: its blocks never travel */
    int64_t block_tokens;
    int64_t window_tokens;   /**< of a sliding window; 0 = full attention */
};

/** How a scheduler half is made. Arrays are copied. */
struct kvf_vllm_scheduler_options {
    size_t struct_size;      /**< set by kvf_vllm_scheduler_options_init */
    int32_t role;            /**< an enum kvf_vllm_role; required */
    int32_t hybrid_manager;  /**< 1: the hybrid cache manager is enabled. Default 1 */
    int32_t bounded_replay;  /**< 1: a model with a bounded-replay sliding window. Default 0 */
    int32_t reserved;        /**< zero */
    const struct kvf_vllm_group *groups; /**< all of the engine, in its order */
    size_t group_count;
    struct kvf_log_sink log;
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_vllm_scheduler_options) as the caller compiled it. */
KVF_API void kvf_vllm_scheduler_options_init(struct kvf_vllm_scheduler_options *options, size_t size);

/** One scheduler half. */
typedef struct kvf_vllm_scheduler kvf_vllm_scheduler;

/** @param out  returned to the caller (free with kvf_vllm_scheduler_destroy)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NEWER_OPTION; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_scheduler_create(const struct kvf_vllm_scheduler_options *options,
                                                  kvf_vllm_scheduler **out, struct kvf_error *error);
KVF_API void kvf_vllm_scheduler_destroy(kvf_vllm_scheduler *scheduler);

/** A request as the host's scheduler has it, with its transfer parameters. The host keeps it; functions change the
 *  fields that are marked *out*, which the host must keep with the request. */
struct kvf_vllm_request {
    size_t struct_size;          /**< set by kvf_vllm_request_init */
    const char *req_id;          /**< of this engine */
    int32_t has_params;          /**< 0: an ordinary request; everything below is ignored */
    int32_t do_remote_decode;
    int32_t do_remote_prefill;   /**< in and out: one fetch per request */
    int32_t p_side_truncated;    /**< in and out */
    const char *transfer_id;     /**< NULL = absent; "" counts as absent where upstream counts it so */
    const char *remote_engine_id;
    const char *remote_bootstrap_addr; /**< present whatever its value: nothing is checked here */
    int64_t prompt_tokens;       /**< in and out: one less for some models on the producer */
    int64_t max_tokens;          /**< in and out */
    int32_t skips_prefix_cache;  /**< 1: the request asks for prompt logprobs */
    int32_t reserved;            /**< zero */
};

/** Fills `request` with the defaults. `size` is sizeof(struct kvf_vllm_request) as the caller compiled it. */
KVF_API void kvf_vllm_request_init(struct kvf_vllm_request *request, size_t size);

/** A request has come: a producer of some models leaves the last prompt token to the consumer.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT */
KVF_API enum kvf_status kvf_vllm_scheduler_new_request(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                                       struct kvf_error *error);

/** How many tokens more than `computed_tokens` will come from the other engine, and whether they come later than this
 *  step. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a producer that is asked to fetch) */
KVF_API enum kvf_status kvf_vllm_scheduler_matched_tokens(kvf_vllm_scheduler *scheduler,
                                                          const struct kvf_vllm_request *request,
                                                          int64_t computed_tokens, int64_t *tokens, int32_t *is_async,
                                                          struct kvf_error *error);

/** Blocks have been allocated for a request.
 *  @param groups  per group of the engine, or per transferred group: new blocks that no hash names, without null ones
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (the role does not do this; "Expected {n} KV cache groups, got {m}.");
 *          KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_scheduler_allocated(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                                     const struct kvf_vllm_ids *groups, size_t group_count,
                                                     int64_t external_tokens, struct kvf_error *error);

/** How a request ended. */
enum kvf_vllm_finish {
    KVF_VLLM_FINISHED_LENGTH = 0, /**< by its cap: a prefill that is to be sent */
    KVF_VLLM_FINISHED_STOPPED = 1,
    KVF_VLLM_FINISHED_ABORTED = 2,
    KVF_VLLM_FINISHED_OTHER = 3
};

/** A request is over on this engine. @param delay_free  1: its blocks must be kept until a worker tells it as sent
 *  @return as kvf_vllm_scheduler_allocated */
KVF_API enum kvf_status kvf_vllm_scheduler_finished(kvf_vllm_scheduler *scheduler, struct kvf_vllm_request *request,
                                                    int finish, const struct kvf_vllm_ids *groups, size_t group_count,
                                                    int32_t *delay_free, struct kvf_error *error);

/** What the workers are to be told with this step; what is told is forgotten here.
 *  @param out  filled; borrowed until the next call of this function, or destroy
 *  @return KVF_OK; KVF_ERR_NO_MEMORY, and nothing is lost */
KVF_API enum kvf_status kvf_vllm_scheduler_step(kvf_vllm_scheduler *scheduler, struct kvf_vllm_step *out,
                                                struct kvf_error *error);

#ifdef __cplusplus
}
#endif

#endif
