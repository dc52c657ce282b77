/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: sleeps until something is due, then does it. Nothing here blocks. */
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

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

static void run_commands(kvf_engine *engine)
{
    struct kvfi_command *command;
    uint64_t value;

    if (read(engine->wake_fd, &value, sizeof value) < 0) {
        /* nothing to reset */
    }
    pthread_mutex_lock(&engine->lock);
    command = engine->commands_head;
    engine->commands_head = engine->commands_tail = NULL;
    pthread_mutex_unlock(&engine->lock);
    while (command != NULL) {
        struct kvfi_command *next = command->next;
        kvfi_command_run(engine, command);
        command = next;
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

static int wait_ms(const kvf_engine *engine, int64_t wait_ns, int64_t now)
{
    int64_t due = kvfi_timers_due(&engine->timers), left = wait_ns;

    if (due != INT64_MAX && due - now < left)
        left = due - now;
    if (left <= 0)
        return 0;
    if (left > 3600 * KVFI_SECOND)
        return left == INT64_MAX ? -1 : 3600 * 1000;
    return (int)((left + KVFI_MS - 1) / KVFI_MS);
}

/* When this process stood still (stopped, starved, or not called), the silence of others says nothing. */
static void forgive_after(kvf_engine *engine, int64_t late_ns)
{
    if (late_ns > engine->settings.peer_timeout_ns / 4)
        kvfi_peers_forgive(engine);
}

static void run_timers(kvf_engine *engine)
{
    int64_t now = kvfi_now_ns();
    struct kvfi_timer *timer;

    if (kvfi_timers_due(&engine->timers) <= now)
        (void)kvfi_inbox_dispatch(engine); /* what has arrived counts before any deadline does */
    while ((timer = kvfi_timers_take(&engine->timers, now)) != NULL)
        timer->fire(engine, timer);
}

void kvfi_turn(kvf_engine *engine, int64_t wait_ns)
{
    struct epoll_event ready[KVFI_MAX_TRANSPORTS + 3];
    int64_t now = kvfi_now_ns(), wake;
    int count, ms = wait_ms(engine, wait_ns, now);

    if (engine->turn_ns != 0)
        forgive_after(engine, now - engine->turn_ns);
    wake = ms < 0 ? INT64_MAX : now + ms * KVFI_MS;
    count = epoll_wait(engine->epoll_fd, ready, KVFI_MAX_TRANSPORTS + 3, ms);
    engine->turn_ns = kvfi_now_ns();
    if (engine->turn_ns > wake)
        forgive_after(engine, engine->turn_ns - wake);
    for (int i = 0; i < count; i++) {
        switch (ready[i].data.u32) {
        case KVFI_WATCH_WAKE:
            run_commands(engine);
            break;
        case KVFI_WATCH_CHANNEL:
            (void)kvfi_inbox_dispatch(engine);
            break;
        case KVFI_WATCH_DIRECTORY:
            kvfi_directory_dispatch(engine);
            break;
        default:
            take_carrier_events(engine, ready[i].data.u32 - KVFI_WATCH_CARRIER);
            break;
        }
    }
    run_timers(engine);
    kvfi_bury(engine);
}

void *kvfi_progress_main(void *context)
{
    kvf_engine *engine = context;

    while (!atomic_load(&engine->stop))
        kvfi_turn(engine, INT64_MAX);
    return NULL;
}
