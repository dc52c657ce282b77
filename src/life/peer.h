/* SPDX-License-Identifier: Apache-2.0 */
/** @file peer.h  One rank of another instance, in one direction: do the two sides agree to exchange caches?
 *
 *  On the pull side the machine says hello and waits for the answer; on the offer side it answers. A refusal is
 *  remembered until the peer's incarnation or an epoch changes; a lost peer may come back.
 */
#ifndef KVFI_LIFE_PEER_H
#define KVFI_LIFE_PEER_H

#include "life/life.h"

enum kvfi_peer_state {
    KVFI_PEER_UNKNOWN = 0,
    KVFI_PEER_GREETING = 1,  /* hello sent (pull side), or being checked (offer side) */
    KVFI_PEER_READY = 2,
    KVFI_PEER_REFUSED = 3,
    KVFI_PEER_LOST = 4,
    KVFI_PEER_STATES
};

enum kvfi_peer_on {
    KVFI_PEER_ON_NEED = 0,    /* a transfer needs it (pull side), or its hello came (offer side) */
    KVFI_PEER_ON_ACCEPT = 1,  /* all was compared and agrees */
    KVFI_PEER_ON_REFUSE = 2,  /* status; remembered */
    KVFI_PEER_ON_STALE = 3,   /* holdings' digests differ: the directory is asked again, once */
    KVFI_PEER_ON_FAIL = 4,    /* it could not be greeted now: status (no answer, directory failed); not remembered */
    KVFI_PEER_ON_LOST = 5,    /* it is silent or its connection broke */
    KVFI_PEER_ON_RESTART = 6, /* another incarnation: what was agreed, and what was going on, is void */
    KVFI_PEER_ON_EPOCH = 7,   /* an epoch changed: what was agreed is void, what is going on goes on */
    KVFI_PEER_EVENTS
};

enum kvfi_peer_do {
    KVFI_PEER_DO_GREET = 0,       /* send hello; on the offer side: check the one that came */
    KVFI_PEER_DO_GREET_AGAIN = 1, /* ask the directory again, then greet */
    KVFI_PEER_DO_WAKE = 2,        /* it is ready: go on with what waited (offer side: send hello_ack) */
    KVFI_PEER_DO_FAIL_WAITING = 3, /* fail what waited, with `reason` (offer side: send a refusing hello_ack) */
    KVFI_PEER_DO_FAIL_ACTIVE = 4, /* end its writers or sinks: lost */
    KVFI_PEER_DO_FORGET = 5       /* drop its plans */
};

struct kvfi_peer_life {
    uint8_t state;
    bool retried; /* the directory was asked again already */
    enum kvf_status reason;
};

void kvfi_peer_init(struct kvfi_peer_life *peer);
enum kvfi_verdict kvfi_peer_step(struct kvfi_peer_life *peer, const struct kvfi_life_event *event,
                                 struct kvfi_actions *actions);

#endif
