/* SPDX-License-Identifier: Apache-2.0 */
/* Grants: what may be written, and how it is taken back. */
#include "transport/mooncake/guards.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/mooncake/admission.h"
#include "transport/mooncake/engine.h"

enum { MAX_GUARDS = 1024, MAX_GRANTS = 65535 };

/* ---- requests under way ----------------------------------------------------------------------------------------- */

static void condemn(struct kvfi_moon_regions *regions, struct kvfi_moon_use *use)
{
    kvfi_moon_use_unlink(use);
    use->condemned = true;
    kvfi_moon_use_link(&regions->condemned, use);
}

/* Condemns those of which some byte is no longer granted. */
static void condemn_ungranted(struct kvfi_moon_regions *regions)
{
    struct kvfi_moon_use *next;

    for (struct kvfi_moon_use *use = regions->guarded; use; use = next) {
        next = use->next;
        if (!kvfi_moon_admits(regions, use->address, use->address + (use->bytes - 1), use->era, NULL))
            condemn(regions, use);
    }
}

/* True when the request touches a block that is asked for. */
static bool touches_asked(const kvf_mooncake_guard *guard, const struct kvfi_moon_use *use)
{
    uint64_t last = use->address + (use->bytes - 1);
    struct kvfi_moon_spot spot;
    bool more = kvfi_moon_grids_seek(&guard->shape->grids, use->address, &spot);

    while (more && spot.first <= last && !guard->blocks[spot.block].asked)
        more = kvfi_moon_grids_next(&guard->shape->grids, &spot);
    return more && spot.first <= last;
}

static void ask(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count, bool asked)
{
    for (size_t i = 0; i < count; i++)
        if (blocks[i] >= 0 && blocks[i] < guard->block_count) guard->blocks[blocks[i]].asked = asked;
}

/* True when no condemned request touches these blocks. `revoke`: their connections must be closed. */
static bool look(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count, bool revoke)
{
    struct kvfi_moon_use *use = guard->regions->condemned;
    bool quiet = true;

    if (!use) return true;
    ask(guard, blocks, count, true);
    for (; use && (quiet || revoke); use = use->next) {
        if (!touches_asked(guard, use)) continue;
        quiet = false;
        if (revoke) atomic_store(&use->revoked, true);
    }
    ask(guard, blocks, count, false);
    return quiet;
}

