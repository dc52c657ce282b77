/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/error.h"
#include "transport/cma/cma.h"
#include "transport/fault/fault.h"
#include "transport/loop/loop.h"
#include "transport/mooncake/mooncake.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

const struct kvfi_transport_ops *kvfi_transport_find(const char *name)
{
    static const struct kvfi_transport_ops *const all[] = {
        &kvfi_loop_ops, &kvfi_shm_ops, &kvfi_tcp_ops, &kvfi_cma_ops, &kvfi_mooncake_ops};
    const struct kvfi_transport_ops *found = NULL;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->name, name) == 0) found = all[i];
    }
    for (size_t i = 0; i < KVFI_FAULT_OPS; i++) {
        if (strcmp(kvfi_fault_ops[i].name, name) == 0) found = &kvfi_fault_ops[i];
    }
    return found;
}

enum kvf_status kvfi_no_ranges(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_range_source *source,
                               uint64_t cookie, struct kvf_error *error)
{
    (void)transport, (void)peer, (void)source, (void)cookie;
    return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "this transport moves chunks of a plan, not plain ranges");
}

enum kvf_status kvfi_no_chunks(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                               struct kvf_error *error)
{
    (void)transport, (void)peer, (void)chunk;
    return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "this transport moves plain ranges, not chunks of a plan");
}

enum kvf_status kvfi_no_arm(struct kvfi_transport *transport, const struct kvfi_arm *arm, struct kvf_error *error)
{
    (void)transport, (void)arm;
    return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED,
                     "this transport's peers write what they were told to, nothing is armed");
}

bool kvfi_nothing_armed(struct kvfi_transport *transport, uint64_t grant)
{
    (void)transport, (void)grant;
    return true;
}
