/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/batch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "sys/table.h"
#include "sys/thread.h"

/* The batches of one peer. There is one while any is queued or under way. */
struct lane {
    struct kvfi_link link;    /* by session */
    struct lane *next;        /* among those that have a batch to be begun */
    struct kvfi_vllm_batch *first, *last;
    int running;
    bool listed;
    char session[];
};

struct thread {
    struct kvfi_vllm_writers *writers;
    pthread_t thread;
    int wake_fd;
};

struct kvfi_vllm_writers {
    struct kvfi_loop *loop;
    struct kvfi_vllm_writer writer;
    pthread_mutex_t lock;     /* guards all that follows */
    pthread_cond_t changed;
    struct kvfi_table lanes;
    struct lane *first, *last; /* to be begun */
    struct kvfi_vllm_batch *running;
    struct thread *threads[KVFI_VLLM_MAX_WRITERS];
    size_t thread_count, idle, running_count, listed_count;
    bool stopping;
};

/* ---- lanes, with the lock held ------------------------------------------------------------------------------- */

/* With threads getting scarce each peer has one, so that those which stand still leave some to the others. */
static bool may_run(const struct kvfi_vllm_writers *writers, const struct lane *lane)
{
    bool plenty = writers->running_count < KVFI_VLLM_MAX_WRITERS / 2;

    return lane->running == 0 || (plenty && lane->running < KVFI_VLLM_PEER_WRITES);
}

static void list_lane(struct kvfi_vllm_writers *writers, struct lane *lane)
{
    if (lane->listed || lane->first == NULL || !may_run(writers, lane))
        return;
    lane->listed = true;
    lane->next = NULL;
    *(writers->first == NULL ? &writers->first : &writers->last->next) = lane;
    writers->last = lane;
    writers->listed_count++;
}

static void unlist_lane(struct kvfi_vllm_writers *writers, struct lane *lane)
{
    struct lane **at = &writers->first, *before = NULL;

    while (*at != lane) {
        before = *at;
        at = &before->next;
    }
    *at = lane->next;
    if (writers->last == lane)
        writers->last = before;
    lane->listed = false;
    writers->listed_count--;
}

/* A peer to which nothing is written goes before those that keep a thread busy already. */
static struct lane *next_lane(struct kvfi_vllm_writers *writers)
{
    struct lane *lane = writers->first;

    while (lane != NULL && lane->running > 0)
        lane = lane->next;
    if (lane == NULL && writers->first != NULL && may_run(writers, writers->first))
        lane = writers->first;
    return lane;
}

static struct lane *lane_of(struct kvfi_vllm_writers *writers, const char *session)
{
    size_t bytes = strlen(session);
    struct kvfi_link *link = kvfi_table_find(&writers->lanes, session, bytes);
    struct lane *lane;

    if (link != NULL)
        return KVFI_HOLDER(link, struct lane, link);
    lane = kvfi_alloc_zeroed(1, sizeof *lane + bytes + 1);
    if (lane == NULL)
        return NULL;
    memcpy(lane->session, session, bytes);
    kvfi_table_insert(&writers->lanes, &lane->link, lane->session, bytes);
    return lane;
}

static void drop_lane(struct kvfi_vllm_writers *writers, struct lane *lane)
{
    if (lane->first != NULL || lane->running > 0)
        return;
    kvfi_table_remove(&writers->lanes, &lane->link);
    free(lane);
}

/* ---- the threads --------------------------------------------------------------------------------------------- */

static void returned(void *owner, struct kvfi_loop_command *command)
{
    struct kvfi_vllm_batch *batch = (struct kvfi_vllm_batch *)(void *)command;
    batch->ended(owner, batch);
}

static void dropped(void *owner, struct kvfi_loop_command *command)
{
    (void)owner;
    (void)command; /* its owner frees it */
}

static void give_back(struct kvfi_vllm_writers *writers, struct kvfi_vllm_batch *batch)
{
    batch->command = (struct kvfi_loop_command){.run = returned, .drop = dropped};
    pthread_mutex_lock(&writers->loop->lock);
    kvfi_loop_post(writers->loop, &batch->command);
    pthread_mutex_unlock(&writers->loop->lock);
}

static struct kvfi_vllm_batch *begin(struct kvfi_vllm_writers *writers, struct lane *lane, int wake_fd)
{
    struct kvfi_vllm_batch *batch = lane->first;
    eventfd_t ignored;

    unlist_lane(writers, lane);
    lane->first = batch->next;
    if (lane->first == NULL)
        lane->last = NULL;
    lane->running++;
    writers->running_count++;
    list_lane(writers, lane);
    eventfd_read(wake_fd, &ignored);
    batch->wake_fd = wake_fd;
    batch->next = writers->running;
    writers->running = batch;
    return batch;
}

static void end(struct kvfi_vllm_writers *writers, struct lane *lane, struct kvfi_vllm_batch *batch)
{
    struct kvfi_vllm_batch **at = &writers->running;

    while (*at != batch)
        at = &(*at)->next;
    *at = batch->next;
    lane->running--;
    writers->running_count--;
    list_lane(writers, lane);
    drop_lane(writers, lane);
}

