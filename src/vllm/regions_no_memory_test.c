/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of registering, listing, aligning, and finding blocks refused in turn: a status, nothing made,
 * nothing lost. */
#include "vllm/region_kit.h"

#include <string.h>

#include "base/no_memory_kit.h"
#include "vllm/coalesce.h"
#include "vllm/extent.h"

static const char *const names[] = {"model.layers.0.a", "model.layers.1.a", "model.layers.2.a", "model.layers.3.a"};

/* Four layers: three share a row's view in three groups, one has heads of its own. */
static enum kvf_status register_all(kvf_vllm_registration **out, struct kvf_error *error)
{
    static const struct kvf_vllm_storage storages[] = {{4096, 1024}, {65536, 4096}};
    static const int64_t row[] = {4, 256}, row_strides[] = {256, 1}, heads[] = {2, 12, 4, 4},
                         head_strides[] = {16, 32, 4, 1};
    struct kvf_vllm_tensor tensors[4];
    struct kvf_vllm_layer layers[4];
    struct kvf_vllm_register spec;

    for (int i = 0; i < 4; i++) {
        tensors[i] = i < 3 ? (struct kvf_vllm_tensor){names[i], 0, 0, row, row_strides, 2, 1}
                           : (struct kvf_vllm_tensor){names[i], 1, 0, heads, head_strides, 4, 1};
        layers[i] = (struct kvf_vllm_layer){names[i], i, i < 3 ? KVF_VLLM_MLA : KVF_VLLM_ATTENTION, 0, 256, 256};
    }
    kvf_vllm_register_init(&spec, sizeof spec);
    spec.storages = storages;
    spec.storage_count = 2;
    spec.tensors = tensors;
    spec.layers = layers;
    spec.tensor_count = spec.layer_count = 4;
    spec.num_blocks = 4;
    return kvf_vllm_registration_create(&spec, out, error);
}

/* A peer that has the same regions in another order, without groups. */
static enum kvf_status expand_peer(const kvf_vllm_regions *own, kvf_vllm_regions **out, struct kvf_error *error)
{
    static const struct kvf_vllm_layer layers[] = {{.name = "model.layers.0.a", .group = KVF_VLLM_SHARED_GROUP},
                                                   {.name = "model.layers.3.a", .group = 3}};
    struct kvf_vllm_arrays arrays;
    const char *turned_names[13];
    int64_t turned_indices[13];
    size_t count;

    kvf_vllm_regions_arrays(own, &arrays);
    count = arrays.layer_name_count;
    assert_int_equal(count, 13);
    for (size_t i = 0; i < count; i++) {
        turned_names[i] = arrays.layer_names[count - 1 - i];
        turned_indices[i] = arrays.layer_indices[count - 1 - i];
    }
    arrays.layer_names = turned_names;
    arrays.layer_indices = turned_indices;
    arrays.group_index_count = arrays.shared_group_count = arrays.row_offset_count = 0;
    return kvf_vllm_regions_expand(&arrays, layers, 2, out, error);
}

/* Two sets; a row whose payloads are counted apart. */
static enum kvf_status find_blocks(struct kvf_error *error)
{
    static const struct kvf_vllm_storage memory = {4096, 4096};
    const struct kvf_vllm_region items[] = {region_kit(4096, 256, 64), region_kit(4096 + 64, 256, 64),
                                            {.layer_name = "other", .base_addr = 4096 + 128, .block_len = 256,
                                             .kv_block_len = 64, .group_index = 1, .row_offset = 128}};
    struct kvf_vllm_region own[3];
    struct kvfi_vllm_extent extent;
    kvf_vllm_regions *regions = NULL;
    enum kvf_status status;

    memcpy(own, items, sizeof own);
    own[0].row_offset = 0;
    status = kvf_vllm_regions_create(own, 3, &regions, error);
    if (status == KVF_OK) status = kvfi_vllm_extent_init(&extent, regions, &memory, 1, error);
    if (status == KVF_OK) {
        assert_int_equal(extent.set_count, 2);
        assert_int_equal(extent.sets[0].sheet_count, 2);
        kvfi_vllm_extent_fini(&extent);
    }
    kvf_vllm_regions_release(regions);
    return status;
}

static enum kvf_status do_all(struct kvf_error *error)
{
    kvf_vllm_registration *registration = NULL;
    kvf_vllm_regions *peer = NULL;
    struct kvfi_vllm_pairs pairs = {0};
    enum kvf_status status = register_all(&registration, error);

    assert_true((status == KVF_OK) == (registration != NULL));
    if (status == KVF_OK) status = expand_peer(kvf_vllm_registration_regions(registration), &peer, error);
    if (status == KVF_OK) {
        status = kvfi_vllm_align(kvf_vllm_registration_regions(registration), peer, false, &pairs, error);
    }
    if (status == KVF_OK) {
        kvfi_vllm_coalesce(&pairs, true);
        assert_int_equal(pairs.count, 13);
        status = find_blocks(error);
    }
    kvfi_vllm_pairs_fini(&pairs);
    kvf_vllm_regions_release(peer);
    kvf_vllm_registration_destroy(registration);
    return status;
}

static void test_every_allocation(void **state)
{
    long allocations = 0;
    bool refused = true;

    (void)state;
    while (refused) {
        struct kvf_error error = {0};
        enum kvf_status status;

        no_memory_once(allocations++);
        status = do_all(&error);
        refused = no_memory_end();
        assert_int_equal(status, refused ? KVF_ERR_NO_MEMORY : KVF_OK);
        if (refused && !strstr(error.text, "out of memory for ")) fail_msg("%ld: %s", allocations, error.text);
    }
    assert_true(allocations > 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
