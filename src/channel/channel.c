/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/channel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <zmq.h>

#include "base/array.h"
#include "base/error.h"
#include "channel/socket.h"

#define DEFAULT_MESSAGE_BYTES 1048576
#define DEFAULT_SEND_LIMIT 4096
#define DEFAULT_RECEIVE_LIMIT 256
#define MOST_SOCKETS 24576
#define MESSAGES_PER_TURN 64
#define READY_AT_ONCE 32
#define DISCONNECT_FLUSH_MS 100

/** An outgoing connection. */
struct peer {
    uint64_t number;
    void *socket;
    bool pending; /* has events that its descriptor tells no more */
    void *monitor; /* tells of its connection; NULL without watch_links */
    bool linked;   /* as the dialect was told */
    bool broken;   /* not any more, as it is told next */
    bool closed;  /* socket is NULL; swept at the end of a dispatch */
};

struct kvfi_channel {
    void *context;
    void *router;
    int epoll_fd;
    int wake_fd;          /* readable while any socket is pending */
    bool router_pending;
    bool dispatching;
    bool watch_links;
    uint64_t last_number;
    struct peer **peers;  /* ascending numbers */
    size_t peer_count, peer_capacity;
    struct kvfi_socket_limits limits;
    struct kvfi_channel_stats stats;
    struct kvfi_log *log;
    bool refusal_logged;
    char endpoint[KVFI_CHANNEL_ENDPOINT_BYTES];
};

bool kvfi_route_equal(const struct kvfi_route *a, const struct kvfi_route *b)
{
    return a->peer == b->peer && a->id_bytes == b->id_bytes && memcmp(a->id, b->id, a->id_bytes) == 0;
}

static void wake(struct kvfi_channel *channel)
{
    uint64_t one = 1;

    /* The counter cannot overflow: it is drained at each dispatch. */
    if (write(channel->wake_fd, &one, sizeof one) < 0) return;
}

/** Any use of a socket may swallow the one signal of its descriptor; so its state is looked at after each. */
static void note_events(struct kvfi_channel *channel, void *socket, bool *pending)
{
    if (*pending || !kvfi_socket_is_readable(socket)) return;
    *pending = true;
    wake(channel);
}

static enum kvf_status watch(struct kvfi_channel *channel, int fd, uint64_t number, struct kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = number};

    if (epoll_ctl(channel->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_SYSTEM, "channel: cannot watch a socket: %s", strerror(errno));
}

/* ---- open and close ---- */

#define ROUTER_NUMBER 0
#define WAKE_NUMBER UINT64_MAX

static enum kvf_status open_descriptors(struct kvfi_channel *channel, struct kvf_error *error)
{
    channel->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    channel->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (channel->epoll_fd < 0 || channel->wake_fd < 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "channel: cannot open a descriptor: %s", strerror(errno));
    return watch(channel, channel->wake_fd, WAKE_NUMBER, error);
}

static enum kvf_status open_sockets(struct kvfi_channel *channel, const struct kvfi_channel_options *options,
                                    struct kvf_error *error)
{
    const char *host = options->host ? options->host : "127.0.0.1";
    enum kvf_status status;

    if (options->port < 0 || options->port > 65535)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "channel: port is %d, expected 0 to 65535", options->port);
    channel->context = zmq_ctx_new();
    if (!channel->context)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "channel: no ZeroMQ context: %s", zmq_strerror(errno));
    zmq_ctx_set(channel->context, ZMQ_MAX_SOCKETS, MOST_SOCKETS);
    if (options->connect_only) return KVF_OK;
    status = kvfi_socket_open(channel->context, ZMQ_ROUTER, &channel->limits, &channel->router, error);
    if (status == KVF_OK)
        status = kvfi_socket_bind(channel->router, host, options->port, channel->endpoint, sizeof channel->endpoint,
                                  error);
    if (status == KVF_OK) status = watch(channel, kvfi_socket_fd(channel->router), ROUTER_NUMBER, error);
    if (status == KVF_OK) note_events(channel, channel->router, &channel->router_pending);
    return status;
}

