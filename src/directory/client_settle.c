/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "directory/client_state.h"
#include "sys/clock.h"

#define FIRST_PAUSE_NS (50 * KVFI_MS)
#define LONGEST_PAUSE_NS KVFI_SECOND
#define TROUBLE_PAUSE_NS (500 * KVFI_MS) /* between renewals while the directory does not answer */
#define SHORTEST_TRY_NS (20 * KVFI_MS)

/* ---- results ---- */

static int result_kind(enum kvfi_request_kind kind)
{
    switch (kind) {
    case KVFI_REQUEST_REGISTER: return KVFI_DIRECTORY_REGISTERED;
    case KVFI_REQUEST_WITHDRAW: return KVFI_DIRECTORY_WITHDRAWN;
    case KVFI_REQUEST_QUERY: return KVFI_DIRECTORY_ANSWER;
    default: return 0;
    }
}

/** Queues a result; without memory for it, it is dropped with what it owns. */
static void deliver(struct kvfi_directory_client *client, const struct kvfi_directory_result *result)
{
    struct kvfi_result_node *node = calloc(1, sizeof *node);
    uint64_t one = 1;

    if (!node) {
        kvfi_directory_instance_destroy(result->instance);
        kvfi_logf(client->log, KVF_LOG_ERROR, "directory client: out of memory, a result is lost");
        return;
    }
    node->result = *result;
    pthread_mutex_lock(&client->lock);
    if (!client->results && write(client->event_fd, &one, sizeof one) < 0) one = 0;
    *client->results_end = node;
    client->results_end = &node->next;
    pthread_mutex_unlock(&client->lock);
}

static void deliver_status(struct kvfi_directory_client *client, int kind, uint64_t cookie, enum kvf_status status,
                           const char *text)
{
    struct kvfi_directory_result result = {.kind = kind, .cookie = cookie, .status = status};

    snprintf(result.text, sizeof result.text, "%s", text);
    if (kind) deliver(client, &result);
}

void kvfi_directory_client_fail(struct kvfi_directory_client *client, const struct kvfi_directory_request *request,
                                enum kvf_status status, const char *text)
{
    deliver_status(client, result_kind(request->kind), request->cookie, status, text);
}

/* ---- the registration that is kept alive ---- */

static void move_text(struct kvfi_text *to, struct kvfi_text *from)
{
    kvfi_text_fini(to);
    *to = *from;
    *from = (struct kvfi_text){0};
}

static void copy_text(struct kvfi_text *to, const struct kvfi_text *from)
{
    kvfi_text_append_bytes(to, from->bytes, from->count);
}

/** A register makes what is kept obsolete at once; a withdraw ends it, and needs its key. */
bool kvfi_directory_client_adopt(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                                 int64_t now_ns)
{
    struct kvfi_kept_registration *kept = &client->kept;

    request->next_try_ns = now_ns;
    if (request->kind == KVFI_REQUEST_QUERY) return true;
    kept->wanted = false;
    request->generation = ++kept->generation;
    if (request->kind == KVFI_REQUEST_REGISTER) {
        kvfi_text_fini(&kept->key_body);
        copy_text(&kept->key_body, &request->key_body);
        return true;
    }
    if (kept->key_body.count == 0) {
        deliver_status(client, KVFI_DIRECTORY_WITHDRAWN, request->cookie, KVF_OK, "");
        return false;
    }
    move_text(&request->body, &kept->key_body);
    return true;
}

static void keep(struct kvfi_kept_registration *kept, struct kvfi_directory_request *request, int64_t lease_ns,
                 int64_t now_ns)
{
    kept->wanted = true;
    kept->lease_ns = lease_ns;
    kept->next_renew_ns = now_ns + lease_ns / 3;
    if (request->kind == KVFI_REQUEST_RENEW) return;
    if (request->kind == KVFI_REQUEST_REGISTER) kept->cookie = request->cookie;
    move_text(&kept->body, &request->body);
}

