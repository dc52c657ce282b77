/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry prefill: one rank of an instance that has a cache and offers it. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/worker.h"

enum { OPT_CACHE = 'c' };

static const struct cli_option options[] = {
    {OPT_INSTANCE, "instance", "NAME", "name of this instance (required)"},
    {OPT_TRANSFER, "transfer", "ID", "id of the transfer, the same on both sides (required)"},
    {OPT_CACHE, "cache", "FILE",
     "the KV cache, a safetensors file with layers.N.k and\nlayers.N.v, [tokens, kv_heads, head_dim] (required)"},
    {OPT_DIRECTORY, "directory", "URL", "the directory; without it rank 0,0,0 runs one itself"},
    {OPT_LISTEN, "directory-listen", "HOST:PORT", "where that one listens (default 127.0.0.1, a free port)"},
    {OPT_TOKENS, "tokens", "N", "offer only the first N tokens (default: all of the file)"},
    WORKER_OPTIONS_COMMON,
    {0, NULL, NULL, NULL},
};

static int offer(struct worker *worker, const struct worker_options *worker_options, int64_t tokens)
{
    struct kvf_offer offer;
    struct kvf_error error = {.position = -1};
    kvf_offer_init(&offer, sizeof(offer));
    offer.transfer = worker_options->transfer;
    offer.attempt = worker_options->attempt;
    offer.request_tokens = tokens;
    offer.groups = worker->lists.groups;
    offer.group_count = worker->lists.count;
    offer.ready_tokens = tokens;
    offer.timeout_ns = worker_options->timeout_ns;
    if (kvf_engine_offer(worker->engine, &offer, &error) != KVF_OK)
        return cli_library_error(worker->command, NULL, &error);
    fprintf(stderr, "%s: offers transfer %s, %" PRId64 " tokens, directory %s\n", worker->name,
            worker_options->transfer, tokens, kvf_engine_directory_url(worker->engine));
    return CLI_OK;
}

static int load(struct worker *worker, const struct worker_options *worker_options, const char *cache_path,
                int64_t *tokens)
{
    struct cache_file file = {.fd = -1};
    int code = cache_file_open(worker->command, cache_path, &file);
    if (code != CLI_OK)
        return code;
    *tokens = worker_options->tokens > 0 ? worker_options->tokens : file.tokens;
    if (*tokens > file.tokens) {
        cli_error(worker->command, "%s: has %" PRId64 " tokens, --tokens asks for %" PRId64, cache_path, file.tokens,
                  *tokens);
        code = CLI_INPUT;
    }
    if (code == CLI_OK)
        code = worker_choose_blocks(worker, worker_options, *tokens);
    if (code == CLI_OK) {
        struct cache_blocks blocks = {worker->layout, &worker->lists, worker->bases, worker->memory_count};
        code = cache_file_load(worker->command, cache_path, &file, *tokens, &blocks);
    }
    cache_file_close(&file);
    return code;
}

static int prefill(const struct cli_command *command, const struct worker_options *worker_options,
                   const char *cache_path)
{
    struct worker worker;
    struct kvf_event event = {0};
    int64_t tokens = 0;
    char bytes[32];
    int code = worker_open_memory(command, worker_options, &worker);
    if (code == CLI_OK)
        code = load(&worker, worker_options, cache_path, &tokens);
    if (code == CLI_OK)
        code = worker_announce(&worker, worker_options);
    if (code == CLI_OK)
        code = offer(&worker, worker_options, tokens);
    if (code == CLI_OK) {
        code = worker_wait(&worker, worker_options, true, &event);
        if (worker_options->json)
            worker_print_json(worker_options, &event, NULL);
        else if (code == CLI_OK)
            printf("%s: transfer %s done, %s bytes sent\n", worker.name, worker_options->transfer,
                   cli_format_count(event.bytes, bytes));
    }
    worker_close(&worker);
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct worker_options worker_options;
    const char *cache_path = NULL;
    int id = 0, code = CLI_OK;
    worker_options_init(&worker_options);
    cli_parser_init(&parser, command, argc, argv);
    while (code == CLI_OK && (id = cli_parser_next(&parser)) >= 0) {
        if (id == OPT_CACHE)
            cache_path = parser.value;
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
        code = worker_check_options(command, &worker_options);
    if (code == CLI_OK && cache_path == NULL)
        code = cli_usage_error(command, "--cache is missing: the safetensors file to offer");
    if (code == CLI_OK) {
        worker_options.layout_path = argv[optind];
        code = prefill(command, &worker_options, cache_path);
    }
    worker_options_fini(&worker_options);
    return code;
}

const struct cli_command cli_prefill_command = {
    .name = "prefill",
    .summary = "offer a KV cache, as one rank of an instance",
    .operands = "LAYOUT.json",
    .about = "Loads this rank's shard of a KV cache into blocks as the layout says, announces itself in the\n"
             "directory, and offers the blocks until every rank of the decode instance has pulled its part.\n"
             "Start one for each rank of the layout.",
    .options = options,
    .examples = "  kvferry prefill P.json --instance p --rank 0,0,0 --cache kv.safetensors \\\n"
                "      --directory http://127.0.0.1:8700 --transfer t1\n"
                "  for tp in 0 1 2; do kvferry prefill P.json -i p -r 0,0,$tp -c kv.safetensors \\\n"
                "      -d http://127.0.0.1:8700 -t t1 & done",
    .run = run,
};
