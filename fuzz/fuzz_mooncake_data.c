/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of a data connection, into an engine that has one buffer between bytes that nobody may write: whatever
 * comes, they stay, and the connection ends once the client has sent all and reads. A second buffer is guarded; its
 * blocks with odd numbers are granted, and the others stay. In the input, every 8 bytes "@@@@@@@@" stand for the
 * address of the first buffer, and "########" for that of block 1 in the second. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvferry/mooncake.h"

enum { GUARD = 4096, BUFFER = 4096, MAX_INPUT = 65536, BLOCK = 64 };

static unsigned char memory[GUARD + BUFFER + GUARD], guarded[BUFFER];
static kvf_mooncake *engine;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void open_engine(void)
{
    const struct kvf_mooncake_buffer buffers[] = {{(uint64_t)(uintptr_t)memory + GUARD, BUFFER},
                                                  {(uint64_t)(uintptr_t)guarded, BUFFER}};
    const struct kvf_mooncake_grid grid = {(uint64_t)(uintptr_t)guarded, BLOCK, BLOCK};
    kvf_mooncake_guard *guard;

    if (engine) return;
    check(kvf_mooncake_open(NULL, &engine, NULL) == KVF_OK);
    check(kvf_mooncake_register(engine, buffers, 2, NULL) == KVF_OK);
    check(kvf_mooncake_guard_open(engine, &grid, 1, BUFFER / BLOCK, &guard, NULL) == KVF_OK);
    for (int64_t i = 1; i < BUFFER / BLOCK; i += 2)
        check(kvf_mooncake_guard_grant(guard, &i, 1, NULL) == KVF_OK);
}

static void place_address(uint8_t *bytes, size_t size)
{
    const uint64_t open = (uint64_t)(uintptr_t)memory + GUARD, other = (uint64_t)(uintptr_t)guarded + BLOCK;

    for (size_t i = 0; i + 8 <= size; i++) {
        if (memcmp(bytes + i, "@@@@@@@@", 8) == 0) memcpy(bytes + i, &open, 8);
        else if (memcmp(bytes + i, "########", 8) == 0) memcpy(bytes + i, &other, 8);
    }
}

static void exchange(int fd, const uint8_t *bytes, size_t size)
{
    uint8_t answers[4096];
    size_t at = 0;
    ssize_t got = 1;

    while (at < size) {
        ssize_t sent = send(fd, bytes + at, size - at, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent > 0) at += (size_t)sent;
        else if (recv(fd, answers, sizeof answers, MSG_DONTWAIT) <= 0) {
            struct pollfd wait = {.fd = fd, .events = POLLIN | POLLOUT};

            check(poll(&wait, 1, 10000) > 0);
            if (wait.revents & (POLLERR | POLLHUP)) return;
        }
    }
    shutdown(fd, SHUT_WR);
    while (got > 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};

        check(poll(&wait, 1, 10000) > 0);
        got = recv(fd, answers, sizeof answers, 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint8_t *bytes = malloc(size + 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    open_engine();
    address.sin_port = htons((uint16_t)kvf_mooncake_data_port(engine));
    if (bytes && fd >= 0 && size <= MAX_INPUT && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        memcpy(bytes, data, size);
        place_address(bytes, size);
        exchange(fd, bytes, size);
    }
    for (size_t i = 0; i < GUARD; i++) check(memory[i] == 0 && memory[GUARD + BUFFER + i] == 0);
    for (size_t i = 0; i < BUFFER; i++) check(i / BLOCK % 2 == 1 || guarded[i] == 0);
    if (fd >= 0) close(fd);
    free(bytes);
    return 0;
}
