/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/regions.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"

/* One allocation holds all: this, the regions, the eight arrays, the groups, the names. */
struct kvf_vllm_regions {
    atomic_int references;
    size_t count, bytes;
    struct kvf_vllm_region *items;
    struct kvf_vllm_arrays arrays;
};

/* What the regions refer to. What the region before has as well is stored once. */
struct measure {
    size_t name_bytes, id_count;
};

bool kvfi_vllm_ids_equal(const struct kvf_vllm_ids *a, const struct kvf_vllm_ids *b)
{
    return a->count == b->count
           && (a->count == 0 || a->ids == b->ids || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

static bool repeats_name(const struct kvf_vllm_region *items, size_t i)
{
    return i > 0 && (items[i].layer_name == items[i - 1].layer_name
                     || strcmp(items[i].layer_name, items[i - 1].layer_name) == 0);
}

static bool repeats_groups(const struct kvf_vllm_region *items, size_t i)
{
    return i > 0 && kvfi_vllm_ids_equal(&items[i].shared_groups, &items[i - 1].shared_groups);
}

static enum kvf_status check_region(const struct kvf_vllm_region *region, size_t i, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!region->layer_name || (region->shared_groups.count > 0 && !region->shared_groups.ids)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "region %zu: its %s is NULL", i,
                           region->layer_name ? "list of shared groups" : "layer name");
    } else if (region->block_len < 0 || region->kv_block_len < 0) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "region %zu: block_len %" PRId64 " and kv_block_len %" PRId64 ", expected 0 bytes or more",
                           i, region->block_len, region->kv_block_len);
    }
    return status;
}

static enum kvf_status measure(const struct kvf_vllm_region *items, size_t count, struct measure *all,
                               struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    *all = (struct measure){0};
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        status = check_region(&items[i], i, error);
        if (status != KVF_OK) break;
        if (!repeats_name(items, i)) {
            size_t bytes = strnlen(items[i].layer_name, KVFI_VLLM_MAX_NAME_BYTES + 1) + 1;

            all->name_bytes += bytes;
            if (bytes > KVFI_VLLM_MAX_NAME_BYTES || all->name_bytes > KVFI_VLLM_MAX_ALL_NAME_BYTES) {
                status = kvfi_fail(error, KVF_ERR_LIMIT,
                                   "region %zu: layer names pass the limit of %d bytes, %d in all",
                                   i, KVFI_VLLM_MAX_NAME_BYTES, KVFI_VLLM_MAX_ALL_NAME_BYTES);
            }
        }
        if (!repeats_groups(items, i)) {
            size_t ids = items[i].shared_groups.count;

            if (ids > KVFI_VLLM_MAX_SHARED_GROUPS - all->id_count) {
                status = kvfi_fail(error, KVF_ERR_LIMIT, "region %zu: shared groups pass the limit of %d in all", i,
                                   KVFI_VLLM_MAX_SHARED_GROUPS);
            } else {
                all->id_count += ids;
            }
        }
    }
    return status;
}

/* Gives out the next `bytes` of one allocation. All sizes but the last, of the names, are multiples of 8. */
static void *take(char **next, size_t bytes)
{
    void *taken = *next;

    *next += bytes;
    return taken;
}

/* Names and groups move into the list's own memory. */
static void own_texts(struct kvf_vllm_regions *regions, int64_t *ids, char *names)
{
    struct kvf_vllm_region before;

    for (size_t i = 0; i < regions->count; i++) {
        struct kvf_vllm_region *own = &regions->items[i], was = *own;

        if (i > 0 && strcmp(before.layer_name, was.layer_name) == 0) {
            own->layer_name = own[-1].layer_name;
        } else {
            size_t bytes = strlen(was.layer_name) + 1;

            own->layer_name = memcpy(names, was.layer_name, bytes);
            names += bytes;
        }
        if (i > 0 && kvfi_vllm_ids_equal(&before.shared_groups, &was.shared_groups)) {
            own->shared_groups = own[-1].shared_groups;
        } else {
            size_t count = was.shared_groups.count;

            own->shared_groups.ids = count > 0 ? memcpy(ids, was.shared_groups.ids, count * sizeof *ids) : NULL;
            ids += count;
        }
        before = was;
    }
}

