/* SPDX-License-Identifier: Apache-2.0 */
/* Field cases of class I, partial and prefix-aligned transfers. One test per case, named by its number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kit.h"

static void test_fr_103(void **state)
{
    static const int64_t from[] = {10, 11, 12, 13, 14, 15, 16, 17}, to[] = {50, 51, 52, 53, 54};
    struct worker src = tiny(4, 1, 0, 20), dst = tiny(4, 1, 0, 60);
    struct pull done = {.begin = 48, .end = 128, .tokens = 128};

    (void)state;
    worker_ids(&src, 8, from);
    worker_ids(&dst, 5, to);
    dst.id_first = 3; /* it has the first three blocks already */
    worker_open(&src);
    worker_open(&dst);
    worker_fill(&src, 128);
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_OK);
    assert_int_equal(done.bytes, 5 * 2 * 2048);
    worker_check(&dst, 48, 128, 128, "blocks 3 to 7");
    for (int64_t i = 0; i < 5; i++) {
        assert_memory_equal(worker_row(&dst, 1, 1, 50 + i, 3, 0), worker_row(&src, 1, 1, 13 + i, 3, 0), 256);
    }
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_105(void **state)
{
    static const int64_t to[] = {7, 8};
    struct worker src = tiny(4, 1, 0, 6), dst = tiny(4, 1, 0, 9);
    struct pull done = {.begin = 80, .end = 112, .tokens = 112};

    (void)state;
    worker_ids(&dst, 2, to);
    dst.id_first = 5;
    worker_open(&src);
    worker_open(&dst);
    worker_fill(&src, 96);
    /* Two blocks from block 5 on, of six. */
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_ERR_IDS);
    if (!strstr(done.error.text, "source")) fail_msg("%s", done.error.text);
    worker_check(&dst, 0, 0, 96, "refused");
    done = (struct pull){.begin = 80, .end = 96, .tokens = 96};
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_OK);
    assert_int_equal(done.bytes, 2 * 2048);
    worker_check(&dst, 80, 96, 96, "block 5");
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_106(void **state)
{
    struct worker src = tiny(1, 1, 0, 73), dst = tiny(1, 1, 0, 73);
    struct pull done = {.end = 9248, .tokens = 9248, .flags = KVF_BIND_PARTIAL};

    (void)state;
    src.tokens_per_block = dst.tokens_per_block = 128;
    dst.id_count = 72;
    worker_open(&src);
    worker_open(&dst);
    worker_fill(&src, 9248);
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_OK);
    assert_int_equal(done.bytes, 72 * 2 * 2 * 2048);
    assert_int_equal(done.valid_tokens, 72 * 128);
    assert_int_equal(done.first_missing, 72 * 128);
    worker_check(&dst, 0, 72 * 128, 9248, "72 of 73 blocks");
    /* The same list, not said to be partial: refused, and nobody else minds. */
    done.flags = 0;
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_ERR_IDS);
    if (!strstr(done.error.text, "72")) fail_msg("%s", done.error.text);
    dst.id_count = 73;
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_OK);
    assert_int_equal(done.valid_tokens, 9248);
    assert_int_equal(done.first_missing, -1);
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_107(void **state)
{
    static const int64_t from[] = {9, 4, 7, 2, 5}, to[] = {3, 1, 0, 2};
    struct worker src = tiny(4, 1, 0, 10), dst = tiny(4, 1, 0, 4);
    struct pull done = {.end = 64, .tokens = 64};

    (void)state;
    worker_ids(&src, 5, from);
    worker_ids(&dst, 4, to);
    worker_open(&src);
    worker_open(&dst);
    worker_fill(&src, 64);
    assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_OK);
    assert_int_equal(done.bytes, 4 * 2 * 2048);
    worker_check(&dst, 0, 64, 64, "four of five blocks");
    worker_close(&src);
    worker_close(&dst);
}

static void test_fr_108(void **state)
{
    static const struct { const char *name; int64_t tokens, blocks; } rows[] = {
        {"70 tokens", 70, 5}, {"5 tokens", 5, 1},
    };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct worker src = tiny(4, 1, 0, 6), dst = tiny(4, 1, 0, 6);
        struct pull done = {.end = rows[i].tokens, .tokens = rows[i].tokens};

        worker_open(&src);
        worker_open(&dst);
        worker_fill(&src, rows[i].tokens);
        assert_int_equal(pull(&done, &src, 1, &dst, 1, 0, -1), KVF_OK);
        assert_int_equal(done.bytes, rows[i].blocks * 2 * 2048);
        assert_int_equal(done.valid_tokens, rows[i].tokens);
        worker_check(&dst, 0, rows[i].blocks * 16, rows[i].tokens, rows[i].name);
        worker_close(&src);
        worker_close(&dst);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fr_103), cmocka_unit_test(test_fr_105), cmocka_unit_test(test_fr_106),
        cmocka_unit_test(test_fr_107), cmocka_unit_test(test_fr_108),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
