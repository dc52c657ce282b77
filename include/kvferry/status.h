/* SPDX-License-Identifier: Apache-2.0 */
/** @file status.h  The one list of statuses, and the error a caller can show.
 *
 *  Every function that can fail returns `enum kvf_status`. The particular story (which object, what was expected, what
 *  was found) goes into an optional `struct kvf_error`; an asynchronous completion carries its own status and text.
 *
 *  Ownership is told in four words everywhere in these headers:
 *  *borrowed for the call*: the library keeps no pointer after the function returned;
 *  *borrowed until X*: the memory must stay valid until X;
 *  *taken on success*: the library owns it once the call succeeded, the caller still owns it otherwise;
 *  *returned to the caller (free with F)*: the caller owns it and gives it back with F.
 */
#ifndef KVFERRY_STATUS_H
#define KVFERRY_STATUS_H

#include <stddef.h>
#include <stdint.h>

#include "kvferry/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The statuses: X(name, number, text). Numbers are pinned and never reused. They are grouped by what is broken, so
 *  that the number tells what to rebuild: 1..19 this call, 20..39 this peer, 40..59 this transfer, 60..79 the
 *  context. */
#define KVF_STATUS_MAP(X) \
    X(KVF_OK, 0, "success") \
    /* this call: nothing was changed */ \
    X(KVF_ERR_INVALID_ARGUMENT, 1, "invalid argument") \
    X(KVF_ERR_OUT_OF_RANGE, 2, "value out of range") \
    X(KVF_ERR_OVERFLOW, 3, "a size does not fit in 64 bits") \
    X(KVF_ERR_NO_MEMORY, 4, "out of memory") \
    X(KVF_ERR_NEWER_OPTION, 5, "newer option not understood") \
    X(KVF_ERR_NOT_SUPPORTED, 6, "not supported") \
    X(KVF_ERR_PARSE, 7, "input does not parse") \
    X(KVF_ERR_NOT_FOUND, 8, "not found") \
    X(KVF_ERR_EXISTS, 9, "exists already") \
    X(KVF_ERR_LIMIT, 10, "a limit would be exceeded") \
    X(KVF_ERR_LAYOUT, 11, "layout is not valid") \
    X(KVF_ERR_IDS, 12, "block ids are not valid") \
    X(KVF_ERR_TIMEOUT, 13, "deadline passed") \
    X(KVF_ERR_AGAIN, 14, "not now, try again") \
    X(KVF_ERR_CLOSED, 15, "closed") \
    X(KVF_ERR_SYSTEM, 16, "system call failed") \
    X(KVF_ERR_ADDRESS_IN_USE, 17, "address in use") \
    /* this peer: other peers go on */ \
    X(KVF_ERR_INCOMPATIBLE, 20, "layouts cannot be joined") \
    X(KVF_ERR_VERSION, 21, "version mismatch") \
    X(KVF_ERR_PLAN_MISMATCH, 22, "the two sides compute different plans") \
    X(KVF_ERR_PROTOCOL, 23, "peer broke the protocol") \
    X(KVF_ERR_PEER_LOST, 24, "peer lost") \
    X(KVF_ERR_UNREACHABLE, 25, "peer cannot be reached") \
    X(KVF_ERR_INCOMPLETE, 26, "instance is not complete") \
    X(KVF_ERR_STALE, 27, "peer was restarted") \
    X(KVF_ERR_DIRECTORY, 28, "directory failed") \
    /* this transfer: other transfers go on */ \
    X(KVF_ERR_CANCELLED, 40, "cancelled") \
    X(KVF_ERR_EXPIRED, 41, "expired") \
    X(KVF_ERR_SUPERSEDED, 42, "superseded by a higher attempt") \
    X(KVF_ERR_IN_DOUBT, 43, "a writer may still be writing") \
    X(KVF_ERR_PARTIAL, 44, "only a part was moved") \
    X(KVF_ERR_CORRUPT, 45, "checksum mismatch") \
    X(KVF_ERR_REFUSED, 46, "refused by the peer") \
    X(KVF_ERR_INCOMPLETE_TRANSFER, 47, "not every byte arrived") \
    /* the context: close and open it anew */ \
    X(KVF_ERR_INTERNAL, 60, "internal error")

/** Result of a call, a peer or a transfer: see KVF_STATUS_MAP. */
enum kvf_status {
#define KVF_STATUS_ENUM_ROW(name, number, text) name = (number),
    KVF_STATUS_MAP(KVF_STATUS_ENUM_ROW)
#undef KVF_STATUS_ENUM_ROW
};

/** Bytes of kvf_error.text, its closing zero included. */
#define KVF_ERROR_TEXT_BYTES 496

/** The particular story of one failure: 512 bytes in the caller's memory.
 *  A function given a `struct kvf_error *` fills it on failure only, and leaves it alone on success. NULL is allowed.
 *  */
struct kvf_error {
    int32_t status;    /**< an enum kvf_status, equal to what the function returned */
    int32_t reserved;  /**< zero */
    int64_t position;  /**< byte offset in a parsed input, -1 where that means nothing */
    char text[KVF_ERROR_TEXT_BYTES]; /**< one line, UTF-8, zero terminated: object, expected and found, with units */
};

/** Returns the general text of any status: a constant string, never NULL, also for numbers not in the list.
 *  Any thread, never blocks. */
KVF_API const char *kvf_strerror(int status);

/** Returns the name of any status, such as "KVF_ERR_LAYOUT": a constant string, never NULL ("KVF_ERR_UNKNOWN" for
 *  numbers not in the list). Any thread, never blocks. */
KVF_API const char *kvf_status_name(int status);

#ifdef __cplusplus
}
#endif

#endif
