/* SPDX-License-Identifier: Apache-2.0 */
/* Guards by rows: which grids are taken, what is admitted, granted, counted, told. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "transport/mooncake/guards.h"
#include "transport/mooncake/regions.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

struct scene {
    struct kvfi_moon_regions regions;
    int closes; /* how often connections were to be closed */
};

static void closes(void *context)
{
    ((struct scene *)context)->closes++;
}

static void set_up(struct scene *scene)
{
    memset(scene, 0, sizeof *scene);
    assert_int_equal(kvfi_moon_regions_init(&scene->regions, NULL), KVF_OK);
    scene->regions.close_revoked = closes;
    scene->regions.context = scene;
}

static void tear_down(struct scene *scene)
{
    kvfi_moon_regions_fini(&scene->regions);
}

static void add(struct scene *scene, uint64_t address, uint64_t bytes)
{
    const struct kvf_mooncake_buffer buffer = {address, bytes};

    assert_int_equal(kvfi_moon_regions_add(&scene->regions, &buffer, 1, NULL), KVF_OK);
}

static void take_away(struct scene *scene, uint64_t address)
{
    struct kvfi_moon_region *removed[1];

    assert_int_equal(kvfi_moon_regions_remove(&scene->regions, &address, 1, removed, NULL), KVF_OK);
    assert_true(kvfi_moon_regions_await(&scene->regions, removed, 1, 0));
    kvfi_moon_regions_drop(removed, 1);
}

static kvf_mooncake_guard *guard_over(struct scene *scene, uint64_t address, int64_t stride, int64_t bytes,
                                      int64_t blocks)
{
    const struct kvf_mooncake_grid grid = {address, stride, bytes};
    kvf_mooncake_guard *guard = NULL;
    struct kvf_error error;

    if (kvfi_moon_guard_open(&scene->regions, &grid, 1, blocks, &guard, &error) != KVF_OK) fail_msg("%s", error.text);
    return guard;
}

static void grant(kvf_mooncake_guard *guard, int64_t block)
{
    assert_int_equal(kvf_mooncake_guard_grant(guard, &block, 1, NULL), KVF_OK);
}

static void revoke(kvf_mooncake_guard *guard, int64_t block, bool quiet)
{
    bool found = !quiet;

    assert_int_equal(kvfi_moon_guard_revoke_begin(guard, &block, 1, &found, NULL), KVF_OK);
    assert_int_equal(found, quiet);
    assert_int_equal(kvfi_moon_guard_is_quiet(guard, &block, 1), quiet);
}

static int64_t count(kvf_mooncake_guard *guard, int64_t block)
{
    int64_t bytes = -1;

    assert_int_equal(kvf_mooncake_guard_count(guard, &block, 1, &bytes, NULL), KVF_OK);
    return bytes;
}

/* Why a request is refused, or 0. */
static int try(struct scene *scene, bool is_write, uint64_t address, uint64_t bytes, struct kvfi_moon_refusal *refusal)
{
    struct kvfi_moon_use use;

    if (!kvfi_moon_regions_use(&scene->regions, is_write, address, bytes, &use, refusal)) return (int)refusal->reason;
    kvfi_moon_regions_release(&scene->regions, &use, is_write);
    return 0;
}

static int writes(struct scene *scene, uint64_t address, uint64_t bytes)
{
    struct kvfi_moon_refusal refusal;

    return try(scene, true, address, bytes, &refusal);
}

/* ---- which grids ------------------------------------------------------------------------------------------------ */

#define TOP UINT64_MAX

