/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo: moves a real KV cache between processes of other shapes, and checks every byte. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/demo.h"
#include "cli/plan_set.h"

#define DEFAULT_REQUESTS 32
#define BARE_REQUESTS 32
#define BARE_LEAST 8 /* fewer would run in the caches and be no yardstick */
#define REQUESTS_MAX 100000

enum option_id {
    OPT_SCALE = 's',
    OPT_CASE = 'c',
    OPT_OVER = 'x',
    OPT_DATA = 'D',
    OPT_KEEP = 'k',
    OPT_BYTES = 'b',
    OPT_CORRUPT = OPT_OWN
};

static const struct cli_option options[] = {
    {OPT_SCALE, "scale", "N", "requests to move at once (default 32: 256 MiB)"},
    {OPT_BYTES, "bytes", "SIZE", "the same by size, such as 1GiB"},
    {OPT_CASE, "case", "CASE", "split (TP 3, PP 2 to TP 1), turned (PP 2 to TP 3), equal,\nor all (default all)"},
    {OPT_OVER, "transport", "NAME", "shm, tcp or both (default both)"},
    {OPT_DATA, "data", "DIR", "folder of kv.safetensors and expected.json"},
    {OPT_KEEP, "keep", "DIR", "keep the layouts, and one moved cache of each run, there"},
    {OPT_CORRUPT, "corrupt", NULL, "flip one byte in flight: the check must find it, exit code 1"},
    {OPT_TIMEOUT, "timeout", "SECONDS", "give up when a step takes so long (default 60)"},
    {OPT_JSON, "json", NULL, "print the results as JSON, no pictures"},
    {0, NULL, NULL, NULL},
};

struct request {
    struct demo_settings settings;
    const char *data;
    int64_t bytes;
    int shape;     /* -1 = all */
    int transport; /* 0 shm, 1 tcp, 2 both */
};

static bool take_option(const struct cli_parser *parser, int id, struct request *request)
{
    static const char *const shapes[] = {"split", "turned", "equal", "all", NULL};
    static const char *const transports[] = {"shm", "tcp", "both", NULL};
    switch (id) {
    case OPT_SCALE: return cli_value_int(parser, 1, REQUESTS_MAX, &request->settings.requests);
    case OPT_BYTES: return cli_value_bytes(parser, 1, INT64_C(1) << 40, &request->bytes);
    case OPT_DATA: request->data = parser->value; return true;
    case OPT_KEEP: request->settings.keep = parser->value; return true;
    case OPT_CORRUPT: request->settings.corrupt = true; return true;
    case OPT_JSON: request->settings.json = true; return true;
    case OPT_TIMEOUT: return cli_value_seconds(parser, &request->settings.timeout_ns);
    case OPT_OVER: return cli_value_word(parser, transports, &request->transport);
    case OPT_CASE:
        if (!cli_value_word(parser, shapes, &request->shape))
            return false;
        if (request->shape == DEMO_CASES)
            request->shape = -1;
        return true;
    default: return false;
    }
}

/** Refuses what cannot fit into memory: source, destination, and as much again for what is checked and compared. */
static int check_memory(const struct cli_command *command, const struct demo_settings *settings,
                        const struct demo_data *data)
{
    double request = (double)(data->tensor_bytes * data->layers * DEMO_PARTS);
    double needed = request * ((double)settings->requests * 2.6 + BARE_REQUESTS * 2.6 + DEMO_BATCH);
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128], a[24], b[24];
    long long available = -1;
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "MemAvailable: %lld kB", &available) == 1)
            break;
    }
    if (file != NULL)
        fclose(file);
    if (available < 0 || needed < (double)available * 1024 * 0.9)
        return CLI_OK;
    cli_error(command, "%" PRId64 " requests need about %s of memory, %s are available: take a smaller --scale",
              settings->requests, cli_format_bytes((int64_t)needed, a), cli_format_bytes(available * 1024, b));
    return CLI_FAILED;
}

/** Keeps a layout of a case, for 'kvferry plan'. */
static int keep_layout(const struct cli_command *command, const char *folder, const char *shape, const char *side,
                       const char *layout)
{
    char path[4096];
    snprintf(path, sizeof(path), "%.3900s/%s-%s.json", folder, shape, side);
    return cli_write_file(command, path, layout, strlen(layout));
}

/** Shows what moves in a case, and keeps its layouts. */
static int present(const struct cli_command *command, const struct request *request, const struct demo_data *data,
                   const struct demo_case *shape)
{
    char *layouts[2] = {NULL, NULL};
    kvf_instance *instances[2] = {NULL, NULL};
    struct plan_set set = {0};
    struct kvf_error error = {.position = -1};
    int code = CLI_OK;
    for (int side = 0; code == CLI_OK && side < 2; side++) {
        code = demo_case_layout(command, side == 0 ? &shape->src : &shape->dst, &layouts[side]);
        if (code == CLI_OK &&
            kvf_instance_parse(layouts[side], strlen(layouts[side]), &instances[side], &error) != KVF_OK)
            code = cli_library_error(command, "layout of the demo", &error);
        if (code == CLI_OK && request->settings.keep != NULL)
            code = keep_layout(command, request->settings.keep, shape->name, side == 0 ? "prefill" : "decode",
                               layouts[side]);
    }
    if (code == CLI_OK && !request->settings.json) {
        code = plan_set_init(command, instances[0], instances[1], -1, data->tokens, &set);
        if (code == CLI_OK) {
            printf("%s: %s\n", shape->name, shape->title);
            plan_draw(&set, stdout);
            putchar('\n');
            fflush(stdout);
        }
    }
    plan_set_fini(&set);
    for (int side = 0; side < 2; side++) {
        kvf_instance_destroy(instances[side]);
        kvf_text_free(layouts[side]);
    }
    return code;
}

