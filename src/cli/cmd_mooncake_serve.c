/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry mooncake serve: an engine whose memory peers write and read. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cmd_mooncake.h"

enum option_id {
    OPT_BYTES = 'b',
    OPT_FILE = 'f',
    OPT_OUT = 'o',
    OPT_VERBOSE = 'v',
    OPT_HOST = 256,
    OPT_PUBLISH_HOST,
    OPT_RPC_PORT,
    OPT_DATA_PORT,
    OPT_BUFFERS,
    OPT_HIDE_BUFFERS
};

enum { POLL_MS = 50 };
#define MAX_BUFFERS 4096
#define MAX_BYTES ((int64_t)1 << 44)

static const struct cli_option options[] = {
    {OPT_BYTES, "bytes", "SIZE", "how much memory (default: the file's size, or 64 MiB)"},
    {OPT_FILE, "file", "FILE", "what the memory begins with"},
    {OPT_OUT, "out", "FILE", "write the memory there in the end"},
    {OPT_BUFFERS, "buffers", "N", "register it in so many parts (default 1)"},
    {OPT_HOST, "host", "ADDRESS", "the address to listen on (default 127.0.0.1)"},
    {OPT_PUBLISH_HOST, "publish-host", "HOST", "what peers are told to connect to (default: the address)"},
    {OPT_RPC_PORT, "rpc-port", "PORT", "of the handshake, which the segment is named by (default\na free one)"},
    {OPT_DATA_PORT, "data-port", "PORT", "of the data (default a free one); after a restart on the\nsame rpc "
                                         "port, take the same"},
    {OPT_HIDE_BUFFERS, "hide-buffers", NULL, "do not publish the addresses"},
    {OPT_VERBOSE, "verbose", NULL, "tell what happens on standard error"},
    {0, NULL, NULL, NULL},
};

struct serving {
    const char *file, *out;
    int64_t bytes, buffers;
    struct kvf_mooncake_options options;
    void *memory;
    kvf_mooncake *engine;
};

static int register_parts(const struct cli_command *command, struct serving *serving, json_t *list)
{
    struct kvf_mooncake_buffer parts[MAX_BUFFERS];
    struct kvf_error error = {.position = -1};
    int64_t step = serving->bytes / serving->buffers;
    for (int64_t i = 0; i < serving->buffers; i++) {
        int64_t end = i + 1 < serving->buffers ? step * (i + 1) : serving->bytes;
        parts[i].address = (uint64_t)(uintptr_t)serving->memory + (uint64_t)(step * i);
        parts[i].bytes = (uint64_t)(end - step * i);
        json_array_append_new(list, json_pack("{s:o,s:o}", "addr", mooncake_json(parts[i].address), "length",
                                              mooncake_json(parts[i].bytes)));
    }
    if (kvf_mooncake_register(serving->engine, parts, (size_t)serving->buffers, &error) != KVF_OK)
        return cli_library_error(command, NULL, &error);
    return CLI_OK;
}

static int start(const struct cli_command *command, struct serving *serving)
{
    struct kvf_error error = {.position = -1};
    json_t *buffers = NULL;
    serving->memory = mooncake_memory(command, serving->bytes);
    int code = serving->memory != NULL ? CLI_OK : CLI_FAILED;
    if (code == CLI_OK && serving->file != NULL)
        code = mooncake_load(command, serving->file, serving->memory, serving->bytes);
    if (code != CLI_OK)
        return code;
    if (kvf_mooncake_open(&serving->options, &serving->engine, &error) != KVF_OK)
        return cli_library_error(command, NULL, &error);
    buffers = json_array();
    code = register_parts(command, serving, buffers);
    if (code != CLI_OK) {
        json_decref(buffers);
        return code;
    }
    return mooncake_print_json(command, json_pack("{s:s,s:i,s:i,s:o}", "segment",
                                                  kvf_mooncake_segment_name(serving->engine), "rpc_port",
                                                  kvf_mooncake_rpc_port(serving->engine), "data_port",
                                                  kvf_mooncake_data_port(serving->engine), "buffers", buffers));
}

