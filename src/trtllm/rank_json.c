/* SPDX-License-Identifier: Apache-2.0 */
/* A rank info from JSON: the rank's own members. */
#include "trtllm/rank_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const char *const kvfi_trt_cache_words[] = {"paged", "state", NULL};
const char *const kvfi_trt_mapper_words[] = {"indexed", "replicated", "nhd", "sectioned", NULL};
const char *const kvfi_trt_key_words[] = {"protocol_version", "bounded_replay_on_generation", "num_draft_layers",
                                          "draft_kv_dtype", NULL};

static const struct kvfi_json_limits rank_limits = {.max_bytes = (size_t)64 << 20, .max_depth = 16,
                                                    .max_containers = 1310720, .max_values = 6291456};

enum kvf_status kvfi_trt_json_take(struct kvfi_trt_json *json, size_t count, size_t element_bytes, void **out)
{
    *out = kvfi_arena_take(json->arena, count, element_bytes);
    return *out ? KVF_OK : kvfi_fail_memory(json->error, "rank info");
}

enum kvf_status kvfi_trt_json_optional(const struct kvfi_cursor *up, const char *key, int64_t *out)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key);

    *out = KVF_TRTLLM_NONE;
    return at.value && !json_is_null(at.value) ? kvfi_json_int(&at, INT64_MIN + 1, INT64_MAX, out) : KVF_OK;
}

enum kvf_status kvfi_trt_json_address(const struct kvfi_cursor *at, uint64_t *out)
{
    const char *text = json_string_value(at->value);
    enum kvf_status status = KVF_OK;
    int64_t number = 0;

    if (json_is_integer(at->value)) {
        status = kvfi_json_int(at, 0, INT64_MAX, &number);
        *out = (uint64_t)number;
    } else if (text && strncmp(text, "0x", 2) == 0 && strlen(text) > 2 && strlen(text) <= 18 &&
               strspn(text + 2, "0123456789abcdefABCDEF") == strlen(text + 2)) {
        *out = strtoull(text + 2, NULL, 16);
    } else {
        status = kvfi_cursor_expected(at, "an address: an integer of at least 0, or a text of 0x and hex digits");
    }
    return status;
}

enum kvf_status kvfi_trt_json_integers(struct kvfi_trt_json *json, const struct kvfi_cursor *at, int64_t min,
                                       size_t max_count, const int64_t **out, size_t *count)
{
    int64_t *numbers = NULL;
    enum kvf_status status = kvfi_json_array(at, 0, max_count, count);

    if (status == KVF_OK) status = kvfi_trt_json_take(json, *count, sizeof *numbers, (void **)&numbers);
    for (size_t i = 0; status == KVF_OK && i < *count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(at, i);

        status = kvfi_json_int(&item, min, INT64_MAX, &numbers[i]);
    }
    if (status == KVF_OK) *out = numbers;
    return status;
}

enum kvf_status kvfi_trt_json_texts(struct kvfi_trt_json *json, const struct kvfi_cursor *at, size_t max_count,
                                    const char *const **out, size_t *count)
{
    const char **texts = NULL;
    enum kvf_status status = kvfi_json_array(at, 0, max_count, count);

    if (status == KVF_OK) status = kvfi_trt_json_take(json, *count, sizeof *texts, (void **)&texts);
    for (size_t i = 0; status == KVF_OK && i < *count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(at, i);

        texts[i] = json_string_value(item.value);
        if (!texts[i] || strlen(texts[i]) != json_string_length(item.value))
            status = kvfi_cursor_expected(&item, "a text");
    }
    if (status == KVF_OK) *out = texts;
    return status;
}

/* [size, rank] of one axis. */
static enum kvf_status read_axis(const struct kvfi_cursor *up, const char *key, int64_t *size, int64_t *rank)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, key), first, second;
    size_t count;
    enum kvf_status status = kvfi_json_array(&at, 2, 2, &count);

    if (status != KVF_OK) goto done;
    first = kvfi_cursor_item(&at, 0);
    second = kvfi_cursor_item(&at, 1);
    status = kvfi_json_int(&first, 1, KVF_TRTLLM_MAX_RANKS, size);
    if (status == KVF_OK) status = kvfi_json_int(&second, 0, *size - 1, rank);
