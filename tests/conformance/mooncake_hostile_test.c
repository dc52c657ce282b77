/* SPDX-License-Identifier: Apache-2.0 */
/* An engine against raw sockets: clients that misbehave, and peers that answer badly, or close. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvferry/mooncake.h"
#include "sys/clock.h"
#include "transport/mooncake/frame.h"

#define PATIENCE (20 * KVFI_SECOND)

enum { MEMORY_BYTES = 65536 };

static unsigned char memory[MEMORY_BYTES];

static kvf_mooncake *open_engine(const struct kvf_mooncake_options *options)
{
    const struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)memory, sizeof memory};
    kvf_mooncake *engine = NULL;
    struct kvf_error error;

    if (kvf_mooncake_open(options, &engine, &error) != KVF_OK) fail_msg("%s", error.text);
    if (kvf_mooncake_register(engine, &buffer, 1, &error) != KVF_OK) fail_msg("%s", error.text);
    return engine;
}

static struct kvf_mooncake_options options_of(int64_t timeout_ms)
{
    struct kvf_mooncake_options options;

    kvf_mooncake_options_init(&options, sizeof options);
    options.handshake_timeout_ns = options.progress_timeout_ns = timeout_ms * KVFI_MS;
    return options;
}

/* ---- raw clients ------------------------------------------------------------------------------------------------ */

static int dial(int32_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Reads up to the end or `capacity`; -1: nothing came in 20 s. */
static ssize_t read_to_end(int fd, void *bytes, size_t capacity)
{
    size_t at = 0;

    while (at < capacity) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ssize_t got;

        if (poll(&wait, 1, 20000) <= 0) return -1;
        got = recv(fd, (char *)bytes + at, capacity - at, 0);
        if (got <= 0) break;
        at += (size_t)got;
    }
    return (ssize_t)at;
}

static void tell(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
}

static void put_header(uint8_t *out, uint8_t opcode, uint64_t address, uint64_t bytes)
{
    const struct kvfi_moon_header header = {.bytes = bytes, .address = address, .opcode = opcode};

    kvfi_moon_pack_header(&header, out);
}

/* Sends a header, and says what came until the end: bytes, and the code of the status. */
static ssize_t ask_data(int32_t port, uint8_t opcode, uint64_t address, uint64_t bytes, uint32_t *code)
{
    uint8_t header[KVFI_MOON_HEADER_BYTES], answer[64] = {0};
    int fd = dial(port);
    ssize_t got;

    put_header(header, opcode, address, bytes);
    tell(fd, header, sizeof header);
    got = read_to_end(fd, answer, sizeof answer);
    *code = 99;
    if (got == KVFI_MOON_STATUS_BYTES) assert_true(kvfi_moon_parse_status(answer, code));
    close(fd);
    return got;
}

static void test_bad_requests(void **state)
{
    const uint64_t base = (uint64_t)(uintptr_t)memory;
    const struct { const char *name; uint64_t address, bytes; } rows[] = {
        {"no bytes", base, 0}, {"before", base - 1, 8}, {"across the end", base + MEMORY_BYTES - 4, 8},
        {"behind", base + MEMORY_BYTES, 1}, {"wraps", base, UINT64_MAX}, {"wraps to inside", UINT64_MAX - 3, 8},
        {"huge", base, UINT64_C(1) << 63}, {"1 TiB", base, UINT64_C(1) << 40}, {"zero", 0, 8}};
    static const uint8_t foreign[] = {0x02, 0x03, 0x40, 0x7f, 0x82, 0x83, 0xc0, 0xff};
    kvf_mooncake *engine = open_engine(NULL);
    int32_t port = kvf_mooncake_data_port(engine);
    uint32_t code;

    (void)state;
    memset(memory, 0x5A, sizeof memory);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int write = 0; write < 2; write++) {
            if (ask_data(port, (uint8_t)(0x80 | write), rows[i].address, rows[i].bytes, &code) != 8 || code != 1)
                fail_msg("%s: not rejected with a status", rows[i].name);
            if (ask_data(port, (uint8_t)write, rows[i].address, rows[i].bytes, &code) != 0)
                fail_msg("%s: not just closed", rows[i].name);
        }
    }
    for (size_t i = 0; i < sizeof foreign; i++) assert_int_equal(ask_data(port, foreign[i], base, 8, &code), 0);
    for (size_t i = 0; i < sizeof memory; i++) assert_int_equal(memory[i], 0x5A);
    kvf_mooncake_close(engine);
}

