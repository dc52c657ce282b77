/* SPDX-License-Identifier: Apache-2.0 */
/** @file agents_lookup.h  Host names to numeric addresses, without blocking the loop: by the threads of a resolver
 *  (sys/resolve.h), so that a name that hangs does not hold up the others. A thread whose name hangs outlives its
 *  owner, touches nothing of it, and ends by itself. */
#ifndef KVFI_VLLM_WORKER_AGENTS_LOOKUP_H
#define KVFI_VLLM_WORKER_AGENTS_LOOKUP_H

#include "kvferry/status.h"
#include "loop/loop.h"

struct kvfi_vllm_lookup;

/** By the progress thread, in a turn of its own. `host` is numeric, without brackets; NULL when there is none, and
 *  `text` says why. `name` is as it was asked. */
typedef void kvfi_vllm_looked_up(void *owner, const char *name, const char *host, const char *text);

/** @param loop  its owner is what the callback gets. Valid until destroy
 *  @return KVF_OK; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_lookup_create(struct kvfi_loop *loop, kvfi_vllm_looked_up *looked_up,
                                        struct kvfi_vllm_lookup **out, struct kvf_error *error);
/** No callback comes afterwards. By the progress thread, or after it was stopped; not with the loop's lock held. NULL
 *  is fine. */
void kvfi_vllm_lookup_destroy(struct kvfi_vllm_lookup *lookup);

/** Looks a name up; the callback follows, in a later turn. By the progress thread.
 *  @return KVF_OK; as kvfi_resolve_start */
enum kvf_status kvfi_vllm_lookup_ask(struct kvfi_vllm_lookup *lookup, const char *name, struct kvf_error *error);

#endif
