/* SPDX-License-Identifier: Apache-2.0 */
#include "copy/walk.h"

void kvfi_walk_start(struct kvfi_walk *walk, const struct kvf_move *move, uint64_t src, uint64_t dst)
{
    walk->src = src;
    walk->dst = dst;
    walk->run_bytes = move->run_bytes;
    walk->loop_count = move->loop_count;
    walk->in_run_bytes = 0;
    walk->left_bytes = move->run_bytes;
    for (int64_t i = 0; i < move->loop_count; i++) {
        walk->loops[i] = move->loops[i];
        walk->index[i] = 0;
        walk->left_bytes *= move->loops[i].count;
    }
}

static void drop_loop(struct kvfi_walk *walk, int64_t loop)
{
    for (int64_t i = loop; i + 1 < walk->loop_count; i++) walk->loops[i] = walk->loops[i + 1];
    walk->loop_count--;
}

/* True when stepping the outer loop goes on where all steps of the inner one end. */
static bool continues(const struct kvf_loop *outer, const struct kvf_loop *inner)
{
    return outer->src_stride_bytes == inner->count * inner->src_stride_bytes &&
           outer->dst_stride_bytes == inner->count * inner->dst_stride_bytes;
}

void kvfi_walk_fold(struct kvfi_walk *walk)
{
    for (int64_t i = walk->loop_count - 1; i >= 0; i--) {
        struct kvf_loop *loop = &walk->loops[i];
        bool last = i + 1 == walk->loop_count;

        if (loop->count == 1) {
            drop_loop(walk, i);
        } else if (last && loop->src_stride_bytes == walk->run_bytes && loop->dst_stride_bytes == walk->run_bytes) {
            walk->run_bytes *= loop->count;
            walk->loop_count--;
        } else if (!last && continues(loop, loop + 1)) {
            loop[1].count *= loop->count;
            drop_loop(walk, i);
        }
    }
}

/* Advances by whole runs, fewer than the nest has left or exactly these. */
static void advance_runs(struct kvfi_walk *walk, int64_t runs)
{
    for (int64_t i = walk->loop_count - 1; i >= 0 && runs > 0; i--) {
        int64_t sum = walk->index[i] + runs;

        runs = sum / walk->loops[i].count;
        walk->index[i] = sum % walk->loops[i].count;
    }
}

static void advance_bytes(struct kvfi_walk *walk, int64_t bytes)
{
    int64_t position = walk->in_run_bytes + bytes;

    walk->left_bytes -= bytes;
    if (position < walk->run_bytes) {
        walk->in_run_bytes = position;
    } else {
        advance_runs(walk, position / walk->run_bytes);
        walk->in_run_bytes = position % walk->run_bytes;
    }
}

void kvfi_walk_skip(struct kvfi_walk *walk, int64_t bytes)
{
    advance_bytes(walk, bytes);
}

static void place_tile(const struct kvfi_walk *walk, struct kvfi_tile *tile)
{
    uint64_t src = walk->src + (uint64_t)walk->in_run_bytes;
    uint64_t dst = walk->dst + (uint64_t)walk->in_run_bytes;

    for (int64_t i = 0; i < walk->loop_count; i++) {
        src += (uint64_t)(walk->index[i] * walk->loops[i].src_stride_bytes);
        dst += (uint64_t)(walk->index[i] * walk->loops[i].dst_stride_bytes);
    }
    *tile = (struct kvfi_tile){
        .src = (const char *)(uintptr_t)src, .dst = (char *)(uintptr_t)dst, .rows = 1, .columns = 1};
}

/* The tile's loops, of at most `runs` whole runs. */
static void spread_tile(const struct kvfi_walk *walk, int64_t runs, struct kvfi_tile *tile)
{
    const struct kvf_loop *inner = &walk->loops[walk->loop_count - 1];
    const struct kvf_loop *outer = inner - 1;
    int64_t columns = inner->count - walk->index[walk->loop_count - 1];

    tile->columns = columns < runs ? columns : runs;
    tile->src_stride = inner->src_stride_bytes;
    tile->dst_stride = inner->dst_stride_bytes;
    if (walk->loop_count >= 2 && tile->columns == inner->count) {
        int64_t rows = outer->count - walk->index[walk->loop_count - 2];
        int64_t wanted = runs / inner->count;

        tile->rows = rows < wanted ? rows : wanted;
        tile->src_row_stride = outer->src_stride_bytes;
        tile->dst_row_stride = outer->dst_stride_bytes;
    }
}

int64_t kvfi_walk_take(struct kvfi_walk *walk, int64_t max_bytes, struct kvfi_tile *tile)
{
    int64_t run_left = walk->run_bytes - walk->in_run_bytes;
    int64_t bytes = 0;

    if (walk->left_bytes <= 0) goto done;
    place_tile(walk, tile);
    if (walk->in_run_bytes > 0 || max_bytes < walk->run_bytes) {
        tile->run_bytes = run_left < max_bytes ? run_left : max_bytes;
        bytes = tile->run_bytes;
    } else {
        tile->run_bytes = walk->run_bytes;
        if (walk->loop_count > 0) spread_tile(walk, max_bytes / walk->run_bytes, tile);
        bytes = tile->rows * tile->columns * tile->run_bytes;
    }
    advance_bytes(walk, bytes);
done:
    return bytes;
}
