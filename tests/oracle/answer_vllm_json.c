/* SPDX-License-Identifier: Apache-2.0 */
/* Reads cases, and writes what answers have in common. */
#include "answer_vllm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of one case. */
struct answer_chunk {
    struct answer_chunk *next;
    _Alignas(16) char bytes[];
};

void answer_wrong(struct answer_reader *reader, const char *format, ...)
{
    va_list arguments;

    if (reader->failed) return;
    va_start(arguments, format);
    vsnprintf(reader->problem, sizeof reader->problem, format, arguments);
    va_end(arguments);
    reader->failed = true;
}

void *answer_take(struct answer_reader *reader, size_t count, size_t element_bytes)
{
    struct answer_chunk *chunk = calloc(1, sizeof *chunk + (count > 0 ? count : 1) * element_bytes);

    if (!chunk) {
        fputs("out of memory\n", stderr);
        exit(EXIT_FAILURE);
    }
    chunk->next = reader->chunks;
    reader->chunks = chunk;
    return chunk->bytes;
}

void answer_reader_fini(struct answer_reader *reader)
{
    while (reader->chunks) {
        struct answer_chunk *next = reader->chunks->next;

        free(reader->chunks);
        reader->chunks = next;
    }
}

const json_t *answer_member(struct answer_reader *reader, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!value) answer_wrong(reader, "%s: is missing", key);
    return value;
}

/* A value alone, told as `what` when it is wrong. */
static int64_t int_value(struct answer_reader *reader, const json_t *value, const char *what)
{
    if (!json_is_integer(value)) answer_wrong(reader, "%s: expected an integer of 64 bits", what);
    return json_integer_value(value);
}

/* A JSON array with room for a C array of as many elements. */
static size_t array_size(struct answer_reader *reader, const json_t *value, const char *what)
{
    if (!json_is_array(value)) answer_wrong(reader, "%s: expected an array", what);
    return json_array_size(value);
}

static struct kvf_vllm_ids ids_value(struct answer_reader *reader, const json_t *value, const char *what)
{
    size_t count = array_size(reader, value, what);
    int64_t *ids = answer_take(reader, count, sizeof *ids);

    for (size_t i = 0; i < count; i++) ids[i] = int_value(reader, json_array_get(value, i), what);
    return (struct kvf_vllm_ids){ids, count};
}

int64_t answer_int(struct answer_reader *reader, const json_t *object, const char *key)
{
    return int_value(reader, answer_member(reader, object, key), key);
}

uint64_t answer_address(struct answer_reader *reader, const json_t *object, const char *key)
{
    int64_t value = answer_int(reader, object, key);

    if (value < 0) answer_wrong(reader, "%s: expected an address", key);
    return (uint64_t)value;
}

bool answer_bool(struct answer_reader *reader, const json_t *object, const char *key)
{
    const json_t *value = answer_member(reader, object, key);

    if (!json_is_boolean(value)) answer_wrong(reader, "%s: expected true or false", key);
    return json_is_true(value);
}

static const char *text_value(struct answer_reader *reader, const json_t *value, const char *what)
{
    if (!json_is_string(value)) answer_wrong(reader, "%s: expected a text", what);
    return json_is_string(value) ? json_string_value(value) : "";
}

const char *answer_text(struct answer_reader *reader, const json_t *object, const char *key)
{
    return text_value(reader, answer_member(reader, object, key), key);
}

struct kvf_vllm_ids answer_ids(struct answer_reader *reader, const json_t *object, const char *key)
{
    return ids_value(reader, answer_member(reader, object, key), key);
}

struct kvf_vllm_ids *answer_id_lists(struct answer_reader *reader, const json_t *object, const char *key,
                                     size_t *count)
{
    const json_t *lists = answer_member(reader, object, key);
    struct kvf_vllm_ids *out;

    *count = array_size(reader, lists, key);
    out = answer_take(reader, *count, sizeof *out);
    for (size_t i = 0; i < *count; i++) out[i] = ids_value(reader, json_array_get(lists, i), key);
    return out;
}

/* A column of numbers; one that is missing is empty. */
static const int64_t *column(struct answer_reader *reader, const json_t *object, const char *key, size_t *count)
{
    const json_t *value = json_object_get(object, key);
    struct kvf_vllm_ids ids = {0};

    if (value) ids = ids_value(reader, value, key);
    *count = ids.count;
    return ids.ids;
}

struct kvf_vllm_arrays answer_arrays(struct answer_reader *reader, const json_t *object, const char *key)
{
    const json_t *columns = answer_member(reader, object, key), *names = json_object_get(columns, "layer_name");
    struct kvf_vllm_arrays out = {0};
    const char **texts;

