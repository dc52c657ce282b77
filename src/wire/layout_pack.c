/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "wire/layout.h"
#include "wire/messages.h"
#include "wire/text.h"

static void pack_text(msgpack_packer *packer, const char *text)
{
    size_t byte_count = strlen(text);

    msgpack_pack_str(packer, byte_count);
    msgpack_pack_str_body(packer, text, byte_count);
}

static void pack_row(msgpack_packer *packer, const int64_t *numbers, size_t count)
{
    msgpack_pack_array(packer, count);
    for (size_t i = 0; i < count; i++) msgpack_pack_int64(packer, numbers[i]);
}

static void pack_pools(msgpack_packer *packer, const struct kvf_layout_spec *spec)
{
    msgpack_pack_array(packer, spec->pool_count);
    for (size_t i = 0; i < spec->pool_count; i++) {
        const struct kvf_pool *pool = &spec->pools[i];

        pack_row(packer, (int64_t[]){pool->memory, pool->base_offset_bytes, pool->slot_stride_bytes, pool->slots}, 4);
    }
}

static void pack_groups(msgpack_packer *packer, const struct kvf_layout_spec *spec)
{
    msgpack_pack_array(packer, spec->group_count);
    for (size_t i = 0; i < spec->group_count; i++) {
        const struct kvf_group *group = &spec->groups[i];

        pack_row(packer, (int64_t[]){group->tokens_per_block, group->ring_tokens, group->stripes, group->stripe,
                                     group->stripe_tokens}, 5);
    }
}

static bool step_between(const struct kvf_place *a, const struct kvf_place *b, int64_t step[3])
{
    return kvfi_sub_i64(b->layer, a->layer, &step[0]) && kvfi_sub_i64(b->pool, a->pool, &step[1]) &&
           kvfi_sub_i64(b->offset_bytes, a->offset_bytes, &step[2]);
}

/** Places from the start of `places` that are equally far apart, and how far; 1 when fewer than three are. */
static size_t run_length(const struct kvf_place *places, size_t count, int64_t step[3])
{
    int64_t next[3];
    size_t length = 2;

    if (count < 3 || !step_between(&places[0], &places[1], step)) return 1;
    while (length < count && step_between(&places[length - 1], &places[length], next) &&
           memcmp(step, next, sizeof next) == 0)
        length++;
    return length < 3 ? 1 : length;
}

static size_t count_runs(const struct kvf_view *view)
{
    size_t runs = 0;
    int64_t step[3];

    for (size_t i = 0; i < view->place_count; i += run_length(view->places + i, view->place_count - i, step)) runs++;
    return runs;
}

static void pack_places(msgpack_packer *packer, const struct kvf_view *view)
{
    size_t at = 0;

    msgpack_pack_array(packer, count_runs(view));
    while (at < view->place_count) {
        const struct kvf_place *place = &view->places[at];
        int64_t step[3] = {0};
        size_t length = run_length(place, view->place_count - at, step);

        pack_row(packer, (int64_t[]){place->layer, place->pool, place->offset_bytes, (int64_t)length, step[0], step[1],
                                     step[2]}, length == 1 ? 3 : 7);
        at += length;
    }
}

static enum kvf_status pack_view(msgpack_packer *packer, const struct kvf_view *view, size_t index,
                                 struct kvf_error *error)
{
    const int64_t numbers[] = {view->group, view->row_bytes, view->byte_first, view->byte_count, view->unit_total,
                               view->unit_first, view->unit_count, view->unit_stride_bytes, view->entry_stride_bytes,
                               view->entries, view->slots_per_block, view->flags};
    const size_t number_count = sizeof numbers / sizeof numbers[0];

    if (!kvfi_text_is_clean(view->role, strlen(view->role)) || !kvfi_text_is_clean(view->tag, strlen(view->tag)))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "hello: view %zu: role or tag has control characters or is not UTF-8", index);
    msgpack_pack_array(packer, 3 + number_count);
    pack_text(packer, view->role);
    pack_text(packer, view->tag);
    for (size_t i = 0; i < number_count; i++) msgpack_pack_int64(packer, numbers[i]);
    pack_places(packer, view);
    return KVF_OK;
}

static enum kvf_status check_places(const struct kvf_layout_spec *spec, struct kvf_error *error)
{
    size_t places = 0;

    for (size_t i = 0; i < spec->view_count; i++) places += spec->views[i].place_count;
    if (places > KVFI_WIRE_MAX_PLACES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "hello: layout has %zu places, at most %d are sent", places,
                         KVFI_WIRE_MAX_PLACES);
    return KVF_OK;
}

enum kvf_status kvfi_layout_pack(const kvf_layout *layout, msgpack_packer *packer, struct kvf_error *error)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(layout);
    enum kvf_status status = check_places(spec, error);

    if (status != KVF_OK) return status;
    msgpack_pack_map(packer, 4);
    pack_text(packer, "memories");
    pack_row(packer, spec->memory_bytes, spec->memory_count);
    pack_text(packer, "pools");
    pack_pools(packer, spec);
    pack_text(packer, "groups");
    pack_groups(packer, spec);
    pack_text(packer, "views");
    msgpack_pack_array(packer, spec->view_count);
    for (size_t i = 0; i < spec->view_count && status == KVF_OK; i++)
        status = pack_view(packer, &spec->views[i], i, error);
    return status;
}
