/* SPDX-License-Identifier: Apache-2.0 */
/** @file answer_vllm.h  How the files of answer_vllm share the work.
 *
 *  A case names its family; answer_vllm.c has the table of families and who answers them. A case that makes no sense
 *  never ends the program: the reader remembers the first thing that is wrong, what is read from there on is 0 or
 *  empty, and the frame answers with {"error": ...}.
 */
#ifndef KVF_ORACLE_ANSWER_VLLM_H
#define KVF_ORACLE_ANSWER_VLLM_H

#include "kvferry/vllm.h"

#include <jansson.h>
#include <stdbool.h>

/** Reads one case. Memory that it gives out is valid until the case is answered. */
struct answer_reader {
    struct answer_chunk *chunks;
    bool failed;
    char problem[512];
};

/** Remembers what is wrong with the case, unless something was before. */
void answer_wrong(struct answer_reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** `count` zeroed elements, at least one: never NULL (a program without memory ends). */
void *answer_take(struct answer_reader *reader, size_t count, size_t element_bytes);

/** Frees all that the reader gave out. */
void answer_reader_fini(struct answer_reader *reader);

/** Members of an object: they must be there and of their type. */
const json_t *answer_member(struct answer_reader *reader, const json_t *object, const char *key);
int64_t answer_int(struct answer_reader *reader, const json_t *object, const char *key);
uint64_t answer_address(struct answer_reader *reader, const json_t *object, const char *key);
bool answer_bool(struct answer_reader *reader, const json_t *object, const char *key);
const char *answer_text(struct answer_reader *reader, const json_t *object, const char *key);
struct kvf_vllm_ids answer_ids(struct answer_reader *reader, const json_t *object, const char *key);

/** A list of lists of ids. */
struct kvf_vllm_ids *answer_id_lists(struct answer_reader *reader, const json_t *object, const char *key,
                                     size_t *count);

/** Regions of eight columns in arrays by name; an array that is empty or missing is missing. */
struct kvf_vllm_arrays answer_arrays(struct answer_reader *reader, const json_t *object, const char *key);

/** Regions as lists of eight. */
struct kvf_vllm_region *answer_regions(struct answer_reader *reader, const json_t *object, const char *key,
                                       size_t *count);

/** Layers by name: `groups` is layer to group, `specs` layer to what it keeps. Those of `specs` come first. */
struct kvf_vllm_layer *answer_layers(struct answer_reader *reader, const json_t *object, const char *specs,
                                     const char *groups, size_t *count);

/** A text as JSON, also when it is not UTF-8 to its end. */
json_t *answer_string(const char *text);

/** The same things as JSON. */
json_t *answer_from_ids(const struct kvf_vllm_ids *ids);
json_t *answer_from_regions(const struct kvf_vllm_region *regions, size_t count);

/** Adds {"error": text} to an answer. */
void answer_error(json_t *answer, const char *text);

/** One per family: adds to `answer` what the case's `expect` would have. */
void answer_align(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_coalesce(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_extent(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_plan(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_ranks(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_register(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_runs(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_sender_plan(struct answer_reader *reader, const json_t *input, json_t *answer);
void answer_validate(struct answer_reader *reader, const json_t *input, json_t *answer);

#endif
