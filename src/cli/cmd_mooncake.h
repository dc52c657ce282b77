/* SPDX-License-Identifier: Apache-2.0 */
/** @file cmd_mooncake.h  The commands below `kvferry mooncake`, and what they share. */
#ifndef KVFERRY_CLI_CMD_MOONCAKE_H
#define KVFERRY_CLI_CMD_MOONCAKE_H

#include <jansson.h>

#include "cli/cli.h"
#include "kvferry/mooncake.h"

extern const struct cli_command cli_mooncake_probe_command, cli_mooncake_serve_command, cli_mooncake_write_command,
    cli_mooncake_read_command;

/** Memory of whole pages, filled with zeros; munmap() frees it. NULL when there is none, having said so. */
void *mooncake_memory(const struct cli_command *command, int64_t bytes);

/** Loads the first bytes of a file, `bytes` at most, into memory. Returns an exit code. */
int mooncake_load(const struct cli_command *command, const char *path, void *memory, int64_t bytes);

/** The size of a file, -1 when there is none. */
int64_t mooncake_file_bytes(const char *path);

/** A number of 64 bits, decimal or with 0x. */
bool mooncake_number(const char *text, uint64_t *out);

/** A number as JSON; from 2^63 up, where JSON readers have no number, a text with 0x. And back. */
json_t *mooncake_json(uint64_t number);
bool mooncake_json_number(const json_t *value, uint64_t *out);

/** Prints one line of JSON and gives `root` (may be NULL) back. Returns an exit code. */
int mooncake_print_json(const struct cli_command *command, json_t *root);

#endif
