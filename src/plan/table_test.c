/* SPDX-License-Identifier: Apache-2.0 */
/* How many boxes and loops there are and how long the runs: 80 layers of K and V, 8 heads, rows of 256 bytes, blocks of
 * 16 tokens, unless a row says otherwise. */
#include <inttypes.h>
#include <string.h>

#include "plan/plan_kit.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum order { PAGE_FIRST, LAYER_FIRST, MEMORY_PER_LAYER, PADDED_LAYERS };

/** One side. Zero means the usual; `units` counts the heads held. */
struct form {
    enum order order;
    bool tokens_first;
    int64_t heads, first, units;
    int64_t tokens, layers, row;
    int64_t stripes, stripe, stripe_tokens;
    int64_t slots_per_block;
    bool keys_only;
};

static int64_t or_else(int64_t value, int64_t usual) { return value ? value : usual; }

static void build(struct kit *kit, const struct form *form)
{
    int64_t layers = or_else(form->layers, 80), row = or_else(form->row, 256), tokens = or_else(form->tokens, 16);
    int64_t heads = or_else(form->heads, 8), units = or_else(form->units, heads), parts = form->keys_only ? 1 : 2;
    int64_t spb = or_else(form->slots_per_block, 1), slots = 64, bytes = units * tokens * row;
    int64_t pools = form->order == MEMORY_PER_LAYER ? layers : 1, stride = bytes;

    kit_init(kit);
    if (form->order == PAGE_FIRST) stride = layers * parts * bytes;
    for (int64_t i = 0; i < pools; i++) kit_pool(kit, kit_memory(kit), 0, stride, slots);
    kit->groups[kit_group(kit, tokens * spb)] =
        (struct kvf_group){tokens * spb, 0, or_else(form->stripes, 1), form->stripe, form->stripe_tokens};
    for (int64_t v = 0; v < parts; v++) {
        kit_view(kit, (struct kit_part){.role = v ? "v" : "k", .row = row, .total = heads, .first = form->first,
                                        .units = units, .entries = tokens, .slots_per_block = spb,
                                        .unit_stride = form->tokens_first ? row : tokens * row,
                                        .entry_stride = form->tokens_first ? units * row : row});
        for (int64_t layer = 0; layer < layers; layer++) {
            int64_t page = (parts * layer + v) * bytes;

            switch (form->order) {
            case PAGE_FIRST: kit_place(kit, layer, 0, page); break;
            case LAYER_FIRST: kit_place(kit, layer, 0, page * slots); break;
            case MEMORY_PER_LAYER: kit_place(kit, layer, layer, v * bytes * slots); break;
            case PADDED_LAYERS: kit_place(kit, layer, 0, page * slots + layer * 64); break;
            }
        }
    }
}

static void expect(const kvf_plan *plan, const char *name, int64_t boxes, int64_t loops, int64_t longest,
                   int64_t shortest)
{
    int64_t found_loops = 0, found_longest = 0;
    struct kvf_plan_info info;
    struct kvf_track track;
    struct kvf_shape shape;
    struct kvf_box box;

    kvf_plan_get_info(plan, &info);
    for (size_t t = 0; kvf_plan_track(plan, t, &track) == KVF_OK; t++)
        for (size_t s = 0; kvf_plan_shape(plan, t, s, &shape) == KVF_OK; s++)
            for (size_t b = 0; kvf_plan_box(plan, t, s, b, &box) == KVF_OK; b++) {
                if (box.loop_count > found_loops) found_loops = box.loop_count;
                if (box.run_bytes > found_longest) found_longest = box.run_bytes;
            }
    if (info.boxes != boxes || found_loops != loops || found_longest != longest || info.shortest_run_bytes != shortest)
        fail_msg("%s: %" PRId64 " boxes, %" PRId64 " loops, runs %" PRId64 " to %" PRId64, name, info.boxes,
                 found_loops, info.shortest_run_bytes, found_longest);
    if (info.plan_bytes > 2048 + info.patches * (int64_t)sizeof(struct kvf_patch) + 200 * info.boxes)
        fail_msg("%s: %" PRId64 " bytes of memory", name, info.plan_bytes);
}

