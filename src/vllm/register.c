/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/register.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "vllm/regions.h"

struct kvf_vllm_registration {
    struct kvf_vllm_storage *memory;
    size_t memory_count;
    kvf_vllm_regions *regions;
    int64_t *opaque;
    size_t opaque_count;
};

/* A region while others may still join it. */
struct draft {
    struct kvf_vllm_region region;
    int64_t *groups; /* owned, once there is more than one */
    bool is_packed;
};

struct builder {
    struct kvf_vllm_register spec;
    const struct kvf_vllm_layer **layers; /* by name */
    struct draft *drafts;
    size_t count, capacity;
    int64_t *memory; /* first storage of each address, in order */
    size_t memory_count;
    bool *is_opaque; /* per storage */
    kvf_vllm_registration *out;
};

static int compare_layers(const void *a, const void *b)
{
    const struct kvf_vllm_layer *const *one = a, *const *other = b;

    return strcmp((*one)->name, (*other)->name);
}

static enum kvf_status check_storages(const struct kvf_vllm_register *spec, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; status == KVF_OK && i < spec->storage_count; i++) {
        const struct kvf_vllm_storage *storage = &spec->storages[i];

        if (storage->bytes < 0 || storage->base_addr > UINT64_MAX - (uint64_t)storage->bytes) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT,
                               "storage %zu: %" PRId64 " bytes at 0x%" PRIx64 " are no range of addresses", i,
                               storage->bytes, storage->base_addr);
        }
    }
    return status;
}

static enum kvf_status check_layer(const struct kvf_vllm_layer *layer, size_t i, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (!layer->name) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "layer %zu: its name is NULL", i);
    } else if (layer->kind < KVF_VLLM_NO_SPEC || layer->kind > KVF_VLLM_CIRCULAR) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "layer %s: kind %" PRId32 ", expected %d to %d",
                           layer->name, layer->kind, KVF_VLLM_NO_SPEC, KVF_VLLM_CIRCULAR);
    } else if (layer->page_bytes < 0 || layer->group < 0) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "layer %s: pages of %" PRId64 " bytes in group %" PRId64 ", expected 0 or more", layer->name,
                           layer->page_bytes, layer->group);
    }
    return status;
}

static enum kvf_status check_spec(const struct kvf_vllm_register *spec, struct kvf_error *error)
{
    const size_t limit = KVFI_VLLM_MAX_REGIONS;
    enum kvf_status status = KVF_OK;

    if ((spec->storage_count > 0 && !spec->storages) || (spec->tensor_count > 0 && !spec->tensors)
        || (spec->layer_count > 0 && !spec->layers)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "registration: an array of storages, tensors or layers is "
                           "NULL");
    } else if (spec->num_blocks < 0 || spec->kernel_blocks_per_block < 1) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "registration: %" PRId64 " blocks of %" PRId64 " kernel blocks, expected 0 or more of 1 or "
                           "more", spec->num_blocks, spec->kernel_blocks_per_block);
    } else if (spec->storage_count > limit || spec->tensor_count > limit || spec->layer_count > limit) {
        status = kvfi_fail(error, KVF_ERR_LIMIT,
                           "registration: %zu storages, %zu tensors, %zu layers, the limit is %zu each",
                           spec->storage_count, spec->tensor_count, spec->layer_count, limit);
    }
    if (status == KVF_OK) status = check_storages(spec, error);
    for (size_t i = 0; status == KVF_OK && i < spec->layer_count; i++) status = check_layer(&spec->layers[i], i, error);
    for (size_t i = 0; status == KVF_OK && i < spec->tensor_count; i++) {
        if (!spec->tensors[i].layer_name) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "tensor %zu: its layer name is NULL", i);
        }
    }
    return status;
}

static enum kvf_status builder_init(struct builder *builder, const struct kvf_vllm_register *given,
                                    struct kvf_error *error)
{
    enum kvf_status status;

