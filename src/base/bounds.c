/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bounds.h"

#include <inttypes.h>

#include "base/error.h"

enum kvf_status kvfi_check_bounds(const char *what, const struct kvfi_bounds *rows, size_t count,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < count && !status; i++)
        if (rows[i].value < rows[i].low || rows[i].value > rows[i].high)
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                               "%s%s%s is %" PRId64 ", expected %" PRId64 " to %" PRId64, what ? what : "",
                               what ? " " : "", rows[i].name, rows[i].value, rows[i].low, rows[i].high);
    return status;
}
