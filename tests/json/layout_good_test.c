/* SPDX-License-Identifier: Apache-2.0 */
/* Layout files that are fine: what the rules of the schema mean, rank by rank, and that layouts survive the way to
 * JSON and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvferry/instance.h"
#include "text.h"

/* One view of one rank, as far as the rules decide it. */
struct expected {
    int64_t pp, cp, tp;
    size_t view;
    int64_t unit_first, unit_count, unit_stride, entry_stride;
    size_t place_count;
    struct kvf_place first, last;
    int64_t slot_stride, memory_bytes; /* of the first place's pool */
};

struct row {
    const char *name;
    const char *grid, *pools, *groups, *views; /* ' stands for " */
    struct expected expected[6]; /* ends with place_count 0 */
};

#define K_HND "{'role': 'k', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 4, 'split': 'tp'}, 'order': " \
    "'heads_first'"
#define V_HND "{'role': 'v', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 4, 'split': 'tp'}, 'order': " \
    "'heads_first'"
#define ONE "{'role': 'k', 'tag': 'f16', 'row_bytes': 32, 'layers': {'count': 2}, "
#define PP ", 'layers': {'total': 7, 'split': 'pp'}"
#define T16 "{'tokens_per_block': 16}"
#define S8 "{'slots': 8}"

