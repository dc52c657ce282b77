/* SPDX-License-Identifier: Apache-2.0 */
/** @file engine.h  One worker: open, register memory, announce, offer or pull, wait for events, close.
 *
 *  A prefill worker *offers* the blocks of a transfer; a decode worker *pulls* them. The transfer id and attempt are
 *  named by whoever stands above (the router), the same on both sides: the library invents none. An engine may do both.
 *
 *  Threads: opening an engine starts one progress thread that owns every control socket, timer and state machine; the
 *  transports have data threads beside it. Calls post commands and return; results are events, fixed-size records taken
 *  with kvf_engine_poll or kvf_engine_wait. No callback runs in anyone's thread. All functions may be called from any
 *  thread, except that kvf_engine_close must be the last call.
 */
#ifndef KVFERRY_ENGINE_H
#define KVFERRY_ENGINE_H

#include "kvferry/layout.h"
#include "kvferry/log.h"
#include "kvferry/memory.h"
#include "kvferry/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One worker. Free with kvf_engine_close. */
typedef struct kvf_engine kvf_engine;

/** Longest names, closing zero included. */
enum kvf_name_bytes {
    KVF_TRANSFER_ID_BYTES = 128,
    KVF_INSTANCE_NAME_BYTES = 128
};

/** Flags of kvf_engine_options. */
enum kvf_engine_flag {
    KVF_ENGINE_CALLER_PROGRESS = 1, /**< no progress thread: kvf_engine_progress must be called at least every 100 ms */
    KVF_ENGINE_CHECKSUM = 2         /**< tcp frames carry a checksum (XXH3-64), checked before placement */
};

/** How an engine is opened. Texts are copied; the layout is acquired. */
struct kvf_engine_options {
    size_t struct_size;       /**< set by kvf_engine_options_init */
    uint64_t flags;           /**< enum kvf_engine_flag */
    const char *instance;     /**< name of this instance; required; 1 to 127 bytes */
    struct kvf_rank rank;     /**< this rank's place in the grid */
    int64_t ranks_expected;   /**< ranks of the instance; default 1 */
    const kvf_layout *layout; /**< this rank's layout; required; the engine takes its own reference */
    const char *model_fingerprint; /**< compared between peers when both are not ""; default "" */
    const char *directory_url; /**< "http://HOST:PORT"; NULL or "" = this engine embeds a directory (rank 0,0,0 only) */
    const char *directory_listen; /**< where an embedded directory listens; default "127.0.0.1:0" */
    const char *host;         /**< address to bind and publish for channel and data; default "127.0.0.1" */
    const char *transports;   /**< wished transports, best first; default "shm,tcp". Names: shm, tcp, loop */
    int64_t tcp_streams;      /**< data connections per peer; default 2, 1 to 16 */
    int64_t peer_timeout_ns;  /**< a peer silent for so long is lost; default 2 s, 100 ms to 10 min */
    int64_t connect_timeout_ns; /**< for hello and data connections; default 5 s */
    int64_t directory_timeout_ns; /**< for one directory request with its retries; default 5 s */
    int64_t incomplete_timeout_ns; /**< how long a pull waits for an instance to become complete; default 30 s */
    int64_t event_capacity;   /**< events held before new commands get KVF_ERR_AGAIN; default 65536 */
    const char *fault_policy; /**< tests only: faults of every transport ("corrupt=1"), or of one ("tcp:corrupt=1");
                                   src/transport/fault/fault.h lists them; default NULL */
    struct kvf_log_sink log;
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_engine_options) as the caller compiled it. */
KVF_API void kvf_engine_options_init(struct kvf_engine_options *options, size_t size);

/** Opens an engine: binds its sockets and starts its threads; nobody knows of it before kvf_engine_announce.
 *  @param out  returned to the caller (free with kvf_engine_close)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the option, its bounds and the value; KVF_ERR_ADDRESS_IN_USE;
 *          KVF_ERR_NEWER_OPTION; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
KVF_API enum kvf_status kvf_engine_open(const struct kvf_engine_options *options, kvf_engine **out,
                                        struct kvf_error *error);

/** Registers memory number `index` of the layout, before announcing. `fd` (or -1) is a file descriptor that maps the
 *  whole memory from offset 0, such as kvf_memory_fd: with it a worker on the same host maps it; without it, such a
 *  worker writes across processes or falls back to tcp. Address and descriptor are borrowed until close.
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE (index, or `bytes` less than the layout's); KVF_ERR_EXISTS */
KVF_API enum kvf_status kvf_engine_register_memory(kvf_engine *engine, int64_t index, void *address, int64_t bytes,
                                                   int fd, struct kvf_error *error);

