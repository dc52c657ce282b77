/* SPDX-License-Identifier: Apache-2.0 */
/** @file scheduler.h  A scheduler half, between its hooks (scheduler_hooks) and what they share (scheduler). */
#ifndef KVFI_VLLM_SCHEDULER_H
#define KVFI_VLLM_SCHEDULER_H

#include <stdbool.h>

#include "kvferry/vllm_scheduler.h"
#include "sys/log.h"
#include "vllm/scheduler_queue.h"

enum { KVFI_VLLM_SCHEDULER_MAX_GROUPS = 1024 };

/** What one step told: the arrays, and the entries they lead into. */
struct kvfi_vllm_step_told {
    struct kvfi_vllm_queue recv, send, dropped;
    struct kvf_vllm_recv *recvs;
    struct kvf_vllm_send *sends;
    const char **ids;
};

struct kvf_vllm_scheduler {
    int32_t role;
    bool clips;                 /* blocks before sliding windows are left out */
    bool leaves_last;           /* the last prompt token is the consumer's */
    bool send_stopped;
    size_t group_count;         /* of the engine */
    size_t transferred_count;
    size_t *transferred;        /* indices among them */
    size_t *blocks_per_window;  /* per transferred group; 0 = no window */
    struct kvfi_vllm_queue need_recv, need_send, not_processed;
    struct kvfi_vllm_step_told told;
    struct kvfi_log log;
};

/** The blocks of a request that travel, per transferred group: parts of `groups`.
 *  @param out  `*out_count` of them; free with free(), NULL for none
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT "Expected {n} KV cache groups, got {m}."; KVF_ERR_IDS; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_scheduler_clip(const kvf_vllm_scheduler *scheduler, const struct kvf_vllm_ids *groups,
                                         size_t group_count, struct kvf_vllm_ids **out, size_t *out_count,
                                         struct kvf_error *error);

/** Copies and checks what a hook was given. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NEWER_OPTION */
enum kvf_status kvfi_vllm_request_read(const struct kvf_vllm_request *given, struct kvf_vllm_request *out,
                                       struct kvf_error *error);

/** Whether a worker would take this as an id; as the address of a registry. NULL is none. */
bool kvfi_vllm_is_id(const char *text);
bool kvfi_vllm_is_address(const char *text);

/** Writes the transfer parameters for a log line, as upstream prints them. Returns `out`. */
const char *kvfi_vllm_params_text(const struct kvf_vllm_request *request, char *out, size_t capacity);

#endif
