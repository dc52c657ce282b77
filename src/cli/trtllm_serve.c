/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-alone TensorRT-LLM rank: opens, listens to lines, signals and the worker, ends in good order. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/json_lines.h"
#include "cli/trtllm_serve.h"

#define MOMENT_MS 50

static json_t *regions_json(const struct trtllm_memory *memory, bool aux)
{
    json_t *list = json_array();
    for (size_t i = aux ? memory->pool_count : 0; i < (aux ? memory->count : memory->pool_count); i++) {
        const struct trtllm_region *region = &memory->regions[i];
        json_t *row = json_pack("{s:I, s:I, s:I}", "address", (json_int_t)(uintptr_t)region->base, "bytes",
                                (json_int_t)region->bytes, "offset", (json_int_t)region->offset);
        if (!aux) {
            json_object_set_new(row, "group", json_integer(region->group));
            json_object_set_new(row, "pool", json_integer(region->pool));
        }
        json_array_append_new(list, row);
    }
    return list;
}

static void tell_ready(const struct trtllm_serve *serve)
{
    const struct kvf_trtllm_rank_spec *rank = kvf_trtllm_rank_get_spec(serve->rank);
    const char *info = serve->endpoints.info;
    json_lines_tell(json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:s, s:s, s:o, s:o}", "event", "ready", "role",
                              serve->options->role == 0 ? "context" : "generation", "name", rank->instance_name,
                              "rank", (json_int_t)rank->instance_rank, "pid", (json_int_t)getpid(), "info",
                              info[0] != '\0' ? json_string(info) : json_null(), "sender", serve->endpoints.sender,
                              "self", serve->endpoints.receiver, "pools", regions_json(&serve->memory, false), "aux",
                              regions_json(&serve->memory, true)));
}

static int open_worker(struct trtllm_serve *serve)
{
    struct kvf_trtllm_worker_options options;
    struct kvf_error error = {.position = -1};
    const struct kvf_trtllm_rank_spec *rank = kvf_trtllm_rank_get_spec(serve->rank);
    kvf_trtllm_worker_options_init(&options, sizeof(options));
    options.flags = serve->options->native ? 0 : KVF_TRTLLM_STRICT_UPSTREAM;
    options.rank = serve->rank;
    options.serve_info = rank->instance_rank == 0;
    options.info_port = (int32_t)serve->spec.port;
    options.host = serve->spec.host;
    options.transfer_timeout_ns = serve->options->timeout_ns;
    if (serve->options->timeout_ns < options.first_contact_timeout_ns)
        options.first_contact_timeout_ns = serve->options->timeout_ns;
    options.log =
        (struct kvf_log_sink){.fd = STDERR_FILENO, .level = serve->options->verbose ? KVF_LOG_INFO : KVF_LOG_WARN};
    serve->endpoints.struct_size = sizeof(serve->endpoints);
    if (kvf_trtllm_worker_open(&options, &serve->worker, &error) != KVF_OK ||
        kvf_trtllm_worker_endpoints(serve->worker, &serve->endpoints, &error) != KVF_OK)
        return cli_library_error(serve->command, NULL, &error);
    return CLI_OK;
}

static int open_memory(struct trtllm_serve *serve)
{
    uint8_t blank = serve->options->role == 0 ? 0x5A : 0xA5;
    int code = trtllm_memory_init(serve->command, serve->spec.rank, blank, &serve->memory, &serve->rank);
    if (code != CLI_OK)
        return code;
    serve->images = calloc(serve->memory.count + 1, sizeof(uint8_t *));
    if (serve->images == NULL) {
        cli_error(serve->command, "no memory");
        return CLI_FAILED;
    }
    for (size_t i = 0; i < serve->memory.count; i++)
        serve->images[i] = serve->memory.regions[i].base;
    return serve->spec.fill_path != NULL
               ? trtllm_memory_load(serve->command, &serve->memory, serve->spec.fill_path)
               : CLI_OK;
}

