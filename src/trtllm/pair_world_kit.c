/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/pair_world_kit.h"

#include "trtllm/rank_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNTOUCHED = 0xA5 };

int64_t world_random(struct world *world, int64_t count)
{
    world->random ^= world->random << 13;
    world->random ^= world->random >> 7;
    world->random ^= world->random << 17;
    return (int64_t)(world->random % (uint64_t)count);
}

static bool chance(struct world *world, int percent) { return world_random(world, 100) < percent; }

/** The value of a coordinate: kind, layer, part (buffer, section), unit (head), position, byte. */
static unsigned char value_of(int kind, int64_t layer, int64_t part, int64_t unit, int64_t position, int64_t byte)
{
    const int64_t words[6] = {kind, layer, part, unit, position, byte};
    uint64_t hash = 88172645463325252u;

    for (int i = 0; i < 6; i++) {
        hash = (hash ^ (uint64_t)words[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return (unsigned char)(hash >> 40);
}

/* ---- the model and the shapes ---- */

static void choose_model(struct world *world)
{
    struct world_model *model = &world->model;
    int64_t id = 0;
    bool hybrid = chance(world, 30), windows = chance(world, 35), classes = chance(world, 25);

    model->layers = 1 + (int)world_random(world, WORLD_LAYERS);
    model->key_only = chance(world, 20);
    for (int i = 0; i < model->layers; i++) {
        id += 1 + (chance(world, 20) ? world_random(world, 5) : 0);
        model->layer_ids[i] = id;
        model->group_of[i] = hybrid && chance(world, 40) ? 2 : windows && chance(world, 50);
        model->second_class[i] = classes && !model->key_only && chance(world, 40);
    }
    model->heads[0] = model->key_only ? 1 : INT64_C(1) << world_random(world, 4);
    model->heads[1] = INT64_C(1) << world_random(world, 4);
    model->row_bytes = 1 + world_random(world, 6);
    model->index = chance(world, 30);
    model->index_bytes = 1 + world_random(world, 5);
    model->side = chance(world, 50);
    model->side_bytes = 8 + world_random(world, 9);
    for (int i = 0; i < 3; i++) model->section_bytes[i] = 32 * (1 + world_random(world, 3));
    model->ssm_head_bytes = 1 + world_random(world, 8);
    model->ssm_bytes = 32 * model->ssm_head_bytes;
    model->prompt = 1 + world_random(world, 60);
    model->window = 1 + world_random(world, 40);
    model->start = chance(world, 25) ? world_random(world, model->prompt) : 0;
}

static void choose_stages(struct world *world, struct world_shape *shape)
{
    int layers = world->model.layers;

    shape->pp = 1 + (int)world_random(world, layers < 3 ? layers : 3);
    for (int i = 0; i <= shape->pp; i++) shape->first_layer[i] = layers * i / shape->pp;
    for (int i = 1; i < shape->pp; i++)
        if (shape->first_layer[i] + 1 < shape->first_layer[i + 1] && chance(world, 30)) shape->first_layer[i]++;
}

static void choose_shape(struct world *world, struct world_shape *shape)
{
    static const int64_t tokens[] = {1, 2, 3, 4, 6, 8};

    shape->tp = 1 << world_random(world, 3);
    shape->cp = 1;
    shape->attention_dp = chance(world, 25) && shape->tp > 1;
    shape->dp = shape->attention_dp ? shape->tp : 1;
    shape->tokens = tokens[world_random(world, 6)];
    shape->token_major = chance(world, 40);
    choose_stages(world, shape);
}

/** Upstream moves between equal blocks of equal order, and with context parallelism at the receiver only. */
static void choose_shapes(struct world *world, enum world_manner manner)
{
    struct world_shape *src = &world->shapes[0], *dst = &world->shapes[1];
    bool same_tokens = manner == WORLD_STRICT || world->model.index || chance(world, 30);

    choose_shape(world, src);
    choose_shape(world, dst);
    if (same_tokens) dst->tokens = src->tokens;
    if (manner == WORLD_STRICT) dst->token_major = src->token_major;
    if (chance(world, 25) && !dst->attention_dp) dst->cp = 2;
    if (manner == WORLD_NATIVE && chance(world, 25) && !src->attention_dp) src->cp = 1 << world_random(world, 3);
    if (manner == WORLD_STRICT && dst->cp > 1) {
        world->model.start = 0;    /* upstream counts it in the receiver's own list */
        world->model.side = false; /* and elects a sender of it that it then does not pair */
    }
}

/* ---- ranks ---- */

/** Where one rank's part of the model is, in numbers of its own. */
struct view_facts {
    enum world_kind kind;
    int64_t buffers, buffer_bytes;  /**< per layer */
};

static int64_t heads_of(const struct world *world, int side, int second)
{
    int64_t tp = world->shapes[side].attention_dp ? 1 : world->shapes[side].tp, heads = world->model.heads[second];

    return heads > tp ? heads / tp : 1;
}

/** Model-wide number of a rank's first head: ranks beyond the heads share them. */
static int64_t first_head(const struct world *world, int side, const struct world_rank *rank, int second)
{
    int64_t tp = world->shapes[side].attention_dp ? 1 : world->shapes[side].tp;

    return world->shapes[side].attention_dp ? 0 : rank->tp * world->model.heads[second] / tp;
}

/** Shards that recurrent state is cut into, and the rank's. */
static int64_t shards_of(const struct world *world, int side, const struct world_rank *rank, int64_t *shard)
{
    const struct world_shape *shape = &world->shapes[side];

    *shard = shape->attention_dp ? 0 : rank->tp * shape->cp + rank->cp;
    return shape->attention_dp ? 1 : (int64_t)shape->tp * shape->cp;
}

static struct view_facts facts_of(const struct world *world, int side, const struct world_rank *rank,
                                  enum world_kind kind)
{
    const struct world_model *model = &world->model;
    struct view_facts facts = {kind, 1, 0};
    int64_t tokens = world->shapes[side].tokens, shard, shards = shards_of(world, side, rank, &shard);

    switch (kind) {
    case WORLD_KV:
    case WORLD_KV_B:
        facts.buffers = model->key_only ? 1 : 2;
        facts.buffer_bytes = heads_of(world, side, kind == WORLD_KV_B) * tokens * model->row_bytes;
        break;
    case WORLD_INDEX:
        facts.buffer_bytes = tokens * model->index_bytes;
        break;
    case WORLD_CONV:
        facts.buffer_bytes = (model->section_bytes[0] + model->section_bytes[1] + model->section_bytes[2]) / shards;
        break;
    case WORLD_SSM:
        facts.buffer_bytes = model->ssm_bytes / shards;
        break;
    case WORLD_SIDE:
        facts.buffer_bytes = model->side_bytes;
        break;
    }
    return facts;
}

/** True when a layer has a view of this kind. */
static bool has_view(const struct world_model *model, int layer, enum world_kind kind)
{
    bool state = model->group_of[layer] == 2, has = state;

    if (kind == WORLD_KV || kind == WORLD_KV_B) has = !state && model->second_class[layer] == (kind == WORLD_KV_B);
    else if (kind == WORLD_INDEX) has = !state && model->index;
    else if (kind == WORLD_SIDE) has = state && model->side;
    return has;
}

/** Adds one view with a pool of its own: layers in random order, padding behind them. */
static void add_view(struct world *world, struct rank_kit *kit, int side, const struct world_rank *rank, size_t group,
                     enum world_kind kind)
{
    static const char *const roles[] = {"key", "key_b", "index_key", "conv_state", "ssm_state", "ple_ngram_context"};
    static const int64_t mappers[] = {KVF_TRTLLM_INDEXED, KVF_TRTLLM_INDEXED, KVF_TRTLLM_REPLICATED,
                                      KVF_TRTLLM_SECTIONED, KVF_TRTLLM_INDEXED, KVF_TRTLLM_REPLICATED};
    const struct view_facts facts = facts_of(world, side, rank, kind);
    bool heads = kind == WORLD_KV || kind == WORLD_KV_B;
    size_t view = rank_kit_view(kit, group, heads && world->shapes[side].token_major ? KVF_TRTLLM_NHD : mappers[kind],
                                (int64_t)kit->pool_groups[group].pool_count);
    struct kvf_trtllm_view *spec = &kit->views[group][view];
    int64_t shard, offset = 0, shards = shards_of(world, side, rank, &shard);
    size_t first = (size_t)world_random(world, (int64_t)kit->groups[group].layer_count), pool;

    rank_kit_role(kit, group, view, roles[kind]);
    if (heads) spec->num_kv_heads = heads_of(world, side, kind == WORLD_KV_B);
    for (size_t i = 0; i < kit->groups[group].layer_count; i++) {
        size_t at = (first + i) % kit->groups[group].layer_count;
        int layer = 0;

        while (world->model.layer_ids[layer] != kit->layers[group][at].global_layer) layer++;
        if (!has_view(&world->model, layer, kind)) continue;
        for (int64_t k = 0; k < facts.buffers; k++, offset += facts.buffer_bytes)
            rank_kit_entry(kit, group, view, (int64_t)at, offset, facts.buffer_bytes);
    }
    if (kind == WORLD_CONV) {
        for (int i = 0; i < 3; i++) kit->sections[group][view][i] = world->model.section_bytes[i] / shards;
        spec->section_bytes = kit->sections[group][view];
        spec->section_count = 3;
    }
    if (kind == WORLD_SSM) spec->bytes_per_head = world->model.ssm_head_bytes;
    pool = rank_kit_pool(kit, group, 0, offset, WORLD_SLOTS);
    kit->pools[group][pool].slot_stride_bytes = offset + (chance(world, 30) ? world_random(world, 9) : 0);
}

static bool any_view(const struct world_model *model, const struct rank_kit *kit, size_t group, enum world_kind kind)
{
    bool any = false;

    for (size_t i = 0; i < kit->groups[group].layer_count; i++)
        for (int layer = 0; layer < model->layers; layer++)
            any = any ||
                  (model->layer_ids[layer] == kit->layers[group][i].global_layer && has_view(model, layer, kind));
    return any;
}

/** Adds the layers of one group that are on the rank's stage, and their views. */
static void add_group(struct world *world, struct rank_kit *kit, int side, struct world_rank *rank, int number)
{
    const struct world_shape *shape = &world->shapes[side];
    size_t group = kit->table.group_count;
    int64_t local = 0;

    for (int i = shape->first_layer[rank->pp]; i < shape->first_layer[rank->pp + 1]; i++) {
        if (world->model.group_of[i] != number) continue;
        if (local == 0) rank_kit_group(kit, number == 2 ? KVF_TRTLLM_STATE : KVF_TRTLLM_PAGED, (int64_t)group);
        rank_kit_layer(kit, group, local++, world->model.layer_ids[i]);
    }
    if (local == 0) return;
    if (number == 1) kit->groups[group].sliding_window_size = world->model.window;
    for (int kind = WORLD_KV; kind <= WORLD_SIDE; kind++)
        if (any_view(&world->model, kit, group, (enum world_kind)kind))
            add_view(world, kit, side, rank, group, (enum world_kind)kind);
    rank->group_numbers[rank->groups++] = number;
}

/** Gives all pools memory, one behind the other. */
static void add_memory(struct rank_kit *kit, struct world_rank *rank)
{
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 64;

        for (size_t g = 0; g < kit->table.pool_group_count; g++) {
            for (size_t p = 0; p < kit->pool_groups[g].pool_count; p++) {
                if (pass) kit->pools[g][p].base_address = (uint64_t)(uintptr_t)(rank->memory + at);
                at += (size_t)(kit->pools[g][p].slot_stride_bytes * kit->pools[g][p].num_slots) + 64;
            }
        }
        if (pass) continue;
        rank->bytes = at;
        rank->memory = malloc(at);
        rank->writes = calloc(at, 1);
        assert_true(rank->memory && rank->writes);
        memset(rank->memory, UNTOUCHED, at);
    }
}

/** First block that a window still holds. */
static int64_t stale_blocks(const struct world *world, int side)
{
    int64_t tokens = world->model.prompt + 1 - world->model.window;

    return tokens > 0 ? tokens / world->shapes[side].tokens : 0;
}

static int64_t blocks_of(const struct world *world, int side)
{
    return (world->model.prompt + world->shapes[side].tokens - 1) / world->shapes[side].tokens;
}

/** Gives the rank random slots for its blocks; holes before a window, and at the receiver before what it wants. */
static void add_blocks(struct world *world, int side, struct world_rank *rank)
{
    const struct world_shape *shape = &world->shapes[side];

    for (int g = 0; g < rank->groups; g++) {
        int64_t order[WORLD_SLOTS], count = 0;
        bool state = rank->group_numbers[g] == 2;

        for (int64_t i = 0; i < WORLD_SLOTS; i++) order[i] = i;
        for (int64_t i = WORLD_SLOTS - 1; i > 0 && chance(world, 90); i--) {
            int64_t other = world_random(world, i + 1), swap = order[i];

            order[i] = order[other];
            order[other] = swap;
        }
        for (int64_t b = state ? 0 : rank->cp; state ? count < 1 : b < blocks_of(world, side); b += shape->cp) {
            bool hole = rank->group_numbers[g] == 1 && b < stale_blocks(world, side);

            if (side == 1 && !state) hole = hole || b < world->model.start / shape->tokens;
            assert_true(count < WORLD_BLOCKS);
            rank->ids[g][count] = hole ? -1 : order[count];
            count++;
        }
        rank->blocks[g] = (struct kvf_trtllm_blocks){rank->ids[g], (size_t)count};
    }
}

static void make_rank(struct world *world, int side, struct world_rank *rank)
{
    const struct world_shape *shape = &world->shapes[side];
    static struct rank_kit kit; /* large */
    int64_t attention_layers = 0;

    rank_kit_init(&kit, side == 0 ? "ctx" : "gen");
    kit.spec.tp_size = shape->tp;
    kit.spec.tp_rank = rank->tp;
    kit.spec.pp_size = shape->pp;
    kit.spec.pp_rank = rank->pp;
    kit.spec.cp_size = shape->cp;
    kit.spec.cp_rank = rank->cp;
    kit.spec.dp_size = shape->dp;
    kit.spec.dp_rank = rank->dp;
    kit.spec.instance_rank = ((int64_t)rank->pp * shape->tp + rank->tp) * shape->cp + rank->cp;
    kit.spec.layer_num_count = (size_t)shape->pp;
    for (int i = 0; i < shape->pp; i++) kit.stages[i] = shape->first_layer[i + 1] - shape->first_layer[i];
    for (int i = shape->first_layer[rank->pp]; i < shape->first_layer[rank->pp + 1]; i++)
        attention_layers += world->model.group_of[i] != 2;
    kit.attention = (struct kvf_trtllm_attention){
        .kv_heads_per_rank = attention_layers ? heads_of(world, side, 0) : 0, .tokens_per_block = shape->tokens,
        .dims_per_head = world->model.row_bytes, .element_eighths = 8, .enable_attention_dp = shape->attention_dp,
        .is_mla = world->model.key_only};
    for (int number = 0; number < WORLD_GROUPS; number++) add_group(world, &kit, side, rank, number);
    kit.table.tokens_per_block = shape->tokens;
    kit.spec.page_table = &kit.table;
    add_memory(&kit, rank);
    add_blocks(world, side, rank);
    rank->rank = rank_kit_make(&kit);
}

/* ---- what each byte is ---- */

/** One byte of a rank. */
struct spot {
    size_t at;            /**< in the rank's memory */
    unsigned char value;
    bool required;        /**< at a receiver: has to be there */
};

typedef void visit_fn(void *arg, const struct spot *spot);

/** A view of a rank in one slot. */
struct slot_view {
    const struct world *world;
    const struct world_rank *rank;
    int side, number;
    enum world_kind kind;
    int64_t layer;        /**< model-wide id */
    int64_t first_token;
    size_t at;            /**< of the layer's region */
    visit_fn *visit;
    void *arg;
};

static void visit_one(const struct slot_view *slot, int64_t offset, unsigned char value, int64_t token)
{
    const struct world_model *model = &slot->world->model;
    int64_t held = slot->number == 1 ? stale_blocks(slot->world, 0) * slot->world->shapes[0].tokens : 0;
    struct spot spot = {slot->at + (size_t)offset, value,
                        token < 0 || (token < model->prompt && token >= held && token >= model->start)};

    slot->visit(slot->arg, &spot);
}

static void visit_heads(const struct slot_view *slot)
{
    const struct world *world = slot->world;
    int second = slot->kind == WORLD_KV_B;
    int64_t heads = heads_of(world, slot->side, second), tokens = world->shapes[slot->side].tokens;
    int64_t first = first_head(world, slot->side, slot->rank, second), row = world->model.row_bytes;

    for (int64_t k = 0; k < (world->model.key_only ? 1 : 2); k++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t b = 0; b < row; b++) {
                    int64_t at = world->shapes[slot->side].token_major ? t * heads + h : h * tokens + t;

                    visit_one(slot, (k * heads * tokens + at) * row + b,
                              value_of(slot->kind, slot->layer, k, first + h, slot->first_token + t, b),
                              slot->first_token + t);
                }
}

static void visit_state(const struct slot_view *slot)
{
    const struct world_model *model = &slot->world->model;
    int64_t shard, shards = shards_of(slot->world, slot->side, slot->rank, &shard), offset = 0;

    if (slot->kind == WORLD_SIDE) {
        for (int64_t b = 0; b < model->side_bytes; b++)
            visit_one(slot, b, value_of(WORLD_SIDE, slot->layer, 0, 0, 0, b), -1);
        return;
    }
    for (int i = 0; i < (slot->kind == WORLD_CONV ? 3 : 1); i++) {
        int64_t own = (slot->kind == WORLD_CONV ? model->section_bytes[i] : model->ssm_bytes) / shards;

        for (int64_t b = 0; b < own; b++)
            visit_one(slot, offset + b, value_of(slot->kind, slot->layer, i, 0, 0, shard * own + b), -1);
        offset += own;
    }
}

static void visit_slot(const struct slot_view *slot)
{
    const struct world_model *model = &slot->world->model;
    int64_t tokens = slot->world->shapes[slot->side].tokens;

    if (slot->kind == WORLD_KV || slot->kind == WORLD_KV_B) {
        visit_heads(slot);
    } else if (slot->kind == WORLD_INDEX) {
        for (int64_t i = 0; i < tokens * model->index_bytes; i++)
            visit_one(slot, i,
                      value_of(WORLD_INDEX, slot->layer, 0, 0, slot->first_token + i / model->index_bytes,
                               i % model->index_bytes), slot->first_token + i / model->index_bytes);
    } else {
        visit_state(slot);
    }
}

static enum world_kind kind_of(const struct kvf_trtllm_view *view)
{
    static const char *const roles[] = {"key", "key_b", "index_key", "conv_state", "ssm_state", "ple_ngram_context"};
    int kind = 0;

    while (strcmp(view->roles[0], roles[kind]) != 0) kind++;
    return (enum world_kind)kind;
}

/** Visits every byte that a rank's blocks hold. */
static void visit_rank(const struct world *world, int side, const struct world_rank *rank, visit_fn *visit, void *arg)
{
    const struct kvf_trtllm_page_table *table = kvf_trtllm_rank_get_spec(rank->rank)->page_table;
    const struct world_shape *shape = &world->shapes[side];

    for (size_t g = 0; g < table->group_count; g++) {
        const struct kvf_trtllm_group *group = &table->groups[g];

        for (size_t v = 0; v < group->view_count; v++) {
            const struct kvf_trtllm_view *view = &group->views[v];
            const struct kvf_trtllm_pool *pool = &table->pool_groups[group->pool_group].pools[view->pool];
            struct slot_view slot = {.world = world, .rank = rank, .side = side, .number = rank->group_numbers[g],
                                     .kind = kind_of(view), .visit = visit, .arg = arg};
            int64_t buffers = facts_of(world, side, rank, slot.kind).buffers;

            for (size_t i = 0; i < rank->blocks[g].count; i++) {
                if (rank->ids[g][i] < 0) continue;
                slot.first_token = ((int64_t)i * shape->cp + rank->cp) * shape->tokens;
                for (size_t e = 0; e < view->entry_count; e += (size_t)buffers) {
                    slot.layer = group->layers[view->entries[e].local_layer].global_layer;
                    slot.at = (size_t)(pool->base_address - (uint64_t)(uintptr_t)rank->memory) +
                              (size_t)(rank->ids[g][i] * pool->slot_stride_bytes + view->entries[e].offset_bytes);
                    visit_slot(&slot);
                }
            }
        }
    }
}

static void fill_spot(void *arg, const struct spot *spot)
{
    struct world_rank *rank = arg;

    rank->memory[spot->at] = spot->value;
}

void world_init(struct world *world, uint64_t seed, enum world_manner manner)
{
    memset(world, 0, sizeof *world);
    world->random = seed * 0x9E3779B97F4A7C15u + 1;
    for (int i = 0; i < 8; i++) world_random(world, 2);
    choose_model(world);
    choose_shapes(world, manner);
    for (int side = 0; side < 2; side++) {
        const struct world_shape *shape = &world->shapes[side];

        for (int i = 0; i < shape->tp * shape->pp * shape->cp && i < WORLD_RANKS; i++) {
            struct world_rank *rank = &world->ranks[side][world->counts[side]++];

            rank->cp = i % shape->cp;
            rank->tp = i / shape->cp % shape->tp;
            rank->pp = i / shape->cp / shape->tp;
            rank->dp = shape->attention_dp ? rank->tp : 0;
            make_rank(world, side, rank);
            if (side == 0) visit_rank(world, 0, rank, fill_spot, rank);
        }
    }
}

void world_fini(struct world *world)
{
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < world->counts[side]; i++) {
            kvf_trtllm_rank_release(world->ranks[side][i].rank);
            free(world->ranks[side][i].memory);
            free(world->ranks[side][i].writes);
        }
    }
}

