/* SPDX-License-Identifier: Apache-2.0 */
/** @file geometry.h  What a page table's views come to: which layers, where each starts, how large it is.
 *
 *  Computed once per rank and read-only from then on, so any thread. It borrows the page table it was made of.
 *  A view whose entries do not make sense is no failure here: upstream looks at most of it late, so the faults are
 *  remembered and told by the two functions below when somebody needs the number.
 */
#ifndef KVFI_TRTLLM_GEOMETRY_H
#define KVFI_TRTLLM_GEOMETRY_H

#include "kvferry/trtllm.h"

#include <stdbool.h>

/** One layer of a view: its two numbers, and where its region starts in a slot. */
struct kvfi_trt_region {
    int64_t global_layer, local_layer, start_bytes;
};

/** One view with what was derived of it. */
struct kvfi_trt_view {
    const struct kvf_trtllm_view *spec;
    const struct kvf_trtllm_group *group;
    const struct kvf_trtllm_pool *pool;    /**< NULL when the indices lead nowhere */
    struct kvf_trtllm_view_key key;
    const char **roles;                    /**< the role set in order; spec->role_count of them */
    uint64_t role_hash;                    /**< equal for equal sets */
    struct kvfi_trt_region *places;         /**< in physical order: by start, then by first entry */
    size_t place_count;
    uint32_t *by_global;                   /**< indices of places by their global layer */
    int64_t layer_bytes;                   /**< of each layer, by the entries; 0 when `sound` is false */
    int64_t buffers;                       /**< entries per layer; 1 without entries; 0 when not even */
    bool sound;                            /**< kvfi_trt_view_check gives KVF_OK */
};

/** A layer of a view: the view's number, and the place in it. */
struct kvfi_trt_cover {
    uint32_t view, place;
};

/** A layer that some group of one cache kind holds. */
struct kvfi_trt_hosted {
    int64_t global_layer, group;
};

/** A page table's views and layers, ready for look-ups. */
struct kvfi_trt_geometry {
    struct kvfi_trt_view *views;           /**< of all groups, in order */
    size_t view_count;
    size_t *first_view;                    /**< group_count + 1 numbers: views [first[g], first[g + 1]) are group g's */
    size_t group_count;
    uint32_t *by_role;                     /**< view numbers by group, role hash, number */
    struct kvfi_trt_cover *covers;         /**< all places of all views, by cache kind, role hash, layer, view number */
    size_t cover_count;
    struct kvfi_trt_hosted *hosted[2];     /**< by cache kind, then by global layer */
    size_t hosted_count[2];
    size_t cache_views[2];                 /**< views by cache kind */
    bool whole_blocks[2];                  /**< by cache kind: some view is NHD or REPLICATED */
};

/** Derives a page table's geometry. @param table  borrowed until kvfi_trt_geometry_destroy; NULL gives an empty one
 *  @param out  returned to the caller (free with kvfi_trt_geometry_destroy)
 *  @return KVF_OK; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_trt_geometry_create(const struct kvf_trtllm_page_table *table, struct kvfi_trt_geometry **out,
                                         struct kvf_error *error);

/** Frees it. NULL is fine. */
void kvfi_trt_geometry_destroy(struct kvfi_trt_geometry *geometry);

/** The geometry of a rank's page table: made with the rank, borrowed until it is released. Never NULL. */
const struct kvfi_trt_geometry *kvfi_trt_rank_geometry(const kvf_trtllm_rank *rank);

/** The view of a key, or NULL. */
const struct kvfi_trt_view *kvfi_trt_geometry_view(const struct kvfi_trt_geometry *geometry,
                                                   const struct kvf_trtllm_view_key *key);

/** The group of one cache kind that holds a global layer, or -1. */
int64_t kvfi_trt_geometry_group(const struct kvfi_trt_geometry *geometry, int64_t cache, int64_t global_layer);

/** The place of a global layer in a view, or NULL. */
const struct kvfi_trt_region *kvfi_trt_view_place(const struct kvfi_trt_view *view, int64_t global_layer);

/** The covers of a layer of one cache kind by views whose role hash is `like`'s: `count` of them. Role sets are still
 *  to be compared. */
const struct kvfi_trt_cover *kvfi_trt_geometry_covers(const struct kvfi_trt_geometry *geometry,
                                                      const struct kvfi_trt_view *like, int64_t layer, size_t *count);

/** The first view of the same cache kind and role set as `like` that holds a layer, or NULL. */
const struct kvfi_trt_view *kvfi_trt_geometry_holder(const struct kvfi_trt_geometry *geometry,
                                                     const struct kvfi_trt_view *like, int64_t layer);

/** Whether two views have the same role set; and whether they hold a layer in common. */
bool kvfi_trt_view_same_roles(const struct kvfi_trt_view *a, const struct kvfi_trt_view *b);
bool kvfi_trt_view_common(const struct kvfi_trt_view *a, const struct kvfi_trt_view *b);

/** Upstream's checks of layer_starts and bytes_per_layer: entries there, each layer's contiguous, all layers equal, and
 *  equal to what is declared. @return KVF_OK: `layer_bytes` and the starts hold; KVF_ERR_INCOMPATIBLE with its text */
enum kvf_status kvfi_trt_view_check(const struct kvfi_trt_view *view, struct kvf_error *error);

/** Upstream's buffers_per_layer. `group` and `number` are what its text names.
 *  @return KVF_OK; KVF_ERR_INCOMPATIBLE ("... not evenly distributed ...") */
enum kvf_status kvfi_trt_view_buffers(const struct kvfi_trt_view *view, int64_t group, int64_t number,
                                      int64_t *buffers, struct kvf_error *error);

/** Writes the role set as upstream prints it, "['key', 'value']", cut when it does not fit. Returns `text`. */
const char *kvfi_trt_view_role_text(const struct kvfi_trt_view *view, char *text, size_t text_bytes);

#endif