/** Completes the worker when nobody has to be waited for: a lone rank, and a generation rank, whose sender endpoints
 *  nobody asks for. */
static int complete_alone(struct trtllm_serve *serve)
{
    struct kvf_error error = {.position = -1};
    size_t count = (size_t)serve->meet.size;
    if (serve->meet.folder != NULL || (serve->meet.size > 1 && serve->options->role == 0))
        return CLI_OK;
    char **senders = calloc(count + 1, sizeof(char *));
    for (size_t i = 0; senders != NULL && i < count; i++)
        senders[i] = serve->endpoints.sender;
    int code = senders != NULL && trtllm_serve_complete(serve, senders, count, &error) ? CLI_OK : CLI_FAILED;
    if (code != CLI_OK)
        code = cli_library_error(serve->command, NULL, &error);
    free(senders);
    return code;
}

/** Completes the worker as soon as all ranks have met. */
static int complete_met(struct trtllm_serve *serve, int64_t deadline)
{
    struct kvf_error error = {.position = -1};
    int code = CLI_OK;
    if (serve->meet.folder == NULL || serve->is_complete)
        return CLI_OK;
    char **senders = calloc((size_t)serve->meet.size + 1, sizeof(char *));
    if (senders != NULL && trtllm_meet_gather(&serve->meet, senders)) {
        if (!trtllm_serve_complete(serve, senders, (size_t)serve->meet.size, &error))
            code = cli_library_error(serve->command, NULL, &error);
    } else if (cli_now_ns() > deadline) {
        int64_t missing = 0;
        while (senders != NULL && missing < serve->meet.size - 1 && senders[missing] != NULL)
            missing++;
        cli_error(serve->command, "not all %" PRId64 " ranks of \"%s\" have come to %s within %g s: rank %" PRId64
                  " has not", serve->meet.size, serve->meet.instance, serve->meet.folder,
                  (double)serve->options->timeout_ns / 1e9, missing);
        code = CLI_PEER;
    }
    for (int64_t r = 0; senders != NULL && r < serve->meet.size; r++)
        free(senders[r]);
    free(senders);
    return code;
}

static void take_line(void *context, json_t *object, const char *where, const char *text)
{
    struct trtllm_serve *serve = context;
    if (object != NULL) {
        trtllm_serve_line(serve, object, where);
        return;
    }
    serve->line_failed = true;
    json_lines_tell(json_pack("{s:s, s:s, s:s}", "event", "refused", "status", kvf_status_name(KVF_ERR_PARSE), "text",
                              text));
}

/** Takes the requests of the SPEC, once the worker is complete. */
static void take_list(struct trtllm_serve *serve)
{
    char where[48];
    if (serve->spec.requests == NULL || !serve->is_complete || serve->input_ended)
        return;
    for (size_t i = 0; i < json_array_size(serve->spec.requests); i++) {
        snprintf(where, sizeof(where), "requests[%zu]", i);
        trtllm_serve_line(serve, json_array_get(serve->spec.requests, i), where);
    }
    serve->input_ended = true;
}

/** Says what is wrong with the SPEC's requests before anything is opened. */
static int check_list(const struct trtllm_serve *serve)
{
    for (size_t i = 0; i < json_array_size(serve->spec.requests); i++) {
        struct trtllm_line line;
        struct json_take take;
        char where[48];
        snprintf(where, sizeof(where), "requests[%zu]", i);
        bool fits =
            trtllm_line_take(json_array_get(serve->spec.requests, i), where, serve->options->role, &line, &take);
        trtllm_line_fini(&line);
        if (!fits) {
            cli_error(serve->command, "%s: %s", serve->options->spec_path, take.text);
            return CLI_INPUT;
        }
    }
    return CLI_OK;
}

/** Cancels what still runs. */
static void stop(struct trtllm_serve *serve)
{
    struct kvf_error ignored = {.position = -1};
    serve->stopping = serve->input_ended = true;
    for (size_t i = 0; i < serve->job_count; i++) {
        if (!serve->jobs[i].ended)
            trtllm_serve_cancel(serve, serve->jobs[i].line.rid, false, &ignored);
    }
}

