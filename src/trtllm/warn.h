/* SPDX-License-Identifier: Apache-2.0 */
/** @file warn.h  Warnings to the log sink, each key once. One thread at a time. */
#ifndef KVFI_TRTLLM_WARN_H
#define KVFI_TRTLLM_WARN_H

#include "kvferry/trtllm.h"
#include "sys/log.h"

#include <stdbool.h>

/** Most keys that are remembered; after that the oldest is forgotten. */
enum { KVFI_TRT_WARN_KEYS = 256 };

/** Where warnings go and which were given. */
struct kvfi_trt_warn {
    struct kvfi_log log;
    char (*keys)[128];       /**< room for KVFI_TRT_WARN_KEYS once a key came; NULL before */
    size_t count, next;      /**< remembered; the one that is overwritten next */
};

void kvfi_trt_warn_init(struct kvfi_trt_warn *warn, const struct kvf_log_sink *sink);
void kvfi_trt_warn_fini(struct kvfi_trt_warn *warn);

/** Logs `text` unless `key` was given before; "" is always logged. Out of memory: it is logged again next time. */
void kvfi_trt_warn_once(struct kvfi_trt_warn *warn, const char *key, const char *text);

#endif
