/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"

void kvfi_peer_name(char name[KVFI_PEER_NAME_BYTES], const char *instance, const struct kvf_rank *rank)
{
    snprintf(name, KVFI_PEER_NAME_BYTES, "%.*s/pp%" PRId64 ".cp%" PRId64 ".tp%" PRId64, KVF_INSTANCE_NAME_BYTES - 1,
             instance, rank->pp, rank->cp, rank->tp);
}

void kvfi_host_identity(char *text, size_t text_bytes)
{
    char boot[64] = "", net[64] = "";
    ssize_t got = -1;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        got = read(fd, boot, sizeof boot - 1);
        close(fd);
    }
    boot[got > 0 ? got : 0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    got = readlink("/proc/self/ns/net", net, sizeof net - 1);
    net[got > 0 ? got : 0] = '\0';
    snprintf(text, text_bytes, "%s %s", boot, net);
}
