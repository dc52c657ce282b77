/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/align.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"
#include "vllm/regions.h"

/* What a local region is paired with, when not with the index of a remote one. */
#define NAME_MISSING SIZE_MAX
#define OCCURRENCE_MISSING (SIZE_MAX - 1)

/* Regions of one name that follow each other. */
struct run {
    const char *name;
    size_t first, count;
};

static int compare_runs(const void *a, const void *b)
{
    const struct run *one = a, *other = b;
    int names = strcmp(one->name, other->name);

    return names ? names : kvfi_compare_size(one->first, other->first);
}

/* The runs of a list, sorted by name and place. Returns how many. */
static size_t list_runs(const struct kvf_vllm_region *items, size_t count, struct run *runs)
{
    size_t run_count = 0;

    for (size_t i = 0; i < count; i++) {
        struct run *last = run_count > 0 ? &runs[run_count - 1] : NULL;

        if (last && strcmp(last->name, items[i].layer_name) == 0) {
            last->count++;
        } else {
            runs[run_count++] = (struct run){items[i].layer_name, i, 1};
        }
    }
    qsort(runs, run_count, sizeof *runs, compare_runs);
    return run_count;
}

/* Pairs all local runs of one name with the remote ones of it, which begin at `far`. */
static void match_name(const struct run *near, size_t near_count, const struct run *far, const struct run *far_end,
                       size_t *match)
{
    bool known = far < far_end && strcmp(far->name, near->name) == 0;
    size_t used = 0;

    for (size_t i = 0; i < near_count; i++) {
        for (size_t k = 0; k < near[i].count; k++) {
            bool found = far < far_end && strcmp(far->name, near->name) == 0;

            match[near[i].first + k] = found ? far->first + used : known ? OCCURRENCE_MISSING : NAME_MISSING;
            if (found && ++used == far->count) {
                far++;
                used = 0;
            }
        }
    }
}

static void match_runs(const struct run *near, size_t near_count, const struct run *far, size_t far_count,
                       size_t *match)
{
    const struct run *far_end = far + far_count;
    size_t same;

    for (size_t i = 0; i < near_count; i += same) {
        for (same = 1; i + same < near_count && strcmp(near[i].name, near[i + same].name) == 0;) same++;
        while (far < far_end && strcmp(far->name, near[i].name) < 0) far++;
        match_name(&near[i], same, far, far_end, match);
    }
}

/* Most peers list the same layers in the same order. */
static bool match_in_order(const struct kvf_vllm_region *local, size_t local_count,
                           const struct kvf_vllm_region *remote, size_t remote_count, size_t *match)
{
    bool same = local_count <= remote_count;

    for (size_t i = 0; same && i < local_count; i++) {
        same = strcmp(local[i].layer_name, remote[i].layer_name) == 0;
        match[i] = i;
    }
    return same;
}

/* A list of groups as upstream prints a tuple. */
static void print_tuple(const struct kvf_vllm_ids *ids, char *text, size_t capacity)
{
    size_t used = (size_t)snprintf(text, capacity, "(");

    for (size_t i = 0; i < ids->count && used < capacity; i++) {
        used += (size_t)snprintf(text + used, capacity - used, "%s%" PRId64, i > 0 ? ", " : "", ids->ids[i]);
    }
    if (used < capacity) snprintf(text + used, capacity - used, ids->count == 1 ? ",)" : ")");
}

static enum kvf_status check_pair(const struct kvf_vllm_region *local, const struct kvf_vllm_region *remote,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (local->layer_index != remote->layer_index) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake registered layer index mismatch for %s: producer=%" PRId64 ", consumer=%" PRId64
                           ".", local->layer_name, local->layer_index, remote->layer_index);
    } else if (local->group_index != remote->group_index) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake registered group index mismatch for %s: producer=%" PRId64 ", consumer=%" PRId64
                           ".", local->layer_name, local->group_index, remote->group_index);
    } else if (local->shared_groups.count > 0 && remote->shared_groups.count > 0
               && !kvfi_vllm_ids_equal(&local->shared_groups, &remote->shared_groups)) {
        char own[KVF_ERROR_TEXT_BYTES], peers[KVF_ERROR_TEXT_BYTES];

        print_tuple(&local->shared_groups, own, sizeof own);
        print_tuple(&remote->shared_groups, peers, sizeof peers);
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake shared-group set mismatch for %s: producer=%s, consumer=%s.", local->layer_name,
                           own, peers);
    }
    return status;
}

static enum kvf_status fail_missing(const struct kvf_vllm_region *items, size_t i, struct kvf_error *error)
{
    size_t occurrence = 0;

    for (size_t k = 0; k < i; k++) occurrence += strcmp(items[k].layer_name, items[i].layer_name) == 0;
    return kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                     "Mooncake producer registered layer has no matching consumer occurrence: %s occurrence %zu.",
                     items[i].layer_name, occurrence);
}

/* Decides in the order of the local list, so that the first problem is the one told. */
static enum kvf_status take_pairs(const struct kvf_vllm_region *local, size_t count,
                                  const struct kvf_vllm_region *remote, const size_t *match, bool allow_partial,
                                  struct kvfi_vllm_pairs *pairs, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        if (match[i] == NAME_MISSING && allow_partial) continue;
        if (match[i] == NAME_MISSING || match[i] == OCCURRENCE_MISSING) {
            status = fail_missing(local, i, error);
        } else {
            status = check_pair(&local[i], &remote[match[i]], error);
            pairs->local[pairs->count] = local[i];
            pairs->remote[pairs->count++] = remote[match[i]];
        }
    }
    return status;
}

enum kvf_status kvfi_vllm_align(const kvf_vllm_regions *local, const kvf_vllm_regions *remote, bool allow_partial,
                                struct kvfi_vllm_pairs *out, struct kvf_error *error)
{
    size_t local_count, remote_count;
    const struct kvf_vllm_region *near = kvf_vllm_regions_get(local, &local_count);
    const struct kvf_vllm_region *far = kvf_vllm_regions_get(remote, &remote_count);
    size_t *match = kvfi_alloc_array(local_count, sizeof *match);
    struct run *runs = NULL;
    struct kvfi_vllm_pairs pairs = {0};
    enum kvf_status status = KVF_OK;

    pairs.local = kvfi_alloc_array(local_count * 2, sizeof *pairs.local);
    if (!match || !pairs.local) {
        status = kvfi_fail_memory(error, "the pairs of regions");
        goto done;
    }
    pairs.remote = pairs.local + local_count;
    if (!match_in_order(near, local_count, far, remote_count, match)) {
        size_t run_count;

        runs = kvfi_alloc_array(local_count + remote_count, sizeof *runs);
        if (!runs) {
            status = kvfi_fail_memory(error, "the regions by name");
            goto done;
        }
        run_count = list_runs(near, local_count, runs);
        match_runs(runs, run_count, runs + run_count, list_runs(far, remote_count, runs + run_count), match);
    }
    status = take_pairs(near, local_count, far, match, allow_partial, &pairs, error);
done:
    free(runs);
    free(match);
    if (status == KVF_OK) {
        *out = pairs;
    } else {
        kvfi_vllm_pairs_fini(&pairs);
    }
    return status;
}

void kvfi_vllm_pairs_fini(struct kvfi_vllm_pairs *pairs)
{
    free(pairs->local);
    *pairs = (struct kvfi_vllm_pairs){0};
}
