/* SPDX-License-Identifier: Apache-2.0 */
/* The raw TCP copies that kvferry is compared with. */
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct stream {
    const struct bench_runs *runs;
    const char *src;
    int64_t staging_bytes; /* 0: vectored */
    int fd;
};

static void set_cubic(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0) {
        bench_fail("no cubic congestion control: %s", strerror(errno));
    }
}

static void connect_pair(int *sender, int *receiver)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    set_cubic(listener);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0) {
        bench_fail("no listening socket: %s", strerror(errno));
    }
    *sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    set_cubic(*sender);
    if (connect(*sender, (struct sockaddr *)&address, length) != 0) {
        bench_fail("connect: %s", strerror(errno));
    }
    *receiver = accept(listener, NULL, NULL);
    close(listener);
}

static void send_all(int fd, const char *bytes, int64_t count)
{
    while (count > 0) {
        ssize_t done = send(fd, bytes, (size_t)count, MSG_NOSIGNAL);
        if (done <= 0) {
            bench_fail("send: %s", strerror(errno));
        }
        bytes += done;
        count -= done;
    }
}

static void receive_all(int fd, char *bytes, int64_t count)
{
    while (count > 0) {
        ssize_t done = recv(fd, bytes, (size_t)count, 0);
        if (done <= 0) {
            bench_fail("recv: %s", done == 0 ? "closed" : strerror(errno));
        }
        bytes += done;
        count -= done;
    }
}

/* Runs of a block that lie side by side are one piece. */
static bool src_is_dense(const struct bench_runs *runs)
{
    return runs->src_stride_bytes == runs->run_bytes;
}

static void *send_gathered(void *argument)
{
    const struct stream *stream = argument;
    const struct bench_runs *runs = stream->runs;
    char *staging = malloc((size_t)stream->staging_bytes);
    int64_t used = 0;

    for (int64_t block = 0; staging != NULL && block < runs->blocks; block++) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            if (used + runs->run_bytes > stream->staging_bytes) {
                send_all(stream->fd, staging, used);
                used = 0;
            }
            memcpy(staging + used, bench_src_run(runs, stream->src, block, run), (size_t)runs->run_bytes);
            used += runs->run_bytes;
        }
    }
    send_all(stream->fd, staging, used);
    free(staging);
    return NULL;
}

static void receive_scattered(const struct bench_runs *runs, char *dst, int fd, int64_t staging_bytes)
{
    char *staging = malloc((size_t)staging_bytes);
    int64_t total = runs->blocks * runs->runs_per_block, per_staging = staging_bytes / runs->run_bytes;

    for (int64_t first = 0; staging != NULL && first < total; first += per_staging) {
        int64_t count = total - first < per_staging ? total - first : per_staging;
        receive_all(fd, staging, count * runs->run_bytes);
        for (int64_t i = 0; i < count; i++) {
            int64_t block = (first + i) / runs->runs_per_block, run = (first + i) % runs->runs_per_block;
            memcpy(bench_dst_run(runs, dst, block, run), staging + i * runs->run_bytes, (size_t)runs->run_bytes);
        }
    }
    free(staging);
}

/* Moves all of `count` pieces through writev or readv, whatever each call takes. */
static void move_vector(int fd, struct iovec *pieces, int count, ssize_t (*call)(int, const struct iovec *, int))
{
    int first = 0;
    while (first < count) {
        ssize_t done = call(fd, pieces + first, count - first);
        if (done <= 0) {
            bench_fail("writev or readv: %s", done == 0 ? "closed" : strerror(errno));
        }
        while (first < count && (size_t)done >= pieces[first].iov_len) {
            done -= (ssize_t)pieces[first].iov_len;
            first++;
        }
        if (first < count) {
            pieces[first].iov_base = (char *)pieces[first].iov_base + done;
            pieces[first].iov_len -= (size_t)done;
        }
    }
}

static void *send_vectored(void *argument)
{
    const struct stream *stream = argument;
    const struct bench_runs *runs = stream->runs;
    struct iovec pieces[IOV_MAX];
    int count = 0;
    bool dense = src_is_dense(runs);

    for (int64_t block = 0; block < runs->blocks; block++) {
        int64_t steps = dense ? 1 : runs->runs_per_block;
        for (int64_t run = 0; run < steps; run++) {
            pieces[count].iov_base = (void *)bench_src_run(runs, stream->src, block, run);
            pieces[count].iov_len = (size_t)(runs->run_bytes * (dense ? runs->runs_per_block : 1));
            if (++count == IOV_MAX) {
                move_vector(stream->fd, pieces, count, writev);
                count = 0;
            }
        }
    }
    move_vector(stream->fd, pieces, count, writev);
    return NULL;
}

static void receive_vectored(const struct bench_runs *runs, char *dst, int fd)
{
    struct iovec pieces[IOV_MAX];
    int count = 0;

    for (int64_t block = 0; block < runs->blocks; block++) {
        for (int64_t run = 0; run < runs->runs_per_block; run++) {
            pieces[count].iov_base = bench_dst_run(runs, dst, block, run);
            pieces[count].iov_len = (size_t)runs->run_bytes;
            if (++count == IOV_MAX) {
                move_vector(fd, pieces, count, readv);
                count = 0;
            }
        }
    }
    move_vector(fd, pieces, count, readv);
}

static double run_pair(struct stream *stream, void *(*sender)(void *), char *dst)
{
    int receiver;
    pthread_t thread;

    connect_pair(&stream->fd, &receiver);
    int64_t started_ns = bench_now_ns();
    if (pthread_create(&thread, NULL, sender, stream) != 0) {
        bench_fail("no thread");
    }
    if (stream->staging_bytes > 0) {
        receive_scattered(stream->runs, dst, receiver, stream->staging_bytes);
    } else {
        receive_vectored(stream->runs, dst, receiver);
    }
    double seconds = (double)(bench_now_ns() - started_ns) / 1e9;
    pthread_join(thread, NULL);
    close(stream->fd);
    close(receiver);
    return seconds;
}

double bench_tcp_gather(const struct bench_runs *runs, char *dst, const char *src, int64_t staging_bytes)
{
    int64_t whole = staging_bytes / runs->run_bytes * runs->run_bytes;
    struct stream stream = {.runs = runs, .src = src, .staging_bytes = whole};
    return run_pair(&stream, send_gathered, dst);
}

double bench_tcp_vectored(const struct bench_runs *runs, char *dst, const char *src)
{
    struct stream stream = {.runs = runs, .src = src};
    return run_pair(&stream, send_vectored, dst);
}
