/* SPDX-License-Identifier: Apache-2.0 */
/* What binding accepts and refuses: ids, ranges, holes, and the sides whose ids are not known. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan_kit.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
/* lists in tables: what KIT_IDS is in code */
#define IDS(...) {(const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), 0}
#define NO_LIST {NULL, 2, 0}

/** Blocks of 16 tokens of 64 bytes, 32 slots at the source and 8 at the destination; a state of 40 bytes in a group of
 * its own with 4 slots. */
static void build(struct kit *kit, int64_t slots, int64_t tokens)
{
    kit_init(kit);
    kit_pool(kit, kit_memory(kit), 0, 4 * tokens, slots);
    kit_pool(kit, kit_memory(kit), 0, 40, 4);
    kit_group(kit, tokens);
    kit_group(kit, 0);
    kit_view(kit, (struct kit_part){.role = "kv", .row = 4, .entries = tokens});
    kit_place(kit, 0, 0, 0);
    kit_view(kit, (struct kit_part){.role = "ssm", .group = 1, .row = 40});
    kit_place(kit, 1, 1, 0);
}

static const struct row {
    const char *name;
    struct kvf_id_list src, dst, src_state, dst_state;
    int64_t begin, end;
    uint64_t flags;
    int status;
    int64_t bytes;    /**< when bound */
    const char *text; /**< when refused */
} rows[] = {
    {"all of it", IDS(4, 31, 0), IDS(7, 0, 3), IDS(3), IDS(0), 0, 48, 0, KVF_OK, 232, NULL},
    {"ragged end", IDS(4, 31, 0), IDS(7, 0, 3), IDS(3), IDS(0), 0, 33, 0, KVF_OK, 232, NULL},
    {"nothing but state", IDS(4), IDS(7), IDS(3), IDS(0), 16, 16, 0, KVF_OK, 40, NULL},
    {"state stays", IDS(4), IDS(7), IDS(3), IDS(0), 0, 16, KVF_BIND_NO_STATE, KVF_OK, 64, NULL},
    {"state alone", IDS(4), IDS(7), IDS(3), IDS(0), 0, 16, KVF_BIND_ONLY_STATE, KVF_OK, 40, NULL},
    {"state not wanted", IDS(4), IDS(7), IDS(-1), IDS(-1), 0, 16, 0, KVF_OK, 64, NULL},
    {"holes on both sides", IDS(4, -1, 6), IDS(7, -1, 3), IDS(3), IDS(0), 0, 48, 0, KVF_OK, 168, NULL},
    {"hole at the destination", IDS(4, 5, 6), IDS(-1, -1, 3), IDS(3), IDS(0), 0, 48, 0, KVF_OK, 104,
     NULL},
    {"surplus ids, whatever they are", IDS(4, 4, -9), IDS(7, 7, 99), IDS(3), IDS(0), 0, 16, 0, KVF_OK,
     104, NULL},
    {"hole at the source, skipped", IDS(4, -1, 6), IDS(7, 1, 3), IDS(-1), IDS(0), 0, 48, KVF_BIND_SKIP_HOLES, KVF_OK,
     128, NULL},
    {"source list ends, skipped", IDS(4), IDS(7, 1, 3), IDS(3), IDS(0), 0, 48, KVF_BIND_SKIP_HOLES, KVF_OK, 104, NULL},
    {"partial", IDS(4, 5, 6), IDS(7), IDS(3), IDS(0), 0, 48, KVF_BIND_PARTIAL, KVF_OK, 104, NULL},
    {"source not known", NO_LIST, IDS(7, 0, 3), NO_LIST, IDS(0), 0, 48, KVF_BIND_SRC_UNKNOWN, KVF_OK, 232,
     NULL},
    {"destination not known", IDS(4, 5, 6), IDS(700, -1, 700), IDS(3), IDS(88), 0, 48,
     KVF_BIND_DST_UNKNOWN, KVF_OK, 168, NULL},
    {"holes skipped on an unknown side", IDS(4), IDS(7), IDS(3), IDS(0), 0, 16,
     KVF_BIND_SKIP_HOLES | KVF_BIND_DST_UNKNOWN, KVF_ERR_INVALID_ARGUMENT, 0,
     "bind request: holes are skipped where both sides' ids are known only"},
    {"range backwards", IDS(4), IDS(7), IDS(3), IDS(0), 16, 0, 0, KVF_ERR_OUT_OF_RANGE, 0,
     "range [16,0) of tokens is not valid"},
    {"range before 0", IDS(4), IDS(7), IDS(3), IDS(0), -1, 16, 0, KVF_ERR_OUT_OF_RANGE, 0,
     "range [-1,16) of tokens is not valid"},
    {"inside a grain", IDS(4), IDS(7), IDS(3), IDS(0), 5, 16, 0, KVF_ERR_OUT_OF_RANGE, 0,
     "groups 0 and 0: range begins at token 5, expected a multiple of the grain of 16 tokens"},
    {"destination id too high", IDS(4, 5), IDS(7, 8), IDS(3), IDS(0), 0, 32, 0, KVF_ERR_IDS, 0,
     "destination group 0: id 8 at index 1, expected -1 or below 8"},
    {"source id too high", IDS(32), IDS(7), IDS(3), IDS(0), 0, 16, 0, KVF_ERR_IDS, 0,
     "source group 0: id 32 at index 0, expected -1 or below 32"},
    {"id below -1", IDS(4, 5), IDS(7, -2), IDS(3), IDS(0), 0, 32, 0, KVF_ERR_IDS, 0,
     "destination group 0: id -2 at index 1, expected -1 or below 8"},
    {"id below -1 of an unknown side", IDS(4, 5), IDS(7, -2), IDS(3), IDS(0), 0, 32,
     KVF_BIND_DST_UNKNOWN, KVF_ERR_IDS, 0, "destination group 0: id -2 at index 1, expected -1 or more"},
    {"repeated id", IDS(4, 5, 6), IDS(3, 7, 3), IDS(3), IDS(0), 0, 48, 0, KVF_ERR_IDS, 0,
     "destination group 0: id 3 at index 2 is at index 0 already"},
    {"repeated source id", IDS(4, 4), IDS(3, 7), IDS(3), IDS(0), 0, 32, 0, KVF_ERR_IDS, 0,
     "source group 0: id 4 at index 1 is at index 0 already"},
    {"repeated id in the prefix", IDS(4, 5, 6), IDS(3, 3, 2), IDS(3), IDS(0), 32, 48, 0, KVF_ERR_IDS, 0,
     "destination group 0: id 3 at index 1 is at index 0 already"},
    {"destination too short", IDS(4, 5, 6), IDS(3, 2), IDS(3), IDS(0), 0, 48, 0, KVF_ERR_IDS, 0,
     "destination group 0: 2 ids from ordinal 0 end before position 32, the range ends at 48"},
    {"destination empty", IDS(4), {NULL, 0, 0}, IDS(3), IDS(0), 0, 16, 0, KVF_ERR_IDS, 0,
     "destination group 0: 0 ids from ordinal 0 end before position 0, the range ends at 16"},
    {"source too short", IDS(4), IDS(3, 2), IDS(3), IDS(0), 0, 32, 0, KVF_ERR_IDS, 0,
     "source group 0: no block at position 16, but destination group 0 wants it in id 2"},
    {"source hole", IDS(4, -1), IDS(3, 2), IDS(3), IDS(0), 0, 32, 0, KVF_ERR_IDS, 0,
     "source group 0: no block at position 16, but destination group 0 wants it in id 2"},
    {"no source state", IDS(4), IDS(3), IDS(-1), IDS(2), 0, 16, 0, KVF_ERR_IDS, 0,
     "source group 1: no id for the state, but destination group 1 wants it in id 2"},
    {"no destination state", IDS(4), IDS(3), IDS(1), {NULL, 0, 0}, 0, 16, 0, KVF_ERR_IDS, 0,
     "destination group 1: no id for the state (-1 = not wanted)"},
    {"state id too high", IDS(4), IDS(3), IDS(1), IDS(4), 0, 16, 0, KVF_ERR_IDS, 0,
     "destination group 1: id 4 at index 0, expected -1 or below 4"},
    {"list without ids", IDS(4), NO_LIST, IDS(3), IDS(0), 0, 16, 0, KVF_ERR_IDS, 0,
     "destination group 0: 2 ids from ordinal 0 are no list"},
    {"negative first", IDS(4), {(const int64_t[]){1}, 1, -1}, IDS(3), IDS(0), 0, 16, 0, KVF_ERR_IDS, 0,
     "destination group 0: 1 ids from ordinal -1 are no list"},
    {"unknown flag", IDS(4), IDS(3), IDS(3), IDS(0), 0, 16, 1 << 20, KVF_ERR_NEWER_OPTION, 0,
     "bind request: flags 0x100000, this library knows 0xff"},
    {"no state and only state", IDS(4), IDS(3), IDS(3), IDS(0), 0, 16,
     KVF_BIND_NO_STATE | KVF_BIND_ONLY_STATE, KVF_ERR_INVALID_ARGUMENT, 0,
     "bind request: no state and only state exclude each other"},
};

