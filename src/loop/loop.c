/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/loop.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "sys/clock.h"
#include "sys/thread.h"

/* ---- commands ---------------------------------------------------------------------------------------------- */

void kvfi_loop_wake(struct kvfi_loop *loop)
{
    uint64_t one = 1;

    if (write(loop->wake.fd, &one, sizeof one) < 0) {
        /* full: it is readable already */
    }
}

void kvfi_loop_post(struct kvfi_loop *loop, struct kvfi_loop_command *command)
{
    command->next = NULL;
    *(loop->commands_head == NULL ? &loop->commands_head : &loop->commands_tail->next) = command;
    loop->commands_tail = command;
    kvfi_loop_wake(loop);
}

static struct kvfi_loop_command *take_commands(struct kvfi_loop *loop)
{
    struct kvfi_loop_command *first;

    pthread_mutex_lock(&loop->lock);
    first = loop->commands_head;
    loop->commands_head = loop->commands_tail = NULL;
    pthread_mutex_unlock(&loop->lock);
    return first;
}

static void run_commands(void *owner, struct kvfi_watch *wake)
{
    struct kvfi_loop *loop = (struct kvfi_loop *)(void *)((char *)wake - offsetof(struct kvfi_loop, wake));
    struct kvfi_loop_command *command;
    uint64_t value;

    if (read(wake->fd, &value, sizeof value) < 0) {
        /* nothing to reset */
    }
    command = take_commands(loop);
    while (command != NULL) {
        struct kvfi_loop_command *next = command->next;
        command->run(owner, command);
        command = next;
    }
}

void kvfi_loop_drop_commands(struct kvfi_loop *loop)
{
    struct kvfi_loop_command *command = loop->initialised ? take_commands(loop) : NULL;

    while (command != NULL) {
        struct kvfi_loop_command *next = command->next;
        (command->drop != NULL ? command->drop : command->run)(loop->owner, command);
        command = next;
    }
}

/* ---- descriptors ------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_loop_watch(struct kvfi_loop *loop, struct kvfi_watch *watch, struct kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = watch}};

    if (watch->fd < 0 || epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event) != 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "epoll_ctl: %s", strerror(watch->fd < 0 ? EBADF : errno));
    return KVF_OK;
}

void kvfi_loop_unwatch(struct kvfi_loop *loop, struct kvfi_watch *watch)
{
    if (watch->fd >= 0)
        (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    for (size_t i = 0; i < KVFI_LOOP_READY; i++)
        if (loop->ready[i] == watch)
            loop->ready[i] = NULL;
}

/* ---- turns ------------------------------------------------------------------------------------------------- */

static int wait_ms(const struct kvfi_loop *loop, int64_t wait_ns, int64_t now)
{
    int64_t due = kvfi_timers_due(&loop->timers), left = wait_ns;

    if (due != INT64_MAX && due - now < left)
        left = due - now;
    if (left <= 0)
        return 0;
    if (left > 3600 * KVFI_SECOND)
        return left == INT64_MAX ? -1 : 3600 * 1000;
    return (int)((left + KVFI_MS - 1) / KVFI_MS);
}

static void tell_late(struct kvfi_loop *loop, int64_t late_ns)
{
    if (loop->hooks.stood_still != NULL && late_ns > loop->hooks.patience_ns)
        loop->hooks.stood_still(loop->owner, late_ns);
}

static void run_timers(struct kvfi_loop *loop)
{
    int64_t now = kvfi_now_ns();
    struct kvfi_timer *timer;

    if (loop->hooks.before_timers != NULL && kvfi_timers_due(&loop->timers) <= now)
        loop->hooks.before_timers(loop->owner);
    while ((timer = kvfi_timers_take(&loop->timers, now)) != NULL)
        timer->fire(loop->owner, timer);
}

