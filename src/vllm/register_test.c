/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's tensors: which memory and which regions become of them, in every layout, and what is refused. */
#include "vllm/region_kit.h"

#include <string.h>

#include "vllm/register.h"

#define BASE UINT64_C(0x7f0000001000)

/* Layers 0 and 1, 2 blocks of 4 heads, 16 tokens, K and V of 64 elements of 2 bytes: pages of 16384 bytes. */
static const struct kvf_vllm_facts usual = {.block_tokens = 16, .kv_heads = 4, .head_size = 64, .head_size_v = -1,
                                            .element_bytes = 2, .tokens_per_state = 1};

struct case_of {
    struct kvf_vllm_storage storages[4];
    struct kvf_vllm_placed placed[4];
    struct kvf_vllm_tensor tensors[4];
    struct kvf_vllm_layer layers[4];
    struct kvf_vllm_register spec;
};

static const char *const self_attn[] = {"model.layers.0.self_attn", "model.layers.1.self_attn"};

/* Points the spec at `count` tensors and layers of the case's own arrays. */
static void point(struct case_of *c, size_t count)
{
    kvf_vllm_register_init(&c->spec, sizeof c->spec);
    c->spec.storages = c->storages;
    c->spec.storage_count = 1;
    c->spec.tensors = c->tensors;
    c->spec.tensor_count = count;
    c->spec.layers = c->layers;
    c->spec.layer_count = count;
}

/* Two layers in one allocation. */
static void fill(struct case_of *c, const struct kvf_vllm_facts *facts, int physical)
{
    struct kvf_error error = {0};

    memset(c, 0, sizeof *c);
    for (int i = 0; i < 2; i++) {
        struct kvf_vllm_placed *at = &c->placed[i];

        if (kvf_vllm_place(facts, physical, 2, i, 2, at, &error) != KVF_OK) fail_msg("%s", error.text);
        c->tensors[i] = (struct kvf_vllm_tensor){self_attn[i], 0, at->offset_bytes, at->shape, at->strides, 4,
                                                 at->element_bytes};
        c->layers[i] = (struct kvf_vllm_layer){.name = self_attn[i], .kind = KVF_VLLM_ATTENTION,
                                               .page_bytes = at->page_bytes,
                                               .unpadded_page_bytes = at->unpadded_page_bytes};
    }
    c->storages[0] = (struct kvf_vllm_storage){BASE, c->placed[0].allocation_bytes};
    point(c, 2);
}

static kvf_vllm_registration *make(const struct case_of *c)
{
    kvf_vllm_registration *registration = NULL;
    struct kvf_error error = {0};

    if (kvf_vllm_registration_create(&c->spec, &registration, &error) != KVF_OK) fail_msg("%s", error.text);
    return registration;
}

static const struct kvf_vllm_region *regions_of(const kvf_vllm_registration *registration, size_t *count)
{
    return kvf_vllm_regions_get(kvf_vllm_registration_regions(registration), count);
}

static void check_memory(const kvf_vllm_registration *registration, const struct kvf_vllm_storage *wanted,
                         size_t wanted_count)
{
    size_t count;
    const struct kvf_vllm_storage *memory = kvf_vllm_registration_memory(registration, &count);

    assert_int_equal(count, wanted_count);
    for (size_t i = 0; i < count; i++) {
        assert_true(memory[i].base_addr == wanted[i].base_addr);
        assert_int_equal(memory[i].bytes, wanted[i].bytes);
    }
}

