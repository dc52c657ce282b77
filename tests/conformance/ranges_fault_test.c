/* SPDX-License-Identifier: Apache-2.0 */
/* Faults by policy of the transports that move plain ranges. The argument names the transport. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "far.h"

enum { PAGE = 4096 };

const struct subject *subject;
static struct subject chosen = {"", NULL, NULL, false, true, false};
static const char *inner;
static char transport[64], policy[128];

static void choose(const char *faults)
{
    snprintf(transport, sizeof transport, "fault:%s", inner);
    snprintf(policy, sizeof policy, "%s:%s", inner, faults);
    chosen.transport = transport;
    chosen.policy = policy;
    subject = &chosen;
}

static void fails_and_corrupts_by_policy(void **state)
{
    struct kvfi_transport_event event;
    struct kvfi_range range;
    struct feed feed;
    struct far far;

    (void)state;
    choose("fail_post=1,corrupt=1");
    far_init(&far, PAGE);
    range = far_range(&far, 0, 0, 100);
    feed_init(&feed, &range, 1);
    event = far_post_and_await(&far, &feed, KVF_ERR_SYSTEM);
    assert_string_equal(event.text, "by the fault policy");
    far_check(&far, NULL, 0, true);
    feed_init(&feed, &range, 1);
    far_post_and_await(&far, &feed, KVF_OK);
    assert_int_equal(far.view[0], far_byte(0) ^ 1);
    feed_init(&feed, &range, 1);
    far_post_and_await(&far, &feed, KVF_OK);
    far_check(&far, &range, 1, true);
    far_fini(&far);
}

static void stalls_by_policy(void **state)
{
    struct kvfi_range range;
    struct feed aborted, left;
    struct far far;

    (void)state;
    choose("stall");
    far_init(&far, PAGE);
    range = far_range(&far, 0, 0, 100);
    feed_init(&aborted, &range, 1);
    feed_init(&left, &range, 1);
    far_post(&far, &aborted, 1);
    far_post(&far, &left, 2);
    far.ops->abort(far.transport, far.peer, 1);
    assert_int_equal(far_await(&far, KVFI_TEV_POSTED, 1).status, KVF_ERR_CANCELLED);
    assert_int_equal(atomic_load(&aborted.destroyed), 1);
    assert_int_equal(atomic_load(&left.destroyed), 0);
    far_check(&far, NULL, 0, true);
    far_fini(&far);
    assert_int_equal(atomic_load(&left.destroyed), 1);
}

static void cuts_by_policy(void **state)
{
    struct kvfi_range range;
    struct feed feed;
    struct far far;

    (void)state;
    choose("cut_after=50");
    far_init(&far, PAGE);
    range = far_range(&far, 0, 0, 100);
    feed_init(&feed, &range, 1);
    far_post_and_await(&far, &feed, KVF_ERR_PEER_LOST);
    assert_int_equal(far_await(&far, KVFI_TEV_PEER_DOWN, far.peer).status, KVF_ERR_PEER_LOST);
    far_connect(&far);
    feed_init(&feed, &range, 1);
    far_post_and_await(&far, &feed, KVF_OK);
    far_fini(&far);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fails_and_corrupts_by_policy),
        cmocka_unit_test(stalls_by_policy),
        cmocka_unit_test(cuts_by_policy),
    };

    inner = argc == 2 ? argv[1] : "cma";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
