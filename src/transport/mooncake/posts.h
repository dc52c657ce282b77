/* SPDX-License-Identifier: Apache-2.0 */
/** @file posts.h  What ops.c (the transport's table) and posts.c (peers and posts) share.
 *
 *  Threads: data threads take posts, and peers to be connected, off one queue; a watcher waits for the ends of peers,
 *  on a connection to each that carries nothing. `lock` guards everything but the moving itself.
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_POSTS_H
#define KVFI_TRANSPORT_MOONCAKE_POSTS_H

#include "transport/mooncake/job.h"
#include "transport/queue.h"

enum { KVFI_MOON_POST_THREADS = 4 /* at most */ };

struct kvfi_moon_peer {
    struct kvfi_moon_peer *next;
    uint64_t number;
    char endpoint[KVF_MOONCAKE_NAME_BYTES];
    struct kvfi_moon_segment *segment; /* once connected */
    struct kvfi_moon_lane *watched;    /* the connection that carries nothing */
    int64_t posts;                     /* queued or under way, connecting included */
    bool ended;                        /* takes no more; goes with its last post */
    bool quietly;                      /* no PEER_DOWN: disconnected, or never connected */
    enum kvf_status status;            /* why it ended */
    char text[160];
};

struct kvfi_moon_post {
    struct kvfi_moon_post *next;       /* in the queue, or among those under way */
    struct kvfi_moon_peer *peer;
    bool connects;                     /* no ranges: connects the peer */
    struct kvfi_range_source source;
    uint64_t cookie;
    int wake;                          /* of the thread that has it, -1 while queued */
    atomic_bool stop;                  /* the lock guards what follows */
    enum kvf_status stop_status;
    char stop_text[160];
};

struct kvfi_moon_poster {
    struct kvfi_transport *owner;
    pthread_t thread;
    bool started;
    int wake;
};

struct kvfi_transport {
    struct kvfi_transport_config config; /* memories, timeout, log */
    bool *known;                         /* of each memory: it is registered */
    kvf_mooncake *engine;
    struct kvfi_queue queue;
    bool queue_made;
    pthread_mutex_t lock;
    pthread_cond_t changed;              /* a post is queued, or it closes */
    struct kvfi_moon_peer *peers;
    struct kvfi_moon_post *first, *last; /* queued */
    struct kvfi_moon_post *running;
    uint64_t next_peer;
    bool stopping;
    int epoll, wake;                     /* of the watcher */
    pthread_t watcher;
    bool watcher_started;
    struct kvfi_moon_poster posters[KVFI_MOON_POST_THREADS];
    size_t poster_count;
};

void *kvfi_moon_post_thread(void *poster);
void *kvfi_moon_watch_thread(void *transport);
enum kvf_status kvfi_moon_peer_connect(struct kvfi_transport *transport, const char *endpoint, uint64_t *peer,
                                       struct kvf_error *error);
void kvfi_moon_peer_disconnect(struct kvfi_transport *transport, uint64_t peer);
enum kvf_status kvfi_moon_post_ranges(struct kvfi_transport *transport, uint64_t peer,
                                      const struct kvfi_range_source *source, uint64_t cookie, struct kvf_error *error);
void kvfi_moon_post_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t cookie);
/** Stops what is under way. The lock is held. */
void kvfi_moon_posts_stop(struct kvfi_transport *transport);
/** Frees peers and queued posts. No thread runs any more. */
void kvfi_moon_posts_fini(struct kvfi_transport *transport);

#endif
