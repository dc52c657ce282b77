/* SPDX-License-Identifier: Apache-2.0 */
/** @file over.h  The lists of what is over, as they are given to the user: one block of memory. */
#ifndef KVFI_VLLM_WORKER_OVER_H
#define KVFI_VLLM_WORKER_OVER_H

#include "vllm_worker/worker.h"

/** Room for exactly what was counted. @return NULL without memory */
struct kvfi_vllm_over_lists *kvfi_vllm_over_create(const struct kvfi_vllm_over_counts *counts);
/** Sorts the blocks, each once, and points `done` at all of it (the lists are then the holder's). */
void kvfi_vllm_over_give(struct kvfi_vllm_over_lists *lists, struct kvf_vllm_done *done);

#endif
