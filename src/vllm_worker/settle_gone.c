/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that were lost before they answered: when is it sure that they write no more? And those that cannot be
 * reached.
 *
 * Their side channel is looked at by connecting to it. Taken for proof is that twice in a row, a second apart, nobody
 * listens there (the connect is refused, by a host that is up) and no data connection comes from that address, nor from
 * one that is no worker's: hosts have several, and some are translated on the way. A worker listens for as long as it
 * lives, and has a data connection for as long as it writes. That a connect times out proves nothing, nor does an
 * answer: somebody is there. To give up what only connects the refusals are enough: nothing was asked yet. */
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vllm_worker/consume.h"

#define LOOK_NS KVFI_SECOND
#define LONGEST_PAUSE_NS (30 * KVFI_SECOND)
#define PATIENCE_NS (2 * KVFI_SECOND) /* for one connect */
#define REFUSALS 2

static struct kvfi_vllm_place *of_timer(struct kvfi_timer *timer)
{
    return KVFI_HOLDER(timer, struct kvfi_vllm_place, probe_timer);
}

static void stop_probe(struct kvfi_vllm_place *place)
{
    if (place->probe.fd < 0)
        return;
    kvfi_loop_unwatch(&place->worker->loop, &place->probe);
    close(place->probe.fd);
    place->probe.fd = -1;
}

/* ---- data connections -------------------------------------------------------------------------------------------- */

static bool is_of_a_place(void *context, const uint8_t bytes[16])
{
    const struct kvfi_table *places = context;

    for (size_t i = 0; i < places->bucket_count; i++)
        for (const struct kvfi_link *link = places->buckets[i]; link != NULL; link = link->next)
            if (memcmp(KVFI_HOLDER(link, struct kvfi_vllm_place, link)->origin, bytes, 16) == 0)
                return true;
    return false;
}

/* No data connection is, or may be, of the worker there. */
static bool is_silent(const struct kvfi_vllm_place *place)
{
    return kvfi_vllm_worker_connections_from(place->worker, place->host) == 0 &&
           kvfi_vllm_worker_connections_unknown(place->worker, is_of_a_place, &place->worker->consumer->places) == 0;
}

/* ---- verdicts --------------------------------------------------------------------------------------------------- */

static void settle_lost(struct kvfi_vllm_place *place)
{
    struct kvfi_vllm_fetch *fetch = place->lost.head;

    kvfi_logf(&place->worker->log, KVF_LOG_INFO, "the worker at %s is gone: nobody listens there, and no data "
              "connection comes from %s, or from where no worker is known", place->address, place->host);
    while (fetch != NULL) {
        struct kvfi_vllm_fetch *next = fetch->next; /* it closes, and leaves the list */

        kvfi_vllm_fetch_feed(fetch, KVFI_WRITER_ON_GONE, KVF_ERR_PEER_LOST, "");
        fetch = next;
    }
}

static void cut_connecting(struct kvfi_vllm_place *place)
{
    while (place->connecting.head != NULL)
        kvfi_vllm_fetch_cannot_reach(place->connecting.head, "cannot be reached: nobody listens there");
}

static void judge(struct kvfi_vllm_place *place, bool refused)
{
    kvf_vllm_worker *worker = place->worker;

    stop_probe(place);
    kvfi_timer_disarm(&worker->loop.timers, &place->probe_timer);
    place->refusals = refused ? place->refusals + 1 : 0;
    place->silent_refusals = refused && is_silent(place) ? place->silent_refusals + 1 : 0;
    if (refused)
        place->probe_pause_ns = LOOK_NS;
    else if (place->probe_pause_ns < LONGEST_PAUSE_NS)
        place->probe_pause_ns *= 2;
    if (place->refusals >= REFUSALS)
        cut_connecting(place);
    if (place->silent_refusals >= REFUSALS)
        settle_lost(place);
    if (place->connecting.head != NULL || place->lost.head != NULL)
        kvfi_timer_arm(&worker->loop.timers, &place->probe_timer, kvfi_now_ns() + place->probe_pause_ns);
}

/* ---- looking ---------------------------------------------------------------------------------------------------- */

static int error_of(int fd)
{
    int cause = 0;
    socklen_t bytes = sizeof cause;

    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &bytes) == 0 ? cause : errno;
}

/* Readable: the connect failed, or somebody greets. */
static void on_probed(void *owner, struct kvfi_watch *watch)
{
    struct kvfi_vllm_place *place = KVFI_HOLDER(watch, struct kvfi_vllm_place, probe);

    judge(place, error_of(watch->fd) == ECONNREFUSED);
    kvfi_vllm_consume_sweep(owner);
}

/* Begins a connect; false when there is a verdict already. */
static bool begin_probe(struct kvfi_vllm_place *place, bool *refused)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int fd = -1;

    *refused = false;
    if (getaddrinfo(place->host, strrchr(place->endpoint, ':') + 1, &hints, &found) != 0)
        return false;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
        *refused = errno == ECONNREFUSED;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    place->probe.fd = fd;
    if (fd >= 0 && kvfi_loop_watch(&place->worker->loop, &place->probe, NULL) != KVF_OK)
        stop_probe(place);
    return place->probe.fd >= 0;
}

static void on_timer(void *owner, struct kvfi_timer *timer)
{
    struct kvfi_vllm_place *place = of_timer(timer);
    bool refused = false;

    if (place->probe.fd < 0 && begin_probe(place, &refused))
        kvfi_timer_arm(&place->worker->loop.timers, &place->probe_timer, kvfi_now_ns() + PATIENCE_NS);
    else
        judge(place, refused);
    kvfi_vllm_consume_sweep(owner);
}

void kvfi_vllm_place_watch(struct kvfi_vllm_place *place, int64_t pause_ns)
{
    int64_t due_ns = kvfi_now_ns() + pause_ns;

    if (place->probe.fd >= 0 || (place->probe_timer.armed && place->probe_timer.due_ns <= due_ns))
        return;
    if (!place->probe_timer.armed) {
        place->refusals = place->silent_refusals = 0;
        place->probe_pause_ns = LOOK_NS;
    }
    kvfi_timer_arm(&place->worker->loop.timers, &place->probe_timer, due_ns);
}

void kvfi_vllm_place_unwatch(struct kvfi_vllm_place *place, bool anyway)
{
    if (!anyway && (place->connecting.head != NULL || place->lost.head != NULL))
        return;
    stop_probe(place);
    kvfi_timer_disarm(&place->worker->loop.timers, &place->probe_timer);
}

void kvfi_vllm_place_init_probe(struct kvfi_vllm_place *place)
{
    place->probe.fd = -1;
    place->probe.ready = on_probed;
    place->probe_timer.fire = on_timer;
}
