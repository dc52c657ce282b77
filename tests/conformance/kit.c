/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 0xa5 };

static unsigned char byte_at(int64_t kv, int64_t layer, int64_t head, int64_t token, int64_t byte)
{
    uint64_t mixed = (uint64_t)(((kv * 131 + layer) * 137 + head) * 100003 + token) * 257 + (uint64_t)byte;

    mixed *= UINT64_C(0x9e3779b97f4a7c15);
    /* Never the guard's value, so that an unwritten byte cannot look right. */
    return (unsigned char)(mixed >> 56) == GUARD ? 0 : (unsigned char)(mixed >> 56);
}

static unsigned char *src_row(const struct kit *kit, int64_t kv, int64_t layer, int64_t head, int64_t token)
{
    const struct kit_shape *shape = &kit->shape;
    int64_t slot = kit->src_ids[token / shape->src_block_tokens];
    int64_t row = ((layer * 2 + kv) * shape->heads + head) * shape->src_block_tokens + token % shape->src_block_tokens;

    return (unsigned char *)kit->src_regions[0].address + slot * kit->src_slot_bytes + row * shape->row_bytes;
}

static int64_t dst_row(const struct kit *kit, int64_t layer, int64_t head, int64_t token)
{
    const struct kit_shape *shape = &kit->shape;
    int64_t slot = kit->dst_ids[token / shape->dst_block_tokens];
    int64_t row = (layer * shape->dst_block_tokens + token % shape->dst_block_tokens) * shape->heads + head;

    return slot * kit->dst_slot_bytes + row * shape->row_bytes;
}

/* A permutation of [0, count), the same in every run. */
static int64_t *shuffled(int64_t count, uint64_t seed)
{
    int64_t *ids = malloc((size_t)count * sizeof *ids);

    assert_non_null(ids);
    for (int64_t i = 0; i < count; i++) ids[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        int64_t other = (int64_t)((seed >> 33) % (uint64_t)(i + 1));
        int64_t kept = ids[i];

        ids[i] = ids[other];
        ids[other] = kept;
    }
    return ids;
}

static kvf_layout *make_layout(const struct kit *kit, bool is_src)
{
    const struct kit_shape *shape = &kit->shape;
    int64_t block = is_src ? shape->src_block_tokens : shape->dst_block_tokens;
    int64_t layer_bytes = shape->heads * block * shape->row_bytes;
    int64_t memory_bytes[2];
    struct kvf_pool pools[2];
    struct kvf_group group = {.tokens_per_block = block, .stripes = 1};
    struct kvf_place *places = calloc((size_t)(2 * shape->layers), sizeof *places);
    struct kvf_view views[2];
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout = NULL;

    assert_non_null(places);
    for (int64_t kv = 0; kv < 2; kv++) {
        pools[kv] = (struct kvf_pool){.memory = kv,
                                      .slot_stride_bytes = is_src ? kit->src_slot_bytes : kit->dst_slot_bytes,
                                      .slots = is_src ? kit->src_slots : kit->dst_slots};
        memory_bytes[kv] = pools[kv].slot_stride_bytes * pools[kv].slots;
        for (int64_t layer = 0; layer < shape->layers; layer++)
            places[kv * shape->layers + layer] =
                (struct kvf_place){.layer = layer,
                                   .pool = is_src ? 0 : kv,
                                   .offset_bytes = (is_src ? layer * 2 + kv : layer) * layer_bytes};
        views[kv] = (struct kvf_view){
            .role = kv ? "v" : "k", .tag = "u8", .row_bytes = shape->row_bytes, .byte_count = shape->row_bytes,
            .unit_total = shape->heads, .unit_count = shape->heads, .entries = block, .slots_per_block = 1,
            .unit_stride_bytes = is_src ? block * shape->row_bytes : shape->row_bytes,
            .entry_stride_bytes = is_src ? shape->row_bytes : shape->heads * shape->row_bytes,
            .places = places + kv * shape->layers, .place_count = (size_t)shape->layers};
    }
    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = memory_bytes;
    spec.memory_count = is_src ? 1 : 2;
    spec.pools = pools;
    spec.pool_count = is_src ? 1 : 2;
    spec.groups = &group;
    spec.group_count = 1;
    spec.views = views;
    spec.view_count = 2;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) fail_msg("%s", error.text);
    free(places);
    return layout;
}

static struct kvfi_memory_region make_region(kvf_memory **memory, int64_t bytes, bool with_fd)
{
    struct kvf_error error;

    if (kvf_memory_create(bytes, 0, memory, &error) != KVF_OK) fail_msg("%s", error.text);
    return (struct kvfi_memory_region){.address = kvf_memory_address(*memory), .bytes = bytes,
                                       .fd = with_fd ? kvf_memory_fd(*memory) : -1};
}

static void fill_source(struct kit *kit)
{
    for (int64_t kv = 0; kv < 2; kv++) {
        for (int64_t layer = 0; layer < kit->shape.layers; layer++) {
            for (int64_t head = 0; head < kit->shape.heads; head++) {
                for (int64_t token = 0; token < kit->shape.tokens; token++) {
                    unsigned char *row = src_row(kit, kv, layer, head, token);

                    for (int64_t i = 0; i < kit->shape.row_bytes; i++) row[i] = byte_at(kv, layer, head, token, i);
                }
            }
        }
    }
}

