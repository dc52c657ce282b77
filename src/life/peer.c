/* SPDX-License-Identifier: Apache-2.0 */
#include "life/peer.h"

void kvfi_peer_init(struct kvfi_peer_life *peer) { *peer = (struct kvfi_peer_life){.state = KVFI_PEER_UNKNOWN}; }

static enum kvfi_verdict on_need(struct kvfi_peer_life *peer, struct kvfi_actions *actions)
{
    switch (peer->state) {
    case KVFI_PEER_READY:
        kvfi_act(actions, KVFI_PEER_DO_WAKE);
        break;
    case KVFI_PEER_REFUSED:
        kvfi_act(actions, KVFI_PEER_DO_FAIL_WAITING);
        break;
    case KVFI_PEER_GREETING: /* the answer is on its way */
        break;
    default:
        peer->state = KVFI_PEER_GREETING;
        peer->retried = false;
        kvfi_act(actions, KVFI_PEER_DO_GREET);
        break;
    }
    return KVFI_TAKEN;
}

static enum kvfi_verdict refuse(struct kvfi_peer_life *peer, enum kvf_status status, struct kvfi_actions *actions)
{
    peer->state = KVFI_PEER_REFUSED;
    peer->reason = status == KVF_OK ? KVF_ERR_REFUSED : status;
    kvfi_act(actions, KVFI_PEER_DO_FAIL_WAITING);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_stale(struct kvfi_peer_life *peer, enum kvf_status status, struct kvfi_actions *actions)
{
    if (peer->retried)
        return refuse(peer, status, actions);
    peer->retried = true;
    kvfi_act(actions, KVFI_PEER_DO_GREET_AGAIN);
    return KVFI_TAKEN;
}

static enum kvfi_verdict step_greeting(struct kvfi_peer_life *peer, const struct kvfi_life_event *event,
                                       struct kvfi_actions *actions)
{
    switch (event->kind) {
    case KVFI_PEER_ON_ACCEPT:
        peer->state = KVFI_PEER_READY;
        kvfi_act(actions, KVFI_PEER_DO_WAKE);
        return KVFI_TAKEN;
    case KVFI_PEER_ON_REFUSE:
        return refuse(peer, event->status, actions);
    case KVFI_PEER_ON_STALE:
        return on_stale(peer, event->status, actions);
    case KVFI_PEER_ON_FAIL:
        peer->state = KVFI_PEER_UNKNOWN;
        peer->reason = event->status == KVF_OK ? KVF_ERR_UNREACHABLE : event->status;
        kvfi_act(actions, KVFI_PEER_DO_FAIL_WAITING);
        return KVFI_TAKEN;
    default:
        return KVFI_IGNORED;
    }
}

static enum kvfi_verdict on_lost(struct kvfi_peer_life *peer, struct kvfi_actions *actions)
{
    bool greeting = peer->state == KVFI_PEER_GREETING;
    if (!greeting && peer->state != KVFI_PEER_READY)
        return KVFI_IGNORED;
    peer->state = KVFI_PEER_LOST;
    peer->reason = KVF_ERR_PEER_LOST;
    kvfi_act(actions, greeting ? KVFI_PEER_DO_FAIL_WAITING : KVFI_PEER_DO_FAIL_ACTIVE);
    kvfi_act(actions, KVFI_PEER_DO_FORGET);
    return KVFI_TAKEN;
}

/* What the old incarnation was doing is over; a greeting under way is begun anew by its owner. */
static enum kvfi_verdict on_restart(struct kvfi_peer_life *peer, struct kvfi_actions *actions)
{
    bool ready = peer->state == KVFI_PEER_READY, greeting = peer->state == KVFI_PEER_GREETING;
    peer->state = KVFI_PEER_UNKNOWN;
    peer->reason = KVF_ERR_STALE;
    peer->retried = false;
    if (ready)
        kvfi_act(actions, KVFI_PEER_DO_FAIL_ACTIVE);
    if (greeting)
        kvfi_act(actions, KVFI_PEER_DO_FAIL_WAITING);
    kvfi_act(actions, KVFI_PEER_DO_FORGET);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_epoch(struct kvfi_peer_life *peer, struct kvfi_actions *actions)
{
    if (peer->state != KVFI_PEER_READY && peer->state != KVFI_PEER_REFUSED)
        return KVFI_IGNORED;
    peer->state = KVFI_PEER_UNKNOWN;
    peer->retried = false;
    kvfi_act(actions, KVFI_PEER_DO_FORGET);
    return KVFI_TAKEN;
}

enum kvfi_verdict kvfi_peer_step(struct kvfi_peer_life *peer, const struct kvfi_life_event *event,
                                 struct kvfi_actions *actions)
{
    actions->count = 0;
    switch (event->kind) {
    case KVFI_PEER_ON_NEED:
        return on_need(peer, actions);
    case KVFI_PEER_ON_LOST:
        return on_lost(peer, actions);
    case KVFI_PEER_ON_RESTART:
        return on_restart(peer, actions);
    case KVFI_PEER_ON_EPOCH:
        return on_epoch(peer, actions);
    default:
        return peer->state == KVFI_PEER_GREETING ? step_greeting(peer, event, actions) : KVFI_IGNORED;
    }
}
