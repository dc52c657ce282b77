/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdbool.h>

#include "base/checked.h"
#include "base/error.h"
#include "kvferry/vllm.h"

/* Layers, blocks, head slots, tokens, content. */
enum { AXIS_L, AXIS_B, AXIS_H, AXIS_N, AXIS_C, AXIS_COUNT };

/* Axes from the outermost to the innermost. */
static const int orders[][AXIS_COUNT] = {
    [KVF_VLLM_LBHNC] = {AXIS_L, AXIS_B, AXIS_H, AXIS_N, AXIS_C},
    [KVF_VLLM_LBNHC] = {AXIS_L, AXIS_B, AXIS_N, AXIS_H, AXIS_C},
    [KVF_VLLM_LHBNC] = {AXIS_L, AXIS_H, AXIS_B, AXIS_N, AXIS_C},
    [KVF_VLLM_BLHNC] = {AXIS_B, AXIS_L, AXIS_H, AXIS_N, AXIS_C},
    [KVF_VLLM_BLNHC] = {AXIS_B, AXIS_L, AXIS_N, AXIS_H, AXIS_C},
    [KVF_VLLM_BHLNC] = {AXIS_B, AXIS_H, AXIS_L, AXIS_N, AXIS_C},
};

struct extents {
    int64_t shape[AXIS_COUNT]; /* the content in bytes */
    int64_t unpadded, page;
};

static enum kvf_status check_facts(const struct kvf_vllm_facts *facts, struct kvf_error *error)
{
    const struct {
        const char *name;
        int64_t value, least;
    } rows[] = {
        {"block_tokens", facts->block_tokens, 1}, {"kv_heads", facts->kv_heads, 1},
        {"head_size", facts->head_size, 0}, {"head_size_v", facts->head_size_v, -1},
        {"element_bytes", facts->element_bytes, 1}, {"tokens_per_state", facts->tokens_per_state, 1},
        {"state_content_bytes", facts->state_content_bytes, 0}, {"head_slots", facts->head_slots, 0},
        {"padded_page_bytes", facts->padded_page_bytes, 0},
    };
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; status == KVF_OK && i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].value < rows[i].least) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "facts: %s is %" PRId64 ", expected %" PRId64
                               " or more", rows[i].name, rows[i].value, rows[i].least);
        }
    }
    if (status == KVF_OK && facts->block_tokens % facts->tokens_per_state != 0) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "facts: block_tokens %" PRId64 " is no multiple of tokens_per_state %" PRId64,
                           facts->block_tokens, facts->tokens_per_state);
    }
    return status;
}

/* A state's content, in bytes: whole elements. */
static enum kvf_status get_content(const struct kvf_vllm_facts *facts, int64_t *content, struct kvf_error *error)
{
    int64_t head_size_v = facts->head_size_v < 0 ? facts->head_size : facts->head_size_v, elements;
    enum kvf_status status = KVF_OK;

    *content = facts->state_content_bytes;
    if (*content == 0 && (!kvfi_add_i64(facts->head_size, head_size_v, &elements)
                          || !kvfi_mul_i64(elements, facts->element_bytes, content))) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "facts: a state's content does not fit in 64 bits");
    } else if (*content == 0 || *content % facts->element_bytes != 0) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "facts: a state's content of %" PRId64 " bytes (state_content_bytes, or head_size and "
                           "head_size_v), expected a multiple of element_bytes %" PRId64 " above 0", *content,
                           facts->element_bytes);
    }
    return status;
}

static enum kvf_status get_extents(const struct kvf_vllm_facts *facts, int64_t layers, int64_t blocks,
                                   struct extents *out, struct kvf_error *error)
{
    int64_t *shape = out->shape, rows;
    enum kvf_status status = get_content(facts, &shape[AXIS_C], error);

