/* SPDX-License-Identifier: Apache-2.0 */
/** @file ledger.h  Which transfer ids are known, with their highest attempt and how it ended: so that the same id and
 *  attempt is
 *  refused, and late questions are answered. What has ended is remembered up to a bound. The caller holds the
 *  engine's lock.
 */
#ifndef KVFI_ENGINE_LEDGER_H
#define KVFI_ENGINE_LEDGER_H

#include "kvferry/engine.h"
#include "sys/table.h"

enum {
    KVFI_LEDGER_ENDED = 1024,     /* ended entries that are remembered */
    KVFI_LEDGER_TEXT_BYTES = 160  /* of the reason of an ended one */
};

struct kvfi_ledger_entry {
    struct kvfi_link link;
    char key[KVF_TRANSFER_ID_BYTES + 1]; /* 'o' or 'p', then the id */
    int64_t attempt; /* the highest */
    int64_t request_tokens;
    bool ended;
    enum kvf_status status; /* once ended */
    char text[KVFI_LEDGER_TEXT_BYTES];
    struct kvfi_ledger_entry *previous, *next; /* ended ones, oldest first */
};

struct kvfi_ledger {
    struct kvfi_table table;
    struct kvfi_ledger_entry *oldest, *newest;
    size_t ended;
};

bool kvfi_ledger_init(struct kvfi_ledger *ledger);
void kvfi_ledger_fini(struct kvfi_ledger *ledger);

/** Finds an id; NULL when it is not known. */
struct kvfi_ledger_entry *kvfi_ledger_find(const struct kvfi_ledger *ledger, bool is_offer, const char *transfer);

/** Begins an attempt.
 *  @return KVF_OK; KVF_ERR_EXISTS; KVF_ERR_SUPERSEDED; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_ledger_begin(struct kvfi_ledger *ledger, bool is_offer, const char *transfer, int64_t attempt,
                                  int64_t request_tokens, struct kvf_error *error);

/** Notes how an attempt ended, unless a higher one has begun. */
void kvfi_ledger_end(struct kvfi_ledger *ledger, bool is_offer, const char *transfer, int64_t attempt,
                     enum kvf_status status, const char *text);

#endif
