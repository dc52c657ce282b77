/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-alone vLLM rank: opens, listens to lines, signals and the worker, ends in good order. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/json_lines.h"
#include "cli/vllm_serve.h"

#define MOMENT_MS 50
#define SECOND INT64_C(1000000000)

/** What the library does not take came from the SPEC or from the environment, not from the command line. */
static int refused(const struct vllm_serve *serve, const char *what, const struct kvf_error *error)
{
    int code = cli_library_error(serve->command, what, error);
    return code == CLI_USAGE ? CLI_INPUT : code;
}

static const char *environment(void *context, const char *name)
{
    (void)context;
    return getenv(name);
}

/** Reads vLLM's own settings; the SPEC goes before them. */
static int read_config(struct vllm_serve *serve)
{
    const json_t *extra = serve->spec.endpoint.extra_config;
    struct kvf_error error = {.position = -1};
    char *text = extra != NULL ? json_dumps(extra, JSON_COMPACT) : NULL;
    int code = CLI_OK;
    serve->config.struct_size = sizeof(serve->config);
    if (extra != NULL && text == NULL) {
        cli_error(serve->command, "no memory");
        return CLI_FAILED;
    }
    if (kvf_vllm_config_read(text, environment, NULL, &serve->config, &error) != KVF_OK)
        code = refused(serve, NULL, &error);
    else if (serve->options->verbose && serve->config.notes[0] != '\0')
        cli_error(serve->command, "%s", serve->config.notes);
    free(text);
    return code;
}

/** A rank by hand is for this host unless it is told another address. */
static const char *host_of(const struct vllm_serve *serve)
{
    const char *said = serve->spec.endpoint.host, *set = getenv("VLLM_HOST_IP");
    return said != NULL ? said : set != NULL && set[0] != '\0' ? serve->config.host : "127.0.0.1";
}

/** The registry of this process. It is reached under `url` afterwards. */
static int open_directory(struct vllm_serve *serve, char *url, size_t room)
{
    const struct vllm_endpoint *endpoint = &serve->spec.endpoint;
    struct kvf_directory_options options;
    struct kvf_error error = {.position = -1};
    char listen[KVF_VLLM_ADDRESS_BYTES];
    const char *host = host_of(serve);
    snprintf(url, room, "%s", endpoint->bootstrap != NULL ? endpoint->bootstrap : "");
    if (endpoint->bootstrap == NULL && serve->config.has_bootstrap_server_address)
        snprintf(url, room, "http://%.500s", serve->config.bootstrap_server_address);
    if (!endpoint->serve_bootstrap || serve->options->role != KVF_VLLM_PRODUCER || serve->options->rank > 0)
        return CLI_OK;
    kvf_directory_options_init(&options, sizeof(options));
    if (strncmp(url, "http://", 7) == 0)
        snprintf(listen, sizeof(listen), "%s", url + 7);
    else
        snprintf(listen, sizeof(listen), strchr(host, ':') != NULL ? "[%s]:0" : "%s:0", host);
    options.listen = listen;
    options.flags = KVF_DIRECTORY_VLLM_BOOTSTRAP;
    options.log =
        (struct kvf_log_sink){.fd = STDERR_FILENO, .level = serve->options->verbose ? KVF_LOG_INFO : KVF_LOG_WARN};
    if (kvf_directory_open(&options, &serve->directory, &error) != KVF_OK)
        return refused(serve, "endpoint.bootstrap", &error);
    if (url[0] == '\0')
        snprintf(url, room, "%s", kvf_directory_url(serve->directory));
    return CLI_OK;
}

/** An id that no other start of a worker has. */
static void make_id(const struct vllm_serve *serve, char *text, size_t room)
{
    uint64_t number = (uint64_t)cli_now_ns() ^ (uint64_t)getpid() << 40;
    if (getrandom(&number, sizeof(number), GRND_NONBLOCK) < 0)
        number ^= (uintptr_t)text;
    snprintf(text, room, "kvferry-%s-%016" PRIx64,
             serve->options->role == KVF_VLLM_PRODUCER ? "producer" : "consumer", number);
}

