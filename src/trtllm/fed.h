/* SPDX-License-Identifier: Apache-2.0 */
/** @file fed.h  Whether the ranks that a receiver asks write all of a view together.
 *
 *  Upstream's overlap, elections and pairing of state ranks are three rules that do not know of each other: in some
 *  grids they leave bytes that no rank writes, and every rank reports success. Its verdicts stay as they are here; what
 *  is left out is told.
 */
#ifndef KVFI_TRTLLM_FED_H
#define KVFI_TRTLLM_FED_H

#include "trtllm/warn.h"

/** Says in the log, once per view and pair of grids, which view pairs of a sender and a receiver are not written in
 *  whole. The ranks beside the sender are taken to be as it is. */
void kvfi_trt_warn_of_unfed(struct kvfi_trt_warn *warn, const kvf_trtllm_rank *sender,
                            const kvf_trtllm_rank *receiver);

#endif
