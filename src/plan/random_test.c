/* SPDX-License-Identifier: Apache-2.0 */
/* Random small geometries: every byte that moves against a slow count of positions; equal order whoever's ids are
 * known; seeking; restricted plans. Arguments: number of cases, first seed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/layout.h"
#include "plan/plan_kit.h"
#include "plan/share.h"

enum { ROLES = 4, LAYERS = 4, GROUPS = 3, IDS = 24, TOKENS = 400, USUAL_CASES = 1500 };
enum { POSITIONS, STATE, RING };

static uint64_t cases = USUAL_CASES, first_seed, seed, random_state;

static int64_t below(int64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (int64_t)((random_state >> 11) % (uint64_t)limit);
}

static int64_t one_of(const int64_t *values, int64_t count) { return values[below(count)]; }
#define ONE_OF(...) one_of((const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/** What both sides agree on. */
struct role {
    int64_t group, row, units, tokens_per_entry, taps;
};

static const char *const role_names[ROLES] = {"k", "v", "ssm", "tail"};

static void random_group(struct kit *kit, int64_t kind)
{
    int64_t tokens = kind == STATE ? 0 : ONE_OF(8, 16, 24, 32, 48);
    struct kvf_group *group = &kit->groups[kit_group(kit, tokens)];

    if (kind == RING) group->ring_tokens = ONE_OF(16, 20, 24, 40, 64);
    if (kind == POSITIONS && below(3) == 0) {
        group->stripes = 2 + below(3);
        group->stripe = below(group->stripes);
        group->stripe_tokens = ONE_OF(0, 4, 8, tokens);
    }
}

/** Adds one view's layers, packed after one another in every slot or each in a row of slots of its own. */
static void place_view(struct kit *kit, const struct kit_part *part, int64_t payload, int64_t ids)
{
    int64_t slots = ids * part->slots_per_block, pad = ONE_OF(0, 0, 0, 3), pool, order[LAYERS], count = 0;
    bool page_first = below(2);

    for (int64_t layer = 0; layer < LAYERS; layer++)
        if (below(4) != 0) order[count++] = layer;
    for (int64_t i = count - 1; i > 0 && below(2); i--) {
        int64_t other = below(i + 1), keep = order[i];

        order[i] = order[other];
        order[other] = keep;
    }
    pool = kit_pool(kit, kit_memory(kit), below(64), page_first ? LAYERS * (payload + pad) : payload + pad, slots);
    for (int64_t i = 0; i < count; i++)
        kit_place(kit, order[i], pool, i * (page_first ? payload + pad : slots * (payload + pad)));
    if (count == 0) kit_place(kit, 0, pool, 0);
}

static void random_side(struct kit *kit, const struct role *roles)
{
    kit_init(kit);
    for (int64_t kind = 0; kind < GROUPS; kind++) random_group(kit, kind);
    for (int r = 0; r < ROLES; r++) {
        const struct role *role = &roles[r];
        const struct kvf_group *group = &kit->groups[role->group];
        struct kit_part part = {.role = role_names[r], .group = role->group, .row = role->row, .total = role->units,
                                .slots_per_block = role->group == STATE ? 1 : 1 + below(2)};
        int64_t split = below(2) ? below(role->row) : 0;

        part.entries = role->group == STATE
                           ? role->taps
                           : group->tokens_per_block / (part.slots_per_block * role->tokens_per_entry);
        part.first = below(2) ? below(role->units) : 0;
        part.units = 1 + below(role->units - part.first);
        for (int half = 0; half < (split ? 2 : 1); half++) {
            part.byte_first = half ? split : 0;
            part.bytes = half || !split ? role->row - part.byte_first : split;
            part.unit_stride = below(2) ? part.bytes : part.bytes * part.entries;
            part.entry_stride = part.unit_stride == part.bytes ? part.bytes * part.units : part.bytes;
            kit_view(kit, part);
            place_view(kit, &part, part.bytes * part.entries * part.units, IDS);
        }
    }
}