/* Sleeps, and notes which watches are ready. */
static void sleep_until_ready(struct kvfi_loop *loop, int64_t wait_ns)
{
    struct epoll_event ready[KVFI_LOOP_READY];
    int64_t now = kvfi_now_ns(), wake;
    int count, ms = wait_ms(loop, wait_ns, now);

    if (loop->turn_ns != 0)
        tell_late(loop, now - loop->turn_ns);
    wake = ms < 0 ? INT64_MAX : now + ms * KVFI_MS;
    count = epoll_wait(loop->epoll_fd, ready, KVFI_LOOP_READY, ms);
    loop->turn_ns = kvfi_now_ns();
    if (loop->turn_ns > wake)
        tell_late(loop, loop->turn_ns - wake);
    for (int i = 0; i < KVFI_LOOP_READY; i++)
        loop->ready[i] = i < count ? ready[i].data.ptr : NULL;
}

void kvfi_loop_turn(struct kvfi_loop *loop, int64_t wait_ns)
{
    sleep_until_ready(loop, wait_ns);
    for (size_t i = 0; i < KVFI_LOOP_READY; i++) {
        struct kvfi_watch *watch = loop->ready[i];
        loop->ready[i] = NULL;
        if (watch != NULL)
            watch->ready(loop->owner, watch);
    }
    run_timers(loop);
    if (loop->hooks.end_turn != NULL)
        loop->hooks.end_turn(loop->owner);
}

void kvfi_loop_progress(struct kvfi_loop *loop)
{
    if (!loop->thread_started)
        kvfi_loop_turn(loop, 0);
}

static void *progress_main(void *context)
{
    struct kvfi_loop *loop = context;

    while (!atomic_load(&loop->stop))
        kvfi_loop_turn(loop, INT64_MAX);
    return NULL;
}

/* ---- beginning and end ------------------------------------------------------------------------------------- */

static void init_lock(struct kvfi_loop *loop)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&loop->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&loop->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

enum kvf_status kvfi_loop_init(struct kvfi_loop *loop, void *owner, const struct kvfi_loop_hooks *hooks,
                               struct kvf_error *error)
{
    *loop = (struct kvfi_loop){.owner = owner, .initialised = true};
    if (hooks != NULL)
        loop->hooks = *hooks;
    init_lock(loop);
    loop->wake = (struct kvfi_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = run_commands};
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->wake.fd < 0 || loop->epoll_fd < 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "eventfd, epoll: %s", strerror(errno));
    return kvfi_loop_watch(loop, &loop->wake, error);
}

void kvfi_loop_fini(struct kvfi_loop *loop)
{
    if (!loop->initialised)
        return;
    kvfi_loop_drop_commands(loop);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    if (loop->wake.fd >= 0)
        close(loop->wake.fd);
    pthread_cond_destroy(&loop->changed);
    pthread_mutex_destroy(&loop->lock);
    loop->initialised = false;
}

enum kvf_status kvfi_loop_start(struct kvfi_loop *loop, struct kvf_error *error)
{
    int code = kvfi_thread_start(&loop->thread, progress_main, loop);

    if (code != 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "cannot start the progress thread: %s", strerror(code));
    loop->thread_started = true;
    return KVF_OK;
}

void kvfi_loop_stop(struct kvfi_loop *loop)
{
    if (!loop->thread_started)
        return;
    atomic_store(&loop->stop, true);
    kvfi_loop_wake(loop);
    pthread_join(loop->thread, NULL);
    pthread_mutex_lock(&loop->lock); /* who waits looks at it */
    loop->thread_started = false;
    pthread_mutex_unlock(&loop->lock);
}

/* ---- waiting ----------------------------------------------------------------------------------------------- */

void kvfi_loop_wait(struct kvfi_loop *loop, int64_t deadline_ns)
{
    struct timespec at = {.tv_sec = deadline_ns / KVFI_SECOND, .tv_nsec = deadline_ns % KVFI_SECOND};

    if (loop->thread_started || atomic_load(&loop->stop)) {
        (void)pthread_cond_timedwait(&loop->changed, &loop->lock, &at);
    } else {
        pthread_mutex_unlock(&loop->lock);
        kvfi_loop_turn(loop, deadline_ns - kvfi_now_ns());
        pthread_mutex_lock(&loop->lock);
    }
}
