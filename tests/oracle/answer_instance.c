/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks of two instances: what the senders of each receiving rank write together. */
#include "moves.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** One side's ranks. */
struct instance {
    const json_t *objects;
    kvf_trtllm_rank **ranks;
    size_t count;
};

struct job {
    const json_t *input;
    struct instance src, dst;
    int64_t src_dp, prompt;
};

/** What was written into one receiving rank. */
struct written {
    struct moves_list moves;
    json_t *sends;
    int64_t bytes;
    struct kvf_error error; /**< of a sender that refused; "" = none did */
};

static const struct kvf_trtllm_rank_spec *spec_of(const kvf_trtllm_rank *rank)
{
    return kvf_trtllm_rank_get_spec(rank);
}

static bool read_instance(struct instance *out, const json_t *objects, struct kvf_error *error)
{
    bool good = json_is_array(objects) && json_array_size(objects) > 0;

    out->objects = objects;
    out->ranks = calloc(json_array_size(objects) + 1, sizeof *out->ranks);
    for (size_t i = 0; out->ranks && i < json_array_size(objects) && good; i++) {
        out->ranks[i] = answer_rank(json_array_get(objects, i), error);
        good = out->ranks[i] != NULL;
        out->count += good;
    }
    return good && out->ranks;
}

static void free_instance(struct instance *instance)
{
    for (size_t i = 0; i < instance->count; i++) kvf_trtllm_rank_release(instance->ranks[i]);
    free(instance->ranks);
}

static size_t find_rank(const struct instance *instance, int64_t number)
{
    size_t found = 0;

    while (found < instance->count && spec_of(instance->ranks[found])->instance_rank != number) found++;
    return found;
}

/** The block lists of a rank: they go by its name and number. */
static const json_t *blocks_of(const struct job *job, const kvf_trtllm_rank *rank)
{
    char name[256];

    snprintf(name, sizeof name, "%s%lld", spec_of(rank)->instance_name, (long long)spec_of(rank)->instance_rank);
    return json_object_get(json_object_get(job->input, "blocks"), name);
}

/** Bytes that a receiving rank wants: its blocks of every layer that some source rank holds. */
static int64_t wanted_bytes(const struct job *job, const kvf_trtllm_rank *rank)
{
    const struct kvf_trtllm_page_table *table = spec_of(rank)->page_table;
    const json_t *lists = blocks_of(job, rank);
    int64_t bytes = 0;

    for (size_t g = 0; table && g < table->group_count; g++) {
        const struct kvf_trtllm_group *group = &table->groups[g];
        const json_t *list = json_array_get(lists, g);
        int64_t ids = 0;

        for (size_t i = 0; i < json_array_size(list); i++) ids += json_integer_value(json_array_get(list, i)) >= 0;
        for (size_t v = 0; v < group->view_count; v++) {
            for (size_t e = 0; e < group->views[v].entry_count; e++) {
                const struct kvf_trtllm_entry *entry = &group->views[v].entries[e];
                bool held = false;

                for (size_t s = 0; s < job->src.count && !held; s++) {
                    const struct kvf_trtllm_page_table *other = spec_of(job->src.ranks[s])->page_table;

                    for (size_t h = 0; other && h < other->group_count && !held; h++)
                        for (size_t l = 0; l < other->groups[h].layer_count && !held; l++)
                            for (size_t o = 0; o < group->layer_count && !held; o++)
                                held = other->groups[h].cache == group->cache &&
                                       group->layers[o].local_layer == entry->local_layer &&
                                       group->layers[o].global_layer == other->groups[h].layers[l].global_layer;
                }
                if (held) bytes += entry->size_bytes * ids;
            }
        }
    }
    return bytes;
}

/** Adds what a planned pair writes, and its line in "sends". */
static void add_write(const struct job *job, const kvf_trtllm_rank *src, const kvf_trtllm_rank *dst,
                      const kvf_trtllm_pair *pair, struct written *out)
{
    struct kvf_trtllm_overlap overlap = {0};
    struct moves_request request;
    kvf_trtllm_write *write = NULL;
    size_t count = 0, before = out->moves.count;

    if (!moves_request_init(&request, job->prompt, blocks_of(job, src), blocks_of(job, dst))) {
        snprintf(out->error.text, sizeof out->error.text, "a request is missing");
        goto done;
    }
    if (kvf_trtllm_get_overlap(src, dst, spec_of(dst)->dp_rank, &overlap, NULL, 0, &out->error) != KVF_OK ||
        kvf_trtllm_pair_bind(pair, &request.request, &write, &out->error) != KVF_OK)
        goto done;
    if (!moves_collect(&out->moves, write)) {
        snprintf(out->error.text, sizeof out->error.text, "out of memory");
        goto done;
    }
    if (kvf_trtllm_write_fragments(write, NULL, 0, &count, NULL) != KVF_OK) count = out->moves.count - before;
    out->bytes += kvf_trtllm_write_bytes(write);
    json_array_append_new(out->sends, json_pack("[I, I, I, I, b]", (json_int_t)spec_of(src)->instance_rank,
                                                (json_int_t)count, (json_int_t)kvf_trtllm_write_bytes(write),
                                                (json_int_t)overlap.rank_count, kvf_trtllm_should_send_aux(src, dst)));
done:
    kvf_trtllm_write_destroy(write);
    moves_request_fini(&request);
}