/** Ids of one group in random order, the first `holes` of them holes, on both sides. */
static void random_ids(int64_t ids[IDS], int64_t holes)
{
    for (int64_t i = 0; i < IDS; i++) ids[i] = i;
    for (int64_t i = IDS - 1; i > 0; i--) {
        int64_t other = below(i + 1), keep = ids[i];

        ids[i] = ids[other];
        ids[other] = keep;
    }
    if (below(3) == 0)
        for (int64_t i = 0; i < IDS; i++) ids[i] = i; /* in order, so that blocks join */
    for (int64_t i = 0; i < holes; i++) ids[below(IDS)] = -1;
}

/** One case: two sides, a plan, ids, ranges. */
struct subject {
    struct role roles[ROLES];
    struct kit src, dst;
    kvf_plan *plan;
    int64_t src_ids[GROUPS][IDS], dst_ids[GROUPS][IDS];
    struct kvf_id_list src_lists[GROUPS], dst_lists[GROUPS];
    int64_t request_tokens;
    int64_t begin, end, ring_begin; /**< the range, and where it begins for rings */
};

/** Where each byte comes from, in order of moving. Addresses: memory * 2^32 + offset. */
struct byte_move {
    int64_t src, dst;
};

static int64_t address(int64_t memory, int64_t offset) { return memory * (INT64_C(1) << 32) + offset; }

/** Lists all bytes of a move; returns how many. */
static size_t expand(const struct kvf_move *move, struct byte_move *out)
{
    size_t count = 0;

    for (int64_t step = 0;; step++) {
        int64_t rest = step, src = move->src_offset_bytes, dst = move->dst_offset_bytes;

        for (int64_t i = move->loop_count - 1; i >= 0; i--) {
            int64_t at = rest % move->loops[i].count;

            rest /= move->loops[i].count;
            src += at * move->loops[i].src_stride_bytes;
            dst += at * move->loops[i].dst_stride_bytes;
        }
        if (rest > 0) break;
        for (int64_t byte = 0; byte < move->run_bytes; byte++)
            out[count++] =
                (struct byte_move){address(move->src_memory, src + byte), address(move->dst_memory, dst + byte)};
    }
    return count;
}

static struct byte_move *expand_all(const kvf_binding *binding, size_t *count)
{
    struct byte_move *all = malloc(((size_t)kvf_binding_bytes(binding) + 1) * sizeof *all);
    kvf_cursor *cursor = NULL;
    struct kvf_move move;

    assert_non_null(all);
    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    *count = 0;
    while (kvf_cursor_next(cursor, &move) == KVF_OK) *count += expand(&move, all + *count);
    kvf_cursor_destroy(cursor);
    assert_int_equal(*count, kvf_binding_bytes(binding));
    return all;
}

/** The local entry of a position by counting, or -1: another rank's. */
static int64_t local_of(const struct kvf_group *group, int64_t entry, int64_t tokens_per_entry, int64_t request_tokens)
{
    int64_t local = 0, blocks = (request_tokens + group->tokens_per_block - 1) / group->tokens_per_block;
    int64_t given = 0;

    for (int64_t p = 0; p <= entry; p++) {
        int64_t token = p * tokens_per_entry, owner = 0;

        if (group->stripes > 1 && group->stripe_tokens) {
            owner = token / group->stripe_tokens % group->stripes;
        } else if (group->stripes > 1) {
            /* the first ranks get one block more */
            for (owner = 0, given = 0; owner < group->stripes; owner++) {
                given += blocks / group->stripes + (owner < blocks % group->stripes);
                if (token / group->tokens_per_block < given) break;
            }
        }
        if (owner != group->stripe) {
            if (p == entry) return -1;
            continue;
        }
        if (p == entry) break;
        local++;
    }
    return group->ring_tokens ? local % (group->ring_tokens / tokens_per_entry) : local;
}

static int64_t common(int64_t a, int64_t b) { return b == 0 ? a : common(b, a % b); }

/** The slot and entry of one position on one side; false = no block there. */
static bool find_slot(const struct kit *kit, const struct kvf_view *view, const int64_t *ids, int64_t position,
                      const struct subject *subject, int64_t tokens_per_entry, int64_t *slot, int64_t *entry)
{
    const struct kvf_group *group = &kit->groups[view->group];
    int64_t local, block;

    if (group->tokens_per_block == 0) {
        *slot = ids[0];
        *entry = position;
        return ids[0] >= 0;
    }
    local = local_of(group, position, tokens_per_entry, subject->request_tokens);
    if (local < 0) return false;
    block = local / (view->entries * view->slots_per_block);
    assert_true(block < IDS);
    *slot = ids[block] * view->slots_per_block + local / view->entries % view->slots_per_block;
    *entry = local % view->entries;
    return ids[block] >= 0;
}

