/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm_worker.h  TensorRT-LLM's native disaggregation, the running half: one rank that sends and receives.
 *
 *  A worker stands where upstream's transfer worker stands and speaks upstream's messages with stock peers. A context
 *  rank opens a *send* session per request and hands it pieces; a generation rank *receives* into its blocks. Both are
 *  named by the request id that the two sides share (rid). What moves is planned by kvferry/trtllm.h; an *agent* moves
 *  it.
 *
 *  Two questions are kept apart for each session. Its *outcome* (transferred, error, cancelled) is told once, by an
 *  ENDED event, and never changes. Its memory is *settled* when it is proven that nobody touches it any more, told by a
 *  SETTLED event that never comes first: an end by cancel, error or time settles nothing by itself. Blocks and
 *  auxiliary slots may be reused after SETTLED only, and on all ranks of the instance (kvf_trtllm_agree).
 *
 *  Threads: a worker has one thread of its own, on which all its sockets, deadlines and sessions live. Functions may be
 *  called from any thread, but not from the log sink or an agent; each hands its work to that thread and waits for the
 *  verdict, which takes microseconds and never waits for a peer, except where a timeout is given.
 *  kvf_trtllm_worker_close must be the last call.
 */
#ifndef KVFERRY_TRTLLM_WORKER_H
#define KVFERRY_TRTLLM_WORKER_H

#include "kvferry/trtllm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One rank that talks. Free with kvf_trtllm_worker_close. */
typedef struct kvf_trtllm_worker kvf_trtllm_worker;

/** Longest endpoint and longest agent name, closing zero included. */
enum kvf_trtllm_worker_bytes {
    KVF_TRTLLM_ENDPOINT_BYTES = 512,
    KVF_TRTLLM_AGENT_NAME_BYTES = 288 /**< instance name, immediately followed by the decimal rank */
};

/* ---- agents -------------------------------------------------------------------------------------------------- */

/** What an agent tells. */
enum kvf_trtllm_agent_event_kind {
    KVF_TRTLLM_AGENT_DONE = 1,     /**< the write `cookie` is placed; the agent touches no memory for it any more */
    KVF_TRTLLM_AGENT_FAILED = 2,   /**< it failed; the agent touches no memory for it any more */
    KVF_TRTLLM_AGENT_IN_DOUBT = 3, /**< nobody knows what became of it. DONE or FAILED may follow, if that gets known */
    KVF_TRTLLM_AGENT_GONE = 4      /**< the agent `name`, which was watched, can write here no more */
};

/** One thing that an agent tells. */
struct kvf_trtllm_agent_event {
    int32_t kind;     /**< an enum kvf_trtllm_agent_event_kind */
    int32_t status;   /**< FAILED, IN_DOUBT: an enum kvf_status */
    uint64_t cookie;  /**< of the write */
    char name[KVF_TRTLLM_AGENT_NAME_BYTES]; /**< GONE only */
    char text[KVF_ERROR_TEXT_BYTES];        /**< why, or "" */
};

/** One write: contiguous copies from this rank's memory into a remote one's. */
struct kvf_trtllm_agent_write {
    uint64_t cookie;               /**< comes back in its events; never 0 */
    const char *name;              /**< the remote agent; borrowed for the call */
    int64_t device_id;             /**< of the remote rank; 0 for auxiliary data */
    int32_t is_aux;                /**< 1: auxiliary data (host memory), 0: cache blocks */
    int32_t reserved;              /**< zero */
    int64_t bytes;                 /**< of all copies together, above 0 */
    /** Gives up to `capacity` next copies, 0 at the end; `source` is valid until the DONE or FAILED of this write, and
     *  `next` may be called by any one thread at a time until then. */
    size_t (*next)(void *source, struct kvf_trtllm_fragment *out, size_t capacity);
    void *source;
};

/** The transfer agent: a table of functions with which one worker moves bytes. All of them are called by the worker's
 *  thread (describe: by the caller of open; invalidate: also by that of close), and none may block. Entries marked
 *  optional may be NULL. */
