/* SPDX-License-Identifier: Apache-2.0 */
/** @file jobs.h  Pulls and offers as the engine keeps them: the machines of life/ with what they act upon. */
#ifndef KVFI_ENGINE_JOBS_H
#define KVFI_ENGINE_JOBS_H

#include "engine/instances.h"
#include "engine/peers.h"
#include "life/block.h"
#include "life/offer.h"
#include "life/transfer.h"
#include "life/writer.h"

/* ---- pulls ------------------------------------------------------------------------------------------------- */

/** One source rank with a share of a pull. */
struct kvfi_writer_job {
    struct kvfi_writer_job *previous, *next; /* in the peer's list, until it is quiet */
    struct kvfi_pull_job *pull;
    struct kvfi_peer *peer;       /* NULL once unlinked */
    struct kvfi_link link;        /* in engine->grants, while armed */
    struct kvfi_writer life;
    bool waiting;                 /* for the peer to be ready */
    bool uses_peer;
    uint64_t grant;
    size_t writer;                /* rank number in the source instance */
    int64_t expected_bytes, runs, received_bytes;
    uint32_t armed;               /* carriers that are armed, a bit each */
    uint32_t unquiet;             /* carriers whose disarm said: not yet */
    uint32_t transport_bit;
    struct kvfi_timer gone;       /* armed when its data connection is gone and its last word has not come yet */
    char text[KVF_ERROR_TEXT_BYTES]; /* why it failed */
};

struct kvfi_pull_job {
    struct kvfi_link link; /* in engine->pulls */
    struct kvfi_pull_job *next_dead;
    char transfer[KVF_TRANSFER_ID_BYTES];
    char from[KVF_INSTANCE_NAME_BYTES];
    int64_t attempt, request_tokens, token_begin, token_end, timeout_ns;
    uint64_t flags;
    struct kvf_id_list *groups;
    size_t group_count;
    struct kvfi_transfer life;
    struct kvfi_block block;
    struct kvfi_timer timer;
    struct kvfi_resolve resolve;
    struct kvfi_match *match;
    struct kvfi_writer_job *writers; /* an array */
    size_t writer_count;
    struct kvfi_event_node *terminal, *reusable; /* NULL once used */
    int64_t started_ns;
    int64_t bytes, pieces, runs;
    uint32_t transports;
    bool released;                   /* the sources that are not asked were told */
    char peer[KVFI_PEER_NAME_BYTES]; /* whom the failure is about */
    char text[KVF_ERROR_TEXT_BYTES];
};

struct kvfi_pull_job *kvfi_pull_find(kvf_engine *engine, const char *transfer, int64_t attempt);
void kvfi_pull_begin(kvf_engine *engine, struct kvfi_pull_job *pull);
void kvfi_pull_feed(kvf_engine *engine, struct kvfi_pull_job *pull, int kind, enum kvf_status status, int64_t value);
/** Ends it with a sentence, unless it has ended. `peer` may be NULL. */
void kvfi_pull_fail(kvf_engine *engine, struct kvfi_pull_job *pull, const struct kvfi_peer *peer,
                    enum kvf_status status, const char *format, ...) __attribute__((format(printf, 5, 6)));
void kvfi_pull_block(kvf_engine *engine, struct kvfi_pull_job *pull, int kind);
/** Begins anew with another match: its source ranks may be others. */
void kvfi_pull_join(kvf_engine *engine, struct kvfi_pull_job *pull, struct kvfi_match *match);
/** Frees a pull whose events are out, or that was never begun. */
void kvfi_pull_destroy(kvf_engine *engine, struct kvfi_pull_job *pull);

/** A source is ready, or cannot be: for all that waits for it. */
void kvfi_writers_peer_ready(kvf_engine *engine, struct kvfi_peer *peer);
void kvfi_writers_peer_failed(kvf_engine *engine, struct kvfi_peer *peer);
void kvfi_writers_peer_lost(kvf_engine *engine, struct kvfi_peer *peer);
/** Pulls that wait for this peer and were elected by another match join again. */
void kvfi_writers_rematch(kvf_engine *engine, struct kvfi_peer *peer);

void kvfi_writer_feed(kvf_engine *engine, struct kvfi_writer_job *job, int kind, enum kvf_status status, int64_t value);
/** Arms and sends the pull. */
void kvfi_writer_ask(kvf_engine *engine, struct kvfi_writer_job *job);
void kvfi_writer_link(struct kvfi_writer_job *job, struct kvfi_peer *peer);
void kvfi_writer_unlink(struct kvfi_writer_job *job);
void kvfi_writers_on_message(kvf_engine *engine, struct kvfi_peer *peer, const struct kvfi_message *message);
void kvfi_writers_on_event(kvf_engine *engine, size_t carrier, const struct kvfi_transport_event *event);

/* ---- offers ------------------------------------------------------------------------------------------------ */

/** A chunk that is posted. */
struct kvfi_post {
    struct kvfi_post *previous, *next;
    struct kvfi_sink_job *sink;
    kvf_binding *binding;
    int64_t layer_first, layer_end, token_end, bytes, runs;
};

