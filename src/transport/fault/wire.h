/* SPDX-License-Identifier: Apache-2.0 */
/** @file wire.h  Faults that only the wrapped transport itself can make, because they happen to bytes in flight. The
 *  fault transport owns the record; the counts are taken by the transport's threads. */
#ifndef KVFI_TRANSPORT_FAULT_WIRE_H
#define KVFI_TRANSPORT_FAULT_WIRE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct kvfi_wire_fault {
    atomic_int_fast64_t
        corrupt; /* so many pieces (tcp: frames) still get one byte flipped, checksums notwithstanding */
    atomic_int_fast64_t cut_after; /* the connection is cut, once, after so many more bytes were sent; below 0: never */
};

/** True when the next piece is to be corrupted; counts it. `wire` NULL: false. */
static inline bool kvfi_wire_corrupts(struct kvfi_wire_fault *wire)
{
    if (!wire || atomic_load(&wire->corrupt) <= 0) return false;
    return atomic_fetch_sub(&wire->corrupt, 1) > 0;
}

/** True while some piece is still to be corrupted: it must be staged, never sent from memory. */
static inline bool kvfi_wire_may_corrupt(const struct kvfi_wire_fault *wire)
{
    return wire && atomic_load(&wire->corrupt) > 0;
}

/** How many bytes may go out in one call, so that a cut falls inside of what is sent; INT64_MAX without one. */
static inline int64_t kvfi_wire_room(const struct kvfi_wire_fault *wire)
{
    int64_t left = wire ? atomic_load(&wire->cut_after) : -1;

    return left < 0 ? INT64_MAX : left + 1;
}

/** Counts sent bytes. True, once, when the connection is to be cut now. */
static inline bool kvfi_wire_cuts(struct kvfi_wire_fault *wire, int64_t bytes)
{
    if (!wire || atomic_load(&wire->cut_after) < 0) return false;
    int64_t before = atomic_fetch_sub(&wire->cut_after, bytes);

    return before >= 0 && before - bytes < 0;
}

#endif
