/* SPDX-License-Identifier: Apache-2.0 */
/* Direct copies, packers and their pieces over real bindings: every kernel set, every cut, and not a byte outside. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "copy/copier.h"
#include "copy/packer.h"

enum { GUARD = 0x5a, SLOT_GUARD = 24 };

/* A source of heads-first blocks and a destination of tokens-first ones, one memory each. */
struct shape {
    const char *name;
    int64_t layers, heads, row, tokens, src_block, dst_block;
};

static const struct shape shapes[] = {
    {"one byte", 1, 1, 1, 1, 1, 1},
    {"elements of 2 bytes", 2, 3, 2, 70, 8, 32},
    {"rows of 24 bytes", 2, 2, 24, 50, 16, 16},
    {"rows of 128 bytes", 3, 3, 128, 100, 16, 64},
    {"rows of 300 bytes, blocks that do not divide", 1, 2, 300, 48, 24, 16},
    {"long runs", 2, 1, 4096, 40, 16, 16},
};

struct sides {
    kvf_plan *plan;
    kvf_binding *binding;
    int64_t src_bytes, dst_bytes, bytes;
    unsigned char *src, *dst, *expected, *packed;
};

static kvf_layout *make_layout(const struct shape *shape, bool is_src, int64_t *bytes)
{
    int64_t block = is_src ? shape->src_block : shape->dst_block;
    int64_t slots = (shape->tokens + block - 1) / block + 2;
    int64_t layer_bytes = shape->heads * block * shape->row;
    struct kvf_pool pool = {.slot_stride_bytes = shape->layers * layer_bytes + SLOT_GUARD, .slots = slots,
                            .base_offset_bytes = is_src ? 3 : 64};
    struct kvf_group group = {.tokens_per_block = block, .stripes = 1};
    struct kvf_place places[8];
    struct kvf_view view = {.role = "k", .tag = "u8", .row_bytes = shape->row, .byte_count = shape->row,
                            .unit_total = shape->heads, .unit_count = shape->heads, .entries = block,
                            .slots_per_block = 1, .unit_stride_bytes = is_src ? block * shape->row : shape->row,
                            .entry_stride_bytes = is_src ? shape->row : shape->heads * shape->row, .places = places,
                            .place_count = (size_t)shape->layers};
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout = NULL;

    /* The source stores its layers backwards: its strides are negative. */
    for (int64_t i = 0; i < shape->layers; i++)
        places[i] = (struct kvf_place){.layer = i, .offset_bytes = (is_src ? shape->layers - 1 - i : i) * layer_bytes};
    *bytes = pool.base_offset_bytes + pool.slot_stride_bytes * slots;
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = bytes;
    spec.memory_count = spec.pool_count = spec.group_count = spec.view_count = 1;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = &view;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) fail_msg("%s: %s", shape->name, error.text);
    return layout;
}

static kvf_binding *bind_sides(const struct shape *shape, const kvf_plan *plan, uint64_t flags)
{
    int64_t src_ids[128], dst_ids[128];
    int64_t src_count = (shape->tokens + shape->src_block - 1) / shape->src_block;
    int64_t dst_count = (shape->tokens + shape->dst_block - 1) / shape->dst_block;
    struct kvf_id_list src = {.ids = src_ids, .count = (size_t)src_count};
    struct kvf_id_list dst = {.ids = dst_ids, .count = (size_t)dst_count};
    struct kvf_bind_request request;
    kvf_binding *binding = NULL;
    struct kvf_error error;

    /* Backwards on one side, forwards with a gap on the other. */
    for (int64_t i = 0; i < src_count; i++) src_ids[i] = src_count - i;
    for (int64_t i = 0; i < dst_count; i++) dst_ids[i] = i < 2 ? i : i + 1;
    kvf_bind_request_init(&request, sizeof request);
    request.flags = flags;
    request.token_end = request.request_tokens = shape->tokens;
    request.src = &src;
    request.dst = &dst;
    request.src_count = request.dst_count = 1;
    if (kvf_bind(plan, &request, &binding, &error) != KVF_OK) fail_msg("%s: %s", shape->name, error.text);
    return binding;
}

