/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static void fill(struct kvf_error *error, enum kvf_status status, int64_t position, const char *format, va_list args)
{
    if (error) {
        error->status = (int32_t)status;
        error->reserved = 0;
        error->position = position;
        vsnprintf(error->text, sizeof error->text, format, args);
    }
}

enum kvf_status kvfi_fail(struct kvf_error *error, enum kvf_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fill(error, status, -1, format, args);
    va_end(args);
    return status;
}

enum kvf_status kvfi_fail_at(struct kvf_error *error, enum kvf_status status, int64_t position, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fill(error, status, position, format, args);
    va_end(args);
    return status;
}

enum kvf_status kvfi_fail_memory(struct kvf_error *error, const char *object)
{
    return kvfi_fail(error, KVF_ERR_NO_MEMORY, "out of memory for %s", object);
}
