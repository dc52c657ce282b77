/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/cma/inside.h"

#define PREFIX "kvferry-cma/1 pid="

void kvfi_cma_endpoint_format(char *text)
{
    snprintf(text, KVFI_ENDPOINT_BYTES, PREFIX "%ld", (long)getpid());
}

enum kvf_status kvfi_cma_endpoint_parse(const char *text, pid_t *pid, struct kvf_error *error)
{
    size_t prefix_bytes = strlen(PREFIX), digits = 0;
    int64_t number = 0;
    bool good = strncmp(text, PREFIX, prefix_bytes) == 0;

    if (good) {
        const char *at = text + prefix_bytes;

        digits = strspn(at, "0123456789");
        good = digits >= 1 && digits <= 10 && at[0] != '0' && at[digits] == '\0';
        for (size_t i = 0; good && i < digits; i++) number = number * 10 + (at[i] - '0');
    }
    if (!good || number > INT32_MAX)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "cma: endpoint \"%.60s\", expected \"" PREFIX "NUMBER\"",
                         text);
    *pid = (pid_t)number;
    return KVF_OK;
}

bool kvfi_cma_process_is_dead(int pidfd)
{
    struct pollfd wait = {.fd = pidfd, .events = POLLIN};

    return pidfd >= 0 && poll(&wait, 1, 0) == 1;
}

static enum kvf_status open_failed(pid_t pid, int cause, struct kvf_error *error)
{
    if (cause == ESRCH || cause == EINVAL || cause == ENOENT) /* the last two: a thread of some process */
        return kvfi_fail(error, KVF_ERR_UNREACHABLE, "cma: there is no process %ld here", (long)pid);
    return kvfi_fail(error, KVF_ERR_SYSTEM, "cma: process %ld cannot be watched: %s", (long)pid, strerror(cause));
}

/* Whether it would let itself be written is asked with the same right: nothing lies at address 0, and a process that
 * permits it answers so. */
static enum kvf_status ask_for_permission(pid_t pid, struct kvf_error *error)
{
    char byte;
    struct iovec local = {.iov_base = &byte, .iov_len = 1}, remote = {.iov_base = NULL, .iov_len = 1};
    int cause = process_vm_readv(pid, &local, 1, &remote, 1, 0) < 0 ? errno : 0;

    if (cause == 0 || cause == EFAULT) return KVF_OK;
    if (cause == ESRCH) return open_failed(pid, cause, error);
    return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "cma: writing to process %ld is not possible: %s", (long)pid,
                     strerror(cause));
}

static enum kvf_status check_user(pid_t pid, struct kvf_error *error)
{
    char path[48];
    struct stat owner;

    snprintf(path, sizeof path, "/proc/%ld", (long)pid);
    if (stat(path, &owner) != 0 || owner.st_uid == geteuid()) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "cma: process %ld is of user %ld, expected %ld", (long)pid,
                     (long)owner.st_uid, (long)geteuid());
}

/* Made past the C library, which has no call for it everywhere, and so ended past it: who follows descriptors through
 * the library, as ThreadSanitizer does, would see an end without a beginning. */
void kvfi_cma_process_close(int pidfd)
{
    if (pidfd >= 0) syscall(SYS_close, pidfd);
}

enum kvf_status kvfi_cma_process_open(pid_t pid, int *pidfd, struct kvf_error *error)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    enum kvf_status status = KVF_OK;

    if (fd < 0 && errno != ENOSYS && errno != EPERM) status = open_failed(pid, errno, error);
    if (status == KVF_OK && kvfi_cma_process_is_dead(fd)) status = open_failed(pid, ESRCH, error);
    if (status == KVF_OK) status = check_user(pid, error);
    if (status == KVF_OK) status = ask_for_permission(pid, error);
    if (status == KVF_OK) *pidfd = fd;
    else kvfi_cma_process_close(fd);
    return status;
}