/* Expands the moves byte by byte: what a copy and a packed stream must be. */
static void expand(struct sides *sides)
{
    kvf_cursor *cursor = NULL;
    struct kvf_move move;
    int64_t at = 0;

    assert_int_equal(kvf_cursor_create(sides->binding, &cursor, NULL), KVF_OK);
    while (kvf_cursor_next(cursor, &move) == KVF_OK) {
        int64_t runs = 1;

        for (int64_t i = 0; i < move.loop_count; i++) runs *= move.loops[i].count;
        for (int64_t run = 0; run < runs; run++) {
            int64_t from = move.src_offset_bytes, to = move.dst_offset_bytes, rest = run;

            for (int64_t i = move.loop_count - 1; i >= 0; i--) {
                from += rest % move.loops[i].count * move.loops[i].src_stride_bytes;
                to += rest % move.loops[i].count * move.loops[i].dst_stride_bytes;
                rest /= move.loops[i].count;
            }
            memcpy(sides->expected + to, sides->src + from, (size_t)move.run_bytes);
            memcpy(sides->packed + at, sides->src + from, (size_t)move.run_bytes);
            at += move.run_bytes;
        }
    }
    assert_int_equal(at, sides->bytes);
    kvf_cursor_destroy(cursor);
}

static void sides_init(struct sides *sides, const struct shape *shape)
{
    kvf_layout *src = make_layout(shape, true, &sides->src_bytes);
    kvf_layout *dst = make_layout(shape, false, &sides->dst_bytes);
    struct kvf_binding_info info;
    struct kvf_error error;

    if (kvf_plan_create(src, dst, NULL, NULL, &sides->plan, &error) != KVF_OK)
        fail_msg("%s: %s", shape->name, error.text);
    sides->binding = bind_sides(shape, sides->plan, 0);
    kvf_binding_get_info(sides->binding, &info);
    sides->bytes = info.bytes;
    sides->src = malloc((size_t)sides->src_bytes);
    sides->dst = malloc((size_t)sides->dst_bytes);
    sides->expected = malloc((size_t)sides->dst_bytes);
    sides->packed = malloc((size_t)sides->bytes);
    for (int64_t i = 0; i < sides->src_bytes; i++) sides->src[i] = (unsigned char)(i * 37 + i / 211);
    memset(sides->dst, GUARD, (size_t)sides->dst_bytes);
    memset(sides->expected, GUARD, (size_t)sides->dst_bytes);
    expand(sides);
    kvf_layout_release(src);
    kvf_layout_release(dst);
}

static void sides_fini(struct sides *sides)
{
    kvf_binding_destroy(sides->binding);
    kvf_plan_release(sides->plan);
    free(sides->src);
    free(sides->dst);
    free(sides->expected);
    free(sides->packed);
}

static void copies_are_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct sides sides;
        void *src, *dst;

        sides_init(&sides, &shapes[i]);
        src = sides.src;
        dst = sides.dst;
        assert_int_equal(kvf_copy(sides.binding, &src, 1, &dst, 1, NULL), KVF_OK);
        assert_memory_equal(sides.dst, sides.expected, (size_t)sides.dst_bytes);
        sides_fini(&sides);
    }
}

/* A copier in pieces of every size, with every kernel set, past the caches and not. */
static void copies_in_pieces_are_right(void **state)
{
    static const int64_t pieces[] = {1, 7, 64, 1000, 65536};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct sides sides;

        sides_init(&sides, &shapes[i]);
        for (size_t set = 0; set < kvfi_kernels_count() * 2; set++) {
            for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
                void *src = sides.src, *dst = sides.dst;
                struct kvfi_bases from = {&src, &sides.src_bytes, 1}, to = {&dst, &sides.dst_bytes, 1};
                struct kvfi_copier copier;
                int64_t done = pieces[p], total = 0;

                memset(sides.dst, GUARD, (size_t)sides.dst_bytes);
                assert_int_equal(kvfi_copier_init(&copier, kvfi_kernels_at(set / 2), sides.binding, &from, &to, NULL),
                                 KVF_OK);
                if (set % 2) copier.tiles_fn = copier.kernels->stream;
                for (; done == pieces[p]; total += done)
                    assert_int_equal(kvfi_copier_run(&copier, pieces[p], &done, NULL), KVF_OK);
                assert_int_equal(total, sides.bytes);
                kvfi_copier_fini(&copier);
                assert_memory_equal(sides.dst, sides.expected, (size_t)sides.dst_bytes);
            }
        }
        sides_fini(&sides);
    }
}

