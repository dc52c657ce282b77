/* SPDX-License-Identifier: Apache-2.0 */
/* A dialect with messages of several frames: two channels, and a raw DEALER as peers have it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "channel/channel_kit.h"
#include "sys/clock.h"

#define WAIT_NS (10 * KVFI_SECOND)

/* Frames are written as "[tag][payload]". */
static void note_frames(struct inbox *inbox, const struct kvfi_frame *frames, size_t count)
{
    size_t used = 0;

    inbox->last_count = count;
    inbox->last_bytes = 0;
    inbox->last[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        inbox->last_bytes += frames[i].byte_count;
        if (used < 100)
            used += (size_t)snprintf(inbox->last + used, sizeof inbox->last - used, "[%.*s]",
                                     frames[i].byte_count > 60 ? 60 : (int)frames[i].byte_count,
                                     frames[i].byte_count > 0 ? (const char *)frames[i].bytes : "");
    }
}

static void on_frames(void *context, const struct kvfi_route *from, const struct kvfi_frame *frames, size_t count)
{
    struct inbox *inbox = context;

    inbox->messages++;
    inbox->from = *from;
    note_frames(inbox, frames, count);
    if (inbox->answers)
        assert_int_equal(kvfi_channel_send_frames(inbox->channel, from, frames, count, NULL), KVF_OK);
}

static bool is_not_bad(const void *bytes, size_t byte_count)
{
    return byte_count != 3 || memcmp(bytes, "bad", 3) != 0;
}

static const struct kvfi_dialect dialect = {.name = "frames", .recognise = is_not_bad, .handle_frames = on_frames,
                                            .refuse = inbox_on_refusal};

static void run(struct inbox *a, size_t a_messages, struct inbox *b, size_t b_messages)
{
    inbox_run(&dialect, a, a_messages, b, b_messages);
}

/** There by a peer's route, back by an incoming one, frame for frame. */
static void sends_there_and_back(void **state)
{
    static const struct {
        const char *name;
        struct kvfi_frame frames[3];
        size_t count;
        const char *text;
    } rows[] = {
        {"one frame", {{"TAG", 3}}, 1, "[TAG]"},
        {"a tag and a payload", {{"TAG", 3}, {"payload", 7}}, 2, "[TAG][payload]"},
        {"an empty frame in the middle", {{"TAG", 3}, {NULL, 0}, {"x", 1}}, 3, "[TAG][][x]"},
        {"an empty frame first", {{NULL, 0}, {"x", 1}}, 2, "[][x]"},
        {"an empty frame alone", {{NULL, 0}}, 1, "[]"},
        {"empty frames only", {{NULL, 0}, {"", 0}, {NULL, 0}}, 3, "[][][]"},
    };
    struct inbox server = {.channel = open_channel(NULL), .answers = true};
    struct inbox client = {.channel = open_channel(NULL)};
    struct kvfi_route route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    struct kvfi_channel_stats stats;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(kvfi_channel_send_frames(client.channel, &route, rows[i].frames, rows[i].count, NULL),
                         KVF_OK);
        run(&client, i + 1, &server, i + 1);
        if (strcmp(server.last, rows[i].text) != 0) fail_msg("%s: got %s", rows[i].name, server.last);
        if (strcmp(client.last, rows[i].text) != 0) fail_msg("%s: got back %s", rows[i].name, client.last);
        assert_true(kvfi_route_equal(&client.from, &route));
    }
    kvfi_channel_get_stats(client.channel, &stats);
    assert_int_equal(stats.sent, sizeof rows / sizeof rows[0]);
    assert_int_equal(stats.received, sizeof rows / sizeof rows[0]);
    assert_int_equal(server.refusals + client.refusals, 0);
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

