/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/share.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"

static int compare_key(const char *role_a, int64_t layer_a, const char *role_b, int64_t layer_b)
{
    int order = role_a == role_b ? 0 : strcmp(role_a, role_b);

    return order ? order : kvfi_compare_i64(layer_a, layer_b);
}

static int compare_cells(const void *left, const void *right)
{
    const struct kvf_cell *a = left, *b = right;
    int order = compare_key(a->role, a->layer, b->role, b->layer);

    if (!order) order = kvfi_compare_i64(a->unit_first, b->unit_first);
    if (!order) order = kvfi_compare_i64(a->byte_first, b->byte_first);
    return order;
}

/* Moves the roles of sorted cells into the share's own text, each distinct one once. */
static bool own_roles(struct kvf_share *share)
{
    size_t bytes = 1, at = 0;
    const char *last = NULL;
    char *own = NULL;

    for (size_t i = 0; i < share->count; i++) {
        if (!last || strcmp(last, share->cells[i].role) != 0) {
            last = share->cells[i].role;
            bytes += strlen(last) + 1;
        }
    }
    share->text = malloc(bytes);
    if (!share->text) return false;
    last = NULL;
    for (size_t i = 0; i < share->count; i++) {
        if (!last || strcmp(last, share->cells[i].role) != 0) {
            last = share->cells[i].role;
            own = memcpy(share->text + at, last, strlen(last) + 1);
            at += strlen(last) + 1;
        }
        share->cells[i].role = own;
    }
    return true;
}

enum kvf_status kvfi_share_create(const struct kvf_cell *cells, size_t count, struct kvf_share **out,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvf_share *share = calloc(1, sizeof *share);

    if (share) share->cells = kvfi_alloc_array(count, sizeof *cells);
    if (!share || !share->cells) {
        status = kvfi_fail_memory(error, "share");
        goto done;
    }
    share->count = count;
    if (count) {
        memcpy(share->cells, cells, count * sizeof *cells);
        qsort(share->cells, count, sizeof *cells, compare_cells);
    }
    if (!own_roles(share)) {
        status = kvfi_fail_memory(error, "share");
        goto done;
    }
    *out = share;
    share = NULL;
done:
    kvfi_share_destroy(share);
    return status;
}

void kvfi_share_destroy(struct kvf_share *share)
{
    if (share) {
        free(share->text);
        free(share->cells);
        free(share);
    }
}

const struct kvf_cell *kvfi_share_find(const struct kvf_share *share, const char *role, int64_t layer, size_t *count)
{
    size_t low = 0, high = share->count, end;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct kvf_cell *cell = &share->cells[middle];

        if (compare_key(cell->role, cell->layer, role, layer) < 0) low = middle + 1;
        else high = middle;
    }
    for (end = low; end < share->count; end++) {
        if (compare_key(share->cells[end].role, share->cells[end].layer, role, layer) != 0) break;
    }
    *count = end - low;
    return share->cells + low;
}

size_t kvf_share_count(const kvf_share *share)
{
    return share->count;
}

struct kvf_cell kvf_share_cell(const kvf_share *share, size_t index)
{
    return index < share->count ? share->cells[index] : (struct kvf_cell){.role = ""};
}
