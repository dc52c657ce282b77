/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/holdings_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int64_t layers_a[] = {0, 1, 2, 7, 8, 20}, layers_b[] = {3};
static const struct kvf_holding sample[] = {
    {"k", "f16", 128, 0, 128, 8, 2, 2, 1, 0, 0, 0, 0, layers_a, 6},
    {"mla", "bf16", 1152, 1024, 128, 1, 0, 1, 4, 3, 64, KVF_VIEW_OPTIONAL, 0, layers_b, 1},
};
static const char sample_text[] =
    "[{\"role\":\"k\",\"tag\":\"f16\",\"row\":[128,0,128],\"units\":[8,2,2],\"layers\":[[0,3],[7,9],[20,21]]},"
    "{\"role\":\"mla\",\"tag\":\"bf16\",\"row\":[1152,1024,128],\"units\":[1,0,1],\"layers\":[[3,4]],"
    "\"stripe\":[4,3,64],\"flags\":2}]";

static void test_round_trip(void **state)
{
    kvf_holdings *holdings, *again;
    const struct kvf_holding *rows;
    struct kvf_error error;
    json_t *json;
    char *text;
    size_t count;

    (void)state;
    assert_int_equal(kvf_holdings_create(sample, 2, &holdings, &error), KVF_OK);
    assert_int_equal(kvfi_holdings_to_json(holdings, &json, &error), KVF_OK);
    text = json_dumps(json, JSON_COMPACT);
    assert_string_equal(text, sample_text);
    if (kvfi_holdings_from_json(json, "holdings", &again, &error) != KVF_OK) fail_msg("%s", error.text);
    rows = kvf_holdings_rows(again, &count);
    assert_int_equal(count, 2);
    for (size_t i = 0; i < count; i++) {
        struct kvf_holding found = rows[i], expected = sample[i];

        assert_string_equal(found.role, expected.role);
        assert_string_equal(found.tag, expected.tag);
        assert_int_equal(found.layer_count, expected.layer_count);
        assert_memory_equal(found.layers, expected.layers, found.layer_count * sizeof *found.layers);
        found.role = expected.role = found.tag = expected.tag = NULL;
        found.layers = expected.layers = NULL;
        assert_memory_equal(&found, &expected, sizeof found);
    }
    kvf_holdings_release(again);
    kvf_holdings_release(holdings);
    json_decref(json);
    free(text);
}

static void test_none(void **state)
{
    json_t *json = json_array();
    kvf_holdings *holdings;
    struct kvf_error error;
    size_t count = 9;
    enum kvf_status status = kvfi_holdings_from_json(json, "holdings", &holdings, &error);

    (void)state;
    assert_int_equal(status, KVF_OK);
    kvf_holdings_rows(holdings, &count);
    assert_int_equal(count, 0);
    kvf_holdings_release(holdings);
    json_decref(json);
}

struct row {
    const char *name, *json; /* ' stands for " */
    enum kvf_status status;
    const char *text;
};

#define START "[{'role': 'k', 'tag': 'f16', 'row': [128, 0, 128], 'units': [8, 2, 2], "
#define END "}]"

static const struct row bad[] = {
    {"missing", NULL, KVF_ERR_PARSE, "holdings: \"holdings\" is missing, expected an array"},
    {"no array", "{}", KVF_ERR_PARSE, "holdings: expected an array, found an object"},
    {"no object", "[5]", KVF_ERR_PARSE, "holdings[0]: expected an object, found 5"},
    {"unknown key", START "'layer': [[0, 1]]" END, KVF_ERR_PARSE,
     "holdings[0]: unknown key \"layer\", did you mean \"layers\"?"},
    {"no layers", START "'flags': 0" END, KVF_ERR_PARSE, "holdings[0]: \"layers\" is missing, expected an array"},
    {"empty layers", START "'layers': []" END, KVF_ERR_PARSE,
     "holdings[0].layers: expected at least 1 items, found 0"},
    {"no pair", START "'layers': [3]" END, KVF_ERR_PARSE,
     "holdings[0].layers[0]: expected a pair [first, end), found 3"},
    {"empty pair", START "'layers': [[3, 3]]" END, KVF_ERR_PARSE,
     "holdings[0].layers[0][1]: expected an integer of at least 4, found 3"},
    {"pairs that overlap", START "'layers': [[0, 5], [4, 6]]" END, KVF_ERR_PARSE,
     "holdings[0].layers[1][0]: expected an integer from 5 to 9223372036854775806, found 4"},
    {"absurd pair", START "'layers': [[0, 9223372036854775807]]" END, KVF_ERR_LIMIT,
     "holdings[0].layers[0]: more than 1048576 layers in all rows"},
    {"last layer", START "'layers': [[9223372036854775807, 9223372036854775807]]" END, KVF_ERR_PARSE,
     "holdings[0].layers[0][0]: expected an integer from 0 to 9223372036854775806, found 9223372036854775807"},
    {"too many layers in all", START "'layers': [[0, 1048576], [1048577, 1048578]]" END, KVF_ERR_LIMIT,
     "holdings[0].layers[1]: more than 1048576 layers in all rows"},
    {"row of two", "[{'role': 'k', 'tag': 'f16', 'row': [128, 0]}]", KVF_ERR_PARSE,
     "holdings[0].row: expected an array of 3 integers, found an array of 2"},
    {"negative unit", "[{'role': 'k', 'tag': 'f16', 'row': [128, 0, 128], 'units': [8, -1, 2]}]", KVF_ERR_PARSE,
     "holdings[0].units[1]: expected an integer of at least 0, found -1"},
    {"units outside", "[{'role': 'k', 'tag': 'f16', 'row': [128, 0, 128], 'units': [8, 7, 2], 'layers': [[0, 1]]}]",
     KVF_ERR_LAYOUT, "row 0 (k): 2 units from 7 on do not lie in [0,8)"},
    {"flags", START "'layers': [[0, 1]], 'flags': 4" END, KVF_ERR_PARSE,
     "holdings[0].flags: expected an integer from 0 to 3, found 4"},
    {"no role", "[{'role': '', 'tag': 'f16'}]", KVF_ERR_PARSE,
     "holdings[0].role: expected a text of 1 to 255 bytes, found \"\""},
};

static void test_bad(void **state)
{
    const struct row *row = *state;
    struct kvf_error error = {0};
    kvf_holdings *holdings = NULL;
    json_t *json = NULL;
    enum kvf_status status;

    if (row->json) {
        char text[512];

        assert_true(strlen(row->json) < sizeof text);
        memcpy(text, row->json, strlen(row->json) + 1);
        for (char *at = text; *at; at++) *at = *at == '\'' ? '"' : *at;
        json = json_loads(text, 0, NULL);
        assert_non_null(json);
    }
    status = kvfi_holdings_from_json(json, "holdings", &holdings, &error);
    if (status != row->status || strcmp(row->text, error.text) != 0) {
        fail_msg("status %d, \"%s\"", status, error.text);
    }
    assert_null(holdings);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest good[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_none)};
    struct CMUnitTest tests[sizeof bad / sizeof bad[0]];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tests[i] = (struct CMUnitTest){bad[i].name, test_bad, NULL, NULL, (void *)&bad[i]};
    }
    return cmocka_run_group_tests_name("good", good, NULL, NULL) +
           cmocka_run_group_tests_name("refused", tests, NULL, NULL);
}
