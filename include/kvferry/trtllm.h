/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm.h  TensorRT-LLM's native disaggregation, the planning half: page tables, rank infos, the registrar.
 *
 *  Names follow upstream's terms; *self* is the rank that evaluates (the sender, where bytes are meant) and *peer* the
 *  other one (the receiver). Nothing here plans on its own: a pair of ranks becomes two kvferry layouts and one
 *  kvf_plan, and a request becomes bindings of it. `docs/trtllm.md` says what becomes what.
 *
 *      page table -> rank (info) -> registrar: register, overlap, mapping, elections
 *                                -> pair: one plan -> write: one request's moves, or its fragments when asked for
 *
 *  No sockets, clock, threads or environment; the registrar logs its warnings to the sink it was given.
 */
#ifndef KVFERRY_TRTLLM_H
#define KVFERRY_TRTLLM_H

#include "kvferry/log.h"
#include "kvferry/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** An optional number that is not there (upstream's None). */
#define KVF_TRTLLM_NONE INT64_MIN

/** The protocol version that this library speaks; a peer of another one is refused before anything else is read. */
#define KVF_TRTLLM_PROTOCOL_VERSION 1

/* ---- page tables ------------------------------------------------------------------------------------------- */

/** What a layer group holds: a list of block ids per request, or one state slot. The numbers are upstream's. */
enum kvf_trtllm_cache {
    KVF_TRTLLM_PAGED = 0,
    KVF_TRTLLM_STATE = 1
};

/** How a view is cut across ranks. The numbers travel on the wire. */
enum kvf_trtllm_mapper {
    KVF_TRTLLM_INDEXED = 0,    /**< head-major K and V ("HND"), or head-major recurrent state */
    KVF_TRTLLM_REPLICATED = 1, /**< the same bytes on every TP rank */
    KVF_TRTLLM_NHD = 2,        /**< token-major K and V */
    KVF_TRTLLM_SECTIONED = 3   /**< convolution state: sections, each cut on its own */
};

/** Where one buffer of one layer lies in a slot. */
struct kvf_trtllm_entry {
    int64_t local_layer, offset_bytes, size_bytes;
};

/** One role class of all its layers in one physical pool. */
struct kvf_trtllm_view {
    int64_t pool;                  /**< index into the pools of the group's pool group */
    const struct kvf_trtllm_entry *entries;
    size_t entry_count;
    const char *const *roles;      /**< a set: order does not matter, no role twice; may be empty */
    size_t role_count;
    int64_t mapper;                /**< an enum kvf_trtllm_mapper */
    int64_t bytes_per_layer;       /**< declared size of one layer's region, or KVF_TRTLLM_NONE */
    int64_t num_kv_heads;          /**< or KVF_TRTLLM_NONE; paged INDEXED and NHD views need it above 0 when paired */
    const int64_t *section_bytes;  /**< SECTIONED: sizes of the sections; NULL = none given */
    size_t section_count;
    int64_t bytes_per_head;        /**< recurrent INDEXED, or KVF_TRTLLM_NONE */
    int64_t ring_slot_bytes;       /**< of a ring view: bytes of one position, or KVF_TRTLLM_NONE */
};

/** A layer of a group: its number on this rank, and the number that is equal for it on every rank. */
struct kvf_trtllm_layer {
    int64_t local_layer, global_layer;
};

/** Layers that share one life cycle: one table of block ids, or one state slot. */
struct kvf_trtllm_group {
    int64_t cache;                 /**< an enum kvf_trtllm_cache */
    int64_t pool_group;            /**< index into kvf_trtllm_page_table.pool_groups */
    const struct kvf_trtllm_layer *layers;
    size_t layer_count;
    const struct kvf_trtllm_view *views;
    size_t view_count;
    int64_t kv_heads_per_rank;     /**< paged; or KVF_TRTLLM_NONE */
    int64_t sliding_window_size;   /**< paged; KVF_TRTLLM_NONE = full attention */
    int64_t slot_major_layout;     /**< state: 0, 1, or KVF_TRTLLM_NONE */
};

