/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of a Mooncake engine: what moves, how each ends, and that memory is still afterwards. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "batch_kit.h"
#include "transport/mooncake/frame.h"

/* An initiator, a target and the way there. */
struct pair {
    struct arena near, far;
    int64_t segment;
};

static void pair_init(struct pair *pair, uint64_t size)
{
    arena_init(&pair->near, size, 1);
    arena_init(&pair->far, size, 0);
    memset(pair->far.bytes, 0x5A, size);
    pair->segment = open_peer(pair->near.engine, kvf_mooncake_segment_name(pair->far.engine));
}

static void pair_fini(struct pair *pair)
{
    arena_fini(&pair->near);
    arena_fini(&pair->far);
}

static struct kvf_mooncake_range range_of(const struct pair *pair, uint64_t local, uint64_t remote, uint64_t bytes)
{
    return (struct kvf_mooncake_range){arena_at(&pair->near, local), arena_at(&pair->far, remote), bytes};
}

/* ---- what moves -------------------------------------------------------------------------------------------------- */

static void a_batch_writes_and_another_reads_back(void **state)
{
    enum { COUNT = 1000, SLOT = 4000 };
    struct kvf_mooncake_range *ranges = calloc(COUNT, sizeof *ranges);
    unsigned char *before = malloc(COUNT * SLOT);
    uint8_t outcomes[COUNT];
    kvf_mooncake_batch *batch;
    struct kvf_mooncake_progress progress;
    struct pair pair;

    (void)state;
    assert_true(ranges && before);
    pair_init(&pair, COUNT * SLOT);
    memcpy(before, pair.near.bytes, COUNT * SLOT);
    for (size_t i = 0; i < COUNT; i++) ranges[i] = range_of(&pair, i * SLOT, (COUNT - 1 - i) * SLOT, i * 13 % SLOT);
    arena_settle(&pair.far);
    batch = submit(pair.near.engine, pair.segment, KVF_MOONCAKE_WRITE, ranges, COUNT, PATIENCE);
    memset(ranges, 0, COUNT * sizeof *ranges); /* they were copied */
    memset(outcomes, 9, sizeof outcomes);
    assert_int_equal(kvf_mooncake_batch_wait(batch, PATIENCE, outcomes, NULL), KVF_OK);
    progress = progress_of(batch);
    assert_int_equal(progress.done, COUNT);
    for (int64_t i = 0; i < COUNT; i++) progress.done_bytes -= i * 13 % SLOT;
    assert_int_equal(progress.done_bytes, 0);
    for (size_t i = 0; i < COUNT; i++) assert_int_equal(outcomes[i], KVF_MOONCAKE_DONE);
    kvf_mooncake_batch_free(batch);
    arena_settle(&pair.far);
    for (size_t i = 0; i < COUNT; i++) {
        assert_memory_equal(pair.far.bytes + (COUNT - 1 - i) * SLOT, before + i * SLOT, i * 13 % SLOT);
        assert_int_equal(pair.far.bytes[(COUNT - 1 - i) * SLOT + i * 13 % SLOT], 0x5A);
        ranges[i] = range_of(&pair, i * SLOT, (COUNT - 1 - i) * SLOT, i * 13 % SLOT);
    }
    memset(pair.near.bytes, 0, COUNT * SLOT);
    expect_end(submit(pair.near.engine, pair.segment, KVF_MOONCAKE_READ, ranges, COUNT, PATIENCE), KVF_OK);
    for (size_t i = 0; i < COUNT; i++)
        assert_memory_equal(pair.near.bytes + i * SLOT, before + i * SLOT, i * 13 % SLOT);
    free(before);
    free(ranges);
    pair_fini(&pair);
}

