/* SPDX-License-Identifier: Apache-2.0 */
/** @file layout.h  Inside of layouts and holdings. Everything here is immutable once made. */
#ifndef KVFI_LAYOUT_LAYOUT_H
#define KVFI_LAYOUT_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kvferry/layout.h"

/** A layout owns every array and text its spec points to. `places` holds the places of all views one view after the
 *  other, as given; `places_by_layer` has the same places at the same indices per view, but sorted by layer. */
struct kvf_layout {
    atomic_int references;
    struct kvf_layout_spec spec;
    struct kvf_place *places;
    struct kvf_place *places_by_layer;
    char *text;
};

/** Holdings own their rows, the rows' layers and texts, all in one allocation. Rows are sorted by role, byte_first,
 *  unit_first, then the rest. */
struct kvf_holdings {
    atomic_int references;
    struct kvf_holding *rows;
    size_t row_count;
};

/** kvf_layout_create, adding to `*runs` how many separate runs of bytes it had to compare: what it cost, for callers
 *  that make many layouts of one hostile text. */
enum kvf_status kvfi_layout_create_counted(const struct kvf_layout_spec *spec, kvf_layout **out, int64_t *runs,
                                           struct kvf_error *error);

/** The group that addresses a view. */
static inline const struct kvf_group *kvfi_view_group(const struct kvf_layout *layout, const struct kvf_view *view)
{
    return &layout->spec.groups[view->group];
}

/** Tokens that one entry of a view covers; 0 for state. */
static inline int64_t kvfi_tokens_per_entry(const struct kvf_layout *layout, const struct kvf_view *view)
{
    return kvfi_view_group(layout, view)->tokens_per_block / (view->slots_per_block * view->entries);
}

/** True when the view's group is state: no positions, one id per request. */
static inline bool kvfi_view_is_state(const struct kvf_layout *layout, const struct kvf_view *view)
{
    return kvfi_view_group(layout, view)->tokens_per_block == 0;
}

/** The places of one of the layout's own views, sorted by layer: view->place_count of them. */
static inline const struct kvf_place *kvfi_view_places_by_layer(const struct kvf_layout *layout,
                                                                const struct kvf_view *view)
{
    return layout->places_by_layer + (view->places - layout->places);
}

/** The place of one layer in one of the layout's own views, or NULL. */
const struct kvf_place *kvfi_view_place(const struct kvf_layout *layout, const struct kvf_view *view, int64_t layer);

/** Writes the bytes that the layout's fingerprint covers. `*bytes` is returned to the caller (free with free). */
enum kvf_status kvfi_layout_canonical(const struct kvf_layout *layout, unsigned char **bytes, size_t *count);

/** Growing bytes in the canonical encoding: integers are 8 bytes little-endian, texts their length and then their
 *  bytes. A failed allocation is remembered in `failed`, so that writers check once. */
struct kvfi_canonical {
    unsigned char *bytes;
    size_t count, capacity;
    bool failed;
};

void kvfi_canonical_raw(struct kvfi_canonical *out, const void *bytes, size_t count);
void kvfi_canonical_i64(struct kvfi_canonical *out, int64_t number);
void kvfi_canonical_u32(struct kvfi_canonical *out, uint32_t number);
void kvfi_canonical_text(struct kvfi_canonical *out, const char *text);

/** XXH3-128 of some bytes as 32 hex digits, high half first. */
void kvfi_fingerprint_text(const void *bytes, size_t count, char text[KVF_FINGERPRINT_TEXT_BYTES]);

#endif