static const struct row rows[] = {
    {"heads first, layers packed, k before v", "{'tp': 2}", S8, T16,
     K_HND ", 'layers': {'count': 3}}," V_HND ", 'layers': {'count': 3}}",
     {{0, 0, 0, 0, 0, 2, 2048, 128, 3, {0, 0, 0}, {2, 0, 16384}, 24576, 196608},
      {0, 0, 1, 1, 2, 2, 2048, 128, 3, {0, 0, 4096}, {2, 0, 20480}, 24576, 196608}}},
    {"tokens first", "{'tp': 2}", S8, T16,
     "{'role': 'k', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 4, 'split': 'tp'}, 'order': 'tokens_first', "
     "'layers': [5, 9]}",
     {{0, 0, 1, 0, 2, 2, 128, 256, 2, {5, 0, 0}, {9, 0, 4096}, 8192, 65536}}},
    {"stages take the remainder early", "{'pp': 3, 'tp': 4}", S8, T16, K_HND PP "}",
     {{0, 0, 0, 0, 0, 1, 2048, 128, 3, {0, 0, 0}, {2, 0, 4096}, 6144, 49152},
      {1, 0, 1, 0, 1, 1, 2048, 128, 2, {3, 0, 0}, {4, 0, 2048}, 4096, 32768},
      {2, 0, 3, 0, 3, 1, 2048, 128, 2, {5, 0, 0}, {6, 0, 2048}, 4096, 32768}}},
    {"draft layers count on", "{'pp': 2}", S8, T16,
     "{'role': 'k', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 1}, 'order': 'heads_first', 'layers': "
     "{'total': 3, 'first': 30, 'split': 'pp'}}",
     {{0, 0, 0, 0, 0, 1, 2048, 128, 2, {30, 0, 0}, {31, 0, 2048}, 4096, 32768},
      {1, 0, 0, 0, 0, 1, 2048, 128, 1, {32, 0, 0}, {32, 0, 0}, 2048, 16384}}},
    {"listed stages", "{'pp': 2}", S8, T16,
     "{'role': 'k', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 1}, 'order': 'heads_first', 'layers': "
     "{'bounds': [2, 3, 7]}}",
     {{0, 0, 0, 0, 0, 1, 2048, 128, 1, {2, 0, 0}, {2, 0, 0}, 2048, 16384},
      {1, 0, 0, 0, 0, 1, 2048, 128, 4, {3, 0, 0}, {6, 0, 6144}, 8192, 65536}}},
    {"more ranks than heads: copies", "{'tp': 8}", S8, T16, K_HND ", 'layers': {'count': 1}}",
     {{0, 0, 0, 0, 0, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384},
      {0, 0, 1, 0, 0, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384},
      {0, 0, 5, 0, 2, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384},
      {0, 0, 7, 0, 3, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384}}},
    {"more ranks than heads, not a multiple", "{'tp': 6}", S8, T16, K_HND ", 'layers': {'count': 1}}",
     {{0, 0, 1, 0, 0, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384},
      {0, 0, 2, 0, 1, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384},
      {0, 0, 3, 0, 2, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384},
      {0, 0, 5, 0, 3, 1, 2048, 128, 1, {0, 0, 0}, {0, 0, 0}, 2048, 16384}}},
    {"listed heads: strides follow", "{'tp': 2}", S8, T16,
     "{'role': 'k', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 3, 'bounds': [0, 2, 3]}, 'order': "
     "'tokens_first', 'layers': {'count': 2}}",
     {{0, 0, 0, 0, 0, 2, 128, 256, 2, {0, 0, 0}, {1, 0, 4096}, 8192, 65536},
      {0, 0, 1, 0, 2, 1, 128, 128, 2, {0, 0, 0}, {1, 0, 2048}, 4096, 32768}}},
    {"separate pools of unlike size, padding", "{'tp': 1}", "{'slots': 8, 'slot_padding_bytes': 256}, {'slots': 5}",
     T16,
     K_HND ", 'layers': {'count': 2}}," V_HND ", 'layers': {'count': 2}, 'pool': 1}",
     {{0, 0, 0, 0, 0, 4, 2048, 128, 2, {0, 0, 0}, {1, 0, 8192}, 16640, 133120},
      {0, 0, 0, 1, 0, 4, 2048, 128, 2, {0, 1, 0}, {1, 1, 8192}, 16384, 81920}}},
    {"a pool per layer", "{'pp': 2}", "{'slots': 8, 'per_layer': true}", T16,
     K_HND ", 'layers': {'total': 4, 'split': 'pp'}}," V_HND ", 'layers': {'total': 4, 'split': 'pp'}}",
     {{0, 0, 0, 0, 0, 4, 2048, 128, 2, {0, 0, 0}, {1, 1, 0}, 16384, 131072},
      {1, 0, 0, 1, 0, 4, 2048, 128, 2, {2, 0, 8192}, {3, 1, 8192}, 16384, 131072}}},
    {"pools behind pools per layer", "{'pp': 2}", "{'slots': 8, 'per_layer': true}, {'slots': 2}", T16,
     K_HND PP "}," V_HND PP ", 'pool': 1}",
     {{0, 0, 0, 0, 0, 4, 2048, 128, 4, {0, 0, 0}, {3, 3, 0}, 8192, 65536},
      {0, 0, 0, 1, 0, 4, 2048, 128, 4, {0, 4, 0}, {3, 4, 24576}, 32768, 65536},
      {1, 0, 0, 1, 0, 4, 2048, 128, 3, {4, 3, 0}, {6, 3, 16384}, 24576, 49152}}},
    {"a stage without a view", "{'pp': 2}", "{'slots': 8}, {'slots': 4}", T16,
     "{'role': 'index', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 1}, 'order': 'heads_first', 'layers': "
     "{'bounds': [0, 2, 2]}}," K_HND PP ", 'pool': 1}",
     {{0, 0, 0, 0, 0, 1, 512, 32, 2, {0, 0, 0}, {1, 0, 512}, 1024, 8192},
      {0, 0, 0, 1, 0, 4, 2048, 128, 4, {0, 1, 0}, {3, 1, 24576}, 32768, 131072},
      {1, 0, 0, 0, 0, 4, 2048, 128, 3, {4, 0, 0}, {6, 0, 16384}, 24576, 98304}}},
    {"layers with gaps of one's own", "{'pp': 2}", "{'slots': 8, 'slot_stride_bytes': 8192}", T16,
     "{'role': 'k', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 1}, 'order': 'heads_first', 'layers': "
     "{'total': 4, "
     "'split': 'pp'}, 'offset_bytes': 64, 'offset_step_bytes': 1024}",
     {{1, 0, 0, 0, 0, 1, 512, 32, 2, {2, 0, 64}, {3, 0, 1088}, 8192, 65536}}},
    {"places in steps, backwards", "{}", S8, T16,
     "{'role': 'k', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 1}, 'order': 'heads_first', 'places': "
     "[{'first': 1, "
     "'count': 3, 'layer_step': 2, 'offset_bytes': 2048, 'offset_step_bytes': -1024}, {'layer': 0, 'offset_bytes': "
     "512}]}",
     {{0, 0, 0, 0, 0, 1, 512, 32, 4, {1, 0, 2048}, {0, 0, 512}, 2560, 20480}}},
    {"places in steps of pools", "{}", S8 "," S8 "," S8, T16,
     "{'role': 'k', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 1}, 'order': 'heads_first', 'places': "
     "[{'first': 0, "
     "'count': 2, 'pool_step': 2}, {'layer': 2, 'pool': 1, 'offset_bytes': 32}]}",
     {{0, 0, 0, 0, 0, 1, 512, 32, 3, {0, 0, 0}, {2, 1, 32}, 512, 4096}}},
    {"keys in columns of 16 bytes", "{'tp': 2}", S8, T16,
     K_HND ", 'chunk_bytes': 16, 'layers': {'count': 2}}," V_HND ", 'layers': {'count': 2}}",
     {{0, 0, 0, 0, 0, 2, 2048, 16, 2, {0, 0, 0}, {1, 0, 8192}, 16384, 131072},
      {0, 0, 0, 1, 0, 2, 2048, 16, 2, {0, 0, 256}, {1, 0, 8448}, 16384, 131072},
      {0, 0, 1, 7, 2, 2, 2048, 16, 2, {0, 0, 1792}, {1, 0, 9984}, 16384, 131072},
      {0, 0, 1, 8, 2, 2, 2048, 128, 2, {0, 0, 4096}, {1, 0, 12288}, 16384, 131072}}},
    {"chunks with strides", "{}", S8, "{'tokens_per_block': 4}",
     ONE "'units': {'total': 2}, 'unit_stride_bytes': 128, 'entry_stride_bytes': 8, 'chunk_bytes': 8, "
     "'chunk_stride_bytes': 32}",
     {{0, 0, 0, 0, 0, 2, 128, 8, 2, {0, 0, 0}, {1, 0, 256}, 512, 4096},
      {0, 0, 0, 3, 0, 2, 128, 8, 2, {0, 0, 96}, {1, 0, 352}, 512, 4096}}},
    {"kernel blocks, entries per slot", "{}", S8, "{'tokens_per_block': 64}",
     ONE "'units': {'total': 2}, 'order': 'heads_first', 'slots_per_block': 4}",
     {{0, 0, 0, 0, 0, 2, 512, 32, 2, {0, 0, 0}, {1, 0, 1024}, 2048, 16384}}},
    {"state", "{}", S8, "{'tokens_per_block': 0}", ONE "'units': {'total': 2}, 'order': 'heads_first', 'entries': 3}",
     {{0, 0, 0, 0, 0, 2, 96, 32, 2, {0, 0, 0}, {1, 0, 192}, 384, 3072}}},
};

