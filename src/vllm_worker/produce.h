/* SPDX-License-Identifier: Apache-2.0 */
/** @file produce.h  The producer half: what its files share. All of it is the loop's thread's.
 *
 *  A *transfer* is what this side keeps under one transfer id: unknown, known, ready, over. An *answer* is one pull
 *  that is being answered, with an *entry* for each of its requests. An entry waits for its transfer, is *due* once
 *  that is ready or over, and goes into the answer's next *round*: all that are due then are bound, written as one
 *  batch, and answered by one reply. One round of an answer is out at a time; answers do not wait for each other.
 *
 *  Machines of life/: a transfer is an offer with a block; an entry is a sink of it for as long as one try lasts. A
 *  sink that fails does not fail its offer: the consumer may pull again.
 *
 *  Files: produce.c (the half as a whole), pull_serve.c (the side channel, the registry), pull.c (a pull is taken in),
 *  pull_answer.c (answers as a whole), round.c (rounds), ready.c (transfers, steps), expire.c (their ends, and what is
 *  remembered of them).
 */
#ifndef KVFI_VLLM_WORKER_PRODUCE_H
#define KVFI_VLLM_WORKER_PRODUCE_H

#include "channel/channel.h"
#include "life/block.h"
#include "life/offer.h"
#include "vllm/message.h"
#include "vllm_worker/batch.h"
#include "vllm_worker/worker.h"

struct kvfi_vllm_answer;

/** A consumer rank, as pulls name it: by host, port and TP rank. Counted. */
struct kvfi_vllm_puller {
    struct kvfi_link link; /* key: port and TP rank as numbers, then the host */
    int64_t references;
    char session[KVF_VLLM_ADDRESS_BYTES]; /* "HOST:PORT" */
    size_t key_bytes;
    unsigned char key[];
};

/** Something that this side has placed: a repeat of it is answered, not written again. */
struct kvfi_vllm_taken {
    struct kvfi_vllm_puller *puller; /* acquired */
    uint64_t copy;                   /* hash of the request's id, its blocks, and whose memory they are in */
};

enum kvfi_vllm_transfer_state {
    KVFI_VLLM_UNKNOWN = 0, /* pulled, but no step has told of it */
    KVFI_VLLM_KNOWN = 1,
    KVFI_VLLM_READY = 2,   /* its blocks are offered */
    KVFI_VLLM_OVER = 3     /* remembered for a while, so that late pulls are answered at once */
};

/** Why an entry gets no bytes. */
enum kvfi_vllm_cause {
    KVFI_VLLM_NO_CAUSE = 0,
    KVFI_VLLM_ABORTED,    /* the scheduler will not send it */
    KVFI_VLLM_EXPIRED,
    KVFI_VLLM_SENT_ALL,   /* everybody who was expected has pulled */
    KVFI_VLLM_REPLACED,   /* another request uses the transfer id now */
    KVFI_VLLM_CLOSING     /* this worker shuts down */
};

struct kvfi_vllm_transfer {
    struct kvfi_link link;           /* by transfer id, unless it was replaced */
    int state;
    int cause;                       /* of OVER */
    bool told;                       /* in `finished`: the user is to hear of p_req_id */
    const char *transfer_id, *p_req_id; /* "": not known. Inside this allocation, as what follows */
    struct kvf_vllm_ids *groups;
    size_t group_count;
    struct kvfi_timer expiry;        /* in sender->expiries, while ready */
    struct kvfi_offer_life offer;
    struct kvfi_block block;
    struct kvfi_vllm_entry *waiting; /* those that wait for it, or are due because it is ready */
    struct kvfi_vllm_entry *active;  /* those being written */
    struct kvfi_vllm_taken *taken;
    size_t taken_count, taken_capacity;
    int64_t pulled;                  /* different pullers among `taken` */
    int64_t forget_ns;               /* OVER */
    struct kvfi_vllm_transfer *newer, *older; /* OVER: in order of their ends */
    struct kvfi_vllm_transfer *next_finished;
};