static kvf_plan *make_plan(int64_t src_tokens, int64_t dst_tokens)
{
    struct kit src, dst;
    kvf_plan *plan;

    build(&src, 32, src_tokens);
    build(&dst, 8, dst_tokens);
    plan = kit_plan(&src, &dst, 0);
    kit_free(&dst);
    kit_free(&src);
    return plan;
}

static struct kvf_bind_request request_of(const struct kvf_id_list *src, const struct kvf_id_list *dst, int64_t begin,
                                          int64_t end, uint64_t flags)
{
    struct kvf_bind_request request;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = flags;
    request.token_begin = begin;
    request.token_end = end;
    request.request_tokens = end;
    request.src = src;
    request.dst = dst;
    request.src_count = 2;
    request.dst_count = 2;
    return request;
}

static void test_rows(void **state)
{
    kvf_plan *plan = make_plan(16, 16);

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct row *row = &rows[i];
        const struct kvf_id_list src[] = {row->src, row->src_state}, dst[] = {row->dst, row->dst_state};
        struct kvf_bind_request request = request_of(src, dst, row->begin, row->end, row->flags);
        struct kvf_error error = {0};
        kvf_binding *binding = NULL;
        int status = kvf_bind(plan, &request, &binding, &error);

        if (status != row->status) fail_msg("%s: %s (%s)", row->name, kvf_status_name(status), error.text);
        if (row->text && strcmp(error.text, row->text) != 0) fail_msg("%s: %s", row->name, error.text);
        if (status == KVF_OK && kvf_binding_bytes(binding) != row->bytes)
            fail_msg("%s: %" PRId64 " bytes", row->name, kvf_binding_bytes(binding));
        if (status != KVF_OK) assert_null(binding);
        kvf_binding_destroy(binding);
    }
    kvf_plan_release(plan);
}

