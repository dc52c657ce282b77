/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/tcp/inside.h"

enum { TURN_READS = 16, MAX_SPANS = 4096 };

#define ACCEPT_PAUSE_NS (100 * KVFI_MS)

void kvfi_conn_accept(struct kvfi_transport *transport, int64_t now_ns)
{
    for (;;) {
        int fd = accept4(transport->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0) {
            struct epoll_event event = {.events = 0, .data.ptr = &transport->listener};

            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK) break;
            /* No descriptors left: the listener stays readable, so it is not asked for a while. */
            kvfi_logf(transport->config.log, KVF_LOG_WARN, "tcp: accept: %s", strerror(errno));
            epoll_ctl(transport->threads[0].epoll, EPOLL_CTL_MOD, transport->listener, &event);
            pthread_mutex_lock(&transport->lock);
            transport->accept_again_ns = now_ns + ACCEPT_PAUSE_NS;
            pthread_mutex_unlock(&transport->lock);
            break;
        }
        pthread_mutex_lock(&transport->lock);
        kvfi_conn_create(transport, fd, false, EPOLLIN);
        pthread_mutex_unlock(&transport->lock);
    }
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

static void answer(struct kvfi_conn *conn, const struct kvfi_chunk_head *chunk, enum kvf_status status,
                   const char *text)
{
    struct kvfi_frame_ack ack = {.grant = chunk->grant, .index = chunk->index, .status = (uint32_t)status};
    uint8_t buffer[KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL];

    snprintf(ack.text, sizeof ack.text, "%s", text);
    pthread_mutex_lock(&conn->owner->lock);
    kvfi_conn_notice(conn, buffer, kvfi_frame_pack_ack(&ack, buffer));
    pthread_mutex_unlock(&conn->owner->lock);
}

/* A violation: the writer is refused, the grant fails, the rest of the frame is dropped. */
static void fail_frame(struct kvfi_conn *conn, const struct kvf_error *error)
{
    struct kvfi_receiving *receiving = &conn->receiving;
    struct kvfi_grant *grant = receiving->arrival->grant;
    bool corrupt = error->status == KVF_ERR_CORRUPT;

    if (kvfi_grant_fail(grant))
        kvfi_tell_grant_failed(&conn->owner->queue, grant->number, (enum kvf_status)error->status, error->text);
    answer(conn, &receiving->data.chunk, corrupt ? KVF_ERR_CORRUPT : KVF_ERR_REFUSED, error->text);
    receiving->state = KVFI_RECEIVING_SKIP;
}

/* ---- hello ------------------------------------------------------------------------------------------------------ */

/* Older connections of the same session have no say any more. */
static void supersede(struct kvfi_transport *transport, const struct kvfi_conn *newer)
{
    for (size_t i = 0; i < transport->thread_count; i++) {
        for (struct kvfi_conn *conn = transport->threads[i].conns; conn; conn = conn->next) {
            if (conn->outgoing || conn->session_number != newer->session_number ||
                conn->generation >= newer->generation)
                continue;
            conn->kill = true;
            kvfi_tcp_wake(conn->thread);
        }
    }
}

static bool greet(struct kvfi_conn *conn, const uint8_t *body, size_t bytes)
{
    struct kvfi_transport *transport = conn->owner;
    struct kvfi_frame_welcome welcome = {.version = KVFI_FRAME_VERSION};
    uint8_t buffer[KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL];
    struct kvfi_frame_hello hello;
    struct kvf_error error = {0};
    enum kvf_status status = kvfi_frame_parse_hello(body, bytes, &hello, &error);

    if (status == KVF_OK && (strcmp(hello.expected.name, transport->self) != 0 ||
                             hello.expected.incarnation != transport->config.incarnation))
        status = kvfi_fail(
            &error, KVF_ERR_STALE, "expected %.150s incarnation %016" PRIx64 ", found %.150s %016" PRIx64,
            hello.expected.name, hello.expected.incarnation, transport->self, transport->config.incarnation);
    if (status == KVF_ERR_PROTOCOL) {
        kvfi_conn_close(conn, status, error.text);
        return false;
    }
    if (status != KVF_OK)
        kvfi_logf(transport->config.log, KVF_LOG_WARN, "tcp: connection of %s refused: %s", conn->name, error.text);
    welcome.status = (uint32_t)status;
    snprintf(welcome.text, sizeof welcome.text, "%s", error.text);
    snprintf(welcome.self.name, sizeof welcome.self.name, "%s", transport->self);
    welcome.self.incarnation = transport->config.incarnation;
    pthread_mutex_lock(&transport->lock);
    conn->deadline_ns = status == KVF_OK ? 0 : conn->deadline_ns;
    conn->who = hello.self;
    conn->session_number = hello.session;
    conn->generation = hello.generation;
    if (status == KVF_OK) supersede(transport, conn);
    kvfi_conn_notice(conn, buffer, kvfi_frame_pack_welcome(&welcome, buffer));
    pthread_mutex_unlock(&transport->lock);
    conn->close_after_send = status != KVF_OK;
    conn->state = status == KVF_OK ? KVFI_CONN_READY : conn->state;
    return true;
}

