/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

#define MAX_TEXT_BYTES INT64_C(1073741824)
#define RANK_ANSWER_BYTES 320  /* numbers and keys of a rank in an answer */
#define HEAD_ANSWER_BYTES 4096 /* an answer without its ranks */

void kvfi_registry_init(struct kvfi_registry *registry, int64_t lease_ns, int64_t max_ranks, int64_t first_epoch)
{
    *registry = (struct kvfi_registry){.lease_ns = lease_ns, .max_ranks = max_ranks, .max_text_bytes = MAX_TEXT_BYTES,
                                       .max_answer_bytes = KVFI_DIRECTORY_MAX_ANSWER_BYTES - HEAD_ANSWER_BYTES,
                                       .last_epoch = first_epoch, .next_expiry_ns = INT64_MAX};
}

static int64_t text_bytes(const struct kvfi_registry_rank *rank)
{
    return (int64_t)(strlen(rank->channel) + strlen(rank->holdings));
}

/** Escapes may double the bytes of a channel's name; holdings are JSON already. */
static int64_t answer_bytes(const char *channel, const char *holdings)
{
    return RANK_ANSWER_BYTES + 2 * (int64_t)strlen(channel) + (int64_t)strlen(holdings);
}

/** Counts a rank that came (`sign` 1) or went (-1). */
static void count_rank(struct kvfi_registry *registry, struct kvfi_registry_instance *instance,
                       const struct kvfi_registry_rank *rank, int sign)
{
    registry->text_bytes += sign * text_bytes(rank);
    instance->answer_bytes += sign * answer_bytes(rank->channel, rank->holdings);
}

static void free_rank(struct kvfi_registry_rank *rank)
{
    free(rank->channel);
    free(rank->holdings);
}

static void free_instance(struct kvfi_registry_instance *instance)
{
    for (size_t i = 0; i < instance->rank_count; i++) free_rank(&instance->ranks[i]);
    free(instance->ranks);
    free(instance);
}

void kvfi_registry_fini(struct kvfi_registry *registry)
{
    for (size_t i = 0; i < registry->instance_count; i++) free_instance(registry->instances[i]);
    free(registry->instances);
    *registry = (struct kvfi_registry){0};
}

/** Index of the first instance whose name is not less. */
static size_t instance_slot(const struct kvfi_registry *registry, const char *name, bool *found)
{
    size_t low = 0, high = registry->instance_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(registry->instances[middle]->name, name) < 0) low = middle + 1;
        else high = middle;
    }
    *found = low < registry->instance_count && strcmp(registry->instances[low]->name, name) == 0;
    return low;
}

const struct kvfi_registry_instance *kvfi_registry_find(const struct kvfi_registry *registry, const char *name)
{
    bool found;
    size_t slot = instance_slot(registry, name, &found);

    return found ? registry->instances[slot] : NULL;
}

static int compare_ranks(const struct kvf_rank *a, const struct kvf_rank *b)
{
    if (a->pp != b->pp) return a->pp < b->pp ? -1 : 1;
    if (a->cp != b->cp) return a->cp < b->cp ? -1 : 1;
    return a->tp == b->tp ? 0 : a->tp < b->tp ? -1 : 1;
}

static size_t rank_slot(const struct kvfi_registry_instance *instance, const struct kvf_rank *rank, bool *found)
{
    size_t low = 0, high = instance->rank_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare_ranks(&instance->ranks[middle].rank, rank) < 0) low = middle + 1;
        else high = middle;
    }
    *found = low < instance->rank_count && compare_ranks(&instance->ranks[low].rank, rank) == 0;
    return low;
}

/* ---- expiry ---- */

static void expire_ranks(struct kvfi_registry *registry, struct kvfi_registry_instance *instance, int64_t now_ns)
{
    size_t kept = 0;

    for (size_t i = 0; i < instance->rank_count; i++) {
        struct kvfi_registry_rank *rank = &instance->ranks[i];

        if (rank->expires_ns <= now_ns) {
            count_rank(registry, instance, rank, -1);
            registry->rank_count--;
            registry->expired++;
            free_rank(rank);
            continue;
        }
        if (rank->expires_ns < registry->next_expiry_ns) registry->next_expiry_ns = rank->expires_ns;
        instance->ranks[kept++] = *rank;
    }
    instance->rank_count = kept;
}

