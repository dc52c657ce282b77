/* SPDX-License-Identifier: Apache-2.0 */
/** @file members.h  The ranks of one instance, put in order. */
#ifndef KVFI_LAYOUT_MEMBERS_H
#define KVFI_LAYOUT_MEMBERS_H

#include "layout/layout.h"

/** Writes the indices of `members` in rank order (pp, cp, tp; equal ranks as given) to `order`, `count` of them. */
enum kvf_status kvfi_members_order(const struct kvf_member *members, size_t count, size_t *order);

#endif
