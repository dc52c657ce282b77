/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_worker.h  vLLM's MooncakeConnector, the running half: one worker that answers pulls, and makes them.
 *
 *  A worker stands where upstream's connector worker stands and speaks with stock peers: the registry over HTTP, the
 *  side channel over ZeroMQ, bytes over the Mooncake transfer engine's TCP transport. A *producer* is told which
 *  requests will be sent and when their blocks are ready; a *consumer* is told which to fetch. Both hear of it once per
 *  engine step (struct kvf_vllm_step) and tell what is over when asked (kvf_vllm_worker_collect).
 *
 *  A consumer's blocks belong to the worker until it has told the request as received. A request that failed is told
 *  only when each peer that was asked has answered, its data connection is gone, or settle_timeout_ns has passed, in
 *  which case the reason says so. Until then it is *failed, unsettled*.
 *
 *  Peers write into blocks from when a request is asked for until it is received, or failed and settled. Before and
 *  after that what they write is refused, and reading always is (check_grants). The protocol says neither who writes
 *  nor for which request: of requests that are fetched at the same time, one's peers can write the other's blocks.
 *  A request is received when every byte of its blocks has come, not when producers say so. When some are missing
 *  arrival_timeout_ns after the last word, it fails (check_arrivals). Bytes are counted: whether they are the right
 *  ones, and came but once, is not seen. A layer that producers do not have is missing, too: leave it out of the
 *  registration.
 *
 *  Threads: a worker has one thread of its own, on which all its sockets, deadlines and requests live. Functions may be
 *  called from any thread, but not from the log sink; each hands its work to that thread and waits for the verdict,
 *  which takes microseconds and never waits for a peer, except where a timeout is given. kvf_vllm_worker_close must be
 *  the last call.
 */
#ifndef KVFERRY_VLLM_WORKER_H
#define KVFERRY_VLLM_WORKER_H

#include "kvferry/log.h"
#include "kvferry/vllm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One worker. Free with kvf_vllm_worker_close. */
typedef struct kvf_vllm_worker kvf_vllm_worker;

/** Which halves run. Numbers are bits. */
enum kvf_vllm_role {
    KVF_VLLM_PRODUCER = 1, /**< "kv_producer" */
    KVF_VLLM_CONSUMER = 2, /**< "kv_consumer" */
    KVF_VLLM_BOTH = 3      /**< "kv_both" */
};

/** Longest texts, closing zero included. */
enum kvf_vllm_worker_bytes {
    KVF_VLLM_ADDRESS_BYTES = 512, /**< an address of the side channel, of a registry, a session name */
    KVF_VLLM_ID_BYTES = 512       /**< an id of a request, transfer or engine; longer ones are refused */
};

/* ---- opening ------------------------------------------------------------------------------------------------- */

/** How a worker is opened. Texts and arrays are copied. */
struct kvf_vllm_worker_options {
    size_t struct_size;              /**< set by kvf_vllm_worker_options_init */
    int32_t role;                    /**< an enum kvf_vllm_role; required */
    int32_t is_mla;                  /**< of the model */
    const char *engine_id;           /**< unique per start of an engine; required for a producer that registers */
    int64_t tp_rank, tp_size;        /**< default 0 of 1 */
    int64_t pp_rank, pp_size;        /**< default 0 of 1 */
    int64_t dp_rank;                 /**< as it is registered: local DP rank when only local engines are balanced, else
                                          the DP index. Default 0 */
    int64_t total_kv_heads;          /**< of the model */
    const int32_t *group_kinds;      /**< per transferred group KVF_VLLM_ATTENTION or KVF_VLLM_MAMBA */
    size_t group_count;
    const struct kvf_vllm_layer *layers;
    size_t layer_count;
    int64_t kernel_blocks_per_block; /**< default 1 */
    int64_t kv_cache_groups;         /**< of the engine, not only those that are transferred: with several, failures are
                                          told by request, not by block. Default 0 = group_count */

