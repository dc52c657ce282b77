/* SPDX-License-Identifier: Apache-2.0 */
/* Cache files: what is refused and by which words, the header that is written, and a real one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvferry/instance.h"
#include "kvferry/safetensors.h"
#include "text.h"

#define OFFSETS(a, b) "'data_offsets': [" #a ", " #b "]}"
#define K0 "'layers.0.k': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(0, 16)
#define V0 "'layers.0.v': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(16, 32)
#define K1 "'layers.1.k': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(32, 48)
#define V1 "'layers.1.v': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(48, 64)

enum stage { PARSE, LAYOUT };

struct row {
    const char *name;
    enum stage stage;
    const char *header; /* ' stands for " */
    int64_t data_bytes;
    enum kvf_status status;
    const char *text;
};

static const struct row rows[] = {
    {"not JSON", PARSE, "hello", 0, KVF_ERR_PARSE,
     "safetensors header: line 1 column 5: '[' or '{' expected near 'hello'"},
    {"not an object", PARSE, "[]", 0, KVF_ERR_PARSE, "safetensors header: expected an object, found an array of 0"},
    {"tensor twice", PARSE, "{" K0 ", " K0 "}", 16, KVF_ERR_PARSE,
     "safetensors header: line 1 column 90: duplicate object key near '\"layers.0.k\"'"},
    {"too deep", PARSE, "{'a': [[[[[[[[[]]]]]]]]]}", 0, KVF_ERR_LIMIT,
     "safetensors header: more than 8 levels of nesting at byte 13"},
    {"metadata", PARSE, "{'__metadata__': {'tokens': 353}, " K0 "}", 16, KVF_ERR_PARSE,
     "__metadata__.tokens: expected a text, found 353"},
    {"unknown key", PARSE, "{'a': {'dtyp': 'F16'}}", 0, KVF_ERR_PARSE,
     "a: unknown key \"dtyp\", did you mean \"dtype\"?"},
    {"no dtype", PARSE, "{'layers.0.k': {'shape': [1]}}", 0, KVF_ERR_PARSE,
     "layers.0.k: \"dtype\" is missing, expected a dtype such as \"F16\""},
    {"unknown dtype", PARSE, "{'layers.0.k': {'dtype': 'F15'}}", 0, KVF_ERR_PARSE,
     "layers.0.k.dtype: expected a dtype such as \"F16\", found \"F15\""},
    {"no shape", PARSE, "{'layers.0.k': {'dtype': 'F16'}}", 0, KVF_ERR_PARSE,
     "layers.0.k: \"shape\" is missing, expected an array"},
    {"negative shape", PARSE, "{'layers.0.k': {'dtype': 'F16', 'shape': [2, -1, 4]}}", 0, KVF_ERR_PARSE,
     "layers.0.k.shape[1]: expected an integer of at least 0, found -1"},
    {"nine dimensions", PARSE, "{'a': {'dtype': 'F16', 'shape': [1, 1, 1, 1, 1, 1, 1, 1, 1]}}", 0, KVF_ERR_LIMIT,
     "a.shape: expected at most 8 items, found 9"},
    {"shape beyond 64 bits", PARSE,
     "{'a': {'dtype': 'F16', 'shape': [4294967296, 4294967296, 4294967296], " OFFSETS(0, 8) "}", 8, KVF_ERR_PARSE,
     "a: shape [4294967296, 4294967296, 4294967296] of F16 is no whole number of bytes below 2^60"},
    {"half a byte", PARSE, "{'a': {'dtype': 'F4', 'shape': [3], " OFFSETS(0, 2) "}", 2, KVF_ERR_PARSE,
     "a: shape [3] of F4 is no whole number of bytes below 2^60"},
    {"no offsets", PARSE, "{'a': {'dtype': 'F16', 'shape': [1]}}", 2, KVF_ERR_PARSE,
     "a: \"data_offsets\" is missing, expected an array [begin, end]"},
    {"offsets in reverse", PARSE, "{'a': {'dtype': 'F16', 'shape': [1], " OFFSETS(2, 0) "}", 2, KVF_ERR_PARSE,
     "a.data_offsets[1]: expected an integer of at least 2, found 0"},
    {"shape and offsets differ", PARSE, "{'layers.0.k': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(0, 18) "}", 18,
     KVF_ERR_PARSE, "layers.0.k: shape [2, 1, 4] of F16 is 16 bytes, data_offsets span 18"},
    {"behind the end", PARSE, "{" K0 ", " V0 "}", 31, KVF_ERR_PARSE,
     "layers.0.v.data_offsets: end at 32, the file has 31 bytes of data"},
    {"overlap", PARSE, "{" K0 ", 'layers.0.v': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(8, 24) "}", 24,
     KVF_ERR_PARSE,
     "tensor \"layers.0.v\": starts at byte 8 of the data, inside of \"layers.0.k\", which ends at 16"},
    {"hole", PARSE, "{" K0 ", " K1 "}", 48, KVF_ERR_PARSE,
     "tensor \"layers.1.k\": starts at byte 32 of the data, bytes 16 to there belong to no tensor"},
    {"bytes behind the tensors", PARSE, "{" K0 "}", 20, KVF_ERR_PARSE,
     "safetensors: the tensors end at byte 101 of the file, which has 105"},
    {"no cache", LAYOUT, "{'model.weight': {'dtype': 'F16', 'shape': [1], " OFFSETS(0, 2) "}", 2, KVF_ERR_PARSE,
     "safetensors: none of 1 tensors is named layers.N.k or layers.N.v"},
    {"empty", LAYOUT, "{}", 0, KVF_ERR_PARSE, "safetensors: none of 0 tensors is named layers.N.k or layers.N.v"},
    {"v missing", LAYOUT, "{" K0 "}", 16, KVF_ERR_PARSE, "layers.0.v: missing, the file has layers 0 to 0"},
    {"k missing", LAYOUT, "{" K0 ", " V0 ", 'layers.1.v': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(32, 48) "}",
     48,
     KVF_ERR_PARSE, "layers.1.k: missing, the file has layers 0 to 1"},
    {"layer missing", LAYOUT, "{" K0 ", " V0 ", 'layers.2.k': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(32, 48)
     ", 'layers.2.v': {'dtype': 'F16', 'shape': [2, 1, 4], " OFFSETS(48, 64) "}", 64, KVF_ERR_PARSE,
     "layers.1.k: missing, the file has layers 0 to 2"},
    {"two dimensions", LAYOUT, "{'layers.0.k': {'dtype': 'F16', 'shape': [2, 4], " OFFSETS(0, 16) ", " V0 "}", 32,
     KVF_ERR_PARSE, "layers.0.k: shape [2, 4], expected [tokens, kv_heads, head_dim]"},
    {"no tokens", LAYOUT, "{'layers.0.k': {'dtype': 'F16', 'shape': [0, 1, 4], " OFFSETS(0, 0)
     ", 'layers.0.v': {'dtype': 'F16', 'shape': [0, 1, 4], " OFFSETS(0, 0) "}", 0, KVF_ERR_PARSE,
     "layers.0.k: shape [0, 1, 4], expected [tokens, kv_heads, head_dim]"},
    {"other shape", LAYOUT, "{" K0 ", " V0 ", " K1 ", 'layers.1.v': {'dtype': 'F16', 'shape': [2, 2, 2], "
     OFFSETS(48, 64) "}", 64, KVF_ERR_PARSE, "layers.1.v: shape [2, 2, 2], expected [2, 1, 4] as in layers.0.k"},
    {"other dtype", LAYOUT, "{" K0 ", 'layers.0.v': {'dtype': 'BF16', 'shape': [2, 1, 4], " OFFSETS(16, 32) "}", 32,
     KVF_ERR_PARSE, "layers.0.v: dtype \"BF16\", expected \"F16\" as in layers.0.k"},
    {"dtype of no cache", LAYOUT, "{'layers.0.k': {'dtype': 'I64', 'shape': [1, 1, 1], " OFFSETS(0, 8)
     ", 'layers.0.v': {'dtype': 'I64', 'shape': [1, 1, 1], " OFFSETS(8, 16) "}", 16, KVF_ERR_PARSE,
     "layers.0.k: dtype \"I64\", expected \"F16\", \"BF16\", \"F32\", \"F8_E4M3\", \"F8_E5M2\", \"I8\" or \"U8\""},
    {"fine", LAYOUT, "{" K0 ", " V0 ", " K1 ", " V1 "}", 64, KVF_OK, NULL},
    {"fine, from layer 1", LAYOUT, "{'layers.1.v': {'dtype': 'U8', 'shape': [1, 1, 3], " OFFSETS(0, 3)
     ", 'other': {'dtype': 'BOOL', 'shape': [], " OFFSETS(3, 4)
     ", 'layers.01.k': {'dtype': 'BOOL', 'shape': [0], " OFFSETS(3, 3)
     ", 'layers.1.k': {'dtype': 'U8', 'shape': [1, 1, 3], " OFFSETS(4, 7) "}", 7, KVF_OK, NULL},
};

