/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos of TensorRT-LLM's ranks, as JSON. What is accepted is written and read again, as JSON and as bytes: it
 * must stay the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/trtllm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void check_text(const kvf_trtllm_rank *rank, const char *text)
{
    char *again = NULL;

    check(kvf_trtllm_rank_to_json(rank, &again, NULL) == KVF_OK);
    check(strcmp(again, text) == 0);
    kvf_trtllm_text_free(again);
}

static void check_again(const kvf_trtllm_rank *rank)
{
    kvf_trtllm_rank *read = NULL, *decoded = NULL;
    char *text = NULL;
    unsigned char *bytes;
    size_t count;
    int ours = kvf_trtllm_rank_get_spec(rank)->protocol_version == KVF_TRTLLM_PROTOCOL_VERSION;

    check(kvf_trtllm_rank_to_json(rank, &text, NULL) == KVF_OK);
    check(kvf_trtllm_rank_from_json(text, strlen(text), &read, NULL) == KVF_OK);
    check_text(read, text);
    check(kvf_trtllm_rank_encode(rank, NULL, 0, &count, NULL) == KVF_OK);
    bytes = malloc(count);
    check(bytes && kvf_trtllm_rank_encode(rank, bytes, count, &count, NULL) == KVF_OK);
    check(kvf_trtllm_rank_decode(bytes, count, &decoded, NULL) == (ours ? KVF_OK : KVF_ERR_VERSION));
    if (ours) check_text(decoded, text);
    free(bytes);
    kvf_trtllm_text_free(text);
    kvf_trtllm_rank_release(decoded);
    kvf_trtllm_rank_release(read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error = {0};

    if (kvf_trtllm_rank_from_json((const char *)data, size, &rank, &error) == KVF_OK) check_again(rank);
    else check(!rank && error.text[0] != '\0' && !strchr(error.text, '\n'));
    kvf_trtllm_rank_release(rank);
    return 0;
}
