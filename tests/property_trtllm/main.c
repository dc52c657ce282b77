/* SPDX-License-Identifier: Apache-2.0 */
/* Random instances of TensorRT-LLM's shape against a byte oracle.
 *
 *   property_trtllm strict|native [--seed N] [--first N] [CASES]
 *
 * `strict`: what upstream takes, as upstream pairs and elects; `native`: any shapes. Without a number of cases,
 * KVF_PROPERTY_CASES says how many, else 3,000. Every failure prints its seed; --seed N does that case alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

struct totals {
    int64_t cases, idle, bytes, failed;
    int64_t mapped[KVF_TRTLLM_MAP_STATE_HEADS + 1], elections[2];
};

static void describe_side(const struct side *side)
{
    fprintf(stderr, "  %s: tp %lld pp %lld cp %lld%s, %s, %lld tokens per block, stages end at", side->name,
            (long long)side->tp, (long long)side->pp, (long long)side->cp,
            side->attention_dp ? ", attention DP" : "", side->nhd ? "NHD" : "HND", (long long)side->tokens_per_block);
    for (int64_t p = 0; p < side->pp; p++) fprintf(stderr, " %lld", (long long)side->stage_end[p]);
    fprintf(stderr, "\n");
}

static void describe(const struct prop_case *c)
{
    static const char *const kinds[] = {"kv", "side", "ring", "conv", "ssm", "state side"};

    describe_side(&c->src);
    describe_side(&c->dst);
    for (size_t p = 0; p < c->part_count; p++) {
        fprintf(stderr, "  %s: %lld heads, %lld eighths%s, layers", kinds[c->parts[p].kind],
                (long long)c->parts[p].heads, (long long)c->parts[p].eighths,
                c->excluded == (int64_t)p ? ", excluded" : "");
        for (size_t i = 0; i < c->layer_count; i++)
            if (c->layers[i].has[p])
                fprintf(stderr, " %lld%s", (long long)c->layers[i].global, c->layers[i].group == 1 ? "w" : "");
        fprintf(stderr, "\n");
    }
    fprintf(stderr, "  prompt %lld, start %lld, %zu chunks\n", (long long)c->prompt,
            c->start == KVF_TRTLLM_NONE ? -1 : (long long)c->start, c->cut_count);
}

static void run(struct prop_case *c, uint64_t seed, bool is_native, struct totals *totals)
{
    int64_t bytes;

    case_generate(c, seed, is_native);
    if (!check_case(c, &bytes) || !check_elections(c)) {
        fprintf(stderr, "FAILED: property_trtllm %s --seed %llu\n", is_native ? "native" : "strict",
                (unsigned long long)seed);
        describe(c);
        totals->failed++;
    }
    totals->cases++;
    totals->idle += bytes == 0;
    totals->bytes += bytes;
    for (int i = 0; i <= KVF_TRTLLM_MAP_STATE_HEADS; i++) totals->mapped[i] += c->mapped[i];
    for (int i = 0; i < 2; i++) totals->elections[i] += c->elections[i];
    side_fini(&c->src);
    side_fini(&c->dst);
}

/* The check itself must be able to fail: every way of spoiling an expectation has to be noticed. */
static void run_spoiled(struct prop_case *c, bool is_native, struct totals *totals)
{
    for (int how = 1; how <= 3; how++) {
        int64_t bytes;
        bool noticed;

        case_generate(c, 1, is_native); /* moves bytes, and leaves some alone */
        c->spoil = how;
        fprintf(stderr, "(a wrong expectation, to be noticed) ");
        noticed = !check_case(c, &bytes);
        if (!noticed || c->spoil) {
            fprintf(stderr, "FAILED: spoiled expectation %d was not noticed\n", how);
            totals->failed++;
        }
        side_fini(&c->src);
        side_fini(&c->dst);
    }
}

/* Enough cases have something of everything. */
static void report(struct totals *totals)
{
    printf("%lld cases, %lld with nothing to move, %lld bytes, %lld failed; view pairs:", (long long)totals->cases,
           (long long)totals->idle, (long long)totals->bytes, (long long)totals->failed);
    for (int i = 1; i <= KVF_TRTLLM_MAP_STATE_HEADS; i++) {
        printf(" %lld %s", (long long)totals->mapped[i], kvf_trtllm_mapper_text(i));
        if (totals->cases < 1000 || totals->mapped[i]) continue;
        printf(" (FAILED: none)");
        totals->failed++;
    }
    if (totals->elections[1])
        printf("; the same elected for %lld rank pairs, others for %lld", (long long)totals->elections[1],
               (long long)totals->elections[0]);
    printf("\n");
}

int main(int argc, char **argv)
{
    bool is_native = argc > 1 && strcmp(argv[1], "native") == 0;
    struct totals totals = {0};
    struct seeds seeds;
    struct prop_case *c = calloc(1, sizeof *c);

    if (!c) abort();
    if (argc < 2 || (!is_native && strcmp(argv[1], "strict") != 0)) {
        fprintf(stderr, "usage: property_trtllm strict|native [--seed N] [--first N] [CASES]\n");
        return 2;
    }
    seeds = seeds_wanted("property_trtllm", argv + 2, 3000);
    run_spoiled(c, is_native, &totals);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) run(c, seed, is_native, &totals);
    report(&totals);
    free(c);
    return totals.failed > 0;
}
