/* SPDX-License-Identifier: Apache-2.0 */
#include "session_kit.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "sys/clock.h"

#define PATIENCE_NS (20 * KVFI_SECOND)

struct kvf_trtllm_event session_next(kvf_trtllm_worker *worker)
{
    struct kvf_trtllm_event event;

    if (kvf_trtllm_worker_wait(worker, &event, 1, PATIENCE_NS) != 1) fail_msg("no event");
    return event;
}

void session_is(const struct kvf_trtllm_event *event, int kind, int direction, int64_t rid)
{
    if (event->kind != kind || event->direction != direction || event->rid != rid)
        fail_msg("event %d of %s rid %" PRId64 " (%s, \"%s\"), expected %d of %s rid %" PRId64, event->kind,
                 event->direction == KVF_TRTLLM_SEND ? "send" : "receive", event->rid,
                 kvf_trtllm_state_text(event->state), event->text, kind,
                 direction == KVF_TRTLLM_SEND ? "send" : "receive", rid);
}

struct kvf_trtllm_event session_event(kvf_trtllm_worker *worker, int kind, int direction, int64_t rid)
{
    struct kvf_trtllm_event event;

    if (kvf_trtllm_worker_wait(worker, &event, 1, PATIENCE_NS) != 1)
        fail_msg("no event, expected kind %d of rid %" PRId64, kind, rid);
    session_is(&event, kind, direction, rid);
    return event;
}

void session_no_event(kvf_trtllm_worker *worker)
{
    struct kvf_trtllm_event event;

    if (kvf_trtllm_worker_poll(worker, &event, 1) != 0)
        fail_msg("event %d of rid %" PRId64 " (\"%s\"), expected none", event.kind, event.rid, event.text);
}

struct kvf_trtllm_status session_status(kvf_trtllm_worker *worker, int direction, int64_t rid)
{
    struct kvf_trtllm_status status = {.struct_size = sizeof status};
    struct kvf_error error = {0};

    if (kvf_trtllm_worker_status(worker, direction, rid, &status, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return status;
}

struct kvf_trtllm_worker_stats session_stats(kvf_trtllm_worker *worker)
{
    struct kvf_trtllm_worker_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(kvf_trtllm_worker_get_stats(worker, &stats, NULL), KVF_OK);
    return stats;
}
