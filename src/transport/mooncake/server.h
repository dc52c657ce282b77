/* SPDX-License-Identifier: Apache-2.0 */
/** @file server.h  The target of data requests: a few threads, each with connections of its own.
 *
 *  A connection is owned by one thread. Bodies are received where they belong and replies are sent from where they lie;
 *  only small requests, of which one call into the kernel brings many, pass through a buffer of the thread.
 *
 *  Connections are never closed between requests, except the oldest idle ones once there are too many. Inside of a
 *  request, or of a reply, something must move within the progress time.
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_SERVER_H
#define KVFI_TRANSPORT_MOONCAKE_SERVER_H

#include "sys/log.h"
#include "transport/mooncake/frame.h"
#include "transport/mooncake/hosts.h"
#include "transport/mooncake/refusals.h"
#include "transport/mooncake/regions.h"

enum {
    KVFI_MOON_MAX_THREADS = 16,
    KVFI_MOON_STAGE_BYTES = 131072,  /* buffer of a thread */
    KVFI_MOON_REPLIES = 256          /* that wait to be sent, of one connection */
};

struct kvfi_moon_serving {
    int listener;                    /* the server closes it */
    int32_t threads;
    int64_t max_connections;
    int64_t progress_timeout_ns;
    struct kvfi_moon_regions *regions;
    struct kvfi_log *log;
};

struct kvfi_moon_server;

enum kvf_status kvfi_moon_server_open(const struct kvfi_moon_serving *serving, struct kvfi_moon_server **out,
                                      struct kvf_error *error);
/** Closes all connections. After it returns no memory is touched. NULL is fine. */
void kvfi_moon_server_close(struct kvfi_moon_server *server);
/** Closes the connections whose requests are revoked, or touch revoked buffers. Returns at once; they are released
 *  soon. */
void kvfi_moon_server_revoke(struct kvfi_moon_server *server);
/** Connections from a numeric address now; -1: not known. One that was accepted a moment ago may be missing. */
int64_t kvfi_moon_server_count_from(struct kvfi_moon_server *server, const char *address);
int64_t kvfi_moon_server_count_unknown(struct kvfi_moon_server *server,
                                       bool (*is_known)(void *context, const uint8_t bytes[16]), void *context);

/* ---- between server.c and server_conn.c -------------------------------------------------------------------------- */

/** What goes out: a status, or bytes of a buffer, or both. */
struct kvfi_moon_reply {
    uint8_t status[KVFI_MOON_STATUS_BYTES];
    bool with_status;
    struct kvfi_moon_use use; /* its bytes are what is sent, from its address */
};

struct kvfi_moon_conn {
    struct kvfi_moon_conn *previous, *next; /* of the thread, the one that was idle longest first */
    struct kvfi_moon_thread *thread;
    int fd;                          /* -1 once closed */
    struct kvfi_moon_origin origin;
    uint32_t events;                 /* what epoll waits for */
    uint8_t head[KVFI_MOON_HEADER_BYTES];
    size_t head_bytes;               /* of a header that has begun */
    struct kvfi_moon_header request; /* a write whose body comes in, while body_left > 0 */
    struct kvfi_moon_use use;
    char *body;
    uint64_t body_left;
    bool many;                       /* requests have been small: fill the stage */
    int wake_bytes;                  /* it is readable once so many are there; 0 = never set, so 1 */
    struct kvfi_moon_reply *replies; /* ring of KVFI_MOON_REPLIES; NULL until the first */
    size_t reply_first, reply_count;
    uint64_t reply_sent;             /* bytes of the first one that went out */
    char *held;                      /* input that waits for replies to go out */
    size_t held_bytes, held_at;
    bool ended;                      /* the peer sends no more */
    bool refused;                    /* nothing is read any more; closed once replies are out */
    bool refused_aloud;              /* with a status, which the peer shall be able to read */
    bool refused_write;              /* without one: a reset tells it, as an orderly end says that all was read */
    bool draining;                   /* they are out: what comes in is thrown away */
    uint64_t drain_left;
    int64_t deadline_ns;             /* 0 between requests */
};

struct kvfi_moon_thread {
    struct kvfi_moon_server *server;
    pthread_t thread;
    bool started;
    int epoll, wake;
    char *stage;
    struct kvfi_moon_conn *first, *last;
    struct kvfi_moon_conn *dead;     /* closed in this turn; freed after it */
    int64_t count, busy, large;      /* connections; those with a deadline; those inside of a large body */
    bool ordinary, patient;          /* see kvfi_thread_set_patient */
    pthread_mutex_t lock;            /* guards what follows */
    int *arrived;                    /* descriptors */
    size_t arrived_count, arrived_capacity;
    bool revoke;
};

struct kvfi_moon_server {
    struct kvfi_moon_serving serving;
    struct kvfi_moon_thread threads[KVFI_MOON_MAX_THREADS];
    size_t thread_count, turn;
    struct kvfi_moon_hosts hosts;    /* of the connections that threads have */
    struct kvfi_moon_refusals refusals;
    atomic_bool stopping;
    int64_t accept_again_ns;         /* 0, or when the listener is looked at again */
    bool told_of_limit;
};

void kvfi_moon_conn_close(struct kvfi_moon_conn *conn, const char *why);
void kvfi_moon_conn_ready(struct kvfi_moon_conn *conn, uint32_t events);
/** Its deadline has passed: reads what has come without waking anybody, or closes it. */
void kvfi_moon_conn_overdue(struct kvfi_moon_conn *conn);
bool kvfi_moon_conn_is_idle(const struct kvfi_moon_conn *conn);
bool kvfi_moon_conn_touches_revoked(const struct kvfi_moon_conn *conn);

#endif
