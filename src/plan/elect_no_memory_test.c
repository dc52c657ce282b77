/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of layouts, holdings and election refused in turn: a status, no output, nothing lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "kvferry/plan.h"
#include "layout/worked_examples.h"

/* Does it all for one source and one destination. Returns the first status that is not KVF_OK. */
static enum kvf_status do_all(struct worked_example examples[2], struct kvf_error *error)
{
    kvf_layout *layouts[2] = {NULL, NULL};
    kvf_holdings *holdings[2] = {NULL, NULL};
    struct kvf_member members[2];
    kvf_election *election = NULL;
    char text[KVF_FINGERPRINT_TEXT_BYTES] = "";
    enum kvf_status status = KVF_OK;

    for (int i = 0; i < 2 && status == KVF_OK; i++) {
        status = kvf_layout_create(&examples[i].spec, &layouts[i], error);
        assert_true((status == KVF_OK) == (layouts[i] != NULL));
        if (status == KVF_OK) status = kvf_holdings_from_layout(layouts[i], &holdings[i], error);
        assert_true((status == KVF_OK) == (holdings[i] != NULL));
        members[i] = (struct kvf_member){{0}, holdings[i]};
    }
    if (status != KVF_OK) goto done;
    status = kvf_layout_fingerprint(layouts[0], text);
    assert_true((status == KVF_OK) == (text[0] != 0));
    if (status != KVF_OK) goto done;
    text[0] = 0;
    status = kvf_members_digest(members, 2, text);
    assert_true((status == KVF_OK) == (text[0] != 0));
    if (status != KVF_OK) goto done;
    status = kvf_elect(&members[0], 1, &members[1], 1, 0, &election, error);
    assert_true((status == KVF_OK) == (election != NULL));
    if (status == KVF_OK) status = kvf_election_check_places(election, layouts[1], error);
done:
    kvf_election_destroy(election);
    for (int i = 0; i < 2; i++) {
        kvf_holdings_release(holdings[i]);
        kvf_layout_release(layouts[i]);
    }
    return status;
}

static void test_every_allocation(void **state)
{
    struct worked_example examples[2];
    long allocations = 0;
    enum kvf_status status;

    (void)state;
    for (int i = 0; i < 2; i++) worked_example_second(&examples[i], i);
    do {
        struct kvf_error error = {0};

        no_memory_once(allocations++);
        status = do_all(examples, &error);
        no_memory_end();
        if (status != KVF_OK && status != KVF_ERR_NO_MEMORY) fail_msg("allocation %ld: %s", allocations, error.text);
    } while (status != KVF_OK);
    assert_true(allocations > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
