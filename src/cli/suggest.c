/* SPDX-License-Identifier: Apache-2.0 */
/* Nearest word by edit distance (insert, delete, replace, exchange of neighbours). */
#include <string.h>

#include "cli/cli.h"

#define WORD_MAX 40

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/** Distance of two words of at most WORD_MAX bytes. */
static size_t distance(const char *a, const char *b)
{
    size_t rows[WORD_MAX + 1][WORD_MAX + 1];
    size_t a_bytes = strlen(a), b_bytes = strlen(b);
    for (size_t i = 0; i <= a_bytes; i++) {
        for (size_t j = 0; j <= b_bytes; j++) {
            if (i == 0 || j == 0) {
                rows[i][j] = i + j;
                continue;
            }
            size_t change = a[i - 1] != b[j - 1];
            size_t best = least(least(rows[i - 1][j], rows[i][j - 1]) + 1, rows[i - 1][j - 1] + change);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = least(best, rows[i - 2][j - 2] + 1);
            rows[i][j] = best;
        }
    }
    return rows[a_bytes][b_bytes];
}

const char *cli_suggest(const char *word, const char *const *candidates, size_t count)
{
    const char *nearest = NULL;
    size_t word_bytes = strlen(word), nearest_distance = 0;
    if (word_bytes == 0 || word_bytes > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = strlen(candidates[i]);
        if (bytes > WORD_MAX)
            continue;
        size_t d = distance(word, candidates[i]);
        size_t longest = word_bytes > bytes ? word_bytes : bytes;
        if (d <= 1 + longest / 4 && d < longest && (nearest == NULL || d < nearest_distance)) {
            nearest = candidates[i];
            nearest_distance = d;
        }
    }
    return nearest;
}
