/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

/** The stage's first layer and the one after its last. */
static void stage_of(const struct engine *engine, const struct rank *rank, int64_t *first, int64_t *end)
{
    *first = rank->pp > 0 ? engine->stage_end[rank->pp - 1] : 0;
    *end = engine->stage_end[rank->pp];
}

static int64_t add_storage(struct rank *rank, int64_t bytes)
{
    struct kvf_vllm_storage *storage = &rank->storages[rank->storage_count];
    void *memory = malloc((size_t)bytes);

    rank->written[rank->storage_count] = calloc(1, (size_t)bytes);
    if (!memory || !rank->written[rank->storage_count]) abort();
    memset(memory, 0xEE, (size_t)bytes);
    *storage = (struct kvf_vllm_storage){(uintptr_t)memory, bytes};
    return (int64_t)rank->storage_count++;
}

/** A layer's number among those that share its allocation, and how many there are. */
static void number_of(const struct prop_case *c, const struct engine *engine, int64_t first, int64_t end,
                      int64_t layer, int64_t *number, int64_t *count)
{
    int64_t in_group[MOST_GROUPS] = {0};

    *number = 0;
    *count = 0;
    for (int64_t i = first; i < end; i++) {
        int64_t group = c->model.group_of[i], at = engine->overlaid ? in_group[group]++ : *count;

        if (c->model.recurrent[group]) continue;
        if (i == layer) *number = at;
        if (at + 1 > *count) *count = at + 1;
    }
}

static void place_state(const struct prop_case *c, const struct engine *engine, struct rank *rank, struct piece *piece)
{
    int64_t bytes = state_bytes_of(&c->model, engine), stride = bytes + engine->padding_bytes;

    piece->placed = (struct kvf_vllm_placed){.shape = {BLOCKS, 1, 1, bytes}, .strides = {stride, bytes, bytes, 1},
                                             .element_bytes = 1, .page_bytes = bytes, .unpadded_page_bytes = bytes};
    piece->storage = add_storage(rank, BLOCKS * stride);
}

static bool place_layers(const struct prop_case *c, const struct engine *engine, struct rank *rank)
{
    const struct model *model = &c->model;
    struct kvf_vllm_facts facts = {.block_tokens = model->block_tokens, .kv_heads = heads_of(model, engine),
                                   .head_size = model->head_size, .head_size_v = model->is_mla ? 0 : -1,
                                   .element_bytes = model->element_bytes, .tokens_per_state = 1};
    int64_t shared[MOST_LAYERS], first, end;
    struct kvf_error error = {.text = ""};

    if (engine->padding_bytes) {
        facts.padded_page_bytes = facts.block_tokens * facts.kv_heads * facts.head_size * facts.element_bytes *
                                  (model->is_mla ? 1 : 2) + engine->padding_bytes;
    }
    for (int64_t i = 0; i < MOST_LAYERS; i++) shared[i] = -1;
    stage_of(engine, rank, &first, &end);
    for (int64_t layer = first; layer < end; layer++) {
        struct piece *piece = &rank->pieces[layer];
        int64_t number, count, allocation;

        piece->here = true;
        if (model->recurrent[model->group_of[layer]]) {
            place_state(c, engine, rank, piece);
            continue;
        }
        number_of(c, engine, first, end, layer, &number, &count);
        allocation = engine->apart ? number : 0;
        if (kvf_vllm_place(&facts, engine->physical, engine->apart ? 1 : count, engine->apart ? 0 : number,
                           BLOCKS * model->kernel_blocks_per_block, &piece->placed, &error) != KVF_OK) {
            fprintf(stderr, "%s: %s\n", engine->name, error.text);
            return false;
        }
        if (shared[allocation] < 0) shared[allocation] = add_storage(rank, piece->placed.allocation_bytes);
        piece->storage = shared[allocation];
    }
    return true;
}

