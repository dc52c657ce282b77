/* SPDX-License-Identifier: Apache-2.0 */
/* What cannot be: refused at the earliest point, with a sentence that names both values, and nothing else disturbed. */
#include "kit.h"

static const char *transport = "loop";

enum { TOKENS = 100, BLOCKS = 7 };

static void expect_failure(struct kit_side *side, size_t rank, const char *transfer, enum kvf_status status,
                           const char *text)
{
    struct kvf_event event = kit_terminal(side, rank, transfer);
    if (event.kind != KVF_EVENT_PULL_FAILED || event.status != (int)status || strstr(event.text, text) == NULL)
        fail_msg("event %d, %s: \"%s\"; expected %s: \"%s\"", event.kind, kvf_status_name(event.status), event.text,
                 kvf_status_name((int)status), text);
    kit_wait(side, rank, KVF_EVENT_BLOCKS_REUSABLE);
}

static void open_with(struct kit_side *side, const char *name, const struct kvf_instance_recipe *recipe,
                      const char *directory, kit_tweak tweak)
{
    kit_open(side, name, recipe, directory, transport, tweak);
}

/* ---- instances that cannot be joined ---- */

static void other_model(struct kvf_instance_recipe *recipe) { recipe->model_fingerprint = "sha256:bbbb"; }
static void other_dtype(struct kvf_instance_recipe *recipe) { recipe->dtype = "bf16"; }
static void other_row(struct kvf_instance_recipe *recipe) { recipe->head_dim = 16; }
static void more_layers(struct kvf_instance_recipe *recipe) { recipe->layers = 6; }

static const struct {
    const char *name;
    void (*change)(struct kvf_instance_recipe *recipe);
    enum kvf_status status;
    const char *text;
} PAIRS[] = {
    {"another model", other_model, KVF_ERR_INCOMPATIBLE, "model \"sha256:bbbb\""},
    {"another dtype", other_dtype, KVF_ERR_INCOMPATIBLE, "bf16"},
    {"another row", other_row, KVF_ERR_INCOMPATIBLE, "32"},
    {"layers that nobody has", more_layers, KVF_ERR_INCOMPATIBLE, "layer 4"},
};

