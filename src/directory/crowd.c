/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/crowd.h"

#include <stdlib.h>
#include <sys/socket.h>

static void append(struct kvfi_crowd *crowd, struct kvfi_guest *guest)
{
    guest->newer = NULL;
    guest->older = crowd->newest;
    *(crowd->newest ? &crowd->newest->newer : &crowd->oldest) = guest;
    crowd->newest = guest;
    crowd->count++;
}

static void take_out(struct kvfi_crowd *crowd, struct kvfi_guest *guest)
{
    *(guest->older ? &guest->older->newer : &crowd->oldest) = guest->newer;
    *(guest->newer ? &guest->newer->older : &crowd->newest) = guest->older;
    guest->older = guest->newer = NULL;
    crowd->count--;
}

/** The server sees the end of the connection, and ends it as if the client had. */
static void dismiss(struct kvfi_crowd *crowd, struct kvfi_guest *guest)
{
    take_out(crowd, guest);
    guest->dismissed = true;
    shutdown(guest->fd, SHUT_RDWR);
}

struct kvfi_guest *kvfi_crowd_enter(struct kvfi_crowd *crowd, int fd, int64_t now_ns)
{
    struct kvfi_guest *guest = calloc(1, sizeof *guest);

    if (!guest) return NULL;
    guest->fd = fd;
    guest->since_ns = now_ns;
    append(crowd, guest);
    if (crowd->count > crowd->limit) dismiss(crowd, crowd->oldest);
    return guest;
}

void kvfi_crowd_leave(struct kvfi_crowd *crowd, struct kvfi_guest *guest)
{
    if (guest && !guest->dismissed) take_out(crowd, guest);
    free(guest);
}

void kvfi_crowd_renew(struct kvfi_crowd *crowd, struct kvfi_guest *guest, int64_t now_ns)
{
    if (!guest || guest->dismissed) return;
    take_out(crowd, guest);
    guest->since_ns = now_ns;
    append(crowd, guest);
}

void kvfi_crowd_free_memory(struct kvfi_crowd *crowd, int64_t before_ns)
{
    struct kvfi_guest *guest = crowd->oldest;

    while (guest && guest->since_ns < before_ns && guest->held_bytes == 0) guest = guest->newer;
    if (guest && guest->since_ns < before_ns) dismiss(crowd, guest);
}
