/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry vllm info: who has registered at a bootstrap registry. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_vllm.h"
#include "cli/vllm_query.h"

#define SECOND INT64_C(1000000000)

enum option_id { OPT_JSON = 'j', OPT_TIMEOUT = 'T' };

static const struct cli_option options[] = {
    {OPT_JSON, "json", NULL, "the registry's answer as it came"},
    {OPT_TIMEOUT, "timeout", "SECONDS", "wait so long for the answer (default 10)"},
    {0, NULL, NULL, NULL},
};

static void print_engine(const char *dp_rank, json_t *entry)
{
    json_t *ranks = json_object_get(entry, "worker_addr"), *stages, *address;
    const char *id = json_string_value(json_object_get(entry, "engine_id")), *tp, *pp;
    printf("engine %s: data-parallel rank %s, %zu TP rank%s, %zu worker%s\n", id != NULL ? id : "?", dp_rank,
           json_object_size(ranks), json_object_size(ranks) == 1 ? "" : "s", vllm_query_workers(entry),
           vllm_query_workers(entry) == 1 ? "" : "s");
    json_object_foreach(ranks, tp, stages)
    {
        json_object_foreach(stages, pp, address)
        {
            const char *text = json_string_value(address);
            printf("  TP %s, PP %s  %s\n", tp, pp, text != NULL ? text : "?");
        }
    }
}

static int ask(const struct cli_command *command, const char *url, int64_t timeout_ns, bool as_json)
{
    char error[KVF_ERROR_TEXT_BYTES] = "";
    const char *dp_rank;
    json_t *entry, *answer = vllm_query(url, timeout_ns, error);
    if (answer == NULL) {
        cli_error(command, "%s %s", url, error);
        return CLI_PEER;
    }
    char *text = as_json ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (text != NULL)
        printf("%s\n", text);
    else if (json_object_size(answer) == 0)
        printf("no engine has registered\n");
    else
        json_object_foreach(answer, dp_rank, entry) print_engine(dp_rank, entry);
    free(text);
    json_decref(answer);
    return cli_finish_output(command, CLI_OK);
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    int64_t timeout_ns = 10 * SECOND;
    bool as_json = false;
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (id == OPT_JSON)
            as_json = true;
        else if (!cli_value_seconds(&parser, &timeout_ns))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (argc - optind != 1)
        return cli_usage_error(command, "takes one registry, http://HOST:PORT; %d given", argc - optind);
    if (!vllm_query_takes(argv[optind]))
        return cli_usage_error(command, "%s is no http://HOST:PORT", argv[optind]);
    return ask(command, argv[optind], timeout_ns, as_json);
}

const struct cli_command cli_vllm_info_command = {
    .name = "vllm info",
    .summary = "ask a bootstrap registry who has registered",
    .operands = "http://HOST:PORT",
    .about = "Asks a bootstrap registry, vLLM's own or kvferry's, for its engines: the id that requests must name,\n"
             "and where each worker's side channel is. vLLM's registry runs in rank 0 of the prefill engine, on\n"
             "port 8998 unless VLLM_MOONCAKE_BOOTSTRAP_PORT says else. Exits with 4 where nobody answers.",
    .options = options,
    .examples = "  kvferry vllm info http://10.0.0.1:8998\n"
                "  kvferry vllm info http://10.0.0.1:8998 --json | jq -r '.\"0\".engine_id'",
    .run = run,
};