static void test_missing_lists(void **state)
{
    kvf_plan *plan = make_plan(16, 16);
    const struct kvf_id_list lists[] = {KIT_IDS(1), KIT_IDS(1)};
    struct kvf_bind_request request = request_of(lists, lists, 0, 16, 0);
    struct kvf_error error = {0};
    kvf_binding *binding = NULL;

    (void)state;
    request.src_count = 1;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "1 source id lists, expected one for each of 2 groups");
    request.src_count = 2;
    request.dst = NULL;
    request.dst_count = 0;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "0 destination id lists, expected one for each of 2 groups");
    assert_int_equal(kvf_bind(NULL, &request, &binding, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_bind(plan, NULL, &binding, NULL), KVF_ERR_INVALID_ARGUMENT);
    kvf_plan_release(plan);
}

static const struct {
    const char *name;
    int64_t src_tokens, dst_tokens, begin, end;
    struct kvf_id_list dst;
    int64_t valid, missing;
} partials[] = {
    {"nothing missing", 16, 16, 0, 48, IDS(1, 2, 3), 48, -1},
    {"one block missing", 16, 16, 0, 48, IDS(1, 2), 32, 32},
    {"all missing", 16, 16, 16, 48, IDS(1), 16, 16},
    {"larger blocks", 16, 64, 0, 90, IDS(1), 64, 64},
    {"smaller blocks", 48, 16, 0, 90, IDS(1, 2, 3, 4), 64, 64},
};

