/* SPDX-License-Identifier: Apache-2.0 */
/** @file mooncake.h  Peers of the Mooncake Transfer Engine: its TCP data protocol and its P2P handshake, both roles.
 *
 *  An *engine* here is what `TransferEngine.initialize(host, "P2PHANDSHAKE", "tcp", "")` makes there: it listens for
 *  handshakes and for data, and it is an initiator towards others. What it exposes is its *segment*, named
 *  "HOST:RPC_PORT" ("[V6]:RPC_PORT"). Peers read and write the *buffers* that were registered, by absolute address.
 *  docs/mooncake.md maps each call of the other engine to one of these.
 *
 *  There is no authentication in this protocol: whoever reaches the data port reads and writes every registered buffer
 *  that is not guarded, and nothing but that. Bind to an address that only peers reach.
 *
 *  Threads: every function may be called from any thread, several at once; kvf_mooncake_close must be the last call.
 *  Transfers are made by the calling thread and block it until they have ended, batches by threads of the engine; other
 *  threads serve peers.
 *  A `timeout_ns` is how long the call may take; it must be above 0. Host names (not numbers) are looked up by the
 *  system's resolver within that time. It cannot be broken off: a look-up that takes longer is left behind, in a thread
 *  of its own that ends by itself and touches nothing of the engine, also after close. 32 such names hold up others.
 */
#ifndef KVFERRY_MOONCAKE_H
#define KVFERRY_MOONCAKE_H

#include "kvferry/log.h"
#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One engine. Free with kvf_mooncake_close. */
typedef struct kvf_mooncake kvf_mooncake;

/** Longest texts, closing zero included. */
enum kvf_mooncake_bytes {
    KVF_MOONCAKE_NAME_BYTES = 272,    /**< a segment name */
    KVF_MOONCAKE_PROTOCOL_BYTES = 64  /**< protocols of a peer */
};

/* ---- opening ------------------------------------------------------------------------------------------------- */

/** How an engine is opened. Texts are copied. */
struct kvf_mooncake_options {
    size_t struct_size;           /**< set by kvf_mooncake_options_init */
    const char *host;             /**< the one address that is bound; default "127.0.0.1". A wildcard needs
                                       publish_host */
    const char *publish_host;     /**< what peers are told, without port or brackets; default NULL = host */
    int32_t rpc_port;             /**< of the handshake listener; default 0 = any free one */
    int32_t data_port;            /**< of the data listener; default 0 = any free one. Peers keep it for ever: who
                                       restarts on the same rpc_port must take the same data_port, too */
    int32_t initiator_only;       /**< 1: no listener; nothing can be read or written here. Default 0 */
    int32_t hide_buffers;         /**< 1: the published descriptor lists no buffers; they are reachable all the same.
                                       Default 0 */
    int32_t max_version;          /**< data protocol as initiator: 2 (default) where the peer has it, or always 1 */
    int32_t data_threads;         /**< threads that serve data; default 0 = by the number of processors, at most 4.
                                       When the ordinary scheduling policy is theirs, they turn to SCHED_BATCH while no
                                       large body comes in: senders on this host are not stopped for each request */
    int32_t lanes;                /**< connections that one transfer may use; default 2, at most 16 */
    int32_t max_lanes;            /**< connections to one peer, of all threads together; default 16, at most 256 */
    int64_t max_connections;      /**< data connections that are served; beyond, idle ones go, dead peers' and the
                                       oldest first. Default 16384 */
    int64_t max_handshakes;       /**< handshakes at a time; beyond, the oldest goes. Default 1024 */
    int64_t max_notifies;         /**< notifies that wait to be taken; more are rejected. Default 4096 */
    int64_t max_handshake_bytes;  /**< longest handshake frame, in and out; default 1048576, as the reference has it */
    int64_t connect_timeout_ns;   /**< for one connect, to all addresses of its host; and to look up `host` when the
                                       engine opens. Default 5 s */
    int64_t handshake_timeout_ns; /**< for a peer to send its frame, and then to close; default 5 s */
    int64_t progress_timeout_ns;  /**< a connection inside a request on which no byte moves, or a status that does not
                                       come, in both roles; and how long a peer may take to answer a handshake.
                                       Default 30 s. There is no limit between requests */
    struct kvf_log_sink log;
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_mooncake_options) as the caller compiled it. */
KVF_API void kvf_mooncake_options_init(struct kvf_mooncake_options *options, size_t size);

