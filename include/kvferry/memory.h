/* SPDX-License-Identifier: Apache-2.0 */
/** @file memory.h  Memory for pools that a worker on the same host can map. */
#ifndef KVFERRY_MEMORY_H
#define KVFERRY_MEMORY_H

#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A block of shareable memory (memfd). */
typedef struct kvf_memory kvf_memory;

/** Flags of kvf_memory_create. */
enum kvf_memory_flag {
    KVF_MEMORY_HUGE_PAGES = 1 /**< ask for huge pages where the system has them; plain pages otherwise */
};

/** Allocates and claims `bytes` of zeroed shareable memory: every page is there when this returns, so that a lack of
 *  memory is an error here and not a SIGBUS later.
 *  @param flags  enum kvf_memory_flag
 *  @param out    returned to the caller (free with kvf_memory_destroy)
 *  @return KVF_OK; KVF_ERR_NO_MEMORY naming the bytes asked for; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_SYSTEM
 *  Blocks for the page faults (0.3 to 5 GB/s). */
KVF_API enum kvf_status kvf_memory_create(int64_t bytes, uint32_t flags, kvf_memory **out, struct kvf_error *error);

/** Frees the memory. It must not be registered with an open engine any more. NULL is fine. */
KVF_API void kvf_memory_destroy(kvf_memory *memory);

/** Address, size and file descriptor: valid until the memory is destroyed. */
KVF_API void *kvf_memory_address(const kvf_memory *memory);
KVF_API int64_t kvf_memory_bytes(const kvf_memory *memory);
KVF_API int kvf_memory_fd(const kvf_memory *memory);

#ifdef __cplusplus
}
#endif

#endif
