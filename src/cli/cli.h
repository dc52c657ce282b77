/* SPDX-License-Identifier: Apache-2.0 */
/** @file cli.h  What every command of `kvferry` shares: the command table, options, messages, exit codes. */
#ifndef KVFERRY_CLI_H
#define KVFERRY_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/kvferry.h"

/** Exit codes; the man page and `kvferry --help` list them. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1, /* the job failed, or bytes were wrong */
    CLI_USAGE = 2,  /* the command line is wrong */
    CLI_INPUT = 3,  /* a file or layout cannot be used, or two layouts cannot be joined */
    CLI_PEER = 4    /* a peer or the directory was not reached, went away, or took too long */
};

/** One option of a command. `id` is its letter, or a number above 255 when it has none. */
struct cli_option {
    int id;
    const char *name;
    const char *value; /* name of its value in the help; NULL = takes none */
    const char *help;  /* "" hides it (options for the tests) */
};

struct cli_command {
    const char *name;
    const char *summary;              /* one line */
    const char *operands;             /* what follows the options in the usage line */
    const char *about;                /* paragraphs under the usage line */
    const struct cli_option *options; /* ends with id 0 */
    const char *examples;
    int (*run)(const struct cli_command *command, int argc, char **argv);
    bool hidden;
};

extern const struct cli_command cli_layout_command, cli_plan_command, cli_directory_command, cli_prefill_command,
    cli_decode_command, cli_trtllm_command, cli_vllm_command, cli_mooncake_command, cli_demo_command,
    cli_demo_worker_command;

/* ---- options.c ---------------------------------------------------------------------------------------------- */

#define CLI_OPTIONS_MAX 48

/** Walks a command line by a command's table. */
struct cli_parser {
    const struct cli_command *command;
    int argc;
    char **argv;
    const char *value; /* of the option just returned */
    const char *name;  /* its name without dashes */
    int exit_code;     /* what to return when the walk ended early */
    struct option longs[CLI_OPTIONS_MAX + 2];
    char letters[2 * CLI_OPTIONS_MAX + 4];
};

enum cli_parse_result {
    CLI_PARSE_END = -1, /* no more options: operands begin at argv[optind] */
    CLI_PARSE_STOP = -2 /* help was printed, or an error was: return exit_code */
};

void cli_parser_init(struct cli_parser *parser, const struct cli_command *command, int argc, char **argv);

/** Returns the id of the next option, CLI_PARSE_END or CLI_PARSE_STOP. */
int cli_parser_next(struct cli_parser *parser);

/** Prints a command's help. */
void cli_help(const struct cli_command *command);

/** Prints "kvferry COMMAND: ..." to standard error. */
void cli_error(const struct cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** The same, then where the help is. Returns CLI_USAGE. */
int cli_usage_error(const struct cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Checks that two files are left on the command line and that at most one is standard input. `what` says what the
 *  command takes. Returns CLI_OK or, having printed what is wrong, CLI_USAGE. */
int cli_take_two_files(const struct cli_parser *parser, const char *what);

/** Takes the one SPEC file of a stand-alone rank from the command line. `missing_roles` = the words that --role takes,
 *  when it was not given. Returns CLI_OK or, having printed what is wrong, CLI_USAGE. */
int cli_take_spec(const struct cli_parser *parser, const char *missing_roles, const char **path);

/** Prints a library error and returns the exit code that belongs to its status. `what` (may be NULL) goes first, such
 *  as a file's name. */
int cli_library_error(const struct cli_command *command, const char *what, const struct kvf_error *error);

/** The exit code that belongs to a status. */
int cli_exit_code(int status);

/* ---- group.c ------------------------------------------------------------------------------------------------ */

#define CLI_GROUP_MAX 16

/** Runs the one of the commands below a command ("trtllm plan" below "trtllm") that argv[1] names, or helps.
 *  @param below  at most CLI_GROUP_MAX, ends with NULL
 *  @param names  for the sentence that one is missing: "plan, worker or info" */
int cli_run_below(const struct cli_command *command, const struct cli_command *const *below, const char *names,
                  int argc, char **argv);

/* ---- suggest.c ---------------------------------------------------------------------------------------------- */

/** Returns the candidate nearest to `word` when it is near enough to be meant, else NULL. */
const char *cli_suggest(const char *word, const char *const *candidates, size_t count);

/* ---- values.c: text to numbers; each prints a usage error and returns false when it cannot --------------------- */

bool cli_value_int(const struct cli_parser *parser, int64_t low, int64_t high, int64_t *out);
bool cli_value_bytes(const struct cli_parser *parser, int64_t low, int64_t high, int64_t *out);
bool cli_value_seconds(const struct cli_parser *parser, int64_t *out_ns);
bool cli_value_rank(const struct cli_parser *parser, struct kvf_rank *out);
/** Which of the words (ends with NULL) was given. */
bool cli_value_word(const struct cli_parser *parser, const char *const *words, int *out);
/** Comma-separated numbers, -1 allowed. `*out` is for free(). */
bool cli_value_ids(const struct cli_parser *parser, int64_t **out, size_t *count);

/** "1.5 MiB" and the like, into `text` of at least 24 bytes. Returns `text`. */
const char *cli_format_bytes(int64_t bytes, char *text);
/** "1,234,567" into `text` of at least 32 bytes. Returns `text`. */
const char *cli_format_count(int64_t number, char *text);
/** "3.2 ms" and the like, into `text` of at least 24 bytes. Returns `text`. */
const char *cli_format_ns(double ns, char *text);
/** "pp0.cp0.tp2" into `text` of at least 96 bytes. Returns `text`. */
const char *cli_format_rank(struct kvf_rank rank, char *text);

/* ---- files.c ------------------------------------------------------------------------------------------------ */

/** Reads a whole file ("-" = standard input) of at most `limit` bytes. `*out` is for free(), with a zero behind the
 * text. Returns an exit code, having printed what is wrong. */
int cli_read_file(const struct cli_command *command, const char *path, size_t limit, char **out, size_t *bytes);

/** Writes a file by way of a temporary one beside it, so that it is there whole or not at all. "-" or NULL = standard
 * output. */
int cli_write_file(const struct cli_command *command, const char *path, const char *text, size_t bytes);

/** Reads and parses a layout file. */
int cli_read_instance(const struct cli_command *command, const char *path, kvf_instance **out);

/** Flushes standard output; a full disk or closed pipe becomes an error here. Returns `code` or CLI_FAILED. */
int cli_finish_output(const struct cli_command *command, int code);

/** Nanoseconds of the monotonic clock. */
int64_t cli_now_ns(void);

/** Blocks SIGINT and SIGTERM and returns a descriptor that is readable when one comes; -1 when there is none. Before
 * any thread is started. */
int cli_signal_fd(void);

#endif
