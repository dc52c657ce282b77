/* SPDX-License-Identifier: Apache-2.0 */
#include "expand.h"

#include <stdio.h>
#include <stdlib.h>

void packed_fini(struct packed *packed)
{
    free(packed->src);
    free(packed->dst);
    *packed = (struct packed){0};
}

void packed_reserve(struct packed *packed, int64_t count)
{
    if (packed->count + count <= packed->capacity) return;
    packed->capacity = 2 * packed->capacity + count;
    packed->src = realloc(packed->src, (size_t)packed->capacity * sizeof *packed->src);
    packed->dst = realloc(packed->dst, (size_t)packed->capacity * sizeof *packed->dst);
    if (!packed->src || !packed->dst) abort();
}

int64_t move_bytes(const struct kvf_move *move)
{
    int64_t bytes = move->run_bytes;

    for (int64_t i = 0; i < move->loop_count; i++) bytes *= move->loops[i].count;
    return bytes;
}

static bool inside(const struct rank *rank, int64_t memory, int64_t offset, int64_t bytes)
{
    return memory >= 0 && memory < (int64_t)rank->spec.memory_count && offset >= 0 &&
           offset + bytes <= rank->memory_bytes[memory];
}

/* Appends one run at the given distances from the move's start. */
static bool add_run(struct packed *packed, const struct kvf_move *move, int64_t src_distance, int64_t dst_distance,
                    const struct rank *src, const struct rank *dst)
{
    int64_t from = move->src_offset_bytes + src_distance, to = move->dst_offset_bytes + dst_distance;

    if (src && !inside(src, move->src_memory, from, move->run_bytes)) return false;
    if (dst && !inside(dst, move->dst_memory, to, move->run_bytes)) return false;
    packed_reserve(packed, move->run_bytes);
    if (src) from += src->memory_start[move->src_memory];
    if (dst) to += dst->memory_start[move->dst_memory];
    for (int64_t i = 0; i < move->run_bytes; i++) {
        packed->src[packed->count] = src ? (int32_t)(from + i) : UNKNOWN;
        packed->dst[packed->count++] = dst ? (int32_t)(to + i) : UNKNOWN;
    }
    packed->runs++;
    return true;
}

bool packed_add(struct packed *packed, const struct kvf_move *move, const struct rank *src, const struct rank *dst)
{
    int64_t step[5] = {0}, src_distance = 0, dst_distance = 0, i;

    packed->moves++;
    if (move->run_bytes < 1 || move->loop_count < 0 || move->loop_count > 5) return false;
    do {
        if (!add_run(packed, move, src_distance, dst_distance, src, dst)) return false;
        for (i = move->loop_count - 1; i >= 0; i--) {
            const struct kvf_loop *loop = &move->loops[i];

            src_distance += loop->src_stride_bytes;
            dst_distance += loop->dst_stride_bytes;
            if (++step[i] < loop->count) break;
            src_distance -= loop->count * loop->src_stride_bytes;
            dst_distance -= loop->count * loop->dst_stride_bytes;
            step[i] = 0;
        }
    } while (i >= 0);
    return true;
}

bool packed_walk(struct packed *packed, kvf_cursor *cursor, const struct rank *src, const struct rank *dst)
{
    struct kvf_move move;
    enum kvf_status status;
    bool good = true;

    while (good && (status = kvf_cursor_next(cursor, &move)) == KVF_OK) {
        good = packed_add(packed, &move, src, dst);
        if (!good) fprintf(stderr, "move %lld: an address lies outside its memory\n", (long long)packed->moves - 1);
    }
    if (good && status != KVF_ERR_NOT_FOUND) {
        fprintf(stderr, "cursor: %s\n", kvf_status_name(status));
        good = false;
    }
    return good;
}
