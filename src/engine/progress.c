/* SPDX-License-Identifier: Apache-2.0 */
/* What the loop watches and calls. Nothing here blocks. */
#include "engine/jobs.h"
#include "engine/links.h"

void kvfi_bury(kvf_engine *engine)
{
    while (engine->dead_pulls != NULL) {
        struct kvfi_pull_job *pull = engine->dead_pulls;
        engine->dead_pulls = pull->next_dead;
        kvfi_pull_destroy(engine, pull);
    }
    while (engine->dead_offers != NULL) {
        struct kvfi_offer_job *offer = engine->dead_offers;
        engine->dead_offers = offer->next_dead;
        kvfi_offer_destroy(engine, offer);
    }
}

static void take_carrier_events(kvf_engine *engine, size_t number)
{
    const struct kvfi_carrier *carrier = &engine->carriers[number];
    size_t count;

    do {
        count = carrier->ops->events(carrier->transport, engine->batch, KVFI_EVENT_BATCH);
        for (size_t i = 0; i < count; i++) {
            const struct kvfi_transport_event *event = &engine->batch[i];
            if (event->kind == KVFI_TEV_POSTED)
                kvfi_post_ended(engine, event);
            else if (event->kind == KVFI_TEV_CONNECTED || event->kind == KVFI_TEV_PEER_DOWN)
                kvfi_links_on_event(engine, number, event);
            else
                kvfi_writers_on_event(engine, number, event);
        }
    } while (count == KVFI_EVENT_BATCH);
}

void kvfi_carriers_dispatch(kvf_engine *engine)
{
    for (size_t i = 0; i < engine->carrier_count; i++)
        take_carrier_events(engine, i);
}

/* ---- what the loop calls ----------------------------------------------------------------------------------- */

static void on_channel(void *owner, struct kvfi_watch *watch)
{
    (void)watch;
    (void)kvfi_inbox_dispatch(owner);
}

static void on_directory(void *owner, struct kvfi_watch *watch)
{
    (void)watch;
    kvfi_directory_dispatch(owner);
}

static void on_carrier(void *owner, struct kvfi_watch *watch)
{
    const struct kvfi_carrier *carrier = KVFI_HOLDER(watch, struct kvfi_carrier, watch);
    kvf_engine *engine = owner;

    take_carrier_events(engine, (size_t)(carrier - engine->carriers));
}

static void take_arrivals(void *owner) { (void)kvfi_inbox_dispatch(owner); }

static void end_turn(void *owner) { kvfi_bury(owner); }

static void forgive(void *owner, int64_t late_ns)
{
    (void)late_ns;
    kvfi_peers_forgive(owner);
}

enum kvf_status kvfi_progress_init(kvf_engine *engine, struct kvf_error *error)
{
    const struct kvfi_loop_hooks hooks = {.before_timers = take_arrivals, .end_turn = end_turn,
                                          .stood_still = forgive,
                                          .patience_ns = engine->settings.peer_timeout_ns / 4};

    return kvfi_loop_init(&engine->loop, engine, &hooks, error);
}

enum kvf_status kvfi_progress_watch(kvf_engine *engine, struct kvf_error *error)
{
    enum kvf_status status;

    engine->channel_watch = (struct kvfi_watch){kvfi_channel_fd(engine->channel), on_channel};
    engine->directory_watch = (struct kvfi_watch){kvfi_directory_client_fd(engine->client), on_directory};
    status = kvfi_loop_watch(&engine->loop, &engine->channel_watch, error);
    if (status == KVF_OK)
        status = kvfi_loop_watch(&engine->loop, &engine->directory_watch, error);
    for (size_t i = 0; status == KVF_OK && i < engine->carrier_count; i++) {
        struct kvfi_carrier *carrier = &engine->carriers[i];
        carrier->watch = (struct kvfi_watch){carrier->ops->event_fd(carrier->transport), on_carrier};
        status = kvfi_loop_watch(&engine->loop, &carrier->watch, error);
    }
    return status;
}
