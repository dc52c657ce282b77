/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/http_kit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST_BYTES 65536

struct guest {
    struct guest *next;
    struct http_kit *kit;
    pthread_t thread;
    int fd;
};

struct http_kit {
    http_kit_serve *serve;
    void *context;
    int fd, stop_fd;
    pthread_t thread;
    struct guest *guests; /* of the accepting thread until close */
    atomic_int requests;
    char url[64];
};

bool http_kit_send(int fd, const void *bytes, size_t byte_count)
{
    const char *at = bytes;

    while (byte_count > 0) {
        ssize_t sent = send(fd, at, byte_count, MSG_NOSIGNAL);

        if (sent <= 0) return false;
        at += sent;
        byte_count -= (size_t)sent;
    }
    return true;
}

void http_kit_answer(int fd, int code, const char *body)
{
    char head[160];
    int head_bytes = snprintf(head, sizeof head, "HTTP/1.1 %d X\r\ncontent-type: application/json\r\n"
                              "content-length: %zu\r\nconnection: close\r\n\r\n", code, strlen(body));

    if (http_kit_send(fd, head, (size_t)head_bytes)) http_kit_send(fd, body, strlen(body));
}

void http_kit_stall(struct http_kit *kit, int ms)
{
    struct pollfd stop = {.fd = kit->stop_fd, .events = POLLIN};

    poll(&stop, 1, ms);
}

/** Whether all of a message is there: its head, and as much after it as that says. */
static bool is_whole(const char *message, size_t bytes)
{
    const char *end = strstr(message, "\r\n\r\n"), *length = strcasestr(message, "content-length:");

    return end && (!length || length > end || bytes >= (size_t)(end + 4 - message) + strtoul(length + 15, NULL, 10));
}

char *http_kit_relay(const char *url, const char *request, size_t request_bytes, size_t *answer_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)strtol(strrchr(url, ':') + 1, NULL, 10))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char *answer = calloc(1, MOST_BYTES);
    ssize_t got = 0;

    *answer_bytes = 0;
    if (!answer || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) abort();
    http_kit_send(fd, request, request_bytes);
    while (!is_whole(answer, *answer_bytes) && *answer_bytes < MOST_BYTES - 1 &&
           (got = recv(fd, answer + *answer_bytes, MOST_BYTES - 1 - *answer_bytes, 0)) > 0)
        *answer_bytes += (size_t)got;
    close(fd);
    return answer;
}

static void *serve_guest(void *context)
{
    struct guest *guest = context;
    char *request = calloc(1, MOST_BYTES);
    size_t bytes = 0;
    ssize_t got = 0;

    if (!request) abort();
    while (!is_whole(request, bytes) && bytes < MOST_BYTES - 1 &&
           (got = recv(guest->fd, request + bytes, MOST_BYTES - 1 - bytes, 0)) > 0)
        bytes += (size_t)got;
    if (is_whole(request, bytes))
        guest->kit->serve(guest->kit, guest->kit->context, guest->fd, atomic_fetch_add(&guest->kit->requests, 1) + 1,
                          request, bytes);
    shutdown(guest->fd, SHUT_RDWR);
    free(request);
    return NULL;
}

static void *accept_all(void *context)
{
    struct http_kit *kit = context;
    struct pollfd fds[2] = {{.fd = kit->fd, .events = POLLIN}, {.fd = kit->stop_fd, .events = POLLIN}};

    while (poll(fds, 2, -1) > 0 && !fds[1].revents) {
        int fd = accept(kit->fd, NULL, NULL);
        struct guest *guest = fd < 0 ? NULL : calloc(1, sizeof *guest);

        if (!guest) continue;
        *guest = (struct guest){.next = kit->guests, .kit = kit, .fd = fd};
        kit->guests = guest;
        if (pthread_create(&guest->thread, NULL, serve_guest, guest) != 0) abort();
    }
    return NULL;
}

struct http_kit *http_kit_open(http_kit_serve *serve, void *context)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    struct http_kit *kit = calloc(1, sizeof *kit);

    if (!kit) abort();
    kit->serve = serve;
    kit->context = context;
    kit->stop_fd = eventfd(0, EFD_CLOEXEC);
    kit->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(kit->fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(kit->fd, 64) != 0 ||
        getsockname(kit->fd, (struct sockaddr *)&address, &bytes) != 0)
        abort();
    snprintf(kit->url, sizeof kit->url, "http://127.0.0.1:%d", ntohs(address.sin_port));
    if (pthread_create(&kit->thread, NULL, accept_all, kit) != 0) abort();
    return kit;
}

const char *http_kit_url(const struct http_kit *kit)
{
    return kit->url;
}

int http_kit_requests(struct http_kit *kit)
{
    return atomic_load(&kit->requests);
}

void http_kit_close(struct http_kit *kit)
{
    const uint64_t one = 1;

    if (write(kit->stop_fd, &one, sizeof one) < 0) abort();
    pthread_join(kit->thread, NULL);
    while (kit->guests) {
        struct guest *guest = kit->guests;

        kit->guests = guest->next;
        shutdown(guest->fd, SHUT_RDWR);
        pthread_join(guest->thread, NULL);
        close(guest->fd);
        free(guest);
    }
    close(kit->fd);
    close(kit->stop_fd);
    free(kit);
}