static void set_timeouts(const struct vllm_endpoint *endpoint, struct kvf_vllm_worker_options *options)
{
    if (endpoint->abort_timeout_ns > 0)
        options->abort_request_timeout_ns = endpoint->abort_timeout_ns;
    if (endpoint->slack_ns > 0)
        options->receive_slack_ns = endpoint->slack_ns;
    if (endpoint->settle_timeout_ns > 0)
        options->settle_timeout_ns = endpoint->settle_timeout_ns;
    if (endpoint->connector_timeout_ns > 0)
        options->connector_timeout_ns = endpoint->connector_timeout_ns;
    if (endpoint->topology_refresh_ns > 0)
        options->topology_refresh_ns = endpoint->topology_refresh_ns;
    if (endpoint->arrival_timeout_ns > 0)
        options->arrival_timeout_ns = endpoint->arrival_timeout_ns;
    if (endpoint->register_attempts > 0)
        options->register_attempts = (int32_t)endpoint->register_attempts;
}

static void set_rank(const struct vllm_rank *rank, struct kvf_vllm_worker_options *options)
{
    options->tp_rank = rank->tp_rank;
    options->tp_size = rank->tp_size;
    options->pp_rank = rank->pp_rank;
    options->pp_size = rank->pp_size;
    options->is_mla = rank->is_mla;
    options->total_kv_heads = rank->total_kv_heads;
    options->group_kinds = rank->group_kinds;
    options->group_count = rank->group_count;
    options->layers = rank->layers;
    options->layer_count = rank->layer_count;
    options->kernel_blocks_per_block = rank->kernel_blocks_per_block;
    options->kv_cache_groups = rank->kv_cache_groups;
}

static json_t *memory_json(const struct vllm_memory *memory)
{
    json_t *list = json_array();
    for (size_t i = 0; i < memory->count; i++)
        json_array_append_new(list, json_pack("[o, I]", vllm_json_u64((uint64_t)(uintptr_t)memory->spans[i].real),
                                              (json_int_t)memory->spans[i].bytes));
    return list;
}

static int tell_ready(const struct vllm_serve *serve, const char *engine_id, const char *url)
{
    struct kvf_vllm_endpoints at = {.struct_size = sizeof(at)};
    struct kvf_error error = {.position = -1};
    if (kvf_vllm_worker_endpoints(serve->worker, &at, &error) != KVF_OK)
        return refused(serve, NULL, &error);
    json_lines_tell(json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:i, s:i, s:o, s:o}", "event", "ready", "role",
                              serve->options->role == KVF_VLLM_PRODUCER ? "producer" : "consumer", "pid",
                              (int)getpid(), "engine_id", engine_id, "side_channel", at.side_channel, "segment",
                              at.segment, "bootstrap", url, "rpc_port", (int)at.rpc_port, "data_port",
                              (int)at.data_port, "layout_id", vllm_json_u64(at.layout_id), "memory",
                              memory_json(&serve->memory)));
    return CLI_OK;
}

static int register_memory(struct vllm_serve *serve)
{
    struct kvf_error error = {.position = -1};
    struct kvf_vllm_storage *memory = calloc(serve->memory.count + 1, sizeof(*memory));
    if (memory == NULL) {
        cli_error(serve->command, "no memory");
        return CLI_FAILED;
    }
    for (size_t i = 0; i < serve->memory.count; i++)
        memory[i] = (struct kvf_vllm_storage){(uint64_t)(uintptr_t)serve->memory.spans[i].real,
                                              serve->memory.spans[i].bytes};
    int code = CLI_OK;
    if (kvf_vllm_worker_register(serve->worker, memory, serve->memory.count, serve->regions,
                                 serve->spec.rank.has_opaque_row, &error) != KVF_OK)
        code = refused(serve, NULL, &error);
    free(memory);
    return code;
}