static void ten_thousand_batches_of_one_range(void **state)
{
    enum { COUNT = 10000, SLOT = 100 };
    kvf_mooncake_batch **batches = calloc(COUNT, sizeof *batches);
    size_t threads;
    struct pair pair;

    (void)state;
    assert_non_null(batches);
    pair_init(&pair, COUNT * SLOT);
    threads = thread_count();
    for (size_t i = 0; i < COUNT; i++) {
        const struct kvf_mooncake_range range = range_of(&pair, i * SLOT, i * SLOT, SLOT - 1);

        batches[i] = submit(pair.near.engine, pair.segment, KVF_MOONCAKE_WRITE, &range, 1, PATIENCE);
    }
    assert_in_range(thread_count(), threads + 1, threads + 6); /* four of one peer, and one that looks at deadlines */
    for (size_t i = 0; i < COUNT; i++) expect_end(batches[i], KVF_OK);
    arena_settle(&pair.far);
    for (size_t i = 0; i < COUNT; i++) {
        assert_memory_equal(pair.far.bytes + i * SLOT, pair.near.bytes + i * SLOT, SLOT - 1);
        assert_int_equal(pair.far.bytes[i * SLOT + SLOT - 1], 0x5A);
    }
    free(batches);
    pair_fini(&pair);
}

static bool has_begun(const struct kvf_mooncake_progress *progress)
{
    return progress->done > 0;
}

static void progress_grows_while_it_runs(void **state)
{
    enum { COUNT = 200000 };
    struct kvf_mooncake_range *ranges = calloc(COUNT, sizeof *ranges);
    struct kvf_mooncake_progress now, before;
    kvf_mooncake_batch *batch;
    struct pair pair;

    (void)state;
    assert_non_null(ranges);
    pair_init(&pair, COUNT * 8);
    for (size_t i = 0; i < COUNT; i++) ranges[i] = range_of(&pair, i * 8, i * 8, 8);
    batch = submit(pair.near.engine, pair.segment, KVF_MOONCAKE_WRITE, ranges, COUNT, PATIENCE);
    before = progress_of(batch);
    await_progress(batch, has_begun);
    do {
        now = progress_of(batch);
        assert_true(now.done >= before.done && now.done_bytes >= before.done_bytes);
        before = now;
    } while (!now.ended);
    assert_int_equal(now.done_bytes, COUNT * 8);
    expect_end(batch, KVF_OK);
    free(ranges);
    pair_fini(&pair);
}

static void nothing_moves_for_nothing(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 4096);
    expect_end(submit(pair.near.engine, pair.segment, KVF_MOONCAKE_WRITE, NULL, 0, PATIENCE), KVF_OK);
    expect_end(submit(pair.near.engine, pair.segment, KVF_MOONCAKE_READ, NULL, 0, PATIENCE), KVF_OK);
    kvf_mooncake_batch_free(NULL);
    pair_fini(&pair);
}

/* ---- what fails -------------------------------------------------------------------------------------------------- */

static void ranges_fail_each_for_itself(void **state)
{
    static const struct { const char *name; uint64_t flags; enum kvf_mooncake_outcome behind; } rows[] = {
        {"the others go on", 0, KVF_MOONCAKE_DONE}, {"stop", KVF_MOONCAKE_STOP_AT_FAILURE, KVF_MOONCAKE_FAILED}};
    struct pair pair;

    (void)state;
    pair_init(&pair, MIB);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvf_mooncake_range ranges[] = {{0, 0, 0}, {1, arena_at(&pair.far, 0), 8},
                                                    range_of(&pair, 100, 100, 100), range_of(&pair, 0, MIB - 5, 10)};
        struct kvf_mooncake_batch_spec spec;
        kvf_mooncake_batch *batch;
        uint8_t outcomes[4];
        struct kvf_error error;

        kvf_mooncake_batch_spec_init(&spec, sizeof spec);
        spec.segment = pair.segment;
        spec.ranges = ranges;
        spec.range_count = 4;
        spec.flags = rows[i].flags;
        spec.notify_name = spec.notify_message = "never sent";
        assert_int_equal(kvf_mooncake_submit(pair.near.engine, &spec, &batch, &error), KVF_OK);
        assert_int_equal(kvf_mooncake_batch_wait(batch, PATIENCE, outcomes, &error), KVF_ERR_OUT_OF_RANGE);
        if (!strstr(error.text, "range 1: ") || !strstr(error.text, "(of 4 ranges: "))
            fail_msg("%s: %s", rows[i].name, error.text);
        assert_int_equal(outcomes[0], KVF_MOONCAKE_DONE);
        assert_int_equal(outcomes[1], KVF_MOONCAKE_FAILED);
        assert_int_equal(outcomes[2], rows[i].behind);
        assert_int_equal(outcomes[3], KVF_MOONCAKE_FAILED);
        assert_int_equal(progress_of(batch).failed, rows[i].behind == KVF_MOONCAKE_DONE ? 2 : 3);
        kvf_mooncake_batch_free(batch);
    }
    pair_fini(&pair);
}

