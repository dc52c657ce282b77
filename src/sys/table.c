/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "sys/clock.h"

enum { FIRST_BUCKETS = 64 };

/* FNV-1a from a secret start: peers name transfers, and must not be able to choose one bucket for all of them. */
static uint64_t hash_of(const struct kvfi_table *table, const void *key, size_t key_bytes)
{
    const unsigned char *bytes = key;
    uint64_t hash = table->seed;

    for (size_t i = 0; i < key_bytes; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001B3);
    return hash ^ hash >> 32;
}

bool kvfi_table_init(struct kvfi_table *table)
{
    *table = (struct kvfi_table){.buckets = kvfi_alloc_zeroed(FIRST_BUCKETS, sizeof(struct kvfi_link *)),
                                 .bucket_count = FIRST_BUCKETS,
                                 .seed = kvfi_random_u64()};
    return table->buckets != NULL;
}

void kvfi_table_fini(struct kvfi_table *table)
{
    free(table->buckets);
    *table = (struct kvfi_table){0};
}

static void put(struct kvfi_link **buckets, size_t bucket_count, struct kvfi_link *link)
{
    struct kvfi_link **bucket = &buckets[link->hash & (bucket_count - 1)];
    link->next = *bucket;
    *bucket = link;
}

static void grow(struct kvfi_table *table)
{
    size_t wider = table->bucket_count * 2;
    struct kvfi_link **buckets = kvfi_alloc_zeroed(wider, sizeof(struct kvfi_link *));

    if (buckets == NULL)
        return;
    for (size_t i = 0; i < table->bucket_count; i++)
        for (struct kvfi_link *link = table->buckets[i], *next; link != NULL; link = next) {
            next = link->next;
            put(buckets, wider, link);
        }
    free(table->buckets);
    table->buckets = buckets;
    table->bucket_count = wider;
}

void kvfi_table_insert(struct kvfi_table *table, struct kvfi_link *link, const void *key, size_t key_bytes)
{
    if (table->count >= table->bucket_count)
        grow(table);
    *link = (struct kvfi_link){.key = key, .key_bytes = key_bytes, .hash = hash_of(table, key, key_bytes),
                               .linked = true};
    put(table->buckets, table->bucket_count, link);
    table->count++;
}

void kvfi_table_remove(struct kvfi_table *table, struct kvfi_link *link)
{
    struct kvfi_link **at;

    if (!link->linked)
        return;
    at = &table->buckets[link->hash & (table->bucket_count - 1)];
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    link->linked = false;
    table->count--;
}

static bool same(const struct kvfi_link *link, uint64_t hash, const void *key, size_t key_bytes)
{
    return link->hash == hash && link->key_bytes == key_bytes && memcmp(link->key, key, key_bytes) == 0;
}

struct kvfi_link *kvfi_table_find(const struct kvfi_table *table, const void *key, size_t key_bytes)
{
    uint64_t hash = hash_of(table, key, key_bytes);
    struct kvfi_link *link = table->buckets[hash & (table->bucket_count - 1)];

    while (link != NULL && !same(link, hash, key, key_bytes))
        link = link->next;
    return link;
}

struct kvfi_link *kvfi_table_find_next(const struct kvfi_link *link)
{
    struct kvfi_link *next = link->next;

    while (next != NULL && !same(next, link->hash, link->key, link->key_bytes))
        next = next->next;
    return next;
}

struct kvfi_link *kvfi_table_any(const struct kvfi_table *table)
{
    for (size_t i = 0; table->count > 0 && i < table->bucket_count; i++)
        if (table->buckets[i] != NULL)
            return table->buckets[i];
    return NULL;
}
