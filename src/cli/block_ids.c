/* SPDX-License-Identifier: Apache-2.0 */
/* Block ids for a request: in order for plans, shuffled for workers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/block_ids.h"

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t block_count_for(const struct kvf_group *group, int64_t tokens)
{
    if (group->tokens_per_block == 0)
        return 1;
    if (group->stripes > 1 && group->stripe_tokens == 0) {
        int64_t blocks = divide_up(tokens, group->tokens_per_block);
        return blocks / group->stripes + (group->stripe < blocks % group->stripes);
    }
    int64_t local = tokens;
    if (group->stripes > 1) {
        int64_t round = group->stripe_tokens * group->stripes;
        int64_t rest = tokens % round - group->stripe * group->stripe_tokens;
        local = tokens / round * group->stripe_tokens + (rest <= 0 ? 0 : least(rest, group->stripe_tokens));
    }
    if (group->ring_tokens > 0)
        local = least(local, group->ring_tokens);
    return divide_up(local, group->tokens_per_block);
}

int64_t block_capacity(const struct kvf_layout_spec *spec, size_t group)
{
    int64_t capacity = -1;
    for (size_t v = 0; v < spec->view_count; v++) {
        const struct kvf_view *view = &spec->views[v];
        if ((size_t)view->group != group)
            continue;
        for (size_t p = 0; p < view->place_count; p++) {
            int64_t room = spec->pools[view->places[p].pool].slots / view->slots_per_block;
            capacity = capacity < 0 ? room : least(capacity, room);
        }
    }
    return capacity < 0 ? 0 : capacity;
}

int64_t block_tokens_capacity(const struct kvf_layout_spec *spec, int64_t limit)
{
    for (size_t g = 0; g < spec->group_count; g++) {
        const struct kvf_group *group = &spec->groups[g];
        int64_t room = block_capacity(spec, g);
        if (group->ring_tokens > 0 && group->stripes > 1) /* longer ranges of those are refused */
            limit = least(limit, group->ring_tokens * group->stripes);
        if (group->tokens_per_block == 0)
            continue;
        if (block_count_for(group, limit) > room)
            limit = least(limit, room * group->tokens_per_block * group->stripes);
        while (limit > 0 && block_count_for(group, limit) > room)
            limit--;
    }
    return limit;
}

static bool lists_init(const struct kvf_layout_spec *spec, int64_t tokens, struct block_lists *out)
{
    struct block_lists lists = {.count = spec->group_count};
    bool good = true;
    lists.groups = calloc(spec->group_count + 1, sizeof(*lists.groups));
    good = lists.groups != NULL;
    for (size_t g = 0; good && g < spec->group_count; g++) {
        int64_t count = block_count_for(&spec->groups[g], tokens);
        int64_t *ids = calloc((size_t)count + 1, sizeof(*ids));
        good = ids != NULL;
        for (int64_t i = 0; good && i < count; i++)
            ids[i] = i;
        lists.groups[g] = (struct kvf_id_list){.ids = ids, .count = ids != NULL ? (size_t)count : 0};
    }
    if (good)
        *out = lists;
    else
        block_lists_fini(&lists);
    return good;
}

bool block_lists_in_order(const struct kvf_layout_spec *spec, int64_t tokens, struct block_lists *out)
{
    return lists_init(spec, tokens, out);
}

void block_lists_fini(struct block_lists *lists)
{
    for (size_t g = 0; lists->groups != NULL && g < lists->count; g++)
        free((void *)lists->groups[g].ids);
    free(lists->groups);
    *lists = (struct block_lists){0};
}

uint64_t block_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/** Whether two groups have a view in one pool. */
static bool share_a_pool(const struct kvf_layout_spec *spec, size_t a, size_t b)
{
    bool *used = calloc(spec->pool_count + 1, sizeof(*used));
    bool shared = used == NULL; /* without memory: keep them apart, which is always right */
    for (int pass = 0; used != NULL && pass < 2; pass++) {
        for (size_t v = 0; v < spec->view_count; v++) {
            const struct kvf_view *view = &spec->views[v];
            if ((size_t)view->group != (pass == 0 ? a : b))
                continue;
            for (size_t p = 0; p < view->place_count; p++) {
                if (pass == 0)
                    used[view->places[p].pool] = true;
                else
                    shared = shared || used[view->places[p].pool];
            }
        }
    }
    free(used);
    return shared;
}

/** Slots per block of a group's views (they agree in all but exotic layouts; the largest is safe). */
static int64_t slots_per_block(const struct kvf_layout_spec *spec, size_t group)
{
    int64_t most = 1;
    for (size_t v = 0; v < spec->view_count; v++) {
        if ((size_t)spec->views[v].group == group && spec->views[v].slots_per_block > most)
            most = spec->views[v].slots_per_block;
    }
    return most;
}

/** Whether the slots of `id` are free of the ids that earlier groups of the same pools got. */
static bool is_free(const struct kvf_layout_spec *spec, const struct block_lists *lists, size_t group,
                    const bool *neighbours, int64_t id)
{
    int64_t width = slots_per_block(spec, group);
    for (size_t g = 0; g < group; g++) {
        int64_t other = slots_per_block(spec, g);
        for (size_t i = 0; neighbours[g] && i < lists->groups[g].count; i++) {
            int64_t first = lists->groups[g].ids[i] * other;
            if (id * width < first + other && first < id * width + width)
                return false;
        }
    }
    return true;
}

/** Fills the list of one group with a shuffle of free ids. */
static int shuffle_group(const struct cli_command *command, const struct kvf_layout_spec *spec, size_t group,
                         uint64_t *seed, struct block_lists *lists)
{
    int64_t capacity = block_capacity(spec, group), needed = (int64_t)lists->groups[group].count;
    int64_t *all = calloc((size_t)capacity + 1, sizeof(*all));
    bool *neighbours = calloc(group + 1, sizeof(*neighbours));
    int code = CLI_FAILED;
    if (all == NULL || neighbours == NULL) {
        cli_error(command, "no memory for the ids of %" PRId64 " blocks", capacity);
        goto done;
    }
    for (size_t g = 0; g < group; g++)
        neighbours[g] = share_a_pool(spec, g, group);
    int64_t found = 0;
    for (int64_t id = 0; id < capacity; id++) {
        if (is_free(spec, lists, group, neighbours, id))
            all[found++] = id;
    }
    if (found < needed) {
        cli_error(command, "the request takes %" PRId64 " blocks of group %zu, the layout has room for %" PRId64,
                  needed, group, found);
        code = CLI_INPUT;
        goto done;
    }
    int64_t *ids = (int64_t *)lists->groups[group].ids;
    for (int64_t i = 0; i < needed; i++) {
        int64_t j = i + (int64_t)(block_random(seed) % (uint64_t)(found - i));
        ids[i] = all[j];
        all[j] = all[i];
    }
    code = CLI_OK;
done:
    free(neighbours);
    free(all);
    return code;
}

int block_lists_shuffled(const struct cli_command *command, const struct kvf_layout_spec *spec, int64_t tokens,
                         uint64_t seed, struct block_lists *out)
{
    struct block_lists lists = {0};
    int code = CLI_OK;
    if (!lists_init(spec, tokens, &lists)) {
        cli_error(command, "no memory for block ids");
        return CLI_FAILED;
    }
    for (size_t g = 0; code == CLI_OK && g < lists.count; g++)
        code = shuffle_group(command, spec, g, &seed, &lists);
    if (code == CLI_OK)
        *out = lists;
    else
        block_lists_fini(&lists);
    return code;
}
