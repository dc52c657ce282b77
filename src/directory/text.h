/* SPDX-License-Identifier: Apache-2.0 */
/** @file text.h  A text that grows, for answers and requests. */
#ifndef KVFI_DIRECTORY_TEXT_H
#define KVFI_DIRECTORY_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/** Zeroed is empty. Once memory or `most_bytes` (0 = no bound) ran out, `failed` stays set and appends do nothing. */
struct kvfi_text {
    char *bytes; /* zero terminated once anything was appended */
    size_t count, capacity;
    size_t most_bytes;
    bool failed;
};

void kvfi_text_append_bytes(struct kvfi_text *text, const void *bytes, size_t byte_count);
void kvfi_text_append(struct kvfi_text *text, const char *piece);
void kvfi_text_appendf(struct kvfi_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Appends a JSON string: quotes around, escapes inside. What is not UTF-8 becomes "?". */
void kvfi_text_append_json(struct kvfi_text *text, const char *value);

void kvfi_text_fini(struct kvfi_text *text);

#endif
