/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's rules of pairing, with the numbers of its own tests and with every text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "vllm/rules.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct kvfi_vllm_cut plan(const struct kvfi_vllm_ranks *ranks, int64_t local, int64_t remote)
{
    struct kvfi_vllm_cut cut = {0};
    struct kvf_error error;

    if (kvfi_vllm_sender_plan(ranks, local, remote, &cut, &error) != KVF_OK) fail_msg("%s", error.text);
    return cut;
}

/* sender_plan_replicated_gqa_tp8_to_smaller_tp */
static void test_sender_plan_replicated_gqa_tp8_to_smaller_tp(void **state)
{
    static const int64_t wanted[2][4] = {{0, 65536, 131072, 196608}, {0, 65536, 0, 65536}};

    (void)state;
    for (int64_t n = 1; n <= 2; n++) {
        for (int64_t r = 0; r < 8; r++) {
            struct kvfi_vllm_ranks ranks = {r, 8, r / (8 / n), n, true, 4};
            struct kvfi_vllm_cut cut = plan(&ranks, 65536, 262144 / n);

            assert_int_equal(cut.sends, r % 2 == 0);
            if (!cut.sends) continue;
            assert_int_equal(cut.src_offset_bytes, 0);
            assert_int_equal(cut.dst_offset_bytes, wanted[n - 1][r / 2]);
            assert_int_equal(cut.bytes, 65536);
        }
    }
}

/* sender_plan_gqa_to_replicated_tp8 */
static void test_sender_plan_gqa_to_replicated_tp8(void **state)
{
    static const struct {
        int64_t size, offsets[8];
    } rows[] = {
        {1, {0, 0, 65536, 65536, 131072, 131072, 196608, 196608}},
        {2, {0, 0, 65536, 65536, 0, 0, 65536, 65536}},
        {4, {0}},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (int64_t r = 0; r < 8; r++) {
            struct kvfi_vllm_ranks ranks = {r / (8 / rows[i].size), rows[i].size, r, 8, false, 4};
            struct kvfi_vllm_cut cut = plan(&ranks, 4 / rows[i].size * 65536, 65536);

            assert_true(cut.sends);
            assert_int_equal(cut.src_offset_bytes, rows[i].offsets[r]);
            assert_int_equal(cut.dst_offset_bytes, 0);
            assert_int_equal(cut.bytes, 65536);
        }
    }
}

static void test_sender_plan(void **state)
{
    static const struct {
        const char *name;
        struct kvfi_vllm_ranks ranks;
        int64_t local, remote;
        struct kvfi_vllm_cut cut;
    } rows[] = {
        {"equal sizes", {3, 4, 3, 4, false, 8}, 512, 512, {true, 0, 0, 512}},
        {"equal sizes, even of copies", {3, 8, 3, 8, true, 4}, 512, 512, {true, 0, 0, 512}},
        {"joined", {3, 4, 1, 2, false, 8}, 512, 1024, {true, 0, 512, 512}},
        {"cut", {1, 2, 3, 4, false, 8}, 1024, 512, {true, 512, 0, 512}},
        {"latent, first of two", {2, 4, 1, 2, true, 0}, 576, 576, {true, 0, 0, 576}},
        {"latent, second of two", {3, 4, 1, 2, true, 0}, 576, 576, {false, 0, 0, 576}},
        {"latent to more ranks", {1, 2, 3, 4, true, 0}, 576, 576, {true, 0, 0, 576}},
        {"copies on both sides", {5, 8, 2, 4, true, 2}, 64, 64, {false, 0, 0, 64}},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvfi_vllm_cut cut = plan(&rows[i].ranks, rows[i].local, rows[i].remote);

        if (cut.sends != rows[i].cut.sends || cut.src_offset_bytes != rows[i].cut.src_offset_bytes ||
            cut.dst_offset_bytes != rows[i].cut.dst_offset_bytes || cut.bytes != rows[i].cut.bytes)
            fail_msg("%s: %d %lld %lld %lld", rows[i].name, cut.sends, (long long)cut.src_offset_bytes,
                     (long long)cut.dst_offset_bytes, (long long)cut.bytes);
    }
}

