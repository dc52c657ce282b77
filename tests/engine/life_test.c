/* SPDX-License-Identifier: Apache-2.0 */
/* How transfers live and end: early pulls, layers and chunks, cancels, attempts, deadlines, releases, closing. */
#include "kit.h"

static const char *transport = "loop";

enum { TOKENS = 100, BLOCKS = 7 };

struct pair {
    struct kit_side source, destination;
    int64_t sids[BLOCKS], dids[BLOCKS];
};

static void open_pair(struct pair *pair, int64_t source_tp, int64_t destination_tp, kit_tweak tweak)
{
    struct kvf_instance_recipe recipe = kit_recipe();

    recipe.tp = source_tp;
    kit_open(&pair->source, "p", &recipe, NULL, transport, tweak);
    recipe.tp = destination_tp;
    kit_open(&pair->destination, "d", &recipe, kit_directory(&pair->source), transport, tweak);
    kit_ids(&pair->source, 1, BLOCKS, pair->sids);
    kit_ids(&pair->destination, 0, BLOCKS, pair->dids);
    for (size_t r = 0; r < pair->source.rank_count; r++)
        kit_fill(&pair->source, r, 1, pair->sids, BLOCKS);
}

static void close_pair(struct pair *pair)
{
    kit_close(&pair->destination);
    kit_close(&pair->source);
}

static void offer(struct pair *pair, size_t rank, int64_t attempt, int64_t ready, int64_t timeout_ns)
{
    kit_offer(&pair->source, rank, "t", attempt, TOKENS, ready, pair->sids, BLOCKS, timeout_ns, KVF_OK);
}

static void pull(struct pair *pair, size_t rank, int64_t attempt, int64_t timeout_ns)
{
    kit_pull(&pair->destination, rank, "p", "t", attempt, 0, TOKENS, pair->dids, BLOCKS, timeout_ns, KVF_OK);
}

static void check(struct pair *pair, size_t rank)
{
    struct kit_moved moved = {1, BLOCKS, pair->dids, 0, TOKENS};
    assert_true(kit_check(&pair->destination, rank, &moved, 1));
}

static struct kvf_event expect(struct kit_side *side, size_t rank, int kind, enum kvf_status status, const char *text)
{
    struct kvf_event event = kit_terminal(side, rank, "t");
    if (event.kind != kind || event.status != (int)status || (text != NULL && strstr(event.text, text) == NULL))
        fail_msg("event %d, %s: \"%s\", expected event %d, %s: \"%s\"", event.kind, kvf_status_name(event.status),
                 event.text, kind, kvf_status_name((int)status), text);
    return event;
}

/* ---- */

static void test_pull_before_offer(void **unused)
{
    struct pair pair;
    struct kvf_event event;
    (void)unused;
    open_pair(&pair, 2, 1, NULL);
    pull(&pair, 0, 0, 0);
    assert_int_equal(kvf_engine_wait(pair.destination.ranks[0].engine, &event, 1, 100 * MS), 0);
    offer(&pair, 0, 0, TOKENS, 0);
    offer(&pair, 1, 0, TOKENS, 0);
    event = expect(&pair.destination, 0, KVF_EVENT_PULL_DONE, KVF_OK, NULL);
    assert_int_equal(event.pieces, 2);
    check(&pair, 0);
    expect(&pair.source, 0, KVF_EVENT_OFFER_DONE, KVF_OK, NULL);
    expect(&pair.source, 1, KVF_EVENT_OFFER_DONE, KVF_OK, NULL);
    close_pair(&pair);
}

static int64_t received(struct kit_side *side)
{
    struct kvf_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(kvf_engine_get_stats(side->ranks[0].engine, &stats), KVF_OK);
    return stats.bytes_sent;
}

/* Waits until the source has placed so many bytes: what was said to be ready really flows. */
static void wait_sent(struct pair *pair, int64_t bytes)
{
    struct kvf_event event;
    for (int64_t end = kit_now_ns() + 20 * SECOND; received(&pair->source) < bytes;) {
        if (kit_now_ns() > end)
            fail_msg("%lld bytes sent, expected %lld", (long long)received(&pair->source), (long long)bytes);
        assert_int_equal(kvf_engine_wait(pair->source.ranks[0].engine, &event, 1, 5 * MS), 0);
    }
    assert_int_equal(received(&pair->source), bytes);
}

