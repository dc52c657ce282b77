/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as the host gives them: what of their parameters can be used, and how they read in a log line. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "vllm/scheduler.h"
#include "wire/text.h"

void kvf_vllm_request_init(struct kvf_vllm_request *request, size_t size)
{
    const struct kvf_vllm_request defaults = {0};
    kvfi_struct_init(request, size, &defaults, sizeof defaults);
}

static bool is_text(const char *text, size_t capacity)
{
    size_t bytes = text ? strnlen(text, capacity) : 0;

    return bytes > 0 && bytes < capacity && kvfi_text_is_utf8(text, bytes);
}

bool kvfi_vllm_is_id(const char *text)
{
    return is_text(text, KVF_VLLM_ID_BYTES);
}

bool kvfi_vllm_is_address(const char *text)
{
    return is_text(text, KVF_VLLM_ADDRESS_BYTES);
}

enum kvf_status kvfi_vllm_request_read(const struct kvf_vllm_request *given, struct kvf_vllm_request *out,
                                       struct kvf_error *error)
{
    struct kvf_vllm_request own;
    enum kvf_status status;

    if (given == NULL) return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "a request is missing");
    status = kvfi_struct_check(given->struct_size, sizeof own, "request", error);
    if (status != KVF_OK) return status;
    kvf_vllm_request_init(&own, sizeof own);
    status = kvfi_options_copy(&own, sizeof own, given, "request", error);
    if (status != KVF_OK) return status;
    if (!kvfi_vllm_is_id(own.req_id))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request: req_id is missing, not UTF-8, or not of 1 to %d "
                         "bytes", KVF_VLLM_ID_BYTES - 1);
    if (own.prompt_tokens < 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request: prompt_tokens is %" PRId64 ", expected at least 0",
                         own.prompt_tokens);
    *out = own;
    return KVF_OK;
}

/* ---- log lines ---------------------------------------------------------------------------------------------- */

struct line {
    char *out;
    size_t used, capacity;
};

static void add(struct line *line, const char *before, const char *text, const char *after)
{
    char clean[KVF_VLLM_ADDRESS_BYTES];
    int count;

    if (line->used >= line->capacity) return;
    kvfi_text_clean(text, clean, sizeof clean);
    count = snprintf(line->out + line->used, line->capacity - line->used, "%s%s%s", before, clean, after);
    if (count > 0) line->used += (size_t)count;
}

static void add_text(struct line *line, const char *key, const char *text)
{
    if (text == NULL) return;
    add(line, ", '", key, "': ");
    add(line, "'", text, "'");
}

const char *kvfi_vllm_params_text(const struct kvf_vllm_request *request, char *out, size_t capacity)
{
    struct line line = {.out = out, .capacity = capacity};

    add(&line, "{'do_remote_decode': ", request->do_remote_decode ? "True" : "False", "");
    add(&line, ", 'do_remote_prefill': ", request->do_remote_prefill ? "True" : "False", "");
    add_text(&line, "transfer_id", request->transfer_id);
    add_text(&line, "remote_engine_id", request->remote_engine_id);
    add_text(&line, "remote_bootstrap_addr", request->remote_bootstrap_addr);
    add(&line, "", "", "}");
    return out;
}
