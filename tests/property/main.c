/* SPDX-License-Identifier: Apache-2.0 */
/* Random geometries against a byte oracle.
 *
 *   property [--seed N] [--first N] [CASES]
 *
 * Without a number of cases, KVF_PROPERTY_CASES says how many, else 100,000. Every failure prints its seed; --seed N
 * does that case alone. --first N begins at seed N. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

struct totals {
    int64_t cases, passed_over, limited, idle, bytes, failed;
};

static void run(struct prop_case *c, uint64_t seed, struct totals *totals)
{
    int64_t bytes = 0;
    bool limited = false;

    if (!case_generate(c, seed)) {
        totals->passed_over++;
    } else if (!check_case(c, &bytes, &limited)) {
        fprintf(stderr, "FAILED: property --seed %llu\n", (unsigned long long)seed);
        totals->failed++;
    }
    totals->cases++;
    totals->limited += limited;
    totals->idle += bytes == 0;
    totals->bytes += bytes;
    case_fini(c);
}

/* The check itself must be able to fail: every way of spoiling an expectation has to be noticed. */
static void run_spoiled(struct prop_case *c, struct totals *totals)
{
    int64_t bytes;
    bool limited;

    for (int how = 1; how <= 3; how++) {
        /* A fixed seed whose case moves bytes and leaves some alone. */
        if (!case_generate(c, 3)) abort();
        c->spoil = how;
        fprintf(stderr, "(a wrong expectation, to be noticed) ");
        if (check_case(c, &bytes, &limited)) {
            fprintf(stderr, "FAILED: spoiled expectation %d was not noticed\n", how);
            totals->failed++;
        }
        c->spoil = 0;
        case_fini(c);
    }
}

int main(int argc, char **argv)
{
    struct seeds seeds = seeds_wanted("property", argv + (argc > 0), 100000);
    uint64_t end = seeds.first + seeds.count;
    struct totals totals = {0};
    struct prop_case *c = calloc(1, sizeof *c);

    if (!c) abort();
    if (seeds.count > 1) run_spoiled(c, &totals);
    for (uint64_t seed = seeds.first; seed < end && totals.failed < 10; seed++) run(c, seed, &totals);
    printf("seeds %llu to %llu: %lld cases, %lld bytes moved, %lld moved nothing, %lld too large, %lld beyond "
           "the planner's limit, %lld failed\n", (unsigned long long)seeds.first, (unsigned long long)(end - 1),
           (long long)totals.cases, (long long)totals.bytes, (long long)totals.idle,
           (long long)totals.passed_over, (long long)totals.limited, (long long)totals.failed);
    /* A run that hardly tested anything is a failure too. */
    if (seeds.count >= 1000 && (totals.passed_over + totals.limited + totals.idle) * 4 > totals.cases) totals.failed++;
    free(c);
    return totals.failed ? 1 : 0;
}