struct kvfi_directory_request *kvfi_directory_client_renewal(struct kvfi_directory_client *client, int64_t now_ns)
{
    struct kvfi_kept_registration *kept = &client->kept;
    struct kvfi_directory_request *request;

    if (!kept->wanted || now_ns < kept->next_renew_ns) return NULL;
    kept->next_renew_ns = now_ns + kept->lease_ns / 3;
    request = kvfi_directory_request_create(KVFI_REQUEST_RENEW, "/v1/renew", kept->cookie, kept->next_renew_ns);
    if (!request) return NULL;
    request->generation = kept->generation;
    request->next_try_ns = now_ns;
    copy_text(&request->body, &kept->key_body);
    if (!request->path.failed && !request->body.failed) return request;
    kvfi_directory_request_destroy(request);
    return NULL;
}

static void lose(struct kvfi_directory_client *client, enum kvf_status status, const char *text)
{
    client->kept.wanted = false;
    kvfi_logf(client->log, KVF_LOG_WARN, "directory registration is lost: %s", text);
    deliver_status(client, KVFI_DIRECTORY_LOST, client->kept.cookie, status, text);
}

/** Turns a renewal into a register of the same rank. */
static void register_anew(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                          int64_t now_ns)
{
    kvfi_logf(client->log, KVF_LOG_INFO, "directory %s does not know this rank any more: registering anew",
              client->url);
    request->kind = KVFI_REQUEST_REGISTER_ANEW;
    request->tries = 0;
    request->next_try_ns = now_ns;
    request->path.count = 0;
    kvfi_text_append(&request->path, "/v1/register");
    request->body.count = 0;
    copy_text(&request->body, &client->kept.body);
}

static void note_trouble(struct kvfi_directory_client *client, const char *text, int64_t now_ns)
{
    if (client->kept.next_renew_ns > now_ns + TROUBLE_PAUSE_NS) client->kept.next_renew_ns = now_ns + TROUBLE_PAUSE_NS;
    if (!client->kept.in_trouble)
        kvfi_logf(client->log, KVF_LOG_WARN, "directory registration is not renewed: %s", text);
    client->kept.in_trouble = true;
}

static void note_health(struct kvfi_directory_client *client)
{
    if (client->kept.in_trouble) kvfi_logf(client->log, KVF_LOG_INFO, "directory %s answers again", client->url);
    client->kept.in_trouble = false;
}

/** An answer to a renewal, or to a register that took its place. Returns true when the request is over. */
static bool settle_kept(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                        const struct kvfi_outcome *outcome, int64_t now_ns)
{
    struct kvf_error error;
    int64_t epoch, lease_ns;

    if (request->generation != client->kept.generation) return true;
    if (outcome->code == 200) {
        if (kvfi_registered_read(&request->exchange.answer, &epoch, &lease_ns, &error) != KVF_OK) {
            note_trouble(client, error.text, now_ns);
            return true;
        }
        note_health(client);
        keep(&client->kept, request, lease_ns, now_ns);
        return true;
    }
    if (outcome->code == 404 && request->kind == KVFI_REQUEST_RENEW) {
        register_anew(client, request, now_ns);
        return request->path.failed || request->body.failed;
    }
    if (!outcome->try_again) {
        lose(client, outcome->code == 409 && request->kind == KVFI_REQUEST_RENEW ? KVF_ERR_STALE : KVF_ERR_DIRECTORY,
             outcome->text);
        return true;
    }
    note_trouble(client, outcome->text, now_ns);
    return true;
}

/* ---- answers ---- */

