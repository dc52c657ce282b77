/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/http.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "directory/exchange.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include "wire/text.h"

#define LONGEST_SLEEP_MS 60000
#define LONGEST_PHASE_MS INT64_C(86400000)
#define PHASES 4 /* to connect, write, read, and be served at all */

/** A call and what only the thread needs. */
struct trip {
    struct kvfi_http_call call; /* first */
    struct kvfi_exchange exchange;
    int64_t heard_ns; /* when bytes last went either way */
    int64_t heard_bytes;
    int64_t header_bytes;
    bool too_long;
};

struct kvfi_http {
    int event_fd;
    CURLM *multi;
    pthread_t thread;

    pthread_mutex_t lock; /* for the next group */
    bool stop;
    struct kvfi_http_call *posted, **posted_end;
    struct kvfi_http_call *over, **over_end;

    struct kvfi_http_call *waiting, **waiting_end; /* the thread's own, as all below */
    struct kvfi_http_call *running;
    size_t running_count;
};

/* ---- calls ---- */

enum kvf_status kvfi_http_call_create(const char *base, const char *path, struct kvfi_http_call **out,
                                      struct kvf_error *error)
{
    size_t base_bytes = base ? strlen(base) : 0;
    struct trip *trip;

    while (base_bytes > 0 && base[base_bytes - 1] == '/') base_bytes--;
    if (base_bytes < 8 || base_bytes >= KVFI_HTTP_URL_BYTES || strncmp(base, "http://", 7) != 0 ||
        strchr(":/", base[7]) || strpbrk(base, "?#@\\ ") || !kvfi_text_is_clean(base, base_bytes))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "URL \"%.100s\" is not http://HOST:PORT", base ? base : "");
    trip = calloc(1, sizeof *trip);
    if (!trip) return kvfi_fail_memory(error, "a request");
    memcpy(trip->call.base, base, base_bytes);
    kvfi_text_append(&trip->call.path, path);
    if (trip->call.path.failed) {
        kvfi_http_call_destroy(&trip->call);
        return kvfi_fail_memory(error, "a request");
    }
    *out = &trip->call;
    return KVF_OK;
}

static struct trip *trip_of(struct kvfi_http_call *call)
{
    return (struct trip *)(void *)call;
}

void kvfi_http_call_destroy(struct kvfi_http_call *call)
{
    if (!call) return;
    kvfi_exchange_fini(&trip_of(call)->exchange);
    kvfi_text_fini(&call->path);
    kvfi_text_fini(&call->body);
    kvfi_text_fini(&call->answer);
    free(trip_of(call));
}

static void destroy_all(struct kvfi_http_call *calls)
{
    while (calls) {
        struct kvfi_http_call *next = calls->next;

        kvfi_http_call_destroy(calls);
        calls = next;
    }
}

void kvfi_http_post(struct kvfi_http *http, struct kvfi_http_call *call)
{
    kvfi_text_fini(&call->answer);
    call->next = NULL;
    call->outcome = 0;
    call->code = 0;
    call->text[0] = '\0';
    pthread_mutex_lock(&http->lock);
    *http->posted_end = call;
    http->posted_end = &call->next;
    pthread_mutex_unlock(&http->lock);
    curl_multi_wakeup(http->multi);
}

struct kvfi_http_call *kvfi_http_take(struct kvfi_http *http)
{
    struct kvfi_http_call *call;
    uint64_t counter;

    pthread_mutex_lock(&http->lock);
    call = http->over;
    if (call) http->over = call->next;
    if (call && !http->over) {
        http->over_end = &http->over;
        if (read(http->event_fd, &counter, sizeof counter) < 0) counter = 0;
    }
    pthread_mutex_unlock(&http->lock);
    if (call) call->next = NULL;
    return call;
}

/** Gives a call back to whoever takes it. */
static void give_back(struct kvfi_http *http, struct kvfi_http_call *call)
{
    const uint64_t one = 1;

    call->next = NULL;
    pthread_mutex_lock(&http->lock);
    *http->over_end = call;
    http->over_end = &call->next;
    if (write(http->event_fd, &one, sizeof one) < 0) call->next = NULL; /* it is readable already */
    pthread_mutex_unlock(&http->lock);
}

/* ---- outcomes ---- */

static enum kvfi_http_outcome outcome_of(const struct trip *trip, CURLcode result)
{
    switch (result) {
    case CURLE_OK: return KVFI_HTTP_ANSWERED;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_INTERFACE_FAILED: return KVFI_HTTP_UNREACHABLE;
    case CURLE_OPERATION_TIMEDOUT: return KVFI_HTTP_TIMED_OUT;
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR: return KVFI_HTTP_CUT_OFF;
    case CURLE_OUT_OF_MEMORY: return KVFI_HTTP_NO_MEMORY;
    case CURLE_WRITE_ERROR:
        if (trip->too_long || trip->exchange.answer.count + CURL_MAX_WRITE_SIZE >= trip->call.most_answer_bytes)
            return KVFI_HTTP_TOO_LONG;
        return KVFI_HTTP_NO_MEMORY;
    default: return KVFI_HTTP_MALFORMED;
    }
}