static void bad_specs_are_refused(void **state)
{
    static const struct kvf_mooncake_range range = {1, 1, 1};
    static const char latin[] = "caf\xe9";
    struct kvf_mooncake_batch_spec good;
    struct pair pair;

    (void)state;
    pair_init(&pair, 4096);
    kvf_mooncake_batch_spec_init(&good, sizeof good);
    assert_int_equal(good.timeout_ns, 60 * KVFI_SECOND);
    assert_int_equal(good.operation, KVF_MOONCAKE_WRITE);
    good.segment = pair.segment;
    good.ranges = &range;
    good.range_count = 1;
    const struct { const char *name; int64_t segment; int32_t operation; uint64_t flags; int64_t timeout_ns;
                   const struct kvf_mooncake_range *ranges; const char *notify[2]; size_t size;
                   enum kvf_status status; } rows[] = {
        {"no such segment", 77, 0, 0, 1, &range, {0}, sizeof good, KVF_ERR_NOT_FOUND},
        {"operation", pair.segment, 2, 0, 1, &range, {0}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"flags", pair.segment, 0, 2, 1, &range, {0}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"no time", pair.segment, 0, 0, 0, &range, {0}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"less than no time", pair.segment, 0, 0, -1, &range, {0}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"no ranges", pair.segment, 0, 0, 1, NULL, {0}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"notify without name", pair.segment, 0, 0, 1, &range, {NULL, "m"}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"notify without message", pair.segment, 0, 0, 1, &range, {"n"}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"notify of no text", pair.segment, 0, 0, 1, &range, {"n", latin}, sizeof good, KVF_ERR_INVALID_ARGUMENT},
        {"no size", pair.segment, 0, 0, 1, &range, {0}, 0, KVF_ERR_INVALID_ARGUMENT}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_mooncake_batch_spec spec = good;
        kvf_mooncake_batch *batch = (kvf_mooncake_batch *)&pair;
        struct kvf_error error = {.text = ""};

        spec.struct_size = rows[i].size;
        spec.segment = rows[i].segment;
        spec.operation = rows[i].operation;
        spec.flags = rows[i].flags;
        spec.timeout_ns = rows[i].timeout_ns;
        spec.ranges = rows[i].ranges;
        spec.notify_name = rows[i].notify[0];
        spec.notify_message = rows[i].notify[1];
        if (kvf_mooncake_submit(pair.near.engine, &spec, &batch, &error) != rows[i].status || !error.text[0] ||
            batch != (kvf_mooncake_batch *)&pair)
            fail_msg("%s: %s", rows[i].name, error.text);
    }
    pair_fini(&pair);
}

static void bad_structs_of_progress_are_refused(void **state)
{
    const size_t sizes[] = {0, 7, sizeof(struct kvf_mooncake_progress) + 1};
    struct kvf_mooncake_progress shorter = {.struct_size = offsetof(struct kvf_mooncake_progress, done), .done = 99};
    kvf_mooncake_batch *batch;
    struct pair pair;

    (void)state;
    pair_init(&pair, 4096);
    batch = submit(pair.near.engine, pair.segment, KVF_MOONCAKE_WRITE, NULL, 0, PATIENCE);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct kvf_mooncake_progress progress = {.struct_size = sizes[i]};

        assert_int_equal(kvf_mooncake_batch_get_progress(batch, &progress, NULL), KVF_ERR_INVALID_ARGUMENT);
    }
    assert_int_equal(kvf_mooncake_batch_get_progress(batch, &shorter, NULL), KVF_OK);
    assert_int_equal(shorter.done, 99);
    kvf_mooncake_batch_free(batch);
    pair_fini(&pair);
}

/* ---- notifies ---------------------------------------------------------------------------------------------------- */

