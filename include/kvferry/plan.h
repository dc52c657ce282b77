/* SPDX-License-Identifier: Apache-2.0 */
/** @file plan.h  Who sends what (election), what moves (plan), and where exactly (binding, moves).
 *
 *      layouts + holdings -> election -> share -> plan (boxes) + block ids -> binding -> moves
 *
 *  All of it is a pure function of its inputs: no sockets, clock, threads, environment or addresses. Both sides of a
 *  transfer compute the same plan and compare its fingerprint. `docs/layout-model.md` has the rules.
 */
#ifndef KVFERRY_PLAN_H
#define KVFERRY_PLAN_H

#include "kvferry/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- election ---------------------------------------------------------------------------------------------- */

/** Who sends what to one destination rank. Immutable; any thread; free with kvf_election_destroy. */
typedef struct kvf_election kvf_election;

/** What one source rank sends to one destination rank: for (role, layer) the unit and byte ranges. Immutable. */
typedef struct kvf_share kvf_share;

/** A missing cell that the destination marked optional: nobody has it, so it stays unfilled. */
struct kvf_skipped {
    const char *role; /**< borrowed until the election is destroyed */
    int64_t layer;
    int64_t unit_first, unit_count;
};

/** Elects, for destination rank number `destination` of `dst`, which source rank sends which cells.
 *  Both arrays hold all ranks of one instance (one DP group each) and are borrowed for the call; they are put in rank
 *  order (pp, cp, tp) inside, indices refer to the arrays as given.
 *
 *  Copies of a cell are shared out among the destination ranks that want the same cell and the same positions: number i
 *  of m such ranks chooses among copies [i*k/m, max((i+1)*k/m, i*k/m + 1)) of k, and there takes the one that its own
 *  rank's salt points at. Every context-parallel stripe of the source is elected apart: all stripes send.
 *
 *  @param out  returned to the caller (free with kvf_election_destroy); written on success only
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE when a needed cell is held by no source rank ("k layer 3 units [2,4): no source
 *          rank holds them"), when source ranks stripe it in different ways, or when units or row bytes are counted
 *          differently; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NO_MEMORY; KVF_ERR_LIMIT (2,097,152 cells times
 *          layers; 2^28 rows and layers looked at, about a second)
 *  Any thread, never blocks. Cost: distinct holder lists times ranks of both instances. */
KVF_API enum kvf_status kvf_elect(const struct kvf_member *src, size_t src_count, const struct kvf_member *dst,
                                  size_t dst_count, size_t destination, kvf_election **out, struct kvf_error *error);

/** Frees an election and the shares it lent. NULL is fine. */
KVF_API void kvf_election_destroy(kvf_election *election);

/** Returns what source rank number `source` (of the array as given) sends: borrowed until the election is destroyed;
 *  NULL when it has no share. Such a rank still takes part in release. Any thread. */
KVF_API const kvf_share *kvf_election_share(const kvf_election *election, size_t source);

/** Returns the optional cells that nobody has, sorted by role, layer, unit: borrowed until the election is destroyed.
 *  `*count` is their number. A cell of which only some bytes or stripes are missing is among them. Any thread. */
KVF_API const struct kvf_skipped *kvf_election_skipped(const kvf_election *election, size_t *count);

/** One cell of a share. */
struct kvf_cell {
    const char *role; /**< borrowed until the share goes */
    int64_t layer;
    int64_t unit_first, unit_count;
    int64_t byte_first, byte_count;
};

/** Number of cells in a share, and cell number `index` (sorted by role, layer, unit, byte). Cells of one role and layer
 *  never overlap; those that touch are one. An index out of range gives an empty cell. Any thread. */
KVF_API size_t kvf_share_count(const kvf_share *share);
KVF_API struct kvf_cell kvf_share_cell(const kvf_share *share, size_t index);

/** Refuses shares that would write one destination place from two ranks ("layers 3 and 7 share one place here but come
 *  from ranks 0 and 4"). The destination alone can check it, since it alone knows its places.
 *  @return KVF_OK, KVF_ERR_INCOMPATIBLE, KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_election_check_places(const kvf_election *election, const kvf_layout *destination,
                                                  struct kvf_error *error);

/* ---- plan -------------------------------------------------------------------------------------------------- */