#define ROWS (sizeof rows / sizeof rows[0])

static void to_double_quotes(char *text)
{
    for (; *text; text++) {
        if (*text == '\'') *text = '"';
    }
}

static kvf_instance *parse(const char *text)
{
    kvf_instance *instance = NULL;
    struct kvf_error error;

    if (kvf_instance_parse(text, strlen(text), &instance, &error) != KVF_OK) fail_msg("%s", error.text);
    return instance;
}

static kvf_instance *parse_row(const char *grid, const char *pools, const char *groups, const char *views)
{
    static const char format[] = "{'version': 1, 'model': {'name': 'm'}, 'grid': %s, 'layout': {'pools': [%s], "
        "'groups': "
                                 "[%s], 'views': [%s]}}";
    char text[4096];

    snprintf(text, sizeof text, format, grid, pools, groups, views);
    to_double_quotes(text);
    return parse(text);
}

static void check_place(const struct kvf_place *found, const struct kvf_place *expected)
{
    assert_int_equal(found->layer, expected->layer);
    assert_int_equal(found->pool, expected->pool);
    assert_int_equal(found->offset_bytes, expected->offset_bytes);
}

static void test_row(void **state)
{
    const struct row *row = *state;
    kvf_instance *instance = parse_row(row->grid, row->pools, row->groups, row->views);

    for (const struct expected *e = row->expected; e->place_count > 0; e++) {
        const struct kvf_layout_spec *spec;
        const struct kvf_view *view;
        size_t index;

        assert_int_equal(kvf_instance_find(instance, e->pp, e->cp, e->tp, &index, NULL), KVF_OK);
        spec = kvf_layout_get_spec(kvf_instance_layout(instance, index));
        assert_true(e->view < spec->view_count);
        view = &spec->views[e->view];
        assert_int_equal(view->unit_first, e->unit_first);
        assert_int_equal(view->unit_count, e->unit_count);
        assert_int_equal(view->unit_stride_bytes, e->unit_stride);
        assert_int_equal(view->entry_stride_bytes, e->entry_stride);
        assert_int_equal(view->place_count, e->place_count);
        check_place(&view->places[0], &e->first);
        check_place(&view->places[e->place_count - 1], &e->last);
        assert_int_equal(spec->pools[e->first.pool].slot_stride_bytes, e->slot_stride);
        assert_int_equal(spec->pools[e->first.pool].memory, e->first.pool);
        assert_int_equal(spec->memory_bytes[e->first.pool], e->memory_bytes);
    }
    kvf_instance_destroy(instance);
}

