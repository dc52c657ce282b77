/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/instances.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "engine/peers.h"

enum { MAX_INSTANCES = 1024 };
#define KNOWN_TIMEOUT_NS (500 * KVFI_MS) /* for an instance that is known: what is known will do until it answers */

/* ---- views ------------------------------------------------------------------------------------------------- */

void kvfi_view_release(struct kvfi_view *view)
{
    if (view == NULL || --view->references > 0)
        return;
    kvfi_directory_result_fini(&view->answer);
    free(view->members);
    free(view);
}

/* Takes the answer on success. */
static struct kvfi_view *make_view(struct kvfi_directory_result *answer)
{
    size_t count = answer->instance->rank_count;
    struct kvfi_view *view = calloc(1, sizeof *view);

    if (view == NULL)
        return NULL;
    view->references = 1;
    view->members = kvfi_alloc_array(count, sizeof *view->members);
    if (view->members == NULL)
        goto failed;
    for (size_t i = 0; i < count; i++)
        view->members[i] = (struct kvf_member){answer->instance->ranks[i].rank, answer->instance->ranks[i].holdings};
    if (kvf_members_digest(view->members, count, view->digest) != KVF_OK)
        goto failed;
    view->answer = *answer;
    memset(answer, 0, sizeof *answer);
    return view;
failed:
    free(view->members);
    free(view);
    return NULL;
}

size_t kvfi_view_find(const struct kvfi_view *view, const struct kvf_rank *rank)
{
    size_t count = kvfi_view_ranks(view), i = 0;

    while (i < count) {
        const struct kvf_rank *here = &kvfi_view_rank(view, i)->rank;
        if (here->pp == rank->pp && here->cp == rank->cp && here->tp == rank->tp)
            break;
        i++;
    }
    return i;
}

/* ---- instances --------------------------------------------------------------------------------------------- */

static bool instance_wanted(const kvf_engine *engine, const struct kvfi_instance *instance)
{
    for (const struct kvfi_resolve *r = engine->resolves; r != NULL; r = r->next)
        if (strcmp(r->source, instance->name) == 0 || strcmp(r->destination, instance->name) == 0)
            return true;
    return instance->asking;
}

static void drop_instance(kvf_engine *engine, struct kvfi_instance **at)
{
    struct kvfi_instance *instance = *at;

    *at = instance->next;
    if (instance->view != NULL)
        kvfi_matches_drop(engine, instance->view);
    kvfi_view_release(instance->view);
    free(instance);
}

/* Names come from peers too, so those nobody waits for go when there are too many; the newest stand first. */
static void bound_instances(kvf_engine *engine)
{
    struct kvfi_instance **at = &engine->instance_list;
    size_t kept = 0;

    while (*at != NULL) {
        if (++kept > MAX_INSTANCES && !instance_wanted(engine, *at))
            drop_instance(engine, at);
        else
            at = &(*at)->next;
    }
}

struct kvfi_instance *kvfi_instance_get(kvf_engine *engine, const char *name)
{
    struct kvfi_instance *instance = engine->instance_list;

    while (instance != NULL && strcmp(instance->name, name) != 0)
        instance = instance->next;
    if (instance != NULL)
        return instance;
    bound_instances(engine);
    instance = calloc(1, sizeof *instance);
    if (instance == NULL)
        return NULL;
    snprintf(instance->name, sizeof instance->name, "%s", name);
    instance->answered_ns = INT64_MIN;
    instance->next = engine->instance_list;
    engine->instance_list = instance;
    return instance;
}

void kvfi_instance_ask(kvf_engine *engine, struct kvfi_instance *instance)
{
    int64_t timeout_ns = engine->settings.directory_timeout_ns;
    struct kvf_error error;

    if (instance->asking)
        return;
    if (instance->view != NULL && instance->view->answer.instance->complete &&
        instance->last.status != KVF_ERR_DIRECTORY && timeout_ns > KNOWN_TIMEOUT_NS)
        timeout_ns = KNOWN_TIMEOUT_NS;
    instance->cookie = ++engine->next_cookie;
    instance->asked_ns = kvfi_now_ns();
    if (kvfi_directory_client_query(engine->client, instance->name, instance->cookie, timeout_ns,
                                    &error) == KVF_OK) {
        instance->asking = true;
    } else {
        instance->last = error;
        instance->answered_ns = instance->asked_ns;
    }
}