struct kvf_trtllm_request world_request(const struct world *world, const struct world_rank *src,
                                        const struct world_rank *dst)
{
    struct kvf_trtllm_request request;

    kvf_trtllm_request_init(&request, sizeof request);
    request.prompt_tokens = world->model.prompt;
    request.src = src->blocks;
    request.src_count = (size_t)src->groups;
    request.dst = dst->blocks;
    request.dst_count = (size_t)dst->groups;
    if (world->model.start) request.dst_start_token = world->model.start;
    return request;
}

static bool inside(const struct world_rank *rank, uint64_t address, int64_t bytes)
{
    uint64_t first = (uint64_t)(uintptr_t)rank->memory;

    return bytes > 0 && address >= first && address + (uint64_t)bytes <= first + rank->bytes;
}

bool world_move(struct world_rank *src, struct world_rank *dst, const kvf_trtllm_write *write)
{
    struct kvf_trtllm_fragment some[7];
    kvf_trtllm_cursor *cursor = NULL;
    bool good = true;
    size_t count;

    assert_int_equal(kvf_trtllm_cursor_create(write, &cursor, NULL), KVF_OK);
    while (good && (count = kvf_trtllm_cursor_next(cursor, some, 7)) > 0) {
        for (size_t i = 0; i < count && good; i++) {
            size_t to = some[i].dst_address - (uint64_t)(uintptr_t)dst->memory;

            good = inside(src, some[i].src_address, some[i].bytes) && inside(dst, some[i].dst_address, some[i].bytes);
            if (!good) break;
            memcpy(dst->memory + to, (const void *)(uintptr_t)some[i].src_address, (size_t)some[i].bytes);
            for (int64_t b = 0; b < some[i].bytes; b++) dst->writes[to + (size_t)b]++;
        }
    }
    kvf_trtllm_cursor_destroy(cursor);
    return good;
}