done:
    return status;
}

static enum kvf_status read_flag(const struct kvfi_cursor *up, const char *key, int64_t *out)
{
    bool flag = false;
    enum kvf_status status = kvfi_json_key_bool(up, key, &flag);

    *out = flag;
    return status;
}

/* Bytes of one element: a whole number, or a number of eighths of a byte. */
static enum kvf_status read_element(const struct kvfi_cursor *up, int64_t *eighths)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "element_bytes");
    double number = json_is_number(at.value) ? json_number_value(at.value) * 8 : 0;

    if (!(number >= 1) || number > 9007199254740992.0 || number != (double)(int64_t)number)
        return kvfi_cursor_expected(&at, "a positive whole number of eighths of a byte, such as 2 or 0.5");
    *eighths = (int64_t)number;
    return KVF_OK;
}

static enum kvf_status read_attention(struct kvfi_trt_json *json, const struct kvfi_cursor *up,
                                      const struct kvf_trtllm_attention **out)
{
    static const char *const known[] = {"kv_heads", "tokens_per_block", "head_dim", "element_bytes", "attention_dp",
                                        "key_only", NULL};
    struct kvfi_cursor at = kvfi_cursor_key(up, "attention");
    struct kvf_trtllm_attention *attention = NULL;
    enum kvf_status status = KVF_OK;

    if (!at.value || json_is_null(at.value)) goto done;
    status = kvfi_json_object(&at, known);
    if (status == KVF_OK) status = kvfi_trt_json_take(json, 1, sizeof *attention, (void **)&attention);
    if (status == KVF_OK) status = kvfi_json_key_int(&at, "kv_heads", 0, INT64_MAX, &attention->kv_heads_per_rank);
    if (status == KVF_OK)
        status = kvfi_json_key_int(&at, "tokens_per_block", 1, INT64_MAX, &attention->tokens_per_block);
    if (status == KVF_OK) status = kvfi_json_key_int(&at, "head_dim", 0, INT64_MAX, &attention->dims_per_head);
    if (status == KVF_OK) status = read_element(&at, &attention->element_eighths);
    if (status == KVF_OK) status = read_flag(&at, "attention_dp", &attention->enable_attention_dp);
    if (status == KVF_OK) status = read_flag(&at, "key_only", &attention->is_mla);
    if (status == KVF_OK) *out = attention;
done:
    return status;
}

static enum kvf_status read_addresses(struct kvfi_trt_json *json, const struct kvfi_cursor *at, const uint64_t **out,
                                      size_t *count)
{
    uint64_t *addresses = NULL;
    enum kvf_status status = kvfi_json_array(at, 0, KVF_TRTLLM_MAX_AUX, count);

    if (status == KVF_OK) status = kvfi_trt_json_take(json, *count, sizeof *addresses, (void **)&addresses);
    for (size_t i = 0; status == KVF_OK && i < *count; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(at, i);

        status = kvfi_trt_json_address(&item, &addresses[i]);
    }
    if (status == KVF_OK) *out = addresses;
    return status;
}

static enum kvf_status read_aux(struct kvfi_trt_json *json, const struct kvfi_cursor *up,
                                const struct kvf_trtllm_aux **out)
{
    static const char *const known[] = {"address", "size", "item", "device", NULL};
    struct kvfi_cursor at = kvfi_cursor_key(up, "aux"), address, size, item;
    struct kvf_trtllm_aux *aux = NULL;
    enum kvf_status status = KVF_OK;

    if (!at.value || json_is_null(at.value)) goto done;
    status = kvfi_json_object(&at, known);
    if (status == KVF_OK) status = kvfi_trt_json_take(json, 1, sizeof *aux, (void **)&aux);
    if (status != KVF_OK) goto done;
    address = kvfi_cursor_key(&at, "address");
    size = kvfi_cursor_key(&at, "size");
    item = kvfi_cursor_key(&at, "item");
    status = read_addresses(json, &address, &aux->ptrs, &aux->ptr_count);
    if (status == KVF_OK)
        status = kvfi_trt_json_integers(json, &size, INT64_MIN, KVF_TRTLLM_MAX_AUX, &aux->size, &aux->size_count);
    if (status == KVF_OK)
        status = kvfi_trt_json_integers(json, &item, INT64_MIN, KVF_TRTLLM_MAX_AUX, &aux->item_sizes,
                                        &aux->item_count);
    if (status == KVF_OK)
        status = kvfi_json_key_text_or(&at, "device", KVF_TRTLLM_MAX_TEXT_BYTES, "cpu", &aux->device);
    if (status == KVF_OK) *out = aux;
done:
    return status;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)((at - digits) & 15) : -1;
}

