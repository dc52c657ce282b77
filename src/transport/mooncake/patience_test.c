/* SPDX-License-Identifier: Apache-2.0 */
/* Who does not answer: name servers, addresses, and engines at a handshake. Nobody waits past a deadline for them. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvferry/mooncake.h"
#include "sys/clock.h"
#include "sys/resolver_kit.h"
#include "transport/mooncake/engine.h"

#define LONG_NS (60 * KVFI_SECOND)
#define SHORT_NS (100 * KVFI_MS)

static kvf_mooncake *open_engine(const char *host, int64_t progress_ns)
{
    struct kvf_mooncake_options options;
    struct kvf_error error;
    kvf_mooncake *engine = NULL;

    kvf_mooncake_options_init(&options, sizeof options);
    options.initiator_only = host == NULL;
    options.host = host ? host : "";
    options.progress_timeout_ns = progress_ns;
    if (kvf_mooncake_open(&options, &engine, &error) != KVF_OK) fail_msg("%s", error.text);
    return engine;
}

/* A listener on 127.0.0.1 or 127.0.0.2. */
static int listen_at(const char *host, int port, int backlog, int *bound)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET, host, &address.sin_addr);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *bound = ntohs(address.sin_port);
    return fd;
}

/* Connects until nothing more fits into the queue of a listener: later connects are not answered at all. */
static size_t fill_queue(const char *host, int port, int *fds, size_t capacity)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    size_t count = 0;

    inet_pton(AF_INET, host, &address.sin_addr);
    while (count < capacity) {
        struct pollfd wait = {.events = POLLOUT};

        fds[count] = wait.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(wait.fd, (struct sockaddr *)&address, sizeof address);
        count++;
        if (poll(&wait, 1, 300) == 0) break;
    }
    return count;
}

static void names_that_hang(void **state)
{
    struct kvf_error error;
    kvf_mooncake *engine = open_engine(NULL, LONG_NS), *peer = open_engine("127.0.0.1", LONG_NS);
    int64_t began_ns = kvfi_now_ns(), segment;
    char name[KVF_MOONCAKE_NAME_BYTES];

    (void)state;
    resolver_hang();
    assert_int_equal(kvf_mooncake_open_segment(engine, "hang:1", SHORT_NS, &segment, &error), KVF_ERR_TIMEOUT);
    assert_string_equal(error.text, "peer hang:1: host \"hang\": the system's resolver did not answer in time");
    assert_int_equal(kvf_mooncake_probe(engine, "hang:2", SHORT_NS, &error), KVF_ERR_TIMEOUT);
    snprintf(name, sizeof name, "other:%d", (int)kvf_mooncake_rpc_port(peer));
    assert_int_equal(kvf_mooncake_open_segment(engine, name, LONG_NS, &segment, &error), KVF_OK);
    assert_int_equal(kvf_mooncake_open_segment(engine, "none:1", LONG_NS, &segment, &error), KVF_ERR_UNREACHABLE);
    kvf_mooncake_close(peer);
    kvf_mooncake_close(engine);
    assert_true(kvfi_now_ns() - began_ns < LONG_NS / 2);
    assert_true(resolver_let_go());
}

