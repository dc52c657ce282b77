/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of opening a guard is refused once, in turn: nothing is guarded then, and the next try works. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "transport/mooncake/guards.h"
#include "transport/mooncake/regions.h"

static void test_open(void **state)
{
    static const struct kvf_mooncake_buffer buffer = {4096, 4096};
    static const struct kvf_mooncake_grid grids[] = {{4096, 128, 64}, {4096 + 64, 128, 64}, {8192, 64, 64}};
    long allowed = 0;
    bool refused = true;

    (void)state;
    for (; refused; allowed++) {
        struct kvfi_moon_regions regions;
        struct kvfi_moon_refusal refusal;
        struct kvfi_moon_use use;
        kvf_mooncake_guard *guard = NULL;
        enum kvf_status status;
        int64_t block = 1;

        assert_int_equal(kvfi_moon_regions_init(&regions, NULL), KVF_OK);
        assert_int_equal(kvfi_moon_regions_add(&regions, &buffer, 1, NULL), KVF_OK);
        no_memory_once(allowed);
        status = kvfi_moon_guard_open(&regions, grids, 3, 16, &guard, NULL);
        refused = no_memory_end();
        assert_int_equal(status, refused ? KVF_ERR_NO_MEMORY : KVF_OK);
        assert_int_equal(guard != NULL, status == KVF_OK);
        assert_int_equal(kvfi_moon_regions_use(&regions, false, 4096, 64, &use, &refusal), refused);
        kvfi_moon_regions_release(&regions, &use, false);
        if (refused) assert_int_equal(kvfi_moon_guard_open(&regions, grids, 3, 16, &guard, NULL), KVF_OK);
        no_memory_from(0); /* from here on nothing is allocated */
        assert_int_equal(kvf_mooncake_guard_grant(guard, &block, 1, NULL), KVF_OK);
        assert_true(kvfi_moon_regions_use(&regions, true, 4096 + 128, 128, &use, &refusal));
        kvfi_moon_regions_release(&regions, &use, true);
        assert_int_equal(kvf_mooncake_guard_revoke(guard, &block, 1, 0, NULL), KVF_OK);
        assert_false(no_memory_end());
        kvf_mooncake_guard_close(guard);
        kvfi_moon_regions_fini(&regions);
    }
    assert_true(allowed > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_open)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
