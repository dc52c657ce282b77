/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer with protocol 2: one thread, one or several connections, many requests under way on each. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/mooncake/pipe.h"

enum { MAX_LANES = 16, MAX_DEAF = 2 };

/* Of each connection: payload that is ready to be sent, and payload that is asked for. */
#define READY_BYTES (UINT64_C(4) << 20)
#define ASKED_BYTES (UINT64_C(8) << 20)

struct transfer {
    struct kvfi_moon_job *job;
    struct kvfi_moon_lane *lanes[MAX_LANES];
    size_t lane_count;       /* that may be used */
    size_t depth;            /* requests under way: few after a rejection, which ends its connection */
    int deaf;                /* new connections in a row that ended without an answer */
};

/* ---- ends of a connection --------------------------------------------------------------------------------------- */

static void drop_lane(struct transfer *transfer, size_t index)
{
    kvfi_moon_lane_drop(transfer->job->engine, transfer->job->segment, transfer->lanes[index]);
    transfer->lanes[index] = NULL;
}

/* The requests from this one on go back to be sent again; of those before `begun` bytes may have arrived. */
static void take_all_back(struct kvfi_moon_job *job, struct kvfi_moon_pipe *pipe, size_t from, size_t begun)
{
    for (size_t i = pipe->count; i-- > from;) {
        struct kvfi_moon_item *item = &pipe->items[(pipe->first + i) % KVFI_MOON_DEPTH];

        item->begun = item->begun || i < begun;
        kvfi_moon_job_again(job, item);
    }
}

static void on_refused(struct transfer *transfer, size_t index)
{
    struct kvfi_moon_job *job = transfer->job;
    struct kvfi_moon_pipe *pipe = transfer->lanes[index]->pipe;
    struct kvfi_moon_item item = pipe->items[pipe->first];

    kvfi_moon_job_failed(job, &item, false, KVF_ERR_REFUSED, "the peer refused %" PRIu64 " bytes at 0x%" PRIx64
                         ": not inside one of its buffers", item.bytes, item.remote);
    /* It has read nothing behind the one that it refused. */
    take_all_back(job, pipe, 1, 0);
    transfer->depth = 1;
    transfer->deaf = 0;
    drop_lane(transfer, index);
}

/* The connection is of no use any more; what was begun on it is in doubt. */
static void on_lost(struct transfer *transfer, size_t index, enum kvf_status status, const char *why)
{
    struct kvfi_moon_job *job = transfer->job;
    struct kvfi_moon_lane *lane = transfer->lanes[index];
    struct kvfi_moon_pipe *pipe = lane->pipe;
    size_t begun = pipe->sent + (pipe->sent_bytes > 0), in_doubt = begun;
    bool deaf = !lane->reused && !pipe->answered;
    char text[KVF_MOONCAKE_NAME_BYTES + 128];

    /* It was closed before it was used again, as engines that serve one request per connection do. Or answers were lost
     * with it: a peer that refuses a request may reset. It reads no more from this connection, so that all can be sent
     * again, one by one, and the one that it refuses is found. */
    if (status == KVF_ERR_PEER_LOST && begun > 1) transfer->depth = 1;
    if (status == KVF_ERR_PEER_LOST && (begun > 1 || (lane->reused && !pipe->answered))) in_doubt = 0;
    take_all_back(job, pipe, in_doubt, begun);
    for (size_t i = 0; i < in_doubt; i++) {
        struct kvfi_moon_item item = pipe->items[(pipe->first + i) % KVFI_MOON_DEPTH];

        kvfi_moon_job_failed(job, &item, job->is_write, status, "%s; %s of %" PRIu64 " bytes at 0x%" PRIx64
                             " had begun", why, job->is_write ? "the write" : "the read", item.bytes, item.remote);
    }
    drop_lane(transfer, index);
    transfer->deaf = deaf ? transfer->deaf + 1 : 0;
    if (transfer->deaf < MAX_DEAF) return;
    snprintf(text, sizeof text, "peer %s: %s", job->segment->asked, why);
    kvfi_moon_job_halt(job, status, text);
}

/* ---- a round ---------------------------------------------------------------------------------------------------- */

static bool has_lane(const struct transfer *transfer)
{
    for (size_t i = 0; i < transfer->lane_count; i++) {
        if (transfer->lanes[i]) return true;
    }
    return false;
}

