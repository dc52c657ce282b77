/* SPDX-License-Identifier: Apache-2.0 */
/* Whole transfers between instances of different shapes, checked byte by byte, over the transport named as argument. */
#include "kit.h"

static const char *transport = "loop";

struct shape {
    const char *name;
    int64_t tp, pp, tokens_per_block;
    int order, pools;
};

static const struct {
    const char *name;
    struct shape source, destination;
    int64_t tokens, begin;
} ROWS[] = {
    {"equal shapes", {"p", 1, 1, 16, 0, 0}, {"d", 1, 1, 16, 0, 0}, 100, 0},
    {"TP2 to TP1", {"p", 2, 1, 16, 0, 0}, {"d", 1, 1, 16, 0, 0}, 100, 0},
    {"TP1 to TP4", {"p", 1, 1, 16, 0, 0}, {"d", 4, 1, 16, 0, 0}, 77, 0},
    {"heads first to tokens first, blocks 16 to 64", {"p", 2, 2, 16, 0, 1}, {"d", 1, 1, 64, 1, 0}, 353, 0},
    {"tokens first to heads first, blocks 64 to 16", {"p", 1, 2, 64, 1, 0}, {"d", 2, 1, 16, 0, 2}, 353, 0},
    {"a cached prefix of 128", {"p", 1, 1, 16, 0, 0}, {"d", 1, 1, 64, 0, 0}, 353, 128},
    {"blocks 24 to 16", {"p", 1, 1, 24, 0, 0}, {"d", 1, 1, 16, 0, 0}, 90, 0},
};

static void open_shape(struct kit_side *side, const struct shape *shape, const char *directory)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    recipe.tp = shape->tp;
    recipe.pp = shape->pp;
    recipe.tokens_per_block = shape->tokens_per_block;
    recipe.order = shape->order;
    recipe.kv_pools = shape->pools;
    kit_open(side, shape->name, &recipe, directory, transport, NULL);
}

static void run_row(size_t row)
{
    struct kit_side source, destination;
    int64_t sids[KIT_MAX_BLOCKS], dids[KIT_MAX_BLOCKS], scount, dcount;

    open_shape(&source, &ROWS[row].source, NULL);
    open_shape(&destination, &ROWS[row].destination, kit_directory(&source));
    scount = kit_blocks(&source, ROWS[row].tokens);
    dcount = kit_blocks(&destination, ROWS[row].tokens);
    kit_ids(&source, 1, scount, sids);
    kit_ids(&destination, 0, dcount, dids);
    for (size_t r = 0; r < source.rank_count; r++) {
        kit_fill(&source, r, 1, sids, scount);
        kit_offer(&source, r, "t", 0, ROWS[row].tokens, ROWS[row].tokens, sids, scount, 0, KVF_OK);
    }
    for (size_t r = 0; r < destination.rank_count; r++)
        kit_pull(&destination, r, "p", "t", 0, ROWS[row].begin, ROWS[row].tokens, dids, dcount, 0, KVF_OK);
    for (size_t r = 0; r < destination.rank_count; r++) {
        struct kit_moved moved = {1, dcount, dids, ROWS[row].begin, ROWS[row].tokens};
        struct kvf_event event = kit_terminal(&destination, r, "t");
        if (event.kind != KVF_EVENT_PULL_DONE)
            fail_msg("%s: %s", ROWS[row].name, event.text);
        assert_int_equal(event.tokens, ROWS[row].tokens);
        assert_int_equal(event.transport, strcmp(transport, "loop") == 0 ? 1 : strcmp(transport, "shm") == 0 ? 2 : 4);
        if (!kit_check(&destination, r, &moved, 1))
            fail_msg("%s: wrong bytes on rank %zu", ROWS[row].name, r);
        assert_int_equal(kit_wait(&destination, r, KVF_EVENT_BLOCKS_REUSABLE).is_offer, 0);
    }
    for (size_t r = 0; r < source.rank_count; r++) {
        struct kvf_event event = kit_terminal(&source, r, "t");
        if (event.kind != KVF_EVENT_OFFER_DONE)
            fail_msg("%s: %s", ROWS[row].name, event.text);
        assert_int_equal(kit_wait(&source, r, KVF_EVENT_BLOCKS_REUSABLE).is_offer, 1);
    }
    kit_close(&destination);
    kit_close(&source);
}

static void test_shapes(void **unused)
{
    (void)unused;
    for (size_t row = 0; row < sizeof ROWS / sizeof ROWS[0]; row++)
        run_row(row);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes)};
    if (argc > 1)
        transport = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
