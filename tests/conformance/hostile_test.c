/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that misbehave on the data sockets: each gets its connection closed and a line in the log, or an answer, and a
 * good peer beside it does not notice. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rig.h"
#include "sys/clock.h"
#include "transport/direct/message.h"
#include "transport/tcp/frame.h"

const struct subject *subject;

static const struct kit_shape shape = {.layers = 2, .heads = 2, .row_bytes = 128, .tokens = 100,
                                       .src_block_tokens = 16, .dst_block_tokens = 64};

/* ---- a destination with a log, and raw connections to it -------------------------------------------------------- */

struct target {
    struct kit kit;
    struct rig rig;
    struct kvfi_log log;
    char lines[8192];
    char endpoint[KVFI_ENDPOINT_BYTES];
};

/* Called under the log's lock. */
static void keep_line(void *context, int level, const char *text)
{
    struct target *target = context;
    size_t used = strlen(target->lines);

    (void)level;
    snprintf(target->lines + used, sizeof target->lines - used, "%s\n", text);
}

static void target_init(struct target *target, const char *transport, int64_t timeout_ms)
{
    static struct subject row;
    struct kvf_log_sink sink = {.write = keep_line, .context = target, .level = KVF_LOG_WARN};
    struct kvfi_transport_config config = {.host = "127.0.0.1", .streams = 2, .memory_count = 2};
    struct kvf_error error;

    row = (struct subject){"", transport, NULL, true, true, false};
    subject = &row;
    memset(target, 0, sizeof *target);
    kvfi_log_init(&target->log, &sink);
    kit_init(&target->kit, &shape, true);
    rig_init(&target->rig, &target->kit);
    target->rig.ops->close(target->rig.dst);
    config.self = target->rig.dst_who.name;
    config.incarnation = target->rig.dst_who.incarnation;
    config.connect_timeout_ns = timeout_ms * KVFI_MS;
    config.memories = target->kit.dst_regions;
    config.log = &target->log;
    if (target->rig.ops->open(&config, &target->rig.dst, &error) != KVF_OK) fail_msg("%s", error.text);
    target->rig.ops->endpoint(target->rig.dst, target->endpoint);
    rig_connect(&target->rig);
}

/* The good peer still works. */
static void target_fini(struct target *target)
{
    struct kvfi_chunk chunk;

    kit_wipe(&target->kit);
    rig_arm(&target->rig, 500);
    chunk = rig_whole_chunk(&target->rig, 500);
    rig_post_and_await(&target->rig, &chunk, KVF_OK);
    assert_int_equal(rig_await_complete(&target->rig, 500), target->kit.bytes);
    kit_check(&target->kit, 0, shape.layers, shape.tokens);
    rig_fini(&target->rig);
    kit_fini(&target->kit);
    kvfi_log_fini(&target->log);
}

static void assert_logged(struct target *target, const char *text)
{
    bool found;

    pthread_mutex_lock(&target->log.lock);
    found = strstr(target->lines, text) != NULL;
    pthread_mutex_unlock(&target->log.lock);
    if (!found) fail_msg("the log says \"%s\", not \"%s\"", target->lines, text);
}

static int connect_tcp(const struct target *target)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    char host[256];
    uint16_t port;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(kvfi_tcp_endpoint_parse(target->endpoint, host, &port, NULL), KVF_OK);
    address.sin_port = htons(port);
    assert_int_equal(inet_pton(AF_INET, host, &address.sin_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static int connect_shm(const struct target *target)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct kvfi_direct_endpoint endpoint;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    size_t bytes;

    assert_int_equal(kvfi_direct_endpoint_parse(target->endpoint, "shm", &endpoint, NULL), KVF_OK);
    bytes = strlen(endpoint.name);
    memcpy(address.sun_path + 1, endpoint.name, bytes);
    assert_int_equal(connect(fd, (struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes)), 0);
    return fd;
}

/* Reads until the other side closes; what came before is in `buffer`. Fails after 10 s. */
static size_t read_to_end(int fd, uint8_t *buffer, size_t capacity)
{
    size_t count = 0;
    ssize_t got = 1;

    while (got > 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};

        if (poll(&wait, 1, 10000) != 1) fail_msg("the connection stays open");
        got = recv(fd, buffer + count, capacity - count, 0);
        if (got > 0) count += (size_t)got;
    }
    return count;
}