/* Both versions on one connection, byte by byte, and all that is asked in one go. */
static void test_mixed_requests(void **state)
{
    const uint64_t base = (uint64_t)(uintptr_t)memory;
    uint8_t asked[4 * KVFI_MOON_HEADER_BYTES + 20], answer[64];
    kvf_mooncake *engine = open_engine(NULL);
    const uint64_t address = base;

    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        int fd = dial(kvf_mooncake_data_port(engine));

        kvf_mooncake_unregister(engine, &address, 1, PATIENCE, NULL); /* nobody touches it from here on */
        memset(memory, 0x5A, sizeof memory);
        kvf_mooncake_register(engine, &(struct kvf_mooncake_buffer){base, sizeof memory}, 1, NULL);
        put_header(asked, KVFI_MOON_WRITE_1, base + 8, 10);
        memcpy(asked + 24, "0123456789", 10);
        put_header(asked + 34, KVFI_MOON_WRITE_2, base + 100, 10);
        memcpy(asked + 58, "abcdefghij", 10);
        put_header(asked + 68, KVFI_MOON_READ_1, base + 8, 10);
        put_header(asked + 92, KVFI_MOON_READ_2, base + 100, 10);
        for (size_t i = 0; i < sizeof asked; i += slow ? 1 : sizeof asked) tell(fd, asked + i, slow ? 1 : sizeof asked);
        shutdown(fd, SHUT_WR);
        assert_int_equal(read_to_end(fd, answer, sizeof answer), 8 + 10 + 8 + 10);
        assert_memory_equal(answer, "\0\0\0\0VTCM0123456789\0\0\0\0VTCMabcdefghij", 36);
        close(fd);
    }
    kvf_mooncake_close(engine);
}

/* One that stalls inside of a request loses its connection, one that is idle does not. */
static void test_stalled_requests(void **state)
{
    struct kvf_mooncake_options options = options_of(300);
    kvf_mooncake *engine = open_engine(&options);
    uint8_t header[KVFI_MOON_HEADER_BYTES], answer[64];
    int idle = dial(kvf_mooncake_data_port(engine)), in_header = dial(kvf_mooncake_data_port(engine));
    int in_body = dial(kvf_mooncake_data_port(engine));

    (void)state;
    put_header(header, KVFI_MOON_WRITE_2, (uint64_t)(uintptr_t)memory, 100);
    tell(in_header, header, 10);
    tell(in_body, header, sizeof header);
    tell(in_body, "12345", 5);
    assert_int_equal(read_to_end(in_header, answer, sizeof answer), 0);
    assert_int_equal(read_to_end(in_body, answer, sizeof answer), 0);
    put_header(header, KVFI_MOON_READ_2, (uint64_t)(uintptr_t)memory, 8);
    tell(idle, header, sizeof header);
    assert_int_equal(read_to_end(idle, answer, 16), 16);
    close(idle);
    close(in_header);
    close(in_body);
    kvf_mooncake_close(engine);
}