/** Registers with the directory and keeps the registration alive until close. All memories must be registered.
 *  Blocks at most directory_timeout_ns. @return KVF_OK; KVF_ERR_DIRECTORY with the URL and what it answered;
 *  KVF_ERR_INVALID_ARGUMENT naming the memory that is missing; KVF_ERR_EXISTS (announced already) */
KVF_API enum kvf_status kvf_engine_announce(kvf_engine *engine, struct kvf_error *error);

/** URL of the directory in use (the embedded one's, or the option's): borrowed until close. */
KVF_API const char *kvf_engine_directory_url(const kvf_engine *engine);

/** Blocks of one transfer on the prefill side. Arrays are copied. */
struct kvf_offer {
    size_t struct_size;     /**< set by kvf_offer_init */
    const char *transfer;   /**< id, 1 to 127 bytes */
    int64_t attempt;        /**< 0 and up; a higher attempt supersedes a lower one */
    int64_t request_tokens; /**< tokens of the whole request */
    const struct kvf_id_list *groups; /**< block ids, one list per group of the layout */
    size_t group_count;
    int64_t ready_tokens;   /**< tokens computed already in all layers; request_tokens = the whole offer is ready */
    int64_t timeout_ns;     /**< the offer ends so long after this call, also while bytes flow; default 60 s */
};

/** Fills `offer` with the defaults. `size` is sizeof(struct kvf_offer) as the caller compiled it. */
KVF_API void kvf_offer_init(struct kvf_offer *offer, size_t size);

/** Offers blocks. They must stay valid and unchanged until KVF_EVENT_BLOCKS_REUSABLE of this transfer and attempt.
 *  @return KVF_OK; KVF_ERR_EXISTS ("transfer "x" attempt 0 is offered already"); KVF_ERR_IDS; KVF_ERR_SUPERSEDED (a
 *          higher attempt is known); KVF_ERR_INVALID_ARGUMENT; KVF_ERR_AGAIN (event queue full) */
KVF_API enum kvf_status kvf_engine_offer(kvf_engine *engine, const struct kvf_offer *offer, struct kvf_error *error);

/** Says that tokens [0, ready_tokens) of layers [layer_first, layer_end) are computed; they flow at once. Values only
 *  rise. State and rings move with the part that reaches request_tokens.
 *  @return KVF_OK; KVF_ERR_NOT_FOUND; KVF_ERR_OUT_OF_RANGE */
KVF_API enum kvf_status kvf_engine_offer_ready(kvf_engine *engine, const char *transfer, int64_t attempt,
                                               int64_t layer_first, int64_t layer_end, int64_t ready_tokens,
                                               struct kvf_error *error);

/** Flags of a pull. */
enum kvf_pull_flag {
    /** Wait for an instance that the directory does not know, as for an incomplete one (incomplete_timeout_ns); a line
     *  in the log says so. */
    KVF_PULL_AWAIT_INSTANCE = 1
};

/** A pull on the decode side. Arrays are copied. */
struct kvf_pull {
    size_t struct_size;     /**< set by kvf_pull_init */
    const char *transfer;   /**< id, 1 to 127 bytes */
    int64_t attempt;
    const char *from;       /**< name of the prefill instance */
    int64_t request_tokens; /**< tokens of the whole request */
    int64_t token_begin, token_end; /**< the range wanted: [cached prefix, request_tokens) usually. Ring groups get the
                                         last positions of it that both sides retain */
    const struct kvf_id_list *groups; /**< destination block ids, one list per group of the layout */
    size_t group_count;
    int64_t timeout_ns;     /**< the pull fails so long after this call, also while bytes flow; default 60 s */
    uint64_t flags;         /**< enum kvf_pull_flag; default 0 */
};

/** Fills `pull` with the defaults. `size` is sizeof(struct kvf_pull) as the caller compiled it. */
KVF_API void kvf_pull_init(struct kvf_pull *pull, size_t size);

/** Pulls. The blocks belong to the library until KVF_EVENT_BLOCKS_REUSABLE; their content is whole after
 *  KVF_EVENT_PULL_DONE.
 *  @return KVF_OK; KVF_ERR_EXISTS ("transfer "x" attempt 0 is pulled already"); KVF_ERR_SUPERSEDED; KVF_ERR_IDS;
 *          KVF_ERR_INVALID_ARGUMENT; KVF_ERR_AGAIN; KVF_ERR_CLOSED (draining). What the peer side finds comes as an
 *          event: an instance that the directory has never listed fails the pull at once (KVF_ERR_NOT_FOUND;
 *          with KVF_PULL_AWAIT_INSTANCE after incomplete_timeout_ns), an incomplete one is waited for
 *          (KVF_ERR_INCOMPLETE after incomplete_timeout_ns), and so on. */