    *builder = (struct builder){0};
    kvf_vllm_register_init(&builder->spec, sizeof builder->spec);
    status = kvfi_options_copy(&builder->spec, sizeof builder->spec, given, "kvf_vllm_register", error);
    if (status == KVF_OK) status = check_spec(&builder->spec, error);
    if (status != KVF_OK) goto done;
    builder->layers = kvfi_alloc_array(builder->spec.layer_count, sizeof *builder->layers);
    builder->memory = kvfi_alloc_array(builder->spec.storage_count, sizeof *builder->memory);
    builder->is_opaque = kvfi_alloc_zeroed(builder->spec.storage_count, sizeof *builder->is_opaque);
    builder->out = kvfi_alloc_zeroed(1, sizeof *builder->out);
    if (!builder->layers || !builder->memory || !builder->is_opaque || !builder->out) {
        status = kvfi_fail_memory(error, "a registration");
        goto done;
    }
    for (size_t i = 0; i < builder->spec.layer_count; i++) builder->layers[i] = &builder->spec.layers[i];
    qsort(builder->layers, builder->spec.layer_count, sizeof *builder->layers, compare_layers);
    for (size_t i = 1; status == KVF_OK && i < builder->spec.layer_count; i++) {
        if (compare_layers(&builder->layers[i - 1], &builder->layers[i]) == 0) {
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "layer %s: listed twice", builder->layers[i]->name);
        }
    }
done:
    return status;
}

static void builder_fini(struct builder *builder)
{
    kvf_vllm_registration_destroy(builder->out);
    for (size_t i = 0; i < builder->count; i++) free(builder->drafts[i].groups);
    free(builder->drafts);
    free(builder->is_opaque);
    free(builder->memory);
    free(builder->layers);
}

/* The layer of a tensor, or NULL when nothing is known of it. */
static const struct kvf_vllm_layer *find_layer(const struct builder *builder, const char *name)
{
    const struct kvf_vllm_layer key = {.name = name}, *key_pointer = &key, **found;

    found = bsearch(&key_pointer, builder->layers, builder->spec.layer_count, sizeof *builder->layers, compare_layers);
    return found && (*found)->kind != KVF_VLLM_NO_SPEC ? *found : NULL;
}

/* An allocation is registered whole, and once. Returns the index of the first storage at its address. */
static int64_t note_storage(struct builder *builder, int64_t storage)
{
    const struct kvf_vllm_storage *storages = builder->spec.storages;
    size_t i = 0;

    while (i < builder->memory_count && storages[builder->memory[i]].base_addr != storages[storage].base_addr) i++;
    if (i == builder->memory_count) builder->memory[builder->memory_count++] = storage;
    return builder->memory[i];
}

static enum kvf_status add_draft(struct builder *builder, const struct kvf_vllm_layer *layer,
                                 const struct draft *draft, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    void *items = builder->drafts;

    if (builder->count == KVFI_VLLM_MAX_REGIONS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "registration: more than %d regions", KVFI_VLLM_MAX_REGIONS);
    } else if (!kvfi_array_grow(&items, builder->count, &builder->capacity, sizeof *draft)) {
        status = kvfi_fail_memory(error, "the regions of a registration");
    } else {
        builder->drafts = items;
        builder->drafts[builder->count] = *draft;
        builder->drafts[builder->count].region.group_index = layer->group;
        builder->drafts[builder->count++].region.shared_groups = (struct kvf_vllm_ids){&layer->group, 1};
    }
    return status;
}

/* One more layer has the view of a region: its group shares it. */
static enum kvf_status join(struct draft *draft, const struct kvf_vllm_layer *layer, struct kvf_error *error)
{
    struct kvf_vllm_ids *shared = &draft->region.shared_groups;
    enum kvf_status status = KVF_OK;
    int64_t *groups;
    size_t i = 0;

