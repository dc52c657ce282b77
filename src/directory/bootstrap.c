/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/bootstrap.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/array.h"
#include "directory/client.h"
#include "layout_json/json_source.h"

#define MAX_TEXT_BYTES 4096

static const struct kvfi_json_limits limits = {
    .max_bytes = KVFI_DIRECTORY_MAX_BODY_BYTES, .max_depth = 16, .max_containers = 1024, .max_values = 4096};

struct worker {
    const char *engine_id, *address;
    int64_t dp, tp, pp;
};

void kvfi_bootstrap_init(struct kvfi_bootstrap *bootstrap, int64_t max_workers)
{
    *bootstrap = (struct kvfi_bootstrap){.max_workers = max_workers};
}

void kvfi_bootstrap_fini(struct kvfi_bootstrap *bootstrap)
{
    for (size_t d = 0; d < bootstrap->root.child_count; d++) {
        struct kvfi_bootstrap_node *dp = &bootstrap->root.children[d];

        for (size_t t = 0; t < dp->child_count; t++) {
            struct kvfi_bootstrap_node *tp = &dp->children[t];

            for (size_t p = 0; p < tp->child_count; p++) free(tp->children[p].text);
            free(tp->children);
        }
        free(dp->children);
        free(dp->text);
    }
    free(bootstrap->root.children);
    *bootstrap = (struct kvfi_bootstrap){0};
}

/* ---- reading a body ---- */

/** A whole number as text: spaces around, a sign, digits, and perhaps ".000". */
static bool rank_of_text(const char *text, int64_t *out)
{
    const char *at = text + strspn(text, " \t\r\n");
    const char *digits = at + (*at == '-' || *at == '+');
    size_t digit_count = strspn(digits, "0123456789");
    const char *end = digits + digit_count;
    long long value;

    if (digit_count == 0) return false;
    errno = 0;
    value = strtoll(at, NULL, 10);
    if (errno != 0) return false;
    if (*end == '.' && end[1] == '0') end += 1 + strspn(end + 1, "0");
    if (end[strspn(end, " \t\r\n")] != '\0') return false;
    *out = value;
    return true;
}

/** What stock servers take for an integer: integers, whole floats, booleans, numeric texts. */
static bool rank_of(const json_t *value, int64_t *out)
{
    double real;

    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_INTEGER: *out = json_integer_value(value); return true;
    case JSON_TRUE: *out = 1; return true;
    case JSON_FALSE: *out = 0; return true;
    case JSON_STRING: return rank_of_text(json_string_value(value), out);
    case JSON_REAL:
        real = json_real_value(value);
        if (!(real > -9e15 && real < 9e15) || real != (double)(int64_t)real) return false;
        *out = (int64_t)real;
        return true;
    default: return false;
    }
}

static bool text_of(const json_t *value, const char **out)
{
    if (!json_is_string(value) || json_string_length(value) > MAX_TEXT_BYTES) return false;
    *out = json_string_value(value);
    return true;
}

/** Returns the key that is missing or ill-typed, or NULL. */
static const char *read_worker(const json_t *json, struct worker *out)
{
    if (!text_of(json_object_get(json, "engine_id"), &out->engine_id)) return "engine_id";
    if (!rank_of(json_object_get(json, "dp_rank"), &out->dp)) return "dp_rank";
    if (!rank_of(json_object_get(json, "tp_rank"), &out->tp)) return "tp_rank";
    if (!rank_of(json_object_get(json, "pp_rank"), &out->pp)) return "pp_rank";
    if (!text_of(json_object_get(json, "addr"), &out->address)) return "addr";
    return NULL;
}

/* ---- keeping ---- */

static struct kvfi_bootstrap_node *find_child(const struct kvfi_bootstrap_node *node, int64_t rank)
{
    for (size_t i = 0; node && i < node->child_count; i++)
        if (node->children[i].rank == rank) return &node->children[i];
    return NULL;
}

static struct kvfi_bootstrap_node *open_child(struct kvfi_bootstrap_node *node, int64_t rank, const char *text)
{
    struct kvfi_bootstrap_node *child = find_child(node, rank);
    char *copy = NULL;

    if (child) return child;
    if (text) {
        copy = kvfi_text_copy(text);
        if (!copy) return NULL;
    }
    if (!kvfi_array_grow((void **)&node->children, node->child_count, &node->child_capacity, sizeof *child)) {
        free(copy);
        return NULL;
    }
    child = &node->children[node->child_count++];
    *child = (struct kvfi_bootstrap_node){.rank = rank, .text = copy};
    return child;
}

/** Takes back the last children that were opened and got none themselves. */
static void prune(struct kvfi_bootstrap_node *node)
{
    struct kvfi_bootstrap_node *last = node->child_count ? &node->children[node->child_count - 1] : NULL;

    if (!last || last->child_count > 0) return;
    free(last->children);
    free(last->text);
    node->child_count--;
}