/* A large body that trickles is no stall, though its pieces wake nobody; once nothing more comes, it is one. */
static void test_slow_bodies(void **state)
{
    enum { PIECE = 4096, PAUSE_MS = 120 };
    struct kvf_mooncake_options options = options_of(300);
    const uint64_t base = (uint64_t)(uintptr_t)memory;
    kvf_mooncake *engine = open_engine(&options);
    uint8_t header[KVFI_MOON_HEADER_BYTES], answer[64];
    static unsigned char body[MEMORY_BYTES];
    int slow = dial(kvf_mooncake_data_port(engine)), stalled = dial(kvf_mooncake_data_port(engine));
    uint32_t code = 99;

    (void)state;
    memset(body, 0x33, sizeof body);
    put_header(header, KVFI_MOON_WRITE_2, base, MEMORY_BYTES);
    tell(slow, header, sizeof header);
    tell(stalled, header, sizeof header);
    tell(stalled, body, MEMORY_BYTES / 2);
    for (size_t at = 0; at < MEMORY_BYTES; at += PIECE) {
        assert_int_equal(poll(NULL, 0, PAUSE_MS), 0);
        tell(slow, body + at, PIECE);
    }
    assert_int_equal(read_to_end(slow, answer, KVFI_MOON_STATUS_BYTES), KVFI_MOON_STATUS_BYTES);
    assert_true(kvfi_moon_parse_status(answer, &code));
    assert_int_equal(code, KVFI_MOON_ACCEPTED);
    assert_int_equal(read_to_end(stalled, answer, sizeof answer), 0);
    put_header(header, KVFI_MOON_READ_2, base, 8); /* small ones wake it again */
    tell(slow, header, sizeof header);
    assert_int_equal(read_to_end(slow, answer, 16), 16);
    assert_memory_equal(answer + 8, body, 8);
    close(slow);
    close(stalled);
    kvf_mooncake_close(engine);
}

/* A buffer whose request hangs is given up after the timeout; its connection goes, the engine lives. */
static void test_unregistering(void **state)
{
    const uint64_t address = (uint64_t)(uintptr_t)memory;
    kvf_mooncake *engine = open_engine(NULL);
    uint8_t header[KVFI_MOON_HEADER_BYTES], answer[64];
    int fd = dial(kvf_mooncake_data_port(engine));
    int64_t begin_ns;
    uint32_t code;

    (void)state;
    put_header(header, KVFI_MOON_WRITE_2, address, 100);
    tell(fd, header, sizeof header);
    tell(fd, "12345", 5);
    /* Once this one is answered, the other's header has been read. */
    assert_int_equal(ask_data(kvf_mooncake_data_port(engine), 0x81, address, 0, &code), 8);
    begin_ns = kvfi_now_ns();
    assert_int_equal(kvf_mooncake_unregister(engine, &address, 1, 200 * KVFI_MS, NULL), KVF_OK);
    assert_true(kvfi_now_ns() - begin_ns < 10 * KVFI_SECOND);
    assert_int_equal(read_to_end(fd, answer, sizeof answer), 0);
    assert_int_equal(ask_data(kvf_mooncake_data_port(engine), 0x80, address, 8, &code), 8);
    assert_int_equal(code, 1);
    close(fd);
    kvf_mooncake_close(engine);
}

/* The oldest idle connection makes room for a new one. */
static void test_too_many_connections(void **state)
{
    struct kvf_mooncake_options options = options_of(5000);
    uint8_t header[KVFI_MOON_HEADER_BYTES], answer[64];
    kvf_mooncake *engine;
    int fds[12];

    (void)state;
    options.max_connections = 8;
    options.data_threads = 1;
    engine = open_engine(&options);
    put_header(header, KVFI_MOON_READ_2, (uint64_t)(uintptr_t)memory, 8);
    for (size_t i = 0; i < 12; i++) {
        fds[i] = dial(kvf_mooncake_data_port(engine));
        tell(fds[i], header, sizeof header);
        assert_int_equal(read_to_end(fds[i], answer, 16), 16);
    }
    for (size_t i = 0; i < 4; i++) assert_int_equal(read_to_end(fds[i], answer, 16), 0);
    for (size_t i = 4; i < 12; i++) {
        tell(fds[i], header, sizeof header);
        assert_int_equal(read_to_end(fds[i], answer, 16), 16);
    }
    for (size_t i = 0; i < 12; i++) close(fds[i]);
    kvf_mooncake_close(engine);
}