    while (i < shared->count && shared->ids[i] != layer->group) i++;
    if (i < shared->count) goto done;
    groups = realloc(draft->groups, (shared->count + 1) * sizeof *groups);
    if (!groups) {
        status = kvfi_fail_memory(error, "the groups of a shared region");
        goto done;
    }
    if (!draft->groups) groups[0] = shared->ids[0];
    draft->groups = groups;
    groups[shared->count] = layer->group;
    *shared = (struct kvf_vllm_ids){groups, shared->count + 1};
    draft->region.group_index = KVF_VLLM_SHARED_GROUP;
done:
    return status;
}

/* Blocks are rows of the allocation: a layer's part of a row, or whole rows when it has no part of its own. */
static enum kvf_status add_packed(struct builder *builder, const struct kvf_vllm_layer *layer, int64_t index,
                                  const struct kvfi_vllm_view *view, int64_t storage, struct kvf_error *error)
{
    bool is_page = view->block_bytes > 0 && view->block_bytes <= view->block_stride;
    uint64_t address = is_page ? view->address : view->storage_address;
    int64_t payload = is_page ? view->block_bytes : view->block_stride;
    struct draft draft = {
        .region = {.layer_name = layer->name, .layer_index = index, .base_addr = address,
                   .block_len = view->block_stride, .kv_block_len = payload,
                   .row_offset = (int64_t)(address - view->storage_address)},
        .is_packed = true,
    };
    size_t i = 0;

    if (!is_page) builder->is_opaque[storage] = true;
    for (; i < builder->count; i++) {
        const struct kvf_vllm_region *other = &builder->drafts[i].region;

        if (builder->drafts[i].is_packed && other->base_addr == address && other->block_len == view->block_stride
            && other->kv_block_len == payload) {
            break;
        }
    }
    return i < builder->count ? join(&builder->drafts[i], layer, error) : add_draft(builder, layer, &draft, error);
}

static enum kvf_status get_payload(const struct builder *builder, const struct kvf_vllm_layer *layer,
                                   const struct kvfi_vllm_view *view, int64_t *payload, struct kvf_error *error)
{
    int64_t parts = builder->spec.kernel_blocks_per_block;
    enum kvf_status status = KVF_OK;

    *payload = view->block_stride;
    if (view->is_dense && layer->kind == KVF_VLLM_MAMBA) {
        *payload = layer->page_bytes;
    } else if (view->is_dense) {
        *payload = layer->page_bytes / parts;
        if (layer->page_bytes % parts != 0) {
            status = kvfi_fail(error, KVF_ERR_LAYOUT,
                               "layer %s: a page of %" PRId64 " bytes does not divide into %" PRId64 " kernel blocks",
                               layer->name, layer->page_bytes, parts);
        }
    }
    if (status == KVF_OK && *payload > view->block_stride) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT,
                           "Mooncake transfer length exceeds physical block stride for %s: kv_block_len=%" PRId64
                           ", block_len=%" PRId64 ".", layer->name, *payload, view->block_stride);
    }
    return status;
}

/* Blocks are spans by themselves, or else every head's part of them is. */
static enum kvf_status add_plain(struct builder *builder, const struct kvf_vllm_layer *layer, int64_t index,
                                 const struct kvfi_vllm_view *view, struct kvf_error *error)
{
    int64_t region_count = view->is_dense ? 1 : view->head_count, payload = 0;
    enum kvf_status status = KVF_OK;

    if (!view->is_dense && !view->are_heads_dense) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT,
                           "layer %s: neither a block nor each head's part of one fills a span of memory", layer->name);
    } else if (region_count > KVFI_VLLM_MAX_REGIONS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "layer %s: %" PRId64 " heads in regions of their own, the limit is %d",
                           layer->name, region_count, KVFI_VLLM_MAX_REGIONS);
    } else {
        status = get_payload(builder, layer, view, &payload, error);
    }
    for (int64_t i = 0; status == KVF_OK && i < region_count; i++) {
        const struct draft draft = {
            .region = {.layer_name = layer->name, .layer_index = index,
                       .base_addr = view->address + (uint64_t)(i * view->head_stride),
                       .block_len = view->block_stride, .kv_block_len = payload, .row_offset = KVF_VLLM_NO_ROW},
        };

        status = add_draft(builder, layer, &draft, error);
    }
    return status;
}

