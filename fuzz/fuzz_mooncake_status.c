/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer answers to an initiator: the input comes through a socket pair, in answer to three requests. Reads place
 * nothing outside of their ranges, all that is done was answered in full. The first byte chooses reads or writes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/mooncake/pipe.h"

enum { EACH = 100, SPACE = 50, REQUESTS = 3, MAX_INPUT = 60000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void answer(struct kvfi_moon_pipe *pipe, struct kvfi_moon_job *job, const uint8_t *data, size_t size,
                   const int fds[2])
{
    enum kvfi_moon_flow flow;
    bool moved = false;

    (void)!kvfi_moon_pipe_send(pipe, fds[0], job);
    if (send(fds[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size) return;
    shutdown(fds[1], SHUT_WR);
    do flow = kvfi_moon_pipe_receive(pipe, fds[0], job, &moved);
    while (flow == KVFI_MOON_FLOWS && pipe->count > 0);
    check(job->done <= REQUESTS && (int64_t)pipe->count == REQUESTS - job->done);
    check(size >= (size_t)job->done * (8 + (job->is_write ? 0 : EACH)));
    check(flow != KVFI_MOON_FLOWS || pipe->count == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char memory[REQUESTS * (EACH + SPACE)];
    struct kvfi_moon_pipe *pipe = malloc(sizeof *pipe);
    struct kvfi_moon_job *job = calloc(1, sizeof *job);
    int fds[2] = {-1, -1};

    if (size == 0 || size > MAX_INPUT || !pipe || !job || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) goto done;
    memset(memory, 0, sizeof memory);
    job->is_write = (data[0] & 1) != 0;
    kvfi_moon_pipe_begin(pipe);
    for (size_t i = 0; i < REQUESTS; i++) {
        const struct kvfi_moon_item item = {.index = i, .local = (uint64_t)(uintptr_t)memory + i * (EACH + SPACE),
                                            .remote = 4096, .bytes = EACH};

        kvfi_moon_pipe_add(pipe, &item, job->is_write);
    }
    answer(pipe, job, data + 1, size - 1, fds);
    for (size_t i = 0; i < sizeof memory; i++) check(i % (EACH + SPACE) < EACH || memory[i] == 0);
done:
    if (fds[0] >= 0) close(fds[0]);
    if (fds[1] >= 0) close(fds[1]);
    free(pipe);
    free(job);
    return 0;
}