    const char *host;                /**< address to bind and publish (VLLM_HOST_IP); IPv6 without brackets. Default
                                          "127.0.0.1" */
    int32_t side_port;               /**< of the producer's side channel; default 0 = any free one */
    int32_t rpc_port, data_port;     /**< of a consumer's transfer engine; default 0 = any free ones. A producer alone
                                          listens for no data: its memory is not reached from outside */
    const char *bootstrap_url;       /**< producer: the registry, "http://HOST:PORT"; NULL = do not register */
    int32_t layout_ids;              /**< 1: as 0.33.0 does, send and answer layout ids; 0: as 0.32.0. Default 1 */
    int32_t register_attempts;       /**< default 3 */
    int64_t connector_timeout_ns;    /**< per phase of an HTTP request (VLLM_MOONCAKE_CONNECTOR_TIMEOUT); default
                                          30 s */
    int64_t abort_request_timeout_ns; /**< how long a pull waits for a request's blocks, and how long they are kept for
                                          one (VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT); a consumer waits for each answer so
                                          long and receive_slack_ns longer. Default 480 s */
    int64_t receive_slack_ns;        /**< default 60 s */
    int64_t settle_timeout_ns;       /**< a failed request whose blocks a peer may still write is told so long after its
                                          failure all the same: with check_grants they are taken back then, else that
                                          is no proof. Default 0 = never */
    int64_t topology_refresh_ns;     /**< what a registry said is asked again before use when it is older or incomplete,
                                          or its engine did not answer; default 30 s */
    int64_t max_pulls;               /**< pulls that wait for readiness or are written, in all; default 65536 */
    int64_t max_transfers;           /**< transfer ids that steps told of, and with them those that only pulls have
                                          named: pulls for more are refused, and steps with more. Default 262144 */
    int64_t max_message_bytes;       /**< longest message of the side channel; pulls that wait take 64 times as many
                                          bytes together at most. Default 64 MiB */
    int64_t max_prepared;            /**< layouts of peers that are remembered; default 1024 */
    int64_t event_capacity;          /**< events held; the oldest go. Default 65536 */
    struct kvf_log_sink log;
    int32_t check_grants;            /**< consumer: peers write into blocks of requests that are fetched from somebody,
                                          and nowhere else, and read nothing. Needs to know what ids stand for: of a
                                          model with recurrent state group_kinds, and kernel_blocks_per_block where it
                                          is not 1. 0 = whoever reaches the data port reads and writes all registered
                                          memory. Default 1 */
    int32_t check_arrivals;          /**< consumer, with check_grants: a request is received when all bytes of its
                                          blocks have come, whatever producers say. Default 1 */
    int64_t arrival_timeout_ns;      /**< how long bytes are waited for that producers said they have written; default
                                          1 s, 0 = not at all */
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_vllm_worker_options) as the caller compiled it. */
KVF_API void kvf_vllm_worker_options_init(struct kvf_vllm_worker_options *options, size_t size);

/** Opens a worker: its thread and its transfer engine. It is reached by nobody before kvf_vllm_worker_register.
 *  @param out  returned to the caller (free with kvf_vllm_worker_close)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the option, its bounds and the value; KVF_ERR_ADDRESS_IN_USE;
 *          KVF_ERR_NEWER_OPTION; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
KVF_API enum kvf_status kvf_vllm_worker_open(const struct kvf_vllm_worker_options *options, kvf_vllm_worker **out,
                                             struct kvf_error *error);

/** Registers the rank's memory and regions, in place of earlier ones: what was prepared for peers is forgotten, pulls
 *  that wait are answered with an error, and a new layout id is drawn. A producer binds its side channel with the
 *  first call and tells the registry where it is: this is waited for, up to the deadline of upstream's (393 s with its
 *  defaults).
 *  @param memory   allocations, each once; the memory is borrowed until it is registered anew, or close
 *  @param regions  acquired
 *  @param has_opaque_row  1: the registration has opaque storages
 *  @return KVF_OK; KVF_ERR_AGAIN (requests are out that use the earlier memory); KVF_ERR_INVALID_ARGUMENT: a region
 *          that lies in no allocation, or whose blocks overlap; KVF_ERR_EXISTS: allocations overlap; KVF_ERR_LIMIT: too
 *          many lists of groups; KVF_ERR_UNREACHABLE "Failed to register ... with the Mooncake bootstrap server at ...
 *          after 3 attempts."; KVF_ERR_REFUSED with what the registry answered; KVF_ERR_TIMEOUT;
 *          KVF_ERR_ADDRESS_IN_USE; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
KVF_API enum kvf_status kvf_vllm_worker_register(kvf_vllm_worker *worker, const struct kvf_vllm_storage *memory,
                                                 size_t memory_count, const kvf_vllm_regions *regions,
                                                 int32_t has_opaque_row, struct kvf_error *error);

/** Takes the memory back from the transfer engine (an engine that goes to sleep), and registers the same again. The
 *  regions and the layout id stay. Until then no step is taken; what is out or offered is waited for, up to the
 *  timeout. Pulls that come while it sleeps wait.
 *  @return KVF_OK; KVF_ERR_AGAIN (requests are out); KVF_ERR_INVALID_ARGUMENT (not registered; asleep or
 *          awake already) */
