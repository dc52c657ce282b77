/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "copy/packer.h"
#include "transport/direct/direct.h"
#include "transport/fault/wire.h"
#include "transport/vm_write.h"

enum {
    STAGE_BYTES = 256 << 10,   /* short fragments are gathered in a block that stays in the caches */
    LONG_RUN_BYTES = 16 << 10, /* from here on a run is written straight from where it lies */
    MAX_IOVECS = 512
};

int kvfi_remote_write(pid_t pid, uint64_t address, const void *data, size_t bytes)
{
    struct iovec local = {.iov_base = (void *)data, .iov_len = bytes};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
    size_t written;

    return kvfi_vm_write(pid, &local, 1, &remote, 1, &written);
}

/* One chunk under way. */
struct writing {
    pid_t pid;
    kvf_packer *src; /* gathers here */
    kvf_packer *dst; /* lists the addresses there */
    char *stage;
    struct iovec remote[MAX_IOVECS];
};

static enum kvf_status write_all(struct writing *writing, struct iovec local, size_t remote_count,
                                 struct kvf_error *error)
{
    size_t bytes = local.iov_len, written;
    int failure = kvfi_vm_write(writing->pid, &local, 1, writing->remote, remote_count, &written);

    if (failure == 0) return KVF_OK;
    if (failure == ESRCH)
        return kvfi_fail(error, KVF_ERR_PEER_LOST, "process %ld is gone", (long)writing->pid);
    return kvfi_fail(error, KVF_ERR_SYSTEM, "writing %zu bytes to process %ld: %s", bytes, (long)writing->pid,
                     strerror(failure));
}

/* Moves the next piece. `*bytes` 0 at the end. */
static enum kvf_status write_piece(struct writing *writing, int64_t *bytes, struct kvf_error *error)
{
    bool straight = kvfi_packer_run_bytes(writing->src) >= LONG_RUN_BYTES &&
                    kvfi_packer_run_bytes(writing->dst) >= LONG_RUN_BYTES;
    struct iovec local = {.iov_base = writing->stage};
    size_t count;

    if (straight) {
        int64_t local_bytes;

        /* The destination lists at most as much as the run here has; what it lists is taken from the run. */
        count = kvfi_packer_iovecs(writing->dst, writing->remote, MAX_IOVECS, kvfi_packer_run_left(writing->src), 1,
                                   bytes);
        kvfi_packer_iovecs(writing->src, &local, 1, *bytes, 1, &local_bytes);
    } else {
        count = kvfi_packer_iovecs(writing->dst, writing->remote, MAX_IOVECS, STAGE_BYTES, 1, bytes);
        local.iov_len = (size_t)kvf_packer_run(writing->src, writing->stage, *bytes);
    }
    return *bytes > 0 ? write_all(writing, local, count, error) : KVF_OK;
}

enum kvf_status kvfi_remote_copy(struct kvfi_transport *transport, struct kvfi_job *job, struct kvf_error *error)
{
    const struct kvfi_reached *reached = &job->link->reached;
    const kvf_binding *binding = job->chunk.binding;
    struct kvfi_bases src = {transport->own_address, transport->own_bytes, transport->config.memory_count};
    struct kvfi_bases dst = {reached->address, reached->bytes, reached->count};
    struct writing *writing = calloc(1, sizeof *writing);
    int64_t bytes = 1;
    enum kvf_status status = kvfi_bases_check(binding, &src, &dst, error);

    if (status != KVF_OK) goto done;
    if (writing) writing->stage = malloc(STAGE_BYTES);
    if (!writing || !writing->stage) {
        status = kvfi_fail_memory(error, "a staging buffer");
        goto done;
    }
    writing->pid = reached->pid;
    status = kvf_packer_create(binding, KVF_PACK, src.address, src.count, &writing->src, error);
    if (status != KVF_OK) goto done;
    status = kvf_packer_create(binding, KVF_UNPACK, dst.address, dst.count, &writing->dst, error);
    while (status == KVF_OK && bytes > 0 && !atomic_load(&job->stop)) {
        status = write_piece(writing, &bytes, error);
        if (status == KVF_OK && kvfi_wire_cuts(transport->config.wire, bytes))
            status = kvfi_fail(error, KVF_ERR_PEER_LOST, "the connection was cut by the fault policy");
    }
done:
    if (writing) {
        kvf_packer_destroy(writing->dst);
        kvf_packer_destroy(writing->src);
        free(writing->stage);
    }
    free(writing);
    return status;
}
