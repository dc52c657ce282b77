/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "sys/thread.h"

/* A name that is looked up, or is about to be. */
struct query {
    struct query *next;
    struct kvfi_lookup *askers; /* may be none any more, once it is under way */
    char host[];
};

/* What the owner and the threads share: the last one frees it. */
struct kvfi_resolver {
    pthread_mutex_t lock;
    struct query *waiting, *running;
    size_t waiting_count, threads;
    bool closed;
};

/* ---- addresses -------------------------------------------------------------------------------------------------- */

void kvfi_address_set_port(struct kvfi_address *address, int32_t port)
{
    in_port_t number = htons((uint16_t)port);

    if (address->address.ss_family == AF_INET6) ((struct sockaddr_in6 *)&address->address)->sin6_port = number;
    else ((struct sockaddr_in *)&address->address)->sin_port = number;
}

static void copy(const struct addrinfo *found, struct kvfi_addresses *out)
{
    memset(out, 0, sizeof *out);
    for (const struct addrinfo *at = found; at && out->count < KVFI_RESOLVE_ADDRESSES; at = at->ai_next) {
        struct kvfi_address *address = &out->list[out->count];

        if ((at->ai_family != AF_INET && at->ai_family != AF_INET6) || at->ai_addrlen > sizeof address->address)
            continue;
        memcpy(&address->address, at->ai_addr, at->ai_addrlen);
        address->bytes = at->ai_addrlen;
        out->count++;
    }
}

/* Asks the system: 0, or why not in `*text`, which is static or of this thread. */
static enum kvf_status ask_system(const char *host, int flags, struct kvfi_addresses *out, const char **text)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *found = NULL;
    int cause = getaddrinfo(host, NULL, &hints, &found);

    if (cause == 0) {
        copy(found, out);
        freeaddrinfo(found);
        if (out->count > 0) return KVF_OK;
        cause = EAI_FAMILY;
    }
    *text = cause == EAI_SYSTEM ? strerror(errno) : gai_strerror(cause);
    return cause == EAI_MEMORY ? KVF_ERR_NO_MEMORY : KVF_ERR_UNREACHABLE;
}

enum kvf_status kvfi_resolve_number(const char *host, struct kvfi_addresses *out)
{
    const char *text;
    enum kvf_status status = ask_system(host, AI_NUMERICHOST, out, &text);

    return status == KVF_ERR_UNREACHABLE ? KVF_ERR_NOT_FOUND : status;
}

/* ---- queries, with the lock held -------------------------------------------------------------------------------- */

static void unlink_query(struct query **list, struct query *query)
{
    while (*list != query) list = &(*list)->next;
    *list = query->next;
}

static struct query *find_query(struct query *list, const char *host)
{
    while (list && strcmp(list->host, host) != 0) list = list->next;
    return list;
}

static void answer(struct query *query, enum kvf_status status, const struct kvfi_addresses *found, const char *text)
{
    while (query->askers) {
        struct kvfi_lookup *asker = query->askers;

        query->askers = asker->next;
        asker->done(asker, status, status == KVF_OK ? found : NULL, status == KVF_OK ? "" : text);
    }
}

/* The last one gone, nothing is left. Gives up the lock. */
static void leave(struct kvfi_resolver *resolver)
{
    bool last = resolver->closed && resolver->threads == 0;

    pthread_mutex_unlock(&resolver->lock);
    if (!last) return;
    pthread_mutex_destroy(&resolver->lock);
    free(resolver);
}

/* ---- the threads ------------------------------------------------------------------------------------------------ */

static void *look_up(void *argument)
{
    struct kvfi_resolver *resolver = argument;
    struct query *query;

    pthread_mutex_lock(&resolver->lock);
    while ((query = resolver->waiting) != NULL) {
        struct kvfi_addresses found;
        const char *text = "";
        enum kvf_status status;

        resolver->waiting = query->next;
        resolver->waiting_count--;
        query->next = resolver->running;
        resolver->running = query;
        pthread_mutex_unlock(&resolver->lock);
        status = ask_system(query->host, 0, &found, &text);
        pthread_mutex_lock(&resolver->lock);
        answer(query, status, &found, text);
        unlink_query(&resolver->running, query);
        free(query);
    }
    resolver->threads--;
    leave(resolver);
    return NULL;
}

