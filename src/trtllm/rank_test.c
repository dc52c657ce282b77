/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos in memory: what is copied, and what is refused. */
#include <stdlib.h>
#include <string.h>

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
    again = kvf_trtllm_rank_acquire(rank);
    kvf_trtllm_rank_release(rank);
    assert_string_equal(kvf_trtllm_rank_get_spec(again)->instance_name, "ctx");
    kvf_trtllm_rank_release(again);
    kvf_trtllm_rank_release(NULL);
}

/* A rank with all that a rank can have; each row spoils one thing. */
static void full(struct rank_kit *kit)
{
    rank_kit_init(kit, "ctx");
    rank_kit_pt(kit, 1024, 2, 2, 2, 5, 3);
    rank_kit_side(kit, 8);
    rank_kit_aux(kit, 1, (int64_t)0x1000, (int64_t)64, (int64_t)8);
    kit->endpoints[0] = "tcp://10.0.0.1:5000";
    kit->spec.sender_endpoint_count = 1;
}

static char long_text[KVF_TRTLLM_MAX_TEXT_BYTES + 2];

#define EDIT(name, ...) \
    static void name(struct rank_kit *kit) \
    { \
        __VA_ARGS__; \
    }

EDIT(no_name, kit->spec.instance_name = NULL)
EDIT(long_name, kit->spec.instance_name = long_text)
EDIT(control_name, kit->spec.instance_name = "a\nb")
EDIT(bad_utf8, kit->endpoints[0] = "\xff")
EDIT(no_endpoint, kit->endpoints[0] = NULL)
EDIT(many_endpoints, kit->spec.sender_endpoint_count = KVF_TRTLLM_MAX_RANKS + 1)
EDIT(no_endpoints, kit->spec.sender_endpoints = NULL)
EDIT(negative_rank, kit->spec.instance_rank = -1)
EDIT(tp_outside, kit->spec.tp_rank = 2)
EDIT(pp_empty, kit->spec.pp_size = 0; kit->spec.layer_num_count = 1)
EDIT(cp_huge, kit->spec.cp_size = KVF_TRTLLM_MAX_RANKS + 1)
EDIT(dp_negative, kit->spec.dp_rank = -1)
EDIT(stages_missing, rank_kit_stages(kit, 2, (int64_t)1, (int64_t)1))
EDIT(stage_negative, rank_kit_stages(kit, 1, (int64_t)-1))
EDIT(stages_overflow, kit->spec.pp_size = 2; rank_kit_stages(kit, 2, INT64_MAX, (int64_t)1))
EDIT(heads_negative, kit->attention.kv_heads_per_rank = -1)
EDIT(no_tokens, kit->attention.tokens_per_block = 0)
EDIT(no_element, kit->attention.element_eighths = 0)
EDIT(flag_two, kit->attention.is_mla = 2)
EDIT(attention_overflow, kit->attention.dims_per_head = INT64_MAX / 16)
EDIT(dp_over_tp, kit->attention.enable_attention_dp = 1; kit->spec.dp_size = 3)
EDIT(unknown_key, kit->spec.keys = 16)
EDIT(lost_version, kit->spec.keys = 14; kit->spec.protocol_version = 2)
EDIT(lost_replay, kit->spec.keys = 13; kit->spec.bounded_replay_on_generation = 1)
EDIT(lost_draft, kit->spec.keys = 11; kit->spec.num_draft_layers = 1)
EDIT(lost_dtype, kit->spec.keys = 7; kit->spec.draft_kv_dtype = "FP8")
EDIT(version_far, kit->spec.protocol_version = INT64_MIN)
EDIT(element_huge, kit->attention.element_eighths = (int64_t)1 << 31)
EDIT(draft_negative, kit->spec.num_draft_layers = -1)
EDIT(many_aux, kit->aux.size_count = KVF_TRTLLM_MAX_AUX + 1)
EDIT(no_device, kit->aux.device = NULL)
EDIT(table_tokens, kit->table.tokens_per_block = 0)
EDIT(many_groups, kit->table.group_count = KVF_TRTLLM_MAX_GROUPS + 1)
EDIT(no_groups, kit->table.groups = NULL)
EDIT(many_pool_groups, kit->table.pool_group_count = KVF_TRTLLM_MAX_GROUPS + 1)
EDIT(many_pools, kit->pool_groups[0].pool_count = KVF_TRTLLM_MAX_POOLS)
EDIT(many_views, kit->groups[1].view_count = KVF_TRTLLM_MAX_VIEWS)
EDIT(many_layers, kit->groups[1].layer_count = KVF_TRTLLM_MAX_ENTRIES)
EDIT(many_entries, kit->views[1][0].entry_count = KVF_TRTLLM_MAX_ENTRIES)
EDIT(many_sections, kit->views[1][0].section_count = KVF_TRTLLM_MAX_ENTRIES + 1)
EDIT(many_roles, kit->views[1][0].role_count = KVF_TRTLLM_MAX_ENTRIES + 1)
EDIT(cache_two, kit->groups[1].cache = 2)
EDIT(pool_group_outside, kit->groups[1].pool_group = 2)
EDIT(window_zero, kit->groups[0].sliding_window_size = 0)
EDIT(slot_major_two, kit->groups[1].slot_major_layout = 2)
EDIT(global_negative, kit->layers[0][0].global_layer = -1)
EDIT(local_twice, kit->layers[0][1].local_layer = 0)
EDIT(global_twice, kit->layers[0][1].global_layer = 5)
EDIT(pool_outside, kit->views[1][2].pool = 3)
EDIT(nhd_state, kit->views[1][1].mapper = KVF_TRTLLM_NHD)
EDIT(sectioned_paged, kit->views[0][0].mapper = KVF_TRTLLM_SECTIONED)
EDIT(mapper_four, kit->views[0][0].mapper = 4)
EDIT(role_twice, kit->roles[0][0][0] = "key"; kit->roles[0][0][1] = "key"; kit->views[0][0].role_count = 2)
EDIT(role_long, rank_kit_role(kit, 0, 0, long_text + sizeof long_text - 2 - KVF_TRTLLM_MAX_ROLE_BYTES))
EDIT(role_control, rank_kit_role(kit, 0, 0, "k\t"))
EDIT(declared_negative, kit->views[1][0].bytes_per_layer = -1)
EDIT(declared_huge, kit->views[1][0].bytes_per_layer = INT64_MAX)
EDIT(heads_huge, kit->views[0][0].num_kv_heads = INT64_MAX)
EDIT(head_bytes_zero, kit->views[1][1].bytes_per_head = 0)
EDIT(ring_zero, kit->views[1][2].ring_slot_bytes = 0)
EDIT(section_negative, kit->sections[1][0][2] = -1)
EDIT(section_huge, kit->sections[1][0][2] = INT64_MAX)
EDIT(entry_layer, kit->entries[0][0][3].local_layer = 2)
EDIT(entry_offset, kit->entries[0][0][3].offset_bytes = -1)
EDIT(entry_size, kit->entries[0][0][3].size_bytes = 0)
EDIT(entry_end, kit->entries[0][0][3].offset_bytes = INT64_MAX)
EDIT(entry_far, kit->entries[0][0][3].offset_bytes = INT64_MAX - 256)
EDIT(entry_total, kit->entries[0][0][0].size_bytes = INT64_MAX / 2 + 1; kit->entries[0][0][0].offset_bytes = 0;
     kit->entries[0][0][1] = kit->entries[0][0][0]; kit->pools[0][0].num_slots = 1)
