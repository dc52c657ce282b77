/* SPDX-License-Identifier: Apache-2.0 */
/** @file registry.h  A worker's words with bootstrap registries: it registers a producer, and asks where the workers of
 *  an engine are. One per worker, on the worker's loop.
 *
 *  HTTP is spoken by a thread of the registry's own. All functions are for the progress thread (or before it starts),
 *  none blocks, and every callback comes from that thread in a turn of its own: never from within the call that asked.
 *  A request that was accepted ends in exactly one callback, unless it is forgotten or the registry is destroyed.
 *  A callback may ask again, forget, and free its context, but not destroy the registry.
 */
#ifndef KVFI_VLLM_WORKER_REGISTRY_H
#define KVFI_VLLM_WORKER_REGISTRY_H

#include <stdbool.h>

#include "loop/loop.h"
#include "sys/log.h"

enum kvfi_vllm_registry_limit {
    KVFI_VLLM_MAX_WORKERS = 65536,           /* in one answer, all engines together */
    KVFI_VLLM_MAX_ANSWER_BYTES = 67108864,   /* of one answer */
    KVFI_VLLM_QUERY_ATTEMPTS = 3
};

struct kvfi_vllm_registry;

struct kvfi_vllm_registry_options {
    int32_t register_attempts;    /* 1 to 1000 */
    int64_t connector_timeout_ns; /* of each phase of an HTTP request: connecting, and every wait for bytes */
    int64_t first_pause_ns;       /* before a registration's second attempt; 0 = upstream's 1 s */
    struct kvfi_log *log;         /* valid until destroy; NULL logs nothing */
};

/** @param loop  initialised; valid until destroy
 *  @param out   returned to the caller (free with kvfi_vllm_registry_destroy)
 *  @return KVF_OK; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
enum kvf_status kvfi_vllm_registry_create(struct kvfi_loop *loop, const struct kvfi_vllm_registry_options *options,
                                          struct kvfi_vllm_registry **out, struct kvf_error *error);

/** Ends what is under way without callbacks, and frees. By the progress thread, or after it was stopped and before the
 *  loop's fini. Blocks for some milliseconds. NULL is fine. */
void kvfi_vllm_registry_destroy(struct kvfi_vllm_registry *registry);

/** Drops everything that was asked with this context: its callbacks will not come. */
void kvfi_vllm_registry_forget(struct kvfi_vllm_registry *registry, const void *context);

/** HTTP requests that a registry answered since create, whatever it said. */
int64_t kvfi_vllm_registry_registrations(const struct kvfi_vllm_registry *registry);
int64_t kvfi_vllm_registry_queries(const struct kvfi_vllm_registry *registry);

/* ---- a producer registers ---- */

/** What a producer announces. Borrowed for the call. */
struct kvfi_vllm_claim {
    const char *engine_id;
    int64_t dp_rank, tp_rank, pp_rank;
    const char *address; /* of the side channel: "tcp://HOST:PORT" */
};

/** `status`: KVF_OK; KVF_ERR_UNREACHABLE "Failed to register ... with the Mooncake bootstrap server at ... after N
 *  attempts."; KVF_ERR_REFUSED with the code and what the registry said (not tried again); KVF_ERR_PROTOCOL for what is
 *  no answer of a registry; KVF_ERR_NO_MEMORY. `text` is "" with KVF_OK. */
typedef void kvfi_vllm_registered(void *context, enum kvf_status status, const char *text);

/** Registers at `url` ("http://HOST:PORT", no path), trying again as upstream does: after 1 s, 2 s, ... 10 s.
 *  @return KVF_OK: the callback will come; KVF_ERR_INVALID_ARGUMENT (url, texts); KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_registry_register(struct kvfi_vllm_registry *registry, const char *url,
                                            const struct kvfi_vllm_claim *claim, kvfi_vllm_registered *registered,
                                            void *context, struct kvf_error *error);

/** How long a caller waits for a producer to get ready, registration included: 393 s with 3 attempts of 30 s. */
int64_t kvfi_vllm_start_deadline_ns(int32_t register_attempts, int64_t connector_timeout_ns);

/* ---- a consumer asks ---- */

struct kvfi_vllm_engine_worker {
    int64_t tp_rank, pp_rank;
    const char *address;
};

/** One engine of an answer. Counted; never changed after it was told, so any thread may read it. */
struct kvfi_vllm_engine {
    const char *engine_id;
    int64_t dp_rank;
    int64_t tp_size;        /* how many TP ranks are registered, as upstream counts; at least 1 */
    int64_t pp_size;        /* how many PP ranks; that of the TP rank with most */
    /** TP ranks 0 to tp_size - 1, each with PP ranks 0 to pp_size - 1, and none besides. When not, workers have yet to
     *  register: ask again before use. (That ranks at the end are missing cannot be seen.) */
    bool is_complete;
    const struct kvfi_vllm_engine_worker *workers; /* by TP rank, then PP rank */
    size_t worker_count;
};

/** An answer: engines ascending by id, none twice. Borrowed for the callback; acquire the engines to keep. */
struct kvfi_vllm_topology {
    const struct kvfi_vllm_engine *const *engines;
    size_t engine_count;
};

const struct kvfi_vllm_engine *kvfi_vllm_engine_acquire(const struct kvfi_vllm_engine *engine);
/** NULL is fine. */
void kvfi_vllm_engine_release(const struct kvfi_vllm_engine *engine);

/** The engine of that id; NULL when there is none. Borrowed. */
const struct kvfi_vllm_engine *kvfi_vllm_topology_find(const struct kvfi_vllm_topology *topology,
                                                       const char *engine_id);
/** Address of a worker; NULL when the slot is empty. Borrowed from the engine. */
const char *kvfi_vllm_engine_address(const struct kvfi_vllm_engine *engine, int64_t tp_rank, int64_t pp_rank);
/** The workers of one TP rank, ascending by PP rank: how many, and where they begin. Borrowed from the engine. */
size_t kvfi_vllm_engine_of_tp(const struct kvfi_vllm_engine *engine, int64_t tp_rank,
                              const struct kvfi_vllm_engine_worker **first);

/** `topology` is NULL unless `status` is KVF_OK. Otherwise: KVF_ERR_UNREACHABLE (no answer, with all attempts),
 *  KVF_ERR_REFUSED (an HTTP error, its code and text), KVF_ERR_PROTOCOL (no answer of a registry), KVF_ERR_LIMIT (more
 *  workers than KVFI_VLLM_MAX_WORKERS), KVF_ERR_NO_MEMORY. */
typedef void kvfi_vllm_answered(void *context, enum kvf_status status, const struct kvfi_vllm_topology *topology,
                                const char *text);

/** Asks the registry at `address` ("http://HOST:PORT", as a request's remote_bootstrap_addr says it). While a query to
 *  an address is under way, further ones wait for its answer.
 *  @return KVF_OK: the callback will come; KVF_ERR_INVALID_ARGUMENT (address); KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_vllm_registry_query(struct kvfi_vllm_registry *registry, const char *address,
                                         kvfi_vllm_answered *answered, void *context, struct kvf_error *error);

#endif