enum kvf_status kvfi_channel_open(const struct kvfi_channel_options *options, struct kvfi_channel **out,
                                  struct kvf_error *error)
{
    static const struct kvfi_channel_options defaults = {0};
    const struct kvfi_channel_options *given = options ? options : &defaults;
    struct kvfi_channel *channel = calloc(1, sizeof *channel);
    enum kvf_status status;

    if (!channel) {
        status = kvfi_fail_memory(error, "a channel");
        goto done;
    }
    channel->epoll_fd = channel->wake_fd = -1;
    channel->log = given->log;
    channel->limits = (struct kvfi_socket_limits){
        .message_bytes = given->max_message_bytes > 0 ? given->max_message_bytes : DEFAULT_MESSAGE_BYTES,
        .send = given->send_limit > 0 ? given->send_limit : DEFAULT_SEND_LIMIT,
        .receive = given->receive_limit > 0 ? given->receive_limit : DEFAULT_RECEIVE_LIMIT,
        .ipv6 = given->ipv6 || (given->host && strchr(given->host, ':')),
    };
    channel->watch_links = given->watch_links;
    status = open_descriptors(channel, error);
    if (status == KVF_OK) status = open_sockets(channel, given, error);
    if (status == KVF_OK) *out = channel;
    else kvfi_channel_close(channel, 0);
done:
    return status;
}

/** Also one that is half made. What was sent has `flush_ms` to leave. */
static void close_sockets(struct kvfi_channel *channel, struct peer *peer, int flush_ms)
{
    if (peer->monitor) {
        epoll_ctl(channel->epoll_fd, EPOLL_CTL_DEL, kvfi_socket_fd(peer->monitor), NULL);
        kvfi_monitor_close(peer->monitor, peer->socket);
    }
    if (peer->socket) {
        epoll_ctl(channel->epoll_fd, EPOLL_CTL_DEL, kvfi_socket_fd(peer->socket), NULL);
        kvfi_socket_close(peer->socket, flush_ms);
    }
    peer->socket = peer->monitor = NULL;
}

void kvfi_channel_close(struct kvfi_channel *channel, int flush_ms)
{
    if (!channel) return;
    if (flush_ms < 0) flush_ms = 0;
    if (flush_ms > 1000) flush_ms = 1000;
    for (size_t i = 0; i < channel->peer_count; i++) {
        close_sockets(channel, channel->peers[i], flush_ms);
        free(channel->peers[i]);
    }
    free(channel->peers);
    if (channel->router) kvfi_socket_close(channel->router, flush_ms);
    /* Waits for the flush of every socket, their lingers running side by side. */
    if (channel->context)
        while (zmq_ctx_term(channel->context) != 0 && errno == EINTR) { }
    if (channel->epoll_fd >= 0) close(channel->epoll_fd);
    if (channel->wake_fd >= 0) close(channel->wake_fd);
    free(channel);
}

const char *kvfi_channel_endpoint(const struct kvfi_channel *channel)
{
    return channel->endpoint;
}

int kvfi_channel_fd(const struct kvfi_channel *channel)
{
    return channel->epoll_fd;
}

void kvfi_channel_get_stats(const struct kvfi_channel *channel, struct kvfi_channel_stats *stats)
{
    *stats = channel->stats;
}

/* ---- peers ---- */

static struct peer *find_peer(const struct kvfi_channel *channel, uint64_t number)
{
    size_t low = 0, high = channel->peer_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (channel->peers[middle]->number < number) low = middle + 1;
        else high = middle;
    }
    return low < channel->peer_count && channel->peers[low]->number == number && !channel->peers[low]->closed
               ? channel->peers[low] : NULL;
}

static enum kvf_status open_peer(struct kvfi_channel *channel, const char *endpoint, uint64_t number,
                                 struct peer *peer, struct kvf_error *error)
{
    struct kvfi_socket_limits limits = channel->limits;
    enum kvf_status status;

