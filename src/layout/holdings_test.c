/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/layout.h"
#include "layout/worked_examples.h"

static const int64_t layers_a[] = {3, 1}, layers_b[] = {0, 2}, layers_negative[] = {0, -1}, layers_twice[] = {4, 4};
static const int64_t layers_last[] = {0, INT64_MAX};

static struct kvf_holding row(const char *role, int64_t unit_first, int64_t unit_count, const int64_t *layers)
{
    return (struct kvf_holding){.role = role, .tag = "bf16", .row_bytes = 16, .byte_count = 16, .unit_total = 4,
                                .unit_first = unit_first, .unit_count = unit_count, .stripes = 1, .layers = layers,
                                .layer_count = 2};
}

static void test_canonical_order(void **state)
{
    struct kvf_holding rows[] = {row("v", 0, 4, layers_a), row("k", 2, 2, layers_a), row("k", 0, 2, layers_b),
                                 row("k", 0, 2, layers_a)};
    kvf_holdings *holdings = NULL;
    const struct kvf_holding *own;
    size_t count;

    (void)state;
    rows[2].stripe_tokens = 16; /* means nothing without stripes */
    assert_int_equal(kvf_holdings_create(rows, 4, &holdings, NULL), KVF_OK);
    own = kvf_holdings_rows(holdings, &count);
    assert_int_equal(count, 3);
    assert_string_equal(own[0].role, "k");
    assert_int_equal(own[0].unit_first, 0);
    assert_int_equal(own[0].stripe_tokens, 0);
    assert_int_equal(own[0].layer_count, 4);
    for (int64_t i = 0; i < 4; i++) assert_int_equal(own[0].layers[i], i);
    assert_int_equal(own[1].unit_first, 2);
    assert_int_equal(own[1].layers[0], 1);
    assert_int_equal(own[1].layers[1], 3);
    assert_string_equal(own[2].role, "v");
    assert_ptr_equal(kvf_holdings_acquire(holdings), holdings);
    kvf_holdings_release(holdings);
    kvf_holdings_release(holdings);
    kvf_holdings_release(NULL);
}

