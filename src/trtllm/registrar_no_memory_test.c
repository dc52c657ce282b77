/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of judging, registering and planning a peer refused in turn: a status, nothing stored, nothing
 * lost. */
#include "trtllm/mapper.h"
#include "trtllm/rank_kit.h"

#include <string.h>

#include "base/no_memory_kit.h"

/* Self, a peer that fits, one whose replicated roles differ, one whose K/V mapper cannot be built. */
static kvf_trtllm_rank *self, *peers[3];

static kvf_trtllm_rank *make(const char *name, int64_t tp, int64_t heads, int64_t bytes)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    kit.spec.tp_size = tp;
    kit.attention.kv_heads_per_rank = heads;
    rank_kit_pt(&kit, bytes, tp, heads, 2, 0, 1);
    kit.views[0][0].mapper = KVF_TRTLLM_NHD;
    if (strcmp(name, "uncovered") != 0) rank_kit_side(&kit, 8);
    return rank_kit_make(&kit);
}

/** Does it all. Returns the first status that says "no memory". */
static enum kvf_status do_all(struct kvf_error *error)
{
    static const struct kvf_trtllm_view_pair key = {{0, 0}, {0, 0}}, conv = {{1, 0}, {1, 0}};
    struct kvf_trtllm_view_pair pairs[8];
    struct kvfi_trt_mapper mapper = {0};
    kvf_trtllm_registrar *registrar = NULL;
    kvf_trtllm_pair *pair = NULL;
    size_t count;
    enum kvf_status status = kvf_trtllm_registrar_create(self, NULL, &registrar, error);

    for (int i = 0; i < 20 && status == KVF_OK; i++) {
        status = kvf_trtllm_registrar_register(registrar, peers[0], NULL, error);
        if (i == 0) assert_int_equal(kvf_trtllm_registrar_count(registrar), status == KVF_OK);
    }
    if (status == KVF_OK) status = kvf_trtllm_registrar_pair(registrar, "fits", 0, &pair, error);
    assert_true((status == KVF_OK) == (pair != NULL));
    if (status == KVF_OK) status = kvf_trtllm_registrar_check(registrar, peers[1], NULL, error);
    if (status == KVF_ERR_INCOMPATIBLE) status = kvf_trtllm_get_pool_mapping(self, peers[2], pairs, 8, &count, error);
    if (status == KVF_OK) status = kvfi_trt_mapper_init(&mapper, self, peers[2], &key, error);
    if (status == KVF_OK) assert_int_equal(mapper.name, KVF_TRTLLM_MAP_ERROR);
    kvfi_trt_mapper_fini(&mapper);
    if (status == KVF_OK) status = kvfi_trt_mapper_init(&mapper, self, peers[2], &conv, error);
    if (status == KVF_OK) assert_int_equal(mapper.name, KVF_TRTLLM_MAP_STATE_SECTIONS);
    kvfi_trt_mapper_fini(&mapper);
    kvf_trtllm_pair_release(pair);
    kvf_trtllm_registrar_destroy(registrar);
    return status;
}

static void test_every_allocation(void **state)
{
    long allocations = 0;
    bool refused = true;

    (void)state;
    self = make("self", 2, 2, 1024);
    peers[0] = make("fits", 1, 4, 2048);
    peers[1] = make("uncovered", 1, 4, 2048);
    peers[2] = make("uneven", 1, 4, 4096);
    while (refused) {
        struct kvf_error error = {0};
        enum kvf_status status;

        no_memory_once(allocations++);
        status = do_all(&error);
        refused = no_memory_end();
        if (!refused) assert_int_equal(status, KVF_OK);
        if (status != KVF_OK) {
            assert_int_equal(status, KVF_ERR_NO_MEMORY);
            if (!strstr(error.text, "out of memory for ")) fail_msg("%ld: %s", allocations, error.text);
        }
    }
    assert_true(allocations > 30);
    for (int i = 0; i < 3; i++) kvf_trtllm_rank_release(peers[i]);
    kvf_trtllm_rank_release(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

    return cmocka_run_group_tests_name("no memory", tests, NULL, NULL);
}
