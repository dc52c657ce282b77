/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry mooncake write, read: ranges between a file here and an engine's memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/cmd_mooncake.h"

enum option_id {
    OPT_ADDRESS = 'a',
    OPT_BYTES = 'b',
    OPT_FILE = 'f',
    OPT_JSON = 'j',
    OPT_RANGES = 'r',
    OPT_TIMEOUT = 'T',
    OPT_DATA_VERSION = 256,
    OPT_LANES,
    OPT_NOTIFY
};

#define SECOND INT64_C(1000000000)
#define MAX_BYTES ((int64_t)1 << 44)
#define RANGES_FILE_LIMIT ((size_t)256 << 20)

static const struct cli_option options[] = {
    {OPT_FILE, "file", "FILE", "local memory: what is written, or where what was read goes\n(required)"},
    {OPT_RANGES, "ranges", "FILE",
     "JSON: a list of [OFFSET in the file, ADDRESS there, BYTES];\nwithout it one range from offset 0"},
    {OPT_ADDRESS, "address", "ADDRESS", "of the one range (default: the peer's first buffer)"},
    {OPT_BYTES, "bytes", "SIZE", "of the one range (default: the file, or the first buffer)"},
    {OPT_NOTIFY, "notify", "TEXT", "tell the peer so when all has arrived"},
    {OPT_DATA_VERSION, "data-version", "N", "2 (default, where the peer has it) or 1"},
    {OPT_LANES, "lanes", "N", "connections (default 2)"},
    {OPT_TIMEOUT, "timeout", "SECONDS", "give up after so long (default 60)"},
    {OPT_JSON, "json", NULL, "print the result as one line of JSON"},
    {0, NULL, NULL, NULL},
};

struct job {
    bool is_write, json;
    const char *segment, *file, *ranges_path, *address, *notify;
    int64_t bytes, timeout_ns, memory_bytes;
    struct kvf_mooncake_options options;
    kvf_mooncake *engine;
    int64_t number; /* of the segment */
    struct kvf_mooncake_range *ranges; /* `local` is an offset until the memory is there */
    size_t count;
    uint8_t *memory, *outcomes;
    enum kvf_status status;
    int64_t took_ns;
};

static int bad_ranges(const struct cli_command *command, const struct job *job, size_t at, const char *what)
{
    cli_error(command, "%s: range %zu: %s", job->ranges_path, at, what);
    return CLI_INPUT;
}

static int take_ranges(const struct cli_command *command, struct job *job, const json_t *root)
{
    if (!json_is_array(root) || json_array_size(root) == 0) {
        cli_error(command, "%s: expected a list of [OFFSET, ADDRESS, BYTES]", job->ranges_path);
        return CLI_INPUT;
    }
    job->count = json_array_size(root);
    job->ranges = calloc(job->count, sizeof(*job->ranges));
    if (job->ranges == NULL) {
        cli_error(command, "no memory for %zu ranges", job->count);
        return CLI_FAILED;
    }
    for (size_t i = 0; i < job->count; i++) {
        const json_t *row = json_array_get(root, i);
        struct kvf_mooncake_range *range = &job->ranges[i];
        if (json_array_size(row) != 3 || !mooncake_json_number(json_array_get(row, 0), &range->local) ||
            !mooncake_json_number(json_array_get(row, 1), &range->remote) ||
            !mooncake_json_number(json_array_get(row, 2), &range->bytes))
            return bad_ranges(command, job, i, "expected three numbers, or texts with 0x: OFFSET, ADDRESS, BYTES");
        if (range->local > (uint64_t)MAX_BYTES || range->bytes > (uint64_t)MAX_BYTES - range->local)
            return bad_ranges(command, job, i, "offset and bytes are past 16 TiB");
    }
    return CLI_OK;
}

static int read_ranges(const struct cli_command *command, struct job *job)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t wrong;
    json_t *root = NULL;
    int code = cli_read_file(command, job->ranges_path, RANGES_FILE_LIMIT, &text, &bytes);
    if (code != CLI_OK)
        return code;
    root = json_loadb(text, bytes, 0, &wrong);
    if (root == NULL) {
        cli_error(command, "%s: line %d: %s", job->ranges_path, wrong.line, wrong.text);
        code = CLI_INPUT;
    } else {
        code = take_ranges(command, job, root);
    }
    json_decref(root);
    free(text);
    return code;
}

