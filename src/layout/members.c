/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/members.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/compare.h"

struct ranked {
    struct kvf_rank rank;
    size_t index;
};

static int compare_ranks(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    int order = kvfi_compare_i64(a->rank.pp, b->rank.pp);

    if (!order) order = kvfi_compare_i64(a->rank.cp, b->rank.cp);
    if (!order) order = kvfi_compare_i64(a->rank.tp, b->rank.tp);
    if (!order) order = kvfi_compare_size(a->index, b->index);
    return order;
}

enum kvf_status kvfi_members_order(const struct kvf_member *members, size_t count, size_t *order)
{
    enum kvf_status status = KVF_OK;
    struct ranked *ranked = kvfi_alloc_array(count, sizeof *ranked);

    if (!ranked) {
        status = KVF_ERR_NO_MEMORY;
        goto done;
    }
    for (size_t i = 0; i < count; i++) ranked[i] = (struct ranked){members[i].rank, i};
    if (count) qsort(ranked, count, sizeof *ranked, compare_ranks);
    for (size_t i = 0; i < count; i++) order[i] = ranked[i].index;
done:
    free(ranked);
    return status;
}

static void write_row(struct kvfi_canonical *out, const struct kvf_holding *row)
{
    const int64_t numbers[] = {row->row_bytes, row->byte_first, row->byte_count, row->unit_total, row->unit_first,
                               row->unit_count, row->stripes, row->stripe, row->stripe_tokens, row->flags,
                               (int64_t)row->layer_count};

    kvfi_canonical_text(out, row->role);
    kvfi_canonical_text(out, row->tag);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) kvfi_canonical_i64(out, numbers[i]);
    for (size_t i = 0; i < row->layer_count; i++) kvfi_canonical_i64(out, row->layers[i]);
}

static void write_member(struct kvfi_canonical *out, const struct kvf_member *member)
{
    kvfi_canonical_i64(out, member->rank.pp);
    kvfi_canonical_i64(out, member->rank.cp);
    kvfi_canonical_i64(out, member->rank.tp);
    kvfi_canonical_i64(out, member->rank.salt);
    kvfi_canonical_i64(out, (int64_t)member->holdings->row_count);
    for (size_t i = 0; i < member->holdings->row_count; i++) write_row(out, &member->holdings->rows[i]);
}

enum kvf_status kvf_members_digest(const struct kvf_member *members, size_t member_count,
                                   char text[KVF_FINGERPRINT_TEXT_BYTES])
{
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    struct kvfi_canonical out = {0};
    size_t *order = kvfi_alloc_array(member_count, sizeof *order);

    if (!order) goto done;
    status = kvfi_members_order(members, member_count, order);
    if (status != KVF_OK) goto done;
    kvfi_canonical_raw(&out, "KVFH", 4);
    kvfi_canonical_u32(&out, KVF_PLANNER_VERSION);
    kvfi_canonical_i64(&out, (int64_t)member_count);
    for (size_t i = 0; i < member_count; i++) write_member(&out, &members[order[i]]);
    status = out.failed ? KVF_ERR_NO_MEMORY : KVF_OK;
    if (status == KVF_OK) kvfi_fingerprint_text(out.bytes, out.count, text);
done:
    free(out.bytes);
    free(order);
    return status;
}
