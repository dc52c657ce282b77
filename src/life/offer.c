/* SPDX-License-Identifier: Apache-2.0 */
#include "life/offer.h"

void kvfi_offer_init(struct kvfi_offer_life *offer, int64_t deadline_ns)
{
    *offer = (struct kvfi_offer_life){.state = KVFI_OFFER_WAITING, .deadline_ns = deadline_ns};
}

bool kvfi_offer_ended(const struct kvfi_offer_life *offer)
{
    return offer->state == KVFI_OFFER_DONE || offer->state == KVFI_OFFER_FAILED;
}

static enum kvfi_verdict fail(struct kvfi_offer_life *offer, enum kvf_status status, struct kvfi_actions *actions)
{
    offer->state = KVFI_OFFER_FAILED;
    offer->reason = status == KVF_OK ? KVF_ERR_INTERNAL : status;
    kvfi_act(actions, KVFI_OFFER_DO_REPORT_FAILED);
    kvfi_act(actions, KVFI_OFFER_DO_STOP_SINKS);
    kvfi_act(actions, KVFI_OFFER_DO_END_BLOCKS);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_sink_ended(struct kvfi_offer_life *offer, enum kvf_status status,
                                       struct kvfi_actions *actions)
{
    if (offer->state != KVFI_OFFER_SERVING)
        return KVFI_VIOLATION;
    offer->sinks_ended++;
    if (status != KVF_OK && offer->reason == KVF_OK)
        offer->reason = status;
    if (offer->sinks_ended < offer->sinks)
        return KVFI_TAKEN;
    if (offer->reason != KVF_OK)
        return fail(offer, offer->reason, actions);
    offer->state = KVFI_OFFER_DONE;
    kvfi_act(actions, KVFI_OFFER_DO_REPORT_DONE);
    kvfi_act(actions, KVFI_OFFER_DO_END_BLOCKS);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_sinks(struct kvfi_offer_life *offer, int64_t sinks)
{
    if (offer->state != KVFI_OFFER_WAITING || sinks < 1)
        return KVFI_IGNORED;
    offer->state = KVFI_OFFER_SERVING;
    offer->sinks = sinks;
    return KVFI_TAKEN;
}

enum kvfi_verdict kvfi_offer_step(struct kvfi_offer_life *offer, const struct kvfi_life_event *event,
                                  struct kvfi_actions *actions)
{
    actions->count = 0;
    if (kvfi_offer_ended(offer))
        return KVFI_IGNORED;
    switch (event->kind) {
    case KVFI_OFFER_ON_SINKS:
        return on_sinks(offer, event->value);
    case KVFI_OFFER_ON_SINK_DONE:
        return on_sink_ended(offer, KVF_OK, actions);
    case KVFI_OFFER_ON_SINK_FAILED:
        return on_sink_ended(offer, event->status == KVF_OK ? KVF_ERR_INTERNAL : event->status, actions);
    case KVFI_OFFER_ON_CANCEL:
        return fail(offer, KVF_ERR_CANCELLED, actions);
    case KVFI_OFFER_ON_SUPERSEDE:
        return fail(offer, KVF_ERR_SUPERSEDED, actions);
    case KVFI_OFFER_ON_TIME:
        return event->now_ns >= offer->deadline_ns ? fail(offer, KVF_ERR_EXPIRED, actions) : KVFI_TAKEN;
    case KVFI_OFFER_ON_FAIL:
        return fail(offer, event->status, actions);
    default:
        return KVFI_IGNORED;
    }
}
