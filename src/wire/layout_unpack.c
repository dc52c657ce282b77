/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/layout.h"

#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"
#include "wire/arena.h"
#include "wire/messages.h"
#include "wire/object.h"

#define VIEW_NUMBERS 12
#define VIEW_FIELDS (VIEW_NUMBERS + 3)

/** A layout being read. */
struct reader {
    struct kvfi_arena arena; /* the plain arrays, until the checked layout is made of them */
    int64_t places;          /* of all views so far */
    struct kvf_error *error;
};

/** Reads an array of exactly `count` integers. */
static enum kvf_status read_row(struct reader *reader, const msgpack_object *object, const char *what, size_t index,
                                int64_t *out, size_t count)
{
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size != count)
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "layout: %s %zu is not an array of %zu integers", what, index,
                         count);
    for (size_t i = 0; i < count; i++)
        if (!kvfi_object_integer(&object->via.array.ptr[i], &out[i]))
            return kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "layout: %s %zu: number %zu is %s, expected an integer",
                             what, index, i, kvfi_object_kind(&object->via.array.ptr[i]));
    return KVF_OK;
}

/** Finds one of the layout's arrays and makes room for what is in it. */
static enum kvf_status open_array(struct reader *reader, const msgpack_object *layout, const char *key, size_t most,
                                  size_t element_bytes, const msgpack_object **items, size_t *count, void **room)
{
    const msgpack_object *found;
    enum kvf_status status = kvfi_object_find(layout, "layout", key, &found, reader->error);

    if (status != KVF_OK) return status;
    if (!found || found->type != MSGPACK_OBJECT_ARRAY)
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "layout: %s is %s, expected an array", key,
                         found ? kvfi_object_kind(found) : "missing");
    if (found->via.array.size > most)
        return kvfi_fail(reader->error, KVF_ERR_LIMIT, "layout: %s has %u entries, at most %zu are taken", key,
                         found->via.array.size, most);
    *room = kvfi_arena_take(&reader->arena, found->via.array.size, element_bytes);
    if (!*room) return kvfi_fail_memory(reader->error, "a layout");
    *items = found->via.array.ptr;
    *count = found->via.array.size;
    return KVF_OK;
}

static enum kvf_status read_memories(struct reader *reader, const msgpack_object *layout, struct kvf_layout_spec *spec)
{
    const msgpack_object *items = NULL;
    int64_t *memories = NULL;
    enum kvf_status status = open_array(reader, layout, "memories", KVF_LAYOUT_MAX_MEMORIES, sizeof *memories, &items,
                                        &spec->memory_count, (void **)&memories);

    for (size_t i = 0; i < spec->memory_count && status == KVF_OK; i++)
        if (!kvfi_object_integer(&items[i], &memories[i]))
            status = kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "layout: memory %zu is %s, expected an integer", i,
                               kvfi_object_kind(&items[i]));
    spec->memory_bytes = memories;
    return status;
}

static enum kvf_status read_pools(struct reader *reader, const msgpack_object *layout, struct kvf_layout_spec *spec)
{
    const msgpack_object *items = NULL;
    struct kvf_pool *pools = NULL;
    enum kvf_status status = open_array(reader, layout, "pools", KVF_LAYOUT_MAX_POOLS, sizeof *pools, &items,
                                        &spec->pool_count, (void **)&pools);

    for (size_t i = 0; i < spec->pool_count && status == KVF_OK; i++) {
        int64_t n[4] = {0};

        status = read_row(reader, &items[i], "pool", i, n, 4);
        pools[i] = (struct kvf_pool){n[0], n[1], n[2], n[3]};
    }
    spec->pools = pools;
    return status;
}

static enum kvf_status read_groups(struct reader *reader, const msgpack_object *layout, struct kvf_layout_spec *spec)
{
    const msgpack_object *items = NULL;
    struct kvf_group *groups = NULL;
    enum kvf_status status = open_array(reader, layout, "groups", KVF_LAYOUT_MAX_GROUPS, sizeof *groups, &items,
                                        &spec->group_count, (void **)&groups);

    for (size_t i = 0; i < spec->group_count && status == KVF_OK; i++) {
        int64_t n[5] = {0};

        status = read_row(reader, &items[i], "group", i, n, 5);
        groups[i] = (struct kvf_group){n[0], n[1], n[2], n[3], n[4]};
    }
    spec->groups = groups;
    return status;
}

/** Reads one run of places, without its places; a plain place is a run of one. */
static enum kvf_status read_run(struct reader *reader, const msgpack_object *object, size_t view, int64_t run[7])
{
    bool is_run = object->type == MSGPACK_OBJECT_ARRAY && object->via.array.size == 7;
    enum kvf_status status = read_row(reader, object, "places of view", view, run, is_run ? 7 : 3);

    if (status == KVF_OK && !is_run) run[3] = 1;
    if (status == KVF_OK && (run[3] < 1 || run[3] > KVFI_WIRE_MAX_PLACES - reader->places))
        status = kvfi_fail(reader->error, KVF_ERR_LIMIT,
                           "layout: view %zu: a run of %" PRId64 " places after %" PRId64 ", at most %d are taken",
                           view, run[3], reader->places, KVFI_WIRE_MAX_PLACES);
    if (status == KVF_OK) reader->places += run[3];
    return status;
}