/** Tells the library of the rank's tensors, and of the rank. */
static bool register_rank(const struct prop_case *c, const struct engine *engine, struct rank *rank)
{
    const struct model *model = &c->model;
    struct kvf_vllm_tensor tensors[MOST_LAYERS];
    struct kvf_vllm_layer layers[MOST_LAYERS];
    int32_t kinds[MOST_GROUPS];
    struct kvf_vllm_register spec;
    struct kvf_vllm_producer_spec producer;
    struct kvf_error error = {.text = ""};
    size_t count = 0;
    bool ok;

    kvf_vllm_register_init(&spec, sizeof spec);
    kvf_vllm_producer_spec_init(&producer, sizeof producer);
    for (int64_t i = 0; i < model->layers; i++) {
        const struct piece *piece = &rank->pieces[i];
        bool recurrent = model->recurrent[model->group_of[i]];
        int64_t steps = recurrent ? 1 : model->kernel_blocks_per_block;

        if (!piece->here) continue;
        tensors[count] = (struct kvf_vllm_tensor){model->names[i], piece->storage, piece->placed.offset_bytes,
                                                  piece->placed.shape, piece->placed.strides, 4,
                                                  piece->placed.element_bytes};
        layers[count++] = (struct kvf_vllm_layer){
            .name = model->names[i], .group = model->group_of[i],
            .kind = recurrent ? KVF_VLLM_MAMBA : model->is_mla ? KVF_VLLM_MLA : KVF_VLLM_ATTENTION,
            .page_bytes = piece->placed.page_bytes * steps,
            .unpadded_page_bytes = piece->placed.unpadded_page_bytes * steps};
    }
    for (int64_t g = 0; g < model->groups; g++) kinds[g] = model->recurrent[g] ? KVF_VLLM_MAMBA : KVF_VLLM_ATTENTION;
    spec.storages = rank->storages;
    spec.storage_count = rank->storage_count;
    spec.tensors = tensors;
    spec.tensor_count = count;
    spec.layers = producer.layers = layers;
    spec.layer_count = producer.layer_count = count;
    spec.num_blocks = BLOCKS;
    spec.kernel_blocks_per_block = producer.kernel_blocks_per_block = model->kernel_blocks_per_block;
    ok = kvf_vllm_registration_create(&spec, &rank->registration, &error) == KVF_OK;
    if (ok) {
        producer.tp_rank = rank->tp;
        producer.tp_size = engine->tp;
        producer.pp_size = engine->pp;
        producer.is_mla = model->is_mla;
        producer.total_kv_heads = model->heads;
        producer.group_kinds = kinds;
        producer.group_count = (size_t)model->groups;
        kvf_vllm_registration_opaque(rank->registration, &count);
        producer.has_opaque_row = count > 0;
        kvf_vllm_regions_arrays(kvf_vllm_registration_regions(rank->registration), &producer.regions);
        ok = kvf_vllm_producer_create(&producer, &rank->producer, &error) == KVF_OK;
    }
    if (!ok) fprintf(stderr, "%s: %s\n", engine->name, error.text);
    return ok;
}

static bool write_value(void *context, uint8_t *byte, uint8_t *written, uint8_t value)
{
    (void)context;
    (void)written;
    *byte = value;
    return true;
}

bool engine_init(struct prop_case *c, struct engine *engine)
{
    bool ok = true;

    for (int64_t pp = 0; pp < engine->pp && ok; pp++) {
        for (int64_t tp = 0; tp < engine->tp && ok; tp++) {
            struct rank *rank = &engine->ranks[engine->rank_count++];

            rank->tp = tp;
            rank->pp = pp;
            ok = place_layers(c, engine, rank) && register_rank(c, engine, rank);
            for (int64_t i = 0; i < c->model.layers && ok && engine == &c->src; i++) {
                int64_t group = c->model.group_of[i];

                for (size_t n = 0; rank->pieces[i].here && n < engine->id_count[group]; n++)
                    visit_block(c, engine, rank, i, engine->ids[group][n], (int64_t)n, write_value, NULL);
            }
        }
    }
    return ok;
}

void engine_fini(struct engine *engine)
{
    for (size_t i = 0; i < engine->rank_count; i++) {
        struct rank *rank = &engine->ranks[i];

        kvf_vllm_producer_destroy(rank->producer);
        kvf_vllm_registration_destroy(rank->registration);
        for (size_t s = 0; s < rank->storage_count; s++) {
            free((void *)(uintptr_t)rank->storages[s].base_addr);
            free(rank->written[s]);
        }
    }
    engine->rank_count = 0;
}
