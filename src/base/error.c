/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

enum kvf_status kvfi_options_copy(void *own, size_t own_bytes, const void *given, const char *name,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t given_bytes = 0;

    if (!given) goto done;
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes < sizeof given_bytes) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: struct_size is %zu, expected at least %zu", name,
                           given_bytes, sizeof given_bytes);
        goto done;
    }
    for (size_t i = own_bytes; i < given_bytes; i++) {
        if (((const unsigned char *)given)[i] != 0) {
            status = kvfi_fail(error, KVF_ERR_NEWER_OPTION,
                               "%s: byte %zu of %zu is set, this library knows the first %zu", name, i, given_bytes,
                               own_bytes);
            goto done;
        }
    }
    memcpy(own, given, given_bytes < own_bytes ? given_bytes : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
done:
    return status;
}
