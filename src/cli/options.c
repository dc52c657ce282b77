/* SPDX-License-Identifier: Apache-2.0 */
/* Options by table: one table per command gives parsing, help and suggestions. Messages and exit codes. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

#define HELP_ID 'h'

void cli_parser_init(struct cli_parser *parser, const struct cli_command *command, int argc, char **argv)
{
    memset(parser, 0, sizeof(*parser));
    parser->command = command;
    parser->argc = argc;
    parser->argv = argv;
    parser->exit_code = CLI_USAGE;
    size_t count = 0;
    char *letter = parser->letters;
    *letter++ = ':'; /* a missing value is told apart from an unknown option */
    for (const struct cli_option *o = command->options; o->id != 0 && count < CLI_OPTIONS_MAX; o++) {
        parser->longs[count++] = (struct option){o->name, o->value ? required_argument : no_argument, NULL, o->id};
        if (o->id < 256) {
            *letter++ = (char)o->id;
            if (o->value)
                *letter++ = ':';
        }
    }
    parser->longs[count] = (struct option){"help", no_argument, NULL, HELP_ID};
    *letter++ = HELP_ID;
    opterr = 0;
    optind = 0; /* makes glibc start anew */
}

static const char *option_name(const struct cli_command *command, int id)
{
    for (const struct cli_option *o = command->options; o->id != 0; o++) {
        if (o->id == id)
            return o->name;
    }
    return "help";
}

static bool is_known(const struct cli_command *command, int id)
{
    for (const struct cli_option *o = command->options; o->id != 0; o++) {
        if (o->id == id)
            return true;
    }
    return id == HELP_ID;
}

static void unknown_option(struct cli_parser *parser)
{
    if (optopt != 0 && is_known(parser->command, optopt)) { /* known, but given a value */
        cli_usage_error(parser->command, "option --%s takes no value", option_name(parser->command, optopt));
        return;
    }
    if (optopt != 0) {
        cli_usage_error(parser->command, "no option -%c", isprint(optopt) ? optopt : '?');
        return;
    }
    const char *given = optind > 0 && optind <= parser->argc ? parser->argv[optind - 1] : "";
    const char *names[CLI_OPTIONS_MAX + 1];
    size_t count = 0;
    char word[64];
    snprintf(word, sizeof(word), "%s", strncmp(given, "--", 2) == 0 ? given + 2 : given);
    word[strcspn(word, "=")] = '\0';
    for (const struct cli_option *o = parser->command->options; o->id != 0 && count < CLI_OPTIONS_MAX; o++) {
        if (o->help[0] != '\0')
            names[count++] = o->name;
    }
    names[count++] = "help";
    const char *near = cli_suggest(word, names, count);
    if (near != NULL)
        cli_usage_error(parser->command, "no option --%s; did you mean --%s?", word, near);
    else
        cli_usage_error(parser->command, "no option --%s", word);
}

int cli_parser_next(struct cli_parser *parser)
{
    int id = getopt_long(parser->argc, parser->argv, parser->letters, parser->longs, NULL);
    if (id == -1)
        return CLI_PARSE_END;
    if (id == HELP_ID) {
        cli_help(parser->command);
        parser->exit_code = CLI_OK;
        return CLI_PARSE_STOP;
    }
    if (id == ':') {
        cli_usage_error(parser->command, "option --%s needs a value", option_name(parser->command, optopt));
        return CLI_PARSE_STOP;
    }
    if (id == '?') {
        unknown_option(parser);
        return CLI_PARSE_STOP;
    }
    parser->value = optarg;
    parser->name = option_name(parser->command, id);
    return id;
}

static void print_option(int id, const char *name, const char *value, const char *help)
{
    char left[64];
    char letter[8] = "    ";
    if (id < 256)
        snprintf(letter, sizeof(letter), "-%c, ", id);
    snprintf(left, sizeof(left), "  %s--%s%s%s", letter, name, value ? " " : "", value ? value : "");
    printf("%-30s", left);
    if (strlen(left) > 28)
        printf("\n%-30s", "");
    for (const char *c = help; *c != '\0'; c++) {
        putchar(*c);
        if (*c == '\n')
            printf("%-30s", "");
    }
    putchar('\n');
}