static void test_instances_that_cannot_be_joined(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof PAIRS / sizeof PAIRS[0]; i++) {
        struct kvf_instance_recipe recipe = kit_recipe();
        struct kit_side source, good, bad;
        int64_t sids[BLOCKS], ids[BLOCKS];

        recipe.model_fingerprint = "sha256:aaaa";
        open_with(&source, "p", &recipe, NULL, NULL);
        open_with(&good, "good", &recipe, kit_directory(&source), NULL);
        PAIRS[i].change(&recipe);
        open_with(&bad, "bad", &recipe, kit_directory(&source), NULL);
        kit_ids(&source, 0, BLOCKS, sids);
        kit_ids(&bad, 0, BLOCKS, ids);
        print_message("%s\n", PAIRS[i].name);
        for (int again = 0; again < 2; again++) {
            char id[8] = {(char)('a' + again), 0};
            kit_pull(&bad, 0, "p", id, 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
            expect_failure(&bad, 0, id, PAIRS[i].status, PAIRS[i].text);
        }
        assert_true(kit_check(&bad, 0, NULL, 0)); /* not a byte was touched */
        kit_fill(&source, 0, 3, sids, BLOCKS);
        kit_offer(&source, 0, "t", 0, TOKENS, TOKENS, sids, BLOCKS, 0, KVF_OK);
        kit_pull(&good, 0, "p", "t", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
        assert_int_equal(kit_terminal(&good, 0, "t").kind, KVF_EVENT_PULL_DONE);
        kit_close(&bad);
        kit_close(&good);
        kit_close(&source);
    }
}

/* ---- instances that are not there ---- */

static void impatient(struct kvf_engine_options *options, size_t rank)
{
    (void)rank;
    options->incomplete_timeout_ns = 200 * MS;
    options->connect_timeout_ns = 400 * MS;
    options->directory_timeout_ns = 300 * MS;
}

static void test_unknown_and_incomplete(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side source, destination;
    int64_t ids[BLOCKS];
    char expected[256];
    (void)unused;
    recipe.pp = 2;
    recipe.tp = 2;
    kit_layouts(&source, "p", &recipe);
    kit_engine(&source, 0, NULL, transport, NULL);
    for (size_t r = 1; r < 3; r++)
        kit_engine(&source, r, kit_directory(&source), transport, NULL);
    recipe.pp = recipe.tp = 1;
    open_with(&destination, "d", &recipe, kit_directory(&source), impatient);
    kit_ids(&destination, 0, BLOCKS, ids);
    kit_pull(&destination, 0, "q", "a", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
    snprintf(expected, sizeof expected, "instance \"q\" is not known to the directory at %s", kit_directory(&source));
    expect_failure(&destination, 0, "a", KVF_ERR_NOT_FOUND, expected);
    kit_pull(&destination, 0, "p", "b", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
    expect_failure(&destination, 0, "b", KVF_ERR_INCOMPLETE, "instance \"p\" is not complete: 3 of 4 ranks registered");
    kit_close(&destination);
    kit_close(&source);
}

/* With KVF_PULL_AWAIT_INSTANCE an unknown instance is waited for, as an incomplete one is. */
static void test_awaited(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side destination;
    struct kvf_pull pull;
    struct kvf_error error;
    int64_t ids[BLOCKS], begun;
    char expected[256];
    (void)unused;
    open_with(&destination, "d", &recipe, NULL, impatient);
    kit_ids(&destination, 0, BLOCKS, ids);
    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = "a";
    pull.from = "q";
    pull.request_tokens = pull.token_end = TOKENS;
    pull.groups = &(struct kvf_id_list){ids, BLOCKS, 0};
    pull.group_count = 1;
    pull.flags = 2;
    assert_int_equal(kvf_engine_pull(destination.ranks[0].engine, &pull, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "flags are 0x2, only 0x1 is known");
    pull.flags = KVF_PULL_AWAIT_INSTANCE;
    begun = kit_now_ns();
    assert_int_equal(kvf_engine_pull(destination.ranks[0].engine, &pull, &error), KVF_OK);
    snprintf(expected, sizeof expected, "instance \"q\" is not known to the directory at %s",
             kit_directory(&destination));
    expect_failure(&destination, 0, "a", KVF_ERR_NOT_FOUND, expected);
    assert_true(kit_now_ns() - begun >= 200 * MS);
    kit_close(&destination);
}

static void test_an_instance_that_becomes_complete(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side source, destination;
    struct kvf_event event;
    int64_t sids[BLOCKS], ids[BLOCKS];
    (void)unused;
    recipe.tp = 2;
    kit_layouts(&source, "p", &recipe);
    kit_engine(&source, 0, NULL, transport, NULL);
    recipe.tp = 1;
    open_with(&destination, "d", &recipe, kit_directory(&source), NULL);
    kit_ids(&destination, 0, BLOCKS, ids);
    kit_ids(&source, 0, BLOCKS, sids);
    kit_pull(&destination, 0, "p", "t", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
    assert_int_equal(kvf_engine_wait(destination.ranks[0].engine, &event, 1, 150 * MS), 0);
    kit_engine(&source, 1, kit_directory(&source), transport, NULL);
    for (size_t r = 0; r < 2; r++) {
        kit_fill(&source, r, 0, sids, BLOCKS);
        kit_offer(&source, r, "t", 0, TOKENS, TOKENS, sids, BLOCKS, 0, KVF_OK);
    }
    assert_int_equal(kit_terminal(&destination, 0, "t").kind, KVF_EVENT_PULL_DONE);
    kit_close(&destination);
    kit_close(&source);
}

/* The registered engine is gone without a word: nobody listens where the directory points. */
static void test_nobody_answers(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side host, source, destination;
    int64_t ids[BLOCKS];
    (void)unused;
    open_with(&host, "host", &recipe, NULL, NULL);
    open_with(&source, "p", &recipe, kit_directory(&host), NULL);
    open_with(&destination, "d", &recipe, kit_directory(&host), impatient);
    kit_ids(&destination, 0, BLOCKS, ids);
    kit_pull(&destination, 0, "p", "a", 0, 0, TOKENS, ids, BLOCKS, 300 * MS, KVF_OK);
    expect_failure(&destination, 0, "a", KVF_ERR_EXPIRED, "never offered");
    kit_close(&source); /* withdraws: now it is unknown, but was known once */
    kit_pull(&destination, 0, "p", "b", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
    expect_failure(&destination, 0, "b", KVF_ERR_NOT_FOUND, "instance \"p\" is not known");
    kit_close(&destination);
    kit_close(&host);
}

static void second_rank_stands_still(struct kvf_engine_options *options, size_t rank)
{
    if (rank == 1)
        options->flags = KVF_ENGINE_CALLER_PROGRESS; /* and nobody calls */
}

/* One source rank does not answer: the pull fails, and the other one hears that nothing will be asked of it. */
static void test_one_of_two_does_not_answer(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side source, destination;
    struct kvf_event event;
    int64_t ids[BLOCKS];
    (void)unused;
    recipe.tp = 2;
    open_with(&source, "p", &recipe, NULL, second_rank_stands_still);
    recipe.tp = 1;
    open_with(&destination, "d", &recipe, kit_directory(&source), impatient);
    kit_ids(&destination, 0, BLOCKS, ids);
    kit_offer(&source, 0, "t", 0, TOKENS, TOKENS, ids, BLOCKS, 0, KVF_OK);
    kit_pull(&destination, 0, "p", "t", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
    expect_failure(&destination, 0, "t", KVF_ERR_UNREACHABLE, "p/pp0.cp0.tp1 does not answer at tcp://127.0.0.1:");
    event = kit_terminal(&source, 0, "t");
    assert_int_equal(event.kind, KVF_EVENT_OFFER_FAILED);
    assert_non_null(strstr(event.text, "d/pp0.cp0.tp0 needs it no more"));
    assert_true(kit_check(&destination, 0, NULL, 0));
    kit_close(&destination);
    kit_close(&source);
}

/* ---- a peer that comes back ---- */

static void test_restart(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side host, source, destination;
    int64_t sids[BLOCKS], ids[BLOCKS];
    (void)unused;
    open_with(&host, "host", &recipe, NULL, NULL);
    open_with(&destination, "d", &recipe, kit_directory(&host), impatient);
    kit_ids(&destination, 0, BLOCKS, ids);
    for (int round = 0; round < 3; round++) {
        char id[8] = {(char)('a' + round), 0};
        recipe.tokens_per_block = round == 1 ? 32 : 16; /* it comes back in another shape */
        open_with(&source, "p", &recipe, kit_directory(&host), NULL);
        kit_ids(&source, 0, kit_blocks(&source, TOKENS), sids);
        kit_fill(&source, 0, round, sids, kit_blocks(&source, TOKENS));
        kit_offer(&source, 0, id, 0, TOKENS, TOKENS, sids, kit_blocks(&source, TOKENS), 0, KVF_OK);
        kit_pull(&destination, 0, "p", id, 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
        struct kvf_event event = kit_terminal(&destination, 0, id);
        if (event.kind != KVF_EVENT_PULL_DONE)
            fail_msg("round %d: %s", round, event.text);
        kit_close(&source);
    }
    kit_close(&destination);
    kit_close(&host);
}

/* ---- transfers that cannot be ---- */

static void test_calls(void **unused)
{
    static const int64_t twice[] = {1, 2, 3, 4, 5, 6, 1}, high[] = {1, 2, 3, 4, 5, 6, 64};
    static const int64_t low[] = {1, 2, -2, 4, 5, 6,
                                                                                                    7};
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side side;
    struct kvf_id_list list = {twice, BLOCKS, 0};
    struct kvf_pull pull;
    struct kvf_error error;
    const struct {
        const char *transfer;
        const int64_t *ids;
        int64_t count, begin, end, tokens;
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"t", twice, 7, 0, 100, 100, KVF_ERR_IDS, "group 0: block id 1 is there twice"},
        {"t", high, 7, 0, 100, 100, KVF_ERR_IDS, "group 0: block id 64 at index 6, expected -1 to 63"},
        {"t", low, 7, 0, 100, 100, KVF_ERR_IDS, "group 0: block id -2 at index 2, expected -1 to 63"},
        {"t", high, 6, 0, 100, 100, KVF_ERR_IDS, "7 blocks of 16 tokens are needed for tokens [0, 100)"},
        {"t", high, 6, 50, 40, 60, KVF_ERR_INVALID_ARGUMENT, "token_begin is 50, expected 0 to 40"},
        {"t", high, 6, 0, 70, 60, KVF_ERR_INVALID_ARGUMENT, "token_end is 70, expected 0 to 60"},
        {"", high, 6, 0, 60, 60, KVF_ERR_INVALID_ARGUMENT, "transfer id has 0 bytes, expected 1 to 127"},
    };
    (void)unused;
    open_with(&side, "d", &recipe, NULL, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvf_pull_init(&pull, sizeof pull);
        pull.transfer = rows[i].transfer;
        pull.from = "p";
        pull.token_begin = rows[i].begin;
        pull.token_end = rows[i].end;
        pull.request_tokens = rows[i].tokens;
        list.ids = rows[i].ids;
        list.count = (size_t)rows[i].count;
        pull.groups = &list;
        pull.group_count = 1;
        assert_int_equal(kvf_engine_pull(side.ranks[0].engine, &pull, &error), rows[i].status);
        if (strstr(error.text, rows[i].text) == NULL)
            fail_msg("\"%s\", expected \"%s\"", error.text, rows[i].text);
    }
    kit_close(&side);
}

static void test_unequal_requests(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side source, destination, third;
    int64_t sids[BLOCKS], ids[BLOCKS];
    (void)unused;
    open_with(&source, "p", &recipe, NULL, NULL);
    open_with(&destination, "d", &recipe, kit_directory(&source), NULL);
    open_with(&third, "e", &recipe, kit_directory(&source), NULL);
    kit_ids(&source, 0, BLOCKS, sids);
    kit_ids(&destination, 0, BLOCKS, ids);
    kit_offer(&source, 0, "a", 0, 90, 90, sids, BLOCKS, 0, KVF_OK);
    kit_pull(&destination, 0, "p", "a", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
    expect_failure(&destination, 0, "a", KVF_ERR_OUT_OF_RANGE,
                   "the offer at p/pp0.cp0.tp0 has 90 tokens, the pull asks for a request of 100");
    kit_offer(&source, 0, "b", 0, TOKENS, 0, sids, BLOCKS, 0, KVF_OK);
    kit_pull(&destination, 0, "p", "b", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK);
    while (kvf_engine_offer_ready(source.ranks[0].engine, "b", 0, 0, 1, TOKENS, NULL) != KVF_OK)
        ;
    for (struct kvf_engine_stats stats = {.struct_size = sizeof stats}; stats.bytes_sent == 0;)
        kvf_engine_get_stats(source.ranks[0].engine, &stats);
    kit_pull(&third, 0, "p", "b", 0, 0, TOKENS, ids, BLOCKS, 0, KVF_OK); /* one offer, one pulling instance */
    expect_failure(&third, 0, "b", KVF_ERR_EXISTS, "is pulled by instance \"d\" already");
    kit_close(&third);
    kit_close(&destination);
    kit_close(&source);
}

static void test_options(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side side;
    struct kvf_engine_options options;
    struct kvf_error error;
    kvf_engine *engine = NULL;
    (void)unused;
    kit_layouts(&side, "d", &recipe);
#define TRY(field, value, expected, sentence)                                      \
    do {                                                                           \
        kvf_engine_options_init(&options, sizeof options);                         \
        options.instance = "d";                                                    \
        options.layout = side.ranks[0].layout;                                     \
        options.field = value;                                                     \
        assert_int_equal(kvf_engine_open(&options, &engine, &error), expected);    \
        if (strstr(error.text, sentence) == NULL)                                  \
            fail_msg("\"%s\", expected \"%s\"", error.text, sentence);             \
    } while (0)
    TRY(instance, "", KVF_ERR_INVALID_ARGUMENT, "engine option instance has 0 bytes, expected 1 to 127");
    TRY(layout, NULL, KVF_ERR_INVALID_ARGUMENT, "engine option layout is missing");
    TRY(tcp_streams, 17, KVF_ERR_INVALID_ARGUMENT, "engine option tcp_streams is 17, expected 1 to 16");
    TRY(peer_timeout_ns, 5, KVF_ERR_INVALID_ARGUMENT, "engine option peer_timeout_ns is 5, expected 100000000 to");
    TRY(rank.tp, 1, KVF_ERR_INVALID_ARGUMENT, "only rank 0,0,0 embeds a directory, this is rank 0,0,1");
    TRY(transports, "rdma", KVF_ERR_INVALID_ARGUMENT, "names \"rdma\", known are shm, tcp, loop");
    TRY(directory_url, "ftp://x", KVF_ERR_INVALID_ARGUMENT, "ftp://x");
    kit_close(&side);
}

static void test_memories(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kit_side side;
    struct kvf_engine_options options;
    struct kvf_error error;
    kvf_engine *engine;
    char byte;
    (void)unused;
    kit_layouts(&side, "d", &recipe);
    kvf_engine_options_init(&options, sizeof options);
    options.instance = "d";
    options.layout = side.ranks[0].layout;
    options.transports = transport;
    assert_int_equal(kvf_engine_open(&options, &engine, &error), KVF_OK);
    assert_int_equal(kvf_engine_announce(engine, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "memory 0 of 1 is not registered");
    assert_int_equal(kvf_engine_register_memory(engine, 1, &byte, 1, -1, &error), KVF_ERR_OUT_OF_RANGE);
    assert_string_equal(error.text, "memory 1: the layout has 1");
    assert_int_equal(kvf_engine_register_memory(engine, 0, &byte, 1, -1, &error), KVF_ERR_OUT_OF_RANGE);
    assert_non_null(strstr(error.text, "memory 0 has 1 bytes, the layout needs "));
    kvf_engine_close(engine);
    kit_close(&side);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instances_that_cannot_be_joined),
        cmocka_unit_test(test_unknown_and_incomplete),
        cmocka_unit_test(test_awaited),
        cmocka_unit_test(test_an_instance_that_becomes_complete),
        cmocka_unit_test(test_nobody_answers),
        cmocka_unit_test(test_one_of_two_does_not_answer),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_unequal_requests),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_memories),
    };
    if (argc > 1)
        transport = argv[1];
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
