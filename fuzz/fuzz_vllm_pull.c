/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls of vLLM's side channel. What is accepted takes bounded memory, and what of it may be sent is sent and read
 * again: it must give the same bytes twice. */
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vllm/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void check_same(const struct kvfi_vllm_pull *a, const struct kvfi_vllm_pull *b, int with_arrays)
{
    check(a->request_count == b->request_count && strcmp(a->peer.hostname, b->peer.hostname) == 0);
    check(a->peer.port == b->peer.port && a->peer.tp_rank == b->peer.tp_rank && a->peer.tp_size == b->peer.tp_size);
    check(a->peer.pp_size == b->peer.pp_size && a->peer.layout_id == b->peer.layout_id);
    check((with_arrays ? a->peer.regions.base_addr_count : 0) == b->peer.regions.base_addr_count);
    for (size_t i = 0; i < a->request_count; i++) {
        const struct kvfi_vllm_wanted *x = &a->requests[i], *y = &b->requests[i];

        check(strcmp(x->d_req_id, y->d_req_id) == 0 && strcmp(x->transfer_id, y->transfer_id) == 0);
        check(x->group_count == y->group_count);
        for (size_t g = 0; g < x->group_count; g++) {
            check(x->groups[g].count == y->groups[g].count);
            check(x->groups[g].count == 0 ||
                  memcmp(x->groups[g].ids, y->groups[g].ids, x->groups[g].count * sizeof(int64_t)) == 0);
        }
    }
}

static void encode(const struct kvfi_vllm_pull *pull, int with_arrays, unsigned char **out, size_t *count)
{
    struct kvfi_vllm_asker asker = {0};

    *out = NULL;
    if (kvfi_vllm_asker_init(&asker, &pull->peer, NULL) == KVF_OK)
        check(kvfi_vllm_pull_encode(&asker, pull->requests, pull->request_count, with_arrays, out, count, NULL) ==
              (with_arrays || pull->peer.layout_id ? KVF_OK : KVF_ERR_INVALID_ARGUMENT));
    kvfi_vllm_asker_fini(&asker);
}

static void check_again(const struct kvfi_vllm_pull *pull, int with_arrays)
{
    unsigned char *once, *twice;
    size_t once_bytes, twice_bytes;
    struct kvfi_vllm_pull again;

    encode(pull, with_arrays, &once, &once_bytes);
    if (once == NULL) return; /* arrays of different lengths are read, and not sent */
    check(kvfi_vllm_pull_decode(once, once_bytes, &again, NULL) == KVF_OK);
    check_same(pull, &again, with_arrays);
    encode(&again, with_arrays, &twice, &twice_bytes);
    check(twice != NULL && once_bytes == twice_bytes && memcmp(once, twice, once_bytes) == 0);
    kvfi_vllm_pull_fini(&again);
    free(once);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvf_error error = {.position = -1};
    struct kvfi_vllm_pull pull;

    if (kvfi_vllm_pull_decode(data, size, &pull, &error) == KVF_OK) {
        check(malloc_usable_size(pull.memory) <= KVFI_VLLM_MEMORY_PER_BYTE * size + 512);
        check_again(&pull, 1);
        check_again(&pull, 0);
        kvfi_vllm_pull_fini(&pull);
    } else {
        check(error.text[0] != '\0' && strchr(error.text, '\n') == NULL);
        check(error.position >= -1 && error.position <= (int64_t)size);
    }
    return 0;
}
