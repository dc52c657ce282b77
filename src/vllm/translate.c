/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/translate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/bind.h"

/** One side's ids of one group, before translation. */
struct given {
    const int64_t *ids;
    size_t count;
    size_t holes; /**< ids that stand for no block: 0 of a recurrent group */
};

static bool is_recurrent(const kvf_vllm_prepared *prepared, size_t group)
{
    return prepared->group_kinds[group] == KVF_VLLM_MAMBA;
}

static struct given read_group(const struct kvf_vllm_ids *ids, bool recurrent)
{
    struct given given = {ids->ids, ids->count, 0};

    for (size_t i = 0; recurrent && i < ids->count; i++) given.holes += ids->ids[i] == 0;
    return given;
}

/** Writes the last `count` blocks of a list, `steps` kernel blocks each, holes left out. */
static void write_blocks(const struct given *given, size_t count, int64_t steps, int64_t *out)
{
    size_t skipped = given->count - given->holes - count;

    for (size_t i = 0; i < given->count; i++) {
        int64_t id = given->ids[i];

        if (given->holes && id == 0) continue;
        if (skipped > 0) {
            skipped--;
            continue;
        }
        for (int64_t step = 0; step < steps; step++) *out++ = id * steps + step;
    }
}

/** Finds the smallest and the largest id. */
static void find_bounds(const int64_t *ids, size_t count, int64_t *low, int64_t *high)
{
    int64_t least = ids[0], most = ids[0];

    for (size_t i = 1; i < count; i++) {
        least = ids[i] < least ? ids[i] : least;
        most = ids[i] > most ? ids[i] : most;
    }
    *low = least;
    *high = most;
}

/** What one group needs: how many blocks move, and whether its ids can stay where they are. */
struct need {
    struct given src, dst;
    size_t count;  /**< logical blocks */
    int64_t steps; /**< kernel blocks of each */
    bool copies;
};

static enum kvf_status look_at_group(const kvf_vllm_prepared *prepared, size_t group,
                                     const struct kvf_vllm_ids *producer, const struct kvf_vllm_ids *consumer,
                                     struct need *need, struct kvf_error *error)
{
    bool recurrent = is_recurrent(prepared, group);
    size_t src_count;

    need->src = read_group(producer, recurrent);
    need->dst = read_group(consumer, recurrent);
    need->steps = recurrent ? 1 : prepared->kernel_blocks_per_block;
    src_count = need->src.count - need->src.holes;
    need->count = need->dst.count - need->dst.holes;
    if (src_count < need->count) return kvfi_fail(error, KVF_ERR_IDS, "P num blocks less than D");
    need->copies = need->count > 0 && (need->steps > 1 || need->src.holes || need->dst.holes);
    return KVF_OK;
}

/** Refuses ids below 0, and those whose kernel blocks have no numbers. */
static enum kvf_status check_bounds(const struct kvfi_vllm_blocks *blocks, size_t group, int64_t steps,
                                    struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (blocks->src_low < 0 || blocks->dst_low < 0) {
        status = kvfi_fail(error, KVF_ERR_IDS, "KV group %zu: block id %" PRId64 " of the %s, expected 0 or more",
                           group, blocks->src_low < 0 ? blocks->src_low : blocks->dst_low,
                           blocks->src_low < 0 ? "producer" : "consumer");
    } else if (blocks->src_high >= INT64_MAX / steps || blocks->dst_high >= INT64_MAX / steps) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                           "KV group %zu: block id %" PRId64 " lies past the end of all addresses", group,
                           blocks->src_high > blocks->dst_high ? blocks->src_high : blocks->dst_high);
    }
    return status;
}

/** Points a group at its ids, or writes them to `*own`. The bounds are those of logical ids until they were checked. */
static enum kvf_status take_group(const struct need *need, size_t group, int64_t **own, struct kvfi_vllm_blocks *out,
                                  struct kvf_error *error)
{
    size_t count = need->count * (size_t)need->steps;
    enum kvf_status status = KVF_OK;

    *out = (struct kvfi_vllm_blocks){.count = 0};
    if (need->count == 0) goto done;
    out->src = need->src.ids + (need->src.count - need->count);
    out->dst = need->dst.ids + (need->dst.count - need->count);
    if (need->copies) {
        /* Without kernel blocks yet: products are made of checked ids alone. */
        write_blocks(&need->src, need->count, 1, *own);
        write_blocks(&need->dst, need->count, 1, *own + count);
        out->src = *own;
        out->dst = *own + count;
    }
    out->count = need->count;
    find_bounds(out->src, out->count, &out->src_low, &out->src_high);
    find_bounds(out->dst, out->count, &out->dst_low, &out->dst_high);
    status = check_bounds(out, group, need->steps, error);
    if (status || !need->copies) goto done;
    if (need->steps > 1) {
        write_blocks(&need->src, need->count, need->steps, *own);
        write_blocks(&need->dst, need->count, need->steps, *own + count);
        out->count = count;
        out->src_low *= need->steps;
        out->dst_low *= need->steps;
        out->src_high = out->src_high * need->steps + need->steps - 1;
        out->dst_high = out->dst_high * need->steps + need->steps - 1;
    }
    *own += 2 * count;
done:
    return status;
}

static bool wants_nothing(const struct kvf_vllm_ids *consumer, size_t count)
{
    bool empty = true;

    for (size_t i = 0; i < count && empty; i++) empty = consumer[i].count == 0;
    return empty;
}

