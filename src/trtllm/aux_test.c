/* SPDX-License-Identifier: Apache-2.0 */
/* Auxiliary buffers: upstream's tests by their names, then every refusal. */
#include "trtllm/rank_kit.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static kvf_trtllm_rank *make(const char *name, const int64_t (*buffers)[3], size_t count)
{
    struct rank_kit kit;

    rank_kit_init(&kit, name);
    rank_kit_aux(&kit, 0);
    for (size_t i = 0; i < count; i++) {
        kit.aux_ptrs[i] = (uint64_t)buffers[i][0];
        kit.aux_sizes[i] = buffers[i][1];
        kit.aux_items[i] = buffers[i][2];
    }
    kit.aux.ptr_count = kit.aux.size_count = kit.aux.item_count = count;
    return rank_kit_make(&kit);
}

static void expect(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer, int64_t src_slot, int64_t dst_slot,
                   const struct kvf_trtllm_fragment *fragments, size_t expected)
{
    struct kvf_trtllm_fragment found[KVF_TRTLLM_MAX_AUX];
    size_t count = 99;

    assert_int_equal(kvf_trtllm_aux_fragments(self, peer, src_slot, dst_slot, found, KVF_TRTLLM_MAX_AUX, &count, NULL),
                     KVF_OK);
    assert_int_equal(count, expected);
    assert_memory_equal(found, fragments, expected * sizeof *found);
}

static void test_peer_registrar_caches_and_invalidates_aux_transfer_layout(void **state)
{
    static const int64_t own[][3] = {{0x1000, 1024, 4}, {0, 0, 0}, {0x3000, 128, 8}, {0x4000, 128, 8}};
    static const int64_t other[][3] = {{0x5000, 1024, 4}, {0, 0, 0}, {0x7000, 128, 8}, {0x8000, 128, 8}};
    static const int64_t moved[][3] = {{0x9000, 1024, 4}, {0, 0, 0}, {0xB000, 128, 8}, {0xC000, 128, 8}};
    kvf_trtllm_rank *self = make("self", own, 4), *peer = make("peer", other, 4), *later = make("peer", moved, 4);
    kvf_trtllm_registrar *registrar = NULL;
    const kvf_trtllm_rank *found;

    (void)state;
    /* a layout is a function of two rank infos, so that there is none that could be stale */
    assert_int_equal(kvf_trtllm_registrar_create(self, NULL, &registrar, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, peer, NULL, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 0, &found, NULL), KVF_OK);
    expect(self, found, 0, 0,
           (const struct kvf_trtllm_fragment[]){{0x1000, 0x5000, 4}, {0x3000, 0x7000, 8}, {0x4000, 0x8000, 8}}, 3);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, later, NULL, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 0, &found, NULL), KVF_OK);
    expect(self, found, 0, 0,
           (const struct kvf_trtllm_fragment[]){{0x1000, 0x9000, 4}, {0x3000, 0xB000, 8}, {0x4000, 0xC000, 8}}, 3);
    assert_int_equal(kvf_trtllm_registrar_unregister(registrar, "peer", 0, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 0, &found, NULL), KVF_ERR_NOT_FOUND);
    kvf_trtllm_registrar_destroy(registrar);
    kvf_trtllm_rank_release(later);
    kvf_trtllm_rank_release(peer);
    kvf_trtllm_rank_release(self);
}

