/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/socket.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

/** A peer that vanished without a word is noticed by the kernel, after 10 + 3 * 5 seconds, and its routing id freed. */
static int set_keepalive(void *socket)
{
    return set_int(socket, ZMQ_TCP_KEEPALIVE, 1) | set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, 10) |
           set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, 5) | set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 3);
}

static int set_options(void *socket, int type, const struct kvfi_socket_limits *limits)
{
    int failed = set_int(socket, ZMQ_LINGER, 0) | set_int(socket, ZMQ_SNDHWM, limits->send) |
                 set_int(socket, ZMQ_RCVHWM, limits->receive) | set_int(socket, ZMQ_HANDSHAKE_IVL, 5000) |
                 set_keepalive(socket) |
                 zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &limits->message_bytes, sizeof limits->message_bytes);

    if (limits->ipv6) failed |= set_int(socket, ZMQ_IPV6, 1);
    if (type == ZMQ_ROUTER)
        failed |= set_int(socket, ZMQ_ROUTER_MANDATORY, 1) | set_int(socket, ZMQ_BACKLOG, 1024);
    else failed |= set_int(socket, ZMQ_RECONNECT_IVL, 50) | set_int(socket, ZMQ_RECONNECT_IVL_MAX, 1000);
    return failed;
}

enum kvf_status kvfi_socket_open(void *context, int type, const struct kvfi_socket_limits *limits, void **out,
                                 struct kvf_error *error)
{
    void *socket = zmq_socket(context, type);

    if (!socket)
        return kvfi_fail(error, errno == EMFILE ? KVF_ERR_LIMIT : KVF_ERR_SYSTEM, "channel: cannot open a socket: %s",
                         zmq_strerror(errno));
    if (set_options(socket, type, limits) != 0) {
        int cause = errno;

        zmq_close(socket);
        return kvfi_fail(error, KVF_ERR_SYSTEM, "channel: cannot set a socket option: %s", zmq_strerror(cause));
    }
    *out = socket;
    return KVF_OK;
}

enum kvf_status kvfi_socket_bind(void *socket, const char *host, int port, char *endpoint, size_t endpoint_bytes,
                                 struct kvf_error *error)
{
    const char *form = strchr(host, ':') && host[0] != '[' ? "tcp://[%s]:%s" : "tcp://%s:%s";
    char wanted[512], number[16] = "*";

    if (port > 0) snprintf(number, sizeof number, "%d", port);
    if (strlen(host) > 255)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "channel: host has %zu bytes, expected at most 255",
                         strlen(host));
    snprintf(wanted, sizeof wanted, form, host, number);
    if (zmq_bind(socket, wanted) != 0) {
        if (errno == EADDRINUSE)
            return kvfi_fail(error, KVF_ERR_ADDRESS_IN_USE, "channel: %s is in use", wanted);
        return kvfi_fail(error, errno == EINVAL ? KVF_ERR_INVALID_ARGUMENT : KVF_ERR_SYSTEM,
                         "channel: cannot bind %s: %s", wanted, zmq_strerror(errno));
    }
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &endpoint_bytes) != 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "channel: %s has no endpoint: %s", wanted, zmq_strerror(errno));
    return KVF_OK;
}

/** A name would be looked up in ZeroMQ's one I/O thread, and every peer would wait for that. */
static bool is_numeric(const char *address)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(address, ':');
    size_t bytes = colon ? (size_t)(colon - address) : 0;
    struct addrinfo *found = NULL;
    char host[512];

    if (bytes > 2 && address[0] == '[' && address[bytes - 1] == ']') {
        address++;
        bytes -= 2;
    }
    if (bytes == 0 || bytes >= sizeof host) return false;
    memcpy(host, address, bytes);
    host[bytes] = '\0';
    if (getaddrinfo(host, NULL, &hints, &found) != 0) return false;
    freeaddrinfo(found);
    return true;
}

enum kvf_status kvfi_socket_connect(void *socket, const char *endpoint, struct kvf_error *error)
{
    if (strncmp(endpoint, "tcp://", 6) != 0 || strlen(endpoint) > 511 || !is_numeric(endpoint + 6))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "channel: endpoint \"%.100s\" is not tcp://ADDRESS:PORT with a numeric address", endpoint);
    if (zmq_connect(socket, endpoint) != 0)
        return kvfi_fail(error, errno == EINVAL ? KVF_ERR_INVALID_ARGUMENT : KVF_ERR_SYSTEM,
                         "channel: cannot connect to \"%s\": %s", endpoint, zmq_strerror(errno));
    return KVF_OK;
}

void kvfi_socket_close(void *socket, int flush_ms)
{
    set_int(socket, ZMQ_LINGER, flush_ms);
    zmq_close(socket);
}

int kvfi_socket_fd(void *socket)
{
    int fd = -1;
    size_t bytes = sizeof fd;

    return zmq_getsockopt(socket, ZMQ_FD, &fd, &bytes) == 0 ? fd : -1;
}

bool kvfi_socket_is_readable(void *socket)
{
    int events = 0;
    size_t bytes = sizeof events;

    /* An interrupted look is told as readable: a vain try to receive costs nothing. */
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &bytes) != 0 || (events & ZMQ_POLLIN);
}

/* ---- monitors ---- */

enum kvf_status kvfi_socket_monitor(void *context, void *socket, uint64_t number, void **out, struct kvf_error *error)
{
    void *monitor = zmq_socket(context, ZMQ_PAIR);
    char name[48];

