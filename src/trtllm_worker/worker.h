/* SPDX-License-Identifier: Apache-2.0 */
/** @file worker.h  One rank that talks: what its two halves, receiving and sending, share.
 *
 *  Everything here is touched by the loop's thread alone, except the events (the loop's lock). A public function hands
 *  its work over with kvfi_worker_call and waits, so its arguments are borrowed for the call without a copy.
 */
#ifndef KVFI_TRTLLM_WORKER_WORKER_H
#define KVFI_TRTLLM_WORKER_WORKER_H

#include <stdbool.h>

#include "channel/channel.h"
#include "kvferry/trtllm_worker.h"
#include "loop/call.h"
#include "loop/events.h"
#include "loop/loop.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/table.h"
#include "trtllm/message.h"

struct kvfi_receivers; /* receive.h */
struct kvfi_senders;   /* send.h */
struct kvfi_agent;     /* agent.h: the built-in one */

/** One of a worker's endpoints. `channel` is NULL when it has none. */
struct kvfi_worker_socket {
    struct kvfi_channel *channel;
    struct kvfi_watch watch;
};

struct kvf_trtllm_worker {
    struct kvfi_loop loop;
    struct kvfi_log log;
    struct kvf_trtllm_worker_options options; /* `rank`, `host` and `agent` are not to be used from here */
    char *host;
    kvf_trtllm_rank *given;            /* as it was opened with */
    kvf_trtllm_rank *self;             /* complete; NULL before that */
    kvf_trtllm_registrar *registrar;   /* of self; NULL before that. Holds the ranks that receive from this one */
    void *self_bytes;                  /* self, encoded */
    size_t self_byte_count;
    struct kvfi_worker_socket info, sender, receiver;
    struct kvfi_route *askers;         /* who asked before it was complete */
    size_t asker_count;
    struct kvf_trtllm_agent agent;     /* the user's table, or the built-in one's */
    struct kvfi_agent *own_agent;      /* NULL with the user's */
    void *agent_info;                  /* what `describe` wrote */
    size_t agent_info_bytes;
    struct kvfi_watch agent_watch;     /* fd -1 when the agent has none */
    struct kvfi_timer agent_timer;     /* polls an agent without a descriptor */
    int64_t writes_out;                /* submitted, no DONE or FAILED yet */
    struct kvfi_receivers *receivers;
    struct kvfi_senders *senders;
    struct kvfi_events events;         /* loop.lock; records are struct kvf_trtllm_event */
    bool closed;                       /* shutting down: no new sessions */
    struct kvf_trtllm_worker_stats stats; /* both halves count up; the gauges are filled in when asked for */
};

/* ---- calls from other threads --------------------------------------------------------------------------------- */

/** What a call does on the loop's thread. */
typedef enum kvf_status (*kvfi_worker_fn)(kvf_trtllm_worker *worker, void *argument, struct kvf_error *error);

/** Runs `fn` on the loop's thread and waits for what it returns. */
enum kvf_status kvfi_worker_call(kvf_trtllm_worker *worker, kvfi_worker_fn fn, void *argument, struct kvf_error *error);

/* ---- events to the user: take the room when a session is accepted, so that none can be lost --------------------- */

/** A zeroed event with room in the queue; NULL without room or memory. */
struct kvfi_event_node *kvfi_worker_event_reserve(kvf_trtllm_worker *worker);
/** Gives room back; NULL is fine. */
void kvfi_worker_event_cancel(kvf_trtllm_worker *worker, struct kvfi_event_node *node);
/** Copies the event into a reserved node and queues it (the node is taken). */
void kvfi_worker_event_push(kvf_trtllm_worker *worker, struct kvfi_event_node *node,
                            const struct kvf_trtllm_event *event);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/** Sends one message: all its frames or, on failure, none. @return as kvfi_channel_send_frames */
enum kvf_status kvfi_worker_send(struct kvfi_worker_socket *socket, const struct kvfi_route *to,
                                 const struct kvfi_trtllm_packed *message, struct kvf_error *error);
/** Reads what a channel hands over. @return as kvfi_trtllm_read */
enum kvf_status kvfi_worker_read(const struct kvfi_frame *frames, size_t count, struct kvfi_trtllm_message *out,
                                 struct kvf_error *error);

/** Takes a message at the info endpoint (info.c). */
void kvfi_worker_answer_info(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                             size_t count);

/* ---- the agent --------------------------------------------------------------------------------------------------- */

/** Name of a rank's agent: instance name, immediately followed by the decimal rank. */
void kvfi_agent_name(char name[KVF_TRTLLM_AGENT_NAME_BYTES], const char *instance_name, int64_t instance_rank);

/** Submits to the agent. DONE and FAILED come to kvfi_senders_on_agent, never from within this call. */
enum kvf_status kvfi_worker_submit(kvf_trtllm_worker *worker, const struct kvf_trtllm_agent_write *write,
                                   struct kvf_error *error);

/* ---- the sending half, as the worker calls it (send.c) ----------------------------------------------------------- */

enum kvf_status kvfi_senders_create(kvf_trtllm_worker *worker, struct kvfi_senders **out, struct kvf_error *error);
/** Frees all. The agent is closed by then: no source of a write is read any more. NULL is fine. */
void kvfi_senders_destroy(kvf_trtllm_worker *worker, struct kvfi_senders *senders);
/** Takes a message at the sender endpoint: REGISTER_RANK_INFO, REQUEST_DATA, CANCEL_SESSION, or anything hostile. */
void kvfi_senders_handle(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                         size_t count);
/** DONE, FAILED, IN_DOUBT of a write. */
void kvfi_senders_on_agent(kvf_trtllm_worker *worker, const struct kvf_trtllm_agent_event *event);
/** The public calls, on the loop's thread: structs are whole (shorter ones of callers were filled up), arrays borrowed
 *  for the call; the worker is complete and, for open, not closed. */
enum kvf_status kvfi_senders_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_send *send,
                                  struct kvf_error *error);
enum kvf_status kvfi_senders_piece(kvf_trtllm_worker *worker, const struct kvf_trtllm_piece *piece,
                                   struct kvf_error *error);
enum kvf_status kvfi_senders_aux(kvf_trtllm_worker *worker, int64_t rid, int64_t slot, struct kvf_error *error);
enum kvf_status kvfi_senders_cancel(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error);
enum kvf_status kvfi_senders_status(kvf_trtllm_worker *worker, int64_t rid, struct kvf_trtllm_status *out,
                                    struct kvf_error *error);
enum kvf_status kvfi_senders_close_session(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error);
/** Sessions whose memory is not settled. Whoever lowers it wakes those that wait: kvfi_loop_changed. */
int64_t kvfi_senders_unsettled(const kvf_trtllm_worker *worker);

#endif
