/* SPDX-License-Identifier: Apache-2.0 */
/** @file consume.h  The consumer half: what it asks for, whom, and when a request's blocks are its own again.
 *
 *  A *want* is one request that is being fetched; the wants of one step that come from one engine are an *order*. A
 *  *remote* is an engine of producers as registries know it; a *place* is an address of one of its workers. A *fetch*
 *  is one pull: an order at one place, over a connection of its own. The machines are life/'s: a want is a transfer
 *  with a block, each worker that is asked a writer of it.
 *
 *  A want that fails stays until each worker that was asked for it has answered, or can write no more. Everything is
 *  done by the loop's thread. What ends during a call stays whole until kvfi_vllm_consume_sweep, which each entry from
 *  the loop calls last; except a want that is over: whoever feeds one must not touch it afterwards.
 */
#ifndef KVFI_VLLM_WORKER_CONSUME_H
#define KVFI_VLLM_WORKER_CONSUME_H

#include "channel/channel.h"
#include "life/block.h"
#include "life/transfer.h"
#include "life/writer.h"
#include "vllm/message.h"
#include "vllm_worker/agents_lookup.h"
#include "vllm_worker/gates.h"
#include "vllm_worker/worker.h"

enum {
    KVFI_VLLM_MAX_REMOTES = 4096,  /* engines that are remembered */
    KVFI_VLLM_MAX_PLACES = 65536,  /* addresses that are remembered */
    KVFI_VLLM_MAX_FETCHES = 4096,  /* connections at a time; further pulls wait */
    KVFI_VLLM_MIN_FETCHES = 16,    /* however few descriptors there are */
    KVFI_VLLM_FETCH_FDS = 4        /* that one takes */
};

struct kvfi_vllm_order;
struct kvfi_vllm_fetch;

/** A request that is being fetched, then one that is over and waits to be collected. One piece of memory. */
struct kvfi_vllm_want {
    struct kvfi_link link;         /* in consumer->wants, by d_req_id */
    struct kvfi_vllm_want *next;   /* in consumer->over */
    kvf_vllm_worker *worker;
    struct kvfi_vllm_order *order; /* NULL once it is over */
    size_t index;                  /* in it */
    const char *d_req_id, *transfer_id;
    const struct kvf_vllm_ids *groups;
    size_t group_count, block_count;
    struct kvfi_transfer life;
    struct kvfi_block block;
    struct kvfi_timer settle_timer;
    struct kvfi_vllm_pass *pass;   /* what peers may write; NULL before, and without guards */
    struct kvfi_timer arrive_timer;
    struct kvfi_vllm_want *next_waiting, *previous_waiting; /* in consumer->waiting, if it `waits` */
    int64_t started_ns, failed_ns; /* 0 = it has not failed */
    bool waits;                    /* for bytes to arrive, or, if it `is_over`, for its blocks to be quiet */
    bool is_over;
    bool must_arrive;              /* its bytes are counted: one more who has to say that it is done */
    bool is_counted;               /* in consumer->unsettled */
    bool given_up;                 /* settled by settle_timeout_ns */
};

/** Wants of one step and engine. */
struct kvfi_vllm_order {
    kvf_vllm_worker *worker;
    struct kvfi_vllm_order *next;  /* of those that wait for the same remote, or of the orders to be freed */
    struct kvfi_vllm_remote *remote;
    char *bootstrap;               /* that of its first want */
    const struct kvfi_vllm_engine *engine; /* whom it asks; NULL until it does */
    struct kvfi_vllm_want **wants; /* NULL where one is over */
    size_t want_count, want_capacity, wants_left;
    struct kvfi_vllm_fetch *fetches;
    size_t fetch_count, fetches_left;
    struct kvfi_writer *writers;   /* of want w at fetch f: [w * fetch_count + f] */
    bool ended;                    /* in consumer->ended */
};