/** Fills in what a call came to, and lets go of what it took to get there. */
static void conclude(struct trip *trip, CURLcode result)
{
    struct kvfi_http_call *call = &trip->call;
    const char *curl_text = trip->exchange.curl_text;

    call->outcome = outcome_of(trip, result);
    switch (call->outcome) {
    case KVFI_HTTP_ANSWERED:
        curl_easy_getinfo(trip->exchange.easy, CURLINFO_RESPONSE_CODE, &call->code);
        call->answer = trip->exchange.answer;
        trip->exchange.answer = (struct kvfi_text){0};
        break;
    case KVFI_HTTP_TOO_LONG:
        if (trip->too_long)
            snprintf(call->text, sizeof call->text, "headers are longer than %d bytes", KVFI_HTTP_MAX_HEADER_BYTES);
        else
            snprintf(call->text, sizeof call->text, "answer is longer than %zu bytes", call->most_answer_bytes);
        break;
    case KVFI_HTTP_NO_MEMORY:
        snprintf(call->text, sizeof call->text, "out of memory for a request");
        break;
    default:
        kvfi_text_clean(curl_text[0] ? curl_text : curl_easy_strerror(result), call->text, sizeof call->text);
    }
    kvfi_exchange_fini(&trip->exchange);
    trip->heard_bytes = trip->header_bytes = 0;
    trip->too_long = false;
}

/* ---- the thread ---- */

static size_t count_header(char *bytes, size_t size, size_t count, void *context)
{
    struct trip *trip = context;

    (void)bytes;
    trip->header_bytes += (int64_t)(size * count);
    trip->too_long = trip->header_bytes > KVFI_HTTP_MAX_HEADER_BYTES;
    return trip->too_long ? 0 : size * count;
}

static int64_t phase_ms(const struct kvfi_http_call *call)
{
    int64_t ms = call->phase_timeout_ns / KVFI_MS;

    if (ms < 1) ms = 1;
    return ms > LONGEST_PHASE_MS ? LONGEST_PHASE_MS : ms;
}

static bool prepare(struct trip *trip)
{
    struct kvfi_http_call *call = &trip->call;
    const struct kvfi_exchange_request request = {
        .base = call->base, .path = call->path.bytes, .body = call->body.count ? call->body.bytes : NULL,
        .body_bytes = call->body.count, .connect_timeout_ms = (long)phase_ms(call),
        .timeout_ms = (long)(PHASES * phase_ms(call)), .most_answer_bytes = call->most_answer_bytes,
        .is_alone = true, .private_data = trip};
    CURLcode failed = CURLE_OK;

    if (kvfi_exchange_init(&trip->exchange, &request, NULL) != KVF_OK) return false;
    failed |= curl_easy_setopt(trip->exchange.easy, CURLOPT_HEADERFUNCTION, count_header);
    failed |= curl_easy_setopt(trip->exchange.easy, CURLOPT_HEADERDATA, trip);
    return failed == CURLE_OK;
}

static void start(struct kvfi_http *http, struct kvfi_http_call *call, int64_t now_ns)
{
    struct trip *trip = trip_of(call);

    if (!prepare(trip) || curl_multi_add_handle(http->multi, trip->exchange.easy) != CURLM_OK) {
        conclude(trip, CURLE_OUT_OF_MEMORY);
        give_back(http, call);
        return;
    }
    trip->heard_ns = now_ns;
    call->next = http->running;
    http->running = call;
    http->running_count++;
}

static void stop(struct kvfi_http *http, struct kvfi_http_call *call)
{
    struct kvfi_http_call **at = &http->running;

    while (*at != call) at = &(*at)->next;
    *at = call->next;
    http->running_count--;
    curl_multi_remove_handle(http->multi, trip_of(call)->exchange.easy);
}

static bool take_posted(struct kvfi_http *http)
{
    bool go_on;

    pthread_mutex_lock(&http->lock);
    if (http->posted) {
        *http->waiting_end = http->posted;
        http->waiting_end = http->posted_end;
        http->posted = NULL;
        http->posted_end = &http->posted;
    }
    go_on = !http->stop;
    pthread_mutex_unlock(&http->lock);
    return go_on;
}