EDIT(no_slots, kit->pools[1][0].num_slots = 0)
EDIT(no_slot_bytes, kit->pools[1][0].slot_bytes = 0)
EDIT(stride_short, kit->pools[1][0].slot_stride_bytes = 2047)
EDIT(layer_stride, kit->pools[1][0].layer_stride_bytes = -1)
EDIT(pool_wraps, kit->pools[1][0].base_address = UINT64_MAX - 2048 * 128 + 1)
EDIT(pool_product, kit->pools[1][0].slot_stride_bytes = INT64_MAX / 2)
EDIT(entry_wraps, kit->pools[0][0].base_address = UINT64_MAX - 1024 * 128; kit->entries[0][0][3].offset_bytes = 769)

static const struct {
    const char *name;
    void (*edit)(struct rank_kit *kit);
    int status;
    const char *text;
} refusals[] = {
    {"no name", no_name, KVF_ERR_INVALID_ARGUMENT, "name is missing"},
    {"long name", long_name, KVF_ERR_LIMIT, "name has more than 4096 bytes"},
    {"control character", control_name, KVF_ERR_LAYOUT, "instance name is not UTF-8"},
    {"broken UTF-8", bad_utf8, KVF_ERR_LAYOUT, "sender endpoint is not UTF-8"},
    {"no endpoint", no_endpoint, KVF_ERR_INVALID_ARGUMENT, "sender endpoint is missing"},
    {"many endpoints", many_endpoints, KVF_ERR_LIMIT, "65537 more sender endpoints"},
    {"no endpoints", no_endpoints, KVF_ERR_INVALID_ARGUMENT, "1 sender endpoints but no array"},
    {"negative rank", negative_rank, KVF_ERR_LAYOUT, "instance_rank is -1"},
    {"tp rank outside", tp_outside, KVF_ERR_LAYOUT, "tp rank 2 of 2"},
    {"no stages", pp_empty, KVF_ERR_LAYOUT, "pp rank 0 of 0"},
    {"huge cp", cp_huge, KVF_ERR_LAYOUT, "cp rank 0 of 65537"},
    {"negative dp rank", dp_negative, KVF_ERR_LAYOUT, "dp rank -1 of 1"},
    {"more layer counts than stages", stages_missing, KVF_ERR_LAYOUT, "2 layer counts for 1 pipeline stages"},
    {"negative stage", stage_negative, KVF_ERR_LAYOUT, "stage 0 has -1 layers"},
    {"stages overflow", stages_overflow, KVF_ERR_OVERFLOW, "layers of all stages"},
    {"negative heads", heads_negative, KVF_ERR_LAYOUT, "kv_heads_per_rank is -1"},
    {"no tokens per block", no_tokens, KVF_ERR_LAYOUT, "tokens_per_block is 0"},
    {"no element", no_element, KVF_ERR_LAYOUT, "element_eighths is 0"},
    {"flag of 2", flag_two, KVF_ERR_LAYOUT, "is_mla is 2"},
    {"attention overflow", attention_overflow, KVF_ERR_OVERFLOW, "attention's sizes"},
    {"attention DP over TP", dp_over_tp, KVF_ERR_LAYOUT, "attention DP of 3 groups over 2 TP ranks"},
    {"unknown key", unknown_key, KVF_ERR_INVALID_ARGUMENT, "keys is 0x10"},
    {"lost version", lost_version, KVF_ERR_INVALID_ARGUMENT, "protocol_version is set, but keys leave it out"},
    {"lost replay", lost_replay, KVF_ERR_INVALID_ARGUMENT, "bounded_replay_on_generation is set"},
    {"lost draft layers", lost_draft, KVF_ERR_INVALID_ARGUMENT, "num_draft_layers is set"},
    {"lost draft dtype", lost_dtype, KVF_ERR_INVALID_ARGUMENT, "draft_kv_dtype is set"},
    {"version far off", version_far, KVF_ERR_LAYOUT, "protocol_version is -9223372036854775808"},
    {"huge element", element_huge, KVF_ERR_LAYOUT, "element_eighths is 2147483648"},
    {"negative draft layers", draft_negative, KVF_ERR_LAYOUT, "num_draft_layers is -1"},
    {"many aux buffers", many_aux, KVF_ERR_LIMIT, "65 more aux sizes"},
    {"no device", no_device, KVF_ERR_INVALID_ARGUMENT, "aux device is missing"},
    {"table without tokens", table_tokens, KVF_ERR_LAYOUT, "page table: tokens_per_block is 0"},
    {"many groups", many_groups, KVF_ERR_LIMIT, "1025 more layer groups"},
    {"no groups", no_groups, KVF_ERR_INVALID_ARGUMENT, "2 layer groups but no array"},
    {"many pool groups", many_pool_groups, KVF_ERR_LIMIT, "1025 more pool groups"},
    {"many pools", many_pools, KVF_ERR_LIMIT, "more pools"},
    {"many views", many_views, KVF_ERR_LIMIT, "more views, only 8191"},
    {"many layers", many_layers, KVF_ERR_LIMIT, "more layers, only 262142"},
    {"many entries", many_entries, KVF_ERR_LIMIT, "more buffer entries, only 262140"},
    {"many sections", many_sections, KVF_ERR_LIMIT, "more sections"},
    {"many roles", many_roles, KVF_ERR_LIMIT, "more roles"},
    {"cache kind 2", cache_two, KVF_ERR_LAYOUT, "layer group 1: cache kind 2"},
    {"pool group outside", pool_group_outside, KVF_ERR_LAYOUT, "layer group 1: pool group 2 of 2"},
    {"window of 0", window_zero, KVF_ERR_LAYOUT, "layer group 0: sliding_window_size is 0"},
    {"slot major 2", slot_major_two, KVF_ERR_LAYOUT, "layer group 1: slot_major_layout is 2"},
    {"negative layer", global_negative, KVF_ERR_LAYOUT, "layer group 0 layer 0: local 0 and global -1"},
    {"local layer twice", local_twice, KVF_ERR_LAYOUT, "layer group 0 lists local layer 0 twice"},
    {"global layer twice", global_twice, KVF_ERR_LAYOUT,
     "global_layer_id 5 appears in layer groups 0 and 0; layer groups must partition a rank's layers"},
    {"pool outside", pool_outside, KVF_ERR_LAYOUT, "layer group 1 view 2: pool 3 of 3 in pool group 1"},
    {"NHD state", nhd_state, KVF_ERR_LAYOUT, "a state group allows mapper kinds 0, 1 and 3, found 2"},
    {"sectioned paged", sectioned_paged, KVF_ERR_LAYOUT, "a paged group allows mapper kinds 0, 1 and 2, found 3"},
    {"mapper 4", mapper_four, KVF_ERR_LAYOUT, "found 4"},
    {"role twice", role_twice, KVF_ERR_LAYOUT, "role \"key\" is there twice"},
    {"a role that is long", role_long, KVF_ERR_LIMIT, "a role has more than 256 bytes"},
    {"control character in a role", role_control, KVF_ERR_LAYOUT, "not UTF-8 without control characters: role 0"},
    {"negative declared size", declared_negative, KVF_ERR_LAYOUT, "layer group 1 view 0: bytes_per_layer is -1"},
    {"huge declared size", declared_huge, KVF_ERR_OVERFLOW, "over all ranks: bytes_per_layer"},
    {"huge heads", heads_huge, KVF_ERR_OVERFLOW, "over all ranks: num_kv_heads"},
    {"no bytes per head", head_bytes_zero, KVF_ERR_LAYOUT, "bytes_per_head is 0"},
    {"no ring slot bytes", ring_zero, KVF_ERR_LAYOUT, "ring_slot_bytes is 0"},
    {"negative section", section_negative, KVF_ERR_LAYOUT, "a section's size is -1"},
    {"huge section", section_huge, KVF_ERR_OVERFLOW, "over all ranks: a section of"},
    {"entry of an unknown layer", entry_layer, KVF_ERR_LAYOUT, "does not list: local layer 2"},
    {"negative offset", entry_offset, KVF_ERR_LAYOUT, "an entry's offset is -1"},
    {"empty entry", entry_size, KVF_ERR_LAYOUT, "an entry's size is 0"},
    {"entry past 63 bits", entry_end, KVF_ERR_OVERFLOW, "the end of the entry"},
    {"entry past 63 bits in the last slot", entry_far, KVF_ERR_OVERFLOW, "in the pool's last slot"},
    {"entries past 63 bits together", entry_total, KVF_ERR_OVERFLOW, "does not fit in 63 bits"},
    {"no slots", no_slots, KVF_ERR_LAYOUT, "pool group 1 pool 0: 0 slots of 2048 bytes"},
    {"empty slots", no_slot_bytes, KVF_ERR_LAYOUT, "128 slots of 0 bytes"},
    {"short stride", stride_short, KVF_ERR_LAYOUT,
     "slot_stride_bytes must be greater than or equal to slot_bytes, found 2047 and 2048"},
    {"negative layer stride", layer_stride, KVF_ERR_LAYOUT, "layer_stride_bytes is -1"},
    {"pool past 64 bits", pool_wraps, KVF_ERR_OVERFLOW, "pool group 1 pool 0: 128 slots"},
    {"pool past 63 bits", pool_product, KVF_ERR_OVERFLOW, "end past 64 bits"},
    {"entry past 64 bits", entry_wraps, KVF_ERR_OVERFLOW, "in the pool's last slot: an entry up to byte 1025"},
};

