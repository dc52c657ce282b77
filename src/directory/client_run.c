/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/error.h"
#include "directory/client_state.h"
#include "sys/clock.h"

#define LONGEST_SLEEP_MS 60000
#define CONNECT_TIMEOUT_MS 1000L

static struct kvfi_directory_request *take_posted(struct kvfi_directory_client *client, bool *stop)
{
    struct kvfi_directory_request *posted;

    pthread_mutex_lock(&client->lock);
    posted = client->posted;
    client->posted = NULL;
    client->posted_end = &client->posted;
    *stop = client->stop;
    pthread_mutex_unlock(&client->lock);
    return posted;
}

static void add_active(struct kvfi_directory_client *client, struct kvfi_directory_request *request)
{
    request->next = client->active;
    client->active = request;
}

static void stop_try(struct kvfi_directory_client *client, struct kvfi_directory_request *request)
{
    if (request->in_flight) curl_multi_remove_handle(client->multi, request->exchange.easy);
    request->in_flight = false;
    kvfi_exchange_fini(&request->exchange);
}

static void remove_active(struct kvfi_directory_client *client, struct kvfi_directory_request *request)
{
    struct kvfi_directory_request **at = &client->active;

    while (*at != request) at = &(*at)->next;
    *at = request->next;
    kvfi_directory_request_destroy(request);
}

/** A new register or withdraw ends what is under way for an older registration, so that it cannot arrive afterwards. */
static void end_older(struct kvfi_directory_client *client)
{
    struct kvfi_directory_request *next;

    for (struct kvfi_directory_request *at = client->active; at; at = next) {
        next = at->next;
        if (at->kind == KVFI_REQUEST_QUERY || at->generation == client->kept.generation) continue;
        stop_try(client, at);
        kvfi_directory_client_fail(client, at, KVF_ERR_CANCELLED, "a later register or withdraw took its place");
        remove_active(client, at);
    }
}

static void adopt_all(struct kvfi_directory_client *client, struct kvfi_directory_request *posted, int64_t now_ns)
{
    while (posted) {
        struct kvfi_directory_request *next = posted->next;

        if (kvfi_directory_client_adopt(client, posted, now_ns)) add_active(client, posted);
        else kvfi_directory_request_destroy(posted);
        posted = next;
    }
    end_older(client);
}

/** Starts a try. Returns false when it could not be, and the request ended. */
static bool start(struct kvfi_directory_client *client, struct kvfi_directory_request *request, int64_t now_ns)
{
    struct kvfi_exchange_request http = {
        .base = client->url, .path = request->path.bytes,
        .body = request->kind == KVFI_REQUEST_QUERY ? NULL : request->body.bytes, .body_bytes = request->body.count,
        .connect_timeout_ms = CONNECT_TIMEOUT_MS, .most_answer_bytes = KVFI_DIRECTORY_MAX_ANSWER_BYTES,
        .private_data = request};
    int64_t left_ms = (request->deadline_ns - now_ns) / KVFI_MS;
    struct kvf_error error;
    enum kvf_status status;

    if (left_ms < 1) left_ms = 1;
    if (left_ms > 3600000) left_ms = 3600000;
    http.timeout_ms = (long)left_ms;
    status = kvfi_exchange_init(&request->exchange, &http, &error);
    if (status == KVF_OK && curl_multi_add_handle(client->multi, request->exchange.easy) != CURLM_OK) {
        kvfi_exchange_fini(&request->exchange);
        status = kvfi_fail_memory(&error, "a directory request");
    }
    if (status != KVF_OK) {
        kvfi_directory_client_fail(client, request, status, error.text);
        return false;
    }
    request->in_flight = true;
    request->tries++;
    return true;
}

static void start_due(struct kvfi_directory_client *client, int64_t now_ns)
{
    struct kvfi_directory_request *next;

    for (struct kvfi_directory_request *at = client->active; at; at = next) {
        next = at->next;
        if (!at->in_flight && at->next_try_ns <= now_ns && !start(client, at, now_ns)) remove_active(client, at);
    }
}

static void settle_finished(struct kvfi_directory_client *client)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(client->multi, &left)) != NULL) {
        struct kvfi_directory_request *request = NULL;
        CURLcode result = message->data.result;
        bool over;

        if (message->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&request);
        curl_multi_remove_handle(client->multi, message->easy_handle);
        request->in_flight = false;
        over = kvfi_directory_client_settle(client, request, result, kvfi_now_ns());
        kvfi_exchange_fini(&request->exchange);
        if (over) remove_active(client, request);
    }
}

/** Milliseconds until something is due that no socket tells. */
static int sleep_ms(const struct kvfi_directory_client *client, int64_t now_ns)
{
    int64_t due_ns = client->kept.wanted ? client->kept.next_renew_ns : INT64_MAX;
    int64_t ms;

    for (const struct kvfi_directory_request *at = client->active; at; at = at->next)
        if (!at->in_flight && at->next_try_ns < due_ns) due_ns = at->next_try_ns;
    if (due_ns <= now_ns) return 0;
    ms = (due_ns - now_ns) / KVFI_MS + 1;
    return ms > LONGEST_SLEEP_MS ? LONGEST_SLEEP_MS : (int)ms;
}

static void end_all(struct kvfi_directory_client *client)
{
    while (client->active) {
        stop_try(client, client->active);
        remove_active(client, client->active);
    }
    kvfi_text_fini(&client->kept.body);
    kvfi_text_fini(&client->kept.key_body);
}

void *kvfi_directory_client_run(void *context)
{
    struct kvfi_directory_client *client = context;
    bool stop = false;

    for (;;) {
        struct kvfi_directory_request *posted = take_posted(client, &stop);
        struct kvfi_directory_request *renewal;
        int64_t now_ns = kvfi_now_ns();
        int running;

        adopt_all(client, posted, now_ns);
        if (stop) break;
        renewal = kvfi_directory_client_renewal(client, now_ns);
        if (renewal) add_active(client, renewal);
        start_due(client, now_ns);
        curl_multi_perform(client->multi, &running);
        settle_finished(client);
        curl_multi_poll(client->multi, NULL, 0, sleep_ms(client, kvfi_now_ns()), NULL);
    }
    end_all(client);
    return NULL;
}
