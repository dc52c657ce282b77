/* SPDX-License-Identifier: Apache-2.0 */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(takes_no_signal_and_leaves_the_callers_mask)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
