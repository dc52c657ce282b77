/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/loop/loop.h"

#include "transport/direct/direct.h"

static enum kvf_status loop_open(const struct kvfi_transport_config *config, struct kvfi_transport **out,
                                 struct kvf_error *error)
{
    static const struct kvfi_direct_scheme scheme = {.name = "loop", .same_process = true};

    return kvfi_direct_open(&scheme, config, out, error);
}

const struct kvfi_transport_ops kvfi_loop_ops = {
    .struct_size = sizeof(struct kvfi_transport_ops),
    .version = 1,
    .name = "loop",
    .bit = 1,
    .caps = KVFI_CAP_BOXES | KVFI_CAP_REMOTE_WRITES,
    .open = loop_open,
    .close = kvfi_direct_close,
    .endpoint = kvfi_direct_endpoint,
    .event_fd = kvfi_direct_event_fd,
    .events = kvfi_direct_events,
    .arm = kvfi_direct_arm,
    .disarm = kvfi_direct_disarm,
    .probe = kvfi_direct_probe,
    .connect = kvfi_direct_connect,
    .disconnect = kvfi_direct_disconnect,
    .post_chunk = kvfi_direct_post_chunk,
    .abort = kvfi_direct_abort,
    .post_ranges = kvfi_no_ranges,
};
