/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "expand.h"

static void turn_views(struct prop_case *c, struct kvf_view *views, size_t count)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)draw_int(&c->draw, 0, (int64_t)i - 1);
        struct kvf_view swap = views[j];

        views[j] = views[i - 1];
        views[i - 1] = swap;
    }
}

/* What a peer knows: no memory, no base, views and places in an order of their own. */
static bool create_remote(struct prop_case *c, const struct rank *rank, kvf_layout **out)
{
    struct kvf_layout_spec spec = rank->spec;
    int64_t memory_bytes[MOST_POOLS];
    struct kvf_pool pools[MOST_POOLS];
    struct kvf_view views[MOST_VIEWS];
    struct kvf_place places[MOST_VIEWS][MOST_LAYERS];
    struct kvf_error error = {0};

    for (size_t i = 0; i < spec.pool_count; i++) {
        pools[i] = rank->pools[i];
        pools[i].memory = (int64_t)i;
        pools[i].base_offset_bytes = 0;
        memory_bytes[i] = -1;
    }
    for (size_t i = 0; i < spec.view_count; i++) {
        views[i] = rank->views[i];
        for (size_t j = 0; j < views[i].place_count; j++) {
            places[i][j] = rank->places[i][views[i].place_count - 1 - j];
        }
        views[i].places = places[i];
    }
    turn_views(c, views, spec.view_count);
    spec.memory_bytes = memory_bytes;
    spec.memory_count = spec.pool_count;
    spec.pools = pools;
    spec.views = views;
    if (kvf_layout_create(&spec, out, &error) != KVF_OK) return complain("remote layout: %s", error.text);
    return true;
}

/* ---- binding and expanding ---- */

struct binding_job {
    const kvf_plan *plan;
    int64_t begin, end;
    uint64_t flags;
    const struct kvf_id_list *src, *dst;
};

static enum kvf_status bind_status(struct check *check, const struct binding_job *job, kvf_binding **out,
                                   struct kvf_error *error)
{
    struct kvf_bind_request request;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = job->flags | (check->c->partial ? KVF_BIND_PARTIAL : 0);
    request.token_begin = job->begin;
    request.token_end = job->end;
    request.request_tokens = check->c->request_tokens;
    request.src = job->src;
    request.src_count = job->src ? check->c->src.group_count : 0;
    request.dst = job->dst;
    request.dst_count = check->c->dst.group_count;
    return kvf_bind(job->plan, &request, out, error);
}

static bool bind(struct check *check, const struct binding_job *job, kvf_binding **out)
{
    struct kvf_error error = {0};

    if (bind_status(check, job, out, &error) != KVF_OK) {
        return complain("bind [%lld,%lld) flags %llx: %s", (long long)job->begin, (long long)job->end,
                        (unsigned long long)job->flags, error.text);
    }
    return true;
}

/* Expands a whole binding and compares its sizes. */
static bool expand(const kvf_binding *binding, const struct rank *src, const struct rank *dst, struct packed *out)
{
    struct kvf_binding_info info;
    kvf_cursor *cursor = NULL;
    bool good;

    if (kvf_cursor_create(binding, &cursor, NULL) != KVF_OK) return complain("no cursor");
    good = packed_walk(out, cursor, src, dst);
    kvf_cursor_destroy(cursor);
    kvf_binding_get_info(binding, &info);
    if (good && info.bytes != out->count) {
        good = complain("binding says %lld bytes, moves carry %lld", (long long)info.bytes, (long long)out->count);
    }
    if (good && info.runs != out->runs) {
        good = complain("binding says %lld runs, moves have %lld", (long long)info.runs, (long long)out->runs);
    }
    return good;
}

/* Marks what is written, and checks that each byte is wanted there, comes from its coordinate, and comes once. */
static bool check_bytes(struct check *check, const struct rank *src, const struct packed *packed,
                        unsigned char *written)
{
    for (int64_t i = 0; i < packed->count; i++) {
        int32_t from = packed->src[i], to = packed->dst[i];

        if (check->expected[to] < 0) {
            return complain("packed byte %lld goes to %d, where nothing belongs", (long long)i, to);
        }
        if (src->map[from] != check->expected[to]) {
            return complain("packed byte %lld from %d to %d: coordinate %d, expected %d", (long long)i, from, to,
                            src->map[from], check->expected[to]);
        }
        if (written[to]++) return complain("packed byte %lld: %d is written twice", (long long)i, to);
    }
    return true;
}

/* ---- one pair of ranks ---- */

struct pair {
    struct check *check;
    size_t source;
    struct rank *src;
    kvf_plan *plan;
    struct packed whole;
};

