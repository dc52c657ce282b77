/* SPDX-License-Identifier: Apache-2.0 */
/* Posts of plain ranges into another process: what moves, what is refused, how they end. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "far.h"
#include "sys/clock.h"

#define MIB (INT64_C(1) << 20)

/* ---- what moves ------------------------------------------------------------------------------------------------- */

/** One range of each length, begun at odd places on both sides. */
void case_ranges_of_all_lengths(void **state)
{
    static const int64_t lengths[] = {1, 2, 7, 4095, 4096, 4097, 65539, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 64 * MIB};
    struct far far;

    (void)state;
    far_init(&far, MIB);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        if (lengths[i] >= far.bytes) {
            far_fini(&far);
            far_init(&far, lengths[i] + MIB);
        }
        const struct kvfi_range range = far_range(&far, 4093, 8189 + (int64_t)i, lengths[i]);
        struct feed feed;

        far_wipe(&far);
        feed_init(&feed, &range, 1);
        far_post_and_await(&far, &feed, KVF_OK);
        far_check(&far, &range, 1, true);
    }
    far_fini(&far);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/** A hundred thousand ranges in one post, given a few at a time; the destinations lie in another order. */
void case_many_ranges(void **state)
{
    enum { COUNT = 100000, SLOT = 128 };
    struct kvfi_range *ranges = calloc(COUNT, sizeof *ranges);
    size_t *order = calloc(COUNT, sizeof *order);
    uint64_t seed = 5;
    struct far far;
    struct feed feed;

    (void)state;
    far_init(&far, COUNT * SLOT);
    for (size_t i = 0; i < COUNT; i++) order[i] = i;
    for (size_t i = COUNT - 1; i > 0; i--) {
        size_t j = next_random(&seed) % (i + 1), swap = order[i];

        order[i] = order[j];
        order[j] = swap;
    }
    for (size_t i = 0; i < COUNT; i++)
        ranges[i] = far_range(&far, (int64_t)i * SLOT + 3, (int64_t)order[i] * SLOT + (int64_t)(next_random(&seed) % 4),
                              (int64_t)(next_random(&seed) % 124));
    feed_init(&feed, ranges, COUNT);
    feed.most = 77;
    far_post_and_await(&far, &feed, KVF_OK);
    far_check(&far, ranges, COUNT, true);
    free(order);
    free(ranges);
    far_fini(&far);
}

/** Runs that touch on both sides, on one alone, on none; and ranges of nothing, first, between and last. */
void case_ranges_that_touch(void **state)
{
    enum { GROUPS = 32, EACH = 100, GROUP_BYTES = EACH * 64 };
    static const int64_t steps[4][2] = {{32, 32}, {32, 64}, {64, 32}, {64, 64}};
    struct kvfi_range *ranges = calloc(2 * GROUPS * EACH + 2, sizeof *ranges);
    struct far far;
    struct feed feed;
    size_t count = 0;

    (void)state;
    far_init(&far, GROUPS * GROUP_BYTES);
    ranges[count++] = (struct kvfi_range){0, 0, 0};
    for (int64_t i = 0; i < GROUPS * EACH; i++) {
        int64_t group = i / EACH, at = i % EACH;

        ranges[count++] = far_range(&far, group * GROUP_BYTES + at * steps[group % 4][0],
                                    group * GROUP_BYTES + at * steps[group % 4][1], 32);
        if (i % 3 == 0) ranges[count++] = far_range(&far, i, i, 0);
    }
    ranges[count++] = far_range(&far, far.bytes, far.bytes, 0);
    feed_init(&feed, ranges, 0);
    far_post_and_await(&far, &feed, KVF_OK);
    feed_init(&feed, ranges, 1);
    far_post_and_await(&far, &feed, KVF_OK);
    far_check(&far, NULL, 0, true);
    feed_init(&feed, ranges, count);
    far_post_and_await(&far, &feed, KVF_OK);
    far_check(&far, ranges + 1, count - 1, true);
    free(ranges);
    far_fini(&far);
}