enum kvfi_vllm_fetch_state {
    KVFI_VLLM_FETCH_WAITS = 0,    /* for an address to be looked up, or for a connection to get free */
    KVFI_VLLM_FETCH_CONNECTS = 1, /* the worker has no question of it that it may still act upon */
    KVFI_VLLM_FETCH_ASKED = 2,
    KVFI_VLLM_FETCH_LATE = 3,     /* what it was asked for has failed; its answer still counts */
    KVFI_VLLM_FETCH_LOST = 4,     /* no answer can come any more */
    KVFI_VLLM_FETCH_CLOSED = 5
};

struct kvfi_vllm_fetch {
    struct kvfi_vllm_order *order;
    size_t index;                  /* in it */
    int state;                     /* an enum kvfi_vllm_fetch_state */
    const char *address;           /* as registered; the engine's */
    struct kvfi_vllm_place *place;
    struct kvfi_route route;       /* peer 0 = none */
    struct kvfi_link link;         /* in consumer->routes, by route.peer */
    struct kvfi_timer timer;
    size_t owed;                   /* wants that this worker has not settled */
    bool with_arrays;              /* as it was asked */
    bool must_have_arrays;         /* it said that it does not know the layout */
    struct kvfi_vllm_fetch *next, *previous; /* in a list of its place, or in consumer->queue */
    struct kvfi_vllm_fetch_list *list;
};

struct kvfi_vllm_fetch_list {
    struct kvfi_vllm_fetch *head, *tail;
};

/** An address of a producer's side channel. */
struct kvfi_vllm_place {
    struct kvfi_link link;         /* in consumer->places, by address */
    kvf_vllm_worker *worker;
    char *address;
    char endpoint[KVF_VLLM_ADDRESS_BYTES]; /* numeric; "" while it is not known */
    char host[KVF_VLLM_ADDRESS_BYTES];     /* numeric, without brackets */
    uint8_t origin[16];            /* the same, as data connections from there have it; zeros: it is none */
    int64_t looked_up_ns;          /* 0: it needs no look-up */
    bool looking_up;
    uint64_t acknowledged;         /* the layout id that it has echoed; 0 = none */
    size_t uses;                   /* fetches */
    size_t connections;            /* of them */
    struct kvfi_vllm_fetch_list waiting; /* for the look-up */
    struct kvfi_vllm_fetch_list connecting, lost;
    struct kvfi_watch probe;       /* settle_gone.c: fd -1 while none is under way */
    struct kvfi_timer probe_timer;
    int64_t probe_pause_ns;
    int refusals;                  /* in a row */
    int silent_refusals;           /* in a row, without a data connection */
};

/** An engine of producers. */
struct kvfi_vllm_remote {
    struct kvfi_link link;         /* in consumer->remotes, by engine id */
    kvf_vllm_worker *worker;
    char *engine_id;
    const struct kvfi_vllm_engine *engine; /* NULL = not known */
    char *bootstrap;               /* of the query that told it, or of the one under way */
    int64_t known_ns, asked_ns, used_ns;
    bool is_suspect;               /* one of its workers did not answer */
    bool is_asking;
    size_t uses;                   /* orders */
    struct kvfi_vllm_order *waiting, *waiting_tail;
    struct kvfi_timer patience;    /* how long those that could go on with what is known wait */
};

struct kvfi_vllm_consumer {
    struct kvfi_table wants, remotes, places, routes;
    struct kvfi_channel *channel;
    struct kvfi_watch watch;
    struct kvfi_vllm_lookup *lookup;
    struct kvfi_vllm_asker asker;
    bool asker_made;
    struct kvfi_vllm_fetch_list queue;       /* wait for a connection to get free */
    size_t connections, most_connections;
    bool told_of_limit;
    struct kvfi_vllm_order *ended;           /* to be freed by the sweep */
    struct kvfi_vllm_want *over, *over_tail; /* to be collected */
    size_t over_count;
    int64_t unsettled;
    int64_t engines;                         /* remotes that are known */
    int64_t ignored_ids;                     /* in answers: of no want, or settled before */
    struct kvfi_vllm_gates *gates;           /* NULL without guards */
    struct kvfi_watch news;                  /* of the guards; fd -1 before */
    struct kvfi_timer news_timer;
    struct kvfi_vllm_want *waiting;
};