/* ---- the handshake ---------------------------------------------------------------------------------------------- */

static ssize_t ask_desk(int32_t port, const void *bytes, size_t count, char *answer, size_t capacity)
{
    int fd = dial(port);
    ssize_t got;

    tell(fd, bytes, count);
    got = read_to_end(fd, answer, capacity - 1);
    answer[got > 0 ? got : 0] = '\0';
    close(fd);
    return got;
}

static void test_bad_handshakes(void **state)
{
    static const struct { const char *name, *bytes; size_t count; const char *answer; } rows[] = {
        {"no length", "\0\0\0\0\0\0\0\0\1{}", 11, NULL},
        {"1 MiB and a byte", "\1\0\20\0\0\0\0\0\1{}", 11, NULL},
        {"2^63", "\0\0\0\0\0\0\0\200\1{}", 11, NULL},
        {"type 4", "\3\0\0\0\0\0\0\0\4{}", 11, NULL},
        {"no type", "\2\0\0\0\0\0\0\0{}", 10, NULL},
        {"HTTP", "GET / HTTP/1.1\r\n\r\n", 18, NULL},
        {"not JSON", "\3\0\0\0\0\0\0\0\1ab", 11, NULL},
        {"empty text", "\1\0\0\0\0\0\0\0\3", 9, NULL},
        {"notify of a number", "\2\0\0\0\0\0\0\0\0027", 10, NULL},
        {"notify of an array", "\3\0\0\0\0\0\0\0\2[]", 11, NULL},
        {"notify of wrong types", "\x0c\0\0\0\0\0\0\0\2{\"name\":{}}", 20, NULL},
        {"probe", "\3\0\0\0\0\0\0\0\3{}", 11, "{\"status\":\"success\"}\n"},
        {"metadata of an array", "\3\0\0\0\0\0\0\0\1[]", 11, "{\"buffers\":["},
        {"set-up", "\3\0\0\0\0\0\0\0\0{}", 11, "{\"local_gid\":\"\",\"local_lid\":0,"}};
    kvf_mooncake *engine = open_engine(NULL);
    char answer[4096];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ssize_t got = ask_desk(kvf_mooncake_rpc_port(engine), rows[i].bytes, rows[i].count, answer, sizeof answer);

        if (!rows[i].answer && got != 0) fail_msg("%s: %zd bytes came", rows[i].name, got);
        if (!rows[i].answer) continue;
        if (got < 10 || strncmp(answer + 9, rows[i].answer, strlen(rows[i].answer)) != 0)
            fail_msg("%s: %zd bytes came, %s", rows[i].name, got, answer + 9);
        assert_int_equal(answer[8], rows[i].bytes[8]);
        assert_int_equal((unsigned char)answer[0] + 256 * (unsigned char)answer[1], got - 8);
    }
    kvf_mooncake_close(engine);
}

/* Clients that say nothing, half of a frame, or do not close, keep nobody waiting, and go in time. */
static void test_stalled_handshakes(void **state)
{
    struct kvf_mooncake_options options = options_of(2000);
    kvf_mooncake *engine = open_engine(&options), *other;
    int stalled[240];
    int64_t begin_ns;
    char byte;

    (void)state;
    for (size_t i = 0; i < 240; i++) {
        stalled[i] = dial(kvf_mooncake_rpc_port(engine));
        if (i % 3 > 0) tell(stalled[i], "\3\0\0\0\0\0\0\0\3{}", i % 3 == 1 ? 5 : 11);
    }
    options.initiator_only = 1;
    other = open_engine(&options);
    begin_ns = kvfi_now_ns();
    for (size_t i = 0; i < 50; i++)
        assert_int_equal(kvf_mooncake_probe(other, kvf_mooncake_segment_name(engine), PATIENCE, NULL), KVF_OK);
    assert_true(kvfi_now_ns() - begin_ns < KVFI_SECOND);
    assert_int_equal(read_to_end(stalled[0], &byte, 1), 0);
    assert_int_equal(read_to_end(stalled[1], &byte, 1), 0);
    for (size_t i = 0; i < 240; i++) close(stalled[i]);
    kvf_mooncake_close(other);
    kvf_mooncake_close(engine);
}