static void same_view(const struct kvf_view *a, const struct kvf_view *b)
{
    struct kvf_view x = *a, y = *b;

    assert_string_equal(a->role, b->role);
    assert_string_equal(a->tag, b->tag);
    assert_int_equal(a->place_count, b->place_count);
    assert_memory_equal(a->places, b->places, a->place_count * sizeof *a->places);
    x.role = y.role = x.tag = y.tag = NULL;
    x.places = y.places = NULL;
    assert_memory_equal(&x, &y, sizeof x);
}

/* Every field, also those that no fingerprint covers. */
static void same_layout(const kvf_layout *a, const kvf_layout *b)
{
    const struct kvf_layout_spec *x = kvf_layout_get_spec(a), *y = kvf_layout_get_spec(b);
    char text_a[KVF_FINGERPRINT_TEXT_BYTES], text_b[KVF_FINGERPRINT_TEXT_BYTES];

    assert_int_equal(x->memory_count, y->memory_count);
    assert_memory_equal(x->memory_bytes, y->memory_bytes, x->memory_count * sizeof *x->memory_bytes);
    assert_int_equal(x->pool_count, y->pool_count);
    assert_memory_equal(x->pools, y->pools, x->pool_count * sizeof *x->pools);
    assert_int_equal(x->group_count, y->group_count);
    assert_memory_equal(x->groups, y->groups, x->group_count * sizeof *x->groups);
    assert_int_equal(x->view_count, y->view_count);
    for (size_t i = 0; i < x->view_count; i++) same_view(&x->views[i], &y->views[i]);
    assert_int_equal(kvf_layout_fingerprint(a, text_a), KVF_OK);
    assert_int_equal(kvf_layout_fingerprint(b, text_b), KVF_OK);
    assert_string_equal(text_a, text_b);
}

static void round_trip(const kvf_layout *layout)
{
    struct kvf_error error;
    char *text = NULL, *again = NULL;
    kvf_layout *copy = NULL;

    assert_int_equal(kvf_layout_to_json(layout, &text, &error), KVF_OK);
    if (kvf_layout_from_json(text, strlen(text), &copy, &error) != KVF_OK) fail_msg("%s", error.text);
    same_layout(layout, copy);
    assert_int_equal(kvf_layout_to_json(copy, &again, &error), KVF_OK);
    assert_string_equal(text, again);
    kvf_layout_release(copy);
    kvf_text_free(again);
    kvf_text_free(text);
}

static void test_round_trips(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        kvf_instance *instance = parse_row(rows[i].grid, rows[i].pools, rows[i].groups, rows[i].views);

        for (size_t r = 0; r < kvf_instance_rank_count(instance); r++) round_trip(kvf_instance_layout(instance, r));
        kvf_instance_destroy(instance);
    }
}

/* What no rule of the files makes: large numbers, flags, memories without an end, texts of all kinds. */
static void test_round_trip_of_odd_layout(void **state)
{
    const int64_t memories[] = {-1, 1 << 20};
    const struct kvf_pool pools[] = {{0, 4096, 8192, (int64_t)1 << 40}, {1, 0, 512, 3}};
    const struct kvf_group groups[] = {{32, 64, 4, 3, 8}, {0, 0, 1, 0, 0}};
    const struct kvf_place attention[] = {{INT64_MAX - 1, 0, 128}, {7, 0, 4224}}, scan[] = {{5, 1, 0}};
    const struct kvf_view views[] = {
        {"k \"quoted\" \xc3\xa9", "bf16", 0, 64, 16, 32, 8, 2, 3, 1024, 32, 32, 1, KVF_VIEW_OPTIONAL, 0, attention, 2},
        {"row:5", "opaque", 1, 256, 0, 256, 1, 0, 1, 256, 256, 1, 1, KVF_VIEW_ATOMIC, 0, scan, 1},
    };
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout;
    char *text;

    (void)state;
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = memories;
    spec.memory_count = 2;
    spec.pools = pools;
    spec.pool_count = 2;
    spec.groups = groups;
    spec.group_count = 2;
    spec.views = views;
    spec.view_count = 2;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) fail_msg("%s", error.text);
    round_trip(layout);
    kvf_layout_release(layout);

    spec.view_count = 1;
    spec.views = &(struct kvf_view){"k\xff", "f16", 0, 64, 0, 64, 8, 2, 3, 2048, 64, 32, 1, 0, 0, attention, 1};
    assert_int_equal(kvf_layout_create(&spec, &layout, &error), KVF_OK);
    assert_int_equal(kvf_layout_to_json(layout, &text, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "views[0]: role and tag are not UTF-8");
    kvf_layout_release(layout);
}

