/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/pipe.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/fault/wire.h"

enum { PIECES = 512, SMALL_BYTES = 32768, SEND_BYTES = 4194304 };

void kvfi_moon_pipe_begin(struct kvfi_moon_pipe *pipe)
{
    const size_t from = offsetof(struct kvfi_moon_pipe, first);

    memset((char *)pipe + from, 0, offsetof(struct kvfi_moon_pipe, stage) - from);
}

static size_t slot(const struct kvfi_moon_pipe *pipe, size_t number)
{
    return (pipe->first + number) % KVFI_MOON_DEPTH;
}

void kvfi_moon_pipe_add(struct kvfi_moon_pipe *pipe, const struct kvfi_moon_item *item, bool is_write)
{
    const struct kvfi_moon_header header = {.bytes = item->bytes, .address = item->remote,
                                            .opcode = is_write ? KVFI_MOON_WRITE_2 : KVFI_MOON_READ_2};
    size_t at = slot(pipe, pipe->count);

    pipe->items[at] = *item;
    kvfi_moon_pack_header(&header, pipe->heads[at]);
    pipe->count++;
    pipe->unsent += item->bytes;
    pipe->outstanding += item->bytes;
}

bool kvfi_moon_pipe_take_back(struct kvfi_moon_pipe *pipe, struct kvfi_moon_item *item)
{
    if (pipe->count <= pipe->sent + (pipe->sent_bytes > 0)) return false;
    *item = pipe->items[slot(pipe, --pipe->count)];
    pipe->unsent -= item->bytes;
    pipe->outstanding -= item->bytes;
    return true;
}

/* The first request has its answer. */
static void pop(struct kvfi_moon_pipe *pipe, struct kvfi_moon_job *job)
{
    struct kvfi_moon_item item = pipe->items[pipe->first];

    pipe->first = slot(pipe, 1);
    pipe->count--;
    pipe->sent--;
    pipe->outstanding -= item.bytes;
    kvfi_moon_job_done(job, &item);
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

static void add_piece(struct iovec *pieces, size_t *count, const void *bytes, size_t length)
{
    struct iovec *last = *count > 0 ? &pieces[*count - 1] : NULL;

    if (last && (const char *)last->iov_base + last->iov_len == bytes) last->iov_len += length;
    else pieces[(*count)++] = (struct iovec){(void *)(uintptr_t)bytes, length};
}

/* Lists what is to be sent, at most so much that answers are read now and then. */
static size_t list_pieces(const struct kvfi_moon_pipe *pipe, bool is_write, struct iovec *pieces)
{
    uint64_t skip = pipe->sent_bytes, bytes = 0;
    size_t count = 0;

    for (size_t i = pipe->sent; i < pipe->count && count + 2 <= PIECES && bytes < SEND_BYTES; i++) {
        size_t at = slot(pipe, i);
        uint64_t payload = is_write ? pipe->items[at].bytes : 0;

        if (skip < KVFI_MOON_HEADER_BYTES)
            add_piece(pieces, &count, pipe->heads[at] + skip, KVFI_MOON_HEADER_BYTES - (size_t)skip);
        skip = skip < KVFI_MOON_HEADER_BYTES ? 0 : skip - KVFI_MOON_HEADER_BYTES;
        if (payload > skip) {
            uint64_t step = payload - skip < SEND_BYTES ? payload - skip : SEND_BYTES;

            add_piece(pieces, &count, (const void *)(uintptr_t)(pipe->items[at].local + skip), (size_t)step);
            bytes += step;
            if (step < payload - skip) break;
        }
        skip = 0;
    }
    return count;
}

static void account(struct kvfi_moon_pipe *pipe, bool is_write, uint64_t sent)
{
    while (pipe->sent < pipe->count) {
        const struct kvfi_moon_item *item = &pipe->items[slot(pipe, pipe->sent)];
        uint64_t left = KVFI_MOON_HEADER_BYTES + (is_write ? item->bytes : 0) - pipe->sent_bytes;

        if (sent < left) break;
        sent -= left;
        pipe->sent_bytes = 0;
        pipe->sent++;
        pipe->unsent -= item->bytes;
    }
    if (pipe->sent < pipe->count) pipe->sent_bytes += sent;
}

/* Ends the list with the first byte of a payload, flipped. */
static size_t corrupt(const struct kvfi_moon_pipe *pipe, struct kvfi_wire_fault *wire, struct iovec *pieces,
                      size_t count, char *flipped)
{
    for (size_t i = 0; i < count && kvfi_wire_may_corrupt(wire); i++) {
        const char *base = pieces[i].iov_base;

        if ((base >= (const char *)pipe->heads && base < (const char *)pipe->heads + sizeof pipe->heads) ||
            !kvfi_wire_corrupts(wire))
            continue;
        *flipped = (char)(*base ^ 1);
        pieces[i] = (struct iovec){flipped, 1};
        return i + 1;
    }
    return count;
}

/* Shortens the list to `room` bytes. */
static size_t shorten(struct iovec *pieces, size_t count, int64_t room)
{
    for (size_t i = 0; i < count; i++) {
        if ((uint64_t)room <= pieces[i].iov_len) {
            pieces[i].iov_len = (size_t)room;
            return i + 1;
        }
        room -= (int64_t)pieces[i].iov_len;
    }
    return count;
}

bool kvfi_moon_pipe_send(struct kvfi_moon_pipe *pipe, int fd, struct kvfi_moon_job *job)
{
    bool moved = false;

    while (pipe->sent < pipe->count && !pipe->blocked && !pipe->send_failed) {
        struct iovec pieces[PIECES];
        struct msghdr message = {.msg_iov = pieces};
        char flipped;
        ssize_t sent;

        message.msg_iovlen = list_pieces(pipe, job->is_write, pieces);
        if (job->wire) {
            message.msg_iovlen = corrupt(pipe, job->wire, pieces, (size_t)message.msg_iovlen, &flipped);
            message.msg_iovlen = shorten(pieces, (size_t)message.msg_iovlen, kvfi_wire_room(job->wire));
        }
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) {
            account(pipe, job->is_write, (uint64_t)sent);
            moved = true;
            if (kvfi_wire_cuts(job->wire, sent)) shutdown(fd, SHUT_RDWR);
        } else if (errno == EAGAIN) {
            pipe->blocked = true;
        } else if (errno != EINTR) {
            pipe->send_failed = true;
        }
        while (pipe->early > 0 && pipe->sent > 0) {
            pipe->early--;
            pop(pipe, job);
        }
    }
    return moved;
}