#define ROWS (sizeof rows / sizeof rows[0])

static unsigned char *make_file(const char *header, size_t *bytes)
{
    size_t text_bytes = strlen(header);
    unsigned char *file = malloc(text_bytes + 8);

    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(text_bytes >> (8 * i) & 0xff);
    for (size_t i = 0; i < text_bytes; i++) file[8 + i] = (unsigned char)(header[i] == '\'' ? '"' : header[i]);
    *bytes = text_bytes + 8;
    return file;
}

static void test_row(void **state)
{
    const struct row *row = *state;
    size_t bytes;
    unsigned char *file = make_file(row->header, &bytes);
    kvf_safetensors *parsed = NULL;
    kvf_layout *layout = NULL;
    struct kvf_error error = {0};
    int64_t tokens = -1;
    enum kvf_status status = kvf_safetensors_parse(file, bytes, (int64_t)bytes + row->data_bytes, &parsed, &error);

    if (row->stage == LAYOUT && status == KVF_OK) status = kvf_safetensors_layout(parsed, &layout, &tokens, &error);
    if (status != row->status || (row->text && strcmp(row->text, error.text) != 0)) {
        fail_msg("status %d, \"%s\"", status, error.text);
    }
    if (row->stage == PARSE) assert_null(parsed);
    if (status != KVF_OK) {
        assert_null(layout);
        assert_int_equal(tokens, -1);
    }
    kvf_layout_release(layout);
    kvf_safetensors_destroy(parsed);
    free(file);
}

