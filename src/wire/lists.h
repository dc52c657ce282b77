/* SPDX-License-Identifier: Apache-2.0 */
/** @file lists.h  The lists in a pull: block ids per group, and transports. */
#ifndef KVFI_WIRE_LISTS_H
#define KVFI_WIRE_LISTS_H

#include <msgpack.h>

#include "wire/arena.h"
#include "wire/messages.h"

/** Both put what they read into the arena. @return KVF_OK, KVF_ERR_PROTOCOL, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_groups_unpack(struct kvfi_arena *arena, const msgpack_object *object,
                                   const struct kvf_id_list **out, size_t *count, struct kvf_error *error);
enum kvf_status kvfi_transports_unpack(struct kvfi_arena *arena, const msgpack_object *object,
                                       const struct kvfi_wire_transport **out, size_t *count,
                                       struct kvf_error *error);

#endif
