/* SPDX-License-Identifier: Apache-2.0 */
/** @file direct.h  The direct transports, `loop` and `shm`: the source copies into the destination's memory itself.
 *
 *  Both speak the same messages over an abstract Unix socket (SOCK_SEQPACKET). They differ in how the source reaches
 *  the memory: `loop` by its address in the same process, `shm` by mapping the descriptors that came over the socket,
 *  or, where the destination has none for some memory, by writes across processes (process_vm_writev).
 *
 *  Threads: one I/O thread owns sockets and deadlines; a few copy threads move chunks. `lock` guards everything but
 *  the copying itself. Files: direct.c (open, close, I/O thread), link.c (packets), sink.c (destination half),
 *  source.c (source half), greeting.c (its handshake), reach.c (the memories it reaches), copying.c (copy threads),
 *  remote.c (writes across processes), message.c (what is said).
 */
#ifndef KVFI_TRANSPORT_DIRECT_DIRECT_H
#define KVFI_TRANSPORT_DIRECT_DIRECT_H

#include <stdatomic.h>
#include <sys/types.h>

#include "copy/copier.h"
#include "transport/armed.h"
#include "transport/direct/message.h"
#include "transport/queue.h"

/* How the memory of a destination is reached. */
enum kvfi_reach {
    KVFI_REACH_SAME_PROCESS = 1,
    KVFI_REACH_MAPPED = 2,
    KVFI_REACH_REMOTE = 3
};

enum { KVFI_DIRECT_MAX_COPY_THREADS = 4, KVFI_PIECE_BYTES = 8 << 20,
       KVFI_DIRECT_MAX_PACKETS = 16384 /* that wait for a peer which does not read */ };

enum kvfi_link_state {
    KVFI_LINK_CONNECTING = 1, /* outgoing: the listener's backlog is full, tried again */
    KVFI_LINK_GREETING = 2,   /* hello or what answers it is awaited */
    KVFI_LINK_READY = 3,
    KVFI_LINK_DRAINING = 4,   /* incoming: shut down from here; the peer's end of writing is awaited */
    KVFI_LINK_DYING = 5       /* outgoing: no more messages; copies that run are awaited */
};

enum kvfi_job_state {
    KVFI_JOB_ASKED = 1,   /* OPEN is sent */
    KVFI_JOB_QUEUED = 2,  /* may be copied */
    KVFI_JOB_COPYING = 3, /* a copy thread has it */
    KVFI_JOB_COPIED = 4   /* PLACED is sent */
};

struct kvfi_link;

/* What epoll gives for a link's pidfd: the link's address and this. */
enum { KVFI_LINK_DEATH = 1 };

/* A chunk that the source half moves. */
struct kvfi_job {
    struct kvfi_job *next;         /* in its link's list */
    struct kvfi_job *queue_next;   /* in the copy queue */
    struct kvfi_link *link;
    struct kvfi_chunk chunk;
    int state;                     /* enum kvfi_job_state */
    atomic_bool stop;              /* asks the copy thread to stop at the next piece */
    enum kvf_status stop_status;   /* why */
    char stop_text[200];
    enum kvf_status status;        /* of the copy */
    char text[KVF_ERROR_TEXT_BYTES];
};

/* The memories of a destination, as its source reaches them. */
struct kvfi_reached {
    int reach;       /* enum kvfi_reach */
    uint32_t count, known;
    void **mapped;   /* KVFI_REACH_MAPPED: where it is mapped; NULL where it has no bytes */
    void **address;  /* where to write: here, or with KVFI_REACH_REMOTE there */
    int64_t *bytes;
    pid_t pid;       /* KVFI_REACH_REMOTE */
};

/* A chunk that a peer is writing here. */
struct kvfi_inbound {
    struct kvfi_inbound *next;
    struct kvfi_arrival *arrival; /* holds a reference on its grant */
    bool refused;                 /* a violation was found while it is being written */
};

struct kvfi_packet {
    struct kvfi_packet *next;
    size_t bytes;
    int *fds; /* duplicates; closed when sent */
    size_t fd_count;
    uint8_t data[];
};