/** Opens an engine: the data listener first, then the handshake listener.
 *  @param options  NULL = the defaults
 *  @param out      returned to the caller (free with kvf_mooncake_close)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the option; KVF_ERR_ADDRESS_IN_USE; KVF_ERR_NEWER_OPTION;
 *          KVF_ERR_TIMEOUT: the resolver does not answer; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
KVF_API enum kvf_status kvf_mooncake_open(const struct kvf_mooncake_options *options, kvf_mooncake **out,
                                          struct kvf_error *error);

/** Stops answering handshakes, then data, and frees. Afterwards no registered memory is touched. NULL is fine. */
KVF_API void kvf_mooncake_close(kvf_mooncake *engine);

/** The name by which peers open this engine's segment, "" with initiator_only. Valid until close. */
KVF_API const char *kvf_mooncake_segment_name(const kvf_mooncake *engine);

/** The ports of both listeners, 0 with initiator_only. */
KVF_API int32_t kvf_mooncake_rpc_port(const kvf_mooncake *engine);
KVF_API int32_t kvf_mooncake_data_port(const kvf_mooncake *engine);

/* ---- memory -------------------------------------------------------------------------------------------------- */

/** Memory that takes part: this engine's, or what a peer publishes. */
struct kvf_mooncake_buffer {
    uint64_t address; /**< absolute, in the process that owns it; never 0 */
    uint64_t bytes;   /**< above 0 */
};

/** Registers buffers, all or none. Peers may read and write them from now on, and transfers use them as local memory.
 *  A peer's request must lie in one buffer; touching ones are not joined for it.
 *  @param buffers  the list is copied; the memory is borrowed until it is unregistered, or close
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT: address 0, 0 bytes, past the end of all addresses; KVF_ERR_EXISTS: one
 *          overlaps another of the list or a registered one (touching is fine); KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_mooncake_register(kvf_mooncake *engine, const struct kvf_mooncake_buffer *buffers,
                                              size_t count, struct kvf_error *error);

/** Unregisters the buffers that begin at these addresses, all or none, and waits until no request and no transfer that
 *  had begun touches them. Requests of peers that go on after `timeout_ns` lose their connection.
 *  Not while this thread's own transfer runs: it waits for those, too.
 *  @return KVF_OK; KVF_ERR_NOT_FOUND naming the address */
KVF_API enum kvf_status kvf_mooncake_unregister(kvf_mooncake *engine, const uint64_t *addresses, size_t count,
                                                int64_t timeout_ns, struct kvf_error *error);

/* ---- guards -------------------------------------------------------------------------------------------------- */

/** A guard over blocks of registered memory: peers write a block only while it is granted, and read none at all.
 *
 *  The protocol says neither who writes nor for which request. Without a guard a peer that is late, or wrong, writes
 *  over blocks that have long been given to another request. A guard also counts the bytes that arrive, so that "all
 *  is written" can be checked against what did come.
 *
 *  One guard is over arrays that share block numbers: block `i` of every grid is granted with the others. Several
 *  guards may lie over the same memory; a write needs one of them.
 *  Valid until kvf_mooncake_guard_close, or until the engine closes. */
typedef struct kvf_mooncake_guard kvf_mooncake_guard;

/** Where the blocks of one array lie: block `i` is the `block_bytes` bytes at `address + i * stride_bytes`. */
struct kvf_mooncake_grid {
    uint64_t address;      /**< of block 0 */
    int64_t stride_bytes;  /**< from a block to the next: at least block_bytes, unless there is one block only */
    int64_t block_bytes;   /**< above 0 */
};

