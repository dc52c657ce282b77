/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "vllm/register.h"

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Whether a part is a number as upstream reads it: spaces around, a sign, single underscores between digits. */
static bool read_part(const char *text, size_t length, int64_t *number, bool *fits)
{
    const char *end = text + length;
    bool negative, after_digit = false, is_number;
    int64_t value = 0;

    while (text < end && is_space(*text)) text++;
    while (end > text && is_space(end[-1])) end--;
    negative = text < end && *text == '-';
    if (text < end && (*text == '-' || *text == '+')) text++;
    is_number = text < end && end[-1] != '_';
    *fits = true;
    for (; is_number && text < end; text++) {
        is_number = (*text >= '0' && *text <= '9') || (*text == '_' && after_digit);
        after_digit = is_number && *text != '_';
        if (after_digit) *fits = *fits && kvfi_mad_i64(value, 10, *text - '0', &value);
    }
    *number = negative ? -value : value;
    return is_number;
}

enum kvf_status kvfi_vllm_layer_index(const char *name, int64_t *index, struct kvf_error *error)
{
    int64_t numbers = 0, found = 0;
    enum kvf_status status = KVF_OK;
    bool all_fit = true;

    for (const char *part = name; part;) {
        const char *dot = strchr(part, '.');
        bool fits;
        int64_t number;

        if (read_part(part, dot ? (size_t)(dot - part) : strlen(part), &number, &fits)) {
            numbers++;
            all_fit = all_fit && fits;
            found = number;
        }
        part = dot ? dot + 1 : NULL;
    }
    if (numbers != 1) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "layer name %s should only contain one integer", name);
    } else if (!all_fit) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "layer name %s: its number does not fit in 64 bits", name);
    } else {
        *index = found;
    }
    return status;
}
