/* SPDX-License-Identifier: Apache-2.0 */
/* Values out of JSON objects. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/json_take.h"

#define KNOWN_MAX 40

struct json_take json_take_below(const char *format, ...)
{
    struct json_take take = {.path = ""};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(take.path, sizeof(take.path), format, arguments);
    va_end(arguments);
    return take;
}

bool json_take_wrong(struct json_take *take, const char *key, const char *format, ...)
{
    va_list arguments;
    if (take->text[0] != '\0')
        return false;
    const char *between = strncmp(take->path, "line ", 5) == 0 && strchr(take->path, ':') == NULL ? ": " : ".";
    int used = snprintf(take->text, sizeof(take->text), "%.100s%s%.60s%s", take->path,
                        take->path[0] != '\0' && key[0] != '\0' ? between : "", key,
                        take->path[0] != '\0' || key[0] != '\0' ? ": " : "");
    va_start(arguments, format);
    vsnprintf(take->text + used, sizeof(take->text) - (size_t)used, format, arguments);
    va_end(arguments);
    return false;
}

bool json_take_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value != NULL && !json_is_null(value);
}

bool json_take_known(struct json_take *take, const json_t *object, const char *const *known)
{
    const char *key;
    json_t *value;
    size_t count = 0;
    if (!json_is_object(object))
        return json_take_wrong(take, "", "expected an object");
    while (known[count] != NULL && count < KNOWN_MAX)
        count++;
    json_object_foreach((json_t *)object, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < count && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (found)
            continue;
        const char *near = cli_suggest(key, known, count);
        return near != NULL ? json_take_wrong(take, key, "no such member; did you mean \"%s\"?", near)
                            : json_take_wrong(take, key, "no such member");
    }
    return true;
}

bool json_take_int(struct json_take *take, const json_t *object, const char *key, int64_t low, int64_t high,
                   int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_take_has(object, key))
        return true;
    if (!json_is_integer(value))
        return json_take_wrong(take, key, "expected a whole number");
    if (json_integer_value(value) < low || json_integer_value(value) > high)
        return json_take_wrong(take, key, "%lld is not within %" PRId64 " to %" PRId64,
                               (long long)json_integer_value(value), low, high);
    *out = json_integer_value(value);
    return true;
}

bool json_take_bool(struct json_take *take, const json_t *object, const char *key, bool *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_take_has(object, key))
        return true;
    if (!json_is_boolean(value))
        return json_take_wrong(take, key, "expected true or false");
    *out = json_is_true(value);
    return true;
}

bool json_take_text(struct json_take *take, const json_t *object, const char *key, const char **out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_take_has(object, key))
        return true;
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        strlen(json_string_value(value)) != json_string_length(value))
        return json_take_wrong(take, key, "expected a text");
    *out = json_string_value(value);
    return true;
}

/** Says which words there are. */
static bool wrong_word(struct json_take *take, const char *key, const char *text, const char *const *words)
{
    char list[256];
    size_t used = 0;
    if (words[2] == NULL)
        return json_take_wrong(take, key, "\"%.60s\" is neither \"%s\" nor \"%s\"", text, words[0], words[1]);
    for (size_t i = 0; words[i] != NULL && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s\"%s\"", i > 0 ? ", " : "", words[i]);
    return json_take_wrong(take, key, "\"%.60s\" is none of %s", text, list);
}

bool json_take_word(struct json_take *take, const json_t *object, const char *key, const char *const *words, int *out)
{
    const char *text = NULL;
    if (!json_take_text(take, object, key, &text))
        return false;
    for (int i = 0; text != NULL && words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return true;
        }
    }
    return text == NULL || wrong_word(take, key, text, words);
}

bool json_take_seconds(struct json_take *take, const json_t *object, const char *key, int64_t *out_ns)
{
    const json_t *value = json_object_get(object, key);
    if (!json_take_has(object, key))
        return true;
    double seconds = json_number_value(value);
    if (!json_is_number(value) || !(seconds > 0 && seconds <= 1e6))
        return json_take_wrong(take, key, "expected seconds, above 0 and up to 1000000");
    *out_ns = (int64_t)(seconds * 1e9);
    return true;
}
