/* SPDX-License-Identifier: Apache-2.0 */
/* Names that hang hold up nobody past a deadline or a stop, and nobody who wants another name. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "sys/clock.h"
#include "sys/resolve.h"
#include "sys/resolver_kit.h"

#define LONG_NS (60 * KVFI_SECOND)
#define SHORT_NS (50 * KVFI_MS)

static struct kvfi_resolver *make(void)
{
    struct kvfi_resolver *resolver = NULL;

    resolver_hang();
    assert_int_equal(kvfi_resolver_create(&resolver, NULL), KVF_OK);
    return resolver;
}

static void end(struct kvfi_resolver *resolver)
{
    kvfi_resolver_destroy(resolver);
    assert_true(resolver_let_go());
}

static enum kvf_status resolve(struct kvfi_resolver *resolver, const char *host, int64_t timeout_ns,
                               struct kvfi_addresses *out, struct kvf_error *error)
{
    return kvfi_resolve(resolver, host, kvfi_now_ns() + timeout_ns, NULL, -1, out, error);
}

struct asked {
    struct kvfi_lookup lookup;
    int count;
    enum kvf_status status;
};

static void on_done(struct kvfi_lookup *lookup, enum kvf_status status, const struct kvfi_addresses *found,
                    const char *text)
{
    struct asked *asked = (struct asked *)(void *)lookup;

    assert_true((status == KVF_OK) == (found != NULL) && (status == KVF_OK) == (text[0] == '\0'));
    asked->count++;
    asked->status = status;
}

static void numbers_and_names(void **state)
{
    static const struct { const char *host; enum kvf_status status; size_t count; const char *first, *text; } rows[] = {
        {"127.0.0.1", KVF_OK, 1, "127.0.0.1", ""}, {"::1", KVF_OK, 1, "::1", ""},
        {"some.name", KVF_OK, 1, "127.0.0.1", ""}, {"two.name", KVF_OK, 2, "127.0.0.2", ""},
        {"none", KVF_ERR_UNREACHABLE, 0, "", "host \"none\": "},
        {"broken", KVF_ERR_NO_MEMORY, 0, "", "host \"broken\": "}};
    struct kvfi_resolver *resolver = make();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_addresses found = {.count = 0};
        struct kvf_error error = {.text = ""};
        char text[INET6_ADDRSTRLEN] = "";

        print_message("%s\n", rows[i].host);
        assert_int_equal(resolve(resolver, rows[i].host, LONG_NS, &found, &error), rows[i].status);
        assert_memory_equal(error.text, rows[i].text, strlen(rows[i].text));
        assert_int_equal(found.count, rows[i].count);
        if (found.count == 0) continue;
        kvfi_address_set_port(&found.list[0], 4711);
        if (found.list[0].address.ss_family == AF_INET6) {
            const struct sockaddr_in6 *address = (const struct sockaddr_in6 *)&found.list[0].address;

            assert_int_equal(ntohs(address->sin6_port), 4711);
            inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof text);
        } else {
            const struct sockaddr_in *address = (const struct sockaddr_in *)&found.list[0].address;

            assert_int_equal(ntohs(address->sin_port), 4711);
            inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
        }
        assert_string_equal(text, rows[i].first);
    }
    assert_int_equal(resolver_count(), 4); /* no thread for numbers */
    end(resolver);
}

static void a_deadline_ends_a_wait(void **state)
{
    struct kvfi_resolver *resolver = make();
    struct kvfi_addresses found;
    struct kvf_error error;
    struct asked first = {.lookup.done = on_done};
    int64_t began_ns = kvfi_now_ns();

    (void)state;
    assert_int_equal(kvfi_resolve_start(resolver, "hang", &first.lookup, &error), KVF_OK);
    assert_true(resolver_await_hanging(1));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(resolve(resolver, "hang", SHORT_NS, &found, &error), KVF_ERR_TIMEOUT);
        assert_string_equal(error.text, "host \"hang\": the system's resolver did not answer in time");
    }
    assert_true(kvfi_now_ns() - began_ns < LONG_NS / 2);
    assert_int_equal(resolver_count(), 1); /* one thread for one name */
    assert_int_equal(resolve(resolver, "other", LONG_NS, &found, &error), KVF_OK);
    assert_int_equal(kvfi_resolve_once("hang.alone", SHORT_NS, &found, &error), KVF_ERR_TIMEOUT);
    end(resolver);
}

static atomic_bool stop;