static void test_notifies_are_bounded(void **state)
{
    struct kvf_mooncake_options options = options_of(5000);
    struct kvf_mooncake_notification *note;
    kvf_mooncake *engine, *other;
    int64_t segment;

    (void)state;
    options.max_notifies = 3;
    engine = open_engine(&options);
    other = open_engine(NULL);
    assert_int_equal(kvf_mooncake_open_segment(other, kvf_mooncake_segment_name(engine), PATIENCE, &segment, NULL),
                     KVF_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(kvf_mooncake_notify(other, segment, "a", "b", PATIENCE, NULL),
                         i < 3 ? KVF_OK : KVF_ERR_REFUSED);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvf_mooncake_take_notification(engine, 0, &note, NULL), KVF_OK);
        kvf_mooncake_free_notification(note);
    }
    assert_int_equal(kvf_mooncake_take_notification(engine, 0, &note, NULL), KVF_ERR_AGAIN);
    kvf_mooncake_close(other);
    kvf_mooncake_close(engine);
}

/* Without a descriptor left, connections wait, and are served once there are some. */
static void test_no_descriptors(void **state)
{
    struct rlimit before, tight;
    kvf_mooncake *engine = open_engine(NULL);
    int32_t port = kvf_mooncake_data_port(engine);
    int fds[8], probe = dup(0);
    uint8_t header[KVFI_MOON_HEADER_BYTES], answer[16];

    (void)state;
    put_header(header, KVFI_MOON_READ_2, (uint64_t)(uintptr_t)memory, 8);
    for (size_t i = 0; i < 8; i++) fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    close(probe);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    tight = before;
    tight.rlim_cur = (rlim_t)probe; /* nothing free below */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    for (size_t i = 0; i < 8; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

        assert_int_equal(connect(fds[i], (struct sockaddr *)&address, sizeof address), 0);
        tell(fds[i], header, sizeof header);
    }
    poll(NULL, 0, 120); /* the engine finds that it can accept none of them */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(read_to_end(fds[i], answer, 16), 16);
        close(fds[i]);
    }
    kvf_mooncake_close(engine);
}

/* ---- peers that answer badly ------------------------------------------------------------------------------------ */

/* What a raw peer does with each data connection. */
enum manner {
    CLOSES_AFTER_EACH, /* as engines up to 0.3.9: one request, protocol 1 */
    SERVES_ONE,        /* protocol 2, closes behind the answer */
    SERVES_TWO,        /* protocol 2, closes behind the second answer */
    TALKS_NONSENSE,    /* protocol 2, the answer is none */
    SAYS_NOTHING,      /* protocol 2, reads and does not answer */
    DIES,              /* protocol 2, closes in the middle of the first request */
    RESETS_AT_13       /* protocol 2, closes on a request of 13 bytes without reading it */
};

struct peer {
    enum manner manner;
    int desk, data;
    int32_t desk_port;
    atomic_int told_port;
    int version;
    int wake[2];
    pthread_t thread;
    int connections, questions;
};