struct kvf_trtllm_agent {
    size_t struct_size; /**< sizeof(struct kvf_trtllm_agent) as the caller compiled it */
    void *context;      /**< handed to each function; borrowed until the worker is closed */
    /** Writes what peers need to reach this agent (`transfer_engine_info`), as far as `capacity` goes; `*byte_count` is
     *  how much it is. Called at open, with capacity 0 first; the memory that peers write must be registered. */
    enum kvf_status (*describe)(void *context, void *buffer, size_t capacity, size_t *byte_count,
                                struct kvf_error *error);
    /** Makes a remote agent known under `name`, in place of one of that name. */
    enum kvf_status (*load)(void *context, const char *name, const void *info, size_t info_bytes,
                            struct kvf_error *error);
    /** Forgets a remote agent; no write to it is out. Unknown names are fine. */
    void (*invalidate)(void *context, const char *name);
    /** Begins a write. KVF_OK: DONE or FAILED follows, exactly one of them; or IN_DOUBT, once, and one of the two later
     *  if it gets known. KVF_ERR_IN_DOUBT: it may have begun, and nothing follows. Any other status: it never began. */
    enum kvf_status (*submit)(void *context, const struct kvf_trtllm_agent_write *write, struct kvf_error *error);
    /** Takes up to `capacity` events. */
    size_t (*poll)(void *context, struct kvf_trtllm_agent_event *events, size_t capacity);
    /** Optional: a descriptor that is readable while poll has events. NULL, or -1: poll is called every millisecond
     *  while anything is out. */
    int (*fd)(void *context);
    /** Optional: asks to be told (GONE) when the agent `name` can write here no more because its process ended: the one
     *  proof that settles memory without the writer's word. Takes the place of a watch of that name, of whose process
     *  nothing is told any more. Needs a descriptor. KVF_ERR_NOT_SUPPORTED: cannot know. */
    enum kvf_status (*watch)(void *context, const char *name, const void *info, size_t info_bytes,
                             struct kvf_error *error);
};

/* ---- opening ------------------------------------------------------------------------------------------------- */

/** How a worker is opened. Texts and the agent table are copied; the rank is acquired. */
struct kvf_trtllm_worker_options {
    size_t struct_size;            /**< set by kvf_trtllm_worker_options_init */
    uint64_t flags;                /**< enum kvf_trtllm_flag; default KVF_TRTLLM_STRICT_UPSTREAM */
    const kvf_trtllm_rank *rank;   /**< this rank; required, with attention and page table. Its self and sender
                                        endpoints and transfer_engine_info are not used: the worker fills in its own */
    int32_t serve_info;            /**< 1: answer at an info endpoint; rank 0 of an instance does. Default 0 */
    int32_t info_port;             /**< port of the info endpoint; default 0 = any free one */
    const char *host;              /**< address to bind and publish; default "127.0.0.1" */
    const struct kvf_trtllm_agent *agent; /**< NULL = the built-in one, which writes across processes of one host */
    int64_t transfer_timeout_ns;   /**< of sessions that give none; default 60 s */
    int64_t first_contact_timeout_ns; /**< for a context instance to say who it is; default 30 s */
    int64_t peer_refresh_ns;       /**< what an info endpoint said, also a refusal, holds so long; then it is asked
                                        again, before the next request or while one is under way. Default 30 s */
    int64_t settle_timeout_ns;     /**< memory that is not settled so long after its session ended is given up: OVERDUE,
                                        and it is never told settled; after a receive's, nothing new is received.
                                        Default 0 = never */
    int64_t stale_request_ns;      /**< requests for which no send session was opened are dropped after this time;
                                        default 120 s */
    int64_t max_sessions;          /**< in each direction; more are refused (KVF_ERR_LIMIT). Default 65536 */
    int64_t max_requests;          /**< stored requests and remembered cancels, of each; what comes on top is refused
                                        and answered. Default 65536 */
    int64_t max_peers;             /**< registered peers, and info endpoints; default 16384 */
    int64_t event_capacity;        /**< events held before new sessions get KVF_ERR_AGAIN; default 65536 */
    struct kvf_log_sink log;
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_trtllm_worker_options) as the caller compiled it. */
KVF_API void kvf_trtllm_worker_options_init(struct kvf_trtllm_worker_options *options, size_t size);

/** Opens a worker: binds its endpoints and starts its thread. It answers nobody who asks who it is before
 *  kvf_trtllm_worker_complete.
 *  @param out  returned to the caller (free with kvf_trtllm_worker_close)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the option, its bounds and the value; KVF_ERR_ADDRESS_IN_USE;
 *          KVF_ERR_NOT_SUPPORTED (the built-in agent cannot work here); KVF_ERR_NEWER_OPTION; KVF_ERR_NO_MEMORY;
 *          KVF_ERR_SYSTEM */