/** One sender as upstream would have it. */
static void send_strict(const struct job *job, const kvf_trtllm_rank *src, const kvf_trtllm_rank *dst,
                        struct written *out)
{
    kvf_trtllm_registrar *registrar = NULL;
    kvf_trtllm_pair *pair = NULL;
    struct kvf_error error = {0};

    if (kvf_trtllm_registrar_create(src, NULL, &registrar, &error) == KVF_OK &&
        kvf_trtllm_registrar_register(registrar, dst, NULL, &error) == KVF_OK &&
        kvf_trtllm_registrar_pair(registrar, spec_of(dst)->instance_name, spec_of(dst)->instance_rank, &pair,
                                  &error) == KVF_OK)
        add_write(job, src, dst, pair, out);
    else
        out->error = error;
    kvf_trtllm_pair_release(pair);
    kvf_trtllm_registrar_destroy(registrar);
}

/** One sender as the whole instances elect. */
static void send_native(const struct job *job, size_t src, size_t dst, struct written *out)
{
    kvf_trtllm_pair *pair = NULL;

    if (kvf_trtllm_pair_native((const kvf_trtllm_rank *const *)job->src.ranks, job->src.count,
                               (const kvf_trtllm_rank *const *)job->dst.ranks, job->dst.count, src, dst, &pair,
                               &out->error) == KVF_OK)
        add_write(job, job->src.ranks[src], job->dst.ranks[dst], pair, out);
    kvf_trtllm_pair_release(pair);
}

static void start(struct written *out)
{
    free(out->moves.items);
    json_decref(out->sends);
    memset(out, 0, sizeof *out);
    out->sends = json_array();
}

/** All senders of a receiving rank: as upstream, and where some sender refuses, natively instead. */
static void write_all(const struct job *job, size_t dst, const int64_t *writers, size_t writer_count,
                      struct written *out)
{
    bool refused = false;

    start(out);
    for (size_t i = 0; i < writer_count; i++) {
        size_t src = find_rank(&job->src, writers[i]);

        if (src < job->src.count) send_strict(job, job->src.ranks[src], job->dst.ranks[dst], out);
        refused = refused || out->error.text[0];
    }
    if (!refused) return;
    start(out);
    for (size_t i = 0; i < job->src.count; i++)
        if (spec_of(job->src.ranks[i])->dp_rank == job->src_dp) send_native(job, i, dst, out);
}

/** One receiving rank: who writes into it, and what. */
static json_t *answer_receiver(const struct job *job, size_t index)
{
    const kvf_trtllm_rank *dst = job->dst.ranks[index];
    int64_t *writers = calloc(KVF_TRTLLM_MAX_RANKS, sizeof *writers);
    struct kvf_trtllm_overlap overlap = {0};
    struct written written = {.sends = NULL};
    json_t *list = json_array(), *out, *sends;

    if (writers && kvf_trtllm_get_overlap(dst, job->src.ranks[0], job->src_dp, &overlap, writers, KVF_TRTLLM_MAX_RANKS,
                                          &written.error) == KVF_OK)
        write_all(job, index, writers, overlap.rank_count, &written);
    for (size_t i = 0; writers && i < overlap.rank_count; i++)
        json_array_append_new(list, json_integer((json_int_t)writers[i]));
    sends = written.sends ? written.sends : json_array();
    out = json_pack("{s:I, s:o, s:o, s:I, s:I, s:I, s:o}", "rank", (json_int_t)spec_of(dst)->instance_rank, "writers",
                    list, "sends", sends, "bytes", (json_int_t)written.bytes, "wanted",
                    (json_int_t)wanted_bytes(job, dst), "doubles", (json_int_t)moves_doubles(&written.moves), "error",
                    written.error.text[0] ? answer_text(written.error.text) : json_null());
    free(written.moves.items);
    free(writers);
    return out;
}

json_t *answer_instance(const json_t *input)
{
    struct job job = {.input = input, .src_dp = json_integer_value(json_object_get(input, "src_dp")),
                      .prompt = json_integer_value(json_object_get(input, "prompt"))};
    struct kvf_error error = {0};
    json_t *out;

    if (read_instance(&job.src, json_object_get(input, "src"), &error) &&
        read_instance(&job.dst, json_object_get(input, "dst"), &error)) {
        out = json_array();
        for (size_t i = 0; i < job.dst.count; i++) json_array_append_new(out, answer_receiver(&job, i));
    } else {
        out = json_pack("{s:o}", "error", answer_text(error.text[0] ? error.text : "ranks are missing"));
    }
    free_instance(&job.src);
    free_instance(&job.dst);
    return out;
}
