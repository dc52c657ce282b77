/* SPDX-License-Identifier: Apache-2.0 */
#include "seeds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(const char *program, const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);

    if (*text == 0 || *end) {
        fprintf(stderr, "%s: \"%s\" is not a number\n", program, text);
        exit(2);
    }
    return value;
}

struct seeds seeds_wanted(const char *program, char **arguments, uint64_t usual)
{
    const char *wanted = getenv("KVF_PROPERTY_CASES");
    struct seeds seeds = {1, wanted && *wanted ? number(program, wanted) : usual};

    for (char **at = arguments; *at; at++) {
        if (strcmp(*at, "--seed") == 0 && at[1]) {
            seeds.first = number(program, *++at);
            seeds.count = 1;
        } else if (strcmp(*at, "--first") == 0 && at[1]) {
            seeds.first = number(program, *++at);
        } else {
            seeds.count = number(program, *at);
        }
    }
    return seeds;
}
