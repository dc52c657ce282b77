/* SPDX-License-Identifier: Apache-2.0 */
/** @file struct_size.h  Structs of the caller's size: they begin with `size_t struct_size`, which says what size the
 *  struct had when the caller was compiled. It may be shorter or longer than what this library knows.
 */
#ifndef KVFI_BASE_STRUCT_SIZE_H
#define KVFI_BASE_STRUCT_SIZE_H

#include <stddef.h>

#include "kvferry/status.h"

/** Fills the caller's struct of `size` bytes: defaults as far as both reach, then zeros, and its struct_size. One too
 *  short for a struct_size is zeros.
 *  @param defaults  `default_bytes` bytes, whatever struct_size they have; NULL with 0 = zeros */
void kvfi_struct_init(void *out, size_t size, const void *defaults, size_t default_bytes);

/** Copies the caller's size-versioned option struct into `own` (`own_bytes`, already filled with defaults). A shorter
 *  one leaves the rest default; a longer one must have only zero bytes past `own_bytes`, else KVF_ERR_NEWER_OPTION.
 *  `given` NULL keeps the defaults. On failure `own` is as it was. */
enum kvf_status kvfi_options_copy(void *own, size_t own_bytes, const void *given, const char *name,
                                  struct kvf_error *error);

/** @return KVF_OK; KVF_ERR_INVALID_ARGUMENT for a struct_size below `least` */
enum kvf_status kvfi_struct_check(size_t struct_size, size_t least, const char *name, struct kvf_error *error);

/** Writes a struct of ours as far as the caller's reaches; struct_size, and what lies behind our end, stay as they are.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT, with nothing written, for one too short for its struct_size */
enum kvf_status kvfi_struct_give(void *out, const void *own, size_t own_bytes, const char *name,
                                 struct kvf_error *error);

#endif