static void settle_register(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                            int64_t now_ns)
{
    struct kvfi_directory_result result = {.kind = KVFI_DIRECTORY_REGISTERED, .cookie = request->cookie};
    struct kvf_error error;
    int64_t lease_ns = 0;

    if (kvfi_registered_read(&request->exchange.answer, &result.epoch, &lease_ns, &error) != KVF_OK) {
        result.status = KVF_ERR_DIRECTORY;
        snprintf(result.text, sizeof result.text, "%.180s: answer makes no sense: %.280s", request->exchange.url.bytes,
                 error.text);
    } else if (request->generation == client->kept.generation) {
        keep(&client->kept, request, lease_ns, now_ns);
    }
    deliver(client, &result);
}

static void settle_query(struct kvfi_directory_client *client, struct kvfi_directory_request *request)
{
    struct kvfi_directory_result result = {.kind = KVFI_DIRECTORY_ANSWER, .cookie = request->cookie};
    struct kvf_error error;

    if (kvfi_instance_read(&request->exchange.answer, &result.instance, &error) != KVF_OK) {
        result.status = KVF_ERR_DIRECTORY;
        snprintf(result.text, sizeof result.text, "%.180s: answer makes no sense: %.280s", request->exchange.url.bytes,
                 error.text);
    }
    deliver(client, &result);
}

static void settle_success(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                           int64_t now_ns)
{
    if (request->kind == KVFI_REQUEST_REGISTER) settle_register(client, request, now_ns);
    else if (request->kind == KVFI_REQUEST_QUERY) settle_query(client, request);
    else deliver_status(client, KVFI_DIRECTORY_WITHDRAWN, request->cookie, KVF_OK, "");
}

static void settle_refusal(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                           const struct kvfi_outcome *outcome)
{
    bool gone = outcome->code == 404 || outcome->code == 409;

    if (request->kind == KVFI_REQUEST_WITHDRAW && gone)
        deliver_status(client, KVFI_DIRECTORY_WITHDRAWN, request->cookie, KVF_OK, "");
    else if (request->kind == KVFI_REQUEST_QUERY && outcome->code == 404)
        kvfi_directory_client_fail(client, request, KVF_ERR_NOT_FOUND, outcome->text);
    else
        kvfi_directory_client_fail(client, request, KVF_ERR_DIRECTORY, outcome->text);
}

/** Plans another try, or gives up at the deadline. Returns true when the request is over. */
static bool try_again(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                      const struct kvfi_outcome *outcome, int64_t now_ns)
{
    int64_t pause_ns = FIRST_PAUSE_NS, left_ns = request->deadline_ns - now_ns;
    char text[KVF_ERROR_TEXT_BYTES];

    if (outcome->code != 0) snprintf(request->said, sizeof request->said, "%s", outcome->text);
    for (int64_t i = 1; i < request->tries && pause_ns < LONGEST_PAUSE_NS; i++) pause_ns *= 2;
    if (left_ns <= 2 * SHORTEST_TRY_NS) {
        /* What it said tells more than that the last and shortest try got no answer in time. */
        snprintf(text, sizeof text, "%.450s (tried %" PRId64 " times)",
                 request->said[0] != '\0' ? request->said : outcome->text, request->tries);
        kvfi_directory_client_fail(client, request, KVF_ERR_DIRECTORY, text);
        return true;
    }
    if (pause_ns > left_ns - SHORTEST_TRY_NS) pause_ns = left_ns - SHORTEST_TRY_NS;
    request->next_try_ns = now_ns + pause_ns;
    return false;
}

bool kvfi_directory_client_settle(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                                  CURLcode result, int64_t now_ns)
{
    struct kvfi_outcome outcome;

    kvfi_exchange_judge(&request->exchange, result, &outcome);
    if (request->kind == KVFI_REQUEST_RENEW || request->kind == KVFI_REQUEST_REGISTER_ANEW)
        return settle_kept(client, request, &outcome, now_ns);
    if (outcome.code == 200) settle_success(client, request, now_ns);
    else if (outcome.try_again) return try_again(client, request, &outcome, now_ns);
    else settle_refusal(client, request, &outcome);
    return true;
}
