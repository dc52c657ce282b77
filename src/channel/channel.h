/* SPDX-License-Identifier: Apache-2.0 */
/** @file channel.h  Sockets and frames of the control plane: one ZeroMQ ROUTER to be reached at, one DEALER per peer.
 *
 *  A channel carries opaque messages and knows nothing of what they say: of one frame each, or of a few for a dialect
 *  that has them. Its endpoint speaks one dialect, whose table the owner hands over at each dispatch; who speaks two
 *  opens two channels. No delimiter frame is added or expected. All calls are made by one thread (the owner's progress
 *  thread), except open and close, which may be made by another while that thread is not running. No call blocks,
 *  except close, for at most its flush time.
 */
#ifndef KVFI_CHANNEL_CHANNEL_H
#define KVFI_CHANNEL_CHANNEL_H

#include <stdbool.h>

#include "kvferry/status.h"
#include "sys/log.h"

enum kvfi_channel_limit {
    KVFI_CHANNEL_ROUTE_BYTES = 32,    /* longest routing id; frames from a longer one are dropped */
    KVFI_CHANNEL_FRAMES = 16,         /* most frames of a message, the routing id not counted */
    KVFI_CHANNEL_ENDPOINT_BYTES = 512 /* closing zero included */
};

/** The other end of a conversation: a peer we connected to, or one that connected to us. A plain value to be copied. */
struct kvfi_route {
    uint64_t peer;    /* outgoing: number given by connect, never used twice; 0 = incoming */
    uint8_t id_bytes; /* incoming: its routing id on our ROUTER. It ends with the connection */
    unsigned char id[KVFI_CHANNEL_ROUTE_BYTES];
};

bool kvfi_route_equal(const struct kvfi_route *a, const struct kvfi_route *b);

/** One frame of a message: bytes that are borrowed for a call. It may be empty; `bytes` is of no meaning then. */
struct kvfi_frame {
    const void *bytes;
    size_t byte_count;
};

/** What one dialect does with what arrives. The functions may call send, connect and disconnect. */
struct kvfi_dialect {
    const char *name;
    /** True when the bytes (of the first frame) look like a message of this dialect. NULL = all do. */
    bool (*recognise)(const void *bytes, size_t byte_count);
    /** Takes a message of one frame, not empty; the bytes are borrowed for the call, and may be hostile. */
    void (*handle)(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count);
    /** Takes a message of 1 to KVFI_CHANNEL_FRAMES frames, max_message_bytes in all, any of them perhaps empty. When
     *  this is set, it is called for every message and `handle` for none. */
    void (*handle_frames)(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count);
    /** Takes what is no message: not recognised (its first frame is told), or, with `byte_count` 0, empty, of too many
     *  frames or bytes. `error` says what. NULL = dropped and counted only. */
    void (*refuse)(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                   const struct kvf_error *error);
    /** With watch_links: a connection made by connect stands now, handshake included (`up`), or broke: what was sent
     *  over it may not have arrived, and answers to it do not come. What arrived before it broke has been handed over
     *  by then. */
    void (*link)(void *context, const struct kvfi_route *to, bool up);
};

struct kvfi_channel_options {
    const char *host;          /* address or name to bind, also an IPv6 address; NULL = "127.0.0.1" */
    int port;                  /* 0 = any free one */
    bool ipv6;                 /* allow IPv6 for names and peers; an IPv6 address as `host` sets it */
    int64_t max_message_bytes; /* a peer that sends a longer frame is cut off, and a message of several frames that
                                  has more in all is refused; 0 = 1 MiB */
    int send_limit;            /* messages queued per peer before send says KVF_ERR_AGAIN; 0 = 4096 */
    int receive_limit;         /* messages queued per peer before it is held back; 0 = 256 */
    bool connect_only;         /* nothing is bound, the endpoint is "" */
    bool watch_links;          /* tell the dialect when outgoing connections stand and break; each takes three sockets
                                  then */
    struct kvfi_log *log;      /* valid until close; NULL logs nothing */
};

struct kvfi_channel_stats {
    int64_t received, sent; /* messages */
    int64_t refused;        /* not recognised, empty, too many frames or bytes, routing id too long */
    int64_t unroutable;     /* answers to a peer that is gone */
    int64_t held_back;      /* sends that got KVF_ERR_AGAIN */
    int64_t peers;          /* outgoing connections now */
};

struct kvfi_channel;

/** Opens a channel with a ZeroMQ context of its own and binds its endpoint.
 *  @param options  NULL = defaults
 *  @param out  returned to the caller (free with kvfi_channel_close)
 *  @return KVF_OK; KVF_ERR_ADDRESS_IN_USE or KVF_ERR_SYSTEM naming the endpoint; KVF_ERR_INVALID_ARGUMENT;
 *          KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_channel_open(const struct kvfi_channel_options *options, struct kvfi_channel **out,
                                  struct kvf_error *error);

/** Closes. Messages sent already leave within `flush_ms` (0 to 1000) or are dropped. NULL is fine. */
void kvfi_channel_close(struct kvfi_channel *channel, int flush_ms);

/** Where peers reach this channel, such as "tcp://127.0.0.1:40001": borrowed until close. */
const char *kvfi_channel_endpoint(const struct kvfi_channel *channel);

/** Readable (level-triggered, fit for epoll and poll) while dispatch has something to do. Valid until close. */
int kvfi_channel_fd(const struct kvfi_channel *channel);

/** Starts a connection to `endpoint` ("tcp://ADDRESS:PORT", a numeric address: nothing is looked up); it is made, and
 *  made again when it breaks, in the background.
 *  Messages may be sent at once. Whether anybody answers is for the owner to find out.
 *  @param out  the route to send to
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the endpoint; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
enum kvf_status kvfi_channel_connect(struct kvfi_channel *channel, const char *endpoint, struct kvfi_route *out,
                                     struct kvf_error *error);

/** Ends a connection made by connect. Messages sent already have 100 ms to leave; none is received any more. Unknown
 *  and incoming routes are fine: nothing happens. */
void kvfi_channel_disconnect(struct kvfi_channel *channel, const struct kvfi_route *route);

/** Sends one message of one frame (copied), 1 byte or more.
 *  @return KVF_OK (queued); KVF_ERR_AGAIN (too many queued, or the peer does not read); KVF_ERR_UNREACHABLE (an
 *          incoming peer that is gone, or a route that was disconnected); KVF_ERR_LIMIT (longer than
 *          max_message_bytes); KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
enum kvf_status kvfi_channel_send(struct kvfi_channel *channel, const struct kvfi_route *to, const void *bytes,
                                  size_t byte_count, struct kvf_error *error);

/** Sends one message of `count` frames (copied), 1 to KVFI_CHANNEL_FRAMES: all of them or, on failure, none.
 *  max_message_bytes holds for their sum.
 *  @return as kvfi_channel_send; KVF_ERR_LIMIT also for another number of frames */
enum kvf_status kvfi_channel_send_frames(struct kvfi_channel *channel, const struct kvfi_route *to,
                                         const struct kvfi_frame *frames, size_t count, struct kvf_error *error);

/** Takes what has arrived and hands it to the dialect. Bounded work: with more left the descriptor stays readable.
 *  Returns the messages taken, refused ones included. */
size_t kvfi_channel_dispatch(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context);

void kvfi_channel_get_stats(const struct kvfi_channel *channel, struct kvfi_channel_stats *stats);

#endif
