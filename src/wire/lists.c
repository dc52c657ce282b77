/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/lists.h"

#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"
#include "wire/object.h"

static enum kvf_status unpack_ids(struct kvfi_arena *arena, const msgpack_object *object, size_t group,
                                  struct kvf_id_list *out, struct kvf_error *error)
{
    size_t count = object->via.array.size;
    int64_t *ids = kvfi_arena_take(arena, count, sizeof *ids);
    int64_t before = 0, step;

    if (!ids) return kvfi_fail_memory(error, "block ids");
    for (size_t i = 0; i < count; i++) {
        if (!kvfi_object_integer(&object->via.array.ptr[i], &step))
            return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: group %zu id %zu is %s, expected an integer", group, i,
                             kvfi_object_kind(&object->via.array.ptr[i]));
        if (!kvfi_add_i64(before, step, &before) || before < -1 || before == INT64_MAX)
            return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: group %zu id %zu is not in -1 to 2^63 - 2", group, i);
        ids[i] = before;
    }
    out->ids = ids;
    out->count = count;
    return KVF_OK;
}

static enum kvf_status unpack_group(struct kvfi_arena *arena, const msgpack_object *object, size_t group,
                                    struct kvf_id_list *out, struct kvf_error *error)
{
    const msgpack_object *first, *ids;
    enum kvf_status status;

    if (object->type != MSGPACK_OBJECT_MAP)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: group %zu is %s, expected a map", group,
                         kvfi_object_kind(object));
    status = kvfi_object_find(object, "pull group", "first", &first, error);
    if (status == KVF_OK) status = kvfi_object_find(object, "pull group", "ids", &ids, error);
    if (status != KVF_OK) return status;
    if (!first || !kvfi_object_integer(first, &out->first) || out->first < 0)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: group %zu: first is not an integer of 0 or more", group);
    if (!ids || ids->type != MSGPACK_OBJECT_ARRAY)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: group %zu: ids is not an array", group);
    return unpack_ids(arena, ids, group, out, error);
}

static enum kvf_status check_count(const msgpack_object *object, const char *key, size_t most, struct kvf_error *error)
{
    if (object->type != MSGPACK_OBJECT_ARRAY)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: %s is %s, expected an array", key, kvfi_object_kind(object));
    if (object->via.array.size == 0 || object->via.array.size > most)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: %s has %u entries, expected 1 to %zu", key,
                         object->via.array.size, most);
    return KVF_OK;
}

enum kvf_status kvfi_groups_unpack(struct kvfi_arena *arena, const msgpack_object *object,
                                   const struct kvf_id_list **out, size_t *count, struct kvf_error *error)
{
    struct kvf_id_list *groups = NULL;
    enum kvf_status status = check_count(object, "groups", KVF_LAYOUT_MAX_GROUPS, error);

    if (status != KVF_OK) return status;
    groups = kvfi_arena_take(arena, object->via.array.size, sizeof *groups);
    if (!groups) return kvfi_fail_memory(error, "block ids");
    for (size_t i = 0; i < object->via.array.size && status == KVF_OK; i++)
        status = unpack_group(arena, &object->via.array.ptr[i], i, &groups[i], error);
    if (status != KVF_OK) return status;
    *out = groups;
    *count = object->via.array.size;
    return KVF_OK;
}

static enum kvf_status unpack_transport(struct kvfi_arena *arena, const msgpack_object *object, size_t index,
                                        struct kvfi_wire_transport *out, struct kvf_error *error)
{
    static const struct kvfi_text_rule name_rule = {"pull", "transport name", 1, KVFI_WIRE_MAX_NAME};
    static const struct kvfi_text_rule endpoint_rule = {"pull", "transport endpoint", 0, KVFI_WIRE_MAX_ENDPOINT};
    const msgpack_object *name, *endpoint;
    enum kvf_status status;

    if (object->type != MSGPACK_OBJECT_MAP)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: transport %zu is %s, expected a map", index,
                         kvfi_object_kind(object));
    status = kvfi_object_find(object, "pull transport", "name", &name, error);
    if (status == KVF_OK) status = kvfi_object_find(object, "pull transport", "endpoint", &endpoint, error);
    if (status != KVF_OK) return status;
    if (!name || !endpoint)
        return kvfi_fail(error, KVF_ERR_PROTOCOL, "pull: transport %zu has no %s", index, name ? "endpoint" : "name");
    status = kvfi_object_text(arena, name, &name_rule, &out->name, error);
    return status == KVF_OK ? kvfi_object_text(arena, endpoint, &endpoint_rule, &out->endpoint, error) : status;
}

enum kvf_status kvfi_transports_unpack(struct kvfi_arena *arena, const msgpack_object *object,
                                       const struct kvfi_wire_transport **out, size_t *count,
                                       struct kvf_error *error)
{
    struct kvfi_wire_transport *transports = NULL;
    enum kvf_status status = check_count(object, "transports", KVFI_WIRE_MAX_TRANSPORTS, error);

    if (status != KVF_OK) return status;
    transports = kvfi_arena_take(arena, object->via.array.size, sizeof *transports);
    if (!transports) return kvfi_fail_memory(error, "transports");
    for (size_t i = 0; i < object->via.array.size && status == KVF_OK; i++)
        status = unpack_transport(arena, &object->via.array.ptr[i], i, &transports[i], error);
    if (status != KVF_OK) return status;
    *out = transports;
    *count = object->via.array.size;
    return KVF_OK;
}
