/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/pair_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void pair_kit_init(struct pair_kit *kit)
{
    memset(kit, 0, sizeof *kit);
    kvf_vllm_producer_spec_init(&kit->spec, sizeof kit->spec);
    kvf_vllm_peer_init(&kit->peer, sizeof kit->peer);
    for (int i = 0; i < PAIR_KIT_GROUPS; i++) kit->kinds[i] = KVF_VLLM_ATTENTION;
    kit->spec.total_kv_heads = 12;
    kit->spec.group_kinds = kit->kinds;
    kit->spec.group_count = 1;
    kit->peer.hostname = "consumer-host";
    kit->peer.port = 54321;
}

void pair_kit_region(struct pair_kit_side *side, int64_t layer, uint64_t base, int64_t block_len, int64_t kv_block_len)
{
    size_t i = side->count++;

    assert_true(i < PAIR_KIT_REGIONS);
    snprintf(side->names[i], sizeof side->names[i], "model.layers.%" PRId64 ".self_attn", layer);
    side->layer_names[i] = side->names[i];
    side->layer_indices[i] = layer;
    side->base_addrs[i] = base;
    side->block_lens[i] = block_len;
    side->kv_block_lens[i] = kv_block_len;
    side->row_offsets[i] = KVF_VLLM_NO_ROW;
    pair_kit_group(side, 0, 1, (const int64_t[]){0});
}

void pair_kit_row(struct pair_kit_side *side, int64_t row_offset)
{
    side->row_offsets[side->count - 1] = row_offset;
}

void pair_kit_group(struct pair_kit_side *side, int64_t group, size_t count, const int64_t *groups)
{
    size_t i = side->count - 1;

    side->group_indices[i] = group;
    if (count) memcpy(side->groups[i], groups, count * sizeof *groups);
    side->shared_groups[i] = (struct kvf_vllm_ids){side->groups[i], count};
}

static struct kvf_vllm_arrays arrays_of(const struct pair_kit_side *side)
{
    size_t count = side->count;

    return (struct kvf_vllm_arrays){side->base_addrs, count, side->block_lens, count, side->kv_block_lens, count,
                                    side->layer_names, count, side->layer_indices, count, side->group_indices, count,
                                    side->shared_groups, count, side->row_offsets, count};
}

void pair_kit_arrays(struct pair_kit *kit)
{
    kit->spec.regions = arrays_of(&kit->local);
    kit->peer.regions = arrays_of(&kit->remote);
}

kvf_vllm_producer *pair_kit_producer(struct pair_kit *kit)
{
    kvf_vllm_producer *producer = NULL;
    struct kvf_error error;

    pair_kit_arrays(kit);
    if (kvf_vllm_producer_create(&kit->spec, &producer, &error) != KVF_OK) fail_msg("%s", error.text);
    return producer;
}

kvf_vllm_prepared *pair_kit_prepare(struct pair_kit *kit, kvf_vllm_producer *producer)
{
    kvf_vllm_prepared *prepared = NULL;
    struct kvf_error error;

    if (kvf_vllm_prepare(producer, &kit->peer, &prepared, &error) != KVF_OK) fail_msg("%s", error.text);
    return prepared;
}

kvf_vllm_prepared *pair_kit_pair(struct pair_kit *kit)
{
    kvf_vllm_producer *producer = pair_kit_producer(kit);
    kvf_vllm_prepared *prepared = pair_kit_prepare(kit, producer);

    kvf_vllm_producer_destroy(producer);
    return prepared;
}

void pair_kit_expect(const kvf_vllm_prepared *prepared, const struct kvf_vllm_ids *producer,
                     const struct kvf_vllm_ids *consumer, size_t groups, const struct kvf_vllm_descriptor *wanted,
                     size_t count)
{
    struct kvf_vllm_descriptor found;
    kvf_vllm_write *write = NULL;
    struct kvf_error error;
    int64_t bytes = 0;

    if (kvf_vllm_write_create(prepared, producer, groups, consumer, groups, &write, &error) != KVF_OK)
        fail_msg("%s", error.text);
    assert_int_equal(kvf_vllm_write_count(write), count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(kvf_vllm_write_next(write, &found, 1), 1);
        if (found.src_address != wanted[i].src_address || found.dst_address != wanted[i].dst_address ||
            found.bytes != wanted[i].bytes)
            fail_msg("descriptor %zu: 0x%" PRIx64 " -> 0x%" PRIx64 ", %" PRId64 " bytes", i, found.src_address,
                     found.dst_address, found.bytes);
        bytes += found.bytes;
    }
    assert_int_equal(kvf_vllm_write_next(write, &found, 1), 0);
    assert_int_equal(kvf_vllm_write_bytes(write), bytes);
    kvf_vllm_write_destroy(write);
}
