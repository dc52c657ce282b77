/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer with protocol 1, one request after the other on one connection.
 *
 * Nobody answers a write of protocol 1. What proves that it was read is an orderly end: this side says that it sends no
 * more, and the peer, which has read everything by then, closes; had it bytes left unread, it would reset. So writes go
 * in runs, each on a connection of its own. How many writes a connection takes is found out: engines up to 0.3.9 serve
 * one and close, later ones go on. A run that was reset is made again one by one: writing the same bytes to the same
 * place twice does no harm.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <linux/sockios.h>

#include "base/error.h"
#include "sys/clock.h"
#include "transport/mooncake/frame.h"
#include "transport/mooncake/job.h"

enum { RUN = 64, ATTEMPTS = 20, STEP_BYTES = 4194304 };

/* Until something must have moved. */
static struct kvfi_moon_limit progress_limit(const struct kvfi_moon_job *job)
{
    struct kvfi_moon_limit limit = job->limit;
    int64_t progress_ns = kvfi_now_ns() + job->engine->options.progress_timeout_ns;

    if (progress_ns < limit.deadline_ns) limit.deadline_ns = progress_ns;
    return limit;
}

static enum kvf_status send_header(const struct kvfi_moon_job *job, int fd, const struct kvfi_moon_item *item)
{
    const struct kvfi_moon_header header = {.bytes = item->bytes, .address = item->remote,
                                            .opcode = job->is_write ? KVFI_MOON_WRITE_1 : KVFI_MOON_READ_1};
    struct kvfi_moon_limit limit = progress_limit(job);
    uint8_t bytes[KVFI_MOON_HEADER_BYTES];
    size_t done;

    kvfi_moon_pack_header(&header, bytes);
    return kvfi_moon_send_all(fd, bytes, sizeof bytes, &limit, &done);
}

/* Moves the payload, a step at a time, each of which must end in the progress time. */
static enum kvf_status move_payload(const struct kvfi_moon_job *job, int fd, const struct kvfi_moon_item *item,
                                    uint64_t *moved)
{
    enum kvf_status status = KVF_OK;

    *moved = 0;
    while (status == KVF_OK && *moved < item->bytes) {
        struct kvfi_moon_limit limit = progress_limit(job);
        char *at = (char *)(uintptr_t)(item->local + *moved);
        size_t step = item->bytes - *moved < STEP_BYTES ? (size_t)(item->bytes - *moved) : STEP_BYTES, done;

        status = job->is_write ? kvfi_moon_send_all(fd, at, step, &limit, &done)
                               : kvfi_moon_recv_all(fd, at, step, &limit, &done);
        *moved += done;
    }
    return status;
}

static const char *explain(enum kvf_status status)
{
    return status == KVF_ERR_TIMEOUT ? "nothing moved in time"
           : status == KVF_ERR_CANCELLED ? "stopped"
           : "the connection was closed, which with data protocol 1 may be a refusal";
}

/* ---- reads ------------------------------------------------------------------------------------------------------ */

static void read_one(struct kvfi_moon_job *job, const struct kvfi_moon_item *item, struct kvfi_moon_lane **lane)
{
    enum kvf_status status = KVF_ERR_PEER_LOST;
    struct kvf_error error = {.text = ""};
    uint64_t moved = 0;
    bool again = true;

    for (int i = 0; again && i < ATTEMPTS; i++) {
        /* The last attempt is made on a connection that nobody has used. */
        if (!*lane &&
            kvfi_moon_lane_take(job->engine, job->segment, i == ATTEMPTS - 1, true, &job->limit, lane, &error) !=
                KVF_OK) {
            kvfi_moon_job_halt(job, error.status, error.text);
            return;
        }
        moved = 0;
        status = send_header(job, (*lane)->fd, item);
        if (status == KVF_OK) status = move_payload(job, (*lane)->fd, item, &moved);
        if (status == KVF_OK) break;
        /* It was closed after the request before: the usual end of old engines. */
        again = status == KVF_ERR_PEER_LOST && (*lane)->reused && moved == 0;
        kvfi_moon_lane_drop(job->engine, job->segment, *lane);
        *lane = NULL;
    }
    if (status == KVF_OK) {
        (*lane)->reused = true;
        kvfi_moon_job_done(job, item);
    } else {
        kvfi_moon_job_failed(job, item, false, status, "%s; %" PRIu64 " of %" PRIu64 " bytes at 0x%" PRIx64 " came",
                             explain(status), moved, item->bytes, item->remote);
    }
}

