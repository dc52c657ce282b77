/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos of TensorRT-LLM's ranks, as bytes. What is accepted is written and read again, as bytes and as JSON: it
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

static unsigned char *encode(const kvf_trtllm_rank *rank, size_t *count)
{
    unsigned char *bytes;

    check(kvf_trtllm_rank_encode(rank, NULL, 0, count, NULL) == KVF_OK);
    bytes = malloc(*count);
    check(bytes && kvf_trtllm_rank_encode(rank, bytes, *count, count, NULL) == KVF_OK);
    return bytes;
}

static void check_same(const kvf_trtllm_rank *left, const kvf_trtllm_rank *right)
{
    size_t left_count, right_count;
    unsigned char *left_bytes = encode(left, &left_count), *right_bytes = encode(right, &right_count);

    check(left_count == right_count && memcmp(left_bytes, right_bytes, left_count) == 0);
    free(left_bytes);
    free(right_bytes);
}

static void check_again(const kvf_trtllm_rank *rank)
{
    kvf_trtllm_rank *twice = NULL, *copy = NULL, *read = NULL;
    size_t count;
    unsigned char *bytes = encode(rank, &count);
    char *text = NULL;

    check(kvf_trtllm_rank_decode(bytes, count, &twice, NULL) == KVF_OK);
    check_same(rank, twice);
    check(kvf_trtllm_rank_create(kvf_trtllm_rank_get_spec(rank), &copy, NULL) == KVF_OK);
    check(kvf_trtllm_rank_to_json(rank, &text, NULL) == KVF_OK);
    check(kvf_trtllm_rank_from_json(text, strlen(text), &read, NULL) == KVF_OK);
    check_same(copy, read);
    kvf_trtllm_text_free(text);
    free(bytes);
    kvf_trtllm_rank_release(read);
    kvf_trtllm_rank_release(copy);
    kvf_trtllm_rank_release(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error = {0};

    if (kvf_trtllm_rank_decode(data, size, &rank, &error) == KVF_OK) check_again(rank);
    else check(!rank && error.text[0] != '\0' && !strchr(error.text, '\n'));
    kvf_trtllm_rank_release(rank);
    return 0;
}
