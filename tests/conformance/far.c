/* SPDX-License-Identifier: Apache-2.0 */
#include "far.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/clock.h"

#define PATIENCE_NS (20 * KVFI_SECOND)

/* What the child tells of itself. */
struct told {
    char endpoint[KVFI_ENDPOINT_BYTES];
    uint64_t address;
};

unsigned char far_byte(int64_t offset)
{
    uint64_t mixed = (uint64_t)offset * UINT64_C(0x9E3779B97F4A7C15);

    return (unsigned char)(mixed >> 56);
}

static struct kvfi_transport *open_side(const struct kvfi_transport_ops *ops, const char *name,
                                        const struct kvfi_memory_region *memory)
{
    struct kvfi_transport_config config = {.host = "127.0.0.1", .self = name, .incarnation = 1, .streams = 2,
                                           .connect_timeout_ns = 5 * KVFI_SECOND, .fault_policy = subject->policy,
                                           .memories = memory, .memory_count = 1};
    struct kvfi_transport *transport = NULL;
    struct kvf_error error;

    if (ops->open(&config, &transport, &error) != KVF_OK) fail_msg("%s", error.text);
    return transport;
}

/* ---- the child -------------------------------------------------------------------------------------------------- */

/* Maps the memory between two pages that nobody may touch. */
static char *map_guarded(int memfd, int64_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *room = mmap(NULL, (size_t)bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory;

    if (room == MAP_FAILED) _exit(2);
    memory = mmap(room + page, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memfd, 0);
    if (memory == MAP_FAILED) _exit(3);
    return memory;
}

static void be_destination(const struct far *far, int to_parent)
{
    struct kvfi_memory_region memory = {.bytes = far->bytes, .fd = -1};
    struct told told = {.endpoint = ""};
    struct kvfi_transport *transport;

    alarm(120); /* should the test fail before it kills this process */
    memory.address = map_guarded(far->memfd, far->bytes);
    transport = open_side(far->ops, "d/0", &memory);
    far->ops->endpoint(transport, told.endpoint);
    told.address = (uint64_t)(uintptr_t)memory.address;
    if (write(to_parent, &told, sizeof told) != sizeof told) _exit(4);
    for (;;) pause();
}

/* ---- both ends -------------------------------------------------------------------------------------------------- */

void far_init_apart(struct far *far, int64_t bytes)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    struct told told;
    int from_child[2];

    memset(far, 0, sizeof *far);
    far->bytes = (bytes + page - 1) / page * page;
    far->ops = kvfi_transport_find(subject->transport);
    far->memfd = memfd_create("far", MFD_CLOEXEC);
    assert_true(far->memfd >= 0);
    assert_int_equal(ftruncate(far->memfd, far->bytes), 0);
    assert_int_equal(pipe(from_child), 0);
    far->child = fork();
    if (far->child == 0) be_destination(far, from_child[1]);
    close(from_child[1]);
    assert_int_equal(read(from_child[0], &told, sizeof told), sizeof told);
    close(from_child[0]);
    memcpy(far->endpoint, told.endpoint, sizeof far->endpoint);
    far->address = told.address;
    far->view = mmap(NULL, (size_t)far->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, far->memfd, 0);
    assert_ptr_not_equal(far->view, MAP_FAILED);
    far->near = (struct kvfi_memory_region){.address = malloc((size_t)far->bytes), .bytes = far->bytes, .fd = -1};
    assert_non_null(far->near.address);
    for (int64_t i = 0; i < far->bytes; i++) ((unsigned char *)far->near.address)[i] = far_byte(i);
    far_wipe(far);
    far->transport = open_side(far->ops, "p/0", &far->near);
}

void far_connect(struct far *far)
{
    struct kvfi_peer_identity who = {.name = "d/0", .incarnation = 1};
    struct kvfi_transport_event event;
    struct kvf_error error;

    if (far->ops->probe(far->transport, far->endpoint, &error) != KVF_OK ||
        far->ops->connect(far->transport, far->endpoint, &who, &far->peer, &error) != KVF_OK)
        fail_msg("%s", error.text);
    event = far_await(far, KVFI_TEV_CONNECTED, far->peer);
    if (event.status != KVF_OK) fail_msg("connect: %s", event.text);
}

void far_init(struct far *far, int64_t bytes)
{
    far_init_apart(far, bytes);
    far_connect(far);
}

void far_kill(struct far *far)
{
    if (far->child <= 0) return;
    kill(far->child, SIGKILL);
    waitpid(far->child, NULL, 0);
    far->child = 0;
}

void far_fini(struct far *far)
{
    if (far->transport) far->ops->close(far->transport);
    far_kill(far);
    munmap(far->view, (size_t)far->bytes);
    close(far->memfd);
    free(far->near.address);
}

