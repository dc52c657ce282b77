/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/armed.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "plan/plan.h"

enum { MAX_AREAS = 65536 };

struct kvfi_chunk_head kvfi_chunk_head_of(const struct kvfi_chunk *chunk)
{
    return (struct kvfi_chunk_head){
        .grant = chunk->grant, .index = chunk->index, .last = chunk->last, .layer_first = chunk->layer_first,
        .layer_end = chunk->layer_end, .token_begin = chunk->token_begin, .token_end = chunk->token_end,
        .bind_flags = chunk->bind_flags, .bytes = chunk->bytes};
}

void kvfi_put_chunk_head(struct kvfi_writer *writer, const struct kvfi_chunk_head *head)
{
    kvfi_put_u64(writer, head->grant);
    kvfi_put_u32(writer, head->index);
    kvfi_put_u32(writer, head->last);
    kvfi_put_i64(writer, head->layer_first);
    kvfi_put_i64(writer, head->layer_end);
    kvfi_put_i64(writer, head->token_begin);
    kvfi_put_i64(writer, head->token_end);
    kvfi_put_u64(writer, head->bind_flags);
    kvfi_put_i64(writer, head->bytes);
}

struct kvfi_chunk_head kvfi_get_chunk_head(struct kvfi_reader *reader)
{
    struct kvfi_chunk_head head;

    head.grant = kvfi_get_u64(reader);
    head.index = kvfi_get_u32(reader);
    head.last = kvfi_get_u32(reader);
    head.layer_first = kvfi_get_i64(reader);
    head.layer_end = kvfi_get_i64(reader);
    head.token_begin = kvfi_get_i64(reader);
    head.token_end = kvfi_get_i64(reader);
    head.bind_flags = kvfi_get_u64(reader);
    head.bytes = kvfi_get_i64(reader);
    return head;
}

bool kvfi_chunk_head_equal(const struct kvfi_chunk_head *a, const struct kvfi_chunk_head *b)
{
    return a->grant == b->grant && a->index == b->index && a->last == b->last && a->layer_first == b->layer_first &&
           a->layer_end == b->layer_end && a->token_begin == b->token_begin && a->token_end == b->token_end &&
           a->bind_flags == b->bind_flags && a->bytes == b->bytes;
}

void kvfi_armed_init(struct kvfi_armed *table)
{
    memset(table, 0, sizeof *table);
    pthread_mutex_init(&table->lock, NULL);
    pthread_cond_init(&table->placed, NULL);
}

static void release_locked(struct kvfi_grant *grant);

void kvfi_armed_fini(struct kvfi_armed *table)
{
    for (size_t i = 0; i < KVFI_ARMED_BUCKETS; i++) {
        while (table->buckets[i]) {
            struct kvfi_grant *grant = table->buckets[i];

            table->buckets[i] = grant->next;
            release_locked(grant);
        }
    }
    for (size_t i = 0; i < KVFI_ARMED_PLANS; i++) {
        kvf_plan_release(table->plans[i].whole);
        kvf_plan_release(table->plans[i].part);
    }
    pthread_cond_destroy(&table->placed);
    pthread_mutex_destroy(&table->lock);
}

static struct kvfi_grant **find_slot(struct kvfi_armed *table, uint64_t number)
{
    struct kvfi_grant **slot = &table->buckets[(number ^ number >> 32) % KVFI_ARMED_BUCKETS];

    while (*slot && (*slot)->number != number) slot = &(*slot)->next;
    return slot;
}

/* ---- making and freeing grants ---------------------------------------------------------------------------------- */

static void free_lists(struct kvf_bind_request *request)
{
    struct kvf_id_list *lists = (struct kvf_id_list *)request->dst;

    for (size_t i = 0; lists && i < request->dst_count; i++) free((void *)lists[i].ids);
    free(lists);
}

/* Copies the destination's lists; the source's are not known here. */
static bool copy_request(struct kvf_bind_request *own, const struct kvf_bind_request *given)
{
    struct kvf_id_list *lists = kvfi_alloc_zeroed(given->dst_count, sizeof *lists);
    bool ok = lists != NULL;

    kvf_bind_request_init(own, sizeof *own);
    own->flags = given->flags | KVF_BIND_SRC_UNKNOWN;
    own->token_begin = given->token_begin;
    own->token_end = given->token_end;
    own->request_tokens = given->request_tokens;
    own->dst = lists;
    own->dst_count = ok ? given->dst_count : 0;
    for (size_t i = 0; ok && i < given->dst_count; i++) {
        int64_t *ids = kvfi_alloc_array(given->dst[i].count, sizeof *ids);

        ok = ids != NULL;
        if (ok && given->dst[i].count > 0) memcpy(ids, given->dst[i].ids, given->dst[i].count * sizeof *ids);
        lists[i] = given->dst[i];
        lists[i].ids = ids;
    }
    return ok;
}

