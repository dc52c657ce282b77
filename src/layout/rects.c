/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/rects.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/compare.h"

/* A sweep over x keeps the open rectangles ordered by y. As long as no two overlapped, the open ones are apart on y, so
 * a new one need only be compared with its two neighbours. Rectangles are numbered by y beforehand; the ordered set is
 * then a bit per number, with words of bits above it that say which words below have any bit set. */
enum { LEVELS = 6 }; /* 64 to the 6th bits */

struct bits {
    uint64_t *words;
    size_t start[LEVELS];
};

struct keyed {
    int64_t key;
    size_t index;
};

static int compare_keyed(const void *left, const void *right)
{
    const struct keyed *a = left, *b = right;
    int order = kvfi_compare_i64(a->key, b->key);

    return order ? order : kvfi_compare_size(a->index, b->index);
}

static bool bits_init(struct bits *bits, size_t count)
{
    size_t words = 0;

    for (int level = 0; level < LEVELS; level++) {
        bits->start[level] = words;
        count = count / 64 + 1;
        words += count;
    }
    bits->words = kvfi_alloc_zeroed(words, sizeof *bits->words);
    return bits->words != NULL;
}

static void bits_set(struct bits *bits, size_t at)
{
    for (int level = 0; level < LEVELS; level++, at /= 64) {
        bits->words[bits->start[level] + at / 64] |= UINT64_C(1) << (at % 64);
    }
}

static void bits_clear(struct bits *bits, size_t at)
{
    for (int level = 0; level < LEVELS; level++, at /= 64) {
        uint64_t *word = &bits->words[bits->start[level] + at / 64];

        *word &= ~(UINT64_C(1) << (at % 64));
        if (*word) break;
    }
}

/* Finds the nearest set bit below (or above) `at`. */
static bool bits_neighbour(const struct bits *bits, size_t at, bool below, size_t *found)
{
    for (int level = 0; level < LEVELS; level++, at /= 64) {
        unsigned bit = (unsigned)(at % 64);
        uint64_t mask = below ? (UINT64_C(1) << bit) - 1 : bit == 63 ? 0 : ~UINT64_C(0) << (bit + 1);
        uint64_t word = bits->words[bits->start[level] + at / 64] & mask;

        if (!word) continue;
        at = at / 64 * 64 + (size_t)(below ? 63 - __builtin_clzll(word) : __builtin_ctzll(word));
        while (level-- > 0) {
            word = bits->words[bits->start[level] + at];
            at = at * 64 + (size_t)(below ? 63 - __builtin_clzll(word) : __builtin_ctzll(word));
        }
        *found = at;
        return true;
    }
    return false;
}

static bool share_y(const struct kvfi_rect *a, const struct kvfi_rect *b)
{
    return a->y_first < b->y_end && b->y_first < a->y_end;
}

struct sweep {
    const struct kvfi_rect *rects;
    size_t count;
    struct keyed *by_start, *by_end, *by_y;
    size_t *rank; /* of a rectangle in by_y */
    struct bits open;
};

static bool meets_neighbour(const struct sweep *sweep, size_t index, bool below, size_t *other)
{
    size_t rank;
    bool meets = false;

    if (bits_neighbour(&sweep->open, sweep->rank[index], below, &rank)) {
        *other = sweep->by_y[rank].index;
        meets = share_y(&sweep->rects[index], &sweep->rects[*other]);
    }
    return meets;
}

static bool sweep_run(struct sweep *sweep, size_t *a, size_t *b)
{
    size_t ended = 0;

    for (size_t i = 0; i < sweep->count; i++) {
        size_t index = sweep->by_start[i].index, other;

        for (; sweep->by_end[ended].key <= sweep->by_start[i].key; ended++) {
            bits_clear(&sweep->open, sweep->rank[sweep->by_end[ended].index]);
        }
        if (meets_neighbour(sweep, index, true, &other) || meets_neighbour(sweep, index, false, &other)) {
            *a = index < other ? index : other;
            *b = index < other ? other : index;
            return true;
        }
        bits_set(&sweep->open, sweep->rank[index]);
    }
    return false;
}

static void sweep_sort(struct sweep *sweep)
{
    for (size_t i = 0; i < sweep->count; i++) {
        sweep->by_start[i] = (struct keyed){sweep->rects[i].x_first, i};
        sweep->by_end[i] = (struct keyed){sweep->rects[i].x_end, i};
        sweep->by_y[i] = (struct keyed){sweep->rects[i].y_first, i};
    }
    qsort(sweep->by_start, sweep->count, sizeof *sweep->by_start, compare_keyed);
    qsort(sweep->by_end, sweep->count, sizeof *sweep->by_end, compare_keyed);
    qsort(sweep->by_y, sweep->count, sizeof *sweep->by_y, compare_keyed);
    for (size_t i = 0; i < sweep->count; i++) sweep->rank[sweep->by_y[i].index] = i;
}

enum kvf_status kvfi_rects_overlap(const struct kvfi_rect *rects, size_t count, bool *found, size_t *a, size_t *b)
{
    enum kvf_status status = KVF_OK;
    struct sweep sweep = {.rects = rects, .count = count};

    *found = false;
    if (count < 2) goto done;
    sweep.by_start = kvfi_alloc_array(count, sizeof *sweep.by_start);
    sweep.by_end = kvfi_alloc_array(count, sizeof *sweep.by_end);
    sweep.by_y = kvfi_alloc_array(count, sizeof *sweep.by_y);
    sweep.rank = kvfi_alloc_array(count, sizeof *sweep.rank);
    if (!sweep.by_start || !sweep.by_end || !sweep.by_y || !sweep.rank || !bits_init(&sweep.open, count)) {
        status = KVF_ERR_NO_MEMORY;
        goto done;
    }
    sweep_sort(&sweep);
    *found = sweep_run(&sweep, a, b);
done:
    free(sweep.open.words);
    free(sweep.rank);
    free(sweep.by_y);
    free(sweep.by_end);
    free(sweep.by_start);
    return status;
}
