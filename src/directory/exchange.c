/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/exchange.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "directory/client.h"
#include "wire/text.h"

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_result;

static void start_curl(void)
{
    curl_result = curl_global_init(CURL_GLOBAL_DEFAULT);
}

enum kvf_status kvfi_exchange_prepare(struct kvf_error *error)
{
    pthread_once(&curl_once, start_curl);
    if (curl_result == CURLE_OK) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_SYSTEM, "directory client: libcurl does not start: %s",
                     curl_easy_strerror(curl_result));
}

static size_t take_answer(char *bytes, size_t size, size_t count, void *context)
{
    struct kvfi_text *answer = context;

    kvfi_text_append_bytes(answer, bytes, size * count);
    return answer->failed ? 0 : size * count;
}

/** A directory stands beside its workers: it is never asked through a proxy, whatever the environment says. */
static CURLcode set_options(struct kvfi_exchange *exchange, const struct kvfi_exchange_request *request)
{
    CURL *easy = exchange->easy;
    CURLcode failed = CURLE_OK;

    failed |= curl_easy_setopt(easy, CURLOPT_URL, exchange->url.bytes);
    failed |= curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    failed |= curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* name servers are not waited for */
#endif
    failed |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    failed |= curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, request->connect_timeout_ms);
    failed |= curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, request->timeout_ms);
    failed |= curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, exchange->curl_text);
    failed |= curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer);
    failed |= curl_easy_setopt(easy, CURLOPT_WRITEDATA, &exchange->answer);
    failed |= curl_easy_setopt(easy, CURLOPT_PRIVATE, request->private_data);
    failed |= curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, (long)request->is_alone);
    failed |= curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, (long)request->is_alone);
    if (request->body) {
        failed |= curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body);
        failed |= curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_bytes);
        failed |= curl_easy_setopt(easy, CURLOPT_HTTPHEADER, exchange->headers);
    }
    return failed;
}

/** Names the type, and does without the pause that "Expect: 100-continue" may cost. */
static struct curl_slist *make_headers(void)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    struct curl_slist *longer = headers ? curl_slist_append(headers, "Expect:") : NULL;

    if (headers && !longer) curl_slist_free_all(headers);
    return longer;
}

enum kvf_status kvfi_exchange_init(struct kvfi_exchange *exchange, const struct kvfi_exchange_request *request,
                                   struct kvf_error *error)
{
    *exchange = (struct kvfi_exchange){.answer.most_bytes = request->most_answer_bytes};
    kvfi_text_append(&exchange->url, request->base);
    kvfi_text_append(&exchange->url, request->path);
    exchange->headers = make_headers();
    exchange->easy = curl_easy_init();
    if (exchange->url.failed || !exchange->headers || !exchange->easy ||
        set_options(exchange, request) != CURLE_OK) {
        kvfi_exchange_fini(exchange);
        return kvfi_fail_memory(error, "a directory request");
    }
    return KVF_OK;
}

void kvfi_exchange_fini(struct kvfi_exchange *exchange)
{
    if (exchange->easy) curl_easy_cleanup(exchange->easy);
    curl_slist_free_all(exchange->headers);
    kvfi_text_fini(&exchange->url);
    kvfi_text_fini(&exchange->answer);
    *exchange = (struct kvfi_exchange){0};
}

/** The sentence of an error answer, or the start of whatever came instead. */
static void quote_answer(const struct kvfi_text *answer, char *out, size_t capacity)
{
    json_t *json = answer->count ? json_loadb(answer->bytes, answer->count, 0, NULL) : NULL;
    const char *sentence = json_string_value(json_object_get(json, "error"));

    if (sentence) kvfi_text_clean(sentence, out, capacity);
    else kvfi_text_clean(answer->count ? answer->bytes : "nothing", out, capacity < 100 ? capacity : 100);
    json_decref(json);
}

void kvfi_exchange_judge(struct kvfi_exchange *exchange, CURLcode result, struct kvfi_outcome *out)
{
    char quoted[300];

    *out = (struct kvfi_outcome){0};
    if (result == CURLE_OK) curl_easy_getinfo(exchange->easy, CURLINFO_RESPONSE_CODE, &out->code);
    if (result == CURLE_WRITE_ERROR) {
        snprintf(out->text, sizeof out->text, "%.180s: answer is longer than %d bytes", exchange->url.bytes,
                 KVFI_DIRECTORY_MAX_ANSWER_BYTES);
    } else if (result != CURLE_OK) {
        out->try_again = true;
        snprintf(out->text, sizeof out->text, "%.180s: no answer: %.200s", exchange->url.bytes,
                 exchange->curl_text[0] ? exchange->curl_text : curl_easy_strerror(result));
    } else if (out->code != 200) {
        out->try_again = out->code >= 500;
        quote_answer(&exchange->answer, quoted, sizeof quoted);
        snprintf(out->text, sizeof out->text, "%.180s: answered %ld: %.280s", exchange->url.bytes, out->code, quoted);
    }
}