    limits.ipv6 |= strchr(endpoint, '[') != NULL;
    status = kvfi_socket_open(channel->context, ZMQ_DEALER, &limits, &peer->socket, error);
    if (status == KVF_OK && channel->watch_links) {
        status = kvfi_socket_monitor(channel->context, peer->socket, number, &peer->monitor, error);
        if (status == KVF_OK) status = watch(channel, kvfi_socket_fd(peer->monitor), number, error);
    }
    if (status == KVF_OK) status = kvfi_socket_connect(peer->socket, endpoint, error);
    if (status == KVF_OK) status = watch(channel, kvfi_socket_fd(peer->socket), number, error);
    return status;
}

enum kvf_status kvfi_channel_connect(struct kvfi_channel *channel, const char *endpoint, struct kvfi_route *out,
                                     struct kvf_error *error)
{
    struct peer *peer = calloc(1, sizeof *peer);
    enum kvf_status status;

    if (!peer || !kvfi_array_grow((void **)&channel->peers, channel->peer_count, &channel->peer_capacity,
                                  sizeof *channel->peers)) {
        status = kvfi_fail_memory(error, "a channel's peer");
        goto done;
    }
    status = open_peer(channel, endpoint, channel->last_number + 1, peer, error);
    if (status != KVF_OK) goto done;
    peer->number = ++channel->last_number;
    channel->peers[channel->peer_count++] = peer;
    channel->stats.peers++;
    note_events(channel, peer->socket, &peer->pending);
    if (peer->monitor && !peer->pending) { /* it tells of what comes once it was looked at */
        peer->pending = true;
        wake(channel);
    }
    *out = (struct kvfi_route){.peer = peer->number};
    peer = NULL;
done:
    if (peer) close_sockets(channel, peer, 0);
    free(peer);
    return status;
}

static void sweep(struct kvfi_channel *channel)
{
    size_t kept = 0;

    for (size_t i = 0; i < channel->peer_count; i++) {
        if (channel->peers[i]->closed) free(channel->peers[i]);
        else channel->peers[kept++] = channel->peers[i];
    }
    channel->peer_count = kept;
}

void kvfi_channel_disconnect(struct kvfi_channel *channel, const struct kvfi_route *route)
{
    struct peer *peer = route->peer ? find_peer(channel, route->peer) : NULL;

    if (!peer) return;
    close_sockets(channel, peer, DISCONNECT_FLUSH_MS);
    peer->closed = true;
    channel->stats.peers--;
    if (!channel->dispatching) sweep(channel);
}

/* ---- send ---- */

static enum kvf_status send_failed(struct kvfi_channel *channel, int cause, const struct kvfi_route *to,
                                   struct kvf_error *error)
{
    switch (cause) {
    case EAGAIN:
        channel->stats.held_back++;
        return kvfi_fail(error, KVF_ERR_AGAIN, "channel: %d messages to this peer wait already", channel->limits.send);
    case EHOSTUNREACH:
        channel->stats.unroutable++;
        return kvfi_fail(error, KVF_ERR_UNREACHABLE, "channel: the peer that this answers has gone");
    case ENOMEM:
        return kvfi_fail_memory(error, "a channel's message");
    default:
        return kvfi_fail(error, KVF_ERR_SYSTEM, "channel: cannot send to %s peer %" PRIu64 ": %s",
                         to->peer ? "outgoing" : "incoming", to->peer, zmq_strerror(cause));
    }
}

static enum kvf_status send_all(struct kvfi_channel *channel, const struct kvfi_route *to,
                                const struct kvfi_frame *frames, size_t count, struct kvf_error *error)
{
    struct peer *peer = to->peer ? find_peer(channel, to->peer) : NULL;
    void *socket = to->peer ? (peer ? peer->socket : NULL) : channel->router;
    int cause;

    if (!socket) {
        channel->stats.unroutable++;
        return kvfi_fail(error, KVF_ERR_UNREACHABLE, "channel: peer %" PRIu64 " is not connected", to->peer);
    }
    cause = kvfi_socket_send(socket, to->peer ? NULL : to->id, to->peer ? 0 : to->id_bytes, frames, count);
    note_events(channel, socket, peer ? &peer->pending : &channel->router_pending);
    if (cause != 0) return send_failed(channel, cause, to, error);
    channel->stats.sent++;
    return KVF_OK;
}

