/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel set: all run lengths and alignments, strides, and not a byte outside. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "copy/kernel.h"

enum { ARENA = 1 << 16, GUARD = 0xa5 };

struct arena {
    unsigned char src[ARENA], dst[ARENA], expected[ARENA];
};

static struct arena *arena_create(void)
{
    struct arena *arena = aligned_alloc(64, sizeof *arena);

    assert_non_null(arena);
    for (int i = 0; i < ARENA; i++) arena->src[i] = (unsigned char)(i * 7 + i / 251);
    return arena;
}

/* What a tile means, byte by byte. */
static void copy_by_byte(const struct kvfi_tile *tile, const struct arena *arena, unsigned char *expected)
{
    for (int64_t row = 0; row < tile->rows; row++) {
        for (int64_t column = 0; column < tile->columns; column++) {
            ptrdiff_t from =
                tile->src - (const char *)arena->src + row * tile->src_row_stride + column * tile->src_stride;
            ptrdiff_t to =
                tile->dst - (const char *)arena->dst + row * tile->dst_row_stride + column * tile->dst_stride;

            for (int64_t i = 0; i < tile->run_bytes; i++) expected[to + i] = arena->src[from + i];
        }
    }
}

static void check_tiles(struct arena *arena, const struct kvfi_kernels *set, bool stream, const struct kvfi_tile *tiles,
                        size_t count)
{
    memset(arena->dst, GUARD, ARENA);
    memset(arena->expected, GUARD, ARENA);
    for (size_t i = 0; i < count; i++) copy_by_byte(&tiles[i], arena, arena->expected);
    if (stream) set->stream(tiles, count);
    else set->copy(tiles, count);
    set->fence();
    if (memcmp(arena->dst, arena->expected, ARENA) != 0)
        fail_msg("%s %s: run %lld, src at %zu, dst at %zu, strides %lld and %lld", set->name,
                 stream ? "stream" : "copy", (long long)tiles->run_bytes, (size_t)((uintptr_t)tiles->src & 63),
                 (size_t)((uintptr_t)tiles->dst & 63), (long long)tiles->src_stride, (long long)tiles->dst_stride);
}

static void check_run(struct arena *arena, const struct kvfi_kernels *set, int64_t run, int64_t src_at, int64_t dst_at)
{
    struct kvfi_tile tile = {.src = (const char *)arena->src + 2048 + src_at, .dst = (char *)arena->dst + 2048 + dst_at,
                             .rows = 2, .src_row_stride = 8 * run, .dst_row_stride = 9 * run + 3,
                             .columns = 3, .src_stride = run + 5, .dst_stride = 2 * run, .run_bytes = run};

    check_tiles(arena, set, false, &tile, 1);
    check_tiles(arena, set, true, &tile, 1);
}

static void every_length_and_alignment(void **state)
{
    static const int64_t alignments[] = {0, 1, 7, 16, 32, 33, 63};
    const size_t steps = sizeof alignments / sizeof alignments[0];
    struct arena *arena = arena_create();

    (void)state;
    for (size_t set = 0; set < kvfi_kernels_count(); set++) {
        for (int64_t run = 1; run <= 300; run++) {
            size_t src_at = (size_t)run % steps;

            for (size_t dst_at = 0; dst_at < steps; dst_at++)
                check_run(arena, kvfi_kernels_at(set), run, alignments[src_at], alignments[dst_at]);
        }
    }
    free(arena);
}

static void long_runs(void **state)
{
    static const int64_t runs[] = {512, 1000, 1023, 1024, 1025, 2048, 3333, 4096, 5000};
    struct arena *arena = arena_create();

    (void)state;
    for (size_t set = 0; set < kvfi_kernels_count(); set++) {
        for (size_t run = 0; run < sizeof runs / sizeof runs[0]; run++) {
            for (int64_t at = 0; at < 64; at += 21) {
                struct kvfi_tile tile = {.src = (const char *)arena->src + 100,
                                         .dst = (char *)arena->dst + 64 + at,
                                         .rows = 1,
                                         .columns = 4,
                                         .src_stride = runs[run],
                                         .dst_stride = runs[run] + 192,
                                         .run_bytes = runs[run]};

                check_tiles(arena, kvfi_kernels_at(set), false, &tile, 1);
                check_tiles(arena, kvfi_kernels_at(set), true, &tile, 1);
            }
        }
    }
    free(arena);
}