static void test_register_kv_caches(void **state)
{
    struct kvf_vllm_facts two_slots = usual;
    const struct {
        const char *label;
        int physical;
        const struct kvf_vllm_facts *facts;
        size_t count;
        struct { /* of each region, as offsets from the allocation */
            int64_t layer, at, block_len, kv, row;
        } wanted[8];
    } rows[] = {
        {"LBHNC", KVF_VLLM_LBHNC, &usual, 2, {{0, 0, 16384, 16384, -1}, {1, 32768, 16384, 16384, -1}}},
        {"LBNHC", KVF_VLLM_LBNHC, &usual, 2, {{0, 0, 16384, 16384, -1}, {1, 32768, 16384, 16384, -1}}},
        {"BLHNC", KVF_VLLM_BLHNC, &usual, 2, {{0, 0, 32768, 16384, -1}, {1, 16384, 32768, 16384, -1}}},
        {"BHLNC", KVF_VLLM_BHLNC, &usual, 1, {{0, 0, 32768, 32768, 0}}},
        {"BLNHC", KVF_VLLM_BLNHC, &usual, 1, {{0, 0, 32768, 32768, 0}}},
        {"LHBNC", KVF_VLLM_LHBNC, &usual, 8,
         {{0, 0, 4096, 4096, -1}, {0, 8192, 4096, 4096, -1}, {0, 16384, 4096, 4096, -1}, {0, 24576, 4096, 4096, -1},
          {1, 32768, 4096, 4096, -1}, {1, 40960, 4096, 4096, -1}, {1, 49152, 4096, 4096, -1},
          {1, 57344, 4096, 4096, -1}}},
        {"LHBNC, two slots", KVF_VLLM_LHBNC, &two_slots, 4,
         {{0, 0, 8192, 8192, -1}, {0, 16384, 8192, 8192, -1}, {1, 32768, 8192, 8192, -1},
          {1, 49152, 8192, 8192, -1}}},
    };

    (void)state;
    two_slots.head_slots = 2;
    two_slots.state_content_bytes = 512;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct case_of c;
        kvf_vllm_registration *registration;
        const struct kvf_vllm_region *regions;
        size_t count, opaque;

        fill(&c, rows[i].facts, rows[i].physical);
        registration = make(&c);
        check_memory(registration, &(struct kvf_vllm_storage){BASE, 65536}, 1);
        regions = regions_of(registration, &count);
        if (count != rows[i].count) fail_msg("%s: %zu regions", rows[i].label, count);
        for (size_t k = 0; k < count; k++) {
            if (strcmp(regions[k].layer_name, self_attn[rows[i].wanted[k].layer]) != 0
                || regions[k].layer_index != rows[i].wanted[k].layer
                || regions[k].base_addr != BASE + (uint64_t)rows[i].wanted[k].at
                || regions[k].block_len != rows[i].wanted[k].block_len
                || regions[k].kv_block_len != rows[i].wanted[k].kv || regions[k].row_offset != rows[i].wanted[k].row) {
                fail_msg("%s: region %zu", rows[i].label, k);
            }
            assert_true(regions[k].base_addr + (uint64_t)(regions[k].block_len + regions[k].kv_block_len)
                        <= BASE + 65536);
            assert_int_equal(regions[k].shared_groups.count, 1);
        }
        kvf_vllm_registration_opaque(registration, &opaque);
        assert_int_equal(opaque, rows[i].wanted[0].row == 0);
        kvf_vllm_registration_destroy(registration);
    }
}

static void test_register_noncontiguous_packed_allows_matching_pp(void **state)
{
    struct case_of c;
    kvf_vllm_registration *registration;
    const struct kvf_vllm_region *regions;
    const int64_t *opaque;
    size_t count;

    (void)state;
    fill(&c, &usual, KVF_VLLM_BHLNC);
    registration = make(&c);
    regions = regions_of(registration, &count);
    assert_int_equal(count, 1);
    assert_true(regions[0].base_addr == BASE);
    assert_int_equal(regions[0].row_offset, 0);
    opaque = kvf_vllm_registration_opaque(registration, &count);
    assert_int_equal(count, 1);
    assert_int_equal(opaque[0], 0);
    kvf_vllm_registration_destroy(registration);
}