void cli_help(const struct cli_command *command)
{
    printf("usage: kvferry %s [OPTION]...%s%s\n\n%s\n\noptions:\n", command->name, command->operands[0] ? " " : "",
           command->operands, command->about);
    for (const struct cli_option *o = command->options; o->id != 0; o++) {
        if (o->help[0] != '\0')
            print_option(o->id, o->name, o->value, o->help);
    }
    print_option(HELP_ID, "help", NULL, "show this help");
    printf("\nexamples:\n%s\n", command->examples);
}

static void print_error(const struct cli_command *command, const char *format, va_list arguments)
{
    fflush(stdout);
    fprintf(stderr, "kvferry%s%s: ", command ? " " : "", command ? command->name : "");
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

void cli_error(const struct cli_command *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_error(command, format, arguments);
    va_end(arguments);
}

int cli_usage_error(const struct cli_command *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_error(command, format, arguments);
    va_end(arguments);
    fprintf(stderr, "'kvferry %s --help' tells more\n", command->name);
    return CLI_USAGE;
}

int cli_take_two_files(const struct cli_parser *parser, const char *what)
{
    const char *const *files = (const char *const *)parser->argv + optind;
    if (parser->argc - optind != 2)
        return cli_usage_error(parser->command, "takes two %s; %d given", what, parser->argc - optind);
    if (strcmp(files[0], "-") == 0 && strcmp(files[1], "-") == 0)
        return cli_usage_error(parser->command, "only one of the two files can be standard input");
    return CLI_OK;
}

int cli_take_spec(const struct cli_parser *parser, const char *missing_roles, const char **path)
{
    const char *file = parser->argv[optind];
    if (parser->argc - optind != 1)
        return cli_usage_error(parser->command, "takes one SPEC file; %d given", parser->argc - optind);
    if (missing_roles != NULL)
        return cli_usage_error(parser->command, "--role is missing: %s", missing_roles);
    if (strcmp(file, "-") == 0)
        return cli_usage_error(parser->command, "the SPEC cannot be standard input, where requests come from");
    *path = file;
    return CLI_OK;
}

int cli_exit_code(int status)
{
    switch (status) {
    case KVF_OK: return CLI_OK;
    case KVF_ERR_PARSE:
    case KVF_ERR_LAYOUT:
    case KVF_ERR_IDS:
    case KVF_ERR_LIMIT:
    case KVF_ERR_OVERFLOW:
    case KVF_ERR_OUT_OF_RANGE:
    case KVF_ERR_INCOMPATIBLE:
    case KVF_ERR_VERSION:
    case KVF_ERR_PLAN_MISMATCH: return CLI_INPUT;
    case KVF_ERR_NOT_FOUND:
    case KVF_ERR_TIMEOUT:
    case KVF_ERR_EXPIRED:
    case KVF_ERR_PEER_LOST:
    case KVF_ERR_UNREACHABLE:
    case KVF_ERR_INCOMPLETE:
    case KVF_ERR_STALE:
    case KVF_ERR_DIRECTORY: return CLI_PEER;
    case KVF_ERR_INVALID_ARGUMENT: return CLI_USAGE;
    default: return CLI_FAILED;
    }
}

int cli_library_error(const struct cli_command *command, const char *what, const struct kvf_error *error)
{
    const char *text = error->text[0] != '\0' ? error->text : kvf_strerror(error->status);
    if (what != NULL && error->position >= 0 && error->status == KVF_ERR_PARSE)
        cli_error(command, "%s: byte %lld: %s", what, (long long)error->position, text);
    else if (what != NULL)
        cli_error(command, "%s: %s", what, text);
    else
        cli_error(command, "%s", text);
    return cli_exit_code(error->status);
}
