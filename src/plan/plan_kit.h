/* SPDX-License-Identifier: Apache-2.0 */
/** @file plan_kit.h  For tests: small layouts in a few words, and moves and fragments to compare. */
#ifndef KVFI_PLAN_PLAN_KIT_H
#define KVFI_PLAN_PLAN_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvferry/plan.h"

enum { KIT_ITEMS = 512 };

/** A layout spec with its arrays beside it. */
struct kit {
    struct kvf_layout_spec spec;
    int64_t memory_bytes[KIT_ITEMS];
    struct kvf_pool pools[KIT_ITEMS];
    struct kvf_group groups[KIT_ITEMS];
    struct kvf_view views[KIT_ITEMS];
    struct kvf_place *places;
    size_t place_count, place_capacity;
};

/** Numbers of a view that differ between tests; zero means the usual. */
struct kit_part {
    const char *role, *tag;         /**< tag "bf16" */
    int64_t group;
    int64_t row, byte_first, bytes; /**< bytes: row - byte_first */
    int64_t total, first, units;    /**< total 1; units: total - first */
    int64_t unit_stride, entry_stride, entries, slots_per_block;
    uint32_t flags;
};

void kit_init(struct kit *kit);
void kit_free(struct kit *kit);

/** Adds a memory without an end, a pool at its start (base), and a group; each returns its index. */
int64_t kit_memory(struct kit *kit);
int64_t kit_pool(struct kit *kit, int64_t memory, int64_t base, int64_t slot_stride, int64_t slots);
int64_t kit_group(struct kit *kit, int64_t tokens_per_block);

/** Adds a view without places, and one more place to the view added last. */
void kit_view(struct kit *kit, struct kit_part part);
void kit_place(struct kit *kit, int64_t layer, int64_t pool, int64_t offset);

/** The plan of both: fails the test when a layout or the plan is refused. */
kvf_layout *kit_layout(const struct kit *kit);
kvf_plan *kit_plan(const struct kit *src, const struct kit *dst, uint64_t flags);

/** The refusal of a plan: fails the test unless the status and the text are these. */
void kit_refused(const struct kit *src, const struct kit *dst, uint64_t flags, int status, const char *text);

/** A list of ids as the request wants it: KIT_IDS(3, 4, 9). */
#define KIT_IDS(...) \
    ((struct kvf_id_list){(const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), 0})

/** Binds [begin, end) of `end` tokens; fails the test when it is refused. */
kvf_binding *kit_bind(const kvf_plan *plan, int64_t begin, int64_t end, const struct kvf_id_list *src,
                      const struct kvf_id_list *dst, uint64_t flags);

/** One contiguous copy. */
struct kit_fragment {
    int64_t src, dst, bytes;
};

/** All fragments of a binding in order, `base` added. *count of them; free with free. */
struct kit_fragment *kit_fragments(const kvf_binding *binding, int64_t src_base, int64_t dst_base, size_t *count);

/** Fails the test unless box `box` of shape `shape` of track `track` has this text, such as
 *  "32 -> 0, (2, 2048, 32768), 16"; negative numbers may occur. */
void kit_expect_box(const kvf_plan *plan, size_t track, size_t shape, size_t box, const char *text);

/** The same for a shape, such as "(1, 1, 1, 16, whole)", and for the moves of a binding in order. */
void kit_expect_shape(const kvf_plan *plan, size_t track, size_t shape, const char *text);
void kit_expect_moves(const kvf_binding *binding, const char *const *texts, size_t count);

/** Fails the test unless the plan has so many boxes. */
void kit_expect_boxes(const kvf_plan *plan, int64_t boxes);

/** Writes XXH3-128 over all fragments of a binding, each number as 8 bytes: 32 hex digits. */
void kit_digest(const kvf_binding *binding, char text[KVF_FINGERPRINT_TEXT_BYTES], size_t *fragments);

#endif
