/* SPDX-License-Identifier: Apache-2.0 */
/* Which layouts cannot be joined, in which words; and which differences do not matter. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan_kit.h"
#include "plan/share.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/** One layout of a role "k" in layers 3 and 7; zero means the usual. */
struct form {
    const char *tag;
    int64_t row, total, tokens, entries, ring, stripes, stripe, stripe_tokens;
    int64_t slots, stride, base, unit_stride, first, units, layer_count;
    uint32_t flags;
    bool state;
};

static int64_t or_else(int64_t value, int64_t usual) { return value ? value : usual; }

static void build(struct kit *kit, const struct form *form)
{
    int64_t row = or_else(form->row, 64), tokens = form->state ? 0 : or_else(form->tokens, 16);
    int64_t entries = or_else(form->entries, form->state ? 1 : tokens), units = or_else(form->units, 2);

    kit_init(kit);
    kit_pool(kit, kit_memory(kit), form->base, or_else(form->stride, 8 * units * entries * row),
             or_else(form->slots, 8));
    kit->groups[kit_group(kit, tokens)] =
        (struct kvf_group){tokens, form->ring, or_else(form->stripes, 1), form->stripe, form->stripe_tokens};
    kit_view(kit, (struct kit_part){.role = "k", .tag = form->tag, .row = row, .total = or_else(form->total, 2),
                                    .first = form->first, .units = units, .unit_stride = entries * row,
                                    .entries = entries, .flags = form->flags});
    kit_place(kit, 7, 0, 0);
    if (form->layer_count != 1) kit_place(kit, form->layer_count == 2 ? 5 : 3, 0, units * entries * row);
}

static const struct row {
    const char *name;
    struct form src, dst;
    uint64_t flags;
    const char *text;
} rows[] = {
    {"tag", {.tag = "bf16"}, {.tag = "fp8_e4m3"}, 0,
     "k layer 3: tag is \"bf16\" at the source, \"fp8_e4m3\" at the destination"},
    {"row", {.row = 64}, {.row = 128}, 0, "k layer 3: row_bytes is 64 at the source, 128 at the destination"},
    {"units", {.total = 2}, {.total = 4}, 0, "k layer 3: unit_total is 2 at the source, 4 at the destination"},
    {"state against positions", {.state = true}, {0}, 0, "k layer 3: state is 1 at the source, 0 at the destination"},
    {"taps", {.state = true, .entries = 3}, {.state = true, .entries = 4}, 0,
     "k layer 3: taps is 3 at the source, 4 at the destination"},
    {"compression", {.tokens = 16, .entries = 4}, {.tokens = 16, .entries = 16}, 0,
     "k layer 3: tokens_per_entry is 4 at the source, 1 at the destination"},
    {"blocks under the option", {.tokens = 16}, {.tokens = 24}, KVF_PLAN_DIVISIBLE_BLOCKS,
     "k layer 3: tokens_per_block (one must divide the other) is 16 at the source, 24 at the destination"},
    {"atomic on one side", {.entries = 1, .flags = KVF_VIEW_ATOMIC}, {.entries = 1}, 0,
     "k layer 3: atomic is 1 at the source, 0 at the destination"},
    {"atomic, another shard", {.total = 4, .entries = 1, .flags = KVF_VIEW_ATOMIC},
     {.total = 4, .first = 2, .entries = 1, .flags = KVF_VIEW_ATOMIC}, 0,
     "k layer 3: atomic unit_first is 0 at the source, 2 at the destination"},
    {"atomic, another block size", {.tokens = 16, .entries = 1, .flags = KVF_VIEW_ATOMIC},
     {.tokens = 32, .entries = 1, .flags = KVF_VIEW_ATOMIC}, 0,
     "k layer 3: tokens_per_entry is 16 at the source, 32 at the destination"},
    {"atomic, another stripe", {.entries = 1, .flags = KVF_VIEW_ATOMIC, .stripes = 2, .stripe_tokens = 16},
     {.entries = 1, .flags = KVF_VIEW_ATOMIC, .stripes = 2, .stripe = 1, .stripe_tokens = 16}, 0,
     "k layer 3: atomic stripe is 0 at the source, 1 at the destination"},
    {"atomic, fewer layers", {.entries = 1, .flags = KVF_VIEW_ATOMIC},
     {.entries = 1, .flags = KVF_VIEW_ATOMIC, .layer_count = 1}, 0,
     "k layer 7: atomic layer count is 2 at the source, 1 at the destination"},
    {"atomic, other layers", {.entries = 1, .flags = KVF_VIEW_ATOMIC},
     {.entries = 1, .flags = KVF_VIEW_ATOMIC, .layer_count = 2}, 0,
     "k layer 7: atomic layer before it is 3 at the source, 5 at the destination"},
    {"blocks", {.tokens = 16}, {.tokens = 24}, 0, NULL},
    {"blocks that divide, under the option", {.tokens = 16}, {.tokens = 64}, KVF_PLAN_DIVISIBLE_BLOCKS, NULL},
    {"rings of other blocks, under the option", {.tokens = 16, .ring = 32}, {.tokens = 24, .ring = 48},
     KVF_PLAN_DIVISIBLE_BLOCKS, NULL},
    {"capacity, base, slot stride", {.slots = 8}, {.slots = 9000, .base = 12345, .stride = 1 << 20}, 0, NULL},
    {"equal atoms", {.entries = 1, .flags = KVF_VIEW_ATOMIC}, {.entries = 1, .flags = KVF_VIEW_ATOMIC}, 0, NULL},
    {"layers that the destination lacks", {0}, {.layer_count = 1}, 0, NULL},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kit src, dst;

        print_message("%s\n", rows[i].name);
        build(&src, &rows[i].src);
        build(&dst, &rows[i].dst);
        if (rows[i].text) kit_refused(&src, &dst, rows[i].flags, KVF_ERR_INCOMPATIBLE, rows[i].text);
        else kvf_plan_release(kit_plan(&src, &dst, rows[i].flags));
        kit_free(&dst);
        kit_free(&src);
    }
}

