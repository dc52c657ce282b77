/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the tcp data connections. What is accepted is packed again: it must give the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tcp/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) abort();
}

static void check_body(const struct kvfi_frame_head *head, const uint8_t *data)
{
    const uint8_t *body = data + KVFI_FRAME_HEAD_BYTES;
    uint8_t again[KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL];
    size_t bytes = (size_t)head->body_bytes, packed = 0;
    struct kvfi_frame_hello hello;
    struct kvfi_frame_welcome welcome;
    struct kvfi_frame_data chunk;
    struct kvfi_frame_ack ack;
    struct kvf_error error;

    if (head->kind == KVFI_FRAME_HELLO && kvfi_frame_parse_hello(body, bytes, &hello, &error) == KVF_OK) {
        packed = kvfi_frame_pack_hello(&hello, again);
    } else if (head->kind == KVFI_FRAME_WELCOME && kvfi_frame_parse_welcome(body, bytes, &welcome, &error) == KVF_OK) {
        packed = kvfi_frame_pack_welcome(&welcome, again);
    } else if (head->kind == KVFI_FRAME_ACK && kvfi_frame_parse_ack(body, bytes, &ack, &error) == KVF_OK) {
        packed = kvfi_frame_pack_ack(&ack, again);
    } else if (head->kind == KVFI_FRAME_DATA && kvfi_frame_parse_data(head, body, &chunk, &error) == KVF_OK) {
        check(chunk.offset_bytes >= 0 && chunk.bytes >= 0 && chunk.bytes <= chunk.chunk.bytes - chunk.offset_bytes);
        packed = kvfi_frame_pack_data(&chunk, head->flags != 0, again);
    } else {
        check(error.text[0] != '\0' && !strchr(error.text, '\n'));
    }
    check(packed == 0 || memcmp(again, data, packed) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_frame_head head;
    struct kvf_error error;
    size_t needed;

    if (size < KVFI_FRAME_HEAD_BYTES) return 0;
    if (kvfi_frame_parse_head(data, &head, &error) != KVF_OK) {
        check(error.status == KVF_ERR_PROTOCOL && error.text[0] != '\0');
        return 0;
    }
    needed = head.kind == KVFI_FRAME_DATA ? KVFI_FRAME_DATA_BYTES : (size_t)head.body_bytes;
    if (size - KVFI_FRAME_HEAD_BYTES >= needed) check_body(&head, data);
    return 0;
}
