/* SPDX-License-Identifier: Apache-2.0 */
/* Peers and the processes they are in. All with the lock of the posts held. */
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/cma/inside.h"

/* A closed pidfd is watched no longer. */
static void release_process(struct kvfi_transport *transport, struct kvfi_cma_process *process)
{
    struct kvfi_cma_process **at = &transport->processes;

    if (--process->users > 0) return;
    while (*at != process) at = &(*at)->next;
    *at = process->next;
    kvfi_cma_process_close(process->fd);
    free(process);
}

void kvfi_cma_free_peer(void *transport, struct kvfi_post_peer *base)
{
    struct kvfi_cma_peer *peer = (struct kvfi_cma_peer *)base;

    if (peer->process) release_process(transport, peer->process);
    free(peer);
}

/* A process that is watched has ended. By the watcher's thread. */
void kvfi_cma_on_death(void *owner, uint64_t number)
{
    struct kvfi_transport *transport = owner;
    struct kvfi_cma_process *process;
    struct kvfi_post_peer *next;
    char text[64];

    pthread_mutex_lock(&transport->posts.lock);
    process = transport->processes;
    while (process && process->number != number) process = process->next;
    if (process) {
        process->dead = true;
        kvfi_watcher_remove(&transport->watcher, process->fd);
        snprintf(text, sizeof text, "process %ld has ended", (long)process->pid);
        process->users++; /* the last of its peers may go below */
        for (struct kvfi_post_peer *peer = transport->posts.peers; peer; peer = next) {
            next = peer->next;
            if (((struct kvfi_cma_peer *)peer)->process == process && !peer->ended)
                kvfi_posts_end(&transport->posts, peer, KVF_ERR_PEER_LOST, text);
        }
        release_process(transport, process);
    }
    pthread_mutex_unlock(&transport->posts.lock);
}

/* ---- what the owner asks --------------------------------------------------------------------------------------- */

/* One that lives keeps its pid: of two peers with one pid, the second is in the first one's process. */
static struct kvfi_cma_process *find_process(struct kvfi_transport *transport, pid_t pid)
{
    struct kvfi_cma_process *process = transport->processes;

    while (process && (process->pid != pid || process->dead || kvfi_cma_process_is_dead(process->fd)))
        process = process->next;
    return process;
}

/* Takes `*fd` when it is the first peer of this process. */
static enum kvf_status watch_process(struct kvfi_transport *transport, struct kvfi_cma_peer *peer, int *fd,
                                     struct kvf_error *error)
{
    struct kvfi_cma_process *process = find_process(transport, peer->pid);

    if (!process) {
        process = kvfi_alloc_zeroed(1, sizeof *process);
        if (!process) return kvfi_fail_memory(error, "a process");
        if (kvfi_watcher_add(&transport->watcher, *fd, transport->next_process + 1, error) != KVF_OK) {
            free(process);
            return KVF_ERR_SYSTEM;
        }
        process->number = ++transport->next_process;
        process->pid = peer->pid;
        process->fd = *fd;
        process->next = transport->processes;
        transport->processes = process;
        *fd = -1;
    }
    process->users++;
    peer->process = process;
    peer->pidfd = process->fd;
    return KVF_OK;
}

enum kvf_status kvfi_cma_connect(struct kvfi_transport *transport, const char *endpoint,
                                 const struct kvfi_peer_identity *expected, uint64_t *out, struct kvf_error *error)
{
    struct kvfi_cma_peer *peer = kvfi_alloc_zeroed(1, sizeof *peer);
    enum kvf_status status;
    int fd = -1;

    (void)expected; /* the other process says nothing of itself */
    if (!peer) return kvfi_fail_memory(error, "a peer");
    peer->pidfd = -1;
    status = kvfi_cma_endpoint_parse(endpoint, &peer->pid, error);
    if (status == KVF_OK) status = kvfi_cma_process_open(peer->pid, &fd, error);
    if (status != KVF_OK) goto done;
    pthread_mutex_lock(&transport->posts.lock);
    if (fd >= 0) status = watch_process(transport, peer, &fd, error);
    if (status == KVF_OK) status = kvfi_posts_add(&transport->posts, &peer->base, out, error);
    if (status == KVF_OK) peer = NULL;
    pthread_mutex_unlock(&transport->posts.lock);
done:
    kvfi_cma_process_close(fd);
    free(peer); /* not in any process yet */
    return status;
}