/** What one pair of places must move, added to `expected`. */
static size_t expect_pair(const struct subject *subject, const struct kvf_view *s, const struct kvf_place *sp,
                          const struct kvf_view *d, const struct kvf_place *dp, struct byte_move *expected)
{
    const struct kvf_group *sg = &subject->src.groups[s->group], *dg = &subject->dst.groups[d->group];
    const struct kvf_pool *spool = &subject->src.pools[sp->pool], *dpool = &subject->dst.pools[dp->pool];
    int64_t c = sg->tokens_per_block ? sg->tokens_per_block / (s->entries * s->slots_per_block) : 0;
    int64_t begin = 0, end = s->entries, grain = 1, src_slot, src_entry, dst_slot, dst_entry;
    size_t count = 0;

    if (c) {
        begin = s->group == RING ? subject->ring_begin : subject->begin;
        end = begin < subject->end ? (subject->end + c - 1) / c : 0;
        begin /= c;
        if (s->group != RING)
            grain = common(common(s->entries, d->entries), common(sg->stripe_tokens / c, dg->stripe_tokens / c));
        if (end > begin) end = (end + grain - 1) / grain * grain;
    }
    for (int64_t p = begin; p < end; p++) {
        if (!find_slot(&subject->src, s, subject->src_ids[s->group], p, subject, c, &src_slot, &src_entry) ||
            !find_slot(&subject->dst, d, subject->dst_ids[d->group], p, subject, c, &dst_slot, &dst_entry))
            continue;
        for (int64_t unit = 0; unit < s->unit_total; unit++)
            for (int64_t byte = 0; byte < s->row_bytes; byte++) {
                int64_t su = unit - s->unit_first, du = unit - d->unit_first;
                int64_t sb = byte - s->byte_first, db = byte - d->byte_first;

                if (su < 0 || su >= s->unit_count || du < 0 || du >= d->unit_count) continue;
                if (sb < 0 || sb >= s->byte_count || db < 0 || db >= d->byte_count) continue;
                if (expected)
                    expected[count] = (struct byte_move){
                        address(spool->memory, spool->base_offset_bytes + src_slot * spool->slot_stride_bytes +
                                                   sp->offset_bytes + su * s->unit_stride_bytes +
                                                   src_entry * s->entry_stride_bytes + sb),
                        address(dpool->memory, dpool->base_offset_bytes + dst_slot * dpool->slot_stride_bytes +
                                                   dp->offset_bytes + du * d->unit_stride_bytes +
                                                   dst_entry * d->entry_stride_bytes + db)};
                count++;
            }
    }
    return count;
}

/** All that must move, of state and rings or of the rest. */
static size_t expect_all(const struct subject *subject, bool stateful, struct byte_move *expected)
{
    size_t count = 0;

    for (size_t i = 0; i < subject->src.spec.view_count; i++)
        for (size_t j = 0; j < subject->dst.spec.view_count; j++) {
            const struct kvf_view *s = &subject->src.views[i], *d = &subject->dst.views[j];

            if (strcmp(s->role, d->role) != 0 || (s->group == POSITIONS) == stateful) continue;
            for (size_t k = 0; k < s->place_count; k++)
                for (size_t l = 0; l < d->place_count; l++)
                    if (s->places[k].layer == d->places[l].layer)
                        count += expect_pair(subject, s, &s->places[k], d, &d->places[l],
                                             expected ? expected + count : NULL);
        }
    return count;
}

static int order_moves(const void *left, const void *right)
{
    const struct byte_move *a = left, *b = right;

    if (a->dst != b->dst) return a->dst > b->dst ? 1 : -1;
    return (a->src > b->src) - (a->src < b->src);
}

