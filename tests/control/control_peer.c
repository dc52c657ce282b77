/* SPDX-License-Identifier: Apache-2.0 */
/* A peer for tests in other languages: binds a channel, prints its endpoint, and answers what it understands.
 *
 * hello -> the hello_ack sample; pull -> started, progress, done samples; ping -> pong; release "bye" -> ends with 0;
 * anything refused -> nack with the reason. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "channel/channel.h"
#include "samples.h"
#include "sys/clock.h"

struct peer {
    struct kvfi_channel *channel;
    struct kvfi_route back; /* where to: the DEALER of a route that was asked for, or the asker */
    bool over;
};

static void answer(struct peer *peer, const struct kvfi_route *to, const struct kvfi_message *message)
{
    struct kvfi_buffer buffer = {0};
    struct kvf_error error;

    if (kvfi_wire_pack(message, &buffer, &error) != KVF_OK ||
        kvfi_channel_send(peer->channel, to, buffer.bytes, buffer.count, &error) != KVF_OK)
        fprintf(stderr, "control_peer: %s\n", error.text);
    kvfi_buffer_fini(&buffer);
}

static void answer_sample(struct peer *peer, const struct kvfi_route *to, enum kvfi_message_type type)
{
    struct kvfi_message message;

    sample_message(type, NULL, &message);
    answer(peer, to, &message);
}

static void refuse(struct peer *peer, const struct kvfi_route *to, const struct kvf_error *error)
{
    struct kvfi_message message = {.type = KVFI_MSG_NACK,
                                   .nack = {.of = "", .status = error->status, .text = error->text}};

    answer(peer, to, &message);
}

static void on_message(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count)
{
    struct peer *peer = context;
    struct kvfi_message message = {.type = KVFI_MSG_NONE};
    struct kvf_error error;

    if (kvfi_wire_unpack(bytes, byte_count, &message, &error) != KVF_OK) refuse(peer, from, &error);
    switch (message.type) {
    case KVFI_MSG_HELLO:
        answer_sample(peer, from, KVFI_MSG_HELLO_ACK);
        break;
    case KVFI_MSG_PULL:
        answer_sample(peer, from, KVFI_MSG_STARTED);
        answer_sample(peer, from, KVFI_MSG_PROGRESS);
        answer_sample(peer, from, KVFI_MSG_DONE);
        break;
    case KVFI_MSG_PING:
        message.type = KVFI_MSG_PONG;
        answer(peer, from, &message);
        break;
    case KVFI_MSG_RELEASE:
        peer->over = strcmp(message.note.transfer, "bye") == 0;
        break;
    default:
        break;
    }
    kvfi_message_fini(&message);
}

static void on_refusal(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                       const struct kvf_error *error)
{
    (void)bytes;
    (void)byte_count;
    refuse(context, from, error);
}

int main(int argc, char **argv)
{
    static const struct kvfi_dialect dialect = {.name = "kvferry/1", .recognise = kvfi_wire_recognise,
                                                 .handle = on_message, .refuse = on_refusal};
    int64_t end_ns = kvfi_now_ns() + 60 * KVFI_SECOND;
    struct peer peer = {.over = false};
    struct kvf_error error;

    if (kvfi_channel_open(NULL, &peer.channel, &error) != KVF_OK) return 1;
    printf("%s\n", kvfi_channel_endpoint(peer.channel));
    fflush(stdout);
    /* With an endpoint given, this side connects too, and greets. */
    if (argc > 1) {
        kvf_layout *layout = sample_layout();
        struct kvfi_message message;

        if (kvfi_channel_connect(peer.channel, argv[1], &peer.back, &error) != KVF_OK) return 1;
        sample_message(KVFI_MSG_HELLO, layout, &message);
        answer(&peer, &peer.back, &message);
        kvf_layout_release(layout);
    }
    while (!peer.over && kvfi_now_ns() < end_ns) {
        struct pollfd ready = {.fd = kvfi_channel_fd(peer.channel), .events = POLLIN};

        if (poll(&ready, 1, 1000) > 0) kvfi_channel_dispatch(peer.channel, &dialect, &peer);
    }
    kvfi_channel_close(peer.channel, 100);
    return peer.over ? 0 : 1;
}