static void a_notify_follows_the_last_byte(void **state)
{
    struct kvf_mooncake_batch_spec spec;
    struct kvf_mooncake_range range;
    struct pair pair;

    (void)state;
    pair_init(&pair, 4 * MIB);
    kvf_mooncake_batch_spec_init(&spec, sizeof spec);
    spec.segment = pair.segment;
    spec.ranges = &range;
    spec.range_count = 1;
    for (int round = 0; round < 20; round++) {
        struct kvf_mooncake_notification *note;
        char name[] = "request", message[] = "all there";
        kvf_mooncake_batch *batch;
        struct kvf_error error;

        memset(pair.far.bytes, 0x5A, 4 * MIB);
        arena_settle(&pair.far);
        range = range_of(&pair, 0, 0, 4 * MIB);
        spec.notify_name = name;
        spec.notify_message = message;
        if (kvf_mooncake_submit(pair.near.engine, &spec, &batch, &error) != KVF_OK) fail_msg("%s", error.text);
        name[0] = message[0] = 'X'; /* they were copied */
        range.bytes = 1;
        assert_int_equal(kvf_mooncake_take_notification(pair.far.engine, PATIENCE, &note, &error), KVF_OK);
        assert_string_equal(note->name, "request");
        assert_string_equal(note->message, "all there");
        kvf_mooncake_free_notification(note);
        arena_settle(&pair.far);
        assert_memory_equal(pair.far.bytes, pair.near.bytes, 4 * MIB);
        expect_end(batch, KVF_OK);
    }
    pair_fini(&pair);
}

static void a_notify_that_fails_fails_its_batch(void **state)
{
    struct kvf_mooncake_options options;
    struct kvf_mooncake_batch_spec spec;
    struct kvf_mooncake_progress progress;
    struct kvf_mooncake_range range;
    kvf_mooncake_batch *batch;
    kvf_mooncake *full;
    struct kvf_error error;
    struct pair pair;

    (void)state;
    pair_init(&pair, 4096);
    kvf_mooncake_options_init(&options, sizeof options);
    options.max_notifies = 0;
    assert_int_equal(kvf_mooncake_open(&options, &full, &error), KVF_OK);
    kvf_mooncake_batch_spec_init(&spec, sizeof spec);
    spec.segment = open_peer(pair.near.engine, kvf_mooncake_segment_name(full));
    spec.ranges = &range;
    spec.range_count = 1;
    range = range_of(&pair, 0, 0, 0);
    spec.notify_name = spec.notify_message = "too many";
    assert_int_equal(kvf_mooncake_submit(pair.near.engine, &spec, &batch, &error), KVF_OK);
    assert_int_equal(kvf_mooncake_batch_wait(batch, PATIENCE, NULL, &error), KVF_ERR_REFUSED);
    progress = progress_of(batch);
    assert_int_equal(progress.done, 1);
    assert_int_equal(progress.status, KVF_ERR_REFUSED);
    kvf_mooncake_batch_free(batch);
    kvf_mooncake_close(full);
    pair_fini(&pair);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};

    return poll(&wait, 1, timeout_ms) == 1;
}