void kvfi_registry_expire(struct kvfi_registry *registry, int64_t now_ns)
{
    size_t kept = 0;

    if (now_ns < registry->next_expiry_ns) return;
    registry->next_expiry_ns = INT64_MAX;
    for (size_t i = 0; i < registry->instance_count; i++) {
        struct kvfi_registry_instance *instance = registry->instances[i];

        expire_ranks(registry, instance, now_ns);
        if (instance->rank_count == 0) free_instance(instance);
        else registry->instances[kept++] = instance;
    }
    registry->instance_count = kept;
}

static void start_lease(struct kvfi_registry *registry, struct kvfi_registry_rank *rank, int64_t now_ns)
{
    rank->expires_ns = now_ns + registry->lease_ns;
    if (rank->expires_ns < registry->next_expiry_ns) registry->next_expiry_ns = rank->expires_ns;
}

/* ---- register ---- */

/** Compares a claim with what another rank of the instance said. A rank that is alone may change its mind. */
static enum kvf_status check_claim(const struct kvfi_registry_instance *instance,
                                   const struct kvfi_registry_claim *claim, struct kvf_error *error)
{
    const struct kvf_rank *rank = &claim->rank, *other = NULL;

    for (size_t i = 0; i < instance->rank_count && !other; i++)
        if (compare_ranks(&instance->ranks[i].rank, rank) != 0) other = &instance->ranks[i].rank;
    if (!other) return KVF_OK;
    if (claim->ranks_expected != instance->ranks_expected)
        return kvfi_fail(error, KVF_ERR_EXISTS,
                         "instance \"%s\" has %" PRId64 " ranks, pp%" PRId64 ".cp%" PRId64 ".tp%" PRId64
                         " expects %" PRId64, instance->name, instance->ranks_expected, rank->pp, rank->cp, rank->tp,
                         claim->ranks_expected);
    if (strcmp(claim->model, instance->model) != 0)
        return kvfi_fail(error, KVF_ERR_EXISTS,
                         "instance \"%s\" has model \"%s\", pp%" PRId64 ".cp%" PRId64 ".tp%" PRId64 " has \"%s\"",
                         instance->name, instance->model, rank->pp, rank->cp, rank->tp, claim->model);
    if (rank->dp != other->dp)
        return kvfi_fail(error, KVF_ERR_EXISTS,
                         "instance \"%s\" is one data-parallel group: dp %" PRId64 " is registered, pp%" PRId64
                         ".cp%" PRId64 ".tp%" PRId64 " says dp %" PRId64, instance->name, other->dp, rank->pp, rank->cp,
                         rank->tp, rank->dp);
    return KVF_OK;
}

static bool is_same(const struct kvfi_registry_rank *rank, const struct kvfi_registry_claim *claim,
                    const struct kvfi_registry_instance *instance)
{
    return rank->incarnation == claim->incarnation && rank->rank.dp == claim->rank.dp &&
           rank->rank.salt == claim->rank.salt && instance->ranks_expected == claim->ranks_expected &&
           strcmp(instance->model, claim->model) == 0 && strcmp(rank->channel, claim->channel) == 0 &&
           strcmp(rank->holdings, claim->holdings) == 0;
}

/** `old` is the rank whose place the claim takes, NULL when it is new. */
static enum kvf_status check_room(const struct kvfi_registry *registry, const struct kvfi_registry_instance *instance,
                                  const struct kvfi_registry_claim *claim, const struct kvfi_registry_rank *old,
                                  struct kvf_error *error)
{
    int64_t bytes = (int64_t)(strlen(claim->channel) + strlen(claim->holdings)) - (old ? text_bytes(old) : 0);
    int64_t answer = answer_bytes(claim->channel, claim->holdings) + (instance ? instance->answer_bytes : 0) -
                     (old ? answer_bytes(old->channel, old->holdings) : 0);
    bool is_new = old == NULL;

