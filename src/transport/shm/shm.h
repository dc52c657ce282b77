/* SPDX-License-Identifier: Apache-2.0 */
/** @file shm.h  The transport between processes of one host: the source copies straight into the destination's memory.
 *
 *  Two workers can use it when boot id and network namespace are equal, the socket named in the endpoint belongs to the
 *  published process and the same user, and the memory can be reached: by mapping its descriptor, or by writing across
 *  processes after a probe. What is missing is said by `probe` or by the CONNECTED event, and the engine takes tcp. */
#ifndef KVFI_TRANSPORT_SHM_SHM_H
#define KVFI_TRANSPORT_SHM_SHM_H

#include "transport/transport.h"

extern const struct kvfi_transport_ops kvfi_shm_ops;

#endif
