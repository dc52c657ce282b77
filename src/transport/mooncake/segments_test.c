/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: opened, used, closed, kept and forgotten; peers that come and go. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvferry/mooncake.h"
#include "sys/clock.h"
#include "transport/mooncake/engine.h"
#include "transport/mooncake/mooncake.h"
#include "transport/mooncake/posts.h"

#define LONG_NS (60 * KVFI_SECOND)

enum { MEMORY_BYTES = 4096 };

static unsigned char memory[MEMORY_BYTES], far_memory[MEMORY_BYTES];

struct pair {
    kvf_mooncake *near, *far;
    struct kvf_error error;
};

/* The far one answers at every address of this host: one process that plays any number of peers. */
static void begin(struct pair *pair)
{
    const struct kvf_mooncake_buffer here = {(uint64_t)(uintptr_t)memory, MEMORY_BYTES};
    const struct kvf_mooncake_buffer there = {(uint64_t)(uintptr_t)far_memory, MEMORY_BYTES};
    struct kvf_mooncake_options options;

    kvf_mooncake_options_init(&options, sizeof options);
    options.initiator_only = 1;
    assert_int_equal(kvf_mooncake_open(&options, &pair->near, &pair->error), KVF_OK);
    options.initiator_only = 0;
    options.host = "0.0.0.0";
    options.publish_host = "127.0.0.1";
    assert_int_equal(kvf_mooncake_open(&options, &pair->far, &pair->error), KVF_OK);
    assert_int_equal(kvf_mooncake_register(pair->near, &here, 1, &pair->error), KVF_OK);
    assert_int_equal(kvf_mooncake_register(pair->far, &there, 1, &pair->error), KVF_OK);
}

static void end(struct pair *pair)
{
    kvf_mooncake_close(pair->near);
    kvf_mooncake_close(pair->far);
}

static void name_peer(const struct pair *pair, int number, char *name)
{
    snprintf(name, KVF_MOONCAKE_NAME_BYTES, "127.0.%d.%d:%d", number / 250 + 1, number % 250 + 1,
             (int)kvf_mooncake_rpc_port(pair->far));
}

static int64_t open_peer(struct pair *pair, int number)
{
    char name[KVF_MOONCAKE_NAME_BYTES];
    int64_t segment = 0;

    name_peer(pair, number, name);
    if (kvf_mooncake_open_segment(pair->near, name, LONG_NS, &segment, &pair->error) != KVF_OK)
        fail_msg("%s", pair->error.text);
    return segment;
}

static enum kvf_status write_to(struct pair *pair, int64_t segment)
{
    const struct kvf_mooncake_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)far_memory, 64};

    return kvf_mooncake_write(pair->near, segment, &range, 1, 0, LONG_NS, NULL, &pair->error);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static void opened_and_closed(void **state)
{
    struct pair pair;
    struct kvf_mooncake_segment_info info = {.struct_size = sizeof info};
    struct kvf_mooncake_buffer buffer;
    int64_t first, second;
    size_t count;

    (void)state;
    begin(&pair);
    first = open_peer(&pair, 0);
    assert_int_equal(open_peer(&pair, 0), first);
    assert_int_equal(write_to(&pair, first), KVF_OK);
    assert_int_equal(kvf_mooncake_close_segment(pair.near, first, &pair.error), KVF_OK);
    assert_int_equal(write_to(&pair, first), KVF_OK); /* it was opened twice */
    assert_int_equal(kvf_mooncake_close_segment(pair.near, first, &pair.error), KVF_OK);
    assert_int_equal(pair.near->segments.count, 0);

    assert_int_equal(kvf_mooncake_close_segment(pair.near, first, &pair.error), KVF_ERR_NOT_FOUND);
    assert_string_equal(pair.error.text, "segment 1 is not open");
    assert_int_equal(write_to(&pair, first), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_mooncake_refresh_segment(pair.near, first, LONG_NS, &pair.error), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_mooncake_notify(pair.near, first, "a", "b", LONG_NS, &pair.error), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_mooncake_get_segment_info(pair.near, first, &info, &pair.error), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_mooncake_get_segment_buffers(pair.near, first, 0, &buffer, 1, &count, &pair.error),
                     KVF_ERR_NOT_FOUND);
    for (int64_t never = -1; never < 1; never++)
        assert_int_equal(kvf_mooncake_close_segment(pair.near, never, &pair.error), KVF_ERR_NOT_FOUND);

    second = open_peer(&pair, 0);
    assert_true(second > first);
    assert_int_equal(write_to(&pair, second), KVF_OK);
    end(&pair);
}

