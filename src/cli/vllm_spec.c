/* SPDX-License-Identifier: Apache-2.0 */
/* The SPEC of `kvferry vllm worker`. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/vllm_query.h"
#include "cli/rank_files.h"
#include "cli/vllm_spec.h"

#define SECOND INT64_C(1000000000)
#define MOST_BLOCKS (INT64_C(1) << 40)

/** What a SPEC may have. The last row is what stored cases have beside it. */
static const char *const known[] = {"producer", "pull",  "facts",    "regions", "memory", "blocks", "endpoint",
                                    "fill",     "dump",  "check",    "requests", "comment", "id",    "family",
                                    "input",    "expect", "note",    "request_hex", NULL};

/** A member of a SPEC or stored case: beside, or within its `input`. */
static const json_t *spec_member(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    return value != NULL ? value : json_object_get(json_object_get(root, "input"), key);
}

const json_t *vllm_spec_producers(const struct vllm_spec *spec)
{
    return spec_member(spec->check_root != NULL ? spec->check_root : spec->root, "producer");
}

static bool take_timeouts(struct json_take *take, const json_t *object, struct vllm_endpoint *out)
{
    return json_take_seconds(take, object, "abort_timeout_s", &out->abort_timeout_ns) &&
           json_take_seconds(take, object, "slack_s", &out->slack_ns) &&
           json_take_seconds(take, object, "settle_timeout_s", &out->settle_timeout_ns) &&
           json_take_seconds(take, object, "connector_timeout_s", &out->connector_timeout_ns) &&
           json_take_seconds(take, object, "topology_refresh_s", &out->topology_refresh_ns) &&
           json_take_seconds(take, object, "arrival_timeout_s", &out->arrival_timeout_ns) &&
           json_take_seconds(take, object, "wait_s", &out->wait_ns);
}

/** true, false, 1 or 0. */
static bool take_switch(struct json_take *take, const json_t *object, const char *key, bool *out)
{
    int64_t number = *out;
    if (!json_is_integer(json_object_get(object, key)))
        return json_take_bool(take, object, key, out);
    bool fits = json_take_int(take, object, key, 0, 1, &number);
    *out = number == 1;
    return fits;
}

static bool take_url(struct json_take *take, const json_t *object, const char *key, const char **out)
{
    if (!json_take_text(take, object, key, out))
        return false;
    return *out == NULL || vllm_query_takes(*out) ||
           json_take_wrong(take, key, "\"%.100s\" is no http://HOST:PORT", *out);
}

static bool take_endpoint(struct json_take *up, const json_t *root, struct vllm_endpoint *out)
{
    static const char *const members[] = {
        "host", "engine_id", "dp_rank", "pp_rank", "side_port", "rpc_port", "data_port", "bootstrap", "serve_bootstrap",
        "remote_engine_id", "remote_bootstrap_addr", "layout_ids", "abort_timeout_s", "slack_s", "settle_timeout_s",
        "connector_timeout_s", "topology_refresh_s", "register_attempts", "wait_s", "check_grants", "check_arrivals",
        "arrival_timeout_s",
        "extra_config", "comment", NULL};
    const json_t *object = json_object_get(root, "endpoint");
    struct json_take take = json_take_below("endpoint");
    *out = (struct vllm_endpoint){.pp_rank = -1, .layout_ids = true, .check_grants = true, .check_arrivals = true};
    if (!json_take_has(root, "endpoint"))
        return true;
    bool fits = json_take_known(&take, object, members) && json_take_text(&take, object, "host", &out->host) &&
                json_take_text(&take, object, "engine_id", &out->engine_id) &&
                take_url(&take, object, "bootstrap", &out->bootstrap) &&
                json_take_text(&take, object, "remote_engine_id", &out->remote_engine_id) &&
                take_url(&take, object, "remote_bootstrap_addr", &out->remote_bootstrap_addr) &&
                json_take_int(&take, object, "dp_rank", 0, INT32_MAX, &out->dp_rank) &&
                json_take_int(&take, object, "pp_rank", 0, INT32_MAX, &out->pp_rank) &&
                json_take_int(&take, object, "side_port", 0, 65535, &out->side_port) &&
                json_take_int(&take, object, "rpc_port", 0, 65535, &out->rpc_port) &&
                json_take_int(&take, object, "data_port", 0, 65535, &out->data_port) &&
                json_take_int(&take, object, "register_attempts", 1, 1000, &out->register_attempts) &&
                take_switch(&take, object, "serve_bootstrap", &out->serve_bootstrap) &&
                take_switch(&take, object, "layout_ids", &out->layout_ids) &&
                take_switch(&take, object, "check_grants", &out->check_grants) &&
                take_switch(&take, object, "check_arrivals", &out->check_arrivals) && take_timeouts(&take, object, out);
    out->extra_config = json_object_get(object, "extra_config");
    if (fits && json_take_has(object, "extra_config") && !json_is_object(out->extra_config))
        fits = json_take_wrong(&take, "extra_config", "expected an object, as kv_connector_extra_config is");
    if (!fits)
        memcpy(up->text, take.text, sizeof(up->text));
    return fits;
}