static int listen_on(int32_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 128), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void answer_desk(struct peer *peer, int fd)
{
    char question[16], text[512];
    uint8_t prefix[KVFI_MOON_PREFIX_BYTES];

    peer->questions++;
    if (read_to_end(fd, question, 12) == 12) {
        snprintf(text, sizeof text, "{\"name\":\"x:1\",\"protocol\":[\"cxl\",\"tcp\"],\"tcp_data_port\":%d,"
                 "\"tcp_proto_version\":%d,\"new\":{}}\n", atomic_load(&peer->told_port), peer->version);
        kvfi_moon_pack_prefix(1, strlen(text), prefix);
        (void)!write(fd, prefix, sizeof prefix);
        (void)!write(fd, text, strlen(text));
    }
    close(fd);
}

/* One request; false when the connection is to be closed. */
static bool serve_one(const struct peer *peer, int fd)
{
    uint8_t header[KVFI_MOON_HEADER_BYTES], body[4096], answer[8 + 4096];
    struct kvfi_moon_header request;

    if (read_to_end(fd, header, sizeof header) != sizeof header || !kvfi_moon_parse_header(header, &request))
        return false;
    if (peer->manner == DIES || (peer->manner == RESETS_AT_13 && request.bytes == 13)) return false;
    if (kvfi_moon_is_write(request.opcode)) {
        if (read_to_end(fd, body, request.bytes) != (ssize_t)request.bytes) return false;
        memcpy((void *)(uintptr_t)request.address, body, request.bytes);
    }
    kvfi_moon_pack_status(KVFI_MOON_ACCEPTED, answer);
    if (peer->manner == TALKS_NONSENSE) memset(answer, 'x', 8);
    memcpy(answer + 8, (void *)(uintptr_t)request.address, request.bytes);
    if (peer->manner == SAYS_NOTHING) return true;
    if (request.opcode == KVFI_MOON_READ_1) (void)!send(fd, answer + 8, request.bytes, MSG_NOSIGNAL);
    if (request.opcode == KVFI_MOON_WRITE_2) (void)!send(fd, answer, 8, MSG_NOSIGNAL);
    if (request.opcode == KVFI_MOON_READ_2) (void)!send(fd, answer, 8 + request.bytes, MSG_NOSIGNAL);
    return true;
}

static void *be_peer(void *argument)
{
    struct peer *peer = argument;

    for (;;) {
        struct pollfd waits[3] = {{.fd = peer->wake[0], .events = POLLIN}, {.fd = peer->desk, .events = POLLIN},
                                  {.fd = peer->data, .events = POLLIN}};
        int fd, served = 0;

        poll(waits, 3, -1);
        if (waits[0].revents) return NULL;
        if (waits[1].revents) answer_desk(peer, accept(peer->desk, NULL, NULL));
        if (!waits[2].revents) continue;
        fd = accept(peer->data, NULL, NULL);
        peer->connections++;
        while (serve_one(peer, fd) && peer->manner > SERVES_ONE && (peer->manner == RESETS_AT_13 || ++served < 2)) {}
        close(fd);
    }
}

static void peer_init(struct peer *peer, enum manner manner)
{
    int32_t port;

    *peer = (struct peer){.manner = manner, .version = manner == CLOSES_AFTER_EACH ? 1 : 2};
    peer->desk = listen_on(&peer->desk_port);
    peer->data = listen_on(&port);
    atomic_init(&peer->told_port, port);
    assert_int_equal(pipe(peer->wake), 0);
    assert_int_equal(pthread_create(&peer->thread, NULL, be_peer, peer), 0);
}

static void peer_fini(struct peer *peer)
{
    assert_int_equal(write(peer->wake[1], "x", 1), 1);
    pthread_join(peer->thread, NULL);
    close(peer->desk);
    close(peer->data);
    close(peer->wake[0]);
    close(peer->wake[1]);
}

static int64_t open_peer(kvf_mooncake *engine, const struct peer *peer)
{
    struct kvf_error error;
    char name[64];
    int64_t segment;

    snprintf(name, sizeof name, "127.0.0.1:%d", (int)peer->desk_port);
    if (kvf_mooncake_open_segment(engine, name, PATIENCE, &segment, &error) != KVF_OK) fail_msg("%s", error.text);
    return segment;
}

