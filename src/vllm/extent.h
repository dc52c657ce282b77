/* SPDX-License-Identifier: Apache-2.0 */
/** @file extent.h  A consumer's memory, block by block: what producers may write for a request, and what they must.
 *
 *  Regions whose ids come from the same groups are one *set*: block `i` of one goes with block `i` of the others. What
 *  may be written of a block are its payloads, what lies between payloads of one row (producers merge neighbours, with
 *  the padding between them), and all of the row where a region begins it (producers promote those to whole rows). What
 *  must be written are the payloads. The block ids of a row are one request's, whatever group they belong to.
 */
#ifndef KVFI_VLLM_EXTENT_H
#define KVFI_VLLM_EXTENT_H

#include "kvferry/vllm.h"

enum {
    KVFI_VLLM_MAX_SETS = 256,
    KVFI_VLLM_MAX_SHEETS = 4 /* of one set */
};

/** Where the blocks of one array lie: block `i` is the `block_bytes` bytes at `address + i * stride_bytes`. */
struct kvfi_vllm_grid {
    uint64_t address;
    int64_t stride_bytes, block_bytes;
};

/** Grids that do not overlap. Those whose extents do have one stride, and lie within it behind the first of them. */
struct kvfi_vllm_sheet {
    struct kvfi_vllm_grid *grids;
    size_t grid_count;
};

struct kvfi_vllm_set {
    int64_t group;              /* or KVF_VLLM_SHARED_GROUP */
    struct kvf_vllm_ids groups; /* of a shared one, borrowed from the regions; none: not known, so all */
    int64_t block_count;        /* as the regions have them: kernel blocks, save for recurrent state */
    struct kvfi_vllm_sheet sheets[KVFI_VLLM_MAX_SHEETS]; /* all of them may be written */
    size_t sheet_count;
    size_t counting;            /* the sheet of payloads alone */
    int64_t payload_bytes;      /* of a block in that sheet */
    const char *layer_name;     /* of its first region, borrowed */
};

struct kvfi_vllm_extent {
    kvf_vllm_regions *regions;
    struct kvfi_vllm_set *sets;
    size_t set_count;
};

/** What the ids of groups stand for. */
struct kvfi_vllm_id_facts {
    const int32_t *group_kinds; /* KVF_VLLM_ATTENTION or KVF_VLLM_MAMBA; further groups are not known */
    size_t group_count;
    int64_t kernel_blocks_per_block;
};

/** @param memory  sorted by address, none overlap; regions without a block there, or without bytes, are left out
 *  @param out     free with kvfi_vllm_extent_fini
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT: a payload longer than the distance of blocks; KVF_ERR_LIMIT: too many
 *          lists of groups; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_extent_init(struct kvfi_vllm_extent *out, const kvf_vllm_regions *regions,
                                      const struct kvf_vllm_storage *memory, size_t memory_count,
                                      struct kvf_error *error);
void kvfi_vllm_extent_fini(struct kvfi_vllm_extent *extent);

/** Blocks of a request in one set, as its regions have them: each id of its groups once for every kernel block, those
 *  of recurrent groups once and id 0 not at all. An id that is listed twice comes twice.
 *  @param blocks  room for as many as a first call with NULL has counted
 *  @param count   how many
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE: an id whose block is none of the set's; KVF_ERR_OVERFLOW */
enum kvf_status kvfi_vllm_extent_blocks(const struct kvfi_vllm_set *set, const struct kvfi_vllm_id_facts *facts,
                                        const struct kvf_vllm_ids *groups, size_t group_count, int64_t *blocks,
                                        size_t *count, struct kvf_error *error);

#endif
