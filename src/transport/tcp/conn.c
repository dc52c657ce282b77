/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "sys/clock.h"
#include "transport/tcp/inside.h"

enum { MAX_FREE_STAGES = 8 };

static void name_conn(struct kvfi_conn *conn)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char host[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;

    if (getpeername(conn->fd, (struct sockaddr *)&address, &bytes) != 0) address.ss_family = AF_UNSPEC;
    if (address.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&address;

        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        port = ntohs(in->sin_port);
    } else if (address.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)&address;

        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        port = ntohs(in->sin6_port);
    }
    snprintf(conn->name, sizeof conn->name, "%s:%u", host, port);
}

void kvfi_conn_set_options(int fd, int64_t timeout_ns)
{
    int on = 1, idle_s = 30, interval_s = 10, count = 3;
    unsigned timeout_ms = (unsigned)(timeout_ns / KVFI_MS);

    /* Each of these only makes things better: a failure is no error. cubic: the default elsewhere is often slower. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

struct kvfi_conn *kvfi_conn_create(struct kvfi_transport *transport, int fd, bool outgoing, uint32_t events)
{
    struct kvfi_conn *conn = kvfi_alloc_zeroed(1, sizeof *conn);
    struct epoll_event event = {.events = events, .data.ptr = conn};

    if (!conn) goto fail;
    conn->owner = transport;
    conn->fd = fd;
    conn->outgoing = outgoing;
    conn->state = outgoing ? KVFI_CONN_CONNECTING : KVFI_CONN_GREETING;
    conn->deadline_ns = kvfi_now_ns() + transport->config.connect_timeout_ns;
    conn->thread = &transport->threads[transport->next_thread++ % transport->thread_count];
    kvfi_conn_set_options(fd, transport->config.connect_timeout_ns);
    if (!outgoing) name_conn(conn);
    conn->next = conn->thread->conns;
    conn->thread->conns = conn;
    if (epoll_ctl(conn->thread->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        conn->thread->conns = conn->next;
        goto fail;
    }
    kvfi_tcp_wake(conn->thread);
    return conn;
fail:
    free(conn);
    close(fd);
    return NULL;
}

void kvfi_conn_watch(struct kvfi_conn *conn, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};

    epoll_ctl(conn->thread->epoll, EPOLL_CTL_MOD, conn->fd, &event);
}

void kvfi_conn_close(struct kvfi_conn *conn, enum kvf_status status, const char *why)
{
    struct kvfi_transport *transport = conn->owner;
    struct kvfi_conn **slot = &conn->thread->conns;

    if (!conn->outgoing && status == KVF_ERR_PEER_LOST)
        kvfi_logf(transport->config.log, KVF_LOG_DEBUG, "tcp: connection of %s closed: %s", conn->name, why);
    else if (!conn->outgoing && status != KVF_OK)
        kvfi_logf(transport->config.log, KVF_LOG_WARN, "tcp: connection of %s (%s) closed: %s", conn->name,
                  conn->who.name[0] ? conn->who.name : "unknown", why);
    kvfi_receiving_fini(conn);
    pthread_mutex_lock(&transport->lock);
    while (*slot != conn) slot = &(*slot)->next;
    *slot = conn->next;
    kvfi_sending_fini(conn);
    while (conn->notices) {
        struct kvfi_notice *notice = conn->notices;

        conn->notices = notice->next;
        free(notice);
    }
    close(conn->fd);
    if (conn->session) kvfi_session_lost(conn->session, conn, status, why);
    pthread_mutex_unlock(&transport->lock);
    free(conn);
}

void kvfi_conn_notice(struct kvfi_conn *conn, const uint8_t *data, size_t bytes)
{
    struct kvfi_notice *notice = NULL;

    if (conn->kill) return;
    if (conn->notice_count < KVFI_MAX_NOTICES) notice = malloc(sizeof *notice + bytes);
    if (!notice) {
        kvfi_logf(conn->owner->config.log, KVF_LOG_WARN, "tcp: connection of %s (%s) is given up: %s", conn->name,
                  conn->who.name[0] ? conn->who.name : "unknown",
                  conn->notice_count < KVFI_MAX_NOTICES ? "out of memory for an answer"
                                                        : "it does not read the answers to what it sends");
        conn->kill = true;
        kvfi_tcp_wake(conn->thread);
        return;
    }
    conn->notice_count++;
    notice->next = NULL;
    notice->bytes = bytes;
    notice->sent = 0;
    memcpy(notice->data, data, bytes);
    if (conn->notices) conn->last_notice->next = notice;
    else conn->notices = notice;
    conn->last_notice = notice;
    conn->wants_send = true;
}

char *kvfi_stage_take(struct kvfi_transport *transport)
{
    struct kvfi_stage *stage;

    pthread_mutex_lock(&transport->lock);
    stage = transport->stages;
    if (stage) {
        transport->stages = stage->next;
        transport->stage_count--;
    }
    pthread_mutex_unlock(&transport->lock);
    return stage ? (char *)stage : malloc(KVFI_FRAME_MAX_PAYLOAD);
}

void kvfi_stage_give(struct kvfi_transport *transport, char *buffer)
{
    struct kvfi_stage *stage = (struct kvfi_stage *)buffer;

    if (!stage) return;
    if (transport->stage_count >= MAX_FREE_STAGES) {
        free(buffer);
    } else {
        stage->next = transport->stages;
        transport->stages = stage;
        transport->stage_count++;
    }
}
