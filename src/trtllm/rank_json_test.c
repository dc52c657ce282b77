/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos in JSON: everything there and back, and what is refused where. The argument is the folder of golden
 * files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trtllm/rank.h"
#include "trtllm/rank_kit.h"

/* Every member that the shape has, each with a value of its own, in the order in which they are written. */
static const char full[] =
    "{\"name\":\"ctx\",\"rank\":3,\"tp\":[4,1],\"pp\":[2,1],\"dp\":[2,1],\"cp\":[3,2],\"device\":6,"
    "\"layers_per_stage\":[2,4],\"endpoints\":[\"tcp://a:1\",\"tcp://b:2\"],\"endpoint\":\"tcp://c:3\","
    "\"engine_info\":\"00ff10\","
    "\"attention\":{\"kv_heads\":5,\"tokens_per_block\":16,\"head_dim\":8,\"element_bytes\":0.5,\"attention_dp\":true,"
    "\"key_only\":true},"
    "\"aux\":{\"address\":[4096,\"0xffffffff00000000\"],\"size\":[64,0],\"item\":[8,-1],\"device\":\"gpu\"},"
    "\"table\":{\"tokens_per_block\":32,\"groups\":["
    "{\"cache\":\"paged\",\"pool_group\":0,\"layers\":[[0,4],[1,7]],\"window\":128,\"kv_heads\":5,\"views\":["
    "{\"pool\":1,\"roles\":[\"key\",\"value\"],\"kind\":\"nhd\",\"entries\":[[0,0,32],[1,32,32]],\"layer_bytes\":null,"
    "\"heads\":5,\"ring_slot_bytes\":null},"
    "{\"pool\":0,\"roles\":[\"tail\"],\"kind\":\"replicated\",\"entries\":[[0,0,32]],\"layer_bytes\":32,"
    "\"heads\":null,\"ring_slot_bytes\":16}]},"
    "{\"cache\":\"state\",\"pool_group\":1,\"layers\":[[0,4]],\"slot_major\":false,\"views\":["
    "{\"pool\":0,\"roles\":[\"conv_state\"],\"kind\":\"sectioned\",\"entries\":[[0,0,96]],\"layer_bytes\":96,"
    "\"sections\":[32,64]},"
    "{\"pool\":0,\"roles\":[\"ssm_state\"],\"kind\":\"indexed\",\"entries\":[[0,0,96]],\"layer_bytes\":96,"
    "\"head_bytes\":24}]}],"
    "\"pools\":[[{\"base\":64,\"slot\":32,\"slots\":8,\"stride\":40},{\"base\":4096,\"slot\":64,\"slots\":8,"
    "\"stride\":64}],[{\"base\":\"0xfffffffffff00000\",\"slot\":96,\"slots\":8,\"stride\":96,\"layer_stride\":768}]]},"
    "\"protocol_delta\":1,\"replay\":true,\"draft_layers\":2,\"draft_dtype\":\"FP8\"}";

/* The least that is a rank. */
static const char least[] = "{\"name\":\"g\",\"rank\":0,\"tp\":[1,0],\"pp\":[1,0],\"dp\":[1,0],\"cp\":[1,0],"
                            "\"layers_per_stage\":[1]}";

static kvf_trtllm_rank *read_rank(const char *text)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error = {0};

    if (kvf_trtllm_rank_from_json(text, strlen(text), &rank, &error) != KVF_OK) fail_msg("%s", error.text);
    return rank;
}

static void expect_text(const kvf_trtllm_rank *rank, const char *expected)
{
    struct kvf_error error = {0};
    char *text = NULL;

    assert_int_equal(kvf_trtllm_rank_to_json(rank, &text, &error), KVF_OK);
    assert_string_equal(text, expected);
    kvf_trtllm_text_free(text);
}

