/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/layout.h"
#include "layout/worked_examples.h"

#define AT(field) offsetof(struct worked_example, field)
#define HUGE_I64 (INT64_MAX / 2)

/* One number of the first example's source replaced. */
static const struct refused {
    const char *name;
    size_t at;
    int64_t value;
    enum kvf_status status;
    const char *text;
} refused[] = {
    {"memory size", AT(memory_bytes[0]), -2, KVF_ERR_LAYOUT,
     "memory 0: size in bytes is -2, expected -1 (unbounded) or more"},
    {"memory too small", AT(memory_bytes[0]), 65535, KVF_ERR_LAYOUT, "v layer 1: ends at 65536, memory has 65535"},
    {"memory index", AT(pools[0].memory), 1, KVF_ERR_LAYOUT, "pool 0: memory 1 of 1 memories"},
    {"negative memory index", AT(pools[0].memory), -1, KVF_ERR_LAYOUT, "pool 0: memory -1 of 1 memories"},
    {"base offset", AT(pools[0].base_offset_bytes), -1, KVF_ERR_LAYOUT,
     "pool 0: base offset in bytes is -1, expected at least 0"},
    {"base offset at the end", AT(pools[0].base_offset_bytes), INT64_MAX, KVF_ERR_OVERFLOW,
     "k layer 0: ends beyond 2^62 bytes"},
    {"slot stride 0", AT(pools[0].slot_stride_bytes), 0, KVF_ERR_LAYOUT,
     "pool 0: slot stride in bytes is 0, expected at least 1"},
    {"slot stride inside a layer", AT(pools[0].slot_stride_bytes), 1023, KVF_ERR_LAYOUT,
     "k layer 0: stride 1023 is smaller than the 1024 bytes inside it"},
    {"slot stride inside a row", AT(pools[0].slot_stride_bytes), 8, KVF_ERR_LAYOUT,
     "k layer 0: stride 8 is smaller than the 16 bytes inside it"},
    {"slot stride overflows", AT(pools[0].slot_stride_bytes), HUGE_I64, KVF_ERR_OVERFLOW,
     "k layer 0: 16 steps of 4611686018427387903 bytes do not fit in 64 bits"},
    {"no slots", AT(pools[0].slots), 0, KVF_ERR_LAYOUT, "pool 0: slots is 0, expected at least 1"},
    {"slots overflow", AT(pools[0].slots), INT64_MAX, KVF_ERR_OVERFLOW,
     "k layer 0: 9223372036854775807 steps of 4096 bytes do not fit in 64 bits"},
    {"tokens per block", AT(groups[0].tokens_per_block), -16, KVF_ERR_LAYOUT,
     "group 0: tokens_per_block is -16, expected at least 0"},
    {"tokens per entry not whole", AT(groups[0].tokens_per_block), 24, KVF_ERR_LAYOUT,
     "view 0 (k): 24 tokens per block do not divide by 1 slots of 16 entries"},
    {"ring", AT(groups[0].ring_tokens), -1, KVF_ERR_LAYOUT, "group 0: ring_tokens is -1, expected at least 0"},
    {"no stripes", AT(groups[0].stripes), 0, KVF_ERR_LAYOUT, "group 0: stripes is 0, expected at least 1"},
    {"stripe", AT(groups[0].stripe), 1, KVF_ERR_LAYOUT, "group 0: stripe 1 of 1 stripes"},
    {"stripe tokens", AT(groups[0].stripe_tokens), -1, KVF_ERR_LAYOUT,
     "group 0: stripe_tokens is -1, expected at least 0"},
    {"group index", AT(views[0].group), 1, KVF_ERR_LAYOUT, "view 0 (k): group 1 of 1 groups"},
    {"row", AT(views[0].row_bytes), 15, KVF_ERR_LAYOUT,
     "view 0 (k): 16 bytes of a row from 0 on do not lie in [0,15)"},
    {"byte range", AT(views[0].byte_first), 1, KVF_ERR_LAYOUT,
     "view 0 (k): 16 bytes of a row from 1 on do not lie in [0,16)"},
    {"no bytes", AT(views[0].byte_count), 0, KVF_ERR_LAYOUT,
     "view 0 (k): 0 bytes of a row from 0 on do not lie in [0,16)"},
    {"unit range", AT(views[1].unit_first), 1, KVF_ERR_LAYOUT, "view 1 (v): 4 units from 1 on do not lie in [0,4)"},
    {"unit range overflows", AT(views[1].unit_first), INT64_MAX, KVF_ERR_LAYOUT,
     "view 1 (v): 4 units from 9223372036854775807 on do not lie in [0,4)"},
    {"unit total", AT(views[1].unit_total), 0, KVF_ERR_LAYOUT, "view 1 (v): 4 units from 0 on do not lie in [0,0)"},
    {"unit stride", AT(views[0].unit_stride_bytes), 0, KVF_ERR_LAYOUT,
     "view 0: unit stride in bytes is 0, expected at least 1"},
    {"unit stride inside a row", AT(views[0].unit_stride_bytes), 15, KVF_ERR_LAYOUT,
     "k layer 0: stride 15 is smaller than the 16 bytes inside it"},
    {"entry stride", AT(views[0].entry_stride_bytes), -64, KVF_ERR_LAYOUT,
     "view 0: entry stride in bytes is -64, expected at least 1"},
    {"entry stride inside the heads", AT(views[0].entry_stride_bytes), 63, KVF_ERR_LAYOUT,
     "k layer 0: stride 63 is smaller than the 64 bytes inside it"},
    {"entries", AT(views[0].entries), 0, KVF_ERR_LAYOUT, "view 0: entries is 0, expected at least 1"},
    {"slots per block", AT(views[0].slots_per_block), 0, KVF_ERR_LAYOUT,
     "view 0: slots_per_block is 0, expected at least 1"},
    {"entries overflow", AT(views[0].slots_per_block), INT64_MAX, KVF_ERR_LAYOUT,
     "view 0 (k): 16 tokens per block do not divide by 9223372036854775807 slots of 16 entries"},
    {"layer", AT(places[0][1].layer), -1, KVF_ERR_LAYOUT, "view 0 (k): layer -1 is negative"},
    {"layer with no end", AT(places[0][1].layer), INT64_MAX, KVF_ERR_LAYOUT,
     "view 0 (k): layer 9223372036854775807 has no end in 64 bits"},
    {"layer twice", AT(places[0][1].layer), 0, KVF_ERR_LAYOUT, "k layer 0: given twice"},
    {"pool index", AT(places[1][0].pool), 1, KVF_ERR_LAYOUT, "v layer 0: pool 1 of 1 pools"},
    {"offset", AT(places[1][0].offset_bytes), -8, KVF_ERR_LAYOUT, "v layer 0: offset of -8 bytes is negative"},
    {"overlap inside a slot", AT(places[1][0].offset_bytes), 1008, KVF_ERR_LAYOUT,
     "k layer 0 slot 0 overlaps v layer 0 slot 0"},
    {"overlap across slots", AT(places[1][1].offset_bytes), 3072 + 16, KVF_ERR_LAYOUT,
     "k layer 0 slot 1 overlaps v layer 1 slot 0"},
    {"overlap far across slots", AT(places[1][1].offset_bytes), 15 * 4096, KVF_ERR_LAYOUT,
     "k layer 0 slot 15 overlaps v layer 1 slot 0"},
};