static enum kvf_status add_tensor(struct builder *builder, const struct kvf_vllm_tensor *tensor,
                                  struct kvf_error *error)
{
    const struct kvf_vllm_layer *layer = find_layer(builder, tensor->layer_name);
    struct kvfi_vllm_view view;
    int64_t index, storage;
    enum kvf_status status = kvfi_vllm_layer_index(tensor->layer_name, &index, error);

    if (status != KVF_OK || !layer) goto done;
    status = kvfi_vllm_view_init(&view, &builder->spec, tensor, layer, error);
    if (status != KVF_OK) goto done;
    storage = note_storage(builder, tensor->storage);
    status = view.is_packed ? add_packed(builder, layer, index, &view, storage, error)
                            : add_plain(builder, layer, index, &view, error);
done:
    return status;
}

/* Puts the result together. */
static enum kvf_status finish(struct builder *builder, struct kvf_error *error)
{
    struct kvf_vllm_region *items = kvfi_alloc_array(builder->count, sizeof *items);
    kvf_vllm_registration *out = builder->out;
    enum kvf_status status = KVF_OK;

    out->memory = kvfi_alloc_array(builder->memory_count, sizeof *out->memory);
    out->opaque = kvfi_alloc_array(builder->memory_count, sizeof *out->opaque);
    if (!items || !out->memory || !out->opaque) {
        status = kvfi_fail_memory(error, "a registration");
        goto done;
    }
    for (size_t i = 0; i < builder->count; i++) items[i] = builder->drafts[i].region;
    for (size_t i = 0; i < builder->memory_count; i++) {
        out->memory[out->memory_count++] = builder->spec.storages[builder->memory[i]];
    }
    for (size_t i = 0; i < builder->spec.storage_count; i++) {
        if (builder->is_opaque[i]) out->opaque[out->opaque_count++] = (int64_t)i;
    }
    status = kvf_vllm_regions_create(items, builder->count, &out->regions, error);
done:
    free(items);
    return status;
}

enum kvf_status kvf_vllm_registration_create(const struct kvf_vllm_register *spec, kvf_vllm_registration **out,
                                             struct kvf_error *error)
{
    struct builder builder = {0};
    enum kvf_status status;

    if (!spec || !out) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "registration: spec or out is NULL");
        goto done;
    }
    status = builder_init(&builder, spec, error);
    for (size_t i = 0; status == KVF_OK && i < builder.spec.tensor_count; i++) {
        status = add_tensor(&builder, &builder.spec.tensors[i], error);
    }
    if (status == KVF_OK && builder.memory_count == 0) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "No KV cache tensors were registered with Mooncake.");
    }
    if (status == KVF_OK) status = finish(&builder, error);
    if (status != KVF_OK) goto done;
    *out = builder.out;
    builder.out = NULL;
done:
    builder_fini(&builder);
    return status;
}

void kvf_vllm_registration_destroy(kvf_vllm_registration *registration)
{
    if (!registration) return;
    kvf_vllm_regions_release(registration->regions);
    free(registration->opaque);
    free(registration->memory);
    free(registration);
}

const struct kvf_vllm_storage *kvf_vllm_registration_memory(const kvf_vllm_registration *registration, size_t *count)
{
    *count = registration->memory_count;
    return registration->memory;
}

const kvf_vllm_regions *kvf_vllm_registration_regions(const kvf_vllm_registration *registration)
{
    return registration->regions;
}

const int64_t *kvf_vllm_registration_opaque(const kvf_vllm_registration *registration, size_t *count)
{
    *count = registration->opaque_count;
    return registration->opaque;
}
