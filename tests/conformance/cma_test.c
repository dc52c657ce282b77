/* SPDX-License-Identifier: Apache-2.0 */
/* What cma alone has: its endpoint, whom it may write to, and its faults by policy. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "far.h"
#include "sys/clock.h"

enum { NOBODY = 65534, LIFETIME_S = 60, PAGE = 4096 };

const struct subject *subject;
static struct subject chosen = {"", "cma", NULL, false, true, false};

static void choose(const char *transport, const char *policy)
{
    chosen.transport = transport;
    chosen.policy = policy;
    subject = &chosen;
}

static struct kvfi_transport *open_one(const struct kvfi_transport_ops *ops)
{
    const struct kvfi_transport_config config = {.self = "p/0"};
    struct kvfi_transport *transport = NULL;
    struct kvf_error error;

    if (ops->open(&config, &transport, &error) != KVF_OK) fail_msg("%s", error.text);
    return transport;
}

/** The text is exactly this one, and nothing else is taken for one. */
static void names_its_process(void **state)
{
    static const char *const texts[] = {
        "", "kvferry-cma/1", "kvferry-cma/1 pid=", "kvferry-cma/1 pid=0", "kvferry-cma/1 pid=01",
        "kvferry-cma/1 pid=-1",
        "kvferry-cma/1 pid=+1", "kvferry-cma/1 pid= 1", "kvferry-cma/1 pid=1 ", "kvferry-cma/1 pid=1x",
        "kvferry-cma/1 pid=2147483648", "kvferry-cma/1 pid=99999999999999999999999999", "kvferry-cma/1  pid=1",
        "kvferry-cma/2 pid=1", " kvferry-cma/1 pid=1", "KVFERRY-CMA/1 pid=1", "kvferry-cma/1 pid=1\n"};
    const struct kvfi_transport_ops *ops = kvfi_transport_find("cma");
    struct kvfi_transport *transport = open_one(ops);
    struct kvfi_peer_identity who = {.name = "d/0"};
    char endpoint[KVFI_ENDPOINT_BYTES], wanted[64];
    struct kvf_error error;
    uint64_t peer;

    (void)state;
    ops->endpoint(transport, endpoint);
    snprintf(wanted, sizeof wanted, "kvferry-cma/1 pid=%ld", (long)getpid());
    assert_string_equal(endpoint, wanted);
    assert_int_equal(ops->probe(transport, endpoint, NULL), KVF_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (ops->probe(transport, texts[i], &error) != KVF_ERR_INVALID_ARGUMENT) fail_msg("\"%s\"", texts[i]);
        assert_non_null(strstr(error.text, "expected \"kvferry-cma/1 pid=NUMBER\""));
        assert_int_equal(ops->connect(transport, texts[i], &who, &peer, NULL), KVF_ERR_INVALID_ARGUMENT);
    }
    ops->close(transport);
    ops->close(NULL);
}

static enum kvf_status probe(pid_t pid, struct kvf_error *error)
{
    const struct kvfi_transport_ops *ops = kvfi_transport_find("cma");
    struct kvfi_transport *transport = open_one(ops);
    struct kvfi_peer_identity who = {.name = "d/0"};
    char endpoint[KVFI_ENDPOINT_BYTES];
    enum kvf_status probed, connected;
    uint64_t peer;

    snprintf(endpoint, sizeof endpoint, "kvferry-cma/1 pid=%ld", (long)pid);
    probed = ops->probe(transport, endpoint, error);
    connected = ops->connect(transport, endpoint, &who, &peer, error);
    ops->close(transport);
    return probed == connected ? probed : KVF_ERR_INTERNAL;
}

/* A thread that tells its number and waits. */
struct thread {
    pid_t tid;
    int told, end;
};

static void *tell_thread(void *context)
{
    struct thread *thread = context;

    char byte;

    thread->tid = (pid_t)syscall(SYS_gettid);
    if (write(thread->told, "", 1) == 1 && read(thread->end, &byte, 1) == 1) thread->tid = 0;
    return NULL;
}

static void refuses_what_is_no_process(void **state)
{
    struct thread thread;
    pid_t dead = fork(), zombie;
    int told[2], end[2];
    pthread_t other;
    struct kvf_error error;
    siginfo_t ended;
    char byte;

    (void)state;
    if (dead == 0) _exit(0);
    waitpid(dead, NULL, 0);
    assert_int_equal(probe(dead, &error), KVF_ERR_UNREACHABLE);
    assert_non_null(strstr(error.text, "there is no process"));
    zombie = fork();
    if (zombie == 0) _exit(0);
    waitid(P_PID, (id_t)zombie, &ended, WEXITED | WNOWAIT);
    assert_int_equal(probe(zombie, &error), KVF_ERR_UNREACHABLE);
    waitpid(zombie, NULL, 0);
    assert_int_equal(pipe(told), 0);
    assert_int_equal(pipe(end), 0);
    thread.told = told[1];
    thread.end = end[0];
    assert_int_equal(pthread_create(&other, NULL, tell_thread, &thread), 0);
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(probe(thread.tid, &error), KVF_ERR_UNREACHABLE);
    assert_int_equal(write(end[1], "", 1), 1);
    pthread_join(other, NULL);
    for (int i = 0; i < 2; i++) {
        close(told[i]);
        close(end[i]);
    }
}

