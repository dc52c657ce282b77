/* SPDX-License-Identifier: Apache-2.0 */
/** @file address.h  Hosts and ports of bootstrap registries, as texts. */
#ifndef KVFI_VLLM_WORKER_ADDRESS_H
#define KVFI_VLLM_WORKER_ADDRESS_H

#include "kvferry/status.h"

/** Writes SCHEME://HOST:PORT, or HOST:PORT when `scheme` is "". An IPv6 address gets brackets. It is cut where the room
 *  ends. */
void kvfi_vllm_join_host_port(const char *scheme, const char *host, int32_t port, char *out, size_t out_bytes);

/** This machine's address towards other networks, or "127.0.0.1" when it has none. Nothing is sent. */
void kvfi_vllm_own_address(char *out, size_t out_bytes);

#endif
