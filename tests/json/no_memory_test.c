/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of every parser and writer is made to fail in turn: the call says so, writes nothing and leaks
 * nothing. The library's own calls are wrapped by the linker, those of the JSON parser by its hooks. That parser calls
 * some of its own failed allocations a syntax error; then this is what the caller reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "kvferry/instance.h"
#include "kvferry/safetensors.h"
#include "layout_json/holdings_json.h"
#include "text.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *pointer, size_t bytes);
void __real_free(void *pointer);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *pointer, size_t bytes);
void __wrap_free(void *pointer);

static size_t allocation, failing; /* number of the next one; the one that fails, 0 = none */
static long live;                  /* allocations that were not freed */
static bool parser_failed;         /* the one that failed was the JSON parser's own */

static bool fails(void)
{
    return ++allocation == failing;
}

static void *counted(void *pointer)
{
    live += pointer != NULL;
    return pointer;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *pointer, size_t bytes)
{
    void *moved = NULL;

    if (fails()) goto done;
    moved = __real_realloc(pointer, bytes);
    if (moved && !pointer) live++;
done:
    return moved;
}

void __wrap_free(void *pointer)
{
    live -= pointer != NULL;
    __real_free(pointer);
}

static void *parser_malloc(size_t bytes)
{
    void *pointer = __wrap_malloc(bytes);

    parser_failed = parser_failed || !pointer;
    return pointer;
}

/* ---- what is called --------------------------------------------------------------------------------------------- */

struct input {
    const char *text;
    size_t bytes;
    const kvf_layout *layout;
    const kvf_holdings *holdings;
    const kvf_safetensors *file;
    json_t *json;
};

typedef enum kvf_status call(const struct input *in, bool *wrote, struct kvf_error *error);

static enum kvf_status parse_instance(const struct input *in, bool *wrote, struct kvf_error *error)
{
    kvf_instance *instance = NULL;
    enum kvf_status status = kvf_instance_parse(in->text, in->bytes, &instance, error);

    *wrote = instance != NULL;
    kvf_instance_destroy(instance);
    return status;
}

static enum kvf_status write_layout(const struct input *in, bool *wrote, struct kvf_error *error)
{
    char *text = NULL;
    enum kvf_status status = kvf_layout_to_json(in->layout, &text, error);

    *wrote = text != NULL;
    kvf_text_free(text);
    return status;
}

static enum kvf_status parse_layout(const struct input *in, bool *wrote, struct kvf_error *error)
{
    kvf_layout *layout = NULL;
    enum kvf_status status = kvf_layout_from_json(in->text, in->bytes, &layout, error);

    *wrote = layout != NULL;
    kvf_layout_release(layout);
    return status;
}

static enum kvf_status make_recipe(const struct input *in, bool *wrote, struct kvf_error *error)
{
    struct kvf_instance_recipe recipe;
    char *text = NULL;
    enum kvf_status status;

    (void)in;
    kvf_instance_recipe_init(&recipe, sizeof recipe);
    recipe.model_fingerprint = "f";
    recipe.layers = 4;
    recipe.kv_heads = 3;
    recipe.head_dim = 64;
    recipe.tp = 2;
    recipe.cp = 2;
    recipe.slot_padding_bytes = 256;
    recipe.kv_pools = KVF_KV_POOL_PER_LAYER;
    status = kvf_instance_recipe_to_json(&recipe, &text, error);
    *wrote = text != NULL;
    kvf_text_free(text);
    return status;
}

static enum kvf_status write_holdings(const struct input *in, bool *wrote, struct kvf_error *error)
{
    json_t *json = NULL;
    enum kvf_status status = kvfi_holdings_to_json(in->holdings, &json, error);

    *wrote = json != NULL;
    json_decref(json);
    return status;
}

static enum kvf_status parse_holdings(const struct input *in, bool *wrote, struct kvf_error *error)
{
    kvf_holdings *holdings = NULL;
    enum kvf_status status = kvfi_holdings_from_json(in->json, "holdings", &holdings, error);

    *wrote = holdings != NULL;
    kvf_holdings_release(holdings);
    return status;
}

static enum kvf_status parse_safetensors(const struct input *in, bool *wrote, struct kvf_error *error)
{
    kvf_safetensors *file = NULL;
    enum kvf_status status = kvf_safetensors_parse(in->text, in->bytes, (int64_t)in->bytes + 512, &file, error);

    *wrote = file != NULL;
    kvf_safetensors_destroy(file);
    return status;
}

static enum kvf_status lay_out_safetensors(const struct input *in, bool *wrote, struct kvf_error *error)
{
    kvf_layout *layout = NULL;
    int64_t tokens = -1;
    enum kvf_status status = kvf_safetensors_layout(in->file, &layout, &tokens, error);

    *wrote = layout != NULL || (status != KVF_OK && tokens != -1);
    kvf_layout_release(layout);
    return status;
}

