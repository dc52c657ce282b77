/* SPDX-License-Identifier: Apache-2.0 */
#include "base/no_memory_kit.h"

#include <stdatomic.h>
#include <stddef.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static atomic_bool counting, once, refused;
static atomic_long left; /* allocations that still succeed; the first refused one finds 0 */
static _Thread_local bool spared;

static bool refuse(void)
{
    long before;

    if (spared || !atomic_load(&counting)) return false;
    before = atomic_fetch_sub(&left, 1);
    if (before > 0 || (before < 0 && atomic_load(&once))) return false;
    atomic_store(&refused, true);
    return true;
}

void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }

static void begin(long allowed, bool only_one)
{
    atomic_store(&counting, false);
    atomic_store(&refused, false);
    atomic_store(&once, only_one);
    atomic_store(&left, allowed);
    atomic_store(&counting, true);
}

void no_memory_once(long allowed) { begin(allowed, true); }
void no_memory_from(long allowed) { begin(allowed, false); }
void no_memory_spare_thread(void) { spared = true; }
bool no_memory_refused(void) { return atomic_load(&refused); }

bool no_memory_end(void)
{
    atomic_store(&counting, false);
    return no_memory_refused();
}
