/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_json/json_print.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout_json/json_names.h"

/* What fits on a line stands on one; long texts and numbers stay whole. */
static void test_print(void **state)
{
    char *text, *long_text = malloc(301);
    json_t *value;

    (void)state;
    assert_non_null(long_text);
    memset(long_text, 'x', 300);
    long_text[300] = '\0';
    value = json_pack("{s:i, s:[i,i], s:{}, s:[], s:s}", "a", 1, "b", 2, 3, "c", "d", "e", long_text);
    assert_int_equal(kvfi_json_print(value, "test", &text, NULL), KVF_OK);
    assert_memory_equal(text, "{\n  \"a\": 1,\n  \"b\": [2, 3],\n  \"c\": {},\n  \"d\": [],\n  \"e\": \"xxx", 58);
    value = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_string_equal(json_string_value(json_object_get(value, "e")), long_text);
    json_decref(value);
    free(text);
    free(long_text);
    assert_int_equal(kvfi_json_print(NULL, "test", &text, NULL), KVF_ERR_NO_MEMORY);
}

static void test_utf8(void **state)
{
    static const char *const good[] = {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const wrong[] = {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                        "\xf8\x88\x80\x80\x80", "\xff", "a\xe2\x82", "\xf0\x82\x82\xac"};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_true(kvfi_is_utf8(good[i]));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) assert_false(kvfi_is_utf8(wrong[i]));
}

static void test_nearest(void **state)
{
    static const char *const known[] = {"row_bytes", "role", "tag", "units", NULL};
    char text[16];

    (void)state;
    assert_string_equal(kvfi_name_nearest("rowbytes", known), "row_bytes");
    assert_string_equal(kvfi_name_nearest("rol", known), "role");
    assert_string_equal(kvfi_name_nearest("unit", known), "units");
    assert_null(kvfi_name_nearest("colour", known));
    assert_null(kvfi_name_nearest("", known));
    assert_null(kvfi_name_nearest("row_bytes_row_bytes_row_bytes_row_bytes_row_bytes", known));
    kvfi_names_join(known + 2, text, sizeof text);
    assert_string_equal(text, "\"tag\" or \"units");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_print), cmocka_unit_test(test_utf8),
                                       cmocka_unit_test(test_nearest)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
