/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "wire/values.h"

/* At every border of a form, on either side. */
static const int64_t numbers[] = {0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000, 0x7fffffff, 0xffffffff,
                                  INT64_C(0x100000000), INT64_MAX, 5, -1, -32, -33, -128, -129, -32768, -32769,
                                  INT32_MIN, INT64_C(-2147483649), INT64_MIN, 300, 2};
enum { NUMBERS = sizeof numbers / sizeof numbers[0], BYTES = 9 * NUMBERS };

static void put_each(struct kvfi_value_writer *writer)
{
    for (size_t i = 0; i < NUMBERS; i++) kvfi_value_put_int(writer, numbers[i]);
}

static void test_many_integers_are_written_as_each_is(void **state)
{
    (void)state;
    for (size_t capacity = 0; capacity <= BYTES; capacity++) {
        unsigned char each[BYTES] = {0}, many[BYTES] = {0};
        struct kvfi_value_writer one = {.out = each, .capacity = capacity}, all = {.out = many, .capacity = capacity};

        put_each(&one);
        kvfi_value_put_ints(&all, numbers, NUMBERS);
        assert_int_equal(all.used, one.used);
        assert_int_equal(all.differs, one.differs);
        assert_memory_equal(many, each, one.used <= capacity ? one.used : 0);
        for (size_t i = capacity; i < BYTES; i++) assert_int_equal(many[i], 0);
    }
}

static void test_many_integers_are_counted_as_each_is(void **state)
{
    struct kvfi_value_writer one = {0}, all = {0}, none = {0};

    (void)state;
    put_each(&one);
    kvfi_value_put_ints(&all, numbers, NUMBERS);
    assert_int_equal(all.used, one.used);
    assert_int_equal(all.differs, one.differs);
    kvfi_value_put_ints(&none, NULL, 0);
    assert_int_equal(none.used, 0);
    assert_false(none.differs);
}

static void test_many_integers_are_compared_as_each_is(void **state)
{
    unsigned char bytes[BYTES];
    struct kvfi_value_writer stored = {.out = bytes, .capacity = BYTES};

    (void)state;
    put_each(&stored);
    for (size_t changed = 0; changed <= stored.used; changed++) {
        struct kvfi_value_writer all = {.same_as = bytes, .capacity = stored.used};

        if (changed < stored.used) bytes[changed] ^= 1;
        kvfi_value_put_ints(&all, numbers, NUMBERS);
        assert_int_equal(all.used, stored.used);
        assert_int_equal(all.differs, changed < stored.used);
        if (changed < stored.used) bytes[changed] ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_integers_are_written_as_each_is),
        cmocka_unit_test(test_many_integers_are_counted_as_each_is),
        cmocka_unit_test(test_many_integers_are_compared_as_each_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
