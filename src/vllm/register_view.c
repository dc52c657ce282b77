/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"
#include "vllm/register.h"

enum { MAX_RANK = 8 };

static enum kvf_status fail_overflow(const struct kvf_vllm_tensor *tensor, struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_OVERFLOW, "tensor %s: its extent does not fit in 64 bits", tensor->layer_name);
}

static enum kvf_status check_shape(const struct kvf_vllm_tensor *tensor, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (tensor->rank < 1 || tensor->rank > MAX_RANK || !tensor->shape || !tensor->strides) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "tensor %s: expected shape and strides of rank 1 to %d, found rank %zu%s",
                           tensor->layer_name, MAX_RANK, tensor->rank,
                           tensor->shape && tensor->strides ? "" : " and no list");
    } else if (tensor->element_bytes < 1 || tensor->offset_bytes < 0) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "tensor %s: elements of %" PRId64 " bytes at offset %" PRId64
                           ", expected 1 or more at 0 or more", tensor->layer_name, tensor->element_bytes,
                           tensor->offset_bytes);
    }
    for (size_t i = 0; status == KVF_OK && i < tensor->rank; i++) {
        if (tensor->shape[i] < 1 || tensor->strides[i] < 0) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT,
                               "tensor %s: axis %zu has %" PRId64 " elements with stride %" PRId64
                               ", expected 1 or more with stride 0 or more", tensor->layer_name, i, tensor->shape[i],
                               tensor->strides[i]);
        }
    }
    return status;
}

/* The last element must end where the allocation does, or before. */
static enum kvf_status check_extent(const struct kvf_vllm_tensor *tensor, const struct kvf_vllm_storage *storage,
                                    struct kvf_error *error)
{
    int64_t elements = 1, last, end;
    bool fits = true;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; fits && i < tensor->rank; i++) {
        fits = kvfi_mul_i64(tensor->shape[i] - 1, tensor->strides[i], &last) && kvfi_add_i64(elements, last, &elements);
    }
    if (!fits || !kvfi_mad_i64(elements, tensor->element_bytes, tensor->offset_bytes, &end)) {
        status = fail_overflow(tensor, error);
    } else if (end > storage->bytes) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT,
                           "tensor %s: ends at byte %" PRId64 " of its storage, which has %" PRId64,
                           tensor->layer_name, end, storage->bytes);
    }
    return status;
}

/* Whether axes [first, rank) fill one span in order; then `bytes` is what they fill. Axes of one element count as
 * any. */
static bool is_contiguous(const struct kvf_vllm_tensor *tensor, size_t first, int64_t *bytes)
{
    int64_t expected = 1;
    bool good = true;

    for (size_t i = tensor->rank; good && i > first; i--) {
        good = (tensor->shape[i - 1] == 1 || tensor->strides[i - 1] == expected)
               && kvfi_mul_i64(expected, tensor->shape[i - 1], &expected);
    }
    return good && kvfi_mul_i64(expected, tensor->element_bytes, bytes);
}

/* Whether axes [first, rank) fill one span without a gap, in any order. */
static bool is_dense(const struct kvf_vllm_tensor *tensor, size_t first)
{
    size_t axes[MAX_RANK], count = 0;
    int64_t expected = 1;
    bool good = true;

    for (size_t i = first; i < tensor->rank; i++) {
        size_t at = count++;

        for (; at > 0 && tensor->strides[axes[at - 1]] > tensor->strides[i]; at--) axes[at] = axes[at - 1];
        axes[at] = i;
    }
    for (size_t i = 0; good && i < count; i++) {
        int64_t size = tensor->shape[axes[i]];

        good = size == 1 || (tensor->strides[axes[i]] == expected && kvfi_mul_i64(expected, size, &expected));
    }
    return good;
}

/* Whether a flat buffer is cut into pages, with no more than a part of one left over. */
static bool is_run_of_pages(const struct kvf_vllm_register *spec, const struct kvf_vllm_storage *storage, int64_t page)
{
    int64_t blocks, used;

    return kvfi_mul_i64(spec->num_blocks, spec->kernel_blocks_per_block, &blocks) && kvfi_mul_i64(blocks, page, &used)
           && used > 0 && storage->bytes >= used && storage->bytes - used < page;
}

enum kvf_status kvfi_vllm_view_init(struct kvfi_vllm_view *view, const struct kvf_vllm_register *spec,
                                    const struct kvf_vllm_tensor *tensor, const struct kvf_vllm_layer *layer,
                                    struct kvf_error *error)
{
    const struct kvf_vllm_storage *storage;
    bool is_block_major, names_heads = false, may_pack;
    int64_t row, all_rows, bytes;
    enum kvf_status status = KVF_ERR_INVALID_ARGUMENT;

    if (tensor->storage < 0 || (uint64_t)tensor->storage >= spec->storage_count) {
        kvfi_fail(error, status, "tensor %s: storage %" PRId64 " of %zu", tensor->layer_name, tensor->storage,
                  spec->storage_count);
        goto done;
    }
    storage = &spec->storages[tensor->storage];
    status = check_shape(tensor, error);
    if (status == KVF_OK) status = check_extent(tensor, storage, error);
    if (status != KVF_OK) goto done;
    *view = (struct kvfi_vllm_view){.address = storage->base_addr + (uint64_t)tensor->offset_bytes,
                                    .storage_address = storage->base_addr, .head_count = 1};
    if (!kvfi_mul_i64(tensor->strides[0], tensor->element_bytes, &view->block_stride)) {
        status = fail_overflow(tensor, error);
        goto done;
    }
    row = view->block_stride;
    if (tensor->rank == 1) {
        row = layer->page_bytes;
        is_block_major = is_run_of_pages(spec, storage, row);
    } else {
        is_block_major = kvfi_mul_i64(tensor->shape[0], row, &all_rows) && all_rows == storage->bytes;
        names_heads = tensor->rank == 4 && tensor->strides[2] == tensor->shape[3]
                      && (__int128)tensor->strides[1] == (__int128)tensor->shape[2] * tensor->shape[3];
        view->head_count = tensor->shape[1];
        view->head_stride = tensor->strides[1]; /* times element_bytes fits: the extent does, or there is one head */
        if (view->head_count > 1) view->head_stride *= tensor->element_bytes;
    }
    may_pack = layer->kind == KVF_VLLM_ATTENTION || layer->kind == KVF_VLLM_MLA;
    view->is_packed = may_pack && is_block_major && (layer->kind == KVF_VLLM_MLA || !names_heads);
    if (view->is_packed) view->block_stride = row;
    if (tensor->rank > 1 && is_contiguous(tensor, 1, &bytes)) view->block_bytes = bytes;
    view->is_dense = is_dense(tensor, 1);
    view->are_heads_dense = is_dense(tensor, 2);
done:
    return status;
}
