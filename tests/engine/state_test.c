/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that recipes do not make: recurrent state beside positions, and two layers that share one place; and a
 * directory
 * that goes away and comes back. */
#include "kit.h"

static const char *transport = "loop";

enum { SLOTS = 16, ROW = 32, TOKENS = 40, BLOCKS = 3, SLOT_BYTES = 4096, STATE_BYTES = 256 };

/* Layers 0, 1, 2 of "k" in memory 0 (blocks of 16 tokens); a state of 256 bytes for layers 3 and 4 in memory 1. With
 * `share`
 * layer 2 lies at the place of layer 0. */
static kvf_layout *make_layout(bool share, int64_t base)
{
    const int64_t memories[] = {base + SLOTS * SLOT_BYTES, SLOTS * 1024};
    const struct kvf_pool pools[] = {{0, base, SLOT_BYTES, SLOTS}, {1, 0, 1024, SLOTS}};
    const struct kvf_group groups[] = {{.tokens_per_block = 16, .stripes = 1}, {.stripes = 1}};
    const struct kvf_place k[] = {{0, 0, 0}, {1, 0, 1024}, {2, 0, share ? 0 : 2048}};
    const struct kvf_place s[] = {{3, 1, 0}, {4, 1, 512}};
    const struct kvf_view views[] = {
        {.role = "k", .tag = "f16", .group = 0, .row_bytes = ROW, .byte_count = ROW, .unit_total = 1, .unit_count = 1,
         .unit_stride_bytes = 16 * ROW, .entry_stride_bytes = ROW, .entries = 16, .slots_per_block = 1, .places = k,
         .place_count = 3},
        {.role = "ssm", .tag = "f32", .group = 1, .row_bytes = STATE_BYTES, .byte_count = STATE_BYTES, .unit_total = 1,
         .unit_count = 1, .unit_stride_bytes = STATE_BYTES, .entry_stride_bytes = STATE_BYTES, .entries = 1,
         .slots_per_block = 1, .places = s, .place_count = 2}};
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout;

    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = memories;
    spec.memory_count = 2;
    spec.pools = pools;
    spec.pool_count = 2;
    spec.groups = groups;
    spec.group_count = 2;
    spec.views = views;
    spec.view_count = 2;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return layout;
}

struct worker {
    kvf_layout *layout;
    kvf_engine *engine;
    kvf_memory *memory[2];
    uint8_t *k, *state;
};