static void test_refusals(void **state)
{
    struct rank_kit kit;

    (void)state;
    memset(long_text, 'x', sizeof long_text - 1);
    full(&kit);
    kvf_trtllm_rank_release(rank_kit_make(&kit));
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        full(&kit);
        refusals[i].edit(&kit);
        print_message("%s\n", refusals[i].name);
        rank_kit_refused(&kit, refusals[i].status, refusals[i].text);
    }
}

/* What looks odd and is left for the registrar, the mappers or nobody to refuse. */
EDIT(as_it_is, (void)kit)
EDIT(same_global_in_state, kit->layers[1][0].global_layer = 5)
EDIT(no_heads, kit->views[0][0].num_kv_heads = KVF_TRTLLM_NONE)
EDIT(zero_heads, kit->views[0][0].num_kv_heads = 0)
EDIT(minus_heads, kit->views[0][0].num_kv_heads = -1)
EDIT(declared_wrong, kit->views[1][0].bytes_per_layer = 7)
EDIT(uneven, kit->views[0][0].entry_count = 3)
EDIT(no_entries, kit->views[0][0].entry_count = 0)
EDIT(other_version, kit->spec.protocol_version = 2)
EDIT(aux_negative, kit->aux_items[0] = -1)
EDIT(aux_uneven, kit->aux.item_count = 0)
EDIT(past_slot, kit->entries[1][0][1].offset_bytes = 1 << 20)
EDIT(top_of_memory, kit->pools[0][0].base_address = UINT64_MAX - 1024 * 128)
EDIT(no_attention, kit->spec.attention = NULL)
EDIT(no_table, kit->spec.page_table = NULL)
EDIT(foreign_fields, kit->groups[0].slot_major_layout = 0; kit->groups[1].sliding_window_size = 0)
EDIT(empty_sections, kit->views[1][0].section_count = 0)