static void test_grids(void **state)
{
    static const struct {
        const char *name;
        int64_t block_count;
        struct kvf_mooncake_grid grids[4];
        size_t grid_count;
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"one array", 8, {{4096, 64, 64}}, 1, KVF_OK, ""},
        {"no array", 8, {{0, 0, 0}}, 0, KVF_OK, ""},
        {"no block", 0, {{4096, 64, 64}}, 1, KVF_ERR_INVALID_ARGUMENT, "guard: 0 blocks in 1 grids"},
        {"fewer than none", -1, {{4096, 64, 64}}, 1, KVF_ERR_INVALID_ARGUMENT, "guard: -1 blocks"},
        {"too many blocks", INT64_C(2147483648), {{4096, 64, 64}}, 1, KVF_ERR_LIMIT, "at most 2147483647"},
        {"at 0", 8, {{4096, 64, 64}, {0, 64, 64}}, 2, KVF_ERR_INVALID_ARGUMENT, "grid 1: blocks of 64 bytes at 0x0"},
        {"empty blocks", 8, {{4096, 64, 0}}, 1, KVF_ERR_INVALID_ARGUMENT, "grid 0: blocks of 0 bytes"},
        {"negative blocks", 8, {{4096, 64, -1}}, 1, KVF_ERR_INVALID_ARGUMENT, "grid 0: blocks of -1 bytes"},
        {"short stride", 8, {{4096, 63, 64}}, 1, KVF_ERR_INVALID_ARGUMENT, "grid 0: a stride of 63 bytes"},
        {"negative stride", 2, {{4096, -64, 64}}, 1, KVF_ERR_INVALID_ARGUMENT, "grid 0: a stride of -64 bytes"},
        {"any stride of one block", 1, {{4096, -64, 64}}, 1, KVF_OK, ""},
        {"the largest stride", 2, {{1, INT64_MAX, 8}}, 1, KVF_OK, ""},
        {"the largest block", 1, {{1, 0, INT64_MAX}}, 1, KVF_OK, ""},
        {"up to the end", 4, {{TOP - 255, 64, 64}}, 1, KVF_OK, ""},
        {"one byte past the end", 4, {{TOP - 254, 64, 64}}, 1, KVF_ERR_INVALID_ARGUMENT,
         "grid 0: 4 blocks, every 64 bytes from 0xffffffffffffff01, are past the end of all addresses"},
        {"far past the end", 2147483647, {{4096, INT64_MAX, 64}}, 1, KVF_ERR_INVALID_ARGUMENT, "are past the end"},
        {"the last byte", 1, {{TOP, 0, 1}}, 1, KVF_OK, ""},
        {"touching arrays", 4, {{4096, 64, 64}, {4352, 64, 64}}, 2, KVF_OK, ""},
        {"overlapping by a byte", 4, {{4096, 64, 64}, {4351, 64, 64}}, 2, KVF_ERR_INVALID_ARGUMENT,
         "grid 1: blocks of 64 bytes, every 64 from 0x10ff, overlap within the stride those of grid 0, of 64 bytes, "
         "every 64 from 0x1000"},
        {"twice the same", 4, {{4096, 64, 64}, {8192, 64, 64}, {4096, 64, 64}}, 3, KVF_ERR_INVALID_ARGUMENT, "grid 2"},
        {"single blocks overlap", 1, {{4096, 0, 64}, {4159, 0, 64}}, 2, KVF_ERR_INVALID_ARGUMENT, "grid 1: blocks of"},
        {"K and V in each row", 8, {{4096, 128, 64}, {4160, 128, 64}}, 2, KVF_OK, ""},
        {"in any order, with gaps", 8, {{4200, 128, 8}, {4096, 128, 64}, {4170, 128, 20}}, 3, KVF_OK, ""},
        {"into the next row", 8, {{4096, 128, 64}, {4160, 128, 65}}, 2, KVF_ERR_INVALID_ARGUMENT,
         "grid 1: blocks of 65 bytes, every 128 from 0x1040, overlap within the stride those of grid 0"},
        {"rows later", 8, {{4096, 128, 64}, {4160 + 128 * 3, 128, 64}}, 2, KVF_OK, ""},
        {"rows later, at the same place", 8, {{4096, 128, 64}, {4160 + 128 * 3, 128, 64}, {4096 + 128 * 8, 128, 64}}, 3,
         KVF_ERR_INVALID_ARGUMENT, "grid 2: blocks of 64 bytes, every 128 from 0x1400, overlap within the stride"},
        {"another stride amid", 8, {{4096, 128, 64}, {4160, 256, 64}}, 2, KVF_ERR_INVALID_ARGUMENT,
         "grid 1: a stride of 256 bytes from 0x1040 on, amid grid 0 with 128 from 0x1000 on, expected the same"},
        {"another stride behind", 8, {{4096, 128, 64}, {4096 + 1024, 256, 64}}, 2, KVF_OK, ""}};

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene scene;
        kvf_mooncake_guard *guard = NULL;
        struct kvf_error error = {.text = ""};
        enum kvf_status status;

        set_up(&scene);
        status = kvfi_moon_guard_open(&scene.regions, rows[i].grids, rows[i].grid_count, rows[i].block_count, &guard,
                                      &error);
        if (status != rows[i].status || !strstr(error.text, rows[i].text))
            fail_msg("%s: %s: %s", rows[i].name, kvf_status_name(status), error.text);
        assert_int_equal(guard != NULL, status == KVF_OK);
        assert_int_equal(scene.regions.guard_count, status == KVF_OK);
        kvf_mooncake_guard_close(guard);
        assert_int_equal(scene.regions.guard_count, 0);
        tear_down(&scene);
    }
}

