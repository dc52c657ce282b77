/* SPDX-License-Identifier: Apache-2.0 */
/** @file receive.h  The receiving half: context instances as this rank knows them, and what it receives from them.
 *
 *  A *contact* is an info endpoint of a context, asked once and again when what it said is old; an *instance* is who
 *  answered, with a connection to each of its ranks; a *receive* is one session. The machines are life/'s: a contact is
 *  its peer, a receive its transfer and its blocks, each context rank that is asked two of its writers: one for the
 *  cache, one for the auxiliary data.
 */
#ifndef KVFI_TRTLLM_WORKER_RECEIVE_H
#define KVFI_TRTLLM_WORKER_RECEIVE_H

#include "life/block.h"
#include "life/peer.h"
#include "life/transfer.h"
#include "life/writer.h"
#include "trtllm_worker/fence.h"
#include "trtllm_worker/worker.h"

struct kvfi_receive;

/** Receives in a list; each is in one list at most. */
struct kvfi_receive_list {
    struct kvfi_receive *head;
};

/** Who answered at an info endpoint: until it is asked anew and another one answers. */
struct kvfi_instance {
    struct kvfi_instance *previous, *next; /* in receivers->instances */
    struct kvfi_contact *contact;          /* NULL once another one answers there */
    kvf_trtllm_rank *rank;                 /* of its rank 0, with all sender endpoints */
    struct kvfi_route *routes;             /* to its senders, by rank */
    bool *watched;                         /* by rank: the agent tells when it is gone */
    size_t count;
    struct kvfi_receive_list active;       /* published to it, not closed */
};

struct kvfi_contact {
    struct kvfi_link link; /* in receivers->contacts, by endpoint */
    char endpoint[KVF_TRTLLM_ENDPOINT_BYTES];
    struct kvfi_peer_life life;
    struct kvf_error error;       /* why it is refused, or could not be asked */
    struct kvfi_route asking;     /* while `is_asking` */
    bool is_asking;
    bool is_suspect;              /* nothing was heard of its ranks when something should have been */
    struct kvfi_contact *next_asking;
    int64_t deadline_ns, again_ns; /* of the question under way */
    int64_t known_ns, used_ns;    /* when it answered last, and was needed last */
    struct kvfi_timer timer;
    struct kvfi_timer refresh;    /* asks again while something is under way: another one may be there by now */
    struct kvfi_instance *instance; /* NULL: none yet, or refused */
    void *answer;                 /* what made the instance, or the refusal */
    size_t answer_bytes;
    struct kvfi_receive_list waiting;
};

/** One context rank that is asked. */
struct kvfi_receive_writer {
    struct kvfi_writer kv, aux; /* aux stays idle without auxiliary data */
    int64_t rank, group;        /* group: number of its DP group among those asked */
    bool asked, notified;       /* sent REQUEST_DATA, sent CANCEL_SESSION */
};

struct kvfi_receive {
    struct kvfi_link link; /* in receivers->jobs, by rid */
    struct kvfi_receive *previous, *next;
    struct kvfi_receive_list *list;
    kvf_trtllm_worker *worker;
    int64_t rid, ctx_dp_rank, prompt_tokens, timeout_ns;
    bool needs_aux, by_peer;
    bool mute;                 /* the peer cancelled: peers are not told at once */
    bool heard;                /* any report of any writer */
    unsigned char *payload;    /* REQUEST_DATA; freed once published */
    size_t payload_bytes;
    struct kvfi_transfer life;
    struct kvfi_block block;
    struct kvfi_timer timer;   /* the deadline; after the end: to tell peers after all */
    struct kvfi_timer settle_timer;
    struct kvfi_instance *instance;
    struct kvfi_receive_writer *writers;
    size_t writer_count;
    int64_t group_count, expected, asked;
    int64_t bytes;             /* as writers report it; stock ones say 0 */
    int64_t writing_group;     /* -1 until a writer told that it wrote */
    struct kvfi_event_node *terminal, *settled; /* NULL once used */
    bool given_up;             /* settled can never be told */
    int64_t started_ns, ended_ns;
    char peer[KVF_TRTLLM_AGENT_NAME_BYTES];
    char text[KVF_ERROR_TEXT_BYTES];
};

struct kvfi_receivers {
    struct kvfi_table jobs, contacts;
    struct kvfi_contact *asking;       /* those that wait for an answer */
    struct kvfi_instance *instances;
    struct kvfi_fence cancelled;       /* by their context, before they were received here */
    struct kvfi_fence closed;          /* a cancel for one of these is late, and no memory of one to come */
    int64_t unsettled, incompatible;
    bool quarantined;                  /* nothing new is received */
    char quarantine[KVF_ERROR_TEXT_BYTES];
};

