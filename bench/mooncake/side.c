/* SPDX-License-Identifier: Apache-2.0 */
/* One side of the Mooncake benchmark: kvferry's engine, or a bare TCP connection, driven by lines of numbers.
 *
 *   side kvferry BYTES       an engine with so many bytes registered
 *   side raw BYTES           a bare connection: cubic, writes of 1 MiB
 *
 * It prints where it is (SEGMENT ADDRESS, or PORT), then answers each line with one:
 *
 *   connect WHERE ADDRESS    -> ok
 *   run BLOCK COUNT MS       batches of COUNT blocks, shuffled on both sides, again and again for MS; once at least
 *                            -> BYTES SECONDS
 *   threads N BLOCK COUNT    N threads at once, each one batch of COUNT blocks of its own -> SECONDS
 *   small BYTES COUNT        single writes one after the other -> median in nanoseconds
 *   peers COUNT              descriptors fetched one after the other -> SECONDS
 *   crowd COUNT              COUNT engines that never met it fetch the descriptor at once -> SECONDS
 *   stall COUNT              COUNT connections that begin a handshake and go no further, kept open -> ok
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "kvferry/mooncake.h"

#define SECOND INT64_C(1000000000)
#define RAW_WRITE ((int64_t)1 << 20)

static struct bench_memory memory;

/* ---- kvferry --------------------------------------------------------------------------------------------------- */

static kvf_mooncake *engine;
static char name[KVF_MOONCAKE_NAME_BYTES];
static uint64_t remote;
static int64_t segment;

static void check(enum kvf_status status, const struct kvf_error *error)
{
    if (status != KVF_OK)
        bench_fail("%s", error->text);
}

static void kvferry_open(void)
{
    struct kvf_error error = {.text = ""};
    struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)memory.address, (uint64_t)memory.bytes};
    check(kvf_mooncake_open(NULL, &engine, &error), &error);
    check(kvf_mooncake_register(engine, &buffer, 1, &error), &error);
    printf("%s %" PRIu64 "\n", kvf_mooncake_segment_name(engine), buffer.address);
}

static void kvferry_connect(void)
{
    struct kvf_error error = {.text = ""};
    check(kvf_mooncake_open_segment(engine, name, 10 * SECOND, &segment, &error), &error);
    printf("ok\n");
}

static void kvferry_run(int64_t block, int64_t count, int64_t limit_ns)
{
    struct kvf_error error = {.text = ""};
    struct kvf_mooncake_range *ranges = calloc((size_t)count, sizeof(*ranges));
    int64_t *here = bench_shuffled((size_t)count, 1), *there = bench_shuffled((size_t)count, 2), batches = 0;
    for (int64_t i = 0; i < count; i++)
        ranges[i] = (struct kvf_mooncake_range){(uint64_t)(uintptr_t)memory.address + (uint64_t)(here[i] * block),
                                                remote + (uint64_t)(there[i] * block), (uint64_t)block};
    int64_t begin = bench_now_ns(), now = begin;
    while (batches == 0 || now - begin < limit_ns) {
        check(kvf_mooncake_write(engine, segment, ranges, (size_t)count, 0, 60 * SECOND, NULL, &error), &error);
        batches++;
        now = bench_now_ns();
    }
    printf("%" PRId64 " %.9f\n", batches * count * block, (double)(now - begin) / 1e9);
    free(here);
    free(there);
    free(ranges);
}

struct worker {
    pthread_t thread;
    int64_t first, block, count;
};

static void *run_worker(void *context)
{
    const struct worker *worker = context;
    struct kvf_error error = {.text = ""};
    struct kvf_mooncake_range *ranges = calloc((size_t)worker->count, sizeof(*ranges));
    for (int64_t i = 0; i < worker->count; i++) {
        uint64_t at = (uint64_t)((worker->first + i) * worker->block);
        ranges[i] = (struct kvf_mooncake_range){(uint64_t)(uintptr_t)memory.address + at, remote + at,
                                                (uint64_t)worker->block};
    }
    check(kvf_mooncake_write(engine, segment, ranges, (size_t)worker->count, 0, 60 * SECOND, NULL, &error), &error);
    free(ranges);
    return NULL;
}

