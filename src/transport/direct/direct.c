/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/direct/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "sys/thread.h"

enum { RETRY_NS = 5000000, MAX_EVENTS = 64, MAX_PACKETS = 64 };

/* How long close waits for peers that were writing: those of this process always answer, a stuck one need not. */
#define CLOSE_OWN_NS (10 * KVFI_SECOND)
#define CLOSE_OTHER_NS (1 * KVFI_SECOND)

void kvfi_direct_wake(struct kvfi_transport *transport)
{
    eventfd_write(transport->wake, 1);
}

/* ---- the I/O thread --------------------------------------------------------------------------------------------- */

static void close_all(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) close(fds[i]);
}

/* A message that does not parse ends its connection; one of another version is told so. */
static void refuse_message(struct kvfi_transport *transport, struct kvfi_link *link,
                           const struct kvfi_direct_message *message, const struct kvf_error *error)
{
    if (link->outgoing) {
        kvfi_source_end(transport, link, (enum kvf_status)error->status, error->text);
        return;
    }
    if (error->status == KVF_ERR_VERSION && message->kind == KVFI_DIRECT_HELLO) {
        struct kvfi_direct_message answer = {.kind = KVFI_DIRECT_WELCOME, .status = KVF_ERR_VERSION};

        snprintf(answer.text, sizeof answer.text, "%s", error->text);
        kvfi_link_send(transport, link, &answer, NULL, 0);
    }
    kvfi_sink_drop(transport, link, error->text);
}

static void hang_up(struct kvfi_transport *transport, struct kvfi_link *link)
{
    link->hung_up = true;
    epoll_ctl(transport->epoll, EPOLL_CTL_DEL, link->fd, NULL);
    if (link->pidfd >= 0) epoll_ctl(transport->epoll, EPOLL_CTL_DEL, link->pidfd, NULL);
    if (link->outgoing) kvfi_source_end(transport, link, KVF_ERR_PEER_LOST, "the peer closed the connection");
    else kvfi_sink_end(transport, link);
}

static bool takes_messages(const struct kvfi_link *link)
{
    return link->state == KVFI_LINK_GREETING || link->state == KVFI_LINK_READY;
}

/* Takes some messages. False when there are no more now. */
static bool receive(struct kvfi_transport *transport, struct kvfi_link *link)
{
    uint8_t packet[KVFI_DIRECT_PACKET_BYTES];
    int fds[KVFI_DIRECT_BATCH];
    bool more = true;

    for (int i = 0; i < MAX_PACKETS && more && link->fd >= 0 && !link->hung_up; i++) {
        struct kvfi_direct_message message;
        struct kvf_error error;
        size_t fd_count;
        ssize_t bytes = kvfi_link_receive(link, packet, fds, KVFI_DIRECT_BATCH, &fd_count);

        if (bytes == -1) {
            more = false;
        } else if (bytes == 0) {
            close_all(fds, fd_count);
            hang_up(transport, link);
        } else if (!takes_messages(link)) {
            close_all(fds, fd_count);
        } else if (bytes == -2) {
            close_all(fds, fd_count);
            kvfi_fail(&error, KVF_ERR_PROTOCOL, "a message of more than %d bytes or %d descriptors",
                      KVFI_DIRECT_PACKET_BYTES, KVFI_DIRECT_BATCH);
            refuse_message(transport, link, &message, &error);
        } else if (kvfi_direct_parse(packet, (size_t)bytes, &message, &error) != KVF_OK) {
            close_all(fds, fd_count);
            refuse_message(transport, link, &message, &error);
        } else if (link->outgoing) {
            kvfi_source_message(transport, link, &message, fds, fd_count);
        } else {
            close_all(fds, fd_count);
            kvfi_sink_message(transport, link, &message);
        }
    }
    return more && link->fd >= 0 && !link->hung_up;
}