static const struct row {
    const char *name;
    struct form src, dst;
    int64_t boxes, loops, longest, shortest;
} rows[] = {
    {"equal, page-first", {0}, {0}, 1, 0, 5242880, 5242880},
    {"equal, layer-first in one memory", {.order = LAYER_FIRST}, {.order = LAYER_FIRST}, 1, 1, 32768, 32768},
    {"equal, memory per layer", {.order = MEMORY_PER_LAYER}, {.order = MEMORY_PER_LAYER}, 80, 1, 32768, 32768},
    {"page-first from layer-first", {.order = LAYER_FIRST}, {0}, 1, 1, 32768, 32768},
    {"heads-first from tokens-first", {.tokens_first = true}, {0}, 1, 3, 256, 256},
    {"tokens-first from heads-first", {0}, {.tokens_first = true}, 1, 3, 256, 256},
    {"heads-first from tokens-first, memory per layer", {.order = MEMORY_PER_LAYER, .tokens_first = true},
     {.order = MEMORY_PER_LAYER}, 80, 3, 256, 256},
    {"TP1 to TP4, heads-first", {0}, {.first = 2, .units = 2}, 1, 1, 8192, 8192},
    {"TP1 to TP4, tokens-first", {.tokens_first = true}, {.first = 6, .units = 2, .tokens_first = true}, 1, 1, 512,
     512},
    {"TP1 to TP4, mixed", {.tokens_first = true}, {.units = 2}, 1, 3, 256, 256},
    {"6 heads, 2 of 4 ranks' to 2 of 3's", {.heads = 6, .units = 2}, {.heads = 6, .units = 2}, 1, 0, 1310720, 1310720},
    {"6 heads, 1 of 4 ranks' to 2 of 3's", {.heads = 6, .first = 5, .units = 1},
     {.heads = 6, .first = 4, .units = 2}, 1, 1, 4096, 4096},
    {"block 16 to 64, heads-first", {0}, {.tokens = 64}, 1, 1, 4096, 4096},
    {"block 16 to 64, tokens-first", {.tokens_first = true}, {.tokens = 64, .tokens_first = true}, 1, 1, 32768, 32768},
    {"block 64 to 16, tokens-first to heads-first", {.tokens = 64, .tokens_first = true}, {0}, 1, 3, 256, 256},
    {"block 24 to 16", {.tokens = 24}, {0}, 2, 1, 4096, 2048},
    {"DCP 4, stripe 1, heads-first", {0}, {.stripes = 4, .stripe = 1, .stripe_tokens = 1}, 1, 2, 256, 256},
    {"DCP 4, stripe 1, tokens-first", {.tokens_first = true},
     {.stripes = 4, .stripe = 1, .stripe_tokens = 1, .tokens_first = true}, 1, 2, 2048, 2048},
    {"CP 4, stripe = block", {0}, {.stripes = 4, .stripe = 3, .stripe_tokens = 16}, 1, 0, 5242880, 5242880},
    {"DCP 2 to 3, stripe 1, block 16", {.stripes = 2, .stripe_tokens = 1}, {.stripes = 3, .stripe_tokens = 1}, 4, 2,
     256, 256},
    {"DCP 2 to 3, stripe 1, block 12", {.tokens = 12, .stripes = 2, .stripe_tokens = 1},
     {.tokens = 12, .stripes = 3, .stripe_tokens = 1}, 2, 2, 256, 256},
    {"DCP 4, stripe 2, block 64, transposed with a head cut, memory per layer",
     {.tokens = 64, .order = MEMORY_PER_LAYER, .tokens_first = true},
     {.tokens = 64, .order = MEMORY_PER_LAYER, .units = 2, .stripes = 4, .stripe_tokens = 2}, 80, 4, 256, 256},
    {"DCP 4, stripe 2, block 64, transposed with a head cut, padded layers",
     {.tokens = 64, .order = PADDED_LAYERS, .tokens_first = true},
     {.tokens = 64, .order = PADDED_LAYERS, .units = 2, .stripes = 4, .stripe_tokens = 2}, 80, 4, 256, 256},
    {"kernel blocks of 16 under ids of 128, to 128", {.order = LAYER_FIRST, .slots_per_block = 8}, {.tokens = 128}, 1,
     2, 4096, 4096},
};