/** Two parts in 64-byte slots of 16 tokens; the second at `offset` in layer `layer`. */
static void two_places(struct kit *kit, const char *role, int64_t layer, int64_t offset)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, 128, 8);
    kit_group(kit, 16);
    kit_view(kit, (struct kit_part){.role = "k", .row = 64});
    kit_place(kit, 3, 0, 0);
    if (role) kit_view(kit, (struct kit_part){.role = role, .row = 64});
    kit_place(kit, layer, 0, offset);
}

static void test_shared_places(void **state)
{
    struct kvf_plan_info info;
    struct kit apart, shared;
    kvf_plan *plan, *part = NULL;
    struct kvf_patch patch;

    (void)state;
    two_places(&apart, NULL, 7, 64);
    two_places(&shared, NULL, 7, 0);
    kit_refused(&apart, &shared, 0, KVF_ERR_INCOMPATIBLE,
                "layers 3 and 7 share one place at the destination but not at the source");
    /* shared on both sides: kept once, with the smaller layer, and a chunk of layer 7 still moves it */
    plan = kit_plan(&shared, &shared, 0);
    kvf_plan_get_info(plan, &info);
    assert_int_equal(info.patches, 1);
    assert_int_equal(info.layer_min, 3);
    assert_int_equal(info.layer_end, 8);
    assert_int_equal(kvf_plan_patch(plan, 0, 0, &patch), KVF_OK);
    assert_int_equal(patch.layer, 3);
    assert_int_equal(kvf_plan_restrict(plan, 7, 8, &part, NULL), KVF_OK);
    assert_int_equal(kvf_plan_patch(part, 0, 0, &patch), KVF_OK);
    assert_int_equal(patch.layer, 7);
    kvf_plan_release(part);
    kvf_plan_release(plan);
    /* shared at the source only: both move */
    plan = kit_plan(&shared, &apart, 0);
    kvf_plan_get_info(plan, &info);
    assert_int_equal(info.patches, 2);
    kvf_plan_release(plan);
    kit_free(&apart);
    kit_free(&shared);

    two_places(&apart, "v", 3, 64);
    two_places(&shared, "v", 3, 0);
    kit_refused(&apart, &shared, 0, KVF_ERR_INCOMPATIBLE,
                "k layer 3 and v layer 3 share one place at the destination but not at the source");
    kit_free(&apart);
    kit_free(&shared);
}

