/* SPDX-License-Identifier: Apache-2.0 */
/** @file send_kit.h  For tests of sending: a context rank that is a worker, and generation ranks that say what the test
 *  has them say, with memory in processes of their own. Every wait has a deadline and fails the test when it passes.
 *
 *  The usual pair: a context rank of TP 1 with 8 heads, generation ranks of TP 2 with 4 heads each; two layers (each a
 *  view and a pool of its own), blocks of 2 tokens, 8 slots.
 */
#ifndef TESTS_TRTLLM_SEND_KIT_H
#define TESTS_TRTLLM_SEND_KIT_H

#include <pthread.h>
#include <sys/types.h>

#include "trtllm/rank_kit.h"

#include "channel/channel.h"
#include "kvferry/trtllm_worker.h"
#include "trtllm/message.h"

enum { KIT_LAYERS = 2, KIT_SLOTS = 8, KIT_AUX_SLOTS = 4, KIT_AUX_BYTES = 8, KIT_WORDS = 256,
       KIT_MEMORY_BYTES = 8192 /* pools from the start on, the auxiliary slots at the end */ };

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/** Pools and auxiliary buffer of a rank, shared with the process that owns it. */
struct memory {
    unsigned char *bytes;
    size_t byte_count;
    pid_t pid; /* a process that does nothing but have it; 0 = this one */
};

/** @param owned  1: a process is made for it. Before any thread is started. */
void memory_open(struct memory *memory, size_t byte_count, int owned);
void memory_kill(struct memory *memory);
void memory_close(struct memory *memory);

/* ---- an agent that does what it is told -------------------------------------------------------------------------- */

struct fake_write {
    struct kvf_trtllm_agent_write job;
    char name[KVF_TRTLLM_AGENT_NAME_BYTES];
    int is_out;
};

struct fake_agent {
    pthread_mutex_t lock;
    int fd;
    int loads, invalidates;
    int next_load;                         /* a status for the next load; 0 = none */
    int next_submit;                       /* a status for the next submit; 0 = none */
    struct fake_write writes[KIT_WORDS];
    int write_count;
    struct kvf_trtllm_agent_event events[KIT_WORDS];
    int event_head, event_tail;
};

void fake_open(struct fake_agent *fake, struct kvf_trtllm_agent *table);
void fake_close(struct fake_agent *fake);
/** Waits until `count` writes were submitted in all. */
void fake_until(struct fake_agent *fake, int count);
int fake_count(struct fake_agent *fake);
int fake_loads(struct fake_agent *fake);
/** What the next load, or submit, says instead of KVF_OK. */
void fake_next_load(struct fake_agent *fake, int status);
void fake_next_submit(struct fake_agent *fake, int status);
/** Ends (or doubts) write number `index`: DONE copies its bytes first. */
void fake_tell(struct fake_agent *fake, int index, int kind);
/** Any write that is out, by chance; -1 when none is. */
int fake_any(struct fake_agent *fake, unsigned chance);
/** Forgets all writes; none is out. */
void fake_reset(struct fake_agent *fake);
/** Ends all that are out. */
void fake_finish_all(struct fake_agent *fake);

/* ---- the context rank -------------------------------------------------------------------------------------------- */

struct ctx {
    kvf_trtllm_worker *worker;
    struct kvf_trtllm_worker_options options; /* changed before ctx_open */
    struct kvf_trtllm_endpoints ends;
    struct rank_kit kit;
    struct memory memory;
    struct fake_agent fake;
    struct kvf_trtllm_agent agent;
    int is_fake;
};

/** @param is_fake  1: with the agent that does what it is told, else the built-in one */
void ctx_init(struct ctx *ctx, int is_fake);
void ctx_open(struct ctx *ctx);
void ctx_close(struct ctx *ctx);
/** A context-first session of 8 tokens. */
void ctx_send_open(struct ctx *ctx, int64_t rid);
void ctx_send_open_aux(struct ctx *ctx, int64_t rid);
/** Hands over tokens [begin, end) of 8 in blocks 4, 5, 6, 7. Returns the status. */
int ctx_piece(struct ctx *ctx, int64_t rid, int64_t begin, int64_t end, int is_last);
struct kvf_trtllm_event ctx_event(struct ctx *ctx, int kind, int64_t rid);
void ctx_no_event(struct ctx *ctx);
int ctx_cancel(struct ctx *ctx, int64_t rid);
int ctx_close_session(struct ctx *ctx, int64_t rid);
struct kvf_trtllm_status ctx_status(struct ctx *ctx, int64_t rid);
struct kvf_trtllm_worker_stats ctx_stats(struct ctx *ctx);

/* ---- a generation rank ------------------------------------------------------------------------------------------- */

/** A word that came. */
struct word {
    int tag;
    int64_t rid, slice, bytes;
    int is_last, word;
};

struct peer {
    struct rank_kit kit; /* changed before peer_open or peer_register */
    struct memory memory;
    struct kvfi_channel *channel;
    struct kvfi_route route;
    struct word *words;
    int head, tail, capacity;
    int64_t sync;
    char engine[64];
    int64_t ids[16];
};

/** Rank `rank` of two of instance `name`. @param owned  1: its memory is another process's */
void peer_init(struct peer *peer, const char *name, int64_t rank, int owned);
void peer_open(struct peer *peer, struct ctx *ctx);
void peer_close(struct peer *peer);
void peer_register(struct peer *peer);
/** Registers with these bytes. */
void peer_register_bytes(struct peer *peer, const void *bytes, size_t byte_count);
/** The usual request: 4 blocks in slots 0, 1, 2, 3. */
void peer_ask_init(struct peer *peer, struct kvfi_trtllm_ask *ask, struct kvf_trtllm_blocks *groups, int64_t rid);
void peer_ask(struct peer *peer, int64_t rid);
void peer_ask_aux(struct peer *peer, int64_t rid, int64_t slot);
void peer_ask_for(struct peer *peer, const struct kvfi_trtllm_ask *ask);
void peer_cancel(struct peer *peer, int64_t rid);
/** As older versions do: without saying who. */
void peer_cancel_nameless(struct peer *peer, int64_t rid);
void peer_frames(struct peer *peer, const struct kvfi_frame *frames, size_t count);
/** The next word. */
struct word peer_word(struct peer *peer);
/** The next word: fails the test unless it is this. */
void peer_kv(struct peer *peer, int64_t rid, int word, int is_last);
void peer_aux(struct peer *peer, int64_t rid, int word);
void peer_quiesced(struct peer *peer, int64_t rid);
void peer_cancelled(struct peer *peer, int64_t rid);
/** Fails the test when any word is on its way. Everything said before has been handled when it returns. */
void peer_silent(struct peer *peer);
/** The same, but words may come: they stand in `words` from `head` on, without the answer that came last. */
void peer_catch_up(struct peer *peer);

/** Fails the test unless blocks [first, end) of the prompt are in the peer's slots 0 to 3 and all else is untouched. */
void peer_has_blocks(const struct ctx *ctx, const struct peer *peer, int first, int end);

/* ---- a context rank and both ranks of a generation instance ------------------------------------------------------ */

struct stage {
    struct peer a, b;
    struct ctx ctx;
};

/** @param is_fake  0: the built-in agent, and memory in other processes */
void stage_init(struct stage *stage, int is_fake);
/** Opens what was initialised; both ranks register. */
void stage_start(struct stage *stage);
/** Both of these. */
void stage_open(struct stage *stage, int is_fake);
void stage_close(struct stage *stage);

#endif
