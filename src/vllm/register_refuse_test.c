/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations without sense: each is refused with a word about what is wrong, and nothing is made. */
#include "vllm/region_kit.h"

#include <string.h>

#define BASE UINT64_C(0x7f0000001000)

/* A good registration of one tensor, to be spoilt. */
struct one {
    struct kvf_vllm_storage storage;
    int64_t shape[8], strides[8];
    struct kvf_vllm_tensor tensor;
    struct kvf_vllm_layer layers[2];
    struct kvf_vllm_register spec;
};

static void fill(struct one *one)
{
    static const int64_t shape[] = {4, 2, 16, 32}, strides[] = {1024, 512, 32, 1};

    memset(one, 0, sizeof *one);
    memcpy(one->shape, shape, sizeof shape);
    memcpy(one->strides, strides, sizeof strides);
    one->storage = (struct kvf_vllm_storage){BASE, 8192};
    one->tensor = (struct kvf_vllm_tensor){"model.layers.3.attn", 0, 0, one->shape, one->strides, 4, 2};
    one->layers[0] = one->layers[1] = (struct kvf_vllm_layer){"model.layers.3.attn", 0, KVF_VLLM_ATTENTION, 0, 2048,
                                                              2048};
    kvf_vllm_register_init(&one->spec, sizeof one->spec);
    one->spec.storages = &one->storage;
    one->spec.tensors = &one->tensor;
    one->spec.layers = one->layers;
    one->spec.storage_count = one->spec.tensor_count = one->spec.layer_count = 1;
    one->spec.num_blocks = 4;
}

static void check(struct one *one, int status, const char *text)
{
    kvf_vllm_registration *registration = NULL;
    struct kvf_error error = {0};
    int found = kvf_vllm_registration_create(&one->spec, &registration, &error);

    if (found != status || strcmp(error.text, text) != 0) fail_msg("%d %s\nexpected %s", found, error.text, text);
    assert_null(registration);
    fill(one);
}

static void test_tensors(void **state)
{
    struct one one;

    (void)state;
    fill(&one);
    one.tensor.rank = 0;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "tensor model.layers.3.attn: expected shape and strides of rank 1 to 8, found rank 0");
    one.tensor.rank = 9;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "tensor model.layers.3.attn: expected shape and strides of rank 1 to 8, found rank 9");
    one.tensor.shape = NULL;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "tensor model.layers.3.attn: expected shape and strides of rank 1 to 8, found rank 4 and no list");
    one.tensor.storage = 1;
    check(&one, KVF_ERR_INVALID_ARGUMENT, "tensor model.layers.3.attn: storage 1 of 1");
    one.tensor.storage = -1;
    check(&one, KVF_ERR_INVALID_ARGUMENT, "tensor model.layers.3.attn: storage -1 of 1");
    one.tensor.offset_bytes = -2;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "tensor model.layers.3.attn: elements of 2 bytes at offset -2, expected 1 or more at 0 or more");
    one.tensor.element_bytes = 0;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "tensor model.layers.3.attn: elements of 0 bytes at offset 0, expected 1 or more at 0 or more");
    one.shape[2] = 0;
    check(&one, KVF_ERR_LAYOUT, "tensor model.layers.3.attn: axis 2 has 0 elements with stride 32, expected 1 or more "
                                "with stride 0 or more");
    one.strides[1] = -512;
    check(&one, KVF_ERR_LAYOUT, "tensor model.layers.3.attn: axis 1 has 2 elements with stride -512, expected 1 or "
                                "more with stride 0 or more");
    one.tensor.offset_bytes = 2;
    check(&one, KVF_ERR_LAYOUT, "tensor model.layers.3.attn: ends at byte 8194 of its storage, which has 8192");
    one.shape[0] = INT64_MAX;
    check(&one, KVF_ERR_OVERFLOW, "tensor model.layers.3.attn: its extent does not fit in 64 bits");
    one.tensor.element_bytes = INT64_MAX;
    check(&one, KVF_ERR_OVERFLOW, "tensor model.layers.3.attn: its extent does not fit in 64 bits");
    one.shape[0] = 1;
    one.strides[0] = INT64_MAX;
    check(&one, KVF_ERR_OVERFLOW, "tensor model.layers.3.attn: its extent does not fit in 64 bits");
    one.tensor.layer_name = NULL;
    check(&one, KVF_ERR_INVALID_ARGUMENT, "tensor 0: its layer name is NULL");
    one.tensor.layer_name = "model.layers.attn";
    check(&one, KVF_ERR_LAYOUT, "layer name model.layers.attn should only contain one integer");
    one.storage.bytes = 8193; /* not rows of blocks */
    one.strides[2] = one.strides[3] = 2; /* tokens and content on each other */
    check(&one, KVF_ERR_LAYOUT,
          "layer model.layers.3.attn: neither a block nor each head's part of one fills a span of memory");
    one.storage.bytes = 8193;
    one.strides[1] = 0; /* heads on each other, more than can be listed */
    one.shape[1] = INT64_MAX;
    check(&one, KVF_ERR_LIMIT, "layer model.layers.3.attn: 9223372036854775807 heads in regions of their own, the "
                               "limit is 65536");
}

