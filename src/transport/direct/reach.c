/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/direct/direct.h"

enum kvf_status kvfi_reached_init(struct kvfi_reached *reached, uint32_t count, bool same_process,
                                  struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    reached->mapped = kvfi_alloc_zeroed(count, sizeof *reached->mapped);
    reached->address = kvfi_alloc_zeroed(count, sizeof *reached->address);
    reached->bytes = kvfi_alloc_zeroed(count, sizeof *reached->bytes);
    if (!reached->mapped || !reached->address || !reached->bytes)
        status = kvfi_fail_memory(error, "the memories of a peer");
    else
        reached->count = count;
    reached->reach = same_process ? KVFI_REACH_SAME_PROCESS : KVFI_REACH_MAPPED;
    return status;
}

static void unmap_all(struct kvfi_reached *reached)
{
    for (uint32_t i = 0; i < reached->count; i++) {
        if (!reached->mapped[i]) continue;
        munmap(reached->mapped[i], (size_t)reached->bytes[i]);
        reached->mapped[i] = NULL;
    }
}

void kvfi_reached_fini(struct kvfi_reached *reached)
{
    unmap_all(reached);
    free(reached->mapped);
    free(reached->address);
    free(reached->bytes);
    *reached = (struct kvfi_reached){0};
}

static enum kvf_status map_one(struct kvfi_reached *reached, uint32_t index, int fd, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    int64_t bytes = reached->bytes[index];
    struct stat file;
    void *mapped = NULL;

    if (bytes == 0) goto done;
    if (fstat(fd, &file) != 0 || file.st_size < bytes) {
        status = kvfi_fail(error, KVF_ERR_PROTOCOL,
                           "memory %" PRIu32 " of the peer: its file has %" PRId64 " bytes, %" PRId64 " were told",
                           index, (int64_t)file.st_size, bytes);
        goto done;
    }
    mapped = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "memory %" PRIu32 " of the peer cannot be mapped: %s", index,
                           strerror(errno));
        goto done;
    }
    /* A child of this process must not be able to write a peer's cache. */
    madvise(mapped, (size_t)bytes, MADV_DONTFORK);
    reached->mapped[index] = mapped;
done:
    return status;
}

enum kvf_status kvfi_reached_add(struct kvfi_reached *reached, const struct kvfi_direct_message *message, int *fds,
                                 size_t fd_count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t used = 0;

    if (message->memory_first != reached->known || message->memory_count > reached->count - reached->known)
        status = kvfi_fail(error, KVF_ERR_PROTOCOL,
                           "memories [%" PRIu32 ",+%" PRIu32 ") came, expected from %" PRIu32 " of %" PRIu32,
                           message->memory_first, message->memory_count, reached->known, reached->count);
    for (uint32_t i = 0; status == KVF_OK && i < message->memory_count; i++) {
        uint32_t index = reached->known++;

        reached->address[index] = (void *)(uintptr_t)message->memories[i].address;
        reached->bytes[index] = message->memories[i].bytes;
        if (reached->reach == KVFI_REACH_SAME_PROCESS) continue;
        if (!message->memories[i].has_fd)
            reached->reach = KVFI_REACH_REMOTE;
        else if (used >= fd_count)
            status = kvfi_fail(error, KVF_ERR_PROTOCOL, "memory %" PRIu32 " of the peer came without its descriptor",
                               index);
        else if (reached->reach == KVFI_REACH_MAPPED)
            status = map_one(reached, index, fds[used++], error);
    }
    for (size_t i = 0; i < fd_count; i++) close(fds[i]);
    if (status != KVF_OK) goto done;
    if (reached->reach == KVFI_REACH_REMOTE) unmap_all(reached);
    for (uint32_t i = 0; reached->reach == KVFI_REACH_MAPPED && i < reached->known; i++)
        reached->address[i] = reached->mapped[i];
done:
    return status;
}

bool kvfi_reached_populate(struct kvfi_reached *reached, uint32_t *memory, int64_t *offset, int64_t max_bytes)
{
#ifdef MADV_POPULATE_WRITE
    while (max_bytes > 0 && *memory < reached->count) {
        int64_t left = reached->bytes[*memory] - *offset;
        int64_t step = left < max_bytes ? left : max_bytes;

        if (!reached->mapped[*memory] || left <= 0 ||
            madvise((char *)reached->mapped[*memory] + *offset, (size_t)step, MADV_POPULATE_WRITE) != 0) {
            ++*memory;
            *offset = 0;
            continue;
        }
        *offset += step;
        max_bytes -= step;
    }
    return *memory >= reached->count;
#else
    (void)reached, (void)memory, (void)offset, (void)max_bytes;
    return true;
#endif
}