static void test_full(void **state)
{
    kvf_trtllm_rank *rank = read_rank(full);
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    const struct kvf_trtllm_page_table *table = spec->page_table;

    (void)state;
    expect_text(rank, full);
    assert_int_equal(spec->cp_rank, 2);
    assert_int_equal(spec->protocol_version, KVF_TRTLLM_PROTOCOL_VERSION + 1);
    assert_int_equal(spec->attention->element_eighths, 4);
    assert_true(spec->aux->ptrs[1] == UINT64_C(0xffffffff00000000));
    assert_memory_equal(spec->transfer_engine_info, "\x00\xff\x10", 3);
    assert_int_equal(spec->keys, KVF_TRTLLM_HAS_ALL);
    assert_int_equal(table->groups[0].sliding_window_size, 128);
    assert_int_equal(table->groups[0].views[0].mapper, KVF_TRTLLM_NHD);
    assert_int_equal(table->groups[0].views[1].ring_slot_bytes, 16);
    assert_int_equal(table->groups[1].slot_major_layout, 0);
    assert_int_equal(table->groups[1].views[0].section_bytes[1], 64);
    assert_int_equal(table->pool_groups[0].pools[0].slot_stride_bytes, 40);
    assert_int_equal(table->pool_groups[1].pools[0].layer_stride_bytes, 768);
    kvf_trtllm_rank_release(rank);
}

static void test_defaults(void **state)
{
    static const char with_table[] = "{\"name\":\"g\",\"rank\":0,\"tp\":[1,0],\"pp\":[1,0],\"dp\":[1,0],\"cp\":[1,0],"
                                     "\"layers_per_stage\":[1],\"comment\":\"least of a table\","
                                     "\"attention\":null,\"aux\":null,\"table\":{\"tokens_per_block\":1,\"groups\":["
                                     "{\"cache\":\"paged\",\"pool_group\":0,\"layers\":[[0,0]],\"views\":["
                                     "{\"pool\":0,\"entries\":[[0,0,4]]}]}],"
                                     "\"pools\":[[{\"base\":0,\"slot\":4,\"slots\":1}]]}}";
    kvf_trtllm_rank *rank = read_rank(least);
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    const struct kvf_trtllm_view *view;

    (void)state;
    assert_true(!spec->attention && !spec->aux && !spec->page_table && !spec->draft_kv_dtype);
    assert_int_equal(spec->device_id, 0);
    assert_string_equal(spec->self_endpoint, "");
    assert_int_equal(spec->sender_endpoint_count, 0);
    kvf_trtllm_rank_release(rank);
    rank = read_rank(with_table);
    view = &kvf_trtllm_rank_get_spec(rank)->page_table->groups[0].views[0];
    assert_int_equal(view->mapper, KVF_TRTLLM_INDEXED);
    assert_int_equal(view->role_count, 0);
    assert_true(view->num_kv_heads == KVF_TRTLLM_NONE && view->bytes_per_layer == KVF_TRTLLM_NONE);
    assert_null(view->section_bytes);
    assert_int_equal(kvf_trtllm_rank_get_spec(rank)->page_table->pool_groups[0].pools[0].slot_stride_bytes, 4);
    kvf_trtllm_rank_release(rank);
}

static size_t load_hex(const char *folder, const char *name, unsigned char *out, size_t capacity)
{
    char path[1024], line[256];
    size_t count = 0;
    unsigned byte;
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        for (char *at = line; sscanf(at, "%2x", &byte) == 1; at += 2) {
            assert_true(count < capacity);
            out[count++] = (unsigned char)byte;
        }
    fclose(file);
    return count;
}

static const char *golden_folder;

/* Bytes to JSON to bytes: nothing of a rank is lost on the way, not even which keys it had. */
static void test_through_json(void **state)
{
    static const char *const names[] = {"rank_18_keys.hex", "rank_22_keys.hex"};
    unsigned char bytes[2048], again[2048];

    (void)state;
    for (int i = 0; i < 2; i++) {
        size_t count = load_hex(golden_folder, names[i], bytes, sizeof bytes), again_count = 0;
        kvf_trtllm_rank *rank = NULL, *read = NULL;
        char *text = NULL;

        assert_int_equal(kvf_trtllm_rank_decode(bytes, count, &rank, NULL), KVF_OK);
        assert_int_equal(kvf_trtllm_rank_to_json(rank, &text, NULL), KVF_OK);
        read = read_rank(text);
        expect_text(read, text);
        assert_int_equal(kvf_trtllm_rank_encode(read, again, sizeof again, &again_count, NULL), KVF_OK);
        assert_int_equal(again_count, count);
        assert_memory_equal(again, bytes, count);
        kvf_trtllm_text_free(text);
        kvf_trtllm_rank_release(read);
        kvf_trtllm_rank_release(rank);
    }
}

