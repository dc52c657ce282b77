/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "trtllm/message.h"
#include "trtllm/walk.h"
#include "wire/text.h"

static bool is_key(const struct kvfi_trt_walk_object *object, const char *key)
{
    return object->kind == KVFI_WALK_TEXT && object->count == strlen(key) &&
           memcmp(object->data, key, object->count) == 0;
}

static void take_text(const struct kvfi_trt_walk_object *object, char *out, size_t capacity)
{
    if (object->kind != KVFI_WALK_TEXT || object->count >= capacity ||
        !kvfi_text_is_clean((const char *)object->data, (size_t)object->count))
        return;
    memcpy(out, object->data, (size_t)object->count);
    out[object->count] = '\0';
}

bool kvfi_trtllm_peek_rank(const void *bytes, size_t byte_count, char *name, size_t name_capacity,
                           int64_t *instance_rank, char *endpoint, size_t endpoint_capacity)
{
    const unsigned char *begin = bytes;
    struct kvfi_trt_walk walk = {begin, begin, begin + byte_count};
    struct kvfi_trt_walk_object map, key, value;
    bool has_rank = false;

    name[0] = endpoint[0] = '\0';
    if (!kvfi_trt_walk_next(&walk, &map) || map.kind != KVFI_WALK_MAP)
        return false;
    for (uint64_t i = 0; i < map.count; i++) {
        if (!kvfi_trt_walk_next(&walk, &key) || !kvfi_trt_walk_skip(&walk, &key) || !kvfi_trt_walk_next(&walk, &value))
            break;
        if (is_key(&key, "instance_name")) {
            take_text(&value, name, name_capacity);
        } else if (is_key(&key, "self_endpoint")) {
            take_text(&value, endpoint, endpoint_capacity);
        } else if (is_key(&key, "instance_rank") && value.kind == KVFI_WALK_INTEGER &&
                   value.number < KVF_TRTLLM_MAX_RANKS) {
            *instance_rank = (int64_t)value.number;
            has_rank = true;
        }
        if (!kvfi_trt_walk_skip(&walk, &value))
            break;
    }
    return has_rank && name[0] != '\0' && endpoint[0] != '\0';
}
