/* SPDX-License-Identifier: Apache-2.0 */
/* Answers cases of vLLM's MooncakeConnector: one JSON object a line on standard input, one line
 * {"id": ..., "answer": ...} each on standard output. See README.md.
 */
#include "answer_vllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    void (*answer)(struct answer_reader *reader, const json_t *input, json_t *answer);
} families[] = {
    {"align", answer_align},
    {"coalesce", answer_coalesce},
    {"extent", answer_extent},
    {"plan", answer_plan},
    {"ranks", answer_ranks},
    {"register", answer_register},
    {"runs", answer_runs},
    {"sender_plan", answer_sender_plan},
    {"validate", answer_validate},
};

static void print(json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);

    if (text) {
        fputs(text, stdout);
        fputc('\n', stdout);
        fflush(stdout);
    }
    free(text);
}

/* Answers a case by its family. The answer is an error when the case cannot be read. */
static json_t *answer_case(const json_t *line)
{
    const char *family = json_string_value(json_object_get(line, "family"));
    struct answer_reader reader = {0};
    json_t *answer = json_object();
    size_t i = 0;

    while (family && i < sizeof families / sizeof *families && strcmp(families[i].name, family) != 0) i++;
    if (!family || i == sizeof families / sizeof *families) {
        answer_wrong(&reader, "family: expected a known one, found %s", family ? family : "none");
    } else {
        const json_t *input = answer_member(&reader, line, "input");

        if (!reader.failed) families[i].answer(&reader, input, answer);
    }
    if (reader.failed) {
        json_object_clear(answer);
        answer_error(answer, reader.problem);
    }
    answer_reader_fini(&reader);
    return answer;
}

/* Whether a line is the header: it tells an oracle, or is the first one and no case. */
static bool is_header(const json_t *line, bool is_first)
{
    return json_object_get(line, "oracle")
           || (is_first && json_is_object(line) && !json_object_get(line, "family") && !json_object_get(line, "id"));
}

/* Answers one line; a header gets no answer. */
static void answer_line(const char *text, size_t byte_count, bool is_first)
{
    json_error_t where;
    json_t *line = json_loadb(text, byte_count, 0, &where), *answer = NULL, *out;

    if (is_header(line, is_first)) goto done;
    if (json_is_object(line)) {
        answer = answer_case(line);
    } else {
        answer = json_object();
        answer_error(answer, line ? "a case is an object" : where.text);
        if (!line) line = json_loadb(text, byte_count, JSON_DECODE_INT_AS_REAL, &where);
    }
    out = json_pack("{s:O?, s:o}", "id", json_object_get(line, "id"), "answer", answer);
    print(out);
    json_decref(out);
done:
    json_decref(line);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool is_first = true;

    while ((length = getline(&line, &capacity, stdin)) >= 0) {
        bool blank = true;

        for (ssize_t i = 0; i < length && blank; i++) blank = line[i] && strchr(" \t\r\n", line[i]);
        if (blank) continue;
        answer_line(line, (size_t)length, is_first);
        is_first = false;
    }
    free(line);
    return ferror(stdin) || fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