/** Flags of kvf_plan_options: equal on both sides, since they change the plan. */
enum kvf_plan_flag {
    KVF_PLAN_BRIDGE_GAPS = 1,    /**< also join loop-free boxes across equal gaps inside both slots (stock vLLM does) */
    KVF_PLAN_PROMOTE_ROW = 2,    /**< a loop-free box at offset 0 of equal slots becomes the whole slot (stock vLLM);
                                      binding a slot that is not whole in its memory is KVF_ERR_OUT_OF_RANGE */
    KVF_PLAN_DIVISIBLE_BLOCKS = 4 /**< refuse block sizes of which neither divides the other (stock dialects) */
};

/** How to plan. */
struct kvf_plan_options {
    size_t struct_size; /**< set by kvf_plan_options_init */
    uint64_t flags;     /**< enum kvf_plan_flag */
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_plan_options) as the caller compiled it. */
KVF_API void kvf_plan_options_init(struct kvf_plan_options *options, size_t size);

/** What moves between two ranks: immutable, reference counted, any thread. Holds no address, id or capacity. */
typedef struct kvf_plan kvf_plan;

/** Checks that two layouts can be joined, and plans.
 *  @param share    from the election of this pair; NULL = all that both have in common
 *  @param options  NULL = defaults
 *  @param out      returned to the caller (free with kvf_plan_release); written on success only
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE naming role, layer, field and both values; KVF_ERR_LIMIT (comb period above
 *          4,096; more patches, boxes or runs of positions than any real cache has); KVF_ERR_OVERFLOW;
 *          KVF_ERR_NO_MEMORY; KVF_ERR_NEWER_OPTION; KVF_ERR_INVALID_ARGUMENT
 *  Cost: patches (parts x layers x share cells) times its logarithm; independent of slots and prompt length. */
KVF_API enum kvf_status kvf_plan_create(const kvf_layout *src, const kvf_layout *dst, const kvf_share *share,
                                        const struct kvf_plan_options *options, kvf_plan **out,
                                        struct kvf_error *error);

/** The same plan restricted to layers [layer_first, layer_end): what one layer-wise chunk moves. Equal to planning the
 *  restricted share anew; both sides make it once per layer set. @param out  returned (free with kvf_plan_release) */
KVF_API enum kvf_status kvf_plan_restrict(const kvf_plan *plan, int64_t layer_first, int64_t layer_end, kvf_plan **out,
                                          struct kvf_error *error);

/** Takes, and gives back, one reference; the last one frees the plan. Releasing NULL is fine. Any thread. */
KVF_API kvf_plan *kvf_plan_acquire(const kvf_plan *plan);
KVF_API void kvf_plan_release(kvf_plan *plan);

/** Writes the plan's fingerprint: 32 hex digits. Equal values mean equal addresses and equal wire order. */
KVF_API enum kvf_status kvf_plan_fingerprint(const kvf_plan *plan, char text[KVF_FINGERPRINT_TEXT_BYTES]);

/** Sizes of a plan. */
struct kvf_plan_info {
    int64_t tracks, patches, shapes, boxes;
    int64_t shortest_run_bytes; /**< of all boxes; 0 when there are none */
    int64_t plan_bytes;         /**< memory the plan takes */
    int64_t layer_min, layer_end; /**< layers moved lie in [layer_min, layer_end); 0,0 when none */
    int64_t grain_tokens;       /**< least common multiple of the tracks' grains in tokens: where ranges may be cut */
};

/** Writes the sizes of a plan. Any thread, never fails. */
KVF_API void kvf_plan_get_info(const kvf_plan *plan, struct kvf_plan_info *info);

/** A loop of a box or move: `count` steps, so many bytes apart on each side. */
struct kvf_loop {
    int64_t count, src_stride_bytes, dst_stride_bytes;
};

/** A box: at most four nested loops, outermost first, around one contiguous run. Offsets are into a slot. */
struct kvf_box {
    int64_t src_pool, src_offset_bytes, src_entry_stride_bytes;
    int64_t dst_pool, dst_offset_bytes, dst_entry_stride_bytes;
    int64_t run_bytes;
    int64_t loop_count;
    struct kvf_loop loops[4];
};