/* ---- consume.c, consume_intake.c ------------------------------------------------------------------------------- */

/** Frees what has ended. */
void kvfi_vllm_consume_sweep(kvf_vllm_worker *worker);
/** An order may have ended: the sweep sees to it. */
void kvfi_vllm_order_check(struct kvfi_vllm_order *order);
/** Frees an order without wants and connections. */
void kvfi_vllm_order_free(struct kvfi_vllm_order *order);

/* ---- settle.c: wants ------------------------------------------------------------------------------------------- */

/** Ends a want with a sentence, unless it has ended. */
void kvfi_vllm_want_fail(struct kvfi_vllm_want *want, enum kvf_status status, const char *text);
/** Its blocks are its own again. */
void kvfi_vllm_want_conclude(struct kvfi_vllm_want *want);
/** Ends all wants of an order that have not ended, with a sentence. */
void kvfi_vllm_order_fail(struct kvfi_vllm_order *order, enum kvf_status status, const char *text);
/** Feeds the writer of a want at a fetch. `text`: why the want fails, if it does by this. */
void kvfi_vllm_want_feed(struct kvfi_vllm_want *want, struct kvfi_vllm_fetch *fetch, int kind, enum kvf_status status,
                         const char *text);
/** Feeds an event of the transfer machine. */
void kvfi_vllm_want_step(struct kvfi_vllm_want *want, int kind, int64_t value);
/** It was asked for at a fetch: from now on that worker may write. */
void kvfi_vllm_want_asked(struct kvfi_vllm_want *want, struct kvfi_vllm_fetch *fetch);
void kvfi_vllm_want_init(struct kvfi_vllm_want *want, kvf_vllm_worker *worker);
static inline struct kvfi_writer *kvfi_vllm_want_writer(const struct kvfi_vllm_want *want,
                                                        const struct kvfi_vllm_fetch *fetch)
{
    return &want->order->writers[want->index * want->order->fetch_count + fetch->index];
}
/** True when this worker owes nothing for it any more. */
static inline bool kvfi_vllm_writer_over(const struct kvfi_writer *writer)
{
    return writer->state == KVFI_WRITER_DONE || writer->state == KVFI_WRITER_FAILED;
}

/* ---- arrive.c: what peers may write, and whether they did -------------------------------------------------------- */

/** Grants the blocks of all wants that a fetch is about to ask for; those whose blocks cannot be granted fail. */
void kvfi_vllm_order_grant(struct kvfi_vllm_order *order, const struct kvfi_vllm_fetch *fetch);
/** Takes the blocks back. True once nobody writes there; else kvfi_vllm_want_conclude follows. */
bool kvfi_vllm_want_take_back(struct kvfi_vllm_want *want);
/** All who were asked have said that it is finished: sooner or later it is done, or fails. */
void kvfi_vllm_want_check_arrival(struct kvfi_vllm_want *want);
void kvfi_vllm_want_init_arrival(struct kvfi_vllm_want *want);
/** Forgets what was granted; it was taken back, or the guards are about to close. */
void kvfi_vllm_want_fini_arrival(struct kvfi_vllm_want *want);
enum kvf_status kvfi_vllm_arrivals_open(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer,
                                        struct kvf_error *error);
/** No want is left. */
void kvfi_vllm_arrivals_close(kvf_vllm_worker *worker, struct kvfi_vllm_consumer *consumer);

/* ---- settle_gone.c: workers that are lost, or cannot be reached -------------------------------------------------- */

/** A fetch connects or was lost: after `pause_ns` its place is looked at, and again while there is one. */
void kvfi_vllm_place_watch(struct kvfi_vllm_place *place, int64_t pause_ns);
/** Stops that when none is left; `anyway`: all the same. */
void kvfi_vllm_place_unwatch(struct kvfi_vllm_place *place, bool anyway);
void kvfi_vllm_place_init_probe(struct kvfi_vllm_place *place);

