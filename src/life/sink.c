/* SPDX-License-Identifier: Apache-2.0 */
#include "life/offer.h"

void kvfi_sink_init(struct kvfi_sink *sink) { *sink = (struct kvfi_sink){.state = KVFI_SINK_IDLE}; }

bool kvfi_sink_ended(const struct kvfi_sink *sink)
{
    return sink->state == KVFI_SINK_DONE || sink->state == KVFI_SINK_FAILED;
}

static enum kvfi_verdict finish(struct kvfi_sink *sink, struct kvfi_actions *actions)
{
    sink->state = KVFI_SINK_DONE;
    kvfi_act(actions, KVFI_SINK_DO_SEND_DONE);
    kvfi_act(actions, KVFI_SINK_DO_READ_END);
    kvfi_act(actions, KVFI_SINK_DO_END_DONE);
    return KVFI_TAKEN;
}

/* Ends it badly once it reads: at once when no post is out, else after the last of them. */
static enum kvfi_verdict fail(struct kvfi_sink *sink, enum kvf_status status, struct kvfi_actions *actions)
{
    sink->reason = status == KVF_OK ? KVF_ERR_INTERNAL : status;
    if (sink->posts_out > 0) {
        sink->state = KVFI_SINK_DRAINING;
        kvfi_act(actions, KVFI_SINK_DO_SEND_IN_DOUBT);
        kvfi_act(actions, KVFI_SINK_DO_ABORT);
    } else {
        sink->state = KVFI_SINK_FAILED;
        kvfi_act(actions, KVFI_SINK_DO_SEND_FAILED);
        kvfi_act(actions, KVFI_SINK_DO_READ_END);
        kvfi_act(actions, KVFI_SINK_DO_END_FAILED);
    }
    return KVFI_TAKEN;
}

static enum kvfi_verdict step_idle(struct kvfi_sink *sink, const struct kvfi_life_event *event,
                                   struct kvfi_actions *actions)
{
    switch (event->kind) {
    case KVFI_SINK_ON_PULL:
        kvfi_act(actions, KVFI_SINK_DO_READ_BEGIN);
        if (event->value == 0)
            return finish(sink, actions);
        sink->state = KVFI_SINK_CONNECTING;
        kvfi_act(actions, KVFI_SINK_DO_CONNECT);
        return KVFI_TAKEN;
    case KVFI_SINK_ON_RELEASE:
        sink->state = event->status == KVF_OK ? KVFI_SINK_DONE : KVFI_SINK_FAILED;
        sink->reason = event->status;
        kvfi_act(actions, event->status == KVF_OK ? KVFI_SINK_DO_END_DONE : KVFI_SINK_DO_END_FAILED);
        return KVFI_TAKEN;
    case KVFI_SINK_ON_CANCEL:
    case KVFI_SINK_ON_LOST:
    case KVFI_SINK_ON_STOP:
    case KVFI_SINK_ON_FAIL:
        sink->state = KVFI_SINK_FAILED;
        sink->reason = event->kind == KVFI_SINK_ON_LOST ? KVF_ERR_PEER_LOST
                       : event->status == KVF_OK        ? KVF_ERR_INTERNAL
                                                        : event->status;
        kvfi_act(actions, KVFI_SINK_DO_END_FAILED);
        return KVFI_TAKEN;
    default:
        return KVFI_IGNORED;
    }
}

static enum kvfi_verdict on_posted(struct kvfi_sink *sink, enum kvf_status status, struct kvfi_actions *actions)
{
    if (sink->posts_out == 0)
        return KVFI_IGNORED;
    sink->posts_out--;
    if (status != KVF_OK)
        return fail(sink, status, actions);
    if (sink->state == KVFI_SINK_FLUSHING && sink->posts_out == 0)
        return finish(sink, actions);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_post(struct kvfi_sink *sink, bool last)
{
    if (sink->state != KVFI_SINK_SENDING)
        return KVFI_IGNORED;
    sink->posts_out++;
    if (last)
        sink->state = KVFI_SINK_FLUSHING;
    return KVFI_TAKEN;
}

/* CONNECTING, SENDING, FLUSHING */
static enum kvfi_verdict step_open(struct kvfi_sink *sink, const struct kvfi_life_event *event,
                                   struct kvfi_actions *actions)
{
    switch (event->kind) {
    case KVFI_SINK_ON_CONNECTED:
        if (sink->state != KVFI_SINK_CONNECTING)
            return KVFI_IGNORED;
        sink->state = KVFI_SINK_SENDING;
        kvfi_act(actions, KVFI_SINK_DO_SEND_STARTED);
        return KVFI_TAKEN;
    case KVFI_SINK_ON_POST:
        return on_post(sink, event->value != 0);
    case KVFI_SINK_ON_POSTED:
        return on_posted(sink, event->status, actions);
    case KVFI_SINK_ON_PULL: /* asked twice */
        return KVFI_VIOLATION;
    case KVFI_SINK_ON_RELEASE:
        return fail(sink, event->status == KVF_OK ? KVF_ERR_CANCELLED : event->status, actions);
    case KVFI_SINK_ON_LOST:
        return fail(sink, KVF_ERR_PEER_LOST, actions);
    case KVFI_SINK_ON_FAIL:
    case KVFI_SINK_ON_CANCEL:
    case KVFI_SINK_ON_STOP:
        return fail(sink, event->status, actions);
    default:
        return KVFI_IGNORED;
    }
}

static enum kvfi_verdict step_draining(struct kvfi_sink *sink, const struct kvfi_life_event *event,
                                       struct kvfi_actions *actions)
{
    if (event->kind == KVFI_SINK_ON_PULL)
        return KVFI_VIOLATION;
    if (event->kind != KVFI_SINK_ON_POSTED || sink->posts_out == 0)
        return KVFI_IGNORED;
    sink->posts_out--;
    if (sink->posts_out == 0) {
        sink->state = KVFI_SINK_FAILED;
        kvfi_act(actions, KVFI_SINK_DO_SEND_QUIESCED);
        kvfi_act(actions, KVFI_SINK_DO_READ_END);
        kvfi_act(actions, KVFI_SINK_DO_END_FAILED);
    }
    return KVFI_TAKEN;
}

/* A late cancel or release is answered, so that the destination never waits for a word that was lost. */
static enum kvfi_verdict step_ended(const struct kvfi_life_event *event, struct kvfi_actions *actions)
{
    if (event->kind == KVFI_SINK_ON_PULL)
        return KVFI_VIOLATION;
    if (event->kind != KVFI_SINK_ON_CANCEL)
        return KVFI_IGNORED;
    kvfi_act(actions, KVFI_SINK_DO_SEND_QUIESCED);
    return KVFI_TAKEN;
}

enum kvfi_verdict kvfi_sink_step(struct kvfi_sink *sink, const struct kvfi_life_event *event,
                                 struct kvfi_actions *actions)
{
    actions->count = 0;
    switch (sink->state) {
    case KVFI_SINK_IDLE:
        return step_idle(sink, event, actions);
    case KVFI_SINK_CONNECTING:
    case KVFI_SINK_SENDING:
    case KVFI_SINK_FLUSHING:
        return step_open(sink, event, actions);
    case KVFI_SINK_DRAINING:
        return step_draining(sink, event, actions);
    default:
        return step_ended(event, actions);
    }
}