static void open_lane(struct transfer *transfer, size_t index)
{
    struct kvfi_moon_job *job = transfer->job;
    struct kvfi_moon_lane *lane = NULL;
    bool only = !has_lane(transfer);
    struct kvf_error error;
    enum kvf_status status =
        kvfi_moon_lane_take(job->engine, job->segment, transfer->deaf > 0, only, &job->limit, &lane, &error);

    if (lane && !lane->pipe) lane->pipe = malloc(sizeof *lane->pipe);
    if (lane && !lane->pipe) {
        kvfi_moon_lane_drop(job->engine, job->segment, lane);
        lane = NULL;
        status = kvfi_fail_memory(&error, "a connection's requests");
    }
    if (lane) {
        kvfi_moon_pipe_begin(lane->pipe);
        transfer->lanes[index] = lane;
    } else if (only) {
        kvfi_moon_job_halt(job, status, error.text);
    } else {
        transfer->lane_count = index > 0 ? index : transfer->lane_count; /* the others will do */
    }
}

static bool has_room(const struct transfer *transfer, const struct kvfi_moon_pipe *pipe)
{
    uint64_t bytes = transfer->job->is_write ? pipe->unsent : pipe->outstanding;

    return pipe->count < transfer->depth && !pipe->send_failed &&
           (pipe->count == 0 || bytes < (transfer->job->is_write ? READY_BYTES : ASKED_BYTES));
}

static void fill(struct transfer *transfer)
{
    struct kvfi_moon_job *job = transfer->job;

    for (size_t i = 0; i < transfer->lane_count && kvfi_moon_job_more(job); i++) {
        if (!transfer->lanes[i]) open_lane(transfer, i);
        if (!transfer->lanes[i]) continue;
        while (has_room(transfer, transfer->lanes[i]->pipe) && kvfi_moon_job_more(job)) {
            struct kvfi_moon_item item = kvfi_moon_job_take(job);

            if (transfer->lanes[i]->pipe->count == 0)
                transfer->lanes[i]->pipe->deadline_ns = kvfi_now_ns() + job->engine->options.progress_timeout_ns;
            kvfi_moon_pipe_add(transfer->lanes[i]->pipe, &item, job->is_write);
        }
    }
}

/* Halted: what is not begun goes. */
static void thin_out(struct transfer *transfer)
{
    struct kvfi_moon_item item;

    for (size_t i = 0; i < transfer->lane_count; i++) {
        while (transfer->lanes[i] && kvfi_moon_pipe_take_back(transfer->lanes[i]->pipe, &item))
            kvfi_moon_job_again(transfer->job, &item);
    }
}

static void send_all(struct transfer *transfer)
{
    struct kvfi_moon_job *job = transfer->job;

    for (size_t i = 0; i < transfer->lane_count; i++) {
        struct kvfi_moon_lane *lane = transfer->lanes[i];

        if (lane && kvfi_moon_pipe_send(lane->pipe, lane->fd, job))
            lane->pipe->deadline_ns = kvfi_now_ns() + job->engine->options.progress_timeout_ns;
    }
}

static void receive(struct transfer *transfer, size_t index)
{
    struct kvfi_moon_job *job = transfer->job;
    struct kvfi_moon_lane *lane = transfer->lanes[index];
    bool moved = false;
    int64_t done = job->done;
    enum kvfi_moon_flow flow = kvfi_moon_pipe_receive(lane->pipe, lane->fd, job, &moved);

    if (job->done > done) {
        transfer->deaf = 0;
        transfer->depth = transfer->depth < KVFI_MOON_DEPTH / 2 ? transfer->depth * 2 : KVFI_MOON_DEPTH;
    }
    if (moved) lane->pipe->deadline_ns = kvfi_now_ns() + job->engine->options.progress_timeout_ns;
    if (flow == KVFI_MOON_REFUSED) on_refused(transfer, index);
    else if (flow == KVFI_MOON_LOST) on_lost(transfer, index, KVF_ERR_PEER_LOST, "the connection was closed");
    else if (flow == KVFI_MOON_NONSENSE)
        on_lost(transfer, index, KVF_ERR_PROTOCOL, "expected a status of data protocol 2, found other bytes");
    else if (lane->pipe->send_failed) on_lost(transfer, index, KVF_ERR_PEER_LOST, "the connection was reset");
}

