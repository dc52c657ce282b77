/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a rank's memory hold which coordinate of the model: from the drawn numbers and the tensors' shapes and
 * strides alone. */
#include "case.h"

int64_t heads_of(const struct model *model, const struct engine *engine)
{
    return model->heads > engine->tp ? model->heads / engine->tp : 1;
}

int64_t first_head(const struct model *model, const struct engine *engine, const struct rank *rank)
{
    return model->is_mla ? 0 : rank->tp * model->heads / engine->tp;
}

int64_t state_bytes_of(const struct model *model, const struct engine *engine)
{
    return model->state_bytes / engine->tp;
}

static uint8_t value_of(int64_t layer, int64_t number, int64_t head, int64_t token, int64_t byte)
{
    uint64_t key = (uint64_t)layer;

    key = mix_u64(key * 1009 + (uint64_t)number);
    key = mix_u64(key * 1009 + (uint64_t)head);
    key = mix_u64(key * 1009 + (uint64_t)token);
    return (uint8_t)mix_u64(key * 1009 + (uint64_t)byte);
}

/** What is being visited. */
struct visit {
    const struct prop_case *c;
    const struct rank *rank;
    int64_t layer, number;
    visitor visit;
    void *context;
};

/** Visits bytes [0, count) from element `element` of the layer's storage on. */
static bool visit_bytes(const struct visit *at, int64_t offset, int64_t count, int64_t head, int64_t token,
                        int64_t first)
{
    const struct piece *piece = &at->rank->pieces[at->layer];
    const struct kvf_vllm_storage *storage = &at->rank->storages[piece->storage];
    bool go_on = true;

    for (int64_t i = 0; i < count && go_on; i++) {
        go_on = at->visit(at->context, (uint8_t *)(uintptr_t)storage->base_addr + offset + i,
                          &at->rank->written[piece->storage][offset + i],
                          value_of(at->layer, at->number, head, token, first + i));
    }
    return go_on;
}

static bool visit_state(const struct visit *at, const struct engine *engine, int64_t id)
{
    const struct kvf_vllm_placed *placed = &at->rank->pieces[at->layer].placed;
    int64_t bytes = state_bytes_of(&at->c->model, engine);

    return visit_bytes(at, placed->offset_bytes + id * placed->strides[0] * placed->element_bytes, bytes, 0, 0,
                       bytes * at->rank->tp);
}

bool visit_block(const struct prop_case *c, const struct engine *engine, const struct rank *rank, int64_t layer,
                 int64_t id, int64_t number, visitor visit, void *context)
{
    const struct model *model = &c->model;
    const struct kvf_vllm_placed *placed = &rank->pieces[layer].placed;
    const struct visit at = {c, rank, layer, number, visit, context};
    int64_t steps = model->kernel_blocks_per_block, tokens = model->block_tokens;
    bool go_on = true;

    if (model->recurrent[model->group_of[layer]]) return visit_state(&at, engine, id);
    for (int64_t token = 0; token < steps * tokens && go_on; token++) {
        for (int64_t head = 0; head < placed->shape[1] && go_on; head++) {
            int64_t element = (id * steps + token / tokens) * placed->strides[0] + head * placed->strides[1] +
                              token % tokens * placed->strides[2];

            go_on = visit_bytes(&at, placed->offset_bytes + element * placed->element_bytes,
                                placed->shape[3] * placed->element_bytes, first_head(model, engine, rank) + head, token,
                                0);
        }
    }
    return go_on;
}
