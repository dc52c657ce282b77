/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "sys/clock.h"

#define PATIENCE_NS (20 * KVFI_SECOND)

struct kvfi_transport *rig_open(const struct rig *rig, bool is_src, const char *policy)
{
    struct kvfi_transport_config config = {.host = "127.0.0.1",
                                           .self = is_src ? rig->src_who.name : rig->dst_who.name,
                                           .incarnation =
                                               is_src ? rig->src_who.incarnation : rig->dst_who.incarnation,
                                           .streams = 2,
                                           .connect_timeout_ns = 5 * KVFI_SECOND,
                                           .checksum = subject->checksum,
                                           .fault_policy = policy ? policy : subject->policy,
                                           .memories = is_src ? rig->kit->src_regions : rig->kit->dst_regions,
                                           .memory_count = is_src ? 1 : 2};
    struct kvfi_transport *transport = NULL;
    struct kvf_error error;

    if (rig->ops->open(&config, &transport, &error) != KVF_OK) fail_msg("%s", error.text);
    return transport;
}

void rig_init(struct rig *rig, struct kit *kit)
{
    memset(rig, 0, sizeof *rig);
    rig->kit = kit;
    rig->ops = kvfi_transport_find(subject->transport);
    assert_non_null(rig->ops);
    snprintf(rig->src_who.name, sizeof rig->src_who.name, "p/pp0.cp0.tp0");
    snprintf(rig->dst_who.name, sizeof rig->dst_who.name, "d/pp0.cp0.tp0");
    rig->src_who.incarnation = kvfi_random_u64();
    rig->dst_who.incarnation = kvfi_random_u64();
    rig->src = rig_open(rig, true, NULL);
    rig->dst = rig_open(rig, false, NULL);
}

void rig_connect(struct rig *rig)
{
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kvf_error error;
    struct kvfi_transport_event event;

    rig->ops->endpoint(rig->dst, endpoint);
    if (rig->ops->probe(rig->src, endpoint, &error) != KVF_OK ||
        rig->ops->connect(rig->src, endpoint, &rig->dst_who, &rig->peer, &error) != KVF_OK)
        fail_msg("%s", error.text);
    event = rig_await_src(rig, KVFI_TEV_CONNECTED, rig->peer);
    if (event.status != KVF_OK) fail_msg("connect: %s", event.text);
}

void rig_init_connected(struct rig *rig, struct kit *kit)
{
    rig_init(rig, kit);
    rig_connect(rig);
}

void rig_fini(struct rig *rig)
{
    if (rig->src) rig->ops->close(rig->src);
    if (rig->dst) rig->ops->close(rig->dst);
}

void rig_begin(struct rig *rig, struct kit *kit, const struct kit_shape *shape)
{
    kit_init(kit, shape, subject->with_fd);
    rig_init_connected(rig, kit);
}

void rig_end(struct rig *rig, struct kit *kit)
{
    rig_fini(rig);
    kit_fini(kit);
}

static size_t take(struct rig *rig, struct kvfi_transport *transport, struct kvfi_transport_event *events,
                   size_t *count)
{
    size_t taken = 0;

    if (!transport) goto done;
    assert_true(*count < RIG_EVENTS);
    taken = rig->ops->events(transport, events + *count, RIG_EVENTS - *count);
    *count += taken;
done:
    return taken;
}

bool rig_pump(struct rig *rig, int64_t deadline_ns)
{
    bool in_time = true;

    while (in_time) {
        struct pollfd waits[2] = {{.fd = rig->src ? rig->ops->event_fd(rig->src) : -1, .events = POLLIN},
                                  {.fd = rig->dst ? rig->ops->event_fd(rig->dst) : -1, .events = POLLIN}};
        int64_t left_ns = deadline_ns - kvfi_now_ns();
        size_t taken = take(rig, rig->src, rig->src_events, &rig->src_count) +
                       take(rig, rig->dst, rig->dst_events, &rig->dst_count);

        if (taken > 0) break;
        in_time = left_ns > 0;
        if (in_time) poll(waits, 2, (int)(left_ns / KVFI_MS) + 1);
    }
    return in_time;
}

static bool matches(const struct kvfi_transport_event *event, int kind, uint64_t number)
{
    uint64_t own = kind == KVFI_TEV_CONNECTED || kind == KVFI_TEV_PEER_DOWN ? event->peer
                   : kind == KVFI_TEV_POSTED ? event->cookie : event->grant;

    return event->kind == kind && (number == 0 || own == number);
}

