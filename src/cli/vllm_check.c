/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer should hold: every producer beside the pull is painted in memory of its own, and the requests are
 * copied as the plan says. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_lines.h"
#include "cli/vllm_serve.h"

#define DESCRIPTORS_AT_ONCE 64

/** A producer beside the pull. */
struct source {
    struct vllm_keep keep;
    struct vllm_rank rank;
    kvf_vllm_regions *regions, *moved;
    struct vllm_memory memory;
    kvf_vllm_prepared *prepared;
};

static void source_fini(struct source *source)
{
    kvf_vllm_prepared_release(source->prepared);
    kvf_vllm_regions_release(source->moved);
    kvf_vllm_regions_release(source->regions);
    vllm_memory_fini(&source->memory);
    vllm_keep_free(&source->keep);
}

/** The ids that a producer has ready for a transfer; NULL when it has none. */
static const struct kvf_vllm_ids *ready_ids(struct source *source, const char *transfer_id, size_t *count)
{
    for (size_t i = 0; i < json_array_size(source->rank.requests); i++) {
        const json_t *row = json_array_get(source->rank.requests, i);
        const char *id = json_string_value(json_object_get(row, "transfer_id"));
        struct json_take take = json_take_below("%s", "");
        struct kvf_vllm_ids *groups = NULL;
        if (id != NULL && strcmp(id, transfer_id) == 0 &&
            vllm_take_groups(&take, row, "block_ids", &source->keep, &groups, count))
            return groups;
    }
    return NULL;
}

static int paint_source(struct vllm_serve *serve, struct source *source)
{
    struct vllm_reach reach = {0};
    int code = CLI_FAILED;
    bool noted = true;
    for (size_t i = 0; i < json_array_size(source->rank.requests); i++) {
        struct json_take take = json_take_below("%s", "");
        struct kvf_vllm_ids *groups = NULL;
        size_t count = 0;
        noted = noted && vllm_take_groups(&take, json_array_get(source->rank.requests, i), "block_ids", &source->keep,
                                          &groups, &count) &&
                vllm_reach_add(&reach, &source->rank, groups, count);
    }
    if (noted)
        code = vllm_memory_init(serve->command, serve->options->spec_path, NULL, source->regions, &reach,
                                &source->memory, &source->moved);
    if (code == CLI_OK)
        vllm_memory_paint(&source->memory, source->regions,
                          serve->spec.check_seed + (uint32_t)source->rank.tp_rank);
    free(reach.last);
    return code;
}

/** Takes a producer and its plan towards this rank. Where the two are not paired, nothing comes from it. */
static int source_init(struct vllm_serve *serve, const json_t *object, struct source *source)
{
    struct json_take take = json_take_below("producer");
    struct kvf_error error = {.position = -1};
    struct kvf_vllm_producer_spec spec;
    struct kvf_vllm_peer peer;
    kvf_vllm_producer *producer = NULL;
    vllm_rank_init(&source->rank);
    if (!vllm_take_rank(&take, object, &source->keep, &source->rank) ||
        !vllm_take_regions(&take, json_object_get(object, "regions"), &source->keep, &source->rank.regions) ||
        !vllm_can_produce(&take, &source->rank)) {
        cli_error(serve->command, "%s: %s", serve->options->spec_path, take.text);
        return CLI_INPUT;
    }
    vllm_producer_spec(&source->rank, &spec);
    spec.keeps_layers_apart = 1; /* as workers do */
    vllm_peer(&serve->spec.rank, &peer);
    int code = CLI_FAILED;
    enum kvf_status status = kvf_vllm_regions_expand(&source->rank.regions, source->rank.layers,
                                                     source->rank.layer_count, &source->regions, &error);
    if (status == KVF_OK)
        status = kvf_vllm_producer_create(&spec, &producer, &error);
    if (status == KVF_OK && kvf_vllm_prepare(producer, &peer, &source->prepared, &error) != KVF_OK)
        source->prepared = NULL;
    kvf_vllm_producer_destroy(producer);
    if (status != KVF_OK)
        code = cli_library_error(serve->command, "producer", &error);
    else
        code = paint_source(serve, source);
    return code;
}

