/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/trtllm.h"

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "trtllm/elect.h"
#include "trtllm/fed.h"
#include "trtllm/pair.h"
#include "trtllm/rank.h"
#include "trtllm/rules_judge.h"
#include "trtllm/warn.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A registered peer; its pair is made when it is first asked for. */
struct peer {
    uint64_t hash;
    kvf_trtllm_rank *rank; /* NULL = this place of the table is free */
    kvf_trtllm_pair *pair;
};

/* The peers are a hash table with linear probing, a power of two long and at most three quarters full. */
struct kvf_trtllm_registrar {
    kvf_trtllm_rank *self;
    struct kvf_trtllm_options options;
    struct kvfi_trt_warn warn;
    uint64_t seed;
    struct peer *peers;
    size_t capacity, count;
    size_t peer_bytes; /* of their rank infos */
};

#define FIRST_CAPACITY 16

void kvf_trtllm_options_init(struct kvf_trtllm_options *options, size_t size)
{
    const struct kvf_trtllm_options defaults = {.flags = KVF_TRTLLM_STRICT_UPSTREAM,
                                                .max_peer_bytes = UINT64_C(1) << 30};

    kvfi_struct_init(options, size, &defaults, sizeof defaults);
}

static enum kvf_status read_options(struct kvf_trtllm_options *own, const struct kvf_trtllm_options *given,
                                    struct kvf_error *error)
{
    enum kvf_status status;

    kvf_trtllm_options_init(own, sizeof *own);
    status = kvfi_options_copy(own, sizeof *own, given, "registrar options", error);
    if (status == KVF_OK && (own->flags & ~(uint64_t)KVF_TRTLLM_STRICT_UPSTREAM)) {
        status = kvfi_fail(error, KVF_ERR_NEWER_OPTION, "registrar options: flags are %#" PRIx64 ", this library knows"
                           " %#x", own->flags, (unsigned)KVF_TRTLLM_STRICT_UPSTREAM);
    }
    return status;
}

static enum kvf_status check_given(bool given, struct kvf_error *error)
{
    return given ? KVF_OK : kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "registrar: an argument is NULL");
}

enum kvf_status kvf_trtllm_registrar_create(const kvf_trtllm_rank *self, const struct kvf_trtllm_options *options,
                                            kvf_trtllm_registrar **out, struct kvf_error *error)
{
    struct kvf_trtllm_registrar *registrar = NULL;
    struct kvf_trtllm_options own;
    enum kvf_status status = check_given(self && out, error);

    if (status == KVF_OK) status = read_options(&own, options, error);
    if (status != KVF_OK) goto done;
    registrar = kvfi_alloc_zeroed(1, sizeof *registrar);
    if (!registrar) {
        status = kvfi_fail_memory(error, "a registrar");
        goto done;
    }
    registrar->self = kvf_trtllm_rank_acquire(self);
    registrar->options = own;
    registrar->seed = (uint64_t)(uintptr_t)registrar;
    kvfi_trt_warn_init(&registrar->warn, &own.log);
    *out = registrar;
done:
    return status;
}

static void drop(struct peer *peer)
{
    kvf_trtllm_pair_release(peer->pair);
    kvf_trtllm_rank_release(peer->rank);
    memset(peer, 0, sizeof *peer);
}

void kvf_trtllm_registrar_destroy(kvf_trtllm_registrar *registrar)
{
    if (!registrar) return;
    for (size_t i = 0; i < registrar->capacity; i++) {
        if (registrar->peers[i].rank) drop(&registrar->peers[i]);
    }
    free(registrar->peers);
    kvfi_trt_warn_fini(&registrar->warn);
    kvf_trtllm_rank_release(registrar->self);
    free(registrar);
}

const kvf_trtllm_rank *kvf_trtllm_registrar_self(const kvf_trtllm_registrar *registrar)
{
    return registrar->self;
}

/* FNV-1a over name and number, then mixed so that the low bits are good for a table. */
static uint64_t hash_identity(uint64_t seed, const char *name, int64_t number)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ seed;

    while (*name) hash = (hash ^ (unsigned char)*name++) * UINT64_C(0x100000001b3);
    hash ^= (uint64_t)number * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
    return hash ^ hash >> 33;
}

static bool is_peer(const struct peer *peer, uint64_t hash, const char *name, int64_t number)
{
    const struct kvf_trtllm_rank_spec *spec;

    if (peer->hash != hash) return false;
    spec = kvf_trtllm_rank_get_spec(peer->rank);
    return spec->instance_rank == number && strcmp(spec->instance_name, name) == 0;
}

