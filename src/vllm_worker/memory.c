/* SPDX-License-Identifier: Apache-2.0 */
/* Registering, sleeping, waking. What may wait for peers (the transfer engine, the registry) is done by the caller's
 * thread; the loop's thread only sees the states before and after. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "vllm_worker/calls.h"
#include "vllm_worker/gates.h"

/* How long requests of peers that nobody waits for any more may hold up taking memory back. */
#define UNREGISTER_NS (2 * KVFI_SECOND)

/* ---- with the transfer engine ------------------------------------------------------------------------------- */

static enum kvf_status engine_register(kvf_vllm_worker *worker, const struct kvf_vllm_storage *memory, size_t count,
                                       struct kvf_error *error)
{
    struct kvf_mooncake_buffer *buffers = kvfi_alloc_array(count, sizeof *buffers);
    enum kvf_status status;

    if (buffers == NULL)
        return kvfi_fail_memory(error, "a list of buffers");
    for (size_t i = 0; i < count; i++)
        buffers[i] = (struct kvf_mooncake_buffer){memory[i].base_addr, (uint64_t)memory[i].bytes};
    status = kvf_mooncake_register(worker->engine, buffers, count, error);
    free(buffers);
    return status;
}

static enum kvf_status engine_unregister(kvf_vllm_worker *worker, const struct kvf_vllm_storage *memory, size_t count,
                                         struct kvf_error *error)
{
    uint64_t *addresses = kvfi_alloc_array(count, sizeof *addresses);
    enum kvf_status status;

    if (addresses == NULL)
        return kvfi_fail_memory(error, "a list of addresses");
    for (size_t i = 0; i < count; i++)
        addresses[i] = memory[i].base_addr;
    status = kvf_mooncake_unregister(worker->engine, addresses, count, UNREGISTER_NS, error);
    free(addresses);
    return status;
}

/* ---- what is asked for -------------------------------------------------------------------------------------- */

struct registering {
    struct kvf_vllm_storage *memory; /* sorted by address */
    size_t memory_count;
    kvf_vllm_regions *regions;
    bool has_opaque_row;
    struct kvf_vllm_producer *producer; /* NULL unless it produces */
    struct kvfi_vllm_gates *gates;      /* NULL unless it consumes; after the commit those of before */
    bool serve;                         /* its side channel is still to be opened */
};

static int by_address(const void *a, const void *b)
{
    uint64_t first = ((const struct kvf_vllm_storage *)a)->base_addr;
    uint64_t second = ((const struct kvf_vllm_storage *)b)->base_addr;
    return (first > second) - (first < second);
}

static enum kvf_status check_memory(const struct kvf_vllm_storage *memory, size_t count, struct kvf_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (memory[i].base_addr == 0 || memory[i].bytes <= 0 ||
            (uint64_t)memory[i].bytes - 1 > UINT64_MAX - memory[i].base_addr)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "memory: %" PRId64 " bytes at 0x%" PRIx64
                             ", expected an address and bytes above 0, before the end of all addresses",
                             memory[i].bytes, memory[i].base_addr);
    return KVF_OK;
}

/* The first block's payload, at least, lies in one allocation. */
static enum kvf_status check_region(const struct registering *asked, const struct kvf_vllm_region *region,
                                    struct kvf_error *error)
{
    size_t low = 0, high = asked->memory_count;
    const struct kvf_vllm_storage *storage;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (asked->memory[middle].base_addr <= region->base_addr)
            low = middle + 1;
        else
            high = middle;
    }
    storage = low > 0 ? &asked->memory[low - 1] : NULL;
    if (storage == NULL || region->base_addr - storage->base_addr >= (uint64_t)storage->bytes ||
        region->kv_block_len > storage->bytes - (int64_t)(region->base_addr - storage->base_addr))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "regions: %s has %" PRId64 " bytes a block at 0x%" PRIx64
                         ", which lie in none of the %zu allocations", region->layer_name, region->kv_block_len,
                         region->base_addr, asked->memory_count);
    return KVF_OK;
}

static void forget(struct registering *asked)
{
    kvf_vllm_producer_destroy(asked->producer);
    kvfi_vllm_gates_close(asked->gates);
    kvf_vllm_regions_release(asked->regions);
    free(asked->memory);
}

static enum kvf_status make_producer(const kvf_vllm_worker *worker, struct registering *asked, struct kvf_error *error)
{
    const struct kvf_vllm_worker_options *options = &worker->options;
    struct kvf_vllm_producer_spec spec;

    kvf_vllm_producer_spec_init(&spec, sizeof spec);
    spec.tp_rank = options->tp_rank;
    spec.tp_size = options->tp_size;
    spec.pp_size = options->pp_size;
    spec.is_mla = options->is_mla;
    spec.has_opaque_row = asked->has_opaque_row;
    spec.total_kv_heads = options->total_kv_heads;
    spec.group_kinds = options->group_kinds;
    spec.group_count = options->group_count;
    spec.layers = options->layers;
    spec.layer_count = options->layer_count;
    spec.kernel_blocks_per_block = options->kernel_blocks_per_block;
    spec.max_prepared = options->max_prepared;
    spec.keeps_layers_apart = 1;
    kvf_vllm_regions_arrays(asked->regions, &spec.regions);
    return kvf_vllm_producer_create(&spec, &asked->producer, error);
}

