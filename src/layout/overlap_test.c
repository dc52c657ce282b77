/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvferry/layout.h"

enum { VIEWS = 3, PLACES = 2, POOLS = 2, MEMORY = 4096 };

static uint64_t random_state;

static int64_t pick(int64_t first, int64_t last)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return first + (int64_t)(random_state % (uint64_t)(last - first + 1));
}

struct instance {
    struct kvf_layout_spec spec;
    int64_t memory_bytes;
    struct kvf_pool pools[POOLS];
    struct kvf_group groups[2];
    struct kvf_view views[VIEWS];
    struct kvf_place places[VIEWS][PLACES];
};

static void make(struct instance *in)
{
    static const char *const roles[VIEWS] = {"a", "b", "c"};
    int64_t stride = pick(1, 40);

    *in = (struct instance){.memory_bytes = MEMORY, .groups = {{4, 0, 1, 0, 0}, {4, 0, 1, 0, 0}}};
    kvf_layout_spec_init(&in->spec, sizeof in->spec);
    in->spec.memory_bytes = &in->memory_bytes;
    in->spec.memory_count = 1;
    in->spec.pools = in->pools;
    in->spec.pool_count = POOLS;
    in->spec.groups = in->groups;
    in->spec.group_count = 2;
    in->spec.views = in->views;
    in->spec.view_count = (size_t)pick(1, VIEWS);
    for (int i = 0; i < POOLS; i++) in->pools[i] = (struct kvf_pool){0, pick(0, 1) * pick(0, 90), stride, pick(1, 6)};
    for (int i = 0; i < VIEWS; i++) {
        struct kvf_view *view = &in->views[i];

        *view = (struct kvf_view){.role = roles[i], .tag = "t", .group = pick(0, 5) == 0, .row_bytes = 8,
                                  .byte_count = pick(1, 4), .unit_total = 4, .unit_count = pick(1, 3),
                                  .unit_stride_bytes = pick(1, 30), .entry_stride_bytes = pick(1, 30),
                                  .entries = pick(0, 2) ? 1 : 2, .slots_per_block = 1, .places = in->places[i],
                                  .place_count = (size_t)pick(1, PLACES)};
        if (pick(0, 1)) view->unit_stride_bytes = view->byte_count;
        for (int j = 0; j < PLACES; j++) in->places[i][j] = (struct kvf_place){j, pick(0, POOLS - 1), pick(0, 120)};
    }
    if (pick(0, 3) == 0) in->places[1][0] = in->places[0][0];
    if (pick(0, 7) == 0) {
        in->views[1] = in->views[0];
        in->views[1].role = "b";
        in->views[1].places = in->places[1];
    }
}

/* Every address that one layer of one view takes, marked with who took it and in which group. */
struct map {
    int64_t owner[2][POOLS][MEMORY];
};

static bool tested_together(const struct instance *in, int64_t pool_a, int64_t pool_b)
{
    return pool_a == pool_b || (in->pools[pool_a].slots > 1 && in->pools[pool_b].slots > 1);
}

static bool aliases(const struct instance *in, int64_t a, int64_t b)
{
    const struct kvf_view *va = &in->views[a / PLACES], *vb = &in->views[b / PLACES];
    const struct kvf_place *pa = &va->places[a % PLACES], *pb = &vb->places[b % PLACES];
    const struct kvf_pool *qa = &in->pools[pa->pool], *qb = &in->pools[pb->pool];

    return qa->base_offset_bytes + pa->offset_bytes == qb->base_offset_bytes + pb->offset_bytes &&
           qa->slots == qb->slots && va->byte_count == vb->byte_count && va->unit_count == vb->unit_count &&
           va->entries == vb->entries &&
           (va->unit_count == 1 || va->unit_stride_bytes == vb->unit_stride_bytes) &&
           (va->entries == 1 || va->entry_stride_bytes == vb->entry_stride_bytes);
}

/* Marks one byte; true when it clashes with another owner that may not overlap. */
static bool mark(const struct instance *in, struct map *map, int64_t group, int64_t pool, int64_t address,
                 int64_t owner)
{
    bool clash = false;

    for (int64_t other = 0; other < POOLS; other++) {
        int64_t held = map->owner[group][other][address];

        if (held >= 0 && held != owner && tested_together(in, pool, other) && !aliases(in, held, owner)) clash = true;
    }
    map->owner[group][pool][address] = owner;
    return clash;
}