static void *stop_soon(void *wake_fd)
{
    assert_true(resolver_await_hanging(1));
    atomic_store(&stop, true);
    eventfd_write(*(int *)wake_fd, 1);
    return NULL;
}

static void a_stop_ends_a_wait(void **state)
{
    struct kvfi_resolver *resolver = make();
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct kvfi_addresses found;
    struct kvf_error error;
    pthread_t stopper;

    (void)state;
    atomic_store(&stop, false);
    pthread_create(&stopper, NULL, stop_soon, &wake_fd);
    assert_int_equal(kvfi_resolve(resolver, "hang", kvfi_now_ns() + LONG_NS, &stop, wake_fd, &found, &error),
                     KVF_ERR_CANCELLED);
    pthread_join(stopper, NULL);
    close(wake_fd);
    end(resolver);
}

/* As many threads as there may be: later names wait for theirs, and are answered once there is one. */
static void threads_are_bounded(void **state)
{
    struct kvfi_resolver *resolver = make();
    struct asked asked[KVFI_RESOLVE_THREADS];
    struct kvfi_addresses found;
    struct kvf_error error;
    char host[32];

    (void)state;
    for (int i = 0; i < KVFI_RESOLVE_THREADS; i++) {
        asked[i] = (struct asked){.lookup.done = on_done};
        snprintf(host, sizeof host, "hang%d", i);
        assert_int_equal(kvfi_resolve_start(resolver, host, &asked[i].lookup, &error), KVF_OK);
    }
    assert_true(resolver_await_hanging(KVFI_RESOLVE_THREADS));
    assert_int_equal(resolve(resolver, "other", SHORT_NS, &found, &error), KVF_ERR_TIMEOUT);
    assert_string_equal(error.text, "host \"other\": other names hold up all look-ups");
    assert_int_equal(resolve(resolver, "127.0.0.1", SHORT_NS, &found, &error), KVF_OK);
    assert_int_equal(resolver_count(), KVFI_RESOLVE_THREADS);
    assert_true(resolver_let_go());
    assert_int_equal(resolve(resolver, "other", LONG_NS, &found, &error), KVF_OK);
    end(resolver);
}

/* Those under way, and those that wait for a thread, up to a limit: each is answered once. */
static void the_end_answers_all(void **state)
{
    enum { COUNT = KVFI_RESOLVE_THREADS + KVFI_RESOLVE_WAITING };
    struct kvfi_resolver *resolver = make();
    struct asked *asked = calloc(COUNT + 2, sizeof *asked);
    struct kvf_error error;
    char host[32];

    (void)state;
    for (int i = 0; i < COUNT + 2; i++) {
        asked[i].lookup.done = on_done;
        snprintf(host, sizeof host, "hang%d", i % (COUNT + 1));
        assert_int_equal(kvfi_resolve_start(resolver, host, &asked[i].lookup, &error),
                         i == COUNT ? KVF_ERR_LIMIT : KVF_OK);
        if (i == KVFI_RESOLVE_THREADS - 1) assert_true(resolver_await_hanging(KVFI_RESOLVE_THREADS));
    }
    kvfi_resolver_destroy(resolver);
    for (int i = 0; i < COUNT + 2; i++) {
        assert_int_equal(asked[i].count, i == COUNT ? 0 : 1);
        if (i != COUNT) assert_int_equal(asked[i].status, KVF_ERR_CANCELLED);
    }
    free(asked);
    assert_true(resolver_let_go());
}

/* Threads that ask for few names, some of which hang, with short and long deadlines, until they are let go. */
static void *ask_often(void *argument)
{
    struct kvfi_resolver *resolver = argument;
    struct kvfi_addresses found;
    struct kvf_error error;
    char host[32];

    for (int i = 0; i < 300; i++) {
        snprintf(host, sizeof host, i % 3 == 0 ? "hang%d" : "name%d", i % 5);
        if (i % 3 == 0) (void)resolve(resolver, host, (i % 7) * KVFI_MS / 4, &found, &error);
        else assert_int_equal(resolve(resolver, host, LONG_NS, &found, &error), KVF_OK);
    }
    return NULL;
}

static void many_at_once(void **state)
{
    struct kvfi_resolver *resolver = make();
    pthread_t threads[8];

    (void)state;
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, ask_often, resolver);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    end(resolver);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_names), cmocka_unit_test(a_deadline_ends_a_wait),
        cmocka_unit_test(a_stop_ends_a_wait), cmocka_unit_test(threads_are_bounded),
        cmocka_unit_test(the_end_answers_all), cmocka_unit_test(many_at_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
