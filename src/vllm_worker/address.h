/* SPDX-License-Identifier: Apache-2.0 */
/** @file address.h  Hosts and ports of bootstrap registries, as texts. */
#ifndef KVFI_VLLM_WORKER_ADDRESS_H
#define KVFI_VLLM_WORKER_ADDRESS_H

#include "kvferry/status.h"

/** Cuts "HOST:PORT" or "[IPV6]:PORT" in two; brackets go.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT "bootstrap_server_address must specify a host and port" and why */
enum kvf_status kvfi_vllm_split_host_port(const char *address, char *host, size_t host_bytes, int32_t *port,
                                          struct kvf_error *error);

/** Writes SCHEME://HOST:PORT, or HOST:PORT when `scheme` is "". An IPv6 address gets brackets. It is cut where the room
 *  ends. */
void kvfi_vllm_join_host_port(const char *scheme, const char *host, int32_t port, char *out, size_t out_bytes);

/** This machine's address towards other networks, or "127.0.0.1" when it has none. Nothing is sent. */
void kvfi_vllm_own_address(char *out, size_t out_bytes);

#endif