static void ready(struct pair *pair, int64_t first, int64_t end, int64_t tokens, enum kvf_status expected)
{
    assert_int_equal(kvf_engine_offer_ready(pair->source.ranks[0].engine, "t", 0, first, end, tokens, NULL), expected);
}

static void test_layer_by_layer(void **unused)
{
    const int64_t layer = (int64_t)BLOCKS * 16 * 4 * 16 * 2; /* whole blocks, 4 heads of 16 bytes, K and V */
    struct pair pair;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    offer(&pair, 0, 0, 0, 0);
    pull(&pair, 0, 0, 0);
    ready(&pair, 0, 1, TOKENS, KVF_OK);
    wait_sent(&pair, layer);
    ready(&pair, 2, 4, TOKENS, KVF_OK);
    wait_sent(&pair, 3 * layer);
    ready(&pair, 1, 2, TOKENS, KVF_OK);
    expect(&pair.destination, 0, KVF_EVENT_PULL_DONE, KVF_OK, NULL);
    expect(&pair.source, 0, KVF_EVENT_OFFER_DONE, KVF_OK, NULL);
    check(&pair, 0);
    close_pair(&pair);
}

static void test_chunk_by_chunk(void **unused)
{
    const int64_t block = 16 * 4 * 16 * 2 * 4;
    struct pair pair;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    offer(&pair, 0, 0, 20, 0);
    pull(&pair, 0, 0, 0);
    wait_sent(&pair, block); /* 20 tokens are one whole block and a beginning that waits */
    ready(&pair, 0, 4, 64, KVF_OK);
    wait_sent(&pair, 4 * block);
    ready(&pair, 0, 4, 50, KVF_OK); /* only rises */
    ready(&pair, 0, 2, 80, KVF_OK);
    wait_sent(&pair, 4 * block + block / 2);
    ready(&pair, 0, 4, TOKENS, KVF_OK);
    expect(&pair.destination, 0, KVF_EVENT_PULL_DONE, KVF_OK, NULL);
    check(&pair, 0);
    close_pair(&pair);
}

static void test_ready_is_checked(void **unused)
{
    struct pair pair;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    ready(&pair, 0, 4, 10, KVF_ERR_NOT_FOUND);
    offer(&pair, 0, 0, 0, 0);
    ready(&pair, 0, 5, 10, KVF_ERR_OUT_OF_RANGE);
    ready(&pair, -1, 4, 10, KVF_ERR_OUT_OF_RANGE);
    ready(&pair, 0, 4, TOKENS + 1, KVF_ERR_OUT_OF_RANGE);
    ready(&pair, 0, 4, -1, KVF_ERR_OUT_OF_RANGE);
    close_pair(&pair);
}

/* Eight source ranks hold copies of four heads: half of them have no share and get a release. */
static void test_ranks_without_a_share(void **unused)
{
    struct pair pair;
    (void)unused;
    open_pair(&pair, 8, 2, NULL);
    for (size_t r = 0; r < 8; r++)
        offer(&pair, r, 0, TOKENS, 0);
    pull(&pair, 0, 0, 0);
    pull(&pair, 1, 0, 0);
    for (size_t r = 0; r < 2; r++) {
        struct kvf_event event = expect(&pair.destination, r, KVF_EVENT_PULL_DONE, KVF_OK, NULL);
        assert_int_equal(event.pieces, 2);
        check(&pair, r);
    }
    for (size_t r = 0; r < 8; r++)
        expect(&pair.source, r, KVF_EVENT_OFFER_DONE, KVF_OK, NULL);
    close_pair(&pair);
}

static void test_cancel_by_the_decode_side(void **unused)
{
    struct pair pair;
    (void)unused;
    open_pair(&pair, 2, 1, NULL);
    offer(&pair, 0, 0, 0, 0); /* rank 0 has it, rank 1 does not */
    pull(&pair, 0, 0, 0);
    assert_int_equal(kvf_engine_cancel(pair.destination.ranks[0].engine, "x", 0, NULL), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_engine_cancel(pair.destination.ranks[0].engine, "t", 0, NULL), KVF_OK);
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_CANCELLED, "cancelled");
    kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    close_pair(&pair);
}