/* ---- what is admitted ------------------------------------------------------------------------------------------- */

/* Rows of 128 bytes from 4096 on: K at 0, V at 64; each 48 long, then 16 of padding. Blocks 1 and 2 are granted. */
static void test_admitted(void **state)
{
    static const struct {
        const char *name;
        bool is_read;
        uint64_t address, bytes;
        enum kvfi_moon_reason reason; /* 0: admitted */
        uint64_t at, block;
    } rows[] = {
        {"a block of K", false, 4096 + 128, 48, 0, 0, 0},
        {"one byte", false, 4096 + 128, 1, 0, 0, 0},
        {"the last byte of V", false, 4096 + 2 * 128 + 111, 1, 0, 0, 0},
        {"a read", true, 4096 + 128, 48, KVFI_MOON_NO_READS, 4096 + 128, 0},
        {"a block before", false, 4096, 48, KVFI_MOON_NOT_GRANTED, 4096, 0},
        {"a block behind", false, 4096 + 3 * 128, 48, KVFI_MOON_NOT_GRANTED, 4096 + 3 * 128, 3},
        {"a byte into the padding", false, 4096 + 128, 49, KVFI_MOON_NO_BLOCK, 4096 + 128 + 48, 0},
        {"the padding", false, 4096 + 128 + 48, 1, KVFI_MOON_NO_BLOCK, 4096 + 128 + 48, 0},
        {"behind all blocks", false, 4096 + 8 * 128, 1, KVFI_MOON_NO_BLOCK, 4096 + 8 * 128, 0},
        {"before all blocks", false, 4000, 1, KVFI_MOON_NO_BLOCK, 4000, 0},
        {"nothing", false, 4096 + 128, 0, KVFI_MOON_NO_BUFFER, 4096 + 128, 0},
        {"past the buffer", false, 4096 + 128, 8192, KVFI_MOON_NO_BUFFER, 4096 + 128, 0},
        {"around all addresses", false, 4096 + 128, UINT64_MAX, KVFI_MOON_NO_BUFFER, 4096 + 128, 0},
        {"in no buffer", false, 1, 48, KVFI_MOON_NO_BUFFER, 1, 0},
        {"an unguarded buffer", false, 16384, 64, 0, 0, 0},
        {"a read of one", true, 16384, 64, 0, 0, 0}};
    static const struct kvf_mooncake_grid grids[] = {{4096 + 64, 128, 48}, {4096, 128, 48}};
    static const int64_t granted[] = {1, 2};
    kvf_mooncake_guard *guard;
    struct scene scene;

    (void)state;
    set_up(&scene);
    add(&scene, 3840, 2048);
    add(&scene, 16384, 64);
    assert_int_equal(kvfi_moon_guard_open(&scene.regions, grids, 2, 8, &guard, NULL), KVF_OK);
    assert_int_equal(kvf_mooncake_guard_grant(guard, granted, 2, NULL), KVF_OK);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kvfi_moon_refusal refusal = {.reason = 0};
        int reason = try(&scene, !rows[i].is_read, rows[i].address, rows[i].bytes, &refusal);

        if (reason != (int)rows[i].reason) fail_msg("%s: %d", rows[i].name, reason);
        if (reason != 0) assert_int_equal(refusal.at, rows[i].at);
        if (reason == KVFI_MOON_NOT_GRANTED) assert_int_equal(refusal.block, rows[i].block);
        if (reason == KVFI_MOON_NOT_GRANTED) assert_int_equal(refusal.guard, 1);
    }
    kvf_mooncake_guard_close(guard);
    tear_down(&scene);
}

