/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank pairs of two instances exchange data, how each is judged, what it moves. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trtllm_pairs.h"

#define DEFAULT_TOKENS 1024

const struct kvf_trtllm_view *trtllm_find_view(const struct kvf_trtllm_rank_spec *rank,
                                               const struct kvf_trtllm_view_key *key)
{
    return &rank->page_table->groups[key->group].views[key->view];
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/** Tokens that the pools of a rank have room for. */
static int64_t room_of(const struct kvf_trtllm_rank_spec *rank)
{
    const struct kvf_trtllm_page_table *table = rank->page_table;
    int64_t room = INT64_MAX;
    for (size_t g = 0; g < table->group_count; g++) {
        const struct kvf_trtllm_group *group = &table->groups[g];
        for (size_t v = 0; group->cache == KVF_TRTLLM_PAGED && v < group->view_count; v++) {
            int64_t slots = table->pool_groups[group->pool_group].pools[group->views[v].pool].num_slots;
            int64_t most = INT64_MAX / 2 / table->tokens_per_block / larger(rank->cp_size, 1);
            room = smaller(room, smaller(slots, most) * table->tokens_per_block * larger(rank->cp_size, 1));
        }
    }
    return room;
}

/** Sees that the options fit the ranks. */
static int check_request(const struct cli_command *command, const struct trtllm_pairs *pairs)
{
    static const char *const members[2] = {"src_blocks", "dst_blocks"};
    const struct trtllm_side *sides[2] = {&pairs->src, &pairs->dst};
    int64_t groups = trtllm_side_spec(&pairs->src, 0)->dp_size;
    if (pairs->request->dp >= groups)
        return cli_usage_error(command, "--dp is %" PRId64 ", but the context has %" PRId64
                               " attention-DP group%s, from 0", pairs->request->dp, groups, groups == 1 ? "" : "s");
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < sides[side]->count; i++) {
            const struct kvf_trtllm_rank_spec *rank = trtllm_side_spec(sides[side], i);
            if (trtllm_has_blocks(pairs->request, rank, members[side]))
                continue;
            cli_error(command, "%s: has neither %s nor blocks.%s%" PRId64 ", lists of block ids",
                      pairs->request->blocks_path, members[side], rank->instance_name, rank->instance_rank);
            return CLI_INPUT;
        }
    }
    return CLI_OK;
}

/** Takes the number of tokens, and sees that both sides have a table and room. */
static int choose_tokens(const struct cli_command *command, struct trtllm_pairs *pairs)
{
    const struct trtllm_side *sides[2] = {&pairs->src, &pairs->dst};
    int64_t room = INT64_MAX;
    char name[288], fullest[288] = "";
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < sides[side]->count; i++) {
            const struct kvf_trtllm_rank_spec *rank = trtllm_side_spec(sides[side], i);
            trtllm_side_name(sides[side], i, name, sizeof(name));
            if (rank->page_table == NULL) {
                cli_error(command, "%s has no page table: there is nothing to plan", name);
                return CLI_INPUT;
            }
            int64_t has = room_of(rank);
            if (has < room) {
                room = has;
                snprintf(fullest, sizeof(fullest), "%s", name);
            }
        }
    }
    pairs->tokens = pairs->request->tokens > 0 ? pairs->request->tokens : smaller(room, DEFAULT_TOKENS);
    if (pairs->tokens > room && pairs->request->blocks == NULL) {
        cli_error(command, "%s has room for %" PRId64 " tokens, --tokens asks for %" PRId64, fullest, room,
                  pairs->tokens);
        return CLI_INPUT;
    }
    return CLI_OK;
}

