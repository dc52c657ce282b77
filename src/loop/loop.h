/* SPDX-License-Identifier: Apache-2.0 */
/** @file loop.h  One thread that owns descriptors, timers and commands.
 *
 *  Everything that its *owner* keeps is touched by the progress thread alone, in callbacks, except what the loop's lock
 *  protects. Other threads post commands, and wait for a change. With no thread of its own (caller progress) the thread
 *  that waits or turns is the progress thread for that time; then all calls come from one thread at a time.
 *
 *  No callback may block, and none is called with the lock held.
 */
#ifndef KVFI_LOOP_LOOP_H
#define KVFI_LOOP_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "kvferry/status.h"
#include "loop/timers.h"
#include "sys/clock.h"

enum kvfi_loop_limit { KVFI_LOOP_READY = 16 /* descriptors looked at per turn */ };

/** A descriptor to be read, inside another struct. */
struct kvfi_watch {
    int fd;
    /** Called while the descriptor is readable (level-triggered). May unwatch and free any watch, its own too. */
    void (*ready)(void *owner, struct kvfi_watch *watch);
};

/** Something to be done by the progress thread, inside another struct. */
struct kvfi_loop_command {
    struct kvfi_loop_command *next;
    /** Takes the command (frees it). */
    void (*run)(void *owner, struct kvfi_loop_command *command);
    /** The same for one that will never be run, because the loop ends. NULL = run is called all the same. */
    void (*drop)(void *owner, struct kvfi_loop_command *command);
};

/** What the owner wants to be told; any may be NULL. Called by the progress thread. */
struct kvfi_loop_hooks {
    /** Before timers that are due fire: what has arrived counts before any deadline does. */
    void (*before_timers)(void *owner);
    /** At the end of a turn: what ended during it may be freed. */
    void (*end_turn)(void *owner);
    /** This process stood still (stopped, starved, or not called) for `late_ns`, at least `patience_ns`: the silence of
     *  others during that time says nothing. */
    void (*stood_still)(void *owner, int64_t late_ns);
    int64_t patience_ns;
    const char *name; /* what an error calls the owner; not copied; NULL = "loop" */
};

struct kvfi_loop {
    void *owner;
    struct kvfi_loop_hooks hooks;
    pthread_mutex_t lock;
    pthread_cond_t changed;      /* on the monotonic clock: something that a waiting caller may look for */
    int64_t changes;             /* lock; raised by kvfi_loop_changed */
    struct kvfi_timers timers;   /* progress thread; kvfi_timer_arm and _disarm are used directly */
    int64_t turn_ns;             /* when the last turn woke up */
    struct kvfi_loop_command *commands_head, *commands_tail; /* lock */
    struct kvfi_watch wake;
    struct kvfi_watch *ready[KVFI_LOOP_READY]; /* those of this turn that are still to be called */
    int epoll_fd;
    pthread_t thread;
    bool thread_started;
    bool initialised;
    atomic_bool stop;
};

/** Prepares a loop in the caller's memory, without a thread. On failure fini is still to be called.
 *  @param hooks  copied; NULL = none
 *  @return KVF_OK or KVF_ERR_SYSTEM */
enum kvf_status kvfi_loop_init(struct kvfi_loop *loop, void *owner, const struct kvfi_loop_hooks *hooks,
                               struct kvf_error *error);
/** Drops commands that did not run, and frees. The thread has been stopped. A loop of zeros is fine. */
void kvfi_loop_fini(struct kvfi_loop *loop);
/** Drops commands that did not run. Fini does it too; this is for an owner that must still be whole then. */
void kvfi_loop_drop_commands(struct kvfi_loop *loop);

/** Starts the progress thread. @return KVF_OK or KVF_ERR_SYSTEM */
enum kvf_status kvfi_loop_start(struct kvfi_loop *loop, struct kvf_error *error);
/** Ends it and waits for the turn under way. Fine when there is none. Not from the progress thread. */
void kvfi_loop_stop(struct kvfi_loop *loop);

/** Watches a descriptor: `watch` is filled already, and stays valid until it is unwatched or the loop ends. By the
 *  progress thread, or before it starts. @return KVF_OK; KVF_ERR_SYSTEM, also for a descriptor below 0 */
enum kvf_status kvfi_loop_watch(struct kvfi_loop *loop, struct kvfi_watch *watch, struct kvf_error *error);
/** Stops watching, before the descriptor is closed; it is not called again, in this turn either. One that is not
 *  watched is fine. */
void kvfi_loop_unwatch(struct kvfi_loop *loop, struct kvfi_watch *watch);

/** One turn, by the progress thread: waits up to `wait_ns` (INT64_MAX = for ever) for something to do, then does what
 *  is due: descriptors, commands, timers. */
void kvfi_loop_turn(struct kvfi_loop *loop, int64_t wait_ns);
/** One turn without waiting when there is no thread; nothing otherwise. */
void kvfi_loop_progress(struct kvfi_loop *loop);

/** Posts a command (taken) and wakes the progress thread. The caller holds the lock. Commands run in the order of their
 *  posting. */
void kvfi_loop_post(struct kvfi_loop *loop, struct kvfi_loop_command *command);
void kvfi_loop_wake(struct kvfi_loop *loop);

/** Waits for `changed` or the deadline; the caller holds the lock and looks again afterwards. Without a progress thread
 *  a turn is made instead (the lock is given up meanwhile), but none any more once a thread was stopped: who stopped it
 *  has the owner for itself. Not from a callback. */
void kvfi_loop_wait(struct kvfi_loop *loop, int64_t deadline_ns);

#endif
