/* SPDX-License-Identifier: Apache-2.0 */
/* One rank as a process. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/worker.h"

#define SECOND INT64_C(1000000000)
#define MOMENT_MS 200

static int allocate(struct worker *worker)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(worker->layout);
    struct kvf_error error = {.position = -1};
    worker->memories = calloc(spec->memory_count + 1, sizeof(kvf_memory *));
    worker->bases = calloc(spec->memory_count + 1, sizeof(void *));
    if (worker->memories == NULL || worker->bases == NULL) {
        cli_error(worker->command, "no memory for %zu pools", spec->memory_count);
        return CLI_FAILED;
    }
    worker->memory_count = spec->memory_count;
    for (size_t i = 0; i < spec->memory_count; i++) {
        if (spec->memory_bytes[i] < 0) {
            cli_error(worker->command, "memory %zu of the layout has no size", i);
            return CLI_INPUT;
        }
        if (kvf_memory_create(spec->memory_bytes[i], 0, &worker->memories[i], &error) != KVF_OK)
            return cli_library_error(worker->command, NULL, &error);
        worker->bases[i] = kvf_memory_address(worker->memories[i]);
    }
    return CLI_OK;
}

int worker_open_instance(const struct cli_command *command, const struct worker_options *options,
                         kvf_instance *instance, struct worker *out)
{
    struct kvf_error error = {.position = -1};
    char rank[96];
    size_t index = 0;
    *out = (struct worker){.command = command, .signal_fd = -1, .instance = instance};
    snprintf(out->name, sizeof(out->name), "%s/%s", options->instance, cli_format_rank(options->rank, rank));
    if (kvf_instance_find(instance, options->rank.pp, options->rank.cp, options->rank.tp, &index, &error) != KVF_OK) {
        cli_library_error(command, options->layout_path, &error);
        return CLI_USAGE;
    }
    out->layout = kvf_instance_layout(instance, index);
    return allocate(out);
}

int worker_open_memory(const struct cli_command *command, const struct worker_options *options, struct worker *out)
{
    kvf_instance *instance = NULL;
    *out = (struct worker){.command = command, .signal_fd = -1};
    int code = cli_read_instance(command, options->layout_path, &instance);
    if (code != CLI_OK)
        return code;
    int signals = cli_signal_fd();
    code = worker_open_instance(command, options, instance, out);
    out->signal_fd = signals;
    return code;
}

/** Takes the ids that the command line gives. */
static int take_ids(struct worker *worker, const struct worker_options *options, int64_t tokens)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(worker->layout);
    if (spec->group_count != 1) {
        cli_error(worker->command, "--block-ids needs a layout with one group, this one has %zu", spec->group_count);
        return CLI_USAGE;
    }
    int64_t needed = block_count_for(&spec->groups[0], tokens);
    if ((int64_t)options->id_count < needed) {
        cli_error(worker->command, "--block-ids has %zu ids, %" PRId64 " tokens take %" PRId64, options->id_count,
                  tokens, needed);
        return CLI_INPUT;
    }
    if (!block_lists_in_order(spec, tokens, &worker->lists)) {
        cli_error(worker->command, "no memory for block ids");
        return CLI_FAILED;
    }
    memcpy((int64_t *)worker->lists.groups[0].ids, options->ids, (size_t)needed * sizeof(int64_t));
    return CLI_OK;
}

int worker_choose_blocks(struct worker *worker, const struct worker_options *options, int64_t tokens)
{
    if (options->ids != NULL)
        return take_ids(worker, options, tokens);
    return block_lists_shuffled(worker->command, kvf_layout_get_spec(worker->layout), tokens, (uint64_t)options->seed,
                                &worker->lists);
}

