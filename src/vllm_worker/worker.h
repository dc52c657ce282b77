/* SPDX-License-Identifier: Apache-2.0 */
/** @file worker.h  One worker of vLLM's connector: what its two halves, producer and consumer, share, and the shell's
 *  side of what it asks of them.
 *
 *  Everything here is touched by the loop's thread alone, except the events (the loop's lock). A public function hands
 *  its work over with kvfi_vllm_worker_call and waits, so its arguments are borrowed for the call without a copy. No
 *  callback blocks: what must (writing to peers, HTTP) is done by threads that come back with a command.
 */
#ifndef KVFI_VLLM_WORKER_WORKER_H
#define KVFI_VLLM_WORKER_WORKER_H

#include <stdbool.h>

#include "kvferry/mooncake.h"
#include "kvferry/vllm_worker.h"
#include "loop/call.h"
#include "loop/loop.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/table.h"
#include "vllm/stats.h"
#include "vllm_worker/batch.h"
#include "vllm_worker/registry.h"

struct kvfi_vllm_consumer; /* the consumer half's own */
struct kvfi_vllm_sender;   /* the producer half's own: produce.h */
struct kvfi_vllm_events;   /* events.h */

struct kvf_vllm_worker {
    struct kvfi_loop loop;
    struct kvfi_log log;
    struct kvf_vllm_worker_options options; /* complete; its texts and arrays are copies in `copies` */
    void *copies;
    bool produces, consumes;
    struct kvfi_vllm_registry *registry;

    /* The transfer engine: one for both halves. Its listeners (D's target half) are open from open to close; memory is
     * registered with it while the worker is registered and awake. */
    kvf_mooncake *engine;
    char engine_host[KVF_VLLM_ADDRESS_BYTES]; /* `remote_hostname` of a consumer's pulls: options.host as given */

    /* What was registered. Before the first registration and during another one, `registered` is false. */
    struct kvf_vllm_storage *memory;
    size_t memory_count;
    kvf_vllm_regions *regions;
    bool has_opaque_row;
    uint64_t layout_id;  /* 0 without layout ids */
    bool registered, asleep;
    bool changing;       /* a call registers, puts to sleep or wakes; it alone ends this. No step is taken */
    bool was_registered; /* of that call: the transfer engine had the memory before */
    bool closed;         /* shutting down: nothing new begins */
    int64_t forgiven_until_ns; /* this process stood still: until then no peer is said to be silent */

    struct kvfi_vllm_writer writer;      /* in place of the transfer engine's; write is NULL without */
    struct kvfi_vllm_sender *sender;     /* NULL unless `produces` */
    struct kvfi_vllm_consumer *consumer; /* NULL unless `consumes` */

    struct kvfi_vllm_events *events;     /* loop.lock */
    struct kvfi_vllm_record record;      /* what is taken by kvf_vllm_worker_take_interval */
    struct kvf_vllm_worker_stats stats;  /* both halves count up; the gauges are filled in when asked for */
};

/** As kvf_vllm_worker_open, with another way to write than over the transfer engine (copied; NULL = that one). */
enum kvf_status kvfi_vllm_worker_open(const struct kvf_vllm_worker_options *options,
                                      const struct kvfi_vllm_writer *writer, kvf_vllm_worker **out,
                                      struct kvf_error *error);

/* ---- calls from other threads --------------------------------------------------------------------------------- */

/** What a call does on the loop's thread. */
typedef enum kvf_status (*kvfi_vllm_worker_fn)(kvf_vllm_worker *worker, void *argument, struct kvf_error *error);

/** Runs `fn` on the loop's thread and waits for what it returns. Other work for the loop's thread is posted with
 *  kvfi_loop_post, holding loop.lock. */
enum kvf_status kvfi_vllm_worker_call(kvf_vllm_worker *worker, kvfi_vllm_worker_fn fn, void *argument,
                                      struct kvf_error *error);

/* ---- events to the user ----------------------------------------------------------------------------------------- */

