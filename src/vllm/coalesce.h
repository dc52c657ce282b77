/* SPDX-License-Identifier: Apache-2.0 */
/** @file coalesce.h  Neighbours in a row become one region. */
#ifndef KVFI_VLLM_COALESCE_H
#define KVFI_VLLM_COALESCE_H

#include <stdbool.h>

#include "vllm/align.h"

/** Merges pairs, in place, that follow each other in one row on both sides; gaps of padding become part of the merged
 *  payload. @param promote_full_row  payloads that begin a row of equal length on both sides become the whole row */
void kvfi_vllm_coalesce(struct kvfi_vllm_pairs *pairs, bool promote_full_row);

#endif
