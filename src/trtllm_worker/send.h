/* SPDX-License-Identifier: Apache-2.0 */
/** @file send.h  The sending half of a worker: the machines of life/ with what they act upon.
 *
 *  A *session* (one rid) is an offer, each generation rank that takes part in it a sink of that offer, its memory a
 *  block. A sink has one write out at a time, so that its words keep the order of its pieces and a FAILED means that
 *  nothing of it is being written. A *peer* is a generation rank that registered, or tried to.
 *
 *      send.c           dispatch, life and death, agent events
 *      send_peers.c     registrations, words to peers, fairness between them
 *      send_requests.c  REQUEST_DATA and CANCEL_SESSION, requests that wait, rids that stay cancelled
 *      send_session.c   one rid: offer machine, events, deadlines
 *      send_pieces.c    pieces and auxiliary data as the user hands them over
 *      send_sink.c      one generation rank of a rid: sink machine, and what it says
 *      send_post.c      the writes of a sink
 */
#ifndef KVFI_TRTLLM_WORKER_SEND_H
#define KVFI_TRTLLM_WORKER_SEND_H

#include "life/block.h"
#include "life/offer.h"
#include "trtllm/message.h"
#include "trtllm_worker/worker.h"

enum kvfi_send_limit {
    KVFI_SEND_PEER_WRITES = 16,       /* writes out per peer; more of them wait, so no peer fills the agent */
    KVFI_SEND_PEER_WORDS = 65536,     /* words per peer that wait for room in its connection; more are dropped */
    KVFI_SEND_STORED_BYTES = 268435456, /* of all stored requests together */
    KVFI_SEND_MAX_PIECES = 65536,     /* of one session */
    KVFI_SEND_FENCE_AGES = 10         /* a rid stays cancelled for so many times the age of a stale request */
};

#define KVFI_SEND_RETRY_NS (5 * KVFI_MS) /* until words that wait are tried again */

/** A word that waits for room in its peer's connection. */
struct kvfi_send_word {
    struct kvfi_send_word *next;
    struct kvfi_trtllm_message message;
};

struct kvfi_send_peer {
    struct kvfi_link link; /* in senders->peers, by `key` */
    char key[KVF_TRTLLM_AGENT_NAME_BYTES]; /* name, a zero byte, rank in decimal */
    const char *name;      /* = key */
    int64_t rank, dp_rank, cp_size;
    char agent[KVF_TRTLLM_AGENT_NAME_BYTES];
    char endpoint[KVFI_CHANNEL_ENDPOINT_BYTES]; /* where its words go */
    bool accepted;         /* registered, and its agent loaded */
    bool loaded;           /* the agent knows it, perhaps from before it was refused */
    bool connected, complained;
    bool warned, failing;  /* a request of it was refused; its last write failed: logged once */
    char cause[KVF_ERROR_TEXT_BYTES]; /* why it is not accepted */
    struct kvfi_route route;
    struct kvfi_send_word *words_head, *words_tail;
    int64_t word_count;
    struct kvfi_send_peer *next_waiting; /* among those with words */
    bool in_waiting;
    int64_t writes_out, uses; /* uses: sinks and stored requests that name it */
    int64_t stored, stored_bytes; /* requests of it that wait for their sessions */
    int64_t used_ns;
    struct kvfi_send_sink *sinks;        /* all of them, by next_of_peer */
    struct kvfi_send_sink *queue_head, *queue_tail; /* those that wait for a write to end */
};

/** A piece, as copied. */
struct kvfi_send_piece {
    int64_t token_begin, token_end;
    bool is_last;
    int64_t delivered;             /* ranks that have it */
    struct kvf_trtllm_blocks *groups;
    size_t group_count;
    struct kvf_trtllm_view_key *excluded;
    size_t excluded_count;
    struct kvfi_event_node *event; /* PIECE; NULL once told */
};

/** What is being written, or was last: a cursor over a bound write, or the copies of an auxiliary slot. */
struct kvfi_send_write {
    struct kvfi_link link; /* in senders->writes, by `cookie`, while it is out */
    struct kvfi_send_sink *sink;
    uint64_t cookie;
    bool is_aux, is_last;
    int64_t bytes;
    kvf_trtllm_write *bound;
    kvf_trtllm_cursor *cursor;
    struct kvf_trtllm_fragment *copies;
    size_t copy_count, copy_at;
};

