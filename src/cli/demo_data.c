/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's input: a real KV cache and the hashes of its tensors. */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/demo.h"

#define EXPECTED_LIMIT ((size_t)1 << 20)

const char *demo_tensor_name(int64_t tensor, char *text)
{
    snprintf(text, 32, "layers.%" PRId64 ".%c", tensor / DEMO_PARTS, tensor % DEMO_PARTS == 0 ? 'k' : 'v');
    return text;
}

bool demo_sha256(const void *bytes, size_t count, char text[65])
{
    unsigned char digest[32];
    unsigned int length = 0;
    if (EVP_Digest(bytes, count, digest, &length, EVP_sha256(), NULL) != 1 || length != sizeof(digest))
        return false;
    for (size_t i = 0; i < sizeof(digest); i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return true;
}

/** Finds the folder: the one given, or beside the source tree or the installation this program belongs to. */
static int find_folder(const struct cli_command *command, const char *folder, char *out, size_t bytes)
{
    static const char *const beside[] = {"/../../../examples/data", "/../share/kvferry/data"};
    char program[2048], path[4096];
    if (folder != NULL) {
        snprintf(out, bytes, "%s", folder);
        return CLI_OK;
    }
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; slash != NULL && i < sizeof(beside) / sizeof(beside[0]); i++) {
        snprintf(out, bytes, "%s%s", program, beside[i]);
        snprintf(path, sizeof(path), "%.3000s/kv.safetensors", out);
        if (access(path, R_OK) == 0)
            return CLI_OK;
    }
    cli_error(command, "no data found beside %s: give the folder of kv.safetensors with --data", program);
    return CLI_INPUT;
}

static int read_hashes(const struct cli_command *command, const char *folder, struct demo_data *data)
{
    char path[4096], name[32], *text = NULL;
    size_t bytes = 0;
    json_error_t problem;
    json_t *root = NULL;
    snprintf(path, sizeof(path), "%.4000s/expected.json", folder);
    int code = cli_read_file(command, path, EXPECTED_LIMIT, &text, &bytes);
    if (code != CLI_OK)
        return code;
    root = json_loadb(text, bytes, 0, &problem);
    const json_t *hashes = json_object_get(root, "sha256");
    if (!json_is_object(hashes)) {
        cli_error(command, "%s: has no object sha256", path);
        code = CLI_INPUT;
    }
    for (int64_t t = 0; code == CLI_OK && t < data->layers * DEMO_PARTS; t++) {
        const json_t *hash = json_object_get(hashes, demo_tensor_name(t, name));
        if (!json_is_string(hash) || json_string_length(hash) != 64) {
            cli_error(command, "%s: has no SHA-256 of %s", path, name);
            code = CLI_INPUT;
        } else {
            memcpy(data->sha256[t], json_string_value(hash), 65);
        }
    }
    json_decref(root);
    free(text);
    return code;
}

/** Finds every tensor in the file; they all have the shape of the first one (the layout has been checked). */
static int find_tensors(const struct cli_command *command, struct demo_data *data)
{
    kvf_safetensors *header = NULL;
    struct kvf_tensor tensor;
    struct kvf_error error = {.position = -1};
    char name[32];
    int code = CLI_OK;
    if (kvf_safetensors_parse(data->file.map, data->file.bytes, (int64_t)data->file.bytes, &header, &error) != KVF_OK)
        return cli_library_error(command, data->path, &error);
    while (kvf_safetensors_find(header, demo_tensor_name(data->layers * DEMO_PARTS, name), &tensor) == KVF_OK)
        data->layers++;
    data->tensors = calloc((size_t)data->layers * DEMO_PARTS + 1, sizeof(*data->tensors));
    data->sha256 = calloc((size_t)data->layers * DEMO_PARTS + 1, sizeof(*data->sha256));
    if (data->tensors == NULL || data->sha256 == NULL) {
        cli_error(command, "no memory for the names of %" PRId64 " layers", data->layers);
        code = CLI_FAILED;
    }
    for (int64_t t = 0; code == CLI_OK && t < data->layers * DEMO_PARTS; t++) {
        if (kvf_safetensors_find(header, demo_tensor_name(t, name), &tensor) != KVF_OK)
            continue; /* a K without a V: refused when the layout was made */
        data->tensors[t] = data->file.map + tensor.offset_bytes;
        data->tensor_bytes = tensor.bytes;
        data->heads = tensor.shape[1];
        data->row_bytes = tensor.bytes / (tensor.shape[0] * tensor.shape[1]);
    }
    kvf_safetensors_destroy(header);
    return code;
}

static int check_shape(const struct cli_command *command, const struct demo_data *data)
{
    char hash[65], name[32];
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(data->file.layout);
    if (data->layers < 2 || data->layers % 2 != 0 || data->heads % 3 != 0 || strcmp(spec->views[0].tag, "f16") != 0) {
        cli_error(
            command,
            "%s: the demo needs an even number of layers, heads that three ranks can share and F16; this has %" PRId64
            " layers, %" PRId64 " heads, %s",
            data->path, data->layers, data->heads, spec->views[0].tag);
        return CLI_INPUT;
    }
    for (int64_t t = 0; t < data->layers * DEMO_PARTS; t++) {
        if (!demo_sha256(data->tensors[t], (size_t)data->tensor_bytes, hash) || strcmp(hash, data->sha256[t]) != 0) {
            cli_error(command, "%s: %s is not what expected.json says, so nothing can be checked against it",
                      data->path, demo_tensor_name(t, name));
            return CLI_INPUT;
        }
    }
    return CLI_OK;
}

int demo_data_open(const struct cli_command *command, const char *folder, struct demo_data *out)
{
    char found[4096];
    *out = (struct demo_data){.file = {.fd = -1}};
    int code = find_folder(command, folder, found, sizeof(found));
    if (code != CLI_OK)
        return code;
    snprintf(out->path, sizeof(out->path), "%.4000s/kv.safetensors", found);
    code = cache_file_open(command, out->path, &out->file);
    if (code == CLI_OK) {
        out->tokens = out->file.tokens;
        code = find_tensors(command, out);
    }
    if (code == CLI_OK)
        code = read_hashes(command, found, out);
    if (code == CLI_OK)
        code = check_shape(command, out);
    return code;
}

void demo_data_close(struct demo_data *data)
{
    cache_file_close(&data->file);
    free(data->tensors);
    free(data->sha256);
}