static void open_worker(struct worker *worker, const char *name, bool share, int64_t base, const char *directory)
{
    struct kvf_engine_options options;
    struct kvf_error error;

    worker->layout = make_layout(share, base);
    kvf_engine_options_init(&options, sizeof options);
    options.instance = name;
    options.layout = worker->layout;
    options.transports = transport;
    options.directory_url = directory;
    options.directory_timeout_ns = SECOND;
    if (kvf_engine_open(&options, &worker->engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
    for (int m = 0; m < 2; m++) {
        int64_t bytes = kvf_layout_get_spec(worker->layout)->memory_bytes[m];
        assert_int_equal(kvf_memory_create(bytes, 0, &worker->memory[m], NULL), KVF_OK);
        memset(kvf_memory_address(worker->memory[m]), KIT_GUARD, (size_t)bytes);
        assert_int_equal(kvf_engine_register_memory(worker->engine, m, kvf_memory_address(worker->memory[m]), bytes,
                                                    kvf_memory_fd(worker->memory[m]), NULL), KVF_OK);
    }
    worker->k = (uint8_t *)kvf_memory_address(worker->memory[0]) + base;
    worker->state = kvf_memory_address(worker->memory[1]);
    if (kvf_engine_announce(worker->engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void close_worker(struct worker *worker)
{
    kvf_engine_close(worker->engine);
    for (int m = 0; m < 2; m++)
        kvf_memory_destroy(worker->memory[m]);
    kvf_layout_release(worker->layout);
}

static uint8_t value(int64_t layer, int64_t position, int64_t byte)
{
    return (uint8_t)(1 + (layer * 67 + position * 5 + byte * 3) % 199);
}

static const int64_t SIDS[BLOCKS] = {4, 9, 2}, DIDS[BLOCKS] = {7, 1, 12};
static const int64_t SSTATE = 5, DSTATE = 3;

static uint8_t *cell(const struct worker *worker, const int64_t *ids, int64_t layer, int64_t position)
{
    int64_t offset = kvf_layout_get_spec(worker->layout)->views[0].places[layer].offset_bytes;
    return worker->k + ids[position / 16] * SLOT_BYTES + offset + position % 16 * ROW;
}

static void fill(struct worker *worker)
{
    for (int64_t layer = 0; layer < 3; layer++)
        for (int64_t p = 0; p < BLOCKS * 16; p++)
            for (int64_t b = 0; b < ROW; b++)
                cell(worker, SIDS, layer, p)[b] = value(layer, p, b);
    for (int64_t layer = 0; layer < 2; layer++)
        for (int64_t b = 0; b < STATE_BYTES; b++)
            worker->state[SSTATE * 1024 + layer * 512 + b] = value(3 + layer, 0, b);
}

static bool right(const struct worker *worker, int64_t layer, int64_t end)
{
    bool good = true;
    for (int64_t p = 0; p < end; p++)
        for (int64_t b = 0; b < ROW; b++)
            good = good && cell(worker, DIDS, layer, p)[b] == value(layer, p, b);
    return good;
}

static bool state_right(const struct worker *worker)
{
    bool good = true;
    for (int64_t layer = 0; layer < 2; layer++)
        for (int64_t b = 0; b < STATE_BYTES; b++)
            good = good && worker->state[DSTATE * 1024 + layer * 512 + b] == value(3 + layer, 0, b);
    return good;
}

static void begin(struct worker *source, struct worker *destination, const char *id, int64_t ready)
{
    struct kvf_id_list slists[] = {{SIDS, BLOCKS, 0}, {&SSTATE, 1, 0}}, dlists[] = {{DIDS, BLOCKS, 0}, {&DSTATE, 1, 0}};
    struct kvf_offer offer;
    struct kvf_pull pull;

    kvf_offer_init(&offer, sizeof offer);
    offer.transfer = id;
    offer.request_tokens = TOKENS;
    offer.ready_tokens = ready;
    offer.groups = slists;
    offer.group_count = 2;
    assert_int_equal(kvf_engine_offer(source->engine, &offer, NULL), KVF_OK);
    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = id;
    pull.from = "p";
    pull.request_tokens = pull.token_end = TOKENS;
    pull.groups = dlists;
    pull.group_count = 2;
    assert_int_equal(kvf_engine_pull(destination->engine, &pull, NULL), KVF_OK);
}

static void wait_sent(struct worker *source, int64_t bytes)
{
    struct kvf_engine_stats stats = {.struct_size = sizeof stats};
    struct kvf_event event;
    for (int64_t end = kit_now_ns() + 20 * SECOND; stats.bytes_sent < bytes && kit_now_ns() < end;) {
        kvf_engine_wait(source->engine, &event, 1, 2 * MS);
        kvf_engine_get_stats(source->engine, &stats);
    }
    assert_int_equal(stats.bytes_sent, bytes);
}

static void wait_done(struct worker *destination)
{
    struct kvf_event event = {0};
    assert_int_equal(kvf_engine_wait(destination->engine, &event, 1, 20 * SECOND), 1);
    if (event.kind != KVF_EVENT_PULL_DONE)
        fail_msg("event %d: %s", event.kind, event.text);
    assert_int_equal(kvf_engine_wait(destination->engine, &event, 1, 20 * SECOND), 1);
    assert_int_equal(event.kind, KVF_EVENT_BLOCKS_REUSABLE);
}

static void ready(struct worker *source, int64_t first, int64_t end, int64_t tokens)
{
    assert_int_equal(kvf_engine_offer_ready(source->engine, "t", 0, first, end, tokens, NULL), KVF_OK);
}

static void test_state_moves_with_the_end(void **unused)
{
    struct worker p, d;
    (void)unused;
    open_worker(&p, "p", false, 0, NULL);
    open_worker(&d, "d", false, 512, kvf_engine_directory_url(p.engine));
    fill(&p);
    begin(&p, &d, "t", 32);
    wait_sent(&p, 3 * 32 * ROW); /* two whole blocks of three layers, no state */
    assert_false(state_right(&d));
    ready(&p, 0, 2, TOKENS);
    wait_sent(&p, 3 * 32 * ROW + 2 * 16 * ROW);
    ready(&p, 3, 5, TOKENS); /* the state of its layers, while layer 2 is still computed */
    wait_sent(&p, 3 * 32 * ROW + 2 * 16 * ROW + 2 * STATE_BYTES);
    assert_true(state_right(&d) && right(&d, 0, TOKENS) && right(&d, 1, TOKENS) && right(&d, 2, 32));
    ready(&p, 2, 3, TOKENS);
    wait_done(&d);
    assert_true(right(&d, 2, TOKENS));
    close_worker(&d);
    close_worker(&p);
}

static void test_layers_that_share_a_place(void **unused)
{
    struct worker p, d;
    (void)unused;
    open_worker(&p, "p", true, 0, NULL);
    open_worker(&d, "d", true, 0, kvf_engine_directory_url(p.engine));
    fill(&p); /* layer 2 last: it is what the shared place holds */
    begin(&p, &d, "t", 0);
    ready(&p, 2, 5, TOKENS);
    ready(&p, 0, 5, 20);
    wait_sent(&p, 2 * 16 * ROW); /* all layers go together, as far as the last of them is */
    ready(&p, 0, 5, TOKENS);
    wait_done(&d);
    assert_true(right(&d, 1, TOKENS) && right(&d, 2, TOKENS) && state_right(&d));
    close_worker(&d);
    close_worker(&p);
}

/* The directory is gone: who knows each other goes on; who is new is told. When it is back, registrations come back. */
static void test_directory_that_goes_away(void **unused)
{
    struct worker p, d;
    struct kvf_event event;
    struct kvf_directory_options options;
    kvf_directory *directory;
    char url[128];
    (void)unused;
    kvf_directory_options_init(&options, sizeof options);
    options.lease_ns = SECOND;
    assert_int_equal(kvf_directory_open(&options, &directory, NULL), KVF_OK);
    snprintf(url, sizeof url, "%s", kvf_directory_url(directory));
    open_worker(&p, "p", false, 0, url);
    open_worker(&d, "d", false, 0, url);
    fill(&p);
    begin(&p, &d, "t", TOKENS);
    wait_done(&d);
    kvf_directory_close(directory);
    begin(&p, &d, "u", TOKENS);
    wait_done(&d);
    begin(&p, &d, "v", TOKENS);
    wait_done(&d);
    struct kvf_id_list lists[] = {{DIDS, BLOCKS, 0}, {&DSTATE, 1, 0}};
    struct kvf_pull pull;
    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = "w";
    pull.from = "stranger";
    pull.request_tokens = pull.token_end = TOKENS;
    pull.groups = lists;
    pull.group_count = 2;
    assert_int_equal(kvf_engine_pull(d.engine, &pull, NULL), KVF_OK);
    assert_int_equal(kvf_engine_wait(d.engine, &event, 1, 20 * SECOND), 1);
    assert_int_equal(event.status, KVF_ERR_DIRECTORY);
    assert_non_null(strstr(event.text, url));
    assert_int_equal(kvf_engine_wait(d.engine, &event, 1, 20 * SECOND), 1);
    options.listen = url + strlen("http://"); /* the same address again, with nothing registered */
    assert_int_equal(kvf_directory_open(&options, &directory, NULL), KVF_OK);
    begin(&p, &d, "x", TOKENS);
    wait_done(&d);
    close_worker(&d);
    close_worker(&p);
    kvf_directory_close(directory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_state_moves_with_the_end),
                                       cmocka_unit_test(test_layers_that_share_a_place),
                                       cmocka_unit_test(test_directory_that_goes_away)};
    if (argc > 1)
        transport = argv[1];
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