/** As many frames and bytes as allowed arrive; one more of either is not sent. */
static void keeps_to_its_limits(void **state)
{
    struct inbox server = {.channel = open_channel(&(struct kvfi_channel_options){.max_message_bytes = 1600})};
    struct inbox client = {.channel = open_channel(&(struct kvfi_channel_options){.max_message_bytes = 1600})};
    struct kvfi_route route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    struct kvfi_frame frames[KVFI_CHANNEL_FRAMES + 1];
    char bytes[101] = {0};
    struct kvf_error error;

    (void)state;
    for (size_t i = 0; i <= KVFI_CHANNEL_FRAMES; i++) frames[i] = (struct kvfi_frame){bytes, 100};
    assert_int_equal(kvfi_channel_send_frames(client.channel, &route, frames, KVFI_CHANNEL_FRAMES, NULL), KVF_OK);
    run(&server, 1, NULL, 0);
    assert_int_equal(server.last_count, KVFI_CHANNEL_FRAMES);
    assert_int_equal(server.last_bytes, 1600);
    frames[3].byte_count = 101;
    assert_int_equal(kvfi_channel_send_frames(client.channel, &route, frames, KVFI_CHANNEL_FRAMES, &error),
                     KVF_ERR_LIMIT);
    assert_string_equal(error.text, "channel: message has more than 1600 bytes in its frames");
    frames[3].byte_count = SIZE_MAX;
    assert_int_equal(kvfi_channel_send_frames(client.channel, &route, frames, 4, &error), KVF_ERR_LIMIT);
    assert_int_equal(kvfi_channel_send_frames(client.channel, &route, frames, 0, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "channel: message has 0 frames, expected 1 to 16");
    assert_int_equal(kvfi_channel_send_frames(client.channel, &route, frames, KVFI_CHANNEL_FRAMES + 1, &error),
                     KVF_ERR_LIMIT);
    assert_string_equal(error.text, "channel: message has 17 frames, expected 1 to 16");
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

static void send_raw(void *socket, const char *const frames[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(zmq_send(socket, frames[i], strlen(frames[i]), i + 1 < count ? ZMQ_SNDMORE : 0),
                         strlen(frames[i]));
}

static void *raw_dealer(void *context, const char *endpoint)
{
    void *socket = zmq_socket(context, ZMQ_DEALER);
    int zero = 0;

    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

/** Messages of a raw peer, sixteen frames among them, come as they are; others are refused and the channel goes on. */
static void outlives_odd_messages(void **state)
{
    static const char *const many[] = {"T", "1", "2", "3", "4", "5", "6", "7", "8", "9", "A", "B", "C", "D", "E", "F",
                                       "G", "H"};
    static char half[601];
    const char *const heavy[] = {half, half, "x"}, *const bad[] = {"bad", "x"};
    struct inbox server = {.channel = open_channel(&(struct kvfi_channel_options){.max_message_bytes = 1000}),
                           .answers = true};
    void *context = zmq_ctx_new(), *socket = raw_dealer(context, kvfi_channel_endpoint(server.channel));
    char answer[8];

    (void)state;
    memset(half, 'h', 600);
    send_raw(socket, many, 17);
    run(&server, 1, NULL, 0);
    assert_string_equal(server.refusal, "frames: message has 17 frames, expected at most 16");
    send_raw(socket, heavy, 3);
    run(&server, 2, NULL, 0);
    assert_string_equal(server.refusal, "frames: message has 1201 bytes in its frames, expected at most 1000");
    send_raw(socket, bad, 2);
    run(&server, 3, NULL, 0);
    assert_string_equal(server.refusal, "frames: message is not of this protocol");
    for (size_t i = 0; i < 500; i++)
        assert_int_equal(zmq_send(socket, "", 0, ZMQ_SNDMORE), 0);
    send_raw(socket, many, 18);
    run(&server, 4, NULL, 0);
    assert_int_equal(server.refusals, 4);
    send_raw(socket, many, 16);
    run(&server, 5, NULL, 0);
    assert_string_equal(server.last, "[T][1][2][3][4][5][6][7][8][9][A][B][C][D][E][F]");
    for (size_t i = 0; i < 16; i++) {
        assert_int_equal(zmq_recv(socket, answer, sizeof answer, 0), 1);
        assert_int_equal(answer[0], many[i][0]);
    }
    zmq_close(socket);
    zmq_ctx_term(context);
    kvfi_channel_close(server.channel, 0);
}

/** A message that meets a full queue leaves nothing behind: the ones before it arrive whole, with nothing between. */
static void sends_all_or_none(void **state)
{
    const struct kvfi_frame frames[3] = {{"TAG", 3}, {"b", 1}, {"c", 1}};
    struct kvfi_channel *probe = open_channel(NULL);
    struct inbox server = {0};
    struct kvfi_channel *client = open_channel(&(struct kvfi_channel_options){.send_limit = 10});
    struct kvfi_channel_options options = {0};
    char endpoint[KVFI_CHANNEL_ENDPOINT_BYTES];
    struct kvfi_route route;
    struct kvf_error error;
    size_t sent = 0;

    (void)state;
    snprintf(endpoint, sizeof endpoint, "%s", kvfi_channel_endpoint(probe));
    options.port = (int)strtol(strrchr(endpoint, ':') + 1, NULL, 10);
    kvfi_channel_close(probe, 0);
    route = connect_to(client, endpoint);
    while (sent < 100 && kvfi_channel_send_frames(client, &route, frames, 3, &error) == KVF_OK) sent++;
    assert_int_equal(sent, 10);
    assert_int_equal(error.status, KVF_ERR_AGAIN);
    assert_int_equal(kvfi_channel_open(&options, &server.channel, &error), KVF_OK);
    for (size_t i = 1; i <= sent; i++) {
        run(&server, i, NULL, 0);
        assert_string_equal(server.last, "[TAG][b][c]");
    }
    assert_int_equal(server.messages, sent);
    kvfi_channel_close(client, 0);
    kvfi_channel_close(server.channel, 0);
}

/** An answer to one that has gone is an error, and the next one to somebody else is whole. */
static void answers_others_after_one_left(void **state)
{
    const struct kvfi_frame frames[2] = {{"TAG", 3}, {"b", 1}};
    struct inbox server = {.channel = open_channel(NULL)}, client = {.channel = open_channel(NULL)};
    struct kvfi_channel *leaver = open_channel(NULL);
    struct kvfi_route route = connect_to(leaver, kvfi_channel_endpoint(server.channel)), gone;
    int64_t end_ns = kvfi_now_ns() + WAIT_NS;
    enum kvf_status status = KVF_OK;

    (void)state;
    assert_int_equal(kvfi_channel_send_frames(leaver, &route, frames, 2, NULL), KVF_OK);
    run(&server, 1, NULL, 0);
    gone = server.from;
    route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    assert_int_equal(kvfi_channel_send_frames(client.channel, &route, frames, 2, NULL), KVF_OK);
    run(&server, 2, NULL, 0);
    kvfi_channel_close(leaver, 0);
    while (status == KVF_OK && kvfi_now_ns() < end_ns)
        status = kvfi_channel_send_frames(server.channel, &gone, frames, 2, NULL);
    assert_int_equal(status, KVF_ERR_UNREACHABLE);
    assert_int_equal(kvfi_channel_send_frames(server.channel, &server.from, frames, 2, NULL), KVF_OK);
    run(&client, 1, NULL, 0);
    assert_string_equal(client.last, "[TAG][b]");
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sends_there_and_back), cmocka_unit_test(keeps_to_its_limits),
        cmocka_unit_test(outlives_odd_messages), cmocka_unit_test(sends_all_or_none),
        cmocka_unit_test(answers_others_after_one_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
