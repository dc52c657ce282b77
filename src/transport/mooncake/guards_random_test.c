/* SPDX-License-Identifier: Apache-2.0 */
/* Guards beside a model that knows bytes alone: who owns each, who may write it. Any number of cases: argument 1, from
 * the seed that is argument 2 on. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/mooncake/guards.h"
#include "transport/mooncake/regions.h"

enum { BYTES = 640, GUARDS = 3, BLOCKS = 6, GRIDS = 4, USES = 6, STEPS = 150, USUAL_CASES = 5000, LIST = 3 };

static uint64_t cases = USUAL_CASES, first_seed, seed, random_state;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

#define CHECK(condition) \
    do { \
        if (!(condition)) fail_msg("seed %llu: %s", (unsigned long long)seed, #condition); \
    } while (0)

/* ---- the model -------------------------------------------------------------------------------------------------- */

struct model_guard {
    kvf_mooncake_guard *guard; /* NULL: none here */
    int64_t block_count;
    int owner[BYTES];          /* block, or -1 */
    int64_t grants[BLOCKS], bytes[BLOCKS];
    bool asked;
    int news, expected_news;
};

struct model_use {
    bool begun, guarded, condemned, is_write;
    struct kvfi_moon_use use;
    size_t first, count;
    bool may[GUARDS][BYTES];   /* granted without a break since it began */
};

static struct kvfi_moon_regions regions;
static struct model_guard guards[GUARDS];
static struct model_use uses[USES];
static int region_of[BYTES];   /* its first byte, or -1 */
static bool is_guarded[BYTES];
static uint64_t base;

static void on_news(void *context)
{
    ((struct model_guard *)context)->news++;
}

static void tell(struct model_guard *guard)
{
    guard->expected_news += guard->guard && guard->asked;
    guard->asked = false;
}

static bool may_go_on(const struct model_use *use)
{
    bool may = use->is_write;

    for (size_t i = use->first; may && i < use->first + use->count; i++) {
        may = false;
        for (int g = 0; g < GUARDS; g++) may |= guards[g].guard && use->may[g][i];
    }
    return may;
}

/* What is no longer granted to requests that are under way. */
static void condemn(void)
{
    for (int u = 0; u < USES; u++)
        if (uses[u].begun && uses[u].guarded && !may_go_on(&uses[u])) uses[u].condemned = true;
}