/* Peers that close after one request, or after two, serve all of a transfer all the same. */
static void test_closing_peers(void **state)
{
    static const enum manner manners[] = {CLOSES_AFTER_EACH, SERVES_TWO};
    static unsigned char far[4096];
    const uint64_t near_base = (uint64_t)(uintptr_t)memory, far_base = (uint64_t)(uintptr_t)far;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kvf_mooncake_options options = options_of(5000);
        struct kvf_mooncake_range ranges[8];
        struct kvf_error error;
        kvf_mooncake *engine;
        struct peer peer;
        int64_t segment;

        options.initiator_only = 1;
        options.lanes = 1;
        engine = open_engine(&options);
        peer_init(&peer, manners[i]);
        segment = open_peer(engine, &peer);
        for (size_t j = 0; j < sizeof memory; j++) memory[j] = (unsigned char)(j * 3);
        memset(far, 0, sizeof far);
        for (size_t j = 0; j < 8; j++)
            ranges[j] = (struct kvf_mooncake_range){near_base + j * 500, far_base + (7 - j) * 500, 400};
        /* One call per range: each begins on a connection that the peer may have closed. */
        for (size_t j = 0; j < 8; j++) {
            if (kvf_mooncake_write(engine, segment, &ranges[j], 1, 0, PATIENCE, NULL, &error) != KVF_OK)
                fail_msg("%d: write %zu: %s", manners[i], j, error.text);
        }
        for (size_t j = 0; j < 8; j++) {
            memset(memory + j * 500, 0, 400);
            if (kvf_mooncake_read(engine, segment, &ranges[j], 1, 0, PATIENCE, NULL, &error) != KVF_OK)
                fail_msg("%d: read %zu: %s", manners[i], j, error.text);
        }
        if (manners[i] == CLOSES_AFTER_EACH &&
            kvf_mooncake_write(engine, segment, ranges, 8, 0, PATIENCE, NULL, &error) != KVF_OK)
            fail_msg("all at once: %s", error.text);
        kvf_mooncake_close(engine);
        peer_fini(&peer);
        for (size_t j = 0; j < 8; j++)
            for (size_t k = 0; k < 400; k++) {
                assert_int_equal(memory[j * 500 + k], (unsigned char)((j * 500 + k) * 3));
                assert_int_equal(far[(7 - j) * 500 + k], memory[j * 500 + k]);
            }
        assert_true(peer.connections >= 8);
    }
}

static void test_bad_answers(void **state)
{
    static const struct { enum manner manner; enum kvf_status status; const char *text; } rows[] = {
        {TALKS_NONSENSE, KVF_ERR_PROTOCOL, "expected a status of data protocol 2"},
        {SAYS_NOTHING, KVF_ERR_TIMEOUT, "nothing moved for 300 ms"},
        {DIES, KVF_ERR_PEER_LOST, "the connection was"}};
    static unsigned char far[4096];
    const struct kvf_mooncake_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)far, 400};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_mooncake_options options = options_of(300);
        struct kvf_error error = {.text = ""};
        kvf_mooncake *engine;
        struct peer peer;
        uint8_t outcome;
        int64_t segment;

        options.initiator_only = 1;
        engine = open_engine(&options);
        peer_init(&peer, rows[i].manner);
        segment = open_peer(engine, &peer);
        assert_int_equal(kvf_mooncake_write(engine, segment, &range, 1, 0, PATIENCE, &outcome, &error),
                         rows[i].status);
        if (!strstr(error.text, rows[i].text) || !strstr(error.text, "range 0") || outcome != KVF_MOONCAKE_IN_DOUBT)
            fail_msg("%d: %s", rows[i].manner, error.text);
        assert_int_equal(kvf_mooncake_read(engine, segment, &range, 1, 0, PATIENCE, &outcome, &error), rows[i].status);
        assert_int_equal(outcome, KVF_MOONCAKE_FAILED);
        kvf_mooncake_close(engine);
        peer_fini(&peer);
    }
}

