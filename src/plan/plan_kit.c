/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/layout.h"

enum { TEXT_BYTES = 256 };

void kit_init(struct kit *kit)
{
    memset(kit, 0, sizeof *kit);
    kvf_layout_spec_init(&kit->spec, sizeof kit->spec);
    kit->spec.memory_bytes = kit->memory_bytes;
    kit->spec.pools = kit->pools;
    kit->spec.groups = kit->groups;
    kit->spec.views = kit->views;
}

void kit_free(struct kit *kit)
{
    free(kit->places);
    kit->places = NULL;
}

int64_t kit_memory(struct kit *kit)
{
    assert_true(kit->spec.memory_count < KIT_ITEMS);
    kit->memory_bytes[kit->spec.memory_count] = -1;
    return (int64_t)kit->spec.memory_count++;
}

int64_t kit_pool(struct kit *kit, int64_t memory, int64_t base, int64_t slot_stride, int64_t slots)
{
    assert_true(kit->spec.pool_count < KIT_ITEMS);
    kit->pools[kit->spec.pool_count] = (struct kvf_pool){memory, base, slot_stride, slots};
    return (int64_t)kit->spec.pool_count++;
}

int64_t kit_group(struct kit *kit, int64_t tokens_per_block)
{
    assert_true(kit->spec.group_count < KIT_ITEMS);
    kit->groups[kit->spec.group_count] = (struct kvf_group){tokens_per_block, 0, 1, 0, 0};
    return (int64_t)kit->spec.group_count++;
}

void kit_view(struct kit *kit, struct kit_part part)
{
    struct kvf_view *view = &kit->views[kit->spec.view_count++];

    assert_true(kit->spec.view_count <= KIT_ITEMS);
    if (!part.tag) part.tag = "bf16";
    if (!part.total) part.total = 1;
    if (!part.units) part.units = part.total - part.first;
    if (!part.bytes) part.bytes = part.row - part.byte_first;
    if (!part.slots_per_block) part.slots_per_block = 1;
    if (!part.entries) part.entries = 1;
    *view = (struct kvf_view){.role = part.role, .tag = part.tag, .group = part.group, .row_bytes = part.row,
                              .byte_first = part.byte_first, .byte_count = part.bytes, .unit_total = part.total,
                              .unit_first = part.first, .unit_count = part.units, .unit_stride_bytes = part.unit_stride,
                              .entry_stride_bytes = part.entry_stride, .entries = part.entries,
                              .slots_per_block = part.slots_per_block, .flags = part.flags};
    if (!view->unit_stride_bytes) view->unit_stride_bytes = part.bytes;
    if (!view->entry_stride_bytes) view->entry_stride_bytes = part.bytes;
}

void kit_place(struct kit *kit, int64_t layer, int64_t pool, int64_t offset)
{
    if (kit->place_count == kit->place_capacity) {
        kit->place_capacity = kit->place_capacity ? 2 * kit->place_capacity : 16;
        kit->places = realloc(kit->places, kit->place_capacity * sizeof *kit->places);
        assert_non_null(kit->places);
    }
    kit->places[kit->place_count++] = (struct kvf_place){layer, pool, offset};
    kit->views[kit->spec.view_count - 1].place_count++;
}

kvf_layout *kit_layout(const struct kit *kit)
{
    struct kit *own = (struct kit *)kit; /* places may have moved: the views learn it here */
    struct kvf_error error = {0};
    kvf_layout *layout = NULL;
    size_t place = 0;

    for (size_t i = 0; i < kit->spec.view_count; i++) {
        own->views[i].places = kit->places + place;
        place += kit->views[i].place_count;
    }
    if (kvf_layout_create(&kit->spec, &layout, &error) != KVF_OK) fail_msg("layout: %s", error.text);
    return layout;
}

kvf_plan *kit_plan(const struct kit *src, const struct kit *dst, uint64_t flags)
{
    kvf_layout *src_layout = kit_layout(src), *dst_layout = kit_layout(dst);
    struct kvf_plan_options options;
    struct kvf_error error = {0};
    kvf_plan *plan = NULL;

    kvf_plan_options_init(&options, sizeof options);
    options.flags = flags;
    if (kvf_plan_create(src_layout, dst_layout, NULL, &options, &plan, &error) != KVF_OK)
        fail_msg("plan: %s", error.text);
    kvf_layout_release(dst_layout);
    kvf_layout_release(src_layout);
    return plan;
}

void kit_refused(const struct kit *src, const struct kit *dst, uint64_t flags, int status, const char *text)
{
    kvf_layout *src_layout = kit_layout(src), *dst_layout = kit_layout(dst);
    struct kvf_plan_options options;
    struct kvf_error error = {0};
    kvf_plan *plan = NULL;
    int found;

    kvf_plan_options_init(&options, sizeof options);
    options.flags = flags;
    found = kvf_plan_create(src_layout, dst_layout, NULL, &options, &plan, &error);
    if (found != status) fail_msg("status %s, expected %s", kvf_status_name(found), kvf_status_name(status));
    assert_int_equal(error.status, status);
    assert_null(plan);
    assert_string_equal(error.text, text);
    kvf_layout_release(dst_layout);
    kvf_layout_release(src_layout);
}

kvf_binding *kit_bind(const kvf_plan *plan, int64_t begin, int64_t end, const struct kvf_id_list *src,
                      const struct kvf_id_list *dst, uint64_t flags)
{
    struct kvf_bind_request request;
    struct kvf_error error = {0};
    kvf_binding *binding = NULL;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = flags;
    request.token_begin = begin;
    request.token_end = end;
    request.request_tokens = end;
    request.src = src;
    request.dst = dst;
    request.src_count = 1;
    request.dst_count = 1;
    /* one list a group: tests name as many as the layouts have */
    while (kvf_bind(plan, &request, &binding, &error) == KVF_ERR_INVALID_ARGUMENT && request.src_count < 4) {
        if (strstr(error.text, "source id lists")) request.src_count++;
        else request.dst_count++;
        if (request.dst_count > 4) break;
    }
    if (!binding) fail_msg("bind: %s", error.text);
    return binding;
}

