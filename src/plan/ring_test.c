/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges longer than rings retain, bound with KVF_BIND_RING_TAIL. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_kit.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { BLOCK = 16, BLOCKS = 32 };

/** A group of all positions, one that is a ring of `ring` tokens (0 = of all positions as well), one of state. */
static void build(struct kit *kit, int64_t tokens_per_block, int64_t ring, int64_t stripes)
{
    kit_init(kit);
    for (int64_t group = 0; group < 2; group++) {
        kit_pool(kit, kit_memory(kit), 0, 8 * tokens_per_block, 2 * BLOCKS);
        kit_group(kit, tokens_per_block);
        kit_view(kit, (struct kit_part){.role = group ? "v" : "k", .group = group, .row = 8,
                                        .entries = tokens_per_block});
        kit_place(kit, 0, group, 0);
    }
    kit->groups[1].ring_tokens = ring;
    if (stripes > 1) {
        kit->groups[1].stripes = stripes;
        kit->groups[1].stripe_tokens = tokens_per_block;
    }
    kit_pool(kit, kit_memory(kit), 0, 24, 2);
    kit_group(kit, 0);
    kit_view(kit, (struct kit_part){.role = "ssm", .group = 2, .row = 24});
    kit_place(kit, 0, 2, 0);
}

static kvf_plan *make_plan(int64_t src_ring, int64_t dst_block, int64_t dst_ring)
{
    struct kit src, dst;
    kvf_plan *plan;

    build(&src, BLOCK, src_ring, 1);
    build(&dst, dst_block, dst_ring, 1);
    plan = kit_plan(&src, &dst, 0);
    kit_free(&dst);
    kit_free(&src);
    return plan;
}

/** Ids of all blocks, scattered; `from`: those before are holes. */
static struct kvf_id_list ids_of(int64_t *ids, int64_t first_id, int64_t from)
{
    for (int64_t i = 0; i < BLOCKS; i++) ids[i] = i < from ? -1 : (first_id + i * 7) % BLOCKS;
    return (struct kvf_id_list){ids, BLOCKS, 0};
}

struct both {
    int64_t ids[4][BLOCKS];
    int64_t state;
    struct kvf_id_list src[3], dst[3];
};

static void fill(struct both *both, int64_t dst_from)
{
    both->state = 1;
    both->src[0] = ids_of(both->ids[0], 3, 0);
    both->src[1] = ids_of(both->ids[1], 5, 0);
    both->dst[0] = ids_of(both->ids[2], 9, 0);
    both->dst[1] = ids_of(both->ids[3], 11, dst_from);
    both->src[2] = both->dst[2] = (struct kvf_id_list){&both->state, 1, 0};
}

static int bind(const kvf_plan *plan, const struct both *both, int64_t begin, int64_t end, int64_t request_tokens,
                uint64_t flags, kvf_binding **out, struct kvf_error *error)
{
    struct kvf_bind_request request;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = flags;
    request.token_begin = begin;
    request.token_end = end;
    request.request_tokens = request_tokens;
    request.src = both->src;
    request.dst = both->dst;
    request.src_count = request.dst_count = 3;
    return kvf_bind(plan, &request, out, error);
}

static struct kit_fragment *fragments(const kvf_plan *plan, const struct both *both, int64_t begin, int64_t end,
                                      uint64_t flags, size_t *count)
{
    struct kit_fragment *list;
    kvf_binding *binding = NULL;
    struct kvf_error error;

    if (bind(plan, both, begin, end, end, flags, &binding, &error) != KVF_OK)
        fail_msg("[%" PRId64 ",%" PRId64 ") 0x%" PRIx64 ": %s", begin, end, flags, error.text);
    list = kit_fragments(binding, 0, 0, count);
    kvf_binding_destroy(binding);
    return list;
}

static int by_place(const void *a, const void *b)
{
    const struct kit_fragment *x = a, *y = b;

    if (x->dst != y->dst) return (x->dst > y->dst) - (x->dst < y->dst);
    return (x->src > y->src) - (x->src < y->src);
}

/** The same copies, in whatever order. */
static void expect_same(struct kit_fragment *a, size_t a_count, struct kit_fragment *b, size_t b_count,
                        const char *what)
{
    qsort(a, a_count, sizeof *a, by_place);
    qsort(b, b_count, sizeof *b, by_place);
    if (a_count != b_count || memcmp(a, b, a_count * sizeof *a) != 0)
        fail_msg("%s: %zu fragments, expected %zu others", what, a_count, b_count);
}

/** What moves with the flag is what two bindings make: all positions without rings, and rings and state alone over
 *  the last positions that both rings retain. */
