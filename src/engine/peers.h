/* SPDX-License-Identifier: Apache-2.0 */
/** @file peers.h  Ranks of other instances. One record per rank and direction: a *source* is pulled from (we
 *  connected and
 *  said hello), a *sink* pulls from here (it connected and said hello).
 */
#ifndef KVFI_ENGINE_PEERS_H
#define KVFI_ENGINE_PEERS_H

#include "engine/instances.h"
#include "engine/plans.h"
#include "life/peer.h"

struct kvfi_writer_job;
struct kvfi_sink_job;
struct kvfi_request;

enum kvfi_peer_role { KVFI_PEER_SOURCE = 0, KVFI_PEER_SINK = 1 };

enum kvfi_data_state { KVFI_DATA_DOWN = 0, KVFI_DATA_CONNECTING, KVFI_DATA_UP, KVFI_DATA_FAILED };

/** A data connection to a sink, per carrier. */
struct kvfi_data_link {
    int state;        /* enum kvfi_data_state */
    uint64_t number;  /* of the transport */
    char *endpoint;   /* where it goes */
    struct kvf_error error; /* of FAILED */
};

/** A release that a source is still to be told. */
struct kvfi_release {
    struct kvfi_release *next;
    char transfer[KVF_TRANSFER_ID_BYTES];
    int64_t attempt;
    enum kvf_status status;
};

struct kvfi_peer {
    struct kvfi_peer *previous, *next;
    int role;
    char instance[KVF_INSTANCE_NAME_BYTES];
    struct kvf_rank rank;
    char name[KVFI_PEER_NAME_BYTES];
    uint64_t incarnation;
    struct kvfi_route route;
    bool routed;
    struct kvfi_peer_life life;
    struct kvf_error error;      /* why it is refused, unreachable or lost */
    struct kvfi_match *match;    /* what was, or is being, agreed on */
    size_t index;                /* of the peer in its instance */
    struct kvfi_plans *plans;    /* NULL: no share, or not agreed */
    kvf_layout *layout;          /* the peer's, once greeted */
    struct kvfi_resolve resolve; /* sink: before the answer; source: when asked to look again */
    struct kvfi_message hello;   /* sink: being checked */
    bool silent;                 /* source: no answer to hello; the directory is asked whether it is still there */
    int64_t greeted_ns, heard_ns, pinged_ns;
    struct kvfi_timer timer;     /* greeting: the deadline; ready: pings */
    struct kvfi_writer_job *writers; /* source */
    struct kvfi_release *releases;   /* source */
    size_t release_count;
    struct kvfi_sink_job *sinks;     /* sink */
    struct kvfi_request *requests;   /* sink */
    size_t active;               /* transfers under way with it: it is pinged while above 0 */
    struct kvfi_data_link links[KVFI_MAX_TRANSPORTS];
    bool warned[KVFI_MAX_TRANSPORTS];
};

/** Makes a peer; NULL without memory. */
struct kvfi_peer *kvfi_peer_create(kvf_engine *engine, int role, const char *instance, const struct kvf_rank *rank);
struct kvfi_peer *kvfi_peer_find(kvf_engine *engine, int role, const char *instance, const struct kvf_rank *rank);
struct kvfi_peer *kvfi_peer_by_route(kvf_engine *engine, const struct kvfi_route *route);
/** Frees a peer that nothing points to. */
void kvfi_peer_destroy(kvf_engine *engine, struct kvfi_peer *peer);
void kvfi_peers_fini(kvf_engine *engine);

/** Feeds its machine and carries out the actions. */
void kvfi_peer_feed(kvf_engine *engine, struct kvfi_peer *peer, int kind, enum kvf_status status);
/** Writes `error` down as the reason, then feeds (REFUSE, STALE, FAIL, LOST). */
void kvfi_peer_fail(kvf_engine *engine, struct kvfi_peer *peer, int kind, const struct kvf_error *error);

/** One more, or one less, transfer is under way with it. */
void kvfi_peer_use(kvf_engine *engine, struct kvfi_peer *peer);
void kvfi_peer_unuse(struct kvfi_peer *peer);
/** It was heard of. */
void kvfi_peer_heard(struct kvfi_peer *peer);

void kvfi_peer_on_ping(kvf_engine *engine, const struct kvfi_route *from, const struct kvfi_msg_ping *ping);
/** True when some rank of the instance is known to be alive at this moment: then the directory need not be asked
 *  anew. */
bool kvfi_source_alive(kvf_engine *engine, const char *instance);
/** Tells all that this engine closes. */
void kvfi_peers_goodbye(kvf_engine *engine);
/** After this process stood still: nobody is blamed for the silence meanwhile. */
void kvfi_peers_forgive(kvf_engine *engine);

/* greet.c: the pull side */
struct kvfi_peer *kvfi_source_need(kvf_engine *engine, struct kvfi_match *match, size_t index);
void kvfi_source_greet(kvf_engine *engine, struct kvfi_peer *peer, bool again);
/** It has not answered hello: asks the directory whether another process took its place; if not, fails with `error`. */
void kvfi_source_silent(kvf_engine *engine, struct kvfi_peer *peer, const struct kvf_error *error);
/** The directory says something new of an instance: ranks that are being greeted may be others now. */
void kvfi_sources_review(kvf_engine *engine, const struct kvfi_instance *instance);
/** Asks the directory again about instances that are greeted on an old word of it. */
void kvfi_sources_confirm(kvf_engine *engine);
void kvfi_source_on_ack(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message);
void kvfi_source_release(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt,
                         enum kvf_status status);
void kvfi_source_flush_releases(kvf_engine *engine, struct kvfi_peer *peer, bool send);

/* welcome.c: the offer side */
void kvfi_sink_on_hello(kvf_engine *engine, const struct kvfi_route *from, struct kvfi_message *message);
void kvfi_sink_check(kvf_engine *engine, struct kvfi_peer *peer, bool again);
void kvfi_sink_answer(kvf_engine *engine, struct kvfi_peer *peer);


#endif
