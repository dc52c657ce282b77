/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "sys/clock.h"
#include "transport/direct/direct.h"

static int connect_socket(int fd, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(name);

    memcpy(address.sun_path + 1, name, bytes); /* the first byte stays 0: an abstract name */
    return connect(fd, (struct sockaddr *)&address,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes)) == 0 ? 0 : errno;
}

enum kvf_status kvfi_greeting_start(struct kvfi_transport *transport, struct kvfi_link *link, struct kvf_error *error)
{
    struct kvfi_direct_message hello = {.kind = KVFI_DIRECT_HELLO, .expected = link->who};
    enum kvf_status status = KVF_OK;
    uid_t uid;
    int failure = connect_socket(link->fd, link->endpoint_name);

    if (failure == EAGAIN) {
        link->state = KVFI_LINK_CONNECTING;
        goto done;
    }
    if (failure != 0) {
        status = kvfi_fail(error, KVF_ERR_UNREACHABLE, "%s socket \"%s\" of %s: %s", transport->scheme->name,
                           link->endpoint_name, link->who.name, strerror(failure));
        goto done;
    }
    if (!kvfi_link_credentials(link->fd, &link->pid, &uid) || uid != geteuid() || link->pid != link->endpoint_pid) {
        status = kvfi_fail(error, KVF_ERR_NOT_SUPPORTED,
                           "%s: the socket of %s belongs to process %ld of user %ld, expected process "
                           "%" PRId64 " of user %ld",
                           transport->scheme->name, link->who.name, (long)link->pid, (long)uid, link->endpoint_pid,
                           (long)geteuid());
        goto done;
    }
    status = kvfi_link_watch(transport, link);
    if (status != KVF_OK) {
        kvfi_fail(error, status, "epoll: %s", strerror(errno));
        goto done;
    }
    link->state = KVFI_LINK_GREETING;
    snprintf(hello.self.name, sizeof hello.self.name, "%s", transport->self);
    hello.self.incarnation = transport->config.incarnation;
    kvfi_link_send(transport, link, &hello, NULL, 0);
done:
    return status;
}

static void ready(struct kvfi_transport *transport, struct kvfi_link *link)
{
    link->state = KVFI_LINK_READY;
    link->deadline_ns = 0;
    link->populate_wanted = link->reached.reach == KVFI_REACH_MAPPED;
    if (link->populate_wanted) pthread_cond_broadcast(&transport->changed);
    kvfi_tell_connected(&transport->queue, link->peer, KVF_OK, NULL);
}

static void probe_remote(struct kvfi_transport *transport, struct kvfi_link *link)
{
    struct kvfi_direct_message probe = {.kind = KVFI_DIRECT_PROBE, .nonce = kvfi_random_u64()};
    char text[KVF_ERROR_TEXT_BYTES];
    int failure = EFAULT;

    link->reached.pid = link->pid;
    if (link->probe_address != 0)
        failure = kvfi_remote_write(link->pid, link->probe_address, &probe.nonce, sizeof probe.nonce);
    if (failure != 0) {
        snprintf(text, sizeof text,
                 "%s: memory of %s has no file descriptor to map, and writing across processes failed: %s",
                 transport->scheme->name, link->who.name, strerror(failure));
        kvfi_source_end(transport, link, KVF_ERR_NOT_SUPPORTED, text);
        return;
    }
    kvfi_link_send(transport, link, &probe, NULL, 0);
}

static void memories_known(struct kvfi_transport *transport, struct kvfi_link *link)
{
    if (link->reached.known < link->reached.count) return;
    if (link->reached.reach == KVFI_REACH_REMOTE) probe_remote(transport, link);
    else ready(transport, link);
}

static void welcomed(struct kvfi_transport *transport, struct kvfi_link *link,
                     const struct kvfi_direct_message *message)
{
    struct kvf_error error;

    if (message->status != KVF_OK) {
        kvfi_source_end(transport, link, (enum kvf_status)message->status, message->text);
    } else if (link->reached.address) {
        kvfi_source_end(transport, link, KVF_ERR_PROTOCOL, "welcomed twice");
    } else if (kvfi_reached_init(&link->reached, message->memory_count, transport->scheme->same_process, &error) !=
               KVF_OK) {
        kvfi_source_end(transport, link, (enum kvf_status)error.status, error.text);
    } else {
        link->probe_address = message->probe_address;
        memories_known(transport, link);
    }
}

void kvfi_greeting_message(struct kvfi_transport *transport, struct kvfi_link *link,
                           const struct kvfi_direct_message *message, int *fds, size_t fd_count)
{
    struct kvf_error error;

    switch (message->kind) {
    case KVFI_DIRECT_WELCOME: welcomed(transport, link, message); break;
    case KVFI_DIRECT_MEMORIES:
        if (!link->reached.address) {
            kvfi_source_end(transport, link, KVF_ERR_PROTOCOL, "memories came before a welcome");
        } else if (kvfi_reached_add(&link->reached, message, fds, fd_count, &error) != KVF_OK) {
            kvfi_source_end(transport, link, (enum kvf_status)error.status, error.text);
        } else {
            memories_known(transport, link);
        }
        return; /* the descriptors are closed */
    case KVFI_DIRECT_PROBED:
        if (message->status != KVF_OK)
            kvfi_source_end(transport, link, KVF_ERR_NOT_SUPPORTED, message->text);
        else if (link->reached.reach == KVFI_REACH_REMOTE && link->reached.known == link->reached.count)
            ready(transport, link);
        else
            kvfi_source_end(transport, link, KVF_ERR_PROTOCOL, "unasked answer to a probe");
        break;
    default:
        kvfi_source_end(transport, link, KVF_ERR_PROTOCOL, "unexpected message before the connection stood");
        break;
    }
    for (size_t i = 0; i < fd_count; i++) close(fds[i]);
}
