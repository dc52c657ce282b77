/* SPDX-License-Identifier: Apache-2.0 */
/* Channels that tell when their connections stand and break. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel/channel_kit.h"
#include "sys/clock.h"

#define WAIT_NS (10 * KVFI_SECOND)

/** What a client was told, in order: "u" up, "d" down, "m" a message. */
struct told {
    struct kvfi_channel *channel;
    struct kvfi_route last;
    char words[64];
};

static void add(struct told *told, char word)
{
    size_t length = strlen(told->words);

    assert_true(length + 1 < sizeof told->words);
    told->words[length] = word;
}

static void on_link(void *context, const struct kvfi_route *to, bool up)
{
    struct told *told = context;

    told->last = *to;
    add(told, up ? 'u' : 'd');
}

static void on_message(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count)
{
    (void)from;
    (void)bytes;
    (void)byte_count;
    add(context, 'm');
}

static void answer(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count)
{
    struct inbox *server = context;

    server->messages++;
    assert_int_equal(kvfi_channel_send(server->channel, from, bytes, byte_count, NULL), KVF_OK);
}

static const struct kvfi_dialect client_dialect = {.name = "client", .handle = on_message, .link = on_link};
static const struct kvfi_dialect server_dialect = {.name = "server", .handle = answer};

static struct told open_client(void)
{
    const struct kvfi_channel_options options = {.connect_only = true, .watch_links = true};
    struct told told = {.channel = open_channel(&options)};

    return told;
}

/** Turns both, on their descriptors alone, until the client was told so many words. */
static void turn(struct told *client, size_t words, struct inbox *server)
{
    int64_t end_ns = kvfi_now_ns() + WAIT_NS;

    while (strlen(client->words) < words) {
        struct pollfd ready[2] = {{.fd = kvfi_channel_fd(client->channel), .events = POLLIN},
                                  {.fd = server ? kvfi_channel_fd(server->channel) : -1, .events = POLLIN}};

        if (kvfi_now_ns() > end_ns) fail_msg("told \"%s\" only", client->words);
        if (poll(ready, 2, 10000) <= 0) fail_msg("told \"%s\", then nothing", client->words);
        if (ready[0].revents) kvfi_channel_dispatch(client->channel, &client_dialect, client);
        if (ready[1].revents) kvfi_channel_dispatch(server->channel, &server_dialect, server);
    }
}

static void tells_links(void **state)
{
    struct kvfi_channel_options options = {0};
    struct inbox server = {.channel = open_channel(NULL)};
    struct told client = open_client();
    struct kvfi_route route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));

    (void)state;
    assert_string_equal(kvfi_channel_endpoint(client.channel), "");
    options.port = (int)strtol(strrchr(kvfi_channel_endpoint(server.channel), ':') + 1, NULL, 10);
    turn(&client, 1, &server);
    assert_true(kvfi_route_equal(&client.last, &route));
    assert_int_equal(kvfi_channel_send(client.channel, &route, "a", 1, NULL), KVF_OK);
    turn(&client, 2, &server);
    kvfi_channel_close(server.channel, 0);
    turn(&client, 3, NULL);
    server.channel = open_channel(&options);
    turn(&client, 4, &server);
    assert_int_equal(kvfi_channel_send(client.channel, &route, "c", 1, NULL), KVF_OK);
    turn(&client, 5, &server);
    assert_string_equal(client.words, "umdum");
    assert_int_equal(server.messages, 2);
    kvfi_channel_close(client.channel, 0);
    kvfi_channel_close(server.channel, 0);
}

/** Answers that came in time are handed over before the end is told, also when there are more than one turn takes. */
static void hands_over_before_it_tells_the_end(void **state)
{
    enum { MESSAGES = 60 };
    struct inbox server = {.channel = open_channel(NULL)};
    struct told client = open_client();
    struct kvfi_route route = connect_to(client.channel, kvfi_channel_endpoint(server.channel));
    int64_t end_ns = kvfi_now_ns() + WAIT_NS;
    char wanted[MESSAGES + 3] = "u";

    (void)state;
    turn(&client, 1, &server);
    for (size_t i = 0; i < MESSAGES; i++) {
        assert_int_equal(kvfi_channel_send(client.channel, &route, "a", 1, NULL), KVF_OK);
    }
    while (server.messages < MESSAGES && kvfi_now_ns() < end_ns)
        kvfi_channel_dispatch(server.channel, &server_dialect, &server);
    kvfi_channel_close(server.channel, 1000);
    turn(&client, MESSAGES + 2, NULL);
    memset(wanted + 1, 'm', MESSAGES);
    wanted[MESSAGES + 1] = 'd';
    assert_string_equal(client.words, wanted);
    kvfi_channel_close(client.channel, 0);
}

/** A listener that takes connections and says nothing is no peer. */
static void stands_only_after_the_handshake(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), accepted;
    struct told client = open_client();
    struct kvfi_route route;
    char endpoint[64];

    (void)state;
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    route = connect_to(client.channel, endpoint);
    accepted = accept(listener, NULL, NULL);
    assert_true(accepted >= 0);
    assert_int_equal(kvfi_channel_send(client.channel, &route, "a", 1, NULL), KVF_OK);
    kvfi_channel_dispatch(client.channel, &client_dialect, &client);
    assert_string_equal(client.words, "");
    close(accepted);
    close(listener);
    kvfi_channel_close(client.channel, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_links), cmocka_unit_test(hands_over_before_it_tells_the_end),
        cmocka_unit_test(stands_only_after_the_handshake),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
