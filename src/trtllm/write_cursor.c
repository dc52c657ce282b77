/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"
#include "base/error.h"
#include "trtllm/write.h"

#include <stdlib.h>

struct kvf_trtllm_cursor {
    const struct kvf_trtllm_write *write;
    kvf_cursor **moves;              /**< one per binding */
    size_t binding;                  /**< the one that moves come from */
    struct kvf_move move;
    int64_t steps[5];                /**< of the move's loops */
    bool inside;                     /**< the move has copies left */
    uint64_t src_address, dst_address;
    struct kvf_trtllm_fragment held; /**< joins what touches it; 0 bytes = none */
};

enum kvf_status kvf_trtllm_cursor_create(const kvf_trtllm_write *write, kvf_trtllm_cursor **out,
                                         struct kvf_error *error)
{
    kvf_trtllm_cursor *cursor = NULL;
    enum kvf_status status = KVF_OK;

    if (!write || !out) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "cursor: the write or the result is NULL");
    cursor = kvfi_alloc_zeroed(1, sizeof *cursor);
    if (cursor) cursor->moves = kvfi_alloc_zeroed(write->binding_count, sizeof(kvf_cursor *));
    if (!cursor || !cursor->moves) {
        status = kvfi_fail_memory(error, "a cursor");
        goto done;
    }
    cursor->write = write;
    for (size_t i = 0; i < write->binding_count && status == KVF_OK; i++)
        status = kvf_cursor_create(write->bindings[i], &cursor->moves[i], error);
    if (status != KVF_OK) goto done;
    *out = cursor;
    cursor = NULL;
done:
    kvf_trtllm_cursor_destroy(cursor);
    return status;
}

void kvf_trtllm_cursor_destroy(kvf_trtllm_cursor *cursor)
{
    if (!cursor) return;
    for (size_t i = 0; cursor->moves && cursor->write && i < cursor->write->binding_count; i++)
        kvf_cursor_destroy(cursor->moves[i]);
    free(cursor->moves);
    free(cursor);
}

/** Takes the next move, of the next binding when one ends. Returns false at the end. */
static bool next_move(struct kvf_trtllm_cursor *cursor)
{
    const struct kvf_trtllm_write *write = cursor->write;

    while (cursor->binding < write->binding_count &&
           kvf_cursor_next(cursor->moves[cursor->binding], &cursor->move) != KVF_OK)
        cursor->binding++;
    if (cursor->binding == write->binding_count) return false;
    cursor->src_address = write->pair->src_bases[cursor->move.src_memory] + (uint64_t)cursor->move.src_offset_bytes;
    cursor->dst_address = write->pair->dst_bases[cursor->move.dst_memory] + (uint64_t)cursor->move.dst_offset_bytes;
    for (int64_t i = 0; i < cursor->move.loop_count; i++) cursor->steps[i] = 0;
    cursor->inside = true;
    return true;
}

/** Goes to the move's next copy: the innermost loop first. */
static void step(struct kvf_trtllm_cursor *cursor)
{
    int64_t at = cursor->move.loop_count - 1;

    for (; at >= 0; at--) {
        const struct kvf_loop *loop = &cursor->move.loops[at];

        cursor->src_address += (uint64_t)loop->src_stride_bytes;
        cursor->dst_address += (uint64_t)loop->dst_stride_bytes;
        if (++cursor->steps[at] < loop->count) break;
        cursor->src_address -= (uint64_t)loop->count * (uint64_t)loop->src_stride_bytes;
        cursor->dst_address -= (uint64_t)loop->count * (uint64_t)loop->dst_stride_bytes;
        cursor->steps[at] = 0;
    }
    cursor->inside = at >= 0;
}

/** The next copy that the moves hold. Returns false at the end. */
static bool next_copy(struct kvf_trtllm_cursor *cursor, struct kvf_trtllm_fragment *out)
{
    bool more = cursor->inside || next_move(cursor);

    if (more) {
        *out = (struct kvf_trtllm_fragment){cursor->src_address, cursor->dst_address, cursor->move.run_bytes};
        step(cursor);
    }
    return more;
}

size_t kvf_trtllm_cursor_next(kvf_trtllm_cursor *cursor, struct kvf_trtllm_fragment *out, size_t capacity)
{
    struct kvf_trtllm_fragment copy;
    size_t count = 0;

    while (count < capacity) {
        struct kvf_trtllm_fragment *held = &cursor->held;
        bool more = next_copy(cursor, &copy);

        if (more && held->bytes && copy.src_address - held->src_address == (uint64_t)held->bytes &&
            copy.dst_address - held->dst_address == (uint64_t)held->bytes) {
            held->bytes += copy.bytes;
            continue;
        }
        if (held->bytes) out[count++] = *held;
        if (more) *held = copy;
        else held->bytes = 0;
        if (!more) break;
    }
    return count;
}