static struct peer *look_up(const struct kvf_trtllm_registrar *registrar, const char *name, int64_t number)
{
    uint64_t hash = hash_identity(registrar->seed, name, number);
    struct peer *found = NULL;

    if (registrar->capacity == 0) goto done;
    for (size_t i = hash & (registrar->capacity - 1); registrar->peers[i].rank;
         i = (i + 1) & (registrar->capacity - 1)) {
        if (is_peer(&registrar->peers[i], hash, name, number)) {
            found = &registrar->peers[i];
            break;
        }
    }
done:
    return found;
}

static enum kvf_status need(const struct kvf_trtllm_registrar *registrar, const char *name, int64_t number,
                            struct peer **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    *out = look_up(registrar, name, number);
    if (!*out) {
        status = kvfi_fail(error, KVF_ERR_NOT_FOUND, "peer %.300s (rank=%" PRId64 ") is not registered", name, number);
    }
    return status;
}

/* Puts a peer into the first free place of its run; there is one. */
static struct peer *place(struct peer *peers, size_t capacity, const struct peer *peer)
{
    size_t i = peer->hash & (capacity - 1);

    while (peers[i].rank) i = (i + 1) & (capacity - 1);
    peers[i] = *peer;
    return &peers[i];
}

static enum kvf_status make_room(struct kvf_trtllm_registrar *registrar, struct kvf_error *error)
{
    size_t capacity = registrar->capacity ? registrar->capacity * 2 : FIRST_CAPACITY;
    struct peer *peers;
    enum kvf_status status = KVF_OK;

    if ((registrar->count + 1) * 4 <= registrar->capacity * 3) goto done;
    peers = kvfi_alloc_zeroed(capacity, sizeof *peers);
    if (!peers) {
        status = kvfi_fail_memory(error, "a table of peers");
        goto done;
    }
    for (size_t i = 0; i < registrar->capacity; i++) {
        if (registrar->peers[i].rank) place(peers, capacity, &registrar->peers[i]);
    }
    free(registrar->peers);
    registrar->peers = peers;
    registrar->capacity = capacity;
done:
    return status;
}

/* Takes a peer out and closes the gap it leaves: whatever comes after it in its run is put in anew. */
static void take_out(struct kvf_trtllm_registrar *registrar, struct peer *peer)
{
    size_t mask = registrar->capacity - 1, i = (size_t)(peer - registrar->peers);

    registrar->peer_bytes -= kvfi_trt_rank_memory(peer->rank);
    drop(peer);
    registrar->count--;
    for (i = (i + 1) & mask; registrar->peers[i].rank; i = (i + 1) & mask) {
        struct peer moved = registrar->peers[i];

        memset(&registrar->peers[i], 0, sizeof moved);
        place(registrar->peers, registrar->capacity, &moved);
    }
}

static bool is_strict(const struct kvf_trtllm_registrar *registrar)
{
    return (registrar->options.flags & KVF_TRTLLM_STRICT_UPSTREAM) != 0;
}

/* Gives the caller as much of a verdict as its struct has room for. */
static void give_verdict(struct kvf_trtllm_verdict *out, const struct kvf_trtllm_verdict *verdict)
{
    if (out) (void)kvfi_struct_give(out, verdict, sizeof *verdict, "verdict", NULL); /* one without room gets nothing */
}

enum kvf_status kvf_trtllm_registrar_check(kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer,
                                           struct kvf_trtllm_verdict *verdict, struct kvf_error *error)
{
    struct kvf_trtllm_verdict own;
    enum kvf_status status = check_given(registrar && peer, error);

    if (status != KVF_OK) goto done;
    status = kvfi_trt_judge_peer(registrar->self, peer, is_strict(registrar), &own, error);
    give_verdict(verdict, &own);
done:
    return status;
}

enum kvf_status kvf_trtllm_registrar_check_sender(kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer,
                                                  int all_rules, struct kvf_error *error)
{
    enum kvf_status status = check_given(registrar && peer, error);

    if (status == KVF_OK)
        status = kvfi_trt_judge_sender(registrar->self, peer, is_strict(registrar), all_rules != 0, error);
    if (status == KVF_OK && is_strict(registrar)) kvfi_trt_warn_of_unfed(&registrar->warn, peer, registrar->self);
    return status;
}