static bool take_fill(struct json_take *up, struct vllm_spec *spec, const char **file)
{
    static const char *const members[] = {"pattern", "file", "comment", NULL};
    const json_t *object = json_object_get(spec->root, "fill");
    struct json_take take = json_take_below("fill");
    int64_t number = -1;
    if (!json_take_has(spec->root, "fill"))
        return true;
    bool fits = json_take_known(&take, object, members) &&
                json_take_int(&take, object, "pattern", 0, UINT32_MAX, &number) &&
                json_take_text(&take, object, "file", file);
    spec->paints = number >= 0;
    spec->paint_seed = (uint32_t)number;
    if (fits && spec->paints == (*file != NULL))
        fits = json_take_wrong(&take, "", "expected {\"pattern\": N} or {\"file\": NAME}");
    if (!fits)
        memcpy(up->text, take.text, sizeof(up->text));
    return fits;
}

/** {"pattern": N}, with "producer" naming a file where the producers are, unless they are beside. */
static bool take_check(struct json_take *up, struct vllm_spec *spec)
{
    static const char *const members[] = {"pattern", "producer", "comment", NULL};
    const json_t *object = json_object_get(spec->root, "check");
    struct json_take take = json_take_below("check");
    const char *file = NULL;
    int64_t number = -1;
    json_error_t parse;
    if (!json_take_has(spec->root, "check"))
        return true;
    bool fits = json_take_known(&take, object, members) &&
                json_take_int(&take, object, "pattern", 0, UINT32_MAX, &number) &&
                json_take_text(&take, object, "producer", &file) &&
                (number >= 0 || json_take_wrong(&take, "", "expected {\"pattern\": N}"));
    spec->checks = true;
    spec->check_seed = (uint32_t)number;
    if (fits && file != NULL) {
        spec->check_root = json_load_file(file, JSON_REJECT_DUPLICATES, &parse);
        if (spec->check_root == NULL)
            fits = json_take_wrong(&take, "producer", "%.100s: %.200s", file, parse.text);
    }
    if (fits && vllm_spec_producers(spec) == NULL)
        fits = json_take_wrong(&take, "", "needs the producers that send, beside pull or in a file that \"producer\" "
                                          "names");
    if (!fits)
        memcpy(up->text, take.text, sizeof(up->text));
    return fits;
}

/** Finds the rank's object: the member itself, or one of its list. */
static const json_t *find_rank(struct json_take *take, const json_t *root, const char *member, int64_t rank,
                               char *where, size_t bytes)
{
    const json_t *value = spec_member(root, member);
    snprintf(where, bytes, "%s", member);
    if (json_is_object(value))
        return value;
    if (!json_is_array(value)) {
        json_take_wrong(take, member, "expected a rank, or a list of them: --role %s takes its own from here",
                        strcmp(member, "producer") == 0 ? "producer" : "consumer");
        return NULL;
    }
    int64_t count = (int64_t)json_array_size(value), index = rank < 0 && count == 1 ? 0 : rank;
    snprintf(where, bytes, "%s[%" PRId64 "]", member, index);
    if (index >= 0 && index < count)
        return json_array_get(value, (size_t)index);
    json_take_wrong(take, member, rank < 0 ? "has %" PRId64 " ranks; --rank says which, from 0 on"
                                           : "has %" PRId64 " ranks, none of that number", count);
    return NULL;
}

/** What of the model a consumer takes from `facts`, or else from the producer beside it. */
static bool take_facts(struct json_take *take, struct vllm_spec *spec)
{
    const json_t *facts = spec_member(spec->root, "facts"), *other = vllm_spec_producers(spec);
    struct vllm_rank rank;
    vllm_rank_init(&rank);
    if (facts == NULL && json_is_array(other))
        other = json_array_get(other, 0);
    struct json_take below = json_take_below("%s", facts != NULL ? "facts" : "producer");
    if (!vllm_take_rank(&below, facts != NULL ? facts : other, &spec->keep, &rank)) {
        memcpy(take->text, below.text, sizeof(take->text));
        return false;
    }
    spec->rank.is_mla = rank.is_mla;
    spec->rank.has_opaque_row = facts != NULL && rank.has_opaque_row;
    spec->rank.total_kv_heads = rank.total_kv_heads;
    spec->rank.kernel_blocks_per_block = rank.kernel_blocks_per_block;
    spec->rank.kv_cache_groups = rank.kv_cache_groups;
    spec->rank.group_kinds = rank.group_kinds;
    spec->rank.group_count = rank.group_count;
    spec->rank.layers = rank.layers;
    spec->rank.layer_count = rank.layer_count;
    return true;
}

