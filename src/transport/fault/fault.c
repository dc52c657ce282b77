/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fault/fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/fault/wire.h"

struct policy {
    int64_t fail_post, fail_connect, drop_posted, drop_received, delay_ms, stall;
};

/* An event that is held back. */
struct held {
    int64_t due_ns;
    struct kvfi_transport_event event;
};

/* A post that never moves. */
struct stalled {
    uint64_t peer, grant, cookie; /* grant 0: ranges */
    struct kvfi_range_source source;
};

/* All calls come from the owner's thread: no lock. */
struct kvfi_transport {
    const struct kvfi_transport_ops *inner_ops;
    struct kvfi_transport *inner;
    struct kvfi_wire_fault wire;
    struct policy policy;
    int epoll, timer; /* the event descriptor: readable with the inner one's, or when a held event is due */
    struct held *held;
    size_t held_count, held_capacity;
    struct stalled *stalled;
    size_t stalled_count, stalled_capacity;
    int64_t posts;
    uint64_t fake_peers; /* numbers of connects that failed on purpose */
};

/* ---- the policy ------------------------------------------------------------------------------------------------- */

static bool read_number(const char *text, int64_t *number)
{
    char *end;

    errno = 0;
    *number = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && *number >= 0;
}

static enum kvf_status read_fault(struct kvfi_transport *transport, char *fault, struct kvf_error *error)
{
    struct policy *policy = &transport->policy;
    int64_t corrupt = 0, cut_after = -1;
    const struct { const char *name; int64_t *number; } known[] = {
        {"corrupt", &corrupt}, {"cut_after", &cut_after}, {"fail_post", &policy->fail_post},
        {"fail_connect", &policy->fail_connect}, {"drop_posted", &policy->drop_posted},
        {"drop_received", &policy->drop_received}, {"delay_ms", &policy->delay_ms}, {"stall", &policy->stall}};
    enum kvf_status status = KVF_ERR_INVALID_ARGUMENT;
    char *value = strchr(fault, '=');

    if (value) *value++ = '\0';
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, fault) == 0 && read_number(value ? value : "1", known[i].number)) status = KVF_OK;
    }
    if (status != KVF_OK)
        kvfi_fail(error, status, "fault policy: \"%s\" with \"%s\" is not known", fault, value ? value : "");
    if (corrupt > 0) atomic_store(&transport->wire.corrupt, corrupt);
    if (cut_after >= 0) atomic_store(&transport->wire.cut_after, cut_after);
    return status;
}

static enum kvf_status fault_open(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                                  struct kvf_error *error);

static enum kvf_status read_policy(struct kvfi_transport *transport, const char *text, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    char *copy = kvfi_text_copy(text ? text : "");
    char *faults, *next;

    if (!copy) {
        status = kvfi_fail_memory(error, "a fault policy");
        goto done;
    }
    faults = strchr(copy, ':');
    if (faults) *faults++ = '\0';
    transport->inner_ops = kvfi_transport_find(copy);
    if (!transport->inner_ops || transport->inner_ops->open == fault_open)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "fault policy: no transport \"%s\"", copy);
    for (char *fault = faults; status == KVF_OK && fault && *fault; fault = next) {
        next = strchr(fault, ',');
        if (next) *next++ = '\0';
        status = read_fault(transport, fault, error);
    }
done:
    free(copy);
    return status;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

/* Sets the timer to the first held event. */
static void set_timer(struct kvfi_transport *transport)
{
    struct itimerspec when = {0};
    int64_t due_ns = INT64_MAX;

    for (size_t i = 0; i < transport->held_count; i++) {
        if (transport->held[i].due_ns < due_ns) due_ns = transport->held[i].due_ns;
    }
    if (transport->held_count > 0) {
        if (due_ns < 1) due_ns = 1;
        when.it_value.tv_sec = due_ns / KVFI_SECOND;
        when.it_value.tv_nsec = due_ns % KVFI_SECOND;
    }
    timerfd_settime(transport->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void hold(struct kvfi_transport *transport, const struct kvfi_transport_event *event)
{
    if (!kvfi_array_grow((void **)&transport->held, transport->held_count, &transport->held_capacity,
                         sizeof *transport->held))
        return;
    transport->held[transport->held_count++] =
        (struct held){kvfi_now_ns() + transport->policy.delay_ms * KVFI_MS, *event};
}

static void give_up(const struct stalled *post)
{
    if (post->source.destroy) post->source.destroy(post->source.context);
}

static void hold_posted(struct kvfi_transport *transport, const struct stalled *post, enum kvf_status status)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_POSTED, .status = status, .peer = post->peer,
                                         .grant = post->grant, .cookie = post->cookie};

    give_up(post);
    snprintf(event.text, sizeof event.text, "by the fault policy");
    hold(transport, &event);
}

