/* SPDX-License-Identifier: Apache-2.0 */
/** @file batch_kit.h  For tests of batches: two engines, and a host that takes connections and does not answer. */
#ifndef KVF_TESTS_BATCH_KIT_H
#define KVF_TESTS_BATCH_KIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/mooncake.h"
#include "sys/clock.h"

#define MIB (UINT64_C(1) << 20)
#define PATIENCE (30 * KVFI_SECOND)

/** An engine's memory, filled with bytes that differ from place to place. */
struct arena {
    kvf_mooncake *engine;
    unsigned char *bytes;
    uint64_t size;
};

/** @param initiator_only  as in kvf_mooncake_options */
void arena_init(struct arena *arena, uint64_t size, int32_t initiator_only);
void arena_fini(struct arena *arena);
/** Waits until no peer touches the memory. What came through a socket is ordered, but no tool for races sees it. */
void arena_settle(struct arena *arena);
uint64_t arena_at(const struct arena *arena, uint64_t offset);

/** Opens a segment. */
int64_t open_peer(kvf_mooncake *engine, const char *name);

/** Answers handshakes on all of 127.0.0.0/8, and takes data connections, but nobody reads from them. */
struct quiet_host;
/** @param version  the data protocol that it publishes */
struct quiet_host *quiet_host_open(int32_t version);
void quiet_host_close(struct quiet_host *host);
/** Opens it as one of many peers: each number, 1 to 65000, is another one. */
int64_t open_quiet(kvf_mooncake *engine, const struct quiet_host *host, int number);
/** The next data connection: a socket that blocks for 20 s at most. */
int quiet_host_accept(struct quiet_host *host);

/** A batch of one segment; must be taken. */
kvf_mooncake_batch *submit(kvf_mooncake *engine, int64_t segment, int32_t operation,
                           const struct kvf_mooncake_range *ranges, size_t count, int64_t timeout_ns);
/** Waits for a batch, fails unless it ends with this, and frees it. */
void expect_end(kvf_mooncake_batch *batch, enum kvf_status status);
struct kvf_mooncake_progress progress_of(kvf_mooncake_batch *batch);
/** Waits until a batch has gone so far that `is_there` says yes; fails after PATIENCE. */
void await_progress(kvf_mooncake_batch *batch, bool (*is_there)(const struct kvf_mooncake_progress *progress));
/** Threads of this process. */
size_t thread_count(void);

#endif