/** Many posts side by side. */
void case_concurrent_posts(void **state)
{
    enum { POSTS = 64, RANGES = 40 };
    static struct feed feeds[POSTS];
    static struct kvfi_range ranges[POSTS][RANGES];
    struct far far;

    (void)state;
    far_init(&far, POSTS * RANGES * 5000);
    for (int64_t i = 0; i < POSTS; i++) {
        for (int64_t j = 0; j < RANGES; j++)
            ranges[i][j] = far_range(&far, (j * POSTS + i) * 5000, (i * RANGES + j) * 5000 + 1, 4998);
        feed_init(&feeds[i], ranges[i], RANGES);
        far_post(&far, &feeds[i], 1000 + (uint64_t)i);
    }
    for (size_t i = 0; i < POSTS; i++) {
        struct kvfi_transport_event event = far_await(&far, KVFI_TEV_POSTED, 1000 + i);

        assert_int_equal(event.status, KVF_OK);
        assert_int_equal(event.bytes, RANGES * 4998);
        assert_int_equal(event.peer, far.peer);
        assert_int_equal(atomic_load(&feeds[i].destroyed), 1);
    }
    far_check(&far, &ranges[0][0], POSTS * RANGES, true);
    far_fini(&far);
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

/** A range that the source should not have given fails the post, and nothing of it is read or written. */
void case_bad_ranges(void **state)
{
    const int64_t size = 1 << 20;
    const struct {
        const char *name;
        int64_t src_offset, bytes, more_bytes; /* more_bytes: added to what is announced */
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"before the memory", -1, 10, 0, KVF_ERR_OUT_OF_RANGE, "range 1: the 10 bytes at 0x"},
        {"past its end", size - 9, 10, 0, KVF_ERR_OUT_OF_RANGE, "are not in the registered memories"},
        {"far away", INT64_C(1) << 45, 10, 0, KVF_ERR_OUT_OF_RANGE, "are not in the registered memories"},
        {"as long as all addresses", 5, INT64_MAX - 100, 0, KVF_ERR_OUT_OF_RANGE, "range 1: the 9223372036854775707"},
        {"negative", 0, -1, 2, KVF_ERR_INVALID_ARGUMENT, "range 1 has -1 bytes"},
        {"more than announced", 0, 11, -1, KVF_ERR_INVALID_ARGUMENT, "range 1 has 11 bytes, only 10 of the 110"},
        {"less than announced", 0, 10, 5, KVF_ERR_INVALID_ARGUMENT, "2 ranges came, 5 bytes short of the 115"},
    };
    struct far far;

    (void)state;
    far_init(&far, size);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvfi_range ranges[] = {far_range(&far, 0, 1000, 100),
                                            far_range(&far, rows[i].src_offset, 2000, rows[i].bytes)};
        struct kvfi_transport_event event;
        struct feed feed;

        far_wipe(&far);
        feed_init(&feed, ranges, 2);
        feed.source.bytes += rows[i].more_bytes;
        event = far_post_and_await(&far, &feed, rows[i].status);
        if (!strstr(event.text, rows[i].text)) fail_msg("%s: %s", rows[i].name, event.text);
        for (int64_t j = 2000; rows[i].more_bytes <= 0 && j < 3000; j++) assert_int_equal(far.view[j], FAR_GUARD);
        feed_init(&feed, ranges, 1);
        far_post_and_await(&far, &feed, KVF_OK);
    }
    far_fini(&far);
}

/** A place that the destination has not mapped fails the post, naming the range; what was before it may be there. */
void case_bad_destinations(void **state)
{
    struct far far;

    (void)state;
    far_init(&far, MIB);
    const int64_t zero = -(int64_t)far.address; /* the offset of address 0 */
    /* The system finds out, or the destination itself, which then says so. */
    const enum kvf_status refused = strstr(subject->transport, "mooncake") ? KVF_ERR_REFUSED : KVF_ERR_SYSTEM;
    const struct {
        const char *name;
        int64_t dst_offset, bytes;
        enum kvf_status status;
    } rows[] = {
        {"before the memory", -10, 10, refused},
        {"past its end", far.bytes, 10, refused},
        {"across its end", far.bytes - 5, 4096, refused},
        {"at 0", zero, 10, refused},
        {"beyond what a process has", zero + (INT64_C(1) << 62), 10, refused},
        {"past the end of all addresses", zero - 1, 2, KVF_ERR_OUT_OF_RANGE},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvfi_range ranges[] = {far_range(&far, 50, 1000, 100),
                                            far_range(&far, 0, rows[i].dst_offset, rows[i].bytes),
                                            far_range(&far, 0, 5000, 100)};
        struct kvfi_transport_event event;
        struct feed feed;

        far_wipe(&far);
        feed_init(&feed, ranges, 3);
        event = far_post_and_await(&far, &feed, rows[i].status);
        if (!strstr(event.text, "range 1: ")) fail_msg("%s: %s", rows[i].name, event.text);
        for (int64_t j = 5000; j < 5100; j++) assert_int_equal(far.view[j], FAR_GUARD);
        feed_init(&feed, ranges, 1);
        far_post_and_await(&far, &feed, KVF_OK);
    }
    far_fini(&far);
}