/** One generation rank of a session. */
struct kvfi_send_sink {
    struct kvfi_send_session *session;
    struct kvfi_send_peer *peer;   /* NULL: it has not asked, or it ended and nothing of it is out */
    struct kvfi_send_sink *previous_of_peer, *next_of_peer;
    struct kvfi_send_sink *next_queued;
    bool queued;
    struct kvfi_sink life;
    int64_t rank;                  /* flat rank in the generation instance */
    struct kvfi_trtllm_ask ask;
    kvf_trtllm_pair *pair;
    size_t next_piece;
    struct kvfi_send_write *write; /* out, or NULL */
    bool in_doubt;                 /* the agent does not know what became of `write` */
    bool doubt_said, doubt_is_aux;
    bool kv_said, aux_said;        /* its last word of the kind is out */
    bool acknowledge;              /* it cancelled, and waits for SESSION_QUIESCED */
    char text[KVF_ERROR_TEXT_BYTES];
};

struct kvfi_send_session {
    struct kvfi_link link; /* in senders->sessions, by `rid` */
    kvf_trtllm_worker *worker;
    int64_t rid, prompt_tokens, timeout_ns;
    bool has_aux;                  /* generation-first */
    struct kvfi_offer_life life;
    struct kvfi_block block;
    struct kvfi_timer deadline, overdue;
    char instance[KVF_TRTLLM_AGENT_NAME_BYTES]; /* the generation instance, "" until it is known */
    struct kvfi_send_sink *sinks;  /* an array, in the order of the overlap */
    size_t sink_count, asked;
    struct kvfi_send_piece *pieces;
    size_t piece_count, piece_capacity;
    int64_t tokens, blocks;        /* handed over: all below; whole blocks */
    bool last_handed;
    struct kvf_trtllm_blocks *deferred; /* per group: ids of earlier pieces that go with the last one */
    int64_t aux_slot;              /* KVF_TRTLLM_NONE until handed over */
    struct kvfi_event_node *ended, *settled, *ready, *timed_out; /* NULL once used */
    int64_t delivered_pieces, delivered_tokens, bytes;
    int64_t started_ns, ended_ns;
    bool by_peer, overdue_told;
    char peer[KVF_TRTLLM_AGENT_NAME_BYTES];
    char text[KVF_ERROR_TEXT_BYTES];
};

/** A request that came before its session. */
struct kvfi_send_request {
    struct kvfi_link link; /* in senders->requests, by rid */
    struct kvfi_send_request *previous, *next; /* by age */
    struct kvfi_send_peer *peer;
    struct kvfi_trtllm_ask ask;
    int64_t rid, due_ns, bytes;
};

/** A rid for which nothing is written any more: cancelled before it had a session, or by one that is closed. */
struct kvfi_send_fence {
    struct kvfi_link link; /* in senders->fences, by rid */
    struct kvfi_send_fence *previous, *next; /* by age */
    int64_t rid, due_ns;
    bool cancelled, by_peer; /* not cancelled: it failed, and may be opened again */
    char peer[KVF_TRTLLM_AGENT_NAME_BYTES];
};

struct kvfi_senders {
    kvf_trtllm_worker *worker;
    struct kvfi_table peers, sessions, requests, fences, writes;
    struct kvfi_send_request *oldest_request, *newest_request;
    struct kvfi_send_fence *oldest_fence, *newest_fence;
    int64_t stored_bytes;
    struct kvfi_send_peer *waiting; /* peers with words that wait */
    struct kvfi_timer age, retry;
    uint64_t last_cookie;
    int64_t unsettled;
    bool warned_stranger, warned_rank, warned_frames; /* logged once */
};

/** Level of a line that is worth a look when it comes first. */
static inline enum kvf_log_level kvfi_send_once(bool *warned)
{
    enum kvf_log_level level = *warned ? KVF_LOG_DEBUG : KVF_LOG_WARN;

    *warned = true;
    return level;
}

/* ---- send_peers.c --------------------------------------------------------------------------------------------- */

struct kvfi_send_peer *kvfi_send_peer_find(struct kvfi_senders *senders, const char *name, size_t name_bytes,
                                           int64_t rank);
void kvfi_send_register(struct kvfi_senders *senders, const struct kvfi_trtllm_frame *payload);
void kvfi_send_peer_destroy(struct kvfi_senders *senders, struct kvfi_send_peer *peer);
/** Says a word to a peer, or keeps it until there is room. */
void kvfi_send_say(struct kvfi_senders *senders, struct kvfi_send_peer *peer,
                   const struct kvfi_trtllm_message *message);
/** FAILED as the last word to one request, for auxiliary data too when it asked for some. */
void kvfi_send_refuse(struct kvfi_senders *senders, struct kvfi_send_peer *peer, const struct kvfi_trtllm_ask *ask);
void kvfi_send_acknowledge(struct kvfi_senders *senders, struct kvfi_send_peer *peer, int64_t rid);
/** Tries the words that wait. */
void kvfi_send_retry(struct kvfi_senders *senders);

