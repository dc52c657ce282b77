/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

struct kvf_memory {
    void *address;
    int64_t bytes;
    int fd;
};

/* Pages are claimed in steps, and what the system has left is asked before each: the kernel would rather kill a process
 * than refuse it a page. */
#define CLAIM_STEP_BYTES (INT64_C(256) << 20)
#define RESERVE_BYTES (INT64_C(64) << 20)

/* Reads one number after `name` in a small text file; -1 when there is none. */
static int64_t read_number(const char *path, const char *name)
{
    char text[4096];
    const char *at;
    int64_t number = -1;
    ssize_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) goto done;
    bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0) goto done;
    text[bytes] = '\0';
    at = strstr(text, name);
    if (at && sscanf(at + strlen(name), "%" SCNd64, &number) != 1) number = -1;
done:
    return number;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Bytes that can still be claimed, by what the system and this process's control group say; INT64_MAX when neither
 * does. */
static int64_t available_bytes(void)
{
    int64_t available = INT64_MAX;
    int64_t system_kib = read_number("/proc/meminfo", "MemAvailable:");
    int64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    int64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    int64_t cached = read_number("/sys/fs/cgroup/memory.stat", "\ninactive_file ");

    if (limit < 0) {
        limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "");
        used = read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", "");
        cached = read_number("/sys/fs/cgroup/memory/memory.stat", "\ntotal_inactive_file ");
    }
    if (system_kib >= 0) available = smaller(available, system_kib * 1024);
    if (limit >= 0 && used >= 0) available = smaller(available, limit - used + (cached > 0 ? cached : 0));
    return available > RESERVE_BYTES ? available - RESERVE_BYTES : 0;
}

static enum kvf_status fail_claim(int64_t bytes, int64_t claimed, int64_t available, struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_NO_MEMORY, "memory of %" PRId64 " bytes: only %" PRId64 " bytes can be claimed",
                     bytes, claimed + available);
}

/* Gives the file its pages. */
static enum kvf_status claim(int fd, int64_t bytes, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (int64_t at = 0; status == KVF_OK && at < bytes;) {
        int64_t step = smaller(bytes - at, CLAIM_STEP_BYTES);
        int64_t available = available_bytes();

        if (available < bytes - at) {
            status = fail_claim(bytes, at, available, error);
        } else if (fallocate(fd, 0, at, step) == 0) {
            at += step;
        } else if (errno == ENOMEM || errno == ENOSPC || errno == EFBIG) {
            status = fail_claim(bytes, at, 0, error);
        } else if (errno != EINTR) {
            status = kvfi_fail(error, KVF_ERR_SYSTEM, "memory of %" PRId64 " bytes: fallocate: %s", bytes,
                               strerror(errno));
        }
    }
    return status;
}

/* Enters the pages in this process's page table, so that the first copy does not pay for it. */
static void touch(char *address, int64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(address, (size_t)bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
    long page = sysconf(_SC_PAGESIZE);

    for (int64_t at = 0; at < bytes; at += page) *(volatile char *)(address + at) = 0;
}

/* Opens, claims and maps; flags are those of memfd_create. */
static enum kvf_status open_file(struct kvf_memory *memory, unsigned flags, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    size_t bytes = (size_t)memory->bytes;

    memory->fd = memfd_create("kvferry", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (memory->fd < 0 || ftruncate(memory->fd, memory->bytes) != 0) {
        status = kvfi_fail(error,
                           errno == ENOMEM || errno == EFBIG || errno == EINVAL ? KVF_ERR_NO_MEMORY : KVF_ERR_SYSTEM,
                           "memory of %" PRId64 " bytes: %s", memory->bytes, strerror(errno));
        goto done;
    }
    status = claim(memory->fd, memory->bytes, error);
    if (status != KVF_OK) goto done;
    memory->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (memory->address == MAP_FAILED) {
        memory->address = NULL;
        status = kvfi_fail(error, KVF_ERR_NO_MEMORY, "memory of %" PRId64 " bytes: mmap: %s", memory->bytes,
                           strerror(errno));
        goto done;
    }
    /* Nobody who maps it can be hurt by a change of its size any more. */
    fcntl(memory->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
done:
    return status;
}

static void close_file(struct kvf_memory *memory)
{
    if (memory->address) munmap(memory->address, (size_t)memory->bytes);
    if (memory->fd >= 0) close(memory->fd);
    memory->address = NULL;
    memory->fd = -1;
}

enum kvf_status kvf_memory_create(int64_t bytes, uint32_t flags, kvf_memory **out, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvf_memory *memory = NULL;

    if (bytes <= 0 || (flags & ~(uint32_t)KVF_MEMORY_HUGE_PAGES) != 0) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "memory of %" PRId64 " bytes, flags 0x%" PRIx32 ": expected above 0 bytes and flags 0 or 1",
                           bytes, flags);
        goto done;
    }
    memory = malloc(sizeof *memory);
    if (!memory) {
        status = kvfi_fail_memory(error, "a memory's record");
        goto done;
    }
    *memory = (struct kvf_memory){.bytes = bytes, .fd = -1};
    status = KVF_ERR_NOT_SUPPORTED;
    if ((flags & KVF_MEMORY_HUGE_PAGES) && bytes % (INT64_C(2) << 20) == 0) {
        status = open_file(memory, MFD_HUGETLB, NULL);
        if (status != KVF_OK) close_file(memory);
    }
    if (status != KVF_OK) status = open_file(memory, 0, error);
    if (status != KVF_OK) goto done;
    if (flags & KVF_MEMORY_HUGE_PAGES) madvise(memory->address, (size_t)bytes, MADV_HUGEPAGE);
    touch(memory->address, bytes);
    *out = memory;
    memory = NULL;
done:
    kvf_memory_destroy(memory);
    return status;
}

void kvf_memory_destroy(kvf_memory *memory)
{
    if (!memory) return;
    close_file(memory);
    free(memory);
}

void *kvf_memory_address(const kvf_memory *memory)
{
    return memory->address;
}

int64_t kvf_memory_bytes(const kvf_memory *memory)
{
    return memory->bytes;
}

int kvf_memory_fd(const kvf_memory *memory)
{
    return memory->fd;
}
