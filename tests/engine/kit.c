/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <inttypes.h>
#include <time.h>

int64_t kit_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

struct kvf_instance_recipe kit_recipe(void)
{
    struct kvf_instance_recipe recipe;
    kvf_instance_recipe_init(&recipe, sizeof recipe);
    recipe.model_name = "tiny";
    recipe.dtype = "f16";
    recipe.layers = 4;
    recipe.kv_heads = 4;
    recipe.head_dim = 8;
    recipe.tp = recipe.pp = recipe.cp = 1;
    recipe.tokens_per_block = 16;
    recipe.blocks = 64;
    recipe.slot_padding_bytes = 64;
    recipe.order = KVF_ORDER_HEADS_FIRST;
    recipe.kv_pools = KVF_KV_ONE_POOL;
    return recipe;
}

/* ---- instances --------------------------------------------------------------------------------------------- */

static void make_memories(struct kit_rank *rank)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(rank->layout);
    struct kvf_error error;

    rank->memory_count = spec->memory_count;
    rank->memories = calloc(spec->memory_count, sizeof *rank->memories);
    assert_non_null(rank->memories);
    for (size_t m = 0; m < spec->memory_count; m++)
        if (kvf_memory_create(spec->memory_bytes[m], 0, &rank->memories[m], &error) != KVF_OK)
            fail_msg("%s", error.text);
}