static void test_cancel_in_the_middle(void **unused)
{
    struct pair pair;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    offer(&pair, 0, 0, 20, 0);
    pull(&pair, 0, 0, 0);
    wait_sent(&pair, 16 * 4 * 16 * 2 * 4);
    assert_int_equal(kvf_engine_cancel(pair.destination.ranks[0].engine, "t", 0, NULL), KVF_OK);
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_CANCELLED, "cancelled");
    expect(&pair.source, 0, KVF_EVENT_OFFER_FAILED, KVF_ERR_CANCELLED, "d/pp0.cp0.tp0 ended it");
    kit_wait(&pair.source, 0, KVF_EVENT_BLOCKS_REUSABLE);
    kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    assert_int_equal(kvf_engine_cancel(pair.source.ranks[0].engine, "t", 0, NULL), KVF_OK); /* over already */
    close_pair(&pair);
}

static void test_cancel_by_the_prefill_side(void **unused)
{
    struct pair pair;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    offer(&pair, 0, 0, 20, 0);
    pull(&pair, 0, 0, 0);
    wait_sent(&pair, 16 * 4 * 16 * 2 * 4);
    assert_int_equal(kvf_engine_cancel(pair.source.ranks[0].engine, "t", 0, NULL), KVF_OK);
    expect(&pair.source, 0, KVF_EVENT_OFFER_FAILED, KVF_ERR_CANCELLED, NULL);
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_CANCELLED, "by its caller at the prefill side");
    kit_wait(&pair.source, 0, KVF_EVENT_BLOCKS_REUSABLE);
    kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    pull(&pair, 0, 1, SECOND); /* the next attempt waits for its own offer */
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_EXPIRED, "never offered at p/pp0.cp0.tp0");
    close_pair(&pair);
}

static void test_attempts(void **unused)
{
    struct pair pair;
    struct kvf_event event;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    offer(&pair, 0, 1, 0, 0);
    kit_offer(&pair.source, 0, "t", 1, TOKENS, 0, pair.sids, BLOCKS, 0, KVF_ERR_EXISTS);
    kit_offer(&pair.source, 0, "t", 0, TOKENS, 0, pair.sids, BLOCKS, 0, KVF_ERR_SUPERSEDED);
    pull(&pair, 0, 1, 0);
    kit_pull(&pair.destination, 0, "p", "t", 1, 0, TOKENS, pair.dids, BLOCKS, 0, KVF_ERR_EXISTS);
    kit_pull(&pair.destination, 0, "p", "t", 0, 0, TOKENS, pair.dids, BLOCKS, 0, KVF_ERR_SUPERSEDED);
    pull(&pair, 0, 2, 0);
    event = expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_SUPERSEDED, "superseded by attempt 2");
    assert_int_equal(event.attempt, 1);
    event = expect(&pair.source, 0, KVF_EVENT_OFFER_FAILED, KVF_ERR_SUPERSEDED, "superseded");
    assert_int_equal(event.attempt, 1);
    kit_wait(&pair.source, 0, KVF_EVENT_BLOCKS_REUSABLE);
    kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    offer(&pair, 0, 2, TOKENS, 0);
    event = expect(&pair.destination, 0, KVF_EVENT_PULL_DONE, KVF_OK, NULL);
    assert_int_equal(event.attempt, 2);
    check(&pair, 0);
    expect(&pair.source, 0, KVF_EVENT_OFFER_DONE, KVF_OK, NULL);
    kit_pull(&pair.destination, 0, "p", "t", 2, 0, TOKENS, pair.dids, BLOCKS, 0, KVF_ERR_EXISTS); /* also when over */
    close_pair(&pair);
}

static void test_deadlines(void **unused)
{
    struct pair pair;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    pull(&pair, 0, 0, SECOND);
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_EXPIRED,
           "transfer \"t\" attempt 0 was never offered at p/pp0.cp0.tp0");
    kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    offer(&pair, 0, 1, TOKENS, 50 * MS);
    expect(&pair.source, 0, KVF_EVENT_OFFER_FAILED, KVF_ERR_EXPIRED, "expired after 50 ms: nobody pulled it");
    kit_wait(&pair.source, 0, KVF_EVENT_BLOCKS_REUSABLE);
    pull(&pair, 0, 1, 0); /* late: hears at once */
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_EXPIRED, "has ended at p/pp0.cp0.tp0");
    offer(&pair, 0, 2, 20, 0);
    pull(&pair, 0, 2, 300 * MS);
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_EXPIRED, "bytes of p/pp0.cp0.tp0 had come");
    expect(&pair.source, 0, KVF_EVENT_OFFER_FAILED, KVF_ERR_EXPIRED, "d/pp0.cp0.tp0 ended it");
    close_pair(&pair);
}

static void small_queue(struct kvf_engine_options *options, size_t rank)
{
    (void)rank;
    options->event_capacity = 4;
}

