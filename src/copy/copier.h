/* SPDX-License-Identifier: Apache-2.0 */
/** @file copier.h  A direct copy that can be made in pieces, so that it can be stopped between them. */
#ifndef KVFI_COPY_COPIER_H
#define KVFI_COPY_COPIER_H

#include "copy/kernel.h"
#include "copy/walk.h"
#include "kvferry/plan.h"

/** From how many bytes on a copy goes past the caches. */
#define KVFI_STREAM_BYTES (INT64_C(512) * 1024)

/** The memories of one side. `bytes` NULL: their sizes are trusted; else every address is checked against them. */
struct kvfi_bases {
    void *const *address; /**< by memory index; NULL entries are refused when they are needed */
    const int64_t *bytes;
    size_t count;
};

enum { KVFI_COPIER_TILES = 64 };

/** One copy under way, in the caller's memory. Made by kvfi_copier_init, given back by kvfi_copier_fini. */
struct kvfi_copier {
    const struct kvfi_kernels *kernels;
    kvfi_tiles_fn tiles_fn;
    struct kvfi_bases src, dst; /**< arrays borrowed until fini */
    kvf_cursor *cursor;
    struct kvfi_walk walk;
    struct kvfi_tile tiles[KVFI_COPIER_TILES];
};

/** @param kernels  NULL = the best of this CPU
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a memory without an address, a side whose block ids the binding does not
 *  know); KVF_ERR_NO_MEMORY. The binding and the memories are borrowed until fini */
enum kvf_status kvfi_copier_init(struct kvfi_copier *copier, const struct kvfi_kernels *kernels,
                                 const kvf_binding *binding, const struct kvfi_bases *src, const struct kvfi_bases *dst,
                                 struct kvf_error *error);
void kvfi_copier_fini(struct kvfi_copier *copier);

/** Checks every move against the memories' sizes (`bytes` of both sides must be there). Cost: one step per move.
 *  @return KVF_OK, and what kvfi_copier_run returns */
enum kvf_status kvfi_bases_check(const kvf_binding *binding, const struct kvfi_bases *src, const struct kvfi_bases *dst,
                                 struct kvf_error *error);

/** Copies up to `max_bytes` bytes more; what is copied is visible to other processors before it returns.
 *  @param done_bytes  how many: fewer than asked only at the end
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a memory without an address); KVF_ERR_OUT_OF_RANGE (a move leaves a
 *  memory) */
enum kvf_status kvfi_copier_run(struct kvfi_copier *copier, int64_t max_bytes, int64_t *done_bytes,
                                struct kvf_error *error);

#endif