void kit_layouts(struct kit_side *side, const char *name, const struct kvf_instance_recipe *recipe)
{
    struct kvf_error error;
    char *text = NULL;

    memset(side, 0, sizeof *side);
    snprintf(side->name, sizeof side->name, "%s", name);
    side->blocks = recipe->blocks;
    side->tokens_per_block = recipe->tokens_per_block;
    if (kvf_instance_recipe_to_json(recipe, &text, &error) != KVF_OK ||
        kvf_instance_parse(text, strlen(text), &side->instance, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_text_free(text);
    side->rank_count = kvf_instance_rank_count(side->instance);
    assert_in_range(side->rank_count, 1, KIT_MAX_RANKS);
    for (size_t r = 0; r < side->rank_count; r++) {
        side->ranks[r].layout = kvf_instance_layout(side->instance, r);
        make_memories(&side->ranks[r]);
        kit_guard(side, r);
    }
}

void kit_engine(struct kit_side *side, size_t r, const char *directory, const char *transports, kit_tweak tweak)
{
    struct kit_rank *rank = &side->ranks[r];
    struct kvf_engine_options options;
    struct kvf_error error;

    kvf_engine_options_init(&options, sizeof options);
    options.instance = side->name;
    options.rank = kvf_instance_rank(side->instance, r);
    options.ranks_expected = (int64_t)side->rank_count;
    options.layout = rank->layout;
    options.directory_url = directory;
    options.transports = transports;
    options.model_fingerprint = kvf_instance_model_fingerprint(side->instance);
    if (getenv("KIT_LOG") != NULL) {
        options.log.fd = 2;
        options.log.level = (int)strtol(getenv("KIT_LOG"), NULL, 10);
    }
    if (tweak != NULL)
        tweak(&options, r);
    if (kvf_engine_open(&options, &rank->engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
    for (size_t m = 0; m < rank->memory_count; m++)
        if (kvf_engine_register_memory(rank->engine, (int64_t)m, kvf_memory_address(rank->memories[m]),
                                       kvf_memory_bytes(rank->memories[m]), kvf_memory_fd(rank->memories[m]), &error) !=
            KVF_OK)
            fail_msg("%s", error.text);
    if (kvf_engine_announce(rank->engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void kit_open(struct kit_side *side, const char *name, const struct kvf_instance_recipe *recipe, const char *directory,
              const char *transports, kit_tweak tweak)
{
    kit_layouts(side, name, recipe);
    for (size_t r = 0; r < side->rank_count; r++)
        kit_engine(side, r, r == 0 || directory != NULL ? directory : kit_directory(side), transports, tweak);
}

void kit_close(struct kit_side *side)
{
    for (size_t r = side->rank_count; r-- > 0;) {
        kvf_engine_close(side->ranks[r].engine);
        for (size_t m = 0; m < side->ranks[r].memory_count; m++)
            kvf_memory_destroy(side->ranks[r].memories[m]);
        free(side->ranks[r].memories);
    }
    kvf_instance_destroy(side->instance);
    memset(side, 0, sizeof *side);
}

const char *kit_directory(const struct kit_side *side) { return kvf_engine_directory_url(side->ranks[0].engine); }

/* ---- blocks and bytes -------------------------------------------------------------------------------------- */

int64_t kit_blocks(const struct kit_side *side, int64_t tokens)
{
    return (tokens + side->tokens_per_block - 1) / side->tokens_per_block;
}

void kit_ids(const struct kit_side *side, int64_t request, int64_t count, int64_t *ids)
{
    int64_t step = 37; /* a prime that divides no block count in use */

    assert_true((request + 1) * count <= side->blocks && side->blocks % step != 0);
    for (int64_t i = 0; i < count; i++)
        ids[i] = (request * count + i) * step % side->blocks;
}

static uint8_t oracle(const char *role, int64_t request, int64_t layer, int64_t unit, int64_t position, int64_t byte)
{
    uint64_t x = (uint64_t)(unsigned char)role[0] * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)request * 1000003u;
    x ^= (uint64_t)layer * UINT64_C(0xC2B2AE3D27D4EB4F) + (uint64_t)unit * UINT64_C(0x165667B19E3779F9);
    x ^= (uint64_t)position * UINT64_C(0xD6E8FEB86659FD93) + (uint64_t)byte * UINT64_C(0xA0761D6478BD642F);
    x ^= x >> 32;
    x *= UINT64_C(0xD6E8FEB86659FD93);
    x ^= x >> 29;
    uint8_t value = (uint8_t)(x >> 24);
    return value == KIT_GUARD ? 0x11 : value;
}

void kit_guard(struct kit_side *side, size_t r)
{
    for (size_t m = 0; m < side->ranks[r].memory_count; m++)
        memset(kvf_memory_address(side->ranks[r].memories[m]), KIT_GUARD,
               (size_t)kvf_memory_bytes(side->ranks[r].memories[m]));
}

/* Calls `each` with every byte of a block that the rank holds: memory, offset and the oracle's value. */
typedef void (*byte_fn)(void *context, int64_t memory, int64_t offset, uint8_t value, int64_t position);

static void each_byte(const struct kit_side *side, size_t r, int64_t request, int64_t ordinal, int64_t id, byte_fn each,
                      void *context)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(side->ranks[r].layout);

    for (size_t v = 0; v < spec->view_count; v++) {
        const struct kvf_view *view = &spec->views[v];
        int64_t tokens = spec->groups[view->group].tokens_per_block;
        for (size_t p = 0; p < view->place_count; p++) {
            const struct kvf_pool *pool = &spec->pools[view->places[p].pool];
            int64_t slot = pool->base_offset_bytes + id * pool->slot_stride_bytes + view->places[p].offset_bytes;
            for (int64_t u = 0; u < view->unit_count; u++)
                for (int64_t e = 0; e < view->entries; e++)
                    for (int64_t b = 0; b < view->byte_count; b++)
                        each(context, pool->memory,
                             slot + u * view->unit_stride_bytes + e * view->entry_stride_bytes + b,
                             oracle(view->role, request, view->places[p].layer, view->unit_first + u,
                                    ordinal * tokens + e, view->byte_first + b),
                             ordinal * tokens + e);
        }
    }
}

struct fill {
    struct kit_rank *rank;
};

static void fill_byte(void *context, int64_t memory, int64_t offset, uint8_t value, int64_t position)
{
    struct fill *fill = context;
    (void)position;
    ((uint8_t *)kvf_memory_address(fill->rank->memories[memory]))[offset] = value;
}

void kit_fill(struct kit_side *side, size_t r, int64_t request, const int64_t *ids, int64_t count)
{
    struct fill fill = {&side->ranks[r]};
    for (int64_t i = 0; i < count; i++)
        each_byte(side, r, request, i, ids[i], fill_byte, &fill);
}

struct image {
    uint8_t **value; /* what must be there */
    uint8_t **free;  /* 1: the guard is right too */
    int64_t begin, end, skip_end;
};

static void image_byte(void *context, int64_t memory, int64_t offset, uint8_t value, int64_t position)
{
    struct image *image = context;
    if (position < image->begin)
        return;
    image->value[memory][offset] = value;
    image->free[memory][offset] = position >= image->end;
}

static bool compare(const struct kit_rank *rank, const struct image *image)
{
    for (size_t m = 0; m < rank->memory_count; m++) {
        const uint8_t *bytes = kvf_memory_address(rank->memories[m]);
        for (int64_t i = 0; i < kvf_memory_bytes(rank->memories[m]); i++) {
            if (bytes[i] == image->value[m][i] || (image->free[m][i] && bytes[i] == KIT_GUARD))
                continue;
            print_error("memory %zu offset %" PRId64 ": 0x%02x, expected 0x%02x\n", m, i, bytes[i], image->value[m][i]);
            return false;
        }
    }
    return true;
}

bool kit_check(const struct kit_side *side, size_t r, const struct kit_moved *moved, size_t moved_count)
{
    const struct kit_rank *rank = &side->ranks[r];
    struct image image = {calloc(rank->memory_count, sizeof(uint8_t *)), calloc(rank->memory_count, sizeof(uint8_t *)),
                          0, 0, 0};
    bool good;

    for (size_t m = 0; m < rank->memory_count; m++) {
        size_t bytes = (size_t)kvf_memory_bytes(rank->memories[m]);
        image.value[m] = malloc(bytes);
        image.free[m] = calloc(1, bytes);
        memset(image.value[m], KIT_GUARD, bytes);
    }
    for (size_t i = 0; i < moved_count; i++) {
        image.begin = moved[i].token_begin;
        image.end = moved[i].token_end;
        for (int64_t b = 0; b < moved[i].count; b++)
            each_byte(side, r, moved[i].request, b, moved[i].ids[b], image_byte, &image);
    }
    good = compare(rank, &image);
    for (size_t m = 0; m < rank->memory_count; m++) {
        free(image.value[m]);
        free(image.free[m]);
    }
    free(image.value);
    free(image.free);
    return good;
}

/* ---- calls and events -------------------------------------------------------------------------------------- */

void kit_offer(struct kit_side *side, size_t rank, const char *transfer, int64_t attempt, int64_t tokens,
               int64_t ready_tokens, const int64_t *ids, int64_t count, int64_t timeout_ns, enum kvf_status expected)
{
    struct kvf_id_list list = {ids, (size_t)count, 0};
    struct kvf_offer offer;
    struct kvf_error error = {.text = "success"};
    enum kvf_status status;

    kvf_offer_init(&offer, sizeof offer);
    offer.transfer = transfer;
    offer.attempt = attempt;
    offer.request_tokens = tokens;
    offer.ready_tokens = ready_tokens;
    offer.groups = &list;
    offer.group_count = 1;
    offer.timeout_ns = timeout_ns;
    status = kvf_engine_offer(side->ranks[rank].engine, &offer, &error);
    if (status != expected)
        fail_msg("offer: %s: %s", kvf_status_name(status), error.text);
}

void kit_pull(struct kit_side *side, size_t rank, const char *from, const char *transfer, int64_t attempt,
              int64_t begin, int64_t tokens, const int64_t *ids, int64_t count, int64_t timeout_ns,
              enum kvf_status expected)
{
    struct kvf_id_list list = {ids, (size_t)count, 0};
    struct kvf_pull pull;
    struct kvf_error error = {.text = "success"};
    enum kvf_status status;

    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = transfer;
    pull.attempt = attempt;
    pull.from = from;
    pull.request_tokens = tokens;
    pull.token_begin = begin;
    pull.token_end = tokens;
    pull.groups = &list;
    pull.group_count = 1;
    pull.timeout_ns = timeout_ns;
    status = kvf_engine_pull(side->ranks[rank].engine, &pull, &error);
    if (status != expected)
        fail_msg("pull: %s: %s", kvf_status_name(status), error.text);
}

static bool next_event(struct kit_side *side, size_t rank, struct kvf_event *event, int64_t deadline)
{
    int64_t left = deadline - kit_now_ns();
    return kvf_engine_wait(side->ranks[rank].engine, event, 1, left < 0 ? 0 : left) == 1;
}

struct kvf_event kit_wait(struct kit_side *side, size_t rank, int kind)
{
    int64_t deadline = kit_now_ns() + 20 * SECOND;
    struct kvf_event event;

    while (next_event(side, rank, &event, deadline)) {
        if (event.kind == kind)
            return event;
        if (event.kind == KVF_EVENT_PULL_FAILED || event.kind == KVF_EVENT_OFFER_FAILED)
            print_error("%s rank %zu: event %d: %s\n", side->name, rank, event.kind, event.text);
    }
    fail_msg("%s rank %zu: no event %d within 20 s", side->name, rank, kind);
    return event;
}

struct kvf_event kit_terminal(struct kit_side *side, size_t rank, const char *transfer)
{
    int64_t deadline = kit_now_ns() + 20 * SECOND;
    struct kvf_event event;

    while (next_event(side, rank, &event, deadline))
        if (event.kind >= KVF_EVENT_PULL_DONE && event.kind <= KVF_EVENT_OFFER_FAILED &&
            strcmp(event.transfer, transfer) == 0)
            return event;
    fail_msg("%s rank %zu: transfer \"%s\" does not end within 20 s", side->name, rank, transfer);
    return event;
}