static bool check_fingerprints(struct pair *pair, kvf_layout *remote_src, kvf_layout *remote_dst)
{
    struct check *check = pair->check;
    size_t turned = check->c->src.rank_count - 1 - pair->source;
    char here[KVF_FINGERPRINT_TEXT_BYTES], there[KVF_FINGERPRINT_TEXT_BYTES];
    kvf_plan *other = NULL;
    struct kvf_plan_info info;
    struct kvf_error error = {0};
    enum kvf_status status;

    status = kvf_plan_create(pair->src->layout, remote_dst, kvf_election_share(check->election, pair->source), NULL,
                             &pair->plan, &error);
    if (status == KVF_ERR_LIMIT) {
        check->limited = true;
        return true;
    }
    if (status != KVF_OK) return complain("plan at the source: %s", error.text);
    status = kvf_plan_create(remote_src, check->dst->layout, kvf_election_share(check->turned, turned), NULL, &other,
                             &error);
    if (status != KVF_OK) return complain("plan at the destination: %s", error.text);
    kvf_plan_fingerprint(pair->plan, here);
    kvf_plan_fingerprint(other, there);
    kvf_plan_get_info(pair->plan, &info);
    /* Both addresses are known only to a plan of both own layouts; it must be the same plan. */
    kvf_plan_release(pair->plan);
    kvf_plan_release(other);
    pair->plan = NULL;
    if (strcmp(here, there) != 0) return complain("plans differ: %s and %s", here, there);
    if (info.grain_tokens < 1 || check->c->grain % info.grain_tokens != 0) {
        return complain("grain is %lld tokens, expected a part of %lld", (long long)info.grain_tokens,
                        (long long)check->c->grain);
    }
    status = kvf_plan_create(pair->src->layout, check->dst->layout, kvf_election_share(check->election, pair->source),
                             NULL, &pair->plan, &error);
    if (status != KVF_OK) return complain("plan: %s", error.text);
    kvf_plan_fingerprint(pair->plan, there);
    if (strcmp(here, there) != 0) return complain("plan of own layouts differs: %s and %s", here, there);
    return true;
}

static bool plan_pair(struct pair *pair)
{
    kvf_layout *remote_src = NULL, *remote_dst = NULL;
    bool good = create_remote(pair->check->c, pair->src, &remote_src) &&
                create_remote(pair->check->c, pair->check->dst, &remote_dst) &&
                check_fingerprints(pair, remote_src, remote_dst);

    kvf_layout_release(remote_src);
    kvf_layout_release(remote_dst);
    return good;
}

/* Binds and expands one range into `out`. */
static bool move(struct pair *pair, const struct binding_job *job, const struct rank *src, const struct rank *dst,
                 struct packed *out)
{
    kvf_binding *binding = NULL;
    bool good = bind(pair->check, job, &binding) && expand(binding, src, dst, out);

    kvf_binding_destroy(binding);
    return good;
}

/* The destination's lists with the holes kept and every other id replaced, as a sender that wants no address may. */
static void scramble(struct prop_case *c, const struct rank *dst, int64_t ids[MOST_GROUPS][MOST_BLOCKS],
                     struct kvf_id_list *lists)
{
    for (size_t group = 0; group < c->dst.group_count; group++) {
        int64_t base = draw_int(&c->draw, 0, 1000000);

        for (size_t i = 0; i < dst->lists[group].count; i++) {
            ids[group][i] = dst->ids[group][i] < 0 ? -1 : base + (int64_t)((i * 37) % 96);
        }
        lists[group] = (struct kvf_id_list){ids[group], dst->lists[group].count, dst->lists[group].first};
    }
}

static bool same_order(const int32_t *whole, const int32_t *one_sided, int64_t count, const char *who)
{
    for (int64_t i = 0; i < count; i++) {
        if (whole[i] != one_sided[i]) {
            return complain("%s alone: packed byte %lld is at %d, with both lists at %d", who, (long long)i,
                            one_sided[i], whole[i]);
        }
    }
    return true;
}

static bool check_one_sided(struct pair *pair)
{
    struct prop_case *c = pair->check->c;
    int64_t ids[MOST_GROUPS][MOST_BLOCKS];
    struct kvf_id_list lists[MOST_GROUPS];
    struct binding_job sender = {pair->plan, c->token_begin, c->token_end, KVF_BIND_DST_UNKNOWN, pair->src->lists,
                                 lists};
    struct binding_job receiver = {pair->plan, c->token_begin, c->token_end, KVF_BIND_SRC_UNKNOWN, NULL,
                                   pair->check->dst->lists};
    struct packed packed = {0};
    bool good;

    scramble(c, pair->check->dst, ids, lists);
    good = move(pair, &sender, pair->src, NULL, &packed);
    if (good && packed.count != pair->whole.count) good = complain("sender alone: %lld bytes", (long long)packed.count);
    good = good && same_order(pair->whole.src, packed.src, packed.count, "sender");
    packed.count = packed.runs = 0;
    good = good && move(pair, &receiver, NULL, pair->check->dst, &packed);
    if (good && packed.count != pair->whole.count) {
        good = complain("receiver alone: %lld bytes", (long long)packed.count);
    }
    good = good && same_order(pair->whole.dst, packed.dst, packed.count, "receiver");
    packed_fini(&packed);
    return good;
}