/** One destination rank of an offer. */
struct kvfi_sink_job {
    struct kvfi_sink_job *previous, *next; /* in the peer's list, until it ended */
    struct kvfi_offer_job *offer;
    struct kvfi_peer *peer;       /* NULL once unlinked */
    struct kvfi_sink life;
    bool uses_peer;
    struct kvfi_message message;  /* the pull; owned */
    struct kvfi_plans *plans;
    int64_t *sent;                /* tokens sent, per layer of the engine's layout */
    kvf_binding *whole;           /* all of it, until the first chunk is made */
    bool has_state;               /* part of it moves with the end only, */
    bool has_tails;               /* and that has a range of its own, and so a chunk, where the rest comes in parts: */
    bool *tail_sent;              /* whether it is sent, per layer */
    size_t wish, carrier;         /* which wish is tried; the carrier in use */
    uint64_t link_number;
    uint32_t chunks;
    int64_t expected_bytes, posted_bytes, placed_bytes, placed_runs;
    struct kvfi_post *posts;
    char text[KVF_ERROR_TEXT_BYTES];
};

struct kvfi_offer_job {
    struct kvfi_link link; /* in engine->offers */
    struct kvfi_offer_job *next_dead;
    char transfer[KVF_TRANSFER_ID_BYTES];
    int64_t attempt, request_tokens, timeout_ns;
    struct kvf_id_list *groups;
    size_t group_count;
    struct kvfi_offer_life life;
    struct kvfi_block block;
    struct kvfi_timer timer;
    int64_t *ready;               /* tokens computed, per layer of the engine's layout */
    char puller[KVF_INSTANCE_NAME_BYTES]; /* the pulling instance, "" until known */
    struct kvfi_sink_job *sinks;  /* an array, by rank number */
    size_t sink_count;
    struct kvfi_event_node *terminal, *reusable;
    int64_t started_ns;
    int64_t bytes, pieces, runs;
    char peer[KVFI_PEER_NAME_BYTES];
    char text[KVF_ERROR_TEXT_BYTES];
};

/** A pull or release that came before its offer. */
struct kvfi_request {
    struct kvfi_link link; /* in engine->requests, by id */
    struct kvfi_request *previous, *next; /* in the peer's list */
    struct kvfi_peer *peer;
    struct kvfi_message message; /* owned */
    int64_t bytes;
    struct kvfi_timer timer;
};

struct kvfi_offer_job *kvfi_offer_find(kvf_engine *engine, const char *transfer, int64_t attempt);
void kvfi_offer_begin(kvf_engine *engine, struct kvfi_offer_job *offer);
void kvfi_offer_feed(kvf_engine *engine, struct kvfi_offer_job *offer, int kind, enum kvf_status status, int64_t value);
void kvfi_offer_block(kvf_engine *engine, struct kvfi_offer_job *offer, int kind);
void kvfi_offer_ready(kvf_engine *engine, struct kvfi_offer_job *offer, int64_t layer_first, int64_t layer_end,
                      int64_t ready_tokens);
void kvfi_offer_destroy(kvf_engine *engine, struct kvfi_offer_job *offer);
/** The sink of a peer, made known to the offer on its first word. NULL with `error` when it cannot be one. */
struct kvfi_sink_job *kvfi_offer_sink(kvf_engine *engine, struct kvfi_offer_job *offer, struct kvfi_peer *peer,
                                      struct kvf_error *error);

void kvfi_sink_feed(kvf_engine *engine, struct kvfi_sink_job *sink, int kind, enum kvf_status status, int64_t value);
/** Writes the sentence down, then feeds ON_FAIL. */
void kvfi_sink_fail(kvf_engine *engine, struct kvfi_sink_job *sink, const struct kvf_error *error);
/** Attaches a pull (the message is taken) and begins. */
void kvfi_sink_begin(kvf_engine *engine, struct kvfi_sink_job *sink, struct kvfi_peer *peer,
                     struct kvfi_message *message);
void kvfi_sink_unlink(struct kvfi_sink_job *sink);
void kvfi_sinks_peer_lost(kvf_engine *engine, struct kvfi_peer *peer);
void kvfi_sink_on_message(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message);
/** Goes on with the next wish that can be reached. */
void kvfi_sink_connect(kvf_engine *engine, struct kvfi_sink_job *sink);
void kvfi_sinks_on_link(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier);
void kvfi_sinks_on_link_down(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier, const struct kvf_error *error);
/** Posts what is ready. */
void kvfi_sink_pump(kvf_engine *engine, struct kvfi_sink_job *sink);
void kvfi_post_ended(kvf_engine *engine, const struct kvfi_transport_event *event);

/* requests.c */
void kvfi_request_park(kvf_engine *engine, struct kvfi_peer *peer, struct kvfi_message *message);
/** Hands what waited for this offer to it. */
void kvfi_requests_match(kvf_engine *engine, struct kvfi_offer_job *offer);
/** Ends a waiting pull or release of this peer; false when there is none. */
bool kvfi_request_drop(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt);
void kvfi_requests_drop_peer(kvf_engine *engine, struct kvfi_peer *peer);
bool kvfi_request_known(kvf_engine *engine, const struct kvfi_peer *peer, const char *transfer, int64_t attempt);

/** The word about a pull that has no sink (any more): failed, with a reason. */
void kvfi_send_failed(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt,
                      enum kvf_status status, const char *text);
void kvfi_send_quiesced(kvf_engine *engine, struct kvfi_peer *peer, const char *transfer, int64_t attempt,
                        enum kvf_status status, const char *text);
/** Rank number of this engine in its own instance, as agreed with the peer. */
int64_t kvfi_own_number(const kvf_engine *engine, const struct kvfi_peer *peer);

/** Frees what ended during this turn. */
void kvfi_bury(kvf_engine *engine);

#endif