/* What uses it goes on, with its connections; who opens the name again gets another one. */
static void closed_while_it_is_used(void **state)
{
    struct pair pair;
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_now_ns() + LONG_NS, .wake_fd = -1};
    struct kvfi_moon_segment *used;
    struct kvfi_moon_lane *lane;
    int64_t first, second;

    (void)state;
    begin(&pair);
    first = open_peer(&pair, 0);
    used = kvfi_moon_acquire_segment(pair.near, first, &pair.error);
    assert_non_null(used);
    assert_int_equal(kvfi_moon_lane_take(pair.near, used, false, true, &limit, &lane, &pair.error), KVF_OK);
    assert_int_equal(kvf_mooncake_close_segment(pair.near, first, &pair.error), KVF_OK);
    assert_null(kvfi_moon_acquire_segment(pair.near, first, &pair.error));
    assert_int_equal(pair.near->segments.count, 1);
    second = open_peer(&pair, 0);
    assert_int_not_equal(second, first);
    assert_int_equal(kvfi_moon_refresh(pair.near, used, &limit, &pair.error), KVF_OK);
    kvfi_moon_lane_put(pair.near, used, lane);
    assert_int_equal(pair.near->segments.count, 2);
    kvfi_moon_release_segment(pair.near, used);
    assert_int_equal(pair.near->segments.count, 1);
    assert_int_equal(pair.near->segments.kept_count, 0);
    assert_int_equal(write_to(&pair, second), KVF_OK);
    end(&pair);
}

/* A name that nobody answers for leaves nothing. */
static void failed_opens_leave_nothing(void **state)
{
    struct pair pair;
    int64_t segment = 77;
    char name[KVF_MOONCAKE_NAME_BYTES];

    (void)state;
    begin(&pair);
    name_peer(&pair, 0, name);
    kvf_mooncake_close(pair.far);
    pair.far = NULL;
    for (int i = 0; i < 3; i++)
        assert_int_equal(kvf_mooncake_open_segment(pair.near, name, LONG_NS, &segment, &pair.error),
                         KVF_ERR_UNREACHABLE);
    assert_int_equal(segment, 77);
    assert_int_equal(pair.near->segments.count, 0);
    end(&pair);
}

/* ---- those that come and go -------------------------------------------------------------------------------------- */

static void visit(struct pair *pair, int number, bool with_lane)
{
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_now_ns() + LONG_NS, .wake_fd = -1};
    char name[KVF_MOONCAKE_NAME_BYTES];
    struct kvfi_moon_segment *segment;
    struct kvfi_moon_lane *lane;

    name_peer(pair, number, name);
    if (kvfi_moon_acquire_named(pair->near, name, &limit, &segment, &pair->error) != KVF_OK)
        fail_msg("%s", pair->error.text);
    if (with_lane) {
        if (kvfi_moon_lane_take(pair->near, segment, false, true, &limit, &lane, &pair->error) != KVF_OK)
            fail_msg("%s", pair->error.text);
        kvfi_moon_lane_put(pair->near, segment, lane);
    }
    kvfi_moon_release_segment(pair->near, segment);
}