static void test_rows(void **state)
{
    struct kit src, dst;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_plan *plan;

        build(&src, &rows[i].src);
        build(&dst, &rows[i].dst);
        plan = kit_plan(&src, &dst, 0);
        expect(plan, rows[i].name, rows[i].boxes, rows[i].loops, rows[i].longest, rows[i].shortest);
        kvf_plan_release(plan);
        kit_free(&dst);
        kit_free(&src);
    }
}

/** Two layers whose axes lie in the order that `axes` names, outermost first; rows (C) are innermost. */
static void dense(struct kit *kit, const char *axes)
{
    const struct {
        char axis;
        int64_t steps;
    } all[] = {{'L', 2}, {'B', 64}, {'H', 8}, {'N', 16}};
    int64_t strides[4] = {0, 0, 0, 0}, stride = 256;

    for (int i = 3; i >= 0; i--)
        for (int axis = 0; axis < 4; axis++)
            if (all[axis].axis == axes[i]) {
                strides[axis] = stride;
                stride *= all[axis].steps;
            }
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, strides[1], 64);
    kit_group(kit, 16);
    kit_view(kit, (struct kit_part){.role = "kv", .row = 256, .total = 8, .unit_stride = strides[2],
                                    .entry_stride = strides[3], .entries = 16});
    for (int64_t layer = 0; layer < 2; layer++) kit_place(kit, layer, 0, layer * strides[0]);
}

static void test_six_layouts(void **state)
{
    static const char *const axes[] = {"LBHN", "LBNH", "LHBN", "BLHN", "BLNH", "BHLN"};
    int64_t longest = 0;
    struct kit src, dst;

    (void)state;
    for (size_t i = 0; i < COUNT(axes) * COUNT(axes); i++) {
        struct kvf_plan_info info;
        struct kvf_box box;
        kvf_plan *plan;

        dense(&src, axes[i % 6]);
        dense(&dst, axes[i / 6]);
        plan = kit_plan(&src, &dst, 0);
        kvf_plan_get_info(plan, &info);
        assert_int_equal(info.boxes, 1);
        assert_int_equal(kvf_plan_box(plan, 0, 0, 0, &box), KVF_OK);
        if (box.loop_count > 3) fail_msg("%s to %s: %" PRId64 " loops", axes[i % 6], axes[i / 6], box.loop_count);
        assert_true(box.run_bytes >= 256);
        if (box.run_bytes > longest) longest = box.run_bytes;
        kvf_plan_release(plan);
        kit_free(&dst);
        kit_free(&src);
    }
    assert_int_equal(longest, 65536);
}

/** K and V of one token side by side, 128 bytes each, to a half each of the block, or to a pool each. */
static void test_fused_rows(void **state)
{
    struct kit src, dst[2];

    (void)state;
    kit_init(&src);
    kit_pool(&src, kit_memory(&src), 0, 80 * 32768, 64);
    kit_group(&src, 16);
    for (int64_t i = 0; i < 2; i++) {
        kit_init(&dst[i]);
        for (int64_t pool = 0; pool <= i; pool++)
            kit_pool(&dst[i], kit_memory(&dst[i]), 0, 80 * (i ? 16384 : 32768), 64);
        kit_group(&dst[i], 16);
    }
    for (int64_t v = 0; v < 2; v++) {
        struct kit_part part = {.role = v ? "v" : "k", .row = 128, .total = 8, .unit_stride = 4096, .entry_stride = 256,
                                .entries = 16};

        kit_view(&src, part);
        part.unit_stride = 128; /* heads-first to tokens-first, so that heads and tokens do not join */
        part.entry_stride = 8 * 128;
        kit_view(&dst[1], part);
        part.unit_stride = 2048;
        part.entry_stride = 128;
        kit_view(&dst[0], part);
        for (int64_t layer = 0; layer < 80; layer++) {
            kit_place(&src, layer, 0, layer * 32768 + v * 128);
            kit_place(&dst[0], layer, 0, layer * 32768 + v * 16384);
            kit_place(&dst[1], layer, v, layer * 16384);
        }
    }
    for (int64_t i = 0; i < 2; i++) {
        kvf_plan *plan = kit_plan(&src, &dst[i], 0);

        expect(plan, i ? "fused rows to two tensors" : "fused rows to halves", 1 + i, 3, 128, 128);
        kvf_plan_release(plan);
        kit_free(&dst[i]);
    }
    kit_free(&src);
}

