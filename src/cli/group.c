/* SPDX-License-Identifier: Apache-2.0 */
/* Commands below a command, such as `kvferry trtllm plan`. */
#include <string.h>

#include "cli/cli.h"

static const char *last_word(const struct cli_command *command)
{
    return strchr(command->name, ' ') + 1;
}

static int unknown(const struct cli_command *command, const struct cli_command *const *below, const char *name)
{
    const char *names[CLI_GROUP_MAX], *word = NULL;
    size_t count = 0;
    for (; below[count] != NULL && count < CLI_GROUP_MAX; count++)
        names[count] = last_word(below[count]);
    word = cli_suggest(name, names, count);
    if (word != NULL)
        return cli_usage_error(command, "no command \"%s\"; did you mean \"%s\"?", name, word);
    return cli_usage_error(command, "no command \"%s\"", name);
}

int cli_run_below(const struct cli_command *command, const struct cli_command *const *below, const char *names,
                  int argc, char **argv)
{
    if (argc < 2)
        return cli_usage_error(command, "a command is missing: %s", names);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        cli_help(command);
        return CLI_OK;
    }
    for (size_t i = 0; below[i] != NULL; i++) {
        if (strcmp(last_word(below[i]), argv[1]) == 0)
            return below[i]->run(below[i], argc - 1, argv + 1);
    }
    if (argv[1][0] == '-')
        return cli_usage_error(command, "no option %s here; the command comes first", argv[1]);
    return unknown(command, below, argv[1]);
}