static bool is_dropped(struct policy *policy, const struct kvfi_transport_event *event)
{
    int64_t *drops = event->kind == KVFI_TEV_POSTED ? &policy->drop_posted
                     : event->kind == KVFI_TEV_RECEIVED ? &policy->drop_received : NULL;
    bool dropped = drops && *drops > 0;

    if (dropped) --*drops;
    return dropped;
}

/* Ends the stalled posts of a peer: of one grant, or cookie of ranges, where `number` is not 0. */
static void end_stalled(struct kvfi_transport *transport, uint64_t peer, uint64_t number, enum kvf_status status)
{
    size_t kept = 0;

    for (size_t i = 0; i < transport->stalled_count; i++) {
        const struct stalled *post = &transport->stalled[i];

        if (post->peer == peer && (number == 0 || number == (post->grant ? post->grant : post->cookie)))
            hold_posted(transport, post, status);
        else transport->stalled[kept++] = *post;
    }
    transport->stalled_count = kept;
    set_timer(transport);
}

static void gather(struct kvfi_transport *transport)
{
    struct kvfi_transport_event events[16];
    size_t count;

    while ((count = transport->inner_ops->events(transport->inner, events, 16)) > 0) {
        for (size_t i = 0; i < count; i++) {
            if (events[i].kind == KVFI_TEV_PEER_DOWN) end_stalled(transport, events[i].peer, 0, KVF_ERR_PEER_LOST);
            if (!is_dropped(&transport->policy, &events[i])) hold(transport, &events[i]);
        }
    }
}

static size_t fault_events(struct kvfi_transport *transport, struct kvfi_transport_event *events, size_t capacity)
{
    int64_t now_ns = kvfi_now_ns();
    size_t taken = 0, kept = 0;

    gather(transport);
    for (size_t i = 0; i < transport->held_count; i++) {
        bool due = transport->policy.delay_ms == 0 || transport->held[i].due_ns <= now_ns;

        if (due && taken < capacity) events[taken++] = transport->held[i].event;
        else transport->held[kept++] = transport->held[i];
    }
    transport->held_count = kept;
    set_timer(transport);
    return taken;
}

static int fault_event_fd(struct kvfi_transport *transport)
{
    return transport->epoll;
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

static void fault_close(struct kvfi_transport *transport)
{
    if (!transport) return;
    if (transport->inner) transport->inner_ops->close(transport->inner);
    if (transport->epoll >= 0) close(transport->epoll);
    if (transport->timer >= 0) close(transport->timer);
    for (size_t i = 0; i < transport->stalled_count; i++)
        give_up(&transport->stalled[i]);
    free(transport->held);
    free(transport->stalled);
    free(transport);
}

static enum kvf_status watch(struct kvfi_transport *transport, struct kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN};
    enum kvf_status status = KVF_OK;

    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (transport->epoll < 0 || transport->timer < 0 ||
        epoll_ctl(transport->epoll, EPOLL_CTL_ADD, transport->timer, &event) != 0 ||
        epoll_ctl(transport->epoll, EPOLL_CTL_ADD, transport->inner_ops->event_fd(transport->inner), &event) != 0)
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "fault transport: %s", strerror(errno));
    return status;
}

static enum kvf_status fault_open(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                                  struct kvf_error *error)
{
    struct kvfi_transport_config inner_config = *config;
    struct kvfi_transport *transport = kvfi_alloc_zeroed(1, sizeof *transport);
    enum kvf_status status;

    if (!transport) return kvfi_fail_memory(error, "a fault transport");
    transport->epoll = transport->timer = -1;
    atomic_init(&transport->wire.corrupt, 0);
    atomic_init(&transport->wire.cut_after, -1);
    status = read_policy(transport, config->fault_policy, error);
    inner_config.fault_policy = NULL;
    inner_config.wire = &transport->wire;
    if (status == KVF_OK) status = transport->inner_ops->open(&inner_config, &transport->inner, error);
    if (status == KVF_OK) status = watch(transport, error);
    if (status == KVF_OK) *out = transport;
    else fault_close(transport);
    return status;
}

/* ---- the rest of the table -------------------------------------------------------------------------------------- */

static void fault_endpoint(struct kvfi_transport *transport, char *text)
{
    transport->inner_ops->endpoint(transport->inner, text);
}

static enum kvf_status fault_arm(struct kvfi_transport *transport, const struct kvfi_arm *arm, struct kvf_error *error)
{
    return transport->inner_ops->arm(transport->inner, arm, error);
}