/* ---- send_requests.c ------------------------------------------------------------------------------------------ */

void kvfi_send_on_request(struct kvfi_senders *senders, const struct kvfi_route *from,
                          const struct kvfi_trtllm_frame *payload);
/** A rank that takes part asked again. The same request is served once; another one says that the blocks of the first
 *  are the rank's own again: nothing more is written to them, and the session, which has no others for it, ends. */
void kvfi_send_ask_again(struct kvfi_send_sink *sink, const struct kvfi_trtllm_ask *ask);
void kvfi_send_on_cancel(struct kvfi_senders *senders, const struct kvfi_trtllm_cancel *cancel);
/** Hands the requests that wait for a session to it. */
void kvfi_send_take_requests(struct kvfi_senders *senders, struct kvfi_send_session *session);
/** Refuses those of a rid, or of a peer. */
void kvfi_send_drop_requests(struct kvfi_senders *senders, int64_t rid);
void kvfi_send_drop_peer_requests(struct kvfi_senders *senders, struct kvfi_send_peer *peer);
struct kvfi_send_fence *kvfi_send_fence_find(struct kvfi_senders *senders, int64_t rid);
/** Remembers that nothing is written for a rid; false when there is no room. */
bool kvfi_send_fence_add(struct kvfi_senders *senders, int64_t rid, bool cancelled, bool by_peer, const char *peer);
void kvfi_send_fence_remove(struct kvfi_senders *senders, struct kvfi_send_fence *fence);
/** Forgets what is too old, and arms the timer anew. */
void kvfi_send_age(struct kvfi_senders *senders, int64_t now_ns);
void kvfi_send_request_destroy(struct kvfi_senders *senders, struct kvfi_send_request *request);

/* ---- send_session.c ------------------------------------------------------------------------------------------- */

struct kvfi_send_session *kvfi_send_session_find(struct kvfi_senders *senders, int64_t rid);
/** An enum kvf_trtllm_state. */
int kvfi_send_session_state(const struct kvfi_send_session *session);
void kvfi_send_session_feed(struct kvfi_send_session *session, int kind, enum kvf_status status, int64_t value);
void kvfi_send_session_block(struct kvfi_send_session *session, int kind);
/** Takes a request (its ask is taken) or refuses it. */
void kvfi_send_session_ask(struct kvfi_send_session *session, struct kvfi_send_peer *peer,
                           struct kvfi_trtllm_ask *ask);
void kvfi_send_session_cancel(struct kvfi_send_session *session, struct kvfi_send_peer *by);
/** A piece reached one more rank. */
void kvfi_send_session_delivered(struct kvfi_send_session *session, size_t piece);
void kvfi_send_session_destroy(struct kvfi_send_session *session);

/* ---- send_pieces.c -------------------------------------------------------------------------------------------- */

void kvfi_send_pieces_fini(struct kvfi_send_session *session);

/* ---- send_sink.c ---------------------------------------------------------------------------------------------- */

void kvfi_send_sink_feed(struct kvfi_send_sink *sink, int kind, enum kvf_status status, int64_t value);
/** Writes the sentence down, feeds ON_FAIL, and ends the session with it. */
void kvfi_send_sink_fail(struct kvfi_send_sink *sink, const struct kvf_error *error);
/** Begins with a request, which is taken. */
void kvfi_send_sink_begin(struct kvfi_send_sink *sink, struct kvfi_send_peer *peer, struct kvfi_trtllm_ask *ask);
void kvfi_send_sink_fini(struct kvfi_send_sink *sink);
void kvfi_send_sink_say_kv(struct kvfi_send_sink *sink, int word, bool is_last, int64_t bytes);
void kvfi_send_sink_say_aux(struct kvfi_send_sink *sink, int word);
/** Says that the write that is out is in doubt: once. */
void kvfi_send_sink_say_doubt(struct kvfi_send_sink *sink);

/* ---- send_post.c ---------------------------------------------------------------------------------------------- */

/** Posts what can be posted now. */
void kvfi_send_pump(struct kvfi_send_sink *sink);
void kvfi_send_unqueue(struct kvfi_send_sink *sink);
void kvfi_send_on_write(struct kvfi_senders *senders, struct kvfi_send_write *write,
                        const struct kvf_trtllm_agent_event *event);
void kvfi_send_write_destroy(struct kvfi_senders *senders, struct kvfi_send_write *write);

#endif