static void close_revoked(const struct kvfi_moon_regions *regions)
{
    if (regions->close_revoked) regions->close_revoked(regions->context);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Requests that are under way in a buffer were not granted anything: they end. True when there are some. */
static bool guard_region(struct kvfi_moon_regions *regions, struct kvfi_moon_region *region)
{
    bool busy = region->under_way != NULL;

    region->guarded = true;
    while (region->under_way) {
        struct kvfi_moon_use *use = region->under_way;

        condemn(regions, use);
        atomic_store(&use->revoked, true);
    }
    return busy;
}

/* The shape that has these blocks: one that is there, or `own`, which is added then and NULL afterwards. */
static struct kvfi_moon_shape *find_shape(struct kvfi_moon_regions *regions, struct kvfi_moon_shape **own)
{
    struct kvfi_moon_shape *shape = *own;

    for (size_t i = 0; i < regions->shape_count; i++)
        if (kvfi_moon_grids_equal(&regions->shapes[i]->grids, &shape->grids)) return regions->shapes[i];
    if (!kvfi_array_grow((void **)&regions->shapes, regions->shape_count, &regions->shape_capacity,
                         sizeof *regions->shapes))
        return NULL;
    *own = NULL;
    return regions->shapes[regions->shape_count++] = shape;
}

static enum kvf_status add_guard(struct kvfi_moon_regions *regions, kvf_mooncake_guard *guard,
                                 struct kvfi_moon_shape **own, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    bool busy = false;

    pthread_mutex_lock(&regions->lock);
    if (regions->guard_count >= MAX_GUARDS)
        status = kvfi_fail(error, KVF_ERR_LIMIT, "%zu guards are open, at most %d", regions->guard_count, MAX_GUARDS);
    if (status == KVF_OK) guard->shape = find_shape(regions, own);
    if (status == KVF_OK && (!guard->shape || !kvfi_array_grow((void **)&guard->shape->guards, guard->shape->count,
                                                               &guard->shape->capacity, sizeof(guard))))
        status = kvfi_fail_memory(error, "a guard");
    if (status == KVF_OK) {
        guard->number = ++regions->next_guard;
        guard->shape->guards[guard->shape->count++] = guard;
        regions->guard_count++;
        for (size_t i = 0; i < regions->count; i++)
            if (kvfi_moon_grids_lie_in(&guard->shape->grids, regions->sorted[i]))
                busy |= guard_region(regions, regions->sorted[i]);
    }
    pthread_mutex_unlock(&regions->lock);
    if (busy) close_revoked(regions);
    return status;
}

static enum kvf_status make_shape(const struct kvf_mooncake_grid *grids, size_t grid_count, int64_t block_count,
                                  struct kvfi_moon_shape **out, struct kvf_error *error)
{
    struct kvfi_moon_shape *shape = kvfi_alloc_zeroed(1, sizeof *shape);
    enum kvf_status status = KVF_OK;

    /* Room for its first guard, so that none is without. */
    if (!shape || !kvfi_array_grow((void **)&shape->guards, 0, &shape->capacity, sizeof(kvf_mooncake_guard *)))
        status = kvfi_fail_memory(error, "a guard");
    if (status == KVF_OK) status = kvfi_moon_grids_init(&shape->grids, grids, grid_count, block_count, error);
    if (status == KVF_OK) *out = shape;
    else kvfi_moon_shape_free(shape);
    return status;
}

enum kvf_status kvfi_moon_guard_open(struct kvfi_moon_regions *regions, const struct kvf_mooncake_grid *grids,
                                     size_t grid_count, int64_t block_count, kvf_mooncake_guard **out,
                                     struct kvf_error *error)
{
    struct kvfi_moon_shape *shape = NULL;
    kvf_mooncake_guard *guard = NULL;
    enum kvf_status status;

    if (block_count <= 0 || (!grids && grid_count > 0))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "guard: %" PRId64 " blocks in %zu grids at %s, expected at "
                         "least 1 block", block_count, grid_count, grids ? "an address" : "NULL");
    if (block_count > INT32_MAX)
        return kvfi_fail(error, KVF_ERR_LIMIT, "guard: %" PRId64 " blocks, at most %d", block_count, INT32_MAX);
    status = make_shape(grids, grid_count, block_count, &shape, error);
    if (status != KVF_OK) goto done;
    guard = kvfi_alloc_zeroed(1, sizeof *guard);
    if (guard) guard->blocks = kvfi_alloc_zeroed((size_t)block_count, sizeof *guard->blocks);
    if (!guard || !guard->blocks) {
        status = kvfi_fail_memory(error, "the blocks of a guard");
        goto done;
    }
    guard->regions = regions;
    guard->block_count = block_count;
    status = add_guard(regions, guard, &shape, error);
done:
    if (status == KVF_OK) *out = guard;
    else kvfi_moon_guard_free(guard);
    kvfi_moon_shape_free(shape);
    return status;
}

enum kvf_status kvf_mooncake_guard_open(kvf_mooncake *engine, const struct kvf_mooncake_grid *grids, size_t grid_count,
                                        int64_t block_count, kvf_mooncake_guard **out, struct kvf_error *error)
{
    return kvfi_moon_guard_open(&engine->regions, grids, grid_count, block_count, out, error);
}

/* ---- granting --------------------------------------------------------------------------------------------------- */

static enum kvf_status check_blocks(const kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                    struct kvf_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (blocks[i] >= 0 && blocks[i] < guard->block_count) continue;
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "block %" PRId64 " (%zu of %zu): guard %" PRIu64
                         " has blocks 0 to %" PRId64, blocks[i], i, count, guard->number, guard->block_count - 1);
    }
    return KVF_OK;
}

