/* SPDX-License-Identifier: Apache-2.0 */
/** @file worker_kit.h  For tests of workers: a generation rank in a few words, and a context instance whose ranks say
 *  what the test has them say. Every wait has a deadline and fails the test when it passes.
 */
#ifndef TESTS_TRTLLM_WORKER_KIT_H
#define TESTS_TRTLLM_WORKER_KIT_H

#include "trtllm/rank_kit.h"

#include "channel/channel.h"
#include "kvferry/trtllm_worker.h"
#include "trtllm/message.h"

enum { SCRIPT_RANKS = 8 };

/* ---- a worker ------------------------------------------------------------------------------------------------ */

struct gen {
    kvf_trtllm_worker *worker;
    struct kvf_trtllm_worker_options options; /* changed before gen_open */
    struct kvf_trtllm_endpoints ends;
    struct rank_kit kit;
};

/** TP 1, two layers of 8 heads, 2 tokens per block, 8 blocks, 8 auxiliary slots; changed before gen_open. */
void gen_init(struct gen *gen, const char *name);
void gen_open(struct gen *gen);
void gen_close(struct gen *gen);

/** A receive of 8 tokens (4 blocks) in blocks 0 to 3; changed before gen_receive. */
struct gen_receive {
    struct kvf_trtllm_receive receive;
    int64_t ids[16];
    struct kvf_trtllm_blocks groups[1];
};
void gen_receive_init(struct gen_receive *one, int64_t rid, const char *info_endpoint);
/** Fails the test unless it is accepted. */
void gen_receive(struct gen *gen, int64_t rid, const char *info_endpoint);
void gen_receive_aux(struct gen *gen, int64_t rid, const char *info_endpoint, int64_t dp_rank);

/** The next event: fails the test unless it is of this kind and rid. */
struct kvf_trtllm_event gen_event(struct gen *gen, int kind, int64_t rid);
/** Fails the test when any event is queued. */
void gen_no_event(struct gen *gen);
struct kvf_trtllm_status gen_status(struct gen *gen, int64_t rid);
struct kvf_trtllm_worker_stats gen_stats(struct gen *gen);
/** Closes the session; says what came of it. */
int gen_close_session(struct gen *gen, int64_t rid);

/* ---- a context instance that says what it is told to ----------------------------------------------------------- */

struct script {
    struct rank_kit kit;           /* of its rank 0; changed before script_open */
    size_t ranks;                  /* sender endpoints */
    int info_port;                 /* 0 = any */
    struct kvfi_channel *info, *senders[SCRIPT_RANKS];
    struct kvfi_route route;       /* to the generation rank's self endpoint, from senders[0] */
    void *bytes;                   /* the rank info that it answers with */
    size_t byte_count;
    bool mute;                     /* does not answer at its info endpoint */
    struct kvfi_route asker;       /* who asked there last */
    int asked, registered[SCRIPT_RANKS], requested[SCRIPT_RANKS], cancelled[SCRIPT_RANKS];
    struct kvfi_trtllm_ask ask;    /* the last REQUEST_DATA; owned */
    char cancel_name[128];         /* of the last CANCEL_SESSION */
    int order[64];                 /* tags as they came, all ranks together */
    int order_count;
    const char *endpoint;          /* the info endpoint */
    struct gen *gen;
    int64_t fence;
};

/** Like the generation rank's partner: TP `tp` that shares the heads, two layers. */
void script_init(struct script *script, const char *name, int64_t tp);
/** Attention DP of `dp` groups of `pp` stages: each holds all heads. */
void script_init_dp(struct script *script, const char *name, int64_t dp, int64_t pp);
void script_open(struct script *script, struct gen *gen);
/** Makes the bytes it answers with anew, after the kit was changed. */
void script_describe(struct script *script);
/** The same, with another endpoint for one rank. */
void script_describe_with(struct script *script, size_t rank, const char *endpoint);
void script_close(struct script *script);

/** Handles what comes until `*counter` is `value` (or more). */
void script_until(struct script *script, const int *counter, int value);
/** Answers who asked last. */
void script_answer(struct script *script);
/** Handles what has come, or comes within a few milliseconds. */
void script_pump(struct script *script);
/** All ranks below `count` got a request. */
void script_requested(struct script *script, size_t count, int value);

/** What rank `rank` says. */
void script_result(struct script *script, int64_t rank, int64_t rid, bool is_last, int word);
void script_result_of(struct script *script, const struct kvfi_trtllm_result *result);
void script_aux(struct script *script, int64_t rank, int64_t rid, int word);
void script_quiesced(struct script *script, int64_t rank, int64_t rid);
void script_cancel(struct script *script, int64_t rid);
/** Raw frames, as text or bytes. */
void script_frames(struct script *script, const struct kvfi_frame *frames, size_t count);
/** Returns when the generation rank has handled all that was said. */
void script_sync(struct script *script);

#endif