static void start_waiting(struct kvfi_http *http)
{
    while (http->waiting && http->running_count < KVFI_HTTP_MAX_RUNNING) {
        struct kvfi_http_call *call = http->waiting;

        http->waiting = call->next;
        if (!http->waiting) http->waiting_end = &http->waiting;
        start(http, call, kvfi_now_ns());
    }
}

static void settle_finished(struct kvfi_http *http)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(http->multi, &left)) != NULL) {
        struct trip *trip = NULL;
        CURLcode result = message->data.result;

        if (message->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&trip);
        stop(http, &trip->call);
        conclude(trip, result);
        give_back(http, &trip->call);
    }
}

/** Bytes that went either way, and one more for the connection. */
static int64_t bytes_heard(const struct trip *trip)
{
    curl_off_t down = 0, up = 0, connected = 0;

    curl_easy_getinfo(trip->exchange.easy, CURLINFO_SIZE_DOWNLOAD_T, &down);
    curl_easy_getinfo(trip->exchange.easy, CURLINFO_SIZE_UPLOAD_T, &up);
    curl_easy_getinfo(trip->exchange.easy, CURLINFO_CONNECT_TIME_T, &connected);
    return trip->header_bytes + (int64_t)down + (int64_t)up + (connected > 0);
}

/** Ends calls whose peer was silent for too long. Returns in how many milliseconds to look again. */
static int end_silent(struct kvfi_http *http, int64_t now_ns)
{
    int64_t sleep_ms = LONGEST_SLEEP_MS;
    struct kvfi_http_call *next;

    for (struct kvfi_http_call *call = http->running; call; call = next) {
        struct trip *trip = trip_of(call);
        int64_t bytes = bytes_heard(trip), left_ms;

        next = call->next;
        if (bytes != trip->heard_bytes) {
            trip->heard_bytes = bytes;
            trip->heard_ns = now_ns;
        }
        left_ms = phase_ms(call) - (now_ns - trip->heard_ns) / KVFI_MS;
        if (left_ms <= 0) {
            stop(http, call);
            trip->exchange.curl_text[0] = '\0';
            conclude(trip, CURLE_OPERATION_TIMEDOUT);
            give_back(http, call);
        } else if (left_ms < sleep_ms) {
            sleep_ms = left_ms;
        }
    }
    return (int)sleep_ms;
}

static void *run(void *context)
{
    struct kvfi_http *http = context;

    while (take_posted(http)) {
        int running, sleep_ms;

        start_waiting(http);
        curl_multi_perform(http->multi, &running);
        settle_finished(http);
        sleep_ms = end_silent(http, kvfi_now_ns());
        if (http->waiting && http->running_count < KVFI_HTTP_MAX_RUNNING) continue;
        curl_multi_poll(http->multi, NULL, 0, sleep_ms, NULL);
    }
    while (http->running) {
        struct kvfi_http_call *call = http->running;

        stop(http, call);
        kvfi_http_call_destroy(call);
    }
    return NULL;
}

/* ---- open and close ---- */

static void free_http(struct kvfi_http *http)
{
    if (!http) return;
    if (http->multi) curl_multi_cleanup(http->multi);
    if (http->event_fd >= 0) close(http->event_fd);
    pthread_mutex_destroy(&http->lock);
    free(http);
}

enum kvf_status kvfi_http_open(struct kvfi_http **out, struct kvf_error *error)
{
    struct kvfi_http *http = NULL;
    enum kvf_status status = kvfi_exchange_prepare(error);
    int failed;

    if (status != KVF_OK) goto done;
    http = calloc(1, sizeof *http);
    if (!http) {
        status = kvfi_fail_memory(error, "an HTTP client");
        goto done;
    }
    pthread_mutex_init(&http->lock, NULL);
    http->posted_end = &http->posted;
    http->over_end = &http->over;
    http->waiting_end = &http->waiting;
    http->multi = curl_multi_init();
    http->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!http->multi || http->event_fd < 0) {
        status = kvfi_fail_memory(error, "an HTTP client");
        goto done;
    }
    failed = kvfi_thread_start(&http->thread, run, http);
    if (failed != 0) {
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "HTTP client: no thread: %s", strerror(failed));
        goto done;
    }
    *out = http;
    http = NULL;
done:
    free_http(http);
    return status;
}

void kvfi_http_close(struct kvfi_http *http)
{
    if (!http) return;
    pthread_mutex_lock(&http->lock);
    http->stop = true;
    pthread_mutex_unlock(&http->lock);
    curl_multi_wakeup(http->multi);
    pthread_join(http->thread, NULL);
    destroy_all(http->posted);
    destroy_all(http->waiting);
    destroy_all(http->over);
    free_http(http);
}

int kvfi_http_fd(const struct kvfi_http *http)
{
    return http->event_fd;
}
