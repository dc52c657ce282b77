/* SPDX-License-Identifier: Apache-2.0 */
/* The first number out of its bounds is named; bounds belong to what is good. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bounds.h"

static void names_the_first_that_is_out(void **state)
{
    static const struct {
        const char *name, *what;
        int64_t first, second, third;
        const char *text; /* NULL = all are good */
    } rows[] = {
        {"least", "option", 1, -5, INT64_MIN, NULL},
        {"most", "option", 16, 5, INT64_MAX, NULL},
        {"below", "option", 0, 0, 0, "option lanes is 0, expected 1 to 16"},
        {"above", "option", 17, 0, 0, "option lanes is 17, expected 1 to 16"},
        {"two are out", "option", 17, 6, 0, "option lanes is 17, expected 1 to 16"},
        {"a later one", "option", 1, -6, 0, "option shift is -6, expected -5 to 5"},
        {"of nothing", NULL, 0, 0, 0, "lanes is 0, expected 1 to 16"},
        {"far out", "option", INT64_MIN, 0, 0, "option lanes is -9223372036854775808, expected 1 to 16"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kvfi_bounds numbers[] = {{"lanes", rows[i].first, 1, 16}, {"shift", rows[i].second, -5, 5},
                                             {"any", rows[i].third, INT64_MIN, INT64_MAX}};
        struct kvf_error error = {.text = ""};
        enum kvf_status status = kvfi_check_bounds(rows[i].what, numbers, sizeof numbers / sizeof *numbers, &error);

        if (status != (rows[i].text ? KVF_ERR_INVALID_ARGUMENT : KVF_OK))
            fail_msg("%s: status %d", rows[i].name, (int)status);
        assert_string_equal(error.text, rows[i].text ? rows[i].text : "");
        assert_int_equal(kvfi_check_bounds(rows[i].what, numbers, 0, &error), KVF_OK); /* none are good */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_the_first_that_is_out)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
