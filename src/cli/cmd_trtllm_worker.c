/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry trtllm worker: one stand-alone rank. */
#include "cli/cmd_trtllm.h"
#include "cli/trtllm_serve.h"

enum option_id {
    OPT_ROLE = 'r',
    OPT_RANK = 'k',
    OPT_MEET = 'm',
    OPT_NATIVE = 'n',
    OPT_TIMEOUT = 'T',
    OPT_VERBOSE = 'v'
};

#define SECOND INT64_C(1000000000)

static const struct cli_option options[] = {
    {OPT_ROLE, "role", "WHICH", "context (sends) or generation (receives) (required)"},
    {OPT_RANK, "rank", "N", "which rank of the SPEC's list (default: its only one)"},
    {OPT_MEET, "meet", "FOLDER", "where the ranks of an instance find each other, and the\nother instance"},
    {OPT_NATIVE, "native", NULL, "without upstream's limits, where the peer is kvferry's too\n(both sides need it)"},
    {OPT_TIMEOUT, "timeout", "SECONDS", "for a request, for the ranks to meet, and for memory to\nsettle (default 60)"},
    {OPT_VERBOSE, "verbose", NULL, "tell what happens on standard error"},
    {0, NULL, NULL, NULL},
};

static bool take_option(const struct cli_parser *parser, int id, struct trtllm_serve_options *out)
{
    static const char *const roles[] = {"context", "generation", NULL};
    switch (id) {
    case OPT_ROLE: out->has_role = true; return cli_value_word(parser, roles, &out->role);
    case OPT_RANK: return cli_value_int(parser, 0, KVF_TRTLLM_MAX_RANKS, &out->rank);
    case OPT_MEET: out->meet = parser->value; return true;
    case OPT_NATIVE: out->native = true; return true;
    case OPT_TIMEOUT: return cli_value_seconds(parser, &out->timeout_ns);
    default: out->verbose = true; return true;
    }
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct trtllm_serve_options serve = {.rank = -1, .timeout_ns = 60 * SECOND};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &serve))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    int code = cli_take_spec(&parser, !serve.has_role ? "context or generation" : NULL, &serve.spec_path);
    if (code != CLI_OK)
        return code;
    return trtllm_serve_run(command, &serve);
}

const struct cli_command cli_trtllm_worker_command = {
    .name = "trtllm worker",
    .summary = "one stand-alone rank",
    .operands = "SPEC.json",
    .about = "Is one rank of a context or generation instance, as TensorRT-LLM's own would be: allocates the pools of\n"
             "the rank in the SPEC (\"src\" for a context, \"dst\" for a generation rank), fills them with a pattern\n"
             "or a file, sends or receives the requests of the SPEC or of standard input, tells events as lines of\n"
             "JSON, and writes the memory to a file in the end. docs/trtllm.md has the SPEC, the lines, the events\n"
             "and the pattern. Bytes move by cross-process writes, between processes of one user on one host.",
    .options = options,
    .examples = "  kvferry trtllm worker --role context SPEC.json\n"
                "  kvferry trtllm worker --role generation SPEC.json --rank 1 --meet /tmp/meet\n"
                "  echo '{\"rid\": 7, \"prompt\": 64, \"blocks\": [[0, 1, 2, 3]], \"info\": \"tcp://127.0.0.1:7000\"}' "
                "|\n"
                "      kvferry trtllm worker --role generation D.json",
    .run = run,
};
