/* SPDX-License-Identifier: Apache-2.0 */
/** @file watcher.h  A thread that looks out for the ends of peers, on descriptors that say nothing else. */
#ifndef KVFI_TRANSPORT_WATCHER_H
#define KVFI_TRANSPORT_WATCHER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "kvferry/status.h"

struct kvfi_watcher {
    void *owner;
    /** Called by the thread for a descriptor that has something, again and again until it is removed. */
    void (*ready)(void *owner, uint64_t number);
    int epoll, wake;
    pthread_t thread;
    bool started;
    atomic_bool stop;
};

/** Starts the thread, in the caller's memory. On failure close is still to be called.
 *  @param name  for messages
 *  @return KVF_OK or KVF_ERR_SYSTEM */
enum kvf_status kvfi_watcher_open(struct kvfi_watcher *watcher, const char *name, void *owner,
                                  void (*ready)(void *owner, uint64_t number), struct kvf_error *error);
/** Ends the thread: `ready` is not called any more. Descriptors may still be removed. */
void kvfi_watcher_stop(struct kvfi_watcher *watcher);
/** Stops, and closes. One that was never opened has its `epoll` and `wake` at -1. */
void kvfi_watcher_close(struct kvfi_watcher *watcher);

/** Watches a descriptor for input and its end. `number` is not 0. @return KVF_OK or KVF_ERR_SYSTEM */
enum kvf_status kvfi_watcher_add(struct kvfi_watcher *watcher, int fd, uint64_t number, struct kvf_error *error);
void kvfi_watcher_remove(struct kvfi_watcher *watcher, int fd);

#endif
