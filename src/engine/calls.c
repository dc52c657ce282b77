/* SPDX-License-Identifier: Apache-2.0 */
/* Offer, pull, ready, cancel: checked in the caller's thread, then posted. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bounds.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "engine/jobs.h"

#define DEFAULT_TIMEOUT_NS (60 * KVFI_SECOND)
#define MAX_TIMEOUT_NS (24 * 3600 * KVFI_SECOND)

void kvf_offer_init(struct kvf_offer *offer, size_t size)
{
    kvfi_struct_init(offer, size, NULL, 0);
}

void kvf_pull_init(struct kvf_pull *pull, size_t size)
{
    kvfi_struct_init(pull, size, NULL, 0);
}

/* ---- checks ------------------------------------------------------------------------------------------------ */

static enum kvf_status check_name(const char *object, const char *text, size_t limit, struct kvf_error *error)
{
    size_t bytes = text == NULL ? 0 : strlen(text);

    if (bytes == 0 || bytes >= limit)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s has %zu bytes, expected 1 to %zu", object, bytes,
                         limit - 1);
    return KVF_OK;
}

/* 0 means default. */
static int64_t set_timeout(int64_t *timeout_ns)
{
    if (*timeout_ns == 0)
        *timeout_ns = DEFAULT_TIMEOUT_NS;
    return *timeout_ns;
}

static enum kvf_status check_offer(const kvf_engine *engine, struct kvf_offer *offer, struct kvf_error *error)
{
    const struct kvfi_bounds rows[] = {
        {"attempt", offer->attempt, 0, INT64_MAX},
        {"request_tokens", offer->request_tokens, 0, INT64_MAX / 2},
        {"ready_tokens", offer->ready_tokens, 0, offer->request_tokens},
        {"timeout_ns", set_timeout(&offer->timeout_ns), KVFI_MS, MAX_TIMEOUT_NS},
    };
    enum kvf_status status = check_name("transfer id", offer->transfer, KVF_TRANSFER_ID_BYTES, error);

    if (status == KVF_OK)
        status = kvfi_check_bounds(NULL, rows, sizeof rows / sizeof rows[0], error);
    if (status == KVF_OK)
        status = kvfi_block_ids_check(engine->layout, offer->groups, offer->group_count, 0, offer->request_tokens,
                                      error);
    return status;
}

static enum kvf_status check_pull(const kvf_engine *engine, struct kvf_pull *pull, struct kvf_error *error)
{
    const struct kvfi_bounds rows[] = {
        {"attempt", pull->attempt, 0, INT64_MAX},
        {"request_tokens", pull->request_tokens, 0, INT64_MAX / 2},
        {"token_end", pull->token_end, 0, pull->request_tokens},
        {"token_begin", pull->token_begin, 0, pull->token_end},
        {"timeout_ns", set_timeout(&pull->timeout_ns), KVFI_MS, MAX_TIMEOUT_NS},
    };
    enum kvf_status status = check_name("transfer id", pull->transfer, KVF_TRANSFER_ID_BYTES, error);

    if (status == KVF_OK)
        status = check_name("from (the prefill instance)", pull->from, KVF_INSTANCE_NAME_BYTES, error);
    if (status == KVF_OK)
        status = kvfi_check_bounds(NULL, rows, sizeof rows / sizeof rows[0], error);
    if (status == KVF_OK && (pull->flags & ~(uint64_t)KVF_PULL_AWAIT_INSTANCE) != 0)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "flags are 0x%" PRIx64 ", only 0x%x is known", pull->flags,
                           (unsigned)KVF_PULL_AWAIT_INSTANCE);
    if (status == KVF_OK)
        status = kvfi_block_ids_check(engine->layout, pull->groups, pull->group_count, pull->token_begin,
                                      pull->token_end, error);
    return status;
}

static enum kvf_status check_open(const kvf_engine *engine, struct kvf_error *error)
{
    if (engine->draining)
        return kvfi_fail(error, KVF_ERR_CLOSED, "%s drains: it takes no new offers and pulls", engine->self);
    if (!engine->announced)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s is not announced yet", engine->self);
    return KVF_OK;
}

/* Takes room for the two last events and enters the ledger: all or nothing. The lock is held. */
static enum kvf_status accept(kvf_engine *engine, bool is_offer, const char *transfer, int64_t attempt, int64_t tokens,
                              struct kvfi_event_node **terminal, struct kvfi_event_node **reusable,
                              struct kvf_error *error)
{
    enum kvf_status status = check_open(engine, error);