static enum kvf_status count_places(struct reader *reader, const msgpack_object *runs, size_t view, size_t *out)
{
    enum kvf_status status = KVF_OK;
    int64_t run[7] = {0}, before = reader->places;

    if (runs->type != MSGPACK_OBJECT_ARRAY)
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "layout: places of view %zu is %s, expected an array", view,
                         kvfi_object_kind(runs));
    for (size_t i = 0; i < runs->via.array.size && status == KVF_OK; i++)
        status = read_run(reader, &runs->via.array.ptr[i], view, run);
    *out = (size_t)(reader->places - before);
    reader->places = before;
    return status;
}

static enum kvf_status spell_run(struct reader *reader, const int64_t run[7], size_t view, struct kvf_place *out)
{
    for (int64_t k = 0; k < run[3]; k++)
        if (!kvfi_mad_i64(k, run[4], run[0], &out[k].layer) || !kvfi_mad_i64(k, run[5], run[1], &out[k].pool) ||
            !kvfi_mad_i64(k, run[6], run[2], &out[k].offset_bytes))
            return kvfi_fail(reader->error, KVF_ERR_OVERFLOW, "layout: a run of places of view %zu leaves 64 bits",
                             view);
    return KVF_OK;
}

static enum kvf_status read_places(struct reader *reader, const msgpack_object *runs, size_t index,
                                   struct kvf_view *view)
{
    size_t count = 0, at = 0;
    struct kvf_place *places;
    enum kvf_status status = count_places(reader, runs, index, &count);

    if (status != KVF_OK) return status;
    places = kvfi_arena_take(&reader->arena, count, sizeof *places);
    if (!places) return kvfi_fail_memory(reader->error, "a layout");
    for (size_t i = 0; i < runs->via.array.size && status == KVF_OK; i++) {
        int64_t run[7] = {0};

        status = read_run(reader, &runs->via.array.ptr[i], index, run);
        if (status == KVF_OK) status = spell_run(reader, run, index, places + at);
        at += (size_t)run[3];
    }
    view->places = places;
    view->place_count = count;
    return status;
}

static enum kvf_status read_view(struct reader *reader, const msgpack_object *object, size_t index,
                                 struct kvf_view *view)
{
    static const struct kvfi_text_rule role_rule = {"layout", "role", 1, 255}, tag_rule = {"layout", "tag", 1, 255};
    const msgpack_object *items = object->via.array.ptr;
    int64_t n[VIEW_NUMBERS];
    enum kvf_status status;

    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size != VIEW_FIELDS)
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "layout: view %zu is not an array of %d", index, VIEW_FIELDS);
    status = kvfi_object_text(&reader->arena, &items[0], &role_rule, &view->role, reader->error);
    if (status == KVF_OK) status = kvfi_object_text(&reader->arena, &items[1], &tag_rule, &view->tag, reader->error);
    for (size_t i = 0; i < VIEW_NUMBERS && status == KVF_OK; i++)
        if (!kvfi_object_integer(&items[2 + i], &n[i]))
            status = kvfi_fail(reader->error, KVF_ERR_PROTOCOL,
                               "layout: view %zu: number %zu is %s, expected an integer", index, i,
                               kvfi_object_kind(&items[2 + i]));
    if (status != KVF_OK) return status;
    if (n[11] < 0 || n[11] > UINT32_MAX)
        return kvfi_fail(reader->error, KVF_ERR_PROTOCOL, "layout: view %zu: flags are %" PRId64 ", expected 32 bits",
                         index, n[11]);
    view->group = n[0];
    view->row_bytes = n[1];
    view->byte_first = n[2];
    view->byte_count = n[3];
    view->unit_total = n[4];
    view->unit_first = n[5];
    view->unit_count = n[6];
    view->unit_stride_bytes = n[7];
    view->entry_stride_bytes = n[8];
    view->entries = n[9];
    view->slots_per_block = n[10];
    view->flags = (uint32_t)n[11];
    return read_places(reader, &items[VIEW_FIELDS - 1], index, view);
}

static enum kvf_status read_views(struct reader *reader, const msgpack_object *layout, struct kvf_layout_spec *spec)
{
    const msgpack_object *items = NULL;
    struct kvf_view *views = NULL;
    enum kvf_status status = open_array(reader, layout, "views", KVF_LAYOUT_MAX_VIEWS, sizeof *views, &items,
                                        &spec->view_count, (void **)&views);

    for (size_t i = 0; i < spec->view_count && status == KVF_OK; i++)
        status = read_view(reader, &items[i], i, &views[i]);
    spec->views = views;
    return status;
}

enum kvf_status kvfi_layout_unpack(const msgpack_object *object, kvf_layout **out, struct kvf_error *error)
{
    struct reader reader = {.error = error};
    struct kvf_layout_spec spec;
    enum kvf_status status = KVF_OK;

    kvf_layout_spec_init(&spec, sizeof spec);
    if (object->type != MSGPACK_OBJECT_MAP) {
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "layout is %s, expected a map", kvfi_object_kind(object));
        goto done;
    }
    status = read_memories(&reader, object, &spec);
    if (status == KVF_OK) status = read_pools(&reader, object, &spec);
    if (status == KVF_OK) status = read_groups(&reader, object, &spec);
    if (status == KVF_OK) status = read_views(&reader, object, &spec);
    if (status == KVF_OK) status = kvf_layout_create(&spec, out, error);
done:
    kvfi_arena_fini(&reader.arena);
    return status;
}