static bool become_nobody(void)
{
    return setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

/* Another user's process, in either direction, and one of the same user that does not let itself be looked at. */
static void refuses_whom_it_may_not_write(void **state)
{
    int ready[2], result = -1;
    struct kvf_error error;
    pid_t foreign, source;
    char byte;

    (void)state;
    if (geteuid() != 0) skip();
    assert_int_equal(pipe(ready), 0);
    foreign = fork();
    if (foreign == 0) {
        alarm(LIFETIME_S);
        if (!become_nobody() || prctl(PR_SET_DUMPABLE, 1) != 0 || write(ready[1], "", 1) != 1) _exit(2);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(probe(foreign, &error), KVF_ERR_NOT_SUPPORTED);
    assert_non_null(strstr(error.text, "is of user 65534, expected 0"));
    source = fork();
    if (source == 0) {
        alarm(LIFETIME_S);
        if (!become_nobody()) _exit(2);
        _exit(probe(getppid(), &error) == KVF_ERR_NOT_SUPPORTED ? 0 : 1);
    }
    waitpid(source, &result, 0);
    assert_int_equal(result, 0);
    kill(foreign, SIGKILL);
    waitpid(foreign, NULL, 0);
    close(ready[0]);
    close(ready[1]);
}

/** Whom the endpoint names is whom it writes to; here it names this process itself. */
static void reaches_its_own_process(void **state)
{
    static unsigned char here[PAGE], there[PAGE];
    const struct kvfi_transport_ops *ops = kvfi_transport_find("cma");
    const struct kvfi_memory_region regions[2] = {{here, 100, -1}, {here + 100, PAGE - 100, -1}};
    const struct kvfi_transport_config config = {.self = "p/0", .memories = regions, .memory_count = 2};
    const struct kvfi_range range = {(uint64_t)(uintptr_t)here, (uint64_t)(uintptr_t)there, PAGE};
    struct far far = {.ops = ops};
    struct feed feed;

    (void)state;
    choose("cma", NULL);
    memset(here, 7, sizeof here);
    assert_int_equal(ops->open(&config, &far.transport, NULL), KVF_OK);
    ops->endpoint(far.transport, far.endpoint);
    far_connect(&far);
    feed_init(&feed, &range, 1); /* across two memories that touch */
    far_post_and_await(&far, &feed, KVF_OK);
    assert_memory_equal(here, there, PAGE);
    ops->close(far.transport);
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/** Peers of one process share what watches it, and all that are left hear of its end. */
static void watches_a_process_once(void **state)
{
    enum { EXTRA = 40 };
    struct kvfi_peer_identity who = {.name = "d/0"};
    char endpoint[KVFI_ENDPOINT_BYTES];
    uint64_t peers[EXTRA];
    struct far far;
    int before;

    (void)state;
    choose("cma", NULL);
    far_init(&far, PAGE);
    before = descriptors();
    snprintf(endpoint, sizeof endpoint, "kvferry-cma/1 pid=%ld", (long)far.child);
    for (int i = 0; i < EXTRA; i++) {
        assert_int_equal(far.ops->connect(far.transport, endpoint, &who, &peers[i], NULL), KVF_OK);
        assert_int_equal(far_await(&far, KVFI_TEV_CONNECTED, peers[i]).status, KVF_OK);
    }
    assert_int_equal(descriptors(), before);
    far.ops->disconnect(far.transport, far.peer); /* the first one, which began to watch */
    for (int i = 0; i < EXTRA; i += 2) far.ops->disconnect(far.transport, peers[i]);
    far_kill(&far);
    for (int i = 1; i < EXTRA; i += 2)
        assert_int_equal(far_await(&far, KVFI_TEV_PEER_DOWN, peers[i]).status, KVF_ERR_PEER_LOST);
    far.ops->disconnect(far.transport, peers[0]); /* of none: waits for the watcher, which tells before it closes */
    assert_int_equal(descriptors(), before - 1);
    assert_int_equal(far.ops->connect(far.transport, endpoint, &who, &peers[0], NULL), KVF_ERR_UNREACHABLE);
    far_fini(&far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_its_process), cmocka_unit_test(refuses_what_is_no_process),
        cmocka_unit_test(refuses_whom_it_may_not_write), cmocka_unit_test(reaches_its_own_process),
        cmocka_unit_test(watches_a_process_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
