/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "vllm/coalesce.h"
#include "vllm/prepared.h"
#include "vllm/producer.h"
#include "vllm/regions.h"

/** Reads a peer's struct, whatever size its caller knows. */
static enum kvf_status read_peer(const struct kvf_vllm_peer *given, struct kvf_vllm_peer *peer,
                                 struct kvf_error *error)
{
    enum kvf_status status;

    kvf_vllm_peer_init(peer, sizeof *peer);
    status = kvfi_options_copy(peer, sizeof *peer, given, "peer", error);
    if (status) goto done;
    if (!peer->hostname || !kvfi_vllm_arrays_are_there(&peer->regions))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "peer: its host name or an array is NULL");
done:
    return status;
}

/** What is refused before any region is looked at. */
static enum kvf_status check_pair(const kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                                  const struct kvfi_vllm_ranks *ranks, struct kvf_error *error)
{
    enum kvf_status status = kvfi_vllm_check_paired(ranks, error);

    if (!status && kvfi_vllm_pp_hides_layers(producer->pp_size, peer->pp_size, producer->has_opaque_row,
                                             &peer->regions)) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "Mooncake non-page-contiguous packed regions keep only the first layer name, so they cannot "
                           "be aligned across PP sizes %" PRId64 " and %" PRId64 ".",
                           producer->pp_size, peer->pp_size);
    }
    return status;
}

/** Makes regions of what a peer sends. Lists of another length than the names' count as absent. */
static enum kvf_status expand_remote(const kvf_vllm_producer *producer, struct kvf_vllm_arrays arrays,
                                     kvf_vllm_regions **out, struct kvf_error *error)
{
    if (arrays.shared_group_count != arrays.layer_name_count) arrays.shared_group_count = 0;
    if (arrays.row_offset_count != arrays.layer_name_count) arrays.row_offset_count = 0;
    return kvf_vllm_regions_expand(&arrays, producer->layers, producer->layer_count, out, error);
}

/** Merges neighbours, where one cut per pair is right for all that is merged. */
static enum kvf_status coalesce(const kvf_vllm_producer *producer, const struct kvfi_vllm_ranks *ranks,
                                struct kvfi_vllm_pairs *pairs, bool covered, struct kvf_error *error)
{
    bool places_heads = ranks->remote_tp_size < ranks->total_heads; /* several beside each other */
    int64_t ratio;
    enum kvf_status status = kvfi_vllm_tp_ratio(ranks->tp_size, ranks->remote_tp_size, &ratio, error);

    if (!status && (ratio == 1 || (ranks->replicated && !(places_heads && producer->keeps_layers_apart))))
        kvfi_vllm_coalesce(pairs, covered);
    return status;
}

static size_t region_count(const kvf_vllm_regions *regions)
{
    size_t count;

    kvf_vllm_regions_get(regions, &count);
    return count;
}

/** Aligns, checks heads, coalesces: fills `prepared->local` and `remote`. */
static enum kvf_status join_regions(const kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                                    const struct kvfi_vllm_ranks *ranks, kvf_vllm_prepared *prepared,
                                    struct kvf_error *error)
{
    struct kvfi_vllm_pairs pairs = {.count = 0};
    kvf_vllm_regions *remote = NULL;
    enum kvf_status status;
    bool covered;

    status = expand_remote(producer, peer->regions, &remote, error);
    if (status) goto done;
    status = kvfi_vllm_align(producer->regions, remote, peer->pp_size != producer->pp_size, &pairs, error);
    if (status) goto done;
    /* Before anything is merged: a merged region has but its first layer's name. */
    status = kvfi_vllm_check_heads(ranks, pairs.local, pairs.count, producer->layers, producer->layer_count, error);
    if (status) goto done;
    covered = pairs.count == region_count(producer->regions) && pairs.count == region_count(remote);
    status = coalesce(producer, ranks, &pairs, covered, error);
    if (!status) status = kvf_vllm_regions_create(pairs.local, pairs.count, &prepared->local, error);
    if (!status) status = kvf_vllm_regions_create(pairs.remote, pairs.count, &prepared->remote, error);
done:
    kvfi_vllm_pairs_fini(&pairs);
    kvf_vllm_regions_release(remote);
    return status;
}

static enum kvf_status check_lengths(const struct kvfi_vllm_ranks *ranks, const kvf_vllm_prepared *prepared,
                                     struct kvf_error *error)
{
    size_t local_count, remote_count;
    const struct kvf_vllm_region *local = kvf_vllm_regions_get(prepared->local, &local_count);
    const struct kvf_vllm_region *remote = kvf_vllm_regions_get(prepared->remote, &remote_count);

    return kvfi_vllm_check_lengths(ranks, local, local_count, remote, remote_count, error);
}