static void free_grant(struct kvfi_grant *grant)
{
    for (size_t i = 0; i < grant->arrival_capacity; i++) {
        if (!grant->arrivals[i]) continue;
        kvf_binding_destroy(grant->arrivals[i]->binding);
        free(grant->arrivals[i]->spans);
        free(grant->arrivals[i]);
    }
    free(grant->arrivals);
    free(grant->areas);
    free(grant->state_areas);
    free_lists(&grant->request);
    kvf_plan_release(grant->plan);
    free(grant);
}

static void release_locked(struct kvfi_grant *grant)
{
    if (--grant->references == 0) free_grant(grant);
}

void kvfi_grant_acquire(struct kvfi_grant *grant)
{
    pthread_mutex_lock(&grant->table->lock);
    grant->references++;
    pthread_mutex_unlock(&grant->table->lock);
}

void kvfi_grant_release(struct kvfi_grant *grant)
{
    struct kvfi_armed *table = grant->table;

    pthread_mutex_lock(&table->lock);
    release_locked(grant);
    pthread_mutex_unlock(&table->lock);
}

enum kvf_status kvfi_armed_add(struct kvfi_armed *table, const struct kvfi_arm *arm, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_grant **slot;
    struct kvfi_grant *grant = NULL;
    bool rings;

    if (arm->grant == 0 || arm->bytes < 0 || !arm->plan || !arm->request) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "grant %016" PRIx64 " of %" PRId64
                           " bytes: expected a number other than 0, at least 0 bytes, a plan and a request", arm->grant,
                           arm->bytes);
        goto done;
    }
    grant = kvfi_alloc_zeroed(1, sizeof *grant);
    if (!grant || !copy_request(&grant->request, arm->request)) {
        status = kvfi_fail_memory(error, "a grant");
        goto done;
    }
    grant->table = table;
    grant->number = arm->grant;
    grant->references = 1;
    grant->writer = arm->writer;
    grant->plan = kvf_plan_acquire(arm->plan);
    grant->bytes = arm->bytes;
    grant->last_index = UINT32_MAX;
    grant->has_state = kvfi_plan_is_stateful(arm->plan, &rings);
    pthread_mutex_lock(&table->lock);
    slot = find_slot(table, arm->grant);
    if (*slot) {
        status = kvfi_fail(error, KVF_ERR_EXISTS, "grant %016" PRIx64 " is armed already", arm->grant);
    } else {
        *slot = grant;
        grant = NULL;
    }
    pthread_mutex_unlock(&table->lock);
done:
    if (grant) free_grant(grant);
    return status;
}

/* Waits, under the lock, until no thread of this side is placing under a dead grant. */
static void wait_placed(struct kvfi_grant *grant)
{
    while (grant->placing > 0) pthread_cond_wait(&grant->table->placed, &grant->table->lock);
}

struct kvfi_grant *kvfi_armed_remove(struct kvfi_armed *table, uint64_t number)
{
    struct kvfi_grant **slot;
    struct kvfi_grant *grant;

    pthread_mutex_lock(&table->lock);
    slot = find_slot(table, number);
    grant = *slot;
    if (grant) {
        *slot = grant->next;
        grant->dead = true;
        wait_placed(grant);
    }
    pthread_mutex_unlock(&table->lock);
    return grant;
}

/* ---- opening chunks --------------------------------------------------------------------------------------------- */

static bool areas_meet(const struct kvfi_area *a, const struct kvfi_area *b)
{
    return a->layer_first < b->layer_end && b->layer_first < a->layer_end && a->begin < b->end && b->begin < a->end;
}

/* Makes `old` cover `more` too where the two are one rectangle. */
static bool areas_join(struct kvfi_area *old, const struct kvfi_area *more)
{
    bool joined = true;

    if (old->layer_first == more->layer_first && old->layer_end == more->layer_end && old->end == more->begin)
        old->end = more->end;
    else if (old->begin == more->begin && old->end == more->end && old->layer_end == more->layer_first)
        old->layer_end = more->layer_end;
    else
        joined = false;
    return joined;
}

/* Adds what a chunk covers. KVF_ERR_PROTOCOL when some of it is covered already. An empty area covers nothing. */
static enum kvf_status cover(struct kvfi_area **areas, size_t *count, size_t *capacity, const struct kvfi_area *area)
{
    enum kvf_status status = KVF_OK;

