/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/key.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/** Takes the next bytes of a key. Returns false when no more are wanted. */
typedef bool (*sink)(void *state, const void *bytes, size_t count);

/** Gives a count, then so many elements. */
static bool feed_array(sink put, void *state, const void *items, size_t count, size_t element_bytes)
{
    const uint64_t number = items ? count : 0;

    return put(state, &number, sizeof number) && (number == 0 || put(state, items, count * element_bytes));
}

static bool feed_text(sink put, void *state, const char *text)
{
    return feed_array(put, state, text, text ? strlen(text) : 0, 1);
}

static bool feed_arrays(sink put, void *state, const struct kvf_vllm_arrays *arrays)
{
    const uint64_t counts[] = {arrays->layer_name_count, arrays->shared_group_count};
    bool more = feed_array(put, state, arrays->base_addrs, arrays->base_addr_count, sizeof *arrays->base_addrs) &&
                feed_array(put, state, arrays->block_lens, arrays->block_len_count, sizeof *arrays->block_lens) &&
                feed_array(put, state, arrays->kv_block_lens, arrays->kv_block_len_count,
                           sizeof *arrays->kv_block_lens) &&
                feed_array(put, state, arrays->layer_indices, arrays->layer_index_count,
                           sizeof *arrays->layer_indices) &&
                feed_array(put, state, arrays->group_indices, arrays->group_index_count,
                           sizeof *arrays->group_indices) &&
                feed_array(put, state, arrays->row_offsets, arrays->row_offset_count, sizeof *arrays->row_offsets) &&
                put(state, counts, sizeof counts);

    for (size_t i = 0; i < arrays->layer_name_count && more; i++) {
        more = feed_text(put, state, arrays->layer_names[i]);
    }
    for (size_t i = 0; i < arrays->shared_group_count && more; i++) {
        more = feed_array(put, state, arrays->shared_groups[i].ids, arrays->shared_groups[i].count,
                          sizeof *arrays->shared_groups[i].ids);
    }
    return more;
}

/** Gives all bytes of a key in their order, until the sink wants no more. */
static bool feed(const struct kvfi_vllm_key *key, sink put, void *state)
{
    const struct kvf_vllm_peer *peer = key->peer;
    const int64_t numbers[] = {peer->port, peer->tp_size, peer->tp_rank, peer->pp_size, key->by_id};
    bool more = put(state, numbers, sizeof numbers) && feed_text(put, state, peer->hostname);

    if (more) {
        more = key->by_id ? put(state, &peer->layout_id, sizeof peer->layout_id)
                          : feed_arrays(put, state, &peer->regions);
    }
    return more;
}

struct summary {
    XXH3_state_t hash;
    size_t bytes;
};

static bool sum_up(void *state, const void *bytes, size_t count)
{
    struct summary *summary = state;

    XXH3_64bits_update(&summary->hash, bytes, count);
    summary->bytes += count;
    return true;
}

static bool write_out(void *state, const void *bytes, size_t count)
{
    unsigned char **at = state;

    memcpy(*at, bytes, count);
    *at += count;
    return true;
}

/** What is left to compare with. */
struct rest {
    const unsigned char *at, *end;
};

static bool compare(void *state, const void *bytes, size_t count)
{
    struct rest *rest = state;
    bool equal = count <= (size_t)(rest->end - rest->at) && memcmp(rest->at, bytes, count) == 0;

    if (equal) rest->at += count;
    return equal;
}

void kvfi_vllm_key_init(struct kvfi_vllm_key *key, const struct kvf_vllm_peer *peer, bool by_id)
{
    struct summary summary = {.bytes = 0};

    *key = (struct kvfi_vllm_key){.peer = peer, .by_id = by_id};
    XXH3_64bits_reset(&summary.hash);
    feed(key, sum_up, &summary);
    key->hash = XXH3_64bits_digest(&summary.hash);
    key->bytes = summary.bytes;
}

void kvfi_vllm_key_write(const struct kvfi_vllm_key *key, unsigned char *out)
{
    feed(key, write_out, &out);
}

bool kvfi_vllm_key_equal(const struct kvfi_vllm_key *key, const unsigned char *bytes)
{
    struct rest rest = {bytes, bytes + key->bytes};

    return feed(key, compare, &rest) && rest.at == rest.end;
}