/** The one range of a call without a list, filled up by what the peer publishes. */
static int one_range(const struct cli_command *command, struct job *job)
{
    struct kvf_error error = {.position = -1};
    struct kvf_mooncake_buffer first = {0, 0};
    size_t found = 0;
    job->ranges = calloc(1, sizeof(*job->ranges));
    if (job->ranges == NULL)
        return CLI_FAILED;
    job->count = 1;
    if (kvf_mooncake_get_segment_buffers(job->engine, job->number, 0, &first, 1, &found, &error) != KVF_OK)
        return cli_library_error(command, NULL, &error);
    if (job->address == NULL && found == 0) {
        cli_error(command, "%s publishes no buffer: say --address or --ranges", job->segment);
        return CLI_PEER;
    }
    if (job->address == NULL)
        job->ranges[0].remote = first.address;
    else
        mooncake_number(job->address, &job->ranges[0].remote);
    int64_t bytes = job->bytes;
    if (bytes == 0)
        bytes = job->is_write ? mooncake_file_bytes(job->file) : (int64_t)first.bytes;
    if (bytes < 1 || bytes > MAX_BYTES) {
        cli_error(command, "%s: nothing to move: %s", job->is_write ? job->file : job->segment,
                  job->is_write ? "the file is not there, or empty" : "say how much with --bytes");
        return CLI_INPUT;
    }
    job->ranges[0].bytes = (uint64_t)bytes;
    return CLI_OK;
}

/** Memory for all ranges, with the file's bytes in it. */
static int make_memory(const struct cli_command *command, struct job *job)
{
    struct kvf_error error = {.position = -1};
    int64_t file_bytes = mooncake_file_bytes(job->file), used = 1;
    for (size_t i = 0; i < job->count; i++) {
        int64_t end = (int64_t)(job->ranges[i].local + job->ranges[i].bytes);
        used = end > used ? end : used;
    }
    if (job->is_write && used > file_bytes && file_bytes >= 0) {
        cli_error(command, "%s: has %" PRId64 " bytes, the ranges take %" PRId64, job->file, file_bytes, used);
        return CLI_INPUT;
    }
    job->memory_bytes = !job->is_write && file_bytes > used ? file_bytes : used;
    job->memory = mooncake_memory(command, job->memory_bytes);
    job->outcomes = calloc(job->count, 1);
    if (job->memory == NULL || job->outcomes == NULL)
        return CLI_FAILED;
    if (job->is_write || file_bytes > 0) {
        int code = mooncake_load(command, job->file, job->memory, job->memory_bytes);
        if (code != CLI_OK)
            return code;
    }
    for (size_t i = 0; i < job->count; i++)
        job->ranges[i].local += (uint64_t)(uintptr_t)job->memory;
    const struct kvf_mooncake_buffer all = {(uint64_t)(uintptr_t)job->memory, (uint64_t)job->memory_bytes};
    if (kvf_mooncake_register(job->engine, &all, 1, &error) != KVF_OK)
        return cli_library_error(command, NULL, &error);
    return CLI_OK;
}

static int report(const struct cli_command *command, const struct job *job, const char *problem)
{
    int64_t ended[3] = {0, 0, 0}, bytes = 0;
    char size[24], took[24];
    for (size_t i = 0; i < job->count; i++) {
        ended[job->outcomes[i] < 3 ? job->outcomes[i] : 0]++;
        bytes += job->outcomes[i] == KVF_MOONCAKE_DONE ? (int64_t)job->ranges[i].bytes : 0;
    }
    if (job->json)
        return mooncake_print_json(
            command, json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:f,s:s}", "do", job->is_write ? "write" : "read",
                               "segment", job->segment, "status", kvf_status_name(job->status), "done",
                               (json_int_t)ended[KVF_MOONCAKE_DONE], "failed",
                               (json_int_t)ended[KVF_MOONCAKE_FAILED], "in_doubt",
                               (json_int_t)ended[KVF_MOONCAKE_IN_DOUBT], "bytes", (json_int_t)bytes, "seconds",
                               (double)job->took_ns / 1e9, "error", problem));
    if (job->status == KVF_OK)
        printf("%s %zu %s, %s, in %s\n", job->is_write ? "wrote" : "read", job->count,
               job->count == 1 ? "range" : "ranges", cli_format_bytes(bytes, size),
               cli_format_ns((double)job->took_ns, took));
    return CLI_OK;
}

static int transfer(const struct cli_command *command, struct job *job)
{
    struct kvf_error error = {.position = -1};
    int64_t begin = cli_now_ns();
    job->status = (job->is_write ? kvf_mooncake_write : kvf_mooncake_read)(
        job->engine, job->number, job->ranges, job->count, 0, job->timeout_ns, job->outcomes, &error);
    job->took_ns = cli_now_ns() - begin;
    int code = CLI_OK;
    if (job->status == KVF_OK && job->notify != NULL)
        job->status = kvf_mooncake_notify(job->engine, job->number, "kvferry", job->notify, job->timeout_ns, &error);
    if (job->status != KVF_OK)
        code = cli_library_error(command, NULL, &error);
    else if (!job->is_write)
        code = cli_write_file(command, job->file, (const char *)job->memory, (size_t)job->memory_bytes);
    int printed = report(command, job, job->status != KVF_OK ? error.text : "");
    return code != CLI_OK ? code : printed;
}