/** An array of equal slots in memory. */
struct kvf_trtllm_pool {
    uint64_t base_address;
    int64_t slot_bytes, num_slots;
    int64_t slot_stride_bytes;     /**< at least slot_bytes */
    int64_t layer_stride_bytes;    /**< layer-major recurrent pools, or KVF_TRTLLM_NONE */
};

/** Pools that one or several layer groups live in. */
struct kvf_trtllm_pool_group {
    const struct kvf_trtllm_pool *pools;
    size_t pool_count;
};

/** Where one rank keeps its cache. */
struct kvf_trtllm_page_table {
    int64_t tokens_per_block;
    const struct kvf_trtllm_group *groups;
    size_t group_count;
    const struct kvf_trtllm_pool_group *pool_groups;
    size_t pool_group_count;
};

/* ---- rank infos -------------------------------------------------------------------------------------------- */

/** The attention of a rank. */
struct kvf_trtllm_attention {
    int64_t kv_heads_per_rank;     /**< 0 = a stage without attention */
    int64_t tokens_per_block, dims_per_head;
    int64_t element_eighths;       /**< bytes of eight elements: 16 for a 2-byte type, 4 for a 4-bit one */
    int64_t enable_attention_dp;   /**< 0 or 1 */
    int64_t is_mla;                /**< 0 or 1: a key-only latent cache */
};

/** The buffers of per-request tokens (auxiliary data): base address, bytes in all, bytes of one slot. */
struct kvf_trtllm_aux {
    const uint64_t *ptrs;
    size_t ptr_count;
    const int64_t *size;
    size_t size_count;
    const int64_t *item_sizes;
    size_t item_count;
    const char *device;            /**< "cpu" */
};

/** Which of the four newest keys a rank info has: older senders leave them out. */
enum kvf_trtllm_key {
    KVF_TRTLLM_HAS_PROTOCOL_VERSION = 1,
    KVF_TRTLLM_HAS_BOUNDED_REPLAY = 2,
    KVF_TRTLLM_HAS_NUM_DRAFT_LAYERS = 4,
    KVF_TRTLLM_HAS_DRAFT_KV_DTYPE = 8,
    KVF_TRTLLM_HAS_ALL = 15
};

/** Everything a rank says of itself (upstream: RankInfo), as plain data. All pointers are borrowed for the call. */
struct kvf_trtllm_rank_spec {
    size_t struct_size;            /**< set by kvf_trtllm_rank_spec_init */
    const char *instance_name;     /**< shared by all ranks of one server instance */
    int64_t instance_rank;         /**< flat rank in the instance */
    int64_t tp_size, tp_rank, pp_size, pp_rank, dp_size, dp_rank, cp_size, cp_rank;
    int64_t device_id;
    const int64_t *layer_num_per_pp; /**< attention and state layers of each pipeline stage */
    size_t layer_num_count;
    const char *const *sender_endpoints; /**< of every sender rank of the instance */
    size_t sender_endpoint_count;
    const char *self_endpoint;
    const void *transfer_engine_info; /**< opaque bytes of the transfer agent */
    size_t transfer_engine_info_bytes;
    const struct kvf_trtllm_attention *attention; /**< NULL = none */
    const struct kvf_trtllm_aux *aux;             /**< NULL = none */
    const struct kvf_trtllm_page_table *page_table; /**< NULL = none */
    uint64_t keys;                 /**< enum kvf_trtllm_key: what encode writes; default all */
    int64_t protocol_version;      /**< default KVF_TRTLLM_PROTOCOL_VERSION */
    int64_t bounded_replay_on_generation; /**< 0 or 1 */
    int64_t num_draft_layers;
    const char *draft_kv_dtype;    /**< NULL = none */
};

/** Most of each that a rank info may have; more is KVF_ERR_LIMIT before anything is allocated for it. */
enum kvf_trtllm_limit {
    KVF_TRTLLM_MAX_RANK_BYTES = 16777216, /**< encoded */
    KVF_TRTLLM_MAX_RANKS = 65536,         /**< of one instance: sender endpoints, stages, sizes of the grid */
    KVF_TRTLLM_MAX_GROUPS = 1024,
    KVF_TRTLLM_MAX_POOLS = 8192,
    KVF_TRTLLM_MAX_VIEWS = 8192,          /**< of all groups together */
    KVF_TRTLLM_MAX_ENTRIES = 262144,      /**< of all views together; layers, roles and sections likewise */
    KVF_TRTLLM_MAX_TEXT_BYTES = 4096,     /**< of a name, endpoint, dtype */
    KVF_TRTLLM_MAX_ROLE_BYTES = 256,      /**< of a role */
    KVF_TRTLLM_MAX_AUX = 64
};

