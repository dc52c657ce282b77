/* SPDX-License-Identifier: Apache-2.0 */
/* Field cases of class A, shard maps: TP, copied heads, latents, PP, CP. One test per case, named by its number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kit.h"

/* Pulls everything for one rank and checks it. */
static void pull_all(struct pull *out, const struct worker *src, size_t src_count, const struct worker *dst,
                     size_t dst_count, size_t destination, int64_t tokens, const char *name)
{
    *out = (struct pull){.end = tokens, .tokens = tokens};
    if (pull(out, src, src_count, dst, dst_count, destination, -1) != KVF_OK) fail_msg("%s: %s", name, out->error.text);
    worker_check(&dst[destination], 0, tokens, tokens, name);
}

static void test_fr_001(void **state)
{
    struct worker many[8], one[1];
    struct pull done;

    (void)state;
    instance_open(many, 4, 8, 3, 48, true);
    instance_open(one, 4, 1, 3, 48, false);
    pull_all(&done, many, 8, one, 1, 0, 48, "8 to 1");
    assert_int_equal(done.bytes, 3 * 2 * 2048);
    for (int i = 0; i < 8; i++) assert_int_equal(done.bytes_from[i], i % 2 ? -1 : 3 * 2 * 2 * 256);
    instance_close(many, 8);
    worker_fill(&one[0], 48);
    instance_open(many, 4, 8, 3, 48, false);
    for (size_t rank = 0; rank < 8; rank++) {
        assert_int_equal(many[rank].head_first, rank / 2);
        pull_all(&done, one, 1, many, 8, rank, 48, "1 to 8");
        assert_int_equal(done.bytes, 3 * 2 * 2 * 256);
    }
    instance_close(many, 8);
    instance_close(one, 1);
}

static void test_fr_002(void **state)
{
    static const struct { const char *name; int64_t src, dst; } rows[] = {
        {"2 to 4", 2, 4}, {"4 to 8", 4, 8}, {"8 to 16", 8, 16}, {"16 to 8", 16, 8}, {"16 to 4", 16, 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct worker src[16], dst[16];
        struct pull done;

        instance_open(src, 8, rows[i].src, 1, 16, true);
        instance_open(dst, 8, rows[i].dst, 1, 16, false);
        for (int64_t rank = 0; rank < rows[i].dst; rank++) {
            int64_t per_dst = rows[i].dst > 8 ? 1 : 8 / rows[i].dst;

            pull_all(&done, src, (size_t)rows[i].src, dst, (size_t)rows[i].dst, (size_t)rank, 16, rows[i].name);
            for (int64_t s = 0; s < rows[i].src; s++) { /* a sender holds one of the heads wanted */
                int64_t wanted = rank * 8 / rows[i].dst;

                if (done.bytes_from[s] < 0) continue;
                assert_true(src[s].head_first < wanted + per_dst && wanted < src[s].head_first + src[s].head_count);
            }
            if (rows[i].src == 8) assert_int_equal(done.bytes_from[rank / 2], 2 * 2 * 256);
        }
        instance_close(src, (size_t)rows[i].src);
        instance_close(dst, (size_t)rows[i].dst);
    }
}

static void test_fr_003(void **state)
{
    struct worker src[1], dst[4];
    struct pull done;
    int64_t end = 0;

    (void)state;
    instance_open(src, 2, 1, 3, 48, true);
    instance_open(dst, 2, 4, 3, 48, false);
    for (size_t rank = 0; rank < 4; rank++) {
        assert_int_equal(dst[rank].head_first, rank / 2);
        pull_all(&done, src, 1, dst, 4, rank, 48, "heads 0,0,1,1");
        if (done.source_end > end) end = done.source_end;
        assert_int_equal(done.source_end, src[0].memory_bytes[0] - (rank < 2 ? 256 : 0));
    }
    assert_int_equal(end, src[0].memory_bytes[0]);
    instance_close(src, 1);
    instance_close(dst, 4);
}

/* Who must have finished before the destination may be called ready: four senders, each with its own head. */
static void test_fr_004(void **state)
{
    static const int order[] = {0, 1, 3, 2};
    struct worker src[4], dst[1];
    struct pull done = {.end = 48, .tokens = 48};

    (void)state;
    instance_open(src, 4, 4, 3, 48, true);
    instance_open(dst, 4, 1, 3, 48, false);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pull(&done, src, 4, dst, 1, 0, order[i]), KVF_OK);
        assert_int_equal(done.bytes, 3 * 2 * 2 * 256);
        for (int64_t head = 0; head < 4; head++) {
            unsigned char guard[256];
            bool arrived = false;

            memset(guard, GUARD, sizeof guard);
            for (int j = 0; j <= i; j++) arrived = arrived || order[j] == head;
            assert_int_equal(memcmp(worker_row(&dst[0], 1, 1, 2, head, 0), guard, 256) != 0, arrived);
        }
    }
    worker_check(&dst[0], 0, 48, 48, "all four");
    instance_close(src, 4);
    instance_close(dst, 1);
}

