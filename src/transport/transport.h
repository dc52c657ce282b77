/* SPDX-License-Identifier: Apache-2.0 */
/** @file transport.h  How bytes move: one table of functions per transport.
 *
 *  A transport instance belongs to one engine. Its *destination half* listens, arms and receives; its *source half*
 *  connects and posts. Calls are made by the engine's progress thread alone, never block beyond what an entry says,
 *  and copying happens in threads of the transport. What happened comes back as events, taken with `events` when
 *  `event_fd` is readable.
 *
 *  Words: a *grant* is the 64-bit random number under which the destination armed one (transfer, attempt, writer); a
 *  *chunk* is (layer range, token range) of one grant, numbered from 0; its bytes are the packed bytes of its binding.
 */
#ifndef KVFI_TRANSPORT_TRANSPORT_H
#define KVFI_TRANSPORT_TRANSPORT_H

#include <stdbool.h>

#include "kvferry/plan.h"
#include "sys/log.h"

#define KVFI_ENDPOINT_BYTES 512 /* text of an endpoint, closing zero included */
#define KVFI_CHUNK_LIMIT 1048576 /* chunks per grant */

/** What a transport can do; the conformance suite tests what is claimed. */
enum kvfi_transport_cap {
    /** post_chunk: both sides know the plan */
    KVFI_CAP_BOXES = 1,
    /** post_ranges: plain source, destination, length */
    KVFI_CAP_RANGES = 2,
    /** the source writes destination memory itself: quiet only when the writer says so or is gone */
    KVFI_CAP_REMOTE_WRITES = 4,
    /** disarm is enough: no byte is written after it returned */
    KVFI_CAP_LOCAL_QUIET = 8
};

struct kvfi_wire_fault; /* fault/wire.h */

struct kvfi_memory_region {
    void *address;
    int64_t bytes;
    int fd; /* maps the whole memory from offset 0, or -1 */
};

struct kvfi_transport_config {
    const char *host;        /* address to bind */
    const char *self;        /* "instance/ppX.cpY.tpZ", for messages and to name this side to peers */
    uint64_t incarnation;    /* of this engine */
    int64_t streams;         /* data connections per peer, where that means something */
    int64_t connect_timeout_ns;
    bool checksum;
    const struct kvfi_memory_region *memories; /* valid until close; regions are filled before the first arm or post */
    size_t memory_count;
    const char *fault_policy; /* fault transport only: see fault/fault.h */
    struct kvfi_wire_fault *wire; /* set by the fault transport for the one it wraps; NULL otherwise */
    struct kvfi_log *log;    /* valid until close; NULL logs nothing */
};

/** Who the other side is. */
struct kvfi_peer_identity {
    char name[160]; /* "instance/ppX.cpY.tpZ" */
    uint64_t incarnation;
};

/** Destination: what may be written under a grant. */
struct kvfi_arm {
    uint64_t grant;
    struct kvfi_peer_identity writer;
    const kvf_plan *plan;                   /* acquired by the transport */
    const struct kvf_bind_request *request; /* the destination's lists, KVF_BIND_SRC_UNKNOWN set; copied. Covers the
                                               whole range; chunks bind a part of it */
    int64_t bytes;                          /* all that this writer will write */
};

/** Source: one chunk to move. */
struct kvfi_chunk {
    uint64_t grant;
    uint32_t index;  /* 0, 1, 2 ... */
    uint32_t last;   /* 1 on the last chunk of the grant */
    int64_t layer_first, layer_end;
    int64_t token_begin, token_end;
    uint64_t bind_flags;           /* KVF_BIND_NO_STATE where state and rings do not move yet, KVF_BIND_ONLY_STATE
                                      where they move alone: at most once per layer */
    const kvf_binding *binding;    /* real ids of both sides; borrowed until the chunk's event */
    int64_t bytes;
    uint64_t cookie;               /* comes back in the event */
};

/** Source: plain bytes to copy, from an address of this process to one of the destination's. */
struct kvfi_range {
    uint64_t src_address; /* inside the registered memories of this side */
    uint64_t dst_address;
    int64_t bytes;        /* 0 is fine: nothing moves */
};

/** Source: where the ranges of one post come from, in the order in which they are to be begun. */
struct kvfi_range_source {
    /** Gives up to `capacity` next ranges, 0 at the end. Called by threads of the transport, one at a time; must not
     *  block. */
    size_t (*next)(void *context, struct kvfi_range *out, size_t capacity);
    /** Called once when the transport needs the source no more, before the post's event; by any thread, and must not
     *  call the transport. NULL is fine. */
    void (*destroy)(void *context);
    void *context;
    int64_t bytes; /* of all ranges together, exactly */
};

enum kvfi_transport_event_kind {
    /** source half: the connection of `peer` stands, or failed: status, text */
    KVFI_TEV_CONNECTED = 1,
    /** source half: a chunk, or all ranges of a post, are placed at the destination, or it failed (status, text) and
     *  parts of it may be there; exactly one per post */
    KVFI_TEV_POSTED = 2,
    /** source half: the connection of `peer` broke; posts that were out get their own event first */
    KVFI_TEV_PEER_DOWN = 3,
    /** destination half: `bytes` more bytes of `grant` are placed; `complete` once all are */
    KVFI_TEV_RECEIVED = 4,
    /** destination half: a violation under a grant; nothing opens under it any more; quiet with LOCAL_QUIET */
    KVFI_TEV_GRANT_FAILED = 5,
    /** destination half: the writer's connection is gone and its writes are over (REMOTE_WRITES) */
    KVFI_TEV_WRITER_GONE = 6,
    /** destination half: exactly one for each disarm that returned false: nobody writes under `grant` any more, because
     *  its writer stopped or is gone */
    KVFI_TEV_QUIET = 7
};