/* A producer's peers: the longest unused are forgotten, those that come again are still known. */
static void ten_thousand_come_and_go(void **state)
{
    struct pair pair;
    struct kvfi_moon_segment *regular;
    int64_t number;

    (void)state;
    begin(&pair);
    visit(&pair, 0, false);
    regular = pair.near->segments.first;
    number = regular->number;
    for (int i = 1; i < 10000; i++) {
        visit(&pair, i, false);
        if (i % 500 == 0) visit(&pair, 0, false);
        assert_true(pair.near->segments.count <= KVFI_MOON_KEPT);
    }
    assert_int_equal(pair.near->segments.count, KVFI_MOON_KEPT);
    assert_int_equal(pair.near->segments.kept_count, KVFI_MOON_KEPT);
    assert_true(pair.near->segments.by_name.bucket_count <= 2 * KVFI_MOON_KEPT);
    visit(&pair, 0, false);
    assert_ptr_equal(pair.near->segments.last_kept, regular);
    assert_int_equal(regular->number, number);
    assert_int_equal(regular->fetches, 1);
    /* Who opens one that is kept is told its number, which is in use from then on. */
    assert_int_equal(open_peer(&pair, 0), number);
    assert_int_equal(pair.near->segments.kept_count, KVFI_MOON_KEPT - 1);
    assert_int_equal(kvf_mooncake_close_segment(pair.near, number, &pair.error), KVF_OK);
    assert_int_equal(pair.near->segments.count, KVFI_MOON_KEPT - 1);
    end(&pair);
}

static enum kvf_status take_and_put(struct pair *pair, int64_t number)
{
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_now_ns() + LONG_NS, .wake_fd = -1};
    struct kvfi_moon_segment *segment = kvfi_moon_acquire_segment(pair->near, number, &pair->error);
    struct kvfi_moon_lane *lane = NULL;
    enum kvf_status status = KVF_ERR_NOT_FOUND;

    if (segment) status = kvfi_moon_lane_take(pair->near, segment, false, true, &limit, &lane, &pair->error);
    if (lane) kvfi_moon_lane_put(pair->near, segment, lane);
    kvfi_moon_release_segment(pair->near, segment);
    return status;
}

/* Connections to peers that nobody uses make way where there can be no more. */
static void kept_connections_make_way(void **state)
{
    struct pair pair;
    struct rlimit before, few;
    enum kvf_status status;
    int64_t number;
    int next;

    (void)state;
    begin(&pair);
    for (int i = 0; i < 40; i++) visit(&pair, i, true);
    number = open_peer(&pair, 100);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    next = dup(0);
    few = before;
    few.rlim_cur = (rlim_t)next + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_true(next >= 0 && dup(0) < 0); /* that was the last one */
    status = take_and_put(&pair, number);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (status != KVF_OK) fail_msg("%s", pair.error.text);
    close(next);
    for (struct kvfi_moon_segment *kept = pair.near->segments.first_kept; kept; kept = kept->next_kept)
        assert_int_equal(kept->lane_count, 0);
    end(&pair);
}

static int64_t time_lookups(struct pair *pair, const int64_t *numbers, int count)
{
    struct kvf_mooncake_segment_info info = {.struct_size = sizeof info};
    char name[KVF_MOONCAKE_NAME_BYTES];
    int64_t best_ns = INT64_MAX, again;

    for (int round = 0; round < 7; round++) {
        int64_t began_ns = kvfi_now_ns(), took_ns;

        for (int i = 0; i < 1000; i++) {
            int at = (int)((int64_t)i * 7919 % count);

            assert_int_equal(kvf_mooncake_get_segment_info(pair->near, numbers[at], &info, NULL), KVF_OK);
            name_peer(pair, at, name);
            assert_int_equal(kvf_mooncake_open_segment(pair->near, name, LONG_NS, &again, NULL), KVF_OK);
            assert_int_equal(again, numbers[at]);
            assert_int_equal(kvf_mooncake_close_segment(pair->near, again, NULL), KVF_OK);
        }
        took_ns = kvfi_now_ns() - began_ns;
        if (took_ns < best_ns) best_ns = took_ns;
    }
    return best_ns;
}

