/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of JSON, in and out. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/json_lines.h"

#define LINE_LIMIT ((size_t)64 << 20)
#define READ_BYTES ((size_t)65536)

static void take_line(struct json_lines *lines, const char *text, size_t bytes, json_lines_take *take, void *context)
{
    char where[48], wrong[sizeof(where) + JSON_ERROR_TEXT_LENGTH + 32] = "";
    json_error_t parse;
    snprintf(where, sizeof(where), "line %" PRId64, ++lines->number);
    if (strspn(text, " \t\r") >= bytes)
        return;
    json_t *object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &parse);
    if (object == NULL)
        snprintf(wrong, sizeof(wrong), "%s: byte %d: %s", where, parse.position, parse.text);
    take(context, object, where, wrong);
    json_decref(object);
}

/** Makes sure that there is room to read into. */
static bool make_room(struct json_lines *lines)
{
    size_t room = lines->room * 2 + 2 * READ_BYTES;
    if (lines->room - lines->used >= READ_BYTES)
        return true;
    char *larger = lines->used < LINE_LIMIT ? realloc(lines->text, room) : NULL;
    if (larger == NULL) {
        cli_error(lines->command, "a line of standard input is longer than %zu bytes", LINE_LIMIT);
        return false;
    }
    lines->text = larger;
    lines->room = room;
    return true;
}

int json_lines_read(struct json_lines *lines, json_lines_take *take, void *context)
{
    size_t begin = 0;
    if (!make_room(lines))
        return CLI_INPUT;
    ssize_t got = read(STDIN_FILENO, lines->text + lines->used, lines->room - lines->used - 1);
    if (got < 0)
        return errno == EINTR || errno == EAGAIN ? CLI_OK : CLI_INPUT;
    lines->used += (size_t)got;
    lines->ended = got == 0;
    for (size_t i = 0; i < lines->used; i++) {
        if (lines->text[i] != '\n')
            continue;
        lines->text[i] = '\0';
        take_line(lines, lines->text + begin, i - begin, take, context);
        begin = i + 1;
    }
    if (lines->ended && begin < lines->used) {
        lines->text[lines->used] = '\0';
        take_line(lines, lines->text + begin, lines->used - begin, take, context);
        begin = lines->used;
    }
    memmove(lines->text, lines->text + begin, lines->used - begin);
    lines->used -= begin;
    return CLI_OK;
}

void json_lines_fini(struct json_lines *lines)
{
    free(lines->text);
    *lines = (struct json_lines){0};
}

void json_lines_tell(json_t *event)
{
    if (event != NULL && json_dumpf(event, stdout, JSON_COMPACT) == 0)
        putchar('\n');
    fflush(stdout);
    json_decref(event);
}