static void run_reads(struct kvfi_moon_job *job)
{
    struct kvfi_moon_lane *lane = NULL;

    while (kvfi_moon_job_more(job)) {
        struct kvfi_moon_item item = kvfi_moon_job_take(job);

        read_one(job, &item, &lane);
        kvfi_moon_job_look(job, kvfi_now_ns());
    }
    if (lane) kvfi_moon_lane_put(job->engine, job->segment, lane);
}

/* ---- writes ----------------------------------------------------------------------------------------------------- */

/* Waits for the peer's orderly end, which proves that it has read everything. */
static enum kvf_status await_end(const struct kvfi_moon_job *job, int fd)
{
    struct kvfi_moon_limit limit = progress_limit(job);
    enum kvf_status status = KVF_OK;
    char byte;

    if (shutdown(fd, SHUT_WR) != 0) return KVF_ERR_PEER_LOST;
    while (status == KVF_OK) {
        ssize_t got = recv(fd, &byte, 1, 0);
        int unread = -1;

        /* The end itself counts as one byte, until the peer has heard of it. */
        if (got == 0) return ioctl(fd, SIOCOUTQ, &unread) == 0 && unread <= 1 ? KVF_OK : KVF_ERR_PEER_LOST;
        if (got > 0) return KVF_ERR_PROTOCOL;
        if (errno == EAGAIN) status = kvfi_moon_wait(fd, POLLIN, &limit);
        else if (errno != EINTR) status = KVF_ERR_PEER_LOST;
    }
    return status;
}

/* Makes a run on a connection of its own. `*begun`: how many of it were begun. */
static enum kvf_status write_run(struct kvfi_moon_job *job, const struct kvfi_moon_item *items, size_t count,
                                 size_t *begun, struct kvf_error *error)
{
    struct kvfi_moon_lane *lane;
    enum kvf_status status;
    uint64_t moved;

    *begun = 0;
    status = kvfi_moon_lane_take(job->engine, job->segment, true, true, &job->limit, &lane, error);
    if (status != KVF_OK) return status;
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        *begun = i + 1;
        status = send_header(job, lane->fd, &items[i]);
        if (status == KVF_OK) status = move_payload(job, lane->fd, &items[i], &moved);
    }
    if (status == KVF_OK) status = await_end(job, lane->fd);
    kvfi_moon_lane_drop(job->engine, job->segment, lane);
    if (status != KVF_OK) kvfi_fail(error, status, "%s", explain(status));
    return status;
}

static int known_run(struct kvfi_moon_job *job)
{
    int run;

    pthread_mutex_lock(&job->engine->lock);
    run = job->segment->run;
    pthread_mutex_unlock(&job->engine->lock);
    return run;
}

static void learn_run(struct kvfi_moon_job *job, int run)
{
    pthread_mutex_lock(&job->engine->lock);
    job->segment->run = run;
    pthread_mutex_unlock(&job->engine->lock);
}

static void on_failed_run(struct kvfi_moon_job *job, struct kvfi_moon_item *items, size_t count, size_t begun,
                          const struct kvf_error *error)
{
    enum kvf_status status = (enum kvf_status)error->status;

    if (begun == 0) {
        kvfi_moon_job_halt(job, status, error->text);
        while (count > 0) kvfi_moon_job_again(job, &items[--count]);
        return;
    }
    for (size_t i = 0; i < begun; i++) items[i].begun = true;
    if (count > 1 && status == KVF_ERR_PEER_LOST) {
        learn_run(job, 1);
        while (count > 0) kvfi_moon_job_again(job, &items[--count]);
        return;
    }
    for (size_t i = count; i-- > begun;) kvfi_moon_job_again(job, &items[i]);
    for (size_t i = 0; i < begun; i++)
        kvfi_moon_job_failed(job, &items[i], true, status, "%s; the write of %" PRIu64 " bytes at 0x%" PRIx64
                             " had begun", error->text, items[i].bytes, items[i].remote);
}

static void run_writes(struct kvfi_moon_job *job)
{
    while (kvfi_moon_job_more(job)) {
        struct kvfi_moon_item items[RUN];
        struct kvf_error error = {.text = ""};
        int run = known_run(job);
        size_t count = 0, begun, most = run == 0 ? 2 : (size_t)run;

        while (count < most && kvfi_moon_job_more(job)) items[count++] = kvfi_moon_job_take(job);
        if (count == 0) break;
        if (write_run(job, items, count, &begun, &error) != KVF_OK) {
            on_failed_run(job, items, count, begun, &error);
        } else {
            for (size_t i = 0; i < count; i++) kvfi_moon_job_done(job, &items[i]);
            if (run == 0 && count > 1) learn_run(job, RUN);
        }
        kvfi_moon_job_look(job, kvfi_now_ns());
    }
}

void kvfi_moon_run_v1(struct kvfi_moon_job *job)
{
    if (job->is_write) run_writes(job);
    else run_reads(job);
}