KVF_API enum kvf_status kvf_vllm_worker_sleep(kvf_vllm_worker *worker, int64_t timeout_ns, struct kvf_error *error);
KVF_API enum kvf_status kvf_vllm_worker_wake(kvf_vllm_worker *worker, struct kvf_error *error);

/** Where a worker is reached. */
struct kvf_vllm_endpoints {
    size_t struct_size;              /**< set by the caller to sizeof(struct kvf_vllm_endpoints) */
    char side_channel[KVF_VLLM_ADDRESS_BYTES]; /**< "tcp://ADDRESS:PORT"; "" for a consumer, or before register */
    char segment[KVF_VLLM_ADDRESS_BYTES];      /**< of its transfer engine: "HOST:RPC_PORT"; "" and ports of 0 for a
                                                    producer alone */
    int32_t rpc_port, data_port;
    uint64_t layout_id;              /**< 0 before register, or without layout ids */
};

/** Writes where the worker is reached. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_vllm_worker_endpoints(kvf_vllm_worker *worker, struct kvf_vllm_endpoints *out,
                                                  struct kvf_error *error);

/* ---- one engine step ----------------------------------------------------------------------------------------- */

/** Takes what the scheduler decided: pulls are begun, blocks that are ready are offered, transfers that will not be
 *  sent are dropped, and pulls that wait for them are answered with an error at once. All or nothing.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming request and field (an id empty or too long, a role that does not do
 *          this); KVF_ERR_IDS; KVF_ERR_EXISTS (a d_req_id that is being fetched already); KVF_ERR_AGAIN (not
 *          registered, asleep); KVF_ERR_LIMIT; KVF_ERR_CLOSED; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_worker_step(kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                             struct kvf_error *error);

/** What is over since it was last asked. The arrays are owned by the struct's holder until kvf_vllm_done_release. */
struct kvf_vllm_done {
    size_t struct_size;              /**< set by the caller to sizeof(struct kvf_vllm_done) */
    const char *const *finished_sending;  /**< p_req_ids: their blocks may be freed; those that expired too */
    size_t finished_sending_count;
    const char *const *finished_recving;  /**< d_req_ids, failed ones too */
    size_t finished_recving_count;
    const char *const *failed_recving;    /**< d_req_ids among them that failed, with several cache groups */
    size_t failed_recving_count;
    const int64_t *invalid_blocks;        /**< block ids whose content did not come, with one cache group; ascending */
    size_t invalid_block_count;
    void *memory;                         /**< of the arrays */
};

/** Takes what is over, in one step: a failure is never seen without its completion. Expires what is due first.
 *  @return KVF_OK; KVF_ERR_NO_MEMORY, and nothing is lost; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_vllm_worker_collect(kvf_vllm_worker *worker, struct kvf_vllm_done *done,
                                                struct kvf_error *error);
KVF_API void kvf_vllm_done_release(struct kvf_vllm_done *done);

/* ---- events -------------------------------------------------------------------------------------------------- */

/** What is told as it happens; nothing needs to be read for the worker to go on. */
enum kvf_vllm_event_kind {
    KVF_VLLM_EVENT_NONE = 0,
    KVF_VLLM_EVENT_PULL = 1,        /**< producer: a pull came: `requests` */
    KVF_VLLM_EVENT_SENT = 2,        /**< producer: a request's bytes for one pull are placed */
    KVF_VLLM_EVENT_SEND_FAILED = 3, /**< producer: a request of a pull was answered with an error */
    KVF_VLLM_EVENT_RELEASED = 4,    /**< producer: all expected pulls came; p_req_id is finished */
    KVF_VLLM_EVENT_EXPIRED = 5,     /**< producer: not fetched in time; p_req_id is finished */
    KVF_VLLM_EVENT_ASKED = 6,       /**< consumer: a pull went to one worker */
    KVF_VLLM_EVENT_RECEIVED = 7,    /**< consumer: a request is whole */
    KVF_VLLM_EVENT_FAILED = 8,      /**< consumer: a request failed; its blocks are not settled yet */
    KVF_VLLM_EVENT_SETTLED = 9,     /**< consumer: no peer writes into a failed request's blocks any more; with
                                         KVF_ERR_IN_DOUBT that is not proven */
    KVF_VLLM_EVENT_REFUSED = 10     /**< producer: a whole pull was answered by ERROR or LAYOUT_MISS */
};

