/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <jansson.h>

#include "base/array.h"
#include "base/error.h"
#include "directory/claim.h"
#include "directory/client_state.h"
#include "layout_json/holdings_json.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include "wire/text.h"

/* ---- open and close ---- */

static enum kvf_status check_url(const char *url, struct kvf_error *error)
{
    size_t byte_count = url ? strlen(url) : 0;
    const char *host = byte_count > 7 && strncmp(url, "http://", 7) == 0 ? url + 7 : NULL;

    if (!host || byte_count > 300 || strpbrk(host, "/?#@ ") || !kvfi_text_is_clean(url, byte_count))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "directory URL \"%.100s\" is not http://HOST:PORT",
                         url ? url : "");
    return KVF_OK;
}

static void free_client(struct kvfi_directory_client *client)
{
    if (!client) return;
    if (client->multi) curl_multi_cleanup(client->multi);
    if (client->event_fd >= 0) close(client->event_fd);
    pthread_mutex_destroy(&client->lock);
    free(client->url);
    free(client);
}

enum kvf_status kvfi_directory_client_open(const struct kvfi_directory_client_options *options,
                                           struct kvfi_directory_client **out, struct kvf_error *error)
{
    struct kvfi_directory_client *client = NULL;
    enum kvf_status status = check_url(options->url, error);
    int failed;

    if (status == KVF_OK) status = kvfi_exchange_prepare(error);
    if (status != KVF_OK) goto done;
    client = calloc(1, sizeof *client);
    if (!client) {
        status = kvfi_fail_memory(error, "a directory client");
        goto done;
    }
    pthread_mutex_init(&client->lock, NULL);
    client->log = options->log;
    client->posted_end = &client->posted;
    client->results_end = &client->results;
    client->url = kvfi_text_copy(options->url);
    client->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    client->multi = curl_multi_init();
    if (!client->url || !client->multi || client->event_fd < 0) {
        status = kvfi_fail_memory(error, "a directory client");
        goto done;
    }
    failed = kvfi_thread_start(&client->thread, kvfi_directory_client_run, client);
    if (failed != 0) {
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "directory client: no thread: %s", strerror(failed));
        goto done;
    }
    *out = client;
    client = NULL;
done:
    free_client(client);
    return status;
}

void kvfi_directory_client_close(struct kvfi_directory_client *client)
{
    struct kvfi_directory_result result;

    if (!client) return;
    pthread_mutex_lock(&client->lock);
    client->stop = true;
    pthread_mutex_unlock(&client->lock);
    curl_multi_wakeup(client->multi);
    pthread_join(client->thread, NULL);
    while (client->posted) {
        struct kvfi_directory_request *next = client->posted->next;

        kvfi_directory_request_destroy(client->posted);
        client->posted = next;
    }
    while (kvfi_directory_client_take(client, &result)) kvfi_directory_result_fini(&result);
    free_client(client);
}

int kvfi_directory_client_fd(const struct kvfi_directory_client *client)
{
    return client->event_fd;
}

/* ---- results ---- */

bool kvfi_directory_client_take(struct kvfi_directory_client *client, struct kvfi_directory_result *out)
{
    struct kvfi_result_node *node;
    uint64_t counter;

    pthread_mutex_lock(&client->lock);
    node = client->results;
    if (node) {
        client->results = node->next;
        if (!client->results) {
            client->results_end = &client->results;
            if (read(client->event_fd, &counter, sizeof counter) < 0) counter = 0;
        }
    }
    pthread_mutex_unlock(&client->lock);
    if (!node) return false;
    *out = node->result;
    free(node);
    return true;
}

void kvfi_directory_result_fini(struct kvfi_directory_result *result)
{
    kvfi_directory_instance_destroy(result->instance);
    result->instance = NULL;
}

/* ---- requests ---- */

struct kvfi_directory_request *kvfi_directory_request_create(enum kvfi_request_kind kind, const char *path,
                                                             uint64_t cookie, int64_t deadline_ns)
{
    struct kvfi_directory_request *request = calloc(1, sizeof *request);

    if (!request) return NULL;
    request->kind = kind;
    request->cookie = cookie;
    request->deadline_ns = deadline_ns;
    kvfi_text_append(&request->path, path);
    return request;
}

void kvfi_directory_request_destroy(struct kvfi_directory_request *request)
{
    if (!request) return;
    kvfi_exchange_fini(&request->exchange);
    kvfi_text_fini(&request->path);
    kvfi_text_fini(&request->body);
    kvfi_text_fini(&request->key_body);
    free(request);
}

/** Hands a request to the thread, which owns it from here on. */
static enum kvf_status post(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                            struct kvf_error *error)
{
    if (!request || request->path.failed || request->body.failed || request->key_body.failed) {
        kvfi_directory_request_destroy(request);
        return kvfi_fail_memory(error, "a directory request");
    }
    pthread_mutex_lock(&client->lock);
    *client->posted_end = request;
    client->posted_end = &request->next;
    pthread_mutex_unlock(&client->lock);
    curl_multi_wakeup(client->multi);
    return KVF_OK;
}

