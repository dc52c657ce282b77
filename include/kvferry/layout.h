/* SPDX-License-Identifier: Apache-2.0 */
/** @file layout.h  Where one rank keeps its KV cache: pools, groups, views; ranks, holdings, instances.
 *
 *  Every byte of a cache has a model-wide coordinate (role, layer, unit, position, byte). A *view* says where one part
 *  (a role and a byte range of its rows) lives on one rank; the address of a byte is
 *
 *      memory base + pool.base_offset_bytes + slot * pool.slot_stride_bytes + place.offset_bytes
 *        + (unit - unit_first) * unit_stride_bytes + entry * entry_stride_bytes + (byte - byte_first)
 *
 *  `docs/layout-model.md` is the whole model. All numbers are 64-bit; nothing here does I/O or takes a lock.
 */
#ifndef KVFERRY_LAYOUT_H
#define KVFERRY_LAYOUT_H

#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** An array of equal slots inside one registered memory. */
struct kvf_pool {
    int64_t memory;            /**< index into kvf_layout_spec.memory_bytes */
    int64_t base_offset_bytes; /**< offset of slot 0 in that memory */
    int64_t slot_stride_bytes; /**< bytes between slots; may exceed the payload, may be smaller than a unit stride */
    int64_t slots;             /**< capacity; bounds ids when binding, never part of compatibility */
};

/** One block-id space, and how token positions reach it. */
struct kvf_group {
    int64_t tokens_per_block; /**< tokens per block id; 0 = state: no positions, one id per request */
    int64_t ring_tokens;      /**< 0, or positions are taken modulo this before blocks are counted */
    int64_t stripes;          /**< context parallel: ranks that share the positions; 1 = none */
    int64_t stripe;           /**< which of them this rank is; 0 when stripes is 1 */
    int64_t stripe_tokens;    /**< positions per stripe, dealt round robin; 0 with stripes > 1 = contiguous */
};

/** Where one layer of a view lies: in which pool, how far into each slot. */
struct kvf_place {
    int64_t layer;        /**< model-wide layer id, 0 to 2^63 - 2 */
    int64_t pool;         /**< index into kvf_layout_spec.pools */
    int64_t offset_bytes; /**< offset of the view's first byte in a slot */
};

/** View flags. */
enum kvf_view_flag {
    KVF_VIEW_ATOMIC = 1,  /**< interior unknown: moved whole between equal views or not at all */
    KVF_VIEW_OPTIONAL = 2 /**< may stay unfilled when no source rank has it (reported as skipped) */
};

/** One part on one rank. `tokens_per_entry` = tokens_per_block / (slots_per_block * entries), a whole number. */
struct kvf_view {
    const char *role;           /**< name of the kind of state ("k", "v", "mla", ...), 1 to 255 bytes; compared only */
    const char *tag;            /**< dtype and content format ("f16", "bf16", ...), 1 to 255 bytes: equal or refused */
    int64_t group;              /**< index into kvf_layout_spec.groups */
    int64_t row_bytes;          /**< bytes of a whole row (one unit at one position), model-wide */
    int64_t byte_first;         /**< first byte of the row held here */
    int64_t byte_count;         /**< bytes of the row held here */
    int64_t unit_total;         /**< units (KV heads, ...) model-wide */
    int64_t unit_first;         /**< first unit held here */
    int64_t unit_count;         /**< units held here */
    int64_t unit_stride_bytes;  /**< bytes between units */
    int64_t entry_stride_bytes; /**< bytes between entries */
    int64_t entries;            /**< entries per slot; for state the number of taps */
    int64_t slots_per_block;    /**< kernel blocks per block id: id k means slots k*r .. k*r+r-1; 1 usually */
    uint32_t flags;             /**< enum kvf_view_flag */
    uint32_t reserved;          /**< zero */
    const struct kvf_place *places; /**< one per layer */
    size_t place_count;
};

/** Everything about one rank's memory, as plain arrays. All pointers are borrowed for the call. */
struct kvf_layout_spec {
    size_t struct_size; /**< sizeof(struct kvf_layout_spec); set by kvf_layout_spec_init */
    const int64_t *memory_bytes; /**< size of each registered memory; -1 = unbounded (no end check) */
    size_t memory_count;
    const struct kvf_pool *pools;
    size_t pool_count;
    const struct kvf_group *groups;
    size_t group_count;
    const struct kvf_view *views;
    size_t view_count;
};

/** Most of each that a layout may have; larger counts are KVF_ERR_LIMIT before anything is allocated. */
enum kvf_layout_limit {
    KVF_LAYOUT_MAX_MEMORIES = 65536,
    KVF_LAYOUT_MAX_POOLS = 65536,
    KVF_LAYOUT_MAX_GROUPS = 1024,
    KVF_LAYOUT_MAX_VIEWS = 65536,
    KVF_LAYOUT_MAX_PLACES = 1048576
};

/** A checked, immutable layout of one rank. Reference counted; may be read by any number of threads. */
typedef struct kvf_layout kvf_layout;

/** Fills `spec` with zeroes and its size. `size` is sizeof(struct kvf_layout_spec) as the caller compiled it. */
KVF_API void kvf_layout_spec_init(struct kvf_layout_spec *spec, size_t size);

