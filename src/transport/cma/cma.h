/* SPDX-License-Identifier: Apache-2.0 */
/** @file cma.h  Plain ranges between two processes of one host: the source writes into the other's memory
 *  (process_vm_writev), whose part in it is to exist.
 *
 *  The endpoint is the text "kvferry-cma/1 pid=N". Nothing is exchanged with the other process, so nothing tells
 *  whether the number is true: who connects has to know that the peer is of this host, process namespace and trust.
 *  Another user's process is refused.
 *
 *  Source half: connect answers at once and is checked against the system; posts may follow without waiting for
 *  CONNECTED. PEER_DOWN says that the process is dead. Destination half: nothing can be armed (NOT_SUPPORTED), disarm
 *  says true, and no event of a destination ever comes; when a writer is done is for others to tell.
 */
#ifndef KVFI_TRANSPORT_CMA_CMA_H
#define KVFI_TRANSPORT_CMA_CMA_H

#include "transport/transport.h"

extern const struct kvfi_transport_ops kvfi_cma_ops;

#endif
