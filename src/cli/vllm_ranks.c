/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of vLLM engines from files. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/rank_files.h"
#include "cli/vllm_pairs.h"

/** What is read, and where to. */
struct reading {
    const char *member;
    struct vllm_side *side;
};

static int take_rank(const struct cli_command *command, const char *path, const char *where, const json_t *value,
                     struct vllm_side *side)
{
    struct json_take take = json_take_below("%s", where);
    struct vllm_rank rank;
    vllm_rank_init(&rank);
    bool fits = vllm_take_rank(&take, value, &side->keep, &rank) &&
                (json_take_has(value, "regions") ||
                 json_take_wrong(&take, "regions", "expected the regions, as parallel arrays"));
    if (fits) {
        take = json_take_below("%s%sregions", where, where[0] != '\0' ? "." : "");
        fits = vllm_take_regions(&take, json_object_get(value, "regions"), &side->keep, &rank.regions);
    }
    if (fits && side->is_producer) {
        take = json_take_below("%s", where);
        fits = vllm_can_produce(&take, &rank);
    }
    if (!fits) {
        cli_error(command, "%s: %s", path, take.text);
        return CLI_INPUT;
    }
    if (rank.tp_rank >= rank.tp_size || rank.pp_rank >= rank.pp_size) {
        cli_error(command, "%s: %s%srank %" PRId64 " of TP %" PRId64 ", rank %" PRId64 " of PP %" PRId64
                  ": a rank must be below its size", path, where, where[0] != '\0' ? ": " : "", rank.tp_rank,
                  rank.tp_size, rank.pp_rank, rank.pp_size);
        return CLI_INPUT;
    }
    struct vllm_rank *larger = realloc(side->ranks, (side->count + 1) * sizeof(*larger));
    if (larger == NULL) {
        cli_error(command, "no memory for a rank");
        return CLI_FAILED;
    }
    side->ranks = larger;
    side->ranks[side->count++] = rank;
    return CLI_OK;
}

static int take_list(const struct cli_command *command, const char *path, const char *name, const json_t *list,
                     struct vllm_side *side)
{
    int code = CLI_OK;
    char where[64];
    for (size_t i = 0; i < json_array_size(list) && code == CLI_OK; i++) {
        snprintf(where, sizeof(where), "%s[%zu]", name, i);
        code = take_rank(command, path, where, json_array_get(list, i), side);
    }
    return code;
}

static int take_root(const struct cli_command *command, const char *path, const char *member, const json_t *root,
                     struct vllm_side *side)
{
    const json_t *input = json_object_get(root, "input"), *case_root = input != NULL ? input : root;
    const char *name = json_object_get(root, "ranks") != NULL ? "ranks" : member;
    const json_t *inner = json_object_get(name[0] == 'r' ? root : case_root, name);
    if (json_is_array(root))
        return take_list(command, path, "", root, side);
    if (json_is_array(inner))
        return take_list(command, path, name, inner, side);
    if (inner != NULL)
        return take_rank(command, path, name, inner, side);
    if (json_object_get(case_root, "producer") != NULL || json_object_get(case_root, "pull") != NULL) {
        cli_error(command, "%s: has no %s; the producer comes first, then the consumer (pull)", path, member);
        return CLI_INPUT;
    }
    return take_rank(command, path, "", root, side);
}

static int take_file(const struct cli_command *command, const char *path, void *context)
{
    const struct reading *reading = context;
    struct vllm_side *side = reading->side;
    json_t *root = NULL;
    int code = rank_file_read(command, path, &root);
    if (code != CLI_OK)
        return code;
    json_t **larger = realloc(side->roots, (side->root_count + 1) * sizeof(*larger));
    if (larger == NULL) {
        cli_error(command, "no memory for a file");
        json_decref(root);
        return CLI_FAILED;
    }
    side->roots = larger;
    side->roots[side->root_count++] = root;
    return take_root(command, path, reading->member, root, side);
}

static int compare_ranks(const void *a, const void *b)
{
    const struct vllm_rank *x = a, *y = b;
    if (x->pp_rank != y->pp_rank)
        return x->pp_rank > y->pp_rank ? 1 : -1;
    return (x->tp_rank > y->tp_rank) - (x->tp_rank < y->tp_rank);
}

/** All ranks must be of one grid, each there once. */
static int check_side(const struct cli_command *command, const char *path, const struct vllm_side *side)
{
    if (side->count == 0) {
        cli_error(command, "%s: no rank in it", path);
        return CLI_INPUT;
    }
    for (size_t i = 1; i < side->count; i++) {
        const struct vllm_rank *rank = &side->ranks[i], *before = &side->ranks[i - 1];
        if (rank->tp_size != before->tp_size || rank->pp_size != before->pp_size) {
            cli_error(command, "%s: ranks of two engines, TP %" PRId64 " PP %" PRId64 " and TP %" PRId64 " PP %" PRId64,
                      path, before->tp_size, before->pp_size, rank->tp_size, rank->pp_size);
            return CLI_INPUT;
        }
        if (compare_ranks(rank, before) == 0) {
            cli_error(command, "%s: TP rank %" PRId64 " of PP rank %" PRId64 " is there twice", path, rank->tp_rank,
                      rank->pp_rank);
            return CLI_INPUT;
        }
    }
    return CLI_OK;
}

int vllm_side_read(const struct cli_command *command, const char *path, const char *member, struct vllm_side *out)
{
    struct vllm_side side = {.path = path, .is_producer = strcmp(member, "producer") == 0};
    struct reading reading = {member, &side};
    int code = rank_files_each(command, path, take_file, &reading);
    if (code == CLI_OK && side.count > 1)
        qsort(side.ranks, side.count, sizeof(*side.ranks), compare_ranks);
    if (code == CLI_OK)
        code = check_side(command, path, &side);
    if (code == CLI_OK)
        *out = side;
    else
        vllm_side_fini(&side);
    return code;
}

void vllm_side_fini(struct vllm_side *side)
{
    for (size_t i = 0; i < side->root_count; i++)
        json_decref(side->roots[i]);
    free(side->roots);
    free(side->ranks);
    vllm_keep_free(&side->keep);
    *side = (struct vllm_side){0};
}
