/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/thread.h"

#include <sched.h>
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

bool kvfi_thread_is_ordinary(void)
{
    struct sched_param param;
    int policy;

    return pthread_getschedparam(pthread_self(), &policy, &param) == 0 && policy == SCHED_OTHER;
}

void kvfi_thread_set_patient(bool patient)
{
    const struct sched_param param = {.sched_priority = 0};

    pthread_setschedparam(pthread_self(), patient ? SCHED_BATCH : SCHED_OTHER, &param);
}
