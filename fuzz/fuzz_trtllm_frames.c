/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages of several frames: each is one byte of length and that many bytes. What is accepted is packed and
 * read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "trtllm/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void pack(const struct kvfi_trtllm_message *message, struct kvfi_trtllm_packed *packed)
{
    switch (message->tag) {
    case KVFI_TRTLLM_REGISTER_RANK_INFO:
    case KVFI_TRTLLM_REQUEST_DATA:
        kvfi_trtllm_pack_payload(packed, message->tag, message->payload.bytes, message->payload.byte_count);
        break;
    case KVFI_TRTLLM_KV_AGENT_RESULT: kvfi_trtllm_pack_result(packed, &message->result); break;
    case KVFI_TRTLLM_AUX_AGENT_RESULT: kvfi_trtllm_pack_aux(packed, &message->aux); break;
    case KVFI_TRTLLM_CANCEL_SESSION: kvfi_trtllm_pack_cancel(packed, &message->cancel); break;
    case KVFI_TRTLLM_SESSION_QUIESCED: kvfi_trtllm_pack_quiesced(packed, &message->quiesced); break;
    default: kvfi_trtllm_pack_tag(packed, message->tag); break;
    }
}

/* Numbers may be written with zeros in front: only what was packed here comes back as the same bytes. */
static void check_again(const struct kvfi_trtllm_message *message)
{
    struct kvfi_trtllm_packed once, twice;
    struct kvfi_trtllm_message again;

    pack(message, &once);
    check(once.count <= KVFI_TRTLLM_MAX_FRAMES);
    check(kvfi_trtllm_read(once.frames, once.count, &again, NULL) == KVF_OK && again.tag == message->tag);
    pack(&again, &twice);
    check(once.count == twice.count);
    for (size_t i = 0; i < once.count; i++)
        check(once.frames[i].byte_count == twice.frames[i].byte_count &&
              memcmp(once.frames[i].bytes, twice.frames[i].bytes, once.frames[i].byte_count) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_trtllm_frame frames[KVFI_TRTLLM_MAX_FRAMES + 2];
    struct kvfi_trtllm_message message;
    struct kvf_error error = {.position = -1};
    unsigned char *copies[KVFI_TRTLLM_MAX_FRAMES + 2];
    size_t count = 0;

    /* Each frame in memory of its own, exactly as large: a read past its end is seen. */
    while (size > 0 && count < KVFI_TRTLLM_MAX_FRAMES + 2) {
        size_t bytes = data[0] < size ? data[0] : size - 1;
        copies[count] = malloc(bytes > 0 ? bytes : 1);
        memcpy(copies[count], data + 1, bytes);
        frames[count] = (struct kvfi_trtllm_frame){copies[count], bytes};
        count++;
        data += 1 + bytes;
        size -= 1 + bytes;
    }
    if (kvfi_trtllm_read(frames, count, &message, &error) != KVF_OK)
        check(error.text[0] != '\0' && strchr(error.text, '\n') == NULL);
    else if (message.tag != KVFI_TRTLLM_UNKNOWN)
        check_again(&message);
    while (count > 0) free(copies[--count]);
    return 0;
}
