/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the engine that stand alone: timers, table, events, ledger, block ids. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

/* ---- ledger ---- */

static void test_ledger(void **unused)
{
    struct kvfi_ledger ledger;
    struct kvf_error error;
    char id[KVF_TRANSFER_ID_BYTES];
    (void)unused;
    assert_true(kvfi_ledger_init(&ledger));
    assert_int_equal(kvfi_ledger_begin(&ledger, true, "t", 1, 10, &error), KVF_OK);
    assert_int_equal(kvfi_ledger_begin(&ledger, false, "t", 0, 10, &error), KVF_OK); /* a pull is another thing */
    assert_int_equal(kvfi_ledger_begin(&ledger, true, "t", 1, 10, &error), KVF_ERR_EXISTS);
    assert_string_equal(error.text, "transfer \"t\" attempt 1 is offered already");
    assert_int_equal(kvfi_ledger_begin(&ledger, true, "t", 0, 10, &error), KVF_ERR_SUPERSEDED);
    assert_string_equal(error.text, "transfer \"t\" attempt 0 is superseded by attempt 1");
    kvfi_ledger_end(&ledger, true, "t", 1, KVF_ERR_CANCELLED, "why");
    assert_int_equal(kvfi_ledger_begin(&ledger, true, "t", 1, 10, &error), KVF_ERR_EXISTS);
    assert_string_equal(kvfi_ledger_find(&ledger, true, "t")->text, "why");
    assert_int_equal(kvfi_ledger_begin(&ledger, true, "t", 2, 10, &error), KVF_OK);
    kvfi_ledger_end(&ledger, true, "t", 1, KVF_OK, ""); /* late: attempt 2 has begun */
    assert_false(kvfi_ledger_find(&ledger, true, "t")->ended);
    for (int i = 0; i < 3 * KVFI_LEDGER_ENDED; i++) {
        snprintf(id, sizeof id, "x%d", i);
        assert_int_equal(kvfi_ledger_begin(&ledger, true, id, 0, 10, &error), KVF_OK);
        kvfi_ledger_end(&ledger, true, id, 0, KVF_OK, "");
    }
    assert_int_equal(ledger.ended, KVFI_LEDGER_ENDED);
    assert_null(kvfi_ledger_find(&ledger, true, "x0"));
    assert_non_null(kvfi_ledger_find(&ledger, true, id));
    assert_non_null(kvfi_ledger_find(&ledger, true, "t")); /* what runs is never forgotten */
    kvfi_ledger_fini(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ledger)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