static void its_descriptor_tells_the_end(void **state)
{
    struct quiet_host *quiet = quiet_host_open(2);
    struct kvf_mooncake_range range;
    kvf_mooncake_batch *stuck, *done;
    struct pair pair;
    int fd;

    (void)state;
    pair_init(&pair, 2 * MIB);
    range = range_of(&pair, 0, 0, MIB); /* what is stuck may still be read: the others use the rest */
    stuck = submit(pair.near.engine, open_quiet(pair.near.engine, quiet, 1), KVF_MOONCAKE_WRITE, &range, 1, PATIENCE);
    fd = kvf_mooncake_batch_event_fd(stuck);
    assert_int_equal(kvf_mooncake_batch_event_fd(stuck), fd);
    assert_false(is_readable(fd, 0));
    assert_int_equal(kvf_mooncake_batch_wait(stuck, 0, NULL, NULL), KVF_ERR_AGAIN);
    assert_int_equal(kvf_mooncake_batch_wait(stuck, -1, NULL, NULL), KVF_ERR_AGAIN);
    assert_int_equal(kvf_mooncake_batch_wait(stuck, 20 * KVFI_MS, NULL, NULL), KVF_ERR_AGAIN);
    range = range_of(&pair, MIB, MIB, MIB);
    done = submit(pair.near.engine, pair.segment, KVF_MOONCAKE_WRITE, &range, 1, PATIENCE);
    assert_true(is_readable(kvf_mooncake_batch_event_fd(done), 30000));
    assert_int_equal(kvf_mooncake_batch_wait(done, 0, NULL, NULL), KVF_OK);
    kvf_mooncake_batch_free(done);
    done = submit(pair.near.engine, pair.segment, KVF_MOONCAKE_READ, &range, 1, PATIENCE);
    assert_int_equal(kvf_mooncake_batch_wait(done, PATIENCE, NULL, NULL), KVF_OK);
    assert_true(is_readable(kvf_mooncake_batch_event_fd(done), 0)); /* asked for after the end */
    kvf_mooncake_batch_free(done);
    assert_false(is_readable(fd, 0));
    kvf_mooncake_batch_cancel(stuck);
    assert_true(is_readable(fd, 30000));
    assert_int_equal(kvf_mooncake_batch_wait(stuck, 0, NULL, NULL), KVF_ERR_CANCELLED);
    kvf_mooncake_batch_free(stuck);
    pair_fini(&pair);
    quiet_host_close(quiet);
}

/* Ten batches to a peer that stands still: those that began and those that wait end at their own deadlines. */
static void deadlines_hold_where_a_peer_stands_still(void **state)
{
    enum { COUNT = 10, UNDER_WAY = 4 };
    struct quiet_host *quiet = quiet_host_open(2);
    kvf_mooncake_batch *batches[COUNT];
    struct kvf_mooncake_range range;
    int64_t segment, start_ns;
    struct pair pair;

    (void)state;
    pair_init(&pair, MIB);
    segment = open_quiet(pair.near.engine, quiet, 1);
    range = range_of(&pair, 0, 0, 1000);
    start_ns = kvfi_now_ns();
    for (int i = 0; i < COUNT; i++)
        batches[i] = submit(pair.near.engine, segment, KVF_MOONCAKE_WRITE, &range, 1,
                            i < UNDER_WAY ? 2 * KVFI_SECOND : 100 * KVFI_MS * (1 + i % 3));
    for (int i = COUNT; i-- > 0;) {
        uint8_t outcome = 9;
        struct kvf_error error;

        assert_int_equal(kvf_mooncake_batch_wait(batches[i], PATIENCE, &outcome, &error), KVF_ERR_TIMEOUT);
        assert_int_equal(outcome, i < UNDER_WAY ? KVF_MOONCAKE_IN_DOUBT : KVF_MOONCAKE_FAILED);
        if (i >= UNDER_WAY && !strstr(error.text, "before it began")) fail_msg("%s", error.text);
        if (i == UNDER_WAY) assert_true(kvfi_now_ns() - start_ns < 1900 * KVFI_MS);
        kvf_mooncake_batch_free(batches[i]);
    }
    assert_true(kvfi_now_ns() - start_ns >= 2 * KVFI_SECOND);
    pair_fini(&pair);
    quiet_host_close(quiet);
}

/* ---- cancel and free --------------------------------------------------------------------------------------------- */

static void what_waits_is_cancelled_at_once(void **state)
{
    enum { COUNT = 2000, UNDER_WAY = 4 };
    struct quiet_host *quiet = quiet_host_open(2);
    kvf_mooncake_batch **batches = calloc(COUNT, sizeof *batches);
    struct kvf_mooncake_range range;
    int64_t segment;
    struct pair pair;

    (void)state;
    assert_non_null(batches);
    pair_init(&pair, 4096);
    segment = open_quiet(pair.near.engine, quiet, 1);
    range = range_of(&pair, 0, 0, 1000);
    for (int i = 0; i < COUNT; i++)
        batches[i] = submit(pair.near.engine, segment, KVF_MOONCAKE_WRITE, &range, 1, PATIENCE);
    for (int i = 0; i < UNDER_WAY; i++) close(quiet_host_accept(quiet)); /* all that may have begun */
    for (int i = UNDER_WAY + 4; i < COUNT; i += 2) {
        uint8_t outcome = 9;

        kvf_mooncake_batch_cancel(batches[i]);
        kvf_mooncake_batch_cancel(batches[i]);
        assert_int_equal(kvf_mooncake_batch_wait(batches[i], 0, &outcome, NULL), KVF_ERR_CANCELLED);
        assert_int_equal(outcome, KVF_MOONCAKE_FAILED);
        assert_int_equal(progress_of(batches[i]).failed, 1);
    }
    for (int i = COUNT; i-- > 0;) kvf_mooncake_batch_cancel(batches[i]);
    for (int i = COUNT; i-- > 0;) kvf_mooncake_batch_free(batches[i]);
    free(batches);
    pair_fini(&pair);
    quiet_host_close(quiet);
}