enum kvf_status kvfi_channel_send(struct kvfi_channel *channel, const struct kvfi_route *to, const void *bytes,
                                  size_t byte_count, struct kvf_error *error)
{
    const struct kvfi_frame frame = {bytes, byte_count};

    if (byte_count == 0 || byte_count > (size_t)channel->limits.message_bytes)
        return kvfi_fail(error, KVF_ERR_LIMIT, "channel: message has %zu bytes, expected 1 to %" PRId64, byte_count,
                         channel->limits.message_bytes);
    return send_all(channel, to, &frame, 1, error);
}

enum kvf_status kvfi_channel_send_frames(struct kvfi_channel *channel, const struct kvfi_route *to,
                                         const struct kvfi_frame *frames, size_t count, struct kvf_error *error)
{
    size_t left = (size_t)channel->limits.message_bytes;

    if (count == 0 || count > KVFI_CHANNEL_FRAMES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "channel: message has %zu frames, expected 1 to %d", count,
                         KVFI_CHANNEL_FRAMES);
    for (size_t i = 0; i < count; i++) {
        if (frames[i].byte_count > left)
            return kvfi_fail(error, KVF_ERR_LIMIT, "channel: message has more than %" PRId64 " bytes in its frames",
                             channel->limits.message_bytes);
        left -= frames[i].byte_count;
    }
    return send_all(channel, to, frames, count, error);
}

/* ---- dispatch ---- */

static void refuse(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context,
                   const struct kvfi_route *from, const void *bytes, size_t byte_count, const char *why)
{
    struct kvf_error error;

    channel->stats.refused++;
    kvfi_fail(&error, KVF_ERR_PROTOCOL, "%s: %s", dialect->name, why);
    if (!channel->refusal_logged) {
        channel->refusal_logged = true;
        kvfi_logf(channel->log, KVF_LOG_WARN, "channel %s: refused what a peer sent (%s); more are only counted",
                  channel->endpoint, error.text);
    }
    if (dialect->refuse) dialect->refuse(context, from, bytes, byte_count, &error);
}

#define MISFIT_TEXT_BYTES 96

/** Says what is wrong with the number and length of the frames, in `text` perhaps; NULL = nothing. */
static const char *misfit(const struct kvfi_channel *channel, const struct kvfi_dialect *dialect,
                          const struct kvfi_frames *frames, char text[MISFIT_TEXT_BYTES])
{
    size_t most_bytes = (size_t)channel->limits.message_bytes;

    if (frames->count == 0) return "message has no frame";
    if (!dialect->handle_frames) {
        if (frames->count > 1) return "message has several frames, expected one";
        return frames->bytes == 0 ? "message is empty" : NULL;
    }
    if (frames->count <= KVFI_CHANNEL_FRAMES && frames->bytes <= most_bytes) return NULL;
    if (frames->count > KVFI_CHANNEL_FRAMES)
        snprintf(text, MISFIT_TEXT_BYTES, "message has %zu frames, expected at most %d", frames->count,
                 KVFI_CHANNEL_FRAMES);
    else
        snprintf(text, MISFIT_TEXT_BYTES, "message has %zu bytes in its frames, expected at most %zu", frames->bytes,
                 most_bytes);
    return text;
}

static void deliver(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context,
                    const struct kvfi_frames *frames, const struct kvfi_route *from)
{
    char text[MISFIT_TEXT_BYTES];
    const char *why = misfit(channel, dialect, frames, text);
    const struct kvfi_frame *first = &frames->frames[0];

    if (why) {
        refuse(channel, dialect, context, from, NULL, 0, why);
    } else if (dialect->recognise && !dialect->recognise(first->bytes, first->byte_count)) {
        refuse(channel, dialect, context, from, first->bytes, first->byte_count, "message is not of this protocol");
    } else {
        channel->stats.received++;
        if (dialect->handle_frames) dialect->handle_frames(context, from, frames->frames, frames->count);
        else dialect->handle(context, from, first->bytes, first->byte_count);
    }
}

