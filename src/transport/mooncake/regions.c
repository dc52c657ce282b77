/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/regions.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/mooncake/admission.h"

enum { MAX_REGIONS = 1048576 };

enum kvf_status kvfi_moon_regions_init(struct kvfi_moon_regions *regions, struct kvf_error *error)
{
    pthread_condattr_t monotonic;
    int failure;

    memset(regions, 0, sizeof *regions);
    regions->next_operation = 1;
    pthread_mutex_init(&regions->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    failure = pthread_cond_init(&regions->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (failure != 0) return kvfi_fail(error, KVF_ERR_SYSTEM, "mooncake: condition: %s", strerror(failure));
    return KVF_OK;
}

void kvfi_moon_regions_fini(struct kvfi_moon_regions *regions)
{
    for (size_t i = 0; i < regions->shape_count; i++) kvfi_moon_shape_free(regions->shapes[i]);
    free(regions->shapes);
    kvfi_moon_regions_drop(regions->sorted, regions->count);
    free(regions->sorted);
    free(regions->operations);
    pthread_cond_destroy(&regions->changed);
    pthread_mutex_destroy(&regions->lock);
}

/* ---- finding ---------------------------------------------------------------------------------------------------- */

/* How many begin at `address` or before. */
static size_t begun_by(const struct kvfi_moon_regions *regions, uint64_t address)
{
    size_t low = 0, high = regions->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (regions->sorted[middle]->address <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The one that holds `address`, or NULL. */
static struct kvfi_moon_region *at(const struct kvfi_moon_regions *regions, uint64_t address)
{
    size_t begun = begun_by(regions, address);
    struct kvfi_moon_region *region = begun > 0 ? regions->sorted[begun - 1] : NULL;

    return region && address - region->address < region->bytes ? region : NULL;
}

bool kvfi_moon_regions_hold(struct kvfi_moon_regions *regions, uint64_t address, uint64_t bytes)
{
    struct kvfi_moon_region *region = NULL;

    pthread_mutex_lock(&regions->lock);
    while (bytes > 0 && (region = at(regions, address)) != NULL) {
        uint64_t step = region->bytes - (address - region->address);

        if (step > bytes) step = bytes;
        address += step;
        bytes -= step;
    }
    pthread_mutex_unlock(&regions->lock);
    return bytes == 0;
}

/* ---- requests of peers ------------------------------------------------------------------------------------------ */

/* All of the request lies in one buffer and, where that is guarded, in granted blocks. */
static struct kvfi_moon_region *find(struct kvfi_moon_regions *regions, bool is_write, uint64_t address, uint64_t bytes,
                                     struct kvfi_moon_refusal *refusal)
{
    struct kvfi_moon_region *region = bytes > 0 ? at(regions, address) : NULL;

    *refusal = (struct kvfi_moon_refusal){.reason = KVFI_MOON_NO_BUFFER, .at = address};
    if (!region || bytes > region->bytes - (address - region->address)) return NULL;
    if (!region->guarded) return region;
    refusal->reason = KVFI_MOON_NO_READS;
    return is_write && kvfi_moon_admits(regions, address, address + (bytes - 1), regions->era, refusal) ? region : NULL;
}

bool kvfi_moon_regions_use(struct kvfi_moon_regions *regions, bool is_write, uint64_t address, uint64_t bytes,
                           struct kvfi_moon_use *use, struct kvfi_moon_refusal *refusal)
{
    struct kvfi_moon_region *region;

    pthread_mutex_lock(&regions->lock);
    region = find(regions, is_write, address, bytes, refusal);
    use->region = region;
    if (region) {
        region->uses++;
        use->address = address;
        use->bytes = bytes;
        use->era = regions->era;
        use->condemned = false;
        atomic_init(&use->revoked, false);
        kvfi_moon_use_link(region->guarded ? &regions->guarded : &region->under_way, use);
    }
    pthread_mutex_unlock(&regions->lock);
    return region != NULL;
}

void kvfi_moon_regions_release(struct kvfi_moon_regions *regions, struct kvfi_moon_use *use, bool arrived)
{
    struct kvfi_moon_region *region = use->region;

    if (!region) return;
    pthread_mutex_lock(&regions->lock);
    kvfi_moon_use_unlink(use);
    if (arrived && region->guarded) kvfi_moon_count_arrived(regions, use);
    if (use->condemned) kvfi_moon_tell_all(regions);
    if ((--region->uses == 0 && region->gone) || use->condemned) pthread_cond_broadcast(&regions->changed);
    pthread_mutex_unlock(&regions->lock);
    use->region = NULL;
}

/* ---- registering ------------------------------------------------------------------------------------------------ */

static enum kvf_status check(const struct kvf_mooncake_buffer *buffer, size_t index, struct kvf_error *error)
{
    if (buffer->address == 0 || buffer->bytes == 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "buffer %zu: %" PRIu64 " bytes at 0x%" PRIx64
                         ", expected an address and bytes other than 0", index, buffer->bytes, buffer->address);
    if (buffer->bytes - 1 > UINT64_MAX - buffer->address)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "buffer %zu: %" PRIu64 " bytes at 0x%" PRIx64
                         " are past the end of all addresses", index, buffer->bytes, buffer->address);
    return KVF_OK;
}

static enum kvf_status insert(struct kvfi_moon_regions *regions, const struct kvf_mooncake_buffer *buffer, size_t index,
                              struct kvf_error *error)
{
    uint64_t last = buffer->address + (buffer->bytes - 1);
    size_t place = begun_by(regions, last);
    const struct kvfi_moon_region *before = place > 0 ? regions->sorted[place - 1] : NULL;
    struct kvfi_moon_region *region;

    if (before && before->address + (before->bytes - 1) >= buffer->address)
        return kvfi_fail(error, KVF_ERR_EXISTS, "buffer %zu: %" PRIu64 " bytes at 0x%" PRIx64 " overlap the %" PRIu64
                         " bytes registered at 0x%" PRIx64, index, buffer->bytes, buffer->address, before->bytes,
                         before->address);
    if (regions->count >= MAX_REGIONS)
        return kvfi_fail(error, KVF_ERR_LIMIT, "buffer %zu: %zu are registered, at most %d", index, regions->count,
                         MAX_REGIONS);
    if (!kvfi_array_grow((void **)&regions->sorted, regions->count, &regions->capacity, sizeof *regions->sorted) ||
        !(region = kvfi_alloc_zeroed(1, sizeof *region)))
        return kvfi_fail_memory(error, "a registration");
    region->address = buffer->address;
    region->bytes = buffer->bytes;
    region->serial = regions->next_serial++;
    region->guarded = kvfi_moon_is_guarded(regions, region);
    atomic_init(&region->revoked, false);
    memmove(regions->sorted + place + 1, regions->sorted + place,
            (regions->count - place) * sizeof *regions->sorted);
    regions->sorted[place] = region;
    regions->count++;
    return KVF_OK;
}

static struct kvfi_moon_region *take_out(struct kvfi_moon_regions *regions, size_t place)
{
    struct kvfi_moon_region *region = regions->sorted[place];

    regions->count--;
    memmove(regions->sorted + place, regions->sorted + place + 1,
            (regions->count - place) * sizeof *regions->sorted);
    region->gone = true;
    return region;
}

static void take_back(struct kvfi_moon_regions *regions, uint64_t serial)
{
    for (size_t i = regions->count; i-- > 0;) {
        if (regions->sorted[i]->serial >= serial) free(take_out(regions, i));
    }
}

enum kvf_status kvfi_moon_regions_add(struct kvfi_moon_regions *regions, const struct kvf_mooncake_buffer *buffers,
                                      size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    uint64_t serial;

    for (size_t i = 0; status == KVF_OK && i < count; i++) status = check(&buffers[i], i, error);
    if (status != KVF_OK) return status;
    pthread_mutex_lock(&regions->lock);
    serial = regions->next_serial;
    for (size_t i = 0; status == KVF_OK && i < count; i++) status = insert(regions, &buffers[i], i, error);
    /* The lock is still held: nobody has used those of a call that failed. */
    if (status != KVF_OK) take_back(regions, serial);
    pthread_mutex_unlock(&regions->lock);
    return status;
}

/* ---- unregistering ---------------------------------------------------------------------------------------------- */

static bool is_start(const struct kvfi_moon_regions *regions, uint64_t address, size_t *place)
{
    size_t begun = begun_by(regions, address);

    *place = begun - 1;
    return begun > 0 && regions->sorted[begun - 1]->address == address;
}

enum kvf_status kvfi_moon_regions_remove(struct kvfi_moon_regions *regions, const uint64_t *addresses, size_t count,
                                         struct kvfi_moon_region **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t place, taken = 0;

    pthread_mutex_lock(&regions->lock);
    while (taken < count && is_start(regions, addresses[taken], &place)) {
        out[taken] = take_out(regions, place);
        taken++;
    }
    if (taken < count) {
        status = kvfi_fail(error, KVF_ERR_NOT_FOUND, "address %zu of %zu: no buffer was registered at 0x%" PRIx64,
                           taken, count, addresses[taken]);
        /* There is room: they were in it. */
        while (taken-- > 0) {
            struct kvfi_moon_region *region = out[taken];

            place = begun_by(regions, region->address);
            memmove(regions->sorted + place + 1, regions->sorted + place,
                    (regions->count - place) * sizeof *regions->sorted);
            regions->sorted[place] = region;
            regions->count++;
            region->gone = false;
        }
    }
    pthread_mutex_unlock(&regions->lock);
    return status;
}

static bool is_quiet(const struct kvfi_moon_regions *regions, struct kvfi_moon_region *const *removed, size_t count,
                     uint64_t operation)
{
    for (size_t i = 0; i < count; i++) {
        if (removed[i]->uses > 0) return false;
    }
    for (size_t i = 0; i < regions->operation_count; i++) {
        if (regions->operations[i] < operation) return false;
    }
    return true;
}

bool kvfi_moon_regions_await(struct kvfi_moon_regions *regions, struct kvfi_moon_region **removed, size_t count,
                             int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / KVFI_SECOND, .tv_nsec = deadline_ns % KVFI_SECOND};
    uint64_t operation;
    bool quiet;
    int failure = 0;

    pthread_mutex_lock(&regions->lock);
    operation = regions->next_operation;
    while (!(quiet = is_quiet(regions, removed, count, operation)) && failure != ETIMEDOUT)
        failure = pthread_cond_timedwait(&regions->changed, &regions->lock, &until);
    for (size_t i = 0; !quiet && i < count; i++) atomic_store(&removed[i]->revoked, true);
    pthread_mutex_unlock(&regions->lock);
    return quiet;
}

void kvfi_moon_regions_drop(struct kvfi_moon_region **removed, size_t count)
{
    for (size_t i = 0; i < count; i++) free(removed[i]);
}

/* ---- operations, lists ------------------------------------------------------------------------------------------ */

uint64_t kvfi_moon_regions_begin(struct kvfi_moon_regions *regions)
{
    uint64_t operation = 0;

    pthread_mutex_lock(&regions->lock);
    if (kvfi_array_grow((void **)&regions->operations, regions->operation_count, &regions->operation_capacity,
                        sizeof *regions->operations)) {
        operation = regions->next_operation++;
        regions->operations[regions->operation_count++] = operation;
    }
    pthread_mutex_unlock(&regions->lock);
    return operation;
}

void kvfi_moon_regions_end(struct kvfi_moon_regions *regions, uint64_t operation)
{
    pthread_mutex_lock(&regions->lock);
    for (size_t i = 0; i < regions->operation_count; i++) {
        if (regions->operations[i] != operation) continue;
        regions->operations[i] = regions->operations[--regions->operation_count];
        break;
    }
    pthread_cond_broadcast(&regions->changed);
    pthread_mutex_unlock(&regions->lock);
}

static int by_serial(const void *a, const void *b)
{
    const struct kvfi_moon_region *const *first = a, *const *second = b;

    return (*first)->serial < (*second)->serial ? -1 : (*first)->serial > (*second)->serial;
}

enum kvf_status kvfi_moon_regions_list(struct kvfi_moon_regions *regions, struct kvf_mooncake_buffer **out,
                                       size_t *count, struct kvf_error *error)
{
    struct kvf_mooncake_buffer *list;
    struct kvfi_moon_region **order;

    pthread_mutex_lock(&regions->lock);
    list = kvfi_alloc_array(regions->count, sizeof *list);
    order = kvfi_alloc_array(regions->count, sizeof *order);
    *count = list && order ? regions->count : 0;
    if (*count > 0) memcpy(order, regions->sorted, *count * sizeof *order);
    if (*count > 0) qsort(order, *count, sizeof *order, by_serial);
    for (size_t i = 0; i < *count; i++)
        list[i] = (struct kvf_mooncake_buffer){order[i]->address, order[i]->bytes};
    pthread_mutex_unlock(&regions->lock);
    free(order);
    if (!list || !order) {
        free(list);
        return kvfi_fail_memory(error, "a list of buffers");
    }
    *out = list;
    return KVF_OK;
}
