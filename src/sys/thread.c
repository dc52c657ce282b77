/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/thread.h"

#include <signal.h>

int kvfi_thread_start(pthread_t *thread, void *(*run)(void *), void *context)
{
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