static enum kvf_status prepare(const kvf_vllm_worker *worker, const struct kvf_vllm_storage *memory,
                               size_t memory_count, const kvf_vllm_regions *regions, int32_t has_opaque_row,
                               struct registering *out, struct kvf_error *error)
{
    const struct kvf_vllm_region *list;
    enum kvf_status status;
    size_t count;

    *out = (struct registering){.memory_count = memory_count, .has_opaque_row = has_opaque_row != 0};
    if (regions == NULL || (memory == NULL && memory_count > 0))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "register: %s NULL",
                         regions == NULL ? "regions are" : "memory is");
    out->memory = kvfi_alloc_array(memory_count, sizeof *memory);
    if (out->memory == NULL)
        return kvfi_fail_memory(error, "a list of memory");
    if (memory_count > 0)
        memcpy(out->memory, memory, memory_count * sizeof *memory);
    qsort(out->memory, memory_count, sizeof *memory, by_address);
    out->regions = kvf_vllm_regions_acquire(regions);
    status = check_memory(out->memory, memory_count, error);
    list = kvf_vllm_regions_get(regions, &count);
    for (size_t i = 0; status == KVF_OK && i < count; i++)
        status = check_region(out, &list[i], error);
    if (status == KVF_OK && worker->produces)
        status = make_producer(worker, out, error);
    return status;
}

/* ---- registering -------------------------------------------------------------------------------------------- */

/* Writes, fetches, and requests whose blocks are offered. */
static int64_t held(const kvf_vllm_worker *worker)
{
    return kvfi_vllm_worker_busy(worker) + (worker->produces ? kvfi_vllm_sender_offered(worker) : 0);
}

static enum kvf_status check_changeable(const kvf_vllm_worker *worker, struct kvf_error *error)
{
    if (worker->closed)
        return kvfi_fail(error, KVF_ERR_CLOSED, "the worker is shutting down");
    if (worker->changing)
        return kvfi_fail(error, KVF_ERR_AGAIN, "another call registers the worker's memory");
    return KVF_OK;
}

static enum kvf_status run_begin(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    struct registering *asked = argument;
    enum kvf_status status = check_changeable(worker, error);

    if (status == KVF_OK && held(worker) > 0)
        status = kvfi_fail(error, KVF_ERR_AGAIN, "%" PRId64 " requests use the memory that is registered",
                           held(worker));
    if (status != KVF_OK)
        return status;
    worker->changing = true;
    worker->was_registered = worker->registered && !worker->asleep;
    worker->registered = false;
    asked->serve = worker->produces && !kvfi_vllm_sender_serves(worker);
    return KVF_OK;
}

/* The worker has the new memory. */
static enum kvf_status run_commit(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    struct registering *asked = argument;
    struct registering old = {.memory = worker->memory, .regions = worker->regions};

    (void)error;
    worker->memory = asked->memory;
    worker->memory_count = asked->memory_count;
    worker->regions = asked->regions;
    worker->has_opaque_row = asked->has_opaque_row;
    worker->layout_id = 0;
    if (worker->options.layout_ids)
        worker->layout_id = kvfi_random_u64() >> 1 | 1; /* as upstream draws it: 63 bits, odd, so never 0 */
    worker->asleep = false;
    worker->registered = !asked->serve; /* else once it serves */
    worker->changing = asked->serve;
    if (worker->produces)
        kvfi_vllm_sender_on_registered(worker, asked->producer);
    if (worker->consumes)
        asked->gates = kvfi_vllm_consumer_on_registered(worker, asked->gates);
    asked->producer = NULL;
    asked->memory = NULL;
    asked->regions = NULL;
    forget(&old);
    return KVF_OK;
}

/* It has the old memory again, as it was; `argument` says whether that is registered with the transfer engine. */
static enum kvf_status run_restore(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)error;
    worker->registered = worker->memory != NULL;
    worker->asleep = worker->registered && !*(const bool *)argument;
    worker->changing = false;
    return KVF_OK;
}

/* It has none. */
static enum kvf_status run_undo(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)argument;
    (void)error;
    if (worker->produces)
        kvfi_vllm_sender_on_registered(worker, NULL);
    worker->registered = worker->changing = false;
    free(worker->memory);
    kvf_vllm_regions_release(worker->regions);
    worker->memory = NULL;
    worker->memory_count = 0;
    worker->regions = NULL;
    worker->layout_id = 0;
    return KVF_OK;
}