static void expect(const char *name, enum kvf_status status, const struct kvf_error *error, enum kvf_status wanted,
                   const char *text)
{
    if (status != wanted) fail_msg("%s: %s, %s", name, kvf_status_name(status), error->text);
    if (status != KVF_OK && strcmp(error->text, text) != 0) fail_msg("%s: \"%s\"", name, error->text);
    if (status != KVF_OK && error->status != (int32_t)status) fail_msg("%s: status in error", name);
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct worked_example example;
        struct kvf_error error = {0};
        kvf_layout *layout = (kvf_layout *)&example;

        worked_example_first(&example, 0);
        memcpy((char *)&example + refused[i].at, &refused[i].value, sizeof refused[i].value);
        expect(refused[i].name, kvf_layout_create(&example.spec, &layout, &error), &error, refused[i].status,
               refused[i].text);
        assert_ptr_equal(layout, &example);
    }
}

static void spoil_role_empty(struct worked_example *e) { e->views[0].role = ""; }
static void spoil_role_null(struct worked_example *e) { e->views[0].role = NULL; }
static void spoil_role_control(struct worked_example *e) { e->views[0].role = "k\n"; }
static void spoil_tag_empty(struct worked_example *e) { e->views[1].tag = ""; }
static void spoil_flags(struct worked_example *e) { e->views[1].flags = 4; }
static void spoil_reserved(struct worked_example *e) { e->views[1].reserved = 1; }
static void spoil_no_places(struct worked_example *e) { e->views[1].place_count = 0; }
static void spoil_no_array(struct worked_example *e) { e->views[1].places = NULL; }
static void spoil_pools_array(struct worked_example *e) { e->spec.pools = NULL; }
static void spoil_memories(struct worked_example *e) { e->spec.memory_count = KVF_LAYOUT_MAX_MEMORIES + 1; }
static void spoil_pools(struct worked_example *e) { e->spec.pool_count = KVF_LAYOUT_MAX_POOLS + 1; }
static void spoil_groups(struct worked_example *e) { e->spec.group_count = KVF_LAYOUT_MAX_GROUPS + 1; }
static void spoil_views(struct worked_example *e) { e->spec.view_count = SIZE_MAX; }
static void spoil_places(struct worked_example *e) { e->views[0].place_count = KVF_LAYOUT_MAX_PLACES + 1; }
static void spoil_state_ring(struct worked_example *e)
{
    e->groups[0] = (struct kvf_group){.ring_tokens = 16, .stripes = 1};
}
static void spoil_state_stripes(struct worked_example *e) { e->groups[0] = (struct kvf_group){.stripes = 2}; }
static void spoil_state_slots(struct worked_example *e)
{
    e->groups[0].tokens_per_block = 0;
    e->views[1].slots_per_block = 2;
}
static void spoil_ring_grain(struct worked_example *e)
{
    e->groups[0].tokens_per_block = 64;
    e->groups[0].ring_tokens = 66;
}
static void spoil_stripe_grain(struct worked_example *e)
{
    e->groups[0].tokens_per_block = 64;
    e->groups[0].stripes = 2;
    e->groups[0].stripe_tokens = 2;
}
static void spoil_held_twice(struct worked_example *e)
{
    e->views[1].role = "k";
    e->views[1].unit_first = 3;
    e->views[1].unit_count = 1;
}
static void spoil_alias_interior(struct worked_example *e)
{
    e->places[1][0].offset_bytes = 0;
    e->views[1].unit_stride_bytes = 256;
    e->views[1].entry_stride_bytes = 16;
}
static void spoil_second_pool(struct worked_example *e)
{
    e->pools[1] = (struct kvf_pool){0, 512, 4096, 16};
    e->spec.pool_count = 2;
    e->places[0][0].pool = 1;
}

