/* SPDX-License-Identifier: Apache-2.0 */
#include "life/transfer.h"

void kvfi_transfer_init(struct kvfi_transfer *transfer, int64_t deadline_ns)
{
    *transfer = (struct kvfi_transfer){.state = KVFI_TRANSFER_RESOLVING, .deadline_ns = deadline_ns};
}

bool kvfi_transfer_ended(const struct kvfi_transfer *transfer)
{
    return transfer->state == KVFI_TRANSFER_DONE || transfer->state == KVFI_TRANSFER_FAILED;
}

static enum kvfi_verdict succeed(struct kvfi_transfer *transfer, struct kvfi_actions *actions)
{
    transfer->state = KVFI_TRANSFER_DONE;
    kvfi_act(actions, KVFI_TRANSFER_DO_REPORT_DONE);
    kvfi_act(actions, KVFI_TRANSFER_DO_END_BLOCKS);
    return KVFI_TAKEN;
}

/* The terminal event goes out before the writers are stopped, so that what they answer cannot change its reason. */
static enum kvfi_verdict fail(struct kvfi_transfer *transfer, enum kvf_status status, struct kvfi_actions *actions)
{
    bool asked = transfer->state == KVFI_TRANSFER_MOVING;
    transfer->state = KVFI_TRANSFER_FAILED;
    transfer->reason = status == KVF_OK ? KVF_ERR_INTERNAL : status;
    kvfi_act(actions, KVFI_TRANSFER_DO_REPORT_FAILED);
    if (asked)
        kvfi_act(actions, KVFI_TRANSFER_DO_STOP_WRITERS);
    kvfi_act(actions, KVFI_TRANSFER_DO_END_BLOCKS);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_joined(struct kvfi_transfer *transfer, int64_t writers, struct kvfi_actions *actions)
{
    if (transfer->state != KVFI_TRANSFER_JOINING || writers < 0)
        return KVFI_IGNORED;
    if (writers == 0)
        return succeed(transfer, actions);
    transfer->writers = writers;
    transfer->state = KVFI_TRANSFER_MOVING;
    kvfi_act(actions, KVFI_TRANSFER_DO_ASK);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_writer_done(struct kvfi_transfer *transfer, struct kvfi_actions *actions)
{
    if (transfer->state != KVFI_TRANSFER_MOVING)
        return KVFI_VIOLATION;
    transfer->writers_done++;
    return transfer->writers_done == transfer->writers ? succeed(transfer, actions) : KVFI_TAKEN;
}

enum kvfi_verdict kvfi_transfer_step(struct kvfi_transfer *transfer, const struct kvfi_life_event *event,
                                     struct kvfi_actions *actions)
{
    actions->count = 0;
    if (kvfi_transfer_ended(transfer))
        return KVFI_IGNORED;
    switch (event->kind) {
    case KVFI_TRANSFER_ON_RESOLVED:
        if (transfer->state != KVFI_TRANSFER_RESOLVING)
            return KVFI_IGNORED;
        transfer->state = KVFI_TRANSFER_JOINING;
        kvfi_act(actions, KVFI_TRANSFER_DO_JOIN);
        return KVFI_TAKEN;
    case KVFI_TRANSFER_ON_JOINED:
        return on_joined(transfer, event->value, actions);
    case KVFI_TRANSFER_ON_WRITER_DONE:
        return on_writer_done(transfer, actions);
    case KVFI_TRANSFER_ON_FAIL:
        return fail(transfer, event->status, actions);
    case KVFI_TRANSFER_ON_CANCEL:
        return fail(transfer, KVF_ERR_CANCELLED, actions);
    case KVFI_TRANSFER_ON_SUPERSEDE:
        return fail(transfer, KVF_ERR_SUPERSEDED, actions);
    case KVFI_TRANSFER_ON_TIME:
        return event->now_ns >= transfer->deadline_ns ? fail(transfer, KVF_ERR_EXPIRED, actions) : KVFI_TAKEN;
    default:
        return KVFI_IGNORED;
    }
}
