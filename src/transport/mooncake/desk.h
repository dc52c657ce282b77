/* SPDX-License-Identifier: Apache-2.0 */
/** @file desk.h  The handshake listener: one thread, many clients at once, one question and one answer each. */
#ifndef KVFI_TRANSPORT_MOONCAKE_DESK_H
#define KVFI_TRANSPORT_MOONCAKE_DESK_H

#include "kvferry/mooncake.h"
#include "sys/log.h"

struct kvfi_moon_desk_rules {
    int listener;                 /* the desk closes it */
    int64_t max_clients, max_bytes, timeout_ns;
    struct kvfi_log *log;
    /** Answers a question: the text of the reply with its newline, returned to the desk (free). NULL: close without
     *  an answer. Called by the desk's thread. */
    char *(*answer)(void *context, uint8_t type, const char *text, size_t bytes, size_t *reply_bytes);
    void *context;
};

struct kvfi_moon_desk;

enum kvf_status kvfi_moon_desk_open(const struct kvfi_moon_desk_rules *rules, struct kvfi_moon_desk **out,
                                    struct kvf_error *error);
/** Ends the thread, drops all clients. NULL is fine. */
void kvfi_moon_desk_close(struct kvfi_moon_desk *desk);

/** Asks the engine at `host` and `port` one question. @param reply  its text, returned to the caller (free)
 *  @return KVF_OK; KVF_ERR_UNREACHABLE; KVF_ERR_NOT_SUPPORTED: closed without an answer; KVF_ERR_PEER_LOST;
 *          KVF_ERR_PROTOCOL; KVF_ERR_LIMIT; KVF_ERR_TIMEOUT; KVF_ERR_CANCELLED; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
struct kvfi_moon_limit;
struct kvfi_moon_question {
    struct kvfi_resolver *resolver;
    const char *host;
    int32_t port;
    uint8_t type;
    const char *text;             /* with its newline */
    size_t bytes;
    int64_t connect_timeout_ns, answer_timeout_ns, max_bytes;
};
enum kvf_status kvfi_moon_ask(const struct kvfi_moon_question *question, const struct kvfi_moon_limit *limit,
                              char **reply, size_t *reply_bytes, struct kvf_error *error);

#endif
