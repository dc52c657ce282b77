/* SPDX-License-Identifier: Apache-2.0 */
/** @file exchange.h  One HTTP request of the client, from building to its answer. */
#ifndef KVFI_DIRECTORY_EXCHANGE_H
#define KVFI_DIRECTORY_EXCHANGE_H

#include <stdbool.h>

#include <curl/curl.h>

#include "directory/text.h"
#include "kvferry/status.h"

/** A try at one request: an easy handle and what it takes and gives. */
struct kvfi_exchange {
    CURL *easy;
    struct curl_slist *headers;
    struct kvfi_text url, answer;
    char curl_text[CURL_ERROR_SIZE];
};

/** Readies libcurl for this process, once. @return KVF_OK, KVF_ERR_SYSTEM */
enum kvf_status kvfi_exchange_prepare(struct kvf_error *error);

/** What a request is. Texts are borrowed for the call, the body until fini. */
struct kvfi_exchange_request {
    const char *base, *path;     /* the URL in two parts; `path` with its query */
    const char *body;            /* NULL makes a GET, else a POST of JSON */
    size_t body_bytes;
    long connect_timeout_ms;
    long timeout_ms;             /* of the whole */
    size_t most_answer_bytes;
    bool is_alone;               /* on a connection of its own, closed afterwards */
    void *private_data;          /* comes back from CURLINFO_PRIVATE */
};

/** Sets up a request. It is never made through a proxy, and follows no redirect. @return KVF_OK, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_exchange_init(struct kvfi_exchange *exchange, const struct kvfi_exchange_request *request,
                                   struct kvf_error *error);

void kvfi_exchange_fini(struct kvfi_exchange *exchange);

/** What became of a finished exchange. */
struct kvfi_outcome {
    long code;       /* of HTTP; 0 when there was no answer */
    bool try_again;  /* no answer, or one of 5xx */
    char text[KVF_ERROR_TEXT_BYTES]; /* when the code is not 200: the URL and what it answered */
};

void kvfi_exchange_judge(struct kvfi_exchange *exchange, CURLcode result, struct kvfi_outcome *out);

#endif