static void test_tail_is_the_shorter_range(void **state)
{
    static const struct { int64_t src_ring, dst_block, dst_ring, begin, end; } rows[] = {
        {64, 16, 64, 0, 300}, {64, 16, 128, 0, 300}, {128, 16, 64, 0, 300}, {64, 16, 64, 0, 40}, {64, 16, 64, 0, 64},
        {64, 16, 64, 0, 65}, {64, 16, 64, 256, 300}, {64, 16, 64, 160, 300}, {64, 48, 96, 96, 333},
        {80, 16, 112, 0, 511},
        {0, 16, 64, 0, 300}, {0, 32, 96, 32, 301}, {64, 16, 64, 48, 48}};

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_plan *plan = make_plan(rows[i].src_ring, rows[i].dst_block, rows[i].dst_ring);
        int64_t begin = rows[i].begin, end = rows[i].end, first;
        int64_t ring = rows[i].src_ring && rows[i].src_ring < rows[i].dst_ring ? rows[i].src_ring : rows[i].dst_ring;
        struct kit_fragment *got, *got_state, *whole, *tail, *joined;
        size_t got_count, got_state_count, whole_count, tail_count;
        struct both both;
        char name[32];

        fill(&both, 0);
        snprintf(name, sizeof name, "row %zu", i);
        first = end - ring > begin ? end - ring : begin;
        got = fragments(plan, &both, begin, end, KVF_BIND_RING_TAIL, &got_count);
        got_state = fragments(plan, &both, begin, end, KVF_BIND_RING_TAIL | KVF_BIND_ONLY_STATE, &got_state_count);
        whole = fragments(plan, &both, begin, end, KVF_BIND_NO_STATE, &whole_count);
        tail = fragments(plan, &both, first, end, KVF_BIND_ONLY_STATE, &tail_count);
        joined = malloc((whole_count + tail_count + 1) * sizeof *joined);
        memcpy(joined, whole, whole_count * sizeof *joined);
        memcpy(joined + whole_count, tail, tail_count * sizeof *joined);
        expect_same(got_state, got_state_count, tail, tail_count, name);
        expect_same(got, got_count, joined, whole_count + tail_count, name);
        free(joined);
        free(tail);
        free(whole);
        free(got_state);
        free(got);
        kvf_plan_release(plan);
    }
}

/** From a ring into a group of all positions: the destination's blocks before what the source retains are holes, all
 *  but the one that it begins in. */
static void test_ring_into_all_positions(void **state)
{
    static const struct { int64_t from, end; const char *text; } rows[] = {
        {15, 304, NULL},
        {16, 304, NULL},
        {14, 304, "source group 1: a ring that retains tokens from 240 on, but destination group 1 wants earlier ones"},
        {14, 303, NULL},
        {13, 303, "source group 1: a ring that retains tokens from 239 on, but destination group 1 wants earlier ones"},
        {0, 64, NULL}};
    kvf_plan *plan = make_plan(64, 16, 0);

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_binding *binding = NULL;
        struct kvf_error error = {0};
        struct both both;

        fill(&both, rows[i].from);
        if (bind(plan, &both, 0, rows[i].end, rows[i].end, KVF_BIND_RING_TAIL, &binding, &error) !=
            (rows[i].text ? KVF_ERR_IDS : KVF_OK)) fail_msg("row %zu: %s", i, error.text);
        if (rows[i].text) assert_string_equal(error.text, rows[i].text);
        kvf_binding_destroy(binding);
    }
    kvf_plan_release(plan);
}

/** A range that ends before the request does: the ring has gone on, and what it has written over is refused. */
static void test_ring_that_went_on(void **state)
{
    static const struct { int64_t begin, end, request; const char *text; } rows[] = {
        {0, 128, 128, NULL},
        {64, 128, 128, NULL},
        {0, 128, 129,
         "source group 1: a ring of 64 tokens, the request of 129 has written over token 64 of range [0,128)"},
        {80, 128, 144, NULL},
        {80, 128, 145,
         "source group 1: a ring of 64 tokens, the request of 145 has written over token 80 of range [80,128)"},
        {0, 0, 500, NULL}};
    kvf_plan *plan = make_plan(64, 16, 64);

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_binding *binding = NULL;
        struct kvf_error error = {0};
        struct both both;

        fill(&both, 0);
        if (bind(plan, &both, rows[i].begin, rows[i].end, rows[i].request, KVF_BIND_RING_TAIL, &binding, &error) !=
            (rows[i].text ? KVF_ERR_OUT_OF_RANGE : KVF_OK)) fail_msg("row %zu: %s", i, error.text);
        if (rows[i].text) assert_string_equal(error.text, rows[i].text);
        kvf_binding_destroy(binding);
    }
    kvf_plan_release(plan);
}

/** A striped ring retains what its stripe owns of more positions: a longer range stays refused. */
static void test_striped_rings_refuse(void **state)
{
    kvf_binding *binding = NULL;
    struct kvf_error error = {0};
    struct both both;
    struct kit kit;
    kvf_plan *plan;

    (void)state;
    build(&kit, BLOCK, 64, 2);
    plan = kit_plan(&kit, &kit, 0);
    fill(&both, 0);
    assert_int_equal(bind(plan, &both, 0, 256, 256, KVF_BIND_RING_TAIL, &binding, &error), KVF_ERR_OUT_OF_RANGE);
    assert_non_null(strstr(error.text, "positions both rings retain: 64"));
    assert_int_equal(bind(plan, &both, 0, 64, 64, KVF_BIND_RING_TAIL, &binding, &error), KVF_OK);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tail_is_the_shorter_range),
        cmocka_unit_test(test_ring_into_all_positions),
        cmocka_unit_test(test_ring_that_went_on),
        cmocka_unit_test(test_striped_rings_refuse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
