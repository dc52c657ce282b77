/* SPDX-License-Identifier: Apache-2.0 */
/** @file layout.h  A whole layout as compact MessagePack, as hello carries it. */
#ifndef KVFI_WIRE_LAYOUT_H
#define KVFI_WIRE_LAYOUT_H

#include <msgpack.h>

#include "kvferry/layout.h"

/** Packs a layout: a map of "memories", "pools", "groups", "views". Evenly stepping places become runs.
 *  @return KVF_OK; KVF_ERR_LIMIT (more places than the wire takes); KVF_ERR_INVALID_ARGUMENT (a role or tag that is no
 *          clean text). What the packer's own writer refuses is the caller's to notice. */
enum kvf_status kvfi_layout_pack(const kvf_layout *layout, msgpack_packer *packer, struct kvf_error *error);

/** Makes a checked layout of a scanned object.
 *  @param out  returned to the caller (free with kvf_layout_release)
 *  @return KVF_OK; KVF_ERR_PROTOCOL naming what is wrong; whatever kvf_layout_create says */
enum kvf_status kvfi_layout_unpack(const msgpack_object *object, kvf_layout **out, struct kvf_error *error);

#endif
