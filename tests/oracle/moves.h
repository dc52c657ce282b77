/* SPDX-License-Identifier: Apache-2.0 */
/** @file moves.h  Requests of cases, and the copies they come to. */
#ifndef KVF_ORACLE_MOVES_H
#define KVF_ORACLE_MOVES_H

#include "answer.h"

#include <stdbool.h>

/** A request read from a case; ends with moves_request_fini. */
struct moves_request {
    struct kvf_trtllm_request request;
    struct kvf_trtllm_blocks *src, *dst;
    int64_t *ids; /**< of all lists */
};

/** Reads block lists of both sides: arrays of arrays of ids, one for each layer group.
 *  @return false when they are something else or there is no memory */
bool moves_request_init(struct moves_request *out, int64_t prompt, const json_t *src_blocks, const json_t *dst_blocks);
void moves_request_fini(struct moves_request *request);

/** Copies, growing. */
struct moves_list {
    struct kvf_trtllm_fragment *items;
    size_t count, capacity;
};

/** Adds all copies of a write, as its cursor gives them. @return false when there is no memory */
bool moves_collect(struct moves_list *list, const kvf_trtllm_write *write);

/** Whether two lists move the same bytes, however they are cut and ordered. Sorts and joins both. */
bool moves_equal(struct moves_list *a, struct moves_list *b);

/** Bytes of the destination that are written more than once. Sorts the list. */
int64_t moves_doubles(struct moves_list *list);

/** [src, dst, bytes] */
json_t *moves_json(const struct kvf_trtllm_fragment *fragment);

/** SHA-256 as 64 hex digits and a zero. */
void moves_sha256(const void *bytes, size_t count, char text[65]);

#endif
