/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "plan/bind.h"

enum { WORD_BITS = 64 };

static enum kvf_status fail_repeated(const struct kvf_id_list *list, size_t index, const char *side, size_t group,
                                     struct kvf_error *error)
{
    size_t before = 0;

    while (before < index && list->ids[before] != list->ids[index]) before++;
    return kvfi_fail(error, KVF_ERR_IDS, "%s group %zu: id %" PRId64 " at index %zu is at index %zu already", side,
                     group, list->ids[index], index, before);
}

/** Finds the first id that came before, by a bitmap over [low, high]. Returns `count` when there is none. */
static size_t find_repeat_in_bitmap(const int64_t *ids, size_t count, int64_t low, uint64_t *bits)
{
    size_t found = count;

    for (size_t i = 0; i < count && found == count; i++) {
        uint64_t at = (uint64_t)(ids[i] - low), mask = UINT64_C(1) << (at % WORD_BITS);

        if (ids[i] < 0) continue;
        if (bits[at / WORD_BITS] & mask) found = i;
        bits[at / WORD_BITS] |= mask;
    }
    return found;
}

static int order_ids(const void *left, const void *right)
{
    const int64_t *a = *(const int64_t *const *)left, *b = *(const int64_t *const *)right;

    if (*a != *b) return *a > *b ? 1 : -1;
    return (a > b) - (a < b);
}

/** The same for ids that lie far apart: by sorting pointers to them. */
static size_t find_repeat_by_sorting(const int64_t *ids, size_t count, const int64_t **sorted)
{
    size_t found = count;

    for (size_t i = 0; i < count; i++) sorted[i] = &ids[i];
    qsort(sorted, count, sizeof *sorted, order_ids);
    for (size_t i = 1; i < count; i++) {
        size_t index = (size_t)(sorted[i] - ids);

        if (*sorted[i] >= 0 && *sorted[i] == *sorted[i - 1] && index < found) found = index;
    }
    return found;
}

enum kvf_status kvfi_ids_find_repeat(const int64_t *ids, size_t count, int64_t low, int64_t high, size_t *index)
{
    enum kvf_status status = KVF_OK;
    uint64_t words = (uint64_t)(high - low) / WORD_BITS + 1;
    bool near = words <= 2 * (uint64_t)count + 1024;
    void *scratch =
        near ? kvfi_alloc_zeroed((size_t)words, sizeof(uint64_t)) : kvfi_alloc_array(count, sizeof(int64_t *));

    if (!scratch) {
        status = KVF_ERR_NO_MEMORY;
        goto done;
    }
    *index = near ? find_repeat_in_bitmap(ids, count, low, scratch) : find_repeat_by_sorting(ids, count, scratch);
done:
    free(scratch);
    return status;
}

/** Refuses an id that is twice in the first `count`; holes do not count. [low, high] holds all ids. */
static enum kvf_status check_repeats(const struct kvf_id_list *list, size_t count, int64_t low, int64_t high,
                                     const char *side, size_t group, struct kvf_error *error)
{
    size_t found;
    enum kvf_status status = kvfi_ids_find_repeat(list->ids, count, low, high, &found);

    if (status != KVF_OK) kvfi_fail_memory(error, "a check of block ids");
    else if (found < count) status = fail_repeated(list, found, side, group, error);
    return status;
}

enum kvf_status kvfi_ids_check(const struct kvf_id_list *list, int64_t needed, int64_t limit, bool repeats,
                               const char *side, size_t group, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t low = INT64_MAX, high = -1;
    size_t count = list->count;
    bool rising = true;

    if (list->first < 0 || count > INT64_MAX / 2 || (count && !list->ids)) {
        status = kvfi_fail(error, KVF_ERR_IDS, "%s group %zu: %zu ids from ordinal %" PRId64 " are no list", side,
                           group, count, list->first);
        goto done;
    }
    if (list->first >= needed) count = 0;
    else if (count > (uint64_t)(needed - list->first)) count = (size_t)(needed - list->first);
    for (size_t i = 0; i < count; i++) {
        int64_t id = list->ids[i];

        if (id < -1 || (id >= limit && limit >= 0)) {
            status = limit >= 0 ? kvfi_fail(error, KVF_ERR_IDS,
                                            "%s group %zu: id %" PRId64 " at index %zu, expected -1 or below %" PRId64,
                                            side, group, id, i, limit)
                                : kvfi_fail(error, KVF_ERR_IDS,
                                            "%s group %zu: id %" PRId64 " at index %zu, expected -1 or more", side,
                                            group, id, i);
            goto done;
        }
        if (id < 0) continue;
        rising = rising && id > high;
        if (id > high) high = id;
        if (id < low) low = id;
    }
    if (limit >= 0 && !repeats && !rising) status = check_repeats(list, count, low, high, side, group, error);
done:
    return status;
}