KVF_API enum kvf_status kvf_engine_pull(kvf_engine *engine, const struct kvf_pull *pull, struct kvf_error *error);

/** Cancels an offer or a pull of this id and attempt. The terminal event comes, with KVF_ERR_CANCELLED, unless it was
 *  over already. @return KVF_OK; KVF_ERR_NOT_FOUND */
KVF_API enum kvf_status kvf_engine_cancel(kvf_engine *engine, const char *transfer, int64_t attempt,
                                          struct kvf_error *error);

/** Each offer and each pull ends in exactly one terminal event (…_DONE or …_FAILED) and exactly one BLOCKS_REUSABLE,
 *  never before the terminal one. */
enum kvf_event_kind {
    KVF_EVENT_NONE = 0,
    KVF_EVENT_PULL_DONE = 1,      /**< every byte of the range is in its block */
    KVF_EVENT_PULL_FAILED = 2,    /**< status and text say why; the content of the blocks is undefined */
    KVF_EVENT_OFFER_DONE = 3,     /**< every destination rank of the pulling instance has ended well */
    KVF_EVENT_OFFER_FAILED = 4,   /**< status and text say why */
    KVF_EVENT_BLOCKS_REUSABLE = 5, /**< nobody reads or writes the blocks of this offer or pull any more */
    KVF_EVENT_PEER_LOST = 6       /**< a peer was lost while a transfer was under way with it; informative */
};

/** What happened: a fixed-size record. Unused fields are zero. */
struct kvf_event {
    int32_t kind;       /**< an enum kvf_event_kind */
    int32_t status;     /**< an enum kvf_status */
    int32_t is_offer;   /**< BLOCKS_REUSABLE: 1 for an offer's blocks, 0 for a pull's */
    int32_t transport;  /**< PULL_DONE: bit set of what was used: 1 loop, 2 shm, 4 tcp */
    int64_t attempt;
    int64_t bytes;      /**< moved */
    int64_t pieces;     /**< writer-to-destination pieces that took part */
    int64_t runs;       /**< contiguous runs moved */
    int64_t tokens;     /**< PULL_DONE: valid tokens */
    int64_t started_ns, ended_ns; /**< monotonic clock */
    char transfer[KVF_TRANSFER_ID_BYTES];
    char peer[KVF_INSTANCE_NAME_BYTES + 32]; /**< "p/pp0.cp0.tp2" where one peer is meant */
    char text[KVF_ERROR_TEXT_BYTES];
};

/** Takes up to `capacity` events without blocking. Returns how many. */
KVF_API size_t kvf_engine_poll(kvf_engine *engine, struct kvf_event *events, size_t capacity);

/** Waits until there is an event or `timeout_ns` passed (0 = poll), and takes up to `capacity`. Returns how many. With
 *  KVF_ENGINE_CALLER_PROGRESS it makes progress while it waits. */
KVF_API size_t kvf_engine_wait(kvf_engine *engine, struct kvf_event *events, size_t capacity, int64_t timeout_ns);

/** A descriptor (eventfd) that is readable while any event is queued. Do not read it. Valid until close. */
KVF_API int kvf_engine_event_fd(const kvf_engine *engine);

/** With KVF_ENGINE_CALLER_PROGRESS: handles what is due and returns without blocking. Call it at least every 100 ms,
 *  and never from two threads at once. Otherwise it does nothing. */
KVF_API void kvf_engine_progress(kvf_engine *engine);

/** Counters since open. */
struct kvf_engine_stats {
    size_t struct_size; /**< set by the caller to sizeof(struct kvf_engine_stats) */
    int64_t bytes_received, bytes_sent;
    int64_t pulls_active, pulls_done, pulls_failed;
    int64_t offers_active, offers_done, offers_failed;
    int64_t peers;
    int64_t plans_cached;
};

/** Writes the counters. Any thread. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_engine_get_stats(kvf_engine *engine, struct kvf_engine_stats *stats);

/** Refuses new offers and pulls, and waits until those that run have ended and their blocks are reusable.
 *  @return KVF_OK; KVF_ERR_TIMEOUT with how many are left. Events stay to be taken. */
KVF_API enum kvf_status kvf_engine_drain(kvf_engine *engine, int64_t timeout_ns, struct kvf_error *error);

/** Withdraws the registration, ends what still runs (peers are told), stops every thread, frees. NULL is fine. After it
 *  returns the library touches no registered memory. Blocks at most about peer_timeout_ns. */
KVF_API void kvf_engine_close(kvf_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
