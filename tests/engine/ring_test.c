/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with all positions beside layers that keep the last ones in a ring, and state: ranges longer than the rings,
 * rings of unlike size, cached prefixes, layer by layer, in many chunks. */
#include "kit.h"

static const char *transport = "loop";

enum { BLOCK = 16, RING_BLOCK = 8, FULL_LAYERS = 2, RING_LAYERS = 2, STATE_BYTES = 96, MAX_BLOCKS = 256, LAYERS = 5 };

/** The two sides may differ in the ring. */
struct shape {
    int64_t ring, row_bytes, blocks;
};

struct worker {
    struct shape shape;
    kvf_layout *layout;
    kvf_engine *engine;
    kvf_memory *memory[3]; /* all positions, rings, state */
    int64_t ids[2][MAX_BLOCKS], state_id;
    struct kvf_id_list lists[3];
};

/* Layers 0 and 1: all positions; 2 and 3: rings; 4: state. */
static kvf_layout *make_layout(const struct shape *shape)
{
    int64_t slot = BLOCK * shape->row_bytes, ring_slot = RING_BLOCK * shape->row_bytes;
    int64_t ring_blocks = shape->ring / RING_BLOCK + 2;
    const int64_t memories[] = {shape->blocks * FULL_LAYERS * slot, ring_blocks * RING_LAYERS * ring_slot,
                                4 * STATE_BYTES};
    const struct kvf_pool pools[] = {{0, 0, FULL_LAYERS * slot, shape->blocks},
                                     {1, 0, RING_LAYERS * ring_slot, ring_blocks}, {2, 0, STATE_BYTES, 4}};
    const struct kvf_group groups[] = {{.tokens_per_block = BLOCK, .stripes = 1},
                                       {.tokens_per_block = RING_BLOCK, .ring_tokens = shape->ring, .stripes = 1},
                                       {.stripes = 1}};
    const struct kvf_place full[] = {{0, 0, 0}, {1, 0, slot}}, rings[] = {{2, 1, 0}, {3, 1, ring_slot}};
    const struct kvf_place state[] = {{4, 2, 0}};
    struct kvf_view views[] = {
        {.role = "k", .group = 0, .row_bytes = shape->row_bytes, .entries = BLOCK, .places = full, .place_count = 2},
        {.role = "k", .group = 1, .row_bytes = shape->row_bytes, .entries = RING_BLOCK, .places = rings,
         .place_count = 2},
        {.role = "ssm", .group = 2, .row_bytes = STATE_BYTES, .entries = 1, .places = state, .place_count = 1}};
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout;

    for (size_t i = 0; i < 3; i++) {
        views[i].tag = "bf16";
        views[i].byte_count = views[i].entry_stride_bytes = views[i].row_bytes;
        views[i].unit_stride_bytes = views[i].entries * views[i].row_bytes;
        views[i].unit_total = views[i].unit_count = views[i].slots_per_block = 1;
    }
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = memories;
    spec.memory_count = 3;
    spec.pools = pools;
    spec.pool_count = 3;
    spec.groups = groups;
    spec.group_count = 3;
    spec.views = views;
    spec.view_count = 3;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return layout;
}

static int64_t memory_bytes(const struct worker *worker, int memory)
{
    return kvf_layout_get_spec(worker->layout)->memory_bytes[memory];
}

