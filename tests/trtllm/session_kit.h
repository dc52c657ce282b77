/* SPDX-License-Identifier: Apache-2.0 */
/** @file session_kit.h  For tests of workers: what a worker tells of its sessions. Each fails the test when it is told
 *  something else, or nothing in time.
 */
#ifndef TESTS_TRTLLM_SESSION_KIT_H
#define TESTS_TRTLLM_SESSION_KIT_H

#include "kvferry/trtllm_worker.h"

/** The next event of any kind. */
struct kvf_trtllm_event session_next(kvf_trtllm_worker *worker);
/** Fails the test unless the event is of this kind, direction and rid. */
void session_is(const struct kvf_trtllm_event *event, int kind, int direction, int64_t rid);
/** The next event, which must be of this kind, direction and rid. */
struct kvf_trtllm_event session_event(kvf_trtllm_worker *worker, int kind, int direction, int64_t rid);
/** No event is queued. */
void session_no_event(kvf_trtllm_worker *worker);
struct kvf_trtllm_status session_status(kvf_trtllm_worker *worker, int direction, int64_t rid);
struct kvf_trtllm_worker_stats session_stats(kvf_trtllm_worker *worker);

#endif