KVF_API enum kvf_status kvf_trtllm_worker_open(const struct kvf_trtllm_worker_options *options,
                                               kvf_trtllm_worker **out, struct kvf_error *error);

/** Where a worker is reached, each "tcp://ADDRESS:PORT". */
struct kvf_trtllm_endpoints {
    size_t struct_size;            /**< set by the caller to sizeof(struct kvf_trtllm_endpoints) */
    char info[KVF_TRTLLM_ENDPOINT_BYTES];     /**< "" without serve_info; the one the other instance is told */
    char sender[KVF_TRTLLM_ENDPOINT_BYTES];   /**< to be gathered from all ranks, for kvf_trtllm_worker_complete */
    char receiver[KVF_TRTLLM_ENDPOINT_BYTES]; /**< the rank's self endpoint */
};

/** Writes where the worker is reached. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_trtllm_worker_endpoints(const kvf_trtllm_worker *worker, struct kvf_trtllm_endpoints *out,
                                                    struct kvf_error *error);

/** The last step of bringing an instance up, once: what the ranks have gathered from each other. From now on the worker
 *  says who it is, also to those who asked earlier, and sessions may be opened.
 *  @param layer_num_per_pp  layers of each pipeline stage; NULL = as in the rank that the worker was opened with
 *  @param sender_endpoints  of all ranks of the instance, by rank; this rank's own must be at its place
 *  @return KVF_OK; KVF_ERR_EXISTS (completed already); KVF_ERR_INVALID_ARGUMENT; what kvf_trtllm_rank_create and
 *          kvf_trtllm_registrar_create return */
KVF_API enum kvf_status kvf_trtllm_worker_complete(kvf_trtllm_worker *worker, const int64_t *layer_num_per_pp,
                                                   size_t layer_num_count, const char *const *sender_endpoints,
                                                   size_t sender_endpoint_count, struct kvf_error *error);

/** Gives the complete rank info, as peers get it. @param out  returned to the caller (free with
 *  kvf_trtllm_rank_release). @return KVF_OK; KVF_ERR_AGAIN (not completed) */
KVF_API enum kvf_status kvf_trtllm_worker_rank(kvf_trtllm_worker *worker, kvf_trtllm_rank **out,
                                               struct kvf_error *error);

/* ---- sessions ------------------------------------------------------------------------------------------------ */

/** Which of the two sessions that a rid may have on one rank. */
enum kvf_trtllm_direction {
    KVF_TRTLLM_SEND = 0,
    KVF_TRTLLM_RECEIVE = 1
};

/** Who begins. Generation-first moves auxiliary data (first and draft tokens) after the last piece; context-first moves
 *  none. */
enum kvf_trtllm_schedule {
    KVF_TRTLLM_CONTEXT_FIRST = 0,
    KVF_TRTLLM_GENERATION_FIRST = 1
};

/** A request as the context rank sends it. */
struct kvf_trtllm_send {
    size_t struct_size;            /**< set by kvf_trtllm_send_init */
    int64_t rid;                   /**< 0 and up */
    int32_t schedule;              /**< an enum kvf_trtllm_schedule; default CONTEXT_FIRST */
    int32_t reserved;              /**< zero */
    int64_t prompt_tokens;         /**< of the whole request */
    int64_t timeout_ns;            /**< from the first piece on, never begun anew; default 0 = the worker's. When it
                                        passes, a TIMEOUT event says so and the session stays as it is: it may still
                                        be transferred, and it may be cancelled */
};

/** Fills `send` with the defaults. `size` is sizeof(struct kvf_trtllm_send) as the caller compiled it. */
KVF_API void kvf_trtllm_send_init(struct kvf_trtllm_send *send, size_t size);

/** Opens the send session of a rid. Requests that came before are taken up; when all expected generation ranks have
 *  asked, a READY event comes (a generation-first prefill is to be run then). A rid that was cancelled by its peer
 *  gives a session that ends as cancelled at once.
 *  @return KVF_OK; KVF_ERR_EXISTS; KVF_ERR_AGAIN (not completed; event queue full); KVF_ERR_LIMIT; KVF_ERR_CLOSED
 *          (shutting down); KVF_ERR_INVALID_ARGUMENT */
KVF_API enum kvf_status kvf_trtllm_worker_send_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_send *send,
                                                    struct kvf_error *error);

