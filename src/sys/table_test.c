/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sys/table.h"

struct item {
    int number;
    struct kvfi_link link;
    char key[16];
};

static void test_table(void **unused)
{
    enum { ITEMS = 1000 };
    static struct item items[ITEMS];
    struct kvfi_table table;
    int found = 0;
    (void)unused;
    assert_true(kvfi_table_init(&table));
    assert_null(kvfi_table_any(&table));
    for (int i = 0; i < ITEMS; i++) {
        snprintf(items[i].key, sizeof items[i].key, "k%d", i % 100); /* ten of each */
        kvfi_table_insert(&table, &items[i].link, items[i].key, strlen(items[i].key));
    }
    for (struct kvfi_link *link = kvfi_table_find(&table, "k42", 3); link != NULL; link = kvfi_table_find_next(link)) {
        assert_string_equal(KVFI_HOLDER(link, struct item, link)->key, "k42");
        found++;
    }
    assert_int_equal(found, 10);
    assert_null(kvfi_table_find(&table, "k100", 4));
    for (int i = 0; i < ITEMS; i += 2) {
        kvfi_table_remove(&table, &items[i].link);
        kvfi_table_remove(&table, &items[i].link); /* twice is fine */
    }
    assert_null(kvfi_table_find(&table, "k42", 3));
    assert_non_null(kvfi_table_find(&table, "k43", 3));
    assert_int_equal(table.count, ITEMS / 2);
    kvfi_table_fini(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
