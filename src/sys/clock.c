/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/clock.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

int64_t kvfi_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * KVFI_SECOND + now.tv_nsec;
}

int64_t kvfi_deadline_after(int64_t timeout_ns)
{
    int64_t now_ns = kvfi_now_ns();

    if (timeout_ns <= 0) return now_ns;
    return timeout_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + timeout_ns;
}

uint64_t kvfi_random_u64(void)
{
    uint64_t number = 0;

    /* A request of 8 bytes is never cut short once the generator is seeded; a signal before that means again. */
    while (number == 0) {
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) number = 0;
    }
    return number;
}
