/* SPDX-License-Identifier: Apache-2.0 */
/** @file rules_judge.h  All rules in their order, and what comes of them. */
#ifndef KVFI_TRTLLM_RULES_JUDGE_H
#define KVFI_TRTLLM_RULES_JUDGE_H

#include "kvferry/trtllm.h"

#include <stdbool.h>

/** Judges a peer that wants to be registered. Fills `verdict` (whole; struct_size is not looked at) unless a rule could
 *  not be evaluated. @return as kvf_trtllm_registrar_check */
enum kvf_status kvfi_trt_judge_peer(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                    struct kvf_trtllm_verdict *verdict, struct kvf_error *error);

/** Judges the one rank of a sending instance that a receiver gets to see. @return as
 *  kvf_trtllm_registrar_check_sender */
enum kvf_status kvfi_trt_judge_sender(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, bool strict,
                                      bool all_rules, struct kvf_error *error);

#endif
