/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/direct/direct.h"

enum { PROBE_WORDS = 512 };

#define ACCEPT_PAUSE_NS (100 * KVFI_MS)

enum kvf_status kvfi_direct_arm(struct kvfi_transport *transport, const struct kvfi_arm *arm, struct kvf_error *error)
{
    enum kvf_status status;

    /* Locked, so that whoever greets a peer from here on sees the memories that the owner has registered by now. */
    pthread_mutex_lock(&transport->lock);
    status = kvfi_armed_add(&transport->armed, arm, error);
    pthread_mutex_unlock(&transport->lock);
    return status;
}

/* Tells whoever writes under a grant to stop. */
static void revoke_grant(struct kvfi_transport *transport, const struct kvfi_grant *grant)
{
    struct kvfi_direct_message message = {.kind = KVFI_DIRECT_REVOKE, .head.grant = grant->number};

    for (struct kvfi_link *link = transport->links; link; link = link->next) {
        for (struct kvfi_inbound *inbound = link->inbound; inbound; inbound = inbound->next) {
            if (inbound->arrival->grant != grant) continue;
            kvfi_link_send(transport, link, &message, NULL, 0);
            break;
        }
    }
}

bool kvfi_direct_disarm(struct kvfi_transport *transport, uint64_t number)
{
    bool quiet = true;
    struct kvfi_grant *grant;

    pthread_mutex_lock(&transport->lock);
    grant = kvfi_armed_remove(&transport->armed, number);
    if (grant) {
        quiet = kvfi_grant_is_quiet(grant);
        if (!quiet) revoke_grant(transport, grant);
        kvfi_grant_release(grant);
    }
    pthread_mutex_unlock(&transport->lock);
    return quiet;
}

/* Ends what a peer was writing: returns after the QUIET that may be due. */
static void end_inbound(struct kvfi_transport *transport, struct kvfi_link *link, struct kvfi_inbound *inbound)
{
    struct kvfi_grant *grant = inbound->arrival->grant;
    struct kvfi_inbound **slot = &link->inbound;

    while (*slot != inbound) slot = &(*slot)->next;
    *slot = inbound->next;
    if (kvfi_grant_end_write(grant)) kvfi_tell_quiet(&transport->queue, grant->number);
    kvfi_grant_release(grant);
    free(inbound);
}

void kvfi_sink_end(struct kvfi_transport *transport, struct kvfi_link *link)
{
    while (link->inbound) end_inbound(transport, link, link->inbound);
    if (link->greeted) kvfi_tell_writer_gone(&transport->queue, &link->who);
    kvfi_link_bury(transport, link);
}

void kvfi_sink_drop(struct kvfi_transport *transport, struct kvfi_link *link, const char *why)
{
    if (why) kvfi_logf(transport->log, KVF_LOG_WARN, "%s: connection of %s closed: %s", transport->scheme->name,
                       link->greeted ? link->who.name : "a process that has not said hello", why);
    if (link->inbound) {
        /* It may be writing: its end of the socket closes once it has stopped. */
        shutdown(link->fd, SHUT_WR);
        link->state = KVFI_LINK_DRAINING;
    } else {
        kvfi_sink_end(transport, link);
    }
}

static void watch_listener(struct kvfi_transport *transport, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = &transport->listener};

    epoll_ctl(transport->epoll, EPOLL_CTL_MOD, transport->listener, &event);
}

int64_t kvfi_sink_listen_again(struct kvfi_transport *transport, int64_t now_ns)
{
    if (transport->accept_again_ns != 0 && transport->accept_again_ns <= now_ns) {
        transport->accept_again_ns = 0;
        watch_listener(transport, EPOLLIN);
    }
    return transport->accept_again_ns;
}

void kvfi_sink_accept(struct kvfi_transport *transport)
{
    for (;;) {
        int fd = accept4(transport->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct kvfi_link *link = NULL;
        uid_t uid;
        pid_t pid;

        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            /* No descriptors left: the listener stays readable, so it is not asked for a while. */
            kvfi_logf(transport->log, KVF_LOG_WARN, "%s: accept: %s", transport->scheme->name, strerror(errno));
            transport->accept_again_ns = kvfi_now_ns() + ACCEPT_PAUSE_NS;
            watch_listener(transport, 0);
        }
        if (fd < 0) break;
        if (!kvfi_link_credentials(fd, &pid, &uid) || uid != geteuid() ||
            (transport->scheme->same_process && pid != getpid())) {
            kvfi_logf(transport->log, KVF_LOG_WARN, "%s: connection of process %ld, user %ld, refused",
                      transport->scheme->name, (long)pid, (long)uid);
            close(fd);
            continue;
        }
        link = kvfi_link_create(transport, fd, false);
        if (!link) {
            close(fd);
            continue;
        }
        link->pid = pid;
        link->deadline_ns = kvfi_now_ns() + transport->config.connect_timeout_ns;
        if (kvfi_link_watch(transport, link) != KVF_OK) kvfi_link_bury(transport, link);
    }
}

