/* SPDX-License-Identifier: Apache-2.0 */
/* The registrar as a table: many peers, replacing, forgetting; warnings that are remembered. */
#include "trtllm/rank.h"
#include "trtllm/rank_kit.h"
#include "trtllm/warn.h"

#include <stdio.h>
#include <string.h>

enum { PEERS = 600 };

static kvf_trtllm_rank *make(const char *name, int64_t number)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    kit.spec.instance_rank = number;
    rank_kit_pt(&kit, 1024, 2, 2, 2, 0, 1);
    return rank_kit_make(&kit);
}

/* Names and numbers that run together when they are written one after the other. */
static void name_of(int i, char name[16], int64_t *number)
{
    snprintf(name, 16, "a%d", i / 20);
    *number = i % 20;
}

static void test_many(void **state)
{
    static kvf_trtllm_rank *ranks[PEERS];
    kvf_trtllm_rank *self = make("self", 0);
    kvf_trtllm_registrar *registrar;
    struct kvf_error error;
    char name[16];
    int64_t number;

    (void)state;
    assert_int_equal(kvf_trtllm_registrar_create(self, NULL, &registrar, NULL), KVF_OK);
    for (int i = 0; i < PEERS; i++) {
        name_of(i, name, &number);
        ranks[i] = make(name, number);
        assert_int_equal(kvf_trtllm_registrar_register(registrar, ranks[i], NULL, &error), KVF_OK);
        assert_int_equal(kvf_trtllm_registrar_count(registrar), i + 1);
    }
    for (int i = 0; i < PEERS; i += 3) {
        name_of(i, name, &number);
        assert_int_equal(kvf_trtllm_registrar_unregister(registrar, name, number, &error), KVF_OK);
    }
    for (int i = 0; i < PEERS; i++) {
        const kvf_trtllm_rank *found = NULL;

        name_of(i, name, &number);
        assert_int_equal(kvf_trtllm_registrar_find(registrar, name, number, &found, &error),
                         i % 3 == 0 ? KVF_ERR_NOT_FOUND : KVF_OK);
        assert_ptr_equal(found, i % 3 == 0 ? NULL : ranks[i]);
    }
    assert_int_equal(kvf_trtllm_registrar_count(registrar), PEERS - PEERS / 3);
    kvf_trtllm_registrar_destroy(registrar);
    for (int i = 0; i < PEERS; i++) kvf_trtllm_rank_release(ranks[i]);
    kvf_trtllm_rank_release(self);
}

/* "a1" and 1 is not "a" and 11. */
static void test_identity(void **state)
{
    kvf_trtllm_rank *self = make("self", 0), *one = make("a1", 1);
    const kvf_trtllm_rank *found = NULL;
    kvf_trtllm_registrar *registrar;
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvf_trtllm_registrar_create(self, NULL, &registrar, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "a1", 1, &found, &error), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, one, NULL, &error), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "a", 11, &found, &error), KVF_ERR_NOT_FOUND);
    assert_string_equal(error.text, "peer a (rank=11) is not registered");
    kvf_trtllm_registrar_destroy(registrar);
    kvf_trtllm_rank_release(one);
    kvf_trtllm_rank_release(self);
}

/* A peer that comes again replaces what was known of it, its pair included; one that is refused replaces nothing. */
static void test_again(void **state)
{
    kvf_trtllm_rank *self = make("self", 0), *first = make("peer", 3), *second = make("peer", 3), *bad;
    const kvf_trtllm_rank *found = NULL;
    kvf_trtllm_pair *pairs[3];
    kvf_trtllm_registrar *registrar;
    struct rank_kit kit;

    (void)state;
    rank_kit_init(&kit, "peer");
    kit.spec.instance_rank = 3;
    kit.attention.is_mla = 1;
    bad = rank_kit_make(&kit);
    assert_int_equal(kvf_trtllm_registrar_create(self, NULL, &registrar, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_pair(registrar, "peer", 3, &pairs[0], NULL), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, first, NULL, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_pair(registrar, "peer", 3, &pairs[0], NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_pair(registrar, "peer", 3, &pairs[1], NULL), KVF_OK);
    assert_ptr_equal(pairs[0], pairs[1]);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, bad, NULL, NULL), KVF_ERR_INCOMPATIBLE);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 3, &found, NULL), KVF_OK);
    assert_ptr_equal(found, first);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, second, NULL, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 3, &found, NULL), KVF_OK);
    assert_ptr_equal(found, second);
    assert_int_equal(kvf_trtllm_registrar_count(registrar), 1);
    assert_int_equal(kvf_trtllm_registrar_pair(registrar, "peer", 3, &pairs[2], NULL), KVF_OK);
    assert_ptr_not_equal(pairs[2], pairs[0]);
    kvf_trtllm_registrar_destroy(registrar);
    for (int i = 0; i < 3; i++) kvf_trtllm_pair_release(pairs[i]);
    kvf_trtllm_rank_release(bad);
    kvf_trtllm_rank_release(second);
    kvf_trtllm_rank_release(first);
    kvf_trtllm_rank_release(self);
}

