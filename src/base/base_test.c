/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"

static const struct {
    int number;
    const char *name, *text;
} rows[] = {
#define ROW(name, number, text) {name, #name, text},
    KVF_STATUS_MAP(ROW)
#undef ROW
};
static const size_t row_count = sizeof(rows) / sizeof(rows[0]);

static void test_each_status_has_name_and_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < row_count; i++) {
        assert_string_equal(kvf_status_name(rows[i].number), rows[i].name);
        assert_string_equal(kvf_strerror(rows[i].number), rows[i].text);
        assert_true(strlen(rows[i].text) > 0);
        for (size_t j = i + 1; j < row_count; j++) {
            assert_int_not_equal(rows[i].number, rows[j].number);
            assert_string_not_equal(rows[i].text, rows[j].text);
        }
    }
}

static void test_any_number_has_a_text(void **state)
{
    static const int numbers[] = {-1, 19, 59, 61, 1000, INT_MAX, INT_MIN};

    (void)state;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        assert_string_equal(kvf_status_name(numbers[i]), "KVF_ERR_UNKNOWN");
        assert_string_equal(kvf_strerror(numbers[i]), "unknown status");
    }
}

static void test_versions(void **state)
{
    char expected[32];

    (void)state;
    snprintf(expected, sizeof(expected), "%d.%d.%d", KVF_VERSION_MAJOR, KVF_VERSION_MINOR, KVF_VERSION_PATCH);
    assert_string_equal(kvf_version(), expected);
    assert_int_equal(kvf_planner_version(), KVF_PLANNER_VERSION);
}

static void test_fail_fills_the_error(void **state)
{
    struct kvf_error error;
    char longer[2 * KVF_ERROR_TEXT_BYTES];

    (void)state;
    memset(&error, 0xff, sizeof(error));
    assert_int_equal(kvfi_fail(&error, KVF_ERR_LAYOUT, "k layer %d: ends at %d", 3, 131072), KVF_ERR_LAYOUT);
    assert_int_equal(error.status, KVF_ERR_LAYOUT);
    assert_int_equal(error.reserved, 0);
    assert_int_equal(error.position, -1);
    assert_string_equal(error.text, "k layer 3: ends at 131072");
    assert_int_equal(kvfi_fail_at(&error, KVF_ERR_PARSE, 17, "here"), KVF_ERR_PARSE);
    assert_int_equal(error.position, 17);
    assert_int_equal(kvfi_fail_memory(&error, "a plan"), KVF_ERR_NO_MEMORY);
    assert_string_equal(error.text, "out of memory for a plan");
    assert_int_equal(kvfi_fail(NULL, KVF_ERR_LIMIT, "nobody listens"), KVF_ERR_LIMIT);

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    kvfi_fail(&error, KVF_ERR_LIMIT, "%s", longer);
    assert_int_equal(strlen(error.text), KVF_ERROR_TEXT_BYTES - 1);
}

/* A caller that was compiled with an older, the same, or a newer struct. */
static void test_checked_arithmetic(void **state)
{
    int64_t number = 0;
    size_t size = 0;

    (void)state;
    assert_true(kvfi_add_i64(INT64_MAX - 1, 1, &number));
    assert_int_equal(number, INT64_MAX);
    assert_false(kvfi_add_i64(INT64_MAX, 1, &number));
    assert_false(kvfi_sub_i64(INT64_MIN, 1, &number));
    assert_false(kvfi_mul_i64(INT64_C(1) << 32, INT64_C(1) << 31, &number));
    assert_true(kvfi_mad_i64(INT64_C(1) << 31, INT64_C(1) << 31, 7, &number));
    assert_int_equal(number, (INT64_C(1) << 62) + 7);
    assert_false(kvfi_mad_i64(INT64_C(1) << 31, INT64_C(1) << 32, 0, &number));
    assert_false(kvfi_mad_i64(1, INT64_MAX, 1, &number));
    assert_false(kvfi_add_size(SIZE_MAX, 1, &size));
    assert_false(kvfi_mul_size(SIZE_MAX / 2, 3, &size));
}

static void test_array_grows_and_keeps_its_content(void **state)
{
    int64_t *items = NULL;
    size_t count = 0, capacity = 0;

    (void)state;
    while (count < 1000) {
        assert_true(kvfi_array_grow((void **)&items, count, &capacity, sizeof(*items)));
        assert_true(capacity > count);
        items[count] = (int64_t)count;
        count++;
    }
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(items[i], i);
    }
    size_t before = capacity;
    assert_false(kvfi_array_grow((void **)&items, capacity, &capacity, SIZE_MAX / 4));
    assert_int_equal(capacity, before);
    assert_int_equal(items[999], 999);
    free(items);
}

static void test_allocations(void **state)
{
    (void)state;
    assert_null(kvfi_alloc_array(SIZE_MAX / 2, 3));
    assert_null(kvfi_alloc_zeroed(SIZE_MAX / 2, 3));
    void *nothing = kvfi_alloc_array(0, 8), *zeroed = kvfi_alloc_zeroed(4, 8);
    static const char zeroes[32];
    assert_non_null(nothing);
    assert_memory_equal(zeroed, zeroes, sizeof(zeroes));
    char *copy = kvfi_text_copy("kvferry");
    assert_string_equal(copy, "kvferry");
    free(copy);
    free(zeroed);
    free(nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_status_has_name_and_text),
        cmocka_unit_test(test_any_number_has_a_text),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_fail_fills_the_error),
        cmocka_unit_test(test_checked_arithmetic),
        cmocka_unit_test(test_array_grows_and_keeps_its_content),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
