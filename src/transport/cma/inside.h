/* SPDX-License-Identifier: Apache-2.0 */
/** @file inside.h  What the files of `cma` share: cma.c (the table), peers.c (peers, posts, their ends), copying.c (one
 *  post's bytes), process.c (endpoints and the processes behind them).
 *
 *  Threads: data threads take posts off one queue, each post by one thread; a watcher waits for deaths. `lock` guards
 *  everything but the copying itself.
 */
#ifndef KVFI_TRANSPORT_CMA_INSIDE_H
#define KVFI_TRANSPORT_CMA_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "transport/queue.h"

enum { KVFI_CMA_THREADS = 4 /* at most */ };

/** A process that is watched, once for all the peers that are in it. */
struct kvfi_cma_process {
    struct kvfi_cma_process *next;
    uint64_t number;          /* what the watcher knows it by */
    pid_t pid;
    int fd;
    bool dead;                /* the watcher saw it; its pid may be another one's now */
    int64_t users;            /* peers */
};

/** One that is written to. */
struct kvfi_cma_peer {
    struct kvfi_cma_peer *next;
    uint64_t number;
    pid_t pid;
    struct kvfi_cma_process *process; /* NULL where the kernel has no pidfd: then only a write finds out */
    int pidfd;                /* the process's, or -1 */
    int64_t posts;            /* queued or being copied */
    bool ended;               /* takes no more; goes with its last post */
    bool disconnected;        /* by the owner: no PEER_DOWN */
    enum kvf_status status;   /* why it ended */
    char text[128];
};

struct kvfi_cma_post {
    struct kvfi_cma_post *next; /* in the queue, or among those being copied */
    struct kvfi_cma_peer *peer;
    struct kvfi_range_source source;
    uint64_t cookie;
    atomic_bool stop;         /* asks the data thread to stop before the next batch; the lock guards what follows */
    enum kvf_status stop_status;
    char stop_text[128];
};

struct kvfi_transport {
    struct kvfi_transport_config config; /* memories, wire, log */
    struct kvfi_queue queue;
    bool queue_made;
    pthread_mutex_t lock;
    pthread_cond_t changed;   /* a post is queued, or it closes */
    struct kvfi_cma_peer *peers;
    struct kvfi_cma_process *processes;
    struct kvfi_cma_post *first, *last; /* queued */
    struct kvfi_cma_post *copying;      /* those that data threads have */
    uint64_t next_peer, next_process;
    bool stopping;
    int epoll, wake;          /* of the watcher */
    pthread_t watcher, threads[KVFI_CMA_THREADS];
    bool watcher_started;
    size_t thread_count;
};

/* ---- process.c ---------------------------------------------------------------------------------------------- */
void kvfi_cma_endpoint_format(char *text);
/** @return KVF_OK or KVF_ERR_INVALID_ARGUMENT, quoting the text */
enum kvf_status kvfi_cma_endpoint_parse(const char *text, pid_t *pid, struct kvf_error *error);
/** Opens the process and checks that it lives, is this user's, and lets itself be written.
 *  @param pidfd  the caller closes it with kvfi_cma_process_close; -1 where the kernel has no such thing
 *  @return KVF_OK; KVF_ERR_UNREACHABLE: no such process; KVF_ERR_NOT_SUPPORTED: not permitted; KVF_ERR_SYSTEM */
enum kvf_status kvfi_cma_process_open(pid_t pid, int *pidfd, struct kvf_error *error);
void kvfi_cma_process_close(int pidfd); /* -1 is fine */
bool kvfi_cma_process_is_dead(int pidfd);

/* ---- copying.c ---------------------------------------------------------------------------------------------- */
/** Copies all ranges of a post, or stops early where its `stop` is set (KVF_OK then). `*bytes` is what is there.
 *  @return KVF_OK; KVF_ERR_PEER_LOST; KVF_ERR_OUT_OF_RANGE, KVF_ERR_INVALID_ARGUMENT: what the source gave;
 *          KVF_ERR_SYSTEM; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_cma_copy(const struct kvfi_transport *transport, struct kvfi_cma_post *post, int64_t *bytes,
                              struct kvf_error *error);

/* ---- peers.c ------------------------------------------------------------------------------------------------ */
void *kvfi_cma_data_thread(void *transport);
void *kvfi_cma_watcher_thread(void *transport);
enum kvf_status kvfi_cma_connect(struct kvfi_transport *transport, const char *endpoint,
                                 const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error);
void kvfi_cma_disconnect(struct kvfi_transport *transport, uint64_t peer);
enum kvf_status kvfi_cma_post_ranges(struct kvfi_transport *transport, uint64_t peer,
                                     const struct kvfi_range_source *source, uint64_t cookie, struct kvf_error *error);
void kvfi_cma_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t cookie);
/** Frees peers and queued posts. No thread runs any more. */
void kvfi_cma_peers_fini(struct kvfi_transport *transport);

#endif
