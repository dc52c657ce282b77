/* SPDX-License-Identifier: Apache-2.0 */
/* The kvferry command: a table of subcommands, each in a file of its own. */
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static const struct cli_command *const commands[] = {
    &cli_demo_command,    &cli_layout_command, &cli_plan_command,   &cli_directory_command,
    &cli_prefill_command, &cli_decode_command, &cli_trtllm_command, &cli_vllm_command, &cli_mooncake_command,
    &cli_demo_worker_command,
};
static const size_t command_count = sizeof(commands) / sizeof(commands[0]);

static void print_overview(void)
{
    puts("usage: kvferry COMMAND [OPTION]...\n"
         "\n"
         "Moves the KV cache of an LLM request from the workers that computed it to workers of another shape.\n"
         "\n"
         "commands:");
    for (size_t i = 0; i < command_count; i++) {
        if (!commands[i]->hidden)
            printf("  %-11s%s\n", commands[i]->name, commands[i]->summary);
    }
    puts("\n"
         "'kvferry COMMAND --help' tells more and gives examples; 'man kvferry' has it all.\n"
         "\n"
         "exit codes:\n"
         "  0  success\n"
         "  1  the job failed, or bytes were wrong\n"
         "  2  the command line is wrong\n"
         "  3  an input cannot be used (a file, a layout, two layouts that cannot be joined)\n"
         "  4  a peer or the directory was not reached, went away, or took too long");
}

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < command_count; i++) {
        if (strcmp(name, commands[i]->name) == 0)
            return commands[i];
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[sizeof(commands) / sizeof(commands[0])];
    size_t count = 0;
    if (name[0] == '-') {
        fprintf(stderr, "kvferry: no option %s here; 'kvferry --help' lists the commands, which come first\n", name);
        return CLI_USAGE;
    }
    for (size_t i = 0; i < command_count; i++) {
        if (!commands[i]->hidden)
            names[count++] = commands[i]->name;
    }
    const char *near = cli_suggest(name, names, count);
    if (near != NULL)
        fprintf(stderr, "kvferry: no command \"%s\"; did you mean \"%s\"?\n", name, near);
    else
        fprintf(stderr, "kvferry: no command \"%s\"; 'kvferry --help' lists them\n", name);
    return CLI_USAGE;
}

static int help_command(int argc, char **argv)
{
    if (argc < 3) {
        print_overview();
        return CLI_OK;
    }
    const struct cli_command *command = find_command(argv[2]);
    if (command == NULL)
        return unknown_command(argv[2]);
    cli_help(command);
    return CLI_OK;
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, ""); /* pictures in Unicode where the terminal can; numbers stay as they are */
    if (argc < 2) {
        fputs("kvferry: no command given; 'kvferry --help' lists them\n", stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return cli_finish_output(NULL, help_command(argc, argv));
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0 || strcmp(name, "version") == 0) {
        printf("kvferry %s (planner %u, protocol kvferry/%d)\n", kvf_version(), kvf_planner_version(),
               KVF_PROTOCOL_VERSION);
        return cli_finish_output(NULL, CLI_OK);
    }
    const struct cli_command *command = find_command(name);
    if (command == NULL)
        return unknown_command(name);
    return cli_finish_output(command, command->run(command, argc - 1, argv + 1));
}