/** What is being compared. */
struct check {
    const struct world_rank *rank;
    unsigned char *seen;
    size_t missing, wrong, twice;
};

static void check_spot(void *arg, const struct spot *spot)
{
    struct check *check = arg;
    unsigned writes = check->rank->writes[spot->at];

    check->seen[spot->at] = 1;
    check->missing += spot->required && writes == 0;
    check->twice += writes > 1;
    check->wrong += writes > 0 && check->rank->memory[spot->at] != spot->value;
}

bool world_check(const struct world *world, const struct world_rank *dst, char *text, size_t text_bytes)
{
    struct check check = {.rank = dst, .seen = calloc(dst->bytes, 1)};
    size_t stray = 0;

    assert_non_null(check.seen);
    visit_rank(world, 1, dst, check_spot, &check);
    for (size_t i = 0; i < dst->bytes; i++)
        stray += !check.seen[i] && (dst->writes[i] || dst->memory[i] != UNTOUCHED);
    free(check.seen);
    snprintf(text, text_bytes, "%zu bytes missing, %zu wrong, %zu written twice, %zu beside", check.missing,
             check.wrong, check.twice, stray);
    return check.missing + check.wrong + check.twice + stray == 0;
}

void world_describe(const struct world *world, char *text, size_t text_bytes)
{
    const struct world_shape *s = &world->shapes[0], *d = &world->shapes[1];
    const struct world_model *m = &world->model;

    snprintf(text, text_bytes,
             "tp%d pp%d cp%d%s %s block %d -> tp%d pp%d cp%d%s %s block %d; %d layers, %d/%d heads of %d%s%s%s, "
             "prompt %d from %d",
             s->tp, s->pp, s->cp, s->attention_dp ? " dp" : "", s->token_major ? "nhd" : "hnd", (int)s->tokens, d->tp,
             d->pp, d->cp, d->attention_dp ? " dp" : "", d->token_major ? "nhd" : "hnd", (int)d->tokens, m->layers,
             (int)m->heads[0], (int)m->heads[1], (int)m->row_bytes, m->key_only ? " key-only" : "",
             m->index ? " index" : "", m->side ? " side" : "", (int)m->prompt, (int)m->start);
}
