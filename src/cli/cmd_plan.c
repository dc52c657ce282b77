/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry plan: what moves between two instances, and what it will cost. */
#include <stdio.h>

#include "cli/plan_set.h"

enum option_id { OPT_RANK = 'r', OPT_TOKENS = 't', OPT_JSON = 'j', OPT_FRAGMENTS = 'f', OPT_DRAW = 'd' };

static const struct cli_option options[] = {
    {OPT_RANK, "rank", "PP,CP,TP", "only what this destination rank gets"},
    {OPT_TOKENS, "tokens", "N", "tokens of the request (default 1024, or as many as both\nsides have room for)"},
    {OPT_DRAW, "draw", NULL, "draw which layers, heads and tokens come from which rank"},
    {OPT_JSON, "json", NULL, "everything as JSON, boxes included"},
    {OPT_FRAGMENTS, "fragments", NULL,
     "every contiguous run, one a line: source memory and\noffset, destination memory and offset, bytes"},
    {0, NULL, NULL, NULL},
};

struct request {
    struct kvf_rank rank;
    bool has_rank;
    int64_t tokens;
    int face; /* 0 = text, else the option's id */
};

static bool take_option(const struct cli_parser *parser, int id, struct request *request)
{
    switch (id) {
    case OPT_RANK: request->has_rank = true; return cli_value_rank(parser, &request->rank);
    case OPT_TOKENS: return cli_value_int(parser, 1, INT64_C(1) << 40, &request->tokens);
    default:
        if (request->face != 0 && request->face != id) {
            cli_usage_error(parser->command, "--json, --fragments and --draw exclude each other");
            return false;
        }
        request->face = id;
        return true;
    }
}

static int show(const struct cli_command *command, const struct request *request, const struct plan_set *set)
{
    switch (request->face) {
    case OPT_JSON: return plan_print_json(command, set, stdout);
    case OPT_FRAGMENTS: return plan_print_fragments(command, set, stdout);
    case OPT_DRAW: plan_draw(set, stdout); return CLI_OK;
    default: plan_print_text(set, stdout); return CLI_OK;
    }
}

static int plan(const struct cli_command *command, const struct request *request, const char *src_path,
                const char *dst_path)
{
    kvf_instance *src = NULL, *dst = NULL;
    struct plan_set set = {0};
    struct kvf_error error = {.position = -1};
    size_t rank = 0;
    int code = cli_read_instance(command, src_path, &src);
    if (code == CLI_OK)
        code = cli_read_instance(command, dst_path, &dst);
    if (code == CLI_OK && request->has_rank &&
        kvf_instance_find(dst, request->rank.pp, request->rank.cp, request->rank.tp, &rank, &error) != KVF_OK) {
        cli_library_error(command, dst_path, &error);
        code = CLI_USAGE;
    }
    if (code == CLI_OK)
        code = plan_set_init(command, src, dst, request->has_rank ? (int64_t)rank : -1, request->tokens, &set);
    if (code == CLI_OK)
        code = show(command, request, &set);
    plan_set_fini(&set);
    kvf_instance_destroy(dst);
    kvf_instance_destroy(src);
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct request request = {0};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &request))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (cli_take_two_files(&parser, "layout files, source and destination") != CLI_OK)
        return CLI_USAGE;
    return plan(command, &request, argv[optind], argv[optind + 1]);
}

const struct cli_command cli_plan_command = {
    .name = "plan",
    .summary = "show what moves between two instances, and what it will cost",
    .operands = "SOURCE.json DESTINATION.json",
    .about = "Shows which source rank sends what to which destination rank: pieces (a pair of ranks), boxes\n"
             "(nested loops that describe a piece), runs (contiguous bytes), bytes. When the two cannot be\n"
             "joined it says why, naming the object and both values, and exits with 3. '-' reads a layout from\n"
             "standard input.",
    .options = options,
    .examples = "  kvferry plan P.json D.json\n"
                "  kvferry plan P.json D.json --rank 0,0,1 --tokens 353 --draw\n"
                "  kvferry plan P.json D.json --json | jq '.pairs[].fingerprint'",
    .run = run,
};