static void point_arrays(struct kvf_vllm_regions *regions, char **next)
{
    size_t count = regions->count;
    uint64_t *bases = take(next, count * sizeof *bases);
    int64_t *numbers[5];
    const char **names;
    struct kvf_vllm_ids *shared;

    for (int i = 0; i < 5; i++) numbers[i] = take(next, count * sizeof **numbers);
    shared = take(next, count * sizeof *shared);
    names = take(next, count * sizeof *names);
    for (size_t i = 0; i < count; i++) {
        const struct kvf_vllm_region *item = &regions->items[i];

        bases[i] = item->base_addr;
        numbers[0][i] = item->block_len;
        numbers[1][i] = item->kv_block_len;
        numbers[2][i] = item->layer_index;
        numbers[3][i] = item->group_index;
        numbers[4][i] = item->row_offset;
        names[i] = item->layer_name;
        shared[i] = item->shared_groups;
    }
    regions->arrays = (struct kvf_vllm_arrays){
        bases, count, numbers[0], count, numbers[1], count, names, count,
        numbers[2], count, numbers[3], count, shared, count, numbers[4], count,
    };
}

enum kvf_status kvf_vllm_regions_create(const struct kvf_vllm_region *items, size_t count, kvf_vllm_regions **out,
                                        struct kvf_error *error)
{
    const size_t each = sizeof *items + 6 * sizeof(int64_t) + sizeof(struct kvf_vllm_ids) + sizeof(char *);
    struct kvf_vllm_regions *regions;
    struct measure all;
    size_t bytes;
    char *next;
    int64_t *ids;
    enum kvf_status status = KVF_OK;

    _Static_assert(sizeof(char *) == sizeof(int64_t) && sizeof *regions % 8 == 0, "parts follow each other aligned");
    if (!out || (count > 0 && !items)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "regions: %s is NULL", out ? "the array" : "out");
        goto done;
    }
    if (count > KVFI_VLLM_MAX_REGIONS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "regions: %zu of them, the limit is %d", count, KVFI_VLLM_MAX_REGIONS);
        goto done;
    }
    status = measure(items, count, &all, error);
    if (status != KVF_OK) goto done;
    bytes = sizeof *regions + count * each + all.id_count * sizeof *ids + all.name_bytes;
    regions = malloc(bytes);
    if (!regions) {
        status = kvfi_fail_memory(error, "a list of regions");
        goto done;
    }
    next = (char *)(regions + 1);
    atomic_init(&regions->references, 1);
    regions->count = count;
    regions->bytes = bytes;
    regions->items = take(&next, count * sizeof *items);
    if (count > 0) memcpy(regions->items, items, count * sizeof *items);
    ids = (int64_t *)(next + count * (each - sizeof *items));
    own_texts(regions, ids, (char *)(ids + all.id_count));
    point_arrays(regions, &next);
    *out = regions;
done:
    return status;
}

size_t kvfi_vllm_regions_memory(const kvf_vllm_regions *regions)
{
    return regions ? regions->bytes : 0;
}

const struct kvf_vllm_region *kvf_vllm_regions_get(const kvf_vllm_regions *regions, size_t *count)
{
    *count = regions ? regions->count : 0;
    return regions ? regions->items : NULL;
}

void kvf_vllm_regions_arrays(const kvf_vllm_regions *regions, struct kvf_vllm_arrays *out)
{
    *out = regions ? regions->arrays : (struct kvf_vllm_arrays){0};
}

kvf_vllm_regions *kvf_vllm_regions_acquire(const kvf_vllm_regions *regions)
{
    kvf_vllm_regions *mine = (kvf_vllm_regions *)regions;

    if (mine) atomic_fetch_add_explicit(&mine->references, 1, memory_order_relaxed);
    return mine;
}

void kvf_vllm_regions_release(kvf_vllm_regions *regions)
{
    if (regions && atomic_fetch_sub_explicit(&regions->references, 1, memory_order_acq_rel) == 1) free(regions);
}