enum kvfi_vllm_entry_state {
    KVFI_VLLM_WAITING = 0,
    KVFI_VLLM_DUE = 1,
    KVFI_VLLM_WRITING = 2, /* in a round: bound */
    KVFI_VLLM_OK = 3,      /* in a round: to be answered so */
    KVFI_VLLM_BAD = 4,
    KVFI_VLLM_ANSWERED = 5
};

struct kvfi_vllm_entry {
    struct kvfi_vllm_answer *answer;
    struct kvfi_vllm_transfer *transfer;      /* NULL once there is a cause, or nothing more is wanted of it */
    struct kvfi_vllm_entry *next, *previous;  /* waiting or active: of its transfer */
    struct kvfi_vllm_entry *next_due;         /* due, or in the round: of its answer */
    int state, cause;
    bool placed;                              /* with a cause: its bytes were placed before, by an earlier pull */
    struct kvfi_sink sink;
    kvf_vllm_write *write;                    /* while writing */
    int64_t bytes, descriptors;               /* of it */
    uint64_t copy;
    const char *d_req_id, *transfer_id;       /* inside the answer's allocation, as what follows */
    struct kvf_vllm_ids *groups;
    size_t group_count;
};

/** The batch of a round. */
struct kvfi_vllm_round {
    struct kvfi_vllm_batch batch;
    struct kvfi_vllm_answer *answer;
    kvf_vllm_write *writes[]; /* borrowed from the entries */
};

struct kvfi_vllm_answer {
    struct kvfi_vllm_answer *next, *previous; /* of all */
    struct kvfi_vllm_answer *next_due;        /* among those that have something due */
    bool listed_due;
    struct kvfi_route from;
    kvf_vllm_prepared *prepared;
    struct kvfi_vllm_puller *puller;
    uint64_t layout_id;                       /* to be echoed */
    struct kvfi_timer patience;               /* while it waits */
    struct kvfi_vllm_entry *due, *last_due;   /* for the next round */
    struct kvfi_vllm_entry *round;            /* those of the round that is out */
    struct kvfi_vllm_round *out;              /* its batch; NULL when none is out */
    char *problem;                            /* first text of the round; NULL */
    size_t left, entry_count;                 /* not answered; all */
    size_t bytes;                             /* of its memory */
    const char **names;                       /* room for all d_req_ids: a reply's lists */
    struct kvfi_vllm_entry entries[];
};

struct kvfi_vllm_sender {
    struct kvfi_channel *channel;       /* NULL unless it serves */
    struct kvfi_watch watch;
    struct kvfi_vllm_writers *writers;
    struct kvf_vllm_producer *producer; /* NULL before memory is registered */
    struct kvfi_table transfers, pullers;
    struct kvfi_vllm_transfer *newest, *oldest; /* OVER */
    int64_t over_count;
    struct kvfi_vllm_transfer *finished; /* to be told to the user */
    struct kvfi_timers expiries;         /* of transfers; `clock` fires for the first of them */
    struct kvfi_timer clock;
    int64_t unknown, known, ready;       /* transfers, by state */
    struct kvfi_vllm_answer *answers, *due, *last_due;
    int64_t answer_count, rounds_out;
    size_t answer_bytes;                 /* of all answers */
    uint64_t seed;                       /* of hashes */
    int64_t last_malformed_ns;           /* when one was logged */
    int serve_state;                     /* pull_serve.c */
    struct kvf_error serve_error;
};

/* ---- produce.c ---------------------------------------------------------------------------------------------- */

/** A consumer rank, acquired. @return NULL without memory */
struct kvfi_vllm_puller *kvfi_vllm_puller_get(struct kvfi_vllm_sender *sender, const struct kvf_vllm_peer *peer);
struct kvfi_vllm_puller *kvfi_vllm_puller_acquire(struct kvfi_vllm_puller *puller);
void kvfi_vllm_puller_release(struct kvfi_vllm_sender *sender, struct kvfi_vllm_puller *puller);