/* The same epoch says the same thing: the old view and its matches stay. */
static bool same_answer(const struct kvfi_view *view, const struct kvfi_directory_instance *answer)
{
    const struct kvfi_directory_instance *old = view == NULL ? NULL : view->answer.instance;

    return old != NULL && old->epoch == answer->epoch && old->complete == answer->complete &&
           old->registered == answer->registered && old->rank_count == answer->rank_count;
}

static void take_answer(kvf_engine *engine, struct kvfi_instance *instance, struct kvfi_directory_result *result)
{
    struct kvfi_view *view;

    instance->asking = false;
    instance->answered_ns = instance->asked_ns;
    instance->last = (struct kvf_error){.status = result->status, .position = -1};
    snprintf(instance->last.text, sizeof instance->last.text, "%s", result->text);
    if (result->status == KVF_OK && result->instance != NULL &&
        strcmp(result->instance->instance, instance->name) != 0) {
        kvfi_fail(&instance->last, KVF_ERR_DIRECTORY,
                  "the directory at %s answers for instance \"%s\", asked for \"%s\"",
                  kvf_engine_directory_url(engine), result->instance->instance, instance->name);
        return;
    }
    if (result->status != KVF_OK || result->instance == NULL || same_answer(instance->view, result->instance))
        return;
    view = make_view(result);
    if (view == NULL) {
        kvfi_fail_memory(&instance->last, "an instance");
        return;
    }
    if (instance->view != NULL)
        kvfi_matches_drop(engine, instance->view);
    kvfi_view_release(instance->view);
    instance->view = view;
    kvfi_sources_review(engine, instance);
}

static void take_registered(kvf_engine *engine, const struct kvfi_directory_result *result)
{
    pthread_mutex_lock(&engine->loop.lock);
    if (engine->announcing) {
        engine->announcing = false;
        engine->announced = result->status == KVF_OK;
        engine->announce_error = (struct kvf_error){.status = result->status, .position = -1};
        snprintf(engine->announce_error.text, sizeof engine->announce_error.text, "%s", result->text);
        pthread_cond_broadcast(&engine->loop.changed);
    }
    pthread_mutex_unlock(&engine->loop.lock);
}

void kvfi_directory_dispatch(kvf_engine *engine)
{
    struct kvfi_directory_result result;

    while (kvfi_directory_client_take(engine->client, &result)) {
        struct kvfi_instance *instance = engine->instance_list;
        switch (result.kind) {
        case KVFI_DIRECTORY_REGISTERED:
            take_registered(engine, &result);
            break;
        case KVFI_DIRECTORY_WITHDRAWN:
            pthread_mutex_lock(&engine->loop.lock);
            engine->withdrawn = true;
            pthread_cond_broadcast(&engine->loop.changed);
            pthread_mutex_unlock(&engine->loop.lock);
            break;
        case KVFI_DIRECTORY_LOST:
            kvfi_logf(&engine->log, KVF_LOG_ERROR, "%s: %s", engine->self, result.text);
            break;
        default:
            while (instance != NULL && !(instance->asking && instance->cookie == result.cookie))
                instance = instance->next;
            if (instance != NULL)
                take_answer(engine, instance, &result);
            break;
        }
        kvfi_directory_result_fini(&result);
    }
    kvfi_resolves_run(engine);
    kvfi_sources_confirm(engine);
}

void kvfi_instances_fini(kvf_engine *engine)
{
    while (engine->instance_list != NULL)
        drop_instance(engine, &engine->instance_list);
    kvfi_matches_drop(engine, NULL);
}