/* ---- agents.c: remotes ----------------------------------------------------------------------------------------- */

/** The remote of an engine id, made when there is none. @return KVF_OK; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_remote_get(kvf_vllm_worker *worker, const char *engine_id, struct kvfi_vllm_remote **out,
                                     struct kvf_error *error);
/** Begins an order: at once with what is known, or after asking its registry. */
void kvfi_vllm_remote_need(struct kvfi_vllm_order *order);
void kvfi_vllm_remote_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_remote *remote);

/* ---- agents_pair.c: whom an order asks -------------------------------------------------------------------------- */

/** The engine is known: finds the workers to ask and begins a fetch at each, or fails the order. */
void kvfi_vllm_order_ask(struct kvfi_vllm_order *order);

/* ---- agents_place.c -------------------------------------------------------------------------------------------- */

/** The place of an address, made when there is none. @return KVF_OK; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_place_get(kvf_vllm_worker *worker, const char *address, struct kvfi_vllm_place **out,
                                    struct kvf_error *error);
/** Where a fetch connects: known at once (true), or kvfi_vllm_fetch_connect or _cut follows. */
bool kvfi_vllm_place_resolve(struct kvfi_vllm_fetch *fetch);
/** A host name's address has come, or has not. */
void kvfi_vllm_consumer_on_looked_up(void *owner, const char *name, const char *host, const char *text);
/** The engine that lives there is another one: what it acknowledged is void. */
void kvfi_vllm_place_renew(kvf_vllm_worker *worker, const char *address);
void kvfi_vllm_place_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_place *place);

/* ---- fetch.c: one pull ----------------------------------------------------------------------------------------- */

extern const struct kvfi_dialect kvfi_vllm_consumer_dialect;

/** Begins a fetch whose order, index and address are set. */
void kvfi_vllm_fetch_begin(struct kvfi_vllm_fetch *fetch);
/** True when it may have a connection now. The last quarter of them is for places that have none: workers that stand
 *  still keep theirs, and must leave some to others. */
bool kvfi_vllm_fetch_may_connect(const struct kvfi_vllm_fetch *fetch);
/** Its place has an endpoint: connects, or waits until it may. */
void kvfi_vllm_fetch_connect(struct kvfi_vllm_fetch *fetch);
/** No question of it is out: its wants fail, and are settled as far as it goes. Closes it. */
void kvfi_vllm_fetch_cut(struct kvfi_vllm_fetch *fetch, enum kvf_status status, const char *text);
/** Closes its connection. `close`: for good. */
void kvfi_vllm_fetch_leave(struct kvfi_vllm_fetch *fetch, bool close);
/** Waits for the next answer from now on. */
void kvfi_vllm_fetch_wait(struct kvfi_vllm_fetch *fetch);
/** Its place cannot be reached. */
void kvfi_vllm_fetch_cannot_reach(struct kvfi_vllm_fetch *fetch, const char *why);
void kvfi_vllm_fetch_link(struct kvfi_vllm_fetch_list *list, struct kvfi_vllm_fetch *fetch);
void kvfi_vllm_fetch_unlink(struct kvfi_vllm_fetch *fetch);
/** Feeds all wants that a fetch has not settled. */
void kvfi_vllm_fetch_feed(struct kvfi_vllm_fetch *fetch, int kind, enum kvf_status status, const char *text);

/* ---- fetch_answer.c -------------------------------------------------------------------------------------------- */

/** Takes what its worker sent. */
void kvfi_vllm_fetch_answer(struct kvfi_vllm_fetch *fetch, const void *bytes, size_t byte_count);
/** What came cannot be read. */
void kvfi_vllm_fetch_garbage(struct kvfi_vllm_fetch *fetch, const char *why);

/* ---- done.c ---------------------------------------------------------------------------------------------------- */

/** A want is over: it waits to be collected, or is freed when nobody asks for it. */
void kvfi_vllm_over_add(struct kvfi_vllm_want *want);
void kvfi_vllm_over_clear(kvf_vllm_worker *worker);

#endif