/* ---- where payload goes ----------------------------------------------------------------------------------------- */

/* Counts [begin, end) as arriving. KVF_ERR_PROTOCOL when some of it came before. Locked. */
static enum kvf_status add_span(struct kvfi_arrival *arrival, int64_t begin, int64_t end, struct kvf_error *error)
{
    struct kvfi_span *spans = arrival->spans;
    enum kvf_status status = KVF_OK;
    size_t at = arrival->span_count;

    while (at > 0 && spans[at - 1].begin >= begin) at--;
    if ((at > 0 && spans[at - 1].end > begin) || (at < arrival->span_count && spans[at].begin < end)) {
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 ": bytes [%" PRId64 ",%" PRId64 ") come twice",
                           arrival->head.index, begin, end);
    } else if (at > 0 && spans[at - 1].end == begin) {
        spans[at - 1].end = end;
        if (at < arrival->span_count && spans[at].begin == end) {
            spans[at - 1].end = spans[at].end;
            memmove(spans + at, spans + at + 1, (--arrival->span_count - at) * sizeof *spans);
        }
    } else if (at < arrival->span_count && spans[at].begin == end) {
        spans[at].begin = begin;
    } else if (arrival->span_count >= MAX_SPANS) {
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 " comes in more than %d separate parts",
                           arrival->head.index, MAX_SPANS);
    } else if (!kvfi_array_grow((void **)&arrival->spans, arrival->span_count, &arrival->span_capacity,
                                sizeof *spans)) {
        status = kvfi_fail_memory(error, "the parts of a chunk");
    } else {
        spans = arrival->spans;
        memmove(spans + at + 1, spans + at, (arrival->span_count++ - at) * sizeof *spans);
        spans[at] = (struct kvfi_span){begin, end};
    }
    return status;
}

enum admission { ADMIT, ADMIT_DONE, ADMIT_STALE, ADMIT_FAILED };

/* Says what is to become of a frame of an open chunk. A newer generation starts the chunk anew. */
static enum admission admit(const struct kvfi_frame_data *data, struct kvfi_arrival *arrival, struct kvf_error *error)
{
    struct kvfi_armed *table = arrival->grant->table;
    enum admission result = ADMIT;

    pthread_mutex_lock(&table->lock);
    if (arrival->state == KVFI_ARRIVAL_PLACED) {
        result = ADMIT_DONE;
    } else if (data->generation < arrival->generation) {
        result = ADMIT_STALE;
    } else {
        if (data->generation > arrival->generation) {
            arrival->generation = data->generation;
            arrival->span_count = 0;
            arrival->placed_bytes = 0;
        }
        if (data->bytes > 0 && add_span(arrival, data->offset_bytes, data->offset_bytes + data->bytes, error) != KVF_OK)
            result = ADMIT_FAILED;
    }
    pthread_mutex_unlock(&table->lock);
    return result;
}

static enum kvf_status prepare_unpacking(struct kvfi_conn *conn, struct kvf_error *error)
{
    struct kvfi_transport *transport = conn->owner;
    struct kvfi_receiving *receiving = &conn->receiving;
    enum kvf_status status = kvf_packer_create(receiving->arrival->binding, KVF_UNPACK, transport->own_address,
                                               transport->config.memory_count, &receiving->packer, error);