/* Each pull that waits is a connection. What the system allows is for the asking; without, the worker tells. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int open_worker(struct vllm_serve *serve, int signal_fd)
{
    const struct vllm_endpoint *endpoint = &serve->spec.endpoint;
    struct kvf_vllm_worker_options options;
    struct kvf_error error = {.position = -1};
    char url[KVF_VLLM_ADDRESS_BYTES], made[64];
    make_id(serve, made, sizeof(made));
    raise_descriptors();
    int code = open_directory(serve, url, sizeof(url));
    if (code != CLI_OK)
        return code;
    kvf_vllm_worker_options_init(&options, sizeof(options));
    options.role = serve->options->role;
    options.engine_id = endpoint->engine_id != NULL ? endpoint->engine_id : made;
    options.host = host_of(serve);
    options.dp_rank = endpoint->dp_rank;
    options.side_port = (int32_t)endpoint->side_port;
    options.rpc_port = (int32_t)endpoint->rpc_port;
    options.data_port = (int32_t)endpoint->data_port;
    options.bootstrap_url = serve->options->role == KVF_VLLM_PRODUCER && url[0] != '\0' ? url : NULL;
    options.layout_ids = endpoint->layout_ids;
    options.check_grants = endpoint->check_grants;
    options.check_arrivals = endpoint->check_arrivals;
    options.abort_request_timeout_ns = serve->config.abort_request_timeout_ns;
    options.connector_timeout_ns = serve->config.connector_timeout_ns;
    set_timeouts(endpoint, &options);
    set_rank(&serve->spec.rank, &options);
    options.log =
        (struct kvf_log_sink){.fd = STDERR_FILENO, .level = serve->options->verbose ? KVF_LOG_INFO : KVF_LOG_WARN};
    if (kvf_vllm_worker_open(&options, &serve->worker, &error) != KVF_OK)
        return refused(serve, NULL, &error);
    code = vllm_serve_interruptible(serve, signal_fd, register_memory);
    return code == CLI_OK ? tell_ready(serve, options.engine_id, url) : code;
}

/** Says what is wrong with the SPEC's requests before anything is opened, and notes the blocks that they name. */
static int look_at_list(const struct vllm_serve *serve, const json_t *list, const char *name, struct vllm_reach *reach)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct vllm_line line;
        struct json_take take;
        char where[64];
        snprintf(where, sizeof(where), "%s[%zu]", name, i);
        bool fits = vllm_line_take(json_array_get(list, i), where, serve->options->role, &line, &take);
        bool noted = vllm_reach_add(reach, &serve->spec.rank, line.groups, line.group_count);
        vllm_line_fini(&line);
        if (!fits || !noted) {
            cli_error(serve->command, "%s: %s", serve->options->spec_path, fits ? "no memory" : take.text);
            return CLI_INPUT;
        }
    }
    return CLI_OK;
}

static size_t groups_of(const struct vllm_spec *spec)
{
    size_t count = 0, most = spec->rank.group_count > 0 ? spec->rank.group_count : 1;
    const struct kvf_vllm_region *regions = kvf_vllm_regions_get(spec->regions, &count);
    for (size_t i = 0; i < count; i++) {
        if (regions[i].group_index >= (int64_t)most && regions[i].group_index < 4096)
            most = (size_t)regions[i].group_index + 1;
    }
    return most;
}

static int open_memory(struct vllm_serve *serve)
{
    const struct vllm_spec *spec = &serve->spec;
    const char *own = serve->options->role == KVF_VLLM_PRODUCER ? "producer.ready" : "pull.requests";
    struct vllm_reach reach = {0};
    int code = look_at_list(serve, spec->rank.requests, own, &reach);
    if (code == CLI_OK)
        code = look_at_list(serve, spec->requests, "requests", &reach);
    if (code == CLI_OK && spec->blocks > 0 && !vllm_reach_all(&reach, &spec->rank, groups_of(spec), spec->blocks)) {
        cli_error(serve->command, "no memory");
        code = CLI_FAILED;
    }
    if (code == CLI_OK && spec->blocks > 0 &&
        !vllm_memory_apart(serve->command, serve->options->spec_path, spec->regions, spec->blocks,
                           spec->rank.kernel_blocks_per_block))
        code = CLI_INPUT;
    if (code == CLI_OK)
        code = vllm_memory_init(serve->command, serve->options->spec_path, spec->memory, spec->regions, &reach,
                                &serve->memory, &serve->regions);
    free(reach.last);
    if (code == CLI_OK && spec->paints)
        vllm_memory_paint(&serve->memory, spec->regions, spec->paint_seed + (uint32_t)spec->rank.tp_rank);
    if (code == CLI_OK && spec->fill_path != NULL)
        code = vllm_memory_load(serve->command, &serve->memory, spec->fill_path);
    return code;
}

