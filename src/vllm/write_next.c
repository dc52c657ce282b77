/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/write.h"

/** Takes the next move of the current pair as pieces. Returns false when the pair has no more. */
static bool next_move(kvf_vllm_write *write, const struct kvfi_vllm_bound *bound,
                      const struct kvf_vllm_region *local, const struct kvf_vllm_region *remote)
{
    const kvf_vllm_prepared *prepared = write->prepared;
    const struct kvfi_vllm_shape *shape = &prepared->shapes[prepared->jobs[prepared->job_of[write->pair]].shape];
    struct kvfi_vllm_piece *piece = &write->piece;
    struct kvf_move move;

    if (kvf_cursor_next(bound->cursor, &move) != KVF_OK) return false;
    /* A box of these plans is one run, so the block loop is the only one. A run is longer than a block's bytes where
     * blocks follow each other; upstream joins them only where nothing is cut. */
    *piece = (struct kvfi_vllm_piece){.bytes = shape->whole ? move.run_bytes : shape->cut.bytes,
                                      .left = move.run_bytes, .run_bytes = move.run_bytes,
                                      .src_next = local->base_addr + (uint64_t)move.src_offset_bytes,
                                      .dst_next = remote->base_addr + (uint64_t)move.dst_offset_bytes};
    piece->src = piece->src_next;
    piece->dst = piece->dst_next;
    if (move.loop_count > 0) {
        piece->left_of_all = move.loops[0].count - 1;
        piece->src_step = (uint64_t)move.loops[0].src_stride_bytes;
        piece->dst_step = (uint64_t)move.loops[0].dst_stride_bytes;
    }
    return true;
}

/** Goes on until there is something to give. Returns false at the end. */
static bool refill(kvf_vllm_write *write)
{
    const kvf_vllm_prepared *prepared = write->prepared;
    struct kvfi_vllm_piece *piece = &write->piece;
    const struct kvf_vllm_region *local, *remote;
    size_t pairs;

    if (piece->left_of_all > 0) {
        piece->left_of_all--;
        piece->left = piece->run_bytes;
        piece->src = piece->src_next += piece->src_step;
        piece->dst = piece->dst_next += piece->dst_step;
        return true;
    }
    local = kvf_vllm_regions_get(prepared->local, &pairs);
    remote = kvf_vllm_regions_get(prepared->remote, &pairs);
    for (; write->pair < pairs; write->pair++, write->in_pair = false) {
        const struct kvfi_vllm_bound *bound = &write->bound[prepared->job_of[write->pair]];
        int64_t skipped;

        if (!bound->binding) continue;
        if (!write->in_pair) kvf_cursor_seek(bound->cursor, 0, &skipped);
        write->in_pair = true;
        if (next_move(write, bound, &local[write->pair], &remote[write->pair])) return true;
    }
    return false;
}

size_t kvf_vllm_write_next(kvf_vllm_write *write, struct kvf_vllm_descriptor *out, size_t capacity)
{
    struct kvfi_vllm_piece *piece;
    size_t count = 0;

    if (!write) return 0;
    piece = &write->piece;
    while (count < capacity && (piece->left > 0 || refill(write))) {
        out[count++] = (struct kvf_vllm_descriptor){piece->src, piece->dst, piece->bytes};
        piece->src += (uint64_t)piece->bytes;
        piece->dst += (uint64_t)piece->bytes;
        piece->left -= piece->bytes;
    }
    return count;
}
