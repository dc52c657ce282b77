/* SPDX-License-Identifier: Apache-2.0 */
/** @file clock.h  Monotonic time and random numbers from the system. */
#ifndef KVFI_SYS_CLOCK_H
#define KVFI_SYS_CLOCK_H

#include <stdint.h>

#define KVFI_MS INT64_C(1000000)
#define KVFI_SECOND INT64_C(1000000000)

/** Nanoseconds of the monotonic clock. */
int64_t kvfi_now_ns(void);

/** Now plus `timeout_ns`, without overflow; now for a timeout of 0 or less. */
int64_t kvfi_deadline_after(int64_t timeout_ns);

/** A random number other than 0, from the system's generator: for incarnations and grants. */
uint64_t kvfi_random_u64(void);

#endif
