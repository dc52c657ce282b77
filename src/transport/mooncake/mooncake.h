/* SPDX-License-Identifier: Apache-2.0 */
/** @file mooncake.h  Plain ranges to engines that speak Mooncake's TCP protocol. */
#ifndef KVFI_TRANSPORT_MOONCAKE_MOONCAKE_H
#define KVFI_TRANSPORT_MOONCAKE_MOONCAKE_H

#include "transport/transport.h"

/** "mooncake". The endpoint is the segment name, "HOST:PORT". The memories are registered as their regions get filled;
 *  peers may read and write them from then on, armed or not. A peer whose connections end is told to be down. */
extern const struct kvfi_transport_ops kvfi_mooncake_ops;

#endif
