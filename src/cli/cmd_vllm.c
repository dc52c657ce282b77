/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry vllm: the commands for people who know vLLM's MooncakeConnector. */
#include "cli/cmd_vllm.h"

static const struct cli_command *const commands[] = {
    &cli_vllm_plan_command,
    &cli_vllm_worker_command,
    &cli_vllm_info_command,
    NULL,
};

static const struct cli_option options[] = {{0, NULL, NULL, NULL}};

static int run(const struct cli_command *command, int argc, char **argv)
{
    return cli_run_below(command, commands, "plan, worker or info", argc, argv);
}

const struct cli_command cli_vllm_command = {
    .name = "vllm",
    .summary = "vLLM's MooncakeConnector: plan, one rank by hand, ask a live registry",
    .operands = "plan|worker|info ...",
    .about = "  plan    judge and plan a prefill and a decode engine, from what their workers registered\n"
             "  worker  one stand-alone rank that a live vLLM, or another of its kind, can talk to\n"
             "  info    ask a bootstrap registry who has registered\n"
             "\n"
             "'kvferry vllm COMMAND --help' tells more; docs/vllm.md has the whole.",
    .options = options,
    .examples = "  kvferry vllm info http://10.0.0.1:8998\n"
                "  kvferry vllm plan P.json D.json\n"
                "  kvferry vllm worker --role consumer SPEC.json",
    .run = run,
};
