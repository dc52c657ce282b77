/* SPDX-License-Identifier: Apache-2.0 */
/** @file call.h  Work handed to the progress thread by another one, which waits for its verdict.
 *
 *  Because the caller waits, nothing is allocated, and what `argument` points to is borrowed without a copy. Not from a
 *  callback of the same loop. Without a progress thread the caller makes the turns.
 */
#ifndef KVFI_LOOP_CALL_H
#define KVFI_LOOP_CALL_H

#include "loop/loop.h"

/** What a call does on the progress thread. Without the loop's lock; must not block. */
typedef enum kvf_status (*kvfi_loop_fn)(void *owner, void *argument, struct kvf_error *error);

/** Runs `fn` on the progress thread, after what was posted before it.
 *  @return what `fn` returned; KVF_ERR_CLOSED when the loop ends first: then `fn` was not run, and will not be */
enum kvf_status kvfi_loop_call(struct kvfi_loop *loop, kvfi_loop_fn fn, void *argument, struct kvf_error *error);

/** The same, again after each kvfi_loop_changed, until `fn` has set `*left` to 0 or failed, or the time is over. It
 *  runs once at least, however short the time is.
 *  @param left  what `fn`, told of it through `argument`, sets each time
 *  @return what `fn` returned last; KVF_OK with `*left` not 0 when the time is over; KVF_ERR_CLOSED as above */
enum kvf_status kvfi_loop_call_until_idle(struct kvfi_loop *loop, kvfi_loop_fn fn, void *argument, const int64_t *left,
                                          int64_t timeout_ns, struct kvf_error *error);

/** Something that kvfi_loop_call_until_idle waits for may have happened. From any thread, without the lock. */
void kvfi_loop_changed(struct kvfi_loop *loop);

#endif