/** The same across two tracks: two source groups, one place at the destination. */
static void test_shared_place_across_tracks(void **state)
{
    struct kit apart, shared;

    (void)state;
    two_places(&shared, "v", 7, 0);
    two_places(&apart, "v", 7, 64);
    apart.views[1].group = kit_group(&apart, 16);
    kit_refused(&apart, &shared, 0, KVF_ERR_INCOMPATIBLE,
                "k layer 3 and v layer 7 share one place at the destination but not at the source");
    kit_free(&apart);
    kit_free(&shared);
}

/** A share that cuts an atom. */
static void test_cut_atom(void **state)
{
    const struct form atom = {.entries = 1, .flags = KVF_VIEW_ATOMIC};
    const struct kvf_cell cell = {"k", 3, 0, 1, 0, 64};
    struct kvf_share *share = NULL;
    struct kvf_error error = {0};
    kvf_plan *plan = NULL;
    kvf_layout *layout;
    struct kit kit;

    (void)state;
    build(&kit, &atom);
    layout = kit_layout(&kit);
    assert_int_equal(kvfi_share_create(&cell, 1, &share, &error), KVF_OK);
    assert_int_equal(kvf_plan_create(layout, layout, share, NULL, &plan, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "k layer 3: atomic view of 2 units of 64 bytes, the share cuts it to 1 of 64");
    assert_null(plan);
    kvfi_share_destroy(share);
    kvf_layout_release(layout);
    kit_free(&kit);
}

/** Nothing in common is an empty plan: which cells are missing is the election's question. */
static void test_nothing_in_common(void **state)
{
    const struct kvf_id_list ids = KIT_IDS(1);
    struct kvf_binding_info bound;
    struct kvf_plan_info info;
    kvf_binding *binding;
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    build(&src, &(struct form){0});
    build(&dst, &(struct form){0});
    dst.views[0].role = "other";
    plan = kit_plan(&src, &dst, 0);
    kvf_plan_get_info(plan, &info);
    assert_int_equal(info.tracks + info.boxes + info.layer_min + info.layer_end, 0);
    assert_int_equal(info.grain_tokens, 1);
    binding = kit_bind(plan, 0, 16, &ids, &ids, 0);
    kvf_binding_get_info(binding, &bound);
    assert_int_equal(bound.bytes + bound.runs, 0);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

static void test_hostile_periods(void **state)
{
    static const struct {
        const char *name;
        struct form src, dst;
        int status;
        const char *text;
    } hostile[] = {
        {"many combs", {.tokens = 4096, .row = 1}, {.tokens = 4099, .row = 1}, KVF_ERR_LIMIT,
         "groups 0 and 0: a period has more than 4096 combs"},
        {"as many as may be", {.tokens = 2048, .row = 1}, {.tokens = 2049, .row = 1}, KVF_OK, NULL},
        {"a ring of small blocks", {.tokens = 4, .ring = 1 << 20}, {.tokens = 8, .ring = 1 << 20}, KVF_ERR_LIMIT,
         "groups 0 and 0: a period has more than 4096 combs"},
        {"stripes that hardly meet", {.stripes = 1000003, .stripe_tokens = 1},
         {.stripes = 1000033, .stripe = 5, .stripe_tokens = 1}, KVF_ERR_LIMIT,
         "groups 0 and 0: more than 1048576 runs of positions"},
        {"stripes that never meet", {.stripes = 2, .stripe_tokens = 1}, {.stripes = 2, .stripe = 1, .stripe_tokens = 1},
         KVF_OK, NULL},
        {"stripes beyond 64 bits", {.stripes = INT64_C(1) << 61, .stripe_tokens = INT64_C(1) << 61},
         {.stripes = INT64_C(1) << 61, .stripe = 3, .stripe_tokens = INT64_C(1) << 61}, KVF_OK, NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(hostile); i++) {
        struct kit src, dst;

        print_message("%s\n", hostile[i].name);
        build(&src, &hostile[i].src);
        build(&dst, &hostile[i].dst);
        if (hostile[i].text) kit_refused(&src, &dst, 0, hostile[i].status, hostile[i].text);
        else kvf_plan_release(kit_plan(&src, &dst, 0));
        kit_free(&dst);
        kit_free(&src);
    }
}

/* As many tracks as heads, each with a period of its own to walk: they are bounded together. */
static void test_hostile_tracks(void **state)
{
    static const struct { const char *name; int64_t tracks; const char *text; } cases[] = {
        {"a few", 16, NULL},
        {"many", 200, "groups 64 and 0: the periods of all groups have more than 8388608 runs of positions"},
    };
    const int64_t tokens = 1 << 16;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct kit src, dst;

        print_message("%s\n", cases[i].name);
        kit_init(&src);
        kit_init(&dst);
        kit_pool(&src, kit_memory(&src), 0, INT64_C(1) << 32, 8);
        kit_pool(&dst, kit_memory(&dst), 0, INT64_C(1) << 32, 8);
        kit_group(&dst, 64);
        for (int64_t t = 0; t < cases[i].tracks; t++) {
            src.groups[kit_group(&src, tokens)] = (struct kvf_group){tokens, 0, 2, 0, 1};
            kit_view(&src, (struct kit_part){.role = "k", .group = t, .row = 1, .total = cases[i].tracks, .first = t,
                                             .units = 1, .unit_stride = tokens, .entries = tokens});
            kit_place(&src, 0, 0, t * tokens);
        }
        kit_view(&dst, (struct kit_part){.role = "k", .row = 1, .total = cases[i].tracks, .unit_stride = 64,
                                         .entries = 64});
        kit_place(&dst, 0, 0, 0);
        if (cases[i].text) kit_refused(&src, &dst, 0, KVF_ERR_LIMIT, cases[i].text);
        else kvf_plan_release(kit_plan(&src, &dst, 0));
        kit_free(&dst);
        kit_free(&src);
    }
}

static void test_options(void **state)
{
    struct {
        struct kvf_plan_options options;
        uint64_t later;
    } longer = {.options = {sizeof longer, 0}, .later = 0};
    struct kvf_error error = {0};
    kvf_plan *plan = NULL;
    kvf_layout *layout;
    struct kit kit;

    (void)state;
    build(&kit, &(struct form){0});
    layout = kit_layout(&kit);
    assert_int_equal(kvf_plan_create(layout, layout, NULL, &longer.options, &plan, &error), KVF_OK);
    kvf_plan_release(plan);
    plan = NULL;
    longer.later = 1;
    assert_int_equal(kvf_plan_create(layout, layout, NULL, &longer.options, &plan, &error), KVF_ERR_NEWER_OPTION);
    longer.options = (struct kvf_plan_options){sizeof longer.options, 64};
    assert_int_equal(kvf_plan_create(layout, layout, NULL, &longer.options, &plan, &error), KVF_ERR_NEWER_OPTION);
    assert_string_equal(error.text, "plan options: flags 0x40, this library knows 0x7");
    assert_int_equal(kvf_plan_create(NULL, layout, NULL, NULL, &plan, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_null(plan);
    kvf_plan_release(NULL);
    kvf_layout_release(layout);
    kit_free(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_shared_places),
        cmocka_unit_test(test_shared_place_across_tracks),
        cmocka_unit_test(test_cut_atom),
        cmocka_unit_test(test_nothing_in_common),
        cmocka_unit_test(test_hostile_periods),
        cmocka_unit_test(test_hostile_tracks),
        cmocka_unit_test(test_options),
    };

    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