    if (status != KVF_OK) goto done;
    kvf_packer_seek(receiving->packer, receiving->data.offset_bytes);
    receiving->direct = kvfi_packer_run_bytes(receiving->packer) >= KVFI_LONG_RUN_BYTES;
    if (receiving->gathers) {
        receiving->state = KVFI_RECEIVING_GATHER;
        receiving->gathered_bytes = 0;
        receiving->gathered = kvfi_stage_take(transport);
        if (!receiving->gathered) status = kvfi_fail_memory(error, "a frame");
    } else {
        receiving->state = KVFI_RECEIVING_PLACE;
    }
done:
    return status;
}

/* Opens the chunk of a frame and finds out where its payload goes; at worst it is dropped. */
static void start_data(struct kvfi_conn *conn)
{
    struct kvfi_receiving *receiving = &conn->receiving;
    const struct kvfi_chunk_head *chunk = &receiving->data.chunk;
    struct kvf_error error;
    bool failed = false;
    enum kvf_status status =
        kvfi_armed_open(&conn->owner->armed, chunk, &conn->who, &receiving->arrival, &failed, &error);

    receiving->left_bytes = receiving->data.bytes;
    receiving->state = KVFI_RECEIVING_SKIP;
    if (status != KVF_OK) {
        receiving->arrival = NULL;
        if (failed) kvfi_tell_grant_failed(&conn->owner->queue, chunk->grant, status, error.text);
        answer(conn, chunk, KVF_ERR_REFUSED, error.text);
        return;
    }
    status = kvfi_arrival_bind(receiving->arrival, true, &error);
    if (status != KVF_OK) {
        fail_frame(conn, &error);
        return;
    }
    switch (admit(&receiving->data, receiving->arrival, &error)) {
    case ADMIT:
        if (prepare_unpacking(conn, &error) != KVF_OK) fail_frame(conn, &error);
        break;
    case ADMIT_DONE: answer(conn, chunk, KVF_OK, ""); break;
    case ADMIT_STALE: break;
    case ADMIT_FAILED: fail_frame(conn, &error); break;
    }
}

static void refuse_dead(struct kvfi_conn *conn)
{
    answer(conn, &conn->receiving.data.chunk, KVF_ERR_REFUSED, "the destination withdrew the grant");
    conn->receiving.state = KVFI_RECEIVING_SKIP;
}

static void place(struct kvfi_conn *conn, const void *bytes, int64_t count)
{
    struct kvfi_receiving *receiving = &conn->receiving;

    if (kvfi_grant_begin_place(receiving->arrival->grant)) {
        kvf_packer_run(receiving->packer, (void *)bytes, count);
        kvfi_grant_end_place(receiving->arrival->grant);
    } else {
        refuse_dead(conn);
    }
}

static void check_gathered(struct kvfi_conn *conn)
{
    struct kvfi_receiving *receiving = &conn->receiving;
    uint64_t sum = XXH3_64bits(receiving->gathered, (size_t)receiving->gathered_bytes);
    struct kvf_error error;

    if (sum == receiving->data.checksum) {
        receiving->state = KVFI_RECEIVING_PLACE;
        place(conn, receiving->gathered, receiving->gathered_bytes);
        return;
    }
    kvfi_fail(&error, KVF_ERR_CORRUPT, "chunk %" PRIu32 " bytes [%" PRId64 ",%" PRId64 "): checksum %016" PRIx64
              ", expected %016" PRIx64, receiving->data.chunk.index, receiving->data.offset_bytes,
              receiving->data.offset_bytes + receiving->data.bytes, sum, receiving->data.checksum);
    fail_frame(conn, &error);
}

