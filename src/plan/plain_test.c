/* SPDX-License-Identifier: Apache-2.0 */
/* Whole slots against whole slots: the way without a walk must find what the walk finds; and ids that repeat. */
#include <stdlib.h>
#include <string.h>

#include "plan/bind.h"
#include "plan/plan_kit.h"

enum { SLOTS = 64, ROUNDS = 4000 };

/** Blocks of 16 tokens of 4 bytes on both sides; the destination's slots are padded. */
static kvf_plan *make_plan(int64_t slots)
{
    struct kit *kits = calloc(2, sizeof *kits);
    kvf_plan *plan;

    assert_non_null(kits);
    for (int i = 0; i < 2; i++) {
        kit_init(&kits[i]);
        kit_pool(&kits[i], kit_memory(&kits[i]), 0, i ? 128 : 64, slots);
        kit_group(&kits[i], 16);
        kit_view(&kits[i], (struct kit_part){.role = "kv", .row = 4, .entries = 16});
        kit_place(&kits[i], 0, 0, 0);
    }
    plan = kit_plan(&kits[0], &kits[1], 0);
    for (int i = 0; i < 2; i++) kit_free(&kits[i]);
    free(kits);
    return plan;
}

static int64_t draw(uint64_t *seed, int64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)(*seed >> 33) % below;
}

/** Ids in runs of random length, each at most once, as engines give them. */
static size_t draw_ids(uint64_t *seed, int64_t *ids, size_t count)
{
    bool used[SLOTS] = {false};
    size_t made = 0;

    while (made < count) {
        int64_t id = draw(seed, SLOTS), run = 1 + draw(seed, 6);

        for (; run > 0 && made < count && id < SLOTS && !used[id]; run--, id++) {
            used[id] = true;
            ids[made++] = id;
        }
    }
    return made;
}

static struct kvfi_walk walk_of(const struct kvfi_track *track, const int64_t *src, const int64_t *dst, int64_t first,
                                int64_t end)
{
    return (struct kvfi_walk){.track = track, .src = track->src, .dst = track->dst,
                              .src_ids = {.ids = src, .end = SLOTS}, .dst_ids = {.ids = dst, .end = SLOTS},
                              .position = first * 16, .end = end * 16, .max_steps = SLOTS};
}

static void expect_equal(const struct kvfi_bound *a, const struct kvfi_bound *b)
{
    assert_int_equal(a->run_count, b->run_count);
    assert_int_equal(a->combs, b->combs);
    assert_int_equal(a->src_slot_max, b->src_slot_max);
    assert_int_equal(a->dst_slot_max, b->dst_slot_max);
    assert_true(kvfi_shape_equal(&a->folded.shape, &b->folded.shape));
    for (size_t i = 0; i < a->run_count; i++) {
        const struct kvfi_block_run *x = &a->runs[i], *y = &b->runs[i];

        assert_true(x->src_slot == y->src_slot && x->dst_slot == y->dst_slot && x->first == y->first);
        assert_true(x->src_slot_step == y->src_slot_step && x->dst_slot_step == y->dst_slot_step);
        assert_true(x->src_entry == y->src_entry && x->dst_entry == y->dst_entry);
        assert_true(x->src_entry_step == y->src_entry_step && x->dst_entry_step == y->dst_entry_step);
    }
}

static void test_finds_what_the_walk_finds(void **state)
{
    kvf_plan *plan = make_plan(SLOTS);
    uint64_t seed = 7;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t src[SLOTS], dst[SLOTS], first = draw(&seed, 8), end = first + 1 + draw(&seed, SLOTS - 8);
        struct kvfi_collector walked = {.plan = plan}, plain = {.plan = plan};
        struct kvfi_walk walk, same;
        struct kvfi_comb comb;

        draw_ids(&seed, src, SLOTS);
        draw_ids(&seed, dst, SLOTS);
        walk = same = walk_of(&plan->tracks[0], src, dst, first, end);
        kvfi_collector_track(&walked, &plan->tracks[0]);
        kvfi_collector_track(&plain, &plan->tracks[0]);
        assert_true(kvfi_walk_is_plain(&same));
        assert_int_equal(kvfi_collector_add_plain(&plain, &same, NULL), KVF_OK);
        while (kvfi_walk_next(&walk, &comb, NULL) == KVF_OK)
            assert_int_equal(kvfi_collector_add(&walked, &comb, NULL), KVF_OK);
        assert_int_equal(walked.count, 1);
        assert_int_equal(plain.count, 1);
        expect_equal(&plain.bound[0], &walked.bound[0]);
        free(plain.table);
        free(walked.table);
        kvfi_bound_free(plain.bound, plain.count);
        kvfi_bound_free(walked.bound, walked.count);
    }
    kvf_plan_release(plan);
}