    if (status != KVF_OK) goto done;
    shape[AXIS_L] = layers;
    shape[AXIS_B] = blocks;
    shape[AXIS_H] = facts->head_slots > 0 ? facts->head_slots : facts->kv_heads;
    shape[AXIS_N] = facts->block_tokens / facts->tokens_per_state;
    if (!kvfi_mul_i64(shape[AXIS_H], shape[AXIS_N], &rows)
        || !kvfi_mul_i64(rows, shape[AXIS_C], &out->unpadded)) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "facts: a page does not fit in 64 bits");
        goto done;
    }
    out->page = facts->padded_page_bytes > 0 ? facts->padded_page_bytes : out->unpadded;
    if (out->page < out->unpadded || out->page % facts->element_bytes != 0) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "facts: padded_page_bytes %" PRId64 ", expected a multiple of element_bytes %" PRId64
                           ", at least %" PRId64, out->page, facts->element_bytes, out->unpadded);
    }
done:
    return status;
}

/* Strides in bytes, dense but for the padding of pages, which lies outside of all that a page holds. */
static enum kvf_status get_strides(const struct extents *extents, const int *order, int64_t *strides, int64_t *all,
                                   struct kvf_error *error)
{
    int inner = 1; /* of layers and blocks the inner one: all further in belongs to a page */
    int64_t stride = 1;
    enum kvf_status status = KVF_OK;

    while (order[inner] != AXIS_L && order[inner] != AXIS_B) inner++;
    if (extents->page > extents->unpadded && inner > 1 && extents->shape[AXIS_H] > 1) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "facts: padded_page_bytes %" PRId64 " with %" PRId64
                           " head slots outside of a page's tokens", extents->page, extents->shape[AXIS_H]);
        goto done;
    }
    for (int i = AXIS_COUNT - 1; i >= 0; i--) {
        if (i == inner && extents->page > extents->unpadded) stride = extents->page;
        strides[order[i]] = stride;
        if (!kvfi_mul_i64(stride, extents->shape[order[i]], &stride)) {
            status = kvfi_fail(error, KVF_ERR_OVERFLOW, "allocation: its bytes do not fit in 64 bits");
            goto done;
        }
    }
    *all = stride;
done:
    return status;
}

enum kvf_status kvf_vllm_place(const struct kvf_vllm_facts *facts, int physical, int64_t layers, int64_t layer,
                               int64_t blocks, struct kvf_vllm_placed *out, struct kvf_error *error)
{
    struct extents extents = {0};
    int64_t strides[AXIS_COUNT], all = 0;
    enum kvf_status status = KVF_ERR_INVALID_ARGUMENT;

    if (!facts || !out || physical < 0 || (size_t)physical >= sizeof orders / sizeof *orders) {
        kvfi_fail(error, status, "place: facts or out is NULL, or layout %d is not one of %zu", physical,
                  sizeof orders / sizeof *orders);
        goto done;
    }
    if (layers < 1 || layer < 0 || layer >= layers || blocks < 1) {
        kvfi_fail(error, status, "place: layer %" PRId64 " of %" PRId64 " with %" PRId64 " blocks", layer, layers,
                  blocks);
        goto done;
    }
    status = check_facts(facts, error);
    if (status == KVF_OK) status = get_extents(facts, layers, blocks, &extents, error);
    if (status == KVF_OK) status = get_strides(&extents, orders[physical], strides, &all, error);
    if (status != KVF_OK) goto done;
    *out = (struct kvf_vllm_placed){.offset_bytes = layer * strides[AXIS_L], .element_bytes = facts->element_bytes,
                                    .page_bytes = extents.page, .unpadded_page_bytes = extents.unpadded,
                                    .allocation_bytes = all};
    for (int i = 0; i < 4; i++) {
        bool is_content = i + AXIS_B == AXIS_C;

        out->shape[i] = is_content ? extents.shape[AXIS_C] / facts->element_bytes : extents.shape[i + AXIS_B];
        out->strides[i] = is_content ? 1 : strides[i + AXIS_B] / facts->element_bytes;
    }
done:
    return status;
}