/** Whom a destination rank asks: upstream's writers, or all whose layers it holds when planned natively. */
static bool list_writers(const struct trtllm_pairs *pairs, size_t dst, struct trtllm_reader_row *out)
{
    struct kvf_error error = {.position = -1};
    struct kvf_trtllm_options options;
    kvf_trtllm_registrar *registrar = NULL;
    kvf_trtllm_rank *self = pairs->dst.ranks[dst], *peer = pairs->src.ranks[0];

    kvf_trtllm_options_init(&options, sizeof(options));
    options.flags = pairs->request->native ? 0 : KVF_TRTLLM_STRICT_UPSTREAM;
    if (kvf_trtllm_registrar_create(self, &options, &registrar, &error) != KVF_OK)
        return false;
    if (kvf_trtllm_registrar_overlap(registrar, peer, pairs->dp, &out->overlap, NULL, 0, &error) != KVF_OK)
        out->overlap = (struct kvf_trtllm_overlap){.duplicate_head_factor = 1, .peer_duplicate_head_factor = 1};
    out->writers = calloc(out->overlap.rank_count + 1, sizeof(*out->writers));
    if (out->writers != NULL && out->overlap.rank_count > 0)
        kvf_trtllm_registrar_overlap(registrar, peer, pairs->dp, &out->overlap, out->writers,
                                     out->overlap.rank_count, &error);
    kvf_trtllm_registrar_destroy(registrar);
    return out->writers != NULL;
}

/** What a destination rank asks for, and whether it would ask at all. */
static bool ask(const struct trtllm_pairs *pairs, size_t dst, struct trtllm_reader_row *out)
{
    struct kvf_error error = {.position = -1};
    kvf_trtllm_registrar *registrar = NULL;
    kvf_trtllm_rank *self = pairs->dst.ranks[dst], *peer = pairs->src.ranks[0];

    if (!list_writers(pairs, dst, out) || kvf_trtllm_registrar_create(self, NULL, &registrar, &error) != KVF_OK)
        return false;
    if (kvf_trtllm_registrar_check_sender(registrar, peer, 0, &error) != KVF_OK) {
        snprintf(out->blind_text, sizeof(out->blind_text), "%s", error.text);
    } else if (kvf_trtllm_registrar_check_sender(registrar, peer, 1, &error) != KVF_OK) {
        snprintf(out->blind_text, sizeof(out->blind_text), "%s", error.text);
        out->blind = true;
    }
    kvf_trtllm_registrar_destroy(registrar);
    return true;
}

static bool is_writer(const struct trtllm_reader_row *reader, int64_t rank)
{
    for (size_t i = 0; i < reader->overlap.rank_count; i++) {
        if (reader->writers[i] == rank)
            return true;
    }
    return false;
}