/* Reads one whole frame. */
static void read_frame(int fd, struct kvfi_frame_head *head, uint8_t *body)
{
    uint8_t buffer[KVFI_FRAME_HEAD_BYTES];

    assert_int_equal(recv(fd, buffer, sizeof buffer, MSG_WAITALL), sizeof buffer);
    assert_int_equal(kvfi_frame_parse_head(buffer, head, NULL), KVF_OK);
    if (head->body_bytes > 0)
        assert_int_equal(recv(fd, body, (size_t)head->body_bytes, MSG_WAITALL), (ssize_t)head->body_bytes);
}

static size_t good_hello(const struct target *target, uint64_t session, uint8_t *buffer)
{
    struct kvfi_frame_hello hello = {.version = 1, .self = target->rig.src_who, .expected = target->rig.dst_who,
                                     .session = session, .generation = 1, .streams = 1};

    return kvfi_frame_pack_hello(&hello, buffer);
}

static int greeted_tcp(const struct target *target)
{
    uint8_t buffer[2048];
    struct kvfi_frame_head head;
    int fd = connect_tcp(target);
    size_t bytes = good_hello(target, 4711, buffer);

    assert_int_equal(send(fd, buffer, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    read_frame(fd, &head, buffer);
    assert_int_equal(head.kind, KVFI_FRAME_WELCOME);
    return fd;
}

/* ---- tcp -------------------------------------------------------------------------------------------------------- */

/* First bytes of a connection that are no hello. */
static void tcp_bad_beginnings(void **state)
{
    static const struct { const char *name; uint8_t bytes[40]; size_t count; const char *text; } rows[] = {
        {"an HTTP client", "GET / HTTP/1.1\r\n\r\n", 18, "frame starts with 0x20544547, expected 0x3154566b"},
        {"zeroes", {0}, 40, "frame starts with 0x00000000"},
        {"length 2^63", {'k', 'V', 'T', '1', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80}, 16,
         "frame of kind 1 with 9223372036854775808 bytes, at most 1024"},
        {"unknown kind", {'k', 'V', 'T', '1', 99, 0, 0, 0}, 16, "frame of kind 99 with flags 0x0 is not known"},
        {"an ack first", {'k', 'V', 'T', '1', 4, 0, 0, 0}, 16, "unexpected frame"},
        {"an empty hello", {'k', 'V', 'T', '1', 1, 0, 0, 0}, 16, "hello of 0 bytes does not parse"},
    };
    struct target target;
    uint8_t buffer[2048];

    (void)state;
    target_init(&target, "tcp", 5000);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int fd = connect_tcp(&target);

        assert_int_equal(send(fd, rows[i].bytes, rows[i].count, MSG_NOSIGNAL), (ssize_t)rows[i].count);
        read_to_end(fd, buffer, sizeof buffer);
        assert_logged(&target, rows[i].text);
        close(fd);
    }
    target_fini(&target);
}

/* Nothing at all, and half a frame: closed at the deadline. */
static void tcp_silence(void **state)
{
    struct target target;
    uint8_t buffer[2048];

    (void)state;
    for (int half = 0; half < 2; half++) {
        target_init(&target, "tcp", 100);
        int fd = connect_tcp(&target);

        if (half) assert_int_equal(send(fd, buffer, good_hello(&target, 1, buffer) / 2, MSG_NOSIGNAL) > 0, true);
        assert_int_equal(read_to_end(fd, buffer, sizeof buffer), 0);
        assert_logged(&target, "no hello in time");
        close(fd);
        target_fini(&target);
    }
}

static void tcp_wrong_version_and_identity(void **state)
{
    struct target target;
    uint8_t buffer[4096], frame[2048];

    (void)state;
    target_init(&target, "tcp", 5000);
    for (int row = 0; row < 2; row++) {
        const uint8_t *body = buffer + KVFI_FRAME_HEAD_BYTES;
        struct kvfi_frame_head head;
        struct kvfi_frame_welcome welcome;
        int fd = connect_tcp(&target);
        size_t bytes;

        if (row == 1) target.rig.dst_who.incarnation ^= 1;
        bytes = good_hello(&target, 1, frame);
        if (row == 1) target.rig.dst_who.incarnation ^= 1;
        if (row == 0) frame[KVFI_FRAME_HEAD_BYTES] = 2;
        assert_int_equal(send(fd, frame, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        read_to_end(fd, buffer, sizeof buffer);
        assert_int_equal(kvfi_frame_parse_head(buffer, &head, NULL), KVF_OK);
        assert_int_equal(kvfi_frame_parse_welcome(body, (size_t)head.body_bytes, &welcome, NULL), KVF_OK);
        assert_int_equal(welcome.status, row == 0 ? KVF_ERR_VERSION : KVF_ERR_STALE);
        assert_logged(&target,
                      row == 0 ? "tcp data protocol version 2, this side speaks 1" : "expected d/pp0.cp0.tp0 ");
        close(fd);
    }
    target_fini(&target);
}

static void send_data(int fd, const struct kvfi_chunk_head *chunk, int64_t offset, int64_t bytes)
{
    struct kvfi_frame_data data = {.chunk = *chunk, .generation = 1, .offset_bytes = offset, .bytes = bytes};
    uint8_t frame[KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_DATA_BYTES + 4096] = {0};
    size_t head = kvfi_frame_pack_data(&data, false, frame);

    assert_true(bytes <= 4096);
    assert_int_equal(send(fd, frame, head + (size_t)bytes, MSG_NOSIGNAL), (ssize_t)(head + (size_t)bytes));
}

static void expect_ack(int fd, enum kvf_status status, const char *text)
{
    uint8_t body[2048];
    struct kvfi_frame_head head;
    struct kvfi_frame_ack ack;

    read_frame(fd, &head, body);
    assert_int_equal(head.kind, KVFI_FRAME_ACK);
    assert_int_equal(kvfi_frame_parse_ack(body, (size_t)head.body_bytes, &ack, NULL), KVF_OK);
    assert_int_equal(ack.status, status);
    if (!strstr(ack.text, text)) fail_msg("\"%s\" does not say \"%s\"", ack.text, text);
}

/* Good frames with bad contents: answered, the connection lives. */
static void tcp_bad_chunks(void **state)
{
    struct target target;
    struct kvfi_chunk_head chunk = {.grant = 77, .last = 1, .layer_end = 2, .token_end = 100};
    int fd;

    (void)state;
    target_init(&target, "tcp", 5000);
    chunk.bytes = target.kit.bytes;
    fd = greeted_tcp(&target);
    send_data(fd, &chunk, 0, 64);
    expect_ack(fd, KVF_ERR_REFUSED, "grant 000000000000004d is not armed for p/pp0.cp0.tp0");
    rig_arm(&target.rig, 77);
    send_data(fd, &chunk, 0, 64);
    send_data(fd, &chunk, 128, 64);
    send_data(fd, &chunk, 32, 100);
    expect_ack(fd, KVF_ERR_REFUSED, "chunk 0: bytes [32,132) come twice");
    assert_int_equal(rig_await_dst(&target.rig, KVFI_TEV_GRANT_FAILED, 77).status, KVF_ERR_PROTOCOL);
    send_data(fd, &chunk, 64, 64);
    expect_ack(fd, KVF_ERR_REFUSED, "is not armed for");
    assert_true(target.rig.ops->disarm(target.rig.dst, 77));
    chunk.grant = 78;
    chunk.bytes -= 1;
    rig_arm(&target.rig, 78);
    send_data(fd, &chunk, 0, 64);
    expect_ack(fd, KVF_ERR_REFUSED, "bytes here, its writer says");
    close(fd);
    target_fini(&target);
}

/* Frames that contradict themselves, frames out of place: the connection ends. */
static void tcp_broken_frames(void **state)
{
    struct target target;
    struct kvfi_chunk_head chunk = {.grant = 77, .last = 1, .layer_end = 2, .token_end = 100, .bytes = 1000};
    uint8_t buffer[2048];
    int fd;

    (void)state;
    target_init(&target, "tcp", 5000);
    fd = greeted_tcp(&target);
    send_data(fd, &chunk, 990, 64);
    read_to_end(fd, buffer, sizeof buffer);
    assert_logged(&target, "a frame of 64 bytes at 990 of a chunk of 1000");
    close(fd);
    fd = greeted_tcp(&target);
    assert_int_equal(send(fd, buffer, good_hello(&target, 4711, buffer), MSG_NOSIGNAL) > 0, true);
    read_to_end(fd, buffer, sizeof buffer);
    assert_logged(&target, "unexpected frame");
    close(fd);
    target_fini(&target);
}

/* A frame of which half comes and then the end: what it would have placed is not counted. */
static void tcp_half_a_frame(void **state)
{
    struct target target;
    struct kvfi_chunk_head chunk = {.grant = 77, .last = 1, .layer_end = 2, .token_end = 100};
    struct kvfi_frame_data data = {.generation = 1};
    uint8_t frame[KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_DATA_BYTES + 100] = {0};
    int fd;

    (void)state;
    target_init(&target, "tcp", 5000);
    chunk.bytes = target.kit.bytes;
    rig_arm(&target.rig, 77);
    fd = greeted_tcp(&target);
    data.chunk = chunk;
    data.bytes = 60000 < chunk.bytes ? 60000 : chunk.bytes;
    kvfi_frame_pack_data(&data, false, frame);
    assert_int_equal(send(fd, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    close(fd);
    assert_false(rig_pump(&target.rig, kvfi_now_ns() + 50 * KVFI_MS));
    assert_true(target.rig.ops->disarm(target.rig.dst, 77));
    target_fini(&target);
}

/* ---- shm -------------------------------------------------------------------------------------------------------- */

static size_t shm_hello(const struct target *target, uint8_t *packet)
{
    struct kvfi_direct_message hello = {.kind = KVFI_DIRECT_HELLO, .self = target->rig.src_who,
                                        .expected = target->rig.dst_who};

    return kvfi_direct_pack(&hello, packet);
}

static void shm_bad_beginnings(void **state)
{
    struct target target;
    uint8_t packet[KVFI_DIRECT_PACKET_BYTES], answer[KVFI_DIRECT_PACKET_BYTES];
    struct kvfi_direct_message message;

    (void)state;
    target_init(&target, "shm", 5000);
    for (int row = 0; row < 4; row++) {
        struct kvfi_direct_message placed = {.kind = KVFI_DIRECT_PLACED};
        static const char *const texts[] = {"does not parse", "shm protocol version 200, this side speaks 1",
                                            "expected d/pp0.cp0.tp0 incarnation", "expected hello"};
        int fd = connect_shm(&target);
        size_t bytes, got;

        target.rig.dst_who.incarnation ^= row == 2;
        bytes = row == 3 ? kvfi_direct_pack(&placed, packet) : shm_hello(&target, packet);
        target.rig.dst_who.incarnation ^= row == 2;
        if (row == 0) memset(packet, 0xff, bytes);
        if (row == 1) packet[12] = 200;
        assert_int_equal(send(fd, packet, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        got = read_to_end(fd, answer, sizeof answer);
        assert_logged(&target, texts[row]);
        if (row == 1 || row == 2) {
            assert_int_equal(kvfi_direct_parse(answer, got, &message, NULL), KVF_OK);
            assert_int_equal(message.status, row == 1 ? KVF_ERR_VERSION : KVF_ERR_STALE);
        }
        close(fd);
    }
    target_fini(&target);
}

static void shm_silence(void **state)
{
    struct target target;
    uint8_t buffer[64];
    int fd;

    (void)state;
    target_init(&target, "shm", 100);
    fd = connect_shm(&target);
    assert_int_equal(read_to_end(fd, buffer, sizeof buffer), 0);
    assert_logged(&target, "no hello within 100 ms");
    close(fd);
    target_fini(&target);
}

/* Words that only the other side may say, and a chunk opened twice. */
static void shm_words_out_of_place(void **state)
{
    struct target target;
    uint8_t packet[KVFI_DIRECT_PACKET_BYTES];

    (void)state;
    target_init(&target, "shm", 5000);
    for (int row = 0; row < 2; row++) {
        struct kvfi_direct_message message = {.kind = row == 0 ? KVFI_DIRECT_REVOKE : KVFI_DIRECT_OPEN};
        int fd = connect_shm(&target);
        size_t bytes = shm_hello(&target, packet);

        assert_int_equal(send(fd, packet, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        rig_arm(&target.rig, 20 + (uint64_t)row);
        message.head = (struct kvfi_chunk_head){.grant = 20 + (uint64_t)row, .layer_end = 2, .token_end = 100,
                                                .bytes = target.kit.bytes};
        bytes = kvfi_direct_pack(&message, packet);
        assert_int_equal(send(fd, packet, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        assert_int_equal(send(fd, packet, bytes, MSG_NOSIGNAL) == (ssize_t)bytes || errno == EPIPE, true);
        for (ssize_t got = 1; got > 0;) got = recv(fd, packet, sizeof packet, 0);
        close(fd);
        assert_string_equal(rig_await_dst(&target.rig, KVFI_TEV_WRITER_GONE, 0).who.name, "p/pp0.cp0.tp0");
        assert_logged(&target, row == 0 ? "unexpected message" : "a chunk was opened twice");
        assert_true(target.rig.ops->disarm(target.rig.dst, 20 + (uint64_t)row));
    }
    target_fini(&target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_bad_beginnings), cmocka_unit_test(tcp_silence),
        cmocka_unit_test(tcp_wrong_version_and_identity), cmocka_unit_test(tcp_bad_chunks),
        cmocka_unit_test(tcp_broken_frames), cmocka_unit_test(tcp_half_a_frame),
        cmocka_unit_test(shm_bad_beginnings), cmocka_unit_test(shm_silence), cmocka_unit_test(shm_words_out_of_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