/** An event's fields, borrowed. NULL texts are "", longer ones are cut. */
struct kvfi_vllm_told {
    int kind;                /* an enum kvf_vllm_event_kind */
    enum kvf_status status;
    int64_t requests, bytes, descriptors, started_ns, ended_ns;
    const char *req_id, *transfer_id, *peer, *text;
};

/** Queues an event. It cannot fail: without room the oldest goes, without memory this one is lost. */
void kvfi_vllm_worker_tell(kvf_vllm_worker *worker, const struct kvfi_vllm_told *told);

/* ---- what is over: collected in two passes, so that nothing is lost without memory ------------------------------- */

enum kvfi_vllm_over { KVFI_VLLM_SENT, KVFI_VLLM_RECEIVED, KVFI_VLLM_FAILED, KVFI_VLLM_OVERS };

/** First pass: how much there is. */
struct kvfi_vllm_over_counts {
    size_t ids[KVFI_VLLM_OVERS];
    size_t text_bytes; /* of all ids, closing zeros included */
    size_t blocks;     /* invalid ones, doubled ones included */
};

/** Second pass: exactly as many are put. */
struct kvfi_vllm_over_lists;
void kvfi_vllm_over_put(struct kvfi_vllm_over_lists *lists, enum kvfi_vllm_over list, const char *id);
void kvfi_vllm_over_put_block(struct kvfi_vllm_over_lists *lists, int64_t block); /* in any order, also doubled */

/* ---- the transfer engine --------------------------------------------------------------------------------------- */

/** `remote_port` of a consumer's pulls. Its hostname is worker->engine_host. */
static inline int32_t kvfi_vllm_worker_rpc_port(const kvf_vllm_worker *worker)
{
    return kvf_mooncake_rpc_port(worker->engine);
}

/** Data connections that come from an address (a numeric one, without brackets) now. 0 says that nobody there writes
 *  at this moment, not that nobody will. Engines keep their connections between transfers, so that the last one is
 *  gone usually means that its process is. Cheap, but not for each message. -1: not known. */
int64_t kvfi_vllm_worker_connections_from(kvf_vllm_worker *worker, const char *address);
/** Those that come from addresses which `is_known` does not know: an IPv6 address, or an IPv4 one mapped into it. */
int64_t kvfi_vllm_worker_connections_unknown(kvf_vllm_worker *worker,
                                             bool (*is_known)(void *context, const uint8_t bytes[16]), void *context);

/** Requests at the data port that were refused since open. */
int64_t kvfi_vllm_worker_refused(const kvf_vllm_worker *worker);

/* ---- the consumer half, as the shell calls it (consume.c) ------------------------------------------------------ */

/** Makes the consumer half; the loop's thread does not run yet. The engine is open, nothing is registered. */
enum kvf_status kvfi_vllm_consumer_create(kvf_vllm_worker *worker, struct kvfi_vllm_consumer **out,
                                          struct kvf_error *error);
/** Frees all. The loop's thread has ended; registry and engine are still open. NULL is fine. */
void kvfi_vllm_consumer_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer);

/** Takes what has come of its pulls. */
void kvfi_vllm_consumer_look(kvf_vllm_worker *worker);

/** Guards memory that is about to be registered. Any thread.
 *  @param memory  sorted by address
 *  @param out     NULL without guards; free with kvfi_vllm_gates_close
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT, KVF_ERR_LIMIT, KVF_ERR_NO_MEMORY */
struct kvfi_vllm_gates;
enum kvf_status kvfi_vllm_consumer_guard(kvf_vllm_worker *worker, const kvf_vllm_regions *regions,
                                         const struct kvf_vllm_storage *memory, size_t memory_count,
                                         struct kvfi_vllm_gates **out, struct kvf_error *error);
/** Memory and regions are others: what peers acknowledged is forgotten. None of its requests is out. Takes the gates
 *  and returns those of before, to be closed once this was. */
struct kvfi_vllm_gates *kvfi_vllm_consumer_on_registered(kvf_vllm_worker *worker, struct kvfi_vllm_gates *gates);