/** fp8 rows of 128 bytes with 4 bytes of scale behind each, K and V of a token side by side; or apart, in two pools. */
static void scaled_rows(struct kit *kit, bool apart)
{
    static const char *const roles[] = {"k", "k.scale", "v", "v.scale"};

    kit_init(kit);
    if (apart) {
        kit_pool(kit, kit_memory(kit), 0, 80 * 256 * 128, 64);
        kit_pool(kit, kit_memory(kit), 0, 80 * 256 * 4, 64);
    } else {
        kit_pool(kit, kit_memory(kit), 0, 80 * 128 * 264, 64);
    }
    kit_group(kit, 16);
    for (int64_t part = 0; part < 4; part++) {
        int64_t scale = part % 2, v = part / 2, row = scale ? 4 : 128, step = apart ? row : 264;

        kit_view(kit, (struct kit_part){.role = roles[part], .row = row, .total = 8, .unit_stride = 16 * step,
                                        .entry_stride = step, .entries = 16});
        for (int64_t layer = 0; layer < 80; layer++) {
            if (apart) kit_place(kit, layer, scale, (2 * layer + v) * 128 * row);
            else kit_place(kit, layer, 0, layer * 128 * 264 + v * 132 + scale * 128);
        }
    }
}

static void test_scaled_rows(void **state)
{
    struct kit inside, apart;
    kvf_plan *plan;

    (void)state;
    scaled_rows(&inside, false);
    scaled_rows(&apart, true);
    plan = kit_plan(&inside, &inside, 0);
    expect(plan, "fp8 row with its scale, to the same", 1, 0, 80 * 128 * 264, 80 * 128 * 264);
    kvf_plan_release(plan);
    plan = kit_plan(&inside, &apart, 0);
    expect(plan, "fp8 row with its scale, to scale buffers", 2, 3, 128, 4);
    kvf_plan_release(plan);
    kit_free(&apart);
    kit_free(&inside);
}

/** fp8 rows of 128 bytes and one scale of 4 bytes for each head and block. */
static void block_scales(struct kit *kit, int64_t units)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, 160 * units * 2048, 64);
    kit_pool(kit, kit_memory(kit), 0, 160 * units * 4, 64);
    kit_group(kit, 16);
    for (int64_t part = 0; part < 4; part++) {
        static const char *const roles[] = {"k", "k.scale", "v", "v.scale"};
        int64_t scale = part % 2, bytes = units * (scale ? 4 : 2048);

        kit_view(kit, (struct kit_part){.role = roles[part], .row = scale ? 4 : 128, .total = 8, .units = units,
                                        .unit_stride = scale ? 4 : 2048, .entries = scale ? 1 : 16});
        for (int64_t layer = 0; layer < 80; layer++) kit_place(kit, layer, scale, (2 * layer + part / 2) * bytes);
    }
}

static void test_block_scales(void **state)
{
    struct kvf_plan_info info;
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    block_scales(&src, 8);
    block_scales(&dst, 2);
    plan = kit_plan(&src, &dst, 0);
    expect(plan, "fp8 with a scale per head and block", 2, 1, 4096, 8);
    kvf_plan_get_info(plan, &info);
    assert_int_equal(info.tracks, 2);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

/** MLA rows of 1,152 bytes fused, or latent and rope in pools of their own. */
static void mla(struct kit *kit, bool apart)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, 80 * 16 * (apart ? 1024 : 1152), 64);
    if (apart) kit_pool(kit, kit_memory(kit), 0, 80 * 16 * 128, 64);
    kit_group(kit, 16);
    for (int64_t rope = 0; rope < 2; rope++) {
        int64_t bytes = rope ? 128 : 1024, step = apart ? bytes : 1152;

        kit_view(kit, (struct kit_part){.role = "mla", .row = 1152, .byte_first = rope * 1024, .bytes = bytes,
                                        .unit_stride = 16 * step, .entry_stride = step, .entries = 16});
        for (int64_t layer = 0; layer < 80; layer++)
            kit_place(kit, layer, apart ? rope : 0, layer * 16 * step + (apart ? 0 : rope * 1024));
    }
}

