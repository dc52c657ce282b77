/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of a data server: requests in, replies out. All by its thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <linux/sockios.h>

#include "base/array.h"
#include "sys/clock.h"
#include "transport/mooncake/server.h"

enum {
    SMALL_BYTES = 32768, /* bodies below come in through the stage, many at a time */
    TURN_BYTES = 8388608, /* read from one connection before others have their turn */
    REPLY_PIECES = 128,
    UNTOLD_BYTES = 1048576, /* written bytes whose status may wait for more input */
    WAKE_BYTES = 2097152, /* of a body that this thread may sleep through */
    LARGE_BYTES = 393216 /* more of a body than that is better taken at once than in turn */
};

#define DRAIN_BYTES (UINT64_C(64) << 20)
#define DRAIN_NS (2 * KVFI_SECOND)

bool kvfi_moon_conn_is_idle(const struct kvfi_moon_conn *conn)
{
    return conn->deadline_ns == 0;
}

bool kvfi_moon_conn_touches_revoked(const struct kvfi_moon_conn *conn)
{
    bool touches = kvfi_moon_use_is_revoked(&conn->use);

    for (size_t i = 0; i < conn->reply_count; i++)
        touches = touches ||
                  kvfi_moon_use_is_revoked(&conn->replies[(conn->reply_first + i) % KVFI_MOON_REPLIES].use);
    return touches;
}

static void unlink_conn(struct kvfi_moon_conn *conn)
{
    struct kvfi_moon_thread *thread = conn->thread;

    *(conn->previous ? &conn->previous->next : &thread->first) = conn->next;
    *(conn->next ? &conn->next->previous : &thread->last) = conn->previous;
}

static void set_deadline(struct kvfi_moon_conn *conn, int64_t deadline_ns)
{
    conn->thread->busy += (deadline_ns != 0) - (conn->deadline_ns != 0);
    conn->deadline_ns = deadline_ns;
}

static void set_wake_bytes(struct kvfi_moon_conn *conn, int bytes)
{
    conn->thread->large += (bytes > LARGE_BYTES) - (conn->wake_bytes > LARGE_BYTES);
    conn->wake_bytes = bytes;
}

static void release(struct kvfi_moon_conn *conn, struct kvfi_moon_use *use, bool arrived)
{
    kvfi_moon_regions_release(conn->thread->server->serving.regions, use, arrived);
}

void kvfi_moon_conn_close(struct kvfi_moon_conn *conn, const char *why)
{
    struct kvfi_moon_thread *thread = conn->thread;

    if (conn->fd < 0) return;
    if (why) kvfi_logf(thread->server->serving.log, KVF_LOG_DEBUG, "mooncake: a data connection is closed: %s", why);
    close(conn->fd);
    conn->fd = -1;
    kvfi_moon_hosts_remove(&thread->server->hosts, &conn->origin);
    set_deadline(conn, 0);
    set_wake_bytes(conn, 0);
    release(conn, &conn->use, false);
    while (conn->reply_count > 0) {
        release(conn, &conn->replies[conn->reply_first].use, false);
        conn->reply_first = (conn->reply_first + 1) % KVFI_MOON_REPLIES;
        conn->reply_count--;
    }
    unlink_conn(conn);
    conn->next = thread->dead;
    thread->dead = conn;
    thread->count--;
}

/* Goes to the end of the list: was active just now. */
static void touch(struct kvfi_moon_conn *conn)
{
    struct kvfi_moon_thread *thread = conn->thread;

    if (!conn->next) return;
    unlink_conn(conn);
    conn->previous = thread->last;
    conn->next = NULL;
    *(thread->last ? &thread->last->next : &thread->first) = conn;
    thread->last = conn;
}

static void wait_for(struct kvfi_moon_conn *conn, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};

    if (events == conn->events) return;
    conn->events = events;
    epoll_ctl(conn->thread->epoll, EPOLL_CTL_MOD, conn->fd, &event);
}

