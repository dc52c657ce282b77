/* SPDX-License-Identifier: Apache-2.0 */
/** @file posts.h  Peers and posts of a transport of plain ranges: who is written to, what is queued or under way, and
 *  how each ends in its one event.
 *
 *  The transport embeds `kvfi_post_peer` as the first member of its own peers, and says in a table how to connect, to
 *  move and to free. A crew of threads takes posts, so a peer that stands still keeps its own posts and no other's.
 *  `lock` guards everything but connecting and moving.
 */
#ifndef KVFI_TRANSPORT_POSTS_H
#define KVFI_TRANSPORT_POSTS_H

#include "sys/crew.h"
#include "transport/queue.h"

enum { KVFI_POST_TEXT_BYTES = 160 };

struct kvfi_post {
    struct kvfi_crew_item item;  /* first. Whoever moves it stops soon once `item.stop` is set */
    struct kvfi_post_peer *peer;
    bool connects;               /* no ranges: connects the peer */
    struct kvfi_range_source source;
    uint64_t cookie;
    enum kvf_status stop_status; /* why it was stopped */
    char stop_text[KVFI_POST_TEXT_BYTES];
    enum kvf_status status;      /* what became of it */
    int64_t bytes;
    struct kvf_error error;
};

struct kvfi_post_peer {
    struct kvfi_post_peer *next;
    struct kvfi_crew_lane lane;
    uint64_t number;
    bool connected;
    bool ended;             /* takes no more; goes with its last post */
    bool quietly;           /* no PEER_DOWN: disconnected, or never connected */
    enum kvf_status status; /* why it ended */
    char text[KVFI_POST_TEXT_BYTES];
};

/** How a transport does it. `owner` is what init was given. */
struct kvfi_posts_ops {
    const char *name;      /* of the transport, for messages */
    size_t max_threads;
    int64_t peer_threads;  /* posts of one peer that are under way at a time: at most, and no more than processors */
    bool stays_busy;       /* moving never waits for a peer: a peer may have all threads, not half of them */
    /** Connects, without the lock; NULL where peers are connected when they are added. What it stores in the peer is
     *  looked at by `watch`, `unwatch` and `free_peer` alone. */
    enum kvf_status (*connect)(void *owner, struct kvfi_post_peer *peer, const struct kvfi_post *post,
                               struct kvf_error *error);
    /** Moves a post, without the lock, and stops soon once `post->item.stop` is set. `*bytes` is what is placed. With
     *  KVF_ERR_PEER_LOST the peer ends. */
    enum kvf_status (*move)(void *owner, struct kvfi_post *post, int64_t *bytes, struct kvf_error *error);
    /** Begins and ends looking out for the peer's end; the lock is held. NULL is fine. */
    void (*watch)(void *owner, struct kvfi_post_peer *peer);
    void (*unwatch)(void *owner, struct kvfi_post_peer *peer);
    /** Frees a peer; the lock is held, or no thread runs. */
    void (*free_peer)(void *owner, struct kvfi_post_peer *peer);
};

struct kvfi_posts {
    const struct kvfi_posts_ops *ops;
    void *owner;
    struct kvfi_queue *queue; /* where events go */
    pthread_mutex_t lock;
    struct kvfi_crew_rules rules;
    struct kvfi_crew crew;
    struct kvfi_post_peer *peers;
    uint64_t next_peer;
};

/** Prepares in the caller's memory, and starts the first thread. On failure fini is not to be called.
 *  @return KVF_OK, KVF_ERR_NO_MEMORY or KVF_ERR_SYSTEM */
enum kvf_status kvfi_posts_init(struct kvfi_posts *posts, const struct kvfi_posts_ops *ops, void *owner,
                                struct kvfi_queue *queue, struct kvf_error *error);
/** Stops what is under way (KVF_ERR_CLOSED), waits for the threads, frees peers and queued posts. */
void kvfi_posts_fini(struct kvfi_posts *posts);

/** Adds a peer (taken), which is connected already unless there is a `connect`, and gives its number. The lock is held.
 *  @return KVF_OK or KVF_ERR_NO_MEMORY; on failure it stays the caller's */
enum kvf_status kvfi_posts_add(struct kvfi_posts *posts, struct kvfi_post_peer *peer, uint64_t *number,
                               struct kvf_error *error);
/** A peer that has not ended, or NULL. The lock is held. */
struct kvfi_post_peer *kvfi_posts_find(struct kvfi_posts *posts, uint64_t number);
/** Ends a peer and its posts, and frees it once nothing is left of it. The lock is held. */
void kvfi_posts_end(struct kvfi_posts *posts, struct kvfi_post_peer *peer, enum kvf_status status, const char *text);

/** Checks a range that a post's source gave, number `number` of them with `left` announced bytes to come.
 *  @return KVF_OK or KVF_ERR_INVALID_ARGUMENT */
enum kvf_status kvfi_post_check(const struct kvfi_post *post, int64_t number, int64_t left,
                                const struct kvfi_range *range, struct kvf_error *error);
/** The source ended after `number` ranges: fine with nothing left. @return as kvfi_post_check */
enum kvf_status kvfi_post_check_end(const struct kvfi_post *post, int64_t number, int64_t left,
                                    struct kvf_error *error);

/** What the transport's table asks: see transport.h. They take the lock. */
void kvfi_posts_disconnect(struct kvfi_posts *posts, uint64_t number);
enum kvf_status kvfi_posts_post(struct kvfi_posts *posts, uint64_t number, const struct kvfi_range_source *source,
                                uint64_t cookie, struct kvf_error *error);
void kvfi_posts_abort(struct kvfi_posts *posts, uint64_t number, uint64_t cookie);

#endif