/* The other process is dead. What it said before is heard; its socket need not end, where a child of it has it too. */
static void bury_process(struct kvfi_transport *transport, struct kvfi_link *link)
{
    while (receive(transport, link)) continue;
    if (link->fd >= 0 && !link->hung_up) hang_up(transport, link);
}

static void expire(struct kvfi_transport *transport, struct kvfi_link *link)
{
    char text[KVF_ERROR_TEXT_BYTES];
    int64_t ms = transport->config.connect_timeout_ns / KVFI_MS;

    if (link->outgoing) {
        snprintf(text, sizeof text, "%s: %s did not answer within %" PRId64 " ms", transport->scheme->name,
                 link->who.name, ms);
        kvfi_source_end(transport, link, KVF_ERR_TIMEOUT, text);
    } else {
        snprintf(text, sizeof text, "no hello within %" PRId64 " ms", ms);
        kvfi_sink_drop(transport, link, text);
    }
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* Ends what has expired, retries connections. Returns when to look again, 0 = never. */
static int64_t look_at_clocks(struct kvfi_transport *transport)
{
    int64_t now = kvfi_now_ns();
    int64_t next_ns = kvfi_sink_listen_again(transport, now);
    struct kvfi_link *next;

    for (struct kvfi_link *link = transport->links; link; link = next) {
        struct kvf_error error;

        next = link->next;
        if (link->deadline_ns != 0 && link->deadline_ns <= now) {
            expire(transport, link);
            continue;
        }
        if (link->state == KVFI_LINK_CONNECTING) {
            if (kvfi_greeting_start(transport, link, &error) != KVF_OK) {
                kvfi_source_end(transport, link, (enum kvf_status)error.status, error.text);
                continue;
            }
            if (link->state == KVFI_LINK_CONNECTING) next_ns = sooner(next_ns, now + RETRY_NS);
        }
        next_ns = sooner(next_ns, link->deadline_ns);
    }
    return next_ns;
}

static int wait_ms(int64_t until_ns)
{
    int64_t left = until_ns - kvfi_now_ns();

    if (until_ns == 0) return -1;
    return left <= 0 ? 0 : (int)(left / KVFI_MS) + 1;
}

static void handle(struct kvfi_transport *transport, const struct epoll_event *event)
{
    struct kvfi_link *link = event->data.ptr;
    eventfd_t number;

    if (event->data.ptr == &transport->wake) {
        eventfd_read(transport->wake, &number);
    } else if (event->data.ptr == &transport->listener) {
        kvfi_sink_accept(transport);
    } else if ((uintptr_t)event->data.ptr % 2 == KVFI_LINK_DEATH) {
        link = (struct kvfi_link *)((char *)event->data.ptr - KVFI_LINK_DEATH);
        if (link->fd >= 0 && !link->hung_up) bury_process(transport, link);
    } else if (link->fd >= 0 && !link->hung_up) {
        if (event->events & EPOLLOUT) kvfi_link_flush(transport, link);
        if (event->events & ~(uint32_t)EPOLLOUT) receive(transport, link);
    }
}

static void *io_thread(void *argument)
{
    struct kvfi_transport *transport = argument;
    struct epoll_event events[MAX_EVENTS];

    pthread_mutex_lock(&transport->lock);
    while (!transport->stopping || transport->links) {
        int64_t until_ns;
        int count;

        kvfi_link_free_buried(transport);
        until_ns = look_at_clocks(transport);
        if (transport->stopping && !transport->links) break;
        pthread_mutex_unlock(&transport->lock);
        count = epoll_wait(transport->epoll, events, MAX_EVENTS, wait_ms(until_ns));
        pthread_mutex_lock(&transport->lock);
        for (int i = 0; i < count; i++) handle(transport, &events[i]);
    }
    pthread_mutex_unlock(&transport->lock);
    return NULL;
}

/* ---- open ------------------------------------------------------------------------------------------------------- */

static void read_boot_id(char *text, size_t capacity)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, text, capacity - 1);

    if (fd >= 0) close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    text[strcspn(text, "\n;")] = '\0';
    if (text[0] == '\0') snprintf(text, capacity, "unknown-%" PRIx64, kvfi_random_u64());
}