/* ---- hello ------------------------------------------------------------------------------------------------------ */

static void send_memories(struct kvfi_transport *transport, struct kvfi_link *link)
{
    const struct kvfi_transport_config *config = &transport->config;

    for (size_t first = 0; first < config->memory_count; first += KVFI_DIRECT_BATCH) {
        struct kvfi_direct_message message = {.kind = KVFI_DIRECT_MEMORIES, .memory_first = (uint32_t)first};
        int fds[KVFI_DIRECT_BATCH];
        size_t fd_count = 0;

        while (message.memory_count < KVFI_DIRECT_BATCH && first + message.memory_count < config->memory_count) {
            const struct kvfi_memory_region *region = &config->memories[first + message.memory_count];
            bool has_fd = region->fd >= 0 && !transport->scheme->same_process;

            message.memories[message.memory_count].address = (uint64_t)(uintptr_t)region->address;
            message.memories[message.memory_count].bytes = region->bytes;
            message.memories[message.memory_count].has_fd = has_fd;
            if (has_fd) fds[fd_count++] = region->fd;
            message.memory_count++;
        }
        kvfi_link_send(transport, link, &message, fds, fd_count);
    }
}

/* Gives the link a word that the peer may write a nonce to; 0 when all are taken. */
static uint64_t take_probe_word(struct kvfi_transport *transport)
{
    uint64_t address = 0;

    for (size_t i = 0; address == 0 && i < PROBE_WORDS; i++) {
        bool taken = false;

        address = (uint64_t)(uintptr_t)&transport->probe_words[i];
        for (struct kvfi_link *link = transport->links; link; link = link->next)
            taken = taken || (!link->outgoing && link->probe_page == address);
        if (taken) address = 0;
    }
    return address;
}

static void greet(struct kvfi_transport *transport, struct kvfi_link *link, const struct kvfi_direct_message *hello)
{
    struct kvfi_direct_message answer = {.kind = KVFI_DIRECT_WELCOME, .status = KVF_OK,
                                         .memory_count = (uint32_t)transport->config.memory_count};
    bool expected = strcmp(hello->expected.name, transport->self) == 0 &&
                    hello->expected.incarnation == transport->config.incarnation;

    link->who = hello->self;
    snprintf(answer.self.name, sizeof answer.self.name, "%s", transport->self);
    answer.self.incarnation = transport->config.incarnation;
    if (!expected) {
        answer.status = KVF_ERR_STALE;
        snprintf(answer.text, sizeof answer.text,
                 "expected %.150s incarnation %016" PRIx64 ", found %.150s %016" PRIx64, hello->expected.name,
                 hello->expected.incarnation, transport->self, transport->config.incarnation);
    } else {
        link->probe_page = take_probe_word(transport);
        answer.probe_address = link->probe_page;
    }
    kvfi_link_send(transport, link, &answer, NULL, 0);
    if (!expected) {
        kvfi_sink_drop(transport, link, answer.text);
        return;
    }
    send_memories(transport, link);
    link->greeted = true;
    link->state = KVFI_LINK_READY;
    link->deadline_ns = 0;
}

static void answer_probe(struct kvfi_transport *transport, struct kvfi_link *link, uint64_t nonce)
{
    struct kvfi_direct_message answer = {.kind = KVFI_DIRECT_PROBED, .status = KVF_OK};
    const volatile uint64_t *word = (const volatile uint64_t *)(uintptr_t)link->probe_page;

    if (!word || *word != nonce) {
        answer.status = KVF_ERR_NOT_SUPPORTED;
        snprintf(answer.text, sizeof answer.text, "the probe written across processes did not arrive");
    }
    kvfi_link_send(transport, link, &answer, NULL, 0);
    link->probe_page = 0;
}

/* ---- chunks ----------------------------------------------------------------------------------------------------- */

static void answer_chunk(struct kvfi_transport *transport, struct kvfi_link *link, uint32_t kind,
                         const struct kvfi_chunk_head *head, enum kvf_status status, const char *text)
{
    struct kvfi_direct_message answer = {.kind = kind, .status = (uint32_t)status};

    answer.head.grant = head->grant;
    answer.head.index = head->index;
    if (status != KVF_OK) snprintf(answer.text, sizeof answer.text, "%s", text);
    kvfi_link_send(transport, link, &answer, NULL, 0);
}

static struct kvfi_inbound *find_inbound(struct kvfi_link *link, uint64_t grant, uint32_t index)
{
    struct kvfi_inbound *inbound = link->inbound;

    while (inbound && (inbound->arrival->head.grant != grant || inbound->arrival->head.index != index))
        inbound = inbound->next;
    return inbound;
}

