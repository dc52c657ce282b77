/* SPDX-License-Identifier: Apache-2.0 */
/* Lets the library move the request, from every source rank that a destination rank hears from, and compares each byte
 * of the destination with the oracle. */
#include "case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** A destination rank and what moves into it. */
struct into {
    struct prop_case *c;
    struct rank *dst;
    const struct rank *src; /* the current sender */
    bool is_wrong;
};

static void wrong(struct into *into, const char *what, uint64_t address)
{
    if (!into->is_wrong)
        fprintf(stderr, "%s: %s rank %" PRId64 " to %s rank %" PRId64 ", address 0x%" PRIx64 ": %s\n",
                into->c->is_native ? "native" : "strict", into->c->src.name, into->src ? into->src->number : -1,
                into->c->dst.name, into->dst->number, address, what);
    into->is_wrong = true;
}

/* The pool that some bytes lie in, all of them. */
static const struct pool *find_pool(const struct rank *rank, uint64_t address, int64_t bytes)
{
    for (size_t i = 0; i < rank->pool_count; i++) {
        const struct pool *pool = &rank->pools[i];

        if (address >= pool->base && address - pool->base < (uint64_t)pool->bytes &&
            bytes <= pool->bytes - (int64_t)(address - pool->base))
            return pool;
    }
    return NULL;
}

static void move(struct into *into, const struct kvf_trtllm_fragment *fragment)
{
    const struct pool *src = find_pool(into->src, fragment->src_address, fragment->bytes);
    const struct pool *dst = find_pool(into->dst, fragment->dst_address, fragment->bytes);
    size_t from, to;

    if (!src) wrong(into, "reads outside of every pool", fragment->src_address);
    if (!dst) wrong(into, "writes outside of every pool", fragment->dst_address);
    if (!src || !dst) return;
    from = (size_t)(fragment->src_address - src->base);
    to = (size_t)(fragment->dst_address - dst->base);
    for (size_t i = 0; i < (size_t)fragment->bytes; i++) {
        if (!dst->must[to + i]) wrong(into, "a byte that nobody wants is written", fragment->dst_address + i);
        else if (src->tags[from + i] != dst->tags[to + i])
            wrong(into, "another byte than is due there", fragment->dst_address + i);
        if (dst->written[to + i]++) wrong(into, "a byte is written twice", fragment->dst_address + i);
    }
}

/* The same copies as upstream would list them: as many bytes, each to where the walk put one. */
static void compare_list(struct into *into, const kvf_trtllm_write *write)
{
    struct kvf_trtllm_fragment *list = NULL;
    size_t count = 0;
    int64_t bytes = 0;

    if (kvf_trtllm_write_fragments(write, NULL, 0, &count, NULL) != KVF_OK) {
        wrong(into, "no list of fragments", 0);
        return;
    }
    list = malloc((count + 1) * sizeof *list);
    if (!list || kvf_trtllm_write_fragments(write, list, count, &count, NULL) != KVF_OK) abort();
    for (size_t i = 0; i < count; i++) {
        const struct pool *src = find_pool(into->src, list[i].src_address, list[i].bytes);
        const struct pool *dst = find_pool(into->dst, list[i].dst_address, list[i].bytes);

        bytes += list[i].bytes;
        if (!src || !dst) {
            wrong(into, "a listed fragment is outside of every pool", list[i].dst_address);
            break;
        }
        for (int64_t b = 0; b < list[i].bytes; b++) {
            size_t to = (size_t)(list[i].dst_address - dst->base) + (size_t)b;

            if (src->tags[list[i].src_address - src->base + (uint64_t)b] != dst->tags[to] || !dst->written[to])
                wrong(into, "a listed fragment moves what is not moved", list[i].dst_address);
        }
    }
    if (bytes != kvf_trtllm_write_bytes(write)) wrong(into, "the list has another number of bytes", 0);
    free(list);
}

static void walk(struct into *into, const kvf_trtllm_write *write)
{
    struct kvf_trtllm_fragment fragments[7];
    kvf_trtllm_cursor *cursor = NULL;
    int64_t bytes = 0;
    size_t count;

    if (kvf_trtllm_cursor_create(write, &cursor, NULL) != KVF_OK) abort();
    while ((count = kvf_trtllm_cursor_next(cursor, fragments, 7)) > 0) {
        for (size_t i = 0; i < count; i++) {
            move(into, &fragments[i]);
            bytes += fragments[i].bytes;
        }
    }
    if (bytes != kvf_trtllm_write_bytes(write)) wrong(into, "the walk has another number of bytes", 0);
    kvf_trtllm_cursor_destroy(cursor);
    if (!into->c->is_native) compare_list(into, write);
}

static void count_views(struct prop_case *c, const kvf_trtllm_pair *pair)
{
    for (size_t i = 0; i < kvf_trtllm_pair_view_count(pair); i++) {
        struct kvf_trtllm_pair_view view;

        if (kvf_trtllm_pair_view(pair, i, &view) != KVF_OK) abort();
        if (view.elected) c->mapped[view.mapper]++;
    }
}

