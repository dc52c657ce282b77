/* SPDX-License-Identifier: Apache-2.0 */
/** @file http.h  HTTP requests from a thread of its own, each tried once, with a time-out for every phase.
 *
 *  A call is posted, and taken back when it is over: it carries the request there and the outcome back. Its peer may be
 *  hostile: answers are bounded, and a phase's time-out ends a call whose peer is silent, four of them the whole.
 */
#ifndef KVFI_DIRECTORY_HTTP_H
#define KVFI_DIRECTORY_HTTP_H

#include <stdbool.h>
#include <stdint.h>

#include "directory/text.h"
#include "kvferry/status.h"

enum kvfi_http_limit {
    KVFI_HTTP_URL_BYTES = 512,            /* longest base, closing zero included */
    KVFI_HTTP_MAX_HEADER_BYTES = 65536,   /* of one answer's headers, all together */
    KVFI_HTTP_MAX_RUNNING = 256           /* calls on the way at a time; more wait */
};

enum kvfi_http_outcome {
    KVFI_HTTP_ANSWERED = 1,    /* with any code */
    KVFI_HTTP_UNREACHABLE = 2, /* no connection */
    KVFI_HTTP_TIMED_OUT = 3,
    KVFI_HTTP_CUT_OFF = 4,     /* the connection ended before the answer did */
    KVFI_HTTP_MALFORMED = 5,   /* not HTTP */
    KVFI_HTTP_TOO_LONG = 6,    /* headers or answer above their bound */
    KVFI_HTTP_NO_MEMORY = 7
};

/** One request. Whoever holds it owns it: the caller, then (posted to taken) the thread. */
struct kvfi_http_call {
    struct kvfi_http_call *next; /* free for the holder's use */
    void *context;               /* the caller's; it may be changed at any time */
    struct kvfi_text path;       /* with "/" at its start */
    struct kvfi_text body;       /* nothing = GET; else POST of JSON */
    int64_t phase_timeout_ns;    /* to connect, and for each wait for bytes */
    size_t most_answer_bytes;
    char base[KVFI_HTTP_URL_BYTES]; /* "http://HOST:PORT" and perhaps the start of a path, no "/" at its end */

    enum kvfi_http_outcome outcome;
    long code;                   /* of HTTP, when ANSWERED */
    struct kvfi_text answer;     /* its body, when ANSWERED */
    char text[KVF_ERROR_TEXT_BYTES]; /* what went wrong, in a few words; "" when ANSWERED */
};

/** Makes a call to `base` (a URL as below), without trailing slashes of it.
 *  @param out  returned to the caller (free with kvfi_http_call_destroy)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT: not http://HOST[:PORT][/PATH], too long, or with characters that do not
 *          belong there; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_http_call_create(const char *base, const char *path, struct kvfi_http_call **out,
                                      struct kvf_error *error);
/** Not while the thread has it. NULL is fine. */
void kvfi_http_call_destroy(struct kvfi_http_call *call);

struct kvfi_http;

/** @param out  returned to the caller (free with kvfi_http_close) @return KVF_OK; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
enum kvf_status kvfi_http_open(struct kvfi_http **out, struct kvf_error *error);
/** Drops what is on the way and what was not taken, and frees. Blocks for some milliseconds. NULL is fine. */
void kvfi_http_close(struct kvfi_http *http);

/** Readable while calls wait to be taken. Do not read it. Valid until close. */
int kvfi_http_fd(const struct kvfi_http *http);
/** Hands a call over, the first time or again; its texts must not have failed. Any thread. */
void kvfi_http_post(struct kvfi_http *http, struct kvfi_http_call *call);
/** Gives a call back that is over; NULL when there is none. */
struct kvfi_http_call *kvfi_http_take(struct kvfi_http *http);

#endif