/** A checked, immutable rank info that owns its data. Reference counted; any thread. */
typedef struct kvf_trtllm_rank kvf_trtllm_rank;

/** Fills `spec` with the defaults. `size` is sizeof(struct kvf_trtllm_rank_spec) as the caller compiled it. */
KVF_API void kvf_trtllm_rank_spec_init(struct kvf_trtllm_rank_spec *spec, size_t size);

/** Copies and checks a rank info: counts against kvf_trtllm_limit; ranks inside their sizes; indices of pools, pool
 *  groups and layers inside their lists; the mapper kinds that each cache kind allows; sums and products that fit in
 *  63 bits, addresses in 64; a global layer in one group of its cache kind only; slot strides not below slot sizes; at
 *  least one token per block, slot, byte of a slot and byte of an entry; no text with control characters; no newest
 *  key left out while its field is set. What upstream refuses later (geometry of a view, peers, auxiliary buffers) is
 *  not refused here, and any protocol version is taken.
 *  The copy has its roles sorted, and KVF_TRTLLM_NONE in the fields of a group that its cache kind does not have.
 *  @param out  returned to the caller (free with kvf_trtllm_rank_release); written on success only
 *  @return KVF_OK; KVF_ERR_LAYOUT naming group, view and values; KVF_ERR_LIMIT; KVF_ERR_OVERFLOW;
 *          KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NEWER_OPTION; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_trtllm_rank_create(const struct kvf_trtllm_rank_spec *spec, kvf_trtllm_rank **out,
                                               struct kvf_error *error);

/** Takes, and gives back, one reference; the last one frees it. Releasing NULL is fine. Any thread. */
KVF_API kvf_trtllm_rank *kvf_trtllm_rank_acquire(const kvf_trtllm_rank *rank);
KVF_API void kvf_trtllm_rank_release(kvf_trtllm_rank *rank);

/** Returns the rank's own data: borrowed until it is released. */
KVF_API const struct kvf_trtllm_rank_spec *kvf_trtllm_rank_get_spec(const kvf_trtllm_rank *rank);

/** Reads the MessagePack map that upstream's `to_bytes` makes. `protocol_version` is read and compared before any
 *  other value; unknown keys are skipped, integer keys included; a map without the four newest keys is fine.
 *  @param out  returned to the caller (free with kvf_trtllm_rank_release)
 *  @return KVF_OK; KVF_ERR_VERSION ("... protocol version ..."); KVF_ERR_PARSE with `position`; KVF_ERR_LIMIT; and what
 *          kvf_trtllm_rank_create returns. The bytes may be hostile. */
KVF_API enum kvf_status kvf_trtllm_rank_decode(const void *bytes, size_t byte_count, kvf_trtllm_rank **out,
                                               struct kvf_error *error);

/** Writes the MessagePack map, byte for byte as upstream's `to_bytes`; a decoded rank gives the bytes it came from, as
 *  far as they hold no unknown keys. Deterministic.
 *  @param capacity  bytes at `buffer` (NULL with 0: only asks)
 *  @param byte_count  how many bytes it takes, also when that is more than `capacity`
 *  @return KVF_OK; KVF_ERR_LIMIT (capacity, or more bytes than KVF_TRTLLM_MAX_RANK_BYTES); KVF_ERR_INVALID_ARGUMENT */
KVF_API enum kvf_status kvf_trtllm_rank_encode(const kvf_trtllm_rank *rank, void *buffer, size_t capacity,
                                               size_t *byte_count, struct kvf_error *error);

/** Reads one rank from JSON; `docs/trtllm.md` has the shape. Unknown members are refused, naming them.
 *  @param out  returned to the caller (free with kvf_trtllm_rank_release)
 *  @return KVF_OK; KVF_ERR_PARSE with a sentence that names the path ("table.groups[0].views[1].kind"), `position` when
 *          the text itself is broken; and what kvf_trtllm_rank_create returns */
