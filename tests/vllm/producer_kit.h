/* SPDX-License-Identifier: Apache-2.0 */
/** @file producer_kit.h  For tests of a producer: one worker, DEALERs that pull from it, and a transfer engine that
 *  only notes what it is asked, or the real one. Every function fails the test when something else comes, or nothing
 *  in time.
 */
#ifndef TESTS_VLLM_PRODUCER_KIT_H
#define TESTS_VLLM_PRODUCER_KIT_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "channel/channel.h"
#include "sys/clock.h"
#include "vllm/message.h"
#include "vllm_worker/worker.h"

enum { FAKE_CALLS = 64, FAKE_DESCRIPTORS = 64 };

/** One batch as the fake engine was asked for it. */
struct fake_call {
    char session[KVF_VLLM_ADDRESS_BYTES];
    struct kvf_vllm_descriptor list[FAKE_DESCRIPTORS];
    size_t count; /* those beyond the room are counted, too */
};

/** A transfer engine that writes nothing. Guarded by its lock. */
struct fake_engine {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fake_call calls[FAKE_CALLS];
    size_t call_count, running;
    int code;                 /* what it returns */
    const char *held_session; /* calls to it wait until this is NULL again, or they are stopped; "" = all */
};

/** How a producer is opened. Zeros mean: 127.0.0.1, TP 0 of 1, PP 0 of 1, 12 heads, a fake engine, 480 s. */
struct producer_setup {
    int64_t tp_rank, tp_size, pp_rank, pp_size, heads, abort_ms, max_pulls, max_transfers,
        message_bytes;
    int32_t side_port;
    const char *host, *bootstrap_url;
    const struct kvf_vllm_region *regions;
    size_t region_count;
    struct kvf_vllm_storage memory; /* bytes 0: 64 blocks from the first region's address on */
    bool real, both, without_layout_ids, unregistered;
    struct kvf_log_sink log;
};

struct producer {
    kvf_vllm_worker *worker;
    struct fake_engine fake;
    kvf_vllm_regions *regions;
    struct kvf_vllm_storage memory;
    void *context; /* of ZeroMQ */
    char address[KVF_VLLM_ADDRESS_BYTES];
};

void producer_open(struct producer *producer, const struct producer_setup *setup);
/** The same up to registering, whose status comes back. */
enum kvf_status producer_try_open(struct producer *producer, const struct producer_setup *setup,
                                  struct kvf_error *error);
void producer_close(struct producer *producer);

/** A region of whole blocks, as the seed tests have them: kv_block_len 0 = block_len. */
struct kvf_vllm_region region_of(const char *name, int64_t index, uint64_t base, int64_t block_len,
                                 int64_t kv_block_len);

#define KIT_COUNT(...) (sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
/** One group of block ids. */
#define IDS(...) {(const int64_t[]){__VA_ARGS__}, KIT_COUNT(__VA_ARGS__)}
/** A list of one group, for ids that are given. */
#define ONE_GROUP(...) (const struct kvf_vllm_ids[]){IDS(__VA_ARGS__)}, 1

/** Steps: a request that is ready (with no groups: only known), one that will not be sent. */
void producer_ready(struct producer *producer, const char *p_req_id, const char *transfer_id,
                    const struct kvf_vllm_ids *groups, size_t group_count);
void producer_drop(struct producer *producer, const char *transfer_id);

/** p_req_ids that are over, sorted, joined by ",". Waits until there are `count` of them in all. */
const char *producer_finished(struct producer *producer, size_t count);
struct kvf_vllm_worker_stats producer_stats(struct producer *producer);
/** Waits for an event of that kind; others are thrown away. */
struct kvf_vllm_event producer_event(struct producer *producer, int kind);
/** Waits until so many pulls have been taken, refused and malformed ones included. */
void producer_took(struct producer *producer, int64_t pulls);

/** Who pulls. Zeros mean: consumer-host:54321, TP 0 of 1, PP 1, no regions. */
struct asker {
    const char *host;
    int64_t port, tp_rank, tp_size, pp_size;
    const struct kvf_vllm_region *regions;
    size_t region_count;
    uint64_t layout_id;
    bool bare; /* without arrays */
};

/** Sends a pull from a new DEALER, to be closed with pull_close. */
void *pull_send(struct producer *producer, const struct asker *asker, const struct kvfi_vllm_wanted *wanted,
                size_t count);
/** The same for one request of one group. */
void *pull_one(struct producer *producer, const struct asker *asker, const char *d_req_id, const char *transfer_id,
               const struct kvf_vllm_ids *groups, size_t group_count);
void *pull_raw(struct producer *producer, const struct kvfi_frame *frames, size_t count);
/** One more frame from the same DEALER. */
void pull_again(void *socket, const struct kvfi_frame *frame);
struct kvfi_vllm_reply pull_reply(void *socket);
/** The next reply says exactly this; lists as "a,b", NULL = none. `layout_id` as it is echoed. */
void pull_expect(void *socket, int verdict, const char *ok, const char *err, const char *text);
void pull_expect_id(void *socket, int verdict, const char *ok, const char *err, const char *text, uint64_t layout_id);
/** No reply has come so far. */
void pull_silent(void *socket);
void pull_close(void *socket);

/** Waits until the fake engine was asked so many times, then looks at call number `index`. */
const struct fake_call *fake_call(struct producer *producer, size_t index);
size_t fake_call_count(struct producer *producer);
void fake_hold(struct producer *producer, const char *session); /* NULL: lets go */
void fake_return(struct producer *producer, int code);
/** Waits until so many calls are held. */
void fake_running(struct producer *producer, size_t count);

#endif
