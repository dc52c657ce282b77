/* SPDX-License-Identifier: Apache-2.0 */
/** @file names.h  Upstream's names, as its texts print them. */
#ifndef KVFI_TRTLLM_NAMES_H
#define KVFI_TRTLLM_NAMES_H

#include "kvferry/trtllm.h"

#include <stdbool.h>

/** "INDEXED", "REPLICATED", "NHD", "SECTIONED"; "UNKNOWN" for any other number. */
const char *kvfi_trt_kind_text(int64_t mapper);

/** Bytes that kvfi_trt_number_text needs. */
#define KVFI_TRT_NUMBER_BYTES 40

/** A count of eighths as Python prints it: "2", "0.5"; KVF_TRTLLM_NONE as "None". Returns `text`. */
const char *kvfi_trt_eighths_text(int64_t eighths, char text[KVFI_TRT_NUMBER_BYTES]);

/** A number that may be KVF_TRTLLM_NONE, as Python prints it. Returns `text`. */
const char *kvfi_trt_number_text(int64_t number, char text[KVFI_TRT_NUMBER_BYTES]);

/** Adds to a zero-terminated text, cut when it is full. @return false when nothing more fits */
bool kvfi_trt_text_add(char *text, size_t text_bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
