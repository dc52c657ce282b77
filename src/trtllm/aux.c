/* SPDX-License-Identifier: Apache-2.0 */
/* The auxiliary buffers of two ranks: which go over, and where one slot lies. */
#include "kvferry/trtllm.h"

#include "base/checked.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/** A text that lists indices: "[1, 3]". */
struct indices {
    char text[192];
    size_t length;
    bool any;
};

static void add_index(struct indices *list, size_t index)
{
    int written = snprintf(list->text + list->length, sizeof list->text - list->length, "%s%zu", list->any ? ", " : "[",
                           index);

    list->any = true;
    if (written > 0 && list->length + (size_t)written < sizeof list->text - 1) list->length += (size_t)written;
    memcpy(list->text + list->length, "]", 2);
}

/** Checks one side as upstream does. */
static enum kvf_status check_side(const struct kvf_trtllm_aux *aux, const char *context, struct kvf_error *error)
{
    struct indices negative = {.any = false}, null = {.any = false};
    enum kvf_status status = KVF_OK;

    if (aux->ptr_count != aux->item_count || aux->ptr_count != aux->size_count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "%s: pointer/size count mismatch: pointers=%zu, sizes=%zu, item_sizes=%zu", context,
                           aux->ptr_count, aux->size_count, aux->item_count);
        goto done;
    }
    for (size_t i = 0; i < aux->ptr_count; i++) {
        if (aux->item_sizes[i] < 0) add_index(&negative, i);
        if (aux->ptrs[i] == 0 && aux->item_sizes[i] != 0) add_index(&null, i);
    }
    if (negative.any)
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s: negative sizes at indices %s", context, negative.text);
    else if (null.any)
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s: null pointers with non-zero sizes at indices %s", context,
                           null.text);
done:
    return status;
}

/** Checks that what the source has finds room at the destination. */
static enum kvf_status check_both(const struct kvf_trtllm_aux *src, const struct kvf_trtllm_aux *dst,
                                  struct kvf_error *error)
{
    struct indices empty = {.any = false}, small = {.any = false};
    enum kvf_status status = KVF_OK;

    if (src->ptr_count != dst->ptr_count) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Source and destination auxiliary layouts do not match: %zu and %zu buffers", src->ptr_count,
                           dst->ptr_count);
        goto done;
    }
    for (size_t i = 0; i < src->ptr_count; i++) {
        if (src->item_sizes[i] > 0 && dst->item_sizes[i] == 0) add_index(&empty, i);
        else if (src->item_sizes[i] > dst->item_sizes[i]) add_index(&small, i);
    }
    if (empty.any)
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Destination auxiliary buffers are empty for non-empty source indices %s", empty.text);
    else if (small.any)
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "Destination auxiliary buffers are too small at indices %s",
                           small.text);
done:
    return status;
}

/** Where a slot's item lies in buffer number `index`. */
static enum kvf_status locate(const struct kvf_trtllm_aux *aux, size_t index, int64_t slot, const char *side,
                              uint64_t *address, struct kvf_error *error)
{
    int64_t offset = 0, end = 0;
    enum kvf_status status = KVF_OK;

    if (slot < 0 || !kvfi_mul_i64(slot, aux->item_sizes[index], &offset) ||
        !kvfi_add_i64(offset, aux->item_sizes[index], &end) || end > aux->size[index])
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                           "%s auxiliary slot %" PRId64 " is outside buffer %zu of %" PRId64 " bytes, %" PRId64
                           " each", side, slot, index, aux->size[index], aux->item_sizes[index]);
    else if ((uint64_t)end > UINT64_MAX - aux->ptrs[index])
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "%s auxiliary buffer %zu: an address does not fit", side, index);
    else
        *address = aux->ptrs[index] + (uint64_t)offset;
    return status;
}

enum kvf_status kvf_trtllm_aux_fragments(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                         int64_t src_slot, int64_t dst_slot, struct kvf_trtllm_fragment *out,
                                         size_t capacity, size_t *count, struct kvf_error *error)
{
    static const struct kvf_trtllm_aux none = {.device = "cpu"};
    const struct kvf_trtllm_aux *src, *dst;
    struct kvf_trtllm_fragment found[KVF_TRTLLM_MAX_AUX];
    enum kvf_status status;
    size_t kept = 0;

    if (!self || !peer || !count || (capacity && !out))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "aux fragments: a rank or the result is NULL");
    src = kvf_trtllm_rank_get_spec(self)->aux;
    dst = kvf_trtllm_rank_get_spec(peer)->aux;
    src = src ? src : &none;
    dst = dst ? dst : &none;
    status = check_side(src, "source auxiliary transfer", error);
    if (status == KVF_OK) status = check_side(dst, "destination auxiliary transfer", error);
    if (status == KVF_OK) status = check_both(src, dst, error);
    for (size_t i = 0; status == KVF_OK && i < src->ptr_count; i++) {
        struct kvf_trtllm_fragment *to = &found[kept];

        if (src->item_sizes[i] == 0) continue;
        to->bytes = src->item_sizes[i];
        status = locate(src, i, src_slot, "source", &to->src_address, error);
        if (status == KVF_OK) status = locate(dst, i, dst_slot, "destination", &to->dst_address, error);
        kept++;
    }
    if (status != KVF_OK) goto done;
    for (size_t i = 0; i < kept && i < capacity; i++) out[i] = found[i];
    *count = kept;
done:
    return status;
}