/* The straightforward answer: 0 legal, 1 strides do not nest, 2 two owners clash. Owners marked later may hide an alias
 * marked earlier, which is fine: aliases take the same addresses. */
static int judge(const struct instance *in, struct map *map)
{
    int verdict = 0;

    memset(map, 0xff, sizeof *map);
    for (int64_t v = 0; v < (int64_t)in->spec.view_count; v++) {
        const struct kvf_view *view = &in->views[v];

        for (int64_t p = 0; p < (int64_t)view->place_count; p++) {
            const struct kvf_pool *pool = &in->pools[view->places[p].pool];

            for (int64_t s = 0; s < pool->slots; s++)
                for (int64_t u = 0; u < view->unit_count; u++)
                    for (int64_t e = 0; e < view->entries; e++)
                        for (int64_t b = 0; b < view->byte_count; b++) {
                            int64_t at = pool->base_offset_bytes + view->places[p].offset_bytes +
                                         s * pool->slot_stride_bytes + u * view->unit_stride_bytes +
                                         e * view->entry_stride_bytes + b;

                            if (mark(in, map, view->group, view->places[p].pool, at, v * PLACES + p)) verdict = 2;
                        }
        }
    }
    return verdict;
}

static void test_against_marking(void **state)
{
    struct map *map = malloc(sizeof *map);
    int legal = 0, overlapping = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        struct instance in;
        struct kvf_error error = {0};
        kvf_layout *layout = NULL;
        enum kvf_status status;
        bool refused;

        random_state = seed * UINT64_C(0x9e3779b97f4a7c15);
        make(&in);
        status = kvf_layout_create(&in.spec, &layout, &error);
        kvf_layout_release(layout);
        if (status != KVF_OK && !strstr(error.text, "overlaps")) continue; /* strides that do not nest come first */
        refused = status != KVF_OK;
        if (refused != (judge(&in, map) == 2)) fail_msg("seed %llu: %s", (unsigned long long)seed, error.text);
        legal += !refused;
        overlapping += refused;
    }
    free(map);
    if (legal < 1000 || overlapping < 1000) fail_msg("%d legal, %d overlapping: the cases say too little", legal,
                                                     overlapping);
}

/* Two layers in planes of their own, `offset` bytes apart. */
static enum kvf_status create_planes(int64_t offset, int64_t slots, struct kvf_error *error)
{
    const int64_t memory_bytes = -1;
    const struct kvf_pool pool = {0, 0, 1024, slots};
    const struct kvf_group group = {16, 0, 1, 0, 0};
    const struct kvf_place places[] = {{0, 0, 0}, {1, 0, offset}};
    const struct kvf_view view = {.role = "k", .tag = "t", .row_bytes = 16, .byte_count = 16, .unit_total = 4,
                                  .unit_count = 4, .unit_stride_bytes = 16, .entry_stride_bytes = 64, .entries = 16,
                                  .slots_per_block = 1, .places = places, .place_count = 2};
    struct kvf_layout_spec spec;
    kvf_layout *layout = NULL;
    enum kvf_status status;

    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &memory_bytes;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = &view;
    spec.memory_count = spec.pool_count = spec.group_count = spec.view_count = 1;
    status = kvf_layout_create(&spec, &layout, error);
    kvf_layout_release(layout);
    return status;
}