struct kvfi_transport_event {
    int kind;
    enum kvf_status status;
    uint64_t peer;    /* CONNECTED, PEER_DOWN: number that connect gave */
    uint64_t cookie;  /* POSTED */
    uint64_t grant;   /* RECEIVED, GRANT_FAILED, POSTED (0 for ranges), QUIET */
    int64_t bytes;
    bool complete;
    struct kvfi_peer_identity who; /* WRITER_GONE */
    char text[KVF_ERROR_TEXT_BYTES];
};

struct kvfi_transport; /* one engine's instance; the transport defines it */

struct kvfi_transport_ops {
    size_t struct_size;
    uint32_t version; /* 1 */
    const char *name;
    uint32_t bit;     /* in kvf_event.transport: 1 loop, 2 shm, 4 tcp; 8 cma, 16 mooncake */
    uint32_t caps;    /* enum kvfi_transport_cap */

    /** Opens an instance, binds its listener and starts its threads. The config is borrowed for the call except
     *  `memories`. */
    enum kvf_status (*open)(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                            struct kvf_error *error);
    /** Stops threads, closes connections, frees. After it returns no memory is touched by this side. */
    void (*close)(struct kvfi_transport *transport);
    /** Writes the text that peers need to connect, at most KVFI_ENDPOINT_BYTES. */
    void (*endpoint)(struct kvfi_transport *transport, char *text);
    /** Readable while events wait. */
    int (*event_fd)(struct kvfi_transport *transport);
    /** Takes up to `capacity` events; never blocks. */
    size_t (*events)(struct kvfi_transport *transport, struct kvfi_transport_event *events, size_t capacity);

    /** Destination: allows the writes of one grant. Transports without KVFI_CAP_BOXES have none: NOT_SUPPORTED. */
    enum kvf_status (*arm)(struct kvfi_transport *transport, const struct kvfi_arm *arm, struct kvf_error *error);
    /** Destination: forgets a grant; no RECEIVED comes for it afterwards. After it returns no byte is placed under it
     *  *by this side* (it waits for the frame being placed, under a millisecond); returns true when no peer can write
     *  either (always with LOCAL_QUIET; with REMOTE_WRITES when no chunk is being written). Else the writer is told to
     *  stop, and a QUIET follows. Unknown grants are fine (true). */
    bool (*disarm)(struct kvfi_transport *transport, uint64_t grant);

    /** Source: says whether `endpoint` can be reached by this transport from here at all (same host ...): OK or
     *  NOT_SUPPORTED with the reason. Cheap, does not connect. */
    enum kvf_status (*probe)(struct kvfi_transport *transport, const char *endpoint, struct kvf_error *error);
    /** Source: starts connecting; answers with CONNECTED. `*peer` is never 0 nor reused. */
    enum kvf_status (*connect)(struct kvfi_transport *transport, const char *endpoint,
                               const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error);
    /** Source: closes a peer's connections; outstanding posts get POSTED with KVF_ERR_CANCELLED first. */
    void (*disconnect)(struct kvfi_transport *transport, uint64_t peer);
    /** Source: moves a chunk; exactly one POSTED follows when this returns KVF_OK. Transports without KVFI_CAP_BOXES
     *  point to kvfi_no_chunks. */
    enum kvf_status (*post_chunk)(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                                  struct kvf_error *error);
    /** Source: stops what is posted under a grant as soon as possible; each outstanding post still gets its POSTED
     *  (KVF_ERR_CANCELLED, or KVF_OK when it was done already). When all have come, this side is quiet. A post of
     *  ranges is stopped by its cookie in the place of a grant. */
    void (*abort)(struct kvfi_transport *transport, uint64_t peer, uint64_t grant);
    /** Source: copies plain ranges; exactly one POSTED follows when this returns KVF_OK, and the source (copied) is the
     *  transport's until its destroy. On failure it stays the caller's. Posts may run side by side and end in any
     *  order. A range outside of this side's memories, or another sum of bytes than was told, fails the post before
     *  such a byte is read. Transports without KVFI_CAP_RANGES point to kvfi_no_ranges. */
    enum kvf_status (*post_ranges)(struct kvfi_transport *transport, uint64_t peer,
                                   const struct kvfi_range_source *source, uint64_t cookie, struct kvf_error *error);
};

/** The transports of this build, by name ("loop", "shm", "tcp", "cma", "mooncake"); NULL when there is none of it.
 *  "fault:tcp" and so on is the fault transport around one: it has the same bit and capabilities, and fault_policy
 *  names it too ("tcp:stall"). */
const struct kvfi_transport_ops *kvfi_transport_find(const char *name);

/** The entries for transports without ranges and without chunks: KVF_ERR_NOT_SUPPORTED. */
enum kvf_status kvfi_no_ranges(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_range_source *source,
                               uint64_t cookie, struct kvf_error *error);
enum kvf_status kvfi_no_chunks(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                               struct kvf_error *error);

/** The entries `arm` and `disarm` of transports without KVFI_CAP_BOXES. */
enum kvf_status kvfi_no_arm(struct kvfi_transport *transport, const struct kvfi_arm *arm, struct kvf_error *error);
bool kvfi_nothing_armed(struct kvfi_transport *transport, uint64_t grant);

#endif