static void test_event_queue(void **unused)
{
    struct pair pair;
    struct kvf_event events[8];
    (void)unused;
    open_pair(&pair, 1, 1, small_queue);
    offer(&pair, 0, 0, TOKENS, 50 * MS);
    kit_offer(&pair.source, 0, "u", 0, TOKENS, TOKENS, pair.sids, BLOCKS, 50 * MS, KVF_OK);
    kit_offer(&pair.source, 0, "v", 0, TOKENS, TOKENS, pair.sids, BLOCKS, 50 * MS, KVF_ERR_AGAIN);
    assert_int_equal(kvf_engine_drain(pair.source.ranks[0].engine, 5 * SECOND, NULL), KVF_OK);
    kit_offer(&pair.source, 0, "v", 0, TOKENS, TOKENS, pair.sids, BLOCKS, 50 * MS, KVF_ERR_CLOSED);
    assert_int_equal(kvf_engine_poll(pair.source.ranks[0].engine, events, 8), 4);
    assert_int_equal(events[0].kind, KVF_EVENT_OFFER_FAILED);
    assert_int_equal(events[1].kind, KVF_EVENT_BLOCKS_REUSABLE);
    assert_int_equal(kvf_engine_poll(pair.source.ranks[0].engine, events, 8), 0);
    close_pair(&pair);
}

static void test_drain_says_what_is_left(void **unused)
{
    struct pair pair;
    struct kvf_error error;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    offer(&pair, 0, 0, TOKENS, 0);
    assert_int_equal(kvf_engine_drain(pair.source.ranks[0].engine, 20 * MS, &error), KVF_ERR_TIMEOUT);
    assert_string_equal(error.text, "1 offers and pulls are left after 20 ms");
    close_pair(&pair);
}

static void test_close_tells_the_peer(void **unused)
{
    struct pair pair;
    (void)unused;
    open_pair(&pair, 1, 1, NULL);
    offer(&pair, 0, 0, 20, 0);
    pull(&pair, 0, 0, 0);
    wait_sent(&pair, 16 * 4 * 16 * 2 * 4);
    kvf_engine_close(pair.source.ranks[0].engine);
    pair.source.ranks[0].engine = NULL;
    expect(&pair.destination, 0, KVF_EVENT_PULL_FAILED, KVF_ERR_CANCELLED, "the prefill engine closes");
    kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    close_pair(&pair);
}

static void by_caller(struct kvf_engine_options *options, size_t rank)
{
    (void)rank;
    options->flags = KVF_ENGINE_CALLER_PROGRESS;
}

static void test_progress_by_the_caller(void **unused)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct pair pair;
    struct kvf_event event;
    (void)unused;
    kit_open(&pair.source, "p", &recipe, NULL, transport, by_caller);
    kit_open(&pair.destination, "d", &recipe, kit_directory(&pair.source), transport, by_caller);
    kit_ids(&pair.source, 1, BLOCKS, pair.sids);
    kit_ids(&pair.destination, 0, BLOCKS, pair.dids);
    kit_fill(&pair.source, 0, 1, pair.sids, BLOCKS);
    offer(&pair, 0, 0, TOKENS, 0);
    pull(&pair, 0, 0, 0);
    for (int64_t end = kit_now_ns() + 20 * SECOND; kit_now_ns() < end;) {
        kvf_engine_progress(pair.source.ranks[0].engine);
        if (kvf_engine_wait(pair.destination.ranks[0].engine, &event, 1, MS) == 1)
            break;
    }
    assert_int_equal(event.kind, KVF_EVENT_PULL_DONE);
    check(&pair, 0);
    expect(&pair.source, 0, KVF_EVENT_OFFER_DONE, KVF_OK, NULL);
    close_pair(&pair);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pull_before_offer),
        cmocka_unit_test(test_layer_by_layer),
        cmocka_unit_test(test_chunk_by_chunk),
        cmocka_unit_test(test_ready_is_checked),
        cmocka_unit_test(test_ranks_without_a_share),
        cmocka_unit_test(test_cancel_by_the_decode_side),
        cmocka_unit_test(test_cancel_in_the_middle),
        cmocka_unit_test(test_cancel_by_the_prefill_side),
        cmocka_unit_test(test_attempts),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_event_queue),
        cmocka_unit_test(test_drain_says_what_is_left),
        cmocka_unit_test(test_close_tells_the_peer),
        cmocka_unit_test(test_progress_by_the_caller),
    };
    if (argc > 1)
        transport = argv[1];
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
