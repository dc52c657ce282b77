/* SPDX-License-Identifier: Apache-2.0 */
/* The SPEC of `kvferry trtllm worker`. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/rank_files.h"
#include "cli/trtllm_spec.h"

/** What a SPEC may have. The last row is what stored cases have beside it. */
static const char *const known[] = {"src", "dst", "endpoint", "fill", "dump", "check", "kv_heads", "requests", "id",
                                    "fault", "basis", "request", "expect", "instance", "src_dp", "prompt", "blocks",
                                    NULL};

/** Finds the rank's object: the member itself, or the one of a list whose `rank` is wanted. */
static const json_t *find_rank(struct json_take *take, const json_t *root, const char *member, int64_t rank,
                               char *where, size_t bytes)
{
    const json_t *value = json_object_get(root, member);
    snprintf(where, bytes, "%s", member);
    if (value == NULL) {
        json_take_wrong(take, member, "expected a rank, or a list of them: --role %s takes its own from here",
                        strcmp(member, "src") == 0 ? "context" : "generation");
        return NULL;
    }
    if (json_is_array(value) && rank < 0 && json_array_size(value) == 1) {
        snprintf(where, bytes, "%s[0]", member);
        return json_array_get(value, 0);
    }
    for (size_t i = 0; json_is_array(value) && rank >= 0 && i < json_array_size(value); i++) {
        const json_t *number = json_object_get(json_array_get(value, i), "rank");
        if (!json_is_integer(number) || json_integer_value(number) != rank)
            continue;
        snprintf(where, bytes, "%s[%zu]", member, i);
        return json_array_get(value, i);
    }
    if (!json_is_array(value))
        return value;
    if (rank < 0)
        json_take_wrong(take, member, "has %zu ranks; --rank says which", json_array_size(value));
    else
        json_take_wrong(take, member, "none of its %zu ranks has the rank %" PRId64, json_array_size(value), rank);
    return NULL;
}

static int read_rank(const struct cli_command *command, const char *path, const char *where, const json_t *value,
                     struct trtllm_spec *spec)
{
    struct kvf_error error = {.position = -1};
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    int code = CLI_OK;
    if (text == NULL || kvf_trtllm_rank_from_json(text, strlen(text), &spec->rank, &error) != KVF_OK) {
        cli_error(command, "%s: %s: %s", path, where, text == NULL ? "no memory for its text" : error.text);
        code = text == NULL ? CLI_FAILED : cli_exit_code(error.status);
    }
    free(text);
    return code;
}

/** Names the files, and sees before anything runs that the dump can be written in the end. */
static int name_files(const struct cli_command *command, struct trtllm_spec *spec)
{
    int64_t rank = kvf_trtllm_rank_get_spec(spec->rank)->instance_rank;
    const char *fill = json_string_value(json_object_get(spec->root, "fill"));
    const char *dump = json_string_value(json_object_get(spec->root, "dump"));
    bool loads = fill != NULL && strcmp(fill, "pattern") != 0 && strcmp(fill, "none") != 0;
    spec->fill_path = loads ? rank_file_name(fill, rank, -1) : NULL;
    spec->dump_path = dump != NULL ? rank_file_name(dump, rank, -1) : NULL;
    if ((loads && spec->fill_path == NULL) || (dump != NULL && spec->dump_path == NULL)) {
        cli_error(command, "no memory for the name of a file");
        return CLI_FAILED;
    }
    return rank_file_look_ahead(command, spec->dump_path);
}

/** Takes "1.2.3.4", "1.2.3.4:5", "::1" or "[::1]:5" apart: the address without brackets. False when it is none. */
static bool split_endpoint(const char *text, char *host, size_t room, int64_t *port)
{
    unsigned char address[sizeof(struct in6_addr)];
    const char *colon = inet_pton(AF_INET6, text, address) == 1 ? NULL : strrchr(text, ':');
    bool brackets = text[0] == '[' && colon != NULL && colon > text + 1 && colon[-1] == ']';
    size_t bytes = (colon != NULL ? (size_t)(colon - text) : strlen(text)) - (brackets ? 2 : 0);
    char *end = NULL;
    *port = colon != NULL ? strtol(colon + 1, &end, 10) : 0;
    if (bytes >= room || (colon != NULL && (end == colon + 1 || *end != '\0')) || *port < 0 || *port > 65535)
        return false;
    memcpy(host, text + (brackets ? 1 : 0), bytes);
    host[bytes] = '\0';
    return inet_pton(strchr(host, ':') != NULL ? AF_INET6 : AF_INET, host, address) == 1;
}

static bool take_endpoint(struct json_take *take, const json_t *root, struct trtllm_spec *spec)
{
    const char *text = "127.0.0.1";
    return json_take_text(take, root, "endpoint", &text) &&
           (split_endpoint(text, spec->host, sizeof(spec->host), &spec->port) ||
            json_take_wrong(take, "endpoint", "\"%.80s\" is no numeric address, alone or with :PORT", text));
}

static bool take_members(struct json_take *take, int role, struct trtllm_spec *spec)
{
    const json_t *root = spec->root, *requests = json_object_get(root, "requests");
    const char *fill = "pattern", *dump = NULL;
    if (!json_take_known(take, root, known) || !take_endpoint(take, root, spec) ||
        !json_take_text(take, root, "fill", &fill) || !json_take_text(take, root, "dump", &dump) ||
        !json_take_bool(take, root, "check", &spec->checks))
        return false;
    spec->paints = role == 0 && strcmp(fill, "pattern") == 0;
    spec->kv_heads = json_object_get(root, "kv_heads");
    if (json_take_has(root, "kv_heads") && !json_is_array(spec->kv_heads) &&
        !(json_is_integer(spec->kv_heads) && json_integer_value(spec->kv_heads) > 0))
        return json_take_wrong(take, "kv_heads", "expected a number of heads, or a list per group of a list per view");
    if (role == 0 && spec->checks)
        return json_take_wrong(take, "check", "only a generation rank checks what it got");
    if (json_is_array(requests))
        spec->requests = requests;
    else if (json_take_has(root, "requests") &&
             (!json_is_string(requests) || strcmp(json_string_value(requests), "-") != 0))
        return json_take_wrong(take, "requests", "expected a list, or \"-\" for standard input");
    return true;
}

int trtllm_spec_read(const struct cli_command *command, const char *path, int role, int64_t rank,
                     struct trtllm_spec *out)
{
    struct trtllm_spec spec = {0};
    struct json_take take = json_take_below("%s", "");
    char where[64] = "";
    int code = rank_file_read(command, path, &spec.root);
    if (code != CLI_OK)
        return code;
    const json_t *value = NULL;
    if (json_is_array(spec.root))
        json_take_wrong(&take, "", "expected an object, found a list: {\"%s\": [...]} takes one",
                        role == 0 ? "src" : "dst");
    else if (take_members(&take, role, &spec))
        value = find_rank(&take, spec.root, role == 0 ? "src" : "dst", rank, where, sizeof(where));
    if (value != NULL) {
        code = read_rank(command, path, where, value, &spec);
        if (code == CLI_OK)
            code = name_files(command, &spec);
    } else {
        cli_error(command, "%s: %s", path, take.text);
        code = CLI_INPUT;
    }
    if (code == CLI_OK)
        *out = spec;
    else
        trtllm_spec_fini(&spec);
    return code;
}

void trtllm_spec_fini(struct trtllm_spec *spec)
{
    kvf_trtllm_rank_release(spec->rank);
    free(spec->fill_path);
    free(spec->dump_path);
    json_decref(spec->root);
    *spec = (struct trtllm_spec){0};
}
