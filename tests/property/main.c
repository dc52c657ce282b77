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

static uint64_t number(const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);

    if (*text == 0 || *end) {
        fprintf(stderr, "property: \"%s\" is not a number\n", text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    const char *wanted = getenv("KVF_PROPERTY_CASES");
    uint64_t first = 1, cases = wanted && *wanted ? number(wanted) : 100000;
    struct totals totals = {0};
    struct prop_case *c = calloc(1, sizeof *c);

    if (!c) abort();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            first = number(argv[++i]);
            cases = 1;
        } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
            first = number(argv[++i]);
        } else {
            cases = number(argv[i]);
        }
    }
    if (cases > 1) run_spoiled(c, &totals);
    for (uint64_t seed = first; seed < first + cases && totals.failed < 10; seed++) run(c, seed, &totals);
    printf("seeds %llu to %llu: %lld cases, %lld bytes moved, %lld moved nothing, %lld too large, %lld beyond "
           "the planner's limit, %lld failed\n", (unsigned long long)first, (unsigned long long)(first + cases - 1),
           (long long)totals.cases, (long long)totals.bytes, (long long)totals.idle,
           (long long)totals.passed_over, (long long)totals.limited, (long long)totals.failed);
    /* A run that hardly tested anything is a failure too. */
    if (cases >= 1000 && (totals.passed_over + totals.limited + totals.idle) * 4 > totals.cases) totals.failed++;
    free(c);
    return totals.failed ? 1 : 0;
}
