/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "plan/plan.h"

static bool goes_before(const struct kvf_loop *a, const struct kvf_loop *b)
{
    if (a->dst_stride_bytes != b->dst_stride_bytes) return a->dst_stride_bytes > b->dst_stride_bytes;
    return a->src_stride_bytes > b->src_stride_bytes;
}

void kvfi_loops_sort(struct kvf_loop *loops, int64_t loop_count)
{
    for (int64_t i = 1; i < loop_count; i++) {
        struct kvf_loop loop = loops[i];
        int64_t at = i;

        for (; at > 0 && goes_before(&loop, &loops[at - 1]); at--) loops[at] = loops[at - 1];
        loops[at] = loop;
    }
}

/** True when one step of `outer` is as far as all of `inner` on both sides. */
static bool spans(const struct kvf_loop *outer, const struct kvf_loop *inner)
{
    int64_t src, dst;

    return kvfi_mul_i64(inner->count, inner->src_stride_bytes, &src) && src == outer->src_stride_bytes &&
           kvfi_mul_i64(inner->count, inner->dst_stride_bytes, &dst) && dst == outer->dst_stride_bytes;
}

void kvfi_loops_fold(struct kvf_loop *loops, int64_t *loop_count, int64_t *run_bytes)
{
    int64_t kept = *loop_count; /* loops[kept ..] are the folded ones, outermost first */
    int64_t end = *loop_count;

    for (int64_t i = *loop_count - 1; i >= 0; i--) {
        struct kvf_loop loop = loops[i];
        int64_t joined;

        if (loop.count == 1) continue;
        if (kept == end && loop.src_stride_bytes == *run_bytes && loop.dst_stride_bytes == *run_bytes &&
            kvfi_mul_i64(*run_bytes, loop.count, &joined))
            *run_bytes = joined;
        else if (kept < end && spans(&loop, &loops[kept]) && kvfi_mul_i64(loops[kept].count, loop.count, &joined))
            loops[kept].count = joined;
        else
            loops[--kept] = loop;
    }
    *loop_count = end - kept;
    for (int64_t i = 0; i < end; i++)
        loops[i] = i < *loop_count ? loops[kept + i] : (struct kvf_loop){0, 0, 0};
}

bool kvfi_box_bytes(const struct kvf_box *box, int64_t *bytes)
{
    int64_t product = box->run_bytes;
    bool ok = true;

    for (int64_t i = 0; i < box->loop_count && ok; i++) ok = kvfi_mul_i64(product, box->loops[i].count, &product);
    if (ok) *bytes = product;
    return ok;
}