/* `from` in the full text is replaced by `to`. */
static const struct {
    const char *from, *to;
    int status;
    const char *text;
} refusals[] = {
    {"\"rank\":3,", "", KVF_ERR_PARSE, "rank info: \"rank\" is missing"},
    {"\"rank\":3", "\"rnak\":3", KVF_ERR_PARSE, "unknown key \"rnak\", did you mean \"rank\"?"},
    {"\"rank\":3", "\"rank\":3,\"rank\":3", KVF_ERR_PARSE, "duplicate"},
    {"\"rank\":3", "\"rank\":-3", KVF_ERR_PARSE, "rank: expected an integer from 0 to 2147483647, found -3"},
    {"\"rank\":3", "\"rank\":3.5", KVF_ERR_PARSE, "rank: expected an integer"},
    {"\"name\":\"ctx\"", "\"name\":null", KVF_ERR_PARSE, "name: expected a text of 0 to 4096 bytes, found null"},
    {"\"name\":\"ctx\"", "\"name\":\"a\\nb\"", KVF_ERR_LAYOUT, "instance name is not UTF-8 without control"},
    {"\"tp\":[4,1]", "\"tp\":[4,4]", KVF_ERR_PARSE, "tp[1]: expected an integer from 0 to 3, found 4"},
    {"\"tp\":[4,1]", "\"tp\":[4]", KVF_ERR_PARSE, "tp: expected at least 2 items, found 1"},
    {"\"cp\":[3,2]", "\"cp\":[70000,2]", KVF_ERR_PARSE, "cp[0]: expected an integer from 1 to 65536"},
    {"[2,4]", "[2,-4]", KVF_ERR_PARSE, "layers_per_stage[1]: expected an integer of at least 0"},
    {"[2,4]", "[2,4,4]", KVF_ERR_LAYOUT, "3 layer counts for 2 pipeline stages"},
    {"\"tcp://b:2\"", "7", KVF_ERR_PARSE, "endpoints[1]: expected a text, found 7"},
    {"\"00ff10\"", "\"00ff1\"", KVF_ERR_PARSE, "engine_info: expected pairs of hex digits"},
    {"\"00ff10\"", "\"00fg10\"", KVF_ERR_PARSE, "engine_info: expected pairs of hex digits"},
    {"\"kv_heads\":5,\"tokens", "\"tokens", KVF_ERR_PARSE, "attention: \"kv_heads\" is missing"},
    {"\"element_bytes\":0.5", "\"element_bytes\":0.3", KVF_ERR_PARSE, "attention.element_bytes: expected a positive"},
    {"\"element_bytes\":0.5", "\"element_bytes\":-1", KVF_ERR_PARSE, "attention.element_bytes: expected a positive"},
    {"\"element_bytes\":0.5", "\"element_bytes\":\"2\"", KVF_ERR_PARSE, "attention.element_bytes: expected"},
    {"\"key_only\":true", "\"key_only\":1", KVF_ERR_PARSE, "attention.key_only: expected true or false"},
    {"\"attention\":{", "\"attention\":7,\"aux\":{", KVF_ERR_PARSE, ""},
    {"\"0xffffffff00000000\"]", "\"0xfffffffff00000000\"]", KVF_ERR_PARSE, "aux.address[1]: expected an address"},
    {"\"0xffffffff00000000\"]", "\"4096\"]", KVF_ERR_PARSE, "aux.address[1]: expected an address"},
    {"[4096,", "[-1,", KVF_ERR_PARSE, "aux.address[0]: expected an integer of at least 0"},
    {"\"tokens_per_block\":32", "\"tokens_per_block\":0", KVF_ERR_PARSE, "table.tokens_per_block: expected a positive"},
    {"\"cache\":\"paged\"", "\"cache\":\"page\"", KVF_ERR_PARSE, "table.groups[0].cache: expected \"paged\" or"},
    {"\"window\":128", "\"slot_major\":true", KVF_ERR_PARSE, "table.groups[0]: unknown key \"slot_major\""},
    {"\"window\":128", "\"window\":0", KVF_ERR_LAYOUT, "layer group 0: sliding_window_size is 0"},
    {"[1,7]", "[1]", KVF_ERR_PARSE, "table.groups[0].layers[1]: expected at least 2 items"},
    {"[1,7]", "[1,4]", KVF_ERR_LAYOUT, "global_layer_id 4 appears in layer groups 0 and 0"},
    {"\"kind\":\"nhd\"", "\"kind\":\"hnd\"", KVF_ERR_PARSE, "table.groups[0].views[0].kind: expected"},
    {"\"kind\":\"nhd\"", "\"kind\":\"sectioned\"", KVF_ERR_LAYOUT, "layer group 0 view 0: a paged group allows"},
    {"[1,32,32]", "[1,32,-2]", KVF_ERR_PARSE, "table.groups[0].views[0].entries[1][2]: expected an integer"},
    {"[1,32,32]", "[9,32,32]", KVF_ERR_LAYOUT, "layer group 0 view 0: an entry is of a layer that its group does not"},
    {"\"heads\":null", "\"heads\":\"2\"", KVF_ERR_PARSE, "table.groups[0].views[1].heads: expected an integer"},
    {"\"pool\":1", "\"pool\":2", KVF_ERR_LAYOUT, "layer group 0 view 0: pool 2 of 2"},
    {"\"slot_major\":false", "\"slot_major\":0", KVF_ERR_PARSE, "table.groups[1].slot_major: expected true or false"},
    {"\"sections\":[32,64]", "\"sections\":[32,null]", KVF_ERR_PARSE, "views[0].sections[1]: expected an integer"},
    {"\"stride\":40", "\"stride\":31", KVF_ERR_LAYOUT, "slot_stride_bytes must be greater than or equal to"},
    {"\"layer_stride\":768", "\"layer_strid\":1", KVF_ERR_PARSE, "table.pools[1][0]: unknown key \"layer_strid\""},
    {"\"base\":\"0xfffffffffff00000\"", "\"base\":\"0xffffffffffffff00\"", KVF_ERR_OVERFLOW, "pool group 1 pool 0"},
    {"\"base\":64", "\"base\":18446744073709551615", KVF_ERR_PARSE, "too big integer"},
    {"\"replay\":true", "\"replay\":\"yes\"", KVF_ERR_PARSE, "replay: expected true or false"},
    {"\"draft_dtype\":\"FP8\"", "\"absent\":[\"draft_dtype\"]", KVF_ERR_PARSE, "absent[0]: expected"},
    {"\"draft_dtype\":\"FP8\"", "\"absent\":[\"num_draft_layers\"]", KVF_ERR_INVALID_ARGUMENT,
     "num_draft_layers is set, but keys leave it out"},
    {"{\"name\"", "[{\"name\"", KVF_ERR_PARSE, "rank info: line 1"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const char *at = strstr(full, refusals[i].from);
        kvf_trtllm_rank *rank = NULL;
        struct kvf_error error = {0};
        char text[2 * sizeof full];
        int status;

        if (!at) fail_msg("nothing like %s", refusals[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - full), full, refusals[i].to, at + strlen(refusals[i].from));
        status = kvf_trtllm_rank_from_json(text, strlen(text), &rank, &error);
        if (status != refusals[i].status || !strstr(error.text, refusals[i].text))
            fail_msg("%s: found status %d, \"%s\"", refusals[i].to, status, error.text);
        assert_null(rank);
    }
}

static void test_broken(void **state)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error;

    (void)state;
    for (size_t count = 0; count < sizeof full - 1; count++) {
        char *cut = malloc(count ? count : 1); /* without a zero behind it */

        assert_non_null(cut);
        memcpy(cut, full, count);
        assert_int_equal(kvf_trtllm_rank_from_json(cut, count, &rank, &error), KVF_ERR_PARSE);
        assert_null(rank);
        free(cut);
    }
    assert_int_equal(kvf_trtllm_rank_from_json("[]", 2, &rank, &error), KVF_ERR_PARSE);
    assert_non_null(strstr(error.text, "expected an object"));
    assert_int_equal(kvf_trtllm_rank_from_json("[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]", 34, &rank, &error),
                     KVF_ERR_LIMIT);
    assert_int_equal(kvf_trtllm_rank_from_json(NULL, 2, &rank, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_rank_from_json("{}", 2, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_rank_to_json(NULL, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
    kvf_trtllm_text_free(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),     cmocka_unit_test(test_defaults), cmocka_unit_test(test_through_json),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_broken),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    golden_folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