static void open_latents(struct worker *workers, int64_t count, bool filled)
{
    for (int64_t i = 0; i < count; i++) {
        workers[i] = tiny(1, count, i, 3);
        workers[i].latent = true;
        workers[i].row_bytes = 576 * 2;
        worker_open(&workers[i]);
        if (filled) worker_fill(&workers[i], 48);
    }
}

static void test_fr_005(void **state)
{
    static const struct { const char *name; int64_t src, dst; } rows[] = {{"4 to 2", 4, 2}, {"2 to 4", 2, 4}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct worker src[4], dst[4];
        struct pull done;

        open_latents(src, rows[i].src, true);
        open_latents(dst, rows[i].dst, false);
        for (int64_t rank = 0; rank < rows[i].dst; rank++) {
            int senders = 0;

            pull_all(&done, src, (size_t)rows[i].src, dst, (size_t)rows[i].dst, (size_t)rank, 48, rows[i].name);
            for (int64_t s = 0; s < rows[i].src; s++) senders += done.bytes_from[s] == 3 * 2 * 18432;
            assert_int_equal(senders, 1);
            assert_int_equal(done.bytes, 3 * 2 * 18432);
        }
        instance_close(src, (size_t)rows[i].src);
        instance_close(dst, (size_t)rows[i].dst);
    }
}

static void test_fr_006(void **state)
{
    struct worker src[2], dst[8];
    int pushes[2] = {0, 0};

    (void)state;
    instance_open(src, 2, 2, 1, 16, true);
    instance_open(dst, 2, 8, 1, 16, false);
    for (size_t rank = 0; rank < 8; rank++) {
        struct pull done;

        pull_all(&done, src, 2, dst, 8, rank, 16, "2 to 8");
        assert_int_equal(done.bytes_from[rank / 4], 2 * 2 * 256);
        assert_int_equal(done.bytes_from[1 - rank / 4], -1);
        pushes[rank / 4]++;
    }
    assert_int_equal(pushes[0], 4);
    assert_int_equal(pushes[1], 4);
    instance_close(src, 2);
    instance_close(dst, 8);
}

static void test_fr_008(void **state)
{
    struct worker src[4], dst[4];

    (void)state;
    for (int64_t i = 0; i < 4; i++) {
        src[i] = tiny(4, 2, i % 2, 3);
        src[i].rank.pp = i / 2;
        src[i].layer_first = i / 2 * 2;
        worker_open(&src[i]);
        worker_fill(&src[i], 48);
        dst[i] = tiny(4, 4, i, 3);
        dst[i].layers = 4;
        worker_open(&dst[i]);
    }
    for (size_t rank = 0; rank < 4; rank++) {
        struct pull done;

        pull_all(&done, src, 4, dst, 4, rank, 48, "two stages");
        for (size_t s = 0; s < 4; s++) {
            assert_int_equal(done.bytes_from[s], s % 2 == rank / 2 ? 3 * 2 * 2 * 256 : -1);
        }
    }
    instance_close(src, 4);
    instance_close(dst, 4);
}

