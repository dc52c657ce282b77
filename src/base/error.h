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

#endif
