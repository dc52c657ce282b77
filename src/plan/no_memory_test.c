/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of planning and binding refused in turn: a status, no output, nothing lost. */
#include <string.h>

#include "base/no_memory_kit.h"
#include "layout/worked_examples.h"
#include "plan/plan_kit.h"

static kvf_layout *layouts[2];

/** Does it all. Returns the first status that is not KVF_OK. */
static enum kvf_status do_all(struct kvf_error *error)
{
    const struct kvf_id_list src[2] = {KIT_IDS(5, 6, 2), KIT_IDS(3)}, dst[2] = {KIT_IDS(1, 2, 6, 0), KIT_IDS(4)};
    char text[KVF_FINGERPRINT_TEXT_BYTES] = "";
    kvf_plan *plan = NULL, *part = NULL;
    struct kvf_bind_request request;
    kvf_binding *binding = NULL;
    kvf_cursor *cursor = NULL;
    enum kvf_status status;

    kvf_bind_request_init(&request, sizeof request);
    request.token_end = 60;
    request.request_tokens = 60;
    request.src = src;
    request.dst = dst;
    request.src_count = 2;
    request.dst_count = 2;
    status = kvf_plan_create(layouts[0], layouts[1], NULL, NULL, &plan, error);
    assert_true((status == KVF_OK) == (plan != NULL));
    if (status) goto done;
    status = kvf_plan_restrict(plan, 1, 5, &part, error);
    assert_true((status == KVF_OK) == (part != NULL));
    if (status) goto done;
    status = kvf_plan_fingerprint(plan, text);
    assert_true((status == KVF_OK) == (text[0] != 0));
    if (status) goto done;
    status = kvf_bind(plan, &request, &binding, error);
    assert_true((status == KVF_OK) == (binding != NULL));
    if (status) goto done;
    assert_int_equal(kvf_binding_bytes(binding), 6368);
    status = kvf_cursor_create(binding, &cursor, error);
    assert_true((status == KVF_OK) == (cursor != NULL));
done:
    kvf_cursor_destroy(cursor);
    kvf_binding_destroy(binding);
    kvf_plan_release(part);
    kvf_plan_release(plan);
    return status;
}

static void test_every_allocation(void **state)
{
    struct worked_example example;
    long allocations = 0;
    bool refused = true;

    (void)state;
    for (int i = 0; i < 2; i++) {
        worked_example_second(&example, i);
        assert_int_equal(kvf_layout_create(&example.spec, &layouts[i], NULL), KVF_OK);
    }
    while (refused) {
        struct kvf_error error = {0};
        enum kvf_status status;

        no_memory_once(allocations++);
        status = do_all(&error);
        refused = no_memory_end();
        /* giving memory back may fail without harm */
        if (status != KVF_OK) {
            assert_int_equal(status, KVF_ERR_NO_MEMORY);
            assert_true(error.status == KVF_OK || strncmp(error.text, "out of memory for ", 18) == 0);
        }
    }
    assert_true(allocations > 30);
    kvf_layout_release(layouts[1]);
    kvf_layout_release(layouts[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

    return cmocka_run_group_tests_name("no memory", tests, NULL, NULL);
}
