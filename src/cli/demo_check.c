/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what arrived with the stored hashes, and keeps it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/demo.h"

/** Finds the first wrong byte of a tensor. */
static void name_difference(const struct demo_data *data, const char *found, int64_t tensor, int64_t request,
                            char *fault, size_t fault_bytes)
{
    char name[32];
    const char *wanted = data->tensors[tensor];
    int64_t at = 0;
    while (at < data->tensor_bytes && found[at] == wanted[at])
        at++;
    demo_tensor_name(tensor, name);
    int64_t token_bytes = data->heads * data->row_bytes;
    if (at == data->tensor_bytes)
        snprintf(fault, fault_bytes, "request %" PRId64 ": the SHA-256 of %s is not the stored one", request, name);
    else
        snprintf(fault, fault_bytes,
                 "request %" PRId64 ": %s differs from the stored SHA-256; first at token %" PRId64 " head %" PRId64
                 " byte %" PRId64 ": 0x%02x, expected 0x%02x",
                 request, name, at / token_bytes, at % token_bytes / data->row_bytes, at % data->row_bytes,
                 (unsigned char)found[at], (unsigned char)wanted[at]);
}

bool demo_check(const struct demo_data *data, const char *gathered, int64_t first, int64_t count, char *fault,
                size_t fault_bytes)
{
    char hash[65];
    int64_t tensors = data->layers * DEMO_PARTS;
    for (int64_t r = 0; r < count; r++) {
        for (int64_t t = 0; t < tensors; t++) {
            const char *found = gathered + (r * tensors + t) * data->tensor_bytes;
            if (demo_sha256(found, (size_t)data->tensor_bytes, hash) && strcmp(hash, data->sha256[t]) == 0)
                continue;
            name_difference(data, found, t, first + r, fault, fault_bytes);
            return false;
        }
    }
    return true;
}

int demo_keep(const struct cli_command *command, const struct demo_data *data, const char *gathered, const char *folder,
              const char *name)
{
    char path[4096], *header = NULL, *text = NULL;
    size_t header_bytes = 0;
    int64_t file_bytes = 0;
    struct kvf_error error = {.position = -1};
    int code = CLI_FAILED;
    snprintf(path, sizeof(path), "%.3900s/%.100s", folder, name);
    if (kvf_safetensors_header("F16", 0, data->layers, data->tokens, data->heads, data->row_bytes / 2, &header,
                               &header_bytes, &file_bytes, &error) != KVF_OK)
        return cli_library_error(command, path, &error);
    text = malloc((size_t)file_bytes);
    if (text == NULL) {
        cli_error(command, "%s: no memory for %" PRId64 " bytes", path, file_bytes);
        goto done;
    }
    memcpy(text, header, header_bytes);
    memcpy(text + header_bytes, gathered, (size_t)file_bytes - header_bytes);
    code = cli_write_file(command, path, text, (size_t)file_bytes);
done:
    free(text);
    kvf_text_free(header);
    return code;
}