static int64_t deadline_of(int64_t timeout_ns)
{
    int64_t now_ns = kvfi_now_ns();

    if (timeout_ns < 0) timeout_ns = 0;
    return timeout_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + timeout_ns;
}

static enum kvf_status check_text(const char *text, size_t min_bytes, size_t max_bytes, const char *what,
                                  struct kvf_error *error)
{
    size_t byte_count = strlen(text);

    if (byte_count < min_bytes || byte_count > max_bytes)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s has %zu bytes, expected %zu to %zu", what, byte_count,
                         min_bytes, max_bytes);
    if (!kvfi_text_is_clean(text, byte_count))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s has control characters or is not UTF-8", what);
    return KVF_OK;
}

static enum kvf_status check_registration(const struct kvfi_registration *registration, struct kvf_error *error)
{
    enum kvf_status status = check_text(registration->instance, 1, KVFI_DIRECTORY_INSTANCE_BYTES - 1, "instance name",
                                        error);

    if (status == KVF_OK)
        status = check_text(registration->channel, 1, KVFI_DIRECTORY_CHANNEL_BYTES - 1, "channel endpoint", error);
    if (status == KVF_OK)
        status = check_text(registration->model ? registration->model : "", 0, KVFI_DIRECTORY_MODEL_BYTES - 1,
                            "model fingerprint", error);
    if (status == KVF_OK && registration->incarnation == 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "incarnation is 0");
    return status;
}

static enum kvf_status holdings_text(const kvf_holdings *holdings, char **out, struct kvf_error *error)
{
    json_t *json = NULL;
    char *text;
    enum kvf_status status = kvfi_holdings_to_json(holdings, &json, error);

    if (status != KVF_OK) return status;
    text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (!text) return kvfi_fail_memory(error, "holdings");
    *out = text;
    return KVF_OK;
}

enum kvf_status kvfi_directory_client_register(struct kvfi_directory_client *client,
                                               const struct kvfi_registration *registration, uint64_t cookie,
                                               int64_t timeout_ns, struct kvf_error *error)
{
    struct kvfi_registry_claim claim = {
        .instance = registration->instance, .model = registration->model ? registration->model : "",
        .incarnation = registration->incarnation, .rank = registration->rank,
        .ranks_expected = registration->ranks_expected, .channel = registration->channel};
    struct kvfi_directory_request *request = NULL;
    char *holdings = NULL;
    enum kvf_status status = check_registration(registration, error);

    if (status == KVF_OK) status = holdings_text(registration->holdings, &holdings, error);
    if (status != KVF_OK) goto done;
    request = kvfi_directory_request_create(KVFI_REQUEST_REGISTER, "/v1/register", cookie, deadline_of(timeout_ns));
    if (!request) {
        status = kvfi_fail_memory(error, "a directory request");
        goto done;
    }
    claim.holdings = holdings;
    kvfi_claim_write(&claim, false, &request->body);
    kvfi_claim_write(&claim, true, &request->key_body);
    if (request->body.count > KVFI_DIRECTORY_MAX_BODY_BYTES) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "registration has %zu bytes, a directory takes %d",
                           request->body.count, KVFI_DIRECTORY_MAX_BODY_BYTES);
        goto done;
    }
    status = post(client, request, error);
    request = NULL;
done:
    kvfi_directory_request_destroy(request);
    free(holdings);
    return status;
}

enum kvf_status kvfi_directory_client_withdraw(struct kvfi_directory_client *client, uint64_t cookie,
                                               int64_t timeout_ns, struct kvf_error *error)
{
    return post(client, kvfi_directory_request_create(KVFI_REQUEST_WITHDRAW, "/v1/withdraw", cookie,
                                                      deadline_of(timeout_ns)), error);
}

static void append_escaped(struct kvfi_text *out, const char *value)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";

    for (; *value; value++) {
        if (strchr(plain, *value)) kvfi_text_append_bytes(out, value, 1);
        else kvfi_text_appendf(out, "%%%02X", (unsigned char)*value);
    }
}

enum kvf_status kvfi_directory_client_query(struct kvfi_directory_client *client, const char *instance,
                                            uint64_t cookie, int64_t timeout_ns, struct kvf_error *error)
{
    struct kvfi_directory_request *request;
    enum kvf_status status = check_text(instance, 1, KVFI_DIRECTORY_INSTANCE_BYTES - 1, "instance name", error);

    if (status != KVF_OK) return status;
    request = kvfi_directory_request_create(KVFI_REQUEST_QUERY, "/v1/query?instance=", cookie, deadline_of(timeout_ns));
    if (request) append_escaped(&request->path, instance);
    return post(client, request, error);
}