KVF_API enum kvf_status kvf_trtllm_rank_from_json(const char *text, size_t byte_count, kvf_trtllm_rank **out,
                                                  struct kvf_error *error);

/** Writes a rank in the shape that kvf_trtllm_rank_from_json reads, on one line.
 *  @param out  returned to the caller (free with kvf_trtllm_text_free) */
KVF_API enum kvf_status kvf_trtllm_rank_to_json(const kvf_trtllm_rank *rank, char **out, struct kvf_error *error);

/** Frees a text that this header returned. NULL is fine. */
KVF_API void kvf_trtllm_text_free(char *text);

/* ---- registrar --------------------------------------------------------------------------------------------- */

/** How a peer was judged. */
enum kvf_trtllm_style {
    KVF_TRTLLM_ACCEPTED = 0,
    KVF_TRTLLM_HARD = 1, /**< refused; `text` names the rule */
    KVF_TRTLLM_SOFT = 2  /**< refused; `text` says so, `reason` (also logged) why */
};

/** Most warnings of one registration. */
#define KVF_TRTLLM_MAX_WARNINGS 3

/** The verdict of registering a peer, with upstream's texts. */
struct kvf_trtllm_verdict {
    size_t struct_size;            /**< set by the caller to sizeof(struct kvf_trtllm_verdict) */
    int32_t style;                 /**< an enum kvf_trtllm_style */
    int32_t warning_count;
    char text[KVF_ERROR_TEXT_BYTES];   /**< "" when accepted */
    char reason[KVF_ERROR_TEXT_BYTES]; /**< SOFT only */
    char warnings[KVF_TRTLLM_MAX_WARNINGS][KVF_ERROR_TEXT_BYTES]; /**< tokens per block, layer totals, NHD */
    char warning_keys[KVF_TRTLLM_MAX_WARNINGS][128]; /**< what each is logged once under; "" = it is always logged */
};

/** How to judge and plan. */
enum kvf_trtllm_flag {
    /** Keep upstream's verdicts, elections and mapping also where kvferry could do more: for every stock peer */
    KVF_TRTLLM_STRICT_UPSTREAM = 1
};

/** Options of a registrar. */
struct kvf_trtllm_options {
    size_t struct_size;            /**< set by kvf_trtllm_options_init */
    uint64_t flags;                /**< enum kvf_trtllm_flag; default KVF_TRTLLM_STRICT_UPSTREAM */
    struct kvf_log_sink log;       /**< warnings, once per key; default none */
    uint64_t max_peer_bytes;       /**< memory of the rank infos of all peers together; default 1 GiB */
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_trtllm_options) as the caller compiled it. */
KVF_API void kvf_trtllm_options_init(struct kvf_trtllm_options *options, size_t size);

/** The peers that one rank knows. One thread at a time. Free with kvf_trtllm_registrar_destroy. */
typedef struct kvf_trtllm_registrar kvf_trtllm_registrar;

/** @param self  this rank; acquired. @param options  NULL = defaults. @param out  returned to the caller */
KVF_API enum kvf_status kvf_trtllm_registrar_create(const kvf_trtllm_rank *self,
                                                    const struct kvf_trtllm_options *options,
                                                    kvf_trtllm_registrar **out, struct kvf_error *error);

/** Frees a registrar and what it lent. NULL is fine. */
KVF_API void kvf_trtllm_registrar_destroy(kvf_trtllm_registrar *registrar);

/** Returns the rank the registrar was made with: borrowed until it is destroyed. */
KVF_API const kvf_trtllm_rank *kvf_trtllm_registrar_self(const kvf_trtllm_registrar *registrar);

/** Judges a peer without storing it: all rules of registration in upstream's order.
 *  @return KVF_OK when accepted; KVF_ERR_VERSION (protocol version), KVF_ERR_INCOMPATIBLE otherwise, with the verdict's
 *          text in `error`; KVF_ERR_NO_MEMORY. `verdict` may be NULL. */
KVF_API enum kvf_status kvf_trtllm_registrar_check(kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer,
                                                   struct kvf_trtllm_verdict *verdict, struct kvf_error *error);

