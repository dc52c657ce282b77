/* SPDX-License-Identifier: Apache-2.0 */
/** @file socket.h  ZeroMQ sockets with the channel's options, and whole messages from them. */
#ifndef KVFI_CHANNEL_SOCKET_H
#define KVFI_CHANNEL_SOCKET_H

#include <stdbool.h>

#include <zmq.h>

#include "channel/channel.h"

struct kvfi_socket_limits {
    int64_t message_bytes;
    int send, receive; /* messages per peer */
    bool ipv6;
};

/** Opens a socket of a ZeroMQ type and sets its options. */
enum kvf_status kvfi_socket_open(void *context, int type, const struct kvfi_socket_limits *limits, void **out,
                                 struct kvf_error *error);

/** Binds tcp on `host` and writes the endpoint it got. */
enum kvf_status kvfi_socket_bind(void *socket, const char *host, int port, char *endpoint, size_t endpoint_bytes,
                                 struct kvf_error *error);

enum kvf_status kvfi_socket_connect(void *socket, const char *endpoint, struct kvf_error *error);

/** Closes; what was sent has `flush_ms` to leave, in the background. */
void kvfi_socket_close(void *socket, int flush_ms);

/** The descriptor that tells, once for each change, that the socket's state is to be looked at. */
int kvfi_socket_fd(void *socket);

bool kvfi_socket_is_readable(void *socket);

/** Opens a second socket that tells of the connection of an outgoing one; `number` names both. */
enum kvf_status kvfi_socket_monitor(void *context, void *socket, uint64_t number, void **out, struct kvf_error *error);

/** Takes what it tells next: 1 the connection stands, -1 it broke, 0 nothing more. */
int kvfi_monitor_take(void *monitor);

/** Closes it, before its socket. */
void kvfi_monitor_close(void *monitor, void *socket);

/** Sends 1 to KVFI_CHANNEL_FRAMES frames, after a routing id when `id_bytes` is above 0: all or none. Returns 0 or an
 *  errno. */
int kvfi_socket_send(void *socket, const void *id, size_t id_bytes, const struct kvfi_frame *frames, size_t count);

/** A received message: its frames after the routing id. */
struct kvfi_frames {
    unsigned char id[255];
    size_t id_bytes;
    size_t count; /* also those that were dropped, beyond KVFI_CHANNEL_FRAMES */
    size_t bytes; /* of those that were kept */
    struct kvfi_frame frames[KVFI_CHANNEL_FRAMES]; /* bytes of `parts` */
    zmq_msg_t parts[KVFI_CHANNEL_FRAMES];
};

/** Receives one whole message without blocking; false when there is none (then there is nothing to fini). */
bool kvfi_frames_receive(void *socket, bool with_id, struct kvfi_frames *out);
void kvfi_frames_fini(struct kvfi_frames *frames);

#endif
