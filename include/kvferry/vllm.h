/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm.h  vLLM's MooncakeConnector, the planning half: registration, regions, the producer's answer to a pull.
 *
 *  Names follow upstream's terms. The *producer* (P) plans and writes, the *consumer* (D) asks; "local" means P and
 *  "remote" means D. Nothing here plans on its own: each aligned pair of regions becomes one kvferry layout on each
 *  side and one kvf_plan, and a request becomes bindings of it. `docs/vllm.md` says what becomes what.
 *
 *      tensor views + layers -> registration: memory, regions
 *      own regions + a peer's -> prepared: aligned, coalesced, one plan per shape of region pair
 *      prepared + block ids   -> write: what moves for one request, in the order in which upstream posts it
 *
 *  Texts of refusals that travel to peers, or that people search for, are upstream's to the letter. No sockets, clock,
 *  threads or environment.
 */
#ifndef KVFERRY_VLLM_H
#define KVFERRY_VLLM_H

#include "kvferry/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Special values of regions. */
enum kvf_vllm_special {
    KVF_VLLM_SHARED_GROUP = -1, /**< group index of a region that belongs to several groups */
    KVF_VLLM_NO_ROW = -1        /**< row offset of a region that is no slice of a packed row, or unknown */
};

/** A list of numbers: block ids of one group, or the groups of one region. Borrowed for the call. */
struct kvf_vllm_ids {
    const int64_t *ids; /**< may be NULL when count is 0 */
    size_t count;
};

/* ---- layers -------------------------------------------------------------------------------------------------- */

/** What a layer keeps. */
enum kvf_vllm_kind {
    KVF_VLLM_NO_SPEC = 0,   /**< nothing is known: registration leaves the layer out */
    KVF_VLLM_ATTENTION = 1, /**< full, sliding-window or chunked attention */
    KVF_VLLM_MLA = 2,       /**< a latent cache, the same on every TP rank; sliding-window MLA too */
    KVF_VLLM_MAMBA = 3,     /**< recurrent state */
    KVF_VLLM_CIRCULAR = 4   /**< one ring block per request, with keys of a group that is still being compressed */
};

/** A layer of this rank: its group, and what its spec says. */
struct kvf_vllm_layer {
    const char *name;            /**< "model.layers.7.self_attn": one dotted part is a number */
    int64_t group;               /**< index among the groups that are transferred */
    int32_t kind;                /**< an enum kvf_vllm_kind */
    int32_t is_nvfp4;            /**< 1: 4-bit cache, whose heads cannot be cut apart */
    int64_t page_bytes;          /**< of one logical block of one layer, padding included */
    int64_t unpadded_page_bytes; /**< at most page_bytes */
};

/** Orders of the axes of a cache in memory, outermost first: L layers, B blocks, H head slots, N tokens, C content. */
enum kvf_vllm_physical {
    KVF_VLLM_LBHNC = 0, /**< "HND"; what the connector asks for, except for MLA */
    KVF_VLLM_LBNHC = 1, /**< "NHD" */
    KVF_VLLM_LHBNC = 2,
    KVF_VLLM_BLHNC = 3,
    KVF_VLLM_BLNHC = 4,
    KVF_VLLM_BHLNC = 5
};

/** The model's KV facts for one kind of layer on one rank, from which its pages follow. */
struct kvf_vllm_facts {
    int64_t block_tokens;         /**< tokens of a block, as kernels address it */
    int64_t kv_heads;             /**< on this rank; 1 for MLA */
    int64_t head_size;            /**< elements of K */
    int64_t head_size_v;          /**< elements of V: -1 = as head_size, 0 for MLA */
    int64_t element_bytes;
    int64_t tokens_per_state;     /**< 1 usually */
    int64_t state_content_bytes;  /**< content per head slot and state, 0 = (head_size + head_size_v) * element_bytes */
    int64_t head_slots;           /**< 0 = kv_heads */
    int64_t padded_page_bytes;    /**< 0 = not padded */
};

/** One layer's cache as a tensor over one allocation: where it begins, and its shape [B, H, N, C] with strides. */
struct kvf_vllm_placed {
    int64_t offset_bytes;         /**< of the layer's first element in the allocation */
    int64_t shape[4], strides[4]; /**< in elements */
    int64_t element_bytes;
    int64_t page_bytes, unpadded_page_bytes;
    int64_t allocation_bytes;     /**< of all layers together */
};