/** A step in two parts, so that it is taken as a whole or not at all. Prepare checks `step->recvs` and takes all memory
 *  that beginning needs; nothing has changed that could be seen. *out goes to begin, which cannot fail, or to abandon;
 *  both before anything else happens on the loop. The worker is registered, awake and not closed.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT, KVF_ERR_IDS, KVF_ERR_EXISTS, KVF_ERR_LIMIT, KVF_ERR_NO_MEMORY */
struct kvfi_vllm_recv_intake;
enum kvf_status kvfi_vllm_consumer_prepare(kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                           struct kvfi_vllm_recv_intake **out, struct kvf_error *error);
void kvfi_vllm_consumer_begin(kvf_vllm_worker *worker, struct kvfi_vllm_recv_intake *intake);
void kvfi_vllm_consumer_abandon(kvf_vllm_worker *worker, struct kvfi_vllm_recv_intake *intake);

/** Adds to the counts; then puts exactly so many, which are then over. Nothing happens on the loop in between. */
void kvfi_vllm_consumer_count_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_counts *counts);
void kvfi_vllm_consumer_take_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_lists *lists);

/** Requests being fetched, and failed ones whose blocks are not settled: memory must stay, shutdown waits. Whoever
 *  lowers it calls kvfi_loop_changed. */
int64_t kvfi_vllm_consumer_busy(const kvf_vllm_worker *worker);
/** Sets `unsettled`, `engines`, `ignored_ids` and `refused_accesses`. */
void kvfi_vllm_consumer_gauge(const kvf_vllm_worker *worker, struct kvf_vllm_worker_stats *stats);

/* ---- the producer half, as the shell calls it (produce.c): the same shape -------------------------------------- */

enum kvf_status kvfi_vllm_sender_create(kvf_vllm_worker *worker, struct kvfi_vllm_sender **out,
                                        struct kvf_error *error);
void kvfi_vllm_sender_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_sender *sender);
/** Memory and regions are others: what was prepared for peers is forgotten, pulls that wait are answered. Takes the
 *  producer; NULL where there is no memory any more. Nothing is offered or written. */
void kvfi_vllm_sender_on_registered(kvf_vllm_worker *worker, struct kvf_vllm_producer *producer);
/** By a caller's thread: opens the side channel, tells the registry, waits for its word. On failure it is closed. */
enum kvf_status kvfi_vllm_sender_serve(kvf_vllm_worker *worker, struct kvf_error *error);
bool kvfi_vllm_sender_serves(const kvf_vllm_worker *worker);
/** Writes where the side channel is, KVF_VLLM_ADDRESS_BYTES at most; "" when it is not open. */
void kvfi_vllm_sender_address(const kvf_vllm_worker *worker, char *out);
/** Takes what has come at the side channel. */
void kvfi_vllm_sender_look(kvf_vllm_worker *worker);
/** Memory is there (again): what is ready is written. */
void kvfi_vllm_sender_resume(kvf_vllm_worker *worker);
/** Answers all pulls that wait with an error. */
void kvfi_vllm_sender_refuse_all(kvf_vllm_worker *worker);
struct kvfi_vllm_send_intake;
enum kvf_status kvfi_vllm_sender_prepare(kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                         struct kvfi_vllm_send_intake **out, struct kvf_error *error);
void kvfi_vllm_sender_begin(kvf_vllm_worker *worker, struct kvfi_vllm_send_intake *intake);
void kvfi_vllm_sender_count_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_counts *counts);
void kvfi_vllm_sender_take_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_lists *lists);
/** Requests whose blocks are offered and not over. Whoever lowers it calls kvfi_loop_changed. */
int64_t kvfi_vllm_sender_offered(const kvf_vllm_worker *worker);
/** Writes that are out. Whoever lowers it calls kvfi_loop_changed. */
int64_t kvfi_vllm_sender_busy(const kvf_vllm_worker *worker);
void kvfi_vllm_sender_gauge(const kvf_vllm_worker *worker, struct kvf_vllm_worker_stats *stats);

#endif
