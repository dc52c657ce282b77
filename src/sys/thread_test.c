/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sys/thread.h"

static void *see_mask(void *context)
{
    pthread_sigmask(SIG_SETMASK, NULL, context);
    return NULL;
}

static void takes_no_signal_and_leaves_the_callers_mask(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPIPE};
    sigset_t own, seen, after;
    pthread_t thread;

    (void)state;
    sigemptyset(&own);
    sigaddset(&own, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &own, NULL);
    sigemptyset(&seen);
    assert_int_equal(kvfi_thread_start(&thread, see_mask, &seen), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        assert_true(sigismember(&seen, signals[i]));
        assert_false(sigismember(&after, signals[i]));
    }
    assert_true(sigismember(&after, SIGUSR2));
}

static void *be_patient(void *context)
{
    bool *ordinary = context;

    ordinary[0] = kvfi_thread_is_ordinary();
    kvfi_thread_set_patient(true);
    ordinary[1] = kvfi_thread_is_ordinary();
    kvfi_thread_set_patient(false);
    ordinary[2] = kvfi_thread_is_ordinary();
    return NULL;
}

static void is_patient_by_itself_and_back(void **state)
{
    bool ordinary[3] = {false, true, false};
    pthread_t thread;

    (void)state;
    if (!kvfi_thread_is_ordinary()) skip();
    assert_int_equal(kvfi_thread_start(&thread, be_patient, ordinary), 0);
    pthread_join(thread, NULL);
    assert_true(ordinary[0]);
    assert_false(ordinary[1]);
    assert_true(ordinary[2]);
    assert_true(kvfi_thread_is_ordinary());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(takes_no_signal_and_leaves_the_callers_mask),
                                       cmocka_unit_test(is_patient_by_itself_and_back)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
