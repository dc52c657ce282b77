/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/memo.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "vllm/prepared.h"

enum { FIRST_BUCKETS = 16, SHARE = 4 };

struct kvfi_vllm_entry {
    struct kvfi_vllm_entry *next;          /**< in the chain */
    struct kvfi_vllm_entry *newer, *older;
    kvf_vllm_prepared *prepared;
    uint64_t hash;
    size_t bytes, key_bytes;
    unsigned char key[];
};

enum kvf_status kvfi_vllm_memo_init(struct kvfi_vllm_memo *memo, size_t most, size_t most_bytes,
                                    struct kvf_error *error)
{
    *memo = (struct kvfi_vllm_memo){.most = most, .most_bytes = most_bytes, .bucket_count = FIRST_BUCKETS};
    memo->buckets = kvfi_alloc_zeroed(FIRST_BUCKETS, sizeof(struct kvfi_vllm_entry *));
    return memo->buckets ? KVF_OK : kvfi_fail_memory(error, "a memory of peers");
}

static struct kvfi_vllm_entry **chain_of(const struct kvfi_vllm_memo *memo, uint64_t hash)
{
    return &memo->buckets[hash & (memo->bucket_count - 1)];
}

/** Takes an entry out of the order of use. */
static void unlink_use(struct kvfi_vllm_memo *memo, struct kvfi_vllm_entry *entry)
{
    if (entry->newer) entry->newer->older = entry->older;
    else memo->newest = entry->older;
    if (entry->older) entry->older->newer = entry->newer;
    else memo->oldest = entry->newer;
}

static void link_newest(struct kvfi_vllm_memo *memo, struct kvfi_vllm_entry *entry)
{
    entry->newer = NULL;
    entry->older = memo->newest;
    if (memo->newest) memo->newest->newer = entry;
    else memo->oldest = entry;
    memo->newest = entry;
}

static void forget(struct kvfi_vllm_memo *memo, struct kvfi_vllm_entry *entry)
{
    struct kvfi_vllm_entry **at = chain_of(memo, entry->hash);

    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    unlink_use(memo, entry);
    memo->count--;
    memo->bytes -= entry->bytes;
    kvf_vllm_prepared_release(entry->prepared);
    free(entry);
}

void kvfi_vllm_memo_fini(struct kvfi_vllm_memo *memo)
{
    while (memo->oldest) forget(memo, memo->oldest);
    free(memo->buckets);
    memo->buckets = NULL;
}

static struct kvfi_vllm_entry *find(const struct kvfi_vllm_memo *memo, const struct kvfi_vllm_key *key)
{
    struct kvfi_vllm_entry *entry = *chain_of(memo, key->hash);

    while (entry && !(entry->hash == key->hash && entry->key_bytes == key->bytes &&
                      kvfi_vllm_key_equal(key, entry->key)))
        entry = entry->next;
    return entry;
}

kvf_vllm_prepared *kvfi_vllm_memo_find(struct kvfi_vllm_memo *memo, const struct kvfi_vllm_key *key)
{
    struct kvfi_vllm_entry *entry = find(memo, key);

    if (!entry) return NULL;
    unlink_use(memo, entry);
    link_newest(memo, entry);
    return entry->prepared;
}

/** Doubles the buckets when there are more entries; without memory the chains grow instead. */
static void grow(struct kvfi_vllm_memo *memo)
{
    struct kvfi_vllm_entry **buckets;

    if (memo->count < memo->bucket_count) return;
    buckets = kvfi_alloc_zeroed(memo->bucket_count * 2, sizeof(struct kvfi_vllm_entry *));
    if (!buckets) return;
    free(memo->buckets);
    memo->buckets = buckets;
    memo->bucket_count *= 2;
    for (struct kvfi_vllm_entry *entry = memo->newest; entry; entry = entry->older) {
        struct kvfi_vllm_entry **chain = chain_of(memo, entry->hash);

        entry->next = *chain;
        *chain = entry;
    }
}

void kvfi_vllm_memo_put(struct kvfi_vllm_memo *memo, const struct kvfi_vllm_key *key, kvf_vllm_prepared *prepared)
{
    size_t bytes = sizeof(struct kvfi_vllm_entry) + key->bytes + kvfi_vllm_prepared_memory(prepared);
    struct kvfi_vllm_entry *entry = find(memo, key), **chain;

    /* First: what was under this key is not what it stands for any more. */
    if (entry) forget(memo, entry);
    if (bytes > memo->most_bytes / SHARE) return;
    entry = malloc(sizeof *entry + key->bytes);
    if (!entry) return;
    while (memo->oldest && (memo->count >= memo->most || memo->bytes + bytes > memo->most_bytes))
        forget(memo, memo->oldest);
    grow(memo);
    *entry = (struct kvfi_vllm_entry){.prepared = kvf_vllm_prepared_acquire(prepared), .hash = key->hash,
                                      .bytes = bytes, .key_bytes = key->bytes};
    kvfi_vllm_key_write(key, entry->key);
    chain = chain_of(memo, key->hash);
    entry->next = *chain;
    *chain = entry;
    link_newest(memo, entry);
    memo->count++;
    memo->bytes += bytes;
}