/** What a receiver checks of the one rank info it fetches from an info endpoint, before it contacts any sender:
 *  the protocol version, recurrent state, replicated coverage, replay and draft layers, view pairing and head counts;
 *  with `all_rules` not 0 the soft rules and the mapper kinds too (kvferry asks for all, so that no request hangs on
 *  the sender's side), but those about the two ranks' heads only when the peer's stage holds layers of self's. An
 *  accepted one may be warned of as in kvf_trtllm_registrar_register: then it is self's views that are not written in
 *  whole.
 *  @return as kvf_trtllm_registrar_check */
KVF_API enum kvf_status kvf_trtllm_registrar_check_sender(kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer,
                                                          int all_rules, struct kvf_error *error);

/** Judges and stores a peer under (instance name, instance rank); one that is known already is replaced, and what was
 *  derived of it dropped. A refusal leaves no trace. Warnings go to the log, once per key; strict, also one that is
 *  none of upstream's: views of the peer that upstream's overlap, elections and state pairing together leave in part
 *  unwritten, whatever the transfers report (state of a receiver with context parallelism or several ranks per DP
 *  group; TP sizes of which neither divides the other).
 *  @return as kvf_trtllm_registrar_check; KVF_ERR_LIMIT (max_peer_bytes). Cost: its views and entries, not its
 *          blocks. */
KVF_API enum kvf_status kvf_trtllm_registrar_register(kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer,
                                                      struct kvf_trtllm_verdict *verdict, struct kvf_error *error);

/** Forgets a peer and all that was derived of it. @return KVF_OK; KVF_ERR_NOT_FOUND */
KVF_API enum kvf_status kvf_trtllm_registrar_unregister(kvf_trtllm_registrar *registrar, const char *instance_name,
                                                        int64_t instance_rank, struct kvf_error *error);

/** Finds a peer. @param out  borrowed until it is unregistered or registered anew
 *  @return KVF_OK; KVF_ERR_NOT_FOUND naming it */
KVF_API enum kvf_status kvf_trtllm_registrar_find(const kvf_trtllm_registrar *registrar, const char *instance_name,
                                                  int64_t instance_rank, const kvf_trtllm_rank **out,
                                                  struct kvf_error *error);

/** Number of peers that are registered. */
KVF_API size_t kvf_trtllm_registrar_count(const kvf_trtllm_registrar *registrar);

/* ---- overlap and elections: from two rank infos alone; the peer need not be registered ---------------------- */

/** Which ranks of one DP group of the peer's instance exchange data with self. */
struct kvf_trtllm_overlap {
    int64_t overlap_pp_size, overlap_tp_size, overlap_cp_size;
    int64_t duplicate_head_factor, peer_duplicate_head_factor; /**< rank-wide */
    size_t rank_count;             /**< expected transfers */
};

/** @param peer_dp_rank  the DP group that is meant
 *  @param ranks  the first `capacity` flat ranks, in upstream's order: `(pp * TP + tp) * CP + cp`
 *  @return KVF_OK (no overlap: zero sizes, factors 1); KVF_ERR_OUT_OF_RANGE (more ranks than KVF_TRTLLM_MAX_RANKS) */
KVF_API enum kvf_status kvf_trtllm_get_overlap(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                               int64_t peer_dp_rank, struct kvf_trtllm_overlap *out, int64_t *ranks,
                                               size_t capacity, struct kvf_error *error);

/** Which ranks exchange data with self as this registrar plans: strict, kvf_trtllm_get_overlap. Not strict, all TP and
 *  CP ranks of the DP group whose stages hold layers of self's, since what each sends is then kvf_elect's answer and
 *  not bound to that rule; both sides have to ask for it in the same way. The peer need not be registered.
 *  @return as kvf_trtllm_get_overlap */
KVF_API enum kvf_status kvf_trtllm_registrar_overlap(const kvf_trtllm_registrar *registrar,
                                                     const kvf_trtllm_rank *peer, int64_t peer_dp_rank,
                                                     struct kvf_trtllm_overlap *out, int64_t *ranks, size_t capacity,
                                                     struct kvf_error *error);

/** A view of a page table: number of the layer group, number of the view in it. */
struct kvf_trtllm_view_key {
    int64_t group, view;
};

