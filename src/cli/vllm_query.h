/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_query.h  What a bootstrap registry knows, asked by hand. */
#ifndef KVFERRY_CLI_VLLM_QUERY_H
#define KVFERRY_CLI_VLLM_QUERY_H

#include <jansson.h>

#include "cli/cli.h"

/** Whether a text is an address that can be asked: http://HOST:PORT. */
bool vllm_query_takes(const char *url);

/** Asks `url` ("http://HOST:PORT") for /query. NULL when there is no answer within `timeout_ns`, or it is none, which
 *  `text` (KVF_ERROR_TEXT_BYTES, to be read behind the url) then says. */
json_t *vllm_query(const char *url, int64_t timeout_ns, char *text);

/** The engine of an answer: of that id, or with `engine_id` NULL the only one. NULL when there is none such; `text`
 *  says why. Borrowed. @param id  its id, borrowed */
const json_t *vllm_query_engine(const json_t *answer, const char *engine_id, const char **id, char *text);

/** How many workers of an engine have registered. */
size_t vllm_query_workers(const json_t *engine);

#endif
