/* SPDX-License-Identifier: Apache-2.0 */
/* The options that prefill and decode share. */
#include <stdlib.h>
#include <string.h>

#include "cli/worker.h"

#define SECOND INT64_C(1000000000)

void worker_options_init(struct worker_options *options)
{
    *options = (struct worker_options){
        .host = "127.0.0.1", .transports = "shm,tcp", .timeout_ns = 60 * SECOND, .streams = 2, .seed = 1};
}

void worker_options_fini(struct worker_options *options)
{
    free(options->ids);
}

static bool take_name(const struct cli_parser *parser, size_t limit, const char **out)
{
    size_t bytes = strlen(parser->value);
    if (bytes >= 1 && bytes < limit) {
        *out = parser->value;
        return true;
    }
    cli_usage_error(parser->command, "--%s must be 1 to %zu bytes long, not %zu", parser->name, limit - 1, bytes);
    return false;
}

bool worker_take_option(const struct cli_parser *parser, int id, struct worker_options *options)
{
    switch (id) {
    case OPT_INSTANCE: return take_name(parser, KVF_INSTANCE_NAME_BYTES, &options->instance);
    case OPT_TRANSFER: return take_name(parser, KVF_TRANSFER_ID_BYTES, &options->transfer);
    case OPT_DIRECTORY: options->directory = parser->value; return true;
    case OPT_LISTEN: options->directory_listen = parser->value; return true;
    case OPT_HOST: options->host = parser->value; return true;
    case OPT_TRANSPORTS: options->transports = parser->value; return true;
    case OPT_FAULT: options->fault_policy = parser->value; return true;
    case OPT_JSON: options->json = true; return true;
    case OPT_VERBOSE: options->verbose = true; return true;
    case OPT_CHECKSUM: options->checksum = true; return true;
    case OPT_RANK: return cli_value_rank(parser, &options->rank);
    case OPT_TIMEOUT: return cli_value_seconds(parser, &options->timeout_ns);
    case OPT_ATTEMPT: return cli_value_int(parser, 0, INT64_C(1) << 53, &options->attempt);
    case OPT_STREAMS: return cli_value_int(parser, 1, 16, &options->streams);
    case OPT_TOKENS: return cli_value_int(parser, 1, INT64_C(1) << 40, &options->tokens);
    case OPT_SEED: return cli_value_int(parser, 0, INT64_MAX, &options->seed);
    case OPT_IDS: return cli_value_ids(parser, &options->ids, &options->id_count);
    default: return false;
    }
}

int worker_check_options(const struct cli_command *command, const struct worker_options *options)
{
    if (options->instance == NULL)
        return cli_usage_error(command, "--instance is missing: the name of this instance");
    if (options->transfer == NULL)
        return cli_usage_error(command, "--transfer is missing: an id, the same on both sides");
    return CLI_OK;
}