/* Frames around the header that are wrong. */
static void test_frames(void **state)
{
    static const unsigned char absurd[8] = {0, 0, 0, 0, 0, 0, 0, 0x80}, long_header[8] = {1, 0, 0x40, 6};
    kvf_safetensors *parsed = NULL;
    struct kvf_error error;
    size_t bytes;
    unsigned char *file = make_file("{" K0 "}", &bytes);

    (void)state;
    assert_int_equal(kvf_safetensors_parse(file, 0, 0, &parsed, &error), KVF_ERR_PARSE);
    assert_string_equal(error.text, "safetensors: 0 bytes, expected at least the 8 of the header's length");
    assert_int_equal(kvf_safetensors_parse(file, 7, 7, &parsed, &error), KVF_ERR_PARSE);
    assert_string_equal(error.text, "safetensors: 7 bytes, expected at least the 8 of the header's length");
    assert_int_equal(kvf_safetensors_parse(file, 40, 40, &parsed, &error), KVF_ERR_PARSE);
    assert_string_equal(error.text, "safetensors: the header is 77 bytes long, the file has 32 after its length");
    assert_int_equal(kvf_safetensors_parse(file, 40, 101, &parsed, &error), KVF_ERR_PARSE);
    assert_string_equal(error.text, "safetensors: truncated header: 77 bytes expected, 32 are there");
    assert_int_equal(kvf_safetensors_parse(file, 40, 39, &parsed, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "safetensors: file_bytes is 39, expected at least the 40 bytes given");
    assert_int_equal(kvf_safetensors_parse(file, 40, -1, &parsed, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_safetensors_parse(absurd, 8, 8, &parsed, &error), KVF_ERR_PARSE);
    assert_string_equal(error.text,
                        "safetensors: the header is 9223372036854775808 bytes long, the file has 0 after its length");
    assert_int_equal(kvf_safetensors_parse(long_header, 8, INT64_MAX, &parsed, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "safetensors: the header is 104857601 bytes long, at most 104857600 are read");
    assert_null(parsed);
    free(file);
}

/* A file that was cut anywhere in its header is refused, without a look behind its end. */
static void test_cuts(void **state)
{
    size_t bytes;
    unsigned char *file = make_file("{" K0 ", " V0 "}", &bytes);

    (void)state;
    for (size_t cut = 0; cut < bytes; cut++) {
        unsigned char *part = malloc(cut ? cut : 1);
        kvf_safetensors *parsed;

        assert_non_null(part);
        memcpy(part, file, cut);
        assert_int_equal(kvf_safetensors_parse(part, cut, (int64_t)bytes + 32, &parsed, NULL), KVF_ERR_PARSE);
        free(part);
    }
    free(file);
}

static void check_header(int64_t layer_first, int64_t layer_end, int64_t expected_tokens, int64_t expected_block)
{
    kvf_safetensors *parsed;
    kvf_layout *layout;
    const struct kvf_layout_spec *spec;
    struct kvf_tensor tensor;
    struct kvf_error error;
    char *header;
    size_t header_bytes;
    int64_t file_bytes, tokens, tensor_bytes = expected_tokens * 3 * 64;

    assert_int_equal(kvf_safetensors_header("F8_E4M3", layer_first, layer_end, expected_tokens, 3, 64, &header,
                                            &header_bytes, &file_bytes, &error), KVF_OK);
    assert_int_equal(header_bytes % 8, 0);
    assert_int_equal(file_bytes, (int64_t)header_bytes + (layer_end - layer_first) * 2 * tensor_bytes);
    if (kvf_safetensors_parse(header, header_bytes, file_bytes, &parsed, &error) != KVF_OK) fail_msg("%s", error.text);
    assert_int_equal(kvf_safetensors_count(parsed), 2 * (layer_end - layer_first));
    for (size_t i = 0; i < kvf_safetensors_count(parsed); i++) {
        char name[32];

        snprintf(name, sizeof name, "layers.%d.%c", (int)layer_first + (int)i / 2, i % 2 ? 'v' : 'k');
        assert_int_equal(kvf_safetensors_tensor(parsed, i, &tensor), KVF_OK);
        assert_string_equal(tensor.name, name);
        assert_int_equal(tensor.offset_bytes, (int64_t)header_bytes + (int64_t)i * tensor_bytes);
    }
    assert_int_equal(kvf_safetensors_tensor(parsed, 2 * (size_t)(layer_end - layer_first), &tensor), KVF_ERR_NOT_FOUND);
    if (kvf_safetensors_layout(parsed, &layout, &tokens, &error) != KVF_OK) fail_msg("%s", error.text);
    spec = kvf_layout_get_spec(layout);
    assert_int_equal(tokens, expected_tokens);
    assert_int_equal(spec->groups[0].tokens_per_block, expected_block);
    assert_int_equal(spec->pools[0].slots, expected_tokens / expected_block);
    assert_string_equal(spec->views[1].tag, "fp8_e4m3");
    assert_int_equal(spec->views[0].place_count, layer_end - layer_first);
    kvf_layout_release(layout);
    kvf_safetensors_destroy(parsed);
    kvf_text_free(header);
}

static void test_headers(void **state)
{
    (void)state;
    check_header(0, 1, 1, 1);
    check_header(0, 30, 353, 353);
    check_header(8, 12, 2048, 2048); /* 8, 9, 10, 11: by number, not by text */
    check_header(0, 2, 6000, 2000);
    check_header(0, 2, 65536, 2048);
    check_header(0, 2, 8191, 1); /* a prime: no longer block divides it */
}

static void test_header_bounds(void **state)
{
    struct kvf_error error;
    char *header = NULL;
    size_t bytes;
    int64_t file_bytes;

    (void)state;
    assert_int_equal(kvf_safetensors_header("I64", 0, 1, 1, 1, 1, &header, &bytes, &file_bytes, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "dtype: expected \"F16\", \"BF16\", \"F32\", \"F8_E4M3\", \"F8_E5M2\", \"I8\" or "
                                    "\"U8\", found \"I64\"");
    assert_int_equal(kvf_safetensors_header("F16", 3, 3, 1, 1, 1, &header, &bytes, &file_bytes, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "layer_end: expected 4 to 65539, found 3");
    assert_int_equal(kvf_safetensors_header("F16", 0, 1, 0, 1, 1, &header, &bytes, &file_bytes, &error),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "tokens: expected 1 to 9223372036854775807, found 0");
    assert_int_equal(kvf_safetensors_header("F16", 0, 1, INT64_MAX, 2, 1, &header, &bytes, &file_bytes, &error),
                     KVF_ERR_OVERFLOW);
    assert_string_equal(error.text, "cache of 1 layers, 9223372036854775807 tokens, 2 heads, 1 dimensions: its "
        "bytes do "
                                    "not fit in 64 bits");
    assert_null(header);
}

/* The cache of a real prompt. */
static void test_real_file(void **state)
{
    size_t bytes;
    char *file = text_of_file(*state, &bytes);
    kvf_safetensors *parsed;
    kvf_layout *layout;
    const struct kvf_layout_spec *spec;
    struct kvf_tensor tensor;
    struct kvf_error error;
    int64_t tokens;

    if (kvf_safetensors_parse(file, bytes, (int64_t)bytes, &parsed, &error) != KVF_OK) fail_msg("%s", error.text);
    free(file);
    assert_int_equal(kvf_safetensors_count(parsed), 60);
    assert_int_equal(kvf_safetensors_find(parsed, "layers.29.v", &tensor), KVF_OK);
    assert_string_equal(tensor.dtype, "F16");
    assert_true(tensor.dimensions == 3 && tensor.shape[0] == 353 && tensor.shape[1] == 3 && tensor.shape[2] == 64);
    assert_int_equal(tensor.bytes, 135552);
    assert_int_equal(kvf_safetensors_find(parsed, "layers.30.k", &tensor), KVF_ERR_NOT_FOUND);
    if (kvf_safetensors_layout(parsed, &layout, &tokens, &error) != KVF_OK) fail_msg("%s", error.text);
    spec = kvf_layout_get_spec(layout);
    assert_int_equal(tokens, 353);
    assert_int_equal(spec->memory_bytes[0], 8138448);
    assert_true(spec->pool_count == 1 && spec->pools[0].slots == 1);
    assert_int_equal(spec->groups[0].tokens_per_block, 353);
    assert_int_equal(spec->view_count, 2);
    for (size_t i = 0; i < 2; i++) {
        const struct kvf_view *view = &spec->views[i];

        assert_string_equal(view->role, i ? "v" : "k");
        assert_string_equal(view->tag, "f16");
        assert_int_equal(view->row_bytes, 128);
        assert_int_equal(view->unit_total, 3);
        assert_int_equal(view->unit_count, 3);
        assert_int_equal(view->unit_stride_bytes, 128);
        assert_int_equal(view->entry_stride_bytes, 384);
        assert_int_equal(view->place_count, 30);
        for (size_t l = 0; l < 30; l++) {
            char name[32];

            snprintf(name, sizeof name, "layers.%zu.%s", l, view->role);
            assert_int_equal(kvf_safetensors_find(parsed, name, &tensor), KVF_OK);
            assert_int_equal(view->places[l].layer, (int64_t)l);
            assert_int_equal(view->places[l].offset_bytes, tensor.offset_bytes);
        }
    }
    kvf_layout_release(layout);
    kvf_safetensors_destroy(parsed);
    kvf_safetensors_destroy(NULL);
}

int main(int argc, char **argv)
{
    struct CMUnitTest others[] = {cmocka_unit_test(test_frames), cmocka_unit_test(test_cuts),
                                  cmocka_unit_test(test_headers), cmocka_unit_test(test_header_bounds),
                                  cmocka_unit_test_prestate(test_real_file, argc > 1 ? argv[1] : NULL)};
    struct CMUnitTest tests[ROWS];

    if (argc != 2) return 2;
    for (size_t i = 0; i < ROWS; i++) {
        tests[i] = (struct CMUnitTest){rows[i].name, test_row, NULL, NULL, (void *)&rows[i]};
    }
    return cmocka_run_group_tests_name("files", tests, NULL, NULL) +
           cmocka_run_group_tests_name("others", others, NULL, NULL);
}