void kit_init(struct kit *kit, const struct kit_shape *shape, bool with_fd)
{
    int64_t src_blocks = (shape->tokens + shape->src_block_tokens - 1) / shape->src_block_tokens;
    int64_t dst_blocks = (shape->tokens + shape->dst_block_tokens - 1) / shape->dst_block_tokens;
    struct kvf_error error;

    memset(kit, 0, sizeof *kit);
    kit->shape = *shape;
    kit->src_slots = src_blocks + 3;
    kit->dst_slots = dst_blocks + 2;
    kit->src_ids = shuffled(kit->src_slots, 7);
    kit->dst_ids = shuffled(kit->dst_slots, 9);
    kit->src_list = (struct kvf_id_list){.ids = kit->src_ids, .count = (size_t)src_blocks};
    kit->dst_list = (struct kvf_id_list){.ids = kit->dst_ids, .count = (size_t)dst_blocks};
    kit->src_slot_bytes = 2 * shape->layers * shape->heads * shape->src_block_tokens * shape->row_bytes;
    kit->dst_slot_bytes = shape->layers * shape->heads * shape->dst_block_tokens * shape->row_bytes + KIT_GUARD_BYTES;
    kit->src_regions[0] = make_region(&kit->memory[0], kit->src_slots * kit->src_slot_bytes, with_fd);
    for (int i = 0; i < 2; i++)
        kit->dst_regions[i] = make_region(&kit->memory[1 + i], kit->dst_slots * kit->dst_slot_bytes, with_fd);
    kit->src_layout = make_layout(kit, true);
    kit->dst_layout = make_layout(kit, false);
    if (kvf_plan_create(kit->src_layout, kit->dst_layout, NULL, NULL, &kit->plan, &error) != KVF_OK)
        fail_msg("%s", error.text);
    fill_source(kit);
    kit_wipe(kit);

    struct kvf_binding_info info;
    kvf_binding *binding = kit_bind(kit, 0, shape->layers, 0, shape->tokens);

    kvf_binding_get_info(binding, &info);
    kit->bytes = info.bytes;
    kvf_binding_destroy(binding);
}

void kit_fini(struct kit *kit)
{
    for (int i = 0; i < 3; i++) kvf_memory_destroy(kit->memory[i]);
    free(kit->src_ids);
    free(kit->dst_ids);
    kvf_plan_release(kit->plan);
    kvf_layout_release(kit->src_layout);
    kvf_layout_release(kit->dst_layout);
}

void kit_wipe(struct kit *kit)
{
    for (int i = 0; i < 2; i++) memset(kit->dst_regions[i].address, GUARD, (size_t)kit->dst_regions[i].bytes);
}

/* What the destination must hold: guards, and the rows that moved. Whole grains move, so rows past `tokens` up to the
 * grain hold what the source had there. */
static unsigned char *expected_memory(const struct kit *kit, int64_t kv, int64_t layer_first, int64_t layer_end,
                                      int64_t tokens)
{
    const struct kit_shape *shape = &kit->shape;
    int64_t grain =
        shape->src_block_tokens < shape->dst_block_tokens ? shape->src_block_tokens : shape->dst_block_tokens;
    int64_t moved = (tokens + grain - 1) / grain * grain;
    unsigned char *memory = malloc((size_t)kit->dst_regions[kv].bytes);

    assert_non_null(memory);
    memset(memory, GUARD, (size_t)kit->dst_regions[kv].bytes);
    for (int64_t layer = layer_first; layer < layer_end; layer++) {
        for (int64_t head = 0; head < shape->heads; head++) {
            for (int64_t token = 0; token < moved; token++)
                memcpy(memory + dst_row(kit, layer, head, token), src_row(kit, kv, layer, head, token),
                       (size_t)shape->row_bytes);
        }
    }
    return memory;
}

void kit_check(const struct kit *kit, int64_t layer_first, int64_t layer_end, int64_t tokens)
{
    for (int64_t kv = 0; kv < 2; kv++) {
        const unsigned char *found = kit->dst_regions[kv].address;
        unsigned char *expected = expected_memory(kit, kv, layer_first, layer_end, tokens);

        for (int64_t i = 0; i < kit->dst_regions[kv].bytes; i++) {
            if (found[i] != expected[i])
                fail_msg("%s byte %lld of %lld: 0x%02x, expected 0x%02x", kv ? "v" : "k", (long long)i,
                         (long long)kit->dst_regions[kv].bytes, found[i], expected[i]);
        }
        free(expected);
    }
}

bool kit_is_untouched(const struct kit *kit)
{
    bool untouched = true;

    for (int kv = 0; kv < 2; kv++) {
        const unsigned char *found = kit->dst_regions[kv].address;

        for (int64_t i = 0; untouched && i < kit->dst_regions[kv].bytes; i++) untouched = found[i] == GUARD;
    }
    return untouched;
}

struct kvf_bind_request kit_dst_request(const struct kit *kit)
{
    struct kvf_bind_request request;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = KVF_BIND_SRC_UNKNOWN;
    request.token_end = kit->shape.tokens;
    request.request_tokens = kit->shape.tokens;
    request.dst = &kit->dst_list;
    request.dst_count = 1;
    return request;
}

kvf_binding *kit_bind(const struct kit *kit, int64_t layer_first, int64_t layer_end, int64_t token_begin,
                      int64_t token_end)
{
    struct kvf_bind_request request = kit_dst_request(kit);
    kvf_binding *binding = NULL;
    kvf_plan *plan = NULL;
    struct kvf_error error;

    request.flags = 0;
    request.token_begin = token_begin;
    request.token_end = token_end;
    request.src = &kit->src_list;
    request.src_count = 1;
    if (kvf_plan_restrict(kit->plan, layer_first, layer_end, &plan, &error) != KVF_OK ||
        kvf_bind(plan, &request, &binding, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_plan_release(plan);
    return binding;
}
