/* SPDX-License-Identifier: Apache-2.0 */
/* Random instances with real memory: whatever the shapes, all senders of a request together write every byte that a
 * receiver wants, once, and it is the right one; strict pairs, native ones from whole instances, and native ones from
 * two rank infos. Usage: trtllm_pair_random_test [CASES [SEED]] */
#include "trtllm/pair.h"
#include "trtllm/pair_world_kit.h"
#include "trtllm/rank_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t cases = 400, first_seed = 1;

/** How pairs are made. */
enum manner { STRICT, WHOLE, IMPLIED };

/** Everything that is wanted is written in these worlds, so nothing may be said of bytes that are not. */
static void check_line(void *context, int level, const char *text)
{
    (void)context;
    (void)level;
    if (strstr(text, "is not written in whole")) fail_msg("%s", text);
}

/** Makes the pair of two ranks. NULL: refused, `error` says why. */
static kvf_trtllm_pair *make_pair(const struct world *world, int src, int dst, enum manner manner,
                                  struct kvf_error *error)
{
    const kvf_trtllm_rank *ranks[2][WORLD_RANKS];
    kvf_trtllm_registrar *registrar = NULL;
    kvf_trtllm_pair *pair = NULL;
    struct kvf_trtllm_options options;

    kvf_trtllm_options_init(&options, sizeof options);
    options.log = (struct kvf_log_sink){check_line, NULL, 0, KVF_LOG_WARN};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < world->counts[side]; i++) ranks[side][i] = world->ranks[side][i].rank;
    if (manner == WHOLE) {
        kvf_trtllm_pair_native(ranks[0], (size_t)world->counts[0], ranks[1], (size_t)world->counts[1], (size_t)src,
                               (size_t)dst, &pair, error);
    } else if (manner == IMPLIED) {
        kvfi_trt_pair_create(ranks[0][src], ranks[1][dst], false, &pair, error);
    } else if (kvf_trtllm_registrar_create(ranks[0][src], &options, &registrar, error) == KVF_OK &&
               kvf_trtllm_registrar_register(registrar, ranks[1][dst], NULL, error) == KVF_OK) {
        kvf_trtllm_registrar_pair(registrar, "gen", kvf_trtllm_rank_get_spec(ranks[1][dst])->instance_rank, &pair,
                                  error);
    }
    kvf_trtllm_registrar_destroy(registrar);
    return pair;
}

/** Whether a rank is among those that a receiver asks; where instances are known whole, all of the DP group are. */
static bool takes_part(const struct world *world, int src, int dst, int dp, enum manner manner)
{
    const kvf_trtllm_rank *self = world->ranks[1][dst].rank;
    struct kvf_trtllm_options options;
    struct kvf_trtllm_overlap overlap;
    kvf_trtllm_registrar *registrar = NULL;
    int64_t ranks[WORLD_RANKS];
    bool found = false;

    if (manner == WHOLE) return world->ranks[0][src].dp == dp;
    kvf_trtllm_options_init(&options, sizeof options);
    if (manner == IMPLIED) options.flags = 0;
    assert_int_equal(kvf_trtllm_registrar_create(self, &options, &registrar, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_overlap(registrar, world->ranks[0][0].rank, dp, &overlap, ranks, WORLD_RANKS,
                                                  NULL), KVF_OK);
    for (size_t i = 0; i < overlap.rank_count && i < WORLD_RANKS; i++)
        found = found || ranks[i] == kvf_trtllm_rank_get_spec(world->ranks[0][src].rank)->instance_rank;
    kvf_trtllm_registrar_destroy(registrar);
    return found;
}

/** Lets all senders of one DP group write into one receiver. @return false when one of them is refused */
static bool write_all(struct world *world, int dst, int dp, enum manner manner, struct kvf_error *error)
{
    bool good = true;

    for (int src = 0; src < world->counts[0] && good; src++) {
        struct kvf_trtllm_request request = world_request(world, &world->ranks[0][src], &world->ranks[1][dst]);
        kvf_trtllm_pair *pair;
        kvf_trtllm_write *write = NULL;

        if (!takes_part(world, src, dst, dp, manner)) continue;
        pair = make_pair(world, src, dst, manner, error);
        good = pair && kvf_trtllm_pair_bind(pair, &request, &write, error) == KVF_OK;
        if (good && !world_move(&world->ranks[0][src], &world->ranks[1][dst], write)) {
            snprintf(error->text, sizeof error->text, "a copy leaves the memory");
            error->status = KVF_ERR_INTERNAL;
            good = false;
        }
        kvf_trtllm_write_destroy(write);
        kvf_trtllm_pair_release(pair);
    }
    return good;
}

/** True where upstream has nothing to offer. */
static bool may_refuse(enum manner manner, const struct kvf_error *error)
{
    return manner == STRICT && (strstr(error->text, "incompatible with local rank") != NULL);
}

static void run_case(uint64_t seed, enum manner manner, size_t *refused)
{
    static struct world world; /* large */
    char what[512], found[256];

    world_init(&world, seed, manner == STRICT ? WORLD_STRICT : WORLD_NATIVE);
    world_describe(&world, what, sizeof what);
    for (int dst = 0; dst < world.counts[1]; dst++) {
        int dp = world.shapes[0].attention_dp ? (int)world_random(&world, world.shapes[0].tp) : 0;
        struct kvf_error error = {0};

        if (!write_all(&world, dst, dp, manner, &error)) {
            if (!may_refuse(manner, &error)) fail_msg("seed %lu (%s), rank %d: %s", seed, what, dst, error.text);
            (*refused)++;
            break;
        }
        if (!world_check(&world, &world.ranks[1][dst], found, sizeof found))
            fail_msg("seed %lu (%s), rank %d: %s", seed, what, dst, found);
    }
    world_fini(&world);
}

static void run(enum manner manner)
{
    size_t refused = 0;

    for (uint64_t i = 0; i < cases; i++) run_case(first_seed + i, manner, &refused);
    assert_true(refused * 4 < cases + 4);
}

static void test_strict(void **state)
{
    (void)state;
    run(STRICT);
}

static void test_native_instances(void **state)
{
    (void)state;
    run(WHOLE);
}

static void test_native_pairs(void **state)
{
    (void)state;
    run(IMPLIED);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_strict), cmocka_unit_test(test_native_instances),
                                       cmocka_unit_test(test_native_pairs)};

    if (argc > 1) cases = strtoull(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("random pairs", tests, NULL, NULL);
}
