/* SPDX-License-Identifier: Apache-2.0 */
/** @file fault.h  A transport around another one that makes it fail on purpose, by policy. For tests.
 *
 *  The policy is a text, `INNER` or `INNER:FAULT,FAULT...`, where INNER is the name of the wrapped transport:
 *
 *      corrupt=N        one bit of each of the next N pieces is flipped on its way (shm, loop: chunks; tcp: frames;
 *                       cma: batches of 8 MiB at most; mooncake: what one call sends)
 *      cut_after=BYTES  the connection is cut, once, after so many bytes were sent
 *      fail_post=N      post number N (from 1) fails: POSTED says KVF_ERR_SYSTEM, nothing moves
 *      fail_connect=N   the next N connects fail: CONNECTED says KVF_ERR_UNREACHABLE
 *      drop_posted=N    the next N POSTED events are lost
 *      drop_received=N  the next N RECEIVED events are lost
 *      delay_ms=MS      every event comes so much later
 *      stall            posts are taken and nothing moves, until abort, disconnect or close
 *
 *  Without faults everything passes through. There is one table per wrapped transport, named "fault:INNER", with its
 *  bit and its capabilities.
 */
#ifndef KVFI_TRANSPORT_FAULT_FAULT_H
#define KVFI_TRANSPORT_FAULT_FAULT_H

#include "transport/transport.h"

enum { KVFI_FAULT_OPS = 5 };

extern const struct kvfi_transport_ops kvfi_fault_ops[KVFI_FAULT_OPS];

#endif