/** Writes where layer number `layer` of `layers` lies when all of them share one allocation of `blocks` blocks in the
 *  given order. @param physical  an enum kvf_vllm_physical
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the fact; KVF_ERR_OVERFLOW */
KVF_API enum kvf_status kvf_vllm_place(const struct kvf_vllm_facts *facts, int physical, int64_t layers, int64_t layer,
                                       int64_t blocks, struct kvf_vllm_placed *out, struct kvf_error *error);

/** Block sizes that one attention backend takes: those listed, or with `multiple_of` above 0 all its multiples. */
struct kvf_vllm_backend {
    const int64_t *sizes;
    size_t size_count;
    int64_t multiple_of;
};

/** The tokens of a block as kernels address it: `logical_tokens` where all backends take it, else the largest divisor
 *  of it that all of them take. @return KVF_OK; KVF_ERR_INCOMPATIBLE (there is none); KVF_ERR_INVALID_ARGUMENT */
KVF_API enum kvf_status kvf_vllm_kernel_block_tokens(int64_t logical_tokens, const struct kvf_vllm_backend *backends,
                                                     size_t backend_count, int64_t *kernel_tokens,
                                                     struct kvf_error *error);

/* ---- regions ------------------------------------------------------------------------------------------------- */

/** A run of equal payloads, one per block: block b's is [base_addr + b * block_len, + kv_block_len). */
struct kvf_vllm_region {
    const char *layer_name;
    int64_t layer_index;       /**< the number in the name */
    uint64_t base_addr;
    int64_t block_len;         /**< bytes from one block to the next */
    int64_t kv_block_len;      /**< bytes of payload per block, at most block_len where it was registered here */
    int64_t group_index;       /**< or KVF_VLLM_SHARED_GROUP */
    struct kvf_vllm_ids shared_groups; /**< the groups whose blocks lie here; may be empty (unknown) */
    int64_t row_offset;        /**< of block 0's payload in its allocation, or KVF_VLLM_NO_ROW */
};

/** Regions as parallel arrays, as they travel. All are borrowed for the call. */
struct kvf_vllm_arrays {
    const uint64_t *base_addrs;
    size_t base_addr_count;
    const int64_t *block_lens;
    size_t block_len_count;
    const int64_t *kv_block_lens;
    size_t kv_block_len_count;
    const char *const *layer_names;
    size_t layer_name_count;
    const int64_t *layer_indices;
    size_t layer_index_count;
    const int64_t *group_indices;             /**< none = looked up by layer name among the producer's, else 0 */
    size_t group_index_count;
    const struct kvf_vllm_ids *shared_groups; /**< none = empty for all */
    size_t shared_group_count;
    const int64_t *row_offsets;               /**< none = KVF_VLLM_NO_ROW for all */
    size_t row_offset_count;
};

/** A list of regions. Immutable, reference counted, any thread. */
typedef struct kvf_vllm_regions kvf_vllm_regions;

/** Makes a list from regions (copied). @param out  returned to the caller (free with kvf_vllm_regions_release)
 *  @return KVF_OK; KVF_ERR_LIMIT (65,536 regions, names below 4 KiB); KVF_ERR_NO_MEMORY; KVF_ERR_INVALID_ARGUMENT (no
 *          name, a length below 0) */
KVF_API enum kvf_status kvf_vllm_regions_create(const struct kvf_vllm_region *regions, size_t count,
                                                kvf_vllm_regions **out, struct kvf_error *error);

/** Makes a list from arrays (copied). @param layers  the producer's own, for regions that come without groups
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE "Mooncake transfer regions require matching ..." with all counts, or a length
 *          below 0; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY; KVF_ERR_INVALID_ARGUMENT (an array that is NULL) */
KVF_API enum kvf_status kvf_vllm_regions_expand(const struct kvf_vllm_arrays *arrays,
                                                const struct kvf_vllm_layer *layers, size_t layer_count,
                                                kvf_vllm_regions **out, struct kvf_error *error);

/** The regions, `*count` of them: borrowed until the list is released. */
KVF_API const struct kvf_vllm_region *kvf_vllm_regions_get(const kvf_vllm_regions *regions, size_t *count);

/** Points `out` at the list's own arrays, all eight: borrowed until the list is released. */
KVF_API void kvf_vllm_regions_arrays(const kvf_vllm_regions *regions, struct kvf_vllm_arrays *out);

/** Takes, and gives back, one reference; the last one frees the list. Releasing NULL is fine. Any thread. */
KVF_API kvf_vllm_regions *kvf_vllm_regions_acquire(const kvf_vllm_regions *regions);
KVF_API void kvf_vllm_regions_release(kvf_vllm_regions *regions);