/** Guards blocks. All buffers in which one of them lies, registered now or later, are guarded from now on: a request
 *  of a peer that reads there, or writes anything that is not granted, is refused. They stay so until they are
 *  unregistered, also after the guard was closed. Requests that are under way there lose their connection.
 *  @param grids        copied; any order, 65,536 at most. Those of one guard do not overlap. Where grids interleave, so
 *                      that one begins before another ends, they have one stride, and each its own place within it
 *                      (judged by address modulo stride). They may reach past registered memory (such blocks cannot be
 *                      written then), but not past the end of all addresses
 *  @param block_count  blocks 0 to block_count - 1; 1 to 2^31 - 1. each takes 24 bytes of memory
 *  @param out          returned to the caller
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the grid; KVF_ERR_LIMIT, also with 1,024 guards open;
 *          KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_mooncake_guard_open(kvf_mooncake *engine, const struct kvf_mooncake_grid *grids,
                                                size_t grid_count, int64_t block_count, kvf_mooncake_guard **out,
                                                struct kvf_error *error);

/** Grants blocks, all or none. Grants of a block are counted, each time it is in the list; with the first one its bytes
 *  are counted from 0.
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE naming the block; KVF_ERR_LIMIT: granted 65,535 times */
KVF_API enum kvf_status kvf_mooncake_guard_grant(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                                 struct kvf_error *error);

/** Takes grants back, all or none. No request that would touch a block without a grant begins any more; the call waits
 *  for those that had begun, and after `timeout_ns` (0: at once) their connections are closed. When it returns
 *  KVF_OK, no peer touches those blocks, but where they have other grants, or another guard grants the same memory.
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE, KVF_ERR_NOT_FOUND naming a block that is none or not granted */
KVF_API enum kvf_status kvf_mooncake_guard_revoke(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                                  int64_t timeout_ns, struct kvf_error *error);

/** Bytes that have arrived in these blocks, in all grids together, each since it was granted first. A request counts
 *  once all of it has arrived, and one that a connection lost amid not at all. What is written twice counts twice:
 *  fewer than expected means for certain that bytes are missing. After a block was revoked its count stays until it is
 *  granted again.
 *  @return KVF_OK; KVF_ERR_OUT_OF_RANGE naming the block */
KVF_API enum kvf_status kvf_mooncake_guard_count(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                                 int64_t *bytes, struct kvf_error *error);

/** Revokes all, as kvf_mooncake_guard_revoke does with a `timeout_ns` of 0, and frees. NULL is fine. */
KVF_API void kvf_mooncake_guard_close(kvf_mooncake_guard *guard);

/* ---- peers --------------------------------------------------------------------------------------------------- */

/** Opens a peer's segment: fetches its descriptor, unless it was opened before. A segment of any protocol opens; only
 *  those with TCP can be read and written.
 *  @param name     "HOST:PORT", "[V6]:PORT", or "HOST" for port 12001
 *  @param segment  its number, 1 and up, the same for the same name; valid until it was
 *                  closed as often as it was opened
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_UNREACHABLE; KVF_ERR_PEER_LOST: it closed without an answer;
 *          KVF_ERR_PROTOCOL, KVF_ERR_PARSE, KVF_ERR_LIMIT: what came back; KVF_ERR_LIMIT: 65,536 are open;
 *          KVF_ERR_TIMEOUT; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
KVF_API enum kvf_status kvf_mooncake_open_segment(kvf_mooncake *engine, const char *name, int64_t timeout_ns,
                                                  int64_t *segment, struct kvf_error *error);

/** Fetches the descriptor again; on failure the old one stays. A transfer does this by itself after a connect that
 *  failed. @return as kvf_mooncake_open_segment, and KVF_ERR_NOT_FOUND */
KVF_API enum kvf_status kvf_mooncake_refresh_segment(kvf_mooncake *engine, int64_t segment, int64_t timeout_ns,
                                                     struct kvf_error *error);