static struct kvfi_transport_event await(struct rig *rig, bool is_src, int kind, uint64_t number)
{
    struct kvfi_transport_event *events = is_src ? rig->src_events : rig->dst_events;
    size_t *count = is_src ? &rig->src_count : &rig->dst_count;
    int64_t deadline_ns = kvfi_now_ns() + PATIENCE_NS;

    for (;;) {
        for (size_t i = 0; i < *count; i++) {
            if (!matches(&events[i], kind, number)) continue;
            struct kvfi_transport_event found = events[i];

            memmove(events + i, events + i + 1, (*count - i - 1) * sizeof *events);
            --*count;
            return found;
        }
        for (size_t i = 0; i < rig->dst_count; i++) {
            if (rig->dst_events[i].kind == KVFI_TEV_GRANT_FAILED && kind != KVFI_TEV_GRANT_FAILED && number != 0 &&
                rig->dst_events[i].grant == number && kind == KVFI_TEV_RECEIVED)
                fail_msg("grant failed: %s", rig->dst_events[i].text);
        }
        if (!rig_pump(rig, deadline_ns))
            fail_msg("no event of kind %d and number %llu at the %s", kind, (unsigned long long)number,
                     is_src ? "source" : "destination");
    }
}

struct kvfi_transport_event rig_await_src(struct rig *rig, int kind, uint64_t number)
{
    return await(rig, true, kind, number);
}

struct kvfi_transport_event rig_await_dst(struct rig *rig, int kind, uint64_t number)
{
    return await(rig, false, kind, number);
}

int64_t rig_await_complete(struct rig *rig, uint64_t grant)
{
    struct kvfi_transport_event event = {0};
    int64_t bytes = 0;

    while (!event.complete) {
        event = rig_await_dst(rig, KVFI_TEV_RECEIVED, grant);
        bytes += event.bytes;
    }
    return bytes;
}

void rig_arm_as(struct rig *rig, uint64_t grant, const struct kvfi_peer_identity *writer, int64_t bytes)
{
    struct kvf_bind_request request = kit_dst_request(rig->kit);
    struct kvfi_arm arm = {
        .grant = grant, .writer = *writer, .plan = rig->kit->plan, .request = &request, .bytes = bytes};
    struct kvf_error error;

    if (rig->ops->arm(rig->dst, &arm, &error) != KVF_OK) fail_msg("%s", error.text);
}

void rig_arm(struct rig *rig, uint64_t grant)
{
    rig_arm_as(rig, grant, &rig->src_who, rig->kit->bytes);
}

struct kvfi_chunk rig_chunk(const struct rig *rig, uint64_t grant, uint32_t index, bool last, int64_t layer_first,
                            int64_t layer_end, int64_t token_begin, int64_t token_end)
{
    struct kvfi_chunk chunk = {.grant = grant, .index = index, .last = last, .layer_first = layer_first,
                               .layer_end = layer_end, .token_begin = token_begin, .token_end = token_end,
                               .cookie = grant * 100000 + index};
    struct kvf_binding_info info;

    chunk.binding = kit_bind(rig->kit, layer_first, layer_end, token_begin, token_end);
    kvf_binding_get_info(chunk.binding, &info);
    chunk.bytes = info.bytes;
    return chunk;
}

struct kvfi_chunk rig_whole_chunk(const struct rig *rig, uint64_t grant)
{
    return rig_chunk(rig, grant, 0, true, 0, rig->kit->shape.layers, 0, rig->kit->shape.tokens);
}

void rig_post(struct rig *rig, const struct kvfi_chunk *chunk)
{
    struct kvf_error error;

    if (rig->ops->post_chunk(rig->src, rig->peer, chunk, &error) != KVF_OK) fail_msg("%s", error.text);
}

struct kvfi_transport_event rig_post_and_await(struct rig *rig, struct kvfi_chunk *chunk, enum kvf_status status)
{
    struct kvfi_transport_event event;

    rig_post(rig, chunk);
    event = rig_await_src(rig, KVFI_TEV_POSTED, chunk->cookie);
    if (event.status != status)
        fail_msg("posted: %s (%s), expected %s", kvf_status_name(event.status), event.text, kvf_status_name(status));
    kvf_binding_destroy((kvf_binding *)chunk->binding);
    return event;
}