/* A request on which the peer resets takes no answer of the others with it: they are asked for again. */
static void test_reset_amid_others(void **state)
{
    static unsigned char far[4096];
    enum { COUNT = 40, BAD = 17 };
    struct kvf_mooncake_options options = options_of(5000);
    struct kvf_mooncake_range ranges[COUNT];
    struct kvf_error error = {.text = ""};
    uint8_t outcomes[COUNT];
    kvf_mooncake *engine;
    struct peer peer;
    int64_t segment;

    (void)state;
    options.initiator_only = 1;
    options.lanes = 1;
    engine = open_engine(&options);
    peer_init(&peer, RESETS_AT_13);
    segment = open_peer(engine, &peer);
    for (size_t i = 0; i < COUNT; i++)
        ranges[i] = (struct kvf_mooncake_range){(uint64_t)(uintptr_t)memory + i * 100,
                                                (uint64_t)(uintptr_t)far + i * 100, i == BAD ? 13 : 90};
    memset(memory, 0x77, sizeof memory);
    assert_int_equal(kvf_mooncake_write(engine, segment, ranges, COUNT, 0, PATIENCE, outcomes, &error),
                     KVF_ERR_PEER_LOST);
    if (!strstr(error.text, "range 17: ")) fail_msg("%s", error.text);
    kvf_mooncake_close(engine);
    peer_fini(&peer);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(outcomes[i], i == BAD ? KVF_MOONCAKE_IN_DOUBT : KVF_MOONCAKE_DONE);
        for (size_t j = 0; j < 90; j++) assert_int_equal(far[i * 100 + j], i == BAD ? 0 : 0x77);
    }
}

/* A peer that is back with another data port is found; one that is gone fails at once. */
static void test_restarts(void **state)
{
    static unsigned char far[4096];
    const struct kvf_mooncake_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)far, 400};
    kvf_mooncake *engine = open_engine(NULL);
    struct kvf_mooncake_segment_info info = {.struct_size = sizeof info};
    int64_t segment, begin_ns;
    struct kvf_error error;
    int32_t good, dead;
    struct peer peer;

    (void)state;
    peer_init(&peer, SERVES_ONE);
    good = peer.told_port;
    close(listen_on(&dead));
    peer.told_port = dead;
    segment = open_peer(engine, &peer);
    peer.told_port = good;
    if (kvf_mooncake_write(engine, segment, &range, 1, 0, PATIENCE, NULL, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(kvf_mooncake_get_segment_info(engine, segment, &info, NULL), KVF_OK);
    assert_int_equal(info.fetches, 2);
    assert_int_equal(info.data_port, good);
    assert_string_equal(info.protocol, "cxl,tcp");
    peer_fini(&peer);
    begin_ns = kvfi_now_ns();
    assert_int_equal(kvf_mooncake_write(engine, segment, &range, 1, 0, PATIENCE, NULL, &error), KVF_ERR_UNREACHABLE);
    assert_true(kvfi_now_ns() - begin_ns < 5 * KVFI_SECOND);
    kvf_mooncake_close(engine);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_requests), cmocka_unit_test(test_mixed_requests),
        cmocka_unit_test(test_stalled_requests), cmocka_unit_test(test_slow_bodies),
        cmocka_unit_test(test_unregistering), cmocka_unit_test(test_too_many_connections),
        cmocka_unit_test(test_bad_handshakes),
        cmocka_unit_test(test_stalled_handshakes), cmocka_unit_test(test_notifies_are_bounded),
        cmocka_unit_test(test_no_descriptors), cmocka_unit_test(test_closing_peers),
        cmocka_unit_test(test_bad_answers), cmocka_unit_test(test_reset_amid_others),
        cmocka_unit_test(test_restarts)};

    return cmocka_run_group_tests_name("mooncake hostile", tests, NULL, NULL);
}