static void lines_of_known_length_on_lines(void **state)
{
    static const int64_t runs[] = {64, 128, 192, 256, 512};
    struct arena *arena = arena_create();

    (void)state;
    for (size_t set = 0; set < kvfi_kernels_count(); set++) {
        for (size_t run = 0; run < sizeof runs / sizeof runs[0]; run++) {
            struct kvfi_tile tile = {.src = (const char *)arena->src + 3, .dst = (char *)arena->dst + 128, .rows = 5,
                                     .src_row_stride = runs[run], .dst_row_stride = 8 * runs[run], .columns = 4,
                                     .src_stride = 5 * runs[run], .dst_stride = 2 * runs[run], .run_bytes = runs[run]};

            check_tiles(arena, kvfi_kernels_at(set), false, &tile, 1);
            check_tiles(arena, kvfi_kernels_at(set), true, &tile, 1);
        }
    }
    free(arena);
}

static void transposes_of_elements(void **state)
{
    static const int64_t elements[] = {1, 2, 3, 4, 8, 16};
    struct arena *arena = arena_create();

    (void)state;
    for (size_t set = 0; set < kvfi_kernels_count(); set++) {
        for (size_t e = 0; e < sizeof elements / sizeof elements[0]; e++) {
            struct kvfi_tile tile = {.src = (const char *)arena->src, .dst = (char *)arena->dst + 17, .rows = 32,
                                     .src_row_stride = elements[e], .dst_row_stride = 48 * elements[e], .columns = 48,
                                     .src_stride = 32 * elements[e], .dst_stride = elements[e],
                                     .run_bytes = elements[e]};

            check_tiles(arena, kvfi_kernels_at(set), false, &tile, 1);
            check_tiles(arena, kvfi_kernels_at(set), true, &tile, 1);
        }
    }
    free(arena);
}

/* Many tiles of unlike runs, sources walked backwards: the prefetch goes from tile to tile. */
static void unlike_tiles_in_one_batch(void **state)
{
    static const int64_t runs[] = {256, 8, 64, 100, 2000, 16, 1, 128, 700, 512};
    struct arena *arena = arena_create();
    struct kvfi_tile tiles[40];
    int64_t at = 64;

    (void)state;
    for (size_t i = 0; i < 40; i++) {
        int64_t run = runs[i % 10];

        tiles[i] = (struct kvfi_tile){.src = (const char *)arena->src + 30000 - (ptrdiff_t)(i * 97), .rows = 1,
                                      .dst = (char *)arena->dst + at, .columns = 1 + (int64_t)(i % 3),
                                      .src_stride = -run, .dst_stride = run + 1, .run_bytes = run};
        at += tiles[i].columns * (run + 1);
        assert_true(at < ARENA);
    }
    for (size_t set = 0; set < kvfi_kernels_count(); set++) {
        check_tiles(arena, kvfi_kernels_at(set), false, tiles, 40);
        check_tiles(arena, kvfi_kernels_at(set), true, tiles, 40);
    }
    free(arena);
}

static void sets_are_in_order(void **state)
{
    (void)state;
    assert_ptr_equal(kvfi_kernels_at(0), &kvfi_kernels_plain);
    assert_ptr_equal(kvfi_kernels_best(), kvfi_kernels_at(kvfi_kernels_count() - 1));
    print_message("kernels: %zu sets, best %s\n", kvfi_kernels_count(), kvfi_kernels_best()->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_in_order),
        cmocka_unit_test(every_length_and_alignment),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(lines_of_known_length_on_lines),
        cmocka_unit_test(transposes_of_elements),
        cmocka_unit_test(unlike_tiles_in_one_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
