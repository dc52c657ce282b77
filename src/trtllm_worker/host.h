/* SPDX-License-Identifier: Apache-2.0 */
/** @file host.h  Is a peer a process of this host? Process numbers mean nothing elsewhere, and one that is of another
 *  host would name some process of this one.
 */
#ifndef KVFI_TRTLLM_WORKER_HOST_H
#define KVFI_TRTLLM_WORKER_HOST_H

#include <stdbool.h>

#include "kvferry/status.h"

/** True when `endpoint` ("tcp://ADDRESS:PORT", a numeric address) is at a loopback address or at one that an interface
 *  of this host has. Looks nothing up and does not block. */
bool kvfi_host_is_own(const char *endpoint);

/** The same for an agent, with a sentence. @return KVF_OK; KVF_ERR_NOT_SUPPORTED naming agent and endpoint */
enum kvf_status kvfi_host_check(const char *agent, const char *endpoint, struct kvf_error *error);

#endif