/* One request may reach over blocks of one grid, over grids side by side, and over guards. */
static void test_joined(void **state)
{
    kvf_mooncake_guard *first, *second;
    struct kvfi_moon_refusal refusal;
    struct scene scene;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 4096);
    first = guard_over(&scene, 4096, 64, 64, 64);
    second = guard_over(&scene, 4096, 128, 128, 32);
    grant(first, 0);
    grant(first, 1);
    grant(first, 4);
    grant(second, 1);
    assert_int_equal(writes(&scene, 4096, 320), 0);
    assert_int_equal(count(first, 0) + count(first, 1) + count(first, 4), 192);
    assert_int_equal(count(second, 1), 128);
    assert_int_equal(try(&scene, true, 4096 + 1, 320, &refusal), KVFI_MOON_NOT_GRANTED);
    assert_int_equal(refusal.at, 4096 + 320);
    grant(second, 0); /* over blocks 0 and 1 of the first one: counts in both */
    assert_int_equal(writes(&scene, 4096 + 60, 8), 0);
    assert_int_equal(count(first, 0), 68);
    assert_int_equal(count(first, 1), 68);
    assert_int_equal(count(second, 0), 8);
    revoke(second, 1, true);
    assert_int_equal(writes(&scene, 4096, 320), KVFI_MOON_NOT_GRANTED);
    assert_int_equal(writes(&scene, 4096, 128), 0);
    kvf_mooncake_guard_close(first);
    assert_int_equal(writes(&scene, 4096, 128), 0);
    revoke(second, 0, true);
    assert_int_equal(writes(&scene, 4096, 128), KVFI_MOON_NOT_GRANTED);
    kvf_mooncake_guard_close(second);
    assert_int_equal(writes(&scene, 4096, 128), KVFI_MOON_NO_BLOCK);
    tear_down(&scene);
}

/* ---- what is guarded -------------------------------------------------------------------------------------------- */

static void test_guarded(void **state)
{
    kvf_mooncake_guard *guard;
    struct scene scene;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 64);
    add(&scene, 4096 + 64, 64);
    guard = guard_over(&scene, 4096, 128, 64, 8); /* the second one lies between its blocks */
    assert_int_equal(writes(&scene, 4096, 64), KVFI_MOON_NOT_GRANTED);
    assert_int_equal(writes(&scene, 4096 + 64, 64), 0);
    add(&scene, 4096 + 128, 896); /* later */
    assert_int_equal(writes(&scene, 4096 + 128, 64), KVFI_MOON_NOT_GRANTED);
    grant(guard, 1);
    assert_int_equal(writes(&scene, 4096 + 128, 64), 0);
    take_away(&scene, 4096 + 128);
    add(&scene, 4096 + 128, 64);
    assert_int_equal(writes(&scene, 4096 + 128, 64), 0);
    revoke(guard, 1, true);
    assert_int_equal(writes(&scene, 4096 + 128, 64), KVFI_MOON_NOT_GRANTED);
    kvf_mooncake_guard_close(guard);
    assert_int_equal(writes(&scene, 4096, 64), KVFI_MOON_NO_BLOCK); /* for as long as it is registered */
    take_away(&scene, 4096);
    add(&scene, 4096, 64);
    assert_int_equal(writes(&scene, 4096, 64), 0);
    tear_down(&scene);
}

/* What is under way when its buffer gets guarded must end. */
static void test_guarded_amid_requests(void **state)
{
    struct kvfi_moon_use read, write, elsewhere;
    struct kvfi_moon_refusal refusal;
    kvf_mooncake_guard *guard;
    struct scene scene;
    int64_t block = 0;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 64);
    add(&scene, 8192, 64);
    assert_true(kvfi_moon_regions_use(&scene.regions, false, 4096, 8, &read, &refusal));
    assert_true(kvfi_moon_regions_use(&scene.regions, true, 4100, 8, &write, &refusal));
    assert_true(kvfi_moon_regions_use(&scene.regions, true, 8192, 8, &elsewhere, &refusal));
    guard = guard_over(&scene, 4096, 64, 64, 1);
    assert_int_equal(scene.closes, 1);
    assert_true(kvfi_moon_use_is_revoked(&read));
    assert_true(kvfi_moon_use_is_revoked(&write));
    assert_false(kvfi_moon_use_is_revoked(&elsewhere));
    assert_false(kvfi_moon_guard_is_quiet(guard, &block, 1));
    grant(guard, 0);
    kvfi_moon_regions_release(&scene.regions, &read, false);
    kvfi_moon_regions_release(&scene.regions, &write, true);
    assert_true(kvfi_moon_guard_is_quiet(guard, &block, 1));
    assert_int_equal(count(guard, 0), 0); /* it began before the grant */
    kvfi_moon_regions_release(&scene.regions, &elsewhere, true);
    tear_down(&scene);
}

/* ---- grants ----------------------------------------------------------------------------------------------------- */

