/* SPDX-License-Identifier: Apache-2.0 */
/** @file rank_files.h  The files that ranks are read from, and those that a rank reads and writes. */
#ifndef KVFERRY_CLI_RANK_FILES_H
#define KVFERRY_CLI_RANK_FILES_H

#include <jansson.h>

#include "cli/cli.h"

#define RANK_FILE_LIMIT ((size_t)256 << 20)

/** Takes one file. Returns an exit code, having printed what is wrong. */
typedef int rank_files_take(const struct cli_command *command, const char *path, void *context);

/** Hands over a file ("-" = standard input), or by name every file of a folder that is not hidden, until one fails.
 *  Returns an exit code. */
int rank_files_each(const struct cli_command *command, const char *path, rank_files_take *take, void *context);

/** Parses JSON text that came from a file. `*out` is for json_decref(). Returns an exit code, having printed what is
 *  wrong. */
int rank_file_parse(const struct cli_command *command, const char *path, const char *text, size_t bytes, json_t **out);

/** Reads a file of JSON, likewise. */
int rank_file_read(const struct cli_command *command, const char *path, json_t **out);

/** The name of a rank's own file, for free(): %r stands for its number, %p for its PP rank unless that is below 0.
 *  NULL without memory. */
char *rank_file_name(const char *name, int64_t rank, int64_t pp_rank);

/** Sees before anything runs that a file can be written in the end; NULL = there is none. Returns an exit code, having
 *  printed what is wrong. */
int rank_file_look_ahead(const struct cli_command *command, const char *path);

#endif
