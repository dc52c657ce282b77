/* SPDX-License-Identifier: Apache-2.0 */
/* From the callers' threads to the progress thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"

struct kvf_event *kvfi_event_of(struct kvfi_event_node *node)
{
    return node == NULL ? NULL : (struct kvf_event *)(void *)node->record;
}

void kvfi_report_peer_lost(kvf_engine *engine, const struct kvfi_peer *peer)
{
    struct kvfi_event_node *node;
    struct kvf_event *event;

    pthread_mutex_lock(&engine->loop.lock);
    node = kvfi_events_reserve(&engine->events);
    if (node != NULL) {
        event = kvfi_event_of(node);
        event->kind = KVF_EVENT_PEER_LOST;
        event->status = peer->error.status;
        event->ended_ns = kvfi_now_ns();
        snprintf(event->peer, sizeof event->peer, "%s", peer->name);
        memcpy(event->text, peer->error.text, sizeof event->text);
        kvfi_events_push(&engine->events, node);
        pthread_cond_broadcast(&engine->loop.changed);
    }
    pthread_mutex_unlock(&engine->loop.lock);
}

static void announce(kvf_engine *engine)
{
    struct kvfi_registration registration = {
        .instance = engine->settings.instance, .incarnation = engine->incarnation, .rank = engine->settings.rank,
        .ranks_expected = engine->settings.ranks_expected, .channel = kvfi_channel_endpoint(engine->channel),
        .model = engine->settings.model, .holdings = engine->holdings};
    struct kvf_error error = {.position = -1};

    if (kvfi_directory_client_register(engine->client, &registration, ++engine->next_cookie,
                                       engine->settings.directory_timeout_ns, &error) == KVF_OK)
        return;
    pthread_mutex_lock(&engine->loop.lock);
    engine->announcing = false;
    engine->announce_error = error;
    pthread_cond_broadcast(&engine->loop.changed);
    pthread_mutex_unlock(&engine->loop.lock);
}

static void cancel_pull(kvf_engine *engine, struct kvfi_pull_job *pull, const char *why)
{
    if (kvfi_transfer_ended(&pull->life))
        return;
    snprintf(pull->text, sizeof pull->text, "transfer \"%s\" attempt %" PRId64 " was cancelled: %s", pull->transfer,
             pull->attempt, why);
    kvfi_pull_feed(engine, pull, KVFI_TRANSFER_ON_CANCEL, KVF_OK, 0);
}

static void cancel_offer(kvf_engine *engine, struct kvfi_offer_job *offer, const char *why)
{
    if (kvfi_offer_ended(&offer->life))
        return;
    snprintf(offer->text, sizeof offer->text, "transfer \"%s\" attempt %" PRId64 " was cancelled: %s", offer->transfer,
             offer->attempt, why);
    kvfi_offer_feed(engine, offer, KVFI_OFFER_ON_CANCEL, KVF_OK, 0);
}

static void cancel(kvf_engine *engine, const struct kvfi_command *command)
{
    struct kvfi_pull_job *pull = kvfi_pull_find(engine, command->transfer, command->attempt);
    struct kvfi_offer_job *offer = kvfi_offer_find(engine, command->transfer, command->attempt);

    if (pull != NULL)
        cancel_pull(engine, pull, "by its caller at the decode side");
    if (offer != NULL)
        cancel_offer(engine, offer, "by its caller at the prefill side");
}

/* Ended ones stay in the tables until the end of the turn, so the walk is safe. */
static void end_all(kvf_engine *engine)
{
    for (size_t i = 0; i < engine->pulls.bucket_count; i++)
        for (struct kvfi_link *link = engine->pulls.buckets[i]; link != NULL; link = link->next)
            cancel_pull(engine, KVFI_HOLDER(link, struct kvfi_pull_job, link), "the decode engine closes");
    for (size_t i = 0; i < engine->offers.bucket_count; i++)
        for (struct kvfi_link *link = engine->offers.buckets[i]; link != NULL; link = link->next)
            cancel_offer(engine, KVFI_HOLDER(link, struct kvfi_offer_job, link), "the prefill engine closes");
    if (kvfi_directory_client_withdraw(engine->client, ++engine->next_cookie, KVFI_SECOND / 2, NULL) != KVF_OK) {
        pthread_mutex_lock(&engine->loop.lock);
        engine->withdrawn = true;
        pthread_cond_broadcast(&engine->loop.changed);
        pthread_mutex_unlock(&engine->loop.lock);
    }
}

static void ready(kvf_engine *engine, const struct kvfi_command *command)
{
    struct kvfi_offer_job *offer = kvfi_offer_find(engine, command->transfer, command->attempt);

    if (offer != NULL && !kvfi_offer_ended(&offer->life))
        kvfi_offer_ready(engine, offer, command->layer_first, command->layer_end, command->ready_tokens);
}

static void run(void *owner, struct kvfi_loop_command *base)
{
    struct kvfi_command *command = KVFI_HOLDER(base, struct kvfi_command, base);
    kvf_engine *engine = owner;

    switch (command->kind) {
    case KVFI_COMMAND_PULL:
        kvfi_pull_begin(engine, command->pull);
        break;
    case KVFI_COMMAND_OFFER:
        kvfi_offer_begin(engine, command->offer);
        break;
    case KVFI_COMMAND_READY:
        ready(engine, command);
        break;
    case KVFI_COMMAND_CANCEL:
        cancel(engine, command);
        break;
    case KVFI_COMMAND_ANNOUNCE:
        announce(engine);
        break;
    default:
        end_all(engine);
        break;
    }
    free(command);
}

static void drop(void *owner, struct kvfi_loop_command *base)
{
    struct kvfi_command *command = KVFI_HOLDER(base, struct kvfi_command, base);
    kvf_engine *engine = owner;

    if (command->pull != NULL) {
        kvfi_events_cancel(&engine->events, command->pull->terminal);
        kvfi_events_cancel(&engine->events, command->pull->reusable);
        kvfi_pull_destroy(engine, command->pull);
    }
    if (command->offer != NULL) {
        kvfi_events_cancel(&engine->events, command->offer->terminal);
        kvfi_events_cancel(&engine->events, command->offer->reusable);
        kvfi_offer_destroy(engine, command->offer);
    }
    free(command);
}

void kvfi_command_post(kvf_engine *engine, struct kvfi_command *command)
{
    command->base.run = run;
    command->base.drop = drop;
    kvfi_loop_post(&engine->loop, &command->base);
}
