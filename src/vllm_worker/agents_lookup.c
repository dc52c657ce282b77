/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/agents_lookup.h"

#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/resolve.h"
#include "sys/table.h"

/** What the owner and its names share: the last one frees it. */
struct shared {
    struct kvfi_loop *loop;
    kvfi_vllm_looked_up *looked_up;
    atomic_bool gone;       /* the owner is */
    atomic_int holders;
};

struct kvfi_vllm_lookup {
    struct shared *shared;
    struct kvfi_resolver *resolver;
};

/** A name: with the resolver, then, answered, on its way to the loop. */
struct name {
    struct kvfi_lookup lookup;
    struct kvfi_loop_command command;
    struct shared *shared;
    char host[NI_MAXHOST];  /* "" without */
    char why[128];
    char text[];
};

static void leave(struct shared *shared)
{
    if (atomic_fetch_sub(&shared->holders, 1) == 1)
        free(shared);
}

static void free_name(struct name *name)
{
    leave(name->shared);
    free(name);
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void drop(void *owner, struct kvfi_loop_command *command)
{
    (void)owner;
    free_name(KVFI_HOLDER(command, struct name, command));
}

static void deliver(void *owner, struct kvfi_loop_command *command)
{
    struct name *name = KVFI_HOLDER(command, struct name, command);

    if (!atomic_load(&name->shared->gone))
        name->shared->looked_up(owner, name->text, name->host[0] == '\0' ? NULL : name->host, name->why);
    free_name(name);
}

/* By a thread of the resolver, or by destroy. */
static void on_done(struct kvfi_lookup *lookup, enum kvf_status status, const struct kvfi_addresses *found,
                    const char *text)
{
    struct name *name = KVFI_HOLDER(lookup, struct name, lookup);
    struct kvfi_loop *loop = name->shared->loop;
    int cause;

    if (status == KVF_ERR_CANCELLED) {
        free_name(name);
        return;
    }
    snprintf(name->why, sizeof name->why, "%s", text);
    if (found != NULL) {
        cause = getnameinfo((const struct sockaddr *)&found->list[0].address, found->list[0].bytes, name->host,
                            sizeof name->host, NULL, 0, NI_NUMERICHOST);
        if (cause != 0) {
            name->host[0] = '\0';
            snprintf(name->why, sizeof name->why, "%s", gai_strerror(cause));
        }
    }
    pthread_mutex_lock(&loop->lock);
    kvfi_loop_post(loop, &name->command);
    pthread_mutex_unlock(&loop->lock);
}

/* ---- the owner ------------------------------------------------------------------------------------------------ */

enum kvf_status kvfi_vllm_lookup_create(struct kvfi_loop *loop, kvfi_vllm_looked_up *looked_up,
                                        struct kvfi_vllm_lookup **out, struct kvf_error *error)
{
    struct kvfi_vllm_lookup *lookup = kvfi_alloc_zeroed(1, sizeof *lookup);
    struct shared *shared = kvfi_alloc_zeroed(1, sizeof *shared);
    enum kvf_status status = lookup == NULL || shared == NULL ? kvfi_fail_memory(error, "what looks up host names")
                                                              : kvfi_resolver_create(&lookup->resolver, error);

    if (status != KVF_OK) {
        free(lookup);
        free(shared);
        return status;
    }
    shared->loop = loop;
    shared->looked_up = looked_up;
    atomic_init(&shared->gone, false);
    atomic_init(&shared->holders, 1);
    lookup->shared = shared;
    *out = lookup;
    return KVF_OK;
}

void kvfi_vllm_lookup_destroy(struct kvfi_vllm_lookup *lookup)
{
    if (lookup == NULL)
        return;
    atomic_store(&lookup->shared->gone, true); /* for those that the loop has already */
    kvfi_resolver_destroy(lookup->resolver);
    leave(lookup->shared);
    free(lookup);
}

enum kvf_status kvfi_vllm_lookup_ask(struct kvfi_vllm_lookup *lookup, const char *text, struct kvf_error *error)
{
    size_t bytes = strlen(text) + 1;
    struct name *name = kvfi_alloc_zeroed(1, sizeof *name + bytes);
    enum kvf_status status;

    if (name == NULL)
        return kvfi_fail_memory(error, "a host name");
    name->lookup.done = on_done;
    name->command.run = deliver;
    name->command.drop = drop;
    name->shared = lookup->shared;
    memcpy(name->text, text, bytes);
    atomic_fetch_add(&lookup->shared->holders, 1);
    status = kvfi_resolve_start(lookup->resolver, text, &name->lookup, error);
    if (status != KVF_OK)
        free_name(name);
    return status;
}