/** Looks at all groups, and makes room for the ids that must be copied. */
static enum kvf_status look_at_groups(const kvf_vllm_prepared *prepared, const struct kvf_vllm_ids *producer,
                                      const struct kvf_vllm_ids *consumer, struct need *needs,
                                      struct kvfi_vllm_blocks_by_group *out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t ids = 0, blocks;

    for (size_t i = 0; i < out->group_count && !status; i++) {
        status = look_at_group(prepared, i, &producer[i], &consumer[i], &needs[i], error);
        if (status) goto done;
        if (!kvfi_mul_i64((int64_t)needs[i].count, needs[i].steps, &blocks) || blocks > KVFI_BIND_MAX_STEPS ||
            (needs[i].copies && (ids += 2 * blocks) > 2 * KVFI_BIND_MAX_STEPS)) {
            status = kvfi_fail(error, KVF_ERR_LIMIT,
                               "KV group %zu: %zu blocks of %" PRId64 " kernel blocks, at most %d", i, needs[i].count,
                               needs[i].steps, KVFI_BIND_MAX_STEPS);
            goto done;
        }
        out->any = out->any || blocks > 0;
    }
    if (ids > 0) out->own = kvfi_alloc_array((size_t)ids, sizeof *out->own);
    if (ids > 0 && !out->own) status = kvfi_fail_memory(error, "a request's block ids");
done:
    return status;
}

enum kvf_status kvfi_vllm_translate(const kvf_vllm_prepared *prepared, const struct kvf_vllm_ids *producer,
                                    size_t producer_groups, const struct kvf_vllm_ids *consumer,
                                    size_t consumer_groups, struct kvfi_vllm_blocks_by_group *out,
                                    struct kvf_error *error)
{
    struct need *needs = NULL;
    enum kvf_status status = KVF_OK;
    int64_t *own;

    *out = (struct kvfi_vllm_blocks_by_group){.group_count = consumer_groups};
    if (wants_nothing(consumer, consumer_groups)) goto done;
    if (producer_groups != consumer_groups) {
        status = kvfi_fail(error, KVF_ERR_IDS, "KV group count mismatch");
        goto done;
    }
    if (consumer_groups > prepared->group_count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "block ids of %zu KV groups, this producer transfers %zu",
                           consumer_groups, prepared->group_count);
        goto done;
    }
    needs = kvfi_alloc_zeroed(consumer_groups, sizeof *needs);
    out->groups = kvfi_alloc_zeroed(consumer_groups, sizeof *out->groups);
    if (!needs || !out->groups) {
        status = kvfi_fail_memory(error, "a request's block ids");
        goto done;
    }
    status = look_at_groups(prepared, producer, consumer, needs, out, error);
    own = out->own;
    for (size_t i = 0; i < consumer_groups && !status; i++)
        status = take_group(&needs[i], i, &own, &out->groups[i], error);
done:
    free(needs);
    if (status) kvfi_vllm_blocks_fini(out);
    return status;
}

void kvfi_vllm_blocks_fini(struct kvfi_vllm_blocks_by_group *blocks)
{
    free(blocks->own);
    free(blocks->groups);
    *blocks = (struct kvfi_vllm_blocks_by_group){.group_count = 0};
}

/** Widens bounds to those of another group. */
static void join_bounds(struct kvfi_vllm_blocks *out, const struct kvfi_vllm_blocks *more)
{
    bool first = out->count == 0;

    if (first || more->src_low < out->src_low) out->src_low = more->src_low;
    if (first || more->src_high > out->src_high) out->src_high = more->src_high;
    if (first || more->dst_low < out->dst_low) out->dst_low = more->dst_low;
    if (first || more->dst_high > out->dst_high) out->dst_high = more->dst_high;
}

/** Puts the blocks of several groups one after the other. */
static enum kvf_status join_groups(const struct kvfi_vllm_blocks_by_group *blocks, const struct kvf_vllm_ids *groups,
                                   struct kvfi_vllm_blocks *out, int64_t **own, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t count = 0;
    int64_t *src, *dst;

    for (size_t i = 0; i < groups->count; i++) {
        if (groups->ids[i] < 0 || (uint64_t)groups->ids[i] >= blocks->group_count) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Transfer region references a missing KV group.");
            goto done;
        }
        count += blocks->groups[groups->ids[i]].count;
        if (count > KVFI_BIND_MAX_STEPS) {
            status = kvfi_fail(error, KVF_ERR_LIMIT, "shared KV groups: more than %d blocks", KVFI_BIND_MAX_STEPS);
            goto done;
        }
    }
    src = kvfi_alloc_array(count, 2 * sizeof *src);
    if (!src) {
        status = kvfi_fail_memory(error, "a request's block ids");
        goto done;
    }
    *own = src;
    dst = src + count;
    *out = (struct kvfi_vllm_blocks){.src = src, .dst = dst};
    for (size_t i = 0; i < groups->count; i++) {
        const struct kvfi_vllm_blocks *group = &blocks->groups[groups->ids[i]];

        if (group->count == 0) continue;
        memcpy(src + out->count, group->src, group->count * sizeof *src);
        memcpy(dst + out->count, group->dst, group->count * sizeof *dst);
        join_bounds(out, group);
        out->count += group->count;
    }
done:
    return status;
}

enum kvf_status kvfi_vllm_blocks_of(const struct kvfi_vllm_blocks_by_group *blocks, const struct kvfi_vllm_list *list,
                                    struct kvfi_vllm_blocks *out, int64_t **own, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    *own = NULL;
    if (list->group == KVF_VLLM_SHARED_GROUP && list->groups.count > 0) {
        status = join_groups(blocks, &list->groups, out, own, error);
    } else if (list->group == KVF_VLLM_SHARED_GROUP) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Shared packed region is missing its group ids.");
    } else if (list->group < 0 || (uint64_t)list->group >= blocks->group_count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Transfer region references a missing KV group.");
    } else {
        *out = blocks->groups[list->group];
    }
    return status;
}
