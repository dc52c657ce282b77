/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "case.h"

static int64_t one_of(struct draw *draw, const int64_t *values, size_t count)
{
    return values[draw_int(draw, 0, (int64_t)count - 1)];
}

#define ONE_OF(draw, ...) \
    one_of(draw, (const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void draw_model(struct prop_case *c)
{
    struct draw *draw = &c->draw;
    struct model *model = &c->model;

    model->is_mla = draw_one_in(draw, 3);
    model->heads = model->is_mla ? 1 : ONE_OF(draw, 1, 2, 4, 8);
    model->head_size = draw_int(draw, 1, 4);
    model->element_bytes = draw_int(draw, 1, 2);
    model->block_tokens = draw_int(draw, 1, 3);
    model->kernel_blocks_per_block = ONE_OF(draw, 1, 1, 2, 3);
    model->layers = draw_int(draw, 1, MOST_LAYERS);
    model->groups = ONE_OF(draw, 1, 1, 2, 3);
    if (model->groups > model->layers) model->groups = model->layers;
    model->state_bytes = 8 * draw_int(draw, 1, 4);
    for (int64_t i = 0; i < model->layers; i++) {
        model->group_of[i] = i % model->groups;
        snprintf(model->names[i], sizeof model->names[i], "model.layers.%lld.attn", (long long)i);
    }
    if (!model->is_mla && model->groups > 1 && draw_one_in(draw, 3)) model->recurrent[model->groups - 1] = true;
}

/** Whether pages lie alike in two orders of axes, so that their bytes may be copied. */
static bool are_alike(const struct model *model, int a, int b)
{
    bool heads_first = (a == KVF_VLLM_LBHNC || a == KVF_VLLM_BLHNC) && (b == KVF_VLLM_LBHNC || b == KVF_VLLM_BLHNC);

    return a == b || model->is_mla || heads_first;
}

static void draw_engine(struct prop_case *c, struct engine *engine)
{
    struct draw *draw = &c->draw;
    const struct model *model = &c->model;
    int64_t left = model->layers;

    engine->tp = ONE_OF(draw, 1, 2, 4, 8);
    engine->pp = draw_int(draw, 1, MOST_PP);
    if (engine->pp > model->layers) engine->pp = model->layers;
    for (int64_t i = engine->pp - 1; i >= 0; i--) {
        engine->stage_end[i] = left;
        left = i > 0 ? draw_int(draw, i, left - 1) : 0;
    }
    engine->apart = draw_one_in(draw, 3);
    engine->padding_bytes = draw_one_in(draw, 3) ? model->element_bytes * draw_int(draw, 1, 5) : 0;
}

static bool has_recurrent(const struct model *model)
{
    return model->recurrent[model->groups - 1];
}

/** Whether pages may be padded: not where heads lie outside of pages, nor where one side counts padding and the other
 *  does not. */
static bool may_pad(const struct prop_case *c)
{
    const struct engine *src = &c->src, *dst = &c->dst;
    bool heads_outside = src->physical == KVF_VLLM_LHBNC || src->physical == KVF_VLLM_BHLNC;

    return src->physical == dst->physical && src->apart == dst->apart && src->pp == dst->pp &&
           (src->tp == dst->tp || c->model.is_mla) && (!heads_outside || heads_of(&c->model, src) == 1);
}

static void agree_on_layouts(struct prop_case *c)
{
    struct draw *draw = &c->draw;
    struct engine *src = &c->src, *dst = &c->dst;
    const struct model *model = &c->model;

    src->physical = (int)draw_int(draw, 0, 5);
    dst->physical = (int)draw_int(draw, 0, 5);
    if (!are_alike(model, src->physical, dst->physical)) dst->physical = src->physical;
    if (!model->is_mla && src->tp != dst->tp) { /* heads are cut where they are outermost in a page */
        src->physical = draw_one_in(draw, 2) ? KVF_VLLM_LBHNC : KVF_VLLM_BLHNC;
        dst->physical = draw_one_in(draw, 2) ? KVF_VLLM_LBHNC : KVF_VLLM_BLHNC;
        /* a producer that repeats heads merges layers of a row, and then puts a head into the merged payload */
        if (src->tp > model->heads) dst->physical = KVF_VLLM_LBHNC;
    }
    /* Rows without names for their layers: both sides have to have the same layers in them. */
    if (!model->is_mla) dst->apart = src->apart;
    if (!may_pad(c)) src->padding_bytes = 0;
    dst->padding_bytes = src->padding_bytes;
    /* Views that groups share are told by their first layer, which must be the same. */
    src->overlaid = dst->overlaid = !has_recurrent(model) && src->physical == dst->physical &&
                                    src->apart == dst->apart && src->pp == dst->pp && draw_one_in(draw, 2);
    /* A row that begins with a group's layer is sent whole for that group, its other layers once more. */
    c->repeats = model->groups > 1 && (src->overlaid || src->physical >= KVF_VLLM_BLHNC);
}

/** What both engines have to have in common. */
static void agree(struct prop_case *c)
{
    struct draw *draw = &c->draw;
    struct engine *src = &c->src, *dst = &c->dst;
    const struct model *model = &c->model;

    if (draw_one_in(draw, 2)) dst->tp = src->tp;
    if (has_recurrent(model)) { /* replicated heads beside state: not upstream's */
        if (src->tp > model->heads) src->tp = model->heads;
        if (dst->tp > model->heads) dst->tp = model->heads;
    }
    if (draw_one_in(draw, 2)) dst->pp = src->pp;
    if (dst->pp == src->pp) memcpy(dst->stage_end, src->stage_end, sizeof dst->stage_end);
    agree_on_layouts(c);
}

/** Ids of one group in runs, each given away once. */
static void draw_ids(struct draw *draw, bool *used, int64_t *ids, size_t count)
{
    size_t made = 0;

    while (made < count) {
        int64_t id = draw_int(draw, 1, BLOCKS - 1), run = draw_int(draw, 1, 4);

        for (; run > 0 && made < count && id < BLOCKS && !used[id]; run--, id++) {
            used[id] = true;
            ids[made++] = id;
        }
    }
}

static void draw_request(struct prop_case *c)
{
    bool src_used[BLOCKS] = {false}, dst_used[BLOCKS] = {false};

    for (int64_t g = 0; g < c->model.groups; g++) {
        size_t wanted = (size_t)draw_int(&c->draw, 0, MOST_IDS - 2);

        c->dst.id_count[g] = wanted;
        c->src.id_count[g] = wanted + (size_t)draw_int(&c->draw, 0, 2);
        draw_ids(&c->draw, src_used, c->src.ids[g], c->src.id_count[g]);
        draw_ids(&c->draw, dst_used, c->dst.ids[g], c->dst.id_count[g]);
    }
}

void case_generate(struct prop_case *c, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->draw.state = mix_u64(seed);
    c->src.name = "producer";
    c->dst.name = "consumer";
    draw_model(c);
    draw_engine(c, &c->src);
    draw_engine(c, &c->dst);
    agree(c);
    draw_request(c);
}