/** One piece (chunk) of a request. Arrays are copied. */
struct kvf_trtllm_piece {
    size_t struct_size;            /**< set by kvf_trtllm_piece_init */
    int64_t rid;
    int64_t token_begin, token_end; /**< of the prompt; default all of it (token_end KVF_TRTLLM_NONE) */
    int32_t is_last;               /**< default 1; the last piece may be empty, and is sent all the same */
    int32_t reserved;              /**< zero */
    const struct kvf_trtllm_blocks *groups; /**< one per layer group of this rank; positional, -1 a hole */
    size_t group_count;
    const struct kvf_trtllm_view_key *excluded; /**< views that the receiver makes itself */
    size_t excluded_count;
};

/** Fills `piece` with the defaults. `size` is sizeof(struct kvf_trtllm_piece) as the caller compiled it. */
KVF_API void kvf_trtllm_piece_init(struct kvf_trtllm_piece *piece, size_t size);

/** Hands over a piece: it is written once to each rank that has asked or will ask. Its blocks must stay valid and
 *  unchanged until SETTLED. Pieces follow each other without gaps, the last one up to the prompt's end. Of its tables
 *  counts what no earlier piece held: the blocks that are whole at its end, all that is left with the last one. State,
 *  rings, and windows shorter than the prompt are written with the last piece, whatever piece they come with.
 *  @return KVF_OK; KVF_ERR_NOT_FOUND ("send session already retired; ..." too); KVF_ERR_IDS; KVF_ERR_CANCELLED and
 *          other ends of the session; KVF_ERR_INVALID_ARGUMENT (a piece after the last one); KVF_ERR_AGAIN;
 *          KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_trtllm_worker_send_piece(kvf_trtllm_worker *worker, const struct kvf_trtllm_piece *piece,
                                                     struct kvf_error *error);

/** Hands over the auxiliary data of a generation-first request, in slot `slot` of this rank's buffers, once, after the
 *  last piece. The slot must stay valid until SETTLED.
 *  @return as kvf_trtllm_worker_send_piece; KVF_ERR_OUT_OF_RANGE (no such slot); KVF_ERR_EXISTS (it was before) */
KVF_API enum kvf_status kvf_trtllm_worker_send_aux(kvf_trtllm_worker *worker, int64_t rid, int64_t slot,
                                                   struct kvf_error *error);

/** A request as the generation rank receives it. Arrays are copied. */
struct kvf_trtllm_receive {
    size_t struct_size;            /**< set by kvf_trtllm_receive_init */
    int64_t rid;                   /**< 0 and up */
    int64_t sender_req_id;         /**< the context side's own id; default KVF_TRTLLM_NONE = the rid */
    const char *info_endpoint;     /**< of the context instance; required */
    int64_t ctx_dp_rank;           /**< the context's DP group; KVF_TRTLLM_NONE (default) = not known: all are asked,
                                        and the one that runs the prefill writes */
    int32_t schedule;              /**< an enum kvf_trtllm_schedule; default CONTEXT_FIRST */
    int32_t reserved;              /**< zero */
    int64_t prompt_tokens;         /**< of the whole request */
    const struct kvf_trtllm_blocks *groups; /**< one per layer group of this rank; positional, -1 = not wanted */
    size_t group_count;
    int64_t aux_slot;              /**< generation-first: slot of this rank's auxiliary buffers; else KVF_TRTLLM_NONE */
    int64_t dst_start_token;       /**< nothing before it is wanted; default KVF_TRTLLM_NONE = all is */
    int64_t timeout_ns;            /**< until all is received; default 0 = the worker's */
};

/** Fills `receive` with the defaults. `size` is sizeof(struct kvf_trtllm_receive) as the caller compiled it. */
KVF_API void kvf_trtllm_receive_init(struct kvf_trtllm_receive *receive, size_t size);

/** Receives a request: the blocks and the slot belong to the library until SETTLED; their content is whole after ENDED
 *  with KVF_TRTLLM_STATE_TRANSFERRED. An info endpoint that was not asked yet, or long ago, is asked first; a context
 *  instance that does not fit ends this session with KVF_ERR_INCOMPATIBLE or KVF_ERR_VERSION and "context peer at
 *  '<endpoint>' is incompatible: <cause> (...)", and nothing is sent to its ranks.
 *  @return KVF_OK; KVF_ERR_EXISTS; KVF_ERR_AGAIN (not completed; event queue full); KVF_ERR_LIMIT; KVF_ERR_CLOSED
 *          (shutting down); KVF_ERR_IDS naming group, index and value; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_IN_DOUBT
 *          ("receiver ownership admission is quarantined: ..."): after foreign or contradictory reports nothing new is
 *          received */