static void test_storages_and_layers(void **state)
{
    struct one one;

    (void)state;
    fill(&one);
    one.storage.bytes = -1;
    check(&one, KVF_ERR_LAYOUT, "storage 0: -1 bytes at 0x7f0000001000 are no range of addresses");
    one.storage.base_addr = UINT64_MAX - 8191;
    one.storage.bytes = 8192;
    check(&one, KVF_ERR_LAYOUT, "storage 0: 8192 bytes at 0xffffffffffffe000 are no range of addresses");
    one.layers[0].name = NULL;
    check(&one, KVF_ERR_INVALID_ARGUMENT, "layer 0: its name is NULL");
    one.layers[0].kind = 5;
    check(&one, KVF_ERR_INVALID_ARGUMENT, "layer model.layers.3.attn: kind 5, expected 0 to 4");
    one.layers[0].page_bytes = -1;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "layer model.layers.3.attn: pages of -1 bytes in group 0, expected 0 or more");
    one.spec.layer_count = 2;
    check(&one, KVF_ERR_INVALID_ARGUMENT, "layer model.layers.3.attn: listed twice");
    one.spec.layers = NULL;
    check(&one, KVF_ERR_INVALID_ARGUMENT, "registration: an array of storages, tensors or layers is NULL");
    one.spec.kernel_blocks_per_block = 0;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "registration: 4 blocks of 0 kernel blocks, expected 0 or more of 1 or more");
    one.spec.num_blocks = -4;
    check(&one, KVF_ERR_INVALID_ARGUMENT,
          "registration: -4 blocks of 1 kernel blocks, expected 0 or more of 1 or more");
    one.spec.tensor_count = 65537;
    check(&one, KVF_ERR_LIMIT,
          "registration: 1 storages, 65537 tensors, 1 layers, the limit is 65536 each");
    one.spec.tensor_count = 0;
    check(&one, KVF_ERR_LAYOUT, "No KV cache tensors were registered with Mooncake.");
    assert_int_equal(kvf_vllm_registration_create(NULL, NULL, NULL), KVF_ERR_INVALID_ARGUMENT);
    kvf_vllm_registration_destroy(NULL);
}

static void test_newer_spec(void **state)
{
    struct {
        struct kvf_vllm_register spec;
        int64_t more;
    } newer;
    struct one one;
    kvf_vllm_registration *registration = NULL;

    (void)state;
    fill(&one);
    newer.spec = one.spec;
    newer.spec.struct_size = sizeof newer;
    newer.more = 0;
    assert_int_equal(kvf_vllm_registration_create(&newer.spec, &registration, NULL), KVF_OK);
    kvf_vllm_registration_destroy(registration);
    registration = NULL;
    newer.more = 1;
    assert_int_equal(kvf_vllm_registration_create(&newer.spec, &registration, NULL), KVF_ERR_NEWER_OPTION);
    assert_null(registration);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_storages_and_layers),
        cmocka_unit_test(test_newer_spec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
