/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/watcher.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "sys/thread.h"

static void *watch(void *argument)
{
    struct kvfi_watcher *watcher = argument;

    while (!atomic_load(&watcher->stop)) {
        struct epoll_event events[16];
        int count = epoll_wait(watcher->epoll, events, 16, -1);

        for (int i = 0; i < count; i++)
            if (events[i].data.u64 != 0) watcher->ready(watcher->owner, events[i].data.u64);
    }
    return NULL;
}

enum kvf_status kvfi_watcher_add(struct kvfi_watcher *watcher, int fd, uint64_t number, struct kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = number};

    if (epoll_ctl(watcher->epoll, EPOLL_CTL_ADD, fd, &event) == 0) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_SYSTEM, "descriptor %d cannot be watched: %s", fd, strerror(errno));
}

void kvfi_watcher_remove(struct kvfi_watcher *watcher, int fd)
{
    epoll_ctl(watcher->epoll, EPOLL_CTL_DEL, fd, NULL);
}

enum kvf_status kvfi_watcher_open(struct kvfi_watcher *watcher, const char *name, void *owner,
                                  void (*ready)(void *owner, uint64_t number), struct kvf_error *error)
{
    int failure = 0;

    watcher->owner = owner;
    watcher->ready = ready;
    watcher->started = false;
    atomic_init(&watcher->stop, false);
    watcher->epoll = epoll_create1(EPOLL_CLOEXEC);
    watcher->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watcher->epoll < 0 || watcher->wake < 0 || kvfi_watcher_add(watcher, watcher->wake, 0, error) != KVF_OK)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "%s: epoll, eventfd: %s", name, strerror(errno));
    failure = kvfi_thread_start(&watcher->thread, watch, watcher);
    watcher->started = failure == 0;
    return failure == 0 ? KVF_OK
                        : kvfi_fail(error, KVF_ERR_SYSTEM, "%s: cannot start a thread: %s", name, strerror(failure));
}

void kvfi_watcher_stop(struct kvfi_watcher *watcher)
{
    if (!watcher->started) return;
    atomic_store(&watcher->stop, true);
    eventfd_write(watcher->wake, 1);
    pthread_join(watcher->thread, NULL);
    watcher->started = false;
}

void kvfi_watcher_close(struct kvfi_watcher *watcher)
{
    kvfi_watcher_stop(watcher);
    if (watcher->epoll >= 0) close(watcher->epoll);
    if (watcher->wake >= 0) close(watcher->wake);
}
