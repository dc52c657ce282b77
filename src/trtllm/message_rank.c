/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "trtllm/message.h"
#include "wire/text.h"
#include "wire/values.h"

static bool is_key(const struct kvfi_value *value, const char *key)
{
    return value->type == KVFI_VALUE_STR && value->count == strlen(key) &&
           memcmp(value->data, key, value->count) == 0;
}

static void take_text(const struct kvfi_value *value, char *out, size_t capacity)
{
    if (value->type != KVFI_VALUE_STR || value->count >= capacity ||
        !kvfi_text_is_clean((const char *)value->data, value->count))
        return;
    memcpy(out, value->data, value->count);
    out[value->count] = '\0';
}

bool kvfi_trtllm_peek_rank(const void *bytes, size_t byte_count, char *name, size_t name_capacity,
                           int64_t *instance_rank, char *endpoint, size_t endpoint_capacity)
{
    struct kvfi_value_reader reader = {.bytes = bytes, .count = byte_count}, inside;
    struct kvfi_value map, key, value;
    bool has_rank = false;

    name[0] = endpoint[0] = '\0';
    if (!kvfi_value_next(&reader, &map) || map.type != KVFI_VALUE_DICT)
        return false;
    for (size_t i = 0; i < map.count; i++) {
        inside = reader;
        if (!kvfi_value_next(&inside, &key) || kvfi_value_skip(&reader) != KVFI_VALUE_SKIPPED)
            break;
        inside = reader;
        if (!kvfi_value_next(&inside, &value))
            break;
        if (is_key(&key, "instance_name")) {
            take_text(&value, name, name_capacity);
        } else if (is_key(&key, "self_endpoint")) {
            take_text(&value, endpoint, endpoint_capacity);
        } else if (is_key(&key, "instance_rank") && value.type == KVFI_VALUE_UNSIGNED &&
                   value.number < KVF_TRTLLM_MAX_RANKS) {
            *instance_rank = (int64_t)value.number;
            has_rank = true;
        }
        if (kvfi_value_skip(&reader) != KVFI_VALUE_SKIPPED)
            break;
    }
    return has_rank && name[0] != '\0' && endpoint[0] != '\0';
}