/* Context-parallel ranks of a tiny cache with one copy of all heads each. */
static void open_stripes(struct worker *workers, int64_t stripes, enum dealing dealing, int64_t tokens, bool filled)
{
    for (int64_t i = 0; i < stripes; i++) {
        workers[i] = tiny(4, 1, 0, 6);
        workers[i].rank.cp = i;
        workers[i].dealing = stripes > 1 ? dealing : NOT_DEALT;
        workers[i].stripes = stripes;
        workers[i].stripe = i;
        worker_open(&workers[i]);
        if (filled) worker_fill(&workers[i], tokens);
    }
}

static void test_fr_009(void **state)
{
    static const struct { const char *name; int64_t src, dst; enum dealing from, to; int64_t blocks, expected[4]; }
    rows[] = {
        {"5 blocks, contiguous on 2", 1, 2, NOT_DEALT, CONTIGUOUS, 5, {3, 2}},
        {"5 blocks, round robin on 2", 1, 2, NOT_DEALT, BY_BLOCK, 5, {3, 2}},
        {"3 blocks, contiguous on 4", 1, 4, NOT_DEALT, CONTIGUOUS, 3, {1, 1, 1, 0}},
        {"3 blocks, round robin on 4", 1, 4, NOT_DEALT, BY_BLOCK, 3, {1, 1, 1, 0}},
        {"contiguous to round robin", 2, 2, CONTIGUOUS, BY_BLOCK, 5, {3, 2}},
        {"round robin to contiguous", 2, 2, BY_BLOCK, CONTIGUOUS, 5, {3, 2}},
        {"contiguous to contiguous, 3 to 2", 3, 2, CONTIGUOUS, CONTIGUOUS, 5, {3, 2}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct worker src[4], dst[4];
        int64_t tokens = rows[i].blocks * 16;

        open_stripes(src, rows[i].src, rows[i].from, tokens, true);
        open_stripes(dst, rows[i].dst, rows[i].to, tokens, false);
        for (int64_t rank = 0; rank < rows[i].dst; rank++) {
            struct pull done;

            pull_all(&done, src, (size_t)rows[i].src, dst, (size_t)rows[i].dst, (size_t)rank, tokens, rows[i].name);
            if (done.bytes != rows[i].expected[rank] * 2 * 2048) fail_msg("%s: rank %d", rows[i].name, (int)rank);
        }
        instance_close(src, (size_t)rows[i].src);
        instance_close(dst, (size_t)rows[i].dst);
    }
}

static void test_fr_010(void **state)
{
    struct worker src[1], dst[2];

    (void)state;
    open_stripes(src, 1, NOT_DEALT, 96, true);
    open_stripes(dst, 2, BY_BLOCK, 96, false);
    for (size_t rank = 0; rank < 2; rank++) {
        struct pull done = {.begin = 0, .end = 64, .tokens = 96};

        assert_int_equal(pull(&done, src, 1, dst, 2, rank, -1), KVF_OK);
        worker_check(&dst[rank], 0, 64, 96, "first chunk");
        assert_int_equal(done.bytes, 2 * 2 * 2048);
        done.begin = 64;
        done.end = 96;
        assert_int_equal(pull(&done, src, 1, dst, 2, rank, -1), KVF_OK);
        worker_check(&dst[rank], 0, 96, 96, "both chunks");
        for (int64_t block = 0; block < 6; block++) {
            assert_int_equal(worker_slot(&dst[rank], block * 16, 96), block % 2 == (int64_t)rank ? block / 2 : -1);
        }
    }
    instance_close(src, 1);
    instance_close(dst, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fr_001), cmocka_unit_test(test_fr_002), cmocka_unit_test(test_fr_003),
        cmocka_unit_test(test_fr_004), cmocka_unit_test(test_fr_005), cmocka_unit_test(test_fr_006),
        cmocka_unit_test(test_fr_008), cmocka_unit_test(test_fr_009), cmocka_unit_test(test_fr_010),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