static enum kvf_status listen_here(struct kvfi_transport *transport, struct kvf_error *error)
{
    struct kvfi_direct_endpoint *here = &transport->here;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    enum kvf_status status = KVF_OK;
    struct stat netns;
    size_t bytes;

    read_boot_id(here->boot, sizeof here->boot);
    here->netns = stat("/proc/self/ns/net", &netns) == 0 ? netns.st_ino : 0;
    here->pid = getpid();
    snprintf(here->name, sizeof here->name, "kvferry-%s-%ld-%016" PRIx64, transport->scheme->name, (long)getpid(),
             kvfi_random_u64());
    bytes = strlen(here->name);
    memcpy(address.sun_path + 1, here->name, bytes);
    transport->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (transport->listener < 0 ||
        bind(transport->listener, (struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes)) != 0 ||
        listen(transport->listener, 128) != 0)
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "%s: Unix socket \"%s\": %s", transport->scheme->name, here->name,
                           strerror(errno));
    return status;
}

static enum kvf_status watch_own(struct kvfi_transport *transport, struct kvf_error *error)
{
    struct epoll_event on_wake = {.events = EPOLLIN, .data.ptr = &transport->wake};
    struct epoll_event on_listener = {.events = EPOLLIN, .data.ptr = &transport->listener};
    enum kvf_status status = KVF_OK;

    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (transport->epoll < 0 || transport->wake < 0 ||
        epoll_ctl(transport->epoll, EPOLL_CTL_ADD, transport->wake, &on_wake) != 0 ||
        epoll_ctl(transport->epoll, EPOLL_CTL_ADD, transport->listener, &on_listener) != 0)
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "%s: epoll: %s", transport->scheme->name, strerror(errno));
    return status;
}

static enum kvf_status start_threads(struct kvfi_transport *transport, struct kvf_error *error)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    size_t wanted = cpus > 2 * KVFI_DIRECT_MAX_COPY_THREADS ? KVFI_DIRECT_MAX_COPY_THREADS
                    : cpus >= 4                             ? (size_t)cpus / 2
                    : cpus >= 2                             ? 2
                                                            : 1;
    int failure = 0;

    failure = kvfi_thread_start(&transport->io_thread, io_thread, transport);
    transport->io_started = failure == 0;
    while (failure == 0 && transport->copy_started < wanted) {
        failure = kvfi_thread_start(&transport->copy_threads[transport->copy_started], kvfi_copy_thread, transport);
        transport->copy_started += failure == 0;
    }
    return failure == 0 ? KVF_OK : kvfi_fail(error, KVF_ERR_SYSTEM, "%s: thread: %s", transport->scheme->name,
                                             strerror(failure));
}

static enum kvf_status make_buffers(struct kvfi_transport *transport, struct kvf_error *error)
{
    size_t count = transport->config.memory_count;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *probe = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    transport->probe_words = probe == MAP_FAILED ? NULL : probe;
    transport->own_address = kvfi_alloc_zeroed(count, sizeof *transport->own_address);
    transport->own_bytes = kvfi_alloc_zeroed(count, sizeof *transport->own_bytes);
    return transport->probe_words && transport->own_address && transport->own_bytes
               ? KVF_OK : kvfi_fail_memory(error, "a transport");
}

enum kvf_status kvfi_direct_open(const struct kvfi_direct_scheme *scheme, const struct kvfi_transport_config *config,
                                 struct kvfi_transport **out, struct kvf_error *error)
{
    struct kvfi_transport *transport = kvfi_alloc_zeroed(1, sizeof *transport);
    pthread_condattr_t monotonic;
    enum kvf_status status = KVF_OK;

