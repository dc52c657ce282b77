/* SPDX-License-Identifier: Apache-2.0 */
/** @file client.h  Talks to a directory over HTTP, from a thread of its own.
 *
 *  Requests are posted and return at once; each ends in exactly one result, taken from a queue. Requests that fail for
 *  want of a directory (not reachable, 5xx, cut off) are tried again, with growing pauses, until their deadline. A
 *  registration is renewed by itself, and made anew by itself when the directory forgot it. All functions may be called
 *  from any thread, none blocks, except that close must be the last call.
 */
#ifndef KVFI_DIRECTORY_CLIENT_H
#define KVFI_DIRECTORY_CLIENT_H

#include <stdbool.h>

#include "kvferry/layout.h"
#include "sys/log.h"

enum kvfi_directory_limit {
    KVFI_DIRECTORY_MAX_BODY_BYTES = 16777216,    /* of one request */
    KVFI_DIRECTORY_MAX_ANSWER_BYTES = 67108864,  /* of one answer */
    KVFI_DIRECTORY_INSTANCE_BYTES = 128,         /* names, closing zero included */
    KVFI_DIRECTORY_MODEL_BYTES = 256,
    KVFI_DIRECTORY_CHANNEL_BYTES = 512
};

struct kvfi_directory_client;

struct kvfi_directory_client_options {
    const char *url;          /* "http://HOST:PORT", without a path */
    struct kvfi_log *log;     /* valid until close; NULL logs nothing */
};

/** What a worker announces. Borrowed for the call. */
struct kvfi_registration {
    const char *instance;
    uint64_t incarnation;     /* not 0 */
    struct kvf_rank rank;
    int64_t ranks_expected;
    const char *channel;      /* endpoint of its control channel */
    const char *model;        /* model fingerprint, "" = not stated */
    const kvf_holdings *holdings;
};

/** One rank in the answer to a query. */
struct kvfi_directory_rank {
    struct kvf_rank rank;
    uint64_t incarnation;
    char channel[KVFI_DIRECTORY_CHANNEL_BYTES];
    kvf_holdings *holdings;
};

/** Answer to a query: ranks in the order pp, cp, tp. */
struct kvfi_directory_instance {
    char instance[KVFI_DIRECTORY_INSTANCE_BYTES];
    char model[KVFI_DIRECTORY_MODEL_BYTES];
    bool complete;            /* registered equals expected */
    int64_t registered, expected;
    int64_t epoch;            /* rises whenever a rank registers anew, also across restarts of the directory */
    struct kvfi_directory_rank *ranks;
    size_t rank_count;
};

enum kvfi_directory_result_kind {
    KVFI_DIRECTORY_REGISTERED = 1,
    KVFI_DIRECTORY_WITHDRAWN = 2,
    KVFI_DIRECTORY_ANSWER = 3, /* to a query */
    KVFI_DIRECTORY_LOST = 4    /* not asked for: the registration was taken over by another incarnation, and is not
                                  renewed any more. status KVF_ERR_STALE, cookie of the register */
};

struct kvfi_directory_result {
    int kind;
    uint64_t cookie;
    enum kvf_status status;   /* KVF_OK; KVF_ERR_NOT_FOUND (query: no such instance); KVF_ERR_DIRECTORY (refused, not
                                 reachable before the deadline, or an answer that makes no sense) */
    int64_t epoch;            /* REGISTERED */
    struct kvfi_directory_instance *instance; /* ANSWER with KVF_OK; owned by the result */
    char text[KVF_ERROR_TEXT_BYTES]; /* on failure: the URL and what it answered */
};

/** @param out  returned to the caller (free with kvfi_directory_client_close)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (URL, with what is expected); KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
enum kvf_status kvfi_directory_client_open(const struct kvfi_directory_client_options *options,
                                           struct kvfi_directory_client **out, struct kvf_error *error);

/** Drops what is under way, stops the thread, frees. It does not withdraw. Blocks for some
 *  milliseconds. NULL is fine. */
void kvfi_directory_client_close(struct kvfi_directory_client *client);

/** Readable while results wait. Do not read it. Valid until close. */
int kvfi_directory_client_fd(const struct kvfi_directory_client *client);

/** Takes one result; false when there is none. Free it with kvfi_directory_result_fini. */
bool kvfi_directory_client_take(struct kvfi_directory_client *client, struct kvfi_directory_result *out);

void kvfi_directory_result_fini(struct kvfi_directory_result *result);

/** Registers, and renews until withdraw or close. A later register replaces the earlier one (same rank) of this client.
 *  `cookie` comes back in the result. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_directory_client_register(struct kvfi_directory_client *client,
                                               const struct kvfi_registration *registration, uint64_t cookie,
                                               int64_t timeout_ns, struct kvf_error *error);

/** Ends the renewals and withdraws the registration. Without one the result is KVF_OK at once. */
enum kvf_status kvfi_directory_client_withdraw(struct kvfi_directory_client *client, uint64_t cookie,
                                               int64_t timeout_ns, struct kvf_error *error);

/** Asks for an instance. */
enum kvf_status kvfi_directory_client_query(struct kvfi_directory_client *client, const char *instance,
                                            uint64_t cookie, int64_t timeout_ns, struct kvf_error *error);

#endif
