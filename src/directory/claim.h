/* SPDX-License-Identifier: Apache-2.0 */
/** @file claim.h  What workers post to a directory, from and to JSON: register, and the key of renew and withdraw. */
#ifndef KVFI_DIRECTORY_CLAIM_H
#define KVFI_DIRECTORY_CLAIM_H

#include <jansson.h>

#include "directory/registry.h"
#include "directory/text.h"

/** A body that was read: the JSON and the claim that borrows from it. */
struct kvfi_claim_body {
    json_t *json;
    char *holdings; /* compact text of the holdings */
    struct kvfi_registry_claim claim;
};

/** Reads the body of a register; it may be hostile. Holdings are checked as holdings.
 *  @return KVF_OK (free with kvfi_claim_body_fini); KVF_ERR_PARSE, KVF_ERR_LIMIT, KVF_ERR_LAYOUT, KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_claim_read(const char *body, size_t body_bytes, struct kvfi_claim_body *out,
                                struct kvf_error *error);

/** The same for renew and withdraw: claim.instance, incarnation and rank only. */
enum kvf_status kvfi_claim_read_key(const char *body, size_t body_bytes, struct kvfi_claim_body *out,
                                    struct kvf_error *error);

void kvfi_claim_body_fini(struct kvfi_claim_body *body);

/** Writes the body of a register or, with `key_only`, of a renew or withdraw. */
void kvfi_claim_write(const struct kvfi_registry_claim *claim, bool key_only, struct kvfi_text *out);

/** Writes and reads parts that other bodies have too. */
void kvfi_rank_write(const struct kvf_rank *rank, struct kvfi_text *out);

struct kvfi_cursor;
enum kvf_status kvfi_rank_read(const struct kvfi_cursor *at, struct kvf_rank *out);
/** An incarnation: 16 hex digits, not all zero, under "incarnation". */
enum kvf_status kvfi_incarnation_read(const struct kvfi_cursor *at, uint64_t *out);
/** A clean text under a key, borrowed from the JSON. */
enum kvf_status kvfi_clean_text_read(const struct kvfi_cursor *at, const char *key, size_t min_bytes, size_t max_bytes,
                                     const char **out);

#endif
