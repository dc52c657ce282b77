/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

#include "kvferry/trtllm.h"

enum { C = KVF_TRTLLM_VOTE_COMPLETED, F = KVF_TRTLLM_VOTE_FAILED, X = KVF_TRTLLM_VOTE_CANCELLED,
       Q = KVF_TRTLLM_VOTE_QUIESCED };

struct row {
    const char *name;
    uint32_t votes[4];
    size_t count;
    enum kvf_trtllm_outcome outcome;
    int may_retire;
};

static const struct row rows[] = {
    {"nobody", {0}, 0, KVF_TRTLLM_PENDING, 0},
    {"one rank that knows nothing", {0}, 1, KVF_TRTLLM_PENDING, 0},
    {"one rank completed", {C}, 1, KVF_TRTLLM_COMPLETED, 1},
    {"all completed", {C, C, C, C}, 4, KVF_TRTLLM_COMPLETED, 1},
    {"one of four is not done", {C, C, 0, C}, 4, KVF_TRTLLM_PENDING, 0},
    {"completed needs no quiet", {C, C | Q}, 2, KVF_TRTLLM_COMPLETED, 1},
    {"quiet alone is no outcome", {Q, Q}, 2, KVF_TRTLLM_PENDING, 0},
    {"one failed, the rest completed", {C, F, C}, 3, KVF_TRTLLM_FAILED, 0},
    {"one failed, the rest know nothing", {0, F, 0}, 3, KVF_TRTLLM_FAILED, 0},
    {"failed, and quiet everywhere", {C | Q, F | Q, Q}, 3, KVF_TRTLLM_FAILED, 1},
    {"failed, one not quiet", {C | Q, F, Q}, 3, KVF_TRTLLM_FAILED, 0},
    {"failed, the completed one not quiet", {C, F | Q}, 2, KVF_TRTLLM_FAILED, 0},
    {"one cancelled, the rest completed", {C, C, X}, 3, KVF_TRTLLM_CANCELLED, 0},
    {"cancelled goes before failed", {F, X, C}, 3, KVF_TRTLLM_CANCELLED, 0},
    {"both words of one rank", {F | X | Q}, 1, KVF_TRTLLM_CANCELLED, 1},
    {"all three words of one rank", {C | F | X}, 1, KVF_TRTLLM_CANCELLED, 0},
    {"cancelled, and quiet everywhere", {X | Q, Q, F | Q, C | Q}, 4, KVF_TRTLLM_CANCELLED, 1},
    {"failed and completed of one rank", {C | F}, 1, KVF_TRTLLM_FAILED, 0},
    {"bits that mean nothing", {16, 16}, 2, KVF_TRTLLM_PENDING, 0},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int may_retire = -1;
        enum kvf_trtllm_outcome outcome = kvf_trtllm_agree(rows[i].votes, rows[i].count, &may_retire);
        if (outcome != rows[i].outcome || may_retire != rows[i].may_retire)
            fail_msg("%s: outcome %d, may retire %d; expected %d, %d", rows[i].name, outcome, may_retire,
                     rows[i].outcome, rows[i].may_retire);
    }
}

/* All votes of three ranks: the rules as sentences, counted anew; and no order of ranks matters. */
static void test_all_votes_of_three_ranks(void **state)
{
    (void)state;
    for (uint32_t all = 0; all < 4096; all++) {
        uint32_t votes[3] = {all & 15, all >> 4 & 15, all >> 8}, turned[3] = {votes[2], votes[0], votes[1]};
        int completed = 0, failed = 0, cancelled = 0, quiesced = 0, may_retire, turned_retire;
        enum kvf_trtllm_outcome outcome = kvf_trtllm_agree(votes, 3, &may_retire);
        for (int i = 0; i < 3; i++) {
            completed += (votes[i] & C) != 0;
            failed += (votes[i] & F) != 0;
            cancelled += (votes[i] & X) != 0;
            quiesced += (votes[i] & Q) != 0;
        }
        assert_int_equal(outcome, cancelled ? KVF_TRTLLM_CANCELLED : failed ? KVF_TRTLLM_FAILED
                                  : completed == 3 ? KVF_TRTLLM_COMPLETED : KVF_TRTLLM_PENDING);
        assert_int_equal(may_retire, (cancelled || failed) ? quiesced == 3 : completed == 3);
        assert_int_equal(kvf_trtllm_agree(turned, 3, &turned_retire), outcome);
        assert_int_equal(turned_retire, may_retire);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_all_votes_of_three_ranks)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
