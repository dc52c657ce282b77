/* SPDX-License-Identifier: Apache-2.0 */
/** @file inside.h  The inside of the tcp transport.
 *
 *  Threads: each data thread owns an epoll set and the connections in it; only the owner reads, writes or frees a
 *  connection. `lock` guards the lists, sessions and jobs. Thread 0 also accepts, and makes connections anew.
 *  Files: tcp.c (open, close, table), thread.c (loop), conn.c (sockets, control frames), session.c (source half:
 *  connecting, cuts), sending.c (source half: frames), receiving.c (destination half), frame.c (bytes).
 */
#ifndef KVFI_TRANSPORT_TCP_INSIDE_H
#define KVFI_TRANSPORT_TCP_INSIDE_H

#include <netinet/in.h>
#include <sys/uio.h>

#include "copy/packer.h"
#include "transport/fault/wire.h"
#include "transport/queue.h"
#include "transport/tcp/frame.h"

enum {
    KVFI_TCP_MAX_THREADS = 8,
    KVFI_STAGE_BYTES = 256 << 10,   /* of a packed frame, and of one read: small enough to stay in the caches */
    KVFI_LONG_RUN_BYTES = 4 << 10,  /* runs from here on are sent and received without staging */
    KVFI_TCP_IOVECS = 512,
    KVFI_MAX_NOTICES = 16384,       /* that wait for a peer which does not read */
    KVFI_MAX_RECONNECTS = 4,        /* in a row, without one acknowledgement between them */
    KVFI_CONN_PENDING_BYTES = KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL
};

struct kvfi_session;
struct kvfi_conn;

/* A chunk that the source half moves. Locked. */
struct kvfi_post {
    struct kvfi_post *next;
    struct kvfi_session *session;
    struct kvfi_chunk chunk;
    int64_t frame_bytes;  /* of a frame; 1 MiB when it is sent from memory */
    bool direct, gathers;
    bool sent_empty;      /* the one frame of a chunk without bytes has gone */
    int64_t next_offset;  /* first byte that no connection has taken */
    int64_t in_flight;    /* connections that are sending a frame of it */
    bool ended;           /* its event is due once in_flight is 0 */
    enum kvf_status end_status;
    char end_text[KVF_ERROR_TEXT_BYTES];
};

enum kvfi_session_state {
    KVFI_SESSION_CONNECTING = 1,
    KVFI_SESSION_READY = 2,
    KVFI_SESSION_CUT = 3,   /* connections are being closed; then it connects again */
    KVFI_SESSION_DYING = 4  /* connections are being closed; then it goes */
};

/* A peer of the source half. Locked. */
struct kvfi_session {
    struct kvfi_session *next;
    struct kvfi_transport *owner;
    uint64_t peer;
    struct kvfi_peer_identity expected;
    struct sockaddr_storage address;
    socklen_t address_bytes;
    char endpoint[KVFI_ENDPOINT_BYTES];
    uint64_t number, generation;
    int state;              /* enum kvfi_session_state */
    bool was_ready, disconnected;
    int64_t reconnects;     /* since the last acknowledgement */
    uint32_t streams, welcomed;
    struct kvfi_conn *conns[KVFI_MAX_STREAMS];
    struct kvfi_post *posts, *last_post;
    struct kvfi_post *sending; /* first with bytes that nobody has taken */
    enum kvf_status end_status;
    char end_text[KVF_ERROR_TEXT_BYTES];
};

enum kvfi_conn_state {
    KVFI_CONN_CONNECTING = 1, /* outgoing */
    KVFI_CONN_GREETING = 2,
    KVFI_CONN_READY = 3
};

/* A control frame that waits to be sent. */
struct kvfi_notice {
    struct kvfi_notice *next;
    size_t bytes, sent;
    uint8_t data[]; /* at most KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL */
};

/* The frame that a connection is sending. Owner's. */
struct kvfi_sending {
    struct kvfi_post *post; /* whose in_flight counts it; NULL = none */
    char *stage;            /* packed payload, or a copy of what is left of a frame whose memory was given back */
    struct iovec iovecs[1 + KVFI_TCP_IOVECS];
    size_t first, count;    /* iovecs that are not sent */
    uint8_t head[KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_DATA_BYTES];
    bool from_memory;       /* the iovecs point into registered memory */
    bool busy;
};

enum kvfi_receiving_state {
    KVFI_RECEIVING_HEAD = 0,
    KVFI_RECEIVING_PLACE = 1,  /* payload goes to its places */
    KVFI_RECEIVING_GATHER = 2, /* payload is kept until its checksum is known */
    KVFI_RECEIVING_SKIP = 3    /* payload is read and dropped */
};

/* The frame that a connection is receiving. Owner's. */
struct kvfi_receiving {
    int state;                 /* enum kvfi_receiving_state */
    int64_t left_bytes;        /* of the payload */
    struct kvfi_frame_data data;
    struct kvfi_arrival *arrival; /* holds a reference on its grant */
    kvf_packer *packer;
    bool direct, gathers;
    char *gathered;            /* KVFI_FRAME_MAX_PAYLOAD */
    int64_t gathered_bytes;
};

