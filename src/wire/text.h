/* SPDX-License-Identifier: Apache-2.0 */
/** @file text.h  Which bytes may be text on the wire: UTF-8 without control characters. */
#ifndef KVFI_WIRE_TEXT_H
#define KVFI_WIRE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/** Bytes of the character at the start of `bytes` (1 to 4), or 0 when it is not UTF-8 or a control character. */
size_t kvfi_text_character(const char *bytes, size_t byte_count);

/** True when all of it may be text. */
bool kvfi_text_is_clean(const char *bytes, size_t byte_count);

/** True when all of it is UTF-8, control characters included. */
bool kvfi_text_is_utf8(const char *bytes, size_t byte_count);

/** Copies `text` into `out` (`capacity` bytes, at least 1, zero terminated). What may not be text becomes "?"; what
 *  does not fit is cut at a character. Returns the length. */
size_t kvfi_text_clean(const char *text, char *out, size_t capacity);

#endif