/** Copies and checks a layout. Checked, in this order: counts against kvf_layout_limit and names (no empty ones, no
 *  control characters), before anything is allocated for them; ranges inside totals, counts and strides positive,
 *  tokens_per_entry whole; nested strides (no two coordinates of a view share an address); ends inside the memory; no
 *  coordinate held twice and no layer twice in a view; no overlap of views of one group inside a slot or across slots
 *  (exact aliases excepted: equal place, counts and strides). Pools of one memory and slot stride are tested together.
 *
 *  @param out  returned to the caller (free with kvf_layout_release); written on success only
 *  @return KVF_OK; KVF_ERR_LAYOUT with a sentence such as "k layer 3: ends at 131072, memory has 65536" or
 *          "k layer 0 slot 32 overlaps k layer 1 slot 0"; KVF_ERR_OVERFLOW (also an end beyond 2^62 bytes);
 *          KVF_ERR_LIMIT; KVF_ERR_NEWER_OPTION; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NO_MEMORY
 *  Cost: n log n in views times layers, whatever the number of slots. Any thread, never blocks. */
KVF_API enum kvf_status kvf_layout_create(const struct kvf_layout_spec *spec, kvf_layout **out,
                                          struct kvf_error *error);

/** Takes one more reference. Returns `layout`. Any thread. */
KVF_API kvf_layout *kvf_layout_acquire(const kvf_layout *layout);

/** Gives one reference back; the last one frees the layout. NULL is fine. Any thread. */
KVF_API void kvf_layout_release(kvf_layout *layout);

/** Returns the layout's own arrays, in the order they were given: borrowed until the layout is released. */
KVF_API const struct kvf_layout_spec *kvf_layout_get_spec(const kvf_layout *layout);

/** Bytes of a fingerprint as text: 32 hex digits and a zero. */
#define KVF_FINGERPRINT_TEXT_BYTES 33

/** Writes the layout's fingerprint: XXH3-128 of its canonical bytes, high half first, 32 hex digits. It covers neither
 *  memory sizes nor base offsets nor capacity, nor the order of views and places. It detects disagreement, it is no
 *  protection. @return KVF_OK, KVF_ERR_NO_MEMORY. Any thread. */
KVF_API enum kvf_status kvf_layout_fingerprint(const kvf_layout *layout, char text[KVF_FINGERPRINT_TEXT_BYTES]);

/** A rank's place in its instance's grid. Ranks are ordered by pp, then cp, then tp. */
struct kvf_rank {
    int64_t dp; /**< data-parallel replica, informative: an instance is one DP group */
    int64_t pp;
    int64_t cp;
    int64_t tp;
    int64_t salt; /**< rotates the choice among copies (attention DP: the DP rank); 0 usually */
};

/** What one rank holds: its views without memory terms. Immutable, reference counted, any thread. */
typedef struct kvf_holdings kvf_holdings;

/** One piece of holdings: the views of one (role, group fields, range) and the layers it covers. */
struct kvf_holding {
    const char *role;
    const char *tag;
    int64_t row_bytes, byte_first, byte_count;
    int64_t unit_total, unit_first, unit_count;
    int64_t stripes, stripe, stripe_tokens;
    uint32_t flags;    /**< enum kvf_view_flag */
    uint32_t reserved; /**< zero */
    const int64_t *layers; /**< ascending in what kvf_holdings_rows returns, in any order when given */
    size_t layer_count;
};

/** Makes holdings from plain rows, checked and put in canonical order: sorted, rows that differ in their layers only
 *  joined. Rows and layers are borrowed for the call. Bounds are those of kvf_layout_limit (views, places).
 *  @param out  returned to the caller (free with kvf_holdings_release); written on success only
 *  @return KVF_OK; KVF_ERR_LAYOUT (a range outside its total, a coordinate held twice, ...) with a sentence;
 *          KVF_ERR_LIMIT; KVF_ERR_NEWER_OPTION (unknown flags); KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NO_MEMORY
 *  Any thread, never blocks. */
KVF_API enum kvf_status kvf_holdings_create(const struct kvf_holding *rows, size_t row_count, kvf_holdings **out,
                                            struct kvf_error *error);

/** Makes the holdings of a layout, which need not outlive the call.
 *  @param out  returned to the caller (free with kvf_holdings_release); written on success only
 *  @return KVF_OK, KVF_ERR_NO_MEMORY. Any thread. */
KVF_API enum kvf_status kvf_holdings_from_layout(const kvf_layout *layout, kvf_holdings **out, struct kvf_error *error);

/** Takes, and gives back, one reference; the last one frees the holdings. Releasing NULL is fine. Any thread. */
KVF_API kvf_holdings *kvf_holdings_acquire(const kvf_holdings *holdings);
KVF_API void kvf_holdings_release(kvf_holdings *holdings);

/** Returns the rows, `*row_count` of them: borrowed until the holdings are released. Any thread. */
KVF_API const struct kvf_holding *kvf_holdings_rows(const kvf_holdings *holdings, size_t *row_count);

/** One rank of an instance, as election sees it. */
struct kvf_member {
    struct kvf_rank rank;
    const kvf_holdings *holdings; /**< borrowed for the call */
};

/** Writes the digest of all holdings of an instance (members in rank order): 32 hex digits. Two workers that elect from
 *  unequal digests would not agree. @return KVF_OK, KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_members_digest(const struct kvf_member *members, size_t member_count,
                                           char text[KVF_FINGERPRINT_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
