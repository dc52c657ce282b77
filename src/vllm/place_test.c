/* SPDX-License-Identifier: Apache-2.0 */
/* Where a layer's cache lies in each physical layout, with and without padding, and what kernels make of a block. */
#include "vllm/region_kit.h"

#include <stdlib.h>
#include <string.h>

/* 3 tokens, 2 heads, 4 + 1 elements of 2 bytes: pages of 60 bytes. */
static const struct kvf_vllm_facts usual = {.block_tokens = 3, .kv_heads = 2, .head_size = 4, .head_size_v = 1,
                                            .element_bytes = 2, .tokens_per_state = 1};

static void test_strides_of_every_order(void **state)
{
    /* 5 layers, 7 blocks; strides of B, H, N, C and of L, in elements of 2 bytes. */
    static const struct {
        const char *label;
        int physical;
        int64_t strides[4], layer_stride;
    } rows[] = {
        {"LBHNC", KVF_VLLM_LBHNC, {30, 15, 5, 1}, 210}, {"LBNHC", KVF_VLLM_LBNHC, {30, 5, 10, 1}, 210},
        {"LHBNC", KVF_VLLM_LHBNC, {15, 105, 5, 1}, 210}, {"BLHNC", KVF_VLLM_BLHNC, {150, 15, 5, 1}, 30},
        {"BLNHC", KVF_VLLM_BLNHC, {150, 5, 10, 1}, 30}, {"BHLNC", KVF_VLLM_BHLNC, {150, 75, 5, 1}, 15},
    };
    static const int64_t shape[] = {7, 2, 3, 5};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int64_t layer = 0; layer < 5; layer++) {
            struct kvf_vllm_placed placed;

            assert_int_equal(kvf_vllm_place(&usual, rows[i].physical, 5, layer, 7, &placed, NULL), KVF_OK);
            if (memcmp(placed.shape, shape, sizeof shape) != 0
                || memcmp(placed.strides, rows[i].strides, sizeof placed.strides) != 0
                || placed.offset_bytes != layer * rows[i].layer_stride * 2) {
                fail_msg("%s, layer %d", rows[i].label, (int)layer);
            }
            assert_int_equal(placed.allocation_bytes, 5 * 7 * 60);
            assert_int_equal(placed.page_bytes, 60);
            assert_int_equal(placed.unpadded_page_bytes, 60);
            assert_int_equal(placed.element_bytes, 2);
        }
    }
}

/* Every element has a place of its own: all are counted once. */
static void test_no_two_elements_share_a_place(void **state)
{
    (void)state;
    for (int physical = KVF_VLLM_LBHNC; physical <= KVF_VLLM_BHLNC; physical++) {
        for (int padded = 0; padded < 2; padded++) {
            struct kvf_vllm_facts facts = usual;
            struct kvf_vllm_placed placed;
            int64_t elements = 0;
            char *seen;

            facts.head_slots = 1;
            facts.padded_page_bytes = padded ? 34 : 0;
            assert_int_equal(kvf_vllm_place(&facts, physical, 3, 0, 4, &placed, NULL), KVF_OK);
            assert_int_equal(placed.allocation_bytes, 3 * 4 * (padded ? 34 : 30));
            seen = calloc(1, (size_t)placed.allocation_bytes);
            assert_non_null(seen);
            for (int64_t layer = 0; layer < 3; layer++) {
                assert_int_equal(kvf_vllm_place(&facts, physical, 3, layer, 4, &placed, NULL), KVF_OK);
                for (int64_t i = 0; i < 4 * 1 * 3 * 5; i++) {
                    int64_t at = i / 15 * placed.strides[0] + i / 5 % 3 * placed.strides[2] + i % 5 * placed.strides[3];

                    at = at * 2 + placed.offset_bytes;
                    if (at < 0 || at + 2 > placed.allocation_bytes)
                        fail_msg("layer %d, element %d lies at byte %d", (int)layer, (int)i, (int)at);
                    else
                        elements += !seen[at]++;
                }
            }
            assert_int_equal(elements, 3 * 4 * 15);
            free(seen);
        }
    }
}

