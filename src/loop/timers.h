/* SPDX-License-Identifier: Apache-2.0 */
/** @file timers.h  Deadlines, earliest first: a pairing heap of nodes inside other structs, so arming needs no
 *  memory. */
#ifndef KVFI_LOOP_TIMERS_H
#define KVFI_LOOP_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct kvfi_timer {
    int64_t due_ns;
    void (*fire)(void *owner, struct kvfi_timer *timer); /* called once, disarmed; may arm again or free */
    struct kvfi_timer *child, *next, *previous; /* previous: left sibling, or the parent of a first child */
    bool armed;
};

struct kvfi_timers {
    struct kvfi_timer *root;
};

/** Arms, or moves a timer that is armed. */
void kvfi_timer_arm(struct kvfi_timers *timers, struct kvfi_timer *timer, int64_t due_ns);
/** Disarms; one that is not armed is fine. */
void kvfi_timer_disarm(struct kvfi_timers *timers, struct kvfi_timer *timer);
/** When the earliest is due; INT64_MAX when none is armed. */
int64_t kvfi_timers_due(const struct kvfi_timers *timers);
/** Takes the earliest one out when it is due at `now_ns`; NULL otherwise. */
struct kvfi_timer *kvfi_timers_take(struct kvfi_timers *timers, int64_t now_ns);

#endif