KVF_API enum kvf_status kvf_trtllm_worker_receive(kvf_trtllm_worker *worker, const struct kvf_trtllm_receive *receive,
                                                  struct kvf_error *error);

/** Cancels a session. Its end as cancelled comes at once, unless it had ended; peers that may still write or wait are
 *  told once each; SETTLED comes when all have answered. @param direction  an enum kvf_trtllm_direction
 *  @return KVF_OK, also when it had ended; KVF_ERR_NOT_FOUND */
KVF_API enum kvf_status kvf_trtllm_worker_cancel(kvf_trtllm_worker *worker, int direction, int64_t rid,
                                                 struct kvf_error *error);

/** Where a session stands. */
enum kvf_trtllm_state {
    KVF_TRTLLM_STATE_INIT = 0,
    KVF_TRTLLM_STATE_READY = 1,        /**< send only: all expected ranks have asked */
    KVF_TRTLLM_STATE_TRANSFERRING = 2, /**< receive: the requests are out */
    KVF_TRTLLM_STATE_TRANSFERRED = 3,
    KVF_TRTLLM_STATE_ERROR = 4,
    KVF_TRTLLM_STATE_CANCELLED = 5
};

/** Names a state, as in "transferred". Never NULL. */
KVF_API const char *kvf_trtllm_state_text(int state);

/** A session at one instant. */
struct kvf_trtllm_status {
    size_t struct_size;            /**< set by the caller to sizeof(struct kvf_trtllm_status) */
    int32_t state;                 /**< an enum kvf_trtllm_state */
    int32_t status;                /**< of an end: KVF_OK, KVF_ERR_CANCELLED, KVF_ERR_EXPIRED, ... */
    int32_t is_settled;            /**< 1: nobody touches its memory any more */
    int32_t is_quarantined;        /**< 1: it never will be settled: the reports about it contradict each other, or
                                        settle_timeout_ns passed */
    int32_t by_peer;               /**< CANCELLED: 1 when the peer did it */
    int32_t reserved;              /**< zero */
    int64_t expected;              /**< peers that take part: writers, or ranks that must ask; 0 = not known yet */
    int64_t asked;                 /**< receive: ranks that were asked; send: ranks that have asked */
    int64_t pending;               /**< reports that are owed by peers (receive) or to them (send); not a permission to
                                        free when 0 */
    int64_t in_doubt;              /**< writers, or writes, of which nobody knows whether they are over */
    int64_t pieces;                /**< send: handed over */
    int64_t tokens;                /**< delivered: all tokens below this one, to all that asked */
    int64_t bytes;                 /**< send: placed; receive: placed as the writers report it, 0 when they do not */
    char peer[KVF_TRTLLM_AGENT_NAME_BYTES]; /**< whom an error is about, or "" */
    char text[KVF_ERROR_TEXT_BYTES];        /**< why it ended so, or "" */
};

/** Writes where a session stands. @return KVF_OK; KVF_ERR_NOT_FOUND; KVF_ERR_INVALID_ARGUMENT */
KVF_API enum kvf_status kvf_trtllm_worker_status(kvf_trtllm_worker *worker, int direction, int64_t rid,
                                                 struct kvf_trtllm_status *out, struct kvf_error *error);

/** Forgets a session that has ended and is settled; what comes for its rid later changes nothing.
 *  @return KVF_OK; KVF_ERR_NOT_FOUND; KVF_ERR_AGAIN saying what it waits for: cancel it and wait for SETTLED */
KVF_API enum kvf_status kvf_trtllm_worker_close_session(kvf_trtllm_worker *worker, int direction, int64_t rid,
                                                        struct kvf_error *error);

/* ---- events -------------------------------------------------------------------------------------------------- */

