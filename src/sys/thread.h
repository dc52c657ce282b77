/* SPDX-License-Identifier: Apache-2.0 */
/** @file thread.h  Threads of the library's own. */
#ifndef KVFI_SYS_THREAD_H
#define KVFI_SYS_THREAD_H

#include <pthread.h>

/** Starts a thread that takes no signals: they are the program's. The caller's mask is as before afterwards.
 *  @return 0, or an errno value */
int kvfi_thread_start(pthread_t *thread, void *(*run)(void *), void *context);

#endif