/** Waits for lines, signals and the worker, and takes what came. */
static int wait_a_while(struct trtllm_serve *serve, struct json_lines *input, int signal_fd)
{
    bool reads = serve->spec.requests == NULL && !serve->input_ended;
    struct pollfd waits[3] = {{.fd = kvf_trtllm_worker_event_fd(serve->worker), .events = POLLIN},
                              {.fd = signal_fd, .events = POLLIN},
                              {.fd = reads ? STDIN_FILENO : -1, .events = POLLIN}};
    struct signalfd_siginfo info;
    if (poll(waits, 3, MOMENT_MS) < 0 && errno != EINTR)
        return CLI_FAILED;
    trtllm_serve_events(serve);
    if ((waits[1].revents & POLLIN) != 0 && read(signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (serve->stopping)
            return CLI_FAILED;
        stop(serve);
    }
    if ((waits[2].revents & (POLLIN | POLLHUP)) == 0 || serve->stopping)
        return CLI_OK;
    int code = json_lines_read(input, take_line, serve);
    serve->input_ended = serve->input_ended || input->ended;
    return code;
}

/** Says whose memory was waited for in vain. */
static void tell_overdue(struct trtllm_serve *serve)
{
    for (size_t i = 0; i < serve->job_count; i++) {
        struct trtllm_job *job = &serve->jobs[i];
        if (!job->started || !job->ended || job->settled || job->lost)
            continue;
        job->lost = true;
        json_lines_tell(json_pack("{s:s, s:I, s:o}", "event", "overdue", "rid", (json_int_t)job->line.rid, "text",
                                  json_sprintf("nobody has said within %g s that the writes into its memory are over",
                                               (double)serve->options->timeout_ns / 1e9)));
    }
}

/** Runs until the input is at its end, every job is over and, with --meet, every rank of the instance is. */
static int loop(struct trtllm_serve *serve, int signal_fd)
{
    struct json_lines input = {.command = serve->command};
    int64_t meet_deadline = cli_now_ns() + serve->options->timeout_ns, settle_deadline = 0;
    bool told_done = false;
    int code = complete_alone(serve);
    while (code == CLI_OK) {
        code = complete_met(serve, meet_deadline);
        take_list(serve);
        trtllm_serve_resolve(serve);
        if (code == CLI_OK && serve->input_ended && !serve->is_complete && serve->meet.folder == NULL) {
            cli_error(serve->command, "standard input ended before a line {\"complete\": ...} came");
            code = CLI_INPUT;
        }
        if (code != CLI_OK)
            break;
        bool over = serve->input_ended && trtllm_serve_idle(serve, true);
        if (over && settle_deadline == 0)
            settle_deadline = cli_now_ns() + serve->options->timeout_ns;
        if (over && cli_now_ns() > settle_deadline)
            tell_overdue(serve);
        if (over && (trtllm_serve_idle(serve, false) || cli_now_ns() > settle_deadline)) {
            if (!told_done)
                code = trtllm_meet_write(serve->command, &serve->meet, &serve->endpoints, true);
            told_done = true;
            if (serve->stopping || trtllm_meet_all_done(&serve->meet) || cli_now_ns() > settle_deadline)
                break;
        }
        if (code == CLI_OK)
            code = wait_a_while(serve, &input, signal_fd);
    }
    json_lines_fini(&input);
    return code;
}

static void tell_end(struct trtllm_serve *serve, int code)
{
    struct kvf_trtllm_worker_stats stats = {.struct_size = sizeof(stats)};
    struct kvf_error ignored = {.position = -1};
    json_t *event = json_pack("{s:s, s:i}", "event", "end", "exit", code);
    if (serve->worker != NULL && kvf_trtllm_worker_get_stats(serve->worker, &stats, &ignored) == KVF_OK)
        json_object_update_new(
            event, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "info_answered",
                             (json_int_t)stats.info_answered, "info_asked", (json_int_t)stats.info_asked, "registered",
                             (json_int_t)stats.registered, "registrations_refused",
                             (json_int_t)stats.registrations_refused, "requests_sent", (json_int_t)stats.requests_sent,
                             "requests_received", (json_int_t)stats.requests_received, "malformed",
                             (json_int_t)stats.malformed, "unsettled", (json_int_t)stats.unsettled, "bytes_sent",
                             (json_int_t)stats.bytes_sent));
    json_lines_tell(event);
}