    if (is_new && instance && (int64_t)instance->rank_count >= instance->ranks_expected)
        return kvfi_fail(error, KVF_ERR_EXISTS,
                         "instance \"%s\" has all its %" PRId64 " ranks, pp%" PRId64 ".cp%" PRId64 ".tp%" PRId64
                         " is one more", instance->name, instance->ranks_expected, claim->rank.pp, claim->rank.cp,
                         claim->rank.tp);
    if (is_new && registry->rank_count >= registry->max_ranks)
        return kvfi_fail(error, KVF_ERR_LIMIT, "directory is full: it holds %" PRId64 " ranks", registry->max_ranks);
    if (bytes > registry->max_text_bytes - registry->text_bytes)
        return kvfi_fail(error, KVF_ERR_LIMIT, "directory is full: it holds %" PRId64 " bytes of holdings",
                         registry->text_bytes);
    if (answer > registry->max_answer_bytes)
        return kvfi_fail(error, KVF_ERR_LIMIT,
                         "instance \"%s\" would take %" PRId64 " bytes in an answer, at most %" PRId64 " are given",
                         claim->instance, answer, registry->max_answer_bytes);
    return KVF_OK;
}

static enum kvf_status make_rank(const struct kvfi_registry_claim *claim, struct kvfi_registry_rank *out,
                                 struct kvf_error *error)
{
    struct kvfi_registry_rank rank = {.rank = claim->rank, .incarnation = claim->incarnation,
                                      .channel = kvfi_text_copy(claim->channel),
                                      .holdings = kvfi_text_copy(claim->holdings)};

    if (!rank.channel || !rank.holdings) {
        free_rank(&rank);
        return kvfi_fail_memory(error, "a registration");
    }
    *out = rank;
    return KVF_OK;
}

/** The instance of a claim, made and put in its place when it is not there; NULL when there is no memory. */
static struct kvfi_registry_instance *open_instance(struct kvfi_registry *registry, const char *name)
{
    bool found;
    size_t slot = instance_slot(registry, name, &found);
    struct kvfi_registry_instance *instance;

    if (found) return registry->instances[slot];
    instance = calloc(1, sizeof *instance);
    if (!instance || !kvfi_array_grow((void **)&registry->instances, registry->instance_count,
                                      &registry->instance_capacity, sizeof *registry->instances)) {
        free(instance);
        return NULL;
    }
    snprintf(instance->name, sizeof instance->name, "%s", name);
    memmove(&registry->instances[slot + 1], &registry->instances[slot],
            (registry->instance_count - slot) * sizeof *registry->instances);
    registry->instances[slot] = instance;
    registry->instance_count++;
    return instance;
}

static void drop_if_empty(struct kvfi_registry *registry, struct kvfi_registry_instance *instance)
{
    bool found;
    size_t slot;

    if (instance->rank_count > 0) return;
    slot = instance_slot(registry, instance->name, &found);
    memmove(&registry->instances[slot], &registry->instances[slot + 1],
            (registry->instance_count - slot - 1) * sizeof *registry->instances);
    registry->instance_count--;
    free_instance(instance);
}

/** Puts a rank where it belongs, in place of an older one when there is one. */
static enum kvf_status place_rank(struct kvfi_registry *registry, struct kvfi_registry_instance *instance,
                                  struct kvfi_registry_rank *rank, struct kvf_error *error)
{
    bool found;
    size_t slot = rank_slot(instance, &rank->rank, &found);

    if (found) {
        count_rank(registry, instance, &instance->ranks[slot], -1);
        free_rank(&instance->ranks[slot]);
    } else {
        if (!kvfi_array_grow((void **)&instance->ranks, instance->rank_count, &instance->rank_capacity, sizeof *rank))
            return kvfi_fail_memory(error, "a registration");
        memmove(&instance->ranks[slot + 1], &instance->ranks[slot], (instance->rank_count - slot) * sizeof *rank);
        instance->rank_count++;
        registry->rank_count++;
    }
    instance->ranks[slot] = *rank;
    count_rank(registry, instance, rank, 1);
    return KVF_OK;
}

