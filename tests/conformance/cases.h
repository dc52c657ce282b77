/* SPDX-License-Identifier: Apache-2.0 */
/** @file cases.h  The cases of the suite, run over `subject`. */
#ifndef KVFT_CONFORMANCE_CASES_H
#define KVFT_CONFORMANCE_CASES_H

#include "rig.h"

void case_whole(void **state);
void case_shapes(void **state);
void case_layer_by_layer(void **state);
void case_token_chunks(void **state);
void case_layers_and_tokens(void **state);
void case_many_grants(void **state);
void case_nothing_to_move(void **state);
void case_big(void **state);
void case_unarmed(void **state);
void case_another_writer(void **state);
void case_wrong_bytes(void **state);
void case_covered_twice(void **state);
void case_outside_of_the_grant(void **state);
void case_last_too_early(void **state);
void case_armed_twice(void **state);
void case_disarmed_before(void **state);
void case_disarmed_after(void **state);
void case_disarmed_in_mid_bytes(void **state);
void case_aborted(void **state);
void case_disconnected(void **state);
void case_source_closes(void **state);
void case_destination_closes(void **state);
void case_source_killed(void **state);
void case_destination_killed(void **state);
void case_restarted_destination(void **state);
void case_nobody_listens(void **state);
void case_bad_endpoints(void **state);
void case_closed_while_connecting(void **state);
void case_says_what_it_cannot(void **state);
void case_ranges_of_all_lengths(void **state);
void case_many_ranges(void **state);
void case_ranges_that_touch(void **state);
void case_concurrent_posts(void **state);
void case_bad_ranges(void **state);
void case_bad_destinations(void **state);
void case_ranges_to_nobody(void **state);
void case_ranges_aborted(void **state);
void case_ranges_disconnected(void **state);
void case_ranges_to_the_dead(void **state);
void case_idle_peer_dies(void **state);
void case_closed_with_ranges_out(void **state);

#endif