/** Prints what peers notify until a signal comes. */
static int wait_for_end(const struct cli_command *command, struct serving *serving, int signals)
{
    struct pollfd wait = {.fd = signals, .events = POLLIN};
    struct signalfd_siginfo info;
    struct kvf_mooncake_notification *one = NULL;
    int code = CLI_OK;
    while (code == CLI_OK) {
        if (poll(&wait, 1, POLL_MS) == 1 && read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
            break;
        while (code == CLI_OK && kvf_mooncake_take_notification(serving->engine, 0, &one, NULL) == KVF_OK) {
            code = mooncake_print_json(command,
                                       json_pack("{s:{s:s,s:s}}", "notify", "name", one->name, "text", one->message));
            kvf_mooncake_free_notification(one);
        }
    }
    return code;
}

static int serve(const struct cli_command *command, struct serving *serving)
{
    int code = CLI_FAILED, signals = cli_signal_fd();
    if (signals < 0) {
        cli_error(command, "cannot wait for signals");
        return CLI_FAILED;
    }
    code = start(command, serving);
    if (code == CLI_OK)
        code = wait_for_end(command, serving, signals);
    kvf_mooncake_close(serving->engine);
    if (code == CLI_OK && serving->out != NULL)
        code = cli_write_file(command, serving->out, serving->memory, (size_t)serving->bytes);
    if (serving->memory != NULL)
        munmap(serving->memory, (size_t)serving->bytes);
    close(signals);
    return code;
}

static bool take_port(const struct cli_parser *parser, int32_t *out)
{
    int64_t port = 0;
    if (!cli_value_int(parser, 0, 65535, &port))
        return false;
    *out = (int32_t)port;
    return true;
}

static bool take_option(const struct cli_parser *parser, int id, struct serving *serving)
{
    switch (id) {
    case OPT_BYTES: return cli_value_bytes(parser, 1, MAX_BYTES, &serving->bytes);
    case OPT_FILE: serving->file = parser->value; return true;
    case OPT_OUT: serving->out = parser->value; return true;
    case OPT_BUFFERS: return cli_value_int(parser, 1, MAX_BUFFERS, &serving->buffers);
    case OPT_HOST: serving->options.host = parser->value; return true;
    case OPT_PUBLISH_HOST: serving->options.publish_host = parser->value; return true;
    case OPT_RPC_PORT: return take_port(parser, &serving->options.rpc_port);
    case OPT_DATA_PORT: return take_port(parser, &serving->options.data_port);
    case OPT_HIDE_BUFFERS: serving->options.hide_buffers = 1; return true;
    default: serving->options.log.level = KVF_LOG_INFO; return true;
    }
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct serving serving = {.buffers = 1};
    int id = 0;
    kvf_mooncake_options_init(&serving.options, sizeof(serving.options));
    serving.options.log = (struct kvf_log_sink){.fd = STDERR_FILENO, .level = KVF_LOG_WARN};
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &serving))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (optind < argc)
        return cli_usage_error(command, "\"%s\" is too much: everything is given by options", argv[optind]);
    if (serving.bytes == 0 && serving.file != NULL) {
        serving.bytes = mooncake_file_bytes(serving.file);
        if (serving.bytes < 1) {
            cli_error(command, "%s: is not there, or empty", serving.file);
            return CLI_INPUT;
        }
    } else if (serving.bytes == 0) {
        serving.bytes = INT64_C(64) << 20;
    }
    if (serving.bytes < serving.buffers)
        return cli_usage_error(command, "%" PRId64 " bytes do not make %" PRId64 " buffers", serving.bytes,
                               serving.buffers);
    return serve(command, &serving);
}

const struct cli_command cli_mooncake_serve_command = {
    .name = "mooncake serve",
    .summary = "be an engine that peers write to and read from",
    .operands = "",
    .about = "Registers memory and serves it until SIGINT or SIGTERM. It prints one line of JSON with the segment's\n"
             "name, both ports and the buffers (addr, length), then one line for each notify that comes. With --out\n"
             "it writes the memory to a file in the end. Whoever reaches the data port can read and write the memory.",
    .options = options,
    .examples = "  kvferry mooncake serve --bytes 1GiB --out after.bin\n"
                "  kvferry mooncake serve --file cache.bin --host 192.0.2.7 --rpc-port 15321 --data-port 15322",
    .run = run,
};