/** Closes a segment that was opened as often as it is closed: its descriptor and connections are freed once no call and
 *  no batch uses it. Its number is not used again. Engines that write to peers which come and go should do it.
 *  @return KVF_OK; KVF_ERR_NOT_FOUND */
KVF_API enum kvf_status kvf_mooncake_close_segment(kvf_mooncake *engine, int64_t segment, struct kvf_error *error);

/** What a peer publishes. */
struct kvf_mooncake_segment_info {
    size_t struct_size;           /**< set by the caller to sizeof(struct kvf_mooncake_segment_info) */
    char asked_name[KVF_MOONCAKE_NAME_BYTES]; /**< what it was opened by */
    char name[KVF_MOONCAKE_NAME_BYTES];       /**< what it says of itself; notifies go there */
    char protocol[KVF_MOONCAKE_PROTOCOL_BYTES]; /**< several, where it lists several, with "," between; cut to fit */
    char data_host[KVF_MOONCAKE_NAME_BYTES];  /**< `tcp_data_host`, "" without */
    char timestamp[64];           /**< "" without */
    int32_t is_tcp;               /**< 1: can be read and written from here */
    int32_t data_port;            /**< `tcp_data_port`, or the handshake port + 1 of engines that publish none */
    int32_t data_port_published;  /**< 1: it came from the descriptor */
    int32_t version;              /**< `tcp_proto_version`, 1 without */
    int64_t buffer_count;
    int64_t fetches;              /**< how often the descriptor was fetched */
};

/** Writes what is known of a segment. @return KVF_OK; KVF_ERR_NOT_FOUND; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_mooncake_get_segment_info(kvf_mooncake *engine, int64_t segment,
                                                      struct kvf_mooncake_segment_info *out, struct kvf_error *error);

/** Writes up to `capacity` of a segment's buffers from the `first` one on; `*count` becomes how many. @return KVF_OK;
 *  KVF_ERR_NOT_FOUND */
KVF_API enum kvf_status kvf_mooncake_get_segment_buffers(kvf_mooncake *engine, int64_t segment, int64_t first,
                                                         struct kvf_mooncake_buffer *out, size_t capacity,
                                                         size_t *count, struct kvf_error *error);

/** Asks whether an engine is alive, by its name; needs no segment. An engine too old to know the question closes the
 *  connection: KVF_ERR_NOT_SUPPORTED. @return KVF_OK, or as kvf_mooncake_open_segment */
KVF_API enum kvf_status kvf_mooncake_probe(kvf_mooncake *engine, const char *name, int64_t timeout_ns,
                                           struct kvf_error *error);

/* ---- transfers ----------------------------------------------------------------------------------------------- */

/** One range to copy. */
struct kvf_mooncake_range {
    uint64_t local;  /**< address here, inside registered buffers (touching ones count as one) */
    uint64_t remote; /**< address in the peer's process */
    uint64_t bytes;  /**< 0 is fine: nothing moves */
};

/** What became of one range. */
enum kvf_mooncake_outcome {
    KVF_MOONCAKE_FAILED = 0,   /**< not moved: a write is not there, of a read bytes may have come */
    KVF_MOONCAKE_DONE = 1,     /**< all of it is where it belongs */
    KVF_MOONCAKE_IN_DOUBT = 2  /**< written at least in part, or not at all: nobody says */
};

/** How a transfer is made. */
enum kvf_mooncake_transfer_flag {
    KVF_MOONCAKE_STOP_AT_FAILURE = 1 /**< begin no further range once one failed; without it the others go on */
};