static void test_accepted(void **state)
{
    static void (*const edits[])(struct rank_kit *) = {
        as_it_is, same_global_in_state, no_heads, zero_heads, minus_heads, declared_wrong, uneven, no_entries,
        other_version, aux_negative, aux_uneven, past_slot, top_of_memory, no_attention, no_table, foreign_fields,
        empty_sections};
    struct rank_kit kit;

    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        kvf_trtllm_rank *rank;

        full(&kit);
        edits[i](&kit);
        rank = rank_kit_make(&kit);
        if (kit.spec.page_table) {
            const struct kvf_trtllm_group *groups = kvf_trtllm_rank_get_spec(rank)->page_table->groups;

            assert_true(groups[0].slot_major_layout == KVF_TRTLLM_NONE);
            assert_true(groups[1].sliding_window_size == KVF_TRTLLM_NONE);
        }
        kvf_trtllm_rank_release(rank);
    }
}

/* A shorter struct leaves the rest default, a longer one must have nothing in what is not known. */
static void test_struct_sizes(void **state)
{
    struct {
        struct kvf_trtllm_rank_spec spec;
        unsigned char newer[8];
    } longer;
    static const int64_t one_stage[1] = {3};
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error;

    (void)state;
    kvf_trtllm_rank_spec_init(&longer.spec, sizeof longer);
    longer.spec.layer_num_per_pp = one_stage;
    longer.spec.layer_num_count = 1;
    assert_int_equal(kvf_trtllm_rank_create(&longer.spec, &rank, &error), KVF_OK);
    kvf_trtllm_rank_release(rank);
    rank = NULL;
    longer.newer[3] = 1;
    assert_int_equal(kvf_trtllm_rank_create(&longer.spec, &rank, &error), KVF_ERR_NEWER_OPTION);
    assert_null(rank);
    longer.spec.struct_size = offsetof(struct kvf_trtllm_rank_spec, protocol_version);
    longer.spec.protocol_version = 77;
    assert_int_equal(kvf_trtllm_rank_create(&longer.spec, &rank, &error), KVF_OK);
    assert_int_equal(kvf_trtllm_rank_get_spec(rank)->protocol_version, KVF_TRTLLM_PROTOCOL_VERSION);
    kvf_trtllm_rank_release(rank);
    longer.spec.struct_size = 3;
    assert_int_equal(kvf_trtllm_rank_create(&longer.spec, &rank, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_rank_create(NULL, &rank, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_rank_create(&longer.spec, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_struct_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
