/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's elections against those of whole instances, for the same two instances: each destination rank gets as much
 * either way, and from the same ranks where only one has it. */
#include "case.h"

#include <inttypes.h>
#include <stdio.h>

/* No two source ranks hold the same. */
static bool has_one_owner(const struct prop_case *c)
{
    bool single = true;

    for (size_t p = 0; p < c->part_count; p++) {
        enum part_kind kind = c->parts[p].kind;

        if (kind == KV) single = single && (c->parts[p].heads >= side_tp(&c->src));
        if (kind == SIDE || kind == RING || kind == STATE_SIDE) single = single && side_tp(&c->src) == 1;
    }
    return single;
}

/* Whole blocks of a whole prompt: tokens and blocks say the same. */
static bool is_plain(const struct prop_case *c)
{
    return c->prompt % c->src.tokens_per_block == 0 && c->start == KVF_TRTLLM_NONE && c->cut_count == 1 &&
           c->excluded < 0 && !c->has_gaps && (c->src.has_state || !c->dst.has_state);
}

static int64_t bytes_of(const struct prop_case *c, const kvf_trtllm_pair *pair, const struct rank *src,
                        const struct rank *dst)
{
    struct kvf_trtllm_request request;
    kvf_trtllm_write *write = NULL;
    struct kvf_error error = {0};
    int64_t bytes = -1;

    kvf_trtllm_request_init(&request, sizeof request);
    request.prompt_tokens = c->prompt;
    request.src = src->blocks;
    request.src_count = src->group_count;
    request.dst = dst->blocks;
    request.dst_count = dst->group_count;
    if (kvf_trtllm_pair_bind(pair, &request, &write, &error) == KVF_OK) bytes = kvf_trtllm_write_bytes(write);
    else fprintf(stderr, "elections: %s\n", error.text);
    kvf_trtllm_write_destroy(write);
    return bytes;
}

static int64_t native_bytes(const struct prop_case *c, size_t src, size_t dst)
{
    const kvf_trtllm_rank *ranks[2][MOST_RANKS];
    kvf_trtllm_pair *pair = NULL;
    struct kvf_error error = {0};
    int64_t bytes = -1;

    for (size_t r = 0; r < c->src.rank_count; r++) ranks[0][r] = c->src.ranks[r].info;
    for (size_t r = 0; r < c->dst.rank_count; r++) ranks[1][r] = c->dst.ranks[r].info;
    if (kvf_trtllm_pair_native(ranks[0], c->src.rank_count, ranks[1], c->dst.rank_count, src, dst, &pair, &error) ==
        KVF_OK)
        bytes = bytes_of(c, pair, &c->src.ranks[src], &c->dst.ranks[dst]);
    else fprintf(stderr, "elections: %s\n", error.text);
    kvf_trtllm_pair_release(pair);
    return bytes;
}

/* A rank that the destination does not ask has nothing to send. */
static int64_t strict_bytes(const struct prop_case *c, size_t src, size_t dst)
{
    const struct rank *from = &c->src.ranks[src], *to = &c->dst.ranks[dst];
    kvf_trtllm_registrar *registrar = NULL;
    kvf_trtllm_pair *pair = NULL;
    struct kvf_trtllm_overlap overlap;
    struct kvf_error error = {0};
    int64_t ranks[64], bytes = 0;
    bool is_asked = false;

    if (kvf_trtllm_get_overlap(to->info, from->info, c->src.dp_rank, &overlap, ranks, 64, &error) != KVF_OK) return -1;
    for (size_t i = 0; i < overlap.rank_count; i++) is_asked |= ranks[i] == from->number;
    if (!is_asked) return 0;
    if (kvf_trtllm_registrar_create(from->info, NULL, &registrar, &error) == KVF_OK &&
        kvf_trtllm_registrar_register(registrar, to->info, NULL, &error) == KVF_OK &&
        kvf_trtllm_registrar_pair(registrar, c->dst.name, to->number, &pair, &error) == KVF_OK)
        bytes = bytes_of(c, pair, from, to);
    else bytes = -1;
    kvf_trtllm_pair_release(pair);
    kvf_trtllm_registrar_destroy(registrar);
    return bytes;
}

bool check_elections(struct prop_case *c)
{
    bool good = true;

    if (c->is_native || !is_plain(c)) return true;
    for (size_t d = 0; d < c->dst.rank_count; d++) {
        int64_t sums[2] = {0, 0};

        for (size_t s = 0; s < c->src.rank_count; s++) {
            int64_t strict = strict_bytes(c, s, d), native = native_bytes(c, s, d);

            sums[0] += strict;
            sums[1] += native;
            c->elections[strict == native]++;
            if (strict < 0 || native < 0 || (strict != native && has_one_owner(c))) {
                fprintf(stderr, "elections: ctx rank %" PRId64 " to gen rank %" PRId64 ": %" PRId64
                        " bytes as upstream elects, %" PRId64 " as whole instances do\n", c->src.ranks[s].number,
                        c->dst.ranks[d].number, strict, native);
                good = false;
            }
        }
        if (sums[0] != sums[1]) {
            fprintf(stderr, "elections: gen rank %" PRId64 ": %" PRId64 " bytes as upstream elects, %" PRId64
                    " as whole instances do\n", c->dst.ranks[d].number, sums[0], sums[1]);
            good = false;
        }
    }
    return good;
}