static enum kvf_status store(struct kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *rank,
                             struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    struct peer *known = look_up(registrar, spec->instance_name, spec->instance_rank);
    size_t bytes = registrar->peer_bytes + kvfi_trt_rank_memory(rank);
    struct peer added = {0};
    enum kvf_status status = KVF_OK;

    if (known) bytes -= kvfi_trt_rank_memory(known->rank);
    if (bytes > registrar->options.max_peer_bytes) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "peer %.300s (rank=%" PRId64 "): %zu peers and its rank info take %zu"
                           " bytes, at most %" PRIu64 " are allowed", spec->instance_name, spec->instance_rank,
                           registrar->count, bytes, registrar->options.max_peer_bytes);
        goto done;
    }
    if (!known) status = make_room(registrar, error);
    if (status != KVF_OK) goto done;
    added.hash = hash_identity(registrar->seed, spec->instance_name, spec->instance_rank);
    added.rank = kvf_trtllm_rank_acquire(rank);
    if (known) {
        drop(known);
        *known = added;
    } else {
        place(registrar->peers, registrar->capacity, &added);
        registrar->count++;
    }
    registrar->peer_bytes = bytes;
done:
    return status;
}

enum kvf_status kvf_trtllm_registrar_register(kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer,
                                              struct kvf_trtllm_verdict *verdict, struct kvf_error *error)
{
    struct kvf_trtllm_verdict own;
    enum kvf_status status = check_given(registrar && peer, error);

    if (status != KVF_OK) goto done;
    status = kvfi_trt_judge_peer(registrar->self, peer, is_strict(registrar), &own, error);
    give_verdict(verdict, &own);
    if (own.style == KVF_TRTLLM_SOFT) kvfi_trt_warn_once(&registrar->warn, "", own.reason);
    if (status == KVF_OK) status = store(registrar, peer, error);
    if (status != KVF_OK) goto done;
    for (int32_t i = 0; i < own.warning_count; i++) {
        kvfi_trt_warn_once(&registrar->warn, own.warning_keys[i], own.warnings[i]);
    }
    if (is_strict(registrar)) kvfi_trt_warn_of_unfed(&registrar->warn, registrar->self, peer);
done:
    return status;
}

enum kvf_status kvf_trtllm_registrar_unregister(kvf_trtllm_registrar *registrar, const char *instance_name,
                                                int64_t instance_rank, struct kvf_error *error)
{
    struct peer *peer;
    enum kvf_status status = check_given(registrar && instance_name, error);

    if (status == KVF_OK) status = need(registrar, instance_name, instance_rank, &peer, error);
    if (status == KVF_OK) take_out(registrar, peer);
    return status;
}

enum kvf_status kvf_trtllm_registrar_find(const kvf_trtllm_registrar *registrar, const char *instance_name,
                                          int64_t instance_rank, const kvf_trtllm_rank **out,
                                          struct kvf_error *error)
{
    struct peer *peer;
    enum kvf_status status = check_given(registrar && instance_name && out, error);

    if (status == KVF_OK) status = need(registrar, instance_name, instance_rank, &peer, error);
    if (status == KVF_OK) *out = peer->rank;
    return status;
}

size_t kvf_trtllm_registrar_count(const kvf_trtllm_registrar *registrar)
{
    return registrar->count;
}

enum kvf_status kvf_trtllm_registrar_pair(kvf_trtllm_registrar *registrar, const char *instance_name,
                                          int64_t instance_rank, kvf_trtllm_pair **out, struct kvf_error *error)
{
    struct peer *peer;
    enum kvf_status status = check_given(registrar && instance_name && out, error);

    if (status == KVF_OK) status = need(registrar, instance_name, instance_rank, &peer, error);
    if (status == KVF_OK && !peer->pair) {
        status = kvfi_trt_pair_create(registrar->self, peer->rank, is_strict(registrar), &peer->pair, error);
    }
    if (status == KVF_OK) *out = kvf_trtllm_pair_acquire(peer->pair);
    return status;
}

enum kvf_status kvf_trtllm_registrar_overlap(const kvf_trtllm_registrar *registrar, const kvf_trtllm_rank *peer,
                                             int64_t peer_dp_rank, struct kvf_trtllm_overlap *out, int64_t *ranks,
                                             size_t capacity, struct kvf_error *error)
{
    enum kvf_status status = check_given(registrar && peer && out && (ranks || capacity == 0), error);

    if (status == KVF_OK)
        status = kvfi_trt_overlap(registrar->self, peer, peer_dp_rank, !is_strict(registrar), out, ranks, capacity,
                                  error);
    return status;
}