/** A call that is refused leaves the source to its owner. */
void case_ranges_to_nobody(void **state)
{
    struct far far;
    struct kvf_error error;
    struct feed feed;

    (void)state;
    far_init_apart(&far, 4096);
    const struct kvfi_range range = far_range(&far, 0, 0, 10);

    feed_init(&feed, &range, 1);
    assert_int_equal(far.ops->post_ranges(far.transport, 7, &feed.source, 1, &error), KVF_ERR_CLOSED);
    assert_true(error.text[0] != '\0');
    feed.source.bytes = -1;
    far_connect(&far);
    assert_int_equal(far.ops->post_ranges(far.transport, far.peer, &feed.source, 1, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(atomic_load(&feed.given), 0);
    assert_int_equal(atomic_load(&feed.destroyed), 0);
    far.ops->abort(far.transport, far.peer, 1);
    far.ops->abort(far.transport, 12345, 1);
    far.ops->disconnect(far.transport, 12345);
    far_fini(&far);
}

/* ---- ends ------------------------------------------------------------------------------------------------------- */

enum { ENDLESS = 12 };

/* Posts that go on for ever, more than there are threads, and waits until at least one has begun. */
static void post_endless(struct far *far, struct feed *feeds, const struct kvfi_range *range)
{
    int64_t end_ns = kvfi_now_ns() + 20 * KVFI_SECOND, given = 0;

    for (uint64_t i = 0; i < ENDLESS; i++) {
        feed_init(&feeds[i], range, 1);
        feeds[i].endless_bytes = feeds[i].source.bytes = INT64_C(1) << 50;
        far_post(far, &feeds[i], 100 + i);
    }
    while (given <= 2 * range->bytes && kvfi_now_ns() < end_ns) {
        given = 0;
        for (size_t i = 0; i < ENDLESS; i++) given += atomic_load(&feeds[i].given);
    }
    assert_true(given > 2 * range->bytes);
}

static void await_endless(struct far *far, struct feed *feeds, enum kvf_status status)
{
    for (size_t i = 0; i < ENDLESS; i++) {
        struct kvfi_transport_event event = far_await(far, KVFI_TEV_POSTED, 100 + i);

        if (event.status != status) fail_msg("%s: %s", kvf_status_name(event.status), event.text);
        assert_true(event.text[0] != '\0');
        assert_int_equal(atomic_load(&feeds[i].destroyed), 1);
    }
    for (size_t i = 0; i < far->event_count; i++) assert_int_not_equal(far->events[i].kind, KVFI_TEV_POSTED);
}

static void assert_no_more_writes(struct far *far)
{
    far_wipe(far);
    poll(NULL, 0, 50); /* a writer that went on would write in this time */
    far_check(far, NULL, 0, true);
}

void case_ranges_aborted(void **state)
{
    static struct feed feeds[ENDLESS];
    struct feed other;
    struct far far;

    (void)state;
    far_init(&far, MIB);
    const struct kvfi_range range = far_range(&far, 0, 0, MIB);

    post_endless(&far, feeds, &range);
    for (uint64_t i = 0; i < ENDLESS; i++) far.ops->abort(far.transport, far.peer, 100 + i);
    await_endless(&far, feeds, KVF_ERR_CANCELLED);
    assert_no_more_writes(&far);
    feed_init(&other, &range, 1);
    far_post_and_await(&far, &other, KVF_OK);
    far_check(&far, &range, 1, true);
    far_fini(&far);
}

void case_ranges_disconnected(void **state)
{
    static struct feed feeds[ENDLESS];
    struct feed other;
    struct far far;
    uint64_t before;

    (void)state;
    far_init(&far, MIB);
    const struct kvfi_range range = far_range(&far, 0, 0, MIB);

    post_endless(&far, feeds, &range);
    far.ops->disconnect(far.transport, far.peer);
    await_endless(&far, feeds, KVF_ERR_CANCELLED);
    assert_no_more_writes(&far);
    feed_init(&other, &range, 1);
    assert_int_equal(far.ops->post_ranges(far.transport, far.peer, &other.source, 1, NULL), KVF_ERR_CLOSED);
    before = far.peer;
    far_connect(&far);
    assert_true(far.peer > before);
    far_post_and_await(&far, &other, KVF_OK);
    assert_int_equal(far.event_count, 0); /* no PEER_DOWN for what the owner ended */
    far_fini(&far);
}

void case_ranges_to_the_dead(void **state)
{
    static struct feed feeds[ENDLESS];
    struct kvfi_peer_identity who = {.name = "d/0", .incarnation = 1};
    struct kvfi_transport_event event;
    struct kvf_error error;
    struct feed other;
    struct far far;
    uint64_t peer;
    enum kvf_status status;

    (void)state;
    far_init(&far, MIB);
    const struct kvfi_range range = far_range(&far, 0, 0, MIB);

    post_endless(&far, feeds, &range);
    far_kill(&far);
    event = far_await(&far, KVFI_TEV_PEER_DOWN, far.peer);
    assert_int_equal(event.status, KVF_ERR_PEER_LOST);
    await_endless(&far, feeds, KVF_ERR_PEER_LOST); /* all of them came before */
    feed_init(&other, &range, 1);
    assert_int_equal(far.ops->post_ranges(far.transport, far.peer, &other.source, 1, NULL), KVF_ERR_CLOSED);
    status = far.ops->connect(far.transport, far.endpoint, &who, &peer, &error);
    if (status == KVF_OK) status = far_await(&far, KVFI_TEV_CONNECTED, peer).status;
    assert_int_equal(status, KVF_ERR_UNREACHABLE);
    far_fini(&far);
}

/** A peer that dies while nothing is posted is noticed all the same. */
void case_idle_peer_dies(void **state)
{
    struct far far;

    (void)state;
    far_init(&far, 4096);
    far_kill(&far);
    assert_int_equal(far_await(&far, KVFI_TEV_PEER_DOWN, far.peer).status, KVF_ERR_PEER_LOST);
    far_fini(&far);
}

void case_closed_with_ranges_out(void **state)
{
    static struct feed feeds[ENDLESS];
    struct far far;

    (void)state;
    far_init(&far, MIB);
    const struct kvfi_range range = far_range(&far, 0, 0, MIB);

    post_endless(&far, feeds, &range);
    far.ops->close(far.transport);
    far.transport = NULL;
    for (size_t i = 0; i < ENDLESS; i++) assert_int_equal(atomic_load(&feeds[i].destroyed), 1);
    assert_no_more_writes(&far);
    far_fini(&far);
}

/* ---- what a transport cannot ------------------------------------------------------------------------------------- */

void case_says_what_it_cannot(void **state)
{
    static const struct kit_shape shape = {.layers = 1, .heads = 1, .row_bytes = 64, .tokens = 16,
                                           .src_block_tokens = 16, .dst_block_tokens = 16};
    const struct kvfi_range range = {0, 0, 0};
    struct kvf_bind_request request;
    struct kvfi_chunk chunk;
    struct kvf_error error;
    struct feed feed;
    struct kit kit;
    struct rig rig;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    request = kit_dst_request(&kit);
    if (!(rig.ops->caps & KVFI_CAP_BOXES)) {
        const struct kvfi_arm arm = {.grant = 1, .writer = rig.src_who, .plan = kit.plan, .request = &request,
                                     .bytes = kit.bytes};

        assert_int_equal(rig.ops->arm(rig.dst, &arm, &error), KVF_ERR_NOT_SUPPORTED);
        assert_true(error.text[0] != '\0');
        assert_true(rig.ops->disarm(rig.dst, 1));
        chunk = rig_whole_chunk(&rig, 1);
        assert_int_equal(rig.ops->post_chunk(rig.src, rig.peer, &chunk, &error), KVF_ERR_NOT_SUPPORTED);
        kvf_binding_destroy((kvf_binding *)chunk.binding);
    }
    if (!(rig.ops->caps & KVFI_CAP_RANGES)) {
        feed_init(&feed, &range, 1);
        assert_int_equal(rig.ops->post_ranges(rig.src, rig.peer, &feed.source, 1, &error), KVF_ERR_NOT_SUPPORTED);
        assert_true(error.text[0] != '\0');
        assert_int_equal(atomic_load(&feed.destroyed), 0);
    }
    rig_end(&rig, &kit);
}
