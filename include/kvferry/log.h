/* SPDX-License-Identifier: Apache-2.0 */
/** @file log.h  Where an engine's or a directory's log lines go. The library prints nothing by itself. */
#ifndef KVFERRY_LOG_H
#define KVFERRY_LOG_H

#include "kvferry/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Levels by volume: ERROR and WARN once per cause, INFO once per engine or peer, DEBUG once per transfer,
 *  TRACE per message. Nothing is logged per block. */
enum kvf_log_level {
    KVF_LOG_OFF = 0,
    KVF_LOG_ERROR = 1,
    KVF_LOG_WARN = 2,
    KVF_LOG_INFO = 3,
    KVF_LOG_DEBUG = 4,
    KVF_LOG_TRACE = 5
};

/** Receives one log line. `text` has no newline and is borrowed for the call. It may be called from the progress
 *  thread and from transport threads, never from two threads at once for one engine, and must not call back into it. */
typedef void (*kvf_log_fn)(void *context, int level, const char *text);

/** A sink. With `write` NULL, lines go to file descriptor `fd` when that is above 0 (2 = standard error), one write
 *  per line, prefixed with the level; with both unset nothing is logged. So a binding needs no callback. */
struct kvf_log_sink {
    kvf_log_fn write;
    void *context; /**< handed to `write`; borrowed until the engine is closed */
    int fd;
    int level;     /**< an enum kvf_log_level: the highest that is let through */
};

#ifdef __cplusplus
}
#endif

#endif