/* Counts a placed frame; with the chunk's last one tells both sides. */
static void count_placed(struct kvfi_conn *conn)
{
    struct kvfi_receiving *receiving = &conn->receiving;
    struct kvfi_arrival *arrival = receiving->arrival;
    struct kvfi_grant *grant = arrival->grant;
    struct kvfi_placed placed;
    struct kvf_error error;
    bool whole;

    pthread_mutex_lock(&grant->table->lock);
    if (arrival->generation == receiving->data.generation) arrival->placed_bytes += receiving->data.bytes;
    whole = arrival->generation == receiving->data.generation && arrival->placed_bytes == arrival->head.bytes;
    pthread_mutex_unlock(&grant->table->lock);
    if (!whole) return;
    placed = kvfi_arrival_place(arrival);
    if (placed.tell) kvfi_tell_received(&conn->owner->queue, grant->number, arrival->head.bytes, placed.complete);
    if (placed.short_of) {
        kvfi_fail(&error, KVF_ERR_INCOMPLETE_TRANSFER, "the last chunk is placed, %" PRId64 " of %" PRId64
                  " granted bytes came", grant->placed_bytes, grant->bytes);
        kvfi_tell_grant_failed(&conn->owner->queue, grant->number, KVF_ERR_INCOMPLETE_TRANSFER, error.text);
    }
    answer(conn, &arrival->head, placed.short_of ? KVF_ERR_REFUSED : KVF_OK, placed.short_of ? error.text : "");
}

void kvfi_receiving_fini(struct kvfi_conn *conn)
{
    struct kvfi_receiving *receiving = &conn->receiving;

    kvf_packer_destroy(receiving->packer);
    receiving->packer = NULL;
    if (receiving->arrival) kvfi_grant_release(receiving->arrival->grant);
    receiving->arrival = NULL;
    if (receiving->gathered) {
        pthread_mutex_lock(&conn->owner->lock);
        kvfi_stage_give(conn->owner, receiving->gathered);
        pthread_mutex_unlock(&conn->owner->lock);
    }
    receiving->gathered = NULL;
    receiving->state = KVFI_RECEIVING_HEAD;
}

static void end_data(struct kvfi_conn *conn)
{
    struct kvfi_receiving *receiving = &conn->receiving;

    if (receiving->state == KVFI_RECEIVING_GATHER) check_gathered(conn);
    if (receiving->state == KVFI_RECEIVING_PLACE) count_placed(conn);
    kvfi_receiving_fini(conn);
}

/* ---- bytes of the stream ---------------------------------------------------------------------------------------- */

/* Takes payload from `bytes`. Returns how many. */
static size_t take_payload(struct kvfi_conn *conn, const uint8_t *bytes, size_t count)
{
    struct kvfi_receiving *receiving = &conn->receiving;
    int64_t taken = receiving->left_bytes < (int64_t)count ? receiving->left_bytes : (int64_t)count;

    if (receiving->state == KVFI_RECEIVING_PLACE) {
        place(conn, bytes, taken);
    } else if (receiving->state == KVFI_RECEIVING_GATHER) {
        memcpy(receiving->gathered + receiving->gathered_bytes, bytes, (size_t)taken);
        receiving->gathered_bytes += taken;
    }
    receiving->left_bytes -= taken;
    if (receiving->left_bytes == 0) end_data(conn);
    return (size_t)taken;
}

static bool take_frame(struct kvfi_conn *conn, const struct kvfi_frame_head *head, const uint8_t *body)
{
    bool alive = true;
    struct kvf_error error;

    if (conn->outgoing) {
        alive = kvfi_session_frame(conn, head, body);
    } else if (head->kind == KVFI_FRAME_HELLO && conn->state == KVFI_CONN_GREETING && !conn->close_after_send) {
        alive = greet(conn, body, (size_t)head->body_bytes);
    } else if (head->kind != KVFI_FRAME_DATA || conn->state != KVFI_CONN_READY) {
        alive = false;
        kvfi_conn_close(conn, KVF_ERR_PROTOCOL, "unexpected frame");
    } else if (kvfi_frame_parse_data(head, body, &conn->receiving.data, &error) != KVF_OK) {
        alive = false;
        kvfi_conn_close(conn, KVF_ERR_PROTOCOL, error.text);
    } else {
        conn->receiving.gathers = (head->flags & KVFI_FRAME_CHECKSUM) != 0;
        start_data(conn);
        if (conn->receiving.left_bytes == 0) end_data(conn);
    }
    return alive;
}

/* Takes one frame's head and control body, or the fixed part of a DATA frame, when they are all there. Returns the
 * bytes taken, 0 when more must come first, -1 when the connection is closed. */