static void test_padding_is_outside_of_a_page(void **state)
{
    static const struct {
        int physical;
        int64_t block, head, tokens, layer;
    } rows[] = {
        {KVF_VLLM_LBHNC, 32, 15, 5, 224}, {KVF_VLLM_LBNHC, 32, 5, 10, 224},
        {KVF_VLLM_BLHNC, 160, 15, 5, 32}, {KVF_VLLM_BLNHC, 160, 5, 10, 32},
    };
    struct kvf_vllm_facts facts = usual;
    struct kvf_vllm_placed placed;
    struct kvf_error error = {0};

    (void)state;
    facts.padded_page_bytes = 64;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(kvf_vllm_place(&facts, rows[i].physical, 5, 1, 7, &placed, NULL), KVF_OK);
        assert_int_equal(placed.strides[0], rows[i].block);
        assert_int_equal(placed.strides[1], rows[i].head);
        assert_int_equal(placed.strides[2], rows[i].tokens);
        assert_int_equal(placed.offset_bytes, rows[i].layer * 2);
        assert_int_equal(placed.page_bytes, 64);
        assert_int_equal(placed.unpadded_page_bytes, 60);
        assert_int_equal(placed.allocation_bytes, 5 * 7 * 64);
    }
    assert_int_equal(kvf_vllm_place(&facts, KVF_VLLM_LHBNC, 5, 1, 7, &placed, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "facts: padded_page_bytes 64 with 2 head slots outside of a page's tokens");
}

static void test_content_and_states(void **state)
{
    struct kvf_vllm_facts facts = usual;
    struct kvf_vllm_placed placed;

    (void)state;
    facts.head_size_v = -1;
    assert_int_equal(kvf_vllm_place(&facts, KVF_VLLM_LBHNC, 1, 0, 1, &placed, NULL), KVF_OK);
    assert_int_equal(placed.shape[3], 8);
    facts.head_size_v = 0;
    facts.head_slots = 3;
    facts.tokens_per_state = 3;
    assert_int_equal(kvf_vllm_place(&facts, KVF_VLLM_LBHNC, 1, 0, 1, &placed, NULL), KVF_OK);
    assert_int_equal(placed.shape[1], 3);
    assert_int_equal(placed.shape[2], 1);
    assert_int_equal(placed.shape[3], 4);
    facts.state_content_bytes = 20;
    assert_int_equal(kvf_vllm_place(&facts, KVF_VLLM_LBHNC, 1, 0, 1, &placed, NULL), KVF_OK);
    assert_int_equal(placed.shape[3], 10);
    assert_int_equal(placed.page_bytes, 60);
}