/** Each session gives exactly one ENDED, and at most one SETTLED after it: none when it is quarantined. */
enum kvf_trtllm_event_kind {
    KVF_TRTLLM_EVENT_NONE = 0,
    KVF_TRTLLM_EVENT_ENDED = 1,    /**< its outcome: `state`, `status`, `text` */
    KVF_TRTLLM_EVENT_SETTLED = 2,  /**< its memory may be reused */
    KVF_TRTLLM_EVENT_READY = 3,    /**< send: all expected ranks have asked */
    KVF_TRTLLM_EVENT_PIECE = 4,    /**< send only: a piece is delivered to all expected ranks: `piece`, `tokens` */
    KVF_TRTLLM_EVENT_QUARANTINED = 5, /**< its memory will never be settled, `text` says why; nothing new is received
                                           until this process is replaced */
    KVF_TRTLLM_EVENT_OVERDUE = 6,  /**< the same, because settle_timeout_ns passed */
    KVF_TRTLLM_EVENT_TIMEOUT = 7   /**< send: its timeout_ns passed, `text` says who is missing; told once, no end */
};

/** What happened: a fixed-size record. Unused fields are zero. */
struct kvf_trtllm_event {
    int32_t kind;      /**< an enum kvf_trtllm_event_kind */
    int32_t direction; /**< an enum kvf_trtllm_direction */
    int32_t state;     /**< an enum kvf_trtllm_state */
    int32_t status;    /**< an enum kvf_status */
    int32_t by_peer;   /**< ENDED as cancelled: 1 when the peer did it */
    int32_t reserved;
    int64_t rid;
    int64_t piece;     /**< PIECE: its number, from 0 */
    int64_t tokens;    /**< delivered */
    int64_t bytes;     /**< placed; receive: as the writers report it */
    int64_t peers;     /**< that took part */
    int64_t started_ns, ended_ns; /**< monotonic clock */
    char peer[KVF_TRTLLM_AGENT_NAME_BYTES]; /**< whom it is about, where one peer is meant */
    char text[KVF_ERROR_TEXT_BYTES];
};

/** Takes up to `capacity` events without blocking. Returns how many. */
KVF_API size_t kvf_trtllm_worker_poll(kvf_trtllm_worker *worker, struct kvf_trtllm_event *events, size_t capacity);

/** Waits until there is an event or `timeout_ns` passed (0 = poll), and takes up to `capacity`. Returns how many. */
KVF_API size_t kvf_trtllm_worker_wait(kvf_trtllm_worker *worker, struct kvf_trtllm_event *events, size_t capacity,
                                      int64_t timeout_ns);

/** A descriptor (eventfd) that is readable while any event is queued. Do not read it. Valid until close. */
KVF_API int kvf_trtllm_worker_event_fd(const kvf_trtllm_worker *worker);

/* ---- counters, the end ---------------------------------------------------------------------------------------- */

/** Counters since open. */
struct kvf_trtllm_worker_stats {
    size_t struct_size; /**< set by the caller to sizeof(struct kvf_trtllm_worker_stats) */
    int64_t info_answered, info_asked;        /**< questions who one is: answered, asked */
    int64_t registrations_sent, registered, registrations_refused;
    int64_t requests_sent, requests_received, requests_stored, requests_expired;
    int64_t results_received, results_dropped; /**< dropped: of no session here */
    int64_t cancels_sent, cancels_received, quiesced_sent, quiesced_received;
    int64_t malformed;                         /**< messages that were none */
    int64_t incompatible;                      /**< info endpoints that are refused now */
    int64_t sends_active, sends_done, sends_failed;
    int64_t receives_active, receives_done, receives_failed;
    int64_t unsettled;                         /**< sessions whose memory is not settled, both directions */
    int64_t bytes_sent;
};

/** Writes the counters. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_trtllm_worker_get_stats(kvf_trtllm_worker *worker, struct kvf_trtllm_worker_stats *stats,
                                                    struct kvf_error *error);

/** Ends a worker's service in good order: new sessions are refused from now on, and it waits until no session is left
 *  whose memory is not settled. Sessions are not cancelled by it.
 *  @return KVF_OK; KVF_ERR_TIMEOUT with how many are left: call it again after they settled */
KVF_API enum kvf_status kvf_trtllm_worker_shutdown(kvf_trtllm_worker *worker, int64_t timeout_ns,
                                                   struct kvf_error *error);

/** Stops the thread, closes every socket, frees. After it returns this side touches no memory; what peers still write
 *  into memory that was not settled is theirs: unmap or reuse such memory only when this process ends. An agent of the
 *  caller's must have no write out by then. NULL is fine. Blocks for at most about a second. */
KVF_API void kvf_trtllm_worker_close(kvf_trtllm_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
