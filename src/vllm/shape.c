/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"
#include "vllm/prepared.h"

/** A side's payload, as bytes [first, first + bytes) of a row of `row_bytes`, one row per block. */
static enum kvf_status make_layout(int64_t stride, int64_t first, int64_t bytes, int64_t row_bytes, kvf_layout **out,
                                   struct kvf_error *error)
{
    /* No end, and no number of blocks: both are for the binding of a request, which knows the addresses. */
    const int64_t unbounded = -1;
    const struct kvf_pool pool = {.memory = 0, .slot_stride_bytes = stride, .slots = 1};
    const struct kvf_group group = {.tokens_per_block = 1, .stripes = 1};
    const struct kvf_place place = {.layer = 0, .pool = 0, .offset_bytes = 0};
    const struct kvf_view view = {.role = "kv", .tag = "bytes", .row_bytes = row_bytes, .byte_first = first,
                                  .byte_count = bytes, .unit_total = 1, .unit_count = 1, .unit_stride_bytes = bytes,
                                  .entry_stride_bytes = bytes, .entries = 1, .slots_per_block = 1, .places = &place,
                                  .place_count = 1};
    struct kvf_layout_spec spec;

    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &unbounded;
    spec.memory_count = 1;
    spec.pools = &pool;
    spec.pool_count = 1;
    spec.groups = &group;
    spec.group_count = 1;
    spec.views = &view;
    spec.view_count = 1;
    return kvf_layout_create(&spec, out, error);
}

/** The plan must say what the rules said: two ways to the same bytes. */
static enum kvf_status check_plan(const struct kvfi_vllm_shape *shape, const kvf_plan *plan, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvf_plan_info info;
    struct kvf_box box = {.run_bytes = 0};

    kvf_plan_get_info(plan, &info);
    if (info.boxes != 1 || kvf_plan_box(plan, 0, 0, 0, &box) != KVF_OK || box.loop_count != 0 ||
        box.run_bytes != shape->cut.bytes || box.src_offset_bytes != shape->cut.src_offset_bytes ||
        box.dst_offset_bytes != shape->cut.dst_offset_bytes)
        status = kvfi_fail(error, KVF_ERR_INTERNAL,
                           "the plan moves %" PRId64 " bytes from %" PRId64 " to %" PRId64 ", the rules %" PRId64
                           " from %" PRId64 " to %" PRId64, box.run_bytes, box.src_offset_bytes, box.dst_offset_bytes,
                           shape->cut.bytes, shape->cut.src_offset_bytes, shape->cut.dst_offset_bytes);
    return status;
}

enum kvf_status kvfi_vllm_shape_plan(struct kvfi_vllm_shape *shape, struct kvf_error *error)
{
    /* Byte number src_offset of one payload is byte number dst_offset of the other. */
    int64_t src_first = shape->cut.dst_offset_bytes, dst_first = shape->cut.src_offset_bytes, src_end, dst_end;
    kvf_layout *src = NULL, *dst = NULL;
    kvf_plan *plan = NULL;
    enum kvf_status status;

    if (!kvfi_add_i64(src_first, shape->src_bytes, &src_end) ||
        !kvfi_add_i64(dst_first, shape->dst_bytes, &dst_end)) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "payloads of %" PRId64 " and %" PRId64 " bytes do not fit",
                           shape->src_bytes, shape->dst_bytes);
        goto done;
    }
    if (src_end < dst_end) src_end = dst_end;
    status = make_layout(shape->src_stride_bytes, src_first, shape->src_bytes, src_end, &src, error);
    if (!status) status = make_layout(shape->dst_stride_bytes, dst_first, shape->dst_bytes, src_end, &dst, error);
    if (!status) status = kvf_plan_create(src, dst, NULL, NULL, &plan, error);
    if (!status) status = check_plan(shape, plan, error);
    if (status) goto done;
    shape->plan = plan;
    plan = NULL;
done:
    kvf_plan_release(plan);
    kvf_layout_release(dst);
    kvf_layout_release(src);
    return status;
}
