/* SPDX-License-Identifier: Apache-2.0 */
/** @file descriptor.h  What an engine publishes of itself: from and to JSON. */
#ifndef KVFI_TRANSPORT_MOONCAKE_DESCRIPTOR_H
#define KVFI_TRANSPORT_MOONCAKE_DESCRIPTOR_H

#include <stdbool.h>

#include "kvferry/mooncake.h"

enum { KVFI_MOON_TIME_BYTES = 64 };

struct kvfi_moon_descriptor {
    char name[KVF_MOONCAKE_NAME_BYTES];
    char protocol[KVF_MOONCAKE_PROTOCOL_BYTES]; /* several with "," between */
    char data_host[KVF_MOONCAKE_NAME_BYTES];
    char timestamp[KVFI_MOON_TIME_BYTES];
    bool is_tcp;          /* "tcp", or a list with it */
    int32_t data_port;    /* 0: not published */
    int32_t version;      /* 1 without */
    struct kvf_mooncake_buffer *buffers;
    size_t buffer_count, buffer_capacity;
};

/** Reads a descriptor that a peer sent. Unknown keys are passed over, a key that comes twice counts as it came last,
 *  text behind the object does not matter. What is known must have its right type and range.
 *  @param out  free with kvfi_moon_descriptor_fini, also after a failure
 *  @return KVF_OK; KVF_ERR_PARSE with the position; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_moon_descriptor_parse(const char *text, size_t bytes, struct kvfi_moon_descriptor *out,
                                           struct kvf_error *error);
void kvfi_moon_descriptor_fini(struct kvfi_moon_descriptor *descriptor);

/** Writes it byte for byte as the reference does, newline included: keys in their order, no white space.
 *  @param out  returned to the caller (free)
 *  @return KVF_OK; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_moon_descriptor_print(const struct kvfi_moon_descriptor *descriptor, char **out, size_t *bytes,
                                           struct kvf_error *error);

/** Reads a notify: its two texts, each returned to the caller (free). KVF_ERR_PARSE leaves nothing. */
enum kvf_status kvfi_moon_notify_parse(const char *text, size_t bytes, char **name, char **message,
                                       struct kvf_error *error);
/** Writes one, newline included. */
enum kvf_status kvfi_moon_notify_print(const char *name, const char *message, char **out, size_t *bytes,
                                       struct kvf_error *error);

/** True when the text begins with one value that reads well. */
bool kvfi_moon_is_json(const char *text, size_t bytes);

#endif
