/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/desk.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include "transport/mooncake/frame.h"

enum { MAX_EVENTS = 64, ACCEPTS_PER_TURN = 64, READS_PER_TURN = 16, FIRST_BYTES = 4096 };

#define ACCEPT_PAUSE_NS (50 * KVFI_MS)

enum step { ASKING, ANSWERING, LEAVING };

struct client {
    struct client *previous, *next; /* in the order in which they came */
    int fd;
    enum step step;
    char *bytes;                    /* the frame that comes, then the one that goes */
    size_t capacity, at, length;    /* length: of the frame, 0 until it is known */
    int64_t deadline_ns;
};

struct kvfi_moon_desk {
    struct kvfi_moon_desk_rules rules;
    int epoll, wake;
    pthread_t thread;
    bool started;
    atomic_bool stopping;
    struct client *first, *last, *dead;
    int64_t count;
    int64_t accept_again_ns;
    bool told_of_limit;
};

static void drop(struct kvfi_moon_desk *desk, struct client *client)
{
    if (client->fd < 0) return;
    close(client->fd);
    client->fd = -1;
    *(client->previous ? &client->previous->next : &desk->first) = client->next;
    *(client->next ? &client->next->previous : &desk->last) = client->previous;
    client->next = desk->dead;
    desk->dead = client;
    desk->count--;
}

static void free_dead(struct kvfi_moon_desk *desk)
{
    while (desk->dead) {
        struct client *client = desk->dead;

        desk->dead = client->next;
        free(client->bytes);
        free(client);
    }
}

/* ---- a client --------------------------------------------------------------------------------------------------- */

/* Waits for the client to close, as the reference does, so that no reset overtakes the answer. */
static void leave(struct kvfi_moon_desk *desk, struct client *client)
{
    char ignored[4096];
    ssize_t got = 1;

    for (int i = 0; got > 0 && i < READS_PER_TURN; i++) got = recv(client->fd, ignored, sizeof ignored, 0);
    if (got > 0) return;
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) drop(desk, client);
}

static void send_answer(struct kvfi_moon_desk *desk, struct client *client)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};

    while (client->at < client->length) {
        ssize_t sent = send(client->fd, client->bytes + client->at, client->length - client->at, MSG_NOSIGNAL);

        if (sent >= 0) client->at += (size_t)sent;
        else if (errno == EAGAIN) break;
        else if (errno != EINTR) {
            drop(desk, client);
            return;
        }
    }
    if (client->at < client->length) {
        event.events = EPOLLOUT;
        epoll_ctl(desk->epoll, EPOLL_CTL_MOD, client->fd, &event);
        return;
    }
    client->step = LEAVING;
    client->deadline_ns = kvfi_now_ns() + desk->rules.timeout_ns;
    shutdown(client->fd, SHUT_WR);
    epoll_ctl(desk->epoll, EPOLL_CTL_MOD, client->fd, &event);
    leave(desk, client);
}

static void answer(struct kvfi_moon_desk *desk, struct client *client)
{
    uint8_t type = (uint8_t)client->bytes[KVFI_MOON_LENGTH_BYTES];
    size_t bytes = client->length - KVFI_MOON_PREFIX_BYTES, reply_bytes = 0;
    char *reply = NULL, *frame;

    if (type <= KVFI_MOON_PROBE)
        reply = desk->rules.answer(desk->rules.context, type, client->bytes + KVFI_MOON_PREFIX_BYTES, bytes,
                                   &reply_bytes);
    frame = reply ? realloc(reply, reply_bytes + KVFI_MOON_PREFIX_BYTES) : NULL;
    if (!frame) {
        free(reply);
        drop(desk, client);
        return;
    }
    memmove(frame + KVFI_MOON_PREFIX_BYTES, frame, reply_bytes);
    kvfi_moon_pack_prefix(type, reply_bytes, (uint8_t *)frame);
    free(client->bytes);
    client->bytes = frame;
    client->step = ANSWERING;
    client->at = 0;
    client->length = reply_bytes + KVFI_MOON_PREFIX_BYTES;
    client->deadline_ns = kvfi_now_ns() + desk->rules.timeout_ns;
    send_answer(desk, client);
}

/* Makes room as bytes come: a length alone costs nothing. */
static bool grow(struct client *client)
{
    size_t wanted = client->capacity == 0 ? FIRST_BYTES : client->capacity * 2;
    char *bytes;

    if (client->length > 0 && wanted > client->length) wanted = client->length;
    if (wanted <= client->capacity) return true;
    bytes = realloc(client->bytes, wanted);
    if (!bytes) return false;
    client->bytes = bytes;
    client->capacity = wanted;
    return true;
}