static void test_context_parallel(void **state)
{
    kvf_instance *instance = parse_row("{'cp': 4, 'tp': 2}", S8, "{'tokens_per_block': 16, 'cp_stripe_tokens': 4}",
                                       K_HND ", 'layers': {'count': 1}}");
    const struct kvf_group *group;
    size_t index;

    (void)state;
    assert_int_equal(kvf_instance_find(instance, 0, 3, 1, &index, NULL), KVF_OK);
    assert_int_equal(index, 7);
    group = kvf_layout_get_spec(kvf_instance_layout(instance, index))->groups;
    assert_int_equal(group->stripes, 4);
    assert_int_equal(group->stripe, 3);
    assert_int_equal(group->stripe_tokens, 4);
    kvf_instance_destroy(instance);

    instance = parse_row("{'cp': 1}", S8, "{'tokens_per_block': 16, 'cp_stripe_tokens': 4}",
                         K_HND ", 'layers': {'count': 1}}");
    group = kvf_layout_get_spec(kvf_instance_layout(instance, 0))->groups;
    assert_int_equal(group->stripes, 1);
    assert_int_equal(group->stripe_tokens, 0);
    kvf_instance_destroy(instance);
}

static void test_accessors(void **state)
{
    static const char text[] =
        "{\"version\": 1, \"comment\": \"none\", \"model\": {\"name\": \"m\", \"fingerprint\": \"f\"}, \"grid\": "
        "{\"pp\": 2, "
        "\"tp\": 2}, \"ranks\": [{\"pp\": 1, \"tp\": 1, \"dp\": 3, \"salt\": 4}], \"layout\": {\"pools\": "
        "[{\"slots\": 8}], "
        "\"groups\": [{\"tokens_per_block\": 16}], \"views\": [{\"role\": \"k\", \"tag\": \"f16\", \"row_bytes\": 128, "
        "\"units\": {\"total\": 4, \"split\": \"tp\"}, \"order\": \"heads_first\", \"layers\": {\"total\": 6, "
        "\"split\": "
        "\"pp\"}}]}}";
    kvf_instance *instance = parse(text);
    struct kvf_rank rank;
    struct kvf_error error;
    const struct kvf_holding *holding;
    int64_t pp, cp, tp;
    size_t index = 99, count;

    (void)state;
    assert_string_equal(kvf_instance_model_name(instance), "m");
    assert_string_equal(kvf_instance_model_fingerprint(instance), "f");
    kvf_instance_grid(instance, &pp, &cp, &tp);
    assert_true(pp == 2 && cp == 1 && tp == 2);
    assert_int_equal(kvf_instance_rank_count(instance), 4);
    rank = kvf_instance_rank(instance, 2);
    assert_true(rank.dp == 0 && rank.pp == 1 && rank.cp == 0 && rank.tp == 0 && rank.salt == 0);
    rank = kvf_instance_rank(instance, 3);
    assert_true(rank.dp == 3 && rank.pp == 1 && rank.cp == 0 && rank.tp == 1 && rank.salt == 4);
    rank = kvf_instance_rank(instance, 4);
    assert_true(rank.dp == -1 && rank.pp == -1 && rank.cp == -1 && rank.tp == -1);
    assert_null(kvf_instance_layout(instance, 4));
    assert_null(kvf_instance_holdings(instance, 4));
    holding = kvf_holdings_rows(kvf_instance_holdings(instance, 3), &count);
    assert_int_equal(count, 1);
    assert_int_equal(holding->layer_count, 3);
    assert_int_equal(holding->layers[0], 3);
    assert_int_equal(holding->unit_first, 2);
    assert_int_equal(kvf_instance_find(instance, 2, 0, 0, &index, &error), KVF_ERR_NOT_FOUND);
    assert_string_equal(error.text, "rank pp 2 cp 0 tp 0: the grid has pp 2 cp 1 tp 2");
    assert_int_equal(kvf_instance_find(instance, 0, -1, 0, &index, NULL), KVF_ERR_NOT_FOUND);
    assert_int_equal(index, 99);
    kvf_instance_destroy(instance);
    kvf_instance_destroy(NULL);
    kvf_text_free(NULL);
}

int main(void)
{
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_round_trips), cmocka_unit_test(test_round_trip_of_odd_layout),
        cmocka_unit_test(test_context_parallel), cmocka_unit_test(test_accessors)};
    struct CMUnitTest tests[ROWS];

    for (size_t i = 0; i < ROWS; i++) {
        tests[i] = (struct CMUnitTest){rows[i].name, test_row, NULL, NULL, (void *)&rows[i]};
    }
    return cmocka_run_group_tests_name("rules", tests, NULL, NULL) +
           cmocka_run_group_tests_name("others", others, NULL, NULL);
}
