/* SPDX-License-Identifier: Apache-2.0 */
/* Many clients at a bootstrap registry, with a connection for each request as stock workers have it.
 *
 *   vllm-crowd serve                    kvferry's own; prints its port, then serves until standard input ends
 *   vllm-crowd load PORT CLIENTS COUNT  COUNT registrations of different workers, 8 TP ranks an engine, then COUNT
 *                                       queries -> p50, p99 in microseconds of each; fails when one is not answered 200
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "kit.h"
#include "kvferry/directory.h"

enum { RANKS = 8, MOST_CLIENTS = 256, ANSWER_BYTES = 1 << 20 };

static int serve(void)
{
    struct kvf_directory_options options;
    kvf_directory *directory = NULL;
    struct kvf_error error;

    kvf_directory_options_init(&options, sizeof options);
    options.flags = KVF_DIRECTORY_VLLM_BOOTSTRAP;
    vllm_check(kvf_directory_open(&options, &directory, &error), &error, "directory");
    printf("%s\n", strrchr(kvf_directory_url(directory), ':') + 1);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    kvf_directory_close(directory);
    return 0;
}

/* ---- clients --------------------------------------------------------------------------------------------------- */

struct client {
    pthread_t thread;
    int port;
    bool queries;
    int64_t first, count;
    double *seconds;
};

/* Sends a request and reads until the other side closes. */
static size_t exchange(int port, const char *request, size_t bytes, char *answer)
{
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t got = 0;
    ssize_t more;

    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) != 0)
        bench_fail("connect to the registry: %s", strerror(errno));
    if (send(fd, request, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        bench_fail("send to the registry: %s", strerror(errno));
    while (got < ANSWER_BYTES - 1 && (more = recv(fd, answer + got, ANSWER_BYTES - 1 - got, 0)) != 0) {
        if (more < 0)
            bench_fail("receive from the registry: %s", strerror(errno));
        got += (size_t)more;
    }
    close(fd);
    answer[got] = '\0';
    return got;
}

static size_t write_register(char *out, size_t room, int64_t number)
{
    char body[256];
    int length = snprintf(body, sizeof body, "{\"engine_id\":\"engine-%" PRId64 "\",\"dp_rank\":%" PRId64
                          ",\"tp_rank\":%" PRId64 ",\"pp_rank\":0,\"addr\":\"tcp://192.0.2.1:%" PRId64 "\"}",
                          number / RANKS, number / RANKS, number % RANKS, 20000 + number);

    return (size_t)snprintf(out, room, "POST /register HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                            "Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
                            length, body);
}

static void *run_client(void *argument)
{
    struct client *client = argument;
    char *answer = malloc(ANSWER_BYTES), request[1024];

    for (int64_t i = 0; answer != NULL && i < client->count; i++) {
        size_t bytes = client->queries ? (size_t)snprintf(request, sizeof request, "GET /query HTTP/1.1\r\nHost: "
                                                          "127.0.0.1\r\nConnection: close\r\n\r\n")
                                       : write_register(request, sizeof request, client->first + i);
        int64_t started_ns = bench_now_ns();

        exchange(client->port, request, bytes, answer);
        client->seconds[client->first + i] = (double)(bench_now_ns() - started_ns) / 1e9;
        if (strncmp(answer, "HTTP/1.1 200 ", 13) != 0)
            bench_fail("the registry answered \"%.60s\"", answer);
        if (client->queries && strstr(answer, "\"tcp://192.0.2.1:20000\"") == NULL)
            bench_fail("the registry forgot its first worker");
    }
    free(answer);
    return NULL;
}

static void load(int port, bool queries, int64_t clients, int64_t count)
{
    struct client all[MOST_CLIENTS];
    double *seconds = calloc((size_t)count, sizeof *seconds);
    struct bench_samples samples;

    for (int64_t i = 0, first = 0; i < clients; i++) {
        int64_t own = count / clients + (i < count % clients);

        all[i] = (struct client){.port = port, .queries = queries, .first = first, .count = own, .seconds = seconds};
        first += own;
        if (pthread_create(&all[i].thread, NULL, run_client, &all[i]) != 0)
            bench_fail("no thread");
    }
    for (int64_t i = 0; i < clients; i++)
        pthread_join(all[i].thread, NULL);
    samples = bench_summary(seconds, (size_t)count);
    printf("%.0f %.0f%s", samples.median_s * 1e6, seconds[count * 99 / 100] * 1e6, queries ? "\n" : " ");
    free(seconds);
}

int main(int argc, char **argv)
{
    int64_t port = argc == 5 ? strtoll(argv[2], NULL, 10) : 0, clients = argc == 5 ? strtoll(argv[3], NULL, 10) : 0;
    int64_t count = argc == 5 ? strtoll(argv[4], NULL, 10) : 0;

    if (argc == 2 && strcmp(argv[1], "serve") == 0)
        return serve();
    if (argc != 5 || strcmp(argv[1], "load") != 0 || clients < 1 || clients > MOST_CLIENTS || count < clients)
        bench_fail("usage: vllm-crowd serve | vllm-crowd load PORT CLIENTS COUNT");
    load((int)port, false, clients, count);
    load((int)port, true, clients, count);
    return 0;
}
