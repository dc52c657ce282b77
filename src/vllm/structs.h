/* SPDX-License-Identifier: Apache-2.0 */
/** @file structs.h  Size-versioned structs of vLLM's headers: filled with defaults, whatever size the caller knows. */
#ifndef KVFI_VLLM_STRUCTS_H
#define KVFI_VLLM_STRUCTS_H

#include <stddef.h>

/** Fills `out`, of `size` bytes as the caller compiled it, from `defaults`; its first field becomes `size`. */
void kvfi_vllm_struct_init(void *out, size_t size, const void *defaults, size_t default_bytes);

#endif
