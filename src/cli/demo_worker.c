/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo-worker: one rank of the demo as a process. It takes orders as lines of JSON on standard input and
 * answers on standard output; it dies with the coordinator. */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli/demo.h"

#define SECOND INT64_C(1000000000)
#define PROGRESS_NS INT64_C(100000000)

/** A worker of the demo and where its requests are. */
struct demo_worker {
    struct cli_command command; /* for messages: "demo prefill/pp0.cp0.tp1" */
    char command_name[160];
    struct worker_options options;
    struct worker worker;
    struct demo_ids ids;
    json_t *orders; /* the first message: owns the strings that the options point to */
    bool source, progress;
    int64_t requests, tokens, written_tokens;
    const char *peer;
};

/** How the transfers of one order went. */
struct outcome {
    int64_t left_terminal, left_reusable, failed, done, bytes, pieces, runs;
    int32_t transport;
    char text[KVF_ERROR_TEXT_BYTES];
};

static void say(json_t *message)
{
    json_dumpf(message, stdout, JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
    json_decref(message);
}

/** Reads one order; NULL at the end of input. */
static json_t *next_order(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes = getline(&line, &room, stdin);
    json_t *order = bytes > 0 ? json_loadb(line, (size_t)bytes, 0, NULL) : NULL;
    free(line);
    return order;
}

static int64_t number(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

static const char *text(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static struct kvf_id_list request_ids(const struct demo_worker *self, int64_t request)
{
    return (struct kvf_id_list){.ids = self->ids.ids + request * self->ids.per_request,
                                .count = (size_t)self->ids.per_request};
}

/** Fills the blocks of every request with the cache. */
static int load(struct demo_worker *self, const char *path)
{
    struct cache_file file = {.fd = -1};
    int code = cache_file_open(&self->command, path, &file);
    for (int64_t r = 0; code == CLI_OK && r < self->requests; r++) {
        struct kvf_id_list ids = request_ids(self, r);
        struct block_lists lists = {&ids, 1};
        struct cache_blocks blocks = {self->worker.layout, &lists, self->worker.bases, self->worker.memory_count};
        code = cache_file_load(&self->command, path, &file, self->tokens, &blocks);
    }
    cache_file_close(&file);
    return code;
}

static size_t rank_index(const struct demo_worker *self)
{
    size_t index = 0;
    kvf_instance_find(self->worker.instance, self->options.rank.pp, self->options.rank.cp, self->options.rank.tp,
                      &index, NULL);
    return index;
}

/** Takes the first message: what this worker is. */
static int set_up(struct demo_worker *self)
{
    const json_t *orders = self->orders, *rank = json_object_get(orders, "rank");
    const char *layout = text(orders, "layout");
    struct kvf_error error = {.position = -1};
    kvf_instance *instance = NULL;
    self->source = strcmp(text(orders, "side"), "prefill") == 0;
    self->requests = number(orders, "requests");
    self->tokens = number(orders, "tokens");
    self->written_tokens = number(orders, "written_tokens");
    self->peer = text(orders, "peer");
    self->progress = json_is_true(json_object_get(orders, "progress"));
    self->options.instance = text(orders, "instance");
    self->options.directory = text(orders, "directory");
    self->options.transports = text(orders, "transport");
    self->options.timeout_ns = number(orders, "timeout_ns");
    self->options.fault_policy = text(orders, "fault_policy");
    self->options.layout_path = "layout of the demo";
    self->options.rank = (struct kvf_rank){.pp = json_integer_value(json_array_get(rank, 0)),
                                           .cp = json_integer_value(json_array_get(rank, 1)),
                                           .tp = json_integer_value(json_array_get(rank, 2))};
    if (kvf_instance_parse(layout, strlen(layout), &instance, &error) != KVF_OK)
        return cli_library_error(&self->command, self->options.layout_path, &error);
    int code = worker_open_instance(&self->command, &self->options, instance, &self->worker);
    if (code != CLI_OK)
        return code;
    snprintf(self->command_name, sizeof(self->command_name), "demo: %.140s", self->worker.name);
    for (size_t m = 0; m < self->worker.memory_count; m++)
        memset(self->worker.bases[m], self->source ? DEMO_SOURCE_FILL : DEMO_UNTOUCHED,
               (size_t)kvf_memory_bytes(self->worker.memories[m]));
    if (!demo_ids_init(kvf_layout_get_spec(self->worker.layout), self->requests, self->tokens,
                       demo_seed(self->source, rank_index(self)), &self->ids)) {
        cli_error(&self->command, "the pools are too small for %" PRId64 " requests", self->requests);
        return CLI_FAILED;
    }
    if (self->source)
        code = load(self, text(orders, "cache"));
    return code == CLI_OK ? worker_announce(&self->worker, &self->options) : code;
}

static void transfer_name(const struct demo_worker *self, int64_t request, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s-%" PRId64, text(self->orders, "prefix"), request);
}

static enum kvf_status offer_request(struct demo_worker *self, int64_t request, struct kvf_error *error)
{
    char name[KVF_TRANSFER_ID_BYTES];
    struct kvf_id_list ids = request_ids(self, request);
    struct kvf_offer offer;
    transfer_name(self, request, name, sizeof(name));
    kvf_offer_init(&offer, sizeof(offer));
    offer.transfer = name;
    offer.request_tokens = self->tokens;
    offer.ready_tokens = self->tokens;
    offer.groups = &ids;
    offer.group_count = 1;
    offer.timeout_ns = self->options.timeout_ns;
    return kvf_engine_offer(self->worker.engine, &offer, error);
}

static enum kvf_status pull_request(struct demo_worker *self, int64_t request, struct kvf_error *error)
{
    char name[KVF_TRANSFER_ID_BYTES];
    struct kvf_id_list ids = request_ids(self, request);
    struct kvf_pull pull;
    transfer_name(self, request, name, sizeof(name));
    kvf_pull_init(&pull, sizeof(pull));
    pull.transfer = name;
    pull.from = self->peer;
    pull.request_tokens = self->tokens;
    pull.token_end = self->tokens;
    pull.groups = &ids;
    pull.group_count = 1;
    pull.timeout_ns = self->options.timeout_ns;
    return kvf_engine_pull(self->worker.engine, &pull, error);
}

static void take_event(const struct kvf_event *event, struct outcome *outcome)
{
    switch (event->kind) {
    case KVF_EVENT_PULL_DONE:
    case KVF_EVENT_OFFER_DONE:
        outcome->left_terminal--;
        outcome->done++;
        outcome->bytes += event->bytes;
        outcome->pieces += event->pieces;
        outcome->runs += event->runs;
        outcome->transport |= event->transport;
        break;
    case KVF_EVENT_PULL_FAILED:
    case KVF_EVENT_OFFER_FAILED:
        outcome->left_terminal--;
        outcome->failed++;
        if (outcome->text[0] == '\0')
            snprintf(outcome->text, sizeof(outcome->text), "%s: %s", event->transfer, event->text);
        break;
    case KVF_EVENT_BLOCKS_REUSABLE: outcome->left_reusable--; break;
    default: break;
    }
}

static void say_progress(struct demo_worker *self, const struct outcome *outcome, int64_t *next_ns)
{
    struct kvf_engine_stats stats = {.struct_size = sizeof(stats)};
    if (!self->progress || self->source || cli_now_ns() < *next_ns)
        return;
    *next_ns = cli_now_ns() + PROGRESS_NS;
    if (kvf_engine_get_stats(self->worker.engine, &stats) == KVF_OK)
        say(json_pack("{s:s, s:I, s:I}", "event", "progress", "bytes", (json_int_t)stats.bytes_received, "done",
                      (json_int_t)outcome->done));
}

/** Waits until `count` transfers have ended and their blocks are reusable. */
static void wait_for_transfers(struct demo_worker *self, int64_t count, struct outcome *outcome)
{
    struct kvf_event events[16];
    int64_t deadline = cli_now_ns() + self->options.timeout_ns + 10 * SECOND, next_ns = 0;
    outcome->left_terminal = count;
    outcome->left_reusable = count;
    while ((outcome->left_terminal > 0 || outcome->left_reusable > 0) && cli_now_ns() < deadline) {
        size_t got = kvf_engine_wait(self->worker.engine, events, 16, PROGRESS_NS);
        for (size_t i = 0; i < got; i++)
            take_event(&events[i], outcome);
        say_progress(self, outcome, &next_ns);
    }
    if (outcome->left_terminal > 0 && outcome->text[0] == '\0')
        snprintf(outcome->text, sizeof(outcome->text), "%" PRId64 " transfers have not ended", outcome->left_terminal);
    outcome->failed += outcome->left_terminal;
}

/** Does "offer" or "pull" for requests [first, first + count). */
static int transfer(struct demo_worker *self, const json_t *order)
{
    struct kvf_error error = {.position = -1};
    struct outcome outcome = {0};
    int64_t first = number(order, "first"), count = number(order, "count");
    for (int64_t r = first; r < first + count; r++) {
        enum kvf_status status = self->source ? offer_request(self, r, &error) : pull_request(self, r, &error);
        if (status != KVF_OK)
            return cli_library_error(&self->command, NULL, &error);
    }
    if (self->source)
        say(json_pack("{s:s}", "event", "offered"));
    wait_for_transfers(self, count, &outcome);
    char names[24];
    say(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "event", self->source ? "sent" : "pulled", "failed",
                  (json_int_t)outcome.failed, "done", (json_int_t)outcome.done, "bytes", (json_int_t)outcome.bytes,
                  "pieces", (json_int_t)outcome.pieces, "runs", (json_int_t)outcome.runs, "transport",
                  worker_transport_names(outcome.transport, names), "text", outcome.text));
    return CLI_OK;
}

static void reader_init(const struct demo_worker *self, struct demo_reader *out)
{
    *out = (struct demo_reader){.spec = kvf_layout_get_spec(self->worker.layout),
                                .bases = self->worker.bases,
                                .ids = &self->ids,
                                .tokens = self->tokens,
                                .written_tokens = self->written_tokens,
                                .layers = number(self->orders, "layers"),
                                .heads = number(self->orders, "heads"),
                                .row_bytes = number(self->orders, "row_bytes")};
}

/** Copies what this rank holds of some requests into the file that all ranks share. */
static int gather(struct demo_worker *self, const json_t *order)
{
    struct demo_reader reader;
    char fault[256] = "";
    reader_init(self, &reader);
    int64_t request_bytes = reader.layers * DEMO_PARTS * reader.tokens * reader.heads * reader.row_bytes;
    int64_t first = number(order, "first"), count = number(order, "count");
    char *map = mmap(NULL, (size_t)(DEMO_BATCH * request_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, DEMO_GATHER_FD, 0);
    if (map == MAP_FAILED) {
        cli_error(&self->command, "the gathering file cannot be mapped");
        return CLI_FAILED;
    }
    for (int64_t r = 0; r < count; r++)
        demo_reader_gather(&reader, first + r, map + r * request_bytes, fault, sizeof(fault));
    munmap(map, (size_t)(DEMO_BATCH * request_bytes));
    say(json_pack("{s:s, s:s}", "event", "gathered", "fault", fault));
    return CLI_OK;
}

static int scan(struct demo_worker *self)
{
    struct demo_reader reader;
    char fault[256] = "";
    reader_init(self, &reader);
    demo_reader_scan(&reader, reader.spec->memory_bytes, fault, sizeof(fault));
    say(json_pack("{s:s, s:s}", "event", "scanned", "fault", fault));
    return CLI_OK;
}

static int follow_orders(struct demo_worker *self)
{
    int code = set_up(self);
    if (code == CLI_OK)
        say(json_pack("{s:s}", "event", "ready"));
    while (code == CLI_OK) {
        json_t *order = next_order();
        const char *what = order != NULL ? text(order, "do") : NULL;
        if (what == NULL) {
            json_decref(order);
            break;
        }
        if (strcmp(what, "transfer") == 0)
            code = transfer(self, order);
        else if (strcmp(what, "gather") == 0)
            code = gather(self, order);
        else if (strcmp(what, "scan") == 0)
            code = scan(self);
        json_decref(order);
    }
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct demo_worker self = {.command = *command, .worker = {.signal_fd = -1}};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 2 || (long)getppid() != strtol(argv[1], NULL, 10))
        return cli_usage_error(command, "is started by 'kvferry demo' only");
    worker_options_init(&self.options);
    snprintf(self.command_name, sizeof(self.command_name), "demo");
    self.command.name = self.command_name;
    self.orders = next_order();
    int code = self.orders != NULL ? follow_orders(&self) : CLI_FAILED;
    worker_close(&self.worker);
    free(self.ids.ids);
    json_decref(self.orders);
    return code;
}

static const struct cli_option options[] = {{0, NULL, NULL, NULL}};

const struct cli_command cli_demo_worker_command = {
    .name = "demo-worker",
    .summary = "",
    .operands = "",
    .about = "One rank of 'kvferry demo'.",
    .options = options,
    .examples = "",
    .run = run,
    .hidden = true,
};
