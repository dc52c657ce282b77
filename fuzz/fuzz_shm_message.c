/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between direct transports, and the texts of endpoints. What is accepted is packed again: it must give the
 * same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/direct/message.h"
#include "transport/tcp/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void check_endpoint(const uint8_t *data, size_t size)
{
    char text[KVFI_ENDPOINT_BYTES], again[KVFI_ENDPOINT_BYTES], host[256];
    struct kvfi_direct_endpoint endpoint;
    struct kvf_error error;
    uint16_t port;

    if (size >= sizeof text) return;
    memcpy(text, data, size);
    text[size] = '\0';
    if (kvfi_direct_endpoint_parse(text, "shm", &endpoint, &error) == KVF_OK) {
        kvfi_direct_endpoint_format(&endpoint, "shm", again);
        check(kvfi_direct_endpoint_parse(again, "shm", &endpoint, &error) == KVF_OK);
    }
    if (kvfi_tcp_endpoint_parse(text, host, &port, &error) == KVF_OK) check(port > 0 && host[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_direct_message message;
    uint8_t again[KVFI_DIRECT_PACKET_BYTES];
    struct kvf_error error;

    if (kvfi_direct_parse(data, size, &message, &error) == KVF_OK)
        check(kvfi_direct_pack(&message, again) == size && memcmp(again, data, size) == 0);
    else
        check(error.text[0] != '\0' && !strchr(error.text, '\n'));
    check_endpoint(data, size);
    return 0;
}