static void test_register_kv_caches_supports_mixed_mla_and_eagle_shapes(void **state)
{
    static const int64_t mla_shape[] = {2, 16, 512}, mla_strides[] = {8192, 512, 1};
    static const int64_t eagle_shape[] = {2, 16, 8, 64}, eagle_strides[] = {8192, 512, 64, 1};
    static const char *const names[] = {"model.layers.0.mla_attn", "model.layers.1.eagle_attn"};
    struct case_of c;
    kvf_vllm_registration *registration;
    const struct kvf_vllm_region *regions;
    size_t count;

    (void)state;
    memset(&c, 0, sizeof c);
    c.storages[0] = (struct kvf_vllm_storage){BASE, 32768};
    c.storages[1] = (struct kvf_vllm_storage){BASE + 65536, 32768};
    c.tensors[0] = (struct kvf_vllm_tensor){names[0], 0, 0, mla_shape, mla_strides, 3, 2};
    c.tensors[1] = (struct kvf_vllm_tensor){names[1], 1, 0, eagle_shape, eagle_strides, 4, 2};
    for (int i = 0; i < 2; i++) {
        c.layers[i] = (struct kvf_vllm_layer){names[i], 0, KVF_VLLM_ATTENTION, 0, 16384, 16384};
    }
    point(&c, 2);
    c.spec.storage_count = 2;
    for (int as_mla = 0; as_mla < 2; as_mla++) {
        if (as_mla) c.layers[0].kind = KVF_VLLM_MLA;
        registration = make(&c);
        check_memory(registration, c.storages, 2);
        regions = regions_of(registration, &count);
        assert_int_equal(count, 2);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(regions[i].block_len, 16384);
            assert_int_equal(regions[i].kv_block_len, 16384);
            assert_string_equal(regions[i].layer_name, names[i]);
            assert_int_equal(regions[i].layer_index, i);
            assert_true(regions[i].base_addr == c.storages[i].base_addr);
        }
        assert_int_equal(regions[0].row_offset, 0);
        assert_int_equal(regions[1].row_offset, KVF_VLLM_NO_ROW);
        kvf_vllm_registration_destroy(registration);
    }
}

/* Columns of rows of bytes: 4 blocks of `row` bytes, layer i has [at[i], at[i] + bytes). */
static void fill_rows(struct case_of *c, int64_t row, int64_t bytes, const int64_t *at)
{
    static const char *const names[] = {"model.layers.0.mla_attn", "model.layers.1.indexer"};

    memset(c, 0, sizeof *c);
    c->storages[0] = (struct kvf_vllm_storage){BASE, 4 * row};
    for (int i = 0; i < 2; i++) {
        int64_t *shape = c->placed[i].shape, *strides = c->placed[i].strides;

        shape[0] = 4;
        shape[1] = bytes;
        strides[0] = row;
        strides[1] = 1;
        c->tensors[i] = (struct kvf_vllm_tensor){names[i], 0, at[i], shape, strides, 2, 1};
        c->layers[i] = (struct kvf_vllm_layer){names[i], 0, KVF_VLLM_MLA, 0, 1024, 1024};
    }
    point(c, 2);
    c->spec.num_blocks = 4;
}

static void test_register_kv_caches_collapses_shared_mla_storage(void **state)
{
    static const int64_t same[] = {0, 0};

    (void)state;
    for (int64_t groups = 1; groups <= 2; groups++) {
        struct case_of c;
        kvf_vllm_registration *registration;
        const struct kvf_vllm_region *region;
        size_t count;

        fill_rows(&c, 256, 256, same);
        c.layers[1].group = groups - 1;
        registration = make(&c);
        check_memory(registration, &(struct kvf_vllm_storage){BASE, 1024}, 1);
        region = regions_of(registration, &count);
        assert_int_equal(count, 1);
        assert_true(region->base_addr == BASE);
        assert_int_equal(region->block_len, 256);
        assert_int_equal(region->kv_block_len, 256);
        assert_string_equal(region->layer_name, "model.layers.0.mla_attn");
        assert_int_equal(region->group_index, groups == 1 ? 0 : KVF_VLLM_SHARED_GROUP);
        assert_int_equal(region->shared_groups.count, groups);
        for (int64_t i = 0; i < groups; i++) assert_int_equal(region->shared_groups.ids[i], i);
        kvf_vllm_registration_destroy(registration);
    }
}

static void test_sliced_packed_mla_registers_each_layer_view(void **state)
{
    static const int64_t slices[] = {0, 1024};
    struct case_of c;
    kvf_vllm_registration *registration;
    const struct kvf_vllm_region *regions;
    size_t count;

    (void)state;
    fill_rows(&c, 2048, 1024, slices);
    registration = make(&c);
    check_memory(registration, &(struct kvf_vllm_storage){BASE, 8192}, 1);
    regions = regions_of(registration, &count);
    assert_int_equal(count, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_true(regions[i].base_addr == BASE + i * 1024);
        assert_int_equal(regions[i].block_len, 2048);
        assert_int_equal(regions[i].kv_block_len, 1024);
        assert_int_equal(regions[i].row_offset, i * 1024);
    }
    kvf_vllm_registration_opaque(registration, &count);
    assert_int_equal(count, 0);
    kvf_vllm_registration_destroy(registration);
}