    if (!transport) return kvfi_fail_memory(error, "a transport");
    transport->scheme = scheme;
    transport->config = *config;
    transport->log = config->log;
    snprintf(transport->self, sizeof transport->self, "%s", config->self);
    transport->listener = transport->epoll = transport->wake = -1;
    pthread_mutex_init(&transport->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&transport->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    kvfi_armed_init(&transport->armed);
    status = kvfi_queue_init(&transport->queue, config->log, error);
    transport->queue_made = status == KVF_OK;
    if (status == KVF_OK) status = make_buffers(transport, error);
    if (status == KVF_OK) status = listen_here(transport, error);
    if (status == KVF_OK) status = watch_own(transport, error);
    if (status == KVF_OK) status = start_threads(transport, error);
    if (status == KVF_OK) *out = transport;
    else kvfi_direct_close(transport);
    return status;
}

/* ---- close ------------------------------------------------------------------------------------------------------ */

static void end_links(struct kvfi_transport *transport)
{
    struct kvfi_link *next;

    for (struct kvfi_link *link = transport->links; link; link = next) {
        next = link->next;
        if (link->outgoing) {
            link->disconnected = true;
            kvfi_source_end(transport, link, KVF_ERR_CANCELLED, "closed");
        } else {
            kvfi_sink_drop(transport, link, NULL);
        }
    }
}

/* Waits for copies of this side and for the writes of others to end. */
static void await_links(struct kvfi_transport *transport)
{
    int64_t until_ns = kvfi_now_ns() + (transport->scheme->same_process ? CLOSE_OWN_NS : CLOSE_OTHER_NS);
    struct timespec until = {.tv_sec = until_ns / KVFI_SECOND, .tv_nsec = until_ns % KVFI_SECOND};
    struct kvfi_link *next;
    bool late = false;

    while (transport->links && !late) late = pthread_cond_timedwait(&transport->changed, &transport->lock, &until) != 0;
    for (struct kvfi_link *link = transport->links; link; link = next) {
        next = link->next;
        if (link->outgoing) continue; /* a copy of this side always ends */
        kvfi_logf(transport->log, KVF_LOG_ERROR, "%s: %s did not stop writing; closed all the same",
                  transport->scheme->name, link->who.name);
        kvfi_sink_end(transport, link);
    }
    while (transport->links) pthread_cond_wait(&transport->changed, &transport->lock);
}

static void stop_threads(struct kvfi_transport *transport)
{
    pthread_mutex_lock(&transport->lock);
    transport->stopping = true;
    if (transport->listener >= 0 && transport->epoll >= 0)
        epoll_ctl(transport->epoll, EPOLL_CTL_DEL, transport->listener, NULL);
    if (transport->io_started) {
        end_links(transport);
        await_links(transport);
        kvfi_direct_wake(transport);
    }
    transport->copy_stopping = true;
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
    for (size_t i = 0; i < transport->copy_started; i++) pthread_join(transport->copy_threads[i], NULL);
    if (transport->io_started) pthread_join(transport->io_thread, NULL);
}

void kvfi_direct_close(struct kvfi_transport *transport)
{
    if (!transport) return;
    stop_threads(transport);
    kvfi_link_free_buried(transport);
    if (transport->listener >= 0) close(transport->listener);
    if (transport->epoll >= 0) close(transport->epoll);
    if (transport->wake >= 0) close(transport->wake);
    if (transport->probe_words) munmap(transport->probe_words, (size_t)sysconf(_SC_PAGESIZE));
    free(transport->own_address);
    free(transport->own_bytes);
    kvfi_armed_fini(&transport->armed);
    if (transport->queue_made) kvfi_queue_fini(&transport->queue);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

/* ---- the rest of the table -------------------------------------------------------------------------------------- */

void kvfi_direct_endpoint(struct kvfi_transport *transport, char *text)
{
    kvfi_direct_endpoint_format(&transport->here, transport->scheme->name, text);
}

int kvfi_direct_event_fd(struct kvfi_transport *transport)
{
    return transport->queue.fd;
}

size_t kvfi_direct_events(struct kvfi_transport *transport, struct kvfi_transport_event *events, size_t capacity)
{
    return kvfi_queue_take(&transport->queue, events, capacity);
}
