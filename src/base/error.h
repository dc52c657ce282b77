/* SPDX-License-Identifier: Apache-2.0 */
/** @file error.h  Fills the caller's kvf_error. */
#ifndef KVFI_BASE_ERROR_H
#define KVFI_BASE_ERROR_H

#include "kvferry/status.h"

/** Writes status and sentence into `error` (NULL is fine) and returns `status`. A text too long is cut at its end. */
enum kvf_status kvfi_fail(struct kvf_error *error, enum kvf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** The same with a byte position in the parsed input. */
enum kvf_status kvfi_fail_at(struct kvf_error *error, enum kvf_status status, int64_t position, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** "out of memory" with what was being made. */
enum kvf_status kvfi_fail_memory(struct kvf_error *error, const char *object);

/** Copies the caller's size-versioned option struct into `own` (`own_bytes`, already filled with defaults). A shorter
 *  one leaves the rest default; a longer one must have only zero bytes past `own_bytes`, else KVF_ERR_NEWER_OPTION.
 *  `given` NULL keeps the defaults. `given` starts with its size_t struct_size. */
enum kvf_status kvfi_options_copy(void *own, size_t own_bytes, const void *given, const char *name,
                                  struct kvf_error *error);

#endif
