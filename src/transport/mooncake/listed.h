/* SPDX-License-Identifier: Apache-2.0 */
/** @file listed.h  A transfer whose ranges are in a list: a call's, or a batch's. */
#ifndef KVFI_TRANSPORT_MOONCAKE_LISTED_H
#define KVFI_TRANSPORT_MOONCAKE_LISTED_H

#include "transport/mooncake/job.h"

struct kvfi_moon_listed {
    /* Filled by whoever makes it, and borrowed. */
    bool is_write;
    uint64_t flags;
    const struct kvf_mooncake_range *ranges;
    size_t count;
    uint8_t *outcomes;  /* NULL, or of each range: KVF_MOONCAKE_FAILED to begin with */

    /* How far it is. Others may look meanwhile: none goes back, and together they are `count` at most. */
    _Atomic int64_t done, failed, in_doubt, done_bytes;

    size_t at;          /* the next one that begins */
};

/** @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the flags */
enum kvf_status kvfi_moon_check_flags(uint64_t flags, struct kvf_error *error);

/** Makes it. @return as kvf_mooncake_write, and KVF_ERR_CANCELLED */
enum kvf_status kvfi_moon_move_listed(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                      struct kvfi_moon_listed *listed, const struct kvfi_moon_limit *limit,
                                      struct kvf_error *error);

/** Ends it with a failure of all that has not ended, and tells how many ranges ended how. @return status */
enum kvf_status kvfi_moon_end_listed(struct kvfi_moon_listed *listed, enum kvf_status status, const char *text,
                                     struct kvf_error *error);

#endif