static void test_grants(void **state)
{
    static const int64_t twice[] = {3, 3}, low[] = {1, -1}, high[] = {1, 8}, some[] = {3, 4}, more[] = {3, 3, 3};
    struct kvf_error error;
    kvf_mooncake_guard *guard;
    struct scene scene;
    int64_t bytes = 77;
    bool quiet = false;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 512);
    guard = guard_over(&scene, 4096, 64, 64, 8);
    assert_int_equal(kvf_mooncake_guard_grant(guard, NULL, 0, NULL), KVF_OK);
    assert_int_equal(kvf_mooncake_guard_grant(guard, low, 2, &error), KVF_ERR_OUT_OF_RANGE);
    assert_string_equal(error.text, "block -1 (1 of 2): guard 1 has blocks 0 to 7");
    assert_int_equal(kvf_mooncake_guard_grant(guard, high, 2, NULL), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(kvf_mooncake_guard_count(guard, high, 2, &bytes, NULL), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(bytes, 77);
    assert_int_equal(kvf_mooncake_guard_revoke(guard, high, 2, 0, NULL), KVF_ERR_OUT_OF_RANGE);
    assert_int_equal(writes(&scene, 4096 + 64, 1), KVFI_MOON_NOT_GRANTED);
    assert_int_equal(kvf_mooncake_guard_grant(guard, twice, 2, NULL), KVF_OK);
    assert_int_equal(writes(&scene, 4096 + 3 * 64, 64), 0);
    assert_int_equal(kvf_mooncake_guard_revoke(guard, some, 2, 0, &error), KVF_ERR_NOT_FOUND);
    assert_string_equal(error.text, "block 4 (1 of 2) of guard 1 is not granted that often");
    assert_int_equal(kvfi_moon_guard_revoke_begin(guard, more, 3, &quiet, NULL), KVF_ERR_NOT_FOUND);
    assert_false(quiet);
    assert_int_equal(writes(&scene, 4096 + 3 * 64, 64), 0); /* still twice */
    assert_int_equal(kvf_mooncake_guard_revoke(guard, twice, 1, 0, NULL), KVF_OK);
    assert_int_equal(writes(&scene, 4096 + 3 * 64, 64), 0);
    grant(guard, 3); /* not the first one: the count goes on */
    assert_int_equal(count(guard, 3), 192);
    assert_int_equal(kvf_mooncake_guard_revoke(guard, twice, 2, 0, NULL), KVF_OK);
    assert_int_equal(writes(&scene, 4096 + 3 * 64, 64), KVFI_MOON_NOT_GRANTED);
    assert_int_equal(count(guard, 3), 192);
    grant(guard, 3);
    assert_int_equal(count(guard, 3), 0);
    assert_int_equal(kvf_mooncake_guard_revoke(guard, some + 1, 1, 0, &error), KVF_ERR_NOT_FOUND);
    assert_string_equal(error.text, "block 4 (0 of 1) of guard 1 is not granted");
    tear_down(&scene); /* with a guard open: it goes with the regions */
}

static void test_most_grants(void **state)
{
    static const int64_t both[] = {0, 1};
    struct kvf_error error;
    kvf_mooncake_guard *guard;
    struct scene scene;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 128);
    guard = guard_over(&scene, 4096, 64, 64, 2);
    for (int i = 0; i < 65535; i++) grant(guard, 1);
    assert_int_equal(kvf_mooncake_guard_grant(guard, both, 2, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "block 1 of guard 1 is granted 65535 times");
    assert_int_equal(writes(&scene, 4096, 1), KVFI_MOON_NOT_GRANTED);
    for (int i = 0; i < 65535; i++) revoke(guard, 1, true);
    assert_int_equal(writes(&scene, 4096 + 64, 1), KVFI_MOON_NOT_GRANTED);
    tear_down(&scene);
}

/* ---- requests amid revokes -------------------------------------------------------------------------------------- */

static void test_revoke_amid_requests(void **state)
{
    struct kvfi_moon_use one, other;
    struct kvfi_moon_refusal refusal;
    kvf_mooncake_guard *guard;
    struct scene scene;
    int64_t first = 0, second = 1;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 256);
    guard = guard_over(&scene, 4096, 64, 64, 4);
    grant(guard, 0);
    grant(guard, 1);
    grant(guard, 1);
    assert_true(kvfi_moon_regions_use(&scene.regions, true, 4096, 128, &one, &refusal));
    assert_true(kvfi_moon_regions_use(&scene.regions, true, 4096 + 64, 64, &other, &refusal));
    revoke(guard, 1, true); /* it has another grant */
    assert_int_equal(scene.closes, 0);
    revoke(guard, 0, false);
    assert_int_equal(scene.closes, 1);
    assert_true(kvfi_moon_use_is_revoked(&one));
    assert_false(kvfi_moon_use_is_revoked(&other));
    assert_false(kvfi_moon_guard_is_quiet(guard, &second, 1)); /* the condemned one lies there, too */
    kvfi_moon_regions_release(&scene.regions, &one, true);
    assert_true(kvfi_moon_guard_is_quiet(guard, &first, 1));
    assert_int_equal(count(guard, 0), 0);
    assert_int_equal(count(guard, 1), 64); /* of the part that is still granted */
    kvfi_moon_regions_release(&scene.regions, &other, false);
    assert_int_equal(count(guard, 1), 64); /* its connection was lost */
    tear_down(&scene);
}