/* A violation under an open chunk: its writer is refused, and stops. */
static void fail_inbound(struct kvfi_transport *transport, struct kvfi_link *link, struct kvfi_inbound *inbound,
                         const struct kvf_error *error)
{
    struct kvfi_grant *grant = inbound->arrival->grant;

    inbound->refused = true;
    answer_chunk(transport, link, KVFI_DIRECT_ACK, &inbound->arrival->head, KVF_ERR_REFUSED, error->text);
    revoke_grant(transport, grant);
    if (kvfi_grant_fail(grant))
        kvfi_tell_grant_failed(&transport->queue, grant->number, (enum kvf_status)error->status, error->text);
}

/* Checks the writer's byte count against a binding of this side. Binding takes a while, so the lock is given up; only
 * this thread frees links, but the chunk may be gone when it comes back. */
static void check_bytes(struct kvfi_transport *transport, struct kvfi_link *link, struct kvfi_arrival *arrival)
{
    struct kvfi_chunk_head head = arrival->head;
    struct kvfi_inbound *inbound;
    struct kvf_error error;
    enum kvf_status status;

    kvfi_grant_acquire(arrival->grant);
    pthread_mutex_unlock(&transport->lock);
    status = kvfi_arrival_bind(arrival, false, &error);
    kvfi_grant_release(arrival->grant);
    pthread_mutex_lock(&transport->lock);
    inbound = find_inbound(link, head.grant, head.index);
    if (status != KVF_OK && inbound) fail_inbound(transport, link, inbound, &error);
}

/* The answer goes out before the binding is checked: the peer copies meanwhile, and is stopped if it must be. */
static void open_chunk(struct kvfi_transport *transport, struct kvfi_link *link, const struct kvfi_chunk_head *head)
{
    struct kvfi_inbound *inbound = kvfi_alloc_zeroed(1, sizeof *inbound);
    struct kvf_error error;
    bool failed = false;
    enum kvf_status status = inbound ? KVF_OK : kvfi_fail_memory(&error, "a chunk's record");

    if (status == KVF_OK)
        status = kvfi_armed_open(&transport->armed, head, &link->who, &inbound->arrival, &failed, &error);
    if (failed) kvfi_tell_grant_failed(&transport->queue, head->grant, status, error.text);
    answer_chunk(transport, link, KVFI_DIRECT_OPENED, head, status == KVF_OK ? KVF_OK : KVF_ERR_REFUSED, error.text);
    if (status != KVF_OK) {
        free(inbound);
        return;
    }
    inbound->next = link->inbound;
    link->inbound = inbound;
    kvfi_grant_begin_write(inbound->arrival->grant);
    check_bytes(transport, link, inbound->arrival);
}

static void close_chunk(struct kvfi_transport *transport, struct kvfi_link *link, struct kvfi_inbound *inbound)
{
    struct kvfi_arrival *arrival = inbound->arrival;
    struct kvfi_grant *grant = arrival->grant;
    struct kvfi_placed placed = kvfi_arrival_place(arrival);
    char text[KVF_ERROR_TEXT_BYTES] = "";

    if (placed.tell) kvfi_tell_received(&transport->queue, grant->number, arrival->head.bytes, placed.complete);
    if (placed.short_of) {
        snprintf(text, sizeof text, "the last chunk is placed, %" PRId64 " of %" PRId64 " granted bytes came",
                 grant->placed_bytes, grant->bytes);
        kvfi_tell_grant_failed(&transport->queue, grant->number, KVF_ERR_INCOMPLETE_TRANSFER, text);
    }
    answer_chunk(transport, link, KVFI_DIRECT_ACK, &arrival->head, placed.short_of ? KVF_ERR_REFUSED : KVF_OK, text);
    end_inbound(transport, link, inbound);
}

void kvfi_sink_message(struct kvfi_transport *transport, struct kvfi_link *link,
                       const struct kvfi_direct_message *message)
{
    struct kvfi_inbound *inbound = find_inbound(link, message->head.grant, message->head.index);

    if (link->state == KVFI_LINK_GREETING) {
        if (message->kind == KVFI_DIRECT_HELLO) greet(transport, link, message);
        else kvfi_sink_drop(transport, link, "expected hello");
        return;
    }
    switch (message->kind) {
    case KVFI_DIRECT_PROBE: answer_probe(transport, link, message->nonce); break;
    case KVFI_DIRECT_OPEN:
        if (inbound) kvfi_sink_drop(transport, link, "a chunk was opened twice");
        else open_chunk(transport, link, &message->head);
        break;
    case KVFI_DIRECT_PLACED:
        if (inbound && !inbound->refused) close_chunk(transport, link, inbound);
        else if (inbound) end_inbound(transport, link, inbound);
        break;
    case KVFI_DIRECT_ABORT:
        if (inbound) end_inbound(transport, link, inbound);
        break;
    default: kvfi_sink_drop(transport, link, "unexpected message"); break;
    }
}
