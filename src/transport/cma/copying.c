/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/cma/inside.h"
#include "transport/fault/wire.h"
#include "transport/vm_write.h"

/* A batch is one call into the kernel: at most so many bytes, so that a stop is heard soon. */
#define BATCH_BYTES (INT64_C(8) << 20)

enum { FETCHED = 256 };

/* A part of a range, or all of it. */
struct piece {
    int64_t range;
    uint64_t src_address, dst_address;
    int64_t bytes;
};

/* One post under way. */
struct copying {
    const struct kvfi_transport *transport;
    const struct kvfi_post *post;
    struct kvfi_range fetched[FETCHED];
    size_t at, count;     /* of `fetched`; the one at `at` is cut at its front where a batch ended in it */
    int64_t range;        /* number of the range at `at` */
    bool range_checked;
    bool over;            /* the source has no more */
    int64_t left;         /* bytes that the source may still give */
    struct piece pieces[KVFI_VM_IOVECS];
    struct iovec local[KVFI_VM_IOVECS], remote[KVFI_VM_IOVECS];
    size_t piece_count, local_count, remote_count;
    int64_t batch_bytes;
};

static const struct kvfi_cma_peer *peer_of(const struct copying *copying)
{
    return (const struct kvfi_cma_peer *)copying->post->peer;
}

/* ---- checking ----------------------------------------------------------------------------------------------- */

/* True when all of it lies in registered memories: one, or several that touch. */
static bool is_registered(const struct kvfi_transport_config *config, uint64_t address, uint64_t bytes)
{
    bool found = true;

    while (bytes > 0 && found) {
        found = false;
        for (size_t i = 0; i < config->memory_count && !found; i++) {
            uint64_t first = (uint64_t)(uintptr_t)config->memories[i].address;
            uint64_t length = config->memories[i].bytes > 0 ? (uint64_t)config->memories[i].bytes : 0;
            uint64_t step;

            if (address < first || address - first >= length) continue;
            step = length - (address - first);
            if (step > bytes) step = bytes;
            address += step;
            bytes -= step;
            found = true;
        }
    }
    return found;
}

static enum kvf_status check_range(const struct copying *copying, const struct kvfi_range *range,
                                   struct kvf_error *error)
{
    enum kvf_status status = kvfi_post_check(copying->post, copying->range, copying->left, range, error);

    if (status != KVF_OK) return status;
    if (!is_registered(&copying->transport->config, range->src_address, (uint64_t)range->bytes))
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "range %" PRId64 ": the %" PRId64 " bytes at 0x%" PRIx64
                         " are not in the registered memories", copying->range, range->bytes, range->src_address);
    if (range->dst_address > UINTPTR_MAX - (uint64_t)range->bytes)
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "range %" PRId64 ": %" PRId64 " bytes at 0x%" PRIx64
                         " are past the end of all addresses", copying->range, range->bytes, range->dst_address);
    return KVF_OK;
}

/* ---- gathering a batch -------------------------------------------------------------------------------------- */