/** What happened: a fixed-size record. Unused fields are zero. */
struct kvf_vllm_event {
    int32_t kind;      /**< an enum kvf_vllm_event_kind */
    int32_t status;    /**< an enum kvf_status */
    int64_t requests;  /**< PULL, ASKED, REFUSED */
    int64_t bytes, descriptors;
    int64_t started_ns, ended_ns; /**< monotonic clock */
    char req_id[KVF_VLLM_ID_BYTES];       /**< of this side: p_req_id or d_req_id, "" when not known */
    char transfer_id[KVF_VLLM_ID_BYTES];
    char peer[KVF_VLLM_ADDRESS_BYTES];    /**< producer: the session "HOST:PORT"; consumer: the side channel */
    char text[KVF_ERROR_TEXT_BYTES];
};

/** Takes up to `capacity` events without blocking. Returns how many. */
KVF_API size_t kvf_vllm_worker_poll(kvf_vllm_worker *worker, struct kvf_vllm_event *events, size_t capacity);

/** Waits until there is an event or `timeout_ns` passed (0 = poll), and takes up to `capacity`. Returns how many. */
KVF_API size_t kvf_vllm_worker_wait(kvf_vllm_worker *worker, struct kvf_vllm_event *events, size_t capacity,
                                    int64_t timeout_ns);

/** A descriptor (eventfd) that is readable while any event is queued. Do not read it. Valid until close. */
KVF_API int kvf_vllm_worker_event_fd(const kvf_vllm_worker *worker);

/* ---- counters, the end ---------------------------------------------------------------------------------------- */

/** Counters since open. */
struct kvf_vllm_worker_stats {
    size_t struct_size; /**< set by the caller to sizeof(struct kvf_vllm_worker_stats) */
    int64_t pulls_received, pulls_refused, pulls_waiting, pulls_repeated; /**< producer */
    int64_t layout_misses;                    /**< told (producer) and heard (consumer) */
    int64_t transfers_tracked, placeholders;  /**< producer: now */
    int64_t transfers, failed_transfers;      /**< producer: batch writes */
    int64_t bytes_transferred, descriptors;
    int64_t expired_reqs;                     /**< producer */
    int64_t pulls_sent, requests_received, failed_recvs; /**< consumer */
    int64_t unsettled;                        /**< consumer: failed requests whose blocks may still be written, now */
    int64_t malformed;                        /**< messages that were none */
    int64_t queries, registrations;           /**< HTTP requests that were answered */
    int64_t engines;                          /**< consumer: known */
    int64_t ignored_ids;                      /**< consumer: in answers, of requests that were not asked for there, or
                                                   that had been answered before */
    int64_t refused_accesses;                 /**< consumer: requests of peers at the data port for what they may not
                                                   write or read */
    int64_t short_arrivals, late_arrivals;    /**< consumer: requests that failed since bytes were missing, and those
                                                   whose bytes came after the last word */
};

/** Writes the counters. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (struct_size) */
KVF_API enum kvf_status kvf_vllm_worker_get_stats(kvf_vllm_worker *worker, struct kvf_vllm_worker_stats *stats,
                                                  struct kvf_error *error);

/** Ends a worker's service in good order: new steps and pulls are refused from now on, and it waits until no write is
 *  out and no request is being fetched. Pulls that wait for readiness are answered with an error.
 *  @return KVF_OK; KVF_ERR_TIMEOUT with how many are left: call it again */
KVF_API enum kvf_status kvf_vllm_worker_shutdown(kvf_vllm_worker *worker, int64_t timeout_ns, struct kvf_error *error);

/** Stops the thread, closes every socket, frees. After it returns this side touches no memory, and no peer reaches it
 *  through this worker: it is its transfer engine that places what peers write. So requests that are still being
 *  fetched, or failed and unsettled, are broken off and told nowhere, and their blocks may be reused or freed. A write
 *  that is out is broken off: kvf_vllm_worker_shutdown waits for it. NULL is fine. Blocks for at most about three
 *  seconds. */
