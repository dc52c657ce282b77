/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

bool kvfi_ledger_init(struct kvfi_ledger *ledger)
{
    *ledger = (struct kvfi_ledger){0};
    return kvfi_table_init(&ledger->table);
}

void kvfi_ledger_fini(struct kvfi_ledger *ledger)
{
    struct kvfi_link *link;

    if (ledger->table.buckets == NULL)
        return;
    while ((link = kvfi_table_any(&ledger->table)) != NULL) {
        kvfi_table_remove(&ledger->table, link);
        free(KVFI_HOLDER(link, struct kvfi_ledger_entry, link));
    }
    kvfi_table_fini(&ledger->table);
}

static size_t make_key(char key[KVF_TRANSFER_ID_BYTES + 1], bool is_offer, const char *transfer)
{
    return (size_t)snprintf(key, KVF_TRANSFER_ID_BYTES + 1, "%c%.*s", is_offer ? 'o' : 'p', KVF_TRANSFER_ID_BYTES - 1,
                            transfer);
}

struct kvfi_ledger_entry *kvfi_ledger_find(const struct kvfi_ledger *ledger, bool is_offer, const char *transfer)
{
    char key[KVF_TRANSFER_ID_BYTES + 1];
    size_t bytes = make_key(key, is_offer, transfer);
    struct kvfi_link *link = kvfi_table_find(&ledger->table, key, bytes);

    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_ledger_entry, link);
}

static void unlink_ended(struct kvfi_ledger *ledger, struct kvfi_ledger_entry *entry)
{
    *(entry->previous == NULL ? &ledger->oldest : &entry->previous->next) = entry->next;
    *(entry->next == NULL ? &ledger->newest : &entry->next->previous) = entry->previous;
    entry->previous = entry->next = NULL;
    ledger->ended--;
}

static void forget(struct kvfi_ledger *ledger, struct kvfi_ledger_entry *entry)
{
    if (entry->ended)
        unlink_ended(ledger, entry);
    kvfi_table_remove(&ledger->table, &entry->link);
    free(entry);
}

enum kvf_status kvfi_ledger_begin(struct kvfi_ledger *ledger, bool is_offer, const char *transfer, int64_t attempt,
                                  int64_t request_tokens, struct kvf_error *error)
{
    struct kvfi_ledger_entry *entry = kvfi_ledger_find(ledger, is_offer, transfer);

    if (entry != NULL && entry->attempt == attempt)
        return kvfi_fail(error, KVF_ERR_EXISTS, "transfer \"%s\" attempt %" PRId64 " is %s already", transfer, attempt,
                         is_offer ? "offered" : "pulled");
    if (entry != NULL && entry->attempt > attempt)
        return kvfi_fail(error, KVF_ERR_SUPERSEDED,
                         "transfer \"%s\" attempt %" PRId64 " is superseded by attempt %" PRId64, transfer, attempt,
                         entry->attempt);
    if (entry == NULL) {
        entry = calloc(1, sizeof *entry);
        if (entry == NULL)
            return kvfi_fail_memory(error, "a transfer");
        kvfi_table_insert(&ledger->table, &entry->link, entry->key, make_key(entry->key, is_offer, transfer));
    } else if (entry->ended) {
        unlink_ended(ledger, entry);
    }
    entry->ended = false;
    entry->attempt = attempt;
    entry->request_tokens = request_tokens;
    return KVF_OK;
}

void kvfi_ledger_end(struct kvfi_ledger *ledger, bool is_offer, const char *transfer, int64_t attempt,
                     enum kvf_status status, const char *text)
{
    struct kvfi_ledger_entry *entry = kvfi_ledger_find(ledger, is_offer, transfer);

    if (entry == NULL || entry->ended || entry->attempt != attempt)
        return;
    entry->ended = true;
    entry->status = status;
    snprintf(entry->text, sizeof entry->text, "%s", text);
    entry->previous = ledger->newest;
    *(ledger->newest == NULL ? &ledger->oldest : &ledger->newest->next) = entry;
    ledger->newest = entry;
    ledger->ended++;
    if (ledger->ended > KVFI_LEDGER_ENDED)
        forget(ledger, ledger->oldest);
}
