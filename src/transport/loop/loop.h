/* SPDX-License-Identifier: Apache-2.0 */
/** @file loop.h  The transport between engines of one process: the reference, and the one for tests.
 *
 *  An address of this process means nothing to another, so it is told over an abstract Unix socket after the kernel
 *  said that both ends are this process. A destination that closes waits until nobody copies into it any more. */
#ifndef KVFI_TRANSPORT_LOOP_LOOP_H
#define KVFI_TRANSPORT_LOOP_LOOP_H

#include "transport/transport.h"

extern const struct kvfi_transport_ops kvfi_loop_ops;

#endif