static ssize_t take_head(struct kvfi_conn *conn, const uint8_t *bytes, size_t count)
{
    struct kvfi_frame_head head;
    struct kvf_error error;
    ssize_t taken = 0;
    size_t whole;

    if (count < KVFI_FRAME_HEAD_BYTES) goto done;
    if (kvfi_frame_parse_head(bytes, &head, &error) != KVF_OK) {
        kvfi_conn_close(conn, KVF_ERR_PROTOCOL, error.text);
        taken = -1;
        goto done;
    }
    whole = KVFI_FRAME_HEAD_BYTES + (head.kind == KVFI_FRAME_DATA ? KVFI_FRAME_DATA_BYTES : (size_t)head.body_bytes);
    if (count < whole) goto done;
    taken = take_frame(conn, &head, bytes + KVFI_FRAME_HEAD_BYTES) ? (ssize_t)whole : -1;
done:
    return taken;
}

/* Takes what was read. What is left of a head that is not whole is kept. False when the connection is closed. */
static bool take_bytes(struct kvfi_conn *conn, const uint8_t *bytes, size_t count)
{
    ssize_t taken = 1;

    while (count > 0 && taken > 0) {
        taken = conn->receiving.state == KVFI_RECEIVING_HEAD ? take_head(conn, bytes, count)
                                                             : (ssize_t)take_payload(conn, bytes, count);
        if (taken <= 0) break;
        bytes += taken;
        count -= (size_t)taken;
    }
    if (taken < 0) return false;
    memcpy(conn->pending, bytes, count);
    conn->pending_bytes = count;
    return true;
}

/* Reads payload straight to its places. Returns what the read returned; 0 also when the grant is dead. */
static ssize_t read_direct(struct kvfi_conn *conn, bool *withdrawn)
{
    struct kvfi_receiving *receiving = &conn->receiving;
    struct iovec iovecs[KVFI_TCP_IOVECS];
    int64_t start = kvfi_packer_position(receiving->packer);
    int64_t listed = 0;
    ssize_t got = 0;
    size_t count;

    *withdrawn = !kvfi_grant_begin_place(receiving->arrival->grant);
    if (*withdrawn) goto done;
    count = kvfi_packer_iovecs(receiving->packer, iovecs, KVFI_TCP_IOVECS, receiving->left_bytes, 1, &listed);
    got = readv(conn->fd, iovecs, (int)count);
    if (got != listed) kvf_packer_seek(receiving->packer, start + (got > 0 ? got : 0));
    kvfi_grant_end_place(receiving->arrival->grant);
    if (got <= 0) goto done;
    receiving->left_bytes -= got;
    if (receiving->left_bytes == 0) end_data(conn);
done:
    return got;
}

static ssize_t read_staged(struct kvfi_conn *conn, bool *alive)
{
    uint8_t *buffer = conn->thread->buffer;
    size_t before = conn->pending_bytes;
    ssize_t got = recv(conn->fd, buffer + KVFI_CONN_PENDING_BYTES, KVFI_STAGE_BYTES, 0);

    if (got <= 0) goto done;
    memcpy(buffer + KVFI_CONN_PENDING_BYTES - before, conn->pending, before);
    conn->pending_bytes = 0;
    *alive = take_bytes(conn, buffer + KVFI_CONN_PENDING_BYTES - before, before + (size_t)got);
done:
    return got;
}

bool kvfi_conn_receive(struct kvfi_conn *conn)
{
    bool alive = true, more = true;

    for (int i = 0; i < TURN_READS && alive && more; i++) {
        const struct kvfi_receiving *receiving = &conn->receiving;
        bool withdrawn = false;
        ssize_t got;

        if (receiving->state == KVFI_RECEIVING_PLACE && receiving->direct &&
            receiving->left_bytes >= KVFI_LONG_RUN_BYTES)
            got = read_direct(conn, &withdrawn);
        else
            got = read_staged(conn, &alive);
        if (withdrawn) {
            refuse_dead(conn);
        } else if (got < 0 && errno == EINTR) {
            continue;
        } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            more = false;
        } else if (got <= 0) {
            kvfi_conn_close(conn, KVF_ERR_PEER_LOST, got == 0 ? "closed by the other side" : strerror(errno));
            alive = false;
        }
    }
    return alive;
}
