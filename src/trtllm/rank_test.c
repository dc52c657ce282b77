/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos in memory: what is copied, and what is refused. */
#include <stdlib.h>
#include <string.h>

#include "trtllm/rank.h"
#include "trtllm/rank_kit.h"

static void test_copy(void **state)
{
    struct rank_kit kit;
    kvf_trtllm_rank *rank, *again;
    const struct kvf_trtllm_rank_spec *spec;

    (void)state;
    rank_kit_init(&kit, "ctx");
    rank_kit_pt(&kit, 1024, 2, 2, 2, 5, 3);
    rank_kit_side(&kit, 8);
    rank_kit_aux(&kit, 1, (int64_t)0x1000, (int64_t)64, (int64_t)8);
    kit.roles[0][0][0] = "value";
    kit.roles[0][0][1] = "key";
    kit.views[0][0].role_count = 2;
    rank = rank_kit_make(&kit);
    memset(&kit, 0xee, sizeof kit);
    spec = kvf_trtllm_rank_get_spec(rank);
    assert_string_equal(spec->instance_name, "ctx");
    assert_int_equal(spec->aux->item_sizes[0], 8);
    assert_string_equal(spec->page_table->groups[0].views[0].roles[0], "key");
    assert_string_equal(spec->page_table->groups[0].views[0].roles[1], "value");
    assert_int_equal(spec->page_table->groups[0].views[0].entries[3].offset_bytes, 768);
    assert_int_equal(spec->page_table->groups[1].views[0].section_bytes[2], 256);
    assert_int_equal(spec->page_table->pool_groups[1].pools[2].base_address, 0xC000);
    assert_int_equal(kvfi_trt_find_global(rank, KVF_TRTLLM_PAGED, 3)->layer, 1);
    assert_null(kvfi_trt_find_global(rank, KVF_TRTLLM_STATE, 3));
    assert_int_equal(kvfi_trt_find_local(rank, 1, 1)->global_layer, 101);
    again = kvf_trtllm_rank_acquire(rank);
    kvf_trtllm_rank_release(rank);
    assert_string_equal(kvf_trtllm_rank_get_spec(again)->instance_name, "ctx");
    kvf_trtllm_rank_release(again);
    kvf_trtllm_rank_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