static kvf_binding *bind_subject(const struct subject *subject, bool stateful, uint64_t flags)
{
    struct kvf_bind_request request;
    struct kvf_error error = {0};
    kvf_binding *binding = NULL;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = flags | (stateful ? KVF_BIND_ONLY_STATE : KVF_BIND_NO_STATE);
    request.token_begin = stateful ? subject->ring_begin : subject->begin;
    request.token_end = subject->end;
    request.request_tokens = subject->request_tokens;
    request.src = flags & KVF_BIND_SRC_UNKNOWN ? NULL : subject->src_lists;
    request.src_count = flags & KVF_BIND_SRC_UNKNOWN ? 0 : GROUPS;
    request.dst = subject->dst_lists;
    request.dst_count = GROUPS;
    if (kvf_bind(subject->plan, &request, &binding, &error) != KVF_OK) fail_msg("bind: %s", error.text);
    return binding;
}

/** After seeking, the bytes that follow are those of the whole walk. */
static void check_seek(const kvf_binding *binding, const struct byte_move *all, size_t count)
{
    struct byte_move *part = malloc((count + 1) * sizeof *part);
    kvf_cursor *cursor = NULL;
    struct kvf_move move;
    int64_t skip;

    assert_non_null(part);
    assert_int_equal(kvf_cursor_create(binding, &cursor, NULL), KVF_OK);
    for (int i = 0; i < 6; i++) {
        int64_t offset = i == 0 ? (int64_t)count : below((int64_t)count + 1);
        size_t found;

        assert_int_equal(kvf_cursor_seek(cursor, offset, &skip), KVF_OK);
        if (offset == (int64_t)count) {
            assert_int_equal(kvf_cursor_next(cursor, &move), KVF_ERR_NOT_FOUND);
            continue;
        }
        assert_int_equal(kvf_cursor_next(cursor, &move), KVF_OK);
        found = expand(&move, part);
        assert_true(skip >= 0 && (size_t)skip < found);
        assert_memory_equal(part + skip, all + offset, (found - (size_t)skip) * sizeof *part);
    }
    assert_int_equal(kvf_cursor_seek(cursor, (int64_t)count + 1, &skip), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(kvf_cursor_seek(cursor, -1, &skip), KVF_ERR_OUT_OF_RANGE);
    kvf_cursor_destroy(cursor);
    free(part);
}

/** One side's ids alone give the same order of the bytes on that side. */
static void check_order(const struct subject *subject, bool stateful, uint64_t flags, const struct byte_move *all,
                        size_t count)
{
    kvf_binding *binding = bind_subject(subject, stateful, flags);
    struct byte_move *alone;
    size_t alone_count;

    alone = expand_all(binding, &alone_count);
    assert_int_equal(alone_count, count);
    for (size_t i = 0; i < count; i++)
        if (flags & KVF_BIND_SRC_UNKNOWN ? alone[i].dst != all[i].dst : alone[i].src != all[i].src)
            fail_msg("byte %zu differs when one side is not known", i);
    free(alone);
    kvf_binding_destroy(binding);
}

static void check_bytes(const struct subject *subject, bool stateful)
{
    kvf_binding *binding = bind_subject(subject, stateful, 0);
    size_t count, expected_count = expect_all(subject, stateful, NULL);
    struct byte_move *all = expand_all(binding, &count), *expected = malloc((expected_count + 1) * sizeof *expected);

    assert_non_null(expected);
    if (count != expected_count)
        fail_msg("%zu bytes move, expected %zu, %s", count, expected_count, stateful ? "state" : "positions");
    expect_all(subject, stateful, expected);
    check_seek(binding, all, count);
    check_order(subject, stateful, KVF_BIND_SRC_UNKNOWN, all, count);
    check_order(subject, stateful, KVF_BIND_DST_UNKNOWN, all, count);
    qsort(all, count, sizeof *all, order_moves);
    qsort(expected, count, sizeof *expected, order_moves);
    for (size_t i = 0; i < count; i++)
        if (all[i].src != expected[i].src || all[i].dst != expected[i].dst) fail_msg("byte %zu is from elsewhere", i);
    for (size_t i = 1; i < count; i++) assert_true(all[i].dst != all[i - 1].dst);
    free(expected);
    free(all);
    kvf_binding_destroy(binding);
}

/** A plan restricted to layers is the plan of the restricted share. */
static void check_restricted(const struct subject *subject)
{
    int64_t first = below(LAYERS), end = first + 1 + below(LAYERS - first);
    char restricted_text[KVF_FINGERPRINT_TEXT_BYTES], anew_text[KVF_FINGERPRINT_TEXT_BYTES];
    kvf_layout *src = kit_layout(&subject->src), *dst = kit_layout(&subject->dst);
    struct kvf_cell cells[ROLES * LAYERS];
    struct kvf_share *share = NULL;
    size_t count = 0;
    kvf_plan *restricted = NULL, *anew = NULL;

    for (int role = 0; role < ROLES; role++)
        for (int64_t layer = first; layer < end; layer++)
            cells[count++] = (struct kvf_cell){role_names[role], layer, 0, subject->roles[role].units, 0,
                                               subject->roles[role].row};
    assert_int_equal(kvfi_share_create(cells, count, &share, NULL), KVF_OK);
    assert_int_equal(kvf_plan_create(src, dst, share, NULL, &anew, NULL), KVF_OK);
    assert_int_equal(kvf_plan_restrict(subject->plan, first, end, &restricted, NULL), KVF_OK);
    assert_int_equal(kvf_plan_fingerprint(anew, anew_text), KVF_OK);
    assert_int_equal(kvf_plan_fingerprint(restricted, restricted_text), KVF_OK);
    assert_string_equal(restricted_text, anew_text);
    kvf_plan_release(restricted);
    kvf_plan_release(anew);
    kvfi_share_destroy(share);
    kvf_layout_release(dst);
    kvf_layout_release(src);
}

/** Tokens that the lists hold on one side, whatever the stripes: never fewer. */
static int64_t capacity(const struct kit *kit) { return IDS * kit->groups[POSITIONS].tokens_per_block; }

static void random_range(struct subject *subject)
{
    struct kvf_plan_info info;
    int64_t most =
        capacity(&subject->src) < capacity(&subject->dst) ? capacity(&subject->src) : capacity(&subject->dst);
    int64_t ring = subject->src.groups[RING].ring_tokens, other = subject->dst.groups[RING].ring_tokens;

    if (other < ring) ring = other;
    if (most > TOKENS) most = TOKENS;
    kvf_plan_get_info(subject->plan, &info);
    subject->request_tokens = 1 + below(most - 48);
    subject->end = below(2) ? subject->request_tokens : 1 + below(subject->request_tokens);
    subject->begin = below(2) ? 0 : below(subject->end) / info.grain_tokens * info.grain_tokens;
    ring -= 4; /* entries of up to 4 tokens: what the range cuts counts whole */
    subject->ring_begin = subject->end > ring ? subject->end - below(ring + 1) : below(subject->end + 1);
}

static void run_case(void)
{
    struct subject *subject = calloc(1, sizeof *subject);

    assert_non_null(subject);
    random_state = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    for (int r = 0; r < ROLES; r++)
        subject->roles[r] = (struct role){.group = r < 2 ? POSITIONS : r == 2 ? STATE : RING, .row = 1 + below(6),
                                          .units = 1 + below(4), .tokens_per_entry = ONE_OF(1, 1, 2, 4),
                                          .taps = 1 + below(4)};
    random_side(&subject->src, subject->roles);
    random_side(&subject->dst, subject->roles);
    subject->plan = kit_plan(&subject->src, &subject->dst, 0);
    for (int64_t group = 0; group < GROUPS; group++) {
        random_ids(subject->src_ids[group], 0);
        random_ids(subject->dst_ids[group], group == POSITIONS ? below(3) : 0);
        subject->src_lists[group] = (struct kvf_id_list){subject->src_ids[group], IDS, 0};
        subject->dst_lists[group] = (struct kvf_id_list){subject->dst_ids[group], IDS, 0};
    }
    random_range(subject);
    check_bytes(subject, false);
    check_bytes(subject, true);
    check_restricted(subject);
    kvf_plan_release(subject->plan);
    kit_free(&subject->dst);
    kit_free(&subject->src);
    free(subject);
}

static void test_cases(void **state)
{
    (void)state;
    for (seed = first_seed; seed < first_seed + cases; seed++) run_case();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    int failed;

    if (argc > 1) cases = strtoull(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    failed = cmocka_run_group_tests_name("random geometries", tests, NULL, NULL);
    if (failed) print_error("replay with: %s 1 %" PRIu64 "\n", argv[0], seed);
    return failed;
}
