/* SPDX-License-Identifier: Apache-2.0 */
/* Which byte of which rank holds what: from the drawn numbers alone. A coordinate is a part, a layer's number, a buffer
 * (or section), a head, and a byte, all of the whole model; a hash of them is what memory "holds". */
#include "case.h"

static uint64_t tag_of(uint64_t part, uint64_t layer, uint64_t buffer, uint64_t head, uint64_t byte)
{
    uint64_t tag = mix_u64(part + 1);

    tag = mix_u64(tag ^ (layer + 1));
    tag = mix_u64(tag ^ (buffer + 1));
    tag = mix_u64(tag ^ (head + 1));
    return mix_u64(tag ^ (byte + 1)) | 1;
}

/** One side of a case, one rank, one view. */
struct at {
    const struct prop_case *c;
    const struct side *side;
    const struct rank *rank;
    const struct placed *placed;
    const struct part *part;
    struct pool *pool;
    int64_t kind; /* of the group */
};

static void put(const struct at *at, int64_t offset, uint64_t tag, uint8_t must)
{
    at->pool->tags[offset] = tag;
    if (!at->side->is_source) at->pool->must[offset] = must;
}

/* The token is on both sides, and wanted. Upstream counts by blocks, and moves them whole. */
static bool is_due(const struct prop_case *c, int64_t kind, int64_t token)
{
    int64_t from = c->start == KVF_TRTLLM_NONE ? 0 : c->start, end = c->prompt;

    if (!c->is_native) {
        from -= from % c->dst.tokens_per_block;
        end += c->dst.tokens_per_block;
        if (token / c->dst.tokens_per_block >= (c->prompt + c->dst.tokens_per_block - 1) / c->dst.tokens_per_block)
            return false;
    }
    return token >= from && token < end && c->src.held[kind][token / c->src.tokens_per_block] &&
           c->dst.held[kind][token / c->dst.tokens_per_block];
}

static bool is_held_at_end(const struct prop_case *c, int64_t kind)
{
    return c->src.held[kind][(c->prompt - 1) / c->src.tokens_per_block] &&
           c->dst.held[kind][(c->prompt - 1) / c->dst.tokens_per_block];
}

/* Some of the byte's tokens are due. Bytes are counted from the first token on, `eighths` for each. */
static uint8_t must_of(const struct at *at, int64_t byte)
{
    int64_t eighths = at->part->eighths, first = byte * 8 / eighths, last = (byte * 8 + 7) / eighths;

    for (int64_t token = first; token <= last; token++)
        if (is_due(at->c, at->kind, token)) return 1;
    return 2;
}

/* One buffer of one block: [head][token][byte] or [token][head][byte]. */
static void fill_buffer(const struct at *at, int64_t offset, int64_t block, uint64_t layer, int64_t buffer)
{
    const struct side *side = at->side;
    int64_t heads = at->part->kind == KV ? rank_heads(side, at->part) : 1, first = 0;
    int64_t head_bytes = side->tokens_per_block * at->part->eighths / 8;
    int64_t start = (block * side->cp + at->rank->cp) * head_bytes, token_bytes = at->part->eighths / 8;
    int64_t tp = side_tp(side), tp_rank = at->rank->tp % tp;

    if (at->part->kind == KV) first = at->part->heads >= tp ? tp_rank * heads : tp_rank * at->part->heads / tp;
    for (int64_t i = 0; i < heads * head_bytes; i++) {
        int64_t head = i / head_bytes, byte = i % head_bytes;

        if (at->part->kind == KV && side->nhd) {
            head = i / token_bytes % heads;
            byte = i / (heads * token_bytes) * token_bytes + i % token_bytes;
        }
        put(at, offset + i,
            tag_of(at->placed->part, layer, (uint64_t)buffer, (uint64_t)(first + head), (uint64_t)(start + byte)),
            must_of(at, start + byte));
    }
}

