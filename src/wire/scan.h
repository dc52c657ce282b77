/* SPDX-License-Identifier: Apache-2.0 */
/** @file scan.h  A first look at MessagePack bytes from a peer, before any decoder allocates for them. */
#ifndef KVFI_WIRE_SCAN_H
#define KVFI_WIRE_SCAN_H

#include "kvferry/status.h"

/** Checks that the bytes are exactly one MessagePack object that is at most KVFI_WIRE_MAX_BYTES long, nested at most
 *  KVFI_WIRE_MAX_DEPTH deep, with every count and length inside the bytes that are there. Allocates nothing and does
 *  not recurse. @return KVF_OK, KVF_ERR_PROTOCOL with the position */
enum kvf_status kvfi_wire_scan(const void *bytes, size_t byte_count, struct kvf_error *error);

#endif
