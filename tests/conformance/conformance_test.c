/* SPDX-License-Identifier: Apache-2.0 */
/* One suite for every transport: `conformance_test NAME` runs it over one row of this table. A new transport is one
 * line here and one in meson.build. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"

static const struct subject subjects[] = {
    {"loop", "loop", NULL, true, false, false},
    {"shm", "shm", NULL, true, true, false},
    {"shm_remote", "shm", NULL, false, true, false},
    {"tcp", "tcp", NULL, true, true, false},
    {"tcp_checksum", "tcp", NULL, true, true, true},
    {"fault_tcp", "fault:tcp", "tcp", true, true, false},
    {"fault_shm_late", "fault:shm", "shm:delay_ms=3", true, true, false},
    {"cma", "cma", NULL, false, true, false},
    {"mooncake", "mooncake", NULL, false, true, false},
    {"fault_cma", "fault:cma", "cma", false, true, false},
    {"fault_mooncake", "fault:mooncake", "mooncake", false, true, false},
};

const struct subject *subject;

static const struct CMUnitTest for_all[] = {
    cmocka_unit_test(case_says_what_it_cannot),
    cmocka_unit_test(case_bad_endpoints),
    cmocka_unit_test(case_closed_while_connecting),
};

/* KVFI_CAP_BOXES */
static const struct CMUnitTest for_boxes[] = {
    cmocka_unit_test(case_whole),
    cmocka_unit_test(case_shapes),
    cmocka_unit_test(case_layer_by_layer),
    cmocka_unit_test(case_token_chunks),
    cmocka_unit_test(case_layers_and_tokens),
    cmocka_unit_test(case_many_grants),
    cmocka_unit_test(case_nothing_to_move),
    cmocka_unit_test(case_big),
    cmocka_unit_test(case_unarmed),
    cmocka_unit_test(case_another_writer),
    cmocka_unit_test(case_wrong_bytes),
    cmocka_unit_test(case_covered_twice),
    cmocka_unit_test(case_outside_of_the_grant),
    cmocka_unit_test(case_last_too_early),
    cmocka_unit_test(case_armed_twice),
    cmocka_unit_test(case_disarmed_before),
    cmocka_unit_test(case_disarmed_after),
    cmocka_unit_test(case_disarmed_in_mid_bytes),
    cmocka_unit_test(case_aborted),
    cmocka_unit_test(case_disconnected),
    cmocka_unit_test(case_source_closes),
    cmocka_unit_test(case_destination_closes),
    cmocka_unit_test(case_source_killed),
    cmocka_unit_test(case_destination_killed),
    cmocka_unit_test(case_restarted_destination),
    cmocka_unit_test(case_nobody_listens),
};

/* KVFI_CAP_RANGES */
static const struct CMUnitTest for_ranges[] = {
    cmocka_unit_test(case_ranges_of_all_lengths),
    cmocka_unit_test(case_many_ranges),
    cmocka_unit_test(case_ranges_that_touch),
    cmocka_unit_test(case_concurrent_posts),
    cmocka_unit_test(case_bad_ranges),
    cmocka_unit_test(case_bad_destinations),
    cmocka_unit_test(case_ranges_to_nobody),
    cmocka_unit_test(case_ranges_aborted),
    cmocka_unit_test(case_ranges_disconnected),
    cmocka_unit_test(case_ranges_to_the_dead),
    cmocka_unit_test(case_idle_peer_dies),
    cmocka_unit_test(case_closed_with_ranges_out),
};

int main(int argc, char **argv)
{
    const struct kvfi_transport_ops *ops;
    int failures = 1;

    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++) {
        if (argc > 1 && strcmp(subjects[i].name, argv[1]) == 0) subject = &subjects[i];
    }
    if (!subject) {
        fprintf(stderr, "usage: conformance_test NAME [TEST]\n");
        goto done;
    }
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    ops = kvfi_transport_find(subject->transport);
    failures = cmocka_run_group_tests_name(subject->name, for_all, NULL, NULL);
    if (ops->caps & KVFI_CAP_BOXES) failures += cmocka_run_group_tests_name(subject->name, for_boxes, NULL, NULL);
    if (ops->caps & KVFI_CAP_RANGES) failures += cmocka_run_group_tests_name(subject->name, for_ranges, NULL, NULL);
done:
    return failures;
}