/** Looks at the memory in the end and writes it. */
static int look_back(struct trtllm_serve *serve)
{
    char where[96] = "";
    int code = CLI_OK;
    int64_t wrong = trtllm_memory_guards(&serve->memory, where, sizeof(where));
    if (wrong > 0) {
        cli_error(serve->command, "%" PRId64 " guard bytes were overwritten, the first at %s", wrong, where);
        serve->damaged = true;
    }
    if (serve->spec.checks)
        trtllm_serve_check(serve);
    if (serve->spec.dump_path != NULL) {
        code = trtllm_memory_dump(serve->command, &serve->memory, serve->spec.dump_path);
        if (code == CLI_OK)
            json_lines_tell(json_pack("{s:s, s:s, s:I}", "event", "dumped", "file", serve->spec.dump_path, "bytes",
                                      (json_int_t)serve->memory.bytes));
    }
    return code;
}

static void serve_fini(struct trtllm_serve *serve)
{
    kvf_trtllm_worker_close(serve->worker);
    for (size_t i = 0; i < serve->job_count; i++)
        trtllm_line_fini(&serve->jobs[i].line);
    free(serve->jobs);
    free(serve->images);
    kvf_trtllm_rank_release(serve->rank);
    trtllm_memory_fini(&serve->memory);
    trtllm_spec_fini(&serve->spec);
}

static int prepare(struct trtllm_serve *serve)
{
    const struct trtllm_serve_options *options = serve->options;
    int code = trtllm_spec_read(serve->command, options->spec_path, options->role, options->rank, &serve->spec);
    if (code == CLI_OK)
        code = check_list(serve);
    if (code != CLI_OK)
        return code;
    const struct kvf_trtllm_rank_spec *rank = kvf_trtllm_rank_get_spec(serve->spec.rank);
    serve->meet = (struct trtllm_meet){.folder = options->meet,
                                       .instance = rank->instance_name,
                                       .rank = rank->instance_rank,
                                       .size = rank->tp_size * rank->pp_size * rank->cp_size};
    if (options->role == 0 && serve->meet.size > 1 && options->meet == NULL && serve->spec.requests != NULL)
        return cli_usage_error(serve->command,
                               "\"%s\" has %" PRId64 " ranks: --meet FOLDER lets them find each other, or a line "
                               "{\"complete\": ...} with \"requests\": \"-\"",
                               rank->instance_name, serve->meet.size);
    code = open_memory(serve);
    if (code == CLI_OK)
        code = open_worker(serve);
    if (code == CLI_OK)
        code = trtllm_meet_write(serve->command, &serve->meet, &serve->endpoints, false);
    return code;
}

int trtllm_serve_run(const struct cli_command *command, const struct trtllm_serve_options *options)
{
    struct trtllm_serve serve = {.command = command, .options = options};
    int signal_fd = cli_signal_fd();
    int code = prepare(&serve);
    if (code == CLI_OK) {
        tell_ready(&serve);
        code = loop(&serve, signal_fd);
        trtllm_serve_events(&serve);
        int looked = look_back(&serve);
        if (code == CLI_OK)
            code = trtllm_serve_outcome(&serve);
        if (code == CLI_OK)
            code = looked;
        tell_end(&serve, code);
        trtllm_meet_leave(&serve.meet);
    }
    serve_fini(&serve);
    if (signal_fd >= 0)
        close(signal_fd);
    return code;
}
