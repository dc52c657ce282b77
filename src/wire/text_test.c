/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "wire/text.h"

static void tells_text_from_bytes(void **state)
{
    static const struct {
        const char *name, *bytes;
        size_t count;
        bool clean;
        const char *cleaned; /* as a zero-terminated text */
    } rows[] = {
        {"empty", "", 0, true, ""},
        {"plain", "pull-7/x y~", 11, true, "pull-7/x y~"},
        {"two, three and four bytes", "\xc3\xbc\xe2\x82\xac\xf0\x9f\x9b\xb3", 9, true,
         "\xc3\xbc\xe2\x82\xac\xf0\x9f\x9b\xb3"},
        {"largest code", "\xf4\x8f\xbf\xbf", 4, true, "\xf4\x8f\xbf\xbf"},
        {"above it", "\xf4\x90\x80\x80", 4, false, "????"},
        {"newline", "a\nb", 3, false, "a?b"},
        {"escape", "\x1b[31m", 5, false, "?[31m"},
        {"delete", "\x7f", 1, false, "?"},
        {"next line (C1)", "\xc2\x85", 2, false, "??"},
        {"no-break space is text", "\xc2\xa0", 2, true, "\xc2\xa0"},
        {"lone continuation", "\x80", 1, false, "?"},
        {"overlong slash", "\xc0\xaf", 2, false, "??"},
        {"overlong in three", "\xe0\x80\xaf", 3, false, "???"},
        {"surrogate", "\xed\xa0\x80", 3, false, "???"},
        {"cut in the middle", "a\xe2\x82", 3, false, "a??"},
        {"ff", "\xff", 1, false, "?"},
    };
    char out[32];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (kvfi_text_is_clean(rows[i].bytes, rows[i].count) != rows[i].clean) fail_msg("%s", rows[i].name);
        assert_int_equal(kvfi_text_clean(rows[i].bytes, out, sizeof out), strlen(rows[i].cleaned));
        if (strcmp(out, rows[i].cleaned) != 0) fail_msg("%s: %s", rows[i].name, out);
    }
    assert_false(kvfi_text_is_clean("a\0b", 3));
}

static void tells_utf8_from_bytes(void **state)
{
    (void)state;
    assert_true(kvfi_text_is_utf8("", 0));
    assert_true(kvfi_text_is_utf8("a\0\x1b\n\x7f\xc2\x85\xf4\x8f\xbf\xbf", 12));
    assert_false(kvfi_text_is_utf8("a\xe2\x82", 3));
    assert_false(kvfi_text_is_utf8("\x80z", 2));
    assert_false(kvfi_text_is_utf8("\xed\xa0\x80", 3));
}

static void cuts_at_a_character(void **state)
{
    char out[4];

    (void)state;
    assert_int_equal(kvfi_text_clean("ab\xc3\xbc", out, sizeof out), 2);
    assert_string_equal(out, "ab");
    assert_int_equal(kvfi_text_clean("abcdef", out, sizeof out), 3);
    assert_int_equal(kvfi_text_clean("abcdef", out, 1), 0);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tells_text_from_bytes),
                                       cmocka_unit_test(tells_utf8_from_bytes), cmocka_unit_test(cuts_at_a_character)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