static void test_refused_otherwise(void **state)
{
    static const struct { const char *name; void (*spoil)(struct worked_example *); enum kvf_status status;
                          const char *text; } rows[] = {
        {"role empty", spoil_role_empty, KVF_ERR_LAYOUT, "view 0: role is empty"},
        {"role NULL", spoil_role_null, KVF_ERR_LAYOUT, "view 0: role is empty"},
        {"role with a line end", spoil_role_control, KVF_ERR_LAYOUT,
         "view 0: byte 1 of the role is a control character"},
        {"tag empty", spoil_tag_empty, KVF_ERR_LAYOUT, "view 1: tag is empty"},
        {"unknown flag", spoil_flags, KVF_ERR_NEWER_OPTION, "view 1 (v): flags 0x4, 0x0 are not known"},
        {"reserved set", spoil_reserved, KVF_ERR_NEWER_OPTION, "view 1 (v): flags 0x0, 0x1 are not known"},
        {"no places", spoil_no_places, KVF_ERR_LAYOUT, "view 1 (v): no layer has a place"},
        {"places without array", spoil_no_array, KVF_ERR_INVALID_ARGUMENT, "layout has 2 places but no array of them"},
        {"pools without array", spoil_pools_array, KVF_ERR_INVALID_ARGUMENT, "layout has 1 pools but no array of them"},
        {"too many memories", spoil_memories, KVF_ERR_LIMIT, "layout has 65537 memories, at most 65536 are allowed"},
        {"too many pools", spoil_pools, KVF_ERR_LIMIT, "layout has 65537 pools, at most 65536 are allowed"},
        {"too many groups", spoil_groups, KVF_ERR_LIMIT, "layout has 1025 groups, at most 1024 are allowed"},
        {"too many views", spoil_views, KVF_ERR_LIMIT,
         "layout has 18446744073709551615 views, at most 65536 are allowed"},
        {"too many places", spoil_places, KVF_ERR_LIMIT, "layout has 1048577 places, at most 1048576 are allowed"},
        {"state with a ring", spoil_state_ring, KVF_ERR_LAYOUT, "group 0: ring_tokens is 16, expected 0 for state"},
        {"state with stripes", spoil_state_stripes, KVF_ERR_LAYOUT, "group 0: stripes is 2, expected 1 for state"},
        {"state with kernel blocks", spoil_state_slots, KVF_ERR_LAYOUT,
         "view 1: slots_per_block is 2, expected 1 for state"},
        {"ring inside an entry", spoil_ring_grain, KVF_ERR_LAYOUT,
         "view 0 (k): ring of 66 tokens does not divide by 4 tokens per entry"},
        {"stripe inside an entry", spoil_stripe_grain, KVF_ERR_LAYOUT,
         "view 0 (k): stripe of 2 tokens does not divide by 4 tokens per entry"},
        {"held twice", spoil_held_twice, KVF_ERR_LAYOUT, "k layer 0: unit 3 byte 0 is held by views 0 and 1"},
        {"alias of another interior", spoil_alias_interior, KVF_ERR_LAYOUT,
         "k layer 0 slot 0 overlaps v layer 0 slot 0"},
        {"second pool of one memory and stride", spoil_second_pool, KVF_ERR_LAYOUT,
         "k layer 0 slot 0 overlaps v layer 0 slot 0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct worked_example example;
        struct kvf_error error = {0};
        kvf_layout *layout = NULL;

        worked_example_first(&example, 0);
        rows[i].spoil(&example);
        expect(rows[i].name, kvf_layout_create(&example.spec, &layout, &error), &error, rows[i].status, rows[i].text);
        assert_null(layout);
    }
}

static void allow_alias(struct worked_example *e) { e->places[1][0] = e->places[0][0]; }
static void allow_layer_alias(struct worked_example *e) { e->places[0][1].offset_bytes = 0; }
static void allow_other_group(struct worked_example *e)
{
    e->groups[1] = e->groups[0];
    e->spec.group_count = 2;
    e->views[1].group = 1;
    e->places[1][0].offset_bytes = 16;
}
static void allow_other_stride(struct worked_example *e)
{
    e->pools[1] = (struct kvf_pool){0, 0, 8192, 8};
    e->spec.pool_count = 2;
    e->places[1][0].pool = 1;
}
static void allow_base_apart(struct worked_example *e)
{
    e->pools[1] = (struct kvf_pool){0, 65536, 4096, 16};
    e->spec.pool_count = 2;
    e->places[1][0] = (struct kvf_place){0, 1, 0};
    e->places[1][1] = (struct kvf_place){1, 1, 2048};
}
static void allow_exact_end(struct worked_example *e) { e->memory_bytes[0] = 65536; }
static void allow_interleaved(struct worked_example *e)
{
    e->pools[0].slot_stride_bytes = 2048; /* k and v rows side by side, the layers in planes of their own */
    for (int part = 0; part < 2; part++) {
        e->views[part].unit_stride_bytes = 32;
        e->views[part].entry_stride_bytes = 128;
        for (int layer = 0; layer < 2; layer++) e->places[part][layer].offset_bytes = layer * 32768 + part * 16;
    }
}
static void allow_one_slot(struct worked_example *e)
{
    e->pools[0].slots = 1;
    e->pools[0].slot_stride_bytes = 1;
}
static void allow_empty(struct worked_example *e) { kvf_layout_spec_init(&e->spec, sizeof e->spec); }

static void test_allowed(void **state)
{
    static const struct { const char *name; void (*change)(struct worked_example *); } rows[] = {
        {"k and v share one cache", allow_alias}, {"layers share one cache", allow_layer_alias},
        {"overlap of two groups", allow_other_group}, {"pools of unlike stride in one memory", allow_other_stride},
        {"pools behind one another", allow_base_apart}, {"memory exactly as long", allow_exact_end},
        {"rows interleaved", allow_interleaved}, {"one slot of any stride", allow_one_slot}, {"nothing", allow_empty},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct worked_example example;
        struct kvf_error error = {0};
        kvf_layout *layout = NULL;

        worked_example_first(&example, 0);
        rows[i].change(&example);
        if (kvf_layout_create(&example.spec, &layout, &error) != KVF_OK) fail_msg("%s: %s", rows[i].name, error.text);
        kvf_layout_release(layout);
    }
}

static void test_struct_sizes(void **state)
{
    struct { struct kvf_layout_spec spec; uint64_t later; } longer;
    static const struct { const char *name; size_t size; uint64_t later; enum kvf_status status; } rows[] = {
        {"size only", sizeof(size_t), 0, KVF_OK},
        {"without views", offsetof(struct kvf_layout_spec, views), 0, KVF_OK},
        {"equal", sizeof(struct kvf_layout_spec), 0, KVF_OK},
        {"longer, zero", sizeof(struct kvf_layout_spec) + 8, 0, KVF_OK},
        {"longer, not zero", sizeof(struct kvf_layout_spec) + 8, 1, KVF_ERR_NEWER_OPTION},
        {"no size", 0, 0, KVF_ERR_INVALID_ARGUMENT},
    };
    struct kvf_error error = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct worked_example example;
        kvf_layout *layout = NULL;

        worked_example_first(&example, 0);
        longer.spec = example.spec;
        longer.spec.struct_size = rows[i].size;
        longer.later = rows[i].later;
        if (kvf_layout_create(&longer.spec, &layout, &error) != rows[i].status) fail_msg("%s", rows[i].name);
        if (layout) {
            size_t views = rows[i].size < sizeof longer.spec ? 0 : 2;

            assert_int_equal(kvf_layout_get_spec(layout)->view_count, views);
            assert_int_equal(kvf_layout_get_spec(layout)->struct_size, sizeof longer.spec);
        }
        kvf_layout_release(layout);
    }
    assert_int_equal(kvf_layout_create(NULL, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
    memset(&longer, 0xff, sizeof longer);
    kvf_layout_spec_init(&longer.spec, sizeof longer);
    assert_int_equal(longer.spec.struct_size, sizeof longer);
    assert_int_equal(longer.later, 0);
}

static void test_owns_everything(void **state)
{
    struct worked_example *example = malloc(sizeof *example);
    char role[] = "k";
    kvf_layout *layout = NULL, *again;
    const struct kvf_layout_spec *spec;
    const struct kvf_place *sorted;

    (void)state;
    worked_example_second(example, 0);
    example->views[0].role = role;
    example->places[0][0].layer = 1;
    example->places[0][1].layer = 0;
    assert_int_equal(kvf_layout_create(&example->spec, &layout, NULL), KVF_OK);
    role[0] = 'x';
    memset(example, 0xee, sizeof *example);
    free(example);
    again = kvf_layout_acquire(layout);
    assert_ptr_equal(again, layout);
    kvf_layout_release(layout);
    spec = kvf_layout_get_spec(again);
    assert_string_equal(spec->views[0].role, "k");
    assert_int_equal(spec->views[0].places[0].layer, 1);
    assert_int_equal(spec->views[3].places[1].offset_bytes, 320);
    sorted = kvfi_view_places_by_layer(again, &spec->views[0]);
    assert_int_equal(sorted[0].layer, 0);
    assert_int_equal(sorted[0].offset_bytes, 1536);
    assert_int_equal(kvfi_view_place(again, &spec->views[0], 2)->offset_bytes, 0);
    assert_null(kvfi_view_place(again, &spec->views[0], 4));
    assert_int_equal(kvfi_tokens_per_entry(again, &spec->views[0]), 1);
    assert_int_equal(kvfi_tokens_per_entry(again, &spec->views[2]), 0);
    kvf_layout_release(again);
    kvf_layout_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused), cmocka_unit_test(test_refused_otherwise), cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_struct_sizes), cmocka_unit_test(test_owns_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