/* A request that goes on by another guard's grant does not count in a later grant, nor go on by it. */
static void test_older_than_its_grant(void **state)
{
    struct kvfi_moon_use use;
    struct kvfi_moon_refusal refusal;
    kvf_mooncake_guard *guard, *other;
    struct scene scene;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 64);
    guard = guard_over(&scene, 4096, 64, 64, 1);
    other = guard_over(&scene, 4096, 64, 64, 1);
    grant(guard, 0);
    grant(other, 0);
    assert_true(kvfi_moon_regions_use(&scene.regions, true, 4096, 64, &use, &refusal));
    revoke(guard, 0, true);
    grant(guard, 0);
    revoke(other, 0, false);
    kvfi_moon_regions_release(&scene.regions, &use, true);
    assert_int_equal(count(guard, 0), 0);
    assert_int_equal(writes(&scene, 4096, 64), 0);
    assert_int_equal(count(guard, 0), 64);
    tear_down(&scene);
}

/* ---- news ------------------------------------------------------------------------------------------------------- */

static void on_news(void *context)
{
    ++*(int *)context;
}

static void test_news(void **state)
{
    struct kvfi_moon_use use;
    struct kvfi_moon_refusal refusal;
    kvf_mooncake_guard *guard;
    struct scene scene;
    int news = 0;

    (void)state;
    set_up(&scene);
    add(&scene, 4096, 128);
    guard = guard_over(&scene, 4096, 64, 64, 2);
    kvfi_moon_guard_set_news(guard, on_news, &news);
    grant(guard, 0);
    assert_int_equal(writes(&scene, 4096, 64), 0);
    assert_int_equal(news, 0); /* nobody asked */
    kvfi_moon_guard_ask_news(guard);
    assert_int_equal(writes(&scene, 4096 + 64, 64), KVFI_MOON_NOT_GRANTED);
    assert_int_equal(news, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(writes(&scene, 4096, 64), 0);
    assert_int_equal(news, 1); /* once */
    assert_true(kvfi_moon_regions_use(&scene.regions, true, 4096, 64, &use, &refusal));
    revoke(guard, 0, false);
    kvfi_moon_guard_ask_news(guard);
    assert_int_equal(news, 1);
    kvfi_moon_regions_release(&scene.regions, &use, false);
    assert_int_equal(news, 2); /* it is quiet */
    kvfi_moon_guard_set_news(guard, NULL, NULL);
    kvfi_moon_guard_ask_news(guard);
    grant(guard, 0);
    assert_int_equal(writes(&scene, 4096, 64), 0);
    assert_int_equal(news, 2);
    tear_down(&scene);
}

static void test_most_guards(void **state)
{
    struct kvf_error error;
    const struct kvf_mooncake_grid grid = {4096, 64, 64};
    kvf_mooncake_guard *guard;
    struct scene scene;

    (void)state;
    set_up(&scene);
    for (int i = 0; i < 1024; i++)
        assert_int_equal(kvfi_moon_guard_open(&scene.regions, &grid, 1, 1, &guard, NULL), KVF_OK);
    assert_int_equal(kvfi_moon_guard_open(&scene.regions, &grid, 1, 1, &guard, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "1024 guards are open, at most 1024");
    tear_down(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grids),        cmocka_unit_test(test_admitted),
        cmocka_unit_test(test_joined),       cmocka_unit_test(test_guarded),
        cmocka_unit_test(test_guarded_amid_requests), cmocka_unit_test(test_grants),
        cmocka_unit_test(test_most_grants),  cmocka_unit_test(test_revoke_amid_requests),
        cmocka_unit_test(test_older_than_its_grant), cmocka_unit_test(test_news),
        cmocka_unit_test(test_most_guards)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
