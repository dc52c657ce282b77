/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes that the demo moves between, and the block ids it uses. */
#include <stdlib.h>

#include "cli/block_ids.h"
#include "cli/demo.h"

#define GUARD_BYTES 256

/** Pools of a side: blocks for all requests, a few more that stay unused among them, and as many at the low end. */
static int64_t pool_blocks(const struct demo_data *data, int64_t block_tokens, int64_t requests)
{
    int64_t needed = requests * ((data->tokens + block_tokens - 1) / block_tokens);
    return needed + needed / 8 + 16;
}

static struct kvf_instance_recipe side(const struct demo_data *data, int64_t tp, int64_t pp, int64_t block_tokens)
{
    struct kvf_instance_recipe recipe;
    kvf_instance_recipe_init(&recipe, sizeof(recipe));
    recipe.model_name = "SmolLM2-135M";
    recipe.model_fingerprint = "";
    recipe.dtype = "f16";
    recipe.layers = data->layers;
    recipe.kv_heads = data->heads;
    recipe.head_dim = data->row_bytes / 2;
    recipe.tp = tp;
    recipe.pp = pp;
    recipe.cp = 1;
    recipe.tokens_per_block = block_tokens;
    return recipe;
}

/** Heads first, K and V in pools of their own and of unlike size. */
static struct kvf_instance_recipe prefill_side(const struct demo_data *data, int64_t tp, int64_t pp, int64_t requests)
{
    struct kvf_instance_recipe recipe = side(data, tp, pp, 16);
    recipe.order = KVF_ORDER_HEADS_FIRST;
    recipe.kv_pools = KVF_KV_SEPARATE_POOLS;
    recipe.blocks = pool_blocks(data, 16, requests);
    recipe.value_blocks = recipe.blocks + 37;
    return recipe;
}

/** Tokens first, K and V in one pool with guard bytes between the blocks. */
static struct kvf_instance_recipe decode_side(const struct demo_data *data, int64_t tp, int64_t pp, int64_t requests)
{
    struct kvf_instance_recipe recipe = side(data, tp, pp, 64);
    recipe.order = KVF_ORDER_TOKENS_FIRST;
    recipe.kv_pools = KVF_KV_ONE_POOL;
    recipe.blocks = pool_blocks(data, 64, requests) + 5;
    recipe.slot_padding_bytes = GUARD_BYTES;
    return recipe;
}

const char *demo_case_name(int index)
{
    static const char *const names[DEMO_CASES] = {"split", "turned", "equal"};
    return names[index];
}

void demo_case_make(const struct demo_data *data, int index, int64_t requests, struct demo_case *out)
{
    out->name = demo_case_name(index);
    if (index == 0) {
        out->title = "six prefill ranks with a head of half the layers each, to one decode rank";
        out->src = prefill_side(data, 3, 2, requests);
        out->dst = decode_side(data, 1, 1, requests);
    } else if (index == 1) {
        out->title = "two prefill ranks with all heads of half the layers each, to three decode ranks";
        out->src = prefill_side(data, 1, 2, requests);
        out->dst = decode_side(data, 3, 1, requests);
    } else {
        out->title = "the same shape on both sides, six ranks each";
        out->src = prefill_side(data, 3, 2, requests);
        out->src.slot_padding_bytes = GUARD_BYTES;
        out->dst = out->src;
    }
}

int demo_case_layout(const struct cli_command *command, const struct kvf_instance_recipe *recipe, char **out)
{
    struct kvf_error error = {.position = -1};
    if (kvf_instance_recipe_to_json(recipe, out, &error) == KVF_OK)
        return CLI_OK;
    return cli_library_error(command, "layout of the demo", &error);
}

int64_t demo_written_tokens(const struct demo_case *shape, int64_t tokens)
{
    int64_t a = shape->src.tokens_per_block, b = shape->dst.tokens_per_block;
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return (tokens + a - 1) / a * a;
}

uint64_t demo_seed(bool source, size_t rank_index)
{
    return (source ? UINT64_C(0x51d1) : UINT64_C(0xd1d2)) + 1000003 * (uint64_t)rank_index;
}

bool demo_ids_init(const struct kvf_layout_spec *spec, int64_t requests, int64_t tokens, uint64_t seed,
                   struct demo_ids *out)
{
    int64_t capacity = block_capacity(spec, 0);
    int64_t per_request = block_count_for(&spec->groups[0], tokens), needed = per_request * requests;
    int64_t spare = capacity - needed, low = spare / 2;
    int64_t *ids = spare >= 0 ? calloc((size_t)(capacity - low) + 1, sizeof(*ids)) : NULL;
    if (ids == NULL)
        return false;
    for (int64_t i = 0; i < capacity - low; i++)
        ids[i] = low + i;
    for (int64_t i = 0; i < needed; i++) {
        int64_t j = i + (int64_t)(block_random(&seed) % (uint64_t)(capacity - low - i));
        int64_t kept = ids[i];
        ids[i] = ids[j];
        ids[j] = kept;
    }
    *out = (struct demo_ids){ids, per_request};
    return true;
}