/* A peer that takes part of a body and no more. After the cancel the memory is given to others, and none of what the
 * peer reads then is theirs. */
static void a_write_that_is_cancelled_leaves_its_memory(void **state)
{
    enum { COUNT = 6 };
    struct quiet_host *quiet = quiet_host_open(2);
    struct kvf_mooncake_range ranges[COUNT];
    unsigned char *read = malloc(MIB), *before = malloc(128 * MIB);
    kvf_mooncake_batch *batch;
    uint64_t came = 0;
    uint8_t outcomes[COUNT];
    struct kvf_error error;
    struct pair pair;
    ssize_t got;
    int fd;

    (void)state;
    assert_true(read && before);
    pair_init(&pair, 128 * MIB);
    memcpy(before, pair.near.bytes, 128 * MIB);
    for (size_t i = 0; i < COUNT; i++) /* two connections, one of the large ones each; the others never begin */
        ranges[i] = range_of(&pair, i % 2 * 64 * MIB, 0, i < 2 ? 64 * MIB : 100);
    batch = submit(pair.near.engine, open_quiet(pair.near.engine, quiet, 1), KVF_MOONCAKE_WRITE, ranges, COUNT,
                   PATIENCE);
    fd = quiet_host_accept(quiet);
    assert_int_equal(recv(fd, read, KVFI_MOON_HEADER_BYTES, MSG_WAITALL), KVFI_MOON_HEADER_BYTES);
    assert_int_equal(recv(fd, read, MIB, MSG_WAITALL), MIB); /* amid the body */
    came = MIB;
    kvf_mooncake_batch_cancel(batch);
    assert_int_equal(kvf_mooncake_batch_wait(batch, PATIENCE, outcomes, &error), KVF_ERR_CANCELLED);
    if (!strstr(error.text, "cancelled")) fail_msg("%s", error.text);
    memset(pair.near.bytes, 0xEE, 128 * MIB);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(outcomes[i], i < 2 ? KVF_MOONCAKE_IN_DOUBT : KVF_MOONCAKE_FAILED);
    kvf_mooncake_batch_free(batch);
    assert_memory_equal(read, before, MIB);
    while ((got = recv(fd, read, MIB, 0)) > 0) {
        if (memcmp(read, before + came, (size_t)got) != 0) fail_msg("sent from memory that was given back");
        came += (uint64_t)got;
    }
    assert_true(came < 64 * MIB);
    close(fd);
    free(before);
    free(read);
    pair_fini(&pair);
    quiet_host_close(quiet);
}

/* A peer that sends half of what is read, and the rest when nobody wants it any more. */
static void a_read_that_is_freed_leaves_its_memory(void **state)
{
    enum { BYTES = 1 << 20 };
    struct quiet_host *quiet = quiet_host_open(1);
    unsigned char *sent = malloc(BYTES);
    struct kvf_mooncake_range range;
    kvf_mooncake_batch *batch;
    struct pair pair;
    char end;
    int fd;

    (void)state;
    assert_non_null(sent);
    memset(sent, 0xDD, BYTES);
    pair_init(&pair, BYTES);
    range = range_of(&pair, 0, 0, BYTES);
    batch = submit(pair.near.engine, open_quiet(pair.near.engine, quiet, 1), KVF_MOONCAKE_READ, &range, 1, PATIENCE);
    fd = quiet_host_accept(quiet);
    assert_int_equal(recv(fd, sent, KVFI_MOON_HEADER_BYTES, MSG_WAITALL), KVFI_MOON_HEADER_BYTES);
    memset(sent, 0xDD, BYTES);
    assert_int_equal(send(fd, sent, BYTES / 2, MSG_NOSIGNAL), BYTES / 2);
    kvf_mooncake_batch_free(batch);
    memset(pair.near.bytes, 0x11, BYTES);
    if (send(fd, sent, BYTES / 2, MSG_NOSIGNAL) > 0) assert_true(recv(fd, &end, 1, 0) <= 0);
    for (size_t i = 0; i < BYTES; i++) assert_int_equal(pair.near.bytes[i], 0x11);
    close(fd);
    free(sent);
    pair_fini(&pair);
    quiet_host_close(quiet);
}

