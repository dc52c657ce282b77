/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages. What is accepted is packed and read again: it must give the same bytes twice. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void check_again(const struct kvfi_buffer *once)
{
    struct kvfi_message message = {.type = KVFI_MSG_NONE};
    struct kvfi_buffer twice = {0};

    check(kvfi_wire_unpack(once->bytes, once->count, &message, NULL) == KVF_OK);
    check(kvfi_wire_pack(&message, &twice, NULL) == KVF_OK);
    check(twice.count == once->count && memcmp(twice.bytes, once->bytes, once->count) == 0);
    kvfi_message_fini(&message);
    kvfi_buffer_fini(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_message message = {.type = KVFI_MSG_NONE};
    struct kvfi_buffer once = {0};
    struct kvf_error error;

    if (kvfi_wire_unpack(data, size, &message, &error) == KVF_OK) {
        check(kvfi_wire_recognise(data, size));
        /* A run of two places is sent as two places: a message near the bound may outgrow it. */
        if (kvfi_wire_pack(&message, &once, &error) == KVF_OK) check_again(&once);
        else check(error.status == KVF_ERR_LIMIT);
    } else {
        check(message.type == KVFI_MSG_NONE && error.text[0] != '\0' && !strchr(error.text, '\n'));
    }
    kvfi_message_fini(&message);
    kvfi_buffer_fini(&once);
    return 0;
}