int worker_announce(struct worker *worker, const struct worker_options *options)
{
    struct kvf_engine_options engine;
    struct kvf_error error = {.position = -1};
    kvf_engine_options_init(&engine, sizeof(engine));
    engine.flags = options->checksum ? KVF_ENGINE_CHECKSUM : 0;
    engine.instance = options->instance;
    engine.rank = options->rank;
    engine.ranks_expected = (int64_t)kvf_instance_rank_count(worker->instance);
    engine.layout = worker->layout;
    engine.model_fingerprint = kvf_instance_model_fingerprint(worker->instance);
    engine.directory_url = options->directory;
    if (options->directory_listen != NULL)
        engine.directory_listen = options->directory_listen;
    engine.host = options->host;
    engine.transports = options->transports;
    engine.tcp_streams = options->streams;
    /* A little less than the transfer has, so that what is missing is told and not just that time is up. */
    engine.incomplete_timeout_ns = options->timeout_ns - options->timeout_ns / 10;
    engine.fault_policy = options->fault_policy;
    engine.log = (struct kvf_log_sink){.fd = STDERR_FILENO, .level = options->verbose ? KVF_LOG_INFO : KVF_LOG_WARN};
    if (kvf_engine_open(&engine, &worker->engine, &error) != KVF_OK)
        return cli_library_error(worker->command, NULL, &error);
    for (size_t i = 0; i < worker->memory_count; i++) {
        if (kvf_engine_register_memory(worker->engine, (int64_t)i, worker->bases[i],
                                       kvf_memory_bytes(worker->memories[i]), kvf_memory_fd(worker->memories[i]),
                                       &error) != KVF_OK)
            return cli_library_error(worker->command, NULL, &error);
    }
    if (kvf_engine_announce(worker->engine, &error) != KVF_OK)
        return cli_library_error(worker->command, NULL, &error);
    return CLI_OK;
}

/** What has been seen while waiting. */
struct waiting {
    struct kvf_event terminal;
    bool ended, reusable, cancelled;
    int64_t told_bytes;
};

static void take_event(const struct worker *worker, const struct worker_options *options, bool is_offer,
                       const struct kvf_event *event, struct waiting *state)
{
    bool mine = strcmp(event->transfer, options->transfer) == 0 && event->attempt == options->attempt;
    int done = is_offer ? KVF_EVENT_OFFER_DONE : KVF_EVENT_PULL_DONE;
    int failed = is_offer ? KVF_EVENT_OFFER_FAILED : KVF_EVENT_PULL_FAILED;
    if (mine && (event->kind == done || event->kind == failed)) {
        state->terminal = *event;
        state->ended = true;
    } else if (mine && event->kind == KVF_EVENT_BLOCKS_REUSABLE && event->is_offer == is_offer) {
        state->reusable = true;
    } else if (event->kind == KVF_EVENT_PEER_LOST) {
        if (options->verbose)
            fprintf(stderr, "%s: lost peer %s: %s\n", worker->name, event->peer, event->text);
    }
}

/** Tells how much has come since it was told last. */
static void tell_progress(const struct worker *worker, struct waiting *state)
{
    struct kvf_engine_stats stats = {.struct_size = sizeof(stats)};
    char bytes[32];
    if (kvf_engine_get_stats(worker->engine, &stats) != KVF_OK || stats.bytes_received == state->told_bytes)
        return;
    state->told_bytes = stats.bytes_received;
    fprintf(stderr, "%s: %s bytes have come\n", worker->name, cli_format_count(stats.bytes_received, bytes));
}

/** Sleeps until there is an event or a signal, a moment at most. Returns true when the user wants to stop. */
static bool wait_a_while(const struct worker *worker)
{
    struct pollfd waits[2] = {{.fd = kvf_engine_event_fd(worker->engine), .events = POLLIN},
                              {.fd = worker->signal_fd, .events = POLLIN}};
    struct signalfd_siginfo info;
    if (poll(waits, 2, MOMENT_MS) <= 0)
        return false;
    return (waits[1].revents & POLLIN) != 0 && read(worker->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info);
}

