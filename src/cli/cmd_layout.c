/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry layout: a layout file from a few words. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/hf_config.h"

enum option_id {
    OPT_CONFIG = 'c',
    OPT_OUT = 'o',
    OPT_LAYERS = 256,
    OPT_KV_HEADS,
    OPT_HEAD_DIM,
    OPT_LATENT,
    OPT_DTYPE,
    OPT_MODEL,
    OPT_FINGERPRINT,
    OPT_TP,
    OPT_PP,
    OPT_CP,
    OPT_CP_STRIPE,
    OPT_BLOCK_TOKENS,
    OPT_BLOCKS,
    OPT_VALUE_BLOCKS,
    OPT_ORDER,
    OPT_KV_POOLS,
    OPT_PADDING
};

static const struct cli_option options[] = {
    {OPT_CONFIG, "config", "FILE", "take the model's shape from a Hugging Face config.json"},
    {OPT_LAYERS, "layers", "N", "layers of the model"},
    {OPT_KV_HEADS, "kv-heads", "N", "KV heads of the model"},
    {OPT_HEAD_DIM, "head-dim", "N", "elements of a head"},
    {OPT_LATENT, "latent", "N", "MLA: elements of the latent row, rope included,\ninstead of heads"},
    {OPT_DTYPE, "dtype", "TYPE", "f16, bf16, f32, fp8_e4m3, fp8_e5m2, i8 or u8\n(default: the config's, else f16)"},
    {OPT_MODEL, "model", "NAME", "name of the model (default: the config's model_type)"},
    {OPT_FINGERPRINT, "fingerprint", "TEXT", "text that two sides must agree on, such as a hash of\nthe weights"},
    {OPT_TP, "tp", "N", "tensor-parallel ranks: heads are dealt out (default 1)"},
    {OPT_PP, "pp", "N", "pipeline-parallel ranks: layers are dealt out (default 1)"},
    {OPT_CP, "cp", "N", "context-parallel ranks: tokens are dealt out (default 1)"},
    {OPT_CP_STRIPE, "cp-stripe", "N",
     "tokens dealt to a CP rank at a time; 0 = each rank\nholds one contiguous part (default: a block)"},
    {OPT_BLOCK_TOKENS, "block-tokens", "N", "tokens of a block (default 16)"},
    {OPT_BLOCKS, "blocks", "N", "blocks of a pool (default 1024)"},
    {OPT_VALUE_BLOCKS, "value-blocks", "N", "blocks of the V pool, with --kv-pools separate\n(default: --blocks)"},
    {OPT_ORDER, "order", "ORDER", "inside a block: hnd = heads first, nhd = tokens first\n(default nhd)"},
    {OPT_KV_POOLS, "kv-pools", "HOW",
     "one: K and V of all layers in one pool; separate: a\npool each; per-layer: a pool for each layer (default one)"},
    {OPT_PADDING, "padding", "SIZE", "unused bytes behind each block (default 0)"},
    {OPT_OUT, "output", "FILE", "where to write (default: standard output)"},
    {0, NULL, NULL, NULL},
};

/** What the command line says, beside the recipe. */
struct request {
    const char *config, *output;
    int64_t latent_width, cp_stripe;
};

static int element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"f16", 2}, {"bf16", 2}, {"f32", 4}, {"fp8_e4m3", 1}, {"fp8_e5m2", 1}, {"i8", 1}, {"u8", 1}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(dtype, types[i].name) == 0)
            return types[i].bytes;
    }
    return 0;
}

static bool take_option(const struct cli_parser *parser, int id, struct kvf_instance_recipe *recipe,
                        struct request *request)
{
    static const char *const orders[] = {"hnd", "nhd", NULL};
    static const char *const pools[] = {"one", "separate", "per-layer", NULL};
    int word = 0;
    switch (id) {
    case OPT_CONFIG: request->config = parser->value; return true;
    case OPT_OUT: request->output = parser->value; return true;
    case OPT_MODEL: recipe->model_name = parser->value; return true;
    case OPT_FINGERPRINT: recipe->model_fingerprint = parser->value; return true;
    case OPT_LAYERS: return cli_value_int(parser, 1, 65536, &recipe->layers);
    case OPT_KV_HEADS: return cli_value_int(parser, 1, 65536, &recipe->kv_heads);
    case OPT_HEAD_DIM: return cli_value_int(parser, 1, 65536, &recipe->head_dim);
    case OPT_LATENT: return cli_value_int(parser, 1, 1048576, &request->latent_width);
    case OPT_TP: return cli_value_int(parser, 1, 4096, &recipe->tp);
    case OPT_PP: return cli_value_int(parser, 1, 4096, &recipe->pp);
    case OPT_CP: return cli_value_int(parser, 1, 4096, &recipe->cp);
    case OPT_CP_STRIPE: return cli_value_int(parser, 0, 1048576, &request->cp_stripe);
    case OPT_BLOCK_TOKENS: return cli_value_int(parser, 1, 65536, &recipe->tokens_per_block);
    case OPT_BLOCKS: return cli_value_int(parser, 1, INT32_MAX, &recipe->blocks);
    case OPT_VALUE_BLOCKS: return cli_value_int(parser, 1, INT32_MAX, &recipe->value_blocks);
    case OPT_PADDING: return cli_value_bytes(parser, 0, INT64_C(1) << 40, &recipe->slot_padding_bytes);
    case OPT_DTYPE:
        recipe->dtype = parser->value;
        if (element_bytes(parser->value) > 0)
            return true;
        cli_usage_error(parser->command, "--dtype must be f16, bf16, f32, fp8_e4m3, fp8_e5m2, i8 or u8, not \"%s\"",
                        parser->value);
        return false;
    case OPT_ORDER:
        if (!cli_value_word(parser, orders, &word))
            return false;
        recipe->order = word == 0 ? KVF_ORDER_HEADS_FIRST : KVF_ORDER_TOKENS_FIRST;
        return true;
    case OPT_KV_POOLS:
        if (!cli_value_word(parser, pools, &word))
            return false;
        recipe->kv_pools = word == 0 ? KVF_KV_ONE_POOL : word == 1 ? KVF_KV_SEPARATE_POOLS : KVF_KV_POOL_PER_LAYER;
        return true;
    default: return false;
    }
}