static void fill_state(const struct at *at, int64_t offset, uint64_t layer)
{
    int64_t size, number, done = 0;
    uint8_t must = at->c->src.has_state ? 1 : 2;

    rank_state(at->side, at->rank, &size, &number);
    if (at->part->kind == STATE_SIDE) {
        for (int64_t i = 0; i < at->part->bytes; i++)
            put(at, offset + i, tag_of(at->placed->part, layer, 0, 0, (uint64_t)i), must);
    } else if (at->part->kind == SSM) {
        for (int64_t i = 0; i < at->part->bytes / size; i++)
            put(at, offset + i,
                tag_of(at->placed->part, layer, 0, 0, (uint64_t)(number * (at->part->bytes / size) + i)), must);
    } else {
        for (int64_t s = 0; s < SECTIONS; s++) {
            int64_t bytes = at->part->sections[s] / size;

            for (int64_t i = 0; i < bytes; i++)
                put(at, offset + done + i,
                    tag_of(at->placed->part, layer, (uint64_t)s, 0, (uint64_t)(number * bytes + i)), must);
            done += bytes;
        }
    }
}

/* A ring that is as long on both sides is copied as it is, with each block. Else only the last block counts, and in it
 * the positions before the end of the prompt that both rings still hold. */
static void fill_ring(const struct at *at, int64_t offset, int64_t block, bool is_last, uint64_t layer)
{
    int64_t own = at->part->ring[at->side->is_source ? 0 : 1], other = at->part->ring[at->side->is_source ? 1 : 0];
    int64_t bytes = at->part->eighths / 8, kept = own < other ? own : other, prompt = at->c->prompt;

    if (own == other) {
        int64_t token = (block * at->side->cp + at->rank->cp) * at->side->tokens_per_block;

        for (int64_t i = 0; i < own * bytes; i++)
            put(at, offset + i, tag_of(at->placed->part, layer, 1, (uint64_t)token, (uint64_t)i),
                is_due(at->c, at->kind, token) ? 1 : 2);
        return;
    }
    for (int64_t position = prompt > own ? prompt - own : 0; is_last && position < prompt; position++) {
        bool is_due_here = position >= prompt - kept && is_held_at_end(at->c, at->kind);

        for (int64_t i = 0; i < bytes; i++)
            put(at, offset + position % own * bytes + i,
                tag_of(at->placed->part, layer, 0, 0, (uint64_t)(position * bytes + i)), is_due_here ? 1 : 0);
    }
}

static void fill_block(const struct at *at, int64_t block, bool is_last, int64_t id)
{
    for (size_t i = 0; i < at->placed->layer_count; i++) {
        uint64_t layer = (uint64_t)at->c->layers[at->placed->layers[i]].global;
        int64_t offset = id * at->pool->stride + at->placed->offsets[i];

        if (at->part->kind >= CONV) fill_state(at, offset, layer);
        if (at->part->kind == RING) fill_ring(at, offset, block, is_last, layer);
        for (int64_t b = 0; at->part->kind < RING && b < at->part->buffers; b++)
            fill_buffer(at, offset + b * (at->placed->layer_bytes / at->part->buffers), block, layer, b);
    }
}

void oracle_fill(const struct prop_case *c, struct side *side)
{
    for (size_t r = 0; r < side->rank_count; r++) {
        struct rank *rank = &side->ranks[r];

        for (size_t g = 0; g < rank->group_count; g++) {
            for (size_t v = 0; v < rank->view_count[g]; v++) {
                const struct placed *placed = &rank->placed[g][v];
                struct at at = {c, side, rank, placed, &c->parts[placed->part], &rank->pools[placed->pool],
                                rank->group_kind[g]};

                if (!side->is_source && c->excluded == (int64_t)placed->part) continue;
                for (size_t i = 0; i < rank->blocks[g].count; i++) {
                    bool is_last = i + 1 == rank->blocks[g].count;

                    if (rank->ids[g][i] >= 0) fill_block(&at, (int64_t)i, is_last, rank->ids[g][i]);
                }
            }
        }
    }
}
