/* SPDX-License-Identifier: Apache-2.0 */
/* What a destination lets a writer open under one grant of positions, rings and state. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "transport/armed.h"

enum { BLOCK = 16, RING = 32, TOKENS = 96, ROW = 8, STATE = 24, LAYERS = 2 };
enum { FULL_BYTES = TOKENS * ROW, RING_BYTES = RING * ROW }; /* of one layer */

static const struct kvfi_peer_identity writer = {.name = "p/pp0.cp0.tp0", .incarnation = 7};

/* Each layer has all positions of "k", a ring of "v" and a state. */
static kvf_layout *make_layout(void)
{
    static const int64_t memories[] = {1 << 20};
    static const struct kvf_pool pools[] = {{0, 0, LAYERS * BLOCK * ROW, 16}, {0, 1 << 16, LAYERS * BLOCK * ROW, 4},
                                            {0, 1 << 17, LAYERS * STATE, 4}};
    static const struct kvf_group groups[] = {{.tokens_per_block = BLOCK, .stripes = 1},
                                              {.tokens_per_block = BLOCK, .ring_tokens = RING, .stripes = 1},
                                              {.stripes = 1}};
    static const struct kvf_place k[] = {{0, 0, 0}, {1, 0, BLOCK * ROW}}, v[] = {{0, 1, 0}, {1, 1, BLOCK * ROW}};
    static const struct kvf_place s[] = {{0, 2, 0}, {1, 2, STATE}};
    struct kvf_view views[] = {
        {.role = "k", .group = 0, .row_bytes = ROW, .entries = BLOCK, .places = k, .place_count = LAYERS},
        {.role = "v", .group = 1, .row_bytes = ROW, .entries = BLOCK, .places = v, .place_count = LAYERS},
        {.role = "ssm", .group = 2, .row_bytes = STATE, .entries = 1, .places = s, .place_count = LAYERS}};
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
    spec.memory_count = 1;
    spec.pools = pools;
    spec.groups = groups;
    spec.views = views;
    spec.pool_count = spec.group_count = spec.view_count = 3;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) fail_msg("%s", error.text);
    return layout;
}

/* A chunk as a writer announces it. */
struct step {
    int64_t layer_first, layer_end, token_begin, token_end;
    uint64_t flags;
    int64_t bytes;
    const char *text; /* why it is refused; NULL = it opens */
};

static const struct {
    const char *name;
    struct step steps[6];
} rows[] = {
    {"all in one", {{0, 2, 0, TOKENS, 0, 2 * (FULL_BYTES + RING_BYTES + STATE), NULL}}},
    {"positions in two chunks, then the tails of both layers",
     {{0, 2, 0, 48, KVF_BIND_NO_STATE, FULL_BYTES, NULL},
      {0, 2, 48, TOKENS, KVF_BIND_NO_STATE, FULL_BYTES, NULL},
      {0, 2, 0, TOKENS, KVF_BIND_ONLY_STATE, 2 * (RING_BYTES + STATE), NULL}}},
    {"a tail before the positions, layer by layer",
     {{1, 2, 0, TOKENS, KVF_BIND_ONLY_STATE, RING_BYTES + STATE, NULL},
      {0, 1, 0, TOKENS, 0, FULL_BYTES + RING_BYTES + STATE, NULL},
      {1, 2, 0, TOKENS, KVF_BIND_NO_STATE, FULL_BYTES, NULL}}},
    {"a tail twice",
     {{0, 2, 0, TOKENS, KVF_BIND_ONLY_STATE, 2 * (RING_BYTES + STATE), NULL},
      {1, 2, 0, TOKENS, KVF_BIND_ONLY_STATE, RING_BYTES + STATE,
       "chunk 1 covers layers [1,2) tokens [0,96) a second time"}}},
    {"a tail after a chunk that had it",
     {{0, 1, 0, TOKENS, 0, FULL_BYTES + RING_BYTES + STATE, NULL},
      {0, 1, 0, TOKENS, KVF_BIND_ONLY_STATE, RING_BYTES + STATE,
       "chunk 1 covers layers [0,1) tokens [0,96) a second time"}}},
    {"a tail in parts",
     {{0, 2, 64, 80, KVF_BIND_ONLY_STATE, 2 * (16 * ROW + STATE), NULL},
      {0, 2, 80, TOKENS, KVF_BIND_ONLY_STATE, 2 * (16 * ROW + STATE),
       "chunk 1 covers layers [0,2) tokens [80,96) a second time"}}},
    {"a tail with the bytes of a longer range",
     {{0, 2, 0, TOKENS, KVF_BIND_ONLY_STATE, 2 * (FULL_BYTES + STATE),
       "chunk 0 has 560 bytes here, its writer says 1584"}}},
    {"both flags", {{0, 2, 0, TOKENS, KVF_BIND_ONLY_STATE | KVF_BIND_NO_STATE, 0,
                     "chunk 0: bind flags 0x12, expected 0, 0x2 or 0x10"}}},
    {"another flag", {{0, 2, 0, TOKENS, KVF_BIND_RING_TAIL, 0, "chunk 0: bind flags 0x40, expected 0, 0x2 or 0x10"}}},
};

