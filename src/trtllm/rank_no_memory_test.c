/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of reading and writing rank infos refused in turn: a status, no output, nothing lost. */
#include <string.h>

#include "base/no_memory_kit.h"
#include "trtllm/rank_kit.h"

static struct rank_kit kit;

/* Large enough that the arenas take more than one chunk. */
static void fill(void)
{
    rank_kit_init(&kit, "ctx");
    rank_kit_pt(&kit, 1024, 2, 2, 2, 5, 3);
    rank_kit_side(&kit, 8);
    rank_kit_aux(&kit, 1, (int64_t)0x1000, (int64_t)64, (int64_t)8);
    rank_kit_role(&kit, 0, 0, "key");
    for (size_t i = 0; i < RANK_KIT_ITEMS; i++)
        kit.endpoints[i] = "tcp://a-host-with-a-name-that-is-long-enough-to-fill-more-than-one-chunk.example:5000";
    kit.spec.sender_endpoint_count = RANK_KIT_ITEMS;
    kit.spec.transfer_engine_info = "agent";
    kit.spec.transfer_engine_info_bytes = 5;
    kit.spec.draft_kv_dtype = "FP8";
    rank_kit_stages(&kit, 1, (int64_t)4);
}

/** Does it all. Returns the first status that is not KVF_OK. */
static enum kvf_status do_all(struct kvf_error *error)
{
    static unsigned char bytes[8192];
    kvf_trtllm_rank *made = NULL, *decoded = NULL, *kept = NULL, *read = NULL;
    char *text = NULL;
    size_t count = 0;
    enum kvf_status status = kvf_trtllm_rank_create(&kit.spec, &made, error);

    assert_true((status == KVF_OK) == (made != NULL));
    if (status != KVF_OK) goto done;
    assert_int_equal(kvf_trtllm_rank_encode(made, bytes, sizeof bytes, &count, error), KVF_OK);
    status = kvf_trtllm_rank_decode(bytes, count, &decoded, error);
    assert_true((status == KVF_OK) == (decoded != NULL));
    if (status != KVF_OK) goto done;
    memmove(bytes + 5, bytes + 3, count - 3); /* the same map with a longer head: kept as it came */
    memcpy(bytes, "\xdf\x00\x00\x00\x16", 5);
    status = kvf_trtllm_rank_decode(bytes, count + 2, &kept, error);
    assert_true((status == KVF_OK) == (kept != NULL));
    if (status != KVF_OK) goto done;
    status = kvf_trtllm_rank_to_json(kept, &text, error);
    assert_true((status == KVF_OK) == (text != NULL));
    if (status != KVF_OK) goto done;
    status = kvf_trtllm_rank_from_json(text, strlen(text), &read, error);
    assert_true((status == KVF_OK) == (read != NULL));
done:
    kvf_trtllm_text_free(text);
    kvf_trtllm_rank_release(read);
    kvf_trtllm_rank_release(kept);
    kvf_trtllm_rank_release(decoded);
    kvf_trtllm_rank_release(made);
    return status;
}

static void test_every_allocation(void **state)
{
    long allocations = 0;
    bool refused = true;

    (void)state;
    fill();
    while (refused) {
        struct kvf_error error = {0};
        enum kvf_status status;

        no_memory_once(allocations++);
        status = do_all(&error);
        refused = no_memory_end();
        if (status != KVF_OK) {
            assert_int_equal(status, KVF_ERR_NO_MEMORY);
            assert_true(strncmp(error.text, "out of memory for ", 18) == 0);
        }
    }
    assert_true(allocations > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

    return cmocka_run_group_tests_name("no memory", tests, NULL, NULL);
}
