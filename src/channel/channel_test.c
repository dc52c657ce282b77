/* SPDX-License-Identifier: Apache-2.0 */
/* Two channels, and raw ZeroMQ sockets that misbehave, in one process. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "channel/channel_kit.h"
#include "sys/clock.h"

#define WAIT_NS (10 * KVFI_SECOND)

static void on_message(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count)
{
    struct inbox *inbox = context;

    inbox->messages++;
    inbox->from = *from;
    inbox->last_bytes = byte_count;
    snprintf(inbox->last, sizeof inbox->last, "%.*s", byte_count > 60 ? 60 : (int)byte_count, (const char *)bytes);
    if (inbox->answers) {
        enum kvf_status status = kvfi_channel_send(inbox->channel, from, bytes, byte_count, NULL);
        assert_int_equal(inbox->asker_leaves && status == KVF_ERR_UNREACHABLE ? KVF_OK : status, KVF_OK);
    }
    if (inbox->disconnects) kvfi_channel_disconnect(inbox->channel, from);
}

static bool is_not_bad(const void *bytes, size_t byte_count)
{
    return byte_count < 3 || memcmp(bytes, "bad", 3) != 0;
}

static const struct kvfi_dialect dialect = {.name = "test", .recognise = is_not_bad, .handle = on_message,
                                           .refuse = inbox_on_refusal};

static int port_of(const char *endpoint)
{
    return (int)strtol(strrchr(endpoint, ':') + 1, NULL, 10);
}

static void run(struct inbox *a, size_t a_messages, struct inbox *b, size_t b_messages)
{
    inbox_run(&dialect, a, a_messages, b, b_messages);
}

static void sends_there_and_back(void **state)
{
    struct inbox server = {.channel = open_channel(NULL), .answers = true};
    struct inbox client = {.channel = open_channel(NULL)};
    struct kvfi_route route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    struct kvfi_channel_stats stats;

    (void)state;
    assert_int_equal(kvfi_channel_send(client.channel, &route, "hello", 5, NULL), KVF_OK);
    run(&client, 1, &server, 1);
    assert_string_equal(server.last, "hello");
    assert_string_equal(client.last, "hello");
    assert_int_equal(server.from.peer, 0);
    assert_true(kvfi_route_equal(&client.from, &route));
    kvfi_channel_get_stats(client.channel, &stats);
    assert_int_equal(stats.sent, 1);
    assert_int_equal(stats.received, 1);
    assert_int_equal(stats.peers, 1);
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

/** More messages than one turn takes, both ways at once: the descriptor must stay readable until the last. */
static void loses_no_wake_up(void **state)
{
    struct inbox server = {.channel = open_channel(NULL), .answers = true};
    struct inbox client = {.channel = open_channel(NULL)};
    struct kvfi_route route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    size_t sent = 0;

    (void)state;
    for (size_t round = 0; round < 30; round++) {
        for (size_t i = 0; i < 100; i++, sent++)
            assert_int_equal(kvfi_channel_send(client.channel, &route, "message", 7, NULL), KVF_OK);
        run(&client, sent, &server, sent);
    }
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

static void keeps_many_peers_apart(void **state)
{
    enum { PEERS = 40 };
    struct inbox server = {.channel = open_channel(NULL), .answers = true};
    struct inbox client = {.channel = open_channel(NULL)};
    struct kvfi_route routes[PEERS];

    (void)state;
    for (size_t i = 0; i < PEERS; i++) {
        routes[i] = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
        assert_int_equal(kvfi_channel_send(client.channel, &routes[i], &i, sizeof i, NULL), KVF_OK);
    }
    run(&client, PEERS, &server, PEERS);
    kvfi_channel_disconnect(client.channel, &routes[3]);
    kvfi_channel_disconnect(client.channel, &routes[3]);
    assert_int_equal(kvfi_channel_send(client.channel, &routes[3], "x", 1, NULL), KVF_ERR_UNREACHABLE);
    assert_int_equal(kvfi_channel_send(client.channel, &routes[4], "y", 1, NULL), KVF_OK);
    run(&client, PEERS + 1, &server, PEERS + 1);
    assert_true(kvfi_route_equal(&client.from, &routes[4]));
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

static void may_disconnect_while_it_handles(void **state)
{
    struct inbox server = {.channel = open_channel(NULL), .answers = true, .asker_leaves = true};
    struct inbox client = {.channel = open_channel(NULL), .disconnects = true};
    struct kvfi_route route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    struct kvfi_channel_stats stats;

    (void)state;
    for (size_t i = 0; i < 3; i++) assert_int_equal(kvfi_channel_send(client.channel, &route, "a", 1, NULL), KVF_OK);
    run(&client, 1, &server, 3);
    kvfi_channel_get_stats(client.channel, &stats);
    assert_int_equal(stats.peers, 0);
    assert_int_equal(client.messages, 1);
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

static void holds_back_what_nobody_reads(void **state)
{
    const struct kvfi_channel_options options = {.send_limit = 10};
    struct kvfi_channel *channel = open_channel(&options);
    struct kvfi_route route = connect_to(channel, "tcp://127.0.0.1:1");
    struct kvf_error error;
    size_t sent = 0;

    (void)state;
    while (sent < 100 && kvfi_channel_send(channel, &route, "x", 1, &error) == KVF_OK) sent++;
    assert_int_equal(sent, 10);
    assert_int_equal(error.status, KVF_ERR_AGAIN);
    assert_string_equal(error.text, "channel: 10 messages to this peer wait already");
    kvfi_channel_close(channel, 50);
}

/** The last words of a channel leave, although it is closed at once. */
static void flushes_when_closed(void **state)
{
    struct inbox server = {.channel = open_channel(NULL)};
    struct kvfi_channel *client = open_channel(NULL);
    struct kvfi_route route = connect_to(client, kvfi_channel_endpoint(server.channel));

    (void)state;
    assert_int_equal(kvfi_channel_send(client, &route, "goodbye", 7, NULL), KVF_OK);
    kvfi_channel_close(client, 1000);
    run(&server, 1, NULL, 0);
    assert_string_equal(server.last, "goodbye");
    kvfi_channel_close(server.channel, 0);
}

static void notices_that_an_asker_is_gone(void **state)
{
    struct inbox server = {.channel = open_channel(NULL)};
    struct kvfi_channel *client = open_channel(NULL);
    struct kvfi_route route = connect_to(client, kvfi_channel_endpoint(server.channel));
    int64_t end_ns = kvfi_now_ns() + WAIT_NS;
    enum kvf_status status = KVF_OK;
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_channel_send(client, &route, "a", 1, NULL), KVF_OK);
    run(&server, 1, NULL, 0);
    kvfi_channel_close(client, 0);
    while (status == KVF_OK && kvfi_now_ns() < end_ns)
        status = kvfi_channel_send(server.channel, &server.from, "b", 1, &error);
    assert_int_equal(status, KVF_ERR_UNREACHABLE);
    assert_string_equal(error.text, "channel: the peer that this answers has gone");
    kvfi_channel_close(server.channel, 0);
}

/** A peer that is restarted at the same endpoint is reached again without a new connect. */
static void connects_again(void **state)
{
    struct kvfi_channel_options options = {0};
    struct inbox server = {.channel = open_channel(NULL)};
    struct kvfi_channel *client = open_channel(NULL);
    struct kvfi_route route = connect_to(client, kvfi_channel_endpoint(server.channel));

    (void)state;
    assert_int_equal(kvfi_channel_send(client, &route, "one", 3, NULL), KVF_OK);
    run(&server, 1, NULL, 0);
    options.port = port_of(kvfi_channel_endpoint(server.channel));
    kvfi_channel_close(server.channel, 0);
    server = (struct inbox){.channel = open_channel(&options)};
    while (server.messages == 0) {
        struct pollfd ready = {.fd = kvfi_channel_fd(server.channel), .events = POLLIN};

        assert_int_equal(kvfi_channel_send(client, &route, "two", 3, NULL), KVF_OK);
        if (poll(&ready, 1, 50) > 0) kvfi_channel_dispatch(server.channel, &dialect, &server);
    }
    assert_string_equal(server.last, "two");
    kvfi_channel_close(client, 0);
    kvfi_channel_close(server.channel, 0);
}

static void send_frames(void *socket, const char *const frames[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(zmq_send(socket, frames[i], strlen(frames[i]), i + 1 < count ? ZMQ_SNDMORE : 0),
                         strlen(frames[i]));
}

/** Odd messages from a raw peer are refused with a reason, and the channel goes on. */
static void refuses_odd_messages(void **state)
{
    static const struct {
        const char *name, *frames[3];
        size_t count;
        const char *text;
    } rows[] = {
        {"empty", {""}, 1, "test: message is empty"},
        {"two frames", {"a", "b"}, 2, "test: message has several frames, expected one"},
        {"an empty delimiter first", {"", "a", "b"}, 3, "test: message has several frames, expected one"},
        {"another protocol", {"bad thing"}, 1, "test: message is not of this protocol"},
    };
    struct inbox server = {.channel = open_channel(NULL), .answers = true};
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    char answer[8];
    int zero = 0;

    (void)state;
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
    assert_int_equal(zmq_connect(socket, kvfi_channel_endpoint(server.channel)), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        send_frames(socket, rows[i].frames, rows[i].count);
        run(&server, i + 1, NULL, 0);
        assert_int_equal(server.refusals, i + 1);
        if (strcmp(server.refusal, rows[i].text) != 0) fail_msg("%s: %s", rows[i].name, server.refusal);
    }
    zmq_send(socket, "fine", 4, 0);
    run(&server, sizeof rows / sizeof rows[0] + 1, NULL, 0);
    assert_int_equal(zmq_recv(socket, answer, sizeof answer, 0), 4);
    zmq_close(socket);
    zmq_ctx_term(context);
    kvfi_channel_close(server.channel, 0);
}

static int raw_connect(const char *endpoint)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)port_of(endpoint))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/** Bytes that are not even ZMTP, a greeting that stops, and a message longer than allowed cost the channel nothing. */
static void outlives_raw_bytes(void **state)
{
    static const char garbage[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const unsigned char greeting[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3};
    const struct kvfi_channel_options small = {.max_message_bytes = 1000};
    struct inbox server = {.channel = open_channel(&small), .answers = true};
    struct inbox client = {.channel = open_channel(NULL)};
    struct inbox good = {.channel = open_channel(NULL)};
    int one = raw_connect(kvfi_channel_endpoint(server.channel));
    int two = raw_connect(kvfi_channel_endpoint(server.channel));
    struct kvfi_route long_route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    struct kvfi_route route = connect_to(good.channel, kvfi_channel_endpoint(server.channel));
    char *bytes = calloc(1, 2000);

    (void)state;
    assert_int_equal(write(one, garbage, sizeof garbage), sizeof garbage);
    assert_int_equal(write(two, greeting, sizeof greeting), sizeof greeting);
    assert_int_equal(kvfi_channel_send(client.channel, &long_route, bytes, 2000, NULL), KVF_OK);
    assert_int_equal(kvfi_channel_send(good.channel, &route, "fine", 4, NULL), KVF_OK);
    run(&good, 1, &server, 1);
    assert_string_equal(good.last, "fine");
    assert_int_equal(server.messages, 1);
    assert_int_equal(kvfi_channel_send(server.channel, &server.from, bytes, 1001, NULL), KVF_ERR_LIMIT);
    assert_int_equal(kvfi_channel_send(server.channel, &server.from, bytes, 0, NULL), KVF_ERR_LIMIT);
    free(bytes);
    close(one);
    close(two);
    kvfi_channel_close(good.channel, 0);
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

static void names_what_it_cannot_open(void **state)
{
    struct kvfi_channel *first = open_channel(NULL), *second = NULL;
    struct kvfi_channel_options options = {.port = port_of(kvfi_channel_endpoint(first))};
    struct kvfi_route route;
    struct kvf_error error;
    char wanted[128];

    (void)state;
    snprintf(wanted, sizeof wanted, "channel: %s is in use", kvfi_channel_endpoint(first));
    assert_int_equal(kvfi_channel_open(&options, &second, &error), KVF_ERR_ADDRESS_IN_USE);
    assert_string_equal(error.text, wanted);
    options = (struct kvfi_channel_options){.port = 65536};
    assert_int_equal(kvfi_channel_open(&options, &second, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "channel: port is 65536, expected 0 to 65535");
    assert_null(second);
    assert_int_equal(kvfi_channel_connect(first, "udp://1.1.1.1:1", &route, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "channel: endpoint \"udp://1.1.1.1:1\" is not tcp://ADDRESS:PORT with a numeric "
                        "address");
    assert_int_equal(kvfi_channel_connect(first, "tcp://a.name:1", &route, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "channel: endpoint \"tcp://a.name:1\" is not tcp://ADDRESS:PORT with a numeric "
                        "address");
    assert_int_equal(kvfi_channel_connect(first, "tcp://1.1.1.1:2;a.name:1", &route, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvfi_channel_connect(first, "tcp://127.0.0.1:none", &route, &error), KVF_ERR_INVALID_ARGUMENT);
    kvfi_channel_close(first, 0);
    kvfi_channel_close(NULL, 0);
}

static void speaks_ipv6_where_there_is_one(void **state)
{
    const struct kvfi_channel_options options = {.host = "::1"};
    struct inbox server = {.answers = true}, client = {.channel = open_channel(NULL)};
    struct kvfi_route route;
    struct kvf_error error;

    (void)state;
    if (kvfi_channel_open(&options, &server.channel, &error) != KVF_OK) {
        kvfi_channel_close(client.channel, 0);
        skip();
    }
    assert_memory_equal(kvfi_channel_endpoint(server.channel), "tcp://[::1]:", 12);
    route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    assert_int_equal(kvfi_channel_send(client.channel, &route, "six", 3, NULL), KVF_OK);
    run(&client, 1, &server, 1);
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sends_there_and_back), cmocka_unit_test(loses_no_wake_up),
        cmocka_unit_test(keeps_many_peers_apart), cmocka_unit_test(may_disconnect_while_it_handles),
        cmocka_unit_test(holds_back_what_nobody_reads), cmocka_unit_test(flushes_when_closed),
        cmocka_unit_test(notices_that_an_asker_is_gone), cmocka_unit_test(connects_again),
        cmocka_unit_test(refuses_odd_messages), cmocka_unit_test(outlives_raw_bytes),
        cmocka_unit_test(names_what_it_cannot_open), cmocka_unit_test(speaks_ipv6_where_there_is_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