/** "HOST:PORT", brackets around an IPv6 address. */
void kvfi_vllm_session_format(const char *host, int64_t port, char out[KVF_VLLM_ADDRESS_BYTES]);
/** Sends a reply; what cannot be sent is lost, as if the peer had not received it, and logged. */
void kvfi_vllm_sender_reply(kvf_vllm_worker *worker, const struct kvfi_route *to,
                            const struct kvfi_vllm_reply *reply);

/* ---- pull.c -------------------------------------------------------------------------------------------------- */

/** Takes what came at the side channel. */
void kvfi_vllm_sender_handle(kvf_vllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                             size_t count);
void kvfi_vllm_sender_refuse(kvf_vllm_worker *worker, const struct kvfi_route *from, const char *what);

/* ---- round.c ------------------------------------------------------------------------------------------------- */

/** True while another pull of this consumer rank for the same request is being written: this one waits for its end,
 *  which makes it due. It is not answered before, not even with an error: its consumer would take that for a word that
 *  nothing is written any more. */
bool kvfi_vllm_entry_has_twin(const struct kvfi_vllm_entry *entry);
/** An entry that waits, or is due already, is due now: with a cause it leaves its transfer, unless it has a twin. */
void kvfi_vllm_entry_due(struct kvfi_vllm_sender *sender, struct kvfi_vllm_entry *entry, int cause);
/** Begins the rounds of all that have something due. */
void kvfi_vllm_rounds_run(kvf_vllm_worker *worker);
/** An entry gets no bytes: it is told, and goes into the reply of its round. */
void kvfi_vllm_entry_fail(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry, enum kvf_status status,
                          const char *text);
/** Answers the entries of the round, which have ended; the answer is freed with the last of its entries. */
void kvfi_vllm_round_reply(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer);

/* ---- pull_answer.c -------------------------------------------------------------------------------------------- */

/** An answer is to end, and no round of it is out: what is left is answered with that text, and it is freed. Where
 *  twins are being written it goes on waiting for these. */
void kvfi_vllm_answer_give_up(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer, enum kvf_status status,
                              const char *text);
/** Frees an answer. Its entries are taken from their transfers. */
void kvfi_vllm_answer_free(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer);
/** Waits for what is left of an answer, from now on. */
void kvfi_vllm_answer_wait(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer);

/* ---- ready.c ------------------------------------------------------------------------------------------------- */

/** The transfer of that id, also one that is over; NULL. */
struct kvfi_vllm_transfer *kvfi_vllm_transfer_find(const struct kvfi_vllm_sender *sender, const char *transfer_id);
/** Room for one; it is in no table. @return NULL without memory */
struct kvfi_vllm_transfer *kvfi_vllm_transfer_make(const char *transfer_id, const char *p_req_id,
                                                   const struct kvf_vllm_ids *groups, size_t group_count);
/** Puts it in, as UNKNOWN or KNOWN. */
void kvfi_vllm_transfer_put(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *transfer, int state);
void kvfi_vllm_transfer_free(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *transfer);
void kvfi_vllm_entry_link(struct kvfi_vllm_entry **list, struct kvfi_vllm_entry *entry);
void kvfi_vllm_entry_unlink(struct kvfi_vllm_entry **list, struct kvfi_vllm_entry *entry);
/** An UNKNOWN one for which nobody waits any more goes. */
void kvfi_vllm_transfer_left(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *transfer);

/* ---- expire.c ------------------------------------------------------------------------------------------------ */

/** Feeds a transfer's offer and carries out what it says: nothing of the transfer may be used by the caller afterwards
 *  unless an entry of the caller's is active. */
void kvfi_vllm_offer_feed(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, int kind,
                          enum kvf_status status, int64_t value);
void kvfi_vllm_block_feed(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, int kind);
/** One that was never ready ends. */
void kvfi_vllm_transfer_abort(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer);
/** Ends what is due at `now_ns`, forgets what is old, sets the clock. */
void kvfi_vllm_expire_due(kvf_vllm_worker *worker, int64_t now_ns);
void kvfi_vllm_expiry_arm(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, int64_t due_ns);

#endif