/* Where there can be no more threads, those there are take it later. */
static enum kvf_status find_thread(struct kvfi_resolver *resolver, struct kvf_error *error)
{
    pthread_t thread;
    int failure;

    if (resolver->threads >= KVFI_RESOLVE_THREADS) return KVF_OK;
    failure = kvfi_thread_start(&thread, look_up, resolver);
    if (failure == 0) {
        resolver->threads++;
        pthread_detach(thread);
    }
    if (failure == 0 || resolver->threads > 0) return KVF_OK;
    return kvfi_fail(error, KVF_ERR_SYSTEM, "a thread that looks up host names: %s", strerror(failure));
}

/* ---- the owner -------------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_resolver_create(struct kvfi_resolver **out, struct kvf_error *error)
{
    struct kvfi_resolver *resolver = kvfi_alloc_zeroed(1, sizeof *resolver);

    if (!resolver) return kvfi_fail_memory(error, "what looks up host names");
    pthread_mutex_init(&resolver->lock, NULL);
    *out = resolver;
    return KVF_OK;
}

void kvfi_resolver_destroy(struct kvfi_resolver *resolver)
{
    if (!resolver) return;
    pthread_mutex_lock(&resolver->lock);
    resolver->closed = true;
    for (struct query *query = resolver->running; query; query = query->next)
        answer(query, KVF_ERR_CANCELLED, NULL, "nobody waits any more");
    while (resolver->waiting) {
        struct query *query = resolver->waiting;

        resolver->waiting = query->next;
        answer(query, KVF_ERR_CANCELLED, NULL, "nobody waits any more");
        free(query);
    }
    leave(resolver);
}

static struct query *add_query(struct kvfi_resolver *resolver, const char *host)
{
    size_t bytes = strlen(host) + 1;
    struct query *query = malloc(sizeof *query + bytes), **at = &resolver->waiting;

    if (!query) return NULL;
    query->next = NULL;
    query->askers = NULL;
    memcpy(query->host, host, bytes);
    while (*at) at = &(*at)->next;
    *at = query;
    resolver->waiting_count++;
    return query;
}

static void drop_query(struct kvfi_resolver *resolver, struct query *query)
{
    unlink_query(&resolver->waiting, query);
    resolver->waiting_count--;
    free(query);
}

enum kvf_status kvfi_resolve_start(struct kvfi_resolver *resolver, const char *host, struct kvfi_lookup *lookup,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct query *query;

    pthread_mutex_lock(&resolver->lock);
    query = find_query(resolver->running, host);
    if (!query) query = find_query(resolver->waiting, host);
    if (!query && resolver->waiting_count >= KVFI_RESOLVE_WAITING) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "host \"%.100s\": %zu other names wait to be looked up", host,
                           resolver->waiting_count);
        goto done;
    }
    if (!query) {
        query = add_query(resolver, host);
        status = query ? find_thread(resolver, error) : kvfi_fail_memory(error, "a host name");
        if (status != KVF_OK && query) drop_query(resolver, query);
    }
    if (status != KVF_OK) goto done;
    lookup->next = query->askers;
    query->askers = lookup;
done:
    pthread_mutex_unlock(&resolver->lock);
    return status;
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

/* A look-up on the stack of who waits. */
struct waiter {
    struct kvfi_lookup lookup;
    struct kvfi_addresses *out;
    int fd; /* readable once it is done */
    const char *host;
    enum kvf_status status; /* the lock, until it is done */
    bool done;
    struct kvf_error *error;
};