    if (area->begin >= area->end) goto done;
    for (size_t i = 0; i < *count; i++) {
        if (areas_meet(&(*areas)[i], area)) {
            status = KVF_ERR_PROTOCOL;
            goto done;
        }
    }
    for (size_t i = *count; i > 0; i--) {
        if (areas_join(&(*areas)[i - 1], area)) goto done;
    }
    if (*count >= MAX_AREAS) {
        status = KVF_ERR_LIMIT;
        goto done;
    }
    if (!kvfi_array_grow((void **)areas, *count, capacity, sizeof **areas)) {
        status = KVF_ERR_NO_MEMORY;
        goto done;
    }
    (*areas)[(*count)++] = *area;
done:
    return status;
}

static enum kvf_status cover_chunk(struct kvfi_grant *grant, const struct kvfi_chunk_head *head,
                                   struct kvf_error *error)
{
    struct kvfi_area area = {head->layer_first, head->layer_end, head->token_begin, head->token_end};
    struct kvfi_area state = {head->layer_first, head->layer_end, 0, 1};
    enum kvf_status status = KVF_OK;

    if (!(head->bind_flags & KVF_BIND_ONLY_STATE))
        status = cover(&grant->areas, &grant->area_count, &grant->area_capacity, &area);
    if (status == KVF_OK && grant->has_state && !(head->bind_flags & KVF_BIND_NO_STATE))
        status = cover(&grant->state_areas, &grant->state_area_count, &grant->state_area_capacity, &state);
    if (status == KVF_ERR_PROTOCOL)
        kvfi_fail(error, status,
                  "chunk %" PRIu32 " covers layers [%" PRId64 ",%" PRId64 ") tokens [%" PRId64 ",%" PRId64
                  ") a second time",
                  head->index, head->layer_first, head->layer_end, head->token_begin, head->token_end);
    else if (status == KVF_ERR_LIMIT)
        kvfi_fail(error, status, "chunk %" PRIu32 ": more than %d separate areas", head->index, MAX_AREAS);
    else if (status != KVF_OK)
        kvfi_fail_memory(error, "the areas of a grant");
    return status;
}

/* Checks what can be checked without planning. */
static enum kvf_status check_head(const struct kvfi_grant *grant, const struct kvfi_chunk_head *head,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (head->index >= KVFI_CHUNK_LIMIT || (grant->last_index != UINT32_MAX && head->index > grant->last_index) ||
        head->last > 1 || (head->last && grant->last_index != UINT32_MAX))
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 " (last: %" PRIu32 ") of a grant of %" PRIu32
                           " chunks", head->index, head->last,
                           grant->last_index == UINT32_MAX ? KVFI_CHUNK_LIMIT : grant->last_index + 1);
    else if (head->layer_first < 0 || head->layer_first >= head->layer_end)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 ": layers [%" PRId64 ",%" PRId64 ") are none",
                           head->index, head->layer_first, head->layer_end);
    else if (head->token_begin > head->token_end || head->token_begin < grant->request.token_begin ||
             head->token_end > grant->request.token_end)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 ": tokens [%" PRId64 ",%" PRId64
                           ") leave the granted [%" PRId64 ",%" PRId64 ")", head->index, head->token_begin,
                           head->token_end, grant->request.token_begin, grant->request.token_end);
    else if (head->bind_flags != 0 && head->bind_flags != KVF_BIND_NO_STATE && head->bind_flags != KVF_BIND_ONLY_STATE)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 ": bind flags 0x%" PRIx64
                           ", expected 0, 0x%x or 0x%x", head->index, head->bind_flags, KVF_BIND_NO_STATE,
                           KVF_BIND_ONLY_STATE);
    else if (head->bytes < 0 || head->bytes > grant->bytes)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 ": its writer says %" PRId64
                           " bytes, %" PRId64 " are granted", head->index, head->bytes, grant->bytes);
    return status;
}

static bool make_room(struct kvfi_grant *grant, uint32_t index)
{
    size_t capacity = grant->arrival_capacity ? grant->arrival_capacity : 4;
    struct kvfi_arrival **grown = grant->arrivals;

    if (index < grant->arrival_capacity) goto done;
    while (capacity <= index) capacity *= 2;
    grown = realloc(grant->arrivals, capacity * sizeof *grown);
    if (!grown) goto done;
    for (size_t i = grant->arrival_capacity; i < capacity; i++) grown[i] = NULL;
    grant->arrivals = grown;
    grant->arrival_capacity = capacity;
done:
    return grown != NULL;
}