/** All messages were taken: tells of the connection. Its end waits once more for those that came before it. */
static void take_links(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context,
                       struct peer *peer)
{
    const struct kvfi_route to = {.peer = peer->number};
    int news = peer->broken ? -1 : kvfi_monitor_take(peer->monitor);

    for (; news != 0; news = peer->closed ? 0 : kvfi_monitor_take(peer->monitor)) {
        if (news < 0 && peer->linked && !peer->broken) {
            peer->broken = peer->pending = true;
            wake(channel);
            break;
        }
        peer->broken = false;
        if (peer->linked == (news > 0)) continue;
        peer->linked = news > 0;
        if (dialect->link) dialect->link(context, &to, peer->linked);
    }
}

/** Takes one message from the ROUTER or a peer. Returns false when there is none. */
static bool take_one(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context, void *socket,
                     uint64_t number)
{
    struct kvfi_route from = {.peer = number};
    struct kvfi_frames frames;
    bool with_id = socket == channel->router;

    if (!kvfi_frames_receive(socket, with_id, &frames)) return false;
    if (with_id && frames.id_bytes > KVFI_CHANNEL_ROUTE_BYTES) {
        channel->stats.refused++;
    } else {
        from.id_bytes = (uint8_t)frames.id_bytes;
        memcpy(from.id, frames.id, frames.id_bytes);
        deliver(channel, dialect, context, &frames, &from);
    }
    kvfi_frames_fini(&frames);
    return true;
}

static size_t take_from_router(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context)
{
    size_t taken = 0;

    channel->router_pending = false;
    while (taken < MESSAGES_PER_TURN && take_one(channel, dialect, context, channel->router, ROUTER_NUMBER)) taken++;
    if (taken == MESSAGES_PER_TURN) note_events(channel, channel->router, &channel->router_pending);
    return taken;
}

static size_t take_from_peer(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context,
                             struct peer *peer)
{
    size_t taken = 0;

    peer->pending = false;
    while (taken < MESSAGES_PER_TURN && !peer->closed &&
           take_one(channel, dialect, context, peer->socket, peer->number))
        taken++;
    if (peer->closed) return taken;
    if (taken == MESSAGES_PER_TURN) {
        peer->pending = true; /* also when there is none: its connection is still to be looked at */
        wake(channel);
    } else if (peer->monitor) {
        take_links(channel, dialect, context, peer);
    }
    return taken;
}

/** Sockets whose descriptor told nothing but that have messages: those that were sent to, and those that had many. */
static size_t take_pending(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context)
{
    uint64_t counter;
    size_t taken = 0;

    if (read(channel->wake_fd, &counter, sizeof counter) < 0) counter = 0;
    if (channel->router_pending) taken += take_from_router(channel, dialect, context);
    for (size_t i = 0; i < channel->peer_count; i++)
        if (channel->peers[i]->pending && !channel->peers[i]->closed)
            taken += take_from_peer(channel, dialect, context, channel->peers[i]);
    return taken;
}

size_t kvfi_channel_dispatch(struct kvfi_channel *channel, const struct kvfi_dialect *dialect, void *context)
{
    struct epoll_event events[READY_AT_ONCE];
    int count = epoll_wait(channel->epoll_fd, events, READY_AT_ONCE, 0);
    size_t taken = 0;

    channel->dispatching = true;
    for (int i = 0; i < count; i++) {
        struct peer *peer;

        if (events[i].data.u64 == WAKE_NUMBER) {
            taken += take_pending(channel, dialect, context);
        } else if (events[i].data.u64 == ROUTER_NUMBER) {
            taken += take_from_router(channel, dialect, context);
        } else {
            peer = find_peer(channel, events[i].data.u64);
            if (peer) taken += take_from_peer(channel, dialect, context, peer);
        }
    }
    channel->dispatching = false;
    sweep(channel);
    return taken;
}
