/* SPDX-License-Identifier: Apache-2.0 */
/** @file log.h  Log lines to the owner's sink, one at a time. */
#ifndef KVFI_SYS_LOG_H
#define KVFI_SYS_LOG_H

#include <pthread.h>

#include "kvferry/log.h"

/** The log of one engine or directory; shared by its threads. */
struct kvfi_log {
    struct kvf_log_sink sink;
    pthread_mutex_t lock;
};

void kvfi_log_init(struct kvfi_log *log, const struct kvf_log_sink *sink);
void kvfi_log_fini(struct kvfi_log *log);

/** Logs one line when the sink wants this level. `log` NULL logs nothing. Any thread. */
void kvfi_logf(struct kvfi_log *log, enum kvf_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