void far_wipe(struct far *far)
{
    memset(far->view, FAR_GUARD, (size_t)far->bytes);
}

static bool is_it(const struct kvfi_transport_event *event, int kind, uint64_t number)
{
    return event->kind == kind && (kind == KVFI_TEV_POSTED ? event->cookie : event->peer) == number;
}

struct kvfi_transport_event far_await(struct far *far, int kind, uint64_t number)
{
    int64_t end_ns = kvfi_now_ns() + PATIENCE_NS;
    size_t capacity = sizeof far->events / sizeof far->events[0];

    for (;;) {
        struct pollfd wait = {.fd = far->ops->event_fd(far->transport), .events = POLLIN};

        for (size_t i = 0; i < far->event_count; i++) {
            struct kvfi_transport_event found = far->events[i];

            if (!is_it(&found, kind, number)) continue;
            memmove(far->events + i, far->events + i + 1, (--far->event_count - i) * sizeof found);
            return found;
        }
        if (kvfi_now_ns() > end_ns)
            fail_msg("no event of kind %d and number %llu", kind, (unsigned long long)number);
        poll(&wait, 1, 100);
        assert_true(far->event_count < capacity);
        far->event_count += far->ops->events(far->transport, far->events + far->event_count,
                                             capacity - far->event_count);
    }
}

/* ---- ranges ----------------------------------------------------------------------------------------------------- */

static size_t give(void *context, struct kvfi_range *out, size_t capacity)
{
    struct feed *feed = context;
    size_t given = 0;

    if (atomic_load(&feed->destroyed) > 0) abort(); /* not a thread for assertions */
    if (feed->most > 0 && feed->most < capacity) capacity = feed->most;
    while (given < capacity && (feed->at < feed->count || atomic_load(&feed->given) < feed->endless_bytes)) {
        out[given] = feed->ranges[feed->at < feed->count ? feed->at++ : feed->count - 1];
        atomic_fetch_add(&feed->given, out[given++].bytes);
    }
    return given;
}

static void give_up(void *context)
{
    struct feed *feed = context;

    atomic_fetch_add(&feed->destroyed, 1);
}

void feed_init(struct feed *feed, const struct kvfi_range *ranges, size_t count)
{
    *feed = (struct feed){.ranges = ranges, .count = count};
    atomic_init(&feed->given, 0);
    atomic_init(&feed->destroyed, 0);
    feed->source = (struct kvfi_range_source){.next = give, .destroy = give_up, .context = feed};
    for (size_t i = 0; i < count; i++) feed->source.bytes += ranges[i].bytes;
}

void far_post(struct far *far, struct feed *feed, uint64_t cookie)
{
    struct kvf_error error;

    if (far->ops->post_ranges(far->transport, far->peer, &feed->source, cookie, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

struct kvfi_transport_event far_post_and_await(struct far *far, struct feed *feed, enum kvf_status status)
{
    struct kvfi_transport_event event;
    uint64_t cookie = kvfi_random_u64();

    far_post(far, feed, cookie);
    event = far_await(far, KVFI_TEV_POSTED, cookie);
    if (event.status != status)
        fail_msg("posted: %s (%s), expected %s", kvf_status_name(event.status), event.text, kvf_status_name(status));
    assert_int_equal(atomic_load(&feed->destroyed), 1);
    if (status == KVF_OK) assert_int_equal(event.bytes, feed->source.bytes);
    return event;
}

struct kvfi_range far_range(const struct far *far, int64_t src_offset, int64_t dst_offset, int64_t bytes)
{
    return (struct kvfi_range){(uint64_t)(uintptr_t)far->near.address + (uint64_t)src_offset,
                               far->address + (uint64_t)dst_offset, bytes};
}

void far_check(const struct far *far, const struct kvfi_range *ranges, size_t count, bool exactly)
{
    const unsigned char *near = far->near.address;
    bool *covered = calloc((size_t)far->bytes, 1);

    assert_non_null(covered);
    for (size_t i = 0; i < count; i++) {
        size_t src = (size_t)(ranges[i].src_address - (uint64_t)(uintptr_t)near);
        size_t dst = (size_t)(ranges[i].dst_address - far->address), bytes = (size_t)ranges[i].bytes;

        if (memcmp(near + src, far->view + dst, bytes) != 0) fail_msg("range %zu of %zu differs", i, count);
        memset(covered + dst, 1, bytes);
    }
    for (int64_t i = 0; exactly && i < far->bytes; i++)
        if (!covered[i] && far->view[i] != FAR_GUARD) fail_msg("byte %lld was touched", (long long)i);
    free(covered);
}
