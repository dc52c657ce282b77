/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry trtllm plan: how TensorRT-LLM would judge, map and send between two instances, beside kvferry's own plan. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cmd_trtllm.h"
#include "cli/trtllm_pairs.h"

enum option_id { OPT_TOKENS = 't', OPT_BLOCKS = 'b', OPT_DP = 'd', OPT_NATIVE = 'n', OPT_JSON = 'j' };

#define BLOCKS_LIMIT ((size_t)64 << 20)

static const struct cli_option options[] = {
    {OPT_TOKENS, "tokens", "N", "tokens of the request (default 1024, or as many as both\nsides have room for)"},
    {OPT_BLOCKS, "blocks", "FILE",
     "block ids of the request: JSON with prompt, src_blocks and\ndst_blocks (one list per layer group), or with "
     "prompt and\nblocks by rank (\"ctx0\")"},
    {OPT_DP, "dp", "N", "the context's attention-DP group that has the cache\n(default 0, or that of a lone rank)"},
    {OPT_NATIVE, "native", NULL,
     "plan without upstream's limits too: what two kvferry ranks\ncan move, whatever upstream says"},
    {OPT_JSON, "json", NULL, "everything as JSON, boxes included"},
    {0, NULL, NULL, NULL},
};

static bool take_option(const struct cli_parser *parser, int id, struct trtllm_request *request)
{
    switch (id) {
    case OPT_TOKENS: return cli_value_int(parser, 1, INT64_C(1) << 40, &request->tokens);
    case OPT_DP: return cli_value_int(parser, 0, KVF_TRTLLM_MAX_RANKS, &request->dp);
    case OPT_BLOCKS: request->blocks_path = parser->value; return true;
    case OPT_NATIVE: request->native = true; return true;
    default: request->json = true; return true;
    }
}

static int read_blocks(const struct cli_command *command, struct trtllm_request *request)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t parse;
    if (request->blocks_path == NULL)
        return CLI_OK;
    int code = cli_read_file(command, request->blocks_path, BLOCKS_LIMIT, &text, &bytes);
    if (code != CLI_OK)
        return code;
    request->blocks = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &parse);
    free(text);
    const json_t *inner = json_object_get(request->blocks, "request");
    const json_t *prompt = json_object_get(inner != NULL ? inner : request->blocks, "prompt");
    if (request->blocks == NULL)
        cli_error(command, "%s: byte %d: %s", request->blocks_path, parse.position, parse.text);
    else if (!json_is_integer(prompt) || json_integer_value(prompt) < 1)
        cli_error(command, "%s: prompt must be a number of tokens, 1 or more", request->blocks_path);
    else if (request->tokens > 0 && request->tokens != json_integer_value(prompt))
        cli_error(command, "%s: is for %lld tokens, --tokens says %lld", request->blocks_path,
                  (long long)json_integer_value(prompt), (long long)request->tokens);
    else {
        request->tokens = json_integer_value(prompt);
        return CLI_OK;
    }
    return CLI_INPUT;
}

/** Says on standard error which pair nothing can be moved between. */
static int outcome(const struct cli_command *command, const struct trtllm_pairs *pairs)
{
    const struct trtllm_pair_row *row = trtllm_pairs_refused(pairs);
    char from[288], to[288];
    if (row == NULL)
        return CLI_OK;
    const struct trtllm_plan *plan = trtllm_pair_plan_shown(row);
    const char *text = plan != NULL                      ? plan->cost.text
                       : pairs->request->native          ? row->native.text
                       : row->verdict.reason[0] != '\0'  ? row->verdict.reason
                       : row->verdict.text[0] != '\0'    ? row->verdict.text
                                                         : row->upstream.text;
    cli_error(command, "%s -> %s: %s", trtllm_side_name(&pairs->src, row->src, from, sizeof(from)),
              trtllm_side_name(&pairs->dst, row->dst, to, sizeof(to)), text);
    return CLI_INPUT;
}

static int plan(const struct cli_command *command, struct trtllm_request *request, const char *src_path,
                const char *dst_path)
{
    struct trtllm_side src = {0}, dst = {0};
    struct trtllm_pairs pairs = {0};
    int code = read_blocks(command, request);
    if (code == CLI_OK)
        code = trtllm_side_read(command, src_path, "src", &src);
    if (code == CLI_OK)
        code = trtllm_side_read(command, dst_path, "dst", &dst);
    if (code == CLI_OK)
        code = trtllm_pairs_init(command, request, &src, &dst, &pairs);
    if (code == CLI_OK) {
        if (request->json)
            code = trtllm_pairs_print_json(command, &pairs, stdout);
        else
            trtllm_pairs_print(&pairs, stdout);
    }
    if (code == CLI_OK)
        code = outcome(command, &pairs);
    trtllm_pairs_fini(&pairs);
    trtllm_side_fini(&dst);
    trtllm_side_fini(&src);
    json_decref(request->blocks);
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct trtllm_request request = {.dp = -1};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &request))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (cli_take_two_files(&parser, "files or folders, context and generation") != CLI_OK)
        return CLI_USAGE;
    return plan(command, &request, argv[optind], argv[optind + 1]);
}

const struct cli_command cli_trtllm_plan_command = {
    .name = "trtllm plan",
    .summary = "judge and plan a context and a generation instance",
    .operands = "CONTEXT GENERATION",
    .about = "Shows what TensorRT-LLM's native disaggregation would do between ranks of two instances: who asks whom,\n"
             "the verdict with its text, which view goes to which and by which mapper, who sends what, how many\n"
             "descriptors it posts; beside them kvferry's own boxes and runs. Each operand is a file with one rank,\n"
             "a list of ranks, {\"ranks\": [...]} or a worker's SPEC (its \"src\" or \"dst\") in JSON, or one rank\n"
             "info in MessagePack as a live server makes it; or a folder of such files. '-' reads standard input.\n"
             "A pair that is refused exits with 3.",
    .options = options,
    .examples = "  kvferry trtllm plan ctx.json gen.json\n"
                "  kvferry trtllm plan ctx.msgpack gen.msgpack --tokens 8192\n"
                "  kvferry trtllm plan ctx.json gen.json --native --json | jq '.pairs[].native'",
    .run = run,
};