static bool add_worker(struct kvfi_bootstrap *bootstrap, const struct worker *worker)
{
    struct kvfi_bootstrap_node *dp = open_child(&bootstrap->root, worker->dp, worker->engine_id);
    struct kvfi_bootstrap_node *tp = dp ? open_child(dp, worker->tp, NULL) : NULL;
    struct kvfi_bootstrap_node *pp = tp ? open_child(tp, worker->pp, worker->address) : NULL;

    if (pp) {
        bootstrap->worker_count++;
        return true;
    }
    if (dp) prune(dp);
    prune(&bootstrap->root);
    return false;
}

/* ---- answering ---- */

static unsigned detail(struct kvfi_text *out, unsigned code, const struct kvfi_text *sentence)
{
    kvfi_text_append(out, "{\"detail\":");
    kvfi_text_append_json(out, sentence->count ? sentence->bytes : "");
    kvfi_text_append(out, "}");
    if (sentence->failed) out->failed = true;
    return code;
}

static unsigned refuse_engine(struct kvfi_text *out, const struct worker *worker, const char *known)
{
    struct kvfi_text sentence = {0};
    unsigned code;

    kvfi_text_appendf(&sentence, "Engine ID mismatch for dp_rank=%" PRId64 ": expected ", worker->dp);
    kvfi_text_append(&sentence, known);
    kvfi_text_append(&sentence, ", got ");
    kvfi_text_append(&sentence, worker->engine_id);
    code = detail(out, 400, &sentence);
    kvfi_text_fini(&sentence);
    return code;
}

static unsigned refuse_slot(struct kvfi_text *out, const struct worker *worker, const char *known)
{
    struct kvfi_text sentence = {0};
    unsigned code;

    kvfi_text_appendf(&sentence, "Worker with dp_rank=%" PRId64 ", tp_rank=%" PRId64 ", pp_rank=%" PRId64
                      " is already registered at ", worker->dp, worker->tp, worker->pp);
    kvfi_text_append(&sentence, known);
    kvfi_text_append(&sentence, ", but still want to register at ");
    kvfi_text_append(&sentence, worker->address);
    code = detail(out, 400, &sentence);
    kvfi_text_fini(&sentence);
    return code;
}

static unsigned refuse_body(struct kvfi_text *out, const char *key)
{
    kvfi_text_append(out, "{\"detail\":[{\"loc\":[\"body\"");
    if (key) kvfi_text_appendf(out, ",\"%s\"", key);
    kvfi_text_append(out, "],\"msg\":\"missing or of the wrong type\",\"type\":\"value_error\"}]}");
    return 422;
}

static unsigned register_worker(struct kvfi_bootstrap *bootstrap, const struct worker *worker, struct kvfi_text *out)
{
    const struct kvfi_bootstrap_node *dp = find_child(&bootstrap->root, worker->dp);
    const struct kvfi_bootstrap_node *pp = find_child(find_child(dp, worker->tp), worker->pp);

    if (dp && strcmp(dp->text, worker->engine_id) != 0) return refuse_engine(out, worker, dp->text);
    if (pp && strcmp(pp->text, worker->address) != 0) return refuse_slot(out, worker, pp->text);
    if (!pp && (bootstrap->worker_count >= bootstrap->max_workers || !add_worker(bootstrap, worker))) {
        kvfi_text_append(out, "{\"detail\":\"registry is full\"}");
        return 503;
    }
    kvfi_text_append(out, "{\"status\":\"ok\"}");
    return 200;
}

unsigned kvfi_bootstrap_register(struct kvfi_bootstrap *bootstrap, const char *body, size_t body_bytes,
                                 struct kvfi_text *out)
{
    const struct kvfi_json_source source = {.name = "request body", .text = body ? body : "", .text_bytes = body_bytes};
    struct worker worker;
    json_t *json = NULL;
    const char *bad;
    unsigned code;

    if (kvfi_json_load(&source, &limits, &json) != KVF_OK) return refuse_body(out, NULL);
    bad = read_worker(json, &worker);
    code = bad ? refuse_body(out, bad) : register_worker(bootstrap, &worker, out);
    json_decref(json);
    return code;
}

static void write_addresses(const struct kvfi_bootstrap_node *tp, struct kvfi_text *out)
{
    kvfi_text_appendf(out, "\"%" PRId64 "\":{", tp->rank);
    for (size_t p = 0; p < tp->child_count; p++) {
        kvfi_text_appendf(out, "%s\"%" PRId64 "\":", p ? "," : "", tp->children[p].rank);
        kvfi_text_append_json(out, tp->children[p].text);
    }
    kvfi_text_append(out, "}");
}

void kvfi_bootstrap_query(const struct kvfi_bootstrap *bootstrap, struct kvfi_text *out)
{
    kvfi_text_append(out, "{");
    for (size_t d = 0; d < bootstrap->root.child_count; d++) {
        const struct kvfi_bootstrap_node *dp = &bootstrap->root.children[d];

        kvfi_text_appendf(out, "%s\"%" PRId64 "\":{\"engine_id\":", d ? "," : "", dp->rank);
        kvfi_text_append_json(out, dp->text);
        kvfi_text_append(out, ",\"worker_addr\":{");
        for (size_t t = 0; t < dp->child_count; t++) {
            if (t > 0) kvfi_text_append(out, ",");
            write_addresses(&dp->children[t], out);
        }
        kvfi_text_append(out, "}}");
    }
    kvfi_text_append(out, "}");
}
