/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdbool.h>

#include "base/error.h"
#include "kvferry/vllm.h"

static bool takes(const struct kvf_vllm_backend *backend, int64_t tokens)
{
    bool taken = backend->multiple_of > 0 && tokens % backend->multiple_of == 0;

    for (size_t i = 0; !taken && i < backend->size_count; i++) taken = backend->sizes[i] == tokens;
    return taken;
}

static bool all_take(const struct kvf_vllm_backend *backends, size_t backend_count, int64_t tokens)
{
    size_t i = 0;

    while (i < backend_count && takes(&backends[i], tokens)) i++;
    return i == backend_count;
}

static enum kvf_status check(int64_t logical_tokens, const struct kvf_vllm_backend *backends, size_t backend_count,
                             const int64_t *out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!out || (backend_count > 0 && !backends) || logical_tokens < 1) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "kernel blocks: blocks of %" PRId64 " tokens, expected 1 or more, backends and a result",
                           logical_tokens);
    }
    for (size_t i = 0; status == KVF_OK && i < backend_count; i++) {
        if (backends[i].multiple_of < 0 || (backends[i].size_count > 0 && !backends[i].sizes)) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                               "backend %zu: multiples of %" PRId64 " tokens or a list that is NULL", i,
                               backends[i].multiple_of);
        }
    }
    return status;
}

enum kvf_status kvf_vllm_kernel_block_tokens(int64_t logical_tokens, const struct kvf_vllm_backend *backends,
                                             size_t backend_count, int64_t *kernel_tokens, struct kvf_error *error)
{
    int64_t best = 0;
    enum kvf_status status = check(logical_tokens, backends, backend_count, kernel_tokens, error);

    if (status != KVF_OK) goto done;
    if (all_take(backends, backend_count, logical_tokens)) best = logical_tokens;
    /* A divisor that is but a multiple for every backend makes the whole one too: only listed sizes are left. */
    for (size_t i = 0; best != logical_tokens && i < backend_count; i++) {
        for (size_t k = 0; k < backends[i].size_count; k++) {
            int64_t tokens = backends[i].sizes[k];

            if (tokens > best && logical_tokens % tokens == 0 && all_take(backends, backend_count, tokens)) {
                best = tokens;
            }
        }
    }
    if (best == 0) {
        status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE,
                           "kernel blocks: no divisor of a block's %" PRId64 " tokens is taken by all %zu backends",
                           logical_tokens, backend_count);
    } else {
        *kernel_tokens = best;
    }
done:
    return status;
}