    snprintf(name, sizeof name, "inproc://link-%" PRIu64, number);
    if (!monitor)
        return kvfi_fail(error, errno == EMFILE ? KVF_ERR_LIMIT : KVF_ERR_SYSTEM, "channel: cannot open a socket: %s",
                         zmq_strerror(errno));
    if (set_int(monitor, ZMQ_LINGER, 0) != 0 ||
        zmq_socket_monitor(socket, name, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_connect(monitor, name) != 0) {
        int cause = errno;

        kvfi_monitor_close(monitor, socket);
        return kvfi_fail(error, cause == EMFILE ? KVF_ERR_LIMIT : KVF_ERR_SYSTEM,
                         "channel: cannot watch a connection: %s", zmq_strerror(cause));
    }
    *out = monitor;
    return KVF_OK;
}

/* An event is two frames: its number (16 bits) and value (32 bits), and the endpoint. */
int kvfi_monitor_take(void *monitor)
{
    unsigned char event[6];
    char endpoint[16];
    uint16_t number;
    int got;

    do got = zmq_recv(monitor, event, sizeof event, ZMQ_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got != (int)sizeof event) return 0;
    while (zmq_recv(monitor, endpoint, sizeof endpoint, ZMQ_DONTWAIT) < 0 && errno == EINTR) { }
    memcpy(&number, event, sizeof number);
    return number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? 1 : -1;
}

/* Told to stop first: with nobody to read, ZeroMQ's own thread would wait to tell. */
void kvfi_monitor_close(void *monitor, void *socket)
{
    zmq_socket_monitor(socket, NULL, 0);
    zmq_close(monitor);
}

static int send_part(zmq_msg_t *part, void *socket, int more)
{
    int sent;

    do sent = zmq_msg_send(part, socket, more | ZMQ_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? errno : 0;
}

static int fill_part(zmq_msg_t *part, const void *bytes, size_t byte_count)
{
    if (zmq_msg_init_size(part, byte_count) != 0) return errno;
    if (byte_count > 0) memcpy(zmq_msg_data(part), bytes, byte_count);
    return 0;
}

int kvfi_socket_send(void *socket, const void *id, size_t id_bytes, const struct kvfi_frame *frames, size_t count)
{
    zmq_msg_t parts[KVFI_CHANNEL_FRAMES + 1];
    size_t filled = 0, sent = 0;
    int cause = 0, failed;

    if (id_bytes > 0) cause = fill_part(&parts[filled], id, id_bytes);
    if (id_bytes > 0 && cause == 0) filled++;
    for (size_t i = 0; i < count && cause == 0; i++) {
        cause = fill_part(&parts[filled], frames[i].bytes, frames[i].byte_count);
        if (cause == 0) filled++;
    }
    if (cause == 0) cause = send_part(&parts[sent++], socket, filled > 1 ? ZMQ_SNDMORE : 0);
    /* Once the first has gone, a failure means that the connection went and the message with it. The rest is handed
     * over all the same: until the last frame, the socket takes what comes for the rest of that message. */
    for (bool begun = cause == 0; begun && sent < filled; sent++) {
        failed = send_part(&parts[sent], socket, sent + 1 < filled ? ZMQ_SNDMORE : 0);
        if (cause == 0) cause = failed;
    }
    while (filled > 0) zmq_msg_close(&parts[--filled]);
    return cause;
}

static int receive_part(zmq_msg_t *part, void *socket)
{
    int got;

    do got = zmq_msg_recv(part, socket, ZMQ_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got;
}

static bool receive_id(void *socket, struct kvfi_frames *out, bool *more)
{
    zmq_msg_t part;

    zmq_msg_init(&part);
    if (receive_part(&part, socket) < 0) {
        zmq_msg_close(&part);
        return false;
    }
    out->id_bytes = zmq_msg_size(&part) <= sizeof out->id ? zmq_msg_size(&part) : 0;
    memcpy(out->id, zmq_msg_data(&part), out->id_bytes);
    *more = zmq_msg_more(&part);
    zmq_msg_close(&part);
    return true;
}

/** Receives the next frame, keeps it if there is room, and says whether another follows. */
static bool receive_frame(void *socket, struct kvfi_frames *out, bool *more)
{
    zmq_msg_t dropped, *part = out->count < KVFI_CHANNEL_FRAMES ? &out->parts[out->count] : &dropped;

    zmq_msg_init(part);
    if (receive_part(part, socket) < 0) {
        zmq_msg_close(part);
        return false;
    }
    *more = zmq_msg_more(part);
    if (part == &dropped) {
        zmq_msg_close(part);
    } else {
        out->frames[out->count] = (struct kvfi_frame){zmq_msg_data(part), zmq_msg_size(part)};
        out->bytes += zmq_msg_size(part);
    }
    out->count++;
    return true;
}

bool kvfi_frames_receive(void *socket, bool with_id, struct kvfi_frames *out)
{
    bool more = true;

    out->id_bytes = out->count = out->bytes = 0;
    if (with_id && !receive_id(socket, out, &more)) return false;
    /* Sockets hand over whole messages only: the frames after the first are there. */
    while (more && receive_frame(socket, out, &more)) { }
    return with_id || out->count > 0;
}

void kvfi_frames_fini(struct kvfi_frames *frames)
{
    for (size_t i = 0; i < frames->count && i < KVFI_CHANNEL_FRAMES; i++) zmq_msg_close(&frames->parts[i]);
}