static void test_partial(void **state)
{
    const struct kvf_id_list src[] = {KIT_IDS(1, 2, 3, 4, 5, 6), KIT_IDS(0)};

    (void)state;
    for (size_t i = 0; i < COUNT(partials); i++) {
        kvf_plan *plan = make_plan(partials[i].src_tokens, partials[i].dst_tokens);
        const struct kvf_id_list dst[] = {partials[i].dst, KIT_IDS(0)};
        struct kvf_bind_request request = request_of(src, dst, partials[i].begin, partials[i].end, KVF_BIND_PARTIAL);
        struct kvf_binding_info info;
        struct kvf_error error = {0};
        kvf_binding *binding = NULL;

        if (kvf_bind(plan, &request, &binding, &error) != KVF_OK) fail_msg("%s: %s", partials[i].name, error.text);
        kvf_binding_get_info(binding, &info);
        if (info.valid_tokens != partials[i].valid || info.first_missing != partials[i].missing)
            fail_msg("%s: valid %" PRId64 ", missing %" PRId64, partials[i].name, info.valid_tokens,
                     info.first_missing);
        kvf_binding_destroy(binding);
        kvf_plan_release(plan);
    }
}

static void test_repeats_far_apart(void **state)
{
    enum { BLOCKS = 5000 };
    const int64_t wide = INT64_C(1) << 40;
    static int64_t src_ids[BLOCKS], dst_ids[BLOCKS];
    struct kvf_id_list src = {src_ids, BLOCKS, 0}, dst = {dst_ids, BLOCKS, 0};
    struct kvf_bind_request request = request_of(&src, &dst, 0, BLOCKS, 0);
    struct kvf_error error = {0};
    kvf_binding *binding = NULL;
    struct kit kit;
    kvf_plan *plan;

    (void)state;
    kit_init(&kit);
    kit_pool(&kit, kit_memory(&kit), 0, 4, wide);
    kit_group(&kit, 1);
    kit_view(&kit, (struct kit_part){.role = "kv", .row = 4});
    kit_place(&kit, 0, 0, 0);
    plan = kit_plan(&kit, &kit, 0);
    request.src_count = 1;
    request.dst_count = 1;
    for (int64_t i = 0; i < BLOCKS; i++) {
        src_ids[i] = (i * 7919 + 13) % BLOCKS;
        dst_ids[i] = wide - 1 - (i * 7919 + 13) % BLOCKS * 1000003;
    }
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_OK);
    kvf_binding_destroy(binding);
    binding = NULL;
    dst_ids[4000] = dst_ids[17];
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_IDS);
    assert_non_null(strstr(error.text, " at index 4000 is at index 17 already"));
    dst_ids[4000] = -1;
    dst_ids[4001] = -1;
    request.flags = KVF_BIND_SRC_UNKNOWN;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_OK);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&kit);
}

static void test_hostile_ranges(void **state)
{
    kvf_plan *plan = make_plan(16, 16);
    const struct kvf_id_list ids = KIT_IDS(1), late = {(const int64_t[]){1}, 1, INT64_C(1) << 50};
    const struct kvf_id_list src[] = {ids, ids}, dst[] = {ids, ids}, dst_late[] = {late, ids};
    struct kvf_bind_request request = request_of(src, dst, 0, INT64_MAX, KVF_BIND_PARTIAL);
    struct kvf_error error = {0};
    kvf_binding *binding = NULL;

    (void)state;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_OVERFLOW);
    assert_string_equal(error.text, "groups 0 and 0: token 9223372036854775807 does not fit");
    request.token_end = INT64_C(1) << 60;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_OK);
    assert_int_equal(kvf_binding_bytes(binding), 104);
    kvf_binding_destroy(binding);
    binding = NULL;
    request.dst = dst_late;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "groups 0 and 0: more than 16777216 runs of positions");
    assert_null(binding);
    kvf_plan_release(plan);
}

