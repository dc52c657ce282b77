/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/socket.h>

#include "base/error.h"
#include "transport/direct/direct.h"
#include "transport/fault/wire.h"

enum { POPULATE_STEP_BYTES = 64 << 20 };

/* So much of a peer's memory is entered in the page table before its first chunk; the rest when there is nothing else
 * to do. */
#define POPULATE_FIRST_BYTES (INT64_C(256) << 20)

/* Flips one bit of the chunk's first byte at the destination. */
static void corrupt(struct kvfi_job *job)
{
    const struct kvfi_reached *reached = &job->link->reached;
    struct kvf_move move;
    struct kvf_error error;
    kvf_cursor *cursor = NULL;

    if (kvf_cursor_create(job->chunk.binding, &cursor, &error) == KVF_OK && kvf_cursor_next(cursor, &move) == KVF_OK) {
        char *at = (char *)reached->address[move.dst_memory] + move.dst_offset_bytes;
        const struct kvfi_memory_region *own = &job->link->owner->config.memories[move.src_memory];
        char flipped = (char)(((const char *)own->address)[move.src_offset_bytes] ^ 1);

        if (reached->reach == KVFI_REACH_REMOTE)
            kvfi_remote_write(reached->pid, (uint64_t)(uintptr_t)at, &flipped, 1);
        else
            *at = flipped;
    }
    kvf_cursor_destroy(cursor);
}

/* Copies through addresses of this process, piece by piece. */
static enum kvf_status copy_here(struct kvfi_transport *transport, struct kvfi_job *job, struct kvf_error *error)
{
    const struct kvfi_reached *reached = &job->link->reached;
    struct kvfi_bases src = {transport->own_address, transport->own_bytes, transport->config.memory_count};
    struct kvfi_bases dst = {reached->address, reached->bytes, reached->count};
    struct kvfi_copier copier;
    int64_t done = KVFI_PIECE_BYTES;
    enum kvf_status status = kvfi_copier_init(&copier, NULL, job->chunk.binding, &src, &dst, error);

    if (status != KVF_OK) goto done;
    while (status == KVF_OK && done == KVFI_PIECE_BYTES && !atomic_load(&job->stop)) {
        status = kvfi_copier_run(&copier, KVFI_PIECE_BYTES, &done, error);
        if (status == KVF_OK && kvfi_wire_cuts(transport->config.wire, done))
            status = kvfi_fail(error, KVF_ERR_PEER_LOST, "the connection was cut by the fault policy");
    }
    kvfi_copier_fini(&copier);
done:
    return status;
}

static void run_job(struct kvfi_transport *transport, struct kvfi_job *job)
{
    struct kvf_error error;
    enum kvf_status status;

    if (job->link->reached.reach == KVFI_REACH_REMOTE) status = kvfi_remote_copy(transport, job, &error);
    else status = copy_here(transport, job, &error);
    if (status == KVF_OK && job->chunk.bytes > 0 && kvfi_wire_corrupts(transport->config.wire)) corrupt(job);
    job->status = status;
    if (status != KVF_OK) memcpy(job->text, error.text, sizeof job->text);
}

static struct kvfi_link *find_populate(struct kvfi_transport *transport, int64_t below_bytes)
{
    struct kvfi_link *link = transport->links;

    while (link && (!link->populate_wanted || link->populated_bytes >= below_bytes)) link = link->next;
    return link;
}

/* Does one step of populating. The link stays while `copying` counts it; no second thread takes the same link. */
static void populate(struct kvfi_transport *transport, struct kvfi_link *link)
{
    bool over;

    link->populate_wanted = false;
    link->copying++;
    pthread_mutex_unlock(&transport->lock);
    over = kvfi_reached_populate(&link->reached, &link->populate_memory, &link->populate_offset, POPULATE_STEP_BYTES);
    pthread_mutex_lock(&transport->lock);
    link->copying--;
    link->populated_bytes += POPULATE_STEP_BYTES;
    link->populate_wanted = !over && link->state == KVFI_LINK_READY;
    kvfi_source_settle(transport, link);
}

static void take_job(struct kvfi_transport *transport)
{
    struct kvfi_job *job = transport->queue_first;

    transport->queue_first = job->queue_next;
    if (!transport->queue_first) transport->queue_last = NULL;
    job->state = KVFI_JOB_COPYING;
    job->link->copying++;
    pthread_mutex_unlock(&transport->lock);
    run_job(transport, job);
    pthread_mutex_lock(&transport->lock);
    kvfi_source_copied(transport, job);
}

void *kvfi_copy_thread(void *argument)
{
    struct kvfi_transport *transport = argument;

    pthread_mutex_lock(&transport->lock);
    while (!transport->copy_stopping) {
        struct kvfi_link *link = find_populate(transport, POPULATE_FIRST_BYTES);

        if (!link && !transport->queue_first) link = find_populate(transport, INT64_MAX);
        if (link) populate(transport, link);
        else if (transport->queue_first) take_job(transport);
        else pthread_cond_wait(&transport->changed, &transport->lock);
    }
    pthread_mutex_unlock(&transport->lock);
    return NULL;
}
