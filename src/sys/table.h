/* SPDX-License-Identifier: Apache-2.0 */
/** @file table.h  A hash table of links inside other structs; several may have one key. It owns its buckets alone. */
#ifndef KVFI_SYS_TABLE_H
#define KVFI_SYS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The struct that holds `member` at `pointer`. */
#define KVFI_HOLDER(pointer, type, member) ((type *)(void *)((char *)(pointer) - offsetof(type, member)))

/** In the struct that is kept. The key's bytes are borrowed while it is in the table. */
struct kvfi_link {
    struct kvfi_link *next;
    const void *key;
    size_t key_bytes;
    uint64_t hash;
    bool linked;
};

struct kvfi_table {
    struct kvfi_link **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
    uint64_t seed;
};

/** @return false without memory */
bool kvfi_table_init(struct kvfi_table *table);
void kvfi_table_fini(struct kvfi_table *table);

/** Puts a link in. Growing needs memory; without any the table only gets slower. */
void kvfi_table_insert(struct kvfi_table *table, struct kvfi_link *link, const void *key, size_t key_bytes);
/** Takes a link out; one that is not in is fine. */
void kvfi_table_remove(struct kvfi_table *table, struct kvfi_link *link);

/** The first link of a key, and the next one of the same key; NULL when there is none. */
struct kvfi_link *kvfi_table_find(const struct kvfi_table *table, const void *key, size_t key_bytes);
struct kvfi_link *kvfi_table_find_next(const struct kvfi_link *link);

/** Any link of the table, NULL when it is empty: to take all out, one by one. */
struct kvfi_link *kvfi_table_any(const struct kvfi_table *table);

#endif
