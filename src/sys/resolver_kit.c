/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/resolver_kit.h"

#include <netdb.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);

enum { WAIT_S = 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool hanging = true;
static int hung, under_way, counted;

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The addresses of a name, or of a number. */
static int answer(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    struct addrinfo numeric = *hints;
    int cause;

    numeric.ai_flags |= AI_NUMERICHOST;
    cause = __real_getaddrinfo(host, service, &numeric, out);
    if (cause == 0) return 0;
    if (begins(host, "none") || begins(host, "hang")) return EAI_NONAME;
    if (begins(host, "broken")) return EAI_MEMORY;
    if (!begins(host, "two")) return __real_getaddrinfo("127.0.0.1", service, &numeric, out);
    cause = __real_getaddrinfo("127.0.0.2", service, &numeric, out);
    if (cause == 0) cause = __real_getaddrinfo("127.0.0.1", service, &numeric, &(*out)->ai_next);
    return cause;
}

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    int cause;

    if (hints && hints->ai_flags & AI_NUMERICHOST) return __real_getaddrinfo(host, service, hints, out);
    pthread_mutex_lock(&lock);
    under_way++;
    counted++;
    if (begins(host, "hang")) {
        hung++;
        pthread_cond_broadcast(&changed);
        while (hanging) pthread_cond_wait(&changed, &lock);
        hung--;
    }
    pthread_mutex_unlock(&lock);
    cause = answer(host, service, hints, out);
    pthread_mutex_lock(&lock);
    under_way--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return cause;
}

static bool await(const int *number, int wanted)
{
    struct timespec until;
    int failure = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    while (*number != wanted && failure == 0) failure = pthread_cond_timedwait(&changed, &lock, &until);
    return *number == wanted;
}

void resolver_hang(void)
{
    pthread_mutex_lock(&lock);
    hanging = true;
    counted = 0;
    pthread_mutex_unlock(&lock);
}

bool resolver_let_go(void)
{
    bool ended;

    pthread_mutex_lock(&lock);
    hanging = false;
    pthread_cond_broadcast(&changed);
    ended = await(&under_way, 0);
    pthread_mutex_unlock(&lock);
    return ended;
}

bool resolver_await_hanging(int count)
{
    bool there;

    pthread_mutex_lock(&lock);
    there = await(&hung, count);
    pthread_mutex_unlock(&lock);
    return there;
}

int resolver_count(void)
{
    int count;

    pthread_mutex_lock(&lock);
    count = counted;
    pthread_mutex_unlock(&lock);
    return count;
}
