/* SPDX-License-Identifier: Apache-2.0 */
/** @file kit.h  Two sides of a transfer for tests: a source of heads-first blocks, a destination of tokens-first blocks
 *  with guard bytes after each slot, filled and checked by coordinate. */
#ifndef KVFT_CONFORMANCE_KIT_H
#define KVFT_CONFORMANCE_KIT_H

#include "kvferry/copy.h"
#include "kvferry/memory.h"
#include "transport/transport.h"

struct kit_shape {
    int64_t layers, heads, row_bytes, tokens;
    int64_t src_block_tokens, dst_block_tokens;
};

enum { KIT_GUARD_BYTES = 256, KIT_MAX_MEMORIES = 2 };

struct kit {
    struct kit_shape shape;
    kvf_layout *src_layout, *dst_layout;
    kvf_plan *plan;
    int64_t *src_ids, *dst_ids;
    struct kvf_id_list src_list, dst_list;
    kvf_memory *memory[3];          /* one of the source, K and V of the destination */
    struct kvfi_memory_region src_regions[1], dst_regions[2];
    int64_t src_slot_bytes, dst_slot_bytes, src_slots, dst_slots;
    int64_t bytes;                  /* of the whole transfer */
};

/** Builds everything. `with_fd` false: the regions have no descriptor. Fails the test on any error. */
void kit_init(struct kit *kit, const struct kit_shape *shape, bool with_fd);
void kit_fini(struct kit *kit);

/** Fills the destination with guard bytes again. */
void kit_wipe(struct kit *kit);

/** Checks every destination byte: moved ones of layers [layer_first, layer_end) and tokens [0, tokens) against their
 *  coordinate, all others against the guard. */
void kit_check(const struct kit *kit, int64_t layer_first, int64_t layer_end, int64_t tokens);

/** True when no destination byte was written. */
bool kit_is_untouched(const struct kit *kit);

/** The destination's request for all tokens, and for an arm. */
struct kvf_bind_request kit_dst_request(const struct kit *kit);

/** Binds layers and tokens with the ids of both sides. The caller destroys it. */
kvf_binding *kit_bind(const struct kit *kit, int64_t layer_first, int64_t layer_end, int64_t token_begin,
                      int64_t token_end);

#endif