static void test_leaves_the_rest_to_the_walk(void **state)
{
    int64_t ids[SLOTS], holed[SLOTS];
    kvf_plan *plan = make_plan(SLOTS);
    struct kvfi_walk walk;

    (void)state;
    for (int i = 0; i < SLOTS; i++) ids[i] = holed[i] = i;
    holed[5] = -1;
    walk = walk_of(&plan->tracks[0], ids, holed, 0, 6);
    assert_false(kvfi_walk_is_plain(&walk));
    walk = walk_of(&plan->tracks[0], holed, ids, 0, 6);
    assert_false(kvfi_walk_is_plain(&walk));
    walk = walk_of(&plan->tracks[0], holed, ids, 0, 5);
    assert_true(kvfi_walk_is_plain(&walk));
    walk.position = 8; /* within a slot */
    assert_false(kvfi_walk_is_plain(&walk));
    walk = walk_of(&plan->tracks[0], ids, ids, 3, 3);
    assert_false(kvfi_walk_is_plain(&walk));
    walk = walk_of(&plan->tracks[0], ids, ids, 0, SLOTS + 1); /* past the lists' end */
    assert_false(kvfi_walk_is_plain(&walk));
    walk = walk_of(&plan->tracks[0], ids, ids, 0, 3);
    walk.src_ids.first = 1; /* begins behind */
    assert_false(kvfi_walk_is_plain(&walk));
    walk = walk_of(&plan->tracks[0], ids, ids, 0, 3);
    walk.max_steps = 2;
    assert_false(kvfi_walk_is_plain(&walk));
    walk = walk_of(&plan->tracks[0], ids, ids, 0, 3);
    walk.dst_ids.mirror = true;
    assert_false(kvfi_walk_is_plain(&walk));
    kvf_plan_release(plan);
}

static void test_ids_that_repeat(void **state)
{
    static const char *const texts[] = {"320 -> 0, (2, 64, 128), 64", "384 -> 1280, 64",
                                        "384 -> 0, (2, 64, 128), 64"};
    kvf_plan *plan = make_plan(4); /* nothing but addresses bounds ids */
    const struct kvf_id_list src = KIT_IDS(5, 6, 6, 6, 7), dst = KIT_IDS(0, 1, 10, 0, 1);
    kvf_binding *binding = kit_bind(plan, 0, 80, &src, &dst, KVF_BIND_ANY_IDS);

    (void)state;
    kit_expect_moves(binding, texts, 3);
    assert_int_equal(kvf_binding_bytes(binding), 5 * 64);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
}

static void test_ids_that_no_address_has(void **state)
{
    static const struct {
        const char *name;
        int64_t id, tokens;
        int status;
        const char *text;
    } rows[] = {
        {"huge", INT64_MAX / 128 - 1, 16, KVF_OK, NULL},
        {"past the end", INT64_MAX / 64, 16, KVF_ERR_OVERFLOW,
         "groups 0 and 0: an address or the sum of bytes does not fit"},
        {"no number at all", INT64_MAX, 16, KVF_ERR_IDS,
         "source group 0: id 9223372036854775807 at index 0, expected -1 or below 9223372036854775807"},
        {"below a hole", -2, 16, KVF_ERR_IDS,
         "source group 0: id -2 at index 0, expected -1 or below 9223372036854775807"},
    };
    kvf_plan *plan = make_plan(4);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kvf_id_list src = {&rows[i].id, 1, 0}, dst = KIT_IDS(0);
        struct kvf_bind_request request;
        struct kvf_error error = {.text = ""};
        kvf_binding *binding = NULL;
        int status;

        kvf_bind_request_init(&request, sizeof request);
        request.flags = KVF_BIND_ANY_IDS;
        request.token_end = request.request_tokens = rows[i].tokens;
        request.src = &src;
        request.dst = &dst;
        request.src_count = request.dst_count = 1;
        status = kvf_bind(plan, &request, &binding, &error);
        if (status != rows[i].status || (rows[i].text && strcmp(rows[i].text, error.text) != 0))
            fail_msg("%s: %s (%s)", rows[i].name, kvf_status_name(status), error.text);
        kvf_binding_destroy(binding);
    }
    kvf_plan_release(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_what_the_walk_finds), cmocka_unit_test(test_leaves_the_rest_to_the_walk),
        cmocka_unit_test(test_ids_that_repeat), cmocka_unit_test(test_ids_that_no_address_has),
    };

    return cmocka_run_group_tests_name("plain", tests, NULL, NULL);
}