static void test_refuses_facts_without_sense(void **state)
{
    static const struct {
        const char *text;
        int status;
        struct kvf_vllm_facts facts;
    } rows[] = {
        {"facts: block_tokens is 0, expected 1 or more", KVF_ERR_INVALID_ARGUMENT, {0, 1, 1, 1, 1, 1, 0, 0, 0}},
        {"facts: kv_heads is -1, expected 1 or more", KVF_ERR_INVALID_ARGUMENT, {1, -1, 1, 1, 1, 1, 0, 0, 0}},
        {"facts: head_size_v is -2, expected -1 or more", KVF_ERR_INVALID_ARGUMENT, {1, 1, 1, -2, 1, 1, 0, 0, 0}},
        {"facts: element_bytes is 0, expected 1 or more", KVF_ERR_INVALID_ARGUMENT, {1, 1, 1, 1, 0, 1, 0, 0, 0}},
        {"facts: tokens_per_state is 0, expected 1 or more", KVF_ERR_INVALID_ARGUMENT, {1, 1, 1, 1, 1, 0, 0, 0, 0}},
        {"facts: block_tokens 4 is no multiple of tokens_per_state 3", KVF_ERR_INVALID_ARGUMENT,
         {4, 1, 1, 1, 1, 3, 0, 0, 0}},
        {"facts: a state's content of 3 bytes (state_content_bytes, or head_size and head_size_v), expected a multiple "
         "of element_bytes 2 above 0", KVF_ERR_INVALID_ARGUMENT, {1, 1, 1, 1, 2, 1, 3, 0, 0}},
        {"facts: a state's content of 0 bytes (state_content_bytes, or head_size and head_size_v), expected a multiple "
         "of element_bytes 2 above 0", KVF_ERR_INVALID_ARGUMENT, {1, 1, 0, 0, 2, 1, 0, 0, 0}},
        {"facts: padded_page_bytes 3, expected a multiple of element_bytes 1, at least 4", KVF_ERR_INVALID_ARGUMENT,
         {1, 2, 1, 1, 1, 1, 0, 0, 3}},
        {"facts: padded_page_bytes 9, expected a multiple of element_bytes 2, at least 8", KVF_ERR_INVALID_ARGUMENT,
         {1, 2, 1, 1, 2, 1, 0, 0, 9}},
        {"facts: a state's content does not fit in 64 bits", KVF_ERR_OVERFLOW, {1, 1, INT64_MAX, 1, 1, 1, 0, 0, 0}},
        {"facts: a page does not fit in 64 bits", KVF_ERR_OVERFLOW, {INT64_MAX, INT64_MAX, 1, 0, 1, 1, 0, 0, 0}},
        {"allocation: its bytes do not fit in 64 bits", KVF_ERR_OVERFLOW, {INT64_MAX, 1, 1, 0, 1, 1, 0, 0, 0}},
    };
    struct kvf_vllm_placed placed;
    struct kvf_error error;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int physical = KVF_VLLM_LBHNC; physical <= KVF_VLLM_BHLNC; physical++) {
            assert_int_equal(kvf_vllm_place(&rows[i].facts, physical, 2, 0, 2, &placed, &error), rows[i].status);
            assert_string_equal(error.text, rows[i].text);
        }
    }
    assert_int_equal(kvf_vllm_place(&usual, -1, 1, 0, 1, &placed, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_place(&usual, 6, 1, 0, 1, &placed, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_place(&usual, 0, 1, 1, 1, &placed, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_place(&usual, 0, 0, 0, 1, &placed, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_place(&usual, 0, 1, 0, 0, &placed, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_place(NULL, 0, 1, 0, 1, &placed, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_place(&usual, 0, 1, 0, 1, NULL, NULL), KVF_ERR_INVALID_ARGUMENT);
}

static void test_kernel_block_tokens(void **state)
{
    static const int64_t small[] = {32, 64, 16}, odd[] = {0, -16, 48, 1000}, one[] = {16};
    const struct kvf_vllm_backend listed = {small, 3, 0}, multiples = {NULL, 0, 16}, both = {odd, 4, 128},
                                  only = {one, 1, 0};
    const struct {
        const char *label;
        int64_t logical;
        struct kvf_vllm_backend backends[2];
        size_t count;
        int64_t tokens; /* 0: none */
    } rows[] = {
        {"listed", 32, {listed}, 1, 32},
        {"a divisor", 128, {listed}, 1, 64},
        {"the largest that both list", 128, {listed, only}, 2, 16},
        {"a multiple", 240, {multiples}, 1, 240},
        {"none", 24, {listed}, 1, 0},
        {"none in common", 48, {{small, 3, 0}, {odd, 4, 0}}, 2, 0},
        {"multiples and a list", 192, {multiples, listed}, 2, 64},
        {"listed or a multiple", 256, {both}, 1, 256},
        {"listed, not a multiple", 96, {both, multiples}, 2, 48},
        {"nobody asks", 7, {listed}, 0, 7},
    };
    int64_t tokens;
    struct kvf_error error = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum kvf_status status;

        tokens = 0;
        status = kvf_vllm_kernel_block_tokens(rows[i].logical, rows[i].backends, rows[i].count, &tokens, &error);
        if (status != (rows[i].tokens ? KVF_OK : KVF_ERR_INCOMPATIBLE) || tokens != rows[i].tokens) {
            fail_msg("%s: %d, %s", rows[i].label, (int)tokens, error.text);
        }
    }
    assert_int_equal(kvf_vllm_kernel_block_tokens(0, &listed, 1, &tokens, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_kernel_block_tokens(1, NULL, 1, &tokens, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_kernel_block_tokens(1, &listed, 1, NULL, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_kernel_block_tokens(1, &(struct kvf_vllm_backend){NULL, 1, 0}, 1, &tokens, NULL),
                     KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_kernel_block_tokens(1, &(struct kvf_vllm_backend){NULL, 0, -1}, 1, &tokens, NULL),
                     KVF_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strides_of_every_order),
        cmocka_unit_test(test_no_two_elements_share_a_place),
        cmocka_unit_test(test_padding_is_outside_of_a_page),
        cmocka_unit_test(test_content_and_states),
        cmocka_unit_test(test_refuses_facts_without_sense),
        cmocka_unit_test(test_kernel_block_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
