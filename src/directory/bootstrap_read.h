/* SPDX-License-Identifier: Apache-2.0 */
/** @file bootstrap_read.h  The body of a registration at vLLM's bootstrap registry, with the leniency of stock servers.
 */
#ifndef KVFI_DIRECTORY_BOOTSTRAP_READ_H
#define KVFI_DIRECTORY_BOOTSTRAP_READ_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct kvfi_bootstrap_worker {
    const char *engine_id, *address;
    int64_t dp, tp, pp;
};

/** What a body came to. Texts are the JSON's. */
struct kvfi_bootstrap_body {
    json_t *json;
    struct kvfi_bootstrap_worker worker;
    const char *bad_key; /* the first that is missing or of the wrong type; NULL when it is no object at all */
};

enum kvfi_bootstrap_verdict {
    KVFI_BOOTSTRAP_READ,      /* `worker` is filled */
    KVFI_BOOTSTRAP_NOT_SUCH,  /* no JSON, or not with these members */
    KVFI_BOOTSTRAP_UNREADABLE /* not UTF-8, or more than a parser should be given */
};

/** Integers may come as texts, whole floats or booleans; of members with one name the last counts; others are ignored.
 *  Ranks have 64 bits, texts at most 4096 bytes. Free with fini, whatever it came to. */
enum kvfi_bootstrap_verdict kvfi_bootstrap_read(const char *body, size_t body_bytes, struct kvfi_bootstrap_body *out);
void kvfi_bootstrap_body_fini(struct kvfi_bootstrap_body *body);

#endif
