/* SPDX-License-Identifier: Apache-2.0 */
/* The registry alone, with a clock that the test turns. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "directory/registry.h"

#define LEASE_NS 100

static struct kvfi_registry_claim claim_of(const char *instance, int64_t pp, int64_t tp, uint64_t incarnation)
{
    return (struct kvfi_registry_claim){.instance = instance, .model = "m", .incarnation = incarnation,
                                        .rank = {.pp = pp, .tp = tp}, .ranks_expected = 4, .channel = "tcp://h:1",
                                        .holdings = "[]"};
}

static struct kvfi_registry_key key_of(const char *instance, int64_t pp, int64_t tp, uint64_t incarnation)
{
    return (struct kvfi_registry_key){instance, incarnation, {.pp = pp, .tp = tp}};
}

static int64_t add(struct kvfi_registry *registry, const char *instance, int64_t pp, int64_t tp, uint64_t incarnation,
                   int64_t now_ns)
{
    struct kvfi_registry_claim claim = claim_of(instance, pp, tp, incarnation);
    const struct kvfi_registry_instance *found = NULL;
    struct kvf_error error = {0};

    kvfi_registry_expire(registry, now_ns);
    if (kvfi_registry_register(registry, &claim, now_ns, &found, &error) != KVF_OK) fail_msg("%s", error.text);
    return found->epoch;
}

static int64_t count_of(struct kvfi_registry *registry, const char *instance, int64_t now_ns)
{
    const struct kvfi_registry_instance *found;

    kvfi_registry_expire(registry, now_ns);
    found = kvfi_registry_find(registry, instance);
    return found ? (int64_t)found->rank_count : 0;
}

static void keeps_ranks_in_order(void **state)
{
    static const int64_t given[][2] = {{1, 1}, {0, 1}, {1, 0}, {0, 0}};
    const struct kvfi_registry_instance *found;
    struct kvfi_registry registry;

    (void)state;
    kvfi_registry_init(&registry, LEASE_NS, 100, 1);
    for (size_t i = 0; i < 4; i++) add(&registry, "p", given[i][0], given[i][1], i + 1, 0);
    found = kvfi_registry_find(&registry, "p");
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(found->ranks[i].rank.pp, i / 2);
        assert_int_equal(found->ranks[i].rank.tp, i % 2);
    }
    kvfi_registry_fini(&registry);
}

static void ends_leases_on_time(void **state)
{
    struct kvfi_registry registry;
    const struct kvfi_registry_instance *found;
    struct kvfi_registry_key key = key_of("p", 0, 1, 2);

    (void)state;
    kvfi_registry_init(&registry, LEASE_NS, 100, 1);
    add(&registry, "p", 0, 0, 1, 0);
    add(&registry, "p", 0, 1, 2, 30);
    add(&registry, "q", 0, 0, 3, 60);
    assert_int_equal(count_of(&registry, "p", 99), 2);
    assert_int_equal(count_of(&registry, "p", 100), 1);
    assert_int_equal(kvfi_registry_renew(&registry, &key, 100, &found, NULL), KVF_OK);
    assert_int_equal(count_of(&registry, "p", 199), 1);
    assert_int_equal(count_of(&registry, "q", 199), 0);
    assert_int_equal(count_of(&registry, "p", 200), 0);
    assert_int_equal(registry.expired, 3);
    assert_int_equal(registry.rank_count, 0);
    assert_int_equal(registry.text_bytes, 0);
    assert_int_equal(registry.instance_count, 0);
    assert_int_equal(kvfi_registry_renew(&registry, &key, 200, &found, NULL), KVF_ERR_NOT_FOUND);
    kvfi_registry_fini(&registry);
}

static void raises_the_epoch_when_a_rank_is_new(void **state)
{
    struct kvfi_registry registry;
    struct kvfi_registry_key key = key_of("p", 0, 0, 2);
    int64_t epoch, before;

    (void)state;
    kvfi_registry_init(&registry, LEASE_NS, 100, 1000);
    before = add(&registry, "p", 0, 0, 1, 0);
    assert_true(before > 1000);
    assert_int_equal(add(&registry, "p", 0, 0, 1, 10), before);
    epoch = add(&registry, "p", 0, 0, 2, 20);
    assert_true(epoch > before);
    before = epoch;
    assert_int_equal(kvfi_registry_withdraw(&registry, &key, NULL), KVF_OK);
    assert_null(kvfi_registry_find(&registry, "p"));
    epoch = add(&registry, "p", 0, 0, 2, 30);
    assert_true(epoch > before);
    before = epoch;
    assert_true(add(&registry, "p", 0, 0, 2, 130) > before);
    kvfi_registry_fini(&registry);
}

/** A rank that is alone may come back in another shape at once; beside others it has to agree with them. */
static void lets_a_lone_rank_change_its_mind(void **state)
{
    struct kvfi_registry registry;
    const struct kvfi_registry_instance *found;
    struct kvfi_registry_claim claim = claim_of("p", 0, 0, 2);
    struct kvf_error error;

    (void)state;
    kvfi_registry_init(&registry, LEASE_NS, 100, 1);
    add(&registry, "p", 0, 0, 1, 0);
    claim.ranks_expected = 2;
    claim.model = "n";
    assert_int_equal(kvfi_registry_register(&registry, &claim, 0, &found, NULL), KVF_OK);
    assert_int_equal(found->ranks_expected, 2);
    assert_string_equal(found->model, "n");
    claim = claim_of("p", 0, 1, 3);
    assert_int_equal(kvfi_registry_register(&registry, &claim, 0, &found, &error), KVF_ERR_EXISTS);
    assert_string_equal(error.text, "instance \"p\" has 2 ranks, pp0.cp0.tp1 expects 4");
    assert_int_equal(count_of(&registry, "p", 0), 1);
    kvfi_registry_fini(&registry);
}

