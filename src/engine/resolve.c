/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for two complete instances, and electing between them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/instances.h"

enum { MAX_MATCHES = 1024 };

/* ---- matches ----------------------------------------------------------------------------------------------- */

struct kvfi_match *kvfi_match_acquire(struct kvfi_match *match)
{
    match->references++;
    return match;
}

void kvfi_match_release(struct kvfi_match *match)
{
    if (match == NULL || --match->references > 0)
        return;
    kvf_election_destroy(match->election);
    kvfi_view_release(match->source);
    kvfi_view_release(match->destination);
    free(match);
}

void kvfi_matches_drop(kvf_engine *engine, const struct kvfi_view *view)
{
    struct kvfi_match **at = &engine->matches;

    while (*at != NULL) {
        struct kvfi_match *match = *at;
        if (view == NULL || match->source == view || match->destination == view) {
            *at = match->next;
            engine->match_count--;
            kvfi_match_release(match);
        } else {
            at = &match->next;
        }
    }
}

static void bound_matches(kvf_engine *engine)
{
    struct kvfi_match **at = &engine->matches;

    while (engine->match_count > MAX_MATCHES && *at != NULL) {
        if ((*at)->next == NULL) {
            struct kvfi_match *last = *at;
            *at = NULL;
            engine->match_count--;
            kvfi_match_release(last);
        } else {
            at = &(*at)->next;
        }
    }
}

static struct kvfi_match *find_match(const kvf_engine *engine, const struct kvfi_view *source,
                                     const struct kvfi_view *destination, size_t index)
{
    struct kvfi_match *match = engine->matches;

    while (match != NULL &&
           !(match->source == source && match->destination == destination && match->destination_index == index))
        match = match->next;
    return match;
}

/* The cached match, or a new one; the cache holds it. */
static enum kvf_status get_match(kvf_engine *engine, struct kvfi_view *source, struct kvfi_view *destination,
                                 size_t index, bool check_places, struct kvfi_match **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_match *match = find_match(engine, source, destination, index);

    if (match != NULL)
        goto done;
    match = calloc(1, sizeof *match);
    if (match == NULL) {
        status = kvfi_fail_memory(error, "an election");
        goto done;
    }
    status = kvf_elect(source->members, kvfi_view_ranks(source), destination->members, kvfi_view_ranks(destination),
                       index, &match->election, error);
    if (status == KVF_OK && check_places)
        status = kvf_election_check_places(match->election, engine->layout, error);
    if (status != KVF_OK) {
        kvf_election_destroy(match->election);
        free(match);
        goto done;
    }
    source->references++;
    destination->references++;
    match->references = 1;
    match->source = source;
    match->destination = destination;
    match->destination_index = index;
    match->next = engine->matches;
    engine->matches = match;
    engine->match_count++;
    bound_matches(engine);
done:
    if (status == KVF_OK)
        *out = match;
    return status;
}

/* ---- wishes ------------------------------------------------------------------------------------------------ */

enum readiness { WAITING, INCOMPLETE, USABLE, FAILED };

/* Is what is known of one instance good enough? */
static enum readiness look(kvf_engine *engine, struct kvfi_resolve *resolve, struct kvfi_instance *instance,
                           struct kvf_error *error)
{
    const struct kvfi_directory_instance *known;

    known = instance->view == NULL ? NULL : instance->view->answer.instance;
    if (instance->answered_ns < resolve->fresh_ns) {
        kvfi_instance_ask(engine, instance);
        /* with the directory down, what it said last is used at once, not after a wait for each transfer */
        return instance->last.status == KVF_ERR_DIRECTORY && known != NULL && known->complete ? USABLE : WAITING;
    }
    if (instance->last.status == KVF_ERR_NOT_FOUND) {
        kvfi_fail(error, KVF_ERR_NOT_FOUND, "instance \"%s\" is not known to the directory at %s", instance->name,
                  kvf_engine_directory_url(engine));
        if (known != NULL) /* known once: the directory may have been restarted */
            return INCOMPLETE;
        if (!resolve->await_source || strcmp(instance->name, resolve->source) != 0)
            return FAILED;
        if (!resolve->told)
            kvfi_logf(&engine->log, KVF_LOG_WARN, "%s waits: %s", engine->self, error->text);
        resolve->told = true;
        return INCOMPLETE;
    }
    if (instance->last.status != KVF_OK && (known == NULL || !known->complete)) {
        *error = instance->last;
        return FAILED;
    }
    if (!known->complete) {
        kvfi_fail(error, KVF_ERR_INCOMPLETE, "instance \"%s\" is not complete: %" PRId64 " of %" PRId64
                  " ranks registered", instance->name, known->registered, known->expected);
        return INCOMPLETE;
    }
    return USABLE;
}

static enum kvf_status check_rank(kvf_engine *engine, struct kvfi_resolve *resolve, const struct kvfi_view *view,
                                  size_t index, struct kvf_error *error)
{
    char name[KVFI_PEER_NAME_BYTES];

    (void)engine;
    kvfi_peer_name(name, resolve->destination, &resolve->rank);
    if (index == kvfi_view_ranks(view))
        return kvfi_fail(error, KVF_ERR_STALE, "%s is not among the ranks that the directory lists", name);
    if (kvfi_view_rank(view, index)->incarnation != resolve->incarnation)
        return kvfi_fail(error, KVF_ERR_STALE, "%s is registered by another process: incarnation %016" PRIx64
                         ", expected %016" PRIx64, name, kvfi_view_rank(view, index)->incarnation,
                         resolve->incarnation);
    return KVF_OK;
}

