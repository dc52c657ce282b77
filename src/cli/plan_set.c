/* SPDX-License-Identifier: Apache-2.0 */
/* Elects, plans and binds every rank pair of two instances. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan_set.h"

#define DEFAULT_TOKENS 1024

const struct plan_cost_model plan_cost_models[2] = {{"shm", 8e9, 15}, {"tcp", 2.5e9, 25}};

double plan_cost_ns(const struct plan_cost_model *model, int64_t bytes, int64_t runs)
{
    return (double)bytes / model->bytes_per_s * 1e9 + (double)runs * model->ns_per_run;
}

static struct kvf_member *members_of(const kvf_instance *instance)
{
    size_t count = kvf_instance_rank_count(instance);
    struct kvf_member *members = calloc(count + 1, sizeof(*members));
    for (size_t i = 0; members != NULL && i < count; i++)
        members[i] = (struct kvf_member){kvf_instance_rank(instance, i), kvf_instance_holdings(instance, i)};
    return members;
}

/** Refuses a request that one rank has no room for. */
static int check_room(const struct cli_command *command, const kvf_instance *instance, const char *side, size_t rank,
                      int64_t tokens)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(kvf_instance_layout(instance, rank));
    char name[96];
    for (size_t g = 0; g < spec->group_count; g++) {
        int64_t needed = block_count_for(&spec->groups[g], tokens), room = block_capacity(spec, g);
        if (needed <= room || room == 0)
            continue;
        cli_error(command, "%" PRId64 " tokens take %" PRId64 " blocks of group %zu on %s rank %s, it has %" PRId64,
                  tokens, needed, g, side, cli_format_rank(kvf_instance_rank(instance, rank), name), room);
        return CLI_INPUT;
    }
    return CLI_OK;
}

/** Binds one pair with ids 0, 1, 2 ... on both sides. */
static int bind_pair(const struct cli_command *command, const struct plan_set *set, struct plan_pair *pair)
{
    struct block_lists src = {0}, dst = {0};
    struct kvf_bind_request request;
    struct kvf_error error = {.position = -1};
    int code = check_room(command, set->src, "source", pair->src, set->tokens);
    if (code == CLI_OK)
        code = check_room(command, set->dst, "destination", pair->dst, set->tokens);
    if (code != CLI_OK)
        return code;
    code = CLI_FAILED;
    if (!block_lists_in_order(kvf_layout_get_spec(kvf_instance_layout(set->src, pair->src)), set->tokens, &src) ||
        !block_lists_in_order(kvf_layout_get_spec(kvf_instance_layout(set->dst, pair->dst)), set->tokens, &dst)) {
        cli_error(command, "no memory for block ids");
        goto done;
    }
    kvf_bind_request_init(&request, sizeof(request));
    request.flags = KVF_BIND_RING_TAIL;
    request.token_end = set->tokens;
    request.request_tokens = set->tokens;
    request.src = src.groups;
    request.src_count = src.count;
    request.dst = dst.groups;
    request.dst_count = dst.count;
    if (kvf_bind(pair->plan, &request, &pair->binding, &error) != KVF_OK) {
        code = cli_library_error(command, NULL, &error);
        goto done;
    }
    kvf_binding_get_info(pair->binding, &pair->bound);
    code = CLI_OK;
done:
    block_lists_fini(&src);
    block_lists_fini(&dst);
    return code;
}

static int add_pair(const struct cli_command *command, struct plan_set *set, size_t src, size_t dst,
                    const kvf_share *share)
{
    struct plan_pair *pair = &set->pairs[set->pair_count++];
    struct kvf_error error = {.position = -1};
    *pair = (struct plan_pair){.src = src, .dst = dst, .share = share};
    if (kvf_plan_create(kvf_instance_layout(set->src, src), kvf_instance_layout(set->dst, dst), share, NULL,
                        &pair->plan, &error) != KVF_OK)
        return cli_library_error(command, NULL, &error);
    kvf_plan_get_info(pair->plan, &pair->info);
    int code = bind_pair(command, set, pair);
    if (code != CLI_OK)
        return code;
    set->boxes += pair->info.boxes;
    set->runs += pair->bound.runs;
    set->bytes += pair->bound.bytes;
    if (pair->info.boxes > 0 &&
        (set->shortest_run_bytes == 0 || pair->info.shortest_run_bytes < set->shortest_run_bytes))
        set->shortest_run_bytes = pair->info.shortest_run_bytes;
    return CLI_OK;
}

static int add_destination(const struct cli_command *command, struct plan_set *set, const struct kvf_member *src,
                           const struct kvf_member *dst, size_t d)
{
    size_t src_count = kvf_instance_rank_count(set->src);
    struct kvf_error error = {.position = -1};
    if (kvf_elect(src, src_count, dst, set->election_count, d, &set->elections[d], &error) != KVF_OK ||
        kvf_election_check_places(set->elections[d], kvf_instance_layout(set->dst, d), &error) != KVF_OK)
        return cli_library_error(command, NULL, &error);
    struct plan_pair *larger = realloc(set->pairs, (set->pair_count + src_count) * sizeof(*larger));
    if (larger == NULL) {
        cli_error(command, "no memory for %zu rank pairs", set->pair_count + src_count);
        return CLI_FAILED;
    }
    set->pairs = larger;
    int code = CLI_OK;
    for (size_t s = 0; code == CLI_OK && s < src_count; s++) {
        const kvf_share *share = kvf_election_share(set->elections[d], s);
        if (share != NULL)
            code = add_pair(command, set, s, d, share);
    }
    return code;
}

