/* SPDX-License-Identifier: Apache-2.0 */
/** @file life.h  What all state machines share: an event comes in, a verdict and a few actions go out.
 *
 *  Each machine is a small struct and one step function. A step is a pure function of the struct, the event and the
 *  time
 *  in it: it changes nothing but the struct, and the owner carries out the actions in the order given. An event that
 *  has no
 *  meaning in a state changes nothing and is answered IGNORED (late or doubled: harmless) or VIOLATION (the other side
 *  broke the protocol: worth a line in the log). So every event may be fed in every state.
 */
#ifndef KVFI_LIFE_LIFE_H
#define KVFI_LIFE_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvferry/status.h"

/** What became of an event. A violation may also carry actions: the machine then failed in a defined way. */
enum kvfi_verdict {
    KVFI_TAKEN = 0,
    KVFI_IGNORED = 1,
    KVFI_VIOLATION = 2
};

#define KVFI_LIFE_ACTIONS 6 /* most actions of one step */

/** Actions of one step, in order. The numbers are the machine's own enum. */
struct kvfi_actions {
    uint32_t count;
    uint8_t items[KVFI_LIFE_ACTIONS];
};

/** An event. `kind` is the machine's own enum; which of the other fields mean something is said there. */
struct kvfi_life_event {
    int kind;
    enum kvf_status status;
    int64_t value;
    int64_t now_ns;
};

/** Adds an action; the machines never add more than KVFI_LIFE_ACTIONS. */
static inline void kvfi_act(struct kvfi_actions *actions, int action)
{
    if (actions->count < KVFI_LIFE_ACTIONS)
        actions->items[actions->count++] = (uint8_t)action;
}

#endif
