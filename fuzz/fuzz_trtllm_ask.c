/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads of REQUEST_DATA. What is accepted is packed and read again: it must give the same bytes twice. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "trtllm/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void check_again(const struct kvfi_trtllm_ask *ask)
{
    unsigned char *once = NULL, *twice = NULL;
    size_t once_bytes, twice_bytes;
    struct kvfi_trtllm_ask again;

    /* The least number stands for none: such a request may be read, and is not sent on. */
    if (ask->sender_req_id == KVF_TRTLLM_NONE) return;
    if (kvfi_trtllm_ask_encode(ask, &once, &once_bytes, NULL) != KVF_OK) return; /* near the longest */
    check(kvfi_trtllm_ask_decode(once, once_bytes, &again, NULL) == KVF_OK);
    check(again.rid == ask->rid && again.slice == ask->slice && strcmp(again.instance_name, ask->instance_name) == 0);
    check(kvfi_trtllm_ask_encode(&again, &twice, &twice_bytes, NULL) == KVF_OK);
    check(once_bytes == twice_bytes && memcmp(once, twice, once_bytes) == 0);
    kvfi_trtllm_ask_fini(&again);
    free(once);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_trtllm_ask ask;
    struct kvf_error error = {.position = -1};
    int64_t rid = 0, slice = 0, rank = 0;
    char name[KVF_TRTLLM_MAX_TEXT_BYTES + 1];
    char endpoint[512];
    bool peeked;

    (void)kvfi_trtllm_peek_rank(data, size, name, sizeof name, &rank, endpoint, sizeof endpoint);
    peeked = kvfi_trtllm_ask_peek(data, size, &rid, &slice, name, sizeof name, &rank);
    if (kvfi_trtllm_ask_decode(data, size, &ask, &error) == KVF_OK) {
        check(peeked && rid == ask.rid && slice == ask.slice && rank == ask.instance_rank);
        check(strcmp(name, ask.instance_name) == 0);
        check_again(&ask);
        kvfi_trtllm_ask_fini(&ask);
    } else {
        check(error.text[0] != '\0' && strchr(error.text, '\n') == NULL);
        check(error.position >= -1 && error.position <= (int64_t)size);
    }
    return 0;
}