/* ---- registration -------------------------------------------------------------------------------------------- */

/** An allocation. */
struct kvf_vllm_storage {
    uint64_t base_addr;
    int64_t bytes;
};

/** One layer's cache: a tensor over an allocation. */
struct kvf_vllm_tensor {
    const char *layer_name;
    int64_t storage;              /**< index into kvf_vllm_register.storages */
    int64_t offset_bytes;         /**< of the first element in it */
    const int64_t *shape;         /**< [B, H, N, C], or of any other rank from 1 to 8 */
    const int64_t *strides;       /**< in elements, as many */
    size_t rank;
    int64_t element_bytes;
};

/** What a rank registers. All pointers are borrowed for the call. */
struct kvf_vllm_register {
    size_t struct_size;           /**< set by kvf_vllm_register_init */
    const struct kvf_vllm_storage *storages;
    size_t storage_count;
    const struct kvf_vllm_tensor *tensors; /**< in registration order: it becomes the order of the regions */
    size_t tensor_count;
    const struct kvf_vllm_layer *layers;   /**< a tensor whose layer is not among them is left out */
    size_t layer_count;
    int64_t num_blocks;              /**< logical blocks; needed for flat buffers (rank 1) */
    int64_t kernel_blocks_per_block; /**< default 1 */
};

/** Fills `spec` with the defaults. `size` is sizeof(struct kvf_vllm_register) as the caller compiled it. */
KVF_API void kvf_vllm_register_init(struct kvf_vllm_register *spec, size_t size);

/** What becomes of a rank's tensors. Immutable; free with kvf_vllm_registration_destroy. */
typedef struct kvf_vllm_registration kvf_vllm_registration;

/** Makes regions of tensors. Views of one packed row are told by their place in it; rows whose views are not contiguous
 *  become one *opaque* region each, under the first layer's name; a view that several groups share becomes one region.
 *  @param out  returned to the caller (free with kvf_vllm_registration_destroy)
 *  @return KVF_OK; KVF_ERR_LAYOUT: "No KV cache tensors were registered with Mooncake.", "Mooncake transfer length
 *          exceeds physical block stride for ...", a view past its storage's end, a page that does not divide, a name
 *          without or with two numbers; KVF_ERR_LIMIT; KVF_ERR_OVERFLOW; KVF_ERR_NO_MEMORY; KVF_ERR_NEWER_OPTION;
 *          KVF_ERR_INVALID_ARGUMENT */
KVF_API enum kvf_status kvf_vllm_registration_create(const struct kvf_vllm_register *spec, kvf_vllm_registration **out,
                                                     struct kvf_error *error);
KVF_API void kvf_vllm_registration_destroy(kvf_vllm_registration *registration);

/** The allocations to be registered with the transfer engine, each once: borrowed until destroy. */
KVF_API const struct kvf_vllm_storage *kvf_vllm_registration_memory(const kvf_vllm_registration *registration,
                                                                    size_t *count);
/** The regions, in order: borrowed until destroy; acquire to keep them. */
KVF_API const kvf_vllm_regions *kvf_vllm_registration_regions(const kvf_vllm_registration *registration);
/** Storages (indices, ascending) that hold opaque rows: borrowed until destroy. */
KVF_API const int64_t *kvf_vllm_registration_opaque(const kvf_vllm_registration *registration, size_t *count);

/* ---- the producer -------------------------------------------------------------------------------------------- */

/** A producer rank, as far as planning needs it. All pointers are borrowed for the call. */
struct kvf_vllm_producer_spec {
    size_t struct_size;              /**< set by kvf_vllm_producer_spec_init */
    int64_t tp_rank, tp_size, pp_size;
    int32_t is_mla;
    int32_t has_opaque_row;          /**< 1: the registration has opaque storages */
    int64_t total_kv_heads;          /**< of the model */
    const int32_t *group_kinds;      /**< per transferred group KVF_VLLM_ATTENTION or KVF_VLLM_MAMBA */
    size_t group_count;
    const struct kvf_vllm_layer *layers;
    size_t layer_count;
    int64_t kernel_blocks_per_block; /**< default 1 */
    struct kvf_vllm_arrays regions;  /**< its own. The last three arrays may be missing */
    int64_t max_prepared;            /**< layouts of peers that are remembered, refusals too; default 1024, least
                                          recently used out. As many again by their layout ids. Of either at most
                                          256 MiB, and none that takes a quarter of it */
    int32_t keeps_layers_apart;      /**< 1: layers of one row are not merged where single heads go to places of their
                                          own in each. Upstream merges them when this rank has a copy of one head and
                                          the peer has several, and what it then writes lies in wrong layers. Default
                                          0: as upstream */
};