/** The key of a track and its sizes. */
struct kvf_track {
    int64_t src_group, dst_group, tokens_per_entry, src_slots_per_block, dst_slots_per_block, src_entries, dst_entries;
    int64_t patches, shapes;
};

/** A shape: `m` runs of `n` entries, the runs `src_step` / `dst_step` entries apart. */
struct kvf_shape {
    int64_t m, src_step, dst_step, n;
    int64_t whole; /**< 1 = one run of all entries of both slots */
    int64_t boxes;
};

/** A patch: one part of one layer on both sides, before folding. */
struct kvf_patch {
    int64_t layer;
    int64_t src_pool, src_offset_bytes, dst_pool, dst_offset_bytes;
    int64_t units, src_unit_stride_bytes, dst_unit_stride_bytes;
    int64_t src_entry_stride_bytes, dst_entry_stride_bytes;
    int64_t row_bytes;
};

/** Read the plan piece by piece, in fingerprint order. Indices out of range give KVF_ERR_OUT_OF_RANGE. */
KVF_API enum kvf_status kvf_plan_track(const kvf_plan *plan, size_t track, struct kvf_track *out);
KVF_API enum kvf_status kvf_plan_patch(const kvf_plan *plan, size_t track, size_t patch, struct kvf_patch *out);
KVF_API enum kvf_status kvf_plan_shape(const kvf_plan *plan, size_t track, size_t shape, struct kvf_shape *out);
KVF_API enum kvf_status kvf_plan_box(const kvf_plan *plan, size_t track, size_t shape, size_t box, struct kvf_box *out);

/* ---- binding ----------------------------------------------------------------------------------------------- */

/** Block ids of one group on one side. Entry 0 is block ordinal `first` of this rank; -1 is a hole. State: one id. */
struct kvf_id_list {
    const int64_t *ids; /**< NULL with count 0 and KVF_BIND_*_UNKNOWN set */
    size_t count;
    int64_t first;
};

/** Flags of kvf_bind_request. */
enum kvf_bind_flag {
    KVF_BIND_PARTIAL = 1,     /**< a destination list shorter than the range is accepted; see kvf_binding_info */
    KVF_BIND_NO_STATE = 2,    /**< state and ring tracks do not move in this chunk (it does not reach the end) */
    KVF_BIND_SRC_UNKNOWN = 4, /**< the source's ids are not known here: its lists are ignored, no address is made */
    KVF_BIND_DST_UNKNOWN = 8, /**< the destination's addresses are not wanted: its ids tell holes only, unbounded */
    KVF_BIND_ONLY_STATE = 16, /**< only state and ring tracks move: what KVF_BIND_NO_STATE left out. A ring retains less
                                   than a long range, so it may need a range of its own */
    KVF_BIND_SKIP_HOLES = 32, /**< a destination id without a source block is left alone instead of refused: what both
                                   have moves. Needs both sides' ids, so it excludes the two UNKNOWN flags */
    KVF_BIND_RING_TAIL = 64,  /**< ring tracks move the last positions of the range that both rings retain, where it is
                                   longer, instead of refusing it. A destination that is no ring must want none of the
                                   blocks before them. Not for striped rings: those still refuse */
    KVF_BIND_ANY_IDS = 128    /**< ids may repeat, and only 64-bit addresses bound them: for sides whose capacity nobody
                                   tells, where a block may be written twice */
};

/** What to bind: a token range and the block ids of both sides. */
struct kvf_bind_request {
    size_t struct_size; /**< set by kvf_bind_request_init */
    uint64_t flags;     /**< enum kvf_bind_flag */
    int64_t token_begin, token_end; /**< the range [begin, end) of the request's tokens */
    int64_t request_tokens;         /**< tokens of the whole request (contiguous stripes need it) */
    const struct kvf_id_list *src;  /**< one per source group, borrowed for the call */
    size_t src_count;
    const struct kvf_id_list *dst;  /**< one per destination group, borrowed for the call */
    size_t dst_count;
};