static void add_to(struct iovec *list, size_t *count, uint64_t address, size_t bytes)
{
    struct iovec *last = *count > 0 ? &list[*count - 1] : NULL;

    if (last && (uint64_t)(uintptr_t)last->iov_base + last->iov_len == address) last->iov_len += bytes;
    else list[(*count)++] = (struct iovec){.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
}

/* Moves as much of the range as the batch takes. */
static void add_piece(struct copying *copying, struct kvfi_range *range)
{
    int64_t room = BATCH_BYTES - copying->batch_bytes, bytes = range->bytes < room ? range->bytes : room;

    if (bytes > 0) {
        copying->pieces[copying->piece_count++] =
            (struct piece){copying->range, range->src_address, range->dst_address, bytes};
        add_to(copying->local, &copying->local_count, range->src_address, (size_t)bytes);
        add_to(copying->remote, &copying->remote_count, range->dst_address, (size_t)bytes);
    }
    range->src_address += (uint64_t)bytes;
    range->dst_address += (uint64_t)bytes;
    range->bytes -= bytes;
    copying->left -= bytes;
    copying->batch_bytes += bytes;
    if (range->bytes > 0) return;
    copying->at++;
    copying->range++;
    copying->range_checked = false;
}

static bool fetch(struct copying *copying)
{
    const struct kvfi_range_source *source = &copying->post->source;

    if (copying->at < copying->count) return true;
    copying->at = 0;
    copying->count = copying->over ? 0 : source->next(source->context, copying->fetched, FETCHED);
    if (copying->count > FETCHED) copying->count = 0;
    copying->over = copying->count == 0;
    return !copying->over;
}

static enum kvf_status gather(struct copying *copying, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    copying->piece_count = copying->local_count = copying->remote_count = 0;
    copying->batch_bytes = 0;
    while (status == KVF_OK && copying->batch_bytes < BATCH_BYTES && copying->piece_count < KVFI_VM_IOVECS &&
           fetch(copying)) {
        struct kvfi_range *range = &copying->fetched[copying->at];

        if (!copying->range_checked) status = check_range(copying, range, error);
        copying->range_checked = true;
        if (status == KVF_OK) add_piece(copying, range);
    }
    if (status == KVF_OK && copying->over)
        status = kvfi_post_check_end(copying->post, copying->range, copying->left, error);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static enum kvf_status explain(const struct copying *copying, int failure, int64_t written, struct kvf_error *error)
{
    const struct kvfi_cma_peer *peer = peer_of(copying);
    const struct piece *piece = copying->pieces;

    if (failure == ESRCH || kvfi_cma_process_is_dead(peer->pidfd))
        return kvfi_fail(error, KVF_ERR_PEER_LOST, "process %ld has ended", (long)peer->pid);
    while (piece + 1 < copying->pieces + copying->piece_count && written >= piece->bytes) written -= piece++->bytes;
    return kvfi_fail(error, KVF_ERR_SYSTEM, "range %" PRId64 ": writing %" PRId64 " bytes from 0x%" PRIx64 " to 0x%"
                     PRIx64 " of process %ld: %s", piece->range, piece->bytes, piece->src_address, piece->dst_address,
                     (long)peer->pid, strerror(failure));
}

/* Flips one bit of the batch's first byte where it went. */
static void corrupt(const struct copying *copying)
{
    const struct piece *piece = &copying->pieces[0];
    char flipped = (char)(*(const char *)(uintptr_t)piece->src_address ^ 1);
    struct iovec local = {.iov_base = &flipped, .iov_len = 1};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)piece->dst_address, .iov_len = 1};
    size_t written;

    (void)kvfi_vm_write(peer_of(copying)->pid, &local, 1, &remote, 1, &written);
}

static enum kvf_status write_batch(const struct copying *copying, int64_t *bytes, struct kvf_error *error)
{
    const struct kvfi_cma_peer *peer = peer_of(copying);
    struct iovec *local = (struct iovec *)copying->local, *remote = (struct iovec *)copying->remote;
    struct kvfi_wire_fault *wire = copying->transport->config.wire;
    size_t written = 0;
    int failure;

    /* The number of a dead process may be given to another one. */
    failure = kvfi_cma_process_is_dead(peer->pidfd) ? ESRCH
              : kvfi_vm_write(peer->pid, local, copying->local_count, remote, copying->remote_count, &written);
    *bytes += (int64_t)written;
    if (failure != 0) return explain(copying, failure, (int64_t)written, error);
    if (kvfi_wire_corrupts(wire)) corrupt(copying);
    if (kvfi_wire_cuts(wire, copying->batch_bytes))
        return kvfi_fail(error, KVF_ERR_PEER_LOST, "the connection was cut by the fault policy");
    return KVF_OK;
}

enum kvf_status kvfi_cma_copy(void *transport, struct kvfi_post *post, int64_t *bytes, struct kvf_error *error)
{
    struct copying *copying = kvfi_alloc_zeroed(1, sizeof *copying);
    enum kvf_status status = KVF_OK;

    *bytes = 0;
    if (!copying) return kvfi_fail_memory(error, "the batches of a post");
    copying->transport = transport;
    copying->post = post;
    copying->left = post->source.bytes;
    while (status == KVF_OK && !copying->over && !atomic_load(&post->item.stop)) {
        status = gather(copying, error);
        if (status == KVF_OK && copying->batch_bytes > 0) status = write_batch(copying, bytes, error);
    }
    free(copying);
    return status;
}