static void test_mla(void **state)
{
    struct kit fused, apart;
    kvf_plan *plan;

    (void)state;
    mla(&fused, false);
    mla(&apart, true);
    plan = kit_plan(&fused, &apart, 0);
    expect(plan, "MLA fused to latent and rope apart", 2, 1, 1024, 128);
    kvf_plan_release(plan);
    kit_free(&apart);
    kit_free(&fused);
}

static void test_columns(void **state)
{
    struct kit src, dst;
    kvf_plan *plan;

    (void)state;
    build(&dst, &(struct form){.keys_only = true});
    kit_init(&src);
    kit_pool(&src, kit_memory(&src), 0, 80 * 32768, 64);
    kit_group(&src, 16);
    for (int64_t column = 0; column < 16; column++) {
        kit_view(&src, (struct kit_part){.role = "k", .row = 256, .byte_first = 16 * column, .bytes = 16, .total = 8,
                                         .unit_stride = 4096, .entry_stride = 16, .entries = 16});
        for (int64_t layer = 0; layer < 80; layer++) kit_place(&src, layer, 0, layer * 32768 + column * 256);
    }
    plan = kit_plan(&src, &dst, 0);
    expect(plan, "keys in 16-byte columns to plain keys", 1, 3, 16, 16);
    kvf_plan_release(plan);
    kit_free(&dst);
    kit_free(&src);
}

/** One layer of state: sections x, B, C of 1,024, 512, 512 channels, then an SSM of 8 heads of 1,024 bytes. */
static void state_layout(struct kit *kit, int64_t rank, int64_t ranks)
{
    static const struct {
        const char *role;
        int64_t units, bytes;
    } parts[] = {{"conv.x", 1024, 1}, {"conv.B", 512, 1}, {"conv.C", 512, 1}, {"ssm", 8, 1024}};
    int64_t offset = 0;

    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, 10240 / ranks, 8);
    kit_group(kit, 0);
    for (size_t i = 0; i < COUNT(parts); i++) {
        int64_t units = parts[i].units / ranks;

        kit_view(kit, (struct kit_part){.role = parts[i].role, .row = parts[i].bytes, .total = parts[i].units,
                                        .first = rank * units, .units = units});
        kit_place(kit, 0, 0, offset);
        offset += units * parts[i].bytes;
    }
}

static void test_state(void **state)
{
    struct kit all, half;
    kvf_plan *plan;

    (void)state;
    state_layout(&all, 0, 1);
    state_layout(&half, 1, 2);
    plan = kit_plan(&all, &half, 0);
    expect(plan, "conv and SSM, TP1 to TP2", 3, 1, 4096, 256);
    kvf_plan_release(plan);
    plan = kit_plan(&half, &half, 0);
    expect(plan, "conv and SSM, equal TP", 1, 0, 5120, 5120);
    kvf_plan_release(plan);
    kit_free(&half);
    kit_free(&all);
}

static void test_taps(void **state)
{
    struct kit channel_major, tap_major;
    kvf_plan *plan;

    (void)state;
    for (int side = 0; side < 2; side++) {
        struct kit *kit = side ? &tap_major : &channel_major;

        kit_init(kit);
        kit_pool(kit, kit_memory(kit), 0, 3 * 512 * 8, 8);
        kit_group(kit, 0);
        for (int64_t i = 0; i < 3; i++) {
            static const char *const roles[] = {"conv.x", "conv.B", "conv.C"};
            int64_t units = 256 + 128 * i;

            kit_view(kit, (struct kit_part){.role = roles[i], .row = 2, .total = units, .unit_stride = side ? 2 : 8,
                                            .entry_stride = side ? 2 * units : 2, .entries = 4});
            kit_place(kit, 0, 0, i * 4096);
        }
    }
    plan = kit_plan(&channel_major, &tap_major, 0);
    expect(plan, "conv channel-major to tap-major", 3, 2, 2, 2);
    kvf_plan_release(plan);
    kit_free(&tap_major);
    kit_free(&channel_major);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_six_layouts), cmocka_unit_test(test_fused_rows),
        cmocka_unit_test(test_scaled_rows),  cmocka_unit_test(test_block_scales), cmocka_unit_test(test_mla),
        cmocka_unit_test(test_columns),      cmocka_unit_test(test_state),       cmocka_unit_test(test_taps),
    };

    return cmocka_run_group_tests_name("boxes per case", tests, NULL, NULL);
}
