/* SPDX-License-Identifier: Apache-2.0 */
/* Layout files made from a few words, against files that a person has looked at. `recipe_test --record GOLDEN LAYOUTS`
 * writes them anew. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvferry/instance.h"
#include "text.h"

struct row {
    const char *name; /* file without .json; examples/layouts/ when it starts with "smollm2" */
    struct kvf_instance_recipe recipe;
    size_t ranks;
    int64_t slot_stride; /* of pool 0 of the last rank */
    const char *fingerprint; /* of the last rank's layout */
};

#define SMOL .model_name = "SmolLM2-135M", .layers = 30, .kv_heads = 3, .head_dim = 64

static const struct row rows[] = {
    {"smollm2-prefill", {SMOL, .tp = 3, .pp = 2, .tokens_per_block = 16, .blocks = 128, .value_blocks = 96,
                         .kv_pools = KVF_KV_SEPARATE_POOLS}, 6, 30720, "a12529d00dffd98559de59c45e2bdc02"},
    {"smollm2-decode", {SMOL, .tokens_per_block = 64, .blocks = 16, .slot_padding_bytes = 256,
                        .order = KVF_ORDER_TOKENS_FIRST}, 1, 1474816, "a109e6b37033b52c23e2cb2791472ff9"},
    {"pool-per-layer", {SMOL, .pp = 4, .kv_pools = KVF_KV_POOL_PER_LAYER, .blocks = 64, .slot_padding_bytes = 64}, 4,
     12352, "6c0b6427c324e2530a675f13a199ccdc"},
    {"uneven-heads", {SMOL, .tp = 2, .order = KVF_ORDER_TOKENS_FIRST, .model_fingerprint = "sha256:b179"}, 2, 122880,
     "62cbea91f8c7c7f7540cae79212c07a5"},
    {"more-ranks-than-heads", {SMOL, .tp = 8, .dtype = "fp8_e4m3"}, 8, 61440, "577363a7f22dc508b4af9804469016aa"},
    {"context-parallel", {SMOL, .cp = 4, .cp_stripe_tokens = 16, .dtype = "bf16"}, 4, 368640,
     "7699a0356117421c88c3b0790a945493"},
    {"context-parallel-contiguous", {SMOL, .cp = 2}, 2, 368640, "4ba1d66522dcd8c1e4e329e054c4968d"},
    {"mla", {.model_name = "deepseek", .dtype = "bf16", .layers = 61, .latent_bytes = 1152, .tp = 4, .pp = 2,
             .tokens_per_block = 64, .blocks = 256}, 8, 2211840, "9ef482c40eda4724d1028956a61fcdc3"},
};

#define ROWS (sizeof rows / sizeof rows[0])

static const char *golden_folder, *layouts_folder;

static char *path_of(const struct row *row, char path[4096])
{
    snprintf(path, 4096, "%s/%s.json", strncmp(row->name, "smollm2", 7) == 0 ? layouts_folder : golden_folder,
        row->name);
    return path;
}

static char *make(const struct row *row)
{
    struct kvf_instance_recipe recipe = row->recipe;
    struct kvf_instance_recipe fresh;
    struct kvf_error error;
    char *text = NULL;

    kvf_instance_recipe_init(&fresh, sizeof fresh);
    recipe.struct_size = sizeof recipe;
    if (!recipe.model_fingerprint) recipe.model_fingerprint = fresh.model_fingerprint;
    if (!recipe.dtype) recipe.dtype = fresh.dtype;
    if (!recipe.tp) recipe.tp = fresh.tp;
    if (!recipe.pp) recipe.pp = fresh.pp;
    if (!recipe.cp) recipe.cp = fresh.cp;
    if (!recipe.tokens_per_block) recipe.tokens_per_block = fresh.tokens_per_block;
    if (!recipe.blocks) recipe.blocks = fresh.blocks;
    if (kvf_instance_recipe_to_json(&recipe, &text, &error) != KVF_OK) {
        fprintf(stderr, "%s: %s\n", row->name, error.text);
        exit(1);
    }
    return text;
}

