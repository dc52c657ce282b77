/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry mooncake probe: what a live engine publishes, and whether data can flow. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_mooncake.h"

enum option_id { OPT_BUFFERS = 'b', OPT_JSON = 'j', OPT_TIMEOUT = 'T', OPT_NO_DATA = 256 };

#define SECOND INT64_C(1000000000)

static const struct cli_option options[] = {
    {OPT_BUFFERS, "buffers", "N", "show so many buffers (default 16)"},
    {OPT_JSON, "json", NULL, "one line of JSON"},
    {OPT_NO_DATA, "no-data", NULL, "do not try the data port"},
    {OPT_TIMEOUT, "timeout", "SECONDS", "for each step (default 10)"},
    {0, NULL, NULL, NULL},
};

struct probe {
    const char *name;
    int64_t timeout_ns, most;
    bool json, no_data;
    const char *alive, *data; /* what was found, in a sentence */
    struct kvf_mooncake_segment_info info;
    struct kvf_mooncake_buffer *buffers;
    size_t count;
    char problem[KVF_ERROR_TEXT_BYTES];
};

/** Asks for life and for the descriptor. Engines older than the question for life do without. */
static enum kvf_status ask(struct probe *probe, kvf_mooncake *engine, int64_t *segment, struct kvf_error *error)
{
    enum kvf_status status = kvf_mooncake_open_segment(engine, probe->name, probe->timeout_ns, segment, error);
    if (status != KVF_OK)
        return status;
    probe->info.struct_size = sizeof(probe->info);
    status = kvf_mooncake_get_segment_info(engine, *segment, &probe->info, error);
    if (status == KVF_OK)
        status = kvf_mooncake_get_segment_buffers(engine, *segment, 0, probe->buffers, (size_t)probe->most,
                                                  &probe->count, error);
    if (status != KVF_OK)
        return status;
    status = kvf_mooncake_probe(engine, probe->name, probe->timeout_ns, error);
    probe->alive = status == KVF_OK ? "answers" : "not known to it (releases before 0.3.10.post2)";
    return status == KVF_ERR_NOT_SUPPORTED ? KVF_OK : status;
}

/** Reads the first byte of the first buffer; with none published, asks for a byte that no engine registers. That it is
 *  refused is an answer, too. */
static enum kvf_status try_data(struct probe *probe, kvf_mooncake *engine, int64_t segment, struct kvf_error *error)
{
    static uint8_t byte;
    const struct kvf_mooncake_buffer here = {(uint64_t)(uintptr_t)&byte, 1};
    struct kvf_mooncake_range range = {here.address, 1, 1};
    if (probe->count > 0)
        range.remote = probe->buffers[0].address;
    enum kvf_status status = kvf_mooncake_register(engine, &here, 1, error);
    if (status == KVF_OK)
        status = kvf_mooncake_read(engine, segment, &range, 1, 0, probe->timeout_ns, NULL, error);
    if (status == KVF_OK)
        probe->data = "one byte was read";
    else if (status == KVF_ERR_REFUSED && probe->count == 0)
        probe->data = "the data port answers (no buffer is published to read from)";
    else if (status == KVF_ERR_REFUSED)
        probe->data = "the data port answers (its memory is not for everybody to read)";
    else if (status == KVF_ERR_PEER_LOST && probe->count == 0 && probe->info.version < 2)
        probe->data = "the data port takes connections (no buffer is published, and version 1 has no answers)";
    return probe->data != NULL ? KVF_OK : status;
}

static void print_text(const struct probe *probe)
{
    const struct kvf_mooncake_segment_info *info = &probe->info;
    printf("segment   %s%s%s%s\n", info->asked_name, strcmp(info->name, info->asked_name) != 0 ? " (calls itself " : "",
           strcmp(info->name, info->asked_name) != 0 ? info->name : "",
           strcmp(info->name, info->asked_name) != 0 ? ")" : "");
    printf("probe     %s\n", probe->alive);
    printf("protocol  %s, data protocol version %d\n", info->protocol, info->version);
    if (info->is_tcp)
        printf("data      port %d%s%s%s\n", info->data_port, info->data_port_published ? "" : " (not published)",
               info->data_host[0] != '\0' ? " of " : "", info->data_host);
    if (info->timestamp[0] != '\0')
        printf("time      %s\n", info->timestamp);
    printf("buffers   %" PRId64 "\n", info->buffer_count);
    for (size_t i = 0; i < probe->count; i++) {
        char text[24];
        printf("          0x%012" PRIx64 "  %" PRIu64 " bytes (%s)\n", probe->buffers[i].address,
               probe->buffers[i].bytes, cli_format_bytes((int64_t)probe->buffers[i].bytes, text));
    }
    if ((int64_t)probe->count < info->buffer_count)
        printf("          and %" PRId64 " more\n", info->buffer_count - (int64_t)probe->count);
    if (probe->data != NULL)
        printf("check     %s\n", probe->data);
}