/* What is known is older than the wish, and the directory's silence makes it no newer. */
static void ask_for_newer(kvf_engine *engine, struct kvfi_resolve *resolve, struct kvfi_instance *instance, int64_t now)
{
    resolve->fresh_ns = resolve->began_ns;
    if (now - instance->asked_ns >= KVFI_ASK_AGAIN_NS)
        kvfi_instance_ask(engine, instance);
    if (!engine->resolve_timer.armed)
        kvfi_timer_arm(&engine->loop.timers, &engine->resolve_timer, now + KVFI_ASK_AGAIN_NS);
}

/* Returns true when there is an answer: a match, or an error in `error`. */
static bool evaluate(kvf_engine *engine, struct kvfi_resolve *resolve, int64_t now, struct kvfi_match **match,
                     struct kvf_error *error)
{
    struct kvfi_instance *source, *destination;
    enum readiness a, b;
    struct kvf_error other;
    size_t index;

    if (resolve->from == NULL)
        resolve->from = kvfi_instance_get(engine, resolve->source);
    if (resolve->to == NULL)
        resolve->to = kvfi_instance_get(engine, resolve->destination);
    source = resolve->from;
    destination = resolve->to;
    if (source == NULL || destination == NULL) {
        kvfi_fail_memory(error, "an instance");
        return true;
    }
    a = look(engine, resolve, source, error);
    b = look(engine, resolve, destination, a == FAILED || a == INCOMPLETE ? &other : error);
    if (a == FAILED || b == FAILED)
        return true;
    if (a != USABLE || b != USABLE) {
        if (a == WAITING && b == WAITING)
            kvfi_fail(error, KVF_ERR_DIRECTORY, "the directory at %s did not answer in time",
                      kvf_engine_directory_url(engine));
        resolve->again = a != WAITING && b != WAITING;
        if (resolve->again && !engine->resolve_timer.armed)
            kvfi_timer_arm(&engine->loop.timers, &engine->resolve_timer, now + KVFI_ASK_AGAIN_NS);
        return (a == INCOMPLETE || b == INCOMPLETE) && now >= resolve->deadline_ns;
    }
    index = kvfi_view_find(destination->view, &resolve->rank);
    if (check_rank(engine, resolve, destination->view, index, error) != KVF_OK) {
        bool silent = destination->last.status == KVF_ERR_DIRECTORY;
        if (silent ? now >= resolve->deadline_ns : destination->answered_ns >= resolve->began_ns) {
            if (silent)
                *error = destination->last;
            return true;
        }
        ask_for_newer(engine, resolve, destination, now);
        return false;
    }
    if (get_match(engine, source->view, destination->view, index, resolve->check_places, match, error) != KVF_OK)
        *match = NULL;
    return true;
}

void kvfi_resolve_cancel(kvf_engine *engine, struct kvfi_resolve *resolve)
{
    if (!resolve->pending)
        return;
    *(resolve->previous == NULL ? &engine->resolves : &resolve->previous->next) = resolve->next;
    if (resolve->next != NULL)
        resolve->next->previous = resolve->previous;
    resolve->previous = resolve->next = NULL;
    resolve->pending = false;
}

/* A callback may begin and cancel wishes, so the walk starts anew after each, but looks at none twice. */
void kvfi_resolves_run(kvf_engine *engine)
{
    struct kvfi_resolve *resolve = engine->resolves;
    uint64_t round = ++engine->resolve_round;
    int64_t now = kvfi_now_ns();

    while (resolve != NULL) {
        struct kvfi_match *match = NULL;
        struct kvf_error error = {.status = KVF_ERR_INTERNAL, .position = -1};
        if (resolve->round == round) {
            resolve = resolve->next;
            continue;
        }
        resolve->round = round;
        if (evaluate(engine, resolve, now, &match, &error)) {
            kvfi_resolve_cancel(engine, resolve);
            resolve->done(engine, resolve, match, &error);
            resolve = engine->resolves;
        } else {
            resolve = resolve->next;
        }
    }
}

/* New wishes are looked at; those that wait for something incomplete ask again. */
static void ask_again(void *owner, struct kvfi_timer *timer)
{
    kvf_engine *engine = owner;
    int64_t now = kvfi_now_ns();

    (void)timer;
    for (struct kvfi_resolve *r = engine->resolves; r != NULL; r = r->next) {
        if (r->again && now < r->deadline_ns)
            r->fresh_ns = now;
        r->again = false;
    }
    kvfi_resolves_run(engine);
}

void kvfi_resolve_begin(kvf_engine *engine, struct kvfi_resolve *resolve, bool force, int64_t deadline_ns)
{
    kvfi_resolve_cancel(engine, resolve);
    resolve->began_ns = kvfi_now_ns();
    resolve->fresh_ns = force ? resolve->began_ns : resolve->began_ns - KVFI_VIEW_FRESH_NS;
    resolve->deadline_ns = deadline_ns;
    resolve->pending = true;
    resolve->again = false;
    resolve->from = resolve->to = NULL;
    resolve->round = 0;
    resolve->previous = NULL;
    resolve->next = engine->resolves;
    if (engine->resolves != NULL)
        engine->resolves->previous = resolve;
    engine->resolves = resolve;
    engine->resolve_timer.fire = ask_again;
    if (!engine->resolve_timer.armed) /* due at once, to look from the loop and not from here */
        kvfi_timer_arm(&engine->loop.timers, &engine->resolve_timer, resolve->began_ns);
}
