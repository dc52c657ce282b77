/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/server.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include "transport/mooncake/address.h"

enum { MAX_EVENTS = 128, ACCEPTS_PER_TURN = 256, LOOKED_AT = 64 };

#define ACCEPT_PAUSE_NS (50 * KVFI_MS)
#define LOOK_AGAIN_NS (500 * KVFI_MS)

/* ---- accepting -------------------------------------------------------------------------------------------------- */

static void adopt(struct kvfi_moon_thread *thread, int fd);

static void hand_over(struct kvfi_moon_server *server, int fd)
{
    struct kvfi_moon_thread *thread = &server->threads[server->turn++ % server->thread_count];
    bool taken;

    if (thread == &server->threads[0]) {
        adopt(thread, fd);
        return;
    }
    pthread_mutex_lock(&thread->lock);
    taken = kvfi_array_grow((void **)&thread->arrived, thread->arrived_count, &thread->arrived_capacity, sizeof(int));
    if (taken) thread->arrived[thread->arrived_count++] = fd;
    pthread_mutex_unlock(&thread->lock);
    if (taken) eventfd_write(thread->wake, 1);
    else close(fd);
}

static void watch_listener(struct kvfi_moon_server *server, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = server};

    epoll_ctl(server->threads[0].epoll, EPOLL_CTL_MOD, server->serving.listener, &event);
}

static void accept_some(struct kvfi_moon_server *server)
{
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(server->serving.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            hand_over(server, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (!server->told_of_limit)
                kvfi_logf(server->serving.log, KVF_LOG_WARN, "mooncake: data connections wait to be accepted: %s",
                          strerror(errno));
            server->told_of_limit = true;
            server->accept_again_ns = kvfi_now_ns() + ACCEPT_PAUSE_NS;
            watch_listener(server, false);
            break;
        } else if (errno == EAGAIN) {
            break;
        }
    }
}

/* ---- too many, too slow, revoked -------------------------------------------------------------------------------- */

static bool is_unanswered(int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           (info.tcpi_probes > 0 || info.tcpi_retransmits > 0);
}

/* Makes room by closing an idle connection: the first of the oldest whose peer no longer answers, or the oldest. */
static bool make_room(struct kvfi_moon_thread *thread)
{
    struct kvfi_moon_conn *oldest = NULL;
    int looked_at = 0;

    for (struct kvfi_moon_conn *conn = thread->first; conn && looked_at < LOOKED_AT; conn = conn->next) {
        if (!kvfi_moon_conn_is_idle(conn)) continue;
        looked_at++;
        if (!oldest) oldest = conn;
        if (!is_unanswered(conn->fd)) continue;
        oldest = conn;
        break;
    }
    if (oldest) kvfi_moon_conn_close(oldest, "idle, and there are too many");
    return oldest != NULL;
}

static void look_at_deadlines(struct kvfi_moon_thread *thread, int64_t now_ns)
{
    struct kvfi_moon_conn *next;

    for (struct kvfi_moon_conn *conn = thread->first; conn; conn = next) {
        next = conn->next;
        if (conn->deadline_ns != 0 && conn->deadline_ns <= now_ns) kvfi_moon_conn_overdue(conn);
    }
}

static void look_at_orders(struct kvfi_moon_thread *thread)
{
    struct kvfi_moon_conn *next;
    eventfd_t ignored;
    int *arrived;
    size_t count;
    bool revoke;

    eventfd_read(thread->wake, &ignored);
    pthread_mutex_lock(&thread->lock);
    arrived = thread->arrived;
    count = thread->arrived_count;
    revoke = thread->revoke;
    thread->arrived = NULL;
    thread->arrived_count = thread->arrived_capacity = 0;
    thread->revoke = false;
    pthread_mutex_unlock(&thread->lock);
    for (size_t i = 0; i < count; i++) adopt(thread, arrived[i]);
    free(arrived);
    for (struct kvfi_moon_conn *conn = thread->first; revoke && conn; conn = next) {
        next = conn->next;
        if (kvfi_moon_conn_touches_revoked(conn)) kvfi_moon_conn_close(conn, "its request was revoked");
    }
}

/* ---- the threads ------------------------------------------------------------------------------------------------ */

