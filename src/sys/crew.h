/* SPDX-License-Identifier: Apache-2.0 */
/** @file crew.h  Threads for work that blocks on peers: each peer has a lane of items, and keeps up its own alone.
 *
 *  Threads are made as items need them, up to a bound, and stay until fini. Items of a lane begin in the order in which
 *  they were pushed, several side by side. Lanes take turns; one that has nothing under way goes before those that
 *  have. Once half of the threads are busy each lane has one only, so that lanes which stand still leave threads to the
 *  others: with M threads and K items of a lane side by side, at least M / 2 + M / 2K lanes must stand still before one
 *  more waits.
 *
 *  The owner embeds items and lanes in its own structs, and lends its lock: every function but init and fini is called
 *  with it held, and it guards all fields. Zeros are a new lane and a new item.
 */
#ifndef KVFI_SYS_CREW_H
#define KVFI_SYS_CREW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvfi_crew_state { KVFI_CREW_IDLE, KVFI_CREW_QUEUED, KVFI_CREW_RUNNING };

struct kvfi_crew_item {
    /* Of the crew. The owner may walk along `next`. */
    struct kvfi_crew_item *next, *previous; /* in its lane, or among those under way */
    struct kvfi_crew_lane *lane;
    enum kvfi_crew_state state;
    int wake_fd;          /* while it runs: readable once `stop` is set */
    atomic_bool stop;     /* asks whoever runs it to end soon; stays set */
    /* Of the owner. */
    int64_t deadline_ns;  /* 0, or when it expires while it is still queued */
};

struct kvfi_crew_list {
    struct kvfi_crew_lane *first, *last;
    size_t count;
};

struct kvfi_crew_lane {
    struct kvfi_crew_item *first, *last; /* queued */
    size_t queued, running;
    struct kvfi_crew_lane *next, *previous;
    struct kvfi_crew_list *list;         /* where it is while anything is queued */
};

struct kvfi_crew_rules {
    size_t max_threads;
    size_t lane_items;  /* of one lane that may run side by side */
    bool stays_busy;    /* nothing ever stands still: a lane may have all threads, not half of them */
    /** Does it, without the lock. It may look at the item, and at what the owner keeps beside it. */
    void (*run)(void *owner, struct kvfi_crew_item *item);
    /** It ran; the lock is held. The crew has done with the item, and with its lane unless it is pushed to again:
     *  both may be freed. */
    void (*ended)(void *owner, struct kvfi_crew_item *item);
    /** It was queued when its deadline passed, and was taken out; as `ended`. NULL: no item has a deadline. */
    void (*expired)(void *owner, struct kvfi_crew_item *item);
};

struct kvfi_crew_thread;

struct kvfi_crew {
    const struct kvfi_crew_rules *rules;
    void *owner;
    pthread_mutex_t *lock;
    pthread_cond_t called, ticked; /* there is work; the clock has to look earlier */
    /* Lanes with something queued: nothing of it runs; more of it may run; all that may run does. */
    struct kvfi_crew_list fresh, more, full;
    struct kvfi_crew_item *running;
    size_t running_count;
    struct kvfi_crew_thread *threads;
    size_t thread_count;
    size_t idle, calls, starting;  /* threads that wait, those among them that are called, those not yet there */
    pthread_t clock;
    bool has_clock, stopping;
    int64_t tick_ns;               /* when the clock looks next */
};

/** Prepares in the caller's memory; starts nothing. `rules` and `lock` are borrowed until fini. */
void kvfi_crew_init(struct kvfi_crew *crew, const struct kvfi_crew_rules *rules, pthread_mutex_t *lock, void *owner);
/** Stops what runs and waits for it, each item ending by `ended`; nothing begins any more. Items that are queued stay
 *  so, and are the owner's. Without the lock. */
void kvfi_crew_fini(struct kvfi_crew *crew);

/** Starts the first thread, if there is none: no push fails any more. @return 0, or an errno value */
int kvfi_crew_start(struct kvfi_crew *crew);

/** Queues an item: `ended` or `expired` follows, unless it is dropped or the crew ends. Neither is called before this
 *  returns. @return 0; an errno value, where there is no thread at all and none can be had, and nothing has changed */
int kvfi_crew_push(struct kvfi_crew *crew, struct kvfi_crew_lane *lane, struct kvfi_crew_item *item);

/** Takes out an item that is queued: it is the owner's again. */
void kvfi_crew_drop(struct kvfi_crew *crew, struct kvfi_crew_item *item);

/** Asks an item to end soon, while it runs or as soon as it does. `ended` follows all the same. */
void kvfi_crew_stop(struct kvfi_crew_item *item);

#endif
