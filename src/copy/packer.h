/* SPDX-License-Identifier: Apache-2.0 */
/** @file packer.h  The packer, and what transports ask of it beyond the public interface. */
#ifndef KVFI_COPY_PACKER_H
#define KVFI_COPY_PACKER_H

#include <sys/uio.h>

#include "copy/kernel.h"
#include "kvferry/copy.h"

/** kvf_packer_create with a kernel set of the caller's choice (NULL = the best). */
enum kvf_status kvfi_packer_create_with(const struct kvfi_kernels *kernels, const kvf_binding *binding, int side,
                                        void *const *base, size_t base_count, kvf_packer **out,
                                        struct kvf_error *error);

/** Bytes of the contiguous run of this side that the packer stands in (its whole length, not what is left of it): long
 *  ones are worth an iovec of their own. 0 at the end. Runs that touch on this side count as one. */
int64_t kvfi_packer_run_bytes(kvf_packer *packer);

/** Bytes left of that run. */
int64_t kvfi_packer_run_left(kvf_packer *packer);

/** Hands out the memory of the next bytes instead of copying them: at most `capacity` iovecs and `max_bytes` bytes, and
 *  none once a run is shorter than `shortest_bytes`. The packer moves on by `*bytes`. Returns the number of iovecs. */
size_t kvfi_packer_iovecs(kvf_packer *packer, struct iovec *iovecs, size_t capacity, int64_t max_bytes,
                          int64_t shortest_bytes, int64_t *bytes);

/** Packed offset of the next byte. */
int64_t kvfi_packer_position(const kvf_packer *packer);

#endif
