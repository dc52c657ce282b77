/* SPDX-License-Identifier: Apache-2.0 */
/** @file seeds.h  What property tests have in common: numbers that depend on a seed alone, and which seeds to try. */
#ifndef PROPERTY_SEEDS_H
#define PROPERTY_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

/** Numbers that depend on the seed alone. */
struct draw {
    uint64_t state;
};

static inline uint64_t mix_u64(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t draw_u64(struct draw *draw)
{
    return mix_u64(draw->state += UINT64_C(0x9e3779b97f4a7c15));
}

static inline int64_t draw_int(struct draw *draw, int64_t first, int64_t last)
{
    return first + (int64_t)(draw_u64(draw) % (uint64_t)(last - first + 1));
}

/** True once in `n`. */
static inline bool draw_one_in(struct draw *draw, int64_t n)
{
    return draw_int(draw, 1, n) == 1;
}

/** One case a seed. */
struct seeds {
    uint64_t first, count;
};

/** Reads `[--seed N] [--first N] [CASES]`, which end with NULL. Without a number of cases KVF_PROPERTY_CASES says how
 *  many, else `usual`; --seed N is that case alone. Ends the program with 2 when something is no number. */
struct seeds seeds_wanted(const char *program, char **arguments, uint64_t usual);

#endif