/* The walks of all tracks are bounded together. */
static void test_hostile_tracks(void **state)
{
    const struct kvf_id_list late = {(const int64_t[]){1}, 1, 12000000};
    const struct kvf_id_list both[] = {late, late}, one[] = {late, KIT_IDS(1)};
    struct kvf_bind_request request = request_of(both, both, 0, INT64_C(16) * 12000001, KVF_BIND_PARTIAL);
    struct kvf_error error = {0};
    kvf_binding *binding = NULL;
    struct kit kit;
    kvf_plan *plan;

    (void)state;
    kit_init(&kit);
    kit_pool(&kit, kit_memory(&kit), 0, 4096, 16);
    for (int64_t group = 0; group < 2; group++) {
        kit_group(&kit, 16);
        kit_view(&kit, (struct kit_part){.role = group ? "v" : "k", .group = group, .row = 8, .entries = 16});
        kit_place(&kit, 0, 0, 2048 * group);
    }
    plan = kit_plan(&kit, &kit, 0);
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "groups 1 and 1: more than 16777216 runs of positions");
    assert_null(binding);
    request.src = request.dst = one;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_OK);
    kvf_binding_destroy(binding);
    kvf_plan_release(plan);
    kit_free(&kit);
}

/* Slots of 600 bytes of which 400 are used, in a memory that ends with the use of the last. */
static void test_promoted_last_slot(void **state)
{
    static const struct { const char *name; int64_t src, dst; uint64_t flags; const char *text; } cases[] = {
        {"first slots", 0, 0, 0, NULL},
        {"last at the destination", 0, 1, 0, "destination memory 0: a promoted row ends at 1200, memory has 1000"},
        {"last at the source", 1, 0, 0, "source memory 0: a promoted row ends at 1200, memory has 1000"},
        {"last of an unknown source", 1, 0, KVF_BIND_SRC_UNKNOWN, NULL},
    };
    struct kit kit;
    kvf_plan *plan;

    (void)state;
    kit_init(&kit);
    kit_pool(&kit, kit_memory(&kit), 0, 600, 2);
    kit.memory_bytes[0] = 1000;
    kit_group(&kit, 1);
    kit_view(&kit, (struct kit_part){.role = "k", .row = 400, .entries = 1});
    kit_place(&kit, 0, 0, 0);
    plan = kit_plan(&kit, &kit, KVF_PLAN_PROMOTE_ROW);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct kvf_id_list src = {&cases[i].src, 1, 0}, dst = {&cases[i].dst, 1, 0};
        struct kvf_bind_request request = request_of(&src, &dst, 0, 1, cases[i].flags);
        struct kvf_error error = {0};
        kvf_binding *binding = NULL;

        request.src_count = request.dst_count = 1;
        assert_int_equal(kvf_bind(plan, &request, &binding, &error), cases[i].text ? KVF_ERR_OUT_OF_RANGE : KVF_OK);
        if (cases[i].text && strcmp(error.text, cases[i].text) != 0) fail_msg("%s: \"%s\"", cases[i].name, error.text);
        if (binding) assert_int_equal(kvf_binding_bytes(binding), 600);
        kvf_binding_destroy(binding);
    }
    kvf_plan_release(plan);
    kit_free(&kit);
}

/* A request of fewer than no tokens, dealt contiguously. */
static void test_negative_request(void **state)
{
    const struct kvf_id_list ids = KIT_IDS(1);
    struct kvf_bind_request request = request_of(&ids, &ids, 0, INT64_MAX, 0);
    struct kvf_error error = {0};
    kvf_binding *binding = NULL;
    struct kit kit;
    kvf_plan *plan;

    (void)state;
    kit_init(&kit);
    kit_pool(&kit, kit_memory(&kit), 0, 16, 16);
    kit.groups[kit_group(&kit, 1)] = (struct kvf_group){1, 0, 2, 1, 0};
    kit_view(&kit, (struct kit_part){.role = "k", .row = 16, .entries = 1});
    kit_place(&kit, 0, 0, 0);
    plan = kit_plan(&kit, &kit, 0);
    request.src_count = request.dst_count = 1;
    request.request_tokens = INT64_MIN;
    assert_int_equal(kvf_bind(plan, &request, &binding, &error), KVF_ERR_OUT_OF_RANGE);
    assert_string_equal(error.text, "a request of -9223372036854775808 tokens is not valid");
    kvf_plan_release(plan);
    kit_free(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_missing_lists),
        cmocka_unit_test(test_partial),
        cmocka_unit_test(test_repeats_far_apart),
        cmocka_unit_test(test_hostile_ranges),
        cmocka_unit_test(test_hostile_tracks),
        cmocka_unit_test(test_negative_request),
        cmocka_unit_test(test_promoted_last_slot),
    };

    return cmocka_run_group_tests_name("bind", tests, NULL, NULL);
}