static bool seek_to(struct pair *pair, kvf_cursor *cursor, int64_t offset)
{
    const struct packed *whole = &pair->whole;
    struct packed rest = {0};
    struct kvf_move first;
    int64_t skip = -1;
    bool good = true;
    enum kvf_status status = kvf_cursor_seek(cursor, offset, &skip);

    if (status != KVF_OK) return complain("seek %lld of %lld: %s", (long long)offset, (long long)whole->count,
                                          kvf_status_name(status));
    if (offset < whole->count) {
        if (kvf_cursor_next(cursor, &first) != KVF_OK) return complain("seek %lld: no move", (long long)offset);
        if (skip < 0 || skip >= move_bytes(&first)) good = complain("seek %lld: skip %lld", (long long)offset,
                                                                    (long long)skip);
        good = good && packed_add(&rest, &first, pair->src, pair->check->dst);
    } else {
        skip = 0;
    }
    good = good && packed_walk(&rest, cursor, pair->src, pair->check->dst);
    if (good && (rest.count - skip != whole->count - offset ||
                 (offset < whole->count &&
                  (memcmp(rest.src + skip, whole->src + offset, (size_t)(whole->count - offset) * sizeof(int32_t)) ||
                   memcmp(rest.dst + skip, whole->dst + offset, (size_t)(whole->count - offset) * sizeof(int32_t)))))) {
        good = complain("seek %lld of %lld: what follows differs", (long long)offset, (long long)whole->count);
    }
    packed_fini(&rest);
    return good;
}

static bool check_seek(struct pair *pair, const kvf_binding *binding)
{
    kvf_cursor *cursor = NULL;
    int64_t skip;
    bool good = true;

    if (pair->whole.count == 0) return true;
    if (kvf_cursor_create(binding, &cursor, NULL) != KVF_OK) return complain("no cursor");
    for (int i = 0; i < 2 && good; i++) {
        good = seek_to(pair, cursor, draw_int(&pair->check->c->draw, 0, pair->whole.count - 1));
    }
    good = good && seek_to(pair, cursor, draw_one_in(&pair->check->c->draw, 2) ? 0 : pair->whole.count);
    if (good && kvf_cursor_seek(cursor, pair->whole.count + 1, &skip) != KVF_ERR_OUT_OF_RANGE) {
        good = complain("seek past the end is not refused");
    }
    kvf_cursor_destroy(cursor);
    return good;
}

/* The first token of one role and layer that lies past the end of the destination's list; -1: none. */
static int64_t first_missing(const struct check *check, size_t role, size_t layer)
{
    const struct prop_case *c = check->c;
    int64_t group = c->dst.group_of[role][layer], per_entry = c->roles[role].tokens_per_entry, first, end, local;
    const struct kvf_id_list *list = &check->dst->lists[group];

    oracle_range(c, role, layer, c->token_begin, c->token_end, &first, &end);
    for (int64_t p = first; p < end && per_entry; p++) {
        if (!oracle_local(&check->dst->groups[group], c->request_tokens, per_entry, p, &local)) continue;
        if (local / (check->dst->groups[group].tokens_per_block / per_entry) >= list->first + (int64_t)list->count) {
            return p * per_entry;
        }
    }
    return -1;
}

/* What a binding says of the tokens that have no destination block. Where the source is striped it sees its own
 * positions only; such cases are left out. */
static bool check_valid_tokens(struct pair *pair, const struct kvf_binding_info *info)
{
    const struct prop_case *c = pair->check->c;
    const kvf_share *share = kvf_election_share(pair->check->election, pair->source);
    int64_t expected = -1;

    for (size_t i = 0; i < kvf_share_count(share); i++) {
        const struct kvf_cell cell = kvf_share_cell(share, i);
        size_t role = 0, layer = 0;
        int64_t missing;

        while (strcmp(c->roles[role].name, cell.role) != 0) role++;
        while (c->layers[layer] != cell.layer) layer++;
        if (c->src.groups[c->src.group_of[role][layer]].stripes > 1) return true;
        missing = first_missing(pair->check, role, layer);
        if (missing >= 0 && (expected < 0 || missing < expected)) expected = missing;
    }
    if (info->first_missing != expected || info->valid_tokens != (expected < 0 ? c->token_end : expected)) {
        return complain("%lld valid tokens, first missing %lld, expected %lld", (long long)info->valid_tokens,
                        (long long)info->first_missing, (long long)expected);
    }
    return true;
}

