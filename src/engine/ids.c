/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "engine/engine.h"
#include "plan/bind.h"

struct kvf_id_list *kvfi_block_ids_copy(const struct kvf_id_list *lists, size_t count)
{
    size_t ids = 0, heads, tail, bytes;
    struct kvf_id_list *copy = NULL;
    int64_t *next;

    for (size_t i = 0; i < count; i++)
        if (!kvfi_add_size(ids, lists[i].count, &ids))
            return NULL;
    if (!kvfi_mul_size(count, sizeof *copy, &heads) || !kvfi_mul_size(ids, sizeof(int64_t), &tail) ||
        !kvfi_add_size(heads, tail, &bytes))
        return NULL;
    copy = malloc(bytes == 0 ? 1 : bytes);
    if (copy == NULL)
        return NULL;
    next = (int64_t *)(void *)((char *)copy + heads);
    for (size_t i = 0; i < count; i++) {
        copy[i] = (struct kvf_id_list){.ids = next, .count = lists[i].count, .first = lists[i].first};
        if (lists[i].count > 0)
            memcpy(next, lists[i].ids, lists[i].count * sizeof(int64_t));
        next += lists[i].count;
    }
    return copy;
}

/* Ids below this address a slot in every pool that the group's views lie in. */
static int64_t id_bound(const struct kvf_layout_spec *spec, size_t group)
{
    int64_t bound = INT64_MAX;

    for (size_t v = 0; v < spec->view_count; v++) {
        const struct kvf_view *view = &spec->views[v];
        for (size_t p = 0; view->group == (int64_t)group && p < view->place_count; p++) {
            int64_t ids = spec->pools[view->places[p].pool].slots / view->slots_per_block;
            bound = ids < bound ? ids : bound;
        }
    }
    return bound;
}

static enum kvf_status check_repeats(const struct kvf_id_list *list, size_t group, int64_t bound,
                                     struct kvf_error *error)
{
    size_t index = list->count;
    enum kvf_status status = list->count == 0 ? KVF_OK : kvfi_ids_find_repeat(list->ids, list->count, 0, bound, &index);

    if (status != KVF_OK)
        return kvfi_fail_memory(error, "block ids");
    if (index < list->count)
        status = kvfi_fail(error, KVF_ERR_IDS, "group %zu: block id %" PRId64 " is there twice", group,
                           list->ids[index]);
    return status;
}

static enum kvf_status check_count(const struct kvf_group *group, const struct kvf_id_list *list, size_t number,
                                   int64_t token_begin, int64_t token_end, struct kvf_error *error)
{
    int64_t blocks, end;

    if (group->tokens_per_block == 0 || group->ring_tokens != 0 || group->stripes > 1 || token_begin >= token_end)
        return KVF_OK;
    blocks = (token_end - 1) / group->tokens_per_block + 1;
    if (!kvfi_add_i64(list->first, (int64_t)list->count, &end) || end < blocks)
        return kvfi_fail(error, KVF_ERR_IDS,
                         "group %zu: %zu block ids from ordinal %" PRId64 " on, %" PRId64
                         " blocks of %" PRId64 " tokens are needed for tokens [%" PRId64 ", %" PRId64 ")",
                         number, list->count, list->first, blocks, group->tokens_per_block, token_begin, token_end);
    return KVF_OK;
}

static enum kvf_status check_list(const kvf_layout *layout, const struct kvf_id_list *list, size_t group,
                                  int64_t token_begin, int64_t token_end, struct kvf_error *error)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(layout);
    int64_t bound = id_bound(spec, group);
    enum kvf_status status = KVF_OK;

    if ((list->ids == NULL && list->count > 0) || list->first < 0)
        return kvfi_fail(error, KVF_ERR_IDS, "group %zu: %zu block ids from ordinal %" PRId64 " on: no such list",
                         group,
                         list->count, list->first);
    for (size_t i = 0; status == KVF_OK && i < list->count; i++)
        if (list->ids[i] < -1 || list->ids[i] >= bound)
            status = kvfi_fail(error, KVF_ERR_IDS,
                               "group %zu: block id %" PRId64 " at index %zu, expected -1 to %" PRId64, group,
                               list->ids[i], i, bound - 1);
    if (status == KVF_OK)
        status = check_repeats(list, group, bound, error);
    if (status == KVF_OK)
        status = check_count(&spec->groups[group], list, group, token_begin, token_end, error);
    return status;
}

enum kvf_status kvfi_block_ids_check(const kvf_layout *layout, const struct kvf_id_list *lists, size_t count,
                               int64_t token_begin, int64_t token_end, struct kvf_error *error)
{
    size_t groups = kvf_layout_get_spec(layout)->group_count;
    enum kvf_status status = KVF_OK;

    if (count != groups || (lists == NULL && count > 0))
        return kvfi_fail(error, KVF_ERR_IDS, "%zu lists of block ids, the layout has %zu groups", count, groups);
    for (size_t i = 0; status == KVF_OK && i < count; i++)
        status = check_list(layout, &lists[i], i, token_begin, token_end, error);
    return status;
}