static bool take_rank(struct json_take *take, int role, int64_t rank, struct vllm_spec *spec)
{
    char where[48];
    const json_t *object =
        find_rank(take, spec->root, role == KVF_VLLM_PRODUCER ? "producer" : "pull", rank, where, sizeof(where));
    if (object == NULL)
        return false;
    vllm_rank_init(&spec->rank);
    if (role == KVF_VLLM_CONSUMER && !take_facts(take, spec))
        return false;
    struct json_take below = json_take_below("%s", where);
    const json_t *regions = json_object_get(object, "regions");
    bool fits = vllm_take_rank(&below, object, &spec->keep, &spec->rank);
    if (fits && regions == NULL)
        regions = json_object_get(spec->root, "regions");
    if (fits && regions == NULL)
        fits = json_take_wrong(&below, "regions", "expected the regions, as parallel arrays");
    if (fits) {
        below = json_take_below("%s.regions", where);
        fits = vllm_take_regions(&below, regions, &spec->keep, &spec->rank.regions);
    }
    if (fits && role == KVF_VLLM_PRODUCER) {
        below = json_take_below("%s", where);
        fits = vllm_can_produce(&below, &spec->rank);
    }
    if (!fits)
        memcpy(take->text, below.text, sizeof(take->text));
    if (spec->endpoint.pp_rank >= 0)
        spec->rank.pp_rank = spec->endpoint.pp_rank;
    if (fits && spec->rank.tp_rank >= spec->rank.tp_size)
        return json_take_wrong(take, where, "tp_rank %" PRId64 " is none of a tp_size of %" PRId64, spec->rank.tp_rank,
                               spec->rank.tp_size);
    if (fits && spec->rank.pp_rank >= spec->rank.pp_size)
        return json_take_wrong(take, where, "pp_rank %" PRId64 " is none of a pp_size of %" PRId64, spec->rank.pp_rank,
                               spec->rank.pp_size);
    return fits;
}

static bool take_requests(struct json_take *take, struct vllm_spec *spec)
{
    const json_t *requests = json_object_get(spec->root, "requests");
    const char *text = json_string_value(requests);
    spec->reads_input = text != NULL && strcmp(text, "-") == 0;
    if (json_is_array(requests))
        spec->requests = requests;
    else if (json_take_has(spec->root, "requests") && !spec->reads_input)
        return json_take_wrong(take, "requests", "expected a list, or \"-\" for standard input");
    return true;
}

static bool take_files(struct json_take *take, struct vllm_spec *spec)
{
    const struct vllm_rank *rank = &spec->rank;
    const char *fill = NULL, *dump = NULL;
    if (!take_fill(take, spec, &fill) || !json_take_text(take, spec->root, "dump", &dump))
        return false;
    spec->fill_path = fill != NULL ? rank_file_name(fill, rank->tp_rank, rank->pp_rank) : NULL;
    spec->dump_path = dump != NULL ? rank_file_name(dump, rank->tp_rank, rank->pp_rank) : NULL;
    if ((fill != NULL && spec->fill_path == NULL) || (dump != NULL && spec->dump_path == NULL))
        return json_take_wrong(take, "", "no memory");
    return true;
}

static bool take_all(struct json_take *take, int role, int64_t rank, struct vllm_spec *spec)
{
    const json_t *memory = json_object_get(spec->root, "memory");
    if (!json_take_known(take, spec->root, known) || !take_endpoint(take, spec->root, &spec->endpoint) ||
        !take_requests(take, spec) || !json_take_int(take, spec->root, "blocks", 1, MOST_BLOCKS, &spec->blocks) ||
        !take_check(take, spec) || !take_rank(take, role, rank, spec) || !take_files(take, spec))
        return false;
    spec->memory = json_is_null(memory) ? NULL : memory;
    if (spec->checks && role != KVF_VLLM_CONSUMER)
        return json_take_wrong(take, "check", "only a consumer checks what it got");
    if (spec->reads_input && spec->memory == NULL && spec->blocks == 0)
        return json_take_wrong(take, "requests", "come from standard input: blocks, or memory, has to say how much "
                                                 "memory they need");
    return true;
}

int vllm_spec_read(const struct cli_command *command, const char *path, int role, int64_t rank, struct vllm_spec *out)
{
    struct json_take take = json_take_below("%s", "");
    struct kvf_error error = {.position = -1};
    *out = (struct vllm_spec){0};
    int code = rank_file_read(command, path, &out->root);
    if (code != CLI_OK)
        return code;
    if (!take_all(&take, role, rank, out)) {
        cli_error(command, "%s: %s", path, take.text);
        return CLI_INPUT;
    }
    if (kvf_vllm_regions_expand(&out->rank.regions, out->rank.layers, out->rank.layer_count, &out->regions, &error) !=
        KVF_OK)
        return cli_library_error(command, path, &error);
    return rank_file_look_ahead(command, out->dump_path);
}

void vllm_spec_fini(struct vllm_spec *spec)
{
    kvf_vllm_regions_release(spec->regions);
    free(spec->fill_path);
    free(spec->dump_path);
    vllm_keep_free(&spec->keep);
    json_decref(spec->check_root);
    json_decref(spec->root);
    *spec = (struct vllm_spec){0};
}
