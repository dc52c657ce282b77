/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/batch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "sys/table.h"

/* The batches of one peer. There is one while any is queued or under way. */
struct lane {
    struct kvfi_link link; /* by session */
    struct kvfi_crew_lane work;
    char session[];
};

struct kvfi_vllm_writers {
    struct kvfi_loop *loop;
    struct kvfi_vllm_writer writer;
    pthread_mutex_t lock;  /* guards what follows; taken before the loop's */
    struct kvfi_crew crew;
    struct kvfi_table lanes;
};

static struct kvfi_vllm_batch *of(struct kvfi_crew_item *item)
{
    return KVFI_HOLDER(item, struct kvfi_vllm_batch, item);
}

/* ---- lanes, with the lock held ------------------------------------------------------------------------------- */

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

static void free_lane(struct kvfi_vllm_writers *writers, struct lane *lane)
{
    kvfi_table_remove(&writers->lanes, &lane->link);
    free(lane);
}

static void free_if_empty(struct kvfi_vllm_writers *writers, struct lane *lane)
{
    if (lane->work.queued == 0 && lane->work.running == 0)
        free_lane(writers, lane);
}

/* ---- the threads --------------------------------------------------------------------------------------------- */

static void run(void *owner, struct kvfi_crew_item *item)
{
    struct kvfi_vllm_writers *writers = owner;
    struct kvfi_vllm_batch *batch = of(item);

    batch->started_ns = kvfi_now_ns();
    batch->reason = (struct kvf_error){.text = ""};
    batch->code = writers->writer.write(writers->writer.context, batch, &batch->reason);
    batch->ended_ns = kvfi_now_ns();
}

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

/* From the moment it is posted the batch is its owner's again. */
static void give_back(void *owner, struct kvfi_crew_item *item)
{
    struct kvfi_vllm_writers *writers = owner;
    struct kvfi_vllm_batch *batch = of(item);

    free_if_empty(writers, KVFI_HOLDER(item->lane, struct lane, work));
    batch->command = (struct kvfi_loop_command){.run = returned, .drop = dropped};
    pthread_mutex_lock(&writers->loop->lock);
    kvfi_loop_post(writers->loop, &batch->command);
    pthread_mutex_unlock(&writers->loop->lock);
}

static const struct kvfi_crew_rules RULES = {.max_threads = KVFI_VLLM_MAX_WRITERS, .lane_items = KVFI_VLLM_PEER_WRITES,
                                             .run = run, .ended = give_back};

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
    kvfi_crew_init(&writers->crew, &RULES, &writers->lock, writers);
    *out = writers;
    return KVF_OK;
}

void kvfi_vllm_writers_destroy(struct kvfi_vllm_writers *writers)
{
    struct kvfi_link *link;

    if (writers == NULL)
        return;
    kvfi_crew_fini(&writers->crew);
    while ((link = kvfi_table_any(&writers->lanes)) != NULL)
        free_lane(writers, KVFI_HOLDER(link, struct lane, link));
    kvfi_table_fini(&writers->lanes);
    pthread_mutex_destroy(&writers->lock);
    free(writers);
}

enum kvf_status kvfi_vllm_writers_submit(struct kvfi_vllm_writers *writers, struct kvfi_vllm_batch *batch,
                                         struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct lane *lane;
    int failure;

    batch->item = (struct kvfi_crew_item){.state = KVFI_CREW_IDLE};
    pthread_mutex_lock(&writers->lock);
    lane = lane_of(writers, batch->session);
    failure = lane == NULL ? 0 : kvfi_crew_push(&writers->crew, &lane->work, &batch->item);
    if (lane == NULL)
        status = kvfi_fail_memory(error, "a queue of batches");
    else if (failure == ENOMEM)
        status = kvfi_fail_memory(error, "a writing thread");
    else if (failure != 0)
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "cannot start a writing thread: %s", strerror(failure));
    if (failure != 0)
        free_if_empty(writers, lane);
    pthread_mutex_unlock(&writers->lock);
    return status;
}