static void hosts_to_listen_on(void **state)
{
    struct kvf_mooncake_options options;
    struct kvf_error error;
    kvf_mooncake *engine = NULL;

    (void)state;
    resolver_hang();
    kvf_mooncake_options_init(&options, sizeof options);
    options.connect_timeout_ns = SHORT_NS;
    options.host = "hang";
    assert_int_equal(kvf_mooncake_open(&options, &engine, &error), KVF_ERR_TIMEOUT);
    options.connect_timeout_ns = LONG_NS;
    options.host = "none";
    assert_int_equal(kvf_mooncake_open(&options, &engine, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(error.status, KVF_ERR_INVALID_ARGUMENT);
    options.host = "a.name";
    assert_int_equal(kvf_mooncake_open(&options, &engine, &error), KVF_OK);
    assert_memory_equal(kvf_mooncake_segment_name(engine), "a.name:", 7);
    kvf_mooncake_close(engine);
    assert_true(resolver_let_go());
}

static atomic_bool stop;

static void *stop_once_it_hangs(void *wake_fd)
{
    assert_true(resolver_await_hanging(1));
    atomic_store(&stop, true);
    eventfd_write(*(int *)wake_fd, 1);
    return NULL;
}

static void a_stop_ends_a_look_up(void **state)
{
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_now_ns() + LONG_NS, .stop = &stop, .wake_fd = wake_fd};
    kvf_mooncake *engine = open_engine(NULL, LONG_NS);
    struct kvfi_moon_segment *segment;
    struct kvf_error error;
    pthread_t stopper;

    (void)state;
    resolver_hang();
    atomic_store(&stop, false);
    pthread_create(&stopper, NULL, stop_once_it_hangs, &wake_fd);
    assert_int_equal(kvfi_moon_acquire_named(engine, "hang:1", &limit, &segment, &error), KVF_ERR_CANCELLED);
    pthread_join(stopper, NULL);
    kvf_mooncake_close(engine);
    close(wake_fd);
    assert_true(resolver_let_go());
}

/* Of a host's two addresses the first one is silent: it takes half of the time. */
static void an_address_that_is_silent(void **state)
{
    kvf_mooncake *engine = open_engine(NULL, LONG_NS), *peer = open_engine("127.0.0.1", LONG_NS);
    int port = kvf_mooncake_rpc_port(peer), silent = listen_at("127.0.0.2", port, 0, &port), fds[16];
    size_t count = fill_queue("127.0.0.2", port, fds, 16);
    char name[KVF_MOONCAKE_NAME_BYTES];
    struct kvf_error error;
    int64_t segment;

    (void)state;
    resolver_hang();
    assert_true(count < 16);
    snprintf(name, sizeof name, "127.0.0.2:%d", port);
    assert_int_equal(kvf_mooncake_open_segment(engine, name, SHORT_NS, &segment, &error), KVF_ERR_TIMEOUT);
    snprintf(name, sizeof name, "two:%d", port);
    if (kvf_mooncake_open_segment(engine, name, 4 * KVFI_SECOND, &segment, &error) != KVF_OK)
        fail_msg("%s", error.text);
    for (size_t i = 0; i < count; i++) close(fds[i]);
    close(silent);
    kvf_mooncake_close(engine);
    kvf_mooncake_close(peer);
}

/* The other side of a handshake that says little and then nothing. */
struct mumbler {
    int listener, fd;
    size_t bytes;
};

static void *mumble(void *context)
{
    static const char answer[64] = {50}; /* a length of 50, and zeros */
    struct mumbler *mumbler = context;

    mumbler->fd = accept(mumbler->listener, NULL, NULL);
    if (send(mumbler->fd, answer, mumbler->bytes, MSG_NOSIGNAL) != (ssize_t)mumbler->bytes) return mumbler;
    return NULL;
}

/* However long the caller would wait. */
static void handshakes_that_stall(void **state)
{
    static const struct { const char *name; size_t bytes; } rows[] = {{"nothing", 0}, {"half a length", 4},
                                                                      {"half a body", 30}};
    kvf_mooncake *engine = open_engine(NULL, SHORT_NS);
    struct mumbler mumbler;
    int port, listener = listen_at("127.0.0.1", 0, 8, &port);
    char name[KVF_MOONCAKE_NAME_BYTES];
    struct kvf_error error;
    int64_t segment;

    (void)state;
    snprintf(name, sizeof name, "127.0.0.1:%d", port);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t began_ns = kvfi_now_ns();
        pthread_t thread;
        void *failed;

        print_message("%s\n", rows[i].name);
        mumbler = (struct mumbler){.listener = listener, .bytes = rows[i].bytes};
        pthread_create(&thread, NULL, mumble, &mumbler);
        assert_int_equal(kvf_mooncake_open_segment(engine, name, LONG_NS, &segment, &error), KVF_ERR_TIMEOUT);
        assert_true(kvfi_now_ns() - began_ns < LONG_NS / 2);
        pthread_join(thread, &failed);
        assert_null(failed);
        close(mumbler.fd);
    }
    close(listener);
    kvf_mooncake_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_that_hang), cmocka_unit_test(hosts_to_listen_on),
                                       cmocka_unit_test(a_stop_ends_a_look_up),
                                       cmocka_unit_test(an_address_that_is_silent),
                                       cmocka_unit_test(handshakes_that_stall)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