/** Writes ranges to a peer, or reads them from it, and returns when all have ended. When it returns, whatever it
 *  returns, no local memory is touched any more.
 *
 *  With data protocol 2 a written range is DONE when the peer says that it is in its memory. With protocol 1 it is when
 *  the peer read all of it and closed in order. Ranges may be moved in any order and over several connections; a range
 *  whose connection the peer closed before it answered is sent again, unless it was the only one under way there.
 *
 *  @param outcomes  NULL, or room for `count` of enum kvf_mooncake_outcome, written in every case but
 *                   KVF_ERR_INVALID_ARGUMENT and KVF_ERR_NOT_FOUND
 *  @return KVF_OK: all are DONE. Otherwise the status of the first range that failed, and `error` names peer, range,
 *          expected and found, and how many ranges are done, failed and in doubt: KVF_ERR_REFUSED: the range is not
 *          in one of the peer's buffers; KVF_ERR_OUT_OF_RANGE: it is not in registered buffers here, or past the end
 *          of all addresses; KVF_ERR_UNREACHABLE; KVF_ERR_PEER_LOST; KVF_ERR_TIMEOUT; KVF_ERR_PROTOCOL;
 *          KVF_ERR_NOT_SUPPORTED: the peer has no TCP; KVF_ERR_CLOSED; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
KVF_API enum kvf_status kvf_mooncake_write(kvf_mooncake *engine, int64_t segment,
                                           const struct kvf_mooncake_range *ranges, size_t count, uint64_t flags,
                                           int64_t timeout_ns, uint8_t *outcomes, struct kvf_error *error);
KVF_API enum kvf_status kvf_mooncake_read(kvf_mooncake *engine, int64_t segment,
                                          const struct kvf_mooncake_range *ranges, size_t count, uint64_t flags,
                                          int64_t timeout_ns, uint8_t *outcomes, struct kvf_error *error);

/* ---- batches ------------------------------------------------------------------------------------------------- */

/** A transfer that goes on while its caller does other things. Free with kvf_mooncake_batch_free, before the engine is
 *  closed. Every call may be made from any thread, also several at once, but for free, which is the last.
 *
 *  Batches are made by threads of the engine: none before the first submit, then as they are needed, 256 at most, and
 *  one that looks at deadlines; they stay until close. Batches of one segment begin in the order of submit, and up to 4
 *  of them are under way; one, once half of the threads are busy. Those of different segments do not wait for each
 *  other, unless 160 or more peers stall at once: then batches wait for a thread, the others of a segment behind its
 *  first, until one under way ends, at its deadline at the latest. */
typedef struct kvf_mooncake_batch kvf_mooncake_batch;

/** What a batch does. */
enum kvf_mooncake_operation {
    KVF_MOONCAKE_WRITE = 0,
    KVF_MOONCAKE_READ = 1
};

/** What to move. */
struct kvf_mooncake_batch_spec {
    size_t struct_size;            /**< set by kvf_mooncake_batch_spec_init */
    int64_t segment;               /**< it may be closed once the batch is submitted */
    int32_t operation;             /**< enum kvf_mooncake_operation; default KVF_MOONCAKE_WRITE */
    const struct kvf_mooncake_range *ranges; /**< copied */
    size_t range_count;            /**< 0 is fine: nothing moves */
    uint64_t flags;                /**< enum kvf_mooncake_transfer_flag; default 0 */
    int64_t timeout_ns;            /**< from submit on, waiting for a thread and the notify included; default 60 s */
    const char *notify_name;       /**< copied, UTF-8; default NULL. Else this notify is sent once all ranges */
    const char *notify_message;    /**< are DONE, and the batch fails when it fails. Both, or none */
};

/** How far a batch is. */
struct kvf_mooncake_progress {
    size_t struct_size;            /**< set by the caller to sizeof(struct kvf_mooncake_progress) */
    int32_t ended;                 /**< 1: nothing moves any more, and nothing here changes */
    enum kvf_status status;        /**< once it has ended: KVF_OK; as kvf_mooncake_write returns it; KVF_ERR_CANCELLED;
                                        with all ranges done, as kvf_mooncake_notify. Before: KVF_ERR_AGAIN */
    int64_t range_count;
    int64_t done, failed, in_doubt; /**< ranges; before it has ended those that have ended so far */
    int64_t done_bytes;            /**< of the ranges that are done */
};

