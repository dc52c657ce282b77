/* SPDX-License-Identifier: Apache-2.0 */
/** @file batch.h  Batches of writes to peers, each made by a thread that may block on its peer alone.
 *
 *  A batch is all that became ready for one pull. A crew of threads makes them: those of one peer wait for each other
 *  (two run side by side; one, while half of all threads are busy), those of different peers do not. What peers see
 *  when one fails is a number, that of upstream's transfer engine; the reason is kept beside it.
 */
#ifndef KVFI_VLLM_WORKER_BATCH_H
#define KVFI_VLLM_WORKER_BATCH_H

#include "kvferry/mooncake.h"
#include "kvferry/vllm.h"
#include "loop/loop.h"
#include "sys/crew.h"

enum {
    KVFI_VLLM_WRITE_FAILED = -1, /* what upstream's engine returns, whatever happened */
    KVFI_VLLM_PEER_WRITES = 2,   /* of one peer, side by side */
    KVFI_VLLM_MAX_WRITERS = 256  /* threads */
};

struct kvfi_vllm_batch {
    struct kvfi_loop_command command; /* first: by which it comes back */
    struct kvfi_crew_item item;       /* of the thread that makes it: ends early once `stop` is set */
    /* Filled by the owner, borrowed until `ended`. */
    const char *session;              /* "HOST:PORT" */
    kvf_vllm_write **writes;
    size_t write_count;
    int64_t bytes, descriptors;       /* of all writes together */
    int64_t timeout_ns;
    /** By the loop's thread, exactly once, unless the writers are destroyed. */
    void (*ended)(void *owner, struct kvfi_vllm_batch *batch);
    void *context;                    /* the owner's */
    /* What became of it. */
    int64_t started_ns, ended_ns;
    int code;                         /* 0: every byte is in the peer's memory */
    struct kvf_error reason;          /* of another code */
};

/** How a batch is written. */
struct kvfi_vllm_writer {
    /** Blocks until it has ended. Returns 0, or a code and why: no source memory is touched afterwards. By any thread,
     *  several at once. */
    int (*write)(void *context, struct kvfi_vllm_batch *batch, struct kvf_error *reason);
    void *context;
};

struct kvfi_vllm_writers;

/** @param loop  whose thread calls `ended`; valid until destroy
 *  @return KVF_OK or KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_writers_create(struct kvfi_loop *loop, const struct kvfi_vllm_writer *writer,
                                         struct kvfi_vllm_writers **out, struct kvf_error *error);
/** Stops what is under way and waits for it. Nobody's `ended` is called any more; the batches are the owner's. Commands
 *  of the loop that are left must be dropped before they are freed. NULL is fine. */
void kvfi_vllm_writers_destroy(struct kvfi_vllm_writers *writers);

/** Queues a batch. @return KVF_OK: `ended` follows; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM (no thread to be had) */
enum kvf_status kvfi_vllm_writers_submit(struct kvfi_vllm_writers *writers, struct kvfi_vllm_batch *batch,
                                         struct kvf_error *error);

/** A writer over a transfer engine, the context: refuses what lies in none of the buffers that the peer publishes,
 *  where it publishes any, before a byte is written. */
int kvfi_vllm_engine_write(void *engine, struct kvfi_vllm_batch *batch, struct kvf_error *reason);

#endif