/** A view of self and the peer's view that it is sent to. */
struct kvf_trtllm_view_pair {
    struct kvf_trtllm_view_key self, peer;
};

/** Pairs the views of two ranks, in upstream's order: equal role sets and common layers.
 *  @param pairs  the first `capacity` of them. @param count  how many there are
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE ("... incompatible mapper kinds ..."); KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_trtllm_get_pool_mapping(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                                    struct kvf_trtllm_view_pair *pairs, size_t capacity, size_t *count,
                                                    struct kvf_error *error);

/** Duplication factors of one view pair, by its two head counts (upstream: duplicate_head_factors_for). */
KVF_API void kvf_trtllm_view_head_factors(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                          const struct kvf_trtllm_view_pair *pair, int64_t *duplicate_head_factor,
                                          int64_t *peer_duplicate_head_factor);

/** Says whether self is the one that sends this view to this peer: 1 or 0. `duplicate_head_factor` is the view's. */
KVF_API int kvf_trtllm_should_send_pool(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                        const struct kvf_trtllm_view_key *view, int64_t duplicate_head_factor);

/** Says whether self is the one that sends the auxiliary data to this peer: 1 or 0. */
KVF_API int kvf_trtllm_should_send_aux(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer);

/** Says whether the recurrent-state ranks of the two are paired: 1 or 0. State moves between paired ranks only. */
KVF_API int kvf_trtllm_is_state_paired(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer);

/* ---- pairs: what self sends to one peer -------------------------------------------------------------------- */

/** The mapper that upstream would use for a view pair. kvferry has one plan for all of them. */
enum kvf_trtllm_mapper_name {
    KVF_TRTLLM_MAP_ERROR = 0,          /**< building it fails: see `error` */
    KVF_TRTLLM_MAP_INTACT = 1,
    KVF_TRTLLM_MAP_REPLICATED = 2,
    KVF_TRTLLM_MAP_HND = 3,
    KVF_TRTLLM_MAP_NHD = 4,
    KVF_TRTLLM_MAP_RING = 5,
    KVF_TRTLLM_MAP_STATE_MATCH = 6,
    KVF_TRTLLM_MAP_STATE_SECTIONS = 7,
    KVF_TRTLLM_MAP_STATE_HEADS = 8
};

/** Names one, as in "hnd", "state-match"; "error" for KVF_TRTLLM_MAP_ERROR. Never NULL. */
KVF_API const char *kvf_trtllm_mapper_text(int mapper);

/** One view pair as planned. */
struct kvf_trtllm_pair_view {
    struct kvf_trtllm_view_pair key;
    int32_t elected;               /**< 1: self sends it to this peer */
    int32_t mapper;                /**< an enum kvf_trtllm_mapper_name */
    int64_t duplicate_head_factor, peer_duplicate_head_factor;
    int64_t ring_src_slots, ring_dst_slots; /**< RING only */
    struct kvf_error error;        /**< MAP_ERROR only: what upstream says when the mapper is first built */
};

/** What self sends to one peer. Immutable, reference counted, any thread. */
typedef struct kvf_trtllm_pair kvf_trtllm_pair;

/** Plans all elected views of a registered peer as one kvf_plan; made once per peer and kept until it is registered
 *  anew or unregistered. A view whose mapper upstream could not build, or whose memory overlaps itself or a view before
 *  it, is left out of the plan, and refused at binding.
 *  @param out  returned to the caller (free with kvf_trtllm_pair_release)
 *  @return KVF_OK; KVF_ERR_NOT_FOUND (not registered); KVF_ERR_INCOMPATIBLE; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_trtllm_registrar_pair(kvf_trtllm_registrar *registrar, const char *instance_name,
                                                  int64_t instance_rank, kvf_trtllm_pair **out,
                                                  struct kvf_error *error);

/** Plans one pair without a registrar and without upstream's limits: ranks are elected by kvf_elect over both whole
 *  instances (one DP group each), so HND meets NHD, any tokens per block and any context parallelism meet.
 *  @param src, dst  all ranks of the two instances, borrowed for the call; DP groups that neither of the two ranks
 *                   belongs to are left out. @param source, destination  which two are meant
 *  @param out  returned to the caller (free with kvf_trtllm_pair_release)
 *  @return as kvf_trtllm_registrar_pair; KVF_ERR_INCOMPATIBLE also when a needed layer is held by no source rank */