static void test_row(void **state)
{
    const struct row *row = *state;
    char path[4096], fingerprint[KVF_FINGERPRINT_TEXT_BYTES];
    size_t bytes;
    char *text = make(row), *golden = text_of_file(path_of(row, path), &bytes);
    kvf_instance *instance;
    const kvf_layout *last;
    struct kvf_error error;

    assert_string_equal(text, golden);
    if (kvf_instance_parse(text, strlen(text), &instance, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(kvf_instance_rank_count(instance), row->ranks);
    last = kvf_instance_layout(instance, row->ranks - 1);
    assert_int_equal(kvf_layout_get_spec(last)->pools[0].slot_stride_bytes, row->slot_stride);
    assert_int_equal(kvf_layout_get_spec(last)->memory_count, kvf_layout_get_spec(last)->pool_count);
    assert_int_equal(kvf_layout_fingerprint(last, fingerprint), KVF_OK);
    assert_string_equal(fingerprint, row->fingerprint);
    kvf_instance_destroy(instance);
    free(golden);
    kvf_text_free(text);
}

struct refused {
    const char *name;
    struct kvf_instance_recipe change; /* fields that are not 0 replace the good recipe's; -99 stands for 0 */
    const char *text;
};

static const struct refused refused[] = {
    {"no layers", {.layers = -99}, "layers: expected 1 to 524288, found 0"},
    {"no heads", {.kv_heads = -99}, "kv_heads: expected 1 to 1099511627776, found 0"},
    {"negative head_dim", {.head_dim = -1}, "head_dim: expected 1 to 1099511627776, found -1"},
    {"tp", {.tp = 5000}, "tp: expected 1 to 4096, found 5000"},
    {"more stages than layers", {.pp = 31}, "pp: expected 1 to 30, found 31"},
    {"cp", {.cp = -99}, "cp: expected 1 to 4096, found 0"},
    {"ranks in all", {.tp = 4096, .cp = 2}, "tp x pp x cp: expected at most 4096 ranks, found 8192"},
    {"ranks in all, far off", {.tp = INT64_MAX, .pp = INT64_MAX, .cp = INT64_MAX},
     "tp: expected 1 to 4096, found 9223372036854775807"},
    {"tokens", {.tokens_per_block = -99}, "tokens_per_block: expected 1 to 1099511627776, found 0"},
    {"blocks", {.blocks = -5}, "blocks: expected 1 to 1099511627776, found -5"},
    {"value_blocks", {.value_blocks = 7}, "value_blocks: 7 given, but K and V have no pools of their own"},
    {"padding", {.slot_padding_bytes = -1}, "slot_padding_bytes: expected 0 to 1099511627776, found -1"},
    {"order", {.order = 2}, "order: expected 0 to 1, found 2"},
    {"kv_pools", {.kv_pools = 3}, "kv_pools: expected 0 to 2, found 3"},
    {"latent in two pools", {.latent_bytes = 576, .kv_pools = KVF_KV_SEPARATE_POOLS},
     "kv_pools: a latent cache (latent_bytes 576) has no K and V to keep in separate pools"},
    {"dtype", {.dtype = "float16"},
     "dtype: expected \"f16\", \"bf16\", \"f32\", \"fp8_e4m3\", \"fp8_e5m2\", \"i8\" or \"u8\", found \"float16\""},
    {"name empty", {.model_name = ""}, "model_name: expected 1 to 255 bytes of text, found 0"},
    {"name not UTF-8", {.model_name = "\xc3("}, "model_name: is not UTF-8"},
};

static int64_t changed(int64_t change, int64_t good) { return change == -99 ? 0 : change != 0 ? change : good; }

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct kvf_instance_recipe *c = &refused[i].change;
        struct kvf_instance_recipe r;
        struct kvf_error error = {0};
        char *text = NULL;

        kvf_instance_recipe_init(&r, sizeof r);
        r.layers = changed(c->layers, 30);
        r.kv_heads = changed(c->kv_heads, 3);
        r.head_dim = changed(c->head_dim, 64);
        r.latent_bytes = c->latent_bytes;
        r.tp = changed(c->tp, 1);
        r.pp = changed(c->pp, 1);
        r.cp = changed(c->cp, 1);
        r.tokens_per_block = changed(c->tokens_per_block, 16);
        r.blocks = changed(c->blocks, 8);
        r.value_blocks = c->value_blocks;
        r.slot_padding_bytes = c->slot_padding_bytes;
        r.order = c->order;
        r.kv_pools = c->kv_pools;
        if (c->dtype) r.dtype = c->dtype;
        if (c->model_name) r.model_name = c->model_name;
        if (kvf_instance_recipe_to_json(&r, &text, &error) != KVF_ERR_INVALID_ARGUMENT) fail_msg("%s", refused[i].name);
        assert_string_equal(error.text, refused[i].text);
        assert_null(text);
    }
}

/* A caller that was compiled with an older or newer struct. */
static void test_sizes(void **state)
{
    struct {
        struct kvf_instance_recipe known;
        char later[16];
    } longer;
    struct kvf_error error;
    char *text;

    (void)state;
    kvf_instance_recipe_init(&longer.known, sizeof longer);
    longer.known.layers = 2;
    longer.known.kv_heads = 1;
    longer.known.head_dim = 8;
    assert_int_equal(kvf_instance_recipe_to_json(&longer.known, &text, &error), KVF_OK);
    kvf_text_free(text);
    longer.later[3] = 1;
    assert_int_equal(kvf_instance_recipe_to_json(&longer.known, &text, &error), KVF_ERR_NEWER_OPTION);
    longer.known.struct_size = offsetof(struct kvf_instance_recipe, slot_padding_bytes);
    assert_int_equal(kvf_instance_recipe_to_json(&longer.known, &text, &error), KVF_OK);
    kvf_text_free(text);
}

static int record(void)
{
    int failed = 0;

    for (size_t i = 0; i < ROWS; i++) {
        char path[4096];
        char *text = make(&rows[i]);
        FILE *file = fopen(path_of(&rows[i], path), "w");

        failed |= !file || fputs(text, file) < 0 || fclose(file) != 0;
        kvf_text_free(text);
    }
    return failed;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest others[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_sizes)};
    struct CMUnitTest tests[ROWS];
    bool recording = argc == 4 && strcmp(argv[1], "--record") == 0;

    if (argc < 3) return 2;
    golden_folder = argv[argc - 2];
    layouts_folder = argv[argc - 1];
    if (recording) return record();
    for (size_t i = 0; i < ROWS; i++) {
        tests[i] = (struct CMUnitTest){rows[i].name, test_row, NULL, NULL, (void *)&rows[i]};
    }
    return cmocka_run_group_tests_name("made", tests, NULL, NULL) +
           cmocka_run_group_tests_name("others", others, NULL, NULL);
}