static void bounds_ranks_and_texts(void **state)
{
    struct kvfi_registry registry;
    const struct kvfi_registry_instance *found;
    struct kvfi_registry_claim claim;
    struct kvf_error error;

    (void)state;
    kvfi_registry_init(&registry, LEASE_NS, 3, 1);
    registry.max_text_bytes = 50;
    add(&registry, "a", 0, 0, 1, 0);
    add(&registry, "b", 0, 0, 1, 0);
    claim = claim_of("c", 0, 0, 1);
    claim.holdings = "[                                          ]";
    assert_int_equal(kvfi_registry_register(&registry, &claim, 0, &found, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "directory is full: it holds 22 bytes of holdings");
    assert_null(kvfi_registry_find(&registry, "c"));
    add(&registry, "c", 0, 0, 1, 0);
    claim = claim_of("d", 0, 0, 1);
    assert_int_equal(kvfi_registry_register(&registry, &claim, 0, &found, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "directory is full: it holds 3 ranks");
    add(&registry, "d", 0, 0, 1, LEASE_NS);
    kvfi_registry_fini(&registry);
}

/** What no client would read is not taken: an instance is never longer than an answer may be. A rank that takes its own
 * place again counts once. */
static void bounds_answers(void **state)
{
    struct kvfi_registry registry;
    const struct kvfi_registry_instance *found;
    struct kvfi_registry_claim claim;
    struct kvf_error error;

    (void)state;
    kvfi_registry_init(&registry, LEASE_NS, 100, 1);
    assert_in_range(registry.max_answer_bytes, 67000000, 67108864);
    registry.max_answer_bytes = 1100;
    registry.max_text_bytes = 100;
    for (int64_t i = 0; i < 3; i++) add(&registry, "a", 0, i, 1, 0);
    for (uint64_t i = 2; i < 9; i++) add(&registry, "a", 0, 1, i, 0);
    claim = claim_of("a", 0, 3, 1);
    assert_int_equal(kvfi_registry_register(&registry, &claim, 0, &found, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "instance \"a\" would take 1360 bytes in an answer, at most 1100 are given");
    assert_int_equal(count_of(&registry, "a", 0), 3);
    claim = claim_of("a", 0, 2, 7);
    claim.holdings = "[                                                                                  ]";
    registry.max_text_bytes = 1000;
    assert_int_equal(kvfi_registry_register(&registry, &claim, 0, &found, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "instance \"a\" would take 1102 bytes in an answer, at most 1100 are given");
    assert_int_equal(kvfi_registry_find(&registry, "a")->ranks[2].incarnation, 1);
    add(&registry, "b", 0, 3, 1, 0);
    assert_int_equal(kvfi_registry_withdraw(&registry, &(struct kvfi_registry_key){"a", 1, {.tp = 2}}, NULL), KVF_OK);
    add(&registry, "a", 0, 3, 1, 0);
    assert_int_equal(count_of(&registry, "a", LEASE_NS), 0);
    assert_int_equal(registry.text_bytes, 0);
    for (int64_t i = 0; i < 3; i++) add(&registry, "a", 0, i, 1, LEASE_NS);
    kvfi_registry_fini(&registry);
}

/** Many instances and ranks, in an order that is neither rising nor falling, all found and all gone in the end. */
static void finds_one_of_many(void **state)
{
    struct kvfi_registry registry;
    char name[16];

    (void)state;
    kvfi_registry_init(&registry, LEASE_NS, 10000, 1);
    for (int64_t i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "i%d", (int)(i * 7919 % 500));
        add(&registry, name, 0, i * 7919 / 500 % 4, (uint64_t)i + 1, 0);
    }
    assert_int_equal(registry.instance_count, 500);
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "i%d", i);
        assert_true(count_of(&registry, name, 0) > 0);
    }
    kvfi_registry_expire(&registry, LEASE_NS);
    assert_int_equal(registry.instance_count, 0);
    assert_int_equal(registry.rank_count, 0);
    kvfi_registry_fini(&registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_ranks_in_order), cmocka_unit_test(ends_leases_on_time),
        cmocka_unit_test(raises_the_epoch_when_a_rank_is_new), cmocka_unit_test(lets_a_lone_rank_change_its_mind),
        cmocka_unit_test(bounds_ranks_and_texts), cmocka_unit_test(bounds_answers), cmocka_unit_test(finds_one_of_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