static void open_worker(struct worker *worker, const char *name, const struct shape *shape, const char *directory)
{
    struct kvf_engine_options options;
    struct kvf_error error;

    *worker = (struct worker){.shape = *shape, .layout = make_layout(shape), .state_id = directory ? 3 : 1};
    kvf_engine_options_init(&options, sizeof options);
    options.instance = name;
    options.layout = worker->layout;
    options.transports = transport;
    options.directory_url = directory;
    if (kvf_engine_open(&options, &worker->engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
    for (int m = 0; m < 3; m++) {
        int64_t bytes = memory_bytes(worker, m);
        assert_int_equal(kvf_memory_create(bytes, 0, &worker->memory[m], NULL), KVF_OK);
        memset(kvf_memory_address(worker->memory[m]), KIT_GUARD, (size_t)bytes);
        assert_int_equal(kvf_engine_register_memory(worker->engine, m, kvf_memory_address(worker->memory[m]), bytes,
                                                    kvf_memory_fd(worker->memory[m]), NULL), KVF_OK);
    }
    if (kvf_engine_announce(worker->engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void close_worker(struct worker *worker)
{
    kvf_engine_close(worker->engine);
    for (int m = 0; m < 3; m++)
        kvf_memory_destroy(worker->memory[m]);
    kvf_layout_release(worker->layout);
}

/* Scattered ids for a request of so many tokens: blocks of all of them, and of the ring. */
static void choose_ids(struct worker *worker, int64_t tokens)
{
    int64_t local = tokens < worker->shape.ring ? tokens : worker->shape.ring;
    int64_t counts[2] = {(tokens + BLOCK - 1) / BLOCK, (local + RING_BLOCK - 1) / RING_BLOCK};
    int64_t slots[2] = {worker->shape.blocks, worker->shape.ring / RING_BLOCK + 2};

    for (int g = 0; g < 2; g++) {
        assert_true(counts[g] <= slots[g] && counts[g] <= MAX_BLOCKS);
        for (int64_t i = 0; i < counts[g]; i++) /* backwards from the last slot */
            worker->ids[g][i] = slots[g] - 1 - i;
        worker->lists[g] = (struct kvf_id_list){worker->ids[g], (size_t)counts[g], 0};
    }
    worker->lists[2] = (struct kvf_id_list){&worker->state_id, 1, 0};
}

/* ---- the oracle ----------------------------------------------------------------------------------------------- */

static uint8_t value(int64_t layer, int64_t position, int64_t byte)
{
    return (uint8_t)(1 + (layer * 67 + position * 31 + byte * 3) % 199);
}

/* Offset of a row in its memory, by the words of the layout: a ring lies in its blocks lap over lap. */
static int64_t cell(const struct worker *worker, int64_t layer, int64_t position)
{
    bool ring = layer >= FULL_LAYERS;
    int64_t block = ring ? RING_BLOCK : BLOCK, at = ring ? position % worker->shape.ring : position;
    int64_t slot = block * worker->shape.row_bytes, id = worker->ids[ring][at / block];

    return (id * 2 + (ring ? layer - FULL_LAYERS : layer)) * slot + at % block * worker->shape.row_bytes;
}

/* Writes positions [begin, end) of a layer, in order: in a ring the later ones remain. */
static void write_layer(const struct worker *worker, uint8_t *const memory[3], int64_t layer, int64_t begin,
                        int64_t end)
{
    for (int64_t p = begin; p < end; p++)
        for (int64_t b = 0; b < worker->shape.row_bytes; b++)
            memory[layer >= FULL_LAYERS][cell(worker, layer, p) + b] = value(layer, p, b);
}

static void write_state(const struct worker *worker, uint8_t *const memory[3])
{
    for (int64_t b = 0; b < STATE_BYTES; b++)
        memory[2][worker->state_id * STATE_BYTES + b] = value(4, 0, b);
}

static void fill(struct worker *worker, int64_t tokens)
{
    uint8_t *memory[3];

    for (int m = 0; m < 3; m++)
        memory[m] = kvf_memory_address(worker->memory[m]);
    for (int64_t layer = 0; layer < FULL_LAYERS + RING_LAYERS; layer++)
        write_layer(worker, memory, layer, 0, tokens);
    write_state(worker, memory);
}

static int64_t shorter_ring(const struct worker *a, const struct worker *b)
{
    return a->shape.ring < b->shape.ring ? a->shape.ring : b->shape.ring;
}

static int64_t tail_begin(const struct worker *source, const struct worker *destination, int64_t begin, int64_t end)
{
    int64_t first = end - shorter_ring(source, destination);
    return first > begin ? first : begin;
}

/* Every byte of the destination is what it should be after a pull of [begin, end). */
static void check(const struct worker *source, const struct worker *destination, int64_t begin, int64_t end)
{
    static const char *const names[] = {"positions", "rings", "state"};
    uint8_t *expected[3];

    for (int m = 0; m < 3; m++) {
        expected[m] = malloc((size_t)memory_bytes(destination, m));
        memset(expected[m], KIT_GUARD, (size_t)memory_bytes(destination, m));
    }
    for (int64_t layer = 0; layer < FULL_LAYERS; layer++)
        write_layer(destination, expected, layer, begin, end);
    for (int64_t layer = FULL_LAYERS; layer < FULL_LAYERS + RING_LAYERS; layer++)
        write_layer(destination, expected, layer, tail_begin(source, destination, begin, end), end);
    write_state(destination, expected);
    for (int m = 0; m < 3; m++) {
        const uint8_t *got = kvf_memory_address(destination->memory[m]);
        for (int64_t i = 0; i < memory_bytes(destination, m); i++)
            if (got[i] != expected[m][i])
                fail_msg("%s: byte %lld is %d, expected %d", names[m], (long long)i, got[i], expected[m][i]);
        free(expected[m]);
    }
}

static int64_t tail_bytes(const struct worker *source, const struct worker *destination, int64_t begin, int64_t end)
{
    return RING_LAYERS * (end - tail_begin(source, destination, begin, end)) * source->shape.row_bytes;
}

/* ---- transfers ------------------------------------------------------------------------------------------------ */

static void offer(struct worker *source, int64_t tokens, int64_t ready)
{
    struct kvf_offer offer;
    struct kvf_error error;

    kvf_offer_init(&offer, sizeof offer);
    offer.transfer = "t";
    offer.request_tokens = tokens;
    offer.ready_tokens = ready;
    offer.groups = source->lists;
    offer.group_count = 3;
    if (kvf_engine_offer(source->engine, &offer, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void pull(struct worker *destination, int64_t begin, int64_t end, int64_t tokens)
{
    struct kvf_pull pull;
    struct kvf_error error;

    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = "t";
    pull.from = "p";
    pull.request_tokens = tokens;
    pull.token_begin = begin;
    pull.token_end = end;
    pull.groups = destination->lists;
    pull.group_count = 3;
    if (kvf_engine_pull(destination->engine, &pull, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static struct kvf_event wait_end(struct worker *destination)
{
    struct kvf_event event = {0};
    assert_int_equal(kvf_engine_wait(destination->engine, &event, 1, 20 * SECOND), 1);
    return event;
}

static void wait_done(struct worker *destination, int64_t bytes)
{
    struct kvf_event event = wait_end(destination);
    if (event.kind != KVF_EVENT_PULL_DONE)
        fail_msg("event %d: %s", event.kind, event.text);
    assert_int_equal(event.bytes, bytes);
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

static void open_both(struct worker *p, struct worker *d, int64_t src_ring, int64_t dst_ring, int64_t row_bytes,
                      int64_t tokens)
{
    int64_t blocks = (tokens + BLOCK - 1) / BLOCK + 3;

    open_worker(p, "p", &(struct shape){src_ring, row_bytes, blocks}, NULL);
    open_worker(d, "d", &(struct shape){dst_ring, row_bytes, blocks + 2}, kvf_engine_directory_url(p->engine));
    choose_ids(p, tokens);
    choose_ids(d, tokens);
    fill(p, tokens);
}

static void test_all_at_once(void **unused)
{
    static const struct { const char *name; int64_t src_ring, dst_ring, begin, tokens; } rows[] = {
        {"shorter than the ring", 64, 64, 0, 40}, {"as long as the ring", 64, 64, 0, 64},
        {"one more", 64, 64, 0, 65}, {"many laps", 64, 64, 0, 333}, {"a shorter ring here", 64, 48, 0, 200},
        {"a shorter ring there", 48, 112, 0, 200}, {"a cached prefix before the ring", 64, 64, 96, 300},
        {"a cached prefix into the ring", 64, 64, 272, 300}, {"all cached but state", 64, 64, 300, 300},
        {"unlike rings and a cached prefix", 40, 56, 32, 177}};
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t tokens = rows[i].tokens, begin = rows[i].begin, bytes;
        int64_t blocks_end = begin == tokens ? tokens : (tokens + BLOCK - 1) / BLOCK * BLOCK;
        struct worker p, d;
        print_message("%s\n", rows[i].name);
        open_both(&p, &d, rows[i].src_ring, rows[i].dst_ring, 32, tokens);
        bytes = FULL_LAYERS * (blocks_end - begin) * 32 + tail_bytes(&p, &d, begin, tokens) + STATE_BYTES;
        offer(&p, tokens, tokens);
        pull(&d, begin, tokens, tokens);
        wait_done(&d, bytes);
        check(&p, &d, begin, tokens);
        close_worker(&d);
        close_worker(&p);
    }
}

static void ready(struct worker *source, int64_t first, int64_t end, int64_t tokens)
{
    assert_int_equal(kvf_engine_offer_ready(source->engine, "t", 0, first, end, tokens, NULL), KVF_OK);
}

/* Positions flow as they come; a ring flows once its layer is computed to the end, and then its last positions. */
static void test_layer_by_layer(void **unused)
{
    enum { TOKENS = 200, ROW = 32, PADDED = 208 };
    struct worker p, d;
    int64_t sent = 0, tail;
    (void)unused;
    open_both(&p, &d, 64, 48, ROW, TOKENS);
    tail = tail_bytes(&p, &d, 16, TOKENS) / RING_LAYERS;
    offer(&p, TOKENS, 0);
    pull(&d, 16, TOKENS, TOKENS);
    ready(&p, 0, LAYERS, 100);
    wait_sent(&p, sent += FULL_LAYERS * (96 - 16) * ROW);
    ready(&p, 2, 3, TOKENS); /* the first ring */
    wait_sent(&p, sent += tail);
    ready(&p, 1, 2, TOKENS);
    wait_sent(&p, sent += (PADDED - 96) * ROW);
    ready(&p, 4, 5, TOKENS); /* state */
    wait_sent(&p, sent += STATE_BYTES);
    ready(&p, 0, 1, 150);
    wait_sent(&p, sent += (144 - 96) * ROW);
    ready(&p, 0, LAYERS, TOKENS);
    wait_done(&d, sent + (PADDED - 144) * ROW + tail);
    check(&p, &d, 16, TOKENS);
    close_worker(&d);
    close_worker(&p);
}

/* More than a chunk takes: positions go in several, rings and state in one of their own at the end. */
static void test_many_chunks(void **unused)
{
    enum { TOKENS = 3001, ROW = 16384, PADDED = 3008 };
    struct worker p, d;
    (void)unused;
    open_both(&p, &d, 128, 96, ROW, TOKENS);
    offer(&p, TOKENS, TOKENS);
    pull(&d, 0, TOKENS, TOKENS);
    wait_done(&d, (int64_t)FULL_LAYERS * PADDED * ROW + tail_bytes(&p, &d, 0, TOKENS) + STATE_BYTES);
    check(&p, &d, 0, TOKENS);
    close_worker(&d);
    close_worker(&p);
}

/* A pull of an early part of a request: the source's ring has been written over by the rest. */
static void test_ring_that_went_on(void **unused)
{
    struct worker p, d;
    struct kvf_event event;
    (void)unused;
    open_both(&p, &d, 64, 64, 32, 300);
    offer(&p, 300, 300);
    pull(&d, 0, 160, 300);
    event = wait_end(&d);
    assert_int_equal(event.kind, KVF_EVENT_PULL_FAILED);
    assert_int_equal(event.status, KVF_ERR_OUT_OF_RANGE);
    assert_non_null(strstr(event.text, "a ring of 64 tokens, the request of 300 has written over token 96"));
    close_worker(&d);
    close_worker(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_at_once), cmocka_unit_test(test_layer_by_layer),
                                       cmocka_unit_test(test_many_chunks), cmocka_unit_test(test_ring_that_went_on)};
    if (argc > 1)
        transport = argv[1];
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
