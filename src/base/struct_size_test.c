/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of callers compiled against an older or a newer header: their defaults, what they hand in, what they get. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/struct_size.h"

struct known {
    size_t struct_size;
    int64_t first, second;
};

/* What a newer caller has; longer than the caller's struct, so that writes past its end show. */
struct whole {
    struct known known;
    int64_t third, past;
};

enum { SHORT = 2 * sizeof(int64_t), SAME = sizeof(struct known), LONG = offsetof(struct whole, past) };

static const struct known defaults = {.struct_size = 99, .first = -1, .second = -2};

static bool is_whole(const struct whole *seen, size_t struct_size, int64_t first, int64_t second, int64_t third,
                     int64_t past)
{
    return seen->known.struct_size == struct_size && seen->known.first == first && seen->known.second == second
           && seen->third == third && seen->past == past;
}

static void fills_with_defaults(void **state)
{
    static const struct {
        const char *name;
        size_t bytes;
        int64_t first, second, third;           /* with defaults */
        int64_t no_first, no_second, no_third; /* without */
    } rows[] = {
        {"struct_size alone", sizeof(size_t), 7, 7, 7, 7, 7, 7}, {"shorter", SHORT, -1, 7, 7, 0, 7, 7},
        {"equal", SAME, -1, -2, 7, 0, 0, 7},                     {"longer", LONG, -1, -2, 0, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct whole out = {{7, 7, 7}, 7, 7}, zeros = out;

        kvfi_struct_init(&out, rows[i].bytes, &defaults, sizeof defaults);
        if (!is_whole(&out, rows[i].bytes, rows[i].first, rows[i].second, rows[i].third, 7))
            fail_msg("%s: %d %d %d", rows[i].name, (int)out.known.first, (int)out.known.second, (int)out.third);
        kvfi_struct_init(&zeros, rows[i].bytes, NULL, 0);
        if (!is_whole(&zeros, rows[i].bytes, rows[i].no_first, rows[i].no_second, rows[i].no_third, 7))
            fail_msg("%s, without defaults", rows[i].name);
    }
}

/** Less than a struct_size: nothing is written past it. */
static void fills_next_to_nothing(void **state)
{
    unsigned char out[sizeof(size_t)], expected[sizeof(size_t)];

    (void)state;
    for (size_t bytes = 0; bytes < sizeof out; bytes++) {
        memset(out, 0xaa, sizeof out);
        memset(expected, 0xaa, sizeof expected);
        memset(expected, 0, bytes);
        kvfi_struct_init(out, bytes, &defaults, sizeof defaults);
        assert_memory_equal(out, expected, sizeof out);
    }
}

static void copies_in_what_is_known(void **state)
{
    static const struct {
        const char *name;
        size_t bytes;
        int64_t third; /* what a newer caller set behind what is known here */
        enum kvf_status status;
        int64_t first, second;
        const char *text;
    } rows[] = {
        {"struct_size alone", sizeof(size_t), 5, KVF_OK, -1, -2, ""},
        {"shorter", SHORT, 5, KVF_OK, 11, -2, ""},
        {"equal", SAME, 5, KVF_OK, 11, 22, ""},
        {"longer with zeros", LONG, 0, KVF_OK, 11, 22, ""},
        {"longer with more", LONG, 5, KVF_ERR_NEWER_OPTION, -1, -2,
         "options: byte 24 of 32 is set, this library knows the first 24"},
        {"longer with more at its end", LONG, INT64_C(1) << 56, KVF_ERR_NEWER_OPTION, -1, -2,
         "options: byte 31 of 32 is set, this library knows the first 24"},
        {"no struct_size", 7, 0, KVF_ERR_INVALID_ARGUMENT, -1, -2, "options: struct_size is 7, expected at least 8"},
        {"nothing", 0, 0, KVF_ERR_INVALID_ARGUMENT, -1, -2, "options: struct_size is 0, expected at least 8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct whole given = {{rows[i].bytes, 11, 22}, rows[i].third, 0};
        struct whole own = {{sizeof(struct known), -1, -2}, 7, 7};
        struct kvf_error error = {.text = ""};
        enum kvf_status status = kvfi_options_copy(&own, sizeof own.known, &given, "options", &error);

        if (status != rows[i].status || !is_whole(&own, SAME, rows[i].first, rows[i].second, 7, 7))
            fail_msg("%s: status %d, first %d, second %d", rows[i].name, (int)status, (int)own.known.first,
                     (int)own.known.second);
        assert_string_equal(error.text, rows[i].text);
    }
}

static void keeps_defaults_where_nothing_is_given(void **state)
{
    struct known own = {sizeof own, -1, -2};

    (void)state;
    assert_int_equal(kvfi_options_copy(&own, sizeof own, NULL, "options", NULL), KVF_OK);
    assert_int_equal(own.struct_size, sizeof own);
    assert_int_equal(own.first, -1);
    assert_int_equal(own.second, -2);
}

static void gives_what_the_caller_has_room_for(void **state)
{
    static const struct {
        const char *name;
        size_t bytes;
        enum kvf_status status;
        int64_t first, second;
        const char *text;
    } rows[] = {
        {"struct_size alone", sizeof(size_t), KVF_OK, 7, 7, ""},
        {"shorter", SHORT, KVF_OK, -1, 7, ""},
        {"equal", SAME, KVF_OK, -1, -2, ""},
        {"longer", LONG, KVF_OK, -1, -2, ""},
        {"no struct_size", 7, KVF_ERR_INVALID_ARGUMENT, 7, 7, "stats: struct_size is 7, expected at least 8"},
        {"nothing", 0, KVF_ERR_INVALID_ARGUMENT, 7, 7, "stats: struct_size is 0, expected at least 8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct whole out = {{rows[i].bytes, 7, 7}, 7, 7};
        struct kvf_error error = {.text = ""};
        enum kvf_status status = kvfi_struct_give(&out, &defaults, sizeof defaults, "stats", &error);

        if (status != rows[i].status || !is_whole(&out, rows[i].bytes, rows[i].first, rows[i].second, 7, 7))
            fail_msg("%s: status %d, first %d, second %d", rows[i].name, (int)status, (int)out.known.first,
                     (int)out.known.second);
        assert_string_equal(error.text, rows[i].text);
    }
}

static void refuses_less_than_is_needed(void **state)
{
    struct kvf_error error = {.text = ""};

    (void)state;
    assert_int_equal(kvfi_struct_check(SAME, SAME, "step", &error), KVF_OK);
    assert_int_equal(kvfi_struct_check(LONG, SAME, "step", &error), KVF_OK);
    assert_string_equal(error.text, "");
    assert_int_equal(kvfi_struct_check(SAME - 1, SAME, "step", &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "step: struct_size is 23, expected at least 24");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_with_defaults),
        cmocka_unit_test(fills_next_to_nothing),
        cmocka_unit_test(copies_in_what_is_known),
        cmocka_unit_test(keeps_defaults_where_nothing_is_given),
        cmocka_unit_test(gives_what_the_caller_has_room_for),
        cmocka_unit_test(refuses_less_than_is_needed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
