/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry's engine in a process of its own, driven by lines of JSON; host.py tells the lines. Beside those:
 *
 *   open      takes any number of kvf_mooncake_options by its name, too, and log: a file for warnings
 *   move      timeout_ms, stop; answers status and outcomes [failed, done, in doubt]
 *   info      segment -> what is known of it
 *   refresh   segment
 *   submit    as move, and notify [name, text]                 -> batch, a number
 *   wait      batch, timeout_ms                                -> status and outcomes as move, and progress
 *   cancel    batch
 *   free      batch
 *   guard     grids [[address, stride, bytes]], blocks -> guard: a number
 *   grant     guard, list of blocks
 *   revoke    guard, list, timeout_ms
 *   count     guard, list -> bytes
 *   unguard   guard
 */
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvferry/mooncake.h"

#define MS ((int64_t)1000000)

enum { GUARDS = 16 };

static kvf_mooncake *engine;
static bool by_batches; /* moves are submitted, and waited for */
static kvf_mooncake_guard *guards[GUARDS];

static int64_t number(const json_t *line, const char *name, int64_t otherwise)
{
    const json_t *found = json_object_get(line, name);
    if (json_is_boolean(found))
        return json_is_true(found);
    return json_is_integer(found) ? json_integer_value(found) : otherwise;
}

static const char *text(const json_t *line, const char *name)
{
    const char *found = json_string_value(json_object_get(line, name));
    return found != NULL ? found : "";
}

static json_t *answer(enum kvf_status status, const struct kvf_error *error)
{
    if (status == KVF_OK)
        return json_pack("{s:b}", "ok", 1);
    return json_pack("{s:b,s:s,s:s}", "ok", 0, "status", kvf_status_name(status), "error", error->text);
}

