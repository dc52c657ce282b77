/* SPDX-License-Identifier: Apache-2.0 */
/** @file bootstrap.h  The registry of vLLM's Mooncake connector, to the letter: POST /register, GET /query.
 *
 *  Its entries live beside the native ones and never expire, as stock peers neither renew nor withdraw.
 */
#ifndef KVFI_DIRECTORY_BOOTSTRAP_H
#define KVFI_DIRECTORY_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "directory/text.h"

/** Addresses by dp, tp, pp rank, each level in the order of registration. */
struct kvfi_bootstrap_node {
    int64_t rank;
    char *text; /* dp: engine id; pp: address; tp: NULL */
    struct kvfi_bootstrap_node *children;
    size_t child_count, child_capacity;
    struct kvfi_bootstrap_node *successor; /* dp: an engine with another id that is to take this one's place */
};

struct kvfi_bootstrap {
    struct kvfi_bootstrap_node root; /* its children are the dp ranks */
    int64_t worker_count, max_workers; /* successors' workers too */
    /** An engine with another id than a dp rank is known by (it was restarted) is not refused: it takes the place of
     *  the known one once it has registered every slot that one has. Until then /query tells the known one. */
    bool replaces;
};

void kvfi_bootstrap_init(struct kvfi_bootstrap *bootstrap, int64_t max_workers);
void kvfi_bootstrap_fini(struct kvfi_bootstrap *bootstrap);

/** Handles the body of a register and writes the answer's body. Returns the HTTP code: 200, 400 (slot taken, engine id
 *  differs, not to be parsed), 422 (not such a body), 503 (full). */
unsigned kvfi_bootstrap_register(struct kvfi_bootstrap *bootstrap, const char *body, size_t body_bytes,
                                 struct kvfi_text *out);

/** Writes everything that is registered. */
void kvfi_bootstrap_query(const struct kvfi_bootstrap *bootstrap, struct kvfi_text *out);

#endif