static enum kvf_status read_engine_info(struct kvfi_trt_json *json, const struct kvfi_cursor *up,
                                        struct kvf_trtllm_rank_spec *spec)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "engine_info");
    const char *text;
    unsigned char *bytes = NULL;
    size_t count;
    enum kvf_status status = kvfi_json_key_text_or(up, "engine_info", 2 * (size_t)KVF_TRTLLM_MAX_RANK_BYTES, "",
                                                   &text);

    if (status != KVF_OK) goto done;
    count = strlen(text) / 2;
    status = kvfi_trt_json_take(json, count, 1, (void **)&bytes);
    if (status != KVF_OK) goto done;
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        if (high < 0 || low < 0) status = kvfi_cursor_expected(&at, "pairs of hex digits");
        else bytes[i] = (unsigned char)(high << 4 | low);
    }
    if (status == KVF_OK && strlen(text) % 2) status = kvfi_cursor_expected(&at, "pairs of hex digits");
    spec->transfer_engine_info = bytes;
    spec->transfer_engine_info_bytes = count;
done:
    return status;
}

/* The keys that an older sender leaves out. */
static enum kvf_status read_absent(const struct kvfi_cursor *up, uint64_t *keys)
{
    struct kvfi_cursor at = kvfi_cursor_key(up, "absent");
    enum kvf_status status = KVF_OK;
    size_t count = 0;

    if (at.value) status = kvfi_json_array(&at, 0, 4, &count);
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        struct kvfi_cursor item = kvfi_cursor_item(&at, i);
        const char *word = json_string_value(item.value);
        size_t bit = 0;

        while (word && kvfi_trt_key_words[bit] && strcmp(kvfi_trt_key_words[bit], word) != 0) bit++;
        if (!word || !kvfi_trt_key_words[bit])
            status = kvfi_cursor_expected(&item, "\"protocol_version\", \"bounded_replay_on_generation\", "
                                                 "\"num_draft_layers\" or \"draft_kv_dtype\"");
        else *keys &= ~((uint64_t)1 << bit);
    }
    return status;
}

static enum kvf_status read_newest(const struct kvfi_cursor *at, struct kvf_trtllm_rank_spec *spec)
{
    struct kvfi_cursor dtype = kvfi_cursor_key(at, "draft_dtype");
    int64_t delta = 0;
    enum kvf_status status = kvfi_json_key_int_or(at, "protocol_delta", INT32_MIN, INT32_MAX, 0, &delta);

    spec->protocol_version = KVF_TRTLLM_PROTOCOL_VERSION + delta;
    if (status == KVF_OK) status = read_flag(at, "replay", &spec->bounded_replay_on_generation);
    if (status == KVF_OK)
        status = kvfi_json_key_int_or(at, "draft_layers", 0, INT64_MAX, 0, &spec->num_draft_layers);
    if (status == KVF_OK && dtype.value && !json_is_null(dtype.value))
        status = kvfi_json_key_text(at, "draft_dtype", 0, KVF_TRTLLM_MAX_TEXT_BYTES, &spec->draft_kv_dtype);
    if (status == KVF_OK) status = read_absent(at, &spec->keys);
    return status;
}

