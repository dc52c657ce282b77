/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos in JSON, one a line on standard input. For each, one line: its bytes in hex, how decoding them ends, and
 * what was decoded in JSON; or why it was refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/trtllm.h"

static void print_bytes(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) printf("%02x", bytes[i]);
}

/* Every step that may not fail says so by its line. */
static void convert(const char *line, size_t count)
{
    kvf_trtllm_rank *rank = NULL, *decoded = NULL;
    struct kvf_error error = {0};
    unsigned char *bytes = NULL;
    size_t byte_count = 0;
    char *text = NULL;
    enum kvf_status status = kvf_trtllm_rank_from_json(line, count, &rank, &error);

    if (status == KVF_OK) status = kvf_trtllm_rank_encode(rank, NULL, 0, &byte_count, &error);
    if (status != KVF_OK) goto done;
    bytes = malloc(byte_count);
    if (!bytes) abort();
    status = kvf_trtllm_rank_encode(rank, bytes, byte_count, &byte_count, &error);
    if (status != KVF_OK) goto done;
    print_bytes(bytes, byte_count);
    status = kvf_trtllm_rank_decode(bytes, byte_count, &decoded, &error);
    if (status == KVF_OK) status = kvf_trtllm_rank_to_json(decoded, &text, &error);
    if (status == KVF_OK) printf("\tKVF_OK\t%s", text);
done:
    if (status != KVF_OK) printf("\t%s\t%s", kvf_status_name(status), error.text);
    printf("\n");
    kvf_trtllm_text_free(text);
    free(bytes);
    kvf_trtllm_rank_release(decoded);
    kvf_trtllm_rank_release(rank);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t count;

    while ((count = getline(&line, &capacity, stdin)) > 0) convert(line, (size_t)count);
    free(line);
    return 0;
}
