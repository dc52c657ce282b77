/* SPDX-License-Identifier: Apache-2.0 */
#include "copy/packer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "copy/copier.h"
#include "copy/walk.h"
#include "plan/sides.h"

enum { PACKER_TILES = 64 };

struct kvf_packer {
    const struct kvfi_kernels *kernels;
    kvfi_tiles_fn tiles_fn;
    bool is_pack;
    void **base;
    kvf_cursor *cursor;
    struct kvfi_walk walk; /* both addresses are of this side; the stream's are made from position_bytes */
    int64_t position_bytes, total_bytes;
};

enum kvf_status kvfi_packer_create_with(const struct kvfi_kernels *kernels, const kvf_binding *binding, int side,
                                        void *const *base, size_t base_count, kvf_packer **out,
                                        struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    kvf_packer *packer = NULL;

    if (side != KVF_PACK && side != KVF_UNPACK) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "packer side is %d, expected 0 (pack) or 1 (unpack)", side);
        goto done;
    }
    status = kvfi_binding_check_side(binding, side == KVF_PACK, base, base_count, error);
    if (status != KVF_OK) goto done;
    packer = kvfi_alloc_zeroed(1, sizeof *packer);
    if (packer) packer->base = kvfi_alloc_array(base_count, sizeof *packer->base);
    if (!packer || !packer->base) {
        status = kvfi_fail_memory(error, "a packer");
        goto done;
    }
    if (base_count > 0) memcpy(packer->base, base, base_count * sizeof *base);
    packer->total_bytes = kvf_binding_bytes(binding);
    packer->kernels = kernels ? kernels : kvfi_kernels_best();
    packer->is_pack = side == KVF_PACK;
    /* A packed stream is read again at once, so it stays in the caches; unpacked memory is not. */
    packer->tiles_fn = !packer->is_pack && packer->total_bytes >= KVFI_STREAM_BYTES ? packer->kernels->stream
                                                                          : packer->kernels->copy;
    status = kvf_cursor_create(binding, &packer->cursor, error);
    if (status != KVF_OK) goto done;
    *out = packer;
    packer = NULL;
done:
    kvf_packer_destroy(packer);
    return status;
}

enum kvf_status kvf_packer_create(const kvf_binding *binding, int side, void *const *base, size_t base_count,
                                  kvf_packer **out, struct kvf_error *error)
{
    return kvfi_packer_create_with(NULL, binding, side, base, base_count, out, error);
}

void kvf_packer_destroy(kvf_packer *packer)
{
    if (!packer) return;
    kvf_cursor_destroy(packer->cursor);
    free(packer->base);
    free(packer);
}

/* Enters the next move: only this side's strides matter, so runs that touch here become one whatever they do on the
 * other side. False at the end. */
static bool next_move(kvf_packer *packer)
{
    struct kvf_move move;
    bool entered = false;
    int64_t memory;

    if (kvf_cursor_next(packer->cursor, &move) != KVF_OK) goto done;
    memory = packer->is_pack ? move.src_memory : move.dst_memory;
    for (int64_t i = 0; i < move.loop_count; i++) {
        struct kvf_loop *loop = &move.loops[i];

        if (packer->is_pack) loop->dst_stride_bytes = loop->src_stride_bytes;
        else loop->src_stride_bytes = loop->dst_stride_bytes;
    }
    uint64_t start = (uint64_t)(uintptr_t)packer->base[memory] +
                     (uint64_t)(packer->is_pack ? move.src_offset_bytes : move.dst_offset_bytes);

    kvfi_walk_start(&packer->walk, &move, start, start);
    kvfi_walk_fold(&packer->walk);
    entered = true;
done:
    return entered;
}

enum kvf_status kvf_packer_seek(kvf_packer *packer, int64_t offset_bytes)
{
    int64_t skip_bytes = 0;
    enum kvf_status status = KVF_OK;

    if (offset_bytes == packer->position_bytes) goto done;
    if (offset_bytes < 0 || offset_bytes > packer->total_bytes) {
        status = KVF_ERR_OUT_OF_RANGE;
        goto done;
    }
    status = kvf_cursor_seek(packer->cursor, offset_bytes, &skip_bytes);
    if (status != KVF_OK) goto done;
    packer->position_bytes = offset_bytes;
    packer->walk.left_bytes = 0;
    if (skip_bytes > 0 && next_move(packer)) kvfi_walk_skip(&packer->walk, skip_bytes);
done:
    return status;
}

/* Turns a tile of this side into one between this side and the stream. */
static void aim_tile(const kvf_packer *packer, char *stream, struct kvfi_tile *tile)
{
    if (packer->is_pack) {
        tile->dst = stream;
        tile->dst_stride = tile->run_bytes;
        tile->dst_row_stride = tile->run_bytes * tile->columns;
    } else {
        tile->src = stream;
        tile->src_stride = tile->run_bytes;
        tile->src_row_stride = tile->run_bytes * tile->columns;
    }
}

int64_t kvf_packer_run(kvf_packer *packer, void *stream, int64_t bytes)
{
    struct kvfi_tile tiles[PACKER_TILES];
    int64_t total = 0;
    bool more = true;

    while (more && total < bytes) {
        size_t count = 0;

        while (total < bytes && count < PACKER_TILES) {
            more = packer->walk.left_bytes > 0 || next_move(packer);
            if (!more) break;
            int64_t taken = kvfi_walk_take(&packer->walk, bytes - total, &tiles[count]);

            aim_tile(packer, (char *)stream + total, &tiles[count]);
            count++;
            total += taken;
        }
        if (count > 0) packer->tiles_fn(tiles, count);
    }
    packer->kernels->fence();
    packer->position_bytes += total;
    return total;
}

int64_t kvfi_packer_run_bytes(kvf_packer *packer)
{
    return packer->walk.left_bytes > 0 || next_move(packer) ? packer->walk.run_bytes : 0;
}

int64_t kvfi_packer_run_left(kvf_packer *packer)
{
    return kvfi_packer_run_bytes(packer) - packer->walk.in_run_bytes;
}

size_t kvfi_packer_iovecs(kvf_packer *packer, struct iovec *iovecs, size_t capacity, int64_t max_bytes,
                          int64_t shortest_bytes, int64_t *bytes)
{
    size_t count = 0;
    int64_t total = 0;

    while (count < capacity && total < max_bytes && kvfi_packer_run_bytes(packer) >= shortest_bytes) {
        struct kvfi_walk *walk = &packer->walk;
        int64_t run_left = walk->run_bytes - walk->in_run_bytes;
        int64_t wanted = run_left < max_bytes - total ? run_left : max_bytes - total;
        struct kvfi_tile tile;

        if (walk->left_bytes == 0) break;
        kvfi_walk_take(walk, wanted, &tile);
        iovecs[count++] = (struct iovec){.iov_base = tile.dst, .iov_len = (size_t)wanted};
        total += wanted;
    }
    packer->position_bytes += total;
    *bytes = total;
    return count;
}

int64_t kvfi_packer_position(const kvf_packer *packer)
{
    return packer->position_bytes;
}
