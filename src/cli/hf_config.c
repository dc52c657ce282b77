/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the few fields of a Hugging Face config.json that fix the shape of a KV cache. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/hf_config.h"

#define CONFIG_LIMIT ((size_t)4 << 20)
#define FIELD_LIMIT 1000000

struct reader {
    const struct cli_command *command;
    const char *path;
    const json_t *object;
    bool good;
};

/** A positive number, or `missing` when the field is not there (or null). */
static int64_t read_number(struct reader *reader, const char *name, int64_t missing)
{
    const json_t *field = json_object_get(reader->object, name);
    if (field == NULL || json_is_null(field))
        return missing;
    if (json_is_integer(field) && json_integer_value(field) >= 1 && json_integer_value(field) <= FIELD_LIMIT)
        return json_integer_value(field);
    if (reader->good)
        cli_error(reader->command, "%s: %s must be a whole number from 1 to %d", reader->path, name, FIELD_LIMIT);
    reader->good = false;
    return missing;
}

static int64_t need_number(struct reader *reader, const char *name)
{
    int64_t number = read_number(reader, name, 0);
    if (number == 0 && reader->good) {
        cli_error(reader->command, "%s: has no %s", reader->path, name);
        reader->good = false;
    }
    return number;
}

static void read_dtype(struct reader *reader, char *out, size_t bytes)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"float16", "f16"}, {"bfloat16", "bf16"},          {"float32", "f32"},
                 {"half", "f16"},    {"float8_e4m3fn", "fp8_e4m3"}, {"float8_e5m2", "fp8_e5m2"}};
    const json_t *field = json_object_get(reader->object, "torch_dtype");
    if (!json_is_string(field))
        field = json_object_get(reader->object, "dtype");
    out[0] = '\0';
    if (!json_is_string(field))
        return;
    const char *name = json_string_value(field);
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i].theirs) == 0)
            snprintf(out, bytes, "%s", names[i].ours);
    }
    if (out[0] == '\0' && reader->good) {
        cli_error(reader->command, "%s: torch_dtype \"%.40s\" is not known; give --dtype", reader->path, name);
        reader->good = false;
    }
}

static void read_shape(struct reader *reader, struct hf_shape *out)
{
    const json_t *name = json_object_get(reader->object, "model_type");
    snprintf(out->name, sizeof(out->name), "%s", json_is_string(name) ? json_string_value(name) : "");
    out->layers = need_number(reader, "num_hidden_layers");
    int64_t latent = read_number(reader, "kv_lora_rank", 0);
    if (latent > 0) {
        out->latent_width = latent + need_number(reader, "qk_rope_head_dim");
        out->kv_heads = 1;
        out->head_dim = out->latent_width;
    } else {
        int64_t heads = read_number(reader, "num_attention_heads", 0);
        out->kv_heads = read_number(reader, "num_key_value_heads", heads);
        if (out->kv_heads == 0)
            out->kv_heads = need_number(reader, "num_attention_heads");
        out->head_dim = read_number(reader, "head_dim", 0);
        if (out->head_dim == 0 && reader->good) {
            int64_t hidden = need_number(reader, "hidden_size");
            heads = need_number(reader, "num_attention_heads");
            if (reader->good && hidden % heads != 0) {
                cli_error(reader->command,
                          "%s: has no head_dim, and hidden_size %" PRId64
                          " is no multiple of num_attention_heads %" PRId64,
                          reader->path, hidden, heads);
                reader->good = false;
            } else if (reader->good) {
                out->head_dim = hidden / heads;
            }
        }
    }
    read_dtype(reader, out->dtype, sizeof(out->dtype));
}

int hf_config_read(const struct cli_command *command, const char *path, struct hf_shape *out)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *root = NULL;
    json_error_t problem;
    memset(out, 0, sizeof(*out));
    int code = cli_read_file(command, path, CONFIG_LIMIT, &text, &bytes);
    if (code != CLI_OK)
        goto done;
    code = CLI_INPUT;
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem);
    if (!json_is_object(root)) {
        cli_error(command, "%s: is not a JSON object: %s", path, root ? "another type" : problem.text);
        goto done;
    }
    struct reader reader = {.command = command, .path = path, .object = root, .good = true};
    const json_t *inner =
        json_object_get(root, "text_config"); /* models with several towers keep the language model's here */
    if (json_object_get(root, "num_hidden_layers") == NULL && json_is_object(inner))
        reader.object = inner;
    read_shape(&reader, out);
    code = reader.good ? CLI_OK : CLI_INPUT;
done:
    json_decref(root);
    free(text);
    return code;
}
