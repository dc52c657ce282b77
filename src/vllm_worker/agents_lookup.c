/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/agents_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/table.h"
#include "sys/thread.h"

struct name {
    struct name *next;
    char text[];
};

/** What the owner and the thread share: the last one frees it. */
struct shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct kvfi_loop *loop; /* NULL once the owner is gone */
    kvfi_vllm_looked_up *looked_up;
    struct name *head, *tail;
    size_t count;
    atomic_int holders;     /* owner, thread, answers under way */
};

struct kvfi_vllm_lookup {
    struct shared *shared;
    bool started;
};

/** An answer, on its way to the loop. */
struct answer {
    struct kvfi_loop_command command;
    struct shared *shared;
    struct name *name;
    char host[NI_MAXHOST];
    const char *text;       /* of gai_strerror, or NULL */
};

static void leave(struct shared *shared)
{
    if (atomic_fetch_sub(&shared->holders, 1) > 1)
        return;
    while (shared->head != NULL) {
        struct name *next = shared->head->next;
        free(shared->head);
        shared->head = next;
    }
    pthread_cond_destroy(&shared->changed);
    pthread_mutex_destroy(&shared->lock);
    free(shared);
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void end_answer(struct answer *answer)
{
    leave(answer->shared);
    free(answer->name);
    free(answer);
}

static void drop(void *owner, struct kvfi_loop_command *command)
{
    (void)owner;
    end_answer(KVFI_HOLDER(command, struct answer, command));
}

static void deliver(void *owner, struct kvfi_loop_command *command)
{
    struct answer *answer = KVFI_HOLDER(command, struct answer, command);
    bool wanted;

    pthread_mutex_lock(&answer->shared->lock);
    wanted = answer->shared->loop != NULL;
    pthread_mutex_unlock(&answer->shared->lock);
    if (wanted) /* destroy is called by this thread, too */
        answer->shared->looked_up(owner, answer->name->text, answer->text == NULL ? answer->host : NULL,
                                  answer->text == NULL ? "" : answer->text);
    end_answer(answer);
}

/* ---- the thread ----------------------------------------------------------------------------------------------- */

static void look_up(struct answer *answer)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *found = NULL;
    int cause = getaddrinfo(answer->name->text, NULL, &hints, &found);

    if (cause == 0)
        cause = getnameinfo(found->ai_addr, found->ai_addrlen, answer->host, sizeof answer->host, NULL, 0,
                            NI_NUMERICHOST);
    if (found != NULL)
        freeaddrinfo(found);
    answer->text = cause == 0 ? NULL : gai_strerror(cause);
}

/* The next name, or NULL once the owner is gone. The lock is held. */
static struct name *take(struct shared *shared)
{
    struct name *name;

    while (shared->loop != NULL && shared->head == NULL)
        pthread_cond_wait(&shared->changed, &shared->lock);
    if (shared->loop == NULL)
        return NULL;
    name = shared->head;
    shared->head = name->next;
    shared->tail = shared->head == NULL ? NULL : shared->tail;
    shared->count--;
    return name;
}

static void answer_one(struct shared *shared, struct name *name)
{
    struct answer *answer = kvfi_alloc_zeroed(1, sizeof *answer);

    if (answer == NULL) { /* who waits has a deadline */
        free(name);
        return;
    }
    answer->command.run = deliver;
    answer->command.drop = drop;
    answer->shared = shared;
    answer->name = name;
    atomic_fetch_add(&shared->holders, 1);
    look_up(answer);
    pthread_mutex_lock(&shared->lock);
    if (shared->loop != NULL) {
        pthread_mutex_lock(&shared->loop->lock);
        kvfi_loop_post(shared->loop, &answer->command);
        pthread_mutex_unlock(&shared->loop->lock);
        answer = NULL;
    }
    pthread_mutex_unlock(&shared->lock);
    if (answer != NULL)
        end_answer(answer);
}

static void *run(void *argument)
{
    struct shared *shared = argument;
    struct name *name;

    for (;;) {
        pthread_mutex_lock(&shared->lock);
        name = take(shared);
        pthread_mutex_unlock(&shared->lock);
        if (name == NULL)
            break;
        answer_one(shared, name);
    }
    leave(shared);
    return NULL;
}

static enum kvf_status start(struct kvfi_vllm_lookup *lookup, struct kvf_error *error)
{
    pthread_t thread;
    int cause;

    if (lookup->started)
        return KVF_OK;
    atomic_fetch_add(&lookup->shared->holders, 1);
    cause = kvfi_thread_start(&thread, run, lookup->shared);
    if (cause != 0) {
        leave(lookup->shared);
        return kvfi_fail(error, KVF_ERR_SYSTEM, "a thread that looks up host names: %s", strerror(cause));
    }
    pthread_detach(thread);
    lookup->started = true;
    return KVF_OK;
}

/* ---- the owner ------------------------------------------------------------------------------------------------ */

enum kvf_status kvfi_vllm_lookup_create(struct kvfi_loop *loop, kvfi_vllm_looked_up *looked_up,
                                        struct kvfi_vllm_lookup **out, struct kvf_error *error)
{
    struct kvfi_vllm_lookup *lookup = kvfi_alloc_zeroed(1, sizeof *lookup);
    struct shared *shared = kvfi_alloc_zeroed(1, sizeof *shared);

    if (lookup == NULL || shared == NULL) {
        free(lookup);
        free(shared);
        return kvfi_fail_memory(error, "what looks up host names");
    }
    pthread_mutex_init(&shared->lock, NULL);
    pthread_cond_init(&shared->changed, NULL);
    shared->loop = loop;
    shared->looked_up = looked_up;
    atomic_init(&shared->holders, 1);
    lookup->shared = shared;
    *out = lookup;
    return KVF_OK;
}

void kvfi_vllm_lookup_destroy(struct kvfi_vllm_lookup *lookup)
{
    if (lookup == NULL)
        return;
    pthread_mutex_lock(&lookup->shared->lock);
    lookup->shared->loop = NULL;
    pthread_cond_signal(&lookup->shared->changed);
    pthread_mutex_unlock(&lookup->shared->lock);
    leave(lookup->shared);
    free(lookup);
}

enum kvf_status kvfi_vllm_lookup_ask(struct kvfi_vllm_lookup *lookup, const char *name, struct kvf_error *error)
{
    struct shared *shared = lookup->shared;
    size_t bytes = strlen(name) + 1;
    struct name *asked = malloc(sizeof *asked + bytes);
    enum kvf_status status = asked == NULL ? kvfi_fail_memory(error, "a host name") : start(lookup, error);

    if (status != KVF_OK) {
        free(asked);
        return status;
    }
    asked->next = NULL;
    memcpy(asked->text, name, bytes);
    pthread_mutex_lock(&shared->lock);
    if (shared->count >= KVFI_VLLM_MAX_LOOKUPS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "%zu host names wait to be looked up, at most %d", shared->count,
                           KVFI_VLLM_MAX_LOOKUPS);
    } else {
        *(shared->tail == NULL ? &shared->head : &shared->tail->next) = asked;
        shared->tail = asked;
        shared->count++;
        pthread_cond_signal(&shared->changed);
        asked = NULL;
    }
    pthread_mutex_unlock(&shared->lock);
    free(asked);
    return status;
}
