/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of vLLM's side channel. What is accepted takes bounded memory, and gives the same bytes twice when it is
 * written, read and written again. */
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

static void check_same(const struct kvfi_vllm_reply *a, const struct kvfi_vllm_reply *b)
{
    check(a->verdict == b->verdict && a->ok_count == b->ok_count && a->err_count == b->err_count);
    check(a->layout_id == b->layout_id && !a->err_msg == !b->err_msg);
    for (size_t i = 0; i < a->ok_count; i++) check(strcmp(a->ok_reqs[i], b->ok_reqs[i]) == 0);
    for (size_t i = 0; i < a->err_count; i++) check(strcmp(a->err_reqs[i], b->err_reqs[i]) == 0);
}

static void check_again(const struct kvfi_vllm_reply *reply)
{
    unsigned char *once = NULL, *twice = NULL;
    size_t once_bytes, twice_bytes;
    struct kvfi_vllm_reply again;

    check(kvfi_vllm_reply_encode(reply, &once, &once_bytes, NULL) == KVF_OK);
    check(kvfi_vllm_reply_decode(once, once_bytes, true, &again, NULL) == KVF_OK);
    check_same(reply, &again);
    check(kvfi_vllm_reply_encode(&again, &twice, &twice_bytes, NULL) == KVF_OK);
    check(once_bytes == twice_bytes && memcmp(once, twice, once_bytes) == 0);
    kvfi_vllm_reply_fini(&again);
    free(once);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvf_error error = {.position = -1};
    struct kvfi_vllm_reply reply, old = {0};
    enum kvf_status with_ids = kvfi_vllm_reply_decode(data, size, true, &reply, &error);
    enum kvf_status without = kvfi_vllm_reply_decode(data, size, false, &old, NULL);

    if (with_ids == KVF_OK) {
        /* Of a key that comes twice each value is looked at, and the last one counts. */
        check(without == KVF_ERR_PROTOCOL || (without == KVF_OK && reply.verdict != KVFI_VLLM_LAYOUT_MISS));
        check(malloc_usable_size(reply.memory) <= KVFI_VLLM_MEMORY_PER_BYTE * size + 512);
        check_again(&reply);
        kvfi_vllm_reply_fini(&reply);
    } else {
        check(without != KVF_OK);
        check(error.text[0] != '\0' && strchr(error.text, '\n') == NULL);
        check(error.position >= -1 && error.position <= (int64_t)size);
    }
    kvfi_vllm_reply_fini(&old);
    return 0;
}
