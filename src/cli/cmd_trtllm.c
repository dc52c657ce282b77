/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry trtllm: the commands for people who know TensorRT-LLM. */
#include "cli/cmd_trtllm.h"

static const struct cli_command *const commands[] = {
    &cli_trtllm_plan_command,
    &cli_trtllm_worker_command,
    &cli_trtllm_info_command,
    NULL,
};

static const struct cli_option options[] = {{0, NULL, NULL, NULL}};

static int run(const struct cli_command *command, int argc, char **argv)
{
    return cli_run_below(command, commands, "plan, worker or info", argc, argv);
}

const struct cli_command cli_trtllm_command = {
    .name = "trtllm",
    .summary = "TensorRT-LLM's native disaggregation: plan, one rank by hand, ask a live server",
    .operands = "plan|worker|info ...",
    .about = "  plan    judge and plan a context and a generation instance, from their rank infos\n"
             "  worker  one stand-alone rank that a live peer, or another of its kind, can talk to\n"
             "  info    ask a context server's info endpoint who it is\n"
             "\n"
             "'kvferry trtllm COMMAND --help' tells more; docs/trtllm.md has the whole.",
    .options = options,
    .examples = "  kvferry trtllm info tcp://10.0.0.1:5555 -o ctx.json\n"
                "  kvferry trtllm plan ctx.json gen.json\n"
                "  kvferry trtllm worker --role context SPEC.json",
    .run = run,
};
