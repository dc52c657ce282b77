/* SPDX-License-Identifier: Apache-2.0 */
/** @file canonical.h  The bytes that a plan's fingerprint covers. */
#ifndef KVFI_PLAN_CANONICAL_H
#define KVFI_PLAN_CANONICAL_H

#include "plan/plan.h"

/** Appends them to `out` (free its bytes with free). Returns false when there is no memory. */
bool kvfi_plan_canonical(const kvf_plan *plan, struct kvfi_canonical *out);

#endif
