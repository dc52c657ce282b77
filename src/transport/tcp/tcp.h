/* SPDX-License-Identifier: Apache-2.0 */
/** @file tcp.h  The transport between any two hosts: several streams, chunks cut into frames, acknowledged when
 *  placed.
 *
 *  The source packs short runs in plan order and sends long ones from where they lie; the destination scatters by its
 *  own binding of the armed plan. After a cut the source connects again, a few times, and sends what is not
 *  acknowledged once more.
 */
#ifndef KVFI_TRANSPORT_TCP_TCP_H
#define KVFI_TRANSPORT_TCP_TCP_H

#include "transport/transport.h"

extern const struct kvfi_transport_ops kvfi_tcp_ops;

#endif
