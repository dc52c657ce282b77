/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry decode: one rank of an instance that pulls a cache. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/worker.h"

enum { OPT_FROM = 'f', OPT_OUT = 'o' };

static const struct cli_option options[] = {
    {OPT_INSTANCE, "instance", "NAME", "name of this instance (required)"},
    {OPT_FROM, "from", "NAME", "name of the prefill instance (required)"},
    {OPT_TRANSFER, "transfer", "ID", "id of the transfer, the same on both sides (required)"},
    {OPT_TOKENS, "tokens", "N", "tokens of the request (required)"},
    {OPT_DIRECTORY, "directory", "URL", "the directory (required)"},
    {OPT_OUT, "out", "FILE",
     "write what came as a safetensors file with all layers and\nheads; each rank writes its part of it"},
    WORKER_OPTIONS_COMMON,
    {0, NULL, NULL, NULL},
};

struct request {
    const char *from, *out;
};

static int pull(struct worker *worker, const struct worker_options *worker_options, const char *from)
{
    struct kvf_pull pull;
    struct kvf_error error = {.position = -1};
    kvf_pull_init(&pull, sizeof(pull));
    pull.transfer = worker_options->transfer;
    pull.attempt = worker_options->attempt;
    pull.from = from;
    pull.request_tokens = worker_options->tokens;
    pull.token_end = worker_options->tokens;
    pull.groups = worker->lists.groups;
    pull.group_count = worker->lists.count;
    pull.timeout_ns = worker_options->timeout_ns;
    pull.flags = KVF_PULL_AWAIT_INSTANCE; /* terminals are started in any order */
    if (kvf_engine_pull(worker->engine, &pull, &error) != KVF_OK)
        return cli_library_error(worker->command, NULL, &error);
    if (worker_options->verbose)
        fprintf(stderr, "%s: pulls transfer %s from %s\n", worker->name, worker_options->transfer, from);
    return CLI_OK;
}

/** Says before anything moves that the result could not be written. */
static int check_folder(const struct cli_command *command, const char *path)
{
    char *folder = strdup(path);
    char *slash = folder != NULL ? strrchr(folder, '/') : NULL;
    if (slash != NULL)
        slash[slash == folder] = '\0';
    const char *name = slash != NULL ? folder : ".";
    int code = CLI_OK;
    if (folder == NULL || access(name, W_OK | X_OK) != 0) {
        cli_error(command, "%s: cannot be written: %s", path, strerror(errno));
        code = CLI_INPUT;
    }
    free(folder);
    return code;
}

/** Writes this rank's part. The file of a single rank appears whole; ranks of several write side by side into one. */
static int save(struct worker *worker, const struct worker_options *worker_options, const char *path)
{
    bool alone = kvf_instance_rank_count(worker->instance) == 1;
    struct cache_file file = {.fd = -1};
    struct cache_blocks blocks = {worker->layout, &worker->lists, worker->bases, worker->memory_count};
    size_t room = strlen(path) + 24;
    char *target = malloc(room);
    int code = CLI_FAILED;
    if (target == NULL) {
        cli_error(worker->command, "no memory for a file name");
        return code;
    }
    if (alone)
        snprintf(target, room, "%s.%ld.part", path, (long)getpid());
    else
        snprintf(target, room, "%s", path);
    code = cache_file_create(worker->command, target, worker->instance, worker_options->tokens, &file);
    if (code == CLI_OK)
        code = cache_file_save(worker->command, path, &file, worker_options->tokens, &blocks);
    cache_file_close(&file);
    if (code == CLI_OK && alone && rename(target, path) != 0) {
        cli_error(worker->command, "%s: cannot be written: %s", path, strerror(errno));
        code = CLI_INPUT;
    }
    if (code != CLI_OK && alone)
        unlink(target);
    free(target);
    return code;
}