/** Fills what the flags left open from the config. */
static int apply_config(const struct cli_command *command, struct kvf_instance_recipe *recipe, struct request *request,
                        struct hf_shape *shape)
{
    int code = hf_config_read(command, request->config, shape);
    if (code != CLI_OK)
        return code;
    if (recipe->layers == 0)
        recipe->layers = shape->layers;
    if (recipe->dtype == NULL && shape->dtype[0] != '\0')
        recipe->dtype = shape->dtype;
    if (recipe->model_name == NULL && shape->name[0] != '\0')
        recipe->model_name = shape->name;
    if (request->latent_width == 0 && recipe->kv_heads == 0)
        request->latent_width = shape->latent_width;
    if (request->latent_width == 0) {
        if (recipe->kv_heads == 0)
            recipe->kv_heads = shape->kv_heads;
        if (recipe->head_dim == 0)
            recipe->head_dim = shape->head_dim;
    }
    return CLI_OK;
}

/** Checks that the shape is known, and fills defaults. */
static int complete_recipe(const struct cli_command *command, struct kvf_instance_recipe *recipe,
                           struct request *request)
{
    const char *missing = NULL;
    if (recipe->layers == 0)
        missing = "--layers";
    else if (request->latent_width == 0 && recipe->kv_heads == 0)
        missing = "--kv-heads";
    else if (request->latent_width == 0 && recipe->head_dim == 0)
        missing = "--head-dim";
    if (missing != NULL)
        return cli_usage_error(command, "%s is missing: give it, or --config with the model's config.json", missing);
    if (recipe->dtype == NULL)
        recipe->dtype = "f16";
    if (recipe->model_name == NULL)
        recipe->model_name = "unnamed";
    if (recipe->model_fingerprint == NULL)
        recipe->model_fingerprint = "";
    if (request->latent_width > 0) {
        recipe->latent_bytes = request->latent_width * element_bytes(recipe->dtype);
        recipe->kv_heads = 0;
        recipe->head_dim = 0;
    }
    if (recipe->tokens_per_block == 0)
        recipe->tokens_per_block = 16;
    if (recipe->blocks == 0)
        recipe->blocks = 1024;
    recipe->cp_stripe_tokens = request->cp_stripe >= 0 ? request->cp_stripe : recipe->tokens_per_block;
    return CLI_OK;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct kvf_instance_recipe recipe;
    struct request request = {.cp_stripe = -1};
    struct hf_shape shape;
    struct kvf_error error = {.position = -1};
    char *text = NULL;
    int id = 0;
    kvf_instance_recipe_init(&recipe, sizeof(recipe));
    recipe = (struct kvf_instance_recipe){.struct_size = recipe.struct_size,
                                          .tp = 1,
                                          .pp = 1,
                                          .cp = 1,
                                          .order = KVF_ORDER_TOKENS_FIRST,
                                          .kv_pools = KVF_KV_ONE_POOL};
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (!take_option(&parser, id, &recipe, &request))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (optind < argc)
        return cli_usage_error(command, "\"%s\" is too much: everything is given by options", argv[optind]);
    int code = request.config != NULL ? apply_config(command, &recipe, &request, &shape) : CLI_OK;
    if (code == CLI_OK)
        code = complete_recipe(command, &recipe, &request);
    if (code == CLI_OK && kvf_instance_recipe_to_json(&recipe, &text, &error) != KVF_OK)
        code = cli_library_error(command, NULL, &error);
    if (code == CLI_OK)
        code = cli_write_file(command, request.output, text, strlen(text));
    kvf_text_free(text);
    return code;
}

const struct cli_command cli_layout_command = {
    .name = "layout",
    .summary = "write a layout file from a few words",
    .operands = "",
    .about = "Writes a layout file: where every rank of one instance keeps its KV cache. The model's shape\n"
             "comes from its Hugging Face config.json or from options, which win over the config.",
    .options = options,
    .examples = "  kvferry layout --config config.json --tp 4 --block-tokens 16 --order hnd -o prefill.json\n"
                "  kvferry layout --layers 30 --kv-heads 3 --head-dim 64 --tp 3 --pp 2 --order hnd \\\n"
                "      --kv-pools separate --blocks 600 --value-blocks 700 -o P.json\n"
                "  kvferry layout --layers 61 --latent 576 --dtype bf16 --block-tokens 64 | kvferry plan P.json -",
    .run = run,
};