static void count_line(void *context, int level, const char *text)
{
    assert_int_equal(level, KVF_LOG_WARN);
    assert_string_equal(text, "careful");
    ++*(int *)context;
}

static void test_warnings(void **state)
{
    struct kvfi_trt_warn warn;
    char key[64];
    int count = 0;

    (void)state;
    kvfi_trt_warn_init(&warn, &(struct kvf_log_sink){count_line, &count, 0, KVF_LOG_WARN});
    for (int i = 0; i < 3; i++) kvfi_trt_warn_once(&warn, "", "careful");
    assert_int_equal(count, 3);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < KVFI_TRT_WARN_KEYS; i++) {
            snprintf(key, sizeof key, "key-%d", i);
            kvfi_trt_warn_once(&warn, key, "careful");
        }
    }
    assert_int_equal(count, 3 + KVFI_TRT_WARN_KEYS);
    kvfi_trt_warn_once(&warn, "one more", "careful");
    kvfi_trt_warn_once(&warn, "key-1", "careful");
    assert_int_equal(count, 4 + KVFI_TRT_WARN_KEYS);
    kvfi_trt_warn_once(&warn, "key-0", "careful");
    assert_int_equal(count, 5 + KVFI_TRT_WARN_KEYS);
    assert_int_equal(warn.count, KVFI_TRT_WARN_KEYS);
    kvfi_trt_warn_fini(&warn);
}

static void test_options(void **state)
{
    kvf_trtllm_rank *self = make("self", 0);
    kvf_trtllm_registrar *registrar = NULL;
    struct kvf_trtllm_options options;
    struct kvf_error error;

    (void)state;
    kvf_trtllm_options_init(&options, sizeof options);
    assert_int_equal(options.flags, KVF_TRTLLM_STRICT_UPSTREAM);
    options.flags |= 2;
    assert_int_equal(kvf_trtllm_registrar_create(self, &options, &registrar, &error), KVF_ERR_NEWER_OPTION);
    assert_null(registrar);
    kvf_trtllm_registrar_destroy(NULL);
    kvf_trtllm_rank_release(self);
}

/* What all peers take together is bounded, whoever they are; what is forgotten makes room. */
static void test_memory(void **state)
{
    kvf_trtllm_rank *self = make("self", 0), *ranks[3];
    struct kvf_trtllm_options options;
    kvf_trtllm_registrar *registrar;
    struct kvf_error error = {0};

    (void)state;
    kvf_trtllm_options_init(&options, sizeof options);
    assert_int_equal(options.max_peer_bytes, 1 << 30);
    for (int i = 0; i < 3; i++) ranks[i] = make("gen", i);
    options.max_peer_bytes = 2 * kvfi_trt_rank_memory(ranks[0]);
    assert_true(options.max_peer_bytes > 2 * 4096 && options.max_peer_bytes < 2 * 32768);
    assert_int_equal(kvf_trtllm_registrar_create(self, &options, &registrar, NULL), KVF_OK);
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < 2; i++)
            assert_int_equal(kvf_trtllm_registrar_register(registrar, ranks[i], NULL, &error), KVF_OK);
    }
    assert_int_equal(kvf_trtllm_registrar_register(registrar, ranks[2], NULL, &error), KVF_ERR_LIMIT);
    assert_non_null(strstr(error.text, "peer gen (rank=2): 2 peers and its rank info take "));
    assert_int_equal(kvf_trtllm_registrar_count(registrar), 2);
    assert_int_equal(kvf_trtllm_registrar_unregister(registrar, "gen", 0, &error), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, ranks[2], NULL, &error), KVF_OK);
    kvf_trtllm_registrar_destroy(registrar);
    for (int i = 0; i < 3; i++) kvf_trtllm_rank_release(ranks[i]);
    kvf_trtllm_rank_release(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
