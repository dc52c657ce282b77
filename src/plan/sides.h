/* SPDX-License-Identifier: Apache-2.0 */
/** @file sides.h  What those who execute a binding ask of it before they touch a memory. */
#ifndef KVFI_PLAN_SIDES_H
#define KVFI_PLAN_SIDES_H

#include <stdbool.h>

#include "kvferry/plan.h"

/** Checks that moves of one side have real addresses, and that `address` has an entry for each memory they are in.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the side and what it lacks. Cost: one step per box */
enum kvf_status kvfi_binding_check_side(const kvf_binding *binding, bool is_src, void *const *address, size_t count,
                                        struct kvf_error *error);

#endif
