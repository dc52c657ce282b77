/* SPDX-License-Identifier: Apache-2.0 */
/* Data connections to peers: kept while they may be of use, opened by the rules for hosts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/mooncake/engine.h"

/* An engine that answers handshakes but no data connection may be about to: its data listener comes up last. */
#define RETRY_NS (50 * KVFI_MS)
enum { RETRIES = 10, REAPED = 8 };

/* Where data goes: the published host, or the host that was asked for; then, as engines before 0.3.13 have it, the host
 * of the name that the peer gives itself. */
struct targets {
    char host[2][KVF_MOONCAKE_NAME_BYTES];
    int32_t port;
    int64_t fetches;
};

static void find_targets(kvf_mooncake *engine, const struct kvfi_moon_segment *segment, struct targets *out)
{
    const struct kvfi_moon_descriptor *descriptor = &segment->descriptor;
    struct kvfi_moon_address named = {.host = ""};

    pthread_mutex_lock(&engine->lock);
    snprintf(out->host[0], sizeof out->host[0], "%s",
             descriptor->data_host[0] ? descriptor->data_host : segment->address.host);
    if (descriptor->name[0]) kvfi_moon_parse_name(descriptor->name, &named, NULL);
    snprintf(out->host[1], sizeof out->host[1], "%s", strcmp(named.host, out->host[0]) == 0 ? "" : named.host);
    out->port = descriptor->data_port > 0 ? descriptor->data_port : segment->address.port + 1;
    out->fetches = segment->fetches;
    pthread_mutex_unlock(&engine->lock);
}

static enum kvf_status try_targets(kvf_mooncake *engine, const struct targets *targets,
                                   const struct kvfi_moon_limit *limit, int *fd, struct kvf_error *error)
{
    enum kvf_status status = KVF_ERR_UNREACHABLE;

    for (int i = 0; i < 2 && status != KVF_OK && status != KVF_ERR_CANCELLED; i++) {
        struct kvfi_moon_limit connecting;

        if (!targets->host[i][0]) continue;
        connecting = kvfi_moon_share(limit, i == 0 && targets->host[1][0] ? 2 : 1);
        connecting = kvfi_moon_within(&connecting, engine->options.connect_timeout_ns);
        /* The first error is the one to tell. */
        status = kvfi_moon_connect(engine->resolver, targets->host[i], targets->port, &connecting, fd,
                                   i == 0 ? error : NULL);
    }
    return status;
}

/* Who was there may be gone, and its data port be that of another process, which would take what is not for it. */
static enum kvf_status ask_again_if_suspect(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                            const struct kvfi_moon_limit *limit, struct kvf_error *error)
{
    bool suspect;

    pthread_mutex_lock(&engine->lock);
    suspect = segment->suspect;
    pthread_mutex_unlock(&engine->lock);
    return suspect ? kvfi_moon_refresh(engine, segment, limit, error) : KVF_OK;
}

static enum kvf_status connect_lane(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                    const struct kvfi_moon_limit *limit, int *fd, struct kvf_error *error)
{
    struct kvf_error own = {.text = ""};
    struct targets targets;
    enum kvf_status status = ask_again_if_suspect(engine, segment, limit, error);

    if (status != KVF_OK) return status;
    find_targets(engine, segment, &targets);
    status = try_targets(engine, &targets, limit, fd, &own);
    for (int i = 0; i < RETRIES && (status == KVF_ERR_UNREACHABLE || (status == KVF_ERR_TIMEOUT && i == 0)); i++) {
        struct kvfi_moon_limit pause = *limit;
        enum kvf_status waited;

        /* Another process may have its name by now. One that does not answer at all is given up at once. */
        status = kvfi_moon_refresh(engine, segment, limit, &own);
        if (status != KVF_OK) break;
        find_targets(engine, segment, &targets);
        status = try_targets(engine, &targets, limit, fd, &own);
        if (status == KVF_OK) break;
        pause.deadline_ns = kvfi_now_ns() + RETRY_NS;
        waited = kvfi_moon_wait(-1, 0, pause.deadline_ns < limit->deadline_ns ? &pause : limit);
        if (waited == KVF_ERR_CANCELLED) status = own.status = waited;
        if (kvfi_now_ns() >= limit->deadline_ns) break;
    }
    if (status != KVF_OK) {
        if (strncmp(own.text, "peer ", 5) == 0) kvfi_fail(error, status, "%s", own.text);
        else kvfi_fail(error, status, "peer %s: %s", segment->asked, own.text);
    }
    return status;
}

/* ---- taking and giving back ------------------------------------------------------------------------------------- */

void kvfi_moon_lane_free(struct kvfi_moon_lane *lane)
{
    close(lane->fd);
    free(lane->pipe);
    free(lane);
}

