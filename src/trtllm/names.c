/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/names.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *kvfi_trt_kind_text(int64_t mapper)
{
    static const char *const names[] = {"INDEXED", "REPLICATED", "NHD", "SECTIONED"};

    return mapper >= KVF_TRTLLM_INDEXED && mapper <= KVF_TRTLLM_SECTIONED ? names[mapper] : "UNKNOWN";
}

const char *kvf_trtllm_mapper_text(int mapper)
{
    static const char *const names[] = {"error", "intact", "replicated", "hnd", "nhd", "ring", "state-match",
                                        "state-sections", "state-heads"};

    return mapper >= KVF_TRTLLM_MAP_ERROR && mapper <= KVF_TRTLLM_MAP_STATE_HEADS ? names[mapper] : "error";
}

const char *kvfi_trt_number_text(int64_t number, char text[KVFI_TRT_NUMBER_BYTES])
{
    if (number == KVF_TRTLLM_NONE) {
        snprintf(text, KVFI_TRT_NUMBER_BYTES, "None");
    } else {
        snprintf(text, KVFI_TRT_NUMBER_BYTES, "%" PRId64, number);
    }
    return text;
}

const char *kvfi_trt_eighths_text(int64_t eighths, char text[KVFI_TRT_NUMBER_BYTES])
{
    static const char *const fractions[] = {"", ".125", ".25", ".375", ".5", ".625", ".75", ".875"};

    kvfi_trt_number_text(eighths, text);
    if (eighths < 0) goto done;
    snprintf(text, KVFI_TRT_NUMBER_BYTES, "%" PRId64 "%s", eighths / 8, fractions[eighths % 8]);
done:
    return text;
}

bool kvfi_trt_text_add(char *text, size_t text_bytes, const char *format, ...)
{
    size_t length = strlen(text);
    va_list args;

    va_start(args, format);
    if (length + 1 < text_bytes) vsnprintf(text + length, text_bytes - length, format, args);
    va_end(args);
    return strlen(text) + 1 < text_bytes;
}