/* Announces a step; what opens is placed. */
static void announce(struct kvfi_armed *table, const char *name, const struct step *step, uint32_t index)
{
    const struct kvfi_chunk_head head = {.grant = 5, .index = index, .layer_first = step->layer_first,
                                         .layer_end = step->layer_end, .token_begin = step->token_begin,
                                         .token_end = step->token_end, .bind_flags = step->flags,
                                         .bytes = step->bytes};
    struct kvfi_arrival *arrival = NULL;
    struct kvf_error error = {.text = ""};
    enum kvf_status status;
    bool failed;

    status = kvfi_armed_open(table, &head, &writer, &arrival, &failed, &error);
    if (status == KVF_OK) status = kvfi_arrival_bind(arrival, index % 2, &error);
    if ((status == KVF_OK) != (step->text == NULL) || (step->text && strcmp(error.text, step->text) != 0))
        fail_msg("%s, chunk %u: %s", name, index, error.text);
    if (status == KVF_OK) kvfi_arrival_place(arrival);
    if (arrival) kvfi_grant_release(arrival->grant);
}

static void opens_what_it_granted(void **state)
{
    const int64_t ids[] = {0, 1, 2, 3, 4, 5}, one = 0;
    const struct kvf_id_list lists[] = {{ids, 6, 0}, {ids, 2, 0}, {&one, 1, 0}};
    kvf_layout *layout = make_layout();
    struct kvf_bind_request request;
    struct kvfi_arm arm = {.grant = 5, .writer = writer, .request = &request,
                           .bytes = 2 * (FULL_BYTES + RING_BYTES + STATE)};
    struct kvf_error error;
    kvf_plan *plan;

    (void)state;
    if (kvf_plan_create(layout, layout, NULL, NULL, &plan, &error) != KVF_OK) fail_msg("%s", error.text);
    arm.plan = plan;
    kvf_bind_request_init(&request, sizeof request);
    request.flags = KVF_BIND_SRC_UNKNOWN | KVF_BIND_RING_TAIL;
    request.token_end = request.request_tokens = TOKENS;
    request.dst = lists;
    request.dst_count = 3;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static struct kvfi_armed table;

        kvfi_armed_init(&table);
        assert_int_equal(kvfi_armed_add(&table, &arm, NULL), KVF_OK);
        for (uint32_t j = 0; j < 6 && rows[i].steps[j].layer_end > 0; j++)
            announce(&table, rows[i].name, &rows[i].steps[j], j);
        kvfi_armed_fini(&table);
    }
    kvf_plan_release(plan);
    kvf_layout_release(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(opens_what_it_granted)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
