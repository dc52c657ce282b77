/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/direct/direct.h"

struct kvfi_link *kvfi_link_create(struct kvfi_transport *transport, int fd, bool outgoing)
{
    struct kvfi_link *link = kvfi_alloc_zeroed(1, sizeof *link);

    if (!link) goto done;
    link->owner = transport;
    link->fd = fd;
    link->pidfd = -1;
    link->outgoing = outgoing;
    link->state = KVFI_LINK_GREETING;
    link->next = transport->links;
    if (link->next) link->next->previous = link;
    transport->links = link;
done:
    return link;
}

static void free_packet(struct kvfi_packet *packet)
{
    for (size_t i = 0; i < packet->fd_count; i++) close(packet->fds[i]);
    free(packet->fds);
    free(packet);
}

void kvfi_link_bury(struct kvfi_transport *transport, struct kvfi_link *link)
{
    if (link->previous) link->previous->next = link->next;
    else transport->links = link->next;
    if (link->next) link->next->previous = link->previous;
    if (link->fd >= 0) close(link->fd);
    if (link->pidfd >= 0) close(link->pidfd);
    link->fd = link->pidfd = -1;
    while (link->out_first) {
        struct kvfi_packet *packet = link->out_first;

        link->out_first = packet->next;
        free_packet(packet);
    }
    kvfi_reached_fini(&link->reached);
    link->next = transport->graveyard;
    transport->graveyard = link;
    pthread_cond_broadcast(&transport->changed);
}

void kvfi_link_free_buried(struct kvfi_transport *transport)
{
    while (transport->graveyard) {
        struct kvfi_link *link = transport->graveyard;

        transport->graveyard = link->next;
        free(link);
    }
}

enum kvf_status kvfi_link_watch(struct kvfi_transport *transport, struct kvfi_link *link)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    struct epoll_event on_death = {.events = EPOLLIN, .data.ptr = (char *)link + KVFI_LINK_DEATH};

    /* Old kernels know no such descriptor: then the end of the socket alone tells. */
    if (!transport->scheme->same_process) link->pidfd = (int)syscall(SYS_pidfd_open, link->pid, 0);
    if (link->pidfd >= 0) epoll_ctl(transport->epoll, EPOLL_CTL_ADD, link->pidfd, &on_death);
    link->events = EPOLLIN;
    return epoll_ctl(transport->epoll, EPOLL_CTL_ADD, link->fd, &event) == 0 ? KVF_OK : KVF_ERR_SYSTEM;
}

static void want_output(struct kvfi_transport *transport, struct kvfi_link *link, bool wanted)
{
    struct epoll_event event = {.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = link};

    if (event.events == link->events) return;
    link->events = event.events;
    epoll_ctl(transport->epoll, EPOLL_CTL_MOD, link->fd, &event);
}

/* True when it is sent, or never can be. */
static bool try_send(struct kvfi_link *link, const void *data, size_t bytes, const int *fds, size_t fd_count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * KVFI_DIRECT_BATCH)];
    } control;
    struct iovec iovec = {.iov_base = (void *)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &iovec, .msg_iovlen = 1};
    ssize_t sent;

    if (fd_count > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * fd_count);
    }
    do {
        sent = sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS);
}

static void queue_packet(struct kvfi_transport *transport, struct kvfi_link *link, const void *data, size_t bytes,
                         const int *fds, size_t fd_count)
{
    bool full = link->out_count >= KVFI_DIRECT_MAX_PACKETS;
    struct kvfi_packet *packet = full ? NULL : malloc(sizeof *packet + bytes);
    int *copies = kvfi_alloc_array(fd_count, sizeof *copies);

    if (!packet || !copies) {
        /* A peer that misses one message cannot be served any further. */
        if (!link->given_up)
            kvfi_logf(transport->log, KVF_LOG_WARN, "%s: connection of %s is given up: %s", transport->scheme->name,
                      link->who.name, full ? "it does not read the answers to what it sends"
                                           : "out of memory for an answer");
        link->given_up = true;
        shutdown(link->fd, SHUT_RDWR);
        free(packet);
        free(copies);
        return;
    }
    *packet = (struct kvfi_packet){.bytes = bytes, .fds = copies, .fd_count = fd_count};
    memcpy(packet->data, data, bytes);
    for (size_t i = 0; i < fd_count; i++) copies[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
    if (link->out_first) link->out_last->next = packet;
    else link->out_first = packet;
    link->out_last = packet;
    link->out_count++;
    want_output(transport, link, true);
}

void kvfi_link_send(struct kvfi_transport *transport, struct kvfi_link *link, const struct kvfi_direct_message *message,
                    const int *fds, size_t fd_count)
{
    uint8_t buffer[KVFI_DIRECT_PACKET_BYTES];
    size_t bytes = kvfi_direct_pack(message, buffer);

    if (link->fd < 0 || link->hung_up) return;
    if (link->out_first || !try_send(link, buffer, bytes, fds, fd_count))
        queue_packet(transport, link, buffer, bytes, fds, fd_count);
}

void kvfi_link_flush(struct kvfi_transport *transport, struct kvfi_link *link)
{
    while (link->out_first) {
        struct kvfi_packet *packet = link->out_first;

        if (!try_send(link, packet->data, packet->bytes, packet->fds, packet->fd_count)) break;
        link->out_first = packet->next;
        link->out_count--;
        free_packet(packet);
    }
    want_output(transport, link, link->out_first != NULL);
}

ssize_t kvfi_link_receive(struct kvfi_link *link, uint8_t *packet, int *fds, size_t fd_capacity, size_t *fd_count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * KVFI_DIRECT_BATCH)];
    } control;
    struct iovec iovec = {.iov_base = packet, .iov_len = KVFI_DIRECT_PACKET_BYTES};
    struct msghdr message = {.msg_iov = &iovec, .msg_iovlen = 1, .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    ssize_t got;

    *fd_count = 0;
    /* A reset is told once, before what the peer had sent: that is read all the same. */
    do {
        got = recvmsg(link->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? -1 : 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (*fd_count < fd_capacity) fds[(*fd_count)++] = fd;
            else close(fd);
        }
    }
    return message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -2 : got;
}

bool kvfi_link_credentials(int fd, pid_t *pid, uid_t *uid)
{
    struct ucred credentials;
    socklen_t bytes = sizeof credentials;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0;

    *pid = known ? credentials.pid : 0;
    *uid = known ? credentials.uid : (uid_t)-1;
    return known;
}
