/* SPDX-License-Identifier: Apache-2.0 */
/** @file check.h  What is checked before anybody else sees a layout, in this order. */
#ifndef KVFI_LAYOUT_CHECK_H
#define KVFI_LAYOUT_CHECK_H

#include "layout/layout.h"

enum { KVFI_NAME_BYTES = 255 };

/** Refuses a role or tag that is NULL, empty, too long or has a control character in it. The sentence names the object
 *  ("view 3: role is empty"). */
enum kvf_status kvfi_check_name(const char *name, const char *object, size_t number, const char *what,
                                struct kvf_error *error);

/** What a view and a row of holdings have in common: ranges inside totals, known flags. */
struct kvfi_ranges {
    const char *object; /**< "view" or "row" */
    size_t number;
    const char *role;
    int64_t row_bytes, byte_first, byte_count, unit_total, unit_first, unit_count;
    uint32_t flags, reserved;
};

enum kvf_status kvfi_check_ranges(const struct kvfi_ranges *ranges, struct kvf_error *error);

/** Stripe fields of a group or a row: at least one stripe, the own one below it, no negative length. */
enum kvf_status kvfi_check_stripes(const char *object, size_t number, int64_t stripes, int64_t stripe,
                                   int64_t stripe_tokens, struct kvf_error *error);

/** Numbers of pools, groups, views and places: indices, ranges, counts, strides, whole tokens per entry. */
enum kvf_status kvfi_check_fields(const struct kvf_layout *layout, struct kvf_error *error);

/** Nested strides, and that each layer ends inside its memory. */
enum kvf_status kvfi_check_extents(const struct kvf_layout *layout, struct kvf_error *error);

/** No coordinate held by two views, no layer twice in one view. */
enum kvf_status kvfi_check_held_once(const struct kvf_layout *layout, struct kvf_error *error);

/** No address used twice inside or across the slots of one group, exact aliases excepted. Adds to `*runs` what it had
 *  to look at. */
enum kvf_status kvfi_check_overlaps(const struct kvf_layout *layout, int64_t *runs, struct kvf_error *error);

/** One layer of one holder, a rectangle of units and bytes. `owner` is a view's or row's number. */
struct kvfi_held {
    const char *role;
    int64_t layer;
    int64_t unit_first, unit_count, byte_first, byte_count;
    size_t owner;
};

/** Sorts `held` and refuses the first coordinate that two of them hold, or a layer that one owner has twice. `objects`
 *  is "views" or "rows". */
enum kvf_status kvfi_check_held(struct kvfi_held *held, size_t count, const char *objects, struct kvf_error *error);

#endif