/* Packs from every start; the stream is the canonical order. */
static void packing_starts_and_stops_anywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct sides sides;
        kvf_packer *packer = NULL;
        unsigned char *stream;
        void *src;

        sides_init(&sides, &shapes[i]);
        src = sides.src;
        stream = malloc((size_t)sides.bytes);
        assert_non_null(stream);
        assert_int_equal(kvf_packer_create(sides.binding, KVF_PACK, &src, 1, &packer, NULL), KVF_OK);
        for (int64_t start = 0; start <= sides.bytes; start += 1 + sides.bytes / 61) {
            int64_t piece = 1 + start % 97, at = start;

            assert_int_equal(kvf_packer_seek(packer, start), KVF_OK);
            while (at < sides.bytes) at += kvf_packer_run(packer, stream + at, piece);
            assert_int_equal(kvf_packer_run(packer, stream, 10), 0);
            assert_memory_equal(stream + start, sides.packed + start, (size_t)(sides.bytes - start));
        }
        assert_int_equal(kvf_packer_seek(packer, sides.bytes + 1), KVF_ERR_OUT_OF_RANGE);
        assert_int_equal(kvf_packer_seek(packer, -1), KVF_ERR_OUT_OF_RANGE);
        kvf_packer_destroy(packer);
        free(stream);
        sides_fini(&sides);
    }
}

/* The receiver binds with its own ids only, and takes frames in any order. */
static void unpacking_needs_no_source_ids(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct sides sides;
        kvf_binding *own;
        kvf_packer *packer = NULL;
        int64_t frame;
        void *dst;

        sides_init(&sides, &shapes[i]);
        own = bind_sides(&shapes[i], sides.plan, KVF_BIND_SRC_UNKNOWN);
        dst = sides.dst;
        frame = 1 + sides.bytes / 13;
        assert_int_equal(kvf_packer_create(own, KVF_UNPACK, &dst, 1, &packer, NULL), KVF_OK);
        for (int64_t start = (sides.bytes - 1) / frame * frame; start >= 0; start -= frame) {
            int64_t bytes = frame < sides.bytes - start ? frame : sides.bytes - start;

            assert_int_equal(kvf_packer_seek(packer, start), KVF_OK);
            assert_int_equal(kvf_packer_run(packer, sides.packed + start, bytes), bytes);
        }
        assert_memory_equal(sides.dst, sides.expected, (size_t)sides.dst_bytes);
        kvf_packer_destroy(packer);
        kvf_binding_destroy(own);
        sides_fini(&sides);
    }
}

/* Iovecs list the same memory that a copy would touch, whatever their number. */
static void iovecs_list_the_same_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct sides sides;
        kvf_packer *packer = NULL;
        struct iovec iovecs[5];
        int64_t at = 0, bytes = 1;
        void *src;

        sides_init(&sides, &shapes[i]);
        src = sides.src;
        assert_int_equal(kvf_packer_create(sides.binding, KVF_PACK, &src, 1, &packer, NULL), KVF_OK);
        assert_true(kvfi_packer_run_left(packer) == kvfi_packer_run_bytes(packer));
        while (bytes > 0) {
            size_t count = kvfi_packer_iovecs(packer, iovecs, 5, 1 + at % 1000, 1, &bytes);

            for (size_t v = 0; v < count; v++) {
                assert_memory_equal(iovecs[v].iov_base, sides.packed + at, iovecs[v].iov_len);
                at += (int64_t)iovecs[v].iov_len;
            }
            assert_int_equal(kvfi_packer_position(packer), at);
        }
        assert_int_equal(at, sides.bytes);
        assert_int_equal(kvfi_packer_run_bytes(packer), 0);
        kvf_packer_destroy(packer);
        sides_fini(&sides);
    }
}