struct kvfi_link {
    struct kvfi_transport *owner;
    struct kvfi_link *next, *previous;
    int fd;
    int pidfd;             /* of the other process: its death counts even where a child of it holds the socket; or -1 */
    bool outgoing;
    bool greeted;          /* incoming: HELLO came */
    bool given_up;         /* it was shut down for a message that could not be kept */
    bool hung_up;          /* I/O thread: end of the stream was seen */
    int state;             /* enum kvfi_link_state */
    int64_t deadline_ns;   /* 0 = none */
    uint64_t peer;         /* outgoing: its number */
    pid_t pid;             /* of the other side */
    struct kvfi_peer_identity who; /* incoming: who wrote HELLO; outgoing: who is expected */
    struct kvfi_packet *out_first, *out_last;
    size_t out_count;
    uint32_t events;       /* what epoll waits for */
    /* outgoing */
    char endpoint_name[80];
    int64_t endpoint_pid;
    struct kvfi_reached reached;
    uint64_t probe_nonce, probe_address;
    struct kvfi_job *jobs, *last_job;
    int64_t copying;       /* jobs and populating that copy threads have */
    bool populate_wanted;
    uint32_t populate_memory;
    int64_t populate_offset, populated_bytes;
    bool disconnected;     /* by the owner: no PEER_DOWN */
    enum kvf_status end_status;
    char end_text[KVF_ERROR_TEXT_BYTES];
    /* incoming */
    struct kvfi_inbound *inbound;
    uint64_t probe_page;   /* address of the nonce's place, 0 = none */
};

struct kvfi_transport {
    const struct kvfi_direct_scheme *scheme;
    struct kvfi_transport_config config;
    char self[160];
    struct kvfi_log *log;
    struct kvfi_queue queue;
    bool queue_made;
    struct kvfi_armed armed;
    struct kvfi_direct_endpoint here;
    pthread_mutex_t lock;
    pthread_cond_t changed;  /* work for copy threads, or a link is gone */
    int epoll, wake, listener;
    uint64_t *probe_words;   /* one per link that may be probed; a page of its own */
    struct kvfi_link *links, *graveyard;
    uint64_t next_peer;
    int64_t accept_again_ns; /* accepting is paused: no descriptors left */
    bool stopping, copy_stopping;
    pthread_t io_thread, copy_threads[KVFI_DIRECT_MAX_COPY_THREADS];
    size_t io_started, copy_started;
    struct kvfi_job *queue_first, *queue_last;
    void **own_address;      /* of config.memories, for the copiers; filled by the first post */
    int64_t *own_bytes;
    bool own_known;
};

/* What tells the direct transports apart. */
struct kvfi_direct_scheme {
    const char *name;
    bool same_process; /* else mapped or remote */
};

/* ---- direct.c: the entries of the table that both kinds share --------------------------------------------------- */
enum kvf_status kvfi_direct_open(const struct kvfi_direct_scheme *scheme, const struct kvfi_transport_config *config,
                                 struct kvfi_transport **out, struct kvf_error *error);
void kvfi_direct_close(struct kvfi_transport *transport);
void kvfi_direct_endpoint(struct kvfi_transport *transport, char *text);
int kvfi_direct_event_fd(struct kvfi_transport *transport);
size_t kvfi_direct_events(struct kvfi_transport *transport, struct kvfi_transport_event *events, size_t capacity);
/* Makes the I/O thread look at deadlines and links anew. */
void kvfi_direct_wake(struct kvfi_transport *transport);

/* ---- link.c: all with the lock held ----------------------------------------------------------------------------- */
struct kvfi_link *kvfi_link_create(struct kvfi_transport *transport, int fd, bool outgoing);
/* Takes the link out of the list and closes it; freed by the I/O thread later. No job, inbound chunk or copy is left.
 */
void kvfi_link_bury(struct kvfi_transport *transport, struct kvfi_link *link);
void kvfi_link_free_buried(struct kvfi_transport *transport);
enum kvf_status kvfi_link_watch(struct kvfi_transport *transport, struct kvfi_link *link);
/* Sends now or queues; descriptors are duplicated. A broken socket is noticed by the I/O thread. */
void kvfi_link_send(struct kvfi_transport *transport, struct kvfi_link *link, const struct kvfi_direct_message *message,
                    const int *fds, size_t fd_count);
void kvfi_link_flush(struct kvfi_transport *transport, struct kvfi_link *link);
/* Takes one packet. Bytes; 0 = end of stream; -1 = none now; -2 = too long, or with too many descriptors. Descriptors
 * beyond `fd_capacity` are closed. */