/** Fills `spec` with the defaults. `size` is sizeof(struct kvf_mooncake_batch_spec) as the caller compiled it. */
KVF_API void kvf_mooncake_batch_spec_init(struct kvf_mooncake_batch_spec *spec, size_t size);

/** Begins a batch and returns. Does not wait for anything; what is wrong with a range or a peer is told by the batch.
 *  Local memory is borrowed until the batch has ended, or kvf_mooncake_batch_free returns.
 *  @param out  returned to the caller
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the member; KVF_ERR_NEWER_OPTION; KVF_ERR_NOT_FOUND: the segment is
 *          not open; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM: no thread can be had */
KVF_API enum kvf_status kvf_mooncake_submit(kvf_mooncake *engine, const struct kvf_mooncake_batch_spec *spec,
                                            kvf_mooncake_batch **out, struct kvf_error *error);

/** Writes how far it is; neither blocks nor takes a lock. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_mooncake_batch_get_progress(kvf_mooncake_batch *batch, struct kvf_mooncake_progress *out,
                                                        struct kvf_error *error);

/** Waits up to `timeout_ns` (0 or less: not at all) for the end.
 *  @param outcomes  NULL, or room for range_count of enum kvf_mooncake_outcome, written when the batch has ended
 *  @return KVF_ERR_AGAIN: it goes on; else its status, and `error` says what kvf_mooncake_write would */
KVF_API enum kvf_status kvf_mooncake_batch_wait(kvf_mooncake_batch *batch, int64_t timeout_ns, uint8_t *outcomes,
                                                struct kvf_error *error);

/** A descriptor that is readable once the batch has ended, for poll and the like: the batch's, until it is freed; not
 *  to be read or closed. It is made by the first call. @return -1: no more descriptors can be had */
KVF_API int kvf_mooncake_batch_event_fd(kvf_mooncake_batch *batch);

/** Asks a batch to end soon, and does not wait. One that did not begin ends at once. With data protocol 2 one that is
 *  under way sends the requests that have begun to their end and waits for their answers, 2 s at most, so that as
 *  little as can be is in doubt; what did not begin has failed. To end several, cancel all before the first is freed.
 *  A batch that was done all the same ends with KVF_OK; one that has ended stays as it is. */
KVF_API void kvf_mooncake_batch_cancel(kvf_mooncake_batch *batch);

/** Cancels, waits until no local memory is touched any more, frees. NULL is fine. */
KVF_API void kvf_mooncake_batch_free(kvf_mooncake_batch *batch);

/* ---- notifies ------------------------------------------------------------------------------------------------ */

/** Sends one notify to a peer: two texts (UTF-8) for its queue, at most once. It goes to the name that the peer
 *  publishes. @return KVF_OK: it is in the queue; KVF_ERR_REFUSED: the peer rejected it; KVF_ERR_NOT_SUPPORTED: too old
 *  to know notifies; else as kvf_mooncake_open_segment */
KVF_API enum kvf_status kvf_mooncake_notify(kvf_mooncake *engine, int64_t segment, const char *name,
                                            const char *message, int64_t timeout_ns, struct kvf_error *error);

/** One notify that a peer sent. Who sent it is not known; `name` is what it claims. */
struct kvf_mooncake_notification {
    char *name;    /**< UTF-8, zero terminated */
    char *message; /**< UTF-8, zero terminated */
};

/** Takes the oldest notify that waits, or waits up to `timeout_ns` (0 = not at all) for one.
 *  @param out  returned to the caller (free with kvf_mooncake_free_notification)
 *  @return KVF_OK; KVF_ERR_AGAIN: none came */
KVF_API enum kvf_status kvf_mooncake_take_notification(kvf_mooncake *engine, int64_t timeout_ns,
                                                       struct kvf_mooncake_notification **out,
                                                       struct kvf_error *error);

/** Frees a notification. NULL is fine. */
KVF_API void kvf_mooncake_free_notification(struct kvf_mooncake_notification *notification);

#ifdef __cplusplus
}
#endif

#endif