static void ungrant(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kvfi_moon_block *block = &guard->blocks[blocks[i]];

        if (--block->grants > 0) continue;
        block->fresh = false;
        guard->granted--;
    }
}

enum kvf_status kvf_mooncake_guard_grant(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                         struct kvf_error *error)
{
    enum kvf_status status = check_blocks(guard, blocks, count, error);
    size_t done = 0;

    if (status != KVF_OK) return status;
    pthread_mutex_lock(&guard->regions->lock);
    for (; done < count && guard->blocks[blocks[done]].grants < MAX_GRANTS; done++) {
        struct kvfi_moon_block *block = &guard->blocks[blocks[done]];

        if (block->grants++ > 0) continue;
        block->fresh = true;
        guard->granted++;
    }
    if (done < count) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "block %" PRId64 " of guard %" PRIu64 " is granted %d times",
                           blocks[done], guard->number, MAX_GRANTS);
        ungrant(guard, blocks, done);
    } else {
        guard->regions->era++;
    }
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        struct kvfi_moon_block *block = &guard->blocks[blocks[i]];

        if (!block->fresh) continue;
        block->fresh = false;
        block->bytes = 0;
        block->since = guard->regions->era;
    }
    pthread_mutex_unlock(&guard->regions->lock);
    return status;
}

enum kvf_status kvf_mooncake_guard_count(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count, int64_t *bytes,
                                         struct kvf_error *error)
{
    enum kvf_status status = check_blocks(guard, blocks, count, error);
    int64_t total = 0;

    if (status != KVF_OK) return status;
    pthread_mutex_lock(&guard->regions->lock);
    for (size_t i = 0; i < count; i++) total += guard->blocks[blocks[i]].bytes;
    pthread_mutex_unlock(&guard->regions->lock);
    *bytes = total;
    return KVF_OK;
}

/* ---- revoking --------------------------------------------------------------------------------------------------- */

/* Takes grants back, all or none, and condemns requests. The lock is held. */
static enum kvf_status take_back(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                 struct kvf_error *error)
{
    int64_t granted = guard->granted;
    size_t done = 0;

    while (done < count && guard->blocks[blocks[done]].grants > 0) {
        if (--guard->blocks[blocks[done]].grants == 0) guard->granted--;
        done++;
    }
    if (done == count) {
        if (guard->granted < granted) condemn_ungranted(guard->regions);
        return KVF_OK;
    }
    for (size_t i = 0; i < done; i++) guard->blocks[blocks[i]].grants++;
    guard->granted = granted;
    return kvfi_fail(error, KVF_ERR_NOT_FOUND, "block %" PRId64 " (%zu of %zu) of guard %" PRIu64 " is not granted%s",
                     blocks[done], done, count, guard->number, done > 0 ? " that often" : "");
}

/* Waits until these blocks are quiet; from `until_ns` on connections are closed. The lock is held. */
static void await_quiet(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count, int64_t until_ns)
{
    struct kvfi_moon_regions *regions = guard->regions;

    while (!look(guard, blocks, count, false)) {
        struct timespec until = {.tv_sec = until_ns / KVFI_SECOND, .tv_nsec = until_ns % KVFI_SECOND};

        if (kvfi_now_ns() < until_ns) {
            pthread_cond_timedwait(&regions->changed, &regions->lock, &until);
            continue;
        }
        look(guard, blocks, count, true);
        pthread_mutex_unlock(&regions->lock);
        close_revoked(regions);
        pthread_mutex_lock(&regions->lock);
        until_ns = kvfi_now_ns() + KVFI_SECOND;
    }
}

enum kvf_status kvf_mooncake_guard_revoke(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                          int64_t timeout_ns, struct kvf_error *error)
{
    enum kvf_status status = check_blocks(guard, blocks, count, error);
    int64_t now_ns = kvfi_now_ns();

    if (status != KVF_OK) return status;
    if (timeout_ns < 0) timeout_ns = 0;
    pthread_mutex_lock(&guard->regions->lock);
    status = take_back(guard, blocks, count, error);
    if (status == KVF_OK)
        await_quiet(guard, blocks, count, timeout_ns > INT64_MAX / 2 - now_ns ? INT64_MAX / 2 : now_ns + timeout_ns);
    pthread_mutex_unlock(&guard->regions->lock);
    return status;
}

