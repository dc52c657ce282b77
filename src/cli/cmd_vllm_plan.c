/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry vllm plan: how vLLM's MooncakeConnector would judge, merge and send between two engines. */
#include <string.h>

#include "cli/cmd_vllm.h"
#include "cli/vllm_pairs.h"

enum option_id { OPT_BLOCKS = 'b', OPT_JSON = 'j' };

static const struct cli_option options[] = {
    {OPT_BLOCKS, "blocks", "N", "blocks of each group in the two requests that are made up\nwhere the files name none "
                                "(default 64)"},
    {OPT_JSON, "json", NULL, "everything as JSON"},
    {0, NULL, NULL, NULL},
};

/** Says on standard error which pair is refused. */
static int outcome(const struct cli_command *command, const struct vllm_pairs *pairs)
{
    const char *text = "";
    const struct vllm_pair_row *row = vllm_pairs_refused(pairs, &text);
    char from[64], to[64];
    if (row == NULL)
        return CLI_OK;
    cli_error(command, "producer %s -> consumer %s: %s",
              vllm_rank_name(&pairs->producers.ranks[row->producer], from, sizeof(from)),
              vllm_rank_name(&pairs->consumers.ranks[row->consumer], to, sizeof(to)), text);
    return CLI_INPUT;
}

static int plan(const struct cli_command *command, const struct vllm_plan_request *request, const char *producer,
                const char *consumer)
{
    struct vllm_side producers = {0}, consumers = {0};
    struct vllm_pairs pairs = {0};
    int code = vllm_side_read(command, producer, "producer", &producers);
    if (code == CLI_OK)
        code = vllm_side_read(command, consumer, "pull", &consumers);
    if (code == CLI_OK)
        code = vllm_pairs_init(command, request, &producers, &consumers, &pairs);
    if (code == CLI_OK) {
        if (request->json)
            code = vllm_pairs_print_json(command, &pairs, stdout);
        else
            vllm_pairs_print(&pairs, stdout);
    }
    if (code == CLI_OK)
        code = outcome(command, &pairs);
    vllm_pairs_fini(&pairs);
    vllm_side_fini(&consumers);
    vllm_side_fini(&producers);
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct vllm_plan_request request = {.blocks = 64};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (id == OPT_JSON)
            request.json = true;
        else if (!cli_value_int(&parser, 1, 1 << 24, &request.blocks))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (argc - optind == 1 && strcmp(argv[optind], "-") != 0)
        return plan(command, &request, argv[optind], argv[optind]);
    if (argc - optind != 2)
        return cli_usage_error(command, "takes a file with both sides, or two, producer and consumer; %d given",
                               argc - optind);
    if (cli_take_two_files(&parser, "files or folders, producer and consumer") != CLI_OK)
        return CLI_USAGE;
    return plan(command, &request, argv[optind], argv[optind + 1]);
}

const struct cli_command cli_vllm_plan_command = {
    .name = "vllm plan",
    .summary = "judge and plan a prefill and a decode engine",
    .operands = "PRODUCER [CONSUMER]",
    .about = "Shows what vLLM's MooncakeConnector would do between ranks of two engines: who asks whom, whether the\n"
             "pair can transfer or with which text it is refused and what to change, which regions meet and merge,\n"
             "what moves of each block, how many pulls free a transfer, and how many descriptors requests come to.\n"
             "Each operand is a file with what one worker registered, a list of such, {\"ranks\": [...]}, a SPEC or a\n"
             "stored case (its \"producer\" and \"pull\"), or a folder of such files; one file may have both sides.\n"
             "'-' reads standard input. docs/vllm.md tells how a live worker writes its file. A pair that is refused\n"
             "exits with 3.",
    .options = options,
    .examples = "  kvferry vllm plan P.json D.json\n"
                "  kvferry vllm plan P.json D.json --blocks 8192\n"
                "  kvferry vllm plan case.json --json | jq '.pairs[].requests'",
    .run = run,
};