KVF_API enum kvf_status kvf_trtllm_pair_native(const kvf_trtllm_rank *const *src, size_t src_count,
                                               const kvf_trtllm_rank *const *dst, size_t dst_count, size_t source,
                                               size_t destination, kvf_trtllm_pair **out, struct kvf_error *error);

/** Takes, and gives back, one reference; the last one frees it. Releasing NULL is fine. Any thread. */
KVF_API kvf_trtllm_pair *kvf_trtllm_pair_acquire(const kvf_trtllm_pair *pair);
KVF_API void kvf_trtllm_pair_release(kvf_trtllm_pair *pair);

/** Number of view pairs in mapping order, and one of them. @return KVF_OK; KVF_ERR_OUT_OF_RANGE */
KVF_API size_t kvf_trtllm_pair_view_count(const kvf_trtllm_pair *pair);
KVF_API enum kvf_status kvf_trtllm_pair_view(const kvf_trtllm_pair *pair, size_t index,
                                             struct kvf_trtllm_pair_view *out);

/** Returns the plan: borrowed until the pair is released; NULL when nothing is sent to this peer. Its memories are the
 *  pools, in page table order; addresses come from the pools' bases. */
KVF_API const kvf_plan *kvf_trtllm_pair_plan(const kvf_trtllm_pair *pair);

/* ---- writes: one request, or one chunk of it ---------------------------------------------------------------- */

/** Block ids of one layer group. PAGED: positional, entry i is block ordinal i of the prompt (of this rank, under
 *  context parallelism), -1 a hole. STATE: one slot, or none. */
struct kvf_trtllm_blocks {
    const int64_t *ids;
    size_t count;
};

/** What to write. Arrays are borrowed for the call. */
struct kvf_trtllm_request {
    size_t struct_size;            /**< set by kvf_trtllm_request_init */
    int64_t prompt_tokens;         /**< of the whole request */
    int64_t token_begin, token_end; /**< of this chunk; default the whole prompt (token_end KVF_TRTLLM_NONE) */
    const struct kvf_trtllm_blocks *src; /**< one per layer group of self */
    size_t src_count;
    const struct kvf_trtllm_blocks *dst; /**< one per layer group of the peer */
    size_t dst_count;
    int64_t dst_start_token;       /**< nothing before it is wanted; KVF_TRTLLM_NONE = all is */
    const struct kvf_trtllm_view_key *excluded; /**< views of self that the receiver makes itself */
    size_t excluded_count;
    int32_t by_holes;              /**< native: 1 = one of several pieces, of which src lists its own blocks alone: what
                                        it has not is left out, not refused. Strict pairs always leave out */
    int32_t is_early;              /**< native, with by_holes: 1 = not the last of them, so no state and no rings */
};

/** Fills `request` with the defaults. `size` is sizeof(struct kvf_trtllm_request) as the caller compiled it. */
KVF_API void kvf_trtllm_request_init(struct kvf_trtllm_request *request, size_t size);

/** The bytes of one request from self to one peer: the pair's plan bound to block ids. Immutable; any thread. */
typedef struct kvf_trtllm_write kvf_trtllm_write;

/** Binds. Nothing is expanded: the write holds runs of block ids, no fragment.
 *  @param out  returned to the caller (free with kvf_trtllm_write_destroy); an empty write is fine
 *  @return KVF_OK; KVF_ERR_IDS naming group, index and value (an id outside its pool or twice in a list; strict:
 *          "positional block tables differ in length: src=.. dst=..; both sides must span the same prompt"; native: a
 *          source hole under a destination id outside of windows, a destination list too short); KVF_ERR_INCOMPATIBLE
 *          with the text of the first elected view whose mapper cannot be built or whose memory overlaps;
 *          KVF_ERR_OUT_OF_RANGE; KVF_ERR_NOT_SUPPORTED (under context parallelism: a partial chunk, strict only; rings
 *          of unlike length); KVF_ERR_OVERFLOW; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_trtllm_pair_bind(const kvf_trtllm_pair *pair, const struct kvf_trtllm_request *request,
                                             kvf_trtllm_write **out, struct kvf_error *error);

/** Frees a write and gives back its pair. NULL is fine. */
KVF_API void kvf_trtllm_write_destroy(kvf_trtllm_write *write);

