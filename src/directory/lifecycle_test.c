/* SPDX-License-Identifier: Apache-2.0 */
/* A directory's port, from open to close: who has it when, and that nobody keeps it. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "directory/http_kit.h"
#include "kvferry/directory.h"

static enum kvf_status open_at(int port, kvf_directory **out, struct kvf_error *error)
{
    struct kvf_directory_options options;
    char listen[32];

    snprintf(listen, sizeof listen, "127.0.0.1:%d", port);
    kvf_directory_options_init(&options, sizeof options);
    options.listen = listen;
    options.flags = KVF_DIRECTORY_VLLM_BOOTSTRAP;
    return kvf_directory_open(&options, out, error);
}

static kvf_directory *open_well(int port)
{
    kvf_directory *directory = NULL;
    struct kvf_error error;

    if (open_at(port, &directory, &error) != KVF_OK) fail_msg("%s", error.text);
    return directory;
}

static int port_of(const kvf_directory *directory)
{
    return (int)strtol(strrchr(kvf_directory_url(directory), ':') + 1, NULL, 10);
}

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/** A listener on that port (0 = any), or -1. */
static int listen_at(int port)
{
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 1) == 0)
        return fd;
    close(fd);
    return -1;
}

static int port_of_fd(int fd)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;

    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    return ntohs(address.sin_port);
}

static void bootstrap_server_occupied_port_raises_to_caller(void **state)
{
    int other = listen_at(0);
    kvf_directory *directory = NULL;
    struct kvf_error error;

    (void)state;
    assert_true(other >= 0);
    assert_int_equal(open_at(port_of_fd(other), &directory, &error), KVF_ERR_ADDRESS_IN_USE);
    assert_null(directory);
    assert_non_null(strstr(error.text, "is in use"));
    close(other);
}

static void bootstrap_server_retains_and_releases_assigned_port(void **state)
{
    kvf_directory *directory = open_well(0);
    int port = port_of(directory), other;

    (void)state;
    assert_true(port > 0);
    assert_int_equal(listen_at(port), -1);
    kvf_directory_close(directory);
    other = listen_at(port);
    assert_true(other >= 0);
    close(other);
}

/** The listening socket takes the last descriptor that is allowed: serving cannot start. */
static void bootstrap_server_startup_failure_releases_port(void **state)
{
    int probe = listen_at(0), port = port_of_fd(probe);
    struct rlimit before, less;
    kvf_directory *directory = NULL;
    struct kvf_error error;
    enum kvf_status status;

    (void)state;
    close(probe);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    less = before;
    less.rlim_cur = (rlim_t)probe + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
    status = open_at(port, &directory, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, KVF_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "cannot start serving"));
    assert_null(directory);
    probe = listen_at(port);
    assert_true(probe >= 0);
    close(probe);
}

/** There is no state between open and closed: while one serves nobody else does, and once close returned, even with
 *  clients that are still connected, the port is free and what was registered is gone. */
static void bootstrap_server_rejects_stale_started_state(void **state)
{
    static const char body[] = "{\"engine_id\":\"e\",\"dp_rank\":0,\"tp_rank\":0,\"pp_rank\":0,\"addr\":\"tcp://h:1\"}";
    static const char query[] = "GET /query HTTP/1.1\r\nHost: h\r\n\r\n";
    kvf_directory *first = open_well(0), *second = NULL;
    int port = port_of(first), idle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = loopback(port);
    struct kvf_error error;
    char request[400], *answer;
    size_t answer_bytes;

    (void)state;
    snprintf(request, sizeof request, "POST /register HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s", sizeof body - 1, body);
    answer = http_kit_relay(kvf_directory_url(first), request, strlen(request), &answer_bytes);
    assert_non_null(strstr(answer, "{\"status\":\"ok\"}"));
    free(answer);
    assert_int_equal(connect(idle, (struct sockaddr *)&address, sizeof address), 0);
    assert_true(http_kit_send(idle, query, sizeof query - 5)); /* half a request */
    assert_int_equal(open_at(port, &second, &error), KVF_ERR_ADDRESS_IN_USE);
    kvf_directory_close(first);
    second = open_well(port);
    assert_int_equal(port_of(second), port);
    answer = http_kit_relay(kvf_directory_url(second), query, sizeof query - 1, &answer_bytes);
    assert_string_equal(strstr(answer, "\r\n\r\n") + 4, "{}");
    free(answer);
    close(idle);
    kvf_directory_close(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bootstrap_server_occupied_port_raises_to_caller),
        cmocka_unit_test(bootstrap_server_retains_and_releases_assigned_port),
        cmocka_unit_test(bootstrap_server_startup_failure_releases_port),
        cmocka_unit_test(bootstrap_server_rejects_stale_started_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