/** Copies what a request should bring into the image; where it failed, what is there. */
static bool copy_request(struct vllm_serve *serve, struct source *source, const struct vllm_job *job,
                         struct vllm_memory *image)
{
    struct kvf_vllm_descriptor list[DESCRIPTORS_AT_ONCE];
    struct kvf_error error = {.position = -1};
    kvf_vllm_write *write = NULL;
    size_t count = 0, got = 0;
    bool fits = true;
    const struct kvf_vllm_ids *ids = ready_ids(source, job->line.transfer_id, &count);
    if (ids == NULL || source->prepared == NULL ||
        kvf_vllm_write_create(source->prepared, ids, count, job->line.groups, job->line.group_count, &write, &error) !=
            KVF_OK)
        return job->failed || source->prepared == NULL;
    while (write != NULL && (got = kvf_vllm_write_next(write, list, DESCRIPTORS_AT_ONCE)) > 0) {
        for (size_t i = 0; fits && i < got; i++) {
            const uint8_t *from = job->failed
                                      ? vllm_memory_at(&serve->memory, list[i].dst_address, list[i].bytes)
                                      : vllm_memory_at(&source->memory, list[i].src_address, list[i].bytes);
            uint8_t *to = vllm_memory_at(image, list[i].dst_address, list[i].bytes);
            fits = from != NULL && to != NULL;
            if (fits)
                memcpy(to, from, (size_t)list[i].bytes);
        }
    }
    kvf_vllm_write_destroy(write);
    return fits;
}

/** Memory like this rank's as it was in the beginning. */
static int image_init(struct vllm_serve *serve, struct vllm_memory *image)
{
    json_t *list = json_array();
    kvf_vllm_regions *moved = NULL;
    struct vllm_reach reach = {0};
    for (size_t i = 0; i < serve->memory.count; i++)
        json_array_append_new(list, json_pack("[o, I]", vllm_json_u64(serve->memory.spans[i].base),
                                              (json_int_t)serve->memory.spans[i].bytes));
    int code = vllm_memory_init(serve->command, serve->options->spec_path, list, serve->spec.regions, &reach, image,
                                &moved);
    if (code == CLI_OK && serve->spec.paints)
        vllm_memory_paint(image, serve->spec.regions, serve->spec.paint_seed + (uint32_t)serve->spec.rank.tp_rank);
    if (code == CLI_OK && serve->spec.fill_path != NULL)
        code = vllm_memory_load(serve->command, image, serve->spec.fill_path);
    kvf_vllm_regions_release(moved);
    json_decref(list);
    return code;
}

static void compare(struct vllm_serve *serve, const struct vllm_memory *image)
{
    int64_t wrong = 0, first = -1, before = 0;
    for (size_t i = 0; i < image->count; i++) {
        const struct vllm_span *span = &image->spans[i], *mine = &serve->memory.spans[i];
        bool same = memcmp(span->real, mine->real, (size_t)span->bytes) == 0;
        for (int64_t b = 0; !same && b < span->bytes; b++) {
            if (span->real[b] != mine->real[b] && wrong++ == 0)
                first = before + b;
        }
        before += span->bytes;
    }
    json_t *event = json_pack("{s:s, s:I, s:I}", "event", "checked", "bytes", (json_int_t)image->bytes, "wrong",
                              (json_int_t)wrong);
    if (wrong > 0)
        json_object_set_new(event, "first", json_integer(first));
    json_lines_tell(event);
    serve->damaged = serve->damaged || wrong > 0;
}

void vllm_serve_check(struct vllm_serve *serve)
{
    const json_t *producers = vllm_spec_producers(&serve->spec);
    size_t count = json_is_array(producers) ? json_array_size(producers) : 1;
    struct vllm_memory image = {0};
    int code = image_init(serve, &image);
    for (size_t p = 0; code == CLI_OK && p < count; p++) {
        struct source source = {0};
        code = source_init(serve, json_is_array(producers) ? json_array_get(producers, p) : producers, &source);
        for (size_t i = 0; code == CLI_OK && i < serve->job_count; i++) {
            if (!copy_request(serve, &source, &serve->jobs[i], &image)) {
                cli_error(serve->command, "request %s: producer %zu has nothing that fits it",
                          serve->jobs[i].line.req_id, p);
                serve->damaged = true;
            }
        }
        source_fini(&source);
    }
    if (code == CLI_OK)
        compare(serve, &image);
    else
        serve->damaged = true;
    vllm_memory_fini(&image);
}