static void test_refused(void **state)
{
    static const struct { const char *name; struct kvf_holding rows[2]; enum kvf_status status; const char *text; }
    rows[] = {
        {"units", {{.role = "k", .tag = "t", .row_bytes = 8, .byte_count = 8, .unit_total = 2, .unit_count = 3,
                    .stripes = 1, .layers = layers_a, .layer_count = 2}}, KVF_ERR_LAYOUT,
         "row 0 (k): 3 units from 0 on do not lie in [0,2)"},
        {"stripe", {{.role = "k", .tag = "t", .row_bytes = 8, .byte_count = 8, .unit_total = 2, .unit_count = 1,
                     .stripes = 2, .stripe = 2, .layers = layers_a, .layer_count = 2}}, KVF_ERR_LAYOUT,
         "row 0: stripe 2 of 2 stripes"},
        {"no layers", {{.role = "k", .tag = "t", .row_bytes = 8, .byte_count = 8, .unit_total = 2, .unit_count = 1,
                        .stripes = 1}}, KVF_ERR_LAYOUT, "row 0 (k): no layers"},
        {"negative layer", {{.role = "k", .tag = "t", .row_bytes = 8, .byte_count = 8, .unit_total = 2,
                             .unit_count = 1, .stripes = 1, .layers = layers_negative, .layer_count = 2}},
         KVF_ERR_LAYOUT, "row 0 (k): layer -1 is negative"},
        {"layer with no end", {{.role = "k", .tag = "t", .row_bytes = 8, .byte_count = 8, .unit_total = 2,
                                .unit_count = 1, .stripes = 1, .layers = layers_last, .layer_count = 2}},
         KVF_ERR_LAYOUT, "row 0 (k): layer 9223372036854775807 has no end in 64 bits"},
        {"layer twice", {{.role = "k", .tag = "t", .row_bytes = 8, .byte_count = 8, .unit_total = 2, .unit_count = 1,
                          .stripes = 1, .layers = layers_twice, .layer_count = 2}}, KVF_ERR_LAYOUT,
         "k layer 4: given twice"},
        {"empty role", {{.role = "", .tag = "t"}}, KVF_ERR_LAYOUT, "row 0: role is empty"},
        {"too many layers", {{.role = "k", .tag = "t", .row_bytes = 8, .byte_count = 8, .unit_total = 2,
                              .unit_count = 1, .stripes = 1, .layers = layers_a,
                              .layer_count = KVF_LAYOUT_MAX_PLACES + 1}}, KVF_ERR_LIMIT,
         "holdings have more than 1048576 layers in all"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_error error = {0};
        kvf_holdings *holdings = NULL;
        enum kvf_status status = kvf_holdings_create(rows[i].rows, 1, &holdings, &error);

        if (status != rows[i].status || strcmp(error.text, rows[i].text) != 0) {
            fail_msg("%s: %s, \"%s\"", rows[i].name, kvf_status_name(status), error.text);
        }
        assert_null(holdings);
    }
}

static void test_refused_together(void **state)
{
    const struct kvf_holding rows[] = {row("k", 0, 3, layers_a), row("k", 2, 2, layers_a)};
    struct kvf_error error = {0};
    kvf_holdings *holdings = NULL;

    (void)state;
    assert_int_equal(kvf_holdings_create(rows, 2, &holdings, &error), KVF_ERR_LAYOUT);
    assert_string_equal(error.text, "k layer 1: unit 2 byte 0 is held by rows 0 and 1");
    assert_int_equal(kvf_holdings_create(rows, KVF_LAYOUT_MAX_VIEWS + 1, &holdings, &error), KVF_ERR_LIMIT);
    assert_int_equal(kvf_holdings_create(NULL, 1, &holdings, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_holdings_create(NULL, 0, &holdings, &error), KVF_OK);
    kvf_holdings_release(holdings);
}

static void test_from_layout(void **state)
{
    struct worked_example example;
    kvf_layout *layout = NULL;
    kvf_holdings *holdings = NULL;
    const struct kvf_holding *rows;
    size_t count;

    (void)state;
    worked_example_second(&example, 1);
    assert_int_equal(kvf_layout_create(&example.spec, &layout, NULL), KVF_OK);
    assert_int_equal(kvf_holdings_from_layout(layout, &holdings, NULL), KVF_OK);
    kvf_layout_release(layout);
    rows = kvf_holdings_rows(holdings, &count);
    assert_int_equal(count, 4);
    assert_string_equal(rows[0].role, "conv.x");
    assert_int_equal(rows[0].layers[1], 5);
    assert_string_equal(rows[1].role, "k");
    assert_int_equal(rows[1].layer_count, 4);
    assert_int_equal(rows[1].unit_first, 2);
    assert_string_equal(rows[2].role, "ssm");
    assert_string_equal(rows[2].tag, "fp32");
    kvf_holdings_release(holdings);
}

static void test_digest(void **state)
{
    const struct kvf_holding low = row("k", 0, 2, layers_a), high = row("k", 2, 2, layers_a);
    const struct kvf_holding swapped[] = {high, low}, ordered[] = {low, high};
    char first[KVF_FINGERPRINT_TEXT_BYTES], second[KVF_FINGERPRINT_TEXT_BYTES];
    struct kvf_member members[2] = {{.rank = {.tp = 0}}, {.rank = {.tp = 1}}};
    struct kvf_member turned[2];
    kvf_holdings *a = NULL, *b = NULL, *both = NULL, *also_both = NULL;

    (void)state;
    assert_int_equal(kvf_holdings_create(&low, 1, &a, NULL), KVF_OK);
    assert_int_equal(kvf_holdings_create(&high, 1, &b, NULL), KVF_OK);
    assert_int_equal(kvf_holdings_create(ordered, 2, &both, NULL), KVF_OK);
    assert_int_equal(kvf_holdings_create(swapped, 2, &also_both, NULL), KVF_OK);
    members[0].holdings = a;
    members[1].holdings = both;
    assert_int_equal(kvf_members_digest(members, 2, first), KVF_OK);
    turned[0] = members[1];
    turned[1] = members[0];
    turned[0].holdings = also_both;
    assert_int_equal(kvf_members_digest(turned, 2, second), KVF_OK);
    assert_string_equal(first, second);
    assert_int_equal(strlen(first), 32);
    turned[1].holdings = b;
    assert_int_equal(kvf_members_digest(turned, 2, second), KVF_OK);
    assert_string_not_equal(first, second);
    turned[1].holdings = a;
    turned[1].rank.salt = 1;
    assert_int_equal(kvf_members_digest(turned, 2, second), KVF_OK);
    assert_string_not_equal(first, second);
    kvf_holdings_release(a);
    kvf_holdings_release(b);
    kvf_holdings_release(both);
    kvf_holdings_release(also_both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical_order), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_together), cmocka_unit_test(test_from_layout), cmocka_unit_test(test_digest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