static enum kvf_status add_arrival(struct kvfi_grant *grant, const struct kvfi_chunk_head *head,
                                   struct kvfi_arrival **out, struct kvf_error *error)
{
    struct kvfi_arrival *arrival = NULL;
    enum kvf_status status = check_head(grant, head, error);

    if (status == KVF_OK) {
        arrival = kvfi_alloc_zeroed(1, sizeof *arrival);
        if (!arrival || !make_room(grant, head->index)) status = kvfi_fail_memory(error, "a chunk's record");
    }
    if (status == KVF_OK) status = cover_chunk(grant, head, error);
    if (status != KVF_OK) {
        free(arrival);
        goto done;
    }
    arrival->grant = grant;
    arrival->head = *head;
    grant->arrivals[head->index] = arrival;
    if (head->last) grant->last_index = head->index;
    *out = arrival;
done:
    return status;
}

static bool is_writer(const struct kvfi_grant *grant, const struct kvfi_peer_identity *writer)
{
    return grant->writer.incarnation == writer->incarnation && strcmp(grant->writer.name, writer->name) == 0;
}

enum kvf_status kvfi_armed_open(struct kvfi_armed *table, const struct kvfi_chunk_head *head,
                                const struct kvfi_peer_identity *writer, struct kvfi_arrival **out, bool *out_failed,
                                struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_arrival *found = NULL;
    struct kvfi_grant *grant;

    *out_failed = false;
    pthread_mutex_lock(&table->lock);
    grant = *find_slot(table, head->grant);
    if (!grant || grant->dead || !is_writer(grant, writer)) {
        status =
            kvfi_fail(error, KVF_ERR_REFUSED, "grant %016" PRIx64 " is not armed for %s", head->grant, writer->name);
        goto done;
    }
    if (head->index < grant->arrival_capacity) found = grant->arrivals[head->index];
    if (!found)
        status = add_arrival(grant, head, &found, error);
    else if (!kvfi_chunk_head_equal(&found->head, head))
        status =
            kvfi_fail(error, KVF_ERR_PROTOCOL, "chunk %" PRIu32 " is announced twice in different ways", head->index);
    if (status == KVF_OK) {
        grant->references++;
        *out = found;
    } else if (status != KVF_ERR_NO_MEMORY) {
        grant->dead = true;
        wait_placed(grant);
        *out_failed = true;
    }
done:
    pthread_mutex_unlock(&table->lock);
    return status;
}

/* ---- binding ---------------------------------------------------------------------------------------------------- */

/* The plan restricted to a chunk's layers: from the cache, or made and put there in place of the least used. Locked. */
static enum kvf_status restrict_plan(struct kvfi_armed *table, kvf_plan *whole, int64_t layer_first, int64_t layer_end,
                                     kvf_plan **out, struct kvf_error *error)
{
    struct kvfi_restricted *place = &table->plans[0];
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < KVFI_ARMED_PLANS; i++) {
        struct kvfi_restricted *kept = &table->plans[i];

        if (kept->whole == whole && kept->layer_first == layer_first && kept->layer_end == layer_end) {
            kept->used = ++table->clock;
            *out = kvf_plan_acquire(kept->part);
            goto done;
        }
        if (kept->used < place->used) place = kept;
    }
    status = kvf_plan_restrict(whole, layer_first, layer_end, out, error);
    if (status != KVF_OK) goto done;
    kvf_plan_release(place->whole);
    kvf_plan_release(place->part);
    *place = (struct kvfi_restricted){kvf_plan_acquire(whole), kvf_plan_acquire(*out), layer_first, layer_end,
                                      ++table->clock};
done:
    return status;
}

static bool has_all_layers(const struct kvfi_grant *grant, const struct kvfi_chunk_head *head)
{
    struct kvf_plan_info info;

    kvf_plan_get_info(grant->plan, &info);
    return head->layer_first <= info.layer_min && head->layer_end >= info.layer_end;
}

static enum kvf_status bind_chunk(struct kvfi_arrival *arrival, kvf_binding **binding, struct kvf_error *error)
{
    struct kvfi_grant *grant = arrival->grant;
    const struct kvfi_chunk_head *head = &arrival->head;
    struct kvf_bind_request request = grant->request;
    kvf_plan *plan = NULL;
    enum kvf_status status = KVF_OK;

    if (has_all_layers(grant, head)) {
        plan = kvf_plan_acquire(grant->plan);
    } else {
        pthread_mutex_lock(&grant->table->lock);
        status = restrict_plan(grant->table, grant->plan, head->layer_first, head->layer_end, &plan, error);
        pthread_mutex_unlock(&grant->table->lock);
    }
    if (status != KVF_OK) goto done;
    request.flags |= head->bind_flags;
    request.token_begin = head->token_begin;
    request.token_end = head->token_end;
    status = kvf_bind(plan, &request, binding, error);
done:
    kvf_plan_release(plan);
    return status;
}

