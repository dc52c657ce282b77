/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/copy.h"

#include <stdint.h>

#include "copy/copier.h"

enum kvf_status kvf_copy(const kvf_binding *binding, void *const *src_base, size_t src_count, void *const *dst_base,
                         size_t dst_count, struct kvf_error *error)
{
    struct kvfi_bases src = {.address = src_base, .count = src_count};
    struct kvfi_bases dst = {.address = dst_base, .count = dst_count};
    struct kvfi_copier copier;
    int64_t bytes;
    enum kvf_status status = kvfi_copier_init(&copier, NULL, binding, &src, &dst, error);

    if (status != KVF_OK) goto done;
    status = kvfi_copier_run(&copier, INT64_MAX, &bytes, error);
    kvfi_copier_fini(&copier);
done:
    return status;
}
