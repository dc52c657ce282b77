/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap registry without HTTP: with every allocation refused in turn, nothing is half registered. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "directory/bootstrap.h"

static unsigned post(struct kvfi_bootstrap *bootstrap, const char *engine_id, int tp)
{
    struct kvfi_text answer = {0};
    char body[200];
    unsigned code;

    snprintf(body, sizeof body, "{\"engine_id\":\"%s\",\"dp_rank\":0,\"tp_rank\":%d,\"pp_rank\":0,"
             "\"addr\":\"tcp://h:%d\"}", engine_id, tp, tp);
    code = kvfi_bootstrap_register(bootstrap, body, strlen(body), &answer);
    if (answer.failed) code = 0; /* the server answers 503 */
    kvfi_text_fini(&answer);
    return code;
}

static void tell(const struct kvfi_bootstrap *bootstrap, char *out, size_t capacity)
{
    struct kvfi_text answer = {0};

    kvfi_bootstrap_query(bootstrap, &answer);
    assert_false(answer.failed);
    snprintf(out, capacity, "%s", answer.bytes);
    kvfi_text_fini(&answer);
}

/** Posts a registration with `allowed` allocations; then what is told is what was, or what is to be. */
static bool post_with(struct kvfi_bootstrap *bootstrap, const char *engine_id, int tp, long allowed)
{
    char before[400], after[400];
    unsigned code;

    tell(bootstrap, before, sizeof before);
    no_memory_from(allowed);
    code = post(bootstrap, engine_id, tp);
    if (no_memory_end()) assert_true(code == 200 || code == 503 || code == 422 || code == 0);
    else assert_int_equal(code, 200);
    tell(bootstrap, after, sizeof after);
    if (code == 503 || code == 422) assert_string_equal(after, before);
    return no_memory_refused();
}

static void nothing_is_half_registered(void **state)
{
    static const struct {
        const char *name, *engine_id, *expected;
        int tp;
        int64_t workers;
    } rows[] = {
        {"another slot", "eng-1", "{\"0\":{\"engine_id\":\"eng-1\",\"worker_addr\":{\"0\":{\"0\":\"tcp://h:0\"},"
         "\"1\":{\"0\":\"tcp://h:1\"}}}}", 1, 2},
        {"a successor that must wait", "eng-2", "{\"0\":{\"engine_id\":\"eng-1\",\"worker_addr\":"
         "{\"0\":{\"0\":\"tcp://h:0\"}}}}", 1, 2},
        {"a successor that takes over", "eng-2", "{\"0\":{\"engine_id\":\"eng-2\",\"worker_addr\":"
         "{\"0\":{\"0\":\"tcp://h:0\"}}}}", 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool refused = true;

        for (long allowed = 0; refused; allowed++) {
            struct kvfi_bootstrap bootstrap;
            char told[400];

            kvfi_bootstrap_init(&bootstrap, 10);
            bootstrap.replaces = true;
            assert_int_equal(post(&bootstrap, "eng-1", 0), 200);
            refused = post_with(&bootstrap, rows[i].engine_id, rows[i].tp, allowed);
            assert_int_equal(post(&bootstrap, rows[i].engine_id, rows[i].tp), 200);
            tell(&bootstrap, told, sizeof told);
            if (strcmp(told, rows[i].expected) != 0 || bootstrap.worker_count != rows[i].workers)
                fail_msg("%s with %ld allocations: %s, %d workers", rows[i].name, allowed, told,
                         (int)bootstrap.worker_count);
            kvfi_bootstrap_fini(&bootstrap);
        }
    }
}

static void the_first_registration_too(void **state)
{
    bool refused = true;

    (void)state;
    for (long allowed = 0; refused; allowed++) {
        struct kvfi_bootstrap bootstrap;

        kvfi_bootstrap_init(&bootstrap, 10);
        refused = post_with(&bootstrap, "eng-1", 0, allowed);
        assert_int_equal(post(&bootstrap, "eng-1", 0), 200);
        assert_int_equal(bootstrap.worker_count, 1);
        kvfi_bootstrap_fini(&bootstrap);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_half_registered),
        cmocka_unit_test(the_first_registration_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
