/* SPDX-License-Identifier: Apache-2.0 */
/** @file vm_write.h  Writes into the memory of another process of this host (process_vm_writev). */
#ifndef KVFI_TRANSPORT_VM_WRITE_H
#define KVFI_TRANSPORT_VM_WRITE_H

#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { KVFI_VM_IOVECS = 1024 /* most in one list: the kernel's own bound */ };

/** Writes all bytes of `local`, in order, to the places of `remote`, in order; both lists have equally many bytes in
 *  all, and are used up. Goes on after partial writes.
 *  @param written  bytes that are there, also on failure
 *  @return 0 or an errno: ESRCH (no such process), EPERM, ENOSYS, EFAULT (an address of a side is not mapped so) */
int kvfi_vm_write(pid_t pid, struct iovec *local, size_t local_count, struct iovec *remote, size_t remote_count,
                  size_t *written);

#endif