static void test_any_number_of_slots(void **state)
{
    static const struct { const char *name; int64_t offset, slots; const char *text; } rows[] = {
        {"32 slots, exactly apart", 32768, 32, NULL},
        {"33 slots", 32768, 33, "k layer 0 slot 32 overlaps k layer 1 slot 0"},
        {"a byte too near", 32767, 32, "k layer 0 slot 31 overlaps k layer 1 slot 0"},
        {"shifted by half a slot", 32768 + 512, 33, "k layer 0 slot 32 overlaps k layer 1 slot 0"},
        {"2^40 slots, exactly apart", INT64_C(1) << 50, INT64_C(1) << 40, NULL},
        {"2^40 slots", (INT64_C(1) << 50) - 1024, INT64_C(1) << 40,
         "k layer 0 slot 1099511627775 overlaps k layer 1 slot 0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_error error = {0};
        enum kvf_status status = create_planes(rows[i].offset, rows[i].slots, &error);

        if (status != (rows[i].text ? KVF_ERR_LAYOUT : KVF_OK)) fail_msg("%s: %s", rows[i].name, error.text);
        if (rows[i].text && strcmp(error.text, rows[i].text) != 0) fail_msg("%s: \"%s\"", rows[i].name, error.text);
    }
}

/* Rows that do not touch are listed one by one, up to a bound that is checked before they are. */
static void test_bounded_runs(void **state)
{
    const int64_t memory_bytes = -1;
    const struct kvf_pool pool = {0, 0, INT64_C(1) << 50, 2};
    const struct kvf_group group = {1, 0, 1, 0, 0};
    const struct kvf_place places[] = {{0, 0, 0}, {1, 0, 4}};
    struct kvf_view view = {.role = "k", .tag = "t", .row_bytes = 2, .byte_count = 2, .unit_total = INT64_C(1) << 40,
                            .unit_count = INT64_C(1) << 40, .unit_stride_bytes = 8, .entry_stride_bytes = 2,
                            .entries = 1, .slots_per_block = 1, .places = places, .place_count = 2};
    struct kvf_layout_spec spec;
    struct kvf_error error = {0};
    kvf_layout *layout = NULL;

    (void)state;
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &memory_bytes;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = &view;
    spec.memory_count = spec.pool_count = spec.group_count = spec.view_count = 1;
    assert_int_equal(kvf_layout_create(&spec, &layout, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "k layer 0: the layout has more than 2097152 separate runs in its slots");
    view.unit_count = 1024;
    assert_int_equal(kvf_layout_create(&spec, &layout, &error), KVF_OK);
    kvf_layout_release(layout);
}

/* Groups of two views each, whose rows lie a row apart in every direction: the groups are tested one by one, the work
 * of all of them is bounded together. */
static void test_runs_of_all_groups(void **state)
{
    enum { GROUPS = 40, SIDE = 170 };
    static const char *const roles[2] = {"k", "v"};
    const int64_t memory_bytes = -1;
    const struct kvf_pool pool = {0, 0, INT64_C(1) << 40, 4};
    struct kvf_group groups[GROUPS];
    struct kvf_view views[2 * GROUPS];
    struct kvf_place places[2 * GROUPS];
    struct kvf_layout_spec spec;
    struct kvf_error error = {0};
    kvf_layout *layout = NULL;

    (void)state;
    for (int64_t i = 0; i < 2 * GROUPS; i++) {
        groups[i / 2] = (struct kvf_group){SIDE, 0, 1, 0, 0};
        places[i] = (struct kvf_place){i / 2, 0, i % 2 * 2};
        views[i] = (struct kvf_view){.role = roles[i % 2], .tag = "t", .group = i / 2, .row_bytes = 1, .byte_count = 1,
                                     .unit_total = SIDE, .unit_count = SIDE, .unit_stride_bytes = 4 * SIDE,
                                     .entry_stride_bytes = 4, .entries = SIDE, .slots_per_block = 1,
                                     .places = &places[i], .place_count = 1};
    }
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &memory_bytes;
    spec.pools = &pool;
    spec.groups = groups;
    spec.views = views;
    spec.memory_count = spec.pool_count = 1;
    spec.group_count = 30;
    spec.view_count = 60;
    assert_int_equal(kvf_layout_create(&spec, &layout, &error), KVF_OK);
    kvf_layout_release(layout);
    layout = NULL;
    spec.group_count = GROUPS;
    spec.view_count = 2 * GROUPS;
    assert_int_equal(kvf_layout_create(&spec, &layout, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "k layer 36: the layout has more than 2097152 separate runs in its slots");
    assert_null(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_marking), cmocka_unit_test(test_any_number_of_slots),
        cmocka_unit_test(test_bounded_runs), cmocka_unit_test(test_runs_of_all_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