int worker_wait(struct worker *worker, const struct worker_options *options, bool is_offer, struct kvf_event *out)
{
    struct waiting state = {.ended = false};
    struct kvf_event event;
    struct kvf_error error = {.position = -1};
    int64_t deadline = cli_now_ns() + options->timeout_ns + 15 * SECOND;
    while (!(state.ended && state.reusable) && cli_now_ns() < deadline) {
        while (kvf_engine_poll(worker->engine, &event, 1) == 1)
            take_event(worker, options, is_offer, &event, &state);
        if (state.ended && state.reusable)
            break;
        if (options->verbose && !is_offer)
            tell_progress(worker, &state);
        if (wait_a_while(worker) && !state.cancelled) {
            state.cancelled = true;
            fprintf(stderr, "%s: cancelling transfer %s\n", worker->name, options->transfer);
            if (kvf_engine_cancel(worker->engine, options->transfer, options->attempt, &error) != KVF_OK &&
                !state.ended)
                break;
        }
    }
    if (!state.ended) {
        cli_error(worker->command, "transfer \"%s\" attempt %" PRId64 " has not ended %" PRId64 " s after its deadline",
                  options->transfer, options->attempt, (int64_t)15);
        return CLI_FAILED;
    }
    *out = state.terminal;
    if (state.terminal.status != KVF_OK) {
        cli_error(worker->command, "%s",
                  state.terminal.text[0] ? state.terminal.text : kvf_strerror(state.terminal.status));
        return cli_exit_code(state.terminal.status);
    }
    return CLI_OK;
}

/** Plans agreed with peers that are there: one less when a peer leaves. */
static int64_t plans_with_peers(const struct worker *worker)
{
    struct kvf_engine_stats stats = {.struct_size = sizeof(stats)};
    return kvf_engine_get_stats(worker->engine, &stats) == KVF_OK ? stats.plans_cached : 0;
}

void worker_linger(struct worker *worker, const struct worker_options *options, int64_t pieces)
{
    struct kvf_event event;
    int64_t deadline = cli_now_ns() + options->timeout_ns;
    while (pieces > 0 && plans_with_peers(worker) >= pieces && cli_now_ns() < deadline && !wait_a_while(worker)) {
        while (kvf_engine_poll(worker->engine, &event, 1) == 1) {
        }
    }
}

const char *worker_transport_names(int32_t bits, char *text)
{
    static const char *const names[] = {"loop", "shm", "tcp"};
    text[0] = '\0';
    for (int i = 0; i < 3; i++) {
        if (bits & (1 << i)) {
            size_t used = strlen(text);
            snprintf(text + used, 24 - used, "%s%s", used > 0 ? "+" : "", names[i]);
        }
    }
    return text;
}

void worker_print_json(const struct worker_options *options, const struct kvf_event *event, const char *out_path)
{
    char transports[24];
    json_t *root = json_pack("{s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:I}", "transfer", options->transfer,
                             "attempt", (json_int_t)options->attempt, "status", kvf_status_name(event->status), "text",
                             event->text, "bytes", (json_int_t)event->bytes, "pieces", (json_int_t)event->pieces,
                             "runs", (json_int_t)event->runs, "tokens", (json_int_t)event->tokens, "transport",
                             worker_transport_names(event->transport, transports), "ns",
                             (json_int_t)(event->ended_ns - event->started_ns));
    if (out_path != NULL)
        json_object_set_new(root, "out", json_string(out_path));
    json_dumpf(root, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(root);
}

void worker_close(struct worker *worker)
{
    struct kvf_error error = {.position = -1};
    if (worker->engine != NULL)
        kvf_engine_drain(worker->engine, 2 * SECOND, &error);
    kvf_engine_close(worker->engine);
    block_lists_fini(&worker->lists);
    for (size_t i = 0; worker->memories != NULL && i < worker->memory_count; i++)
        kvf_memory_destroy(worker->memories[i]);
    free(worker->memories);
    free(worker->bases);
    kvf_instance_destroy(worker->instance);
    if (worker->signal_fd >= 0)
        close(worker->signal_fd);
    *worker = (struct worker){.signal_fd = -1};
}
