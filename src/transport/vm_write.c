/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/vm_write.h"

#include <errno.h>

struct list {
    struct iovec *at;
    size_t count;
};

/* Takes `bytes` off the front, and empty entries. */
static void advance(struct list *list, size_t bytes)
{
    while (list->count > 0 && bytes >= list->at->iov_len) {
        bytes -= list->at->iov_len;
        list->at++;
        list->count--;
    }
    if (bytes > 0) {
        list->at->iov_base = (char *)list->at->iov_base + bytes;
        list->at->iov_len -= bytes;
    }
}

static size_t at_most(size_t count)
{
    return count < KVFI_VM_IOVECS ? count : KVFI_VM_IOVECS;
}

int kvfi_vm_write(pid_t pid, struct iovec *local, size_t local_count, struct iovec *remote, size_t remote_count,
                  size_t *written)
{
    struct list here = {local, local_count}, there = {remote, remote_count};
    int failure = 0;

    *written = 0;
    advance(&here, 0);
    advance(&there, 0);
    while (here.count > 0 && there.count > 0 && failure == 0) {
        ssize_t step = process_vm_writev(pid, here.at, at_most(here.count), there.at, at_most(there.count), 0);

        if (step > 0) {
            *written += (size_t)step;
            advance(&here, (size_t)step);
            advance(&there, (size_t)step);
        } else if (step == 0) {
            failure = EFAULT;
        } else if (errno != EINTR) {
            failure = errno;
        }
    }
    return failure;
}
