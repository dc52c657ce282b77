/* SPDX-License-Identifier: Apache-2.0 */
/** @file native.h  Pairs without upstream's limits: both instances' holdings are elected by kvf_elect, positions are
 *  tokens, and every head, section and token has its model-wide coordinate.
 */
#ifndef KVFI_TRTLLM_NATIVE_H
#define KVFI_TRTLLM_NATIVE_H

#include "trtllm/pair.h"

/** A native pair from two rank infos: the TP and CP ranks beside each of them are taken to be as it is.
 *  @param out  returned to the caller (free with kvf_trtllm_pair_release) */
enum kvf_status kvfi_trt_native_create(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                       kvf_trtllm_pair **out, struct kvf_error *error);

#endif
