/* SPDX-License-Identifier: Apache-2.0 */
/** @file agent.h  The built-in transfer agent: writes into the memory of other processes of this host.
 *
 *  What peers are told of it is the ASCII text "kvferry-cma/1 pid=<decimal>". It knows when a process that it watches
 *  has ended, so memory that such a process wrote settles without its word.
 */
#ifndef KVFI_TRTLLM_WORKER_AGENT_H
#define KVFI_TRTLLM_WORKER_AGENT_H

#include "kvferry/trtllm_worker.h"
#include "sys/log.h"

struct kvfi_agent;

/** @param self  the rank whose pools and auxiliary buffers are read
 *  @param table  filled: functions with their context, valid until close. @param out  free with kvfi_agent_close
 *  @return KVF_OK; KVF_ERR_NOT_SUPPORTED (this host does not let processes write into each other); KVF_ERR_SYSTEM;
 *          KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_agent_open(const kvf_trtllm_rank *self, struct kvfi_log *log,
                                struct kvf_trtllm_agent *table, struct kvfi_agent **out, struct kvf_error *error);
/** After it returns no memory is touched by this side, and nothing but `invalidate` may be called. NULL is fine. */
void kvfi_agent_stop(struct kvfi_agent *agent);
/** Stops it and frees it. NULL is fine. */
void kvfi_agent_close(struct kvfi_agent *agent);

#endif