static bool fault_disarm(struct kvfi_transport *transport, uint64_t grant)
{
    return transport->inner_ops->disarm(transport->inner, grant);
}

static enum kvf_status fault_probe(struct kvfi_transport *transport, const char *endpoint, struct kvf_error *error)
{
    return transport->inner_ops->probe(transport->inner, endpoint, error);
}

static enum kvf_status fault_connect(struct kvfi_transport *transport, const char *endpoint,
                                     const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error)
{
    struct kvfi_transport_event event = {.kind = KVFI_TEV_CONNECTED, .status = KVF_ERR_UNREACHABLE,
                                         .text = "by the fault policy"};

    if (transport->policy.fail_connect == 0)
        return transport->inner_ops->connect(transport->inner, endpoint, expected, peer, error);
    transport->policy.fail_connect--;
    *peer = UINT64_MAX - transport->fake_peers++;
    event.peer = *peer;
    hold(transport, &event);
    set_timer(transport);
    return KVF_OK;
}

static void fault_disconnect(struct kvfi_transport *transport, uint64_t peer)
{
    end_stalled(transport, peer, 0, KVF_ERR_CANCELLED);
    transport->inner_ops->disconnect(transport->inner, peer);
}

/* Fails or stalls a post where the policy says so; otherwise `*passes`. */
static enum kvf_status meddle(struct kvfi_transport *transport, const struct stalled *post, bool *passes,
                              struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    *passes = false;
    if (++transport->posts == transport->policy.fail_post) {
        hold_posted(transport, post, KVF_ERR_SYSTEM);
        set_timer(transport);
    } else if (!transport->policy.stall) {
        *passes = true;
    } else if (kvfi_array_grow((void **)&transport->stalled, transport->stalled_count, &transport->stalled_capacity,
                               sizeof *transport->stalled)) {
        transport->stalled[transport->stalled_count++] = *post;
    } else {
        status = kvfi_fail_memory(error, "a stalled post");
    }
    return status;
}

static enum kvf_status fault_post_chunk(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                                        struct kvf_error *error)
{
    const struct stalled post = {.peer = peer, .grant = chunk->grant, .cookie = chunk->cookie};
    bool passes;
    enum kvf_status status = meddle(transport, &post, &passes, error);

    return passes ? transport->inner_ops->post_chunk(transport->inner, peer, chunk, error) : status;
}

static void fault_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t grant)
{
    end_stalled(transport, peer, grant, KVF_ERR_CANCELLED);
    transport->inner_ops->abort(transport->inner, peer, grant);
}

static enum kvf_status fault_post_ranges(struct kvfi_transport *transport, uint64_t peer,
                                         const struct kvfi_range_source *source, uint64_t cookie,
                                         struct kvf_error *error)
{
    const struct stalled post = {.peer = peer, .cookie = cookie, .source = *source};
    bool passes;
    enum kvf_status status = meddle(transport, &post, &passes, error);

    return passes ? transport->inner_ops->post_ranges(transport->inner, peer, source, cookie, error) : status;
}

#define FAULT_OPS(own_name, own_bit, own_caps)                                                                       \
    {                                                                                                                \
        .struct_size = sizeof(struct kvfi_transport_ops), .version = 1, .name = own_name, .bit = own_bit,            \
        .caps = own_caps, .open = fault_open, .close = fault_close, .endpoint = fault_endpoint,                      \
        .event_fd = fault_event_fd, .events = fault_events, .arm = fault_arm, .disarm = fault_disarm,                \
        .probe = fault_probe, .connect = fault_connect, .disconnect = fault_disconnect,                              \
        .post_chunk = fault_post_chunk, .abort = fault_abort, .post_ranges = fault_post_ranges                       \
    }

const struct kvfi_transport_ops kvfi_fault_ops[KVFI_FAULT_OPS] = {
    FAULT_OPS("fault:loop", 1, KVFI_CAP_BOXES | KVFI_CAP_REMOTE_WRITES),
    FAULT_OPS("fault:shm", 2, KVFI_CAP_BOXES | KVFI_CAP_REMOTE_WRITES),
    FAULT_OPS("fault:tcp", 4, KVFI_CAP_BOXES | KVFI_CAP_LOCAL_QUIET),
    FAULT_OPS("fault:cma", 8, KVFI_CAP_RANGES | KVFI_CAP_REMOTE_WRITES),
    FAULT_OPS("fault:mooncake", 16, KVFI_CAP_RANGES | KVFI_CAP_REMOTE_WRITES),
};
