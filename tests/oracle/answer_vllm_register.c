/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's tensors, and the memory and regions that become of them. */
#include "answer_vllm.h"

#include <string.h>

static struct kvf_vllm_storage *read_storages(struct answer_reader *reader, const json_t *input, size_t *count)
{
    const json_t *list = answer_member(reader, input, "storages");
    struct kvf_vllm_storage *out = answer_take(reader, json_array_size(list), sizeof *out);

    *count = json_array_size(list);
    for (size_t i = 0; i < *count; i++) {
        const json_t *storage = json_array_get(list, i);

        out[i] = (struct kvf_vllm_storage){answer_address(reader, storage, "base"),
                                           answer_int(reader, storage, "bytes")};
    }
    return out;
}

static struct kvf_vllm_tensor *read_views(struct answer_reader *reader, const json_t *input, size_t *count)
{
    const json_t *list = answer_member(reader, input, "views");
    struct kvf_vllm_tensor *out = answer_take(reader, json_array_size(list), sizeof *out);

    *count = json_array_size(list);
    for (size_t i = 0; i < *count; i++) {
        const json_t *view = json_array_get(list, i);
        struct kvf_vllm_ids shape = answer_ids(reader, view, "shape"), strides = answer_ids(reader, view, "strides");

        if (shape.count != strides.count) answer_wrong(reader, "strides: expected as many as the shape has axes");
        out[i] = (struct kvf_vllm_tensor){
            .layer_name = answer_text(reader, view, "layer"),
            .storage = answer_int(reader, view, "storage"),
            .offset_bytes = answer_int(reader, view, "offset"),
            .shape = shape.ids,
            .strides = strides.ids,
            .rank = shape.count,
            .element_bytes = answer_int(reader, view, "elem"),
        };
    }
    return out;
}

static void add_columns(const kvf_vllm_regions *regions, json_t *answer)
{
    static const char *const keys[] = {"base_addr", "block_len", "kv_block_len", "layer_name", "layer_index",
                                       "group_index", "shared_groups", "row_offset"};
    json_t *columns[8];
    size_t count;
    const struct kvf_vllm_region *items = kvf_vllm_regions_get(regions, &count);
    json_t *rows = answer_from_regions(items, count);

    for (size_t k = 0; k < 8; k++) {
        columns[k] = json_array();
        for (size_t i = 0; i < count; i++) {
            json_array_append(columns[k], json_array_get(json_array_get(rows, i), k));
        }
        json_object_set_new(answer, keys[k], columns[k]);
    }
    json_decref(rows);
}

static void add_registration(const kvf_vllm_registration *registration, json_t *answer)
{
    size_t count;
    const struct kvf_vllm_storage *memory = kvf_vllm_registration_memory(registration, &count);
    struct kvf_vllm_ids opaque;
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++) {
        json_array_append_new(list, json_pack("[I, I]", (json_int_t)memory[i].base_addr, (json_int_t)memory[i].bytes));
    }
    json_object_set_new(answer, "memory", list);
    add_columns(kvf_vllm_registration_regions(registration), answer);
    opaque.ids = kvf_vllm_registration_opaque(registration, &opaque.count);
    json_object_set_new(answer, "opaque_storages", answer_from_ids(&opaque));
}

/* What upstream raises where registration refuses. Its assertions have a text for names only. */
static void add_refusal(const struct kvf_error *error, json_t *answer)
{
    bool is_raised = strstr(error->text, "No KV cache tensors were registered") == error->text
                     || strstr(error->text, "Mooncake transfer length exceeds") == error->text;
    bool has_text = is_raised || strstr(error->text, "should only contain one integer");

    answer_error(answer, has_text ? error->text : "");
    json_object_set_new(answer, "type", json_string(is_raised ? "RuntimeError" : "AssertionError"));
}

/* A layer that keeps something is in a group. */
static void check_groups(struct answer_reader *reader, const json_t *input, const struct kvf_vllm_register *spec)
{
    for (size_t i = 0; i < spec->tensor_count && !reader->failed; i++) {
        const char *name = spec->tensors[i].layer_name;

        if (json_object_get(json_object_get(input, "specs"), name)) {
            answer_member(reader, json_object_get(input, "layer_groups"), name);
        }
    }
}

void answer_register(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    struct kvf_vllm_register spec;
    kvf_vllm_registration *registration = NULL;
    struct kvf_error error;

    kvf_vllm_register_init(&spec, sizeof spec);
    spec.storages = read_storages(reader, input, &spec.storage_count);
    spec.tensors = read_views(reader, input, &spec.tensor_count);
    spec.layers = answer_layers(reader, input, "specs", "layer_groups", &spec.layer_count);
    spec.num_blocks = answer_int(reader, input, "num_blocks");
    spec.kernel_blocks_per_block = answer_int(reader, input, "kernel_blocks_per_block");
    check_groups(reader, input, &spec);
    if (reader->failed) return;
    if (kvf_vllm_registration_create(&spec, &registration, &error) == KVF_OK) {
        add_registration(registration, answer);
    } else if (error.status == KVF_ERR_LAYOUT) {
        add_refusal(&error, answer);
    } else {
        answer_wrong(reader, "%s", error.text);
    }
    kvf_vllm_registration_destroy(registration);
}