/* ---- receiving -------------------------------------------------------------------------------------------------- */

static enum kvfi_moon_flow on_status(struct kvfi_moon_pipe *pipe, struct kvfi_moon_job *job)
{
    uint32_t code;

    pipe->status_bytes = 0;
    if (!kvfi_moon_parse_status(pipe->status, &code) || pipe->count == 0) return KVFI_MOON_NONSENSE;
    pipe->answered = true;
    if (code != KVFI_MOON_ACCEPTED) return KVFI_MOON_REFUSED;
    if (!job->is_write) {
        if (pipe->sent == 0) return KVFI_MOON_NONSENSE;
        pipe->body = (char *)(uintptr_t)pipe->items[pipe->first].local;
        pipe->body_left = pipe->items[pipe->first].bytes;
    } else if (pipe->sent > 0) {
        pop(pipe, job);
    } else {
        /* It is told that all is there while some is still to be sent: the reference goes on, too. */
        if (pipe->sent_bytes == 0 || pipe->early > 0) return KVFI_MOON_NONSENSE;
        pipe->early = 1;
    }
    return KVFI_MOON_FLOWS;
}

static enum kvfi_moon_flow take(struct kvfi_moon_pipe *pipe, struct kvfi_moon_job *job, const char *input, size_t bytes)
{
    enum kvfi_moon_flow flow = KVFI_MOON_FLOWS;

    while (bytes > 0 && flow == KVFI_MOON_FLOWS) {
        size_t step;

        if (pipe->body_left > 0) {
            step = bytes < pipe->body_left ? bytes : (size_t)pipe->body_left;
            memcpy(pipe->body, input, step);
            pipe->body += step;
            pipe->body_left -= step;
            if (pipe->body_left == 0) pop(pipe, job);
        } else {
            step = KVFI_MOON_STATUS_BYTES - pipe->status_bytes;
            if (step > bytes) step = bytes;
            memcpy(pipe->status + pipe->status_bytes, input, step);
            pipe->status_bytes += step;
            if (pipe->status_bytes == KVFI_MOON_STATUS_BYTES) flow = on_status(pipe, job);
        }
        input += step;
        bytes -= step;
    }
    return flow;
}

/* True when what comes next is worth a copy, so that many answers come with one call. */
static bool is_small(const struct kvfi_moon_pipe *pipe, const struct kvfi_moon_job *job)
{
    size_t next = pipe->body_left > 0 && pipe->count > 1 ? 1 : 0;

    return job->is_write || pipe->count == 0 || pipe->items[slot(pipe, next)].bytes < SMALL_BYTES;
}

enum kvfi_moon_flow kvfi_moon_pipe_receive(struct kvfi_moon_pipe *pipe, int fd, struct kvfi_moon_job *job, bool *moved)
{
    enum kvfi_moon_flow flow = KVFI_MOON_FLOWS;
    bool more = true;

    while (more && flow == KVFI_MOON_FLOWS && pipe->count > 0) {
        size_t body = pipe->body_left < SEND_BYTES ? (size_t)pipe->body_left : SEND_BYTES;
        size_t rest = is_small(pipe, job) ? KVFI_MOON_PIPE_STAGE : KVFI_MOON_STATUS_BYTES - pipe->status_bytes;
        struct iovec pieces[2] = {{pipe->body, body}, {pipe->stage, body < pipe->body_left ? 0 : rest}};
        struct msghdr message = {.msg_iov = body > 0 ? pieces : pieces + 1, .msg_iovlen = body > 0 ? 2 : 1};
        ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
        size_t direct;

        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) return KVFI_MOON_LOST;
        *moved = true;
        more = (size_t)got == body + pieces[1].iov_len;
        direct = (size_t)got < body ? (size_t)got : body;
        if (direct > 0) {
            pipe->body += direct;
            pipe->body_left -= direct;
            if (pipe->body_left == 0) pop(pipe, job);
        }
        flow = take(pipe, job, pipe->stage, (size_t)got - direct);
    }
    return flow;
}
