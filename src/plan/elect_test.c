/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of election apart from grids: stripes, parts of rows, what is missing, places, and every cell once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/layout.h"
#include "plan/test_instance.h"

/* Instances given row by row: each row is one rank with one part. */
static const struct rule_case {
    const char *name;
    struct test_row src[4];
    struct test_row dst[3];
    const char *expected; /* for destination rank 0, role k, layer 0 */
} rule_cases[] = {
    {"two stripes, both used",
     {{"k", 2, 0, 2, 16, 0, 16, 2, 0, 4, 0, 1, 0}, {"k", 2, 0, 2, 16, 0, 16, 2, 1, 4, 0, 1, 0}},
     {{"k", 2, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "0:0-2 1:0-2"},
    {"a stripe is missing",
     {{"k", 2, 0, 2, 16, 0, 16, 2, 1, 4, 0, 1, 0}, {"k", 2, 0, 2, 16, 0, 16, 2, 1, 4, 0, 1, 0}},
     {{"k", 2, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "k layer 0 units [0,2): no source rank holds stripe 0 of 2"},
    {"more stripes than ranks",
     {{"k", 2, 0, 2, 16, 0, 16, 1LL << 40, 0, 4, 0, 1, 0}, {"k", 2, 0, 2, 16, 0, 16, 1LL << 40, 1, 4, 0, 1, 0}},
     {{"k", 2, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     "k layer 0 units [0,2): no source rank holds stripe 2 of 1099511627776"},
    {"striped unlike",
     {{"k", 2, 0, 2, 16, 0, 16, 2, 0, 4, 0, 1, 0}, {"k", 2, 0, 2, 16, 0, 16, 2, 1, 8, 0, 1, 0}},
     {{"k", 2, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     "k layer 0: source ranks 0 and 1 stripe it in different ways: 2 stripes of 4 tokens and 2 of 8"},
    {"striped unlike in other units is no matter",
     {{"k", 4, 0, 2, 16, 0, 16, 2, 0, 4, 0, 1, 0}, {"k", 4, 0, 2, 16, 0, 16, 2, 1, 4, 0, 1, 0},
      {"k", 4, 2, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     {{"k", 4, 0, 4, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "0:0-2 1:0-2 2:2-4"},
    {"copies of a stripe, ranks not in stripe order",
     {{"k", 2, 0, 2, 16, 0, 16, 2, 1, 4, 0, 1, 0}, {"k", 2, 0, 2, 16, 0, 16, 2, 0, 4, 0, 1, 0},
      {"k", 2, 0, 2, 16, 0, 16, 2, 1, 4, 0, 1, 0}, {"k", 2, 0, 2, 16, 0, 16, 2, 0, 4, 0, 1, 0}},
     {{"k", 2, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}, {"k", 2, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "0:0-2 1:0-2"},
    {"rivals of another stripe do not count",
     {{"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}, {"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     {{"k", 1, 0, 1, 16, 0, 16, 2, 1, 4, 0, 1, 0}, {"k", 1, 0, 1, 16, 0, 16, 2, 0, 4, 0, 1, 0}}, "0:0-1"},
    {"bytes cut at the source's parts",
     {{"k", 1, 0, 1, 16, 0, 12, 1, 0, 0, 0, 1, 0}, {"k", 1, 0, 1, 16, 12, 4, 1, 0, 0, 0, 1, 0}},
     {{"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "0:0-1/0-12 1:0-1/12-16"},
    {"a part of the row wanted",
     {{"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     {{"k", 1, 0, 1, 16, 4, 8, 1, 0, 0, 0, 1, 0}}, "0:0-1/4-12"},
    {"units missing",
     {{"k", 4, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}, {"k", 4, 3, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     {{"k", 4, 0, 4, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "k layer 0 units [2,3): no source rank holds them"},
    {"bytes missing",
     {{"k", 1, 0, 1, 16, 0, 12, 1, 0, 0, 0, 1, 0}},
     {{"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "k layer 0 units [0,1) bytes [12,16): no source rank holds them"},
    {"layer missing",
     {{"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 2, 0}},
     {{"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 3, 0}}, "k layer 2 units [0,1): no source rank holds them"},
    {"role missing",
     {{"v", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     {{"k", 1, 0, 1, 16, 0, 16, 1, 0, 0, 0, 1, 0}}, "k layer 0 units [0,1): no source rank holds them"},
    {"optional and missing in part",
     {{"k", 4, 0, 2, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     {{"k", 4, 0, 4, 16, 0, 16, 1, 0, 0, 0, 1, KVF_VIEW_OPTIONAL}}, "0:0-2"},
    {"other number of units",
     {{"k", 8, 0, 8, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     {{"k", 4, 0, 4, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     "k layer 0: unit_total is 8 at source rank 0 and 4 at the destination"},
    {"other row",
     {{"k", 4, 0, 4, 32, 0, 32, 1, 0, 0, 0, 1, 0}},
     {{"k", 4, 0, 4, 16, 0, 16, 1, 0, 0, 0, 1, 0}},
     "k layer 0: row_bytes is 32 at source rank 0 and 16 at the destination"},
};

static void make_rows(struct test_instance *instance, const struct test_row *rows, size_t count)
{
    for (size_t i = 0; i < count && rows[i].role; i++) {
        test_add(instance, (struct kvf_rank){.tp = (int64_t)i}, &rows[i], 1);
    }
}

static void test_rules(void **state)
{
    static struct test_instance src, dst;

    (void)state;
    for (size_t i = 0; i < sizeof rule_cases / sizeof rule_cases[0]; i++) {
        char text[KVF_ERROR_TEXT_BYTES];

        make_rows(&src, rule_cases[i].src, 4);
        make_rows(&dst, rule_cases[i].dst, 3);
        test_describe(&src, &dst, 0, "k", 0, text, sizeof text);
        if (strcmp(text, rule_cases[i].expected) != 0) fail_msg("%s: %s", rule_cases[i].name, text);
        test_fini(&src);
        test_fini(&dst);
    }
}

static void test_skipped(void **state)
{
    static struct test_instance src, dst;
    const struct test_row has = test_units("k", 4, 1, 1, 1);
    struct test_row wants[] = {test_units("k", 4, 0, 4, 1), test_units("draft", 4, 0, 4, 2)};
    const struct kvf_skipped *skipped;
    kvf_election *election = NULL;
    size_t count;

    (void)state;
    wants[0].flags = wants[1].flags = KVF_VIEW_OPTIONAL;
    test_add(&src, (struct kvf_rank){0}, &has, 1);
    test_add(&dst, (struct kvf_rank){0}, wants, 2);
    assert_int_equal(kvf_elect(src.members, 1, dst.members, 1, 0, &election, NULL), KVF_OK);
    test_fini(&src);
    test_fini(&dst);
    skipped = kvf_election_skipped(election, &count);
    assert_int_equal(count, 4);
    assert_string_equal(skipped[0].role, "draft");
    assert_int_equal(skipped[1].layer, 1);
    assert_int_equal(skipped[1].unit_count, 4);
    assert_string_equal(skipped[2].role, "k");
    assert_int_equal(skipped[2].unit_count, 1);
    assert_int_equal(skipped[3].unit_first, 2);
    assert_int_equal(skipped[3].unit_count, 2);
    assert_int_equal(kvf_share_count(kvf_election_share(election, 0)), 1);
    assert_null(kvf_election_share(election, 1));
    kvf_election_destroy(election);
    kvf_election_destroy(NULL);
}

static void test_arguments(void **state)
{
    struct kvf_error error = {0};
    kvf_election *election = NULL;

    (void)state;
    assert_int_equal(kvf_elect(NULL, 0, NULL, 0, 0, &election, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "election: destination rank 0 of 0");
    assert_int_equal(kvf_elect(NULL, 1, NULL, 0, 0, &election, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_null(election);
}

/* Layers 3 and 7 share one place at the destination. */
static kvf_layout *shared_place(void)
{
    const int64_t memory_bytes = -1;
    const struct kvf_pool pool = {0, 0, 256, 4};
    const struct kvf_group group = {16, 0, 1, 0, 0};
    const struct kvf_place places[] = {{3, 0, 0}, {4, 0, 4096}, {7, 0, 0}};
    const struct kvf_view view = {.role = "k", .tag = "bf16", .row_bytes = 16, .byte_count = 16, .unit_total = 1,
                                  .unit_count = 1, .unit_stride_bytes = 16, .entry_stride_bytes = 16, .entries = 16,
                                  .slots_per_block = 1, .places = places, .place_count = 3};
    struct kvf_layout_spec spec;
    kvf_layout *layout = NULL;

    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &memory_bytes;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = &view;
    spec.memory_count = spec.pool_count = spec.group_count = spec.view_count = 1;
    assert_int_equal(kvf_layout_create(&spec, &layout, NULL), KVF_OK);
    return layout;
}

static void test_places(void **state)
{
    static const struct { const char *name; int64_t cut; const char *text; } rows[] = {
        {"one source", 8, NULL},
        {"layers apart after 4", 5, "layers 3 and 7 share one place here but come from ranks 0 and 4"},
    };
    kvf_layout *layout = shared_place();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static struct test_instance src, dst;
        struct test_row low = test_units("k", 1, 0, 1, rows[i].cut), high = test_units("k", 1, 0, 1, 8);
        struct kvf_error error = {0};
        kvf_election *election = NULL;
        kvf_holdings *holdings = NULL;
        enum kvf_status status;

        high.layer_first = rows[i].cut;
        for (int64_t tp = 0; tp < 8; tp++) test_add(&src, (struct kvf_rank){.pp = tp / 4, .tp = tp % 4},
                                                    tp < 4 ? &low : &high, 1);
        assert_int_equal(kvf_holdings_from_layout(layout, &holdings, NULL), KVF_OK);
        dst.members[dst.count++] = (struct kvf_member){{0}, holdings};
        assert_int_equal(kvf_elect(src.members, 8, dst.members, 1, 0, &election, &error), KVF_OK);
        status = kvf_election_check_places(election, layout, &error);
        if (status != (rows[i].text ? KVF_ERR_INCOMPATIBLE : KVF_OK)) fail_msg("%s: %s", rows[i].name, error.text);
        if (rows[i].text) assert_string_equal(error.text, rows[i].text);
        kvf_election_destroy(election);
        test_fini(&src);
        test_fini(&dst);
    }
    kvf_layout_release(layout);
}

/* Units or bytes in two views, of which only the second one's layers 3 and 7 share a place. */
static kvf_layout *half_shared_place(bool cut_units)
{
    const int64_t memory_bytes = -1;
    const struct kvf_pool pool = {0, 0, 512, 4};
    const struct kvf_group group = {16, 0, 1, 0, 0};
    const struct kvf_place apart[] = {{3, 0, 4096}, {7, 0, 8192}}, shared[] = {{3, 0, 0}, {7, 0, 0}};
    struct kvf_view views[2];
    struct kvf_layout_spec spec;
    kvf_layout *layout = NULL;

    for (int i = 0; i < 2; i++) {
        views[i] = (struct kvf_view){.role = "k", .tag = "bf16", .row_bytes = 16, .byte_count = cut_units ? 16 : 8,
                                     .byte_first = cut_units ? 0 : 8 * i, .unit_total = 4,
                                     .unit_first = cut_units ? 2 * i : 0, .unit_count = cut_units ? 2 : 4,
                                     .unit_stride_bytes = cut_units ? 16 : 8, .entry_stride_bytes = 32, .entries = 16,
                                     .slots_per_block = 1, .places = i ? shared : apart, .place_count = 2};
    }
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = &memory_bytes;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = views;
    spec.memory_count = spec.pool_count = spec.group_count = 1;
    spec.view_count = 2;
    assert_int_equal(kvf_layout_create(&spec, &layout, NULL), KVF_OK);
    return layout;
}

/* Only senders to the shared place matter: those of the other view may differ from layer to layer. */
static void test_places_of_parts(void **state)
{
    static const struct { const char *name; bool cut_units; int split; } rows[] = {
        {"units, other view differs", true, 0}, {"units, shared place differs", true, 1},
        {"bytes, other view differs", false, 0}, {"bytes, shared place differs", false, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static struct test_instance src, dst;
        kvf_layout *layout = half_shared_place(rows[i].cut_units);
        struct kvf_error error = {0};
        kvf_election *election = NULL;
        kvf_holdings *holdings = NULL;
        struct test_row half[2];

        for (int j = 0; j < 2; j++) {
            half[j] = test_units("k", 4, rows[i].cut_units ? 2 * j : 0, rows[i].cut_units ? 2 : 4, 8);
            half[j].byte_first = rows[i].cut_units ? 0 : 8 * j;
            half[j].byte_count = rows[i].cut_units ? 16 : 8;
        }
        test_add(&src, (struct kvf_rank){.tp = 2}, &half[!rows[i].split], 1);
        half[rows[i].split].layer_count = 4;
        test_add(&src, (struct kvf_rank){.tp = 0}, &half[rows[i].split], 1);
        half[rows[i].split].layer_first = 4;
        test_add(&src, (struct kvf_rank){.tp = 1}, &half[rows[i].split], 1);
        assert_int_equal(kvf_holdings_from_layout(layout, &holdings, NULL), KVF_OK);
        dst.members[dst.count++] = (struct kvf_member){{0}, holdings};
        if (kvf_elect(src.members, 3, dst.members, 1, 0, &election, &error) != KVF_OK) fail_msg("%s", error.text);
        if (kvf_election_check_places(election, layout, &error) != (rows[i].split ? KVF_ERR_INCOMPATIBLE : KVF_OK)) {
            fail_msg("%s: %s", rows[i].name, error.text);
        }
        if (rows[i].split) {
            assert_string_equal(error.text, "layers 3 and 7 share one place here but come from ranks 1 and 2");
        }
        kvf_election_destroy(election);
        kvf_layout_release(layout);
        test_fini(&src);
        test_fini(&dst);
    }
}

static uint64_t random_state;

static int64_t pick(int64_t first, int64_t last)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return first + (int64_t)(random_state % (uint64_t)(last - first + 1));
}

/* A random instance that holds everything: stages, stripes, unit cuts, copies, and byte cuts. */
static void random_instance(struct test_instance *instance, int64_t units, int64_t layers)
{
    int64_t stages = pick(1, 2), stripes = pick(1, 3), cuts = pick(1, units), copies = pick(1, 3), tp = 0;
    int64_t middle = pick(1, 15), parts = pick(1, 2);

    for (int64_t pp = 0; pp < stages; pp++)
        for (int64_t cp = 0; cp < stripes; cp++)
            for (int64_t cut = 0; cut < cuts; cut++)
                for (int64_t copy = 0; copy < copies; copy++) {
                    int64_t first = cut * units / cuts, layer = pp * layers / stages;
                    struct test_row rows[2] = {{"k", units, first, (cut + 1) * units / cuts - first, 16, 0, 16, stripes,
                                                cp, stripes > 1 ? 4 : 0, layer, (pp + 1) * layers / stages - layer, 0}};

                    rows[1] = rows[0];
                    if (parts == 2) {
                        rows[0].byte_count = rows[1].byte_first = middle;
                        rows[1].byte_count = 16 - middle;
                    }
                    test_add(instance, (struct kvf_rank){.pp = pp, .cp = cp, .tp = tp++}, rows, (size_t)parts);
                }
}

/* Counts how often each (stripe, layer, unit, byte) of one destination is sent, and checks that senders hold it. */
static void check_once(const struct test_instance *src, const struct test_instance *dst, size_t rank, uint64_t seed)
{
    static int sent[3][4][8][16];
    struct kvf_error error = {0};
    kvf_election *election = NULL;
    size_t row_count;
    const struct kvf_holding *rows = kvf_holdings_rows(dst->members[rank].holdings, &row_count);
    int64_t stripes = 1;

    memset(sent, 0, sizeof sent);
    if (kvf_elect(src->members, src->count, dst->members, dst->count, rank, &election, &error) != KVF_OK) {
        fail_msg("seed %llu: %s", (unsigned long long)seed, error.text);
    }
    for (size_t s = 0; s < src->count; s++) {
        const kvf_share *share = kvf_election_share(election, s);
        size_t count;
        const struct kvf_holding *held = kvf_holdings_rows(src->members[s].holdings, &count);

        stripes = held->stripes;
        for (size_t i = 0; share && i < kvf_share_count(share); i++) {
            const struct kvf_cell cell = kvf_share_cell(share, i);

            assert_true(cell.layer >= held->layers[0] && cell.layer <= held->layers[held->layer_count - 1]);
            assert_true(cell.unit_first >= held->unit_first);
            assert_true(cell.unit_first + cell.unit_count <= held->unit_first + held->unit_count);
            for (int64_t u = 0; u < cell.unit_count; u++)
                for (int64_t b = 0; b < cell.byte_count; b++)
                    sent[held->stripe][cell.layer][cell.unit_first + u][cell.byte_first + b]++;
        }
    }
    for (size_t r = 0; r < row_count; r++)
        for (size_t l = 0; l < rows[r].layer_count; l++)
            for (int64_t stripe = 0; stripe < stripes; stripe++)
                for (int64_t u = 0; u < rows[r].unit_count; u++)
                    for (int64_t b = 0; b < rows[r].byte_count; b++)
                        sent[stripe][rows[r].layers[l]][rows[r].unit_first + u][rows[r].byte_first + b]--;
    for (size_t i = 0; i < sizeof sent / sizeof(int); i++) {
        if ((&sent[0][0][0][0])[i]) fail_msg("seed %llu rank %zu: number %zu is %d", (unsigned long long)seed, rank, i,
                                             (&sent[0][0][0][0])[i]);
    }
    kvf_election_destroy(election);
}

static void test_every_cell_once(void **state)
{
    static struct test_instance src, dst;

    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        int64_t units, layers;

        random_state = seed * UINT64_C(0x9e3779b97f4a7c15);
        units = pick(1, 8);
        layers = pick(2, 4);
        random_instance(&src, units, layers);
        random_instance(&dst, units, layers);
        for (size_t rank = 0; rank < dst.count; rank++) check_once(&src, &dst, rank, seed);
        test_fini(&src);
        test_fini(&dst);
    }
}

/* A thousand ranks on both sides: finishing within the test's time is the assertion. */
static void test_many_ranks(void **state)
{
    static const int64_t heads[] = {1, 8, 1000};
    static struct test_instance src, dst;
    kvf_election *election = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        test_add_heads(&src, heads[i], 1000, 80);
        test_add_heads(&dst, heads[i], 1000, 80);
        for (size_t rank = 0; rank < 1000; rank++) {
            assert_int_equal(kvf_elect(src.members, 1000, dst.members, 1000, rank, &election, NULL), KVF_OK);
            assert_int_equal(kvf_share_count(kvf_election_share(election, rank)), 80);
            kvf_election_destroy(election);
        }
        test_fini(&dst);
        test_add_heads(&dst, heads[i], 1, 80);
        assert_int_equal(kvf_elect(src.members, 1000, dst.members, 1, 0, &election, NULL), KVF_OK);
        kvf_election_destroy(election);
        test_fini(&src);
        test_fini(&dst);
    }
}

/* Rows of one layer each, all layers apart, as only a hostile rank has them: what they cost is bounded. */
static void test_many_rows(void **state)
{
    enum { ROWS = 20000 };
    static const struct { const char *name; size_t rows; uint32_t flags; enum kvf_status status; } cases[] = {
        {"a thousand", 1000, 0, KVF_OK},
        {"too many", ROWS, 0, KVF_ERR_LIMIT},
        {"too many, optional", ROWS, KVF_VIEW_OPTIONAL, KVF_ERR_LIMIT},
    };
    static struct kvf_holding rows[ROWS];
    static int64_t layers[ROWS];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvf_error error = {0};
        kvf_holdings *holdings = NULL;
        kvf_election *election = NULL;
        struct kvf_member member = {0};

        for (size_t r = 0; r < cases[i].rows; r++) {
            layers[r] = (int64_t)r;
            rows[r] = (struct kvf_holding){.role = "k", .tag = "t", .row_bytes = 16, .byte_count = 16,
                                           .unit_total = ROWS, .unit_first = (int64_t)r, .unit_count = 1,
                                           .stripes = 1, .flags = cases[i].flags, .layers = &layers[r],
                                           .layer_count = 1};
        }
        assert_int_equal(kvf_holdings_create(rows, cases[i].rows, &holdings, NULL), KVF_OK);
        member.holdings = holdings;
        if (kvf_elect(&member, 1, &member, 1, 0, &election, &error) != cases[i].status) {
            fail_msg("%s: %s", cases[i].name, error.text);
        }
        if (cases[i].status != KVF_OK) {
            assert_string_equal(error.text, "election of k takes more than 268435456 steps");
            assert_null(election);
        }
        kvf_election_destroy(election);
        kvf_holdings_release(holdings);
    }
}

/* One row against a thousand cuts of its units times a thousand of its bytes. */
static void test_many_cuts(void **state)
{
    enum { ROWS = 4096 };
    static struct kvf_holding rows[ROWS];
    static const int64_t layer = 0;
    const struct kvf_holding all = {.role = "k", .tag = "t", .row_bytes = ROWS, .byte_count = ROWS, .unit_total = ROWS,
                                    .unit_count = ROWS, .stripes = 1, .layers = &layer, .layer_count = 1};
    struct kvf_error error = {0};
    kvf_holdings *cut = NULL, *whole = NULL;
    kvf_election *election = NULL;
    struct kvf_member src[2] = {{{0}, NULL}, {{.tp = 1}, NULL}}, dst = {0};

    (void)state;
    for (int64_t r = 0; r < ROWS; r++) {
        rows[r] = all;
        rows[r].unit_first = rows[r].byte_first = r;
        rows[r].unit_count = rows[r].byte_count = 1;
    }
    assert_int_equal(kvf_holdings_create(rows, ROWS, &cut, NULL), KVF_OK);
    assert_int_equal(kvf_holdings_create(&all, 1, &whole, NULL), KVF_OK);
    src[0].holdings = cut;
    src[1].holdings = dst.holdings = whole;
    assert_int_equal(kvf_elect(src, 2, &dst, 1, 0, &election, &error), KVF_ERR_LIMIT);
    kvf_holdings_release(whole);
    kvf_holdings_release(cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules), cmocka_unit_test(test_skipped), cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_places), cmocka_unit_test(test_places_of_parts),
        cmocka_unit_test(test_every_cell_once), cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_many_rows), cmocka_unit_test(test_many_cuts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