/** Fills `request` with the defaults. `size` is sizeof(struct kvf_bind_request) as the caller compiled it. */
KVF_API void kvf_bind_request_init(struct kvf_bind_request *request, size_t size);

/** A plan joined with block ids: boxes and block runs, never blocks times layers. Immutable, any thread. */
typedef struct kvf_binding kvf_binding;

/** Binds. Ids before `first` and past a list's end are holes; surplus ids are ignored. Ids are never stored per layer.
 *  The plan is kept alive by the binding.
 *  @param out  returned to the caller (free with kvf_binding_destroy); written on success only
 *  @return KVF_OK; KVF_ERR_IDS naming group, index and value (below -1, not below slots, repeated, source hole under a
 *          destination id, destination too short); KVF_ERR_OUT_OF_RANGE (range not aligned to the grain, past the
 *          end of the request, or longer than a ring retains: "positions both rings retain", or, with
 *          KVF_BIND_RING_TAIL, of positions that the source's ring has lost to the rest of the request); KVF_ERR_LIMIT
 *          (runs of positions, shapes); KVF_ERR_OVERFLOW; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NEWER_OPTION;
 *          KVF_ERR_NO_MEMORY
 *  Cost: one step per run of positions that two slots share, never per token. Any thread, never blocks. */
KVF_API enum kvf_status kvf_bind(const kvf_plan *plan, const struct kvf_bind_request *request, kvf_binding **out,
                                 struct kvf_error *error);

/** Frees a binding and gives back its plan. NULL is fine. */
KVF_API void kvf_binding_destroy(kvf_binding *binding);

/** Sizes of a binding. */
struct kvf_binding_info {
    int64_t bytes;       /**< all bytes that move */
    int64_t block_runs;  /**< stored runs of adjacent ids */
    int64_t runs;        /**< contiguous runs = fragments when expanded */
    int64_t valid_tokens;  /**< token_end, or with KVF_BIND_PARTIAL the first token that has no destination block */
    int64_t first_missing; /**< first missing position, -1 when none */
    int64_t binding_bytes; /**< memory the binding takes */
};

/** Writes the sizes of a binding. Any thread, never fails. The first call may walk all moves once, to count `runs`. */
KVF_API void kvf_binding_get_info(const kvf_binding *binding, struct kvf_binding_info *info);

/** Returns kvf_binding_info.bytes alone: costs nothing. Any thread, never fails. */
KVF_API int64_t kvf_binding_bytes(const kvf_binding *binding);

/** A move: up to five nested loops, outermost first, around one run. Offsets are into the side's memory. Strides may be
 *  negative: layers stored in the opposite order, a ring that laps. */
struct kvf_move {
    int64_t src_memory, src_offset_bytes;
    int64_t dst_memory, dst_offset_bytes;
    int64_t run_bytes;
    int64_t loop_count;
    struct kvf_loop loops[5];
};

/** Walks a binding's moves in wire order. Owns nothing but itself; one thread at a time. */
typedef struct kvf_cursor kvf_cursor;

/** @param out  returned to the caller (free with kvf_cursor_destroy); the binding must outlive it */
KVF_API enum kvf_status kvf_cursor_create(const kvf_binding *binding, kvf_cursor **out, struct kvf_error *error);
KVF_API void kvf_cursor_destroy(kvf_cursor *cursor);

/** Gives the next move. @return KVF_OK; KVF_ERR_NOT_FOUND after the last one */
KVF_API enum kvf_status kvf_cursor_next(kvf_cursor *cursor, struct kvf_move *out);

/** Goes to the move that holds packed byte `offset_bytes` (0 .. binding bytes). The next kvf_cursor_next gives that
 *  move, and `*skip_bytes` says how many of its packed bytes lie before the offset. Cost: boxes plus the logarithm of
 *  block runs, not moves. @return KVF_OK, KVF_ERR_OUT_OF_RANGE */
KVF_API enum kvf_status kvf_cursor_seek(kvf_cursor *cursor, int64_t offset_bytes, int64_t *skip_bytes);

#ifdef __cplusplus
}
#endif

#endif