static void print_result(const struct worker *worker, const struct worker_options *worker_options,
                         const struct kvf_event *event, const char *out)
{
    char bytes[32], runs[32], time[24], transports[24];
    double ns = (double)(event->ended_ns - event->started_ns);
    printf("%s: transfer %s done, %s bytes of %" PRId64 " tokens in %" PRId64
           " piece%s and %s runs over %s, %s (%.2f GB/s)\n",
           worker->name, worker_options->transfer, cli_format_count(event->bytes, bytes), event->tokens, event->pieces,
           event->pieces == 1 ? "" : "s", cli_format_count(event->runs, runs),
           worker_transport_names(event->transport, transports), cli_format_ns(ns, time),
           ns > 0 ? (double)event->bytes / ns : 0.0);
    if (out != NULL)
        printf("%s: written to %s\n", worker->name, out);
}

static int decode(const struct cli_command *command, const struct worker_options *worker_options,
                  const struct request *request)
{
    struct worker worker;
    struct kvf_event event = {0};
    int code = worker_open_memory(command, worker_options, &worker);
    if (code == CLI_OK && request->out != NULL)
        code = check_folder(command, request->out);
    if (code == CLI_OK)
        code = worker_choose_blocks(&worker, worker_options, worker_options->tokens);
    if (code == CLI_OK)
        code = worker_announce(&worker, worker_options);
    if (code == CLI_OK)
        code = pull(&worker, worker_options, request->from);
    if (code == CLI_OK) {
        code = worker_wait(&worker, worker_options, false, &event);
        if (code == CLI_OK && request->out != NULL)
            code = save(&worker, worker_options, request->out);
        if (worker_options->json)
            worker_print_json(worker_options, &event, code == CLI_OK ? request->out : NULL);
        else if (code == CLI_OK)
            print_result(&worker, worker_options, &event, request->out);
        if (code == CLI_OK && kvf_instance_rank_count(worker.instance) > 1) {
            fflush(stdout);
            worker_linger(&worker, worker_options, event.pieces);
        }
    }
    worker_close(&worker);
    return code;
}

static int check_request(const struct cli_command *command, const struct worker_options *worker_options,
                         const struct request *request)
{
    int code = worker_check_options(command, worker_options);
    if (code == CLI_OK && request->from == NULL)
        code = cli_usage_error(command, "--from is missing: the name of the prefill instance");
    if (code == CLI_OK && worker_options->tokens == 0)
        code = cli_usage_error(command, "--tokens is missing: how many tokens the request has");
    if (code == CLI_OK && worker_options->directory == NULL)
        code = cli_usage_error(command, "--directory is missing: its URL, as 'kvferry directory' prints it");
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct worker_options worker_options;
    struct request request = {0};
    int id = 0, code = CLI_OK;
    worker_options_init(&worker_options);
    cli_parser_init(&parser, command, argc, argv);
    while (code == CLI_OK && (id = cli_parser_next(&parser)) >= 0) {
        if (id == OPT_FROM)
            request.from = parser.value;
        else if (id == OPT_OUT)
            request.out = parser.value;
        else if (!worker_take_option(&parser, id, &worker_options))
            code = CLI_USAGE;
    }
    if (code == CLI_OK && id == CLI_PARSE_STOP) {
        worker_options_fini(&worker_options);
        return parser.exit_code;
    }
    if (code == CLI_OK && argc - optind != 1)
        code = cli_usage_error(command, "takes one layout file; %d given", argc - optind);
    if (code == CLI_OK)
        code = check_request(command, &worker_options, &request);
    if (code == CLI_OK) {
        worker_options.layout_path = argv[optind];
        code = decode(command, &worker_options, &request);
    }
    worker_options_fini(&worker_options);
    return code;
}

const struct cli_command cli_decode_command = {
    .name = "decode",
    .summary = "pull a KV cache, as one rank of an instance",
    .operands = "LAYOUT.json",
    .about = "Announces itself in the directory, pulls this rank's part of a transfer from the prefill instance\n"
             "into blocks as the layout says, and writes it as a safetensors file. The file has all layers and heads;\n"
             "with several ranks each writes its own part, and the file is whole when all have ended with 0.\n"
             "A prefill instance that is not there yet, ranks of it that are missing, and an offer that is not made\n"
             "yet are waited for until --timeout.",
    .options = options,
    .examples = "  kvferry decode D.json --instance d --from p --rank 0,0,0 --transfer t1 --tokens 353 \\\n"
                "      --out moved.safetensors --directory http://127.0.0.1:8700",
    .run = run,
};