/* Nothing may come on an idle connection but its end. */
static bool is_open(const struct kvfi_moon_lane *lane)
{
    char byte;

    return recv(lane->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
}

static struct kvfi_moon_lane *take_idle(struct kvfi_moon_segment *segment)
{
    struct kvfi_moon_lane *lane;

    while ((lane = segment->idle) != NULL) {
        segment->idle = lane->next;
        if (is_open(lane)) break;
        segment->suspect |= lane->pipe != NULL;
        kvfi_moon_lane_free(lane);
        segment->lane_count--;
    }
    return lane;
}

/* Frees idle connections that their peers have closed. The lock is held. */
static void reap(struct kvfi_moon_segment *segment)
{
    struct kvfi_moon_lane **at = &segment->idle;

    while (*at) {
        struct kvfi_moon_lane *lane = *at;

        if (is_open(lane)) {
            at = &lane->next;
            continue;
        }
        *at = lane->next;
        segment->suspect |= lane->pipe != NULL;
        kvfi_moon_lane_free(lane);
        segment->lane_count--;
    }
}

/* Peers that never come again leave connections: with each new one some peers are looked at, in turn. The lock is
 * held. */
static void reap_some(kvf_mooncake *engine)
{
    struct kvfi_moon_segments *all = &engine->segments;

    for (int i = 0; i < REAPED; i++) {
        all->reaped = all->reaped && all->reaped->next ? all->reaped->next : all->first;
        reap(all->reaped);
    }
}

/* Has room for one more connection, closing an idle one where that makes it. The lock is held. */
static bool make_room(kvf_mooncake *engine, struct kvfi_moon_segment *segment)
{
    if (segment->lane_count >= engine->options.max_lanes && segment->idle) {
        struct kvfi_moon_lane *lane = segment->idle;

        segment->idle = lane->next;
        kvfi_moon_lane_free(lane);
        segment->lane_count--;
    }
    return segment->lane_count < engine->options.max_lanes;
}

/* Connections to peers that nobody uses, which keep this process from having others. False: there were none. */
static bool drop_unused(kvf_mooncake *engine)
{
    bool dropped = false;

    pthread_mutex_lock(&engine->lock);
    for (struct kvfi_moon_segment *kept = engine->segments.first_kept; kept; kept = kept->next_kept) {
        while (kept->idle) {
            struct kvfi_moon_lane *lane = kept->idle;

            kept->idle = lane->next;
            kvfi_moon_lane_free(lane);
            kept->lane_count--;
            dropped = true;
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return dropped;
}

static void give_up_place(kvf_mooncake *engine, struct kvfi_moon_segment *segment)
{
    pthread_mutex_lock(&engine->lock);
    segment->lane_count--;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

enum kvf_status kvfi_moon_lane_take(kvf_mooncake *engine, struct kvfi_moon_segment *segment, bool fresh, bool wait,
                                    const struct kvfi_moon_limit *limit, struct kvfi_moon_lane **out,
                                    struct kvf_error *error)
{
    struct kvfi_moon_lane *lane = NULL;
    enum kvf_status status = KVF_OK;
    bool room = false;

    pthread_mutex_lock(&engine->lock);
    do {
        if (!fresh) lane = take_idle(segment);
        if (!lane) room = make_room(engine, segment);
    } while (!lane && !room && wait && kvfi_moon_pause(engine, limit));
    if (room) segment->lane_count++;
    if (room) reap_some(engine);
    pthread_mutex_unlock(&engine->lock);
    *out = lane;
    if (lane || (!room && !wait)) return KVF_OK;
    if (!room)
        return kvfi_fail(error, kvfi_moon_ended(limit), "peer %s: none of its %d connections got free", segment->asked,
                         (int)engine->options.max_lanes);
    lane = kvfi_alloc_zeroed(1, sizeof *lane);
    if (lane) status = connect_lane(engine, segment, limit, &lane->fd, error);
    else status = kvfi_fail_memory(error, "a data connection");
    if (status == KVF_ERR_SYSTEM && drop_unused(engine))
        status = connect_lane(engine, segment, limit, &lane->fd, error);
    if (status == KVF_OK) {
        *out = lane;
    } else {
        free(lane);
        give_up_place(engine, segment);
    }
    return status;
}

void kvfi_moon_lane_put(kvf_mooncake *engine, struct kvfi_moon_segment *segment, struct kvfi_moon_lane *lane)
{
    pthread_mutex_lock(&engine->lock);
    lane->reused = true;
    lane->next = segment->idle;
    segment->idle = lane;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

void kvfi_moon_lane_drop(kvf_mooncake *engine, struct kvfi_moon_segment *segment, struct kvfi_moon_lane *lane)
{
    if (lane->pipe) {
        pthread_mutex_lock(&engine->lock);
        segment->suspect = true;
        pthread_mutex_unlock(&engine->lock);
    }
    kvfi_moon_lane_free(lane);
    give_up_place(engine, segment);
}