/** Fills `spec` with the defaults. `size` is sizeof(struct kvf_vllm_producer_spec) as the caller compiled it. */
KVF_API void kvf_vllm_producer_spec_init(struct kvf_vllm_producer_spec *spec, size_t size);

/** A producer rank with what it remembers of its peers. One thread at a time. */
typedef struct kvf_vllm_producer kvf_vllm_producer;

/** @param out  returned to the caller (free with kvf_vllm_producer_destroy)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming field, expected and found; KVF_ERR_NEWER_OPTION; KVF_ERR_LIMIT;
 *          KVF_ERR_NO_MEMORY. Arrays that do not fit each other are told with the first pull, as upstream does. */
KVF_API enum kvf_status kvf_vllm_producer_create(const struct kvf_vllm_producer_spec *spec, kvf_vllm_producer **out,
                                                 struct kvf_error *error);
KVF_API void kvf_vllm_producer_destroy(kvf_vllm_producer *producer);

/** What a pull says of the consumer that sent it. Borrowed for the call. */
struct kvf_vllm_peer {
    size_t struct_size;              /**< set by kvf_vllm_peer_init */
    const char *hostname;
    int64_t port;                    /**< of its transfer engine */
    int64_t tp_size, tp_rank, pp_size;
    struct kvf_vllm_arrays regions;
    uint64_t layout_id;              /**< names the arrays; 0 = they come with every pull. With an id and no base
                                          addresses the arrays are those that came with this id before */
};

/** Fills `peer` with the defaults. `size` is sizeof(struct kvf_vllm_peer) as the caller compiled it. */
KVF_API void kvf_vllm_peer_init(struct kvf_vllm_peer *peer, size_t size);

/** A pair of ranks, ready to bind requests. Immutable, reference counted, any thread. */
typedef struct kvf_vllm_prepared kvf_vllm_prepared;

/** Decides whether this pair can transfer, and prepares it: pairing of ranks, opaque rows across PP sizes, alignment by
 *  layer, re-sharding of heads, coalescing, lengths; in that order. Successes and refusals are remembered.
 *  @param out  returned to the caller (free with kvf_vllm_prepared_release)
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE with upstream's text: the pull is answered by ERROR; KVF_ERR_NOT_FOUND
 *          "Mooncake KV layout 0x... from HOST:PORT is not cached.": by LAYOUT_MISS; KVF_ERR_OVERFLOW, KVF_ERR_LIMIT,
 *          KVF_ERR_NO_MEMORY: also by ERROR */
KVF_API enum kvf_status kvf_vllm_prepare(kvf_vllm_producer *producer, const struct kvf_vllm_peer *peer,
                                         kvf_vllm_prepared **out, struct kvf_error *error);

/** Takes, and gives back, one reference. Releasing NULL is fine. Any thread. */
KVF_API kvf_vllm_prepared *kvf_vllm_prepared_acquire(const kvf_vllm_prepared *prepared);
KVF_API void kvf_vllm_prepared_release(kvf_vllm_prepared *prepared);

/** What is known of a pair. */
struct kvf_vllm_prepared_info {
    size_t struct_size;              /**< set by the caller to sizeof(struct kvf_vllm_prepared_info) */
    int64_t pairs;                   /**< aligned pairs of regions */
    int64_t plans;                   /**< different shapes of them: one kvf_plan each */
    int64_t pulls_expected;          /**< pulls of one transfer that this producer rank answers in all (need_send) */
    int32_t sends;                   /**< 0: another rank sends the same bytes; the pull is answered and counted */
    int32_t reserved;
    int64_t src_offset_bytes, dst_offset_bytes, bytes_per_block; /**< of the first pair */
};
KVF_API enum kvf_status kvf_vllm_prepared_get_info(const kvf_vllm_prepared *prepared,
                                                   struct kvf_vllm_prepared_info *info, struct kvf_error *error);

/** The aligned and coalesced regions, equally many on both sides: borrowed until the pair is released. */
KVF_API const kvf_vllm_regions *kvf_vllm_prepared_local(const kvf_vllm_prepared *prepared);
KVF_API const kvf_vllm_regions *kvf_vllm_prepared_remote(const kvf_vllm_prepared *prepared);

/** The plan of pair number `pair`: borrowed until the pair is released; NULL when nothing is sent or out of range. */
KVF_API const kvf_plan *kvf_vllm_prepared_plan(const kvf_vllm_prepared *prepared, size_t pair);

