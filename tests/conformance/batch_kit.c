/* SPDX-License-Identifier: Apache-2.0 */
#include "batch_kit.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "sys/log.h"
#include "transport/mooncake/address.h"
#include "transport/mooncake/descriptor.h"
#include "transport/mooncake/desk.h"
#include "transport/mooncake/frame.h"

/* ---- engines ----------------------------------------------------------------------------------------------------- */

static void enroll(struct arena *arena)
{
    const struct kvf_mooncake_buffer buffer = {arena_at(arena, 0), arena->size};
    struct kvf_error error;

    if (kvf_mooncake_register(arena->engine, &buffer, 1, &error) != KVF_OK) fail_msg("%s", error.text);
}

void arena_init(struct arena *arena, uint64_t size, int32_t initiator_only)
{
    struct kvf_mooncake_options options;
    struct kvf_error error;

    *arena = (struct arena){.size = size};
    kvf_mooncake_options_init(&options, sizeof options);
    options.initiator_only = initiator_only;
    if (kvf_mooncake_open(&options, &arena->engine, &error) != KVF_OK) fail_msg("%s", error.text);
    arena->bytes = malloc(size);
    assert_non_null(arena->bytes);
    for (uint64_t i = 0; i < size; i++) arena->bytes[i] = (unsigned char)(i * 7 + (i >> 9) + (i >> 17));
    enroll(arena);
}

void arena_fini(struct arena *arena)
{
    kvf_mooncake_close(arena->engine);
    free(arena->bytes);
}

uint64_t arena_at(const struct arena *arena, uint64_t offset)
{
    return (uint64_t)(uintptr_t)arena->bytes + offset;
}

void arena_settle(struct arena *arena)
{
    const uint64_t address = arena_at(arena, 0);
    struct kvf_error error;

    if (kvf_mooncake_unregister(arena->engine, &address, 1, PATIENCE, &error) != KVF_OK) fail_msg("%s", error.text);
    enroll(arena);
}

int64_t open_peer(kvf_mooncake *engine, const char *name)
{
    int64_t segment;
    struct kvf_error error;

    if (kvf_mooncake_open_segment(engine, name, PATIENCE, &segment, &error) != KVF_OK) fail_msg("%s", error.text);
    return segment;
}

/* ---- a host that does not answer --------------------------------------------------------------------------------- */

struct quiet_host {
    struct kvfi_log log;
    struct kvfi_moon_desk *desk;
    int32_t version, port, data_port;
    int data_listener;
};

static char *describe(void *context, uint8_t type, const char *text, size_t bytes, size_t *reply_bytes)
{
    const struct quiet_host *host = context;
    const struct kvfi_moon_descriptor descriptor = {.name = "quiet:1", .protocol = "tcp", .version = host->version,
                                                    .data_port = host->data_port};
    char *reply = NULL;

    (void)text;
    (void)bytes;
    if (type == KVFI_MOON_METADATA) kvfi_moon_descriptor_print(&descriptor, &reply, reply_bytes, NULL);
    return reply;
}

struct quiet_host *quiet_host_open(int32_t version)
{
    struct quiet_host *host = calloc(1, sizeof *host);
    struct kvfi_moon_desk_rules rules = {.max_clients = 1024, .max_bytes = 1 << 20, .timeout_ns = PATIENCE,
                                         .answer = describe, .context = host};
    const struct kvf_log_sink sink = {.fd = -1};
    struct kvf_error error;

    assert_non_null(host);
    kvfi_log_init(&host->log, &sink);
    rules.log = &host->log;
    host->version = version;
    if (kvfi_moon_listen(NULL, "0.0.0.0", 0, PATIENCE, &host->data_listener, &host->data_port, &error) != KVF_OK ||
        kvfi_moon_listen(NULL, "0.0.0.0", 0, PATIENCE, &rules.listener, &host->port, &error) != KVF_OK ||
        kvfi_moon_desk_open(&rules, &host->desk, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return host;
}

void quiet_host_close(struct quiet_host *host)
{
    kvfi_moon_desk_close(host->desk);
    close(host->data_listener);
    kvfi_log_fini(&host->log);
    free(host);
}

int64_t open_quiet(kvf_mooncake *engine, const struct quiet_host *host, int number)
{
    char name[KVF_MOONCAKE_NAME_BYTES];

    snprintf(name, sizeof name, "127.1.%d.%d:%d", number / 250, number % 250 + 1, (int)host->port);
    return open_peer(engine, name);
}

int quiet_host_accept(struct quiet_host *host)
{
    const struct timeval patience = {.tv_sec = 20};
    struct pollfd wait = {.fd = host->data_listener, .events = POLLIN};
    int fd;

    assert_int_equal(poll(&wait, 1, 20000), 1);
    fd = accept(host->data_listener, NULL, NULL);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience), 0);
    return fd;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

kvf_mooncake_batch *submit(kvf_mooncake *engine, int64_t segment, int32_t operation,
                           const struct kvf_mooncake_range *ranges, size_t count, int64_t timeout_ns)
{
    struct kvf_mooncake_batch_spec spec;
    kvf_mooncake_batch *batch = NULL;
    struct kvf_error error;

    kvf_mooncake_batch_spec_init(&spec, sizeof spec);
    spec.segment = segment;
    spec.operation = operation;
    spec.ranges = ranges;
    spec.range_count = count;
    spec.timeout_ns = timeout_ns;
    if (kvf_mooncake_submit(engine, &spec, &batch, &error) != KVF_OK) fail_msg("%s", error.text);
    return batch;
}

void expect_end(kvf_mooncake_batch *batch, enum kvf_status status)
{
    struct kvf_error error = {.text = "well"};
    enum kvf_status found = kvf_mooncake_batch_wait(batch, PATIENCE, NULL, &error);

    if (found != status)
        fail_msg("ended with %s (%s), expected %s", kvf_status_name(found), error.text, kvf_status_name(status));
    kvf_mooncake_batch_free(batch);
}

struct kvf_mooncake_progress progress_of(kvf_mooncake_batch *batch)
{
    struct kvf_mooncake_progress progress = {.struct_size = sizeof progress};
    struct kvf_error error;

    if (kvf_mooncake_batch_get_progress(batch, &progress, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(progress.ended, progress.status != KVF_ERR_AGAIN);
    if (progress.done + progress.failed + progress.in_doubt > progress.range_count) fail_msg("too many have ended");
    if (progress.ended) assert_int_equal(progress.done + progress.failed + progress.in_doubt, progress.range_count);
    return progress;
}

void await_progress(kvf_mooncake_batch *batch, bool (*is_there)(const struct kvf_mooncake_progress *progress))
{
    int64_t deadline_ns = kvfi_now_ns() + PATIENCE;
    struct kvf_mooncake_progress progress;

    do {
        progress = progress_of(batch);
        if (is_there(&progress)) return;
        poll(NULL, 0, 1); /* polling is what this call is for */
    } while (kvfi_now_ns() < deadline_ns);
    fail_msg("it did not get there");
}

size_t thread_count(void)
{
    DIR *tasks = opendir("/proc/self/task");
    size_t count = 0;

    assert_non_null(tasks);
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count - 2;
}