KVF_API void kvf_vllm_worker_close(kvf_vllm_worker *worker);

/* ---- statistics, as upstream logs and exports them -------------------------------------------------------------- */

/** One batch write that succeeded. */
struct kvf_vllm_transfer {
    int64_t duration_ns;
    int64_t bytes, descriptors;
};

/** What one worker did in some time. */
struct kvf_vllm_interval {
    size_t struct_size;                        /**< set by the caller to sizeof(struct kvf_vllm_interval) */
    const struct kvf_vllm_transfer *transfers; /**< in the order in which they ended */
    size_t transfer_count;
    int64_t failed_transfers;                  /**< producer: batch writes */
    int64_t failed_recvs;                      /**< consumer: requests */
    int64_t expired_reqs;                      /**< producer */
    void *memory;                              /**< of the array, where the library made it; else NULL */
};

/** Takes what the worker did since it was last asked, or since open. Of transfers nobody asks for, the oldest are
 *  forgotten once there are 65536.
 *  @param out  struct_size is set by the caller; free with kvf_vllm_interval_release
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (struct_size); KVF_ERR_CLOSED */
KVF_API enum kvf_status kvf_vllm_worker_take_interval(kvf_vllm_worker *worker, struct kvf_vllm_interval *out,
                                                      struct kvf_error *error);
KVF_API void kvf_vllm_interval_release(struct kvf_vllm_interval *interval);

/** Figures of a reduction. */
enum { KVF_VLLM_FIGURES = 9 };

/** One of them. */
struct kvf_vllm_figure {
    const char *key;     /**< upstream's: "Num successful transfers", "Avg xfer time (ms)", "P90 xfer time (ms)",
                              "Avg MB per transfer", "Throughput (MB/s)", "Avg number of descriptors",
                              "Num failed transfers", "Num failed recvs", "Num KV expired reqs", in this order */
    double value;        /**< rounded: times, MB and throughput to 3 digits, descriptors to 1 */
    int32_t is_fraction; /**< 0: a whole number, which all are when there was no transfer */
    int32_t reserved;    /**< zero */
};

/** Reduces several intervals, of all workers of an engine, to what upstream logs of them together.
 *  @param figures  KVF_VLLM_FIGURES of them
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a number below 0, struct_size); KVF_ERR_NO_MEMORY. Any thread. */
KVF_API enum kvf_status kvf_vllm_interval_reduce(const struct kvf_vllm_interval *intervals, size_t interval_count,
                                                 struct kvf_vllm_figure *figures, struct kvf_error *error);

/** Writes "KV Transfer metrics: Num successful transfers=3, Avg xfer time (ms)=1.25, ...", as upstream's log line, cut
 *  to `capacity` bytes with the closing zero. Returns how many bytes it has without it. 512 always suffice. */
KVF_API size_t kvf_vllm_figures_text(const struct kvf_vllm_figure *figures, char *out, size_t capacity);

/** Histograms and counters for Prometheus, one engine's: vllm:mooncake_xfer_time_seconds and five more. One thread at a
 *  time. */
typedef struct kvf_vllm_metrics kvf_vllm_metrics;

/** @param model_name, engine  values of the labels, copied
 *  @param out  returned to the caller (free with kvf_vllm_metrics_destroy)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT (a label that is missing or no UTF-8); KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_metrics_create(const char *model_name, const char *engine, kvf_vllm_metrics **out,
                                                struct kvf_error *error);
KVF_API void kvf_vllm_metrics_destroy(kvf_vllm_metrics *metrics);

/** Adds what happened in an interval. @return KVF_OK; KVF_ERR_INVALID_ARGUMENT, and nothing is added */
KVF_API enum kvf_status kvf_vllm_metrics_observe(kvf_vllm_metrics *metrics, const struct kvf_vllm_interval *interval,
                                                 struct kvf_error *error);

/** Writes all in Prometheus' text format, closing zero included.
 *  @param capacity  bytes at `out` (NULL with 0: only asks)
 *  @param byte_count  how many bytes it takes without the closing zero, also when that does not fit
 *  @return KVF_OK; KVF_ERR_LIMIT (capacity) */
KVF_API enum kvf_status kvf_vllm_metrics_text(const kvf_vllm_metrics *metrics, char *out, size_t capacity,
                                              size_t *byte_count, struct kvf_error *error);

#ifdef __cplusplus
}
#endif

#endif