/** Runs one case over the transports asked for. */
static int run_case(struct demo_run *run, const struct request *request, int index, struct demo_result *results,
                    size_t *count)
{
    static const char *const names[] = {"shm", "tcp"};
    struct demo_case shape, small;
    int64_t requests = request->settings.requests;
    int64_t few = requests < BARE_LEAST ? BARE_LEAST : requests < BARE_REQUESTS ? requests : BARE_REQUESTS;
    double bare = 0;
    demo_case_make(run->data, index, requests + 1, &shape);
    demo_case_make(run->data, index, few, &small);
    int code = present(run->command, request, run->data, &shape);
    if (code == CLI_OK)
        code = demo_bare(run->command, &small, few, run->data->tokens, &bare);
    for (int t = 0; code == CLI_OK && t < 2; t++) {
        if (request->transport != 2 && request->transport != t)
            continue;
        run->shape = &shape;
        run->transport = names[t];
        run->is_first = *count == 0;
        code = demo_run(run, &results[*count]);
        if (code == CLI_OK)
            results[(*count)++].bare_gb_per_s = bare;
    }
    return code;
}

static int report(const struct request *request, const struct demo_data *data, const struct demo_result *results,
                  size_t count)
{
    bool right = count > 0;
    for (size_t i = 0; i < count; i++)
        right = right && results[i].right;
    if (request->settings.json)
        demo_print_json(&request->settings, data, results, count);
    else
        demo_print_table(results, count);
    if (!request->settings.json && right)
        printf(
            "\nEvery K and V of %" PRId64 " layers has its stored SHA-256 in every request; guard bytes, unused blocks "
            "and the tail\nof each last block are untouched. 1st contact: one request alone, with greeting, planning "
            "and mapping. Wall time:\nthe requests after it, all at once. The bare loop makes the same moves in one "
            "process with memcpy.\n",
            data->layers);
    return right ? CLI_OK : CLI_FAILED;
}

static int open_gather(const struct cli_command *command, const struct demo_data *data, struct demo_run *run)
{
    size_t bytes = (size_t)(data->tensor_bytes * data->layers * DEMO_PARTS * DEMO_BATCH);
    run->gather_fd = memfd_create("kvferry-demo", MFD_CLOEXEC);
    if (run->gather_fd >= 0 && ftruncate(run->gather_fd, (off_t)bytes) == 0) {
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, run->gather_fd, 0);
        if (map != MAP_FAILED) {
            run->gather = map;
            return CLI_OK;
        }
    }
    cli_error(command, "no memory to gather %zu bytes in: %s", bytes, strerror(errno));
    return CLI_FAILED;
}

static int demo(const struct cli_command *command, struct request *request)
{
    struct demo_data data;
    struct demo_result results[DEMO_CASES * 2];
    struct demo_run run = {.command = command, .settings = &request->settings, .data = &data, .gather_fd = -1};
    size_t count = 0;
    int code = demo_data_open(command, request->data, &data);
    if (code == CLI_OK && request->bytes > 0) {
        int64_t one = data.tensor_bytes * data.layers * DEMO_PARTS;
        request->settings.requests = request->bytes / one + (request->bytes % one > one / 2);
        request->settings.requests += request->settings.requests == 0;
    }
    if (code == CLI_OK)
        code = check_memory(command, &request->settings, &data);
    if (code == CLI_OK && request->settings.keep != NULL && mkdir(request->settings.keep, 0755) != 0 &&
        errno != EEXIST) {
        cli_error(command, "%s: cannot be made: %s", request->settings.keep, strerror(errno));
        code = CLI_INPUT;
    }
    if (code == CLI_OK)
        code = open_gather(command, &data, &run);
    for (int shape = 0; code == CLI_OK && shape < DEMO_CASES; shape++) {
        if (request->shape < 0 || request->shape == shape)
            code = run_case(&run, request, shape, results, &count);
    }
    if (code == CLI_OK)
        code = report(request, &data, results, count);
    if (run.gather_fd >= 0)
        close(run.gather_fd);
    demo_data_close(&data);
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct request request = {.shape = -1,
                              .transport = 2,
                              .settings = {.requests = DEFAULT_REQUESTS, .timeout_ns = 60 * INT64_C(1000000000)}};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &request))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (optind < argc)
        return cli_usage_error(command, "\"%s\" is too much: everything is given by options", argv[optind]);
    request.settings.progress = isatty(STDERR_FILENO) != 0;
    signal(SIGPIPE, SIG_IGN); /* a worker that died is told by its exit */
    return demo(command, &request);
}

const struct cli_command cli_demo_command = {
    .name = "demo",
    .summary = "move a real KV cache between processes of other shapes, and check every byte",
    .operands = "",
    .about =
        "Starts the ranks of a prefill and of a decode instance as processes on this machine, moves the KV cache\n"
        "that a real model computed for a real prompt from one to the other, and checks every byte by reading\n"
        "it back without the planner: three pairs of shapes, over shared memory and over TCP. It draws what goes\n"
        "where and compares the time with a bare loop of the same moves. Exit code 0 only when every byte is right.",
    .options = options,
    .examples = "  kvferry demo\n"
                "  kvferry demo --case turned --transport tcp --bytes 1GiB\n"
                "  kvferry demo --scale 2 --json\n"
                "  kvferry demo --scale 1 --corrupt; echo $?",
    .run = run,
};