static void kvferry_threads(int64_t threads, int64_t block, int64_t count)
{
    struct worker *workers = calloc((size_t)threads, sizeof(*workers));
    int64_t begin = bench_now_ns();
    for (int64_t i = 0; i < threads; i++) {
        workers[i] = (struct worker){.first = i * count, .block = block, .count = count};
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0)
            bench_fail("no thread");
    }
    for (int64_t i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    printf("%.9f\n", (double)(bench_now_ns() - begin) / 1e9);
    free(workers);
}

static int by_value(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static void print_median(int64_t *took_ns, int64_t count)
{
    qsort(took_ns, (size_t)count, sizeof(*took_ns), by_value);
    printf("%" PRId64 "\n", took_ns[count / 2]);
}

static void kvferry_small(int64_t bytes, int64_t count)
{
    struct kvf_error error = {.text = ""};
    struct kvf_mooncake_range range = {(uint64_t)(uintptr_t)memory.address, remote, (uint64_t)bytes};
    int64_t *took_ns = calloc((size_t)count, sizeof(*took_ns));
    for (int64_t i = 0; i < count; i++) {
        int64_t begin = bench_now_ns();
        check(kvf_mooncake_write(engine, segment, &range, 1, 0, 60 * SECOND, NULL, &error), &error);
        took_ns[i] = bench_now_ns() - begin;
    }
    print_median(took_ns, count);
    free(took_ns);
}

static void kvferry_peers(int64_t count)
{
    struct kvf_error error = {.text = ""};
    int64_t begin = bench_now_ns();
    for (int64_t i = 0; i < count; i++)
        check(kvf_mooncake_refresh_segment(engine, segment, 10 * SECOND, &error), &error);
    printf("%.9f\n", (double)(bench_now_ns() - begin) / 1e9);
}

struct newcomer {
    pthread_t thread;
    kvf_mooncake *engine;
    pthread_barrier_t *start;
};

static void *meet(void *context)
{
    struct newcomer *newcomer = context;
    struct kvf_error error = {.text = ""};
    int64_t met;
    pthread_barrier_wait(newcomer->start);
    check(kvf_mooncake_open_segment(newcomer->engine, name, 60 * SECOND, &met, &error), &error);
    return NULL;
}

static void kvferry_crowd(int64_t count)
{
    struct kvf_mooncake_options options;
    struct newcomer *crowd = calloc((size_t)count, sizeof(*crowd));
    pthread_barrier_t start;
    struct kvf_error error = {.text = ""};
    kvf_mooncake_options_init(&options, sizeof(options));
    options.initiator_only = 1;
    pthread_barrier_init(&start, NULL, (unsigned)count + 1);
    for (int64_t i = 0; i < count; i++) {
        crowd[i].start = &start;
        check(kvf_mooncake_open(&options, &crowd[i].engine, &error), &error);
        if (pthread_create(&crowd[i].thread, NULL, meet, &crowd[i]) != 0)
            bench_fail("no thread number %" PRId64, i);
    }
    pthread_barrier_wait(&start);
    int64_t begin = bench_now_ns();
    for (int64_t i = 0; i < count; i++)
        pthread_join(crowd[i].thread, NULL);
    printf("%.9f\n", (double)(bench_now_ns() - begin) / 1e9);
    for (int64_t i = 0; i < count; i++)
        kvf_mooncake_close(crowd[i].engine);
    pthread_barrier_destroy(&start);
    free(crowd);
}

static void kvferry_stall(int64_t count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)strtol(strrchr(name, ':') + 1, NULL, 10))};
    for (int64_t i = 0; i < count; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || send(fd, "\1", 1, 0) != 1)
            bench_fail("stalled client %" PRId64 ": %s", i, strerror(errno));
    }
    printf("ok\n");
}

/* ---- a bare connection ----------------------------------------------------------------------------------------- */

static int link_fd = -1;

static void move_all(int fd, char *bytes, int64_t count, bool out)
{
    while (count > 0) {
        size_t piece = (size_t)(count < RAW_WRITE ? count : RAW_WRITE);
        ssize_t done = out ? send(fd, bytes, piece, MSG_NOSIGNAL) : recv(fd, bytes, piece, 0);
        if (done <= 0)
            bench_fail("%s: %s", out ? "send" : "recv", done == 0 ? "closed" : strerror(errno));
        bytes += done;
        count -= done;
    }
}

