/* SPDX-License-Identifier: Apache-2.0 */
/** @file answer.h  How the program's files share the work of answering a case. Public headers and jansson only.
 *
 *  A case that makes no sense never ends the program: what cannot be answered becomes an "error" in the answer.
 */
#ifndef KVF_ORACLE_ANSWER_H
#define KVF_ORACLE_ANSWER_H

#include "kvferry/trtllm.h"

#include <jansson.h>

/** A pair case whose two ranks could be read. */
struct answer_case {
    const json_t *input;                /**< the whole line */
    kvf_trtllm_rank *src, *dst;
    kvf_trtllm_registrar *registrar;    /**< of src, strict; dst is registered when `accepted` */
    int accepted;
    struct kvf_trtllm_view_pair *pairs; /**< the mapping; empty unless accepted */
    size_t pair_count;
};

/** Reads a rank as the cases spell it. @return NULL with `error` filled when it is refused */
kvf_trtllm_rank *answer_rank(const json_t *object, struct kvf_error *error);

/** A text as JSON, also when it is not UTF-8 to its end. */
json_t *answer_text(const char *text);

/** [group, view] */
json_t *answer_key(const struct kvf_trtllm_view_key *key);

/** Adds "fragments", "ring" and "aux" to the answer of an accepted pair case. */
void answer_moves(const struct answer_case *pair, json_t *answer);

/** Answers an instance case: the list with one object per destination rank, or an object with an error. */
json_t *answer_instance(const json_t *input);

#endif