/* ---- writes -------------------------------------------------------------------------------------------------- */

/** A contiguous copy, as upstream would post it. */
struct kvf_vllm_descriptor {
    uint64_t src_address, dst_address;
    int64_t bytes;
};

/** What moves for one request: bound, not expanded. */
typedef struct kvf_vllm_write kvf_vllm_write;

/** Binds a request's block ids, logical and per transferred group, of both sides. With more ids on the producer's side
 *  its last ones are used; recurrent groups ignore id 0; nothing on the consumer's side means nothing to copy. Ids may
 *  repeat and regions may overlap: as upstream, this side does not judge where its peer wants its bytes (see
 *  kvf_vllm_write_check).
 *  @param out  returned to the caller (free with kvf_vllm_write_destroy); NULL inside when nothing is to be copied,
 *              which all calls below take as a write of 0 bytes. It keeps the pair alive.
 *  @return KVF_OK. What fails this request alone: KVF_ERR_IDS "KV group count mismatch" or "P num blocks less than D",
 *          and for ids below 0; KVF_ERR_OUT_OF_RANGE (an address past the end of all addresses); KVF_ERR_LIMIT
 *          (16,777,216 kernel blocks of a group; 1 GiB of runs); KVF_ERR_OVERFLOW; KVF_ERR_NO_MEMORY. What upstream
 *          raises, so that the whole pull is answered by ERROR: KVF_ERR_INCOMPATIBLE "Transfer region references a
 *          missing KV group.", "Shared packed region is missing its group ids.", "Destination transfer region exceeds
 *          remote KV block size.", ids of more groups than the producer transfers
 *  Cost: a look at every id, then one step per run of adjacent ids, for each pairing of a list of ids with a shape of
 *  region; a few additions per region. Any thread. */
KVF_API enum kvf_status kvf_vllm_write_create(const kvf_vllm_prepared *prepared, const struct kvf_vllm_ids *producer,
                                              size_t producer_groups, const struct kvf_vllm_ids *consumer,
                                              size_t consumer_groups, kvf_vllm_write **out, struct kvf_error *error);
KVF_API void kvf_vllm_write_destroy(kvf_vllm_write *write);

/** Bytes of all descriptors together, and how many there are. */
KVF_API int64_t kvf_vllm_write_bytes(const kvf_vllm_write *write);
KVF_API int64_t kvf_vllm_write_count(const kvf_vllm_write *write);

/** Takes up to `capacity` next descriptors, in upstream's order. Returns how many, 0 at the end. One thread at a
 *  time. */
KVF_API size_t kvf_vllm_write_next(kvf_vllm_write *write, struct kvf_vllm_descriptor *out, size_t capacity);

/** Checks that every descriptor lies inside one of `memory` on the side asked (0 producer, 1 consumer), without
 *  expanding: one look per region whose blocks are all in one memory, else one per run of adjacent blocks.
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE naming layer, block, address and the nearest memory; KVF_ERR_INVALID_ARGUMENT;
 *          KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_write_check(const kvf_vllm_write *write, int side,
                                             const struct kvf_vllm_storage *memory, size_t memory_count,
                                             struct kvf_error *error);

/* ---- what a scheduler tells its workers ----------------------------------------------------------------------- */

/** A request that this engine will fetch. */
struct kvf_vllm_recv {
    const char *d_req_id;
    const char *transfer_id;
    const char *remote_engine_id;
    const char *remote_bootstrap_addr; /**< "http://HOST:PORT" */
    const struct kvf_vllm_ids *groups; /**< per transferred group; no groups, or empty ones: nothing is wanted, the
                                            producer may release */
    size_t group_count;
};

/** A request whose blocks this engine will send. */
struct kvf_vllm_send {
    const char *p_req_id;
    const char *transfer_id;
    const struct kvf_vllm_ids *groups; /**< per transferred group; no groups: the request is known, not yet ready */
    size_t group_count;
};

/** All of one engine step. Borrowed for the call that takes it, or until the scheduler's next step. */
struct kvf_vllm_step {
    size_t struct_size;                /**< sizeof(struct kvf_vllm_step) as the caller compiled it */
    const struct kvf_vllm_recv *recvs;
    size_t recv_count;
    const struct kvf_vllm_send *sends;
    size_t send_count;
    const char *const *not_processed;  /**< transfer ids that will not be sent */
    size_t not_processed_count;
};

#ifdef __cplusplus
}
#endif

#endif