/** Bytes that a write moves. Costs nothing. */
KVF_API int64_t kvf_trtllm_write_bytes(const kvf_trtllm_write *write);

/** One contiguous copy, in absolute addresses of the two processes. */
struct kvf_trtllm_fragment {
    uint64_t src_address, dst_address;
    int64_t bytes;
};

/** Walks a write's contiguous copies, as long as they come: what a transfer agent posts. Owns nothing but itself. */
typedef struct kvf_trtllm_cursor kvf_trtllm_cursor;

/** @param out  returned to the caller (free with kvf_trtllm_cursor_destroy); the write must outlive it */
KVF_API enum kvf_status kvf_trtllm_cursor_create(const kvf_trtllm_write *write, kvf_trtllm_cursor **out,
                                                 struct kvf_error *error);
KVF_API void kvf_trtllm_cursor_destroy(kvf_trtllm_cursor *cursor);

/** Gives up to `capacity` next copies; 0 at the end. Never fails. */
KVF_API size_t kvf_trtllm_cursor_next(kvf_trtllm_cursor *cursor, struct kvf_trtllm_fragment *out, size_t capacity);

/** Lists the fragments that upstream's mappers would post, cut and ordered as upstream does (tests and comparisons; a
 *  transfer needs none of it). Same bytes as the cursor's.
 *  @param out  the first `capacity` of them. @param count  how many there are
 *  @return KVF_OK; KVF_ERR_LIMIT (2^31 fragments); KVF_ERR_NO_MEMORY; KVF_ERR_NOT_SUPPORTED (a native pair) */
KVF_API enum kvf_status kvf_trtllm_write_fragments(const kvf_trtllm_write *write, struct kvf_trtllm_fragment *out,
                                                   size_t capacity, size_t *count, struct kvf_error *error);

/* ---- auxiliary buffers -------------------------------------------------------------------------------------- */

/** The copies of one slot of auxiliary data from self to peer, in buffer order: `src_base + item * slot` on each side,
 *  the source's item bytes; empty source buffers are skipped.
 *  @param out  the first `capacity` of them. @param count  how many there are
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE with upstream's text; KVF_ERR_OUT_OF_RANGE (a slot outside the buffers);
 *          KVF_ERR_OVERFLOW */
KVF_API enum kvf_status kvf_trtllm_aux_fragments(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                                 int64_t src_slot, int64_t dst_slot, struct kvf_trtllm_fragment *out,
                                                 size_t capacity, size_t *count, struct kvf_error *error);

/* ---- agreement between the ranks of one instance ------------------------------------------------------------ */

/** One rank's words about one request. Bits. */
enum kvf_trtllm_vote {
    KVF_TRTLLM_VOTE_COMPLETED = 1,
    KVF_TRTLLM_VOTE_FAILED = 2,
    KVF_TRTLLM_VOTE_CANCELLED = 4,
    KVF_TRTLLM_VOTE_QUIESCED = 8   /**< nobody touches this rank's memory for it any more */
};

/** What all ranks together say. */
enum kvf_trtllm_outcome {
    KVF_TRTLLM_PENDING = 0,
    KVF_TRTLLM_COMPLETED = 1, /**< every rank says so, none failed or cancelled */
    KVF_TRTLLM_FAILED = 2,    /**< some rank says so, none cancelled */
    KVF_TRTLLM_CANCELLED = 3  /**< some rank says so */
};

/** Joins the votes of all ranks (one entry each, 0 = nothing known yet): cancelled goes before failed goes before
 *  completed. `*may_retire` is 1 when the outcome is not pending and its memory may be reused: a completed one at once,
 *  a failed or cancelled one when every rank is quiesced. Pure; usable behind any collective. */
KVF_API enum kvf_trtllm_outcome kvf_trtllm_agree(const uint32_t *votes, size_t rank_count, int *may_retire);

#ifdef __cplusplus
}
#endif

#endif