static void listen_to(struct kvfi_moon_desk *desk, struct client *client)
{
    for (;;) {
        size_t wanted;
        ssize_t got;

        if (client->at == client->capacity && !grow(client)) break;
        wanted = client->length > 0 ? client->length : KVFI_MOON_LENGTH_BYTES;
        if (wanted > client->capacity) wanted = client->capacity;
        got = recv(client->fd, client->bytes + client->at, wanted - client->at, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        client->at += (size_t)got;
        if (client->length == 0 && client->at == KVFI_MOON_LENGTH_BYTES) {
            size_t length = kvfi_moon_parse_length((const uint8_t *)client->bytes, (size_t)desk->rules.max_bytes);

            if (length == 0) break;
            client->length = length + KVFI_MOON_LENGTH_BYTES;
        }
        if (client->at == client->length) {
            answer(desk, client);
            return;
        }
    }
    drop(desk, client);
}

static void on_client(struct kvfi_moon_desk *desk, struct client *client)
{
    if (client->fd < 0) return;
    if (client->step == ASKING) listen_to(desk, client);
    else if (client->step == ANSWERING) send_answer(desk, client);
    else leave(desk, client);
}

/* ---- accepting -------------------------------------------------------------------------------------------------- */

static void welcome(struct kvfi_moon_desk *desk, int fd)
{
    struct client *client = kvfi_alloc_zeroed(1, sizeof *client);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};

    /* The oldest goes first: whoever is in earnest has been answered by now. */
    if (desk->count >= desk->rules.max_clients) drop(desk, desk->first);
    if (!client || epoll_ctl(desk->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(client);
        close(fd);
        return;
    }
    client->fd = fd;
    client->deadline_ns = kvfi_now_ns() + desk->rules.timeout_ns;
    client->previous = desk->last;
    *(desk->last ? &desk->last->next : &desk->first) = client;
    desk->last = client;
    desk->count++;
    on_client(desk, client);
}

static void watch_listener(struct kvfi_moon_desk *desk, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = desk};

    epoll_ctl(desk->epoll, EPOLL_CTL_MOD, desk->rules.listener, &event);
}

static void accept_some(struct kvfi_moon_desk *desk)
{
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(desk->rules.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            welcome(desk, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (!desk->told_of_limit)
                kvfi_logf(desk->rules.log, KVF_LOG_WARN, "mooncake: handshakes wait to be accepted: %s",
                          strerror(errno));
            desk->told_of_limit = true;
            desk->accept_again_ns = kvfi_now_ns() + ACCEPT_PAUSE_NS;
            watch_listener(desk, false);
            break;
        } else if (errno == EAGAIN) {
            break;
        }
    }
}

/* ---- the thread ------------------------------------------------------------------------------------------------- */

/* Drops who is late. Returns the milliseconds until the next one is, -1 for never. */
static int look_at_deadlines(struct kvfi_moon_desk *desk)
{
    int64_t now_ns = kvfi_now_ns(), next_ns = INT64_MAX;
    struct client *next;

    if (desk->accept_again_ns != 0 && desk->accept_again_ns <= now_ns) {
        desk->accept_again_ns = 0;
        watch_listener(desk, true);
    }
    for (struct client *client = desk->first; client; client = next) {
        next = client->next;
        if (client->deadline_ns <= now_ns) drop(desk, client);
        else if (client->deadline_ns < next_ns) next_ns = client->deadline_ns;
    }
    if (desk->accept_again_ns != 0 && desk->accept_again_ns < next_ns) next_ns = desk->accept_again_ns;
    return next_ns == INT64_MAX ? -1 : (int)((next_ns - now_ns) / KVFI_MS) + 1;
}

static void *attend(void *argument)
{
    struct kvfi_moon_desk *desk = argument;

    while (!atomic_load(&desk->stopping)) {
        int wait_ms = look_at_deadlines(desk);
        struct epoll_event events[MAX_EVENTS];
        int count;

        free_dead(desk);
        count = epoll_wait(desk->epoll, events, MAX_EVENTS, wait_ms);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == desk) accept_some(desk);
            else if (events[i].data.ptr != &desk->wake) on_client(desk, events[i].data.ptr);
        }
    }
    return NULL;
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_moon_desk_open(const struct kvfi_moon_desk_rules *rules, struct kvfi_moon_desk **out,
                                    struct kvf_error *error)
{
    struct kvfi_moon_desk *desk = kvfi_alloc_zeroed(1, sizeof *desk);
    struct epoll_event on_wake = {.events = EPOLLIN}, on_listener = {.events = EPOLLIN};
    enum kvf_status status = KVF_OK;
    int failure;

    if (!desk) return kvfi_fail_memory(error, "a handshake server");
    desk->rules = *rules;
    atomic_init(&desk->stopping, false);
    on_wake.data.ptr = &desk->wake;
    on_listener.data.ptr = desk;
    desk->epoll = epoll_create1(EPOLL_CLOEXEC);
    desk->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (desk->epoll < 0 || desk->wake < 0 || epoll_ctl(desk->epoll, EPOLL_CTL_ADD, desk->wake, &on_wake) != 0 ||
        epoll_ctl(desk->epoll, EPOLL_CTL_ADD, rules->listener, &on_listener) != 0) {
        status = kvfi_fail(error, KVF_ERR_SYSTEM, "mooncake: epoll: %s", strerror(errno));
        goto done;
    }
    failure = kvfi_thread_start(&desk->thread, attend, desk);
    desk->started = failure == 0;
    if (failure != 0) status = kvfi_fail(error, KVF_ERR_SYSTEM, "mooncake: thread: %s", strerror(failure));
done:
    if (status == KVF_OK) {
        *out = desk;
    } else {
        desk->rules.listener = -1; /* stays the caller's */
        kvfi_moon_desk_close(desk);
    }
    return status;
}

void kvfi_moon_desk_close(struct kvfi_moon_desk *desk)
{
    if (!desk) return;
    atomic_store(&desk->stopping, true);
    if (desk->started) {
        eventfd_write(desk->wake, 1);
        pthread_join(desk->thread, NULL);
    }
    if (desk->rules.listener >= 0) close(desk->rules.listener);
    while (desk->first) drop(desk, desk->first);
    free_dead(desk);
    if (desk->epoll >= 0) close(desk->epoll);
    if (desk->wake >= 0) close(desk->wake);
    free(desk);
}
