/* SPDX-License-Identifier: Apache-2.0 */
/** @file thread.h  Threads of the library's own. */
#ifndef KVFI_SYS_THREAD_H
#define KVFI_SYS_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/** Starts a thread that takes no signals: they are the program's. The caller's mask is as before afterwards.
 *  @return 0, or an errno value */
int kvfi_thread_start(pthread_t *thread, void *(*run)(void *), void *context);

/** Whether the calling thread has the ordinary policy: the program asked for no other. */
bool kvfi_thread_is_ordinary(void);

/** For an ordinary thread that serves others: `patient`, it does not stop who runs on its processor when it is woken,
 *  but waits for its turn; a free processor takes it at once in either case. Where it is not allowed: no change. */
void kvfi_thread_set_patient(bool patient);

#endif
