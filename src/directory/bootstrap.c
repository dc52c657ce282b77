/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/bootstrap.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "directory/bootstrap_read.h"

void kvfi_bootstrap_init(struct kvfi_bootstrap *bootstrap, int64_t max_workers)
{
    *bootstrap = (struct kvfi_bootstrap){.max_workers = max_workers};
}

/** Frees what belongs to an engine's node. Returns how many workers it had. */
static int64_t clear_engine(struct kvfi_bootstrap_node *engine)
{
    int64_t workers = 0;

    for (size_t t = 0; t < engine->child_count; t++) {
        struct kvfi_bootstrap_node *tp = &engine->children[t];

        for (size_t p = 0; p < tp->child_count; p++) free(tp->children[p].text);
        workers += (int64_t)tp->child_count;
        free(tp->children);
    }
    free(engine->children);
    free(engine->text);
    *engine = (struct kvfi_bootstrap_node){.rank = engine->rank, .successor = engine->successor};
    return workers;
}

/** Frees the engine that would take this one's place. */
static int64_t drop_successor(struct kvfi_bootstrap_node *engine)
{
    int64_t workers = engine->successor ? clear_engine(engine->successor) : 0;

    free(engine->successor);
    engine->successor = NULL;
    return workers;
}

void kvfi_bootstrap_fini(struct kvfi_bootstrap *bootstrap)
{
    for (size_t d = 0; d < bootstrap->root.child_count; d++) {
        drop_successor(&bootstrap->root.children[d]);
        clear_engine(&bootstrap->root.children[d]);
    }
    free(bootstrap->root.children);
    *bootstrap = (struct kvfi_bootstrap){0};
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

/** Adds a worker to its engine; without memory nothing is left behind in it. */
static bool add_to_engine(struct kvfi_bootstrap_node *engine, const struct kvfi_bootstrap_worker *worker)
{
    struct kvfi_bootstrap_node *tp = open_child(engine, worker->tp, NULL);

    if (tp && open_child(tp, worker->pp, worker->address)) return true;
    prune(engine);
    return false;
}

static bool add_worker(struct kvfi_bootstrap *bootstrap, const struct kvfi_bootstrap_worker *worker)
{
    struct kvfi_bootstrap_node *dp = open_child(&bootstrap->root, worker->dp, worker->engine_id);
    bool is_added = dp && add_to_engine(dp, worker);

    if (is_added) bootstrap->worker_count++;
    else prune(&bootstrap->root);
    return is_added;
}

/* ---- an engine that took another's place ---- */

/** Has the successor registered every slot that the engine has? */
static bool covers(const struct kvfi_bootstrap_node *successor, const struct kvfi_bootstrap_node *engine)
{
    for (size_t t = 0; t < engine->child_count; t++) {
        const struct kvfi_bootstrap_node *tp = &engine->children[t], *other = find_child(successor, tp->rank);

        for (size_t p = 0; p < tp->child_count; p++)
            if (!find_child(other, tp->children[p].rank)) return false;
    }
    return true;
}

/** Makes an empty successor, in place of one with another id. NULL without memory; nothing has changed then. */
static struct kvfi_bootstrap_node *open_successor(struct kvfi_bootstrap *bootstrap, struct kvfi_bootstrap_node *engine,
                                                  const char *engine_id)
{
    struct kvfi_bootstrap_node *made;

    if (engine->successor && strcmp(engine->successor->text, engine_id) == 0) return engine->successor;
    made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->text = kvfi_text_copy(engine_id);
    if (!made->text) {
        free(made);
        return NULL;
    }
    bootstrap->worker_count -= drop_successor(engine);
    engine->successor = made;
    return made;
}

static void succeed(struct kvfi_bootstrap *bootstrap, struct kvfi_bootstrap_node *engine)
{
    struct kvfi_bootstrap_node *successor = engine->successor;

    bootstrap->worker_count -= clear_engine(engine);
    successor->rank = engine->rank;
    *engine = *successor;
    free(successor);
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

static unsigned refuse_engine(struct kvfi_text *out, const struct kvfi_bootstrap_worker *worker, const char *known)
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

static unsigned refuse_slot(struct kvfi_text *out, const struct kvfi_bootstrap_worker *worker, const char *known)
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

static unsigned refuse_unreadable(struct kvfi_text *out)
{
    kvfi_text_append(out, "{\"detail\":\"There was an error parsing the body\"}");
    return 400;
}

static unsigned accept(struct kvfi_text *out)
{
    kvfi_text_append(out, "{\"status\":\"ok\"}");
    return 200;
}

static unsigned refuse_one_more(struct kvfi_text *out)
{
    kvfi_text_append(out, "{\"detail\":\"registry is full\"}");
    return 503;
}

/** An engine with another id than is known: it waits until it can take that one's place as a whole. */
static unsigned register_successor(struct kvfi_bootstrap *bootstrap, struct kvfi_bootstrap_node *engine,
                                   const struct kvfi_bootstrap_worker *worker, struct kvfi_text *out)
{
    struct kvfi_bootstrap_node *successor = open_successor(bootstrap, engine, worker->engine_id);
    const struct kvfi_bootstrap_node *pp = find_child(find_child(successor, worker->tp), worker->pp);

    if (!successor) return refuse_one_more(out);
    if (pp && strcmp(pp->text, worker->address) != 0) return refuse_slot(out, worker, pp->text);
    if (!pp) {
        if (bootstrap->worker_count >= bootstrap->max_workers || !add_to_engine(successor, worker))
            return refuse_one_more(out);
        bootstrap->worker_count++;
    }
    if (covers(successor, engine)) succeed(bootstrap, engine);
    return accept(out);
}

static unsigned register_worker(struct kvfi_bootstrap *bootstrap, const struct kvfi_bootstrap_worker *worker,
                                struct kvfi_text *out)
{
    struct kvfi_bootstrap_node *dp = find_child(&bootstrap->root, worker->dp);
    const struct kvfi_bootstrap_node *pp = find_child(find_child(dp, worker->tp), worker->pp);

    if (dp && strcmp(dp->text, worker->engine_id) != 0)
        return bootstrap->replaces ? register_successor(bootstrap, dp, worker, out)
                                   : refuse_engine(out, worker, dp->text);
    if (pp && strcmp(pp->text, worker->address) != 0) return refuse_slot(out, worker, pp->text);
    if (!pp && (bootstrap->worker_count >= bootstrap->max_workers || !add_worker(bootstrap, worker)))
        return refuse_one_more(out);
    return accept(out);
}

unsigned kvfi_bootstrap_register(struct kvfi_bootstrap *bootstrap, const char *body, size_t body_bytes,
                                 struct kvfi_text *out)
{
    struct kvfi_bootstrap_body read;
    unsigned code;

    switch (kvfi_bootstrap_read(body ? body : "", body_bytes, &read)) {
    case KVFI_BOOTSTRAP_READ: code = register_worker(bootstrap, &read.worker, out); break;
    case KVFI_BOOTSTRAP_UNREADABLE: code = refuse_unreadable(out); break;
    default: code = refuse_body(out, read.bad_key);
    }
    kvfi_bootstrap_body_fini(&read);
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
