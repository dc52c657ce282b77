/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/bootstrap_read.h"

#include <stdbool.h>
#include <string.h>

#include "base/checked.h"
#include "directory/client.h"
#include "layout_json/json_source.h"
#include "wire/text.h"

#define MAX_TEXT_BYTES 4096
#define SPACES " \t\r\n\v\f"
#define RANK_BOUND 9223372036854775808.0 /* of ranks as floats */

static const struct kvfi_json_limits limits = {.max_bytes = KVFI_DIRECTORY_MAX_BODY_BYTES, .max_depth = 512,
                                               .max_containers = 65536, .max_values = 65536,
                                               .takes_duplicates = true};

static bool is_digit(char character)
{
    return character >= '0' && character <= '9';
}

/** A whole number as text: spaces around, a sign, digits with single underscores among them, and perhaps ".000". */
static bool rank_of_text(const char *text, int64_t *out)
{
    const char *at = text + strspn(text, SPACES);
    bool is_negative = *at == '-';
    int64_t value = 0;

    if (*at == '-' || *at == '+') at++;
    if (!is_digit(*at)) return false;
    for (; is_digit(*at) || (*at == '_' && is_digit(at[1])); at++) {
        int64_t digit = *at - '0';

        if (*at == '_') continue;
        if (!kvfi_mul_i64(value, 10, &value) || !kvfi_add_i64(value, is_negative ? -digit : digit, &value))
            return false;
    }
    if (*at == '.' && at[1] == '0') at += 1 + strspn(at + 1, "0");
    if (at[strspn(at, SPACES)] != '\0') return false;
    *out = value;
    return true;
}

/** What stock servers take for an integer: integers, whole floats, booleans, numeric texts. */
static bool rank_of(const json_t *value, int64_t *out)
{
    double real;

    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_INTEGER: *out = json_integer_value(value); return true;
    case JSON_TRUE: *out = 1; return true;
    case JSON_FALSE: *out = 0; return true;
    case JSON_STRING: return rank_of_text(json_string_value(value), out);
    case JSON_REAL:
        real = json_real_value(value);
        if (!(real > -RANK_BOUND && real < RANK_BOUND) || real != (double)(int64_t)real) return false;
        *out = (int64_t)real;
        return true;
    default: return false;
    }
}

static bool text_of(const json_t *value, const char **out)
{
    if (!json_is_string(value) || json_string_length(value) > MAX_TEXT_BYTES) return false;
    *out = json_string_value(value);
    return true;
}

/** Returns the key that is missing or ill-typed, or NULL. */
static const char *read_worker(const json_t *json, struct kvfi_bootstrap_worker *out)
{
    if (!text_of(json_object_get(json, "engine_id"), &out->engine_id)) return "engine_id";
    if (!rank_of(json_object_get(json, "dp_rank"), &out->dp)) return "dp_rank";
    if (!rank_of(json_object_get(json, "tp_rank"), &out->tp)) return "tp_rank";
    if (!rank_of(json_object_get(json, "pp_rank"), &out->pp)) return "pp_rank";
    if (!text_of(json_object_get(json, "addr"), &out->address)) return "addr";
    return NULL;
}

enum kvfi_bootstrap_verdict kvfi_bootstrap_read(const char *body, size_t body_bytes, struct kvfi_bootstrap_body *out)
{
    const struct kvfi_json_source source = {.name = "request body", .text = body, .text_bytes = body_bytes};
    enum kvf_status status;

    *out = (struct kvfi_bootstrap_body){0};
    if (!kvfi_text_is_utf8(body, body_bytes)) return KVFI_BOOTSTRAP_UNREADABLE;
    status = kvfi_json_load(&source, &limits, &out->json);
    if (status == KVF_ERR_LIMIT) return KVFI_BOOTSTRAP_UNREADABLE;
    if (status != KVF_OK || !json_is_object(out->json)) return KVFI_BOOTSTRAP_NOT_SUCH;
    out->bad_key = read_worker(out->json, &out->worker);
    return out->bad_key ? KVFI_BOOTSTRAP_NOT_SUCH : KVFI_BOOTSTRAP_READ;
}

void kvfi_bootstrap_body_fini(struct kvfi_bootstrap_body *body)
{
    json_decref(body->json);
    body->json = NULL;
}
