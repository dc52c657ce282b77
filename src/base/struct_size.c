/* SPDX-License-Identifier: Apache-2.0 */
#include "base/struct_size.h"

#include <string.h>

#include "base/error.h"

static size_t lesser(size_t a, size_t b) { return a < b ? a : b; }

/* The struct may be of any type: its first field is copied out. */
static size_t size_of(const void *given)
{
    size_t bytes;

    memcpy(&bytes, given, sizeof bytes);
    return bytes;
}

void kvfi_struct_init(void *out, size_t size, const void *defaults, size_t default_bytes)
{
    memset(out, 0, size);
    if (size < sizeof size) return;
    if (defaults) memcpy(out, defaults, lesser(size, default_bytes));
    memcpy(out, &size, sizeof size);
}

enum kvf_status kvfi_struct_check(size_t struct_size, size_t least, const char *name, struct kvf_error *error)
{
    if (struct_size >= least) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s: struct_size is %zu, expected at least %zu", name,
                     struct_size, least);
}

enum kvf_status kvfi_options_copy(void *own, size_t own_bytes, const void *given, const char *name,
                                  struct kvf_error *error)
{
    size_t given_bytes = given ? size_of(given) : 0;
    enum kvf_status status = KVF_OK;

    if (!given) goto done;
    status = kvfi_struct_check(given_bytes, sizeof given_bytes, name, error);
    for (size_t i = own_bytes; i < given_bytes && !status; i++)
        if (((const unsigned char *)given)[i] != 0)
            status = kvfi_fail(error, KVF_ERR_NEWER_OPTION,
                               "%s: byte %zu of %zu is set, this library knows the first %zu", name, i, given_bytes,
                               own_bytes);
    if (status) goto done;
    memcpy(own, given, lesser(given_bytes, own_bytes));
    memcpy(own, &own_bytes, sizeof own_bytes);
done:
    return status;
}

enum kvf_status kvfi_struct_give(void *out, const void *own, size_t own_bytes, const char *name,
                                 struct kvf_error *error)
{
    const size_t skip = sizeof(size_t), bytes = size_of(out);
    enum kvf_status status = kvfi_struct_check(bytes, skip, name, error);

    if (!status) memcpy((char *)out + skip, (const char *)own + skip, lesser(bytes, own_bytes) - skip);
    return status;
}
