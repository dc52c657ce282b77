/* SPDX-License-Identifier: Apache-2.0 */
/* Names beside the loop: one that hangs holds up no other, and not the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sys/clock.h"
#include "sys/resolver_kit.h"
#include "vllm_worker/agents_lookup.h"

#define WAIT_NS (20 * KVFI_SECOND)

struct scene {
    struct kvfi_loop loop;
    struct kvfi_vllm_lookup *lookup;
    int told;
    char name[32], host[64], text[128]; /* of the last one */
};

static void on_looked_up(void *owner, const char *name, const char *host, const char *text)
{
    struct scene *scene = owner;

    scene->told++;
    snprintf(scene->name, sizeof scene->name, "%s", name);
    snprintf(scene->host, sizeof scene->host, "%s", host == NULL ? "" : host);
    snprintf(scene->text, sizeof scene->text, "%s", text);
}

static void begin(struct scene *scene)
{
    memset(scene, 0, sizeof *scene);
    resolver_hang();
    assert_int_equal(kvfi_loop_init(&scene->loop, scene, NULL, NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_lookup_create(&scene->loop, on_looked_up, &scene->lookup, NULL), KVF_OK);
}

static void end(struct scene *scene)
{
    kvfi_vllm_lookup_destroy(scene->lookup);
    kvfi_loop_turn(&scene->loop, 0);
    kvfi_loop_fini(&scene->loop);
    assert_true(resolver_let_go());
}

static void await(struct scene *scene, int told)
{
    int64_t deadline_ns = kvfi_now_ns() + WAIT_NS;

    while (scene->told < told && kvfi_now_ns() < deadline_ns)
        kvfi_loop_turn(&scene->loop, 10 * KVFI_MS);
    assert_int_equal(scene->told, told);
}

static void names_and_numbers(void **state)
{
    static const struct { const char *name, *host; bool told_why; } rows[] = {
        {"a.name", "127.0.0.1", false}, {"::1", "::1", false}, {"none.such", "", true}};
    struct scene scene;

    (void)state;
    begin(&scene);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvfi_vllm_lookup_ask(scene.lookup, rows[i].name, NULL), KVF_OK);
        assert_int_equal(scene.told, i); /* in a later turn */
        await(&scene, i + 1);
        assert_string_equal(scene.name, rows[i].name);
        assert_string_equal(scene.host, rows[i].host);
        assert_int_equal(scene.text[0] != '\0', rows[i].told_why);
    }
    end(&scene);
}

static void one_that_hangs_holds_up_no_other(void **state)
{
    struct scene scene;

    (void)state;
    begin(&scene);
    assert_int_equal(kvfi_vllm_lookup_ask(scene.lookup, "hang", NULL), KVF_OK);
    assert_true(resolver_await_hanging(1));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvfi_vllm_lookup_ask(scene.lookup, "other", NULL), KVF_OK);
        await(&scene, i + 1);
        assert_string_equal(scene.name, "other");
    }
    assert_true(resolver_let_go());
    await(&scene, 4);
    assert_string_equal(scene.name, "hang");
    end(&scene);
}

static void the_end_waits_for_nothing(void **state)
{
    struct scene scene;

    (void)state;
    begin(&scene);
    assert_int_equal(kvfi_vllm_lookup_ask(scene.lookup, "hang", NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_lookup_ask(scene.lookup, "hang", NULL), KVF_OK);
    assert_int_equal(kvfi_vllm_lookup_ask(scene.lookup, "hang.too", NULL), KVF_OK);
    assert_true(resolver_await_hanging(2));
    end(&scene);
    assert_int_equal(scene.told, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_and_numbers),
                                       cmocka_unit_test(one_that_hangs_holds_up_no_other),
                                       cmocka_unit_test(the_end_waits_for_nothing)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