static enum kvf_status read_place(struct kvfi_trt_json *json, const struct kvfi_cursor *at,
                                  struct kvf_trtllm_rank_spec *spec)
{
    struct kvfi_cursor stages = kvfi_cursor_key(at, "layers_per_stage"), endpoints = kvfi_cursor_key(at, "endpoints");
    enum kvf_status status = kvfi_json_key_text(at, "name", 0, KVF_TRTLLM_MAX_TEXT_BYTES, &spec->instance_name);

    if (status == KVF_OK) status = kvfi_json_key_int(at, "rank", 0, INT32_MAX, &spec->instance_rank);
    if (status == KVF_OK) status = read_axis(at, "tp", &spec->tp_size, &spec->tp_rank);
    if (status == KVF_OK) status = read_axis(at, "pp", &spec->pp_size, &spec->pp_rank);
    if (status == KVF_OK) status = read_axis(at, "dp", &spec->dp_size, &spec->dp_rank);
    if (status == KVF_OK) status = read_axis(at, "cp", &spec->cp_size, &spec->cp_rank);
    if (status == KVF_OK) status = kvfi_json_key_int_or(at, "device", 0, INT32_MAX, 0, &spec->device_id);
    if (status == KVF_OK)
        status = kvfi_trt_json_integers(json, &stages, 0, KVF_TRTLLM_MAX_RANKS, &spec->layer_num_per_pp,
                                        &spec->layer_num_count);
    if (status == KVF_OK && endpoints.value)
        status = kvfi_trt_json_texts(json, &endpoints, KVF_TRTLLM_MAX_RANKS, &spec->sender_endpoints,
                                     &spec->sender_endpoint_count);
    if (status == KVF_OK)
        status = kvfi_json_key_text_or(at, "endpoint", KVF_TRTLLM_MAX_TEXT_BYTES, "", &spec->self_endpoint);
    return status;
}

static enum kvf_status read_rank(struct kvfi_trt_json *json, const struct kvfi_cursor *at,
                                 struct kvf_trtllm_rank_spec *spec)
{
    static const char *const known[] = {"name", "rank", "tp", "pp", "dp", "cp", "device", "layers_per_stage",
                                        "endpoints", "endpoint", "engine_info", "attention", "aux", "table",
                                        "protocol_delta", "replay", "draft_layers", "draft_dtype", "absent", NULL};
    struct kvfi_cursor table = kvfi_cursor_key(at, "table");
    enum kvf_status status = kvfi_json_object(at, known);

    if (status == KVF_OK) status = read_place(json, at, spec);
    if (status == KVF_OK) status = read_engine_info(json, at, spec);
    if (status == KVF_OK) status = read_attention(json, at, &spec->attention);
    if (status == KVF_OK) status = read_aux(json, at, &spec->aux);
    if (status == KVF_OK && table.value && !json_is_null(table.value))
        status = kvfi_trt_json_table(json, &table, &spec->page_table);
    if (status == KVF_OK) status = read_newest(at, spec);
    return status;
}

enum kvf_status kvf_trtllm_rank_from_json(const char *text, size_t byte_count, kvf_trtllm_rank **out,
                                          struct kvf_error *error)
{
    struct kvfi_json_source source = {.name = "rank info", .text = text, .text_bytes = byte_count, .error = error};
    struct kvfi_arena arena = {0};
    struct kvfi_trt_json json = {&arena, error};
    struct kvf_trtllm_rank_spec spec;
    struct kvfi_cursor root;
    json_t *value = NULL;
    enum kvf_status status;

    if ((!text && byte_count) || !out) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "rank info: %s is missing", out ? "text" : "out");
        goto done;
    }
    status = kvfi_json_load(&source, &rank_limits, &value);
    if (status != KVF_OK) goto done;
    kvf_trtllm_rank_spec_init(&spec, sizeof spec);
    root = kvfi_cursor_root(&source, value);
    status = read_rank(&json, &root, &spec);
    if (status == KVF_OK) status = kvf_trtllm_rank_create(&spec, out, error);
done:
    json_decref(value);
    kvfi_arena_fini(&arena);
    return status;
}
