/* SPDX-License-Identifier: Apache-2.0 */
/* Random pairs of vLLM engines against a byte oracle.
 *
 *   property_vllm [--seed N] [--first N] [CASES]
 *
 * Without a number of cases, KVF_PROPERTY_CASES says how many, else 3,000. Every failure prints its seed; --seed N does
 * that case alone. */
#include <stdio.h>
#include <stdlib.h>

#include "case.h"

struct totals {
    long long cases, failed, bytes, empty, merged, cut, idle, refused;
};

static void describe(const struct prop_case *c)
{
    static const char *const orders[] = {"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"};
    const struct model *model = &c->model;

    fprintf(stderr, "  %s, %lld layers in %lld groups%s, %lld heads of %lld, %lld tokens in %lld kernel blocks\n",
            model->is_mla ? "MLA" : "attention", (long long)model->layers, (long long)model->groups,
            model->recurrent[model->groups - 1] ? ", the last recurrent" : "", (long long)model->heads,
            (long long)(model->head_size * model->element_bytes), (long long)model->block_tokens,
            (long long)model->kernel_blocks_per_block);
    for (int side = 0; side < 2; side++) {
        const struct engine *engine = side ? &c->dst : &c->src;

        fprintf(stderr, "  %s: TP %lld, PP %lld, %s%s%s, %lld bytes of padding; stages end at", engine->name,
                (long long)engine->tp, (long long)engine->pp, orders[engine->physical],
                engine->apart ? ", layers apart" : "", engine->overlaid ? ", groups overlaid" : "",
                (long long)engine->padding_bytes);
        for (int64_t i = 0; i < engine->pp; i++) fprintf(stderr, " %lld", (long long)engine->stage_end[i]);
        fprintf(stderr, "; ids");
        for (int64_t g = 0; g < model->groups; g++) {
            for (size_t i = 0; i < engine->id_count[g]; i++) fprintf(stderr, " %lld", (long long)engine->ids[g][i]);
            fprintf(stderr, ";");
        }
        fprintf(stderr, "\n");
    }
}

static void run(struct prop_case *c, uint64_t seed, struct totals *totals)
{
    case_generate(c, seed);
    if (!check_case(c)) {
        fprintf(stderr, "FAILED: property_vllm --seed %llu\n", (unsigned long long)seed);
        describe(c);
        totals->failed++;
    }
    totals->cases++;
    totals->bytes += c->bytes;
    totals->empty += c->bytes == 0;
    totals->merged += c->merged > 0;
    totals->cut += c->cut > 0;
    totals->idle += c->idle > 0;
    totals->refused += c->refused > 0;
}

/* The check itself must be able to fail: every way of spoiling an expectation has to be noticed. */
static void run_spoiled(struct prop_case *c, struct totals *totals)
{
    for (int how = 1; how <= 3; how++) {
        uint64_t seed = 1;

        case_generate(c, seed);
        while (c->dst.id_count[0] == 0 || c->src.pp != c->dst.pp) case_generate(c, ++seed);
        c->spoil = how;
        fprintf(stderr, "(a wrong expectation, to be noticed) ");
        if (check_case(c)) {
            fprintf(stderr, "FAILED: spoiled expectation %d was not noticed\n", how);
            totals->failed++;
        }
    }
}

/* Enough cases have something of everything. */
static void report(struct totals *totals)
{
    printf("%lld cases, %lld failed, %lld bytes, %lld with nothing to move; %lld merge regions, %lld cut heads, %lld "
           "have ranks that do not send, %lld are refused for nameless rows\n", totals->cases, totals->failed,
           totals->bytes, totals->empty, totals->merged, totals->cut, totals->idle, totals->refused);
    if (totals->cases >= 1000 && (!totals->merged || !totals->cut || !totals->idle || !totals->refused ||
                                  totals->refused * 4 > totals->cases || totals->empty * 4 > totals->cases)) {
        printf("FAILED: too few cases have something of it\n");
        totals->failed++;
    }
}

int main(int argc, char **argv)
{
    struct prop_case *c = calloc(1, sizeof *c);
    struct totals totals = {0};
    struct seeds seeds;

    (void)argc;
    if (!c) abort();
    seeds = seeds_wanted("property_vllm", argv + 1, 3000);
    run_spoiled(c, &totals);
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) run(c, seed, &totals);
    report(&totals);
    free(c);
    return totals.failed > 0;
}