/** Prepares anew. What is refused becomes a refusal, with the regions where they came to be. */
static enum kvf_status make(const kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                            const struct kvfi_vllm_ranks *ranks, kvf_vllm_prepared **out, struct kvf_error *error)
{
    kvf_vllm_prepared *prepared = kvfi_vllm_prepared_new(producer->group_kinds, producer->group_count,
                                                         producer->kernel_blocks_per_block);
    struct kvf_error refusal = {.status = KVF_OK};
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    int64_t first, targets;

    if (!prepared) {
        kvfi_fail_memory(&refusal, "a prepared pair");
        goto done;
    }
    status = check_pair(producer, peer, ranks, &refusal);
    if (!status && !producer->regions) {
        refusal = producer->refusal;
        status = refusal.status;
    }
    if (!status) status = join_regions(producer, peer, ranks, prepared, &refusal);
    if (!status) status = check_lengths(ranks, prepared, &refusal);
    if (!status) status = kvfi_vllm_target_ranks(ranks->tp_rank, ranks->tp_size, ranks->remote_tp_size, &first,
                                                 &targets, &refusal);
    if (!status) status = kvfi_vllm_need_send(targets, peer->pp_size, producer->pp_size, &prepared->pulls_expected,
                                              &refusal);
    if (!status) status = kvfi_vllm_prepared_fill(prepared, ranks, &refusal);
    if (status && status != KVF_ERR_INCOMPATIBLE) goto done;
    prepared->refusal = refusal;
    status = KVF_OK;
    *out = prepared;
    prepared = NULL;
done:
    if (status && error) *error = refusal;
    kvf_vllm_prepared_release(prepared);
    return status;
}

/** Finds what came with a layout id before. */
static enum kvf_status find_by_id(kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                                  const struct kvfi_vllm_ranks *ranks, kvf_vllm_prepared **out,
                                  struct kvf_error *error)
{
    enum kvf_status status = check_pair(producer, peer, ranks, error);
    struct kvfi_vllm_key key;
    kvf_vllm_prepared *found;

    if (status) goto done;
    kvfi_vllm_key_init(&key, peer, true);
    found = kvfi_vllm_memo_find(&producer->by_id, &key);
    if (found) *out = kvf_vllm_prepared_acquire(found);
    else status = kvfi_fail(error, KVF_ERR_NOT_FOUND, "Mooncake KV layout 0x%" PRIx64 " from %s:%" PRId64
                            " is not cached.", peer->layout_id, peer->hostname, peer->port);
done:
    return status;
}

/** Finds or makes what belongs to the arrays of a peer, and remembers it, by its layout id too. */
static enum kvf_status find_by_layout(kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                                      const struct kvfi_vllm_ranks *ranks, kvf_vllm_prepared **out,
                                      struct kvf_error *error)
{
    kvf_vllm_prepared *prepared = NULL;
    enum kvf_status status = KVF_OK;
    struct kvfi_vllm_key key, by_id;

    kvfi_vllm_key_init(&key, peer, false);
    prepared = kvfi_vllm_memo_find(&producer->by_layout, &key);
    if (prepared) {
        kvf_vllm_prepared_acquire(prepared);
    } else {
        status = make(producer, peer, ranks, &prepared, error);
        if (status) goto done;
        kvfi_vllm_memo_put(&producer->by_layout, &key, prepared);
    }
    if (peer->layout_id && prepared->local) {
        kvfi_vllm_key_init(&by_id, peer, true);
        if (kvfi_vllm_memo_find(&producer->by_id, &by_id) != prepared)
            kvfi_vllm_memo_put(&producer->by_id, &by_id, prepared);
    }
    *out = prepared;
done:
    return status;
}

enum kvf_status kvfi_vllm_prepare(kvf_vllm_producer *producer, const struct kvf_vllm_peer *given,
                                  kvf_vllm_prepared **out, struct kvf_error *error)
{
    struct kvfi_vllm_ranks ranks;
    struct kvf_vllm_peer peer;
    enum kvf_status status = read_peer(given, &peer, error);

    if (status) goto done;
    ranks = kvfi_vllm_producer_ranks(producer, &peer);
    status = peer.layout_id && peer.regions.base_addr_count == 0
                 ? find_by_id(producer, &peer, &ranks, out, error)
                 : find_by_layout(producer, &peer, &ranks, out, error);
done:
    return status;
}

enum kvf_status kvf_vllm_prepare(kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                                 kvf_vllm_prepared **out, struct kvf_error *error)
{
    kvf_vllm_prepared *prepared = NULL;
    enum kvf_status status;

    if (!producer || !peer || !out)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "prepare: producer, peer or result is NULL");
    status = kvfi_vllm_prepare(producer, peer, &prepared, error);
    if (status) goto done;
    if (prepared->refusal.status) {
        status = prepared->refusal.status;
        if (error) *error = prepared->refusal;
        goto done;
    }
    *out = prepared;
    prepared = NULL;
done:
    kvf_vllm_prepared_release(prepared);
    return status;
}