static void adopt(struct kvfi_moon_thread *thread, int fd)
{
    const struct kvfi_moon_serving *serving = &thread->server->serving;
    int64_t share = serving->max_connections / (int64_t)thread->server->thread_count;
    struct kvfi_moon_conn *conn = NULL;
    struct epoll_event event = {.events = EPOLLIN};

    if (thread->count < (share > 0 ? share : 1) || make_room(thread)) conn = kvfi_alloc_zeroed(1, sizeof *conn);
    event.data.ptr = conn;
    if (!conn || epoll_ctl(thread->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(conn);
        close(fd);
        return;
    }
    kvfi_moon_set_options(fd, serving->progress_timeout_ns);
    conn->fd = fd;
    conn->thread = thread;
    kvfi_moon_hosts_add(&thread->server->hosts, fd, &conn->origin);
    conn->events = EPOLLIN;
    conn->many = true;
    conn->previous = thread->last;
    *(thread->last ? &thread->last->next : &thread->first) = conn;
    thread->last = conn;
    thread->count++;
}

static void free_dead(struct kvfi_moon_thread *thread)
{
    while (thread->dead) {
        struct kvfi_moon_conn *conn = thread->dead;

        thread->dead = conn->next;
        free(conn->replies);
        free(conn->held);
        free(conn);
    }
}

/* Milliseconds to the next look at deadlines; -1 while nothing is under way. */
static int next_look(const struct kvfi_moon_thread *thread)
{
    if (thread == &thread->server->threads[0] && thread->server->accept_again_ns != 0)
        return (int)(ACCEPT_PAUSE_NS / KVFI_MS);
    return thread->busy > 0 ? (int)(LOOK_AGAIN_NS / KVFI_MS) : -1;
}

static void serve_turn(struct kvfi_moon_thread *thread, const struct epoll_event *events, int count)
{
    struct kvfi_moon_server *server = thread->server;

    for (int i = 0; i < count; i++) {
        void *what = events[i].data.ptr;

        if (what == thread) look_at_orders(thread);
        else if (what == server) accept_some(server);
        else kvfi_moon_conn_ready(what, events[i].events);
    }
}

/* A sender on this processor fills its connections one by one, and is stopped for each when this thread comes at once:
 * in turn, it takes them all in at one waking. A large body is taken while it is still in the processor's cache. */
static void choose_patience(struct kvfi_moon_thread *thread)
{
    bool patient = thread->large == 0;

    if (!thread->ordinary || patient == thread->patient) return;
    thread->patient = patient;
    kvfi_thread_set_patient(patient);
}

static void *serve(void *argument)
{
    struct kvfi_moon_thread *thread = argument;
    struct kvfi_moon_server *server = thread->server;
    int64_t looked_ns = kvfi_now_ns();

    thread->ordinary = kvfi_thread_is_ordinary();
    while (!atomic_load(&server->stopping)) {
        struct epoll_event events[MAX_EVENTS];
        int count;
        int64_t now_ns;

        choose_patience(thread);
        count = epoll_wait(thread->epoll, events, MAX_EVENTS, next_look(thread));
        now_ns = kvfi_now_ns();

        serve_turn(thread, events, count);
        if (now_ns - looked_ns >= LOOK_AGAIN_NS) {
            look_at_deadlines(thread, now_ns);
            looked_ns = now_ns;
        }
        if (thread == &server->threads[0] && server->accept_again_ns != 0 && server->accept_again_ns <= now_ns) {
            server->accept_again_ns = 0;
            watch_listener(server, true);
        }
        free_dead(thread);
    }
    return NULL;
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

static enum kvf_status make_thread(struct kvfi_moon_server *server, struct kvfi_moon_thread *thread,
                                   struct kvf_error *error)
{
    struct epoll_event on_wake = {.events = EPOLLIN, .data.ptr = thread};
    struct epoll_event on_listener = {.events = EPOLLIN, .data.ptr = server};

    thread->stage = malloc(KVFI_MOON_STAGE_BYTES);
    if (!thread->stage) return kvfi_fail_memory(error, "a receive buffer");
    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    thread->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (thread->epoll < 0 || thread->wake < 0 ||
        epoll_ctl(thread->epoll, EPOLL_CTL_ADD, thread->wake, &on_wake) != 0 ||
        (thread == &server->threads[0] &&
         epoll_ctl(thread->epoll, EPOLL_CTL_ADD, server->serving.listener, &on_listener) != 0))
        return kvfi_fail(error, KVF_ERR_SYSTEM, "mooncake: epoll: %s", strerror(errno));
    return KVF_OK;
}

enum kvf_status kvfi_moon_server_open(const struct kvfi_moon_serving *serving, struct kvfi_moon_server **out,
                                      struct kvf_error *error)
{
    struct kvfi_moon_server *server = kvfi_alloc_zeroed(1, sizeof *server);
    enum kvf_status status = KVF_OK;
    int failure = 0;

    if (!server) return kvfi_fail_memory(error, "a data server");
    server->serving = *serving;
    server->serving.listener = -1; /* the caller's until this succeeds */
    server->thread_count = serving->threads < 1 ? 1
                           : serving->threads > KVFI_MOON_MAX_THREADS ? KVFI_MOON_MAX_THREADS
                                                                      : (size_t)serving->threads;
    atomic_init(&server->stopping, false);
    kvfi_moon_hosts_init(&server->hosts);
    kvfi_moon_refusals_init(&server->refusals, serving->log);
    for (size_t i = 0; i < server->thread_count; i++) {
        server->threads[i].server = server;
        server->threads[i].epoll = server->threads[i].wake = -1;
        pthread_mutex_init(&server->threads[i].lock, NULL);
    }
    server->serving.listener = serving->listener;
    for (size_t i = 0; status == KVF_OK && i < server->thread_count; i++)
        status = make_thread(server, &server->threads[i], error);
    for (size_t i = 0; status == KVF_OK && failure == 0 && i < server->thread_count; i++) {
        failure = kvfi_thread_start(&server->threads[i].thread, serve, &server->threads[i]);
        server->threads[i].started = failure == 0;
    }
    if (failure != 0) status = kvfi_fail(error, KVF_ERR_SYSTEM, "mooncake: thread: %s", strerror(failure));
    if (status == KVF_OK) {
        *out = server;
    } else {
        server->serving.listener = -1;
        kvfi_moon_server_close(server);
    }
    return status;
}

void kvfi_moon_server_close(struct kvfi_moon_server *server)
{
    if (!server) return;
    atomic_store(&server->stopping, true);
    for (size_t i = 0; i < server->thread_count; i++) {
        if (server->threads[i].started) eventfd_write(server->threads[i].wake, 1);
    }
    for (size_t i = 0; i < server->thread_count; i++) {
        if (server->threads[i].started) pthread_join(server->threads[i].thread, NULL);
    }
    if (server->serving.listener >= 0) close(server->serving.listener);
    for (size_t i = 0; i < server->thread_count; i++) {
        struct kvfi_moon_thread *thread = &server->threads[i];

        while (thread->first) kvfi_moon_conn_close(thread->first, "the engine closes");
        free_dead(thread);
        for (size_t j = 0; j < thread->arrived_count; j++) close(thread->arrived[j]);
        free(thread->arrived);
        if (thread->epoll >= 0) close(thread->epoll);
        if (thread->wake >= 0) close(thread->wake);
        free(thread->stage);
        pthread_mutex_destroy(&thread->lock);
    }
    kvfi_moon_hosts_fini(&server->hosts);
    kvfi_moon_refusals_fini(&server->refusals);
    free(server);
}

void kvfi_moon_server_revoke(struct kvfi_moon_server *server)
{
    for (size_t i = 0; i < server->thread_count; i++) {
        pthread_mutex_lock(&server->threads[i].lock);
        server->threads[i].revoke = true;
        pthread_mutex_unlock(&server->threads[i].lock);
        eventfd_write(server->threads[i].wake, 1);
    }
}

int64_t kvfi_moon_server_count_from(struct kvfi_moon_server *server, const char *address)
{
    return kvfi_moon_hosts_count(&server->hosts, address);
}

int64_t kvfi_moon_server_count_unknown(struct kvfi_moon_server *server,
                                       bool (*is_known)(void *context, const uint8_t bytes[16]), void *context)
{
    return kvfi_moon_hosts_count_unknown(&server->hosts, is_known, context);
}