static void wake_waiter(struct kvfi_lookup *lookup, enum kvf_status status, const struct kvfi_addresses *found,
                        const char *text)
{
    struct waiter *waiter = (struct waiter *)(void *)lookup;

    waiter->done = true;
    waiter->status = status;
    if (found) *waiter->out = *found;
    else kvfi_fail(waiter->error, status, "host \"%.100s\": %s", waiter->host, text);
    eventfd_write(waiter->fd, 1);
}

/* Waits until it is done, or nobody wants to wait any more: the status of that. */
static enum kvf_status await(const struct waiter *waiter, int64_t deadline_ns, const atomic_bool *stop, int wake_fd)
{
    struct pollfd waits[2] = {{.fd = waiter->fd, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};

    for (;;) {
        int64_t left_ns = deadline_ns - kvfi_now_ns();
        struct timespec left = {.tv_sec = left_ns / KVFI_SECOND, .tv_nsec = left_ns % KVFI_SECOND};

        if (stop && atomic_load(stop)) return KVF_ERR_CANCELLED;
        if (left_ns <= 0) return KVF_ERR_TIMEOUT;
        if (ppoll(waits, 2, &left, NULL) > 0 && waits[0].revents != 0) return KVF_OK;
    }
}

static void forget_lookup(struct query *query, const struct kvfi_lookup *lookup)
{
    struct kvfi_lookup **at = &query->askers;

    while (*at && *at != lookup) at = &(*at)->next;
    if (*at) *at = lookup->next;
}

/* Nobody touches it afterwards. It may have been done just now. */
static void stop_waiting(struct kvfi_resolver *resolver, struct waiter *waiter, enum kvf_status why)
{
    struct query *query;

    pthread_mutex_lock(&resolver->lock);
    if (!waiter->done) {
        query = find_query(resolver->running, waiter->host);
        if (query) forget_lookup(query, &waiter->lookup);
        waiter->status = kvfi_fail(waiter->error, why, "host \"%.100s\": %s", waiter->host,
                                   why == KVF_ERR_CANCELLED ? "stopped" :
                                   query || resolver->threads < KVFI_RESOLVE_THREADS ?
                                       "the system's resolver did not answer in time" :
                                       "other names hold up all look-ups");
        if (!query) {
            query = find_query(resolver->waiting, waiter->host);
            forget_lookup(query, &waiter->lookup);
            if (!query->askers) drop_query(resolver, query);
        }
    }
    pthread_mutex_unlock(&resolver->lock);
}

enum kvf_status kvfi_resolve(struct kvfi_resolver *resolver, const char *host, int64_t deadline_ns,
                             const atomic_bool *stop, int wake_fd, struct kvfi_addresses *out, struct kvf_error *error)
{
    struct waiter waiter = {.lookup.done = wake_waiter, .out = out, .host = host, .error = error};
    enum kvf_status status = kvfi_resolve_number(host, out);

    if (status == KVF_OK) return KVF_OK;
    if (status == KVF_ERR_NO_MEMORY) return kvfi_fail_memory(error, "a numeric address");
    waiter.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (waiter.fd < 0)
        return kvfi_fail(error, KVF_ERR_SYSTEM, "host \"%.100s\": cannot wait for it: %s", host, strerror(errno));
    status = kvfi_resolve_start(resolver, host, &waiter.lookup, error);
    if (status == KVF_OK) {
        status = await(&waiter, deadline_ns, stop, wake_fd);
        /* Whoever is done still holds the lock. */
        stop_waiting(resolver, &waiter, status);
        status = waiter.status;
    }
    close(waiter.fd);
    return status;
}

enum kvf_status kvfi_resolve_once(const char *host, int64_t timeout_ns, struct kvfi_addresses *out,
                                  struct kvf_error *error)
{
    struct kvfi_resolver *resolver = NULL;
    enum kvf_status status = kvfi_resolver_create(&resolver, error);

    if (status == KVF_OK) status = kvfi_resolve(resolver, host, kvfi_now_ns() + timeout_ns, NULL, -1, out, error);
    kvfi_resolver_destroy(resolver);
    return status;
}