static void bad_memories_are_refused(void **state)
{
    struct sides sides;
    struct kvf_error error;
    struct kvfi_copier copier;
    void *src, *dst, *none = NULL;
    int64_t done, short_bytes;

    (void)state;
    sides_init(&sides, &shapes[3]);
    src = sides.src;
    dst = sides.dst;
    assert_int_equal(kvf_copy(sides.binding, &none, 1, &dst, 1, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "source memory 0 has no address");
    assert_int_equal(kvf_copy(sides.binding, &src, 1, &dst, 0, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "destination memory 0 has no address");
    short_bytes = sides.dst_bytes / 4;
    struct kvfi_bases from = {&src, &sides.src_bytes, 1}, to = {&dst, &short_bytes, 1};

    assert_int_equal(kvfi_bases_check(sides.binding, &from, &to, &error), KVF_ERR_OUT_OF_RANGE);
    assert_non_null(strstr(error.text, "destination memory 0: a move takes ["));
    assert_int_equal(kvfi_copier_init(&copier, NULL, sides.binding, &from, &to, NULL), KVF_OK);
    assert_int_equal(kvfi_copier_run(&copier, INT64_MAX, &done, &error), KVF_ERR_OUT_OF_RANGE);
    kvfi_copier_fini(&copier);
    sides_fini(&sides);
}

static void bad_packers_are_refused(void **state)
{
    struct sides sides;
    struct kvf_error error;
    kvf_packer *packer = NULL;
    void *none = NULL;

    (void)state;
    sides_init(&sides, &shapes[3]);
    assert_int_equal(kvf_packer_create(sides.binding, 2, &none, 1, &packer, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "packer side is 2, expected 0 (pack) or 1 (unpack)");
    assert_null(packer);
    assert_int_equal(kvf_packer_create(sides.binding, KVF_PACK, &none, 1, &packer, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "source memory 0 has no address");
    assert_int_equal(kvf_packer_create(sides.binding, KVF_UNPACK, NULL, 0, &packer, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "destination memory 0 has no address");
    assert_null(packer);
    kvf_packer_destroy(NULL);
    sides_fini(&sides);
}

/* A binding that does not know the ids of a side has made-up slots there: no byte may be touched by them. */
static void unknown_sides_are_refused(void **state)
{
    static const struct { uint64_t flag; int side, other; const char *text; } rows[] = {
        {KVF_BIND_SRC_UNKNOWN, KVF_PACK, KVF_UNPACK, "the binding does not know the source's block ids"},
        {KVF_BIND_DST_UNKNOWN, KVF_UNPACK, KVF_PACK, "the binding does not know the destination's block ids"},
    };
    struct sides sides;
    struct kvf_error error;
    void *src, *dst;

    (void)state;
    sides_init(&sides, &shapes[3]);
    src = sides.src;
    dst = sides.dst;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvf_binding *binding = bind_sides(&shapes[3], sides.plan, rows[i].flag);
        void **own = rows[i].side == KVF_PACK ? &src : &dst, **peer = rows[i].side == KVF_PACK ? &dst : &src;
        kvf_packer *packer = NULL;

        assert_int_equal(kvf_copy(binding, &src, 1, &dst, 1, &error), KVF_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.text, rows[i].text);
        assert_int_equal(kvf_packer_create(binding, rows[i].side, own, 1, &packer, &error), KVF_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.text, rows[i].text);
        assert_null(packer);
        assert_int_equal(kvf_packer_create(binding, rows[i].other, peer, 1, &packer, &error), KVF_OK);
        kvf_packer_destroy(packer);
        kvf_binding_destroy(binding);
    }
    sides_fini(&sides);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_right), cmocka_unit_test(copies_in_pieces_are_right),
        cmocka_unit_test(packing_starts_and_stops_anywhere), cmocka_unit_test(unpacking_needs_no_source_ids),
        cmocka_unit_test(iovecs_list_the_same_bytes), cmocka_unit_test(bad_memories_are_refused),
        cmocka_unit_test(bad_packers_are_refused), cmocka_unit_test(unknown_sides_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