/* Views from one address are one region only when rows and payloads are the same. */
static void test_unlike_views_of_one_address_stay_apart(void **state)
{
    static const int64_t same[] = {0, 0};
    static const struct {
        int64_t blocks, bytes, row;
        size_t regions;
    } rows[] = {{4, 64, 256, 1}, {4, 32, 256, 2}, {2, 64, 512, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct case_of c;
        kvf_vllm_registration *registration;
        const struct kvf_vllm_region *regions;
        size_t count;

        fill_rows(&c, 256, 64, same);
        c.placed[1].shape[0] = rows[i].blocks;
        c.placed[1].shape[1] = rows[i].bytes;
        c.placed[1].strides[0] = rows[i].row;
        c.layers[1].group = 1;
        registration = make(&c);
        regions = regions_of(registration, &count);
        assert_int_equal(count, rows[i].regions);
        assert_int_equal(regions[0].shared_groups.count, 3 - count);
        assert_int_equal(regions[count - 1].block_len, rows[i].row);
        assert_int_equal(regions[count - 1].kv_block_len, rows[i].bytes);
        kvf_vllm_registration_destroy(registration);
    }
}

/* What a layer keeps decides how its pages become payloads. */
static void test_payloads_by_kind(void **state)
{
    static const int64_t slices[] = {0, 512};
    static const struct {
        const char *label;
        int kind;
        int64_t parts, page, kv; /* kv 0: refused */
        const char *text;
    } rows[] = {
        {"recurrent", KVF_VLLM_MAMBA, 1, 700, 700, NULL},
        {"recurrent, not divided", KVF_VLLM_MAMBA, 4, 700, 700, NULL},
        {"ring", KVF_VLLM_CIRCULAR, 1, 700, 700, NULL},
        {"ring, divided", KVF_VLLM_CIRCULAR, 4, 700, 175, NULL},
        {"ring, does not divide", KVF_VLLM_CIRCULAR, 3, 700, 0,
         "layer model.layers.0.mla_attn: a page of 700 bytes does not divide into 3 kernel blocks"},
        {"as long as a row", KVF_VLLM_MAMBA, 1, 1024, 1024, NULL},
        {"longer than a row", KVF_VLLM_MAMBA, 1, 1025, 0,
         "Mooncake transfer length exceeds physical block stride for model.layers.0.mla_attn: kv_block_len=1025, "
         "block_len=1024."},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct case_of c;
        kvf_vllm_registration *registration = NULL;
        struct kvf_error error = {0};
        size_t count;
        enum kvf_status status;

        fill_rows(&c, 1024, 512, slices);
        c.layers[0].kind = c.layers[1].kind = rows[i].kind;
        c.layers[0].page_bytes = c.layers[1].page_bytes = rows[i].page;
        c.spec.kernel_blocks_per_block = rows[i].parts;
        status = kvf_vllm_registration_create(&c.spec, &registration, &error);
        if (status != (rows[i].text ? KVF_ERR_LAYOUT : KVF_OK)) fail_msg("%s: %s", rows[i].label, error.text);
        if (rows[i].text) {
            assert_string_equal(error.text, rows[i].text);
            assert_null(registration);
        } else {
            assert_int_equal(regions_of(registration, &count)[1].kv_block_len, rows[i].kv);
            assert_int_equal(count, 2);
            kvf_vllm_registration_destroy(registration);
        }
    }
}

/* A flat buffer of pages is opaque; with more than a part of a page left over it is nothing. */
static void test_flat_buffers(void **state)
{
    static const int64_t shape[] = {4500}, strides[] = {1};
    static const struct {
        int64_t blocks, bytes;
        bool good;
    } rows[] = {{4, 4096, true}, {4, 4500, true}, {4, 5119, true}, {4, 5120, false}, {4, 4095, false},
                {0, 4096, false}, {INT64_MAX, 4096, false}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kvf_vllm_layer layer = {"l.0.attn", 0, KVF_VLLM_ATTENTION, 0, 1024, 1024};
        const struct kvf_vllm_storage storage = {BASE, rows[i].bytes};
        const struct kvf_vllm_tensor tensor = {"l.0.attn", 0, 0, rows[i].bytes < 4500 ? &rows[i].bytes : shape, strides,
                                               1, 1};
        struct kvf_vllm_register spec;
        kvf_vllm_registration *registration = NULL;
        struct kvf_error error = {0};
        size_t count;

        kvf_vllm_register_init(&spec, sizeof spec);
        spec.storages = &storage;
        spec.tensors = &tensor;
        spec.layers = &layer;
        spec.storage_count = spec.tensor_count = spec.layer_count = 1;
        spec.num_blocks = rows[i].blocks;
        if (rows[i].good) {
            assert_int_equal(kvf_vllm_registration_create(&spec, &registration, &error), KVF_OK);
            assert_int_equal(regions_of(registration, &count)->block_len, 1024);
            assert_int_equal(regions_of(registration, &count)->row_offset, 0);
            kvf_vllm_registration_opaque(registration, &count);
            assert_int_equal(count, 1);
            kvf_vllm_registration_destroy(registration);
        } else {
            assert_int_equal(kvf_vllm_registration_create(&spec, &registration, &error), KVF_ERR_LAYOUT);
            assert_string_equal(error.text, "Mooncake transfer length exceeds physical block stride for l.0.attn: "
                                            "kv_block_len=1024, block_len=1.");
        }
    }
}

static void test_layers_that_are_left_out(void **state)
{
    struct case_of c;
    kvf_vllm_registration *registration = NULL;
    struct kvf_error error = {0};
    size_t count;

    (void)state;
    fill(&c, &usual, KVF_VLLM_LBHNC);
    c.layers[0].kind = KVF_VLLM_NO_SPEC;
    registration = make(&c);
    assert_int_equal(regions_of(registration, &count)->layer_index, 1);
    assert_int_equal(count, 1);
    kvf_vllm_registration_destroy(registration);
    registration = NULL;
    c.spec.layer_count = 0;
    assert_int_equal(kvf_vllm_registration_create(&c.spec, &registration, &error), KVF_ERR_LAYOUT);
    assert_string_equal(error.text, "No KV cache tensors were registered with Mooncake.");
    assert_null(registration);
}

static void test_layer_names(void **state)
{
    static const struct {
        const char *name;
        int64_t index;
        int status;
    } rows[] = {
        {"model.layers.7.self_attn", 7, KVF_OK},      {"12", 12, KVF_OK},
        {"encoder.layers.0", 0, KVF_OK},              {"2.self_attn", 2, KVF_OK},
        {"a.-3.b", -3, KVF_OK},                       {"a.+3.b", 3, KVF_OK},
        {"a. 1_0 .b", 10, KVF_OK},                    {"a.007.b", 7, KVF_OK},
        {"a.1_.b2", 0, KVF_ERR_LAYOUT},               {"a.1__0", 0, KVF_ERR_LAYOUT},
        {"model.layers.self_attn", 0, KVF_ERR_LAYOUT}, {"a.1.b.1", 0, KVF_ERR_LAYOUT},
        {"", 0, KVF_ERR_LAYOUT},                      {"a.-.+", 0, KVF_ERR_LAYOUT},
        {"layers.1a.0x1", 0, KVF_ERR_LAYOUT},         {"a.9223372036854775807", INT64_MAX, KVF_OK},
        {"a.9223372036854775808", 0, KVF_ERR_OVERFLOW}, {"a._1", 0, KVF_ERR_LAYOUT},
        {"a.99999999999999999999.1", 0, KVF_ERR_LAYOUT}, {"..3..", 3, KVF_OK},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvf_error error = {0};
        int64_t index = 99;
        int status = kvfi_vllm_layer_index(rows[i].name, &index, &error);

        if (status != rows[i].status || (status == KVF_OK && index != rows[i].index)) {
            fail_msg("%s: %s, %lld", rows[i].name, error.text, (long long)index);
        }
        if (status == KVF_ERR_LAYOUT) assert_non_null(strstr(error.text, " should only contain one integer"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_register_kv_caches),
        cmocka_unit_test(test_register_noncontiguous_packed_allows_matching_pp),
        cmocka_unit_test(test_register_kv_caches_supports_mixed_mla_and_eagle_shapes),
        cmocka_unit_test(test_register_kv_caches_collapses_shared_mla_storage),
        cmocka_unit_test(test_sliced_packed_mla_registers_each_layer_view),
        cmocka_unit_test(test_unlike_views_of_one_address_stay_apart),
        cmocka_unit_test(test_payloads_by_kind),
        cmocka_unit_test(test_flat_buffers),
        cmocka_unit_test(test_layers_that_are_left_out),
        cmocka_unit_test(test_layer_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