enum kvf_status kvfi_arrival_bind(struct kvfi_arrival *arrival, bool need_binding, struct kvf_error *error)
{
    struct kvfi_grant *grant = arrival->grant;
    const struct kvfi_chunk_head *head = &arrival->head;
    bool whole = has_all_layers(grant, head) && head->token_begin == grant->request.token_begin &&
                 head->token_end == grant->request.token_end && head->bind_flags == 0;
    int64_t bytes = grant->bytes;
    kvf_binding *binding = NULL;
    enum kvf_status status = KVF_OK;
    bool done;

    pthread_mutex_lock(&grant->table->lock);
    done = arrival->state == KVFI_ARRIVAL_PLACED || arrival->binding != NULL;
    pthread_mutex_unlock(&grant->table->lock);
    if (done) goto done;
    if (need_binding || !whole) {
        status = bind_chunk(arrival, &binding, error);
        if (status != KVF_OK) goto done;
        bytes = kvf_binding_bytes(binding);
    }
    if (bytes != head->bytes) {
        status = kvfi_fail(error, KVF_ERR_PROTOCOL,
                           "chunk %" PRIu32 " has %" PRId64 " bytes here, its writer says %" PRId64, head->index,
                           bytes, head->bytes);
        goto done;
    }
    pthread_mutex_lock(&grant->table->lock);
    if (need_binding && !arrival->binding) {
        arrival->binding = binding;
        binding = NULL;
    }
    pthread_mutex_unlock(&grant->table->lock);
done:
    kvf_binding_destroy(binding);
    return status;
}

/* ---- placing ---------------------------------------------------------------------------------------------------- */

bool kvfi_grant_fail(struct kvfi_grant *grant)
{
    bool first;

    pthread_mutex_lock(&grant->table->lock);
    first = !grant->dead;
    grant->dead = true;
    wait_placed(grant);
    pthread_mutex_unlock(&grant->table->lock);
    return first;
}

struct kvfi_placed kvfi_arrival_place(struct kvfi_arrival *arrival)
{
    struct kvfi_grant *grant = arrival->grant;
    struct kvfi_placed placed = {0};

    pthread_mutex_lock(&grant->table->lock);
    if (arrival->state != KVFI_ARRIVAL_PLACED) {
        arrival->state = KVFI_ARRIVAL_PLACED;
        grant->placed_bytes += arrival->head.bytes;
        grant->placed_chunks++;
        placed.tell = !grant->dead;
        bool all_chunks = grant->last_index != UINT32_MAX && grant->placed_chunks == grant->last_index + 1;

        placed.complete = !grant->complete && grant->placed_bytes == grant->bytes && (grant->bytes > 0 || all_chunks);
        placed.short_of = !grant->dead && all_chunks && grant->placed_bytes < grant->bytes;
        grant->complete = grant->complete || placed.complete;
        grant->dead = grant->dead || placed.short_of;
    }
    pthread_mutex_unlock(&grant->table->lock);
    return placed;
}

void kvfi_grant_begin_write(struct kvfi_grant *grant)
{
    pthread_mutex_lock(&grant->table->lock);
    grant->open_count++;
    pthread_mutex_unlock(&grant->table->lock);
}

bool kvfi_grant_end_write(struct kvfi_grant *grant)
{
    bool tell;

    pthread_mutex_lock(&grant->table->lock);
    grant->open_count--;
    tell = grant->open_count == 0 && grant->quiet_wanted;
    if (tell) grant->quiet_wanted = false;
    pthread_mutex_unlock(&grant->table->lock);
    return tell;
}

bool kvfi_grant_is_quiet(struct kvfi_grant *grant)
{
    bool quiet;

    pthread_mutex_lock(&grant->table->lock);
    quiet = grant->open_count == 0;
    grant->quiet_wanted = !quiet;
    pthread_mutex_unlock(&grant->table->lock);
    return quiet;
}

bool kvfi_grant_begin_place(struct kvfi_grant *grant)
{
    bool alive;

    pthread_mutex_lock(&grant->table->lock);
    alive = !grant->dead;
    if (alive) grant->placing++;
    pthread_mutex_unlock(&grant->table->lock);
    return alive;
}

void kvfi_grant_end_place(struct kvfi_grant *grant)
{
    pthread_mutex_lock(&grant->table->lock);
    if (--grant->placing == 0) pthread_cond_broadcast(&grant->table->placed);
    pthread_mutex_unlock(&grant->table->lock);
}
