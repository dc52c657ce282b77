/* SPDX-License-Identifier: Apache-2.0 */
/** @file no_memory_kit.h  For tests: refuses allocations. A test that depends on `no_memory_dep` has the calls of this
 * tree's own code to malloc, calloc and realloc go through here; shared libraries keep theirs. Any thread. */
#ifndef KVFI_BASE_NO_MEMORY_KIT_H
#define KVFI_BASE_NO_MEMORY_KIT_H

#include <stdbool.h>

/** Lets `allowed` allocations of all threads together succeed and refuses the one after them. */
void no_memory_once(long allowed);

/** Lets `allowed` allocations of all threads together succeed and refuses all after them. */
void no_memory_from(long allowed);

/** Never refuses or counts an allocation of the calling thread. */
void no_memory_spare_thread(void);

/** Whether any was refused since the last no_memory_once() or no_memory_from(). */
bool no_memory_refused(void);

/** Refuses no more. Returns no_memory_refused(). */
bool no_memory_end(void);

#endif