    if (status != KVF_OK)
        return status;
    *terminal = kvfi_events_reserve(&engine->events);
    *reusable = kvfi_events_reserve(&engine->events);
    if (*terminal == NULL || *reusable == NULL)
        status = kvfi_fail(error, KVF_ERR_AGAIN, "no room for the events of one more transfer: %" PRId64
                           " are queued, %" PRId64 " are to come, the capacity is %" PRId64, engine->events.queued,
                           engine->events.reserved, engine->events.capacity);
    if (status == KVF_OK)
        status = kvfi_ledger_begin(&engine->ledger, is_offer, transfer, attempt, tokens, error);
    if (status != KVF_OK) {
        kvfi_events_cancel(&engine->events, *terminal);
        kvfi_events_cancel(&engine->events, *reusable);
        *terminal = *reusable = NULL;
        return status;
    }
    *(is_offer ? &engine->counters.offers_active : &engine->counters.pulls_active) += 1;
    engine->counters.blocks_held++;
    return KVF_OK;
}

/* ---- offer ------------------------------------------------------------------------------------------------- */

static struct kvfi_offer_job *make_offer(kvf_engine *engine, const struct kvf_offer *own)
{
    struct kvfi_offer_job *offer = calloc(1, sizeof *offer);

    if (offer == NULL)
        return NULL;
    offer->groups = kvfi_block_ids_copy(own->groups, own->group_count);
    offer->ready = kvfi_alloc_array(engine->layer_count, sizeof *offer->ready);
    if (offer->groups == NULL || offer->ready == NULL) {
        kvfi_offer_destroy(engine, offer);
        return NULL;
    }
    snprintf(offer->transfer, sizeof offer->transfer, "%s", own->transfer);
    offer->attempt = own->attempt;
    offer->request_tokens = own->request_tokens;
    offer->timeout_ns = own->timeout_ns;
    offer->group_count = own->group_count;
    for (size_t i = 0; i < engine->layer_count; i++)
        offer->ready[i] = own->ready_tokens;
    return offer;
}

enum kvf_status kvf_engine_offer(kvf_engine *engine, const struct kvf_offer *offer, struct kvf_error *error)
{
    struct kvf_offer own = {.struct_size = sizeof own};
    struct kvfi_offer_job *job = NULL;
    struct kvfi_command *command = NULL;
    enum kvf_status status = kvfi_options_copy(&own, sizeof own, offer, "offer", error);

    if (status == KVF_OK)
        status = check_offer(engine, &own, error);
    if (status != KVF_OK)
        goto done;
    job = make_offer(engine, &own);
    command = calloc(1, sizeof *command);
    if (job == NULL || command == NULL) {
        status = kvfi_fail_memory(error, "an offer");
        goto done;
    }
    job->started_ns = kvfi_now_ns();
    pthread_mutex_lock(&engine->loop.lock);
    status = accept(engine, true, job->transfer, job->attempt, job->request_tokens, &job->terminal, &job->reusable,
                    error);
    if (status == KVF_OK) {
        command->kind = KVFI_COMMAND_OFFER;
        command->offer = job;
        kvfi_command_post(engine, command);
        job = NULL;
        command = NULL;
    }
    pthread_mutex_unlock(&engine->loop.lock);
done:
    kvfi_offer_destroy(engine, job);
    free(command);
    return status;
}

/* ---- pull -------------------------------------------------------------------------------------------------- */

static struct kvfi_pull_job *make_pull(const struct kvf_pull *own)
{
    struct kvfi_pull_job *pull = calloc(1, sizeof *pull);

    if (pull == NULL)
        return NULL;
    pull->groups = kvfi_block_ids_copy(own->groups, own->group_count);
    if (pull->groups == NULL) {
        free(pull);
        return NULL;
    }
    snprintf(pull->transfer, sizeof pull->transfer, "%s", own->transfer);
    snprintf(pull->from, sizeof pull->from, "%s", own->from);
    pull->attempt = own->attempt;
    pull->request_tokens = own->request_tokens;
    pull->token_begin = own->token_begin;
    pull->token_end = own->token_end;
    pull->timeout_ns = own->timeout_ns;
    pull->flags = own->flags;
    pull->group_count = own->group_count;
    pull->started_ns = kvfi_now_ns();
    return pull;
}

enum kvf_status kvf_engine_pull(kvf_engine *engine, const struct kvf_pull *pull, struct kvf_error *error)
{
    struct kvf_pull own = {.struct_size = sizeof own};
    struct kvfi_pull_job *job = NULL;
    struct kvfi_command *command = NULL;
    enum kvf_status status = kvfi_options_copy(&own, sizeof own, pull, "pull", error);

