/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry trtllm: the commands for people who know TensorRT-LLM. */
#include <stdio.h>
#include <string.h>

#include "cli/cmd_trtllm.h"

static const struct cli_command *const commands[] = {
    &cli_trtllm_plan_command,
    &cli_trtllm_worker_command,
    &cli_trtllm_info_command,
};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static const struct cli_option options[] = {{0, NULL, NULL, NULL}};

static int unknown(const struct cli_command *command, const char *name)
{
    const char *names[COMMAND_COUNT], *word = NULL;
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = strchr(commands[i]->name, ' ') + 1;
    word = cli_suggest(name, names, COMMAND_COUNT);
    if (word != NULL)
        return cli_usage_error(command, "no command \"%s\"; did you mean \"%s\"?", name, word);
    return cli_usage_error(command, "no command \"%s\"", name);
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    if (argc < 2)
        return cli_usage_error(command, "a command is missing: plan, worker or info");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        cli_help(command);
        return CLI_OK;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(strchr(commands[i]->name, ' ') + 1, argv[1]) == 0)
            return commands[i]->run(commands[i], argc - 1, argv + 1);
    }
    if (argv[1][0] == '-')
        return cli_usage_error(command, "no option %s here; the command comes first", argv[1]);
    return unknown(command, argv[1]);
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