static enum kvf_status add_rank(struct kvfi_registry *registry, const struct kvfi_registry_claim *claim,
                                int64_t now_ns, const struct kvfi_registry_instance **out, struct kvf_error *error)
{
    struct kvfi_registry_instance *instance = NULL;
    struct kvfi_registry_rank rank;
    enum kvf_status status = make_rank(claim, &rank, error);

    if (status != KVF_OK) return status;
    start_lease(registry, &rank, now_ns);
    instance = open_instance(registry, claim->instance);
    status = instance ? place_rank(registry, instance, &rank, error) : kvfi_fail_memory(error, "a registration");
    if (status != KVF_OK) {
        free_rank(&rank);
        if (instance) drop_if_empty(registry, instance);
        return status;
    }
    snprintf(instance->model, sizeof instance->model, "%s", claim->model);
    instance->ranks_expected = claim->ranks_expected;
    instance->epoch = ++registry->last_epoch;
    *out = instance;
    return KVF_OK;
}

enum kvf_status kvfi_registry_register(struct kvfi_registry *registry, const struct kvfi_registry_claim *claim,
                                       int64_t now_ns, const struct kvfi_registry_instance **out,
                                       struct kvf_error *error)
{
    const struct kvfi_registry_instance *instance = kvfi_registry_find(registry, claim->instance);
    enum kvf_status status = instance ? check_claim(instance, claim, error) : KVF_OK;
    bool found = false;
    size_t slot = instance ? rank_slot(instance, &claim->rank, &found) : 0;

    if (status != KVF_OK) return status;
    if (found && is_same(&instance->ranks[slot], claim, instance)) {
        start_lease(registry, &instance->ranks[slot], now_ns);
        *out = instance;
        return KVF_OK;
    }
    status = check_room(registry, instance, claim, found ? &instance->ranks[slot] : NULL, error);
    return status == KVF_OK ? add_rank(registry, claim, now_ns, out, error) : status;
}

/* ---- renew and withdraw ---- */

static enum kvf_status find_registration(struct kvfi_registry *registry, const struct kvfi_registry_key *key,
                                         struct kvfi_registry_instance **instance, size_t *slot,
                                         struct kvf_error *error)
{
    const struct kvf_rank *rank = &key->rank;
    bool found;
    size_t at = instance_slot(registry, key->instance, &found);

    if (!found)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "instance \"%s\" is not registered", key->instance);
    *instance = registry->instances[at];
    *slot = rank_slot(*instance, rank, &found);
    if (!found)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND,
                         "instance \"%s\" has no rank pp%" PRId64 ".cp%" PRId64 ".tp%" PRId64 " registered",
                         key->instance, rank->pp, rank->cp, rank->tp);
    if ((*instance)->ranks[*slot].incarnation != key->incarnation)
        return kvfi_fail(error, KVF_ERR_STALE,
                         "instance \"%s\" rank pp%" PRId64 ".cp%" PRId64 ".tp%" PRId64
                         " is held by incarnation %016" PRIx64 ", not %016" PRIx64, key->instance,
                         rank->pp, rank->cp, rank->tp,
                         (*instance)->ranks[*slot].incarnation, key->incarnation);
    return KVF_OK;
}

enum kvf_status kvfi_registry_renew(struct kvfi_registry *registry, const struct kvfi_registry_key *key,
                                    int64_t now_ns, const struct kvfi_registry_instance **out,
                                    struct kvf_error *error)
{
    struct kvfi_registry_instance *instance = NULL;
    size_t slot = 0;
    enum kvf_status status = find_registration(registry, key, &instance, &slot, error);

    if (status != KVF_OK) return status;
    start_lease(registry, &instance->ranks[slot], now_ns);
    *out = instance;
    return KVF_OK;
}

enum kvf_status kvfi_registry_withdraw(struct kvfi_registry *registry, const struct kvfi_registry_key *key,
                                       struct kvf_error *error)
{
    struct kvfi_registry_instance *instance = NULL;
    size_t slot = 0;
    enum kvf_status status = find_registration(registry, key, &instance, &slot, error);

    if (status != KVF_OK) return status;
    count_rank(registry, instance, &instance->ranks[slot], -1);
    registry->rank_count--;
    free_rank(&instance->ranks[slot]);
    memmove(&instance->ranks[slot], &instance->ranks[slot + 1],
            (instance->rank_count - slot - 1) * sizeof *instance->ranks);
    instance->rank_count--;
    drop_if_empty(registry, instance);
    return KVF_OK;
}