static void take_list(struct vllm_serve *serve, const json_t *list, const char *name)
{
    char where[64];
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(where, sizeof(where), "%s[%zu]", name, i);
        vllm_serve_line(serve, json_array_get(list, i), where);
    }
}

static void take_line(void *context, json_t *object, const char *where, const char *text)
{
    struct vllm_serve *serve = context;
    if (serve->stopping)
        return;
    if (object != NULL) {
        vllm_serve_line(serve, object, where);
        return;
    }
    serve->line_failed = true;
    json_lines_tell(json_pack("{s:s, s:s, s:s}", "event", "rejected", "status", kvf_status_name(KVF_ERR_PARSE), "text",
                              text));
}

static int wait_ms(const struct vllm_serve *serve)
{
    int64_t due = vllm_serve_next_due(serve), now = cli_now_ns();
    if (due <= now)
        return 0;
    return due - now < MOMENT_MS * INT64_C(1000000) ? (int)((due - now) / 1000000) + 1 : MOMENT_MS;
}

/** Waits for lines, signals and the worker, and takes what came. */
static int wait_a_while(struct vllm_serve *serve, struct json_lines *input, int signal_fd)
{
    bool reads = serve->spec.reads_input && !serve->input_ended;
    struct pollfd waits[3] = {{.fd = kvf_vllm_worker_event_fd(serve->worker), .events = POLLIN},
                              {.fd = signal_fd, .events = POLLIN},
                              {.fd = reads ? STDIN_FILENO : -1, .events = POLLIN}};
    struct signalfd_siginfo info;
    if (poll(waits, 3, wait_ms(serve)) < 0 && errno != EINTR)
        return CLI_FAILED;
    vllm_serve_events(serve);
    if ((waits[1].revents & POLLIN) != 0 && read(signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        serve->stopping = true;
    if ((waits[2].revents & (POLLIN | POLLHUP)) == 0 || serve->stopping)
        return CLI_OK;
    int code = json_lines_read(input, take_line, serve);
    serve->input_ended = serve->input_ended || input->ended;
    return code;
}

/** Runs until the input is at its end and every request is over. Without either, until it is told to stop. */
static int loop(struct vllm_serve *serve, int signal_fd)
{
    struct json_lines input = {.command = serve->command};
    int64_t deadline = serve->options->timeout_ns > 0 ? cli_now_ns() + serve->options->timeout_ns : INT64_MAX;
    int code = CLI_OK;
    serve->input_ended = !serve->spec.reads_input;
    take_list(serve, serve->spec.rank.requests,
              serve->options->role == KVF_VLLM_PRODUCER ? "producer.ready" : "pull.requests");
    take_list(serve, serve->spec.requests, "requests");
    bool lasts = serve->input_ended && serve->job_count == 0 && !serve->line_failed;
    while (code == CLI_OK && !serve->stopping) {
        vllm_serve_step(serve);
        if (serve->input_ended && vllm_serve_unfinished(serve) == 0 && !lasts)
            break;
        code = wait_a_while(serve, &input, signal_fd);
        serve->stopping = serve->stopping || cli_now_ns() > deadline;
    }
    json_lines_fini(&input);
    return code;
}

static void add_stats(struct vllm_serve *serve, json_t *event)
{
    struct kvf_vllm_worker_stats stats = {.struct_size = sizeof(stats)};
    struct kvf_error ignored = {.position = -1};
    if (kvf_vllm_worker_get_stats(serve->worker, &stats, &ignored) != KVF_OK)
        return;
    const struct {
        const char *name;
        int64_t number;
    } rows[] = {{"pulls_received", stats.pulls_received}, {"pulls_refused", stats.pulls_refused},
                {"pulls_waiting", stats.pulls_waiting}, {"pulls_repeated", stats.pulls_repeated},
                {"layout_misses", stats.layout_misses}, {"transfers_tracked", stats.transfers_tracked},
                {"placeholders", stats.placeholders}, {"transfers", stats.transfers},
                {"failed_transfers", stats.failed_transfers}, {"bytes_transferred", stats.bytes_transferred},
                {"descriptors", stats.descriptors}, {"expired_reqs", stats.expired_reqs},
                {"pulls_sent", stats.pulls_sent}, {"requests_received", stats.requests_received},
                {"failed_recvs", stats.failed_recvs}, {"unsettled", stats.unsettled}, {"malformed", stats.malformed},
                {"queries", stats.queries}, {"registrations", stats.registrations}, {"engines", stats.engines},
                {"ignored_ids", stats.ignored_ids}, {"refused_accesses", stats.refused_accesses},
                {"short_arrivals", stats.short_arrivals}, {"late_arrivals", stats.late_arrivals}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        json_object_set_new(event, rows[i].name, json_integer(rows[i].number));
}

/** What the requests make of the exit code. A producer that is stopped owes nobody anything. */
static int outcome(const struct vllm_serve *serve)
{
    bool failed = serve->line_failed || serve->damaged;
    for (size_t i = 0; i < serve->job_count; i++)
        failed = failed || serve->jobs[i].failed;
    if (serve->options->role == KVF_VLLM_CONSUMER)
        failed = failed || vllm_serve_unfinished(serve) > 0;
    return failed ? CLI_FAILED : CLI_OK;
}

/** Looks at the memory in the end and writes it. */
static int look_back(struct vllm_serve *serve)
{
    char where[96] = "";
    int code = CLI_OK;
    int64_t wrong = vllm_memory_guards(&serve->memory, where, sizeof(where));
    if (wrong > 0) {
        cli_error(serve->command, "%" PRId64 " guard bytes were overwritten, the first at %s", wrong, where);
        serve->damaged = true;
    }
    if (serve->spec.checks)
        vllm_serve_check(serve);
    if (serve->spec.dump_path != NULL) {
        code = vllm_memory_dump(serve->command, &serve->memory, serve->spec.dump_path);
        if (code == CLI_OK)
            json_lines_tell(json_pack("{s:s, s:s, s:I}", "event", "dumped", "file", serve->spec.dump_path, "bytes",
                                      (json_int_t)serve->memory.bytes));
    }
    return code;
}

/** Ends the worker's service, and looks at what is left behind. */
static int finish(struct vllm_serve *serve, int code)
{
    struct kvf_error error = {.position = -1};
    if (kvf_vllm_worker_shutdown(serve->worker, serve->stopping ? 2 * SECOND : 10 * SECOND, &error) != KVF_OK &&
        !serve->stopping)
        cli_error(serve->command, "%s", error.text);
    vllm_serve_events(serve);
    json_t *event = json_pack("{s:s}", "event", "end");
    add_stats(serve, event);
    kvf_vllm_worker_close(serve->worker);
    serve->worker = NULL;
    int looked = look_back(serve);
    if (code == CLI_OK)
        code = outcome(serve);
    if (code == CLI_OK)
        code = looked;
    json_object_set_new(event, "unfinished", json_integer((json_int_t)vllm_serve_unfinished(serve)));
    json_object_set_new(event, "exit", json_integer(code));
    json_lines_tell(event);
    return code;
}

static void serve_fini(struct vllm_serve *serve)
{
    kvf_vllm_worker_close(serve->worker);
    kvf_directory_close(serve->directory);
    for (size_t i = 0; i < serve->job_count; i++)
        vllm_line_fini(&serve->jobs[i].line);
    free(serve->jobs);
    kvf_vllm_regions_release(serve->regions);
    vllm_memory_fini(&serve->memory);
    vllm_spec_fini(&serve->spec);
}

int vllm_serve_run(const struct cli_command *command, const struct vllm_serve_options *options)
{
    struct vllm_serve serve = {.command = command, .options = options};
    int signal_fd = cli_signal_fd();
    int code = vllm_spec_read(command, options->spec_path, options->role, options->rank, &serve.spec);
    if (code == CLI_OK)
        code = read_config(&serve);
    if (code == CLI_OK)
        code = open_memory(&serve);
    if (code == CLI_OK)
        code = open_worker(&serve, signal_fd);
    if (code == CLI_OK)
        code = vllm_serve_await(&serve, signal_fd);
    if (code == CLI_OK)
        code = finish(&serve, loop(&serve, signal_fd));
    serve_fini(&serve);
    if (signal_fd >= 0)
        close(signal_fd);
    return code;
}