static enum kvf_status swap(kvf_vllm_worker *worker, struct registering *asked, struct kvf_error *error)
{
    /* These do not change while `changing` is set. */
    bool awake = worker->was_registered;
    enum kvf_status status = KVF_OK;

    if (awake)
        status = engine_unregister(worker, worker->memory, worker->memory_count, error);
    if (status == KVF_OK) {
        if (worker->consumes) /* first: it is never open to all */
            status = kvfi_vllm_consumer_guard(worker, asked->regions, asked->memory, asked->memory_count, &asked->gates,
                                              error);
        if (status == KVF_OK)
            status = engine_register(worker, asked->memory, asked->memory_count, error);
        if (status != KVF_OK && awake)
            awake = engine_register(worker, worker->memory, worker->memory_count, NULL) == KVF_OK;
    }
    return kvfi_vllm_worker_call(worker, status == KVF_OK ? run_commit : run_restore,
                                 status == KVF_OK ? (void *)asked : (void *)&awake, NULL) == KVF_OK
               ? status
               : kvfi_fail(error, KVF_ERR_CLOSED, "the worker is closed");
}

static enum kvf_status run_served(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)argument;
    (void)error;
    worker->changing = false;
    worker->registered = true;
    kvfi_vllm_sender_resume(worker);
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_register(kvf_vllm_worker *worker, const struct kvf_vllm_storage *memory,
                                         size_t memory_count, const kvf_vllm_regions *regions, int32_t has_opaque_row,
                                         struct kvf_error *error)
{
    struct registering asked;
    enum kvf_status status =
        prepare(worker, memory, memory_count, regions, has_opaque_row, &asked, error);

    if (status == KVF_OK)
        status = kvfi_vllm_worker_call(worker, run_begin, &asked, error);
    if (status == KVF_OK)
        status = swap(worker, &asked, error);
    if (status == KVF_OK && asked.serve) {
        status = kvfi_vllm_sender_serve(worker, error);
        if (status != KVF_OK) {
            engine_unregister(worker, worker->memory, worker->memory_count, NULL);
            kvfi_vllm_worker_call(worker, run_undo, NULL, NULL);
        } else {
            kvfi_vllm_worker_call(worker, run_served, NULL, NULL);
        }
    }
    forget(&asked);
    return status;
}

/* ---- sleep and wake ----------------------------------------------------------------------------------------- */

struct sleeping {
    int64_t left; /* first: what kvfi_vllm_worker_call_until_idle reads */
    bool begun;
};

static enum kvf_status run_sleep(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    struct sleeping *call = argument;
    enum kvf_status status = call->begun ? KVF_OK : check_changeable(worker, error);

    if (status == KVF_OK && !call->begun && (!worker->registered || worker->asleep))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "sleep: the worker %s",
                           worker->registered ? "is asleep" : "has no memory registered");
    if (status != KVF_OK)
        return status;
    call->begun = worker->changing = true; /* no step is taken; what is offered is still sent */
    call->left = held(worker);
    worker->asleep = call->left == 0;
    return KVF_OK;
}

static enum kvf_status run_slept(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    (void)error;
    worker->changing = false;
    worker->asleep = *(const bool *)argument;
    if (!worker->asleep && worker->produces)
        kvfi_vllm_sender_resume(worker);
    return KVF_OK;
}

enum kvf_status kvf_vllm_worker_sleep(kvf_vllm_worker *worker, int64_t timeout_ns, struct kvf_error *error)
{
    struct sleeping call = {.left = 0};
    bool asleep;
    enum kvf_status status = kvfi_vllm_worker_call_until_idle(worker, run_sleep, &call.left, timeout_ns, error);

    if (!call.begun)
        return status;
    if (status == KVF_OK && call.left > 0)
        status = kvfi_fail(error, KVF_ERR_AGAIN, "%" PRId64 " requests use the memory that is registered", call.left);
    if (status == KVF_OK)
        status = engine_unregister(worker, worker->memory, worker->memory_count, error);
    asleep = status == KVF_OK;
    kvfi_vllm_worker_call(worker, run_slept, &asleep, NULL);
    return status;
}

static enum kvf_status run_wake(kvf_vllm_worker *worker, void *argument, struct kvf_error *error)
{
    enum kvf_status status = check_changeable(worker, error);

    (void)argument;
    if (status == KVF_OK && (!worker->registered || !worker->asleep))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "wake: the worker %s",
                           worker->registered ? "is awake" : "has no memory registered");
    worker->changing = worker->changing || status == KVF_OK;
    return status;
}

enum kvf_status kvf_vllm_worker_wake(kvf_vllm_worker *worker, struct kvf_error *error)
{
    enum kvf_status status = kvfi_vllm_worker_call(worker, run_wake, NULL, error);
    bool asleep;

    if (status != KVF_OK)
        return status;
    status = engine_register(worker, worker->memory, worker->memory_count, error);
    asleep = status != KVF_OK;
    kvfi_vllm_worker_call(worker, run_slept, &asleep, NULL);
    return status;
}