static int print_json(const struct cli_command *command, const struct probe *probe)
{
    const struct kvf_mooncake_segment_info *info = &probe->info;
    json_t *buffers = json_array();
    for (size_t i = 0; i < probe->count; i++)
        json_array_append_new(buffers, json_pack("{s:o,s:o}", "addr", mooncake_json(probe->buffers[i].address),
                                                 "length", mooncake_json(probe->buffers[i].bytes)));
    json_t *root = json_pack("{s:s,s:s,s:s,s:b,s:i,s:s,s:i,s:b,s:s,s:I,s:o,s:s}", "asked", info->asked_name, "name",
                             info->name, "protocol", info->protocol, "tcp", info->is_tcp, "version", info->version,
                             "data_host", info->data_host, "data_port", info->data_port, "data_port_published",
                             info->data_port_published, "timestamp", info->timestamp, "buffer_count",
                             (json_int_t)info->buffer_count, "buffers", buffers, "probe", probe->alive);
    if (probe->data != NULL || probe->problem[0] != '\0') {
        json_object_set_new(root, "data_ok", json_boolean(probe->data != NULL));
        json_object_set_new(root, "data", json_string(probe->data != NULL ? probe->data : probe->problem));
    }
    return mooncake_print_json(command, root);
}

static int look(const struct cli_command *command, struct probe *probe)
{
    struct kvf_mooncake_options engine_options;
    struct kvf_error error = {.position = -1};
    kvf_mooncake *engine = NULL;
    int64_t segment = 0;
    int code = CLI_FAILED;
    kvf_mooncake_options_init(&engine_options, sizeof(engine_options));
    engine_options.initiator_only = 1;
    engine_options.progress_timeout_ns = probe->timeout_ns;
    probe->buffers = calloc((size_t)probe->most + 1, sizeof(*probe->buffers));
    if (probe->buffers == NULL) {
        cli_error(command, "no memory for %" PRId64 " buffers", probe->most);
        goto done;
    }
    if (kvf_mooncake_open(&engine_options, &engine, &error) != KVF_OK ||
        ask(probe, engine, &segment, &error) != KVF_OK) {
        code = cli_library_error(command, NULL, &error);
        goto done;
    }
    code = CLI_OK;
    if (!probe->no_data && try_data(probe, engine, segment, &error) != KVF_OK) {
        snprintf(probe->problem, sizeof(probe->problem), "%s", error.text);
        code = CLI_PEER;
    }
    if (probe->json) {
        int printed = print_json(command, probe);
        code = printed != CLI_OK ? printed : code;
    } else {
        print_text(probe);
    }
    if (probe->problem[0] != '\0')
        cli_error(command, "data cannot flow: %s", probe->problem);
done:
    kvf_mooncake_close(engine);
    free(probe->buffers);
    return code;
}

static bool take_option(const struct cli_parser *parser, int id, struct probe *probe)
{
    switch (id) {
    case OPT_BUFFERS: return cli_value_int(parser, 1, 1000000, &probe->most);
    case OPT_JSON: probe->json = true; return true;
    case OPT_NO_DATA: probe->no_data = true; return true;
    default: return cli_value_seconds(parser, &probe->timeout_ns);
    }
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct probe probe = {.timeout_ns = 10 * SECOND, .most = 16};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &probe))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (argc - optind != 1)
        return cli_usage_error(command, "takes one segment name, HOST:PORT; %d given", argc - optind);
    probe.name = argv[optind];
    return look(command, &probe);
}

const struct cli_command cli_mooncake_probe_command = {
    .name = "mooncake probe",
    .summary = "show what a live engine publishes",
    .operands = "HOST:PORT",
    .about = "Asks the engine whose handshake port is named for its descriptor, and whether it is alive; shows\n"
             "protocol, version and buffers; then reads one byte of its first buffer, to see that data can flow. It\n"
             "fails with 4 where data cannot, as with an engine that has another protocol than TCP.",
    .options = options,
    .examples = "  kvferry mooncake probe 127.0.0.1:15321\n"
                "  kvferry mooncake probe [::1]:15321 --json --no-data",
    .run = run,
};