static enum kvf_status make_safetensors(const struct input *in, bool *wrote, struct kvf_error *error)
{
    char *header = NULL;
    size_t bytes;
    int64_t file_bytes;
    enum kvf_status status = kvf_safetensors_header("F16", 0, 4, 8, 1, 8, &header, &bytes, &file_bytes, error);

    (void)in;
    *wrote = header != NULL;
    kvf_text_free(header);
    return status;
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

static size_t fail_each(const char *name, call *function, const struct input *in)
{
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    size_t turn = 0;

    while (status != KVF_OK) {
        struct kvf_error error = {0};
        bool wrote = false;
        long before = live;

        allocation = 0;
        parser_failed = false;
        failing = ++turn;
        status = function(in, &wrote, &error);
        failing = 0;
        if (status != KVF_OK && status != KVF_ERR_NO_MEMORY && !(status == KVF_ERR_PARSE && parser_failed)) {
            fail_msg("%s: allocation %zu: status %d, \"%s\"", name, turn, status, error.text);
        }
        if (live != before) fail_msg("%s: allocation %zu: %ld are not freed", name, turn, live - before);
        assert_int_equal(wrote, status == KVF_OK);
        if (status == KVF_ERR_NO_MEMORY) assert_non_null(strstr(error.text, "out of memory for "));
    }
    print_message("%s: %zu allocations\n", name, turn - 1);
    return turn - 1;
}

static const char *guide; /* docs/layout.md */

/* The examples of the guide: every rule of the schema is in one of them. The largest would take too long. */
static void test_instances(void **state)
{
    size_t bytes, count = 0;
    char *text = text_of_file(guide, &bytes), *at = text;

    (void)state;
    while ((at = strstr(at, "```json\n"))) {
        char *end;

        at += 8;
        end = strstr(at, "```");
        assert_non_null(end);
        *end = '\0';
        if (!strstr(at, "deepseek")) {
            assert_true(fail_each("instance", parse_instance, &(struct input){.text = at, .bytes = strlen(at)}) > 100);
            count++;
        }
        at = end + 1;
    }
    assert_int_equal(count, 4);
    free(text);
}

static void test_layout_holdings_recipe(void **state)
{
    struct input in = {0};
    kvf_instance *instance;
    char *text;
    bool wrote;
    struct kvf_error error;
    struct kvf_instance_recipe recipe;

    (void)state;
    kvf_instance_recipe_init(&recipe, sizeof recipe);
    recipe.layers = 3;
    recipe.kv_heads = 2;
    recipe.head_dim = 8;
    recipe.cp = 2;
    assert_int_equal(kvf_instance_recipe_to_json(&recipe, &text, &error), KVF_OK);
    assert_int_equal(kvf_instance_parse(text, strlen(text), &instance, &error), KVF_OK);
    kvf_text_free(text);
    in.layout = kvf_instance_layout(instance, 1);
    in.holdings = kvf_instance_holdings(instance, 1);
    assert_true(fail_each("recipe", make_recipe, &in) > 30);
    assert_true(fail_each("layout to JSON", write_layout, &in) > 30);
    assert_int_equal(kvf_layout_to_json(in.layout, &text, &error), KVF_OK);
    in.text = text;
    in.bytes = strlen(text);
    assert_true(fail_each("layout from JSON", parse_layout, &in) > 30);
    assert_true(fail_each("holdings to JSON", write_holdings, &in) > 10);
    assert_int_equal(kvfi_holdings_to_json(in.holdings, &in.json, &error), KVF_OK);
    assert_true(fail_each("holdings from JSON", parse_holdings, &in) > 3);
    assert_int_equal(parse_layout(&in, &wrote, &error), KVF_OK);
    json_decref(in.json);
    kvf_text_free(text);
    kvf_instance_destroy(instance);
}

static void test_safetensors(void **state)
{
    struct input in = {0};
    kvf_safetensors *file;
    struct kvf_error error;
    char *header;
    int64_t file_bytes;

    (void)state;
    assert_int_equal(kvf_safetensors_header("F16", 0, 2, 8, 1, 8, &header, &in.bytes, &file_bytes, &error), KVF_OK);
    assert_int_equal(file_bytes, (int64_t)in.bytes + 512);
    in.text = header;
    assert_int_equal(kvf_safetensors_parse(header, in.bytes, file_bytes, &file, &error), KVF_OK);
    in.file = file;
    assert_true(fail_each("safetensors header", make_safetensors, &in) == 1);
    assert_true(fail_each("safetensors", parse_safetensors, &in) > 30);
    assert_true(fail_each("safetensors layout", lay_out_safetensors, &in) > 3);
    kvf_safetensors_destroy(file);
    kvf_text_free(header);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_instances), cmocka_unit_test(test_layout_holdings_recipe),
                                       cmocka_unit_test(test_safetensors)};

    if (argc != 2) return 2;
    guide = argv[1];
    json_object_seed(1); /* takes its memory once, before anything is counted */
    json_set_alloc_funcs(parser_malloc, __wrap_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
