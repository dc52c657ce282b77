/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool complain(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return false;
}

static bool create_layout(struct rank *rank)
{
    struct kvf_error error = {0};

    if (kvf_layout_create(&rank->spec, &rank->layout, &error) != KVF_OK) return complain("layout: %s", error.text);
    if (kvf_holdings_from_layout(rank->layout, &rank->holdings, &error) != KVF_OK) {
        return complain("holdings: %s", error.text);
    }
    return true;
}

static bool elect(struct check *check)
{
    struct prop_case *c = check->c;
    size_t n = c->src.rank_count, m = c->dst.rank_count, skipped, expected = 0;
    struct kvf_error error = {0};

    for (size_t i = 0; i < n; i++) {
        if (!create_layout(&c->src.ranks[i])) return false;
        check->src_members[i] = (struct kvf_member){c->src.ranks[i].rank, c->src.ranks[i].holdings};
        check->src_turned[n - 1 - i] = check->src_members[i];
    }
    for (size_t i = 0; i < m; i++) {
        if (!create_layout(&c->dst.ranks[i])) return false;
        check->dst_members[i] = (struct kvf_member){c->dst.ranks[i].rank, c->dst.ranks[i].holdings};
        check->dst_turned[m - 1 - i] = check->dst_members[i];
    }
    if (kvf_elect(check->src_members, n, check->dst_members, m, c->destination, &check->election, &error) != KVF_OK ||
        kvf_elect(check->src_turned, n, check->dst_turned, m, m - 1 - c->destination, &check->turned, &error) !=
            KVF_OK || kvf_election_check_places(check->election, check->dst->layout, &error) != KVF_OK) {
        return complain("election: %s", error.text);
    }
    for (size_t v = 0; v < check->dst->spec.view_count; v++) expected += c->roles[check->dst->view_role[v]].src_lacks;
    kvf_election_skipped(check->election, &skipped);
    if ((skipped == 0) != (expected == 0)) return complain("election: %zu skipped cells, %zu views", skipped, expected);
    return true;
}

static bool check_all_written(const struct check *check, const unsigned char *written, const char *how)
{
    for (int64_t i = 0; i < check->dst->bytes; i++) {
        if (check->expected[i] >= 0 && !written[i]) {
            return complain("%s: byte %lld is never written", how, (long long)i);
        }
    }
    return true;
}

static bool check_pairs(struct check *check)
{
    struct prop_case *c = check->c;
    int64_t layer_cut = -1, middle = c->token_begin;
    int64_t cuts = (c->token_end - 1) / c->grain - c->token_begin / c->grain;
    bool good = true;

    if (!c->dst.aliased) layer_cut = draw_int(&c->draw, c->layers[0], c->layers[c->layer_count - 1] + 1);
    if (cuts > 0 && !c->ring) middle = c->token_begin + draw_int(&c->draw, 0, cuts) * c->grain;
    for (size_t i = 0; i < c->src.rank_count && good && !check->limited; i++) {
        if (kvf_election_share(check->election, i)) good = check_pair(check, i, layer_cut, middle);
    }
    return good && (check->limited || (check_all_written(check, check->whole, "whole") &&
                                       check_all_written(check, check->pieces, "pieces")));
}

/* Makes the expectation of one byte wrong: 1 another coordinate, 2 nothing belongs there, 3 something does. */
static void spoil(struct check *check, int how)
{
    for (int64_t i = 0; i < check->dst->bytes && how; i++) {
        int32_t *expected = &check->expected[i];

        if ((*expected >= 0) == (how == 3)) continue;
        *expected = how == 1 ? *expected ^ 1 : how == 2 ? -1 : 0;
        break;
    }
}

static bool check_prepare(struct check *check)
{
    size_t bytes = (size_t)check->dst->bytes + 1;

    check->expected = malloc(bytes * sizeof *check->expected);
    check->whole = calloc(bytes, 1);
    check->pieces = calloc(bytes, 1);
    if (!check->expected || !check->whole || !check->pieces) abort();
    oracle_map(check->c, &check->c->dst, check->dst, check->c->token_begin, check->c->token_end, check->expected);
    spoil(check, check->c->spoil);
    return elect(check);
}

static void check_fini(struct check *check)
{
    kvf_election_destroy(check->election);
    kvf_election_destroy(check->turned);
    free(check->expected);
    free(check->whole);
    free(check->pieces);
}

bool check_case(struct prop_case *c, int64_t *moved_bytes, bool *limited)
{
    struct check check = {.c = c, .dst = &c->dst.ranks[c->destination]};
    bool good = check_prepare(&check) && check_pairs(&check);

    *moved_bytes = check.moved_bytes;
    *limited = check.limited;
    check_fini(&check);
    return good;
}
