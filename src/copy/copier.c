/* SPDX-License-Identifier: Apache-2.0 */
#include "copy/copier.h"

#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"
#include "plan/sides.h"

enum { BATCH_BYTES = 1 << 20 };

enum kvf_status kvfi_copier_init(struct kvfi_copier *copier, const struct kvfi_kernels *kernels,
                                 const kvf_binding *binding, const struct kvfi_bases *src, const struct kvfi_bases *dst,
                                 struct kvf_error *error)
{
    enum kvf_status status = kvfi_binding_check_side(binding, true, src->address, src->count, error);

    if (status == KVF_OK) status = kvfi_binding_check_side(binding, false, dst->address, dst->count, error);
    if (status != KVF_OK) return status;
    copier->kernels = kernels ? kernels : kvfi_kernels_best();
    copier->tiles_fn =
        kvf_binding_bytes(binding) >= KVFI_STREAM_BYTES ? copier->kernels->stream : copier->kernels->copy;
    copier->src = *src;
    copier->dst = *dst;
    copier->walk.left_bytes = 0;
    return kvf_cursor_create(binding, &copier->cursor, error);
}

void kvfi_copier_fini(struct kvfi_copier *copier)
{
    kvf_cursor_destroy(copier->cursor);
}

/* Lowest and highest offset that one side of a move touches. */
static bool extent(const struct kvf_move *move, bool is_src, int64_t *low, int64_t *high)
{
    bool fits = true;

    *low = is_src ? move->src_offset_bytes : move->dst_offset_bytes;
    fits = kvfi_add_i64(*low, move->run_bytes, high);
    for (int64_t i = 0; fits && i < move->loop_count; i++) {
        int64_t stride = is_src ? move->loops[i].src_stride_bytes : move->loops[i].dst_stride_bytes;
        int64_t *end = stride < 0 ? low : high;

        fits = kvfi_mad_i64(stride, move->loops[i].count - 1, *end, end);
    }
    return fits;
}

static enum kvf_status find_side(const struct kvfi_bases *side, const struct kvf_move *move, bool is_src,
                                 uint64_t *address, struct kvf_error *error)
{
    const char *name = is_src ? "source" : "destination";
    int64_t memory = is_src ? move->src_memory : move->dst_memory;
    int64_t low = 0, high = 0;
    enum kvf_status status = KVF_OK;

    if (memory < 0 || (uint64_t)memory >= side->count || !side->address[memory]) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s memory %" PRId64 " has no address", name, memory);
        goto done;
    }
    if (side->bytes && (!extent(move, is_src, &low, &high) || low < 0 || high > side->bytes[memory])) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "%s memory %" PRId64 ": a move takes [%" PRId64 ",%" PRId64
                           "), the memory has %" PRId64 " bytes", name, memory, low, high, side->bytes[memory]);
        goto done;
    }
    *address = (uint64_t)(uintptr_t)side->address[memory] +
               (uint64_t)(is_src ? move->src_offset_bytes : move->dst_offset_bytes);
done:
    return status;
}

enum kvf_status kvfi_bases_check(const kvf_binding *binding, const struct kvfi_bases *src, const struct kvfi_bases *dst,
                                 struct kvf_error *error)
{
    kvf_cursor *cursor = NULL;
    struct kvf_move move;
    uint64_t address;
    enum kvf_status status = kvf_cursor_create(binding, &cursor, error);

    while (status == KVF_OK && kvf_cursor_next(cursor, &move) == KVF_OK) {
        status = find_side(src, &move, true, &address, error);
        if (status == KVF_OK) status = find_side(dst, &move, false, &address, error);
    }
    kvf_cursor_destroy(cursor);
    return status;
}

/* Enters the next move. KVF_ERR_NOT_FOUND (without text) when there is none. */
static enum kvf_status next_move(struct kvfi_copier *copier, struct kvf_error *error)
{
    struct kvf_move move;
    uint64_t src = 0, dst = 0;
    enum kvf_status status = kvf_cursor_next(copier->cursor, &move);

    if (status != KVF_OK) goto done;
    status = find_side(&copier->src, &move, true, &src, error);
    if (status != KVF_OK) goto done;
    status = find_side(&copier->dst, &move, false, &dst, error);
    if (status != KVF_OK) goto done;
    kvfi_walk_start(&copier->walk, &move, src, dst);
done:
    return status;
}

enum kvf_status kvfi_copier_run(struct kvfi_copier *copier, int64_t max_bytes, int64_t *done_bytes,
                                struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t total = 0;

    while (status == KVF_OK && total < max_bytes) {
        size_t count = 0;
        int64_t batch = max_bytes - total < BATCH_BYTES ? max_bytes - total : BATCH_BYTES;

        while (batch > 0 && count < KVFI_COPIER_TILES) {
            if (copier->walk.left_bytes == 0) {
                status = next_move(copier, error);
                if (status != KVF_OK) break;
            }
            int64_t bytes = kvfi_walk_take(&copier->walk, batch, &copier->tiles[count]);

            count += bytes > 0;
            batch -= bytes;
            total += bytes;
        }
        if (count > 0) copier->tiles_fn(copier->tiles, count);
    }
    copier->kernels->fence();
    if (status == KVF_ERR_NOT_FOUND) status = KVF_OK;
    *done_bytes = total;
    return status;
}
