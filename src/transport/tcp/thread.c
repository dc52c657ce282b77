/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "sys/clock.h"
#include "transport/tcp/inside.h"

enum { MAX_EVENTS = 64 };

void kvfi_tcp_wake(struct kvfi_thread *thread)
{
    eventfd_write(thread->wake, 1);
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

static bool can_send(const struct kvfi_conn *conn)
{
    return conn->wants_send && !conn->blocked && conn->state != KVFI_CONN_CONNECTING;
}

/* Finds a connection of this thread that must be looked at and has not sent in this turn; NULL when there is none.
 * `*next_ns` becomes the nearest deadline: now, when one that has had its turn could send more. Locked. */
static struct kvfi_conn *find_due(struct kvfi_thread *thread, int64_t now_ns, int64_t *next_ns)
{
    struct kvfi_conn *due = NULL;

    *next_ns = 0;
    for (struct kvfi_conn *conn = thread->conns; conn && !due; conn = conn->next) {
        bool expired = conn->deadline_ns != 0 && conn->deadline_ns <= now_ns;

        if (conn->kill || expired || (can_send(conn) && conn->turn != thread->turn)) due = conn;
        *next_ns = sooner(*next_ns, can_send(conn) ? now_ns : conn->deadline_ns);
    }
    return due;
}

/* Does what is due to connections. Returns the nearest deadline. Not locked. */
static int64_t look_at_conns(struct kvfi_thread *thread)
{
    struct kvfi_transport *transport = thread->owner;
    struct kvfi_conn *conn;
    int64_t next_ns;

    pthread_mutex_lock(&transport->lock);
    thread->turn++;
    while ((conn = find_due(thread, kvfi_now_ns(), &next_ns)) != NULL) {
        bool kill = conn->kill;
        bool expired = conn->deadline_ns != 0 && conn->deadline_ns <= kvfi_now_ns();

        conn->wants_send = false;
        conn->turn = thread->turn;
        pthread_mutex_unlock(&transport->lock);
        if (kill) kvfi_conn_close(conn, KVF_OK, "given up");
        else if (expired)
            kvfi_conn_close(conn, KVF_ERR_TIMEOUT, conn->outgoing ? "no answer in time" : "no hello in time");
        else kvfi_conn_send(conn);
        pthread_mutex_lock(&transport->lock);
    }
    if (thread->index == 0 && !transport->stopping)
        next_ns = sooner(next_ns, kvfi_sessions_tick(transport, kvfi_now_ns()));
    pthread_mutex_unlock(&transport->lock);
    return next_ns;
}

static void handle(struct kvfi_thread *thread, const struct epoll_event *event)
{
    struct kvfi_conn *conn = event->data.ptr;
    eventfd_t number;

    if (event->data.ptr == &thread->wake) {
        eventfd_read(thread->wake, &number);
    } else if (event->data.ptr == &thread->owner->listener) {
        kvfi_conn_accept(thread->owner, kvfi_now_ns());
    } else if (conn->state == KVFI_CONN_CONNECTING) {
        kvfi_session_connected(conn);
    } else if (!(event->events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP)) || kvfi_conn_receive(conn)) {
        if (event->events & EPOLLOUT) kvfi_conn_send(conn);
    }
}

static int wait_ms(int64_t until_ns)
{
    int64_t left = until_ns - kvfi_now_ns();

    if (until_ns == 0) return -1;
    return left <= 0 ? 0 : (int)(left / KVFI_MS) + 1;
}

static bool is_stopping(struct kvfi_transport *transport)
{
    bool stopping;

    pthread_mutex_lock(&transport->lock);
    stopping = transport->stopping;
    pthread_mutex_unlock(&transport->lock);
    return stopping;
}

void *kvfi_tcp_thread(void *argument)
{
    struct kvfi_thread *thread = argument;
    struct epoll_event events[MAX_EVENTS];

    while (!is_stopping(thread->owner)) {
        int64_t until_ns = look_at_conns(thread);
        /* A connection is closed by handling its own event only, and there is one event per connection in a batch. */
        int count = epoll_wait(thread->epoll, events, MAX_EVENTS, wait_ms(until_ns));

        for (int i = 0; i < count; i++) handle(thread, &events[i]);
    }
    while (thread->conns) kvfi_conn_close(thread->conns, KVF_OK, "closed");
    return NULL;
}
