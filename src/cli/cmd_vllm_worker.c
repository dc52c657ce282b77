/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry vllm worker: one stand-alone rank. */
#include "cli/cmd_vllm.h"
#include "cli/vllm_serve.h"

enum option_id { OPT_ROLE = 'r', OPT_RANK = 'k', OPT_TIMEOUT = 'T', OPT_VERBOSE = 'v' };

static const struct cli_option options[] = {
    {OPT_ROLE, "role", "WHICH", "producer (prefills, sends) or consumer (decodes, fetches)\n(required)"},
    {OPT_RANK, "rank", "N", "which rank of the SPEC's list, from 0 on (default: its only\none)"},
    {OPT_TIMEOUT, "timeout", "SECONDS", "end after so long whatever is unfinished (default: never)"},
    {OPT_VERBOSE, "verbose", NULL, "tell what happens on standard error"},
    {0, NULL, NULL, NULL},
};

static bool take_option(const struct cli_parser *parser, int id, struct vllm_serve_options *out)
{
    static const char *const roles[] = {"producer", "consumer", NULL};
    int role = 0;
    switch (id) {
    case OPT_ROLE:
        if (!cli_value_word(parser, roles, &role))
            return false;
        out->role = role == 0 ? KVF_VLLM_PRODUCER : KVF_VLLM_CONSUMER;
        return true;
    case OPT_RANK: return cli_value_int(parser, 0, 1 << 20, &out->rank);
    case OPT_TIMEOUT: return cli_value_seconds(parser, &out->timeout_ns);
    default: out->verbose = true; return true;
    }
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct vllm_serve_options serve = {.rank = -1};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &serve))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    int code = cli_take_spec(&parser, serve.role == 0 ? "producer or consumer" : NULL, &serve.spec_path);
    if (code != CLI_OK)
        return code;
    return vllm_serve_run(command, &serve);
}

const struct cli_command cli_vllm_worker_command = {
    .name = "vllm worker",
    .summary = "one stand-alone rank",
    .operands = "SPEC.json",
    .about = "Is one rank of a prefill engine (a producer) or of a decode engine (a consumer), as vLLM's own with its\n"
             "MooncakeConnector would be, beside a stock vLLM or another of its kind: allocates the memory of the\n"
             "SPEC's regions, fills it with a file or a pattern, registers, sends or fetches the requests of the SPEC\n"
             "or of standard input, tells what happens as lines of JSON, and writes the memory to a file in the end.\n"
             "docs/vllm.md has the SPEC, the lines, the events and the pattern. Nothing is authenticated: whoever\n"
             "reaches a consumer writes into its memory.",
    .options = options,
    .examples = "  kvferry vllm worker --role producer examples/vllm/producer.json\n"
                "  kvferry vllm worker --role consumer examples/vllm/consumer.json\n"
                "  echo '{\"d_req_id\": \"d1\", \"transfer_id\": \"xfer-1\", \"block_ids\": [[4, 5]]}' |\n"
                "      kvferry vllm worker --role consumer SPEC.json",
    .run = run,
};
