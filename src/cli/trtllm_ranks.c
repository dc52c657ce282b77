/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos from files, and what they say of themselves. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/rank_files.h"
#include "cli/trtllm_ranks.h"

#define ROLES_MAX 64

/** What is read, and where to. */
struct reading {
    const char *member;
    struct trtllm_side *side;
};

static bool add_rank(struct trtllm_side *side, kvf_trtllm_rank *rank)
{
    kvf_trtllm_rank **larger = realloc(side->ranks, (side->count + 1) * sizeof(kvf_trtllm_rank *));
    if (larger == NULL)
        return false;
    side->ranks = larger;
    side->ranks[side->count++] = rank;
    return true;
}

/** Reads one rank and adds it. `where` goes before the message, such as "P.json: ranks[3]". */
static int take_rank(const struct cli_command *command, const char *where, const char *text, size_t bytes, bool is_json,
                     struct trtllm_side *side)
{
    struct kvf_error error = {.position = -1};
    kvf_trtllm_rank *rank = NULL;
    enum kvf_status status = is_json ? kvf_trtllm_rank_from_json(text, bytes, &rank, &error)
                                     : kvf_trtllm_rank_decode(text, bytes, &rank, &error);
    if (status != KVF_OK)
        return cli_library_error(command, where, &error);
    if (!add_rank(side, rank)) {
        kvf_trtllm_rank_release(rank);
        cli_error(command, "no memory for a rank");
        return CLI_FAILED;
    }
    return CLI_OK;
}

static int take_value(const struct cli_command *command, const char *where, const json_t *value,
                      struct trtllm_side *side)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL) {
        cli_error(command, "%s: no memory for its text", where);
        return CLI_FAILED;
    }
    int code = take_rank(command, where, text, strlen(text), true, side);
    free(text);
    return code;
}

static int take_list(const struct cli_command *command, const char *path, const char *name, const json_t *list,
                     struct trtllm_side *side)
{
    int code = CLI_OK;
    size_t room = strlen(path) + 64;
    char *where = malloc(room);
    if (where == NULL) {
        cli_error(command, "%s: no memory", path);
        return CLI_FAILED;
    }
    for (size_t i = 0; i < json_array_size(list) && code == CLI_OK; i++) {
        snprintf(where, room, "%s: %s[%zu]", path, name, i);
        code = take_value(command, where, json_array_get(list, i), side);
    }
    free(where);
    return code;
}

static int take_json(const struct cli_command *command, const char *path, const char *member, const char *text,
                     size_t bytes, struct trtllm_side *side)
{
    json_t *root = NULL;
    int code = rank_file_parse(command, path, text, bytes, &root);
    if (code != CLI_OK)
        return code;
    code = CLI_INPUT;
    const char *name = json_object_get(root, "ranks") != NULL ? "ranks" : member;
    const json_t *inner = json_object_get(root, name);
    if (json_is_array(root))
        code = take_list(command, path, "", root, side);
    else if (json_is_array(inner))
        code = take_list(command, path, name, inner, side);
    else if (inner != NULL)
        code = take_value(command, path, inner, side);
    else if (json_object_get(root, "src") != NULL || json_object_get(root, "dst") != NULL)
        cli_error(command, "%s: has no %s; the context (src) comes first, then the generation (dst)", path, member);
    else
        code = take_rank(command, path, text, bytes, true, side);
    json_decref(root);
    return code;
}