/* ---- as the worker calls it ------------------------------------------------------------------------------------ */

enum kvf_status kvfi_receivers_create(kvf_trtllm_worker *worker, struct kvfi_receivers **out, struct kvf_error *error);
void kvfi_receivers_destroy(kvf_trtllm_worker *worker, struct kvfi_receivers *receivers);
/** Takes a message at the self endpoint, or an answer to one of this rank's own (inbox.c). */
void kvfi_receivers_handle(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                           size_t count);
/** The agent `name` can write here no more. */
void kvfi_receivers_on_gone(kvf_trtllm_worker *worker, const char *name);
enum kvf_status kvfi_receivers_open(kvf_trtllm_worker *worker, const struct kvf_trtllm_receive *receive,
                                    struct kvf_error *error);
enum kvf_status kvfi_receivers_cancel(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error);
enum kvf_status kvfi_receivers_status(kvf_trtllm_worker *worker, int64_t rid, struct kvf_trtllm_status *out,
                                      struct kvf_error *error);
enum kvf_status kvfi_receivers_close_session(kvf_trtllm_worker *worker, int64_t rid, struct kvf_error *error);
int64_t kvfi_receivers_unsettled(const kvf_trtllm_worker *worker);
void kvfi_receivers_gauge(const kvf_trtllm_worker *worker, struct kvf_trtllm_worker_stats *out);

/* ---- receives (receive.c, receive_open.c, publish.c) ------------------------------------------------------------ */

/** Sets up a zeroed one whose `timeout_ns` is set; its clock runs from now. */
void kvfi_receive_init(struct kvfi_receive *job, kvf_trtllm_worker *worker);
struct kvfi_receive *kvfi_receive_find(const kvf_trtllm_worker *worker, int64_t rid);
void kvfi_receive_feed(struct kvfi_receive *job, int kind, enum kvf_status status, int64_t value);
/** Ends it with a sentence, unless it has ended. `writer` may be NULL. */
void kvfi_receive_fail(struct kvfi_receive *job, const struct kvfi_receive_writer *writer, enum kvf_status status,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
void kvfi_receive_cancel(struct kvfi_receive *job, bool by_peer);
/** Nothing proves its memory idle any more, and nothing new is received: what peers say cannot be believed. */
void kvfi_receive_quarantine(struct kvfi_receive *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kvfi_receive_writer_feed(struct kvfi_receive *job, struct kvfi_receive_writer *writer, bool is_aux, int kind,
                              enum kvf_status status);
/** The writer of a context rank; NULL when it was not asked. */
struct kvfi_receive_writer *kvfi_receive_writer(struct kvfi_receive *job, int64_t rank);
/** Its instance is known: finds out whom to ask, and asks them. */
void kvfi_receive_publish(struct kvfi_receive *job, struct kvfi_instance *instance);
/** The DO_ASK of its transfer. */
void kvfi_receive_ask(struct kvfi_receive *job);
/** CANCEL_SESSION to one writer, once. */
void kvfi_receive_notify(struct kvfi_receive *job, struct kvfi_receive_writer *writer);
void kvfi_receive_block(struct kvfi_receive *job, int kind);
void kvfi_receive_link(struct kvfi_receive_list *list, struct kvfi_receive *job);
void kvfi_receive_unlink(struct kvfi_receive *job);

/* ---- contacts and instances (contact.c, instance.c) -------------------------------------------------------------- */

/** The contact of an endpoint, made when there is none. @return KVF_OK; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_contact_get(kvf_trtllm_worker *worker, const char *endpoint, struct kvfi_contact **out,
                                 struct kvf_error *error);
/** Has the job wait for it: it is published or failed, perhaps before this returns. */
void kvfi_contact_need(kvf_trtllm_worker *worker, struct kvfi_contact *contact, struct kvfi_receive *job);
/** The answer on a route that this rank asks on; false when it is none of these. */
bool kvfi_contact_answer(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                         size_t count);
void kvfi_contact_destroy(kvf_trtllm_worker *worker, struct kvfi_contact *contact);

/** Connects to all ranks of an instance and registers with them. @return KVF_OK, or what the channel says */
enum kvf_status kvfi_instance_create(kvf_trtllm_worker *worker, struct kvfi_contact *contact, kvf_trtllm_rank *rank,
                                     struct kvfi_instance **out, struct kvf_error *error);
/** Its contact has another one: what was under way with it is lost, and it goes when the last receive does. */
void kvfi_instance_replace(kvf_trtllm_worker *worker, struct kvfi_instance *instance);
/** Frees it when it has neither contact nor receives. */
void kvfi_instance_bury(kvf_trtllm_worker *worker, struct kvfi_instance *instance);

#endif