/* Sleeps until a large body is there, or much of it: being woken for every piece costs more than the piece. */
static void wait_for_much(struct kvfi_moon_conn *conn)
{
    int wanted = conn->body_left < SMALL_BYTES ? 1 : conn->body_left < WAKE_BYTES ? (int)conn->body_left : WAKE_BYTES;

    if (wanted == conn->wake_bytes || (wanted == 1 && conn->wake_bytes == 0)) return;
    if (setsockopt(conn->fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) set_wake_bytes(conn, wanted);
}

/* ---- replies ---------------------------------------------------------------------------------------------------- */

static uint64_t reply_bytes(const struct kvfi_moon_reply *reply)
{
    return reply->use.bytes + (reply->with_status ? KVFI_MOON_STATUS_BYTES : 0);
}

/* Adds [skip, end) of the reply to the list. */
static size_t add_pieces(const struct kvfi_moon_reply *reply, uint64_t skip, struct iovec *pieces)
{
    size_t count = 0;

    if (reply->with_status) {
        if (skip < KVFI_MOON_STATUS_BYTES)
            pieces[count++] = (struct iovec){(void *)(reply->status + skip), KVFI_MOON_STATUS_BYTES - (size_t)skip};
        skip = skip < KVFI_MOON_STATUS_BYTES ? 0 : skip - KVFI_MOON_STATUS_BYTES;
    }
    if (reply->use.bytes > skip)
        pieces[count++] = (struct iovec){(char *)(uintptr_t)reply->use.address + skip,
                                         (size_t)(reply->use.bytes - skip)};
    return count;
}

static void replied(struct kvfi_moon_conn *conn, uint64_t sent)
{
    while (conn->reply_count > 0) {
        struct kvfi_moon_reply *reply = &conn->replies[conn->reply_first];
        uint64_t left = reply_bytes(reply) - conn->reply_sent;

        if (sent < left) break;
        sent -= left;
        conn->reply_sent = 0;
        release(conn, &reply->use, false);
        conn->reply_first = (conn->reply_first + 1) % KVFI_MOON_REPLIES;
        conn->reply_count--;
    }
    conn->reply_sent += conn->reply_count > 0 ? sent : 0;
}

/* Sends what the socket takes. False when the connection is gone. `*moved` is set when something went out. */
static bool send_replies(struct kvfi_moon_conn *conn, bool *moved)
{
    while (conn->reply_count > 0) {
        struct iovec pieces[REPLY_PIECES];
        struct msghdr message = {.msg_iov = pieces};
        uint64_t skip = conn->reply_sent;
        ssize_t sent;

        for (size_t i = 0; i < conn->reply_count && message.msg_iovlen + 2 <= REPLY_PIECES; i++) {
            message.msg_iovlen += add_pieces(&conn->replies[(conn->reply_first + i) % KVFI_MOON_REPLIES], skip,
                                             pieces + message.msg_iovlen);
            skip = 0;
        }
        sent = sendmsg(conn->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
            kvfi_moon_conn_close(conn, "its peer takes no reply");
            return false;
        }
        *moved = true;
        replied(conn, (uint64_t)sent);
    }
    return true;
}

static struct kvfi_moon_reply *add_reply(struct kvfi_moon_conn *conn)
{
    struct kvfi_moon_reply *reply;

    if (!conn->replies) conn->replies = kvfi_alloc_zeroed(KVFI_MOON_REPLIES, sizeof *conn->replies);
    if (!conn->replies) return NULL;
    reply = &conn->replies[(conn->reply_first + conn->reply_count++) % KVFI_MOON_REPLIES];
    *reply = (struct kvfi_moon_reply){.with_status = false};
    return reply;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* Answers a request that may not be, and reads no more. Without a reason its header is none. */
static bool refuse(struct kvfi_moon_conn *conn, const struct kvfi_moon_refusal *refusal)
{
    bool with_status = refusal && kvfi_moon_is_v2(conn->request.opcode);
    struct kvfi_moon_reply *reply = with_status ? add_reply(conn) : NULL;

    kvfi_moon_refusals_tell(&conn->thread->server->refusals, conn->fd, conn->head, refusal);
    if (reply) reply->with_status = true;
    if (reply) kvfi_moon_pack_status(KVFI_MOON_REJECTED, reply->status);
    conn->refused = true;
    conn->refused_aloud = with_status;
    conn->refused_write = refusal && !with_status && kvfi_moon_is_write(conn->request.opcode);
    return true;
}

static bool wrote(struct kvfi_moon_conn *conn)
{
    struct kvfi_moon_reply *reply = NULL;

    release(conn, &conn->use, true);
    if (!kvfi_moon_is_v2(conn->request.opcode)) return true;
    reply = add_reply(conn);
    if (!reply) return false;
    reply->with_status = true;
    kvfi_moon_pack_status(KVFI_MOON_ACCEPTED, reply->status);
    return true;
}

/* A read is answered from where its bytes lie, which are used until they are sent. */
static bool begin_read(struct kvfi_moon_conn *conn)
{
    const struct kvfi_moon_header *request = &conn->request;
    struct kvfi_moon_reply *reply = add_reply(conn);
    struct kvfi_moon_refusal refusal;

    conn->many = true;
    if (!reply) return false;
    if (!kvfi_moon_regions_use(conn->thread->server->serving.regions, false, request->address, request->bytes,
                               &reply->use, &refusal)) {
        conn->reply_count--;
        return refuse(conn, &refusal);
    }
    reply->with_status = kvfi_moon_is_v2(request->opcode);
    if (reply->with_status) kvfi_moon_pack_status(KVFI_MOON_ACCEPTED, reply->status);
    return true;
}

static bool begin_write(struct kvfi_moon_conn *conn)
{
    const struct kvfi_moon_header *request = &conn->request;
    struct kvfi_moon_refusal refusal;

    if (!kvfi_moon_regions_use(conn->thread->server->serving.regions, true, request->address, request->bytes,
                               &conn->use, &refusal))
        return refuse(conn, &refusal);
    conn->body = (char *)(uintptr_t)request->address;
    conn->body_left = request->bytes;
    conn->many = request->bytes < SMALL_BYTES;
    return true;
}

/* A header is complete. False without memory. */
static bool begin_request(struct kvfi_moon_conn *conn)
{
    conn->head_bytes = 0;
    if (!kvfi_moon_parse_header(conn->head, &conn->request)) return refuse(conn, NULL);
    return kvfi_moon_is_write(conn->request.opcode) ? begin_write(conn) : begin_read(conn);
}

/* Takes input in. Returns how much of it: all, unless replies wait for room or the connection is refused. -1: no
 * memory. */
static ssize_t take(struct kvfi_moon_conn *conn, const char *input, size_t bytes)
{
    size_t at = 0;
    bool good = true;

    while (good && at < bytes && !conn->refused && conn->reply_count < KVFI_MOON_REPLIES) {
        if (conn->body_left > 0) {
            size_t step = bytes - at < conn->body_left ? bytes - at : (size_t)conn->body_left;

            memcpy(conn->body, input + at, step);
            conn->body += step;
            conn->body_left -= step;
            at += step;
            if (conn->body_left == 0) good = wrote(conn);
        } else {
            size_t step = KVFI_MOON_HEADER_BYTES - conn->head_bytes;

            if (step > bytes - at) step = bytes - at;
            memcpy(conn->head + conn->head_bytes, input + at, step);
            conn->head_bytes += step;
            at += step;
            if (conn->head_bytes == KVFI_MOON_HEADER_BYTES) good = begin_request(conn);
        }
    }
    return good ? (ssize_t)at : -1;
}

/* Takes input in, and keeps what there is no room for. */
static bool take_or_hold(struct kvfi_moon_conn *conn, const char *input, size_t bytes)
{
    ssize_t taken = take(conn, input, bytes);

    if (taken < 0) return false;
    if ((size_t)taken == bytes || conn->refused) return true;
    conn->held = malloc(bytes - (size_t)taken);
    if (!conn->held) return false;
    conn->held_bytes = bytes - (size_t)taken;
    conn->held_at = 0;
    memcpy(conn->held, input + taken, conn->held_bytes);
    return true;
}

static bool take_held(struct kvfi_moon_conn *conn)
{
    ssize_t taken = take(conn, conn->held + conn->held_at, conn->held_bytes - conn->held_at);

    if (taken < 0) return false;
    conn->held_at += (size_t)taken;
    if (conn->held_at < conn->held_bytes && !conn->refused) return true;
    free(conn->held);
    conn->held = NULL;
    return true;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static bool lose(struct kvfi_moon_conn *conn, const char *why)
{
    kvfi_moon_conn_close(conn, why);
    return false;
}

/* One call into the kernel. False when the connection is gone. `*bytes` 0: nothing more for now. */
static bool read_once(struct kvfi_moon_conn *conn, size_t *bytes)
{
    size_t body = conn->body_left < TURN_BYTES ? (size_t)conn->body_left : TURN_BYTES;
    size_t rest = conn->many ? KVFI_MOON_STAGE_BYTES : KVFI_MOON_HEADER_BYTES - conn->head_bytes;
    struct iovec pieces[2] = {{conn->body, body}, {conn->thread->stage, body < conn->body_left ? 0 : rest}};
    struct msghdr message = {.msg_iov = body > 0 ? pieces : pieces + 1, .msg_iovlen = body > 0 ? 2 : 1};
    ssize_t got = recvmsg(conn->fd, &message, 0);
    size_t asked = body + pieces[1].iov_len, direct;

    *bytes = 0;
    if (got < 0) return errno == EAGAIN || errno == EINTR || lose(conn, strerror(errno));
    if (got == 0) {
        conn->ended = true;
        return true;
    }
    direct = (size_t)got < body ? (size_t)got : body;
    if (direct > 0) {
        conn->body += direct;
        conn->body_left -= direct;
        if (conn->body_left == 0 && !wrote(conn)) return lose(conn, "out of memory");
    }
    if ((size_t)got > direct && !take_or_hold(conn, conn->thread->stage, (size_t)got - direct))
        return lose(conn, "out of memory");
    /* Less than was asked for: there is no more. The size is nothing then, so that a call is saved. */
    *bytes = (size_t)got < asked ? 0 : (size_t)got;
    return true;
}

static bool wants_input(const struct kvfi_moon_conn *conn)
{
    return !conn->refused && !conn->ended && !conn->held && conn->reply_count < KVFI_MOON_REPLIES;
}

/* Reads until there is no more, or others must have their turn. */
static bool read_requests(struct kvfi_moon_conn *conn, bool *moved)
{
    size_t total = 0, untold = 0, bytes = 1;

    while (bytes > 0 && total < TURN_BYTES && wants_input(conn)) {
        if (!read_once(conn, &bytes)) return false;
        *moved = true;
        total += bytes;
        untold += bytes;
        if ((untold >= UNTOLD_BYTES || conn->reply_count >= KVFI_MOON_REPLIES / 2) && conn->reply_count > 0) {
            untold = 0;
            if (!send_replies(conn, moved)) return false;
        }
    }
    return true;
}

/* Throws away what a refused peer still sends, so that it can read its status before it hears of the end. */
static void drain(struct kvfi_moon_conn *conn)
{
    ssize_t got = 1;

    while (got > 0 && conn->drain_left > 0) {
        got = recv(conn->fd, conn->thread->stage, KVFI_MOON_STAGE_BYTES, 0);
        if (got > 0) conn->drain_left -= (uint64_t)got < conn->drain_left ? (uint64_t)got : conn->drain_left;
    }
    if (got == 0 || conn->drain_left == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        kvfi_moon_conn_close(conn, "refused");
}

/* ---- after a turn ----------------------------------------------------------------------------------------------- */

static void begin_draining(struct kvfi_moon_conn *conn)
{
    conn->draining = true;
    conn->drain_left = DRAIN_BYTES;
    set_deadline(conn, kvfi_now_ns() + DRAIN_NS);
    shutdown(conn->fd, SHUT_WR);
    wait_for(conn, EPOLLIN);
    drain(conn);
}

/* Its bytes may have been read with its header: the kernel would see nothing unread, and end in order. Replies that are
 * still on their way go first. */
static void end_refused(struct kvfi_moon_conn *conn)
{
    const struct linger at_once = {.l_onoff = 1};
    int unsent = 0;

    if (conn->refused_write && ioctl(conn->fd, SIOCOUTQ, &unsent) == 0 && unsent == 0)
        setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    kvfi_moon_conn_close(conn, "refused");
}

/* Decides what is waited for. `moved`: bytes went in or out. */
static void settle(struct kvfi_moon_conn *conn, bool moved)
{
    bool inside = conn->head_bytes > 0 || conn->body_left > 0 || conn->reply_count > 0 || conn->held;

    wait_for_much(conn);
    if (conn->reply_count == 0 && conn->refused) {
        if (conn->refused_aloud) begin_draining(conn);
        else end_refused(conn);
        return;
    }
    if (conn->ended && conn->reply_count == 0 && !conn->held) {
        kvfi_moon_conn_close(conn, inside ? "ended inside of a request" : NULL);
        return;
    }
    if (!inside) set_deadline(conn, 0);
    else if (moved || conn->deadline_ns == 0)
        set_deadline(conn, kvfi_now_ns() + conn->thread->server->serving.progress_timeout_ns);
    wait_for(conn, (wants_input(conn) ? EPOLLIN : 0) | (conn->reply_count > 0 ? EPOLLOUT : 0));
}

void kvfi_moon_conn_overdue(struct kvfi_moon_conn *conn)
{
    int there = 0;

    if (conn->wake_bytes > 1 && ioctl(conn->fd, FIONREAD, &there) == 0 && there > 0)
        kvfi_moon_conn_ready(conn, EPOLLIN);
    else
        kvfi_moon_conn_close(conn, "stalled");
}

void kvfi_moon_conn_ready(struct kvfi_moon_conn *conn, uint32_t events)
{
    bool moved = false;

    if (conn->fd < 0) return;
    if (conn->draining) {
        drain(conn);
        return;
    }
    if ((events & EPOLLERR) != 0 && (events & EPOLLIN) == 0) {
        kvfi_moon_conn_close(conn, "reset");
        return;
    }
    touch(conn);
    /* What is held back goes on once all replies are out; while the socket does not take them, it waits. */
    do {
        if (!send_replies(conn, &moved)) return;
        if (conn->held && conn->reply_count == 0 && !take_held(conn)) {
            kvfi_moon_conn_close(conn, "out of memory");
            return;
        }
        if (!conn->held && !read_requests(conn, &moved)) return;
        if (!send_replies(conn, &moved)) return;
    } while (conn->held && conn->reply_count == 0);
    settle(conn, moved);
}