static int take_file(const struct cli_command *command, const char *path, void *context)
{
    const struct reading *reading = context;
    char *text = NULL;
    size_t bytes = 0, at = 0;
    int code = cli_read_file(command, path, RANK_FILE_LIMIT, &text, &bytes);
    if (code != CLI_OK)
        return code;
    while (at < bytes && strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0')
        at++;
    if (at < bytes && (text[at] == '{' || text[at] == '['))
        code = take_json(command, path, reading->member, text, bytes, reading->side);
    else
        code = take_rank(command, path, text, bytes, false, reading->side);
    free(text);
    return code;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct kvf_trtllm_rank_spec *x = kvf_trtllm_rank_get_spec(*(kvf_trtllm_rank *const *)a);
    const struct kvf_trtllm_rank_spec *y = kvf_trtllm_rank_get_spec(*(kvf_trtllm_rank *const *)b);
    return (x->instance_rank > y->instance_rank) - (x->instance_rank < y->instance_rank);
}

/** All ranks must be of one instance, each there once. */
static int check_side(const struct cli_command *command, const char *path, const struct trtllm_side *side)
{
    if (side->count == 0) {
        cli_error(command, "%s: no rank in it", path);
        return CLI_INPUT;
    }
    const struct kvf_trtllm_rank_spec *first = trtllm_side_spec(side, 0);
    for (size_t i = 1; i < side->count; i++) {
        const struct kvf_trtllm_rank_spec *rank = trtllm_side_spec(side, i), *before = trtllm_side_spec(side, i - 1);
        if (strcmp(rank->instance_name, first->instance_name) != 0) {
            cli_error(command, "%s: ranks of two instances, \"%s\" and \"%s\"", path, first->instance_name,
                      rank->instance_name);
            return CLI_INPUT;
        }
        if (rank->instance_rank == before->instance_rank) {
            cli_error(command, "%s: rank %" PRId64 " is there twice", path, rank->instance_rank);
            return CLI_INPUT;
        }
    }
    return CLI_OK;
}

int trtllm_side_read(const struct cli_command *command, const char *path, const char *member, struct trtllm_side *out)
{
    struct trtllm_side side = {0};
    struct reading reading = {member, &side};
    int code = rank_files_each(command, path, take_file, &reading);
    if (code == CLI_OK && side.count > 1)
        qsort(side.ranks, side.count, sizeof(*side.ranks), compare_ranks);
    if (code == CLI_OK)
        code = check_side(command, path, &side);
    if (code == CLI_OK)
        *out = side;
    else
        trtllm_side_fini(&side);
    return code;
}

void trtllm_side_fini(struct trtllm_side *side)
{
    for (size_t i = 0; i < side->count; i++)
        kvf_trtllm_rank_release(side->ranks[i]);
    free(side->ranks);
    *side = (struct trtllm_side){0};
}

const struct kvf_trtllm_rank_spec *trtllm_side_spec(const struct trtllm_side *side, size_t index)
{
    return kvf_trtllm_rank_get_spec(side->ranks[index]);
}

static bool has_attention_dp(const struct kvf_trtllm_rank_spec *rank)
{
    return rank->attention != NULL && rank->attention->enable_attention_dp != 0;
}

int64_t trtllm_group_tp_size(const struct kvf_trtllm_rank_spec *rank)
{
    int64_t size = has_attention_dp(rank) && rank->dp_size > 0 ? rank->tp_size / rank->dp_size : rank->tp_size;
    return size > 0 ? size : 1;
}

int64_t trtllm_group_tp_rank(const struct kvf_trtllm_rank_spec *rank)
{
    return rank->tp_rank % trtllm_group_tp_size(rank);
}

void trtllm_state_ranks(const struct kvf_trtllm_rank_spec *rank, int64_t *size, int64_t *number)
{
    bool alone = has_attention_dp(rank);
    *size = alone ? 1 : rank->tp_size * rank->cp_size;
    *number = alone ? 0 : rank->tp_rank * rank->cp_size + rank->cp_rank;
}

int64_t trtllm_block_count(const struct kvf_trtllm_rank_spec *rank, int64_t tokens)
{
    int64_t each = rank->page_table->tokens_per_block;
    int64_t blocks = tokens > 0 ? (tokens - 1) / each + 1 : 0;
    return blocks > rank->cp_rank ? (blocks - rank->cp_rank + rank->cp_size - 1) / rank->cp_size : 0;
}

int64_t trtllm_aux_item(const struct kvf_trtllm_rank_spec *rank, int64_t buffer)
{
    bool is_there = rank->aux != NULL && buffer >= 0 && (uint64_t)buffer < rank->aux->item_count;
    return is_there && rank->aux->item_sizes[buffer] > 0 ? rank->aux->item_sizes[buffer] : 0;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *trtllm_role_text(const struct kvf_trtllm_view *view, char *text, size_t bytes)
{
    const char *roles[ROLES_MAX];
    size_t count = view->role_count < ROLES_MAX ? view->role_count : ROLES_MAX, used = 0;
    if (count > 0) {
        memcpy(roles, view->roles, count * sizeof(*roles));
        qsort(roles, count, sizeof(*roles), compare_texts);
    }
    text[0] = '\0';
    for (size_t i = 0; i < count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? "+" : "", roles[i]);
    return text;
}