static json_t *do_open(const json_t *line)
{
    struct kvf_mooncake_options options;
    struct kvf_error error = {.text = ""};

    kvf_mooncake_options_init(&options, sizeof options);
    if (json_object_get(line, "host") != NULL)
        options.host = text(line, "host");
    if (json_object_get(line, "publish_host") != NULL)
        options.publish_host = text(line, "publish_host");
    options.rpc_port = (int32_t)number(line, "handshake_port", 0);
    options.data_port = (int32_t)number(line, "data_port", 0);
    options.max_version = number(line, "v1", 0) ? 1 : 2;
    options.hide_buffers = (int32_t)number(line, "hide_buffers", options.hide_buffers);
    options.lanes = (int32_t)number(line, "lanes", options.lanes);
    options.max_connections = number(line, "max_connections", options.max_connections);
    options.max_handshakes = number(line, "max_handshakes", options.max_handshakes);
    options.max_notifies = number(line, "max_notifies", options.max_notifies);
    options.max_handshake_bytes = number(line, "max_handshake_bytes", options.max_handshake_bytes);
    options.connect_timeout_ns = number(line, "connect_ms", options.connect_timeout_ns / MS) * MS;
    options.handshake_timeout_ns = number(line, "handshake_ms", options.handshake_timeout_ns / MS) * MS;
    options.progress_timeout_ns = number(line, "progress_ms", options.progress_timeout_ns / MS) * MS;
    by_batches = number(line, "batches", 0) != 0;
    options.log = (struct kvf_log_sink){.fd = STDERR_FILENO, .level = KVF_LOG_ERROR};
    if (json_object_get(line, "log") != NULL)
        options.log = (struct kvf_log_sink){.fd = open(text(line, "log"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                                                       0600), .level = KVF_LOG_WARN};
    enum kvf_status status = kvf_mooncake_open(&options, &engine, &error);
    json_t *out = answer(status, &error);
    if (status == KVF_OK) {
        json_object_set_new(out, "segment", json_string(kvf_mooncake_segment_name(engine)));
        json_object_set_new(out, "data_port", json_integer(kvf_mooncake_data_port(engine)));
    }
    return out;
}

static json_t *do_map(const json_t *line)
{
    int fd = open(text(line, "file"), O_RDWR | O_CLOEXEC);
    void *data = MAP_FAILED;
    if (fd >= 0) {
        data = mmap(NULL, (size_t)number(line, "bytes", 0), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    if (data == MAP_FAILED)
        return json_pack("{s:b,s:s}", "ok", 0, "error", "the file cannot be mapped");
    return json_pack("{s:b,s:I}", "ok", 1, "address", (json_int_t)(uintptr_t)data);
}

static json_t *do_register(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    struct kvf_mooncake_buffer buffer = {(uint64_t)number(line, "address", 0), (uint64_t)number(line, "bytes", 0)};
    return answer(kvf_mooncake_register(engine, &buffer, 1, &error), &error);
}

static json_t *do_unregister(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    uint64_t address = (uint64_t)number(line, "address", 0);
    return answer(kvf_mooncake_unregister(engine, &address, 1, number(line, "timeout_ms", 10000) * MS, &error), &error);
}

static enum kvf_status segment_of(const json_t *line, int64_t *segment, struct kvf_error *error)
{
    return kvf_mooncake_open_segment(engine, text(line, "segment"), number(line, "timeout_ms", 10000) * MS, segment,
                                     error);
}

static uint64_t at(const json_t *range, size_t index)
{
    return (uint64_t)json_integer_value(json_array_get(range, index));
}

static struct kvf_mooncake_range *ranges_of(const json_t *line, size_t *count)
{
    const json_t *list = json_object_get(line, "ranges");
    struct kvf_mooncake_range *ranges = calloc(json_array_size(list) + 1, sizeof *ranges);

    if (ranges == NULL)
        abort();
    *count = json_array_size(list);
    for (size_t i = 0; i < *count; i++) {
        const json_t *range = json_array_get(list, i);
        ranges[i] = (struct kvf_mooncake_range){at(range, 0), at(range, 1), at(range, 2)};
    }
    return ranges;
}

static json_t *count_outcomes(const uint8_t *outcomes, size_t count)
{
    int64_t ended[3] = {0, 0, 0};

    for (size_t i = 0; i < count; i++) {
        if (outcomes[i] < 3)
            ended[outcomes[i]]++;
    }
    return json_pack("[I,I,I]", (json_int_t)ended[0], (json_int_t)ended[1], (json_int_t)ended[2]);
}

static enum kvf_status submit(const json_t *line, int64_t segment, const struct kvf_mooncake_range *ranges,
                              size_t count, kvf_mooncake_batch **batch, struct kvf_error *error)
{
    const json_t *notify = json_object_get(line, "notify");
    struct kvf_mooncake_batch_spec spec;

    kvf_mooncake_batch_spec_init(&spec, sizeof spec);
    spec.segment = segment;
    spec.operation = number(line, "write", 0) ? KVF_MOONCAKE_WRITE : KVF_MOONCAKE_READ;
    spec.ranges = ranges;
    spec.range_count = count;
    spec.flags = number(line, "stop", 0) ? KVF_MOONCAKE_STOP_AT_FAILURE : 0;
    spec.timeout_ns = number(line, "timeout_ms", 30000) * MS;
    spec.notify_name = json_string_value(json_array_get(notify, 0));
    spec.notify_message = json_string_value(json_array_get(notify, 1));
    return kvf_mooncake_submit(engine, &spec, batch, error);
}

static enum kvf_status move(const json_t *line, int64_t segment, const struct kvf_mooncake_range *ranges, size_t count,
                            uint8_t *outcomes, struct kvf_error *error)
{
    int64_t timeout_ns = number(line, "timeout_ms", 30000) * MS;
    uint64_t flags = number(line, "stop", 0) ? KVF_MOONCAKE_STOP_AT_FAILURE : 0;
    kvf_mooncake_batch *batch = NULL;
    enum kvf_status status;

    if (!by_batches)
        return (number(line, "write", 0) ? kvf_mooncake_write : kvf_mooncake_read)(engine, segment, ranges, count,
                                                                                    flags, timeout_ns, outcomes, error);
    status = submit(line, segment, ranges, count, &batch, error);
    if (status == KVF_OK)
        status = kvf_mooncake_batch_wait(batch, timeout_ns + 30000 * MS, outcomes, error);
    kvf_mooncake_batch_free(batch);
    return status;
}

static json_t *do_move(const json_t *line)
{
    size_t count;
    struct kvf_mooncake_range *ranges = ranges_of(line, &count);
    uint8_t *outcomes = calloc(count + 1, 1);
    struct kvf_error error = {.text = ""};
    int64_t segment = 0;

    if (outcomes == NULL)
        abort();
    enum kvf_status status = segment_of(line, &segment, &error);
    if (status == KVF_OK)
        status = move(line, segment, ranges, count, outcomes, &error);
    json_t *out = answer(status, &error);
    json_object_set_new(out, "outcomes", count_outcomes(outcomes, count));
    free(ranges);
    free(outcomes);
    return out;
}

enum { MAX_BATCHES = 16384 };

static kvf_mooncake_batch *batches[MAX_BATCHES];
static size_t batch_counts[MAX_BATCHES];
static size_t batch_count;

static json_t *do_submit(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    int64_t segment = 0;
    size_t count;
    struct kvf_mooncake_range *ranges = ranges_of(line, &count);

    if (batch_count == MAX_BATCHES)
        abort();
    enum kvf_status status = segment_of(line, &segment, &error);
    if (status == KVF_OK)
        status = submit(line, segment, ranges, count, &batches[batch_count], &error);
    free(ranges);
    json_t *out = answer(status, &error);
    if (status == KVF_OK) {
        json_object_set_new(out, "batch", json_integer((json_int_t)batch_count));
        batch_counts[batch_count++] = count;
    }
    return out;
}

static json_t *do_wait(const json_t *line)
{
    size_t batch = (size_t)number(line, "batch", 0);
    struct kvf_mooncake_progress progress = {.struct_size = sizeof progress};
    struct kvf_error error = {.text = ""};
    uint8_t *outcomes = calloc(batch_counts[batch] + 1, 1);

    if (outcomes == NULL)
        abort();
    enum kvf_status status =
        kvf_mooncake_batch_wait(batches[batch], number(line, "timeout_ms", 30000) * MS, outcomes, &error);
    json_t *out = answer(status, &error);
    json_object_set_new(out, "outcomes", count_outcomes(outcomes, batch_counts[batch]));
    if (kvf_mooncake_batch_get_progress(batches[batch], &progress, &error) != KVF_OK)
        abort();
    json_object_set_new(out, "progress", json_pack("{s:b,s:I,s:I,s:I,s:I}", "ended", progress.ended, "done",
                                                   (json_int_t)progress.done, "failed", (json_int_t)progress.failed,
                                                   "in_doubt", (json_int_t)progress.in_doubt, "done_bytes",
                                                   (json_int_t)progress.done_bytes));
    free(outcomes);
    return out;
}

static json_t *do_cancel(const json_t *line)
{
    kvf_mooncake_batch_cancel(batches[number(line, "batch", 0)]);
    return json_pack("{s:b}", "ok", 1);
}

static json_t *do_free(const json_t *line)
{
    size_t batch = (size_t)number(line, "batch", 0);
    kvf_mooncake_batch_free(batches[batch]);
    batches[batch] = NULL;
    return json_pack("{s:b}", "ok", 1);
}

struct one_move {
    pthread_t thread;
    const json_t *line;
    json_t *answer;
};

static void *run_move(void *context)
{
    struct one_move *move = context;
    move->answer = do_move(move->line);
    return NULL;
}

static json_t *do_moves(const json_t *line)
{
    const json_t *list = json_object_get(line, "moves");
    size_t count = json_array_size(list);
    struct one_move *moves = calloc(count + 1, sizeof *moves);
    json_t *results = json_array();

    if (moves == NULL)
        abort();
    for (size_t i = 0; i < count; i++) {
        moves[i].line = json_array_get(list, i);
        if (pthread_create(&moves[i].thread, NULL, run_move, &moves[i]) != 0)
            abort();
    }
    for (size_t i = 0; i < count; i++) {
        pthread_join(moves[i].thread, NULL);
        json_array_append_new(results, moves[i].answer);
    }
    free(moves);
    return json_pack("{s:b,s:o}", "ok", 1, "results", results);
}

static json_t *do_notify(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    int64_t segment = 0;
    enum kvf_status status = segment_of(line, &segment, &error);
    if (status == KVF_OK)
        status = kvf_mooncake_notify(engine, segment, text(line, "name"), text(line, "text"), 10000 * MS, &error);
    return answer(status, &error);
}

static json_t *do_notifies(const json_t *line)
{
    struct kvf_mooncake_notification *one = NULL;
    json_t *list = json_array();
    (void)line;
    while (kvf_mooncake_take_notification(engine, 0, &one, NULL) == KVF_OK) {
        json_array_append_new(list, json_pack("[s,s]", one->name, one->message));
        kvf_mooncake_free_notification(one);
    }
    return json_pack("{s:b,s:o}", "ok", 1, "list", list);
}

static json_t *do_probe(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    return answer(kvf_mooncake_probe(engine, text(line, "segment"), number(line, "timeout_ms", 10000) * MS, &error),
                  &error);
}

static json_t *do_info(const json_t *line)
{
    struct kvf_mooncake_segment_info info = {.struct_size = sizeof info};
    struct kvf_error error = {.text = ""};
    int64_t segment = 0;
    enum kvf_status status = segment_of(line, &segment, &error);
    if (status == KVF_OK)
        status = kvf_mooncake_get_segment_info(engine, segment, &info, &error);
    json_t *out = answer(status, &error);
    if (status == KVF_OK)
        json_object_update_new(
            out, json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:I,s:I}", "name", info.name, "protocol", info.protocol,
                           "data_host", info.data_host, "is_tcp", info.is_tcp, "data_port", info.data_port, "version",
                           info.version, "buffers", (json_int_t)info.buffer_count, "fetches",
                           (json_int_t)info.fetches));
    return out;
}

static json_t *do_refresh(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    int64_t segment = 0;
    enum kvf_status status = segment_of(line, &segment, &error);
    if (status == KVF_OK)
        status = kvf_mooncake_refresh_segment(engine, segment, 10000 * MS, &error);
    return answer(status, &error);
}

/* ---- guards ------------------------------------------------------------------------------------------------- */

static json_t *do_guard(const json_t *line)
{
    const json_t *list = json_object_get(line, "grids");
    size_t count = json_array_size(list), free_place = 0;
    struct kvf_mooncake_grid *grids = calloc(count + 1, sizeof *grids);
    struct kvf_error error = {.text = ""};

    while (free_place < GUARDS && guards[free_place] != NULL)
        free_place++;
    if (grids == NULL || free_place == GUARDS)
        abort();
    for (size_t i = 0; i < count; i++) {
        const json_t *grid = json_array_get(list, i);
        grids[i] = (struct kvf_mooncake_grid){at(grid, 0), (int64_t)at(grid, 1), (int64_t)at(grid, 2)};
    }
    json_t *out = answer(
        kvf_mooncake_guard_open(engine, grids, count, number(line, "blocks", 0), &guards[free_place], &error), &error);
    json_object_set_new(out, "guard", json_integer((json_int_t)free_place));
    free(grids);
    return out;
}

static kvf_mooncake_guard **guard_of(const json_t *line)
{
    int64_t index = number(line, "guard", 0);
    if (index < 0 || index >= GUARDS || guards[index] == NULL)
        abort();
    return &guards[index];
}

static int64_t *blocks_of(const json_t *line, size_t *count)
{
    const json_t *list = json_object_get(line, "list");
    int64_t *blocks = calloc(json_array_size(list) + 1, sizeof *blocks);
    if (blocks == NULL)
        abort();
    *count = json_array_size(list);
    for (size_t i = 0; i < *count; i++)
        blocks[i] = json_integer_value(json_array_get(list, i));
    return blocks;
}

static json_t *do_grant(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    size_t count;
    int64_t *blocks = blocks_of(line, &count);
    enum kvf_status status = kvf_mooncake_guard_grant(*guard_of(line), blocks, count, &error);
    free(blocks);
    return answer(status, &error);
}

static json_t *do_revoke(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    size_t count;
    int64_t *blocks = blocks_of(line, &count);
    enum kvf_status status =
        kvf_mooncake_guard_revoke(*guard_of(line), blocks, count, number(line, "timeout_ms", 10000) * MS, &error);
    free(blocks);
    return answer(status, &error);
}

static json_t *do_count(const json_t *line)
{
    struct kvf_error error = {.text = ""};
    int64_t bytes = 0;
    size_t count;
    int64_t *blocks = blocks_of(line, &count);
    json_t *out = answer(kvf_mooncake_guard_count(*guard_of(line), blocks, count, &bytes, &error), &error);
    json_object_set_new(out, "bytes", json_integer(bytes));
    free(blocks);
    return out;
}

static json_t *do_unguard(const json_t *line)
{
    kvf_mooncake_guard **guard = guard_of(line);
    kvf_mooncake_guard_close(*guard);
    *guard = NULL;
    return json_pack("{s:b}", "ok", 1);
}

static const struct {
    const char *name;
    json_t *(*run)(const json_t *line);
} commands[] = {
    {"open", do_open},         {"map", do_map},   {"register", do_register}, {"unregister", do_unregister},
    {"move", do_move},         {"moves", do_moves}, {"notify", do_notify},   {"notifies", do_notifies},
    {"probe", do_probe},       {"info", do_info}, {"refresh", do_refresh},
    {"guard", do_guard},       {"grant", do_grant}, {"revoke", do_revoke},   {"count", do_count},
    {"unguard", do_unguard},   {"submit", do_submit}, {"wait", do_wait},     {"cancel", do_cancel},
    {"free", do_free},
};

static json_t *run(const json_t *line)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(text(line, "do"), commands[i].name) == 0)
            return commands[i].run(line);
    }
    return json_pack("{s:b,s:s}", "ok", 0, "error", "no such command");
}

int main(void)
{
    char *given = NULL;
    size_t room = 0;

    signal(SIGPIPE, SIG_DFL); /* the library must not need it ignored */
    while (getline(&given, &room, stdin) > 0) {
        json_t *line = json_loads(given, 0, NULL);
        json_t *out = run(line);
        char *said = json_dumps(out, JSON_COMPACT);
        if (said == NULL)
            abort();
        printf("%s\n", said);
        fflush(stdout);
        free(said);
        json_decref(out);
        json_decref(line);
    }
    for (size_t i = 0; i < batch_count; i++) {
        if (batches[i] != NULL)
            kvf_mooncake_batch_cancel(batches[i]);
    }
    for (size_t i = 0; i < batch_count; i++)
        kvf_mooncake_batch_free(batches[i]);
    kvf_mooncake_close(engine);
    free(given);
    return 0;
}
