/* SPDX-License-Identifier: Apache-2.0 */
/** @file json_lines.h  Lines of JSON: requests from standard input, events to standard output. */
#ifndef KVFERRY_CLI_JSON_LINES_H
#define KVFERRY_CLI_JSON_LINES_H

#include <jansson.h>

#include "cli/cli.h"

/** What has come on standard input. All zero but the command at first. */
struct json_lines {
    const struct cli_command *command;
    char *text;
    size_t used, room;
    int64_t number; /* of the last line taken */
    bool ended;
};

/** Takes a line that is not blank. `object` is borrowed; NULL = the line is no JSON, and `text` says why. `where` is
 *  "line 7". */
typedef void json_lines_take(void *context, json_t *object, const char *where, const char *text);

/** Reads standard input once, which blocks until something comes, and hands over the whole lines in it. Returns an
 *  exit code, having printed what is wrong. */
int json_lines_read(struct json_lines *lines, json_lines_take *take, void *context);
void json_lines_fini(struct json_lines *lines);

/** Prints an event as a line and frees it. NULL prints nothing. */
void json_lines_tell(json_t *event);

#endif