static int move(const struct cli_command *command, struct job *job)
{
    struct kvf_error error = {.position = -1};
    int code = CLI_OK;
    if (job->ranges_path != NULL)
        code = read_ranges(command, job);
    if (code != CLI_OK)
        goto done;
    if (kvf_mooncake_open(&job->options, &job->engine, &error) != KVF_OK ||
        kvf_mooncake_open_segment(job->engine, job->segment, job->timeout_ns, &job->number, &error) != KVF_OK) {
        code = cli_library_error(command, NULL, &error);
        goto done;
    }
    if (job->ranges_path == NULL)
        code = one_range(command, job);
    if (code == CLI_OK)
        code = make_memory(command, job);
    if (code == CLI_OK)
        code = transfer(command, job);
done:
    kvf_mooncake_close(job->engine);
    if (job->memory != NULL)
        munmap(job->memory, (size_t)job->memory_bytes);
    free(job->outcomes);
    free(job->ranges);
    return code;
}

static bool take_option(const struct cli_parser *parser, int id, struct job *job)
{
    int64_t number = 0;
    uint64_t address = 0;
    switch (id) {
    case OPT_FILE: job->file = parser->value; return true;
    case OPT_RANGES: job->ranges_path = parser->value; return true;
    case OPT_ADDRESS:
        job->address = parser->value;
        if (mooncake_number(job->address, &address))
            return true;
        cli_usage_error(parser->command, "--address must be a number, or one with 0x, not \"%s\"", parser->value);
        return false;
    case OPT_BYTES: return cli_value_bytes(parser, 1, MAX_BYTES, &job->bytes);
    case OPT_NOTIFY: job->notify = parser->value; return true;
    case OPT_DATA_VERSION:
        if (!cli_value_int(parser, 1, 2, &number))
            return false;
        job->options.max_version = (int32_t)number;
        return true;
    case OPT_LANES:
        if (!cli_value_int(parser, 1, 16, &number))
            return false;
        job->options.lanes = (int32_t)number;
        return true;
    case OPT_TIMEOUT: return cli_value_seconds(parser, &job->timeout_ns);
    default: job->json = true; return true;
    }
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct job job = {.is_write = command == &cli_mooncake_write_command, .timeout_ns = 60 * SECOND};
    int id = 0;
    kvf_mooncake_options_init(&job.options, sizeof(job.options));
    job.options.initiator_only = 1;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &job))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (argc - optind != 1)
        return cli_usage_error(command, "takes one segment name, HOST:PORT; %d given", argc - optind);
    if (job.file == NULL)
        return cli_usage_error(command, "--file is missing");
    if (job.ranges_path != NULL && (job.address != NULL || job.bytes != 0))
        return cli_usage_error(command, "--ranges says all: no --address and no --bytes beside it");
    job.segment = argv[optind];
    return move(command, &job);
}

const struct cli_command cli_mooncake_write_command = {
    .name = "mooncake write",
    .summary = "write ranges to an engine's memory",
    .operands = "SEGMENT",
    .about = "Writes ranges of a file to the memory of the engine whose segment is named (HOST:PORT of its\n"
             "handshake), and ends when the engine has them. What cannot be written is told in numbers of ranges:\n"
             "done, failed, in doubt. Addresses are absolute, as 'kvferry mooncake probe' shows them.",
    .options = options,
    .examples = "  kvferry mooncake write 127.0.0.1:15321 --file cache.bin\n"
                "  echo '[[0, \"0x7f1200000000\", 4096], [4096, 139712130002944, 100]]' |\n"
                "      kvferry mooncake write 127.0.0.1:15321 --file cache.bin --ranges -",
    .run = run,
};

const struct cli_command cli_mooncake_read_command = {
    .name = "mooncake read",
    .summary = "read ranges from an engine's memory",
    .operands = "SEGMENT",
    .about = "Reads ranges of the memory of the engine whose segment is named (HOST:PORT of its handshake) into a\n"
             "file. What the file has beside the ranges stays; it is written when all ranges have come, and left\n"
             "alone otherwise. Addresses are absolute, as the engine publishes them ('kvferry mooncake probe').",
    .options = options,
    .examples = "  kvferry mooncake read 127.0.0.1:15321 --file got.bin\n"
                "  kvferry mooncake read 127.0.0.1:15321 --file got.bin --address 0x7f1200000000 --bytes 4MiB",
    .run = run,
};