static int64_t default_tokens(const struct plan_set *set)
{
    int64_t tokens = DEFAULT_TOKENS;
    for (int side = 0; side < 2; side++) {
        const kvf_instance *instance = side == 0 ? set->src : set->dst;
        for (size_t i = 0; i < kvf_instance_rank_count(instance); i++)
            tokens = block_tokens_capacity(kvf_layout_get_spec(kvf_instance_layout(instance, i)), tokens);
    }
    return tokens;
}

static int check_models(const struct cli_command *command, const kvf_instance *src, const kvf_instance *dst)
{
    const char *a = kvf_instance_model_fingerprint(src), *b = kvf_instance_model_fingerprint(dst);
    if (a[0] == '\0' || b[0] == '\0' || strcmp(a, b) == 0)
        return CLI_OK;
    cli_error(command, "model fingerprint: the source has \"%.100s\", the destination \"%.100s\"", a, b);
    return CLI_INPUT;
}

int plan_set_init(const struct cli_command *command, const kvf_instance *src, const kvf_instance *dst, int64_t dst_rank,
                  int64_t tokens, struct plan_set *out)
{
    struct plan_set set = {.src = src,
                           .dst = dst,
                           .src_name = "source",
                           .dst_name = "destination",
                           .tokens = tokens,
                           .election_count = kvf_instance_rank_count(dst)};
    struct kvf_member *src_members = members_of(src), *dst_members = members_of(dst);
    set.elections = calloc(set.election_count + 1, sizeof(kvf_election *));
    int code = CLI_FAILED;
    if (src_members == NULL || dst_members == NULL || set.elections == NULL) {
        cli_error(command, "no memory for the ranks of two instances");
        goto done;
    }
    code = check_models(command, src, dst);
    if (tokens == 0)
        set.tokens = default_tokens(&set);
    for (size_t d = 0; code == CLI_OK && d < set.election_count; d++) {
        if (dst_rank < 0 || (size_t)dst_rank == d)
            code = add_destination(command, &set, src_members, dst_members, d);
    }
done:
    free(src_members);
    free(dst_members);
    if (code == CLI_OK)
        *out = set;
    else
        plan_set_fini(&set);
    return code;
}

void plan_set_fini(struct plan_set *set)
{
    for (size_t i = 0; i < set->pair_count; i++) {
        kvf_binding_destroy(set->pairs[i].binding);
        kvf_plan_release(set->pairs[i].plan);
    }
    for (size_t i = 0; set->elections != NULL && i < set->election_count; i++)
        kvf_election_destroy(set->elections[i]);
    free(set->pairs);
    free(set->elections);
    *set = (struct plan_set){0};
}

static int compare_spans(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0] ? 1 : -1) : (x[1] > y[1]) - (x[1] < y[1]);
}

/** Writes spans [first, end) joined where they touch. */
static void write_spans(int64_t (*spans)[2], size_t count, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    qsort(spans, count, sizeof(spans[0]), compare_spans);
    for (size_t i = 0; i < count && used + 4 < bytes;) {
        int64_t first = spans[i][0], end = spans[i][1];
        while (++i < count && spans[i][0] <= end)
            end = spans[i][1] > end ? spans[i][1] : end;
        const char *comma = used > 0 ? "," : "";
        int put = end == first + 1
                      ? snprintf(text + used, bytes - used, "%s%" PRId64, comma, first)
                      : snprintf(text + used, bytes - used, "%s%" PRId64 "-%" PRId64, comma, first, end - 1);
        used += (size_t)put;
    }
    if (used >= bytes)
        snprintf(text + bytes - 4, 4, "...");
}

static void write_share(const kvf_share *share, bool layers, char *text, size_t bytes)
{
    size_t count = kvf_share_count(share);
    int64_t(*spans)[2] = calloc(count + 1, sizeof(*spans));
    text[0] = '\0';
    for (size_t i = 0; spans != NULL && i < count; i++) {
        struct kvf_cell cell = kvf_share_cell(share, i);
        spans[i][0] = layers ? cell.layer : cell.unit_first;
        spans[i][1] = layers ? cell.layer + 1 : cell.unit_first + cell.unit_count;
    }
    if (spans != NULL)
        write_spans(spans, count, text, bytes);
    free(spans);
}

void plan_share_layers(const kvf_share *share, char *text, size_t bytes)
{
    write_share(share, true, text, bytes);
}

void plan_share_units(const kvf_share *share, char *text, size_t bytes)
{
    write_share(share, false, text, bytes);
}