/* Takes one block away from the source: refused exactly when a byte of it would have moved. */
static bool check_source_hole(struct pair *pair)
{
    struct prop_case *c = pair->check->c;
    int64_t group = draw_int(&c->draw, 0, (int64_t)c->src.group_count - 1), at, *id, kept;
    struct binding_job job = {pair->plan, c->token_begin, c->token_end, 0, pair->src->lists, pair->check->dst->lists};
    int32_t *map;
    kvf_binding *binding = NULL;
    enum kvf_status status;
    bool needed = false;

    if (pair->src->lists[group].count == 0) return true;
    at = draw_int(&c->draw, 0, (int64_t)pair->src->lists[group].count - 1);
    id = &pair->src->ids[group][at];
    kept = *id;
    *id = -1;
    map = malloc((size_t)pair->src->bytes * sizeof *map);
    if (!map) abort();
    oracle_map(c, &c->src, pair->src, c->token_begin, c->token_end, map);
    for (int64_t i = 0; i < pair->whole.count; i++) needed = needed || map[pair->whole.src[i]] < 0;
    status = bind_status(pair->check, &job, &binding, NULL);
    kvf_binding_destroy(binding);
    free(map);
    *id = kept;
    if (status != (needed ? KVF_ERR_IDS : KVF_OK)) {
        return complain("group %lld id %lld taken away: %s", (long long)group, (long long)at, kvf_status_name(status));
    }
    return true;
}

static bool check_whole(struct pair *pair)
{
    struct prop_case *c = pair->check->c;
    const struct binding_job job = {pair->plan, c->token_begin, c->token_end, 0, pair->src->lists,
                                    pair->check->dst->lists};
    struct kvf_binding_info info;
    kvf_binding *binding = NULL;
    bool good;

    good = bind(pair->check, &job, &binding) && expand(binding, pair->src, pair->check->dst, &pair->whole) &&
           check_bytes(pair->check, pair->src, &pair->whole, pair->check->whole);
    if (good) {
        kvf_binding_get_info(binding, &info);
        good = check_valid_tokens(pair, &info) && check_seek(pair, binding) && check_source_hole(pair);
    }
    kvf_binding_destroy(binding);
    pair->check->moved_bytes += pair->whole.count;
    return good;
}

/* Moves the layers of one restricted plan in one or two chunks of tokens. */
static bool move_chunks(struct pair *pair, int64_t layer_first, int64_t layer_end, int64_t middle)
{
    struct prop_case *c = pair->check->c;
    struct binding_job job = {NULL, c->token_begin, middle, KVF_BIND_NO_STATE, pair->src->lists,
                              pair->check->dst->lists};
    struct kvf_error error = {0};
    struct packed packed = {0};
    kvf_plan *part = NULL;
    bool good = true;

    if (kvf_plan_restrict(pair->plan, layer_first, layer_end, &part, &error) != KVF_OK) {
        return complain("restricted plan: %s", error.text);
    }
    job.plan = part;
    if (middle > c->token_begin) {
        good = move(pair, &job, pair->src, pair->check->dst, &packed) &&
               check_bytes(pair->check, pair->src, &packed, pair->check->pieces);
        packed.count = packed.runs = 0;
    }
    job.begin = middle;
    job.end = c->token_end;
    job.flags = 0;
    good = good && move(pair, &job, pair->src, pair->check->dst, &packed) &&
           check_bytes(pair->check, pair->src, &packed, pair->check->pieces);
    packed_fini(&packed);
    kvf_plan_release(part);
    return good;
}

/* Layers and tokens cut anywhere, the pieces together are the whole. */
static bool check_pieces(struct pair *pair, int64_t layer_cut, int64_t middle)
{
    return layer_cut < 0 ? move_chunks(pair, 0, INT64_MAX, middle)
                         : move_chunks(pair, 0, layer_cut, middle) && move_chunks(pair, layer_cut, INT64_MAX, middle);
}

bool check_pair(struct check *check, size_t source, int64_t layer_cut, int64_t middle)
{
    struct pair pair = {.check = check, .source = source, .src = &check->c->src.ranks[source]};
    bool good;

    pair.src->map = malloc((size_t)pair.src->bytes * sizeof *pair.src->map);
    if (!pair.src->map) abort();
    oracle_map(check->c, &check->c->src, pair.src, check->c->token_begin, check->c->token_end, pair.src->map);
    good = plan_pair(&pair);
    if (good && !check->limited) {
        good = check_whole(&pair) && check_one_sided(&pair) && check_pieces(&pair, layer_cut, middle);
    }
    if (!good) complain("(from source rank %zu)", source);
    packed_fini(&pair.whole);
    kvf_plan_release(pair.plan);
    return good;
}