struct kvfi_conn {
    struct kvfi_conn *next;      /* in its thread's list; locked */
    struct kvfi_transport *owner;
    struct kvfi_thread *thread;
    int fd;
    int state;                   /* enum kvfi_conn_state */
    bool outgoing;
    bool kill;                   /* locked: the owner is to close it */
    bool wants_send;             /* locked: there may be something to send */
    bool detach;                 /* locked: the chunk of the frame under way may have ended */
    bool blocked;                /* owner's: EPOLLOUT is watched: the socket takes no more for now */
    bool close_after_send;       /* owner's */
    uint64_t turn;               /* owner's: in which it sent last */
    int64_t deadline_ns;         /* locked */
    struct kvfi_session *session; /* outgoing; locked */
    uint32_t stream;
    uint64_t generation;
    struct kvfi_peer_identity who; /* incoming */
    uint64_t session_number;     /* incoming */
    char name[64];               /* address of the other side, for messages */
    struct kvfi_notice *notices, *last_notice; /* locked */
    size_t notice_count;
    struct kvfi_sending sending;
    struct kvfi_receiving receiving;
    uint8_t pending[KVFI_CONN_PENDING_BYTES]; /* start of a frame that is not whole yet */
    size_t pending_bytes;
};

struct kvfi_thread {
    struct kvfi_transport *owner;
    size_t index;
    pthread_t thread;
    bool started;
    int epoll, wake;
    uint64_t turn;           /* of the loop: each connection sends once in it */
    struct kvfi_conn *conns; /* locked */
    uint8_t *buffer;         /* of one read: room for pending bytes, then KVFI_STAGE_BYTES */
};

struct kvfi_transport {
    struct kvfi_transport_config config;
    char self[160], host[256];
    struct kvfi_queue queue;
    bool queue_made;
    struct kvfi_armed armed;
    pthread_mutex_t lock;
    int listener;
    char endpoint[KVFI_ENDPOINT_BYTES];
    int64_t accept_again_ns;  /* accepting is paused: no descriptors left */
    struct kvfi_thread threads[KVFI_TCP_MAX_THREADS];
    size_t thread_count, next_thread;
    struct kvfi_session *sessions;
    uint64_t next_peer, next_generation;
    bool stopping;
    void **own_address;
    bool own_known;
    struct kvfi_stage { struct kvfi_stage *next; } *stages; /* free staging buffers; locked */
    size_t stage_count;
};

/* ---- tcp.c ------------------------------------------------------------------------------------------------------ */
/* The owner has registered its memories by the first arm or post; locked. */
void kvfi_tcp_know_memories(struct kvfi_transport *transport);

/* ---- thread.c --------------------------------------------------------------------------------------------------- */
void *kvfi_tcp_thread(void *thread);
void kvfi_tcp_wake(struct kvfi_thread *thread);

/* ---- conn.c ----------------------------------------------------------------------------------------------------- */
/* Makes a connection of a socket and gives it to a thread; locked. The socket is closed when that fails. */
struct kvfi_conn *kvfi_conn_create(struct kvfi_transport *transport, int fd, bool outgoing, uint32_t events);
/* Owner: takes it out of its lists and frees it. `why` goes to the log of an incoming one, and to the session. Not
 * locked. */
void kvfi_conn_close(struct kvfi_conn *conn, enum kvf_status status, const char *why);
/* Queues a control frame, and has it sent; locked. */
void kvfi_conn_notice(struct kvfi_conn *conn, const uint8_t *data, size_t bytes);
void kvfi_conn_set_options(int fd, int64_t timeout_ns);
/* Owner: changes what epoll waits for. */
void kvfi_conn_watch(struct kvfi_conn *conn, uint32_t events);
char *kvfi_stage_take(struct kvfi_transport *transport);
void kvfi_stage_give(struct kvfi_transport *transport, char *stage);

/* ---- session.c -------------------------------------------------------------------------------------------------- */
enum kvf_status kvfi_tcp_probe(struct kvfi_transport *transport, const char *endpoint, struct kvf_error *error);
enum kvf_status kvfi_tcp_connect(struct kvfi_transport *transport, const char *endpoint,
                                 const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error);
void kvfi_tcp_disconnect(struct kvfi_transport *transport, uint64_t peer);
enum kvf_status kvfi_tcp_post_chunk(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                                    struct kvf_error *error);
void kvfi_tcp_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t grant);
/* Owner of an outgoing connection: the socket is connected, or failed to. Not locked. */
void kvfi_session_connected(struct kvfi_conn *conn);
/* Owner: frames of the destination. False = the connection is closed. Not locked. */
bool kvfi_session_frame(struct kvfi_conn *conn, const struct kvfi_frame_head *head, const uint8_t *body);
/* A connection of a session is closed; locked. */
void kvfi_session_lost(struct kvfi_session *session, struct kvfi_conn *conn, enum kvf_status status, const char *why);
/* Thread 0: what is due. Returns when to come again, 0 = never. Locked. */
int64_t kvfi_sessions_tick(struct kvfi_transport *transport, int64_t now_ns);
/* Ends a session for good; locked. */
void kvfi_session_end(struct kvfi_session *session, enum kvf_status status, const char *text);
/* A post has nothing in flight and is to end: tells it and frees it; locked. */
void kvfi_post_end(struct kvfi_post *post, enum kvf_status status, const char *text);
void kvfi_post_settle(struct kvfi_post *post);

/* ---- sending.c -------------------------------------------------------------------------------------------------- */
/* Owner: sends what there is until the socket blocks. False = the connection is closed. Not locked. */
bool kvfi_conn_send(struct kvfi_conn *conn);
/* Owner: forgets the frame under way; locked. */
void kvfi_sending_fini(struct kvfi_conn *conn);

/* ---- receiving.c ------------------------------------------------------------------------------------------------ */
void kvfi_conn_accept(struct kvfi_transport *transport, int64_t now_ns);
/* Owner: reads what there is. False = the connection is closed. Not locked. */
bool kvfi_conn_receive(struct kvfi_conn *conn);
void kvfi_receiving_fini(struct kvfi_conn *conn);

#endif