/* Finding one of ten times as many takes no longer, but for caches. */
static void finding_is_no_walk(void **state)
{
    enum { FEW = 500, MANY = 5000 };
    struct pair pair;
    int64_t *numbers = calloc(MANY, sizeof *numbers), few_ns, many_ns;

    (void)state;
    begin(&pair);
    for (int i = 0; i < FEW; i++) numbers[i] = open_peer(&pair, i);
    few_ns = time_lookups(&pair, numbers, FEW);
    for (int i = FEW; i < MANY; i++) numbers[i] = open_peer(&pair, i);
    many_ns = time_lookups(&pair, numbers, MANY);
    print_message("1000 look-ups among %d: %lld us, among %d: %lld us\n", FEW, (long long)few_ns / 1000, MANY,
                  (long long)many_ns / 1000);
    assert_true(many_ns < 5 * few_ns);
    free(numbers);
    end(&pair);
}

/* ---- many at once ------------------------------------------------------------------------------------------------ */

struct crowd {
    struct pair *pair;
    unsigned seed;
};

static void *open_and_close(void *context)
{
    struct crowd *crowd = context;
    struct pair own = {.near = crowd->pair->near, .far = crowd->pair->far};

    for (int i = 0; i < 300; i++) {
        int64_t segment;

        crowd->seed = crowd->seed * 1103515245u + 12345u;
        if (crowd->seed >> 16 & 1) {
            visit(&own, (int)(crowd->seed >> 20 & 7), true);
            continue;
        }
        segment = open_peer(&own, (int)(crowd->seed >> 20 & 7));
        assert_int_equal(write_to(&own, segment), KVF_OK);
        assert_int_equal(kvf_mooncake_close_segment(own.near, segment, &own.error), KVF_OK);
    }
    return NULL;
}

static void many_at_once(void **state)
{
    struct pair pair;
    struct crowd crowd[6];
    pthread_t threads[6];

    (void)state;
    begin(&pair);
    for (unsigned i = 0; i < 6; i++) {
        crowd[i] = (struct crowd){&pair, i * 77 + 1};
        pthread_create(&threads[i], NULL, open_and_close, &crowd[i]);
    }
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    assert_int_equal(pair.near->segments.count, pair.near->segments.kept_count);
    end(&pair);
}

/* ---- peers of the transport -------------------------------------------------------------------------------------- */

static void await_event(struct kvfi_transport *transport, enum kvfi_transport_event_kind kind)
{
    struct kvfi_transport_event event;
    struct pollfd wait = {.fd = kvfi_mooncake_ops.event_fd(transport), .events = POLLIN};

    do {
        assert_int_equal(poll(&wait, 1, 20000), 1);
    } while (kvfi_mooncake_ops.events(transport, &event, 1) != 1 || event.kind != (int)kind);
    assert_int_equal(event.status, KVF_OK);
}

/* Each holds the segment of its peer until it is freed. */
static void peers_of_the_transport(void **state)
{
    struct pair pair;
    const struct kvfi_transport_config config = {.host = "127.0.0.1", .streams = 1, .connect_timeout_ns = LONG_NS};
    struct kvfi_transport *transport = NULL;
    char name[KVF_MOONCAKE_NAME_BYTES];
    uint64_t peer;

    (void)state;
    begin(&pair);
    assert_int_equal(kvfi_mooncake_ops.open(&config, &transport, &pair.error), KVF_OK);
    for (int i = 0; i < 5; i++) {
        name_peer(&pair, i, name);
        assert_int_equal(kvfi_mooncake_ops.connect(transport, name, NULL, &peer, &pair.error), KVF_OK);
        await_event(transport, KVFI_TEV_CONNECTED);
        assert_int_equal(transport->engine->segments.kept_count, i);
        kvfi_mooncake_ops.disconnect(transport, peer);
        assert_int_equal(transport->engine->segments.kept_count, i + 1);
        assert_int_equal(transport->engine->segments.count, i + 1);
    }
    kvfi_mooncake_ops.close(transport);
    end(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opened_and_closed), cmocka_unit_test(closed_while_it_is_used),
        cmocka_unit_test(failed_opens_leave_nothing), cmocka_unit_test(ten_thousand_come_and_go),
        cmocka_unit_test(kept_connections_make_way), cmocka_unit_test(finding_is_no_walk),
        cmocka_unit_test(many_at_once), cmocka_unit_test(peers_of_the_transport)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