/* Every chunk of the request, from one source rank. */
static void send(struct into *into, const kvf_trtllm_pair *pair)
{
    struct prop_case *c = into->c;
    struct kvf_trtllm_view_key excluded[MOST_GROUPS];
    struct kvf_trtllm_request request;
    int64_t begin = 0;

    count_views(c, pair);
    kvf_trtllm_request_init(&request, sizeof request);
    request.prompt_tokens = c->prompt;
    request.src = into->src->blocks;
    request.src_count = into->src->group_count;
    request.dst = into->dst->blocks;
    request.dst_count = into->dst->group_count;
    request.dst_start_token = c->start;
    request.excluded = excluded;
    for (size_t g = 0; g < into->src->group_count; g++)
        for (size_t v = 0; v < into->src->view_count[g]; v++)
            if (c->excluded == (int64_t)into->src->placed[g][v].part)
                excluded[request.excluded_count++] = (struct kvf_trtllm_view_key){(int64_t)g, (int64_t)v};
    for (size_t i = 0; i < c->cut_count; i++) {
        kvf_trtllm_write *write = NULL;
        struct kvf_error error = {0};

        request.token_begin = begin;
        request.token_end = begin = c->cuts[i];
        if (kvf_trtllm_pair_bind(pair, &request, &write, &error) == KVF_OK) walk(into, write);
        else wrong(into, error.text, 0);
        kvf_trtllm_write_destroy(write);
    }
}

/* Upstream's way: whom the destination asks, and each of them by its own registrar. */
static void send_strict(struct into *into)
{
    struct prop_case *c = into->c;
    struct kvf_trtllm_overlap overlap;
    int64_t ranks[64];
    struct kvf_error error = {0};

    if (kvf_trtllm_get_overlap(into->dst->info, c->src.ranks[0].info, c->src.dp_rank, &overlap, ranks, 64, &error) !=
            KVF_OK || overlap.rank_count > 64) {
        wrong(into, error.text, 0);
        return;
    }
    for (size_t i = 0; i < overlap.rank_count; i++) {
        kvf_trtllm_registrar *registrar = NULL;
        kvf_trtllm_pair *pair = NULL;

        into->src = NULL;
        for (size_t r = 0; r < c->src.rank_count; r++)
            if (c->src.ranks[r].number == ranks[i]) into->src = &c->src.ranks[r];
        if (!into->src) {
            wrong(into, "a rank of another DP group, or none, is asked", (uint64_t)ranks[i]);
            return;
        }
        if (kvf_trtllm_registrar_create(into->src->info, NULL, &registrar, &error) == KVF_OK &&
            kvf_trtllm_registrar_register(registrar, into->dst->info, NULL, &error) == KVF_OK &&
            kvf_trtllm_registrar_pair(registrar, c->dst.name, into->dst->number, &pair, &error) == KVF_OK)
            send(into, pair);
        else wrong(into, error.text, 0);
        kvf_trtllm_pair_release(pair);
        kvf_trtllm_registrar_destroy(registrar);
    }
}

static void send_native(struct into *into)
{
    struct prop_case *c = into->c;
    const kvf_trtllm_rank *src[MOST_RANKS], *dst[MOST_RANKS];

    for (size_t r = 0; r < c->src.rank_count; r++) src[r] = c->src.ranks[r].info;
    for (size_t r = 0; r < c->dst.rank_count; r++) dst[r] = c->dst.ranks[r].info;
    for (size_t r = 0; r < c->src.rank_count; r++) {
        kvf_trtllm_pair *pair = NULL;
        struct kvf_error error = {0};

        into->src = &c->src.ranks[r];
        if (kvf_trtllm_pair_native(src, c->src.rank_count, dst, c->dst.rank_count, r,
                                   (size_t)(into->dst - c->dst.ranks), &pair, &error) == KVF_OK)
            send(into, pair);
        else wrong(into, error.text, 0);
        kvf_trtllm_pair_release(pair);
    }
}

static void spoil(struct into *into)
{
    for (size_t i = 0; i < into->dst->pool_count && into->c->spoil; i++) {
        const struct pool *pool = &into->dst->pools[i];

        for (int64_t b = 0; b < pool->bytes && into->c->spoil; b++) {
            if (pool->must[b] == 1 && into->c->spoil == 1) pool->tags[b] += 2;
            else if (pool->must[b] == 1 && into->c->spoil == 2) pool->must[b] = 0;
            else if (!pool->must[b] && into->c->spoil == 3) pool->must[b] = 1;
            else continue;
            into->c->spoil = 0;
        }
    }
}

static bool check_rank(struct prop_case *c, struct rank *dst, int64_t *bytes)
{
    struct into into = {.c = c, .dst = dst};

    spoil(&into);
    if (c->is_native) send_native(&into);
    else send_strict(&into);
    into.src = NULL;
    for (size_t i = 0; i < dst->pool_count; i++) {
        const struct pool *pool = &dst->pools[i];

        for (int64_t b = 0; b < pool->bytes; b++) {
            if (pool->must[b] == 1 && !pool->written[b])
                wrong(&into, "a byte that is due is not written", pool->base + (uint64_t)b);
            *bytes += pool->must[b] == 1;
        }
    }
    return !into.is_wrong;
}

bool check_case(struct prop_case *c, int64_t *bytes)
{
    bool good = side_build(c, &c->src) && side_build(c, &c->dst);

    *bytes = 0;
    if (!good) return false;
    oracle_fill(c, &c->src);
    oracle_fill(c, &c->dst);
    for (size_t r = 0; r < c->dst.rank_count; r++) good = check_rank(c, &c->dst.ranks[r], bytes) && good;
    return good;
}
