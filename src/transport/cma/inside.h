/* SPDX-License-Identifier: Apache-2.0 */
/** @file inside.h  What the files of `cma` share: cma.c (the table), peers.c (peers, posts, their ends), copying.c (one
 *  post's bytes), process.c (endpoints and the processes behind them).
 *
 *  Threads: data threads take posts off one queue, each post by one thread; a watcher waits for deaths. `lock` guards
 *  everything but the copying itself.
 */
#ifndef KVFI_TRANSPORT_CMA_INSIDE_H
#define KVFI_TRANSPORT_CMA_INSIDE_H

#include <sys/types.h>

#include "transport/posts.h"
#include "transport/watcher.h"

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
    struct kvfi_post_peer base;
    pid_t pid;
    struct kvfi_cma_process *process; /* NULL where the kernel has no pidfd: then only a write finds out */
    int pidfd;                /* the process's, or -1 */
};

struct kvfi_transport {
    struct kvfi_transport_config config; /* memories, wire, log */
    struct kvfi_queue queue;
    bool queue_made;
    struct kvfi_posts posts;
    bool posts_made;
    struct kvfi_cma_process *processes; /* the lock of the posts guards them */
    uint64_t next_process;
    struct kvfi_watcher watcher;
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
enum kvf_status kvfi_cma_copy(void *transport, struct kvfi_post *post, int64_t *bytes, struct kvf_error *error);

/* ---- peers.c ------------------------------------------------------------------------------------------------ */
void kvfi_cma_on_death(void *transport, uint64_t number);
enum kvf_status kvfi_cma_connect(struct kvfi_transport *transport, const char *endpoint,
                                 const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error);
void kvfi_cma_free_peer(void *transport, struct kvfi_post_peer *peer);

#endif
