/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a rank info. */
#include <string.h>

#include "base/error.h"
#include "trtllm/rank_fields.h"
#include "wire/values.h"

static int64_t int_at(const void *place)
{
    int64_t number;

    memcpy(&number, place, sizeof number);
    return number;
}

static const void *pointer_at(const void *place)
{
    const void *pointer;

    memcpy(&pointer, place, sizeof pointer);
    return pointer;
}

static size_t count_at(const void *object, const struct kvfi_trt_field *field)
{
    size_t count;

    memcpy(&count, (const char *)object + field->count_offset, sizeof count);
    return count;
}

static void put_map(struct kvfi_value_writer *writer, const struct kvfi_trt_map *map, const void *object);

static void put_item(struct kvfi_value_writer *writer, const struct kvfi_trt_field *field, const void *items, size_t i)
{
    if (field->kind == KVFI_TRT_TEXTS) {
        kvfi_value_put_text(writer, ((const char *const *)items)[i]);
    } else if (field->kind == KVFI_TRT_ADDRESSES) {
        kvfi_value_put_unsigned(writer, ((const uint64_t *)items)[i]);
    } else if (field->kind == KVFI_TRT_MAPS) {
        put_map(writer, field->map, (const char *)items + i * field->map->bytes);
    } else if (field->kind == KVFI_TRT_ENTRIES) {
        const struct kvf_trtllm_entry *entry = (const struct kvf_trtllm_entry *)items + i;

        kvfi_value_put_array(writer, 3);
        kvfi_value_put_int(writer, entry->local_layer);
        kvfi_value_put_int(writer, entry->offset_bytes);
        kvfi_value_put_int(writer, entry->size_bytes);
    } else {
        kvfi_value_put_int(writer, ((const int64_t *)items)[i]);
    }
}

static void put_list(struct kvfi_value_writer *writer, const struct kvfi_trt_field *field, const void *object)
{
    const void *items = pointer_at((const char *)object + field->offset);
    size_t count = count_at(object, field);

    kvfi_value_put_array(writer, count);
    for (size_t i = 0; i < count; i++) put_item(writer, field, items, i);
}

static void put_eighths(struct kvfi_value_writer *writer, int64_t eighths)
{
    if (eighths % 8 == 0) kvfi_value_put_int(writer, eighths / 8);
    else kvfi_value_put_double(writer, (double)eighths / 8);
}

static bool is_nil(const struct kvfi_trt_field *field, const void *place)
{
    switch (field->kind) {
    case KVFI_TRT_INT_OR_NIL:
    case KVFI_TRT_FLAG_OR_NIL: return int_at(place) == KVF_TRTLLM_NONE;
    case KVFI_TRT_TEXT_OR_NIL:
    case KVFI_TRT_INTS_OR_NIL:
    case KVFI_TRT_MAP_OR_NIL: return pointer_at(place) == NULL;
    default: return false;
    }
}

static void put_value(struct kvfi_value_writer *writer, const struct kvfi_trt_field *field, const void *object)
{
    const void *place = (const char *)object + field->offset;

    if (is_nil(field, place)) {
        kvfi_value_put_nil(writer);
        return;
    }
    switch (field->kind) {
    case KVFI_TRT_INT:
    case KVFI_TRT_INT_OR_NIL:
    case KVFI_TRT_ENUM: kvfi_value_put_int(writer, int_at(place)); break;
    case KVFI_TRT_FLAG:
    case KVFI_TRT_FLAG_OR_NIL: kvfi_value_put_bool(writer, int_at(place) != 0); break;
    case KVFI_TRT_ADDRESS: kvfi_value_put_unsigned(writer, (uint64_t)int_at(place)); break;
    case KVFI_TRT_EIGHTHS: put_eighths(writer, int_at(place)); break;
    case KVFI_TRT_TEXT:
    case KVFI_TRT_TEXT_OR_NIL: kvfi_value_put_text(writer, pointer_at(place)); break;
    case KVFI_TRT_BYTES: kvfi_value_put_bin(writer, pointer_at(place), count_at(object, field)); break;
    case KVFI_TRT_MAP_OR_NIL: put_map(writer, field->map, pointer_at(place)); break;
    default: put_list(writer, field, object); break;
    }
}

/* Everything is written, nil where it is not there, but what other cache kinds have, and the newest keys that an older
 * sender does not know. */
static bool is_written(const struct kvfi_trt_map *map, const struct kvfi_trt_field *field, const void *object)
{
    if (map == &kvfi_trt_rank_map)
        return !field->key || (((const struct kvf_trtllm_rank_spec *)object)->keys & field->key);
    if (map == &kvfi_trt_group_map) {
        int64_t cache = ((const struct kvf_trtllm_group *)object)->cache;

        return !(field->flags & (cache == KVF_TRTLLM_STATE ? KVFI_TRT_PAGED_ONLY : KVFI_TRT_STATE_ONLY));
    }
    return true;
}

static void put_map(struct kvfi_value_writer *writer, const struct kvfi_trt_map *map, const void *object)
{
    size_t count = 0;

    for (size_t i = 0; i < map->field_count; i++) count += is_written(map, &map->fields[i], object);
    kvfi_value_put_map(writer, count);
    for (size_t i = 0; i < map->field_count; i++) {
        if (!is_written(map, &map->fields[i], object)) continue;
        kvfi_value_put_text(writer, map->fields[i].name);
        put_value(writer, &map->fields[i], object);
    }
}

bool kvfi_trt_rank_spells(const struct kvf_trtllm_rank *rank, const void *bytes, size_t byte_count)
{
    struct kvfi_value_writer writer = {.same_as = bytes, .capacity = byte_count};

    put_map(&writer, &kvfi_trt_rank_map, &rank->spec);
    return !writer.differs && writer.used == byte_count;
}

enum kvf_status kvf_trtllm_rank_encode(const kvf_trtllm_rank *rank, void *buffer, size_t capacity, size_t *byte_count,
                                       struct kvf_error *error)
{
    struct kvfi_value_writer count = {0}, writer = {.out = buffer, .capacity = capacity};
    enum kvf_status status = KVF_OK;

    if (!rank || !byte_count || (!buffer && capacity)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: %s is missing",
                           !rank ? "rank" : byte_count ? "buffer" : "byte_count");
        goto done;
    }
    if (rank->bytes) count.used = rank->byte_count;
    else put_map(&count, &kvfi_trt_rank_map, &rank->spec);
    if (count.used > KVF_TRTLLM_MAX_RANK_BYTES) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "rank info: %zu bytes encoded, at most %d are taken by a peer",
                           count.used, KVF_TRTLLM_MAX_RANK_BYTES);
        goto done;
    }
    *byte_count = count.used;
    if (!buffer) goto done;
    if (count.used > capacity) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "rank info: %zu bytes encoded, the buffer has %zu", count.used,
                           capacity);
        goto done;
    }
    if (rank->bytes) memcpy(buffer, rank->bytes, rank->byte_count);
    else put_map(&writer, &kvfi_trt_rank_map, &rank->spec);
done:
    return status;
}