static int compare_numbers(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/** Global layers of a view, ascending, each once. NULL when there is no memory. */
static int64_t *view_layers(const struct kvf_trtllm_rank_spec *rank, const struct kvf_trtllm_view_key *key,
                            size_t *count)
{
    const struct kvf_trtllm_group *group = &rank->page_table->groups[key->group];
    const struct kvf_trtllm_view *view = &group->views[key->view];
    int64_t *layers = calloc(group->layer_count + 1, sizeof(*layers));
    *count = 0;
    for (size_t l = 0; layers != NULL && l < group->layer_count; l++) {
        for (size_t e = 0; e < view->entry_count; e++) {
            if (view->entries[e].local_layer == group->layers[l].local_layer) {
                layers[(*count)++] = group->layers[l].global_layer;
                break;
            }
        }
    }
    if (layers != NULL)
        qsort(layers, *count, sizeof(*layers), compare_numbers);
    return layers;
}

static bool common_layers(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                          struct trtllm_view_row *row)
{
    size_t mine = 0, theirs = 0;
    int64_t *other = view_layers(peer, &row->view.key.peer, &theirs);
    row->layers = view_layers(self, &row->view.key.self, &mine);
    for (size_t i = 0; row->layers != NULL && other != NULL && i < mine; i++) {
        if (bsearch(&row->layers[i], other, theirs, sizeof(*other), compare_numbers) != NULL)
            row->layers[row->layer_count++] = row->layers[i];
    }
    bool found = row->layers != NULL && other != NULL;
    free(other);
    return found;
}

/** The heads of a rank, of `total` in the model: see docs/trtllm.md. */
static void head_range(const struct kvf_trtllm_rank_spec *rank, int64_t heads, int64_t total, int64_t *first,
                       int64_t *end)
{
    *first = trtllm_group_tp_rank(rank) * total / trtllm_group_tp_size(rank) / heads * heads;
    *end = smaller(*first + heads, total);
}

static bool has_heads(const struct kvf_trtllm_view *view)
{
    return view->num_kv_heads > 0 && view->num_kv_heads <= INT32_MAX;
}

/** Which heads (or parts of state) go from one rank to the other. */
static void common_units(const struct kvf_trtllm_rank_spec *self, const struct kvf_trtllm_rank_spec *peer,
                         struct trtllm_view_row *row)
{
    const struct kvf_trtllm_view *src = trtllm_find_view(self, &row->view.key.self);
    const struct kvf_trtllm_view *dst = trtllm_find_view(peer, &row->view.key.peer);
    bool is_state = self->page_table->groups[row->view.key.self.group].cache == KVF_TRTLLM_STATE;
    bool key_only = self->attention != NULL && self->attention->is_mla != 0;
    int64_t first[2] = {0, 0}, end[2] = {1, 1};
    row->units = 1;
    if (is_state && src->mapper != KVF_TRTLLM_REPLICATED) {
        int64_t sizes[2], numbers[2];
        trtllm_state_ranks(self, &sizes[0], &numbers[0]);
        trtllm_state_ranks(peer, &sizes[1], &numbers[1]);
        row->units = larger(larger(sizes[0], sizes[1]), 1);
        for (int side = 0; side < 2; side++) {
            first[side] = numbers[side] * row->units / larger(sizes[side], 1);
            end[side] = (numbers[side] + 1) * row->units / larger(sizes[side], 1);
        }
    } else if (!is_state && src->mapper != KVF_TRTLLM_REPLICATED && !key_only && has_heads(src) && has_heads(dst)) {
        row->units = smaller(src->num_kv_heads * trtllm_group_tp_size(self),
                             dst->num_kv_heads * trtllm_group_tp_size(peer));
        head_range(self, src->num_kv_heads, row->units, &first[0], &end[0]);
        head_range(peer, dst->num_kv_heads, row->units, &first[1], &end[1]);
    }
    row->first_unit = larger(first[0], first[1]);
    row->end_unit = larger(smaller(end[0], end[1]), row->first_unit);
}

/** Describes the view pairs of upstream's plan, or of the native one where upstream refuses. */
static bool describe_views(const struct trtllm_pairs *pairs, const kvf_trtllm_pair *pair, struct trtllm_pair_row *row)
{
    const struct kvf_trtllm_rank_spec *self = trtllm_side_spec(&pairs->src, row->src);
    const struct kvf_trtllm_rank_spec *peer = trtllm_side_spec(&pairs->dst, row->dst);
    size_t count = kvf_trtllm_pair_view_count(pair);
    row->views = calloc(count + 1, sizeof(*row->views));
    if (row->views == NULL)
        return false;
    for (; row->view_count < count; row->view_count++) {
        struct trtllm_view_row *view = &row->views[row->view_count];
        if (kvf_trtllm_pair_view(pair, row->view_count, &view->view) != KVF_OK ||
            !common_layers(self, peer, view))
            return false;
        common_units(self, peer, view);
        trtllm_role_text(trtllm_find_view(self, &view->view.key.self), view->roles, sizeof(view->roles));
        if (view->view.elected)
            trtllm_pairs_cost(pairs, row, pair, &view->view.key.self, &view->cost);
    }
    return true;
}

/** Ranks of the DP group `dp`; `*index` becomes the number among them of rank number `wanted`. */
static size_t group_ranks(const struct trtllm_side *side, int64_t dp, size_t wanted, const kvf_trtllm_rank **out,
                          size_t *index)
{
    size_t count = 0;
    for (size_t i = 0; i < side->count; i++) {
        const struct kvf_trtllm_rank_spec *rank = trtllm_side_spec(side, i);
        if (rank->tp_rank / trtllm_group_tp_size(rank) != dp && i != wanted)
            continue;
        if (i == wanted)
            *index = count;
        out[count++] = side->ranks[i];
    }
    return count;
}

/** Plans without upstream's limits. */
static void plan_native(const struct trtllm_pairs *pairs, struct trtllm_pair_row *row)
{
    const kvf_trtllm_rank **src = calloc(pairs->src.count + 1, sizeof(kvf_trtllm_rank *));
    const kvf_trtllm_rank **dst = calloc(pairs->dst.count + 1, sizeof(kvf_trtllm_rank *));
    struct kvf_error error = {.position = -1};
    size_t source = 0, destination = 0;
    row->native.status = KVF_ERR_NO_MEMORY;
    if (src != NULL && dst != NULL) {
        const struct kvf_trtllm_rank_spec *self = trtllm_side_spec(&pairs->src, row->src);
        const struct kvf_trtllm_rank_spec *peer = trtllm_side_spec(&pairs->dst, row->dst);
        size_t src_count =
            group_ranks(&pairs->src, self->tp_rank / trtllm_group_tp_size(self), row->src, src, &source);
        size_t dst_count =
            group_ranks(&pairs->dst, peer->tp_rank / trtllm_group_tp_size(peer), row->dst, dst, &destination);
        row->native.status = kvf_trtllm_pair_native(src, src_count, dst, dst_count, source, destination,
                                                    &row->native.pair, &error);
        snprintf(row->native.text, sizeof(row->native.text), "%s", row->native.status == KVF_OK ? "" : error.text);
    }
    free(dst);
    free(src);
}

static void measure(const struct trtllm_pairs *pairs, const struct trtllm_pair_row *row, struct trtllm_plan *plan)
{
    if (plan->pair == NULL)
        return;
    const kvf_plan *inner = kvf_trtllm_pair_plan(plan->pair);
    if (inner != NULL)
        kvf_plan_get_info(inner, &plan->info);
    trtllm_pairs_cost(pairs, row, plan->pair, NULL, &plan->cost);
}

static void look_at_aux(const struct trtllm_pairs *pairs, struct trtllm_pair_row *row)
{
    const kvf_trtllm_rank *self = pairs->src.ranks[row->src], *peer = pairs->dst.ranks[row->dst];
    struct kvf_error error = {.position = -1};
    size_t count = 0;
    row->has_aux = kvf_trtllm_rank_get_spec(self)->aux != NULL && kvf_trtllm_rank_get_spec(peer)->aux != NULL;
    row->sends_aux = kvf_trtllm_should_send_aux(self, peer) != 0;
    if (row->has_aux && kvf_trtllm_aux_fragments(self, peer, 0, 0, NULL, 0, &count, &error) != KVF_OK)
        snprintf(row->aux_text, sizeof(row->aux_text), "%s", error.text);
}

static bool has_state(const struct kvf_trtllm_rank_spec *rank)
{
    for (size_t g = 0; g < rank->page_table->group_count; g++) {
        if (rank->page_table->groups[g].cache == KVF_TRTLLM_STATE)
            return true;
    }
    return false;
}

static bool judge(struct trtllm_pairs *pairs, size_t src, size_t dst, struct trtllm_pair_row *row)
{
    kvf_trtllm_rank *self = pairs->src.ranks[src], *peer = pairs->dst.ranks[dst];
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(peer);
    struct kvf_error error = {.position = -1};
    bool done = true;
    *row = (struct trtllm_pair_row){.src = src, .dst = dst, .verdict.struct_size = sizeof(row->verdict)};
    if (kvf_trtllm_get_overlap(self, peer, spec->dp_rank, &row->overlap, NULL, 0, &error) != KVF_OK)
        row->overlap = (struct kvf_trtllm_overlap){.duplicate_head_factor = 1, .peer_duplicate_head_factor = 1};
    row->has_state = has_state(kvf_trtllm_rank_get_spec(self)) && has_state(spec);
    row->state_paired = kvf_trtllm_is_state_paired(self, peer) != 0;
    look_at_aux(pairs, row);
    row->status = kvf_trtllm_registrar_register(pairs->registrars[src], peer, &row->verdict, &error);
    if (row->status == KVF_OK) {
        row->upstream.status = kvf_trtllm_registrar_pair(pairs->registrars[src], spec->instance_name,
                                                         spec->instance_rank, &row->upstream.pair, &error);
        if (row->upstream.status == KVF_OK)
            done = describe_views(pairs, row->upstream.pair, row);
        else
            snprintf(row->upstream.text, sizeof(row->upstream.text), "%s", error.text);
    }
    if (pairs->request->native)
        plan_native(pairs, row);
    if (done && row->upstream.pair == NULL && row->native.pair != NULL)
        done = describe_views(pairs, row->native.pair, row);
    measure(pairs, row, &row->upstream);
    measure(pairs, row, &row->native);
    return done;
}

/** Judges every pair that exchanges data; two lone ranks are a pair in any case. */
static bool judge_all(struct trtllm_pairs *pairs)
{
    bool alone = pairs->src.count == 1 && pairs->dst.count == 1;
    for (size_t d = 0; d < pairs->dst.count; d++) {
        if (!ask(pairs, d, &pairs->readers[d]))
            return false;
        for (size_t s = 0; s < pairs->src.count; s++) {
            if (!alone && !is_writer(&pairs->readers[d], trtllm_side_spec(&pairs->src, s)->instance_rank))
                continue;
            if (!judge(pairs, s, d, &pairs->rows[pairs->count++]))
                return false;
        }
    }
    return true;
}

int trtllm_pairs_init(const struct cli_command *command, const struct trtllm_request *request, struct trtllm_side *src,
                      struct trtllm_side *dst, struct trtllm_pairs *out)
{
    struct trtllm_pairs pairs = {.src = *src, .dst = *dst, .request = request};
    struct kvf_error error = {.position = -1};
    *src = *dst = (struct trtllm_side){0};
    pairs.dp = request->dp >= 0 ? request->dp : pairs.src.count == 1 ? trtllm_side_spec(&pairs.src, 0)->dp_rank : 0;
    int code = check_request(command, &pairs);
    if (code == CLI_OK)
        code = choose_tokens(command, &pairs);
    pairs.rows = calloc(pairs.src.count * pairs.dst.count + 1, sizeof(*pairs.rows));
    pairs.readers = calloc(pairs.dst.count + 1, sizeof(*pairs.readers));
    pairs.registrars = calloc(pairs.src.count + 1, sizeof(kvf_trtllm_registrar *));
    bool fits = pairs.rows != NULL && pairs.readers != NULL && pairs.registrars != NULL;
    for (size_t s = 0; code == CLI_OK && fits && s < pairs.src.count; s++) {
        if (kvf_trtllm_registrar_create(pairs.src.ranks[s], NULL, &pairs.registrars[s], &error) != KVF_OK)
            code = cli_library_error(command, NULL, &error);
    }
    if (code == CLI_OK && (!fits || !judge_all(&pairs))) {
        cli_error(command, "no memory for the plans of %zu times %zu ranks", pairs.src.count, pairs.dst.count);
        code = CLI_FAILED;
    }
    *out = pairs;
    if (code != CLI_OK)
        trtllm_pairs_fini(out);
    return code;
}

void trtllm_pairs_fini(struct trtllm_pairs *pairs)
{
    for (size_t i = 0; i < pairs->count; i++) {
        for (size_t v = 0; v < pairs->rows[i].view_count; v++)
            free(pairs->rows[i].views[v].layers);
        free(pairs->rows[i].views);
        kvf_trtllm_pair_release(pairs->rows[i].upstream.pair);
        kvf_trtllm_pair_release(pairs->rows[i].native.pair);
    }
    for (size_t d = 0; pairs->readers != NULL && d < pairs->dst.count; d++)
        free(pairs->readers[d].writers);
    for (size_t s = 0; pairs->registrars != NULL && s < pairs->src.count; s++)
        kvf_trtllm_registrar_destroy(pairs->registrars[s]);
    free(pairs->registrars);
    free(pairs->readers);
    free(pairs->rows);
    trtllm_side_fini(&pairs->src);
    trtllm_side_fini(&pairs->dst);
    *pairs = (struct trtllm_pairs){0};
}

const struct trtllm_plan *trtllm_pair_plan_shown(const struct trtllm_pair_row *row)
{
    if (row->native.pair != NULL)
        return &row->native;
    return row->upstream.pair != NULL ? &row->upstream : NULL;
}

const struct trtllm_pair_row *trtllm_pairs_refused(const struct trtllm_pairs *pairs)
{
    for (size_t i = 0; i < pairs->count; i++) {
        const struct trtllm_plan *plan = trtllm_pair_plan_shown(&pairs->rows[i]);
        if (plan == NULL || plan->cost.status != KVF_OK)
            return &pairs->rows[i];
    }
    return NULL;
}
