/* SPDX-License-Identifier: Apache-2.0 */
/** @file service.h  What a directory answers to a request, without sockets: the endpoints of `docs/wire.md`. */
#ifndef KVFI_DIRECTORY_SERVICE_H
#define KVFI_DIRECTORY_SERVICE_H

#include "directory/bootstrap.h"
#include "directory/registry.h"
#include "directory/text.h"

enum kvfi_endpoint {
    KVFI_ENDPOINT_REGISTER,
    KVFI_ENDPOINT_RENEW,
    KVFI_ENDPOINT_WITHDRAW,
    KVFI_ENDPOINT_QUERY,
    KVFI_ENDPOINT_LIST,
    KVFI_ENDPOINT_HEALTH,
    KVFI_ENDPOINT_METRICS,
    KVFI_ENDPOINT_BOOTSTRAP_REGISTER,
    KVFI_ENDPOINT_BOOTSTRAP_QUERY,
    KVFI_ENDPOINT_OTHER, /* unknown path, wrong method, unusable request */
    KVFI_ENDPOINTS
};

/** Counters since open, for /metrics. */
struct kvfi_service_counters {
    int64_t requests[KVFI_ENDPOINTS];
    int64_t refused[KVFI_ENDPOINTS]; /* answered with 4xx or 5xx */
};

struct kvfi_service {
    struct kvfi_registry registry;
    struct kvfi_bootstrap bootstrap;
    bool with_bootstrap; /* answer vLLM's bootstrap endpoints too */
    struct kvfi_service_counters counters;
    int64_t opened_ns;
};

/** A request, all parts borrowed for the call. */
struct kvfi_service_request {
    const char *method, *path;
    const char *instance;     /* query argument, NULL when absent */
    const char *content_type; /* NULL when absent */
    const char *body;
    size_t body_bytes;
    int64_t now_ns;
};

struct kvfi_service_answer {
    unsigned code;            /* of HTTP */
    const char *content_type; /* constant; NULL for an answer without a body */
    const char *allow;        /* with 405: the method there is; constant */
    const char *location;     /* with 307: where instead; constant */
    struct kvfi_text body;    /* owned; kvfi_text_fini */
};

/** Answers. The answer is always filled; `body.failed` is set when memory ran out. */
void kvfi_service_answer(struct kvfi_service *service, const struct kvfi_service_request *request,
                         struct kvfi_service_answer *answer);

/** Answers with an error of the server's own making (413, 503, ...). */
void kvfi_service_refuse(struct kvfi_service *service, unsigned code, const char *sentence,
                         struct kvfi_service_answer *answer);

#endif
