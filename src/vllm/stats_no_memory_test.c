/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of the statistics refused in turn. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "vllm/stats.h"

static void refuses_every_allocation(void **state)
{
    static const struct kvf_vllm_transfer transfers[] = {{1, 2, 3}, {4, 5, 6}};
    const struct kvf_vllm_interval interval = {.struct_size = sizeof interval, .transfers = transfers,
                                               .transfer_count = 2};

    (void)state;
    for (long allowed = 0; allowed < 4; allowed++) {
        struct kvf_vllm_figure figures[KVF_VLLM_FIGURES] = {{.value = 77}};
        struct kvfi_vllm_record record = {0};
        kvf_vllm_metrics *metrics = NULL;

        no_memory_once(allowed);
        assert_int_equal(kvf_vllm_interval_reduce(&interval, 1, figures, NULL),
                         allowed < 2 ? KVF_ERR_NO_MEMORY : KVF_OK);
        assert_true((figures[0].value == 77) == (allowed < 2));
        assert_int_equal(kvf_vllm_metrics_create("m", "0", &metrics, NULL),
                         allowed == 2 ? KVF_ERR_NO_MEMORY : KVF_OK);
        assert_true((metrics == NULL) == (allowed == 2));
        kvfi_vllm_record_transfer(&record, 1, 1, 1);
        assert_int_equal(record.count, allowed != 3);
        assert_true(no_memory_end());
        kvfi_vllm_record_fini(&record);
        kvf_vllm_metrics_destroy(metrics);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refuses_every_allocation)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