static void *write_batches(void *argument)
{
    struct thread *self = argument;
    struct kvfi_vllm_writers *writers = self->writers;

    pthread_mutex_lock(&writers->lock);
    while (!writers->stopping) {
        struct lane *lane = next_lane(writers);
        struct kvfi_vllm_batch *batch;

        if (lane == NULL) {
            writers->idle++;
            pthread_cond_wait(&writers->changed, &writers->lock);
            writers->idle--;
            continue;
        }
        batch = begin(writers, lane, self->wake_fd);
        pthread_mutex_unlock(&writers->lock);
        batch->started_ns = kvfi_now_ns();
        batch->reason = (struct kvf_error){.text = ""};
        batch->code = writers->writer.write(writers->writer.context, batch, &batch->reason);
        batch->ended_ns = kvfi_now_ns();
        pthread_mutex_lock(&writers->lock);
        end(writers, lane, batch);
        pthread_mutex_unlock(&writers->lock);
        give_back(writers, batch);
        pthread_mutex_lock(&writers->lock);
    }
    pthread_mutex_unlock(&writers->lock);
    return NULL;
}

/* One more thread, with the lock held. */
static enum kvf_status start_thread(struct kvfi_vllm_writers *writers, struct kvf_error *error)
{
    struct thread *thread = kvfi_alloc_zeroed(1, sizeof *thread);
    int failure;

    if (thread == NULL)
        return kvfi_fail_memory(error, "a writing thread");
    thread->writers = writers;
    thread->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    failure = thread->wake_fd < 0 ? errno : kvfi_thread_start(&thread->thread, write_batches, thread);
    if (failure != 0) {
        if (thread->wake_fd >= 0)
            close(thread->wake_fd);
        free(thread);
        return kvfi_fail(error, KVF_ERR_SYSTEM, "cannot start a writing thread: %s", strerror(failure));
    }
    writers->threads[writers->thread_count++] = thread;
    return KVF_OK;
}

/* ---- from outside -------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_vllm_writers_create(struct kvfi_loop *loop, const struct kvfi_vllm_writer *writer,
                                         struct kvfi_vllm_writers **out, struct kvf_error *error)
{
    struct kvfi_vllm_writers *writers = kvfi_alloc_zeroed(1, sizeof *writers);

    if (writers == NULL || !kvfi_table_init(&writers->lanes)) {
        free(writers);
        return kvfi_fail_memory(error, "the writing threads");
    }
    writers->loop = loop;
    writers->writer = *writer;
    pthread_mutex_init(&writers->lock, NULL);
    pthread_cond_init(&writers->changed, NULL);
    *out = writers;
    return KVF_OK;
}

void kvfi_vllm_writers_destroy(struct kvfi_vllm_writers *writers)
{
    struct kvfi_link *link;

    if (writers == NULL)
        return;
    pthread_mutex_lock(&writers->lock);
    writers->stopping = true;
    for (struct kvfi_vllm_batch *batch = writers->running; batch != NULL; batch = batch->next) {
        atomic_store(&batch->stop, true);
        eventfd_write(batch->wake_fd, 1);
    }
    pthread_cond_broadcast(&writers->changed);
    pthread_mutex_unlock(&writers->lock);
    for (size_t i = 0; i < writers->thread_count; i++) {
        pthread_join(writers->threads[i]->thread, NULL);
        close(writers->threads[i]->wake_fd);
        free(writers->threads[i]);
    }
    while ((link = kvfi_table_any(&writers->lanes)) != NULL) {
        kvfi_table_remove(&writers->lanes, link);
        free(KVFI_HOLDER(link, struct lane, link));
    }
    kvfi_table_fini(&writers->lanes);
    pthread_cond_destroy(&writers->changed);
    pthread_mutex_destroy(&writers->lock);
    free(writers);
}

enum kvf_status kvfi_vllm_writers_submit(struct kvfi_vllm_writers *writers, struct kvfi_vllm_batch *batch,
                                         struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct lane *lane;

    atomic_init(&batch->stop, false);
    batch->next = NULL;
    pthread_mutex_lock(&writers->lock);
    /* Those that idle may have been woken for other peers already: each takes one. One too many does no harm. */
    if (writers->idle <= writers->listed_count && writers->thread_count < KVFI_VLLM_MAX_WRITERS)
        status = start_thread(writers, error);
    if (status != KVF_OK && writers->thread_count > 0)
        status = KVF_OK; /* those that are there will do */
    lane = status == KVF_OK ? lane_of(writers, batch->session) : NULL;
    if (lane != NULL) {
        *(lane->first == NULL ? &lane->first : &lane->last->next) = batch;
        lane->last = batch;
        list_lane(writers, lane);
        pthread_cond_signal(&writers->changed);
    } else if (status == KVF_OK) {
        status = kvfi_fail_memory(error, "a queue of batches");
    }
    pthread_mutex_unlock(&writers->lock);
    return status;
}
