/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of Mooncake handshakes: descriptors and notifies. What is read and written must read the same again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/mooncake/descriptor.h"
#include "transport/mooncake/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void check_descriptor(const struct kvfi_moon_descriptor *read)
{
    struct kvfi_moon_descriptor again;
    char *text;
    size_t bytes;

    check(kvfi_moon_is_utf8(read->name));
    if (kvfi_moon_descriptor_print(read, &text, &bytes, NULL) != KVF_OK) return;
    check(kvfi_moon_descriptor_parse(text, bytes, &again, NULL) == KVF_OK);
    check(strcmp(again.name, read->name) == 0 && strcmp(again.data_host, read->data_host) == 0);
    check(again.data_port == read->data_port && again.version == read->version);
    check(again.buffer_count == read->buffer_count);
    for (size_t i = 0; i < read->buffer_count; i++)
        check(again.buffers[i].address == read->buffers[i].address && again.buffers[i].bytes == read->buffers[i].bytes);
    kvfi_moon_descriptor_fini(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_moon_descriptor read;
    struct kvf_error error = {.text = ""};
    char *name, *message, *text, *name_again, *message_again;
    size_t bytes;

    if (kvfi_moon_descriptor_parse((const char *)data, size, &read, &error) == KVF_OK) {
        check(kvfi_moon_is_json((const char *)data, size));
        check_descriptor(&read);
    } else {
        check(error.text[0] != '\0' && error.position >= 0 && (size_t)error.position <= size);
    }
    kvfi_moon_descriptor_fini(&read);
    if (kvfi_moon_notify_parse((const char *)data, size, &name, &message, NULL) != KVF_OK) return 0;
    check(kvfi_moon_notify_print(name, message, &text, &bytes, NULL) == KVF_OK);
    check(kvfi_moon_notify_parse(text, bytes, &name_again, &message_again, NULL) == KVF_OK);
    check(strcmp(name, name_again) == 0 && strcmp(message, message_again) == 0);
    free(name);
    free(message);
    free(name_again);
    free(message_again);
    free(text);
    return 0;
}