static void test_peer_registration_allows_asymmetric_aux_layout_for_context_first(void **state)
{
    static const int64_t own[][3] = {{0x1000, 64, 8}, {0x2000, 64, 8}}, other[][3] = {{0x3000, 64, 8}, {0, 0, 0}};
    kvf_trtllm_rank *self = make("self", own, 2), *peer = make("peer", other, 2);
    kvf_trtllm_registrar *registrar = NULL;
    const kvf_trtllm_rank *found = NULL;
    struct kvf_error error = {0};
    size_t count = 77;

    (void)state;
    assert_int_equal(kvf_trtllm_registrar_create(self, NULL, &registrar, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, peer, NULL, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 0, &found, NULL), KVF_OK);
    assert_ptr_equal(found, peer);
    assert_int_equal(kvf_trtllm_aux_fragments(self, peer, 0, 0, NULL, 0, &count, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "Destination auxiliary buffers are empty for non-empty source indices [1]");
    assert_int_equal(count, 77);
    kvf_trtllm_registrar_destroy(registrar);
    kvf_trtllm_rank_release(peer);
    kvf_trtllm_rank_release(self);
}

/** A source without draft tokens feeds a destination that has some: the buffer is skipped, strides stay. */
static void test_draft_on_one_side(void **state)
{
    static const int64_t own[][3] = {{0x1000, 32, 4}, {0, 0, 0}, {0x3000, 64, 8}, {0x4000, 64, 8}};
    static const int64_t other[][3] = {{0x5000, 32, 4}, {0x6000, 64, 8}, {0x7000, 64, 8}, {0x8000, 64, 8}};
    kvf_trtllm_rank *self = make("self", own, 4), *peer = make("peer", other, 4);

    (void)state;
    expect(self, peer, 1, 2,
           (const struct kvf_trtllm_fragment[]){{0x1004, 0x5008, 4}, {0x3008, 0x7010, 8}, {0x4008, 0x8010, 8}}, 3);
    kvf_trtllm_rank_release(peer);
    kvf_trtllm_rank_release(self);
}

static const struct refusal {
    const char *name;
    int64_t own[2][3], other[2][3];
    size_t counts[2];
    int64_t slots[2];
    int status;
    const char *text;
} refusals[] = {
    {"draft does not fit", {{0x1000, 32, 4}, {0x2000, 32, 4}}, {{0x3000, 32, 4}, {0x4000, 16, 2}}, {2, 2}, {0, 0},
     KVF_ERR_INCOMPATIBLE, "Destination auxiliary buffers are too small at indices [1]"},
    {"other number of buffers", {{0x1000, 32, 4}, {0x2000, 32, 4}}, {{0x3000, 32, 4}}, {2, 1}, {0, 0},
     KVF_ERR_INCOMPATIBLE, "Source and destination auxiliary layouts do not match: "},
    {"null at the source", {{0x1000, 32, 4}, {0, 32, 4}}, {{0x3000, 32, 4}, {0x4000, 32, 4}}, {2, 2}, {0, 0},
     KVF_ERR_INCOMPATIBLE, "source auxiliary transfer: null pointers with non-zero sizes at indices [1]"},
    {"null at the destination", {{0x1000, 32, 4}, {0x2000, 32, 4}}, {{0, 32, 4}, {0, 32, 4}}, {2, 2}, {0, 0},
     KVF_ERR_INCOMPATIBLE, "destination auxiliary transfer: null pointers with non-zero sizes at indices [0, 1]"},
    {"source slot", {{0x1000, 32, 4}}, {{0x3000, 32, 4}}, {1, 1}, {8, 0}, KVF_ERR_OUT_OF_RANGE,
     "source auxiliary slot 8 is outside buffer 0 of 32 bytes, 4 each"},
    {"destination slot", {{0x1000, 32, 4}}, {{0x3000, 32, 4}}, {1, 1}, {0, -1}, KVF_ERR_OUT_OF_RANGE,
     "destination auxiliary slot -1 is outside buffer 0 of 32 bytes, 4 each"},
    {"slot beyond 64 bits", {{0x1000, 32, 4}}, {{0x3000, 32, 4}}, {1, 1}, {INT64_MAX, 0}, KVF_ERR_OUT_OF_RANGE,
     "source auxiliary slot 9223372036854775807 is outside buffer 0"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        const struct refusal *row = &refusals[i];
        kvf_trtllm_rank *self = make("self", row->own, row->counts[0]);
        kvf_trtllm_rank *peer = make("peer", row->other, row->counts[1]);
        struct kvf_trtllm_fragment untouched = {1, 2, 3};
        struct kvf_error error = {0};
        size_t count = 77;

        if ((int)kvf_trtllm_aux_fragments(self, peer, row->slots[0], row->slots[1], &untouched, 1, &count, &error) !=
                row->status || strncmp(error.text, row->text, strlen(row->text)) != 0)
            fail_msg("%s: %s", row->name, error.text);
        assert_int_equal(count, 77);
        assert_int_equal(untouched.bytes, 3);
        kvf_trtllm_rank_release(peer);
        kvf_trtllm_rank_release(self);
    }
}

static void test_capacity(void **state)
{
    static const int64_t own[][3] = {{0x1000, 32, 4}, {0x2000, 32, 4}};
    kvf_trtllm_rank *self = make("self", own, 2), *peer = make("peer", own, 2);
    struct kvf_trtllm_fragment found[2] = {{0}, {9, 9, 9}};
    size_t count = 0;

    (void)state;
    assert_int_equal(kvf_trtllm_aux_fragments(self, peer, 0, 1, found, 1, &count, NULL), KVF_OK);
    assert_int_equal(count, 2);
    assert_int_equal(found[0].dst_address, 0x1004);
    assert_int_equal(found[1].bytes, 9);
    kvf_trtllm_rank_release(peer);
    kvf_trtllm_rank_release(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_registrar_caches_and_invalidates_aux_transfer_layout),
        cmocka_unit_test(test_peer_registration_allows_asymmetric_aux_layout_for_context_first),
        cmocka_unit_test(test_draft_on_one_side),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_capacity),
    };

    return cmocka_run_group_tests_name("aux", tests, NULL, NULL);
}