static int raw_socket(void)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0)
        bench_fail("no cubic congestion control: %s", strerror(errno));
    return fd;
}

/** Takes messages of a length and so many bytes, and answers each with 8 bytes. */
static void *raw_serve(void *context)
{
    int listener = *(int *)context, fd = accept(listener, NULL, NULL);
    int64_t head[3];
    while (fd >= 0 && recv(fd, head, sizeof(head), MSG_WAITALL) == (ssize_t)sizeof(head)) {
        move_all(fd, memory.address, head[0], false);
        move_all(fd, (char *)head, 8, true);
    }
    return NULL;
}

static void raw_open(void)
{
    static int listener;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    pthread_t thread;
    listener = raw_socket();
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        bench_fail("no listening socket: %s", strerror(errno));
    if (pthread_create(&thread, NULL, raw_serve, &listener) != 0)
        bench_fail("no thread");
    pthread_detach(thread);
    printf("%d 0\n", ntohs(address.sin_port));
}

static void raw_connect(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)strtol(name, NULL, 10));
    link_fd = raw_socket();
    if (connect(link_fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        bench_fail("connect: %s", strerror(errno));
    printf("ok\n");
}

static void raw_message(int64_t bytes)
{
    int64_t head[3] = {bytes, 0, 0};
    move_all(link_fd, (char *)head, sizeof(head), true);
    move_all(link_fd, memory.address, bytes, true);
    move_all(link_fd, (char *)head, 8, false);
}

static void raw_run(int64_t block, int64_t count, int64_t limit_ns)
{
    int64_t begin = bench_now_ns(), now = begin, moved = 0;
    while (moved == 0 || now - begin < limit_ns) {
        raw_message(block * count);
        moved += block * count;
        now = bench_now_ns();
    }
    printf("%" PRId64 " %.9f\n", moved, (double)(now - begin) / 1e9);
}

static void raw_small(int64_t bytes, int64_t count)
{
    int64_t *took_ns = calloc((size_t)count, sizeof(*took_ns));
    char message[24 + 4096];
    memset(message, 0, sizeof(message));
    memcpy(message, &bytes, sizeof(bytes));
    for (int64_t i = 0; i < count; i++) {
        char status[8];
        int64_t begin = bench_now_ns();
        move_all(link_fd, message, 24 + bytes, true);
        move_all(link_fd, status, 8, false);
        took_ns[i] = bench_now_ns() - begin;
    }
    print_median(took_ns, count);
    free(took_ns);
}

int main(int argc, char **argv)
{
    char line[512];
    bool raw = argc == 3 && strcmp(argv[1], "raw") == 0;
    if (argc != 3)
        bench_fail("usage: side kvferry|raw BYTES");
    memory = bench_memory_create(strtoll(argv[2], NULL, 10));
    (raw ? raw_open : kvferry_open)();
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        int64_t a = 0, b = 0, c = 0;
        if (sscanf(line, "connect %271s %" SCNu64, name, &remote) == 2)
            (raw ? raw_connect : kvferry_connect)();
        else if (sscanf(line, "run %" SCNd64 " %" SCNd64 " %" SCNd64, &a, &b, &c) == 3)
            (raw ? raw_run : kvferry_run)(a, b, c * 1000000);
        else if (sscanf(line, "threads %" SCNd64 " %" SCNd64 " %" SCNd64, &a, &b, &c) == 3 && !raw)
            kvferry_threads(a, b, c);
        else if (sscanf(line, "small %" SCNd64 " %" SCNd64, &a, &b) == 2 && a <= 4096)
            (raw ? raw_small : kvferry_small)(a, b);
        else if (sscanf(line, "peers %" SCNd64, &a) == 1 && !raw)
            kvferry_peers(a);
        else if (sscanf(line, "crowd %" SCNd64, &a) == 1 && !raw && a < 1000)
            kvferry_crowd(a);
        else if (sscanf(line, "stall %" SCNd64, &a) == 1 && !raw && a < 1000)
            kvferry_stall(a);
        else
            bench_fail("no such line: %s", line);
        fflush(stdout);
    }
    kvf_mooncake_close(engine);
    bench_memory_destroy(&memory);
    return 0;
}
