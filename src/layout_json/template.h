/* SPDX-License-Identifier: Apache-2.0 */
/** @file template.h  A layout as a file writes it: plain numbers where they are the same on every rank, rules where
 *  they follow from the rank's place in the grid or from other fields. Read once, expanded for each rank.
 */
#ifndef KVFI_LAYOUT_JSON_TEMPLATE_H
#define KVFI_LAYOUT_JSON_TEMPLATE_H

#include "kvferry/layout.h"
#include "layout_json/json_cursor.h"

/** Marks a number that the file leaves to be derived. */
#define KVFI_DERIVED (-1)

struct kvfi_grid {
    int64_t pp, cp, tp;
};

enum kvfi_units_kind {
    KVFI_UNITS_RANGE,    /**< first, count: the same on every rank */
    KVFI_UNITS_SPLIT_TP, /**< equal shares of total; one unit each where tp is larger */
    KVFI_UNITS_BOUNDS_TP /**< rank tp has [bounds[tp], bounds[tp + 1]) */
};

struct kvfi_units_rule {
    enum kvfi_units_kind kind;
    int64_t total, first, count;
    int64_t *bounds; /* owned */
};

enum kvfi_layers_kind {
    KVFI_LAYERS_RANGE,    /**< first, count: the same on every rank */
    KVFI_LAYERS_LIST,     /**< list: the same on every rank */
    KVFI_LAYERS_SPLIT_PP, /**< count layers from first on, as even as possible, earlier stages take the remainder */
    KVFI_LAYERS_BOUNDS_PP /**< stage pp has [list[pp], list[pp + 1]) */
};

struct kvfi_layers_rule {
    enum kvfi_layers_kind kind;
    int64_t first, count;
    int64_t *list; /* owned */
    size_t list_count;
};

/** `count` places in arithmetic progression. */
struct kvfi_places_rule {
    int64_t first, count, layer_step;
    int64_t pool, pool_step;
    int64_t offset, offset_step;
};

enum kvfi_order { KVFI_ORDER_STRIDES, KVFI_ORDER_HEADS_FIRST, KVFI_ORDER_TOKENS_FIRST };

struct kvfi_view_rule {
    const char *role, *tag; /* borrowed from the JSON */
    int64_t group, row_bytes, byte_first, byte_count;
    struct kvfi_units_rule units;
    enum kvfi_order order;
    int64_t unit_stride, entry_stride; /* with KVFI_ORDER_STRIDES */
    int64_t entries, slots_per_block;
    int64_t chunks, chunk_bytes, chunk_stride; /* 1 and byte_count when the row is in one piece */
    uint32_t flags;
    struct kvfi_places_rule *places; /* owned; NULL: `layers` of `pool` */
    size_t places_count;
    struct kvfi_layers_rule layers;
    int64_t pool;
    int64_t offset, offset_step; /* of the rank's first layer, between its layers; KVFI_DERIVED: packed */
};

struct kvfi_pool_rule {
    int64_t memory, base_offset;
    int64_t slot_stride; /* KVFI_DERIVED: what lies in a slot, and padding */
    int64_t slot_padding, slots;
    bool per_layer;
};

struct kvfi_group_rule {
    struct kvf_group group;
    bool striped_by_cp; /* stripes and stripe follow from the grid */
};

/** All of a layout. A pool index in it counts the listed pools. */
struct kvfi_template {
    int64_t *memories; /* bytes, -1 = unbounded */
    size_t memory_count;
    bool memory_per_pool; /* no memories are listed: each pool is one */
    struct kvfi_pool_rule *pools;
    size_t pool_count;
    struct kvfi_group_rule *groups;
    size_t group_count;
    struct kvfi_view_rule *views;
    size_t view_count;
};

/** Reads a layout object. Texts stay borrowed from the JSON. Always to be given to kvfi_template_fini.
 *  @return KVF_OK, KVF_ERR_PARSE, KVF_ERR_LIMIT, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_template_read(const struct kvfi_cursor *at, const struct kvfi_grid *grid,
                                   struct kvfi_template *out);

/** Reads the view `at` for a template whose groups and pools are there. */
enum kvf_status kvfi_view_rule_read(const struct kvfi_cursor *at, const struct kvfi_grid *grid,
                                    const struct kvfi_template *template, struct kvfi_view_rule *out);
enum kvf_status kvfi_units_rule_read(const struct kvfi_cursor *at, int64_t tp, struct kvfi_units_rule *out);
enum kvf_status kvfi_layers_rule_read(const struct kvfi_cursor *at, int64_t pp, struct kvfi_layers_rule *out);

void kvfi_template_fini(struct kvfi_template *template);

enum { KVFI_MAX_INSTANCE_POOLS = 1048576, KVFI_MAX_INSTANCE_RUNS = 8388608 };

/** What all layouts of one file may still have; counted down. */
struct kvfi_budget {
    int64_t places;
    int64_t pools; /**< with listed memories and groups */
    int64_t runs;  /**< of bytes in slots that are compared with each other; the last layout may overdraw it */
};

/** Makes the layout of one rank, within what is left of the budget.
 *  @return KVF_OK, KVF_ERR_LAYOUT, KVF_ERR_OVERFLOW, KVF_ERR_LIMIT, KVF_ERR_NO_MEMORY; errors name views and pools */
enum kvf_status kvfi_template_expand(const struct kvfi_template *template, const struct kvfi_grid *grid,
                                     const struct kvf_rank *rank, struct kvfi_budget *left, kvf_layout **out,
                                     struct kvf_error *error);

#endif