    if (status == KVF_OK)
        status = check_pull(engine, &own, error);
    if (status != KVF_OK)
        goto done;
    job = make_pull(&own);
    command = calloc(1, sizeof *command);
    if (job == NULL || command == NULL) {
        status = kvfi_fail_memory(error, "a pull");
        goto done;
    }
    pthread_mutex_lock(&engine->loop.lock);
    status = accept(engine, false, job->transfer, job->attempt, job->request_tokens, &job->terminal, &job->reusable,
                    error);
    if (status == KVF_OK) {
        command->kind = KVFI_COMMAND_PULL;
        command->pull = job;
        kvfi_command_post(engine, command);
        job = NULL;
        command = NULL;
    }
    pthread_mutex_unlock(&engine->loop.lock);
done:
    kvfi_pull_destroy(engine, job);
    free(command);
    return status;
}

/* ---- ready and cancel -------------------------------------------------------------------------------------- */

static struct kvfi_command *make_command(enum kvfi_command_kind kind, const char *transfer, int64_t attempt,
                                         struct kvf_error *error)
{
    struct kvfi_command *command = calloc(1, sizeof *command);

    if (command == NULL) {
        kvfi_fail_memory(error, "a command");
        return NULL;
    }
    command->kind = kind;
    command->attempt = attempt;
    snprintf(command->transfer, sizeof command->transfer, "%s", transfer);
    return command;
}

static enum kvf_status check_ready(kvf_engine *engine, const struct kvfi_command *command, struct kvf_error *error)
{
    struct kvfi_ledger_entry *entry = kvfi_ledger_find(&engine->ledger, true, command->transfer);
    int64_t first = engine->layer_count == 0 ? 0 : engine->layers[0];
    int64_t end = engine->layer_count == 0 ? 0 : engine->layers[engine->layer_count - 1] + 1;

    if (entry == NULL || entry->attempt != command->attempt || entry->ended)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "transfer \"%s\" attempt %" PRId64 " is not on offer",
                         command->transfer, command->attempt);
    if (command->layer_first < first || command->layer_end > end || command->layer_first > command->layer_end)
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "layers [%" PRId64 ", %" PRId64 "), the layout has [%" PRId64
                         ", %" PRId64 ")", command->layer_first, command->layer_end, first, end);
    if (command->ready_tokens < 0 || command->ready_tokens > entry->request_tokens)
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "ready_tokens is %" PRId64 ", transfer \"%s\" has %" PRId64
                         " tokens", command->ready_tokens, command->transfer, entry->request_tokens);
    return KVF_OK;
}

enum kvf_status kvf_engine_offer_ready(kvf_engine *engine, const char *transfer, int64_t attempt, int64_t layer_first,
                                       int64_t layer_end, int64_t ready_tokens, struct kvf_error *error)
{
    enum kvf_status status = check_name("transfer id", transfer, KVF_TRANSFER_ID_BYTES, error);
    struct kvfi_command *command;

    if (status != KVF_OK)
        return status;
    command = make_command(KVFI_COMMAND_READY, transfer, attempt, error);
    if (command == NULL)
        return KVF_ERR_NO_MEMORY;
    command->layer_first = layer_first;
    command->layer_end = layer_end;
    command->ready_tokens = ready_tokens;
    pthread_mutex_lock(&engine->loop.lock);
    status = check_ready(engine, command, error);
    if (status == KVF_OK) {
        kvfi_command_post(engine, command);
        command = NULL;
    }
    pthread_mutex_unlock(&engine->loop.lock);
    free(command);
    return status;
}

enum kvf_status kvf_engine_cancel(kvf_engine *engine, const char *transfer, int64_t attempt, struct kvf_error *error)
{
    enum kvf_status status = check_name("transfer id", transfer, KVF_TRANSFER_ID_BYTES, error);
    struct kvfi_command *command;
    bool known = false;

    if (status != KVF_OK)
        return status;
    command = make_command(KVFI_COMMAND_CANCEL, transfer, attempt, error);
    if (command == NULL)
        return KVF_ERR_NO_MEMORY;
    pthread_mutex_lock(&engine->loop.lock);
    for (int offer = 0; offer < 2; offer++) {
        struct kvfi_ledger_entry *entry = kvfi_ledger_find(&engine->ledger, offer == 1, transfer);
        known = known || (entry != NULL && entry->attempt >= attempt);
    }
    if (known) {
        kvfi_command_post(engine, command);
        command = NULL;
    } else {
        status = kvfi_fail(error, KVF_ERR_NOT_FOUND, "transfer \"%s\" attempt %" PRId64 " is not known here", transfer,
                           attempt);
    }
    pthread_mutex_unlock(&engine->loop.lock);
    free(command);
    return status;
}
