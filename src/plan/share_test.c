/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/share.h"

static void test_sorted_and_found(void **state)
{
    char v[] = "v";
    const struct kvf_cell cells[] = {
        {v, 1, 0, 2, 0, 16}, {"k", 10, 0, 2, 0, 16}, {"k", 2, 4, 1, 0, 16}, {"k", 2, 0, 2, 8, 8}, {"k", 2, 0, 2, 0, 8},
    };
    struct kvf_share *share = NULL;
    const struct kvf_cell *found;
    size_t count;

    (void)state;
    assert_int_equal(kvfi_share_create(cells, 5, &share, NULL), KVF_OK);
    v[0] = 'x';
    assert_int_equal(kvf_share_count(share), 5);
    assert_int_equal(kvf_share_cell(share, 1).byte_first, 8);
    assert_int_equal(kvf_share_cell(share, 2).unit_first, 4);
    assert_int_equal(kvf_share_cell(share, 3).layer, 10);
    assert_string_equal(kvf_share_cell(share, 4).role, "v");
    found = kvfi_share_find(share, "k", 2, &count);
    assert_int_equal(count, 3);
    assert_int_equal(found->byte_first, 0);
    kvfi_share_find(share, "k", 3, &count);
    assert_int_equal(count, 0);
    kvfi_share_find(share, "w", 1, &count);
    assert_int_equal(count, 0);
    kvfi_share_destroy(share);
}

static void test_empty(void **state)
{
    struct kvf_share *share = NULL;
    size_t count;

    (void)state;
    assert_int_equal(kvfi_share_create(NULL, 0, &share, NULL), KVF_OK);
    assert_int_equal(kvf_share_count(share), 0);
    kvfi_share_find(share, "k", 0, &count);
    assert_int_equal(count, 0);
    kvfi_share_destroy(share);
    kvfi_share_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sorted_and_found), cmocka_unit_test(test_empty)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