    out.base_addrs = (const uint64_t *)column(reader, columns, "base_addr", &out.base_addr_count);
    out.block_lens = column(reader, columns, "block_len", &out.block_len_count);
    out.kv_block_lens = column(reader, columns, "kv_block_len", &out.kv_block_len_count);
    out.layer_indices = column(reader, columns, "layer_index", &out.layer_index_count);
    out.group_indices = column(reader, columns, "group_index", &out.group_index_count);
    out.row_offsets = column(reader, columns, "row_offset", &out.row_offset_count);
    for (size_t i = 0; i < out.base_addr_count; i++) {
        if ((int64_t)out.base_addrs[i] < 0) answer_wrong(reader, "base_addr: expected addresses");
    }
    if (json_object_get(columns, "shared_groups")) {
        out.shared_groups = answer_id_lists(reader, columns, "shared_groups", &out.shared_group_count);
    }
    out.layer_name_count = names ? array_size(reader, names, "layer_name") : 0;
    texts = answer_take(reader, out.layer_name_count, sizeof *texts);
    for (size_t i = 0; i < out.layer_name_count; i++) {
        texts[i] = text_value(reader, json_array_get(names, i), "layer_name");
    }
    out.layer_names = texts;
    return out;
}

struct kvf_vllm_region *answer_regions(struct answer_reader *reader, const json_t *object, const char *key,
                                       size_t *count)
{
    const json_t *lists = answer_member(reader, object, key);
    struct kvf_vllm_region *out;

    *count = array_size(reader, lists, key);
    out = answer_take(reader, *count, sizeof *out);
    for (size_t i = 0; i < *count; i++) {
        const json_t *list = json_array_get(lists, i);
        int64_t base = int_value(reader, json_array_get(list, 0), "base_addr");

        if (json_array_size(list) != 8) answer_wrong(reader, "%s: expected regions of eight values", key);
        if (base < 0) answer_wrong(reader, "base_addr: expected an address");
        out[i] = (struct kvf_vllm_region){
            .base_addr = (uint64_t)base,
            .block_len = int_value(reader, json_array_get(list, 1), "block_len"),
            .kv_block_len = int_value(reader, json_array_get(list, 2), "kv_block_len"),
            .layer_name = text_value(reader, json_array_get(list, 3), "layer_name"),
            .layer_index = int_value(reader, json_array_get(list, 4), "layer_index"),
            .group_index = int_value(reader, json_array_get(list, 5), "group_index"),
            .shared_groups = ids_value(reader, json_array_get(list, 6), "shared_groups"),
            .row_offset = int_value(reader, json_array_get(list, 7), "row_offset"),
        };
    }
    return out;
}

static int32_t kind_of(struct answer_reader *reader, const json_t *spec)
{
    static const char *const names[] = {"", "attention", "mla", "mamba", "circular"};
    const char *kind = answer_text(reader, spec, "kind");
    int32_t found = KVF_VLLM_ATTENTION;

    while (found <= KVF_VLLM_CIRCULAR && strcmp(names[found], kind) != 0) found++;
    if (found > KVF_VLLM_CIRCULAR) answer_wrong(reader, "kind: expected attention, mla, mamba or circular");
    return found;
}

struct kvf_vllm_layer *answer_layers(struct answer_reader *reader, const json_t *object, const char *specs,
                                     const char *groups, size_t *count)
{
    json_t *all = (json_t *)answer_member(reader, object, specs), *by_name, *value;
    struct kvf_vllm_layer *out;
    const char *name;

    by_name = (json_t *)answer_member(reader, object, groups);
    if (!json_is_object(all) || !json_is_object(by_name)) {
        answer_wrong(reader, "%s, %s: expected objects", specs, groups);
    }
    out = answer_take(reader, json_object_size(all) + json_object_size(by_name), sizeof *out);
    *count = 0;
    json_object_foreach(all, name, value) {
        const json_t *group = json_object_get(by_name, name);

        out[(*count)++] = (struct kvf_vllm_layer){
            .name = name,
            .group = group ? int_value(reader, group, groups) : 0,
            .kind = kind_of(reader, value),
            .is_nvfp4 = json_is_true(json_object_get(value, "nvfp4")),
            .page_bytes = answer_int(reader, value, "page_bytes"),
            .unpadded_page_bytes = answer_int(reader, value, "unpadded_page_bytes"),
        };
    }
    json_object_foreach(by_name, name, value) {
        if (json_object_get(all, name)) continue;
        out[(*count)++] = (struct kvf_vllm_layer){.name = name, .group = int_value(reader, value, groups)};
    }
    return out;
}

json_t *answer_string(const char *text)
{
    size_t length = strlen(text);
    json_t *out = json_stringn(text, length);

    for (int cut = 0; !out && cut < 4 && length > 0; cut++) out = json_stringn(text, --length);
    return out ? out : json_string("a text that is not UTF-8");
}

json_t *answer_from_ids(const struct kvf_vllm_ids *ids)
{
    json_t *out = json_array();

    for (size_t i = 0; i < ids->count; i++) json_array_append_new(out, json_integer(ids->ids[i]));
    return out;
}

json_t *answer_from_regions(const struct kvf_vllm_region *regions, size_t count)
{
    json_t *out = json_array();

    for (size_t i = 0; i < count; i++) {
        const struct kvf_vllm_region *region = &regions[i];

        json_array_append_new(
            out, json_pack("[I, I, I, o, I, I, o, I]", (json_int_t)region->base_addr, (json_int_t)region->block_len,
                           (json_int_t)region->kv_block_len, answer_string(region->layer_name),
                           (json_int_t)region->layer_index, (json_int_t)region->group_index,
                           answer_from_ids(&region->shared_groups), (json_int_t)region->row_offset));
    }
    return out;
}

void answer_error(json_t *answer, const char *text)
{
    json_object_set_new(answer, "error", answer_string(text));
}