/** Adds one fragment per step of the loops, outermost first. */
static size_t expand(const struct kvf_move *move, int64_t src_base, int64_t dst_base, struct kit_fragment *out)
{
    int64_t at[5] = {0, 0, 0, 0, 0};
    size_t count = 0;
    int64_t level;

    do {
        struct kit_fragment fragment = {src_base + move->src_offset_bytes, dst_base + move->dst_offset_bytes,
                                        move->run_bytes};

        for (int64_t i = 0; i < move->loop_count; i++) {
            fragment.src += at[i] * move->loops[i].src_stride_bytes;
            fragment.dst += at[i] * move->loops[i].dst_stride_bytes;
        }
        if (out) out[count] = fragment;
        count++;
        for (level = move->loop_count - 1; level >= 0 && ++at[level] == move->loops[level].count; level--)
            at[level] = 0;
    } while (level >= 0);
    return count;
}

struct kit_fragment *kit_fragments(const kvf_binding *binding, int64_t src_base, int64_t dst_base, size_t *count)
{
    struct kit_fragment *fragments;
    kvf_cursor *cursor = NULL;
    struct kvf_binding_info info;
    struct kvf_move move;
    int64_t bytes = 0;

    kvf_binding_get_info(binding, &info);
    fragments = malloc(((size_t)info.runs + 1) * sizeof *fragments);
    assert_non_null(fragments);
    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    *count = 0;
    while (kvf_cursor_next(cursor, &move) == KVF_OK) {
        assert_true(*count + expand(&move, 0, 0, NULL) <= (size_t)info.runs);
        *count += expand(&move, src_base, dst_base, fragments + *count);
    }
    for (size_t i = 0; i < *count; i++) bytes += fragments[i].bytes;
    assert_int_equal(*count, info.runs);
    assert_int_equal(bytes, info.bytes);
    kvf_cursor_destroy(cursor);
    return fragments;
}

static void write_nest(char *text, size_t size, int64_t src, int64_t dst, const struct kvf_loop *loops, int64_t count,
                       int64_t run)
{
    int used = snprintf(text, size, "%" PRId64 " -> %" PRId64 ", ", src, dst);

    for (int64_t i = 0; i < count; i++)
        used += snprintf(text + used, size - (size_t)used, "(%" PRId64 ", %" PRId64 ", %" PRId64 "), ", loops[i].count,
                         loops[i].src_stride_bytes, loops[i].dst_stride_bytes);
    snprintf(text + used, size - (size_t)used, "%" PRId64, run);
}

void kit_expect_box(const kvf_plan *plan, size_t track, size_t shape, size_t box, const char *text)
{
    char found[TEXT_BYTES];
    struct kvf_box got;

    if (kvf_plan_box(plan, track, shape, box, &got) != KVF_OK)
        fail_msg("no box %zu of shape %zu: %s", box, shape, text);
    write_nest(found, sizeof found, got.src_offset_bytes, got.dst_offset_bytes, got.loops, got.loop_count,
               got.run_bytes);
    assert_string_equal(found, text);
}

void kit_expect_shape(const kvf_plan *plan, size_t track, size_t shape, const char *text)
{
    char found[TEXT_BYTES];
    struct kvf_shape got;

    if (kvf_plan_shape(plan, track, shape, &got) != KVF_OK) fail_msg("no shape %zu: %s", shape, text);
    snprintf(found, sizeof found, "(%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %s)", got.m, got.src_step,
             got.dst_step, got.n, got.whole ? "whole" : "part");
    assert_string_equal(found, text);
}

void kit_expect_moves(const kvf_binding *binding, const char *const *texts, size_t count)
{
    char found[TEXT_BYTES];
    kvf_cursor *cursor = NULL;
    struct kvf_move move;

    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    for (size_t i = 0; i < count; i++) {
        if (kvf_cursor_next(cursor, &move) != KVF_OK) fail_msg("no move %zu: %s", i, texts[i]);
        write_nest(found, sizeof found, move.src_offset_bytes, move.dst_offset_bytes, move.loops, move.loop_count,
                   move.run_bytes);
        assert_string_equal(found, texts[i]);
    }
    assert_int_equal(kvf_cursor_next(cursor, &move), KVF_ERR_NOT_FOUND);
    kvf_cursor_destroy(cursor);
}

void kit_expect_boxes(const kvf_plan *plan, int64_t boxes)
{
    struct kvf_plan_info info;

    kvf_plan_get_info(plan, &info);
    if (info.boxes != boxes) fail_msg("%" PRId64 " boxes, expected %" PRId64, info.boxes, boxes);
}

void kit_digest(const kvf_binding *binding, char text[KVF_FINGERPRINT_TEXT_BYTES], size_t *fragments)
{
    struct kit_fragment *all = kit_fragments(binding, 0, 0, fragments);
    struct kvfi_canonical bytes = {0};

    for (size_t i = 0; i < *fragments; i++) {
        kvfi_canonical_i64(&bytes, all[i].src);
        kvfi_canonical_i64(&bytes, all[i].dst);
        kvfi_canonical_i64(&bytes, all[i].bytes);
    }
    assert_false(bytes.failed);
    kvfi_fingerprint_text(bytes.bytes, bytes.count, text);
    free(bytes.bytes);
    free(all);
}
