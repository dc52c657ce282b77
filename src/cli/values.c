/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options from text, and numbers to text. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/** A whole number, at once followed by `*end`. */
static bool read_int(const char *text, int64_t *out, const char **end)
{
    char *stop = NULL;
    errno = 0;
    long long number = strtoll(text, &stop, 10);
    if (errno != 0 || stop == text || text[0] == ' ' || text[0] == '+')
        return false;
    *out = number;
    *end = stop;
    return true;
}

bool cli_value_int(const struct cli_parser *parser, int64_t low, int64_t high, int64_t *out)
{
    const char *end = "";
    int64_t number = 0;
    if (read_int(parser->value, &number, &end) && *end == '\0' && number >= low && number <= high) {
        *out = number;
        return true;
    }
    cli_usage_error(parser->command, "--%s must be a number from %" PRId64 " to %" PRId64 ", not \"%s\"", parser->name,
                    low, high, parser->value);
    return false;
}

bool cli_value_bytes(const struct cli_parser *parser, int64_t low, int64_t high, int64_t *out)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {{"", 1},        {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
                 {"K", 1 << 10}, {"M", 1 << 20},   {"G", 1 << 30}};
    const char *end = "";
    int64_t number = 0;
    if (read_int(parser->value, &number, &end) && number >= 0) {
        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
            int64_t bytes = 0;
            if (strcmp(end, units[i].name) == 0 && !__builtin_mul_overflow(number, units[i].bytes, &bytes) &&
                bytes >= low && bytes <= high) {
                *out = bytes;
                return true;
            }
        }
    }
    char low_text[24], high_text[24];
    cli_usage_error(parser->command, "--%s must be a size from %s to %s (such as 256MiB), not \"%s\"", parser->name,
                    cli_format_bytes(low, low_text), cli_format_bytes(high, high_text), parser->value);
    return false;
}

bool cli_value_seconds(const struct cli_parser *parser, int64_t *out_ns)
{
    char *end = NULL;
    double seconds = strtod(parser->value, &end);
    if (end == parser->value || *end != '\0' || !(seconds >= 0.1 && seconds <= 86400)) {
        cli_usage_error(parser->command, "--%s must be seconds from 0.1 to 86400, not \"%s\"", parser->name,
                        parser->value);
        return false;
    }
    *out_ns = (int64_t)(seconds * 1e9);
    return true;
}

bool cli_value_rank(const struct cli_parser *parser, struct kvf_rank *out)
{
    int64_t numbers[3] = {0, 0, 0};
    const char *text = parser->value;
    for (int i = 0; i < 3; i++) {
        if (!read_int(text, &numbers[i], &text) || numbers[i] < 0 || *text != (i < 2 ? ',' : '\0')) {
            cli_usage_error(parser->command, "--%s must be PP,CP,TP (such as 1,0,2), not \"%s\"", parser->name,
                            parser->value);
            return false;
        }
        text++;
    }
    *out = (struct kvf_rank){.pp = numbers[0], .cp = numbers[1], .tp = numbers[2]};
    return true;
}

bool cli_value_word(const struct cli_parser *parser, const char *const *words, int *out)
{
    char list[128] = "";
    size_t used = 0;
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(parser->value, words[i]) == 0) {
            *out = i;
            return true;
        }
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
                                     i == 0                 ? ""
                                     : words[i + 1] == NULL ? " or "
                                                            : ", ",
                                     words[i]);
    }
    cli_usage_error(parser->command, "--%s must be %s, not \"%s\"", parser->name, list, parser->value);
    return false;
}

bool cli_value_ids(const struct cli_parser *parser, int64_t **out, size_t *count)
{
    size_t most = 1, n = 0;
    for (const char *c = parser->value; *c != '\0'; c++)
        most += *c == ',';
    int64_t *ids = calloc(most, sizeof(*ids));
    const char *text = parser->value;
    bool good = ids != NULL;
    while (good && n < most) {
        good = read_int(text, &ids[n], &text) && ids[n] >= -1 && *text == (n + 1 < most ? ',' : '\0');
        n++;
        text++;
    }
    if (!good) {
        cli_usage_error(parser->command, "--%s must be block ids with commas between them (such as 7,3,12), not \"%s\"",
                        parser->name, parser->value);
        free(ids);
        return false;
    }
    free(*out);
    *out = ids;
    *count = n;
    return true;
}

const char *cli_format_bytes(int64_t bytes, char *text)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double number = (double)bytes;
    int unit = 0;
    while (number >= 1024 && unit < 6) {
        number /= 1024;
        unit++;
    }
    if (unit == 0 || number == (double)(int64_t)number)
        snprintf(text, 24, "%.0f %s", number, units[unit]);
    else
        snprintf(text, 24, "%.1f %s", number, units[unit]);
    return text;
}

const char *cli_format_count(int64_t number, char *text)
{
    char digits[24];
    int n = snprintf(digits, sizeof(digits), "%" PRId64, number);
    char *out = text;
    for (int i = 0; i < n; i++) {
        *out++ = digits[i];
        if (digits[i] != '-' && (n - 1 - i) % 3 == 0 && i + 1 < n)
            *out++ = ',';
    }
    *out = '\0';
    return text;
}

const char *cli_format_ns(double ns, char *text)
{
    if (ns < 1e3)
        snprintf(text, 24, "%.0f ns", ns);
    else if (ns < 1e6)
        snprintf(text, 24, "%.1f us", ns / 1e3);
    else if (ns < 1e9)
        snprintf(text, 24, "%.1f ms", ns / 1e6);
    else
        snprintf(text, 24, "%.2f s", ns / 1e9);
    return text;
}

const char *cli_format_rank(struct kvf_rank rank, char *text)
{
    snprintf(text, 96, "pp%" PRId64 ".cp%" PRId64 ".tp%" PRId64, rank.pp, rank.cp, rank.tp);
    return text;
}