enum kvf_status kvfi_moon_guard_revoke_begin(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count,
                                             bool *quiet, struct kvf_error *error)
{
    enum kvf_status status = check_blocks(guard, blocks, count, error);

    if (status != KVF_OK) return status;
    pthread_mutex_lock(&guard->regions->lock);
    status = take_back(guard, blocks, count, error);
    if (status == KVF_OK) *quiet = look(guard, blocks, count, true);
    pthread_mutex_unlock(&guard->regions->lock);
    if (status == KVF_OK && !*quiet) close_revoked(guard->regions);
    return status;
}

bool kvfi_moon_guard_is_quiet(kvf_mooncake_guard *guard, const int64_t *blocks, size_t count)
{
    bool quiet;

    pthread_mutex_lock(&guard->regions->lock);
    quiet = look(guard, blocks, count, false);
    pthread_mutex_unlock(&guard->regions->lock);
    return quiet;
}

/* ---- closing ---------------------------------------------------------------------------------------------------- */

static void revoke_all(kvf_mooncake_guard *guard)
{
    for (int64_t i = 0; i < guard->block_count; i++) guard->blocks[i].grants = 0;
    guard->granted = 0;
    condemn_ungranted(guard->regions);
}

/* True when no condemned request touches any block of the guard. The others are revoked. */
static bool look_at_all(kvf_mooncake_guard *guard)
{
    bool quiet = true;

    for (struct kvfi_moon_use *use = guard->regions->condemned; use; use = use->next) {
        struct kvfi_moon_spot spot;

        if (!kvfi_moon_grids_seek(&guard->shape->grids, use->address, &spot) ||
            spot.first > use->address + (use->bytes - 1))
            continue;
        quiet = false;
        atomic_store(&use->revoked, true);
    }
    return quiet;
}

/* A shape goes with its last guard. */
static void take_out(struct kvfi_moon_regions *regions, const kvf_mooncake_guard *guard)
{
    struct kvfi_moon_shape *shape = guard->shape;
    size_t index = 0, place = 0;

    while (shape->guards[index] != guard) index++;
    shape->guards[index] = shape->guards[--shape->count];
    regions->guard_count--;
    if (shape->count > 0) return;
    while (regions->shapes[place] != shape) place++;
    regions->shapes[place] = regions->shapes[--regions->shape_count];
    kvfi_moon_shape_free(shape);
}

void kvf_mooncake_guard_close(kvf_mooncake_guard *guard)
{
    struct kvfi_moon_regions *regions;

    if (!guard) return;
    regions = guard->regions;
    pthread_mutex_lock(&regions->lock);
    revoke_all(guard);
    while (!look_at_all(guard)) {
        int64_t until_ns = kvfi_now_ns() + KVFI_SECOND;
        struct timespec until = {.tv_sec = until_ns / KVFI_SECOND, .tv_nsec = until_ns % KVFI_SECOND};

        pthread_mutex_unlock(&regions->lock);
        close_revoked(regions);
        pthread_mutex_lock(&regions->lock);
        if (!look_at_all(guard)) pthread_cond_timedwait(&regions->changed, &regions->lock, &until);
    }
    take_out(regions, guard);
    pthread_mutex_unlock(&regions->lock);
    kvfi_moon_guard_free(guard);
}

/* ---- news ------------------------------------------------------------------------------------------------------- */

void kvfi_moon_guard_set_news(kvf_mooncake_guard *guard, kvfi_moon_guard_news *news, void *context)
{
    pthread_mutex_lock(&guard->regions->lock);
    guard->news = news;
    guard->context = context;
    guard->wants_news = false;
    pthread_mutex_unlock(&guard->regions->lock);
}

void kvfi_moon_guard_ask_news(kvf_mooncake_guard *guard)
{
    pthread_mutex_lock(&guard->regions->lock);
    guard->wants_news = true;
    pthread_mutex_unlock(&guard->regions->lock);
}
