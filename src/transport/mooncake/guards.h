/* SPDX-License-Identifier: Apache-2.0 */
/** @file guards.h  Guards of an engine, for those inside the library that must not block. mooncake.h has the rest.
 *
 *  All of a guard is guarded by the lock of the engine's regions, so that a request is admitted, counted and revoked
 *  at one moment each. Any thread.
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_GUARDS_H
#define KVFI_TRANSPORT_MOONCAKE_GUARDS_H

#include <stdbool.h>

#include "kvferry/mooncake.h"

struct kvfi_moon_regions;

/** As kvf_mooncake_guard_open, for the regions of an engine. */
enum kvf_status kvfi_moon_guard_open(struct kvfi_moon_regions *regions, const struct kvf_mooncake_grid *grids,
                                     size_t grid_count, int64_t block_count, kvf_mooncake_guard **out,
                                     struct kvf_error *error);

/** As kvf_mooncake_guard_revoke, without a wait: from now on no request that would touch a block without a grant
 *  begins, and the connections of those that had begun are being closed.
 *  @param quiet  true: none had begun, so no peer touches those blocks any more. False: ask kvfi_moon_guard_is_quiet
 *                until it says so, and do not grant those blocks before it does
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE, KVF_ERR_NOT_FOUND: nothing changed, and `quiet` is not written */
enum kvf_status kvfi_moon_guard_revoke_begin(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                             bool *quiet, struct kvf_error *error);

/** True when no request is under way in these blocks that may not be. Blocks that are none count as quiet. */
bool kvfi_moon_guard_is_quiet(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count);

/** Told that something changed. Called by a data thread with locks held: it may write to an eventfd or the like, and
 *  may call no function of this engine. */
typedef void kvfi_moon_guard_news(void *context);

/** Sets who is told news of this guard; NULL: nobody. When it returns the former one is not called any more; nor is any
 *  after the guard was closed. */
void kvfi_moon_guard_set_news(kvf_mooncake_guard *guard, kvfi_moon_guard_news *news, void *context);

/** Asks to be told once, and no more until it is asked again: as soon as bytes were counted in blocks of this guard, or
 *  a request ended for which a revoke waits. To miss nothing, ask first, then look at counts and quietness. */
void kvfi_moon_guard_ask_news(kvf_mooncake_guard *guard);

#endif