static void guard_buffers(const struct model_guard *guard)
{
    bool now[BYTES] = {false};

    for (int i = 0; i < BYTES; i++)
        if (guard->owner[i] >= 0 && region_of[i] >= 0) now[region_of[i]] = true;
    for (int i = 0; i < BYTES; i++)
        if (region_of[i] >= 0 && now[region_of[i]]) is_guarded[i] = true;
    for (int u = 0; u < USES; u++) uses[u].guarded |= uses[u].begun && is_guarded[uses[u].first];
    condemn();
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

/* Often side by side in the same rows, sometimes some rows later. */
static void draw_grids(struct kvf_mooncake_grid *grids, size_t count, int64_t block_count)
{
    int64_t stride = 0, place = 0, start = 0;

    for (size_t i = 0; i < count; i++) {
        int64_t bytes, offset;

        if (draw(4) == 0 || place >= stride) {
            stride = 1 + (int64_t)draw(80);
            start = (int64_t)draw(BYTES);
            place = 0;
        }
        bytes = draw(4) == 0 ? stride : 1 + (int64_t)draw((uint64_t)(stride - place));
        offset = start + place + (draw(3) == 0 ? (int64_t)draw(3) * stride : 0);
        place += bytes + (int64_t)draw(3);
        /* The model knows only so many bytes. */
        if (offset + (block_count - 1) * stride + bytes > BYTES) offset = (int64_t)i * 4;
        grids[i] = (struct kvf_mooncake_grid){base + (uint64_t)offset, stride, bytes};
    }
}

/* Whether blocks overlap, in `*certain`, or only might by what the guard's rules are. */
static bool is_refused(const struct kvf_mooncake_grid *grids, size_t count, int64_t block_count, int owner[BYTES],
                       bool *certain)
{
    bool might = false;

    *certain = false;
    for (int i = 0; i < BYTES; i++) owner[i] = -1;
    for (size_t g = 0; g < count; g++) {
        int64_t first = (int64_t)(grids[g].address - base);

        for (int64_t b = 0; b < block_count; b++)
            for (int64_t i = 0; i < grids[g].block_bytes; i++) {
                int *place = &owner[first + b * grids[g].stride_bytes + i];

                *certain |= *place >= 0;
                *place = (int)b;
            }
        for (size_t h = 0; h < g; h++) {
            int64_t other = (int64_t)(grids[h].address - base);
            int64_t end = first + (block_count - 1) * grids[g].stride_bytes + grids[g].block_bytes;
            int64_t other_end = other + (block_count - 1) * grids[h].stride_bytes + grids[h].block_bytes;

            might |= first < other_end && other < end;
        }
    }
    return *certain || might;
}

static void open_guard(struct model_guard *guard)
{
    static struct kvf_mooncake_grid grids[GRIDS];
    static size_t count;
    static int64_t block_count = 1;
    static uint64_t drawn_for;
    bool again = drawn_for == seed + 1 && draw(2) == 0; /* the same as the last one's: they share what they can */
    int owner[BYTES];
    bool certain, might;
    enum kvf_status status;

    if (!again) {
        drawn_for = seed + 1;
        count = draw(GRIDS + 1);
        block_count = 1 + (int64_t)draw(BLOCKS);
        draw_grids(grids, count, block_count);
    }
    might = is_refused(grids, count, block_count, owner, &certain);
    status = kvfi_moon_guard_open(&regions, grids, count, block_count, &guard->guard, NULL);
    CHECK(status == KVF_OK || status == KVF_ERR_INVALID_ARGUMENT);
    if (status != KVF_OK) CHECK(might);
    if (status == KVF_OK) CHECK(!certain);
    if (status != KVF_OK) return;
    guard->block_count = block_count;
    memcpy(guard->owner, owner, sizeof owner);
    memset(guard->grants, 0, sizeof guard->grants);
    memset(guard->bytes, 0, sizeof guard->bytes);
    guard->asked = false;
    kvfi_moon_guard_set_news(guard->guard, on_news, guard);
    guard_buffers(guard);
}

static void end_use(struct model_use *use, bool arrived)
{
    kvfi_moon_regions_release(&regions, &use->use, arrived);
    for (int g = 0; use->guarded && arrived && g < GUARDS; g++) {
        bool counted = false;

        for (size_t i = use->first; guards[g].guard && i < use->first + use->count; i++)
            if (use->may[g][i]) {
                guards[g].bytes[guards[g].owner[i]]++;
                counted = true;
            }
        if (counted) tell(&guards[g]);
    }
    for (int g = 0; use->condemned && g < GUARDS; g++) tell(&guards[g]);
    use->begun = false;
}

static void close_guard(struct model_guard *guard)
{
    /* It would wait for them. */
    for (int u = 0; u < USES; u++)
        if (uses[u].begun) end_use(&uses[u], draw(2) == 0);
    kvf_mooncake_guard_close(guard->guard);
    guard->guard = NULL;
}

static void add_region(void)
{
    size_t first = draw(BYTES), count = 1 + draw(BYTES / 2);
    struct kvf_mooncake_buffer buffer = {base + first, count};

    if (count > BYTES - first) buffer.bytes = count = BYTES - first;
    for (size_t i = first; i < first + count; i++)
        if (region_of[i] >= 0) return;
    CHECK(kvfi_moon_regions_add(&regions, &buffer, 1, NULL) == KVF_OK);
    for (size_t i = first; i < first + count; i++) {
        region_of[i] = (int)first;
        is_guarded[i] = false;
    }
    for (int g = 0; g < GUARDS; g++)
        if (guards[g].guard) guard_buffers(&guards[g]);
}

static void remove_region(void)
{
    int first = region_of[draw(BYTES)];
    uint64_t address = base + (uint64_t)first;
    struct kvfi_moon_region *removed[1];

    if (first < 0) return;
    for (int u = 0; u < USES; u++)
        if (uses[u].begun && region_of[uses[u].first] == first) end_use(&uses[u], false);
    CHECK(kvfi_moon_regions_remove(&regions, &address, 1, removed, NULL) == KVF_OK);
    CHECK(kvfi_moon_regions_await(&regions, removed, 1, 0));
    kvfi_moon_regions_drop(removed, 1);
    for (int i = 0; i < BYTES; i++)
        if (region_of[i] == first) region_of[i] = -1;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

static void begin_use(struct model_use *use)
{
    struct kvfi_moon_refusal refusal = {.reason = 0};
    enum kvfi_moon_reason expected = 0;
    size_t failed = 0;
    bool begun;

    memset(use, 0, sizeof *use);
    use->first = draw(BYTES);
    use->count = 1 + draw(draw(2) == 0 ? 8 : BYTES);
    use->is_write = draw(5) != 0;
    if (use->count > BYTES - use->first) use->count = BYTES - use->first;
    for (size_t i = use->first; i < use->first + use->count; i++)
        if (region_of[i] < 0 || region_of[i] != region_of[use->first]) expected = KVFI_MOON_NO_BUFFER;
    use->guarded = expected == 0 && is_guarded[use->first];
    for (size_t i = use->first; use->guarded && expected == 0 && i < use->first + use->count; i++) {
        bool may = false, lies = false;

        for (int g = 0; g < GUARDS; g++) {
            int block = guards[g].guard ? guards[g].owner[i] : -1;

            lies |= block >= 0;
            use->may[g][i] = block >= 0 && guards[g].grants[block] > 0;
            may |= use->may[g][i];
        }
        if (!may) expected = lies ? KVFI_MOON_NOT_GRANTED : KVFI_MOON_NO_BLOCK;
        if (!may) failed = i;
    }
    if (use->guarded && !use->is_write) expected = KVFI_MOON_NO_READS;
    begun = kvfi_moon_regions_use(&regions, use->is_write, base + use->first, use->count, &use->use, &refusal);
    CHECK(begun == (expected == 0));
    if (!begun) CHECK(refusal.reason == expected);
    if (expected == KVFI_MOON_NO_BLOCK || expected == KVFI_MOON_NOT_GRANTED) CHECK(refusal.at == base + failed);
    use->begun = begun;
}

/* ---- grants ----------------------------------------------------------------------------------------------------- */

static void grant(struct model_guard *guard, const int64_t *list, size_t count)
{
    CHECK(kvf_mooncake_guard_grant(guard->guard, list, count, NULL) == KVF_OK);
    for (size_t i = 0; i < count; i++)
        if (guard->grants[list[i]]++ == 0) guard->bytes[list[i]] = 0;
}

static bool is_quiet(const struct model_guard *guard, const int64_t *list, size_t count)
{
    for (int u = 0; u < USES; u++)
        for (size_t i = uses[u].first; uses[u].begun && uses[u].condemned && i < uses[u].first + uses[u].count; i++)
            for (size_t b = 0; b < count; b++)
                if (guard->owner[i] == list[b]) return false;
    return true;
}

static void revoke(struct model_guard *guard, const int64_t *list, size_t count)
{
    int64_t left[BLOCKS];
    enum kvf_status expected = KVF_OK;
    bool quiet = false;

    memcpy(left, guard->grants, sizeof left);
    for (size_t i = 0; i < count; i++)
        if (--left[list[i]] < 0) expected = KVF_ERR_NOT_FOUND;
    CHECK(kvfi_moon_guard_revoke_begin(guard->guard, list, count, &quiet, NULL) == expected);
    if (expected != KVF_OK) return;
    memcpy(guard->grants, left, sizeof left);
    for (int u = 0; u < USES; u++)
        for (int i = 0; i < BYTES; i++)
            if (guard->owner[i] >= 0 && left[guard->owner[i]] == 0) uses[u].may[guard - guards][i] = false;
    condemn();
    CHECK(quiet == is_quiet(guard, list, count));
    for (int u = 0; u < USES && !quiet; u++) {
        struct model_guard other = *guard;

        /* Each of those that are in the way was told to end. */
        for (int i = 0; i < BYTES; i++)
            if ((size_t)i < uses[u].first || (size_t)i >= uses[u].first + uses[u].count) other.owner[i] = -1;
        if (uses[u].begun && uses[u].condemned && !is_quiet(&other, list, count))
            CHECK(kvfi_moon_use_is_revoked(&uses[u].use));
    }
}

static void look(struct model_guard *guard, const int64_t *list, size_t count)
{
    int64_t bytes = -1, expected = 0;

    for (size_t i = 0; i < count; i++) expected += guard->bytes[list[i]];
    CHECK(kvf_mooncake_guard_count(guard->guard, list, count, &bytes, NULL) == KVF_OK);
    CHECK(bytes == expected);
    CHECK(kvfi_moon_guard_is_quiet(guard->guard, list, count) == is_quiet(guard, list, count));
    CHECK(guard->news == guard->expected_news);
    if (draw(2) == 0) {
        kvfi_moon_guard_ask_news(guard->guard);
        guard->asked = true;
    }
}

static void step(void)
{
    struct model_guard *guard = &guards[draw(GUARDS)];
    struct model_use *use = &uses[draw(USES)];
    int64_t list[LIST];
    size_t count = draw(LIST + 1);
    uint64_t what = draw(20);

    for (int i = 0; i < LIST; i++) list[i] = guard->guard ? (int64_t)draw((uint64_t)guard->block_count) : 0;
    if (what == 0) add_region();
    else if (what == 1 && draw(4) == 0) remove_region();
    else if (!guard->guard && what < 6) open_guard(guard);
    else if (guard->guard && what == 2 && draw(4) == 0) close_guard(guard);
    else if (guard->guard && what < 8) grant(guard, list, count);
    else if (guard->guard && what < 11) revoke(guard, list, count);
    else if (guard->guard && what < 13) look(guard, list, count);
    else if (use->begun) end_use(use, use->is_write && draw(4) != 0);
    else begin_use(use);
}

static void test_random(void **state)
{
    (void)state;
    for (seed = first_seed; seed < first_seed + cases; seed++) {
        random_state = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
        base = draw(4) == 0 ? UINT64_MAX - (BYTES - 1) : draw(4) == 0 ? 1 : UINT64_C(0x7F0000000000) + draw(4096);
        memset(guards, 0, sizeof guards);
        memset(uses, 0, sizeof uses);
        for (int i = 0; i < BYTES; i++) region_of[i] = -1;
        assert_int_equal(kvfi_moon_regions_init(&regions, NULL), KVF_OK);
        add_region();
        for (int i = 0; i < STEPS; i++) step();
        for (int u = 0; u < USES; u++)
            if (uses[u].begun) end_use(&uses[u], true);
        for (int g = 0; g < GUARDS; g++) CHECK(guards[g].news == guards[g].expected_news);
        kvfi_moon_regions_fini(&regions);
    }
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};

    if (count > 1) cases = strtoull(arguments[1], NULL, 0);
    if (count > 2) first_seed = strtoull(arguments[2], NULL, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