/* region_length_validation_checks_replicated_gqa_heads */
static void test_region_length_validation_checks_replicated_gqa_heads(void **state)
{
    static const struct {
        int64_t local_size, remote_size, local, remote;
        enum kvf_status status;
    } rows[] = {
        {1, 8, 262144, 65536, KVF_OK},
        {8, 1, 65536, 262144, KVF_OK},
        {1, 8, 262144, 131072, KVF_ERR_INCOMPATIBLE},
        {8, 1, 131072, 262144, KVF_ERR_INCOMPATIBLE},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvf_vllm_region local = {.block_len = rows[i].local, .kv_block_len = rows[i].local};
        struct kvf_vllm_region remote = {.block_len = rows[i].remote, .kv_block_len = rows[i].remote};
        struct kvfi_vllm_ranks ranks = {0, rows[i].local_size, 0, rows[i].remote_size, rows[i].local_size > 4, 4};
        struct kvf_error error;

        assert_int_equal(kvfi_vllm_check_lengths(&ranks, &local, 1, &remote, 1, &error), rows[i].status);
    }
}

/* packed_and_unpacked_region_lengths_fail_homogeneous_tp_handshake */
static void test_packed_and_unpacked_region_lengths_fail_homogeneous_tp_handshake(void **state)
{
    struct kvf_vllm_region local = {.block_len = 2048, .kv_block_len = 2048};
    struct kvf_vllm_region remote[2] = {{.block_len = 64, .kv_block_len = 64}, {.block_len = 64, .kv_block_len = 64}};
    struct kvfi_vllm_ranks ranks = {0, 1, 0, 1, false, 12};
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_vllm_check_lengths(&ranks, &local, 1, remote, 1, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "Mooncake KV region length mismatch for homogeneous TP at region 0: local=2048, "
                                    "remote=64.");
    assert_int_equal(kvfi_vllm_check_lengths(&ranks, &local, 1, remote, 2, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "Mooncake asymmetric TP requires matching KV region counts between producer and "
                                    "consumer.");
}

static void test_lengths(void **state)
{
    static const struct {
        const char *name;
        struct kvfi_vllm_ranks ranks;
        int64_t local, remote;
        const char *text; /* NULL = taken */
    } rows[] = {
        {"latent: nothing is looked at", {0, 4, 0, 3, true, 0}, 1, 2, NULL},
        {"no heads given, not replicated", {0, 4, 0, 2, false, 0}, 512, 1024, NULL},
        {"joined", {0, 4, 0, 2, false, 8}, 512, 512,
         "Mooncake destination KV region length does not match the producer TP ratio at region 0: local=512, "
         "remote=512, tp_ratio=2."},
        {"cut", {0, 2, 0, 4, false, 8}, 512, 512,
         "Mooncake source KV region length does not match the consumer TP ratio at region 0: local=512, remote=512, "
         "tp_ratio=-2."},
        {"heads do not divide", {0, 4, 0, 8, false, 6}, 512, 512,
         "Remote tensor parallel size 6 is not divisible by local tensor parallel size 4."},
        {"a product that does not fit", {0, 4, 0, 1, false, 8}, INT64_MAX, INT64_MAX - 3,
         "Mooncake destination KV region length does not match the producer TP ratio at region 0: "
         "local=9223372036854775807, remote=9223372036854775804, tp_ratio=4."},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvf_vllm_region local = {.kv_block_len = rows[i].local}, remote = {.kv_block_len = rows[i].remote};
        struct kvf_error error = {.text = ""};
        enum kvf_status status = kvfi_vllm_check_lengths(&rows[i].ranks, &local, 1, &remote, 1, &error);

        if ((status == KVF_OK) != !rows[i].text || (rows[i].text && strcmp(rows[i].text, error.text) != 0))
            fail_msg("%s: status %d, %s", rows[i].name, status, error.text);
    }
}

static void test_ranks(void **state)
{
    static const struct {
        const char *name;
        int64_t rank, size, other, first, count, remote_pp, pp, need;
        const char *text; /* NULL = taken */
    } rows[] = {
        {"equal", 2, 4, 4, 2, 1, 1, 1, 1, NULL},
        {"to fewer", 5, 8, 2, 1, 1, 1, 1, 1, NULL},
        {"to more", 1, 2, 8, 4, 4, 1, 1, 4, NULL},
        {"to more, and to stages", 1, 2, 8, 4, 4, 2, 1, 8, NULL},
        {"to equal stages", 1, 2, 8, 4, 4, 2, 2, 4, NULL},
        {"to one stage of two", 1, 2, 2, 1, 1, 1, 2, 1, NULL},
        {"indivisible local", 1, 3, 2, 0, 0, 1, 1, 0,
         "Local tensor parallel size 3 is not divisible by remote tensor parallel size 2."},
        {"indivisible remote", 1, 2, 3, 0, 0, 1, 1, 0,
         "Remote tensor parallel size 3 is not divisible by local tensor parallel size 2."},
        {"no ranks", 1, 2, 0, 0, 0, 1, 1, 0, "tensor parallel sizes 2 (local) and 0 (remote), expected 1 or more"},
        {"too many stages", 0, 1, 4, 0, 0, INT64_MAX, 1, 0,
         "4 ranks in each of 9223372036854775807 pipeline stages do not fit"},
        {"too many ranks", 4, 2, INT64_C(1) << 62, 0, 0, 1, 1, 0,
         "the ranks of TP size 4611686018427387904 that rank 4 of 2 meets do not fit"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t first = 0, count = 0, need = 0;
        struct kvf_error error = {.text = ""};
        enum kvf_status status = kvfi_vllm_target_ranks(rows[i].rank, rows[i].size, rows[i].other, &first, &count,
                                                        &error);

        if (status == KVF_OK) status = kvfi_vllm_need_send(count, rows[i].remote_pp, rows[i].pp, &need, &error);
        if ((status == KVF_OK) != !rows[i].text || (rows[i].text && strcmp(rows[i].text, error.text) != 0))
            fail_msg("%s: status %d, %s", rows[i].name, status, error.text);
        if (status == KVF_OK && (first != rows[i].first || count != rows[i].count || need != rows[i].need))
            fail_msg("%s: [%lld, +%lld), %lld", rows[i].name, (long long)first, (long long)count, (long long)need);
    }
}

static void test_unpaired_ranks_are_told_whom_they_meet(void **state)
{
    struct kvfi_vllm_ranks ranks = {.tp_rank = 0, .tp_size = 2, .remote_tp_rank = 3, .remote_tp_size = 4};
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_vllm_check_paired(&ranks, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "This D tp_rank 3 is not paired with P tp_rank 0; expected one of [0, 1].");
    ranks.tp_rank = 1;
    assert_int_equal(kvfi_vllm_check_paired(&ranks, &error), KVF_OK);
    ranks.remote_tp_rank = -1;
    assert_int_equal(kvfi_vllm_check_paired(&ranks, &error), KVF_ERR_INCOMPATIBLE);
    ranks.remote_tp_size = INT64_C(1) << 60; /* a list that no text holds */
    assert_int_equal(kvfi_vllm_check_paired(&ranks, &error), KVF_ERR_INCOMPATIBLE);
}

static struct kvf_vllm_arrays arrays(const int64_t *rows, const int64_t *kv, const int64_t *strides, size_t row_count,
                                     size_t count)
{
    return (struct kvf_vllm_arrays){.row_offsets = rows, .row_offset_count = row_count, .kv_block_lens = kv,
                                    .kv_block_len_count = count, .block_lens = strides, .block_len_count = count};
}

static const int64_t page_rows[] = {0, 1024}, page_kv[] = {1000, 1000}, page_strides[] = {4096, 4096};

/* opaque_packed_row_is_full_stride_at_offset_zero */
static void test_opaque_packed_row_is_full_stride_at_offset_zero(void **state)
{
    struct kvf_vllm_arrays row = arrays(page_rows, page_strides, page_strides, 1, 1);
    struct kvf_vllm_arrays page = arrays(page_rows, page_kv, page_strides, 2, 2);
    struct kvf_vllm_arrays none = arrays(page_rows, page_strides, page_strides, 0, 1);

    (void)state;
    assert_true(kvfi_vllm_has_opaque_row(&row));
    assert_false(kvfi_vllm_has_opaque_row(&page));
    assert_false(kvfi_vllm_has_opaque_row(&none));
}

/* pp_mismatch_rejects_opaque_row_in_both_directions */
static void test_pp_mismatch_rejects_opaque_row_in_both_directions(void **state)
{
    struct kvf_vllm_arrays row = arrays(page_rows, page_strides, page_strides, 1, 1);
    struct kvf_vllm_arrays page = arrays(page_rows, page_kv, page_strides, 2, 2);

    (void)state;
    assert_true(kvfi_vllm_pp_hides_layers(2, 1, true, &page));
    assert_true(kvfi_vllm_pp_hides_layers(1, 2, false, &row));
    assert_false(kvfi_vllm_pp_hides_layers(2, 2, true, &row));
    assert_false(kvfi_vllm_pp_hides_layers(2, 1, false, &page));
}

static void test_heads(void **state)
{
    static const struct kvf_vllm_layer layers[] = {
        {.name = "l.0.fine", .kind = KVF_VLLM_ATTENTION, .page_bytes = 64, .unpadded_page_bytes = 64},
        {.name = "l.1.four", .kind = KVF_VLLM_ATTENTION, .is_nvfp4 = 1, .page_bytes = 64, .unpadded_page_bytes = 64},
        {.name = "l.2.pad", .kind = KVF_VLLM_ATTENTION, .page_bytes = 64, .unpadded_page_bytes = 60},
        {.name = "l.3.state", .kind = KVF_VLLM_MAMBA, .page_bytes = 64, .unpadded_page_bytes = 60},
        {.name = "l.4.none"},
    };
    static const struct {
        const char *name, *layer;
        struct kvfi_vllm_ranks ranks;
        const char *text; /* NULL = taken */
    } rows[] = {
        {"plain", "l.0.fine", {0, 2, 0, 4, false, 8}, NULL},
        {"padded", "l.2.pad", {0, 2, 0, 4, false, 8},
         "Mooncake KV-head re-sharding is not supported for padded KV pages (layer l.2.pad)."},
        {"padded, equal shards", "l.2.pad", {0, 8, 0, 4, true, 4}, NULL},
        {"padded, heads do not matter", "l.2.pad", {0, 2, 0, 4, false, 0}, NULL},
        {"four bits", "l.1.four", {0, 2, 0, 4, false, 8},
         "Mooncake KV-head re-sharding is not supported for NVFP4 KV cache."},
        {"recurrent", "l.3.state", {0, 2, 0, 4, false, 8}, NULL},
        {"nothing known", "l.4.none", {0, 2, 0, 4, false, 8},
         "layer l.4.none: its heads would be cut or joined, and nothing is known of its pages"},
        {"not there", "l.5", {0, 2, 0, 4, false, 8},
         "layer l.5: its heads would be cut or joined, and nothing is known of its pages"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvf_vllm_region local = {.layer_name = rows[i].layer};
        struct kvf_error error = {.text = ""};
        enum kvf_status status = kvfi_vllm_check_heads(&rows[i].ranks, &local, 1, layers, COUNT(layers), &error);

        if ((status == KVF_OK) != !rows[i].text || (rows[i].text && strcmp(rows[i].text, error.text) != 0))
            fail_msg("%s: status %d, %s", rows[i].name, status, error.text);
    }
}

static void test_cuts_that_leave_a_payload(void **state)
{
    struct kvfi_vllm_cut cut = {true, 64, 0, 64};
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_vllm_check_cut(&cut, 128, 64, &error), KVF_OK);
    assert_int_equal(kvfi_vllm_check_cut(&cut, 127, 64, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "Computed source transfer region exceeds local KV block size.");
    assert_int_equal(kvfi_vllm_check_cut(&cut, 128, 63, &error), KVF_ERR_INCOMPATIBLE);
    assert_string_equal(error.text, "Destination transfer region exceeds remote KV block size.");
    cut.src_offset_bytes = INT64_MAX;
    assert_int_equal(kvfi_vllm_check_cut(&cut, INT64_MAX, 64, &error), KVF_ERR_INCOMPATIBLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sender_plan_replicated_gqa_tp8_to_smaller_tp),
        cmocka_unit_test(test_sender_plan_gqa_to_replicated_tp8),
        cmocka_unit_test(test_sender_plan),
        cmocka_unit_test(test_region_length_validation_checks_replicated_gqa_heads),
        cmocka_unit_test(test_packed_and_unpacked_region_lengths_fail_homogeneous_tp_handshake),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_unpaired_ranks_are_told_whom_they_meet),
        cmocka_unit_test(test_opaque_packed_row_is_full_stride_at_offset_zero),
        cmocka_unit_test(test_pp_mismatch_rejects_opaque_row_in_both_directions),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_cuts_that_leave_a_payload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