/* Waits until a connection can go on, at most until something is late. */
static void wait_for_any(struct transfer *transfer, int64_t until_ns)
{
    struct kvfi_moon_job *job = transfer->job;
    struct pollfd waits[MAX_LANES + 1];
    int64_t left_ns;
    struct timespec left;
    int count;

    for (size_t i = 0; i < transfer->lane_count; i++) {
        struct kvfi_moon_pipe *pipe = transfer->lanes[i] ? transfer->lanes[i]->pipe : NULL;

        waits[i] = (struct pollfd){.fd = pipe && pipe->count > 0 ? transfer->lanes[i]->fd : -1, .events = POLLIN};
        if (pipe && pipe->sent < pipe->count && !pipe->send_failed) waits[i].events |= POLLOUT;
        if (pipe && pipe->count > 0 && pipe->deadline_ns < until_ns) until_ns = pipe->deadline_ns;
    }
    /* Once it is stopped, what stopped it stays readable. */
    waits[transfer->lane_count] = (struct pollfd){.fd = job->halted ? -1 : job->limit.wake_fd, .events = POLLIN};
    left_ns = until_ns - kvfi_now_ns();
    if (left_ns < 0) left_ns = 0;
    left = (struct timespec){.tv_sec = left_ns / KVFI_SECOND, .tv_nsec = left_ns % KVFI_SECOND};
    count = ppoll(waits, transfer->lane_count + 1, &left, NULL);
    for (size_t i = 0; count > 0 && i < transfer->lane_count; i++) {
        if (waits[i].fd < 0 || waits[i].revents == 0) continue;
        if (waits[i].revents & POLLOUT) transfer->lanes[i]->pipe->blocked = false;
        if (waits[i].revents & (POLLIN | POLLERR | POLLHUP)) receive(transfer, i);
    }
}

static void drop_late(struct transfer *transfer, int64_t now_ns)
{
    const struct kvfi_moon_job *job = transfer->job;
    char why[96];

    for (size_t i = 0; i < transfer->lane_count; i++) {
        struct kvfi_moon_pipe *pipe = transfer->lanes[i] ? transfer->lanes[i]->pipe : NULL;

        if (!pipe || pipe->count == 0) continue;
        if (job->halted && now_ns >= job->ending_ns) {
            on_lost(transfer, i, job->status != KVF_OK ? job->status : KVF_ERR_TIMEOUT, "the transfer was over");
        } else if (now_ns >= pipe->deadline_ns) {
            snprintf(why, sizeof why, "nothing moved for %" PRId64 " ms",
                     job->engine->options.progress_timeout_ns / KVFI_MS);
            on_lost(transfer, i, KVF_ERR_TIMEOUT, why);
        }
    }
}

/* ---- the transfer ----------------------------------------------------------------------------------------------- */

static bool is_busy(const struct transfer *transfer)
{
    for (size_t i = 0; i < transfer->lane_count; i++) {
        if (transfer->lanes[i] && transfer->lanes[i]->pipe->count > 0) return true;
    }
    return false;
}

/* True when a connection could send more at once. */
static bool can_go_on(struct transfer *transfer)
{
    bool more = kvfi_moon_job_more(transfer->job);

    for (size_t i = 0; i < transfer->lane_count; i++) {
        const struct kvfi_moon_pipe *pipe = transfer->lanes[i] ? transfer->lanes[i]->pipe : NULL;

        if (pipe && !pipe->blocked && !pipe->send_failed &&
            (pipe->sent < pipe->count || (more && has_room(transfer, pipe))))
            return true;
    }
    return more && !has_lane(transfer);
}

void kvfi_moon_run_v2(struct kvfi_moon_job *job)
{
    struct transfer transfer = {.job = job, .lane_count = (size_t)job->engine->options.lanes,
                                .depth = KVFI_MOON_DEPTH};

    for (;;) {
        int64_t now_ns = kvfi_now_ns();

        kvfi_moon_job_look(job, now_ns);
        if (job->halted) thin_out(&transfer);
        drop_late(&transfer, now_ns);
        fill(&transfer);
        if (!is_busy(&transfer) && !kvfi_moon_job_more(job)) break;
        send_all(&transfer);
        /* Sending the rest of a write whose answer came before it can end the last of them. */
        if (is_busy(&transfer) && !can_go_on(&transfer))
            wait_for_any(&transfer, job->halted ? job->ending_ns : job->limit.deadline_ns);
    }
    for (size_t i = 0; i < MAX_LANES; i++) {
        if (transfer.lanes[i]) kvfi_moon_lane_put(job->engine, job->segment, transfer.lanes[i]);
    }
}