static void free_does_not_need_a_wait_nor_the_segment(void **state)
{
    enum { COUNT = 200 };
    struct pair pair;

    (void)state;
    pair_init(&pair, MIB);
    for (int i = 0; i < COUNT; i++) {
        const struct kvf_mooncake_range range = range_of(&pair, 0, 0, MIB);
        int64_t segment = open_peer(pair.near.engine, kvf_mooncake_segment_name(pair.far.engine));
        kvf_mooncake_batch *batch = submit(pair.near.engine, segment, i % 2 ? KVF_MOONCAKE_READ : KVF_MOONCAKE_WRITE,
                                           &range, 1, PATIENCE);

        assert_int_equal(kvf_mooncake_close_segment(pair.near.engine, segment, NULL), KVF_OK);
        if (i == 0) assert_int_equal(kvf_mooncake_close_segment(pair.near.engine, pair.segment, NULL), KVF_OK);
        if (i % 4 == 0) expect_end(batch, KVF_OK);
        else kvf_mooncake_batch_free(batch);
    }
    pair_fini(&pair);
}

/* The target goes amid a body. */
static void a_peer_that_closes_ends_its_batches(void **state)
{
    enum { COUNT = 4 };
    kvf_mooncake_batch *batches[COUNT];
    struct pair pair;

    (void)state;
    pair_init(&pair, 64 * MIB);
    for (int i = 0; i < COUNT; i++) {
        struct kvf_mooncake_range *ranges = calloc(64, sizeof *ranges);

        assert_non_null(ranges);
        for (size_t at = 0; at < 64; at++) ranges[at] = range_of(&pair, at * MIB, at * MIB, MIB);
        batches[i] = submit(pair.near.engine, pair.segment, KVF_MOONCAKE_READ, ranges, 64, PATIENCE);
        free(ranges);
    }
    await_progress(batches[0], has_begun);
    kvf_mooncake_close(pair.far.engine);
    pair.far.engine = NULL;
    for (int i = 0; i < COUNT; i++) {
        struct kvf_error error;
        enum kvf_status status = kvf_mooncake_batch_wait(batches[i], PATIENCE, NULL, &error);

        if (status != KVF_OK && status != KVF_ERR_PEER_LOST && status != KVF_ERR_UNREACHABLE)
            fail_msg("%s: %s", kvf_status_name(status), error.text);
        progress_of(batches[i]);
        kvf_mooncake_batch_free(batches[i]);
    }
    pair_fini(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_writes_and_another_reads_back),
        cmocka_unit_test(ten_thousand_batches_of_one_range),
        cmocka_unit_test(progress_grows_while_it_runs),
        cmocka_unit_test(nothing_moves_for_nothing),
        cmocka_unit_test(ranges_fail_each_for_itself),
        cmocka_unit_test(bad_specs_are_refused),
        cmocka_unit_test(bad_structs_of_progress_are_refused),
        cmocka_unit_test(a_notify_follows_the_last_byte),
        cmocka_unit_test(a_notify_that_fails_fails_its_batch),
        cmocka_unit_test(its_descriptor_tells_the_end),
        cmocka_unit_test(deadlines_hold_where_a_peer_stands_still),
        cmocka_unit_test(what_waits_is_cancelled_at_once),
        cmocka_unit_test(a_write_that_is_cancelled_leaves_its_memory),
        cmocka_unit_test(a_read_that_is_freed_leaves_its_memory),
        cmocka_unit_test(free_does_not_need_a_wait_nor_the_segment),
        cmocka_unit_test(a_peer_that_closes_ends_its_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