ssize_t kvfi_link_receive(struct kvfi_link *link, uint8_t *packet, int *fds, size_t fd_capacity, size_t *fd_count);
/* The other side's process and user. */
bool kvfi_link_credentials(int fd, pid_t *pid, uid_t *uid);

/* ---- sink.c: the destination half ------------------------------------------------------------------------------- */
enum kvf_status kvfi_direct_arm(struct kvfi_transport *transport, const struct kvfi_arm *arm, struct kvf_error *error);
bool kvfi_direct_disarm(struct kvfi_transport *transport, uint64_t grant);
void kvfi_sink_accept(struct kvfi_transport *transport);
/* Goes on accepting after a pause. Returns when to come again, 0 = never. */
int64_t kvfi_sink_listen_again(struct kvfi_transport *transport, int64_t now_ns);
void kvfi_sink_message(struct kvfi_transport *transport, struct kvfi_link *link,
                       const struct kvfi_direct_message *message);
/* The peer's socket is at its end: it writes no more. */
void kvfi_sink_end(struct kvfi_transport *transport, struct kvfi_link *link);
/* The peer broke the protocol, or this side closes: no more messages; its end is awaited if it may be writing. */
void kvfi_sink_drop(struct kvfi_transport *transport, struct kvfi_link *link, const char *why);

/* ---- source.c: the source half ---------------------------------------------------------------------------------- */
enum kvf_status kvfi_direct_probe(struct kvfi_transport *transport, const char *endpoint, struct kvf_error *error);
enum kvf_status kvfi_direct_connect(struct kvfi_transport *transport, const char *endpoint,
                                    const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error);
void kvfi_direct_disconnect(struct kvfi_transport *transport, uint64_t peer);
enum kvf_status kvfi_direct_post_chunk(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                                       struct kvf_error *error);
void kvfi_direct_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t grant);
void kvfi_source_message(struct kvfi_transport *transport, struct kvfi_link *link,
                         const struct kvfi_direct_message *message, int *fds, size_t fd_count);
/* A message while the connection is being made (greeting.c). */
void kvfi_greeting_message(struct kvfi_transport *transport, struct kvfi_link *link,
                           const struct kvfi_direct_message *message, int *fds, size_t fd_count);
/* Connects the socket and says hello; again later when the listener's backlog is full (greeting.c). */
enum kvf_status kvfi_greeting_start(struct kvfi_transport *transport, struct kvfi_link *link, struct kvf_error *error);
/* Ends a link: its posts end with `status`, and once nothing is being copied for it, it goes. */
void kvfi_source_end(struct kvfi_transport *transport, struct kvfi_link *link, enum kvf_status status,
                     const char *text);
/* A copy thread has finished a job. */
void kvfi_source_copied(struct kvfi_transport *transport, struct kvfi_job *job);
/* Buries a dying link for which nothing is copied any more. */
void kvfi_source_settle(struct kvfi_transport *transport, struct kvfi_link *link);

/* ---- reach.c: the destination's memories at the source ---------------------------------------------------------- */
enum kvf_status kvfi_reached_init(struct kvfi_reached *reached, uint32_t count, bool same_process,
                                  struct kvf_error *error);
void kvfi_reached_fini(struct kvfi_reached *reached);
/* Takes the memories of a message, maps those that came with a descriptor, and closes all descriptors. */
enum kvf_status kvfi_reached_add(struct kvfi_reached *reached, const struct kvfi_direct_message *message, int *fds,
                                 size_t fd_count, struct kvf_error *error);
/* Enters pages in the page table, the next `max_bytes`. True when all are. */
bool kvfi_reached_populate(struct kvfi_reached *reached, uint32_t *memory, int64_t *offset, int64_t max_bytes);

/* ---- copying.c, remote.c ---------------------------------------------------------------------------------------- */
void *kvfi_copy_thread(void *transport);
/* Copies a chunk across processes. Stops early when job->stop is set. */
enum kvf_status kvfi_remote_copy(struct kvfi_transport *transport, struct kvfi_job *job, struct kvf_error *error);
/* Writes `bytes` at an address of another process: 0, or errno. */
int kvfi_remote_write(pid_t pid, uint64_t address, const void *data, size_t bytes);

#endif
