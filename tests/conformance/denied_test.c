/* SPDX-License-Identifier: Apache-2.0 */
/* shm where the system says no: what the source is told, so that the engine can take another transport; and a writer
 * whose death its own child hides. Both need the rights to become another user. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

enum {
    NOBODY = 65534,
    LIFETIME_S = 60 /* of processes that a failed test would leave behind */
};

const struct subject *subject;
static const struct subject without_fds = {"", "shm", NULL, false, true, false};
static const struct subject with_fds = {"", "shm", NULL, true, true, false};

static const struct kit_shape shape = {.layers = 2, .heads = 2, .row_bytes = 128, .tokens = 100,
                                       .src_block_tokens = 16, .dst_block_tokens = 64};

static void name_rig(struct rig *rig, struct kit *kit)
{
    memset(rig, 0, sizeof *rig);
    rig->kit = kit;
    rig->ops = kvfi_transport_find("shm");
    snprintf(rig->src_who.name, sizeof rig->src_who.name, "p/pp0.cp0.tp0");
    snprintf(rig->dst_who.name, sizeof rig->dst_who.name, "d/pp0.cp0.tp0");
    rig->src_who.incarnation = 11;
    rig->dst_who.incarnation = 12;
}

/* Opens a destination as another user, tells its endpoint and waits to be killed. */
static void be_foreign_destination(struct rig *rig, int to_parent)
{
    char endpoint[KVFI_ENDPOINT_BYTES] = "";

    alarm(LIFETIME_S);
    if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0) _exit(2);
    rig->dst = rig_open(rig, false, NULL);
    rig->ops->endpoint(rig->dst, endpoint);
    if (write(to_parent, endpoint, sizeof endpoint) != sizeof endpoint) _exit(3);
    for (;;) pause();
}

/* Connects to it, as the same user or as this one. Exit status: 0 when the refusal is as expected. */
static void be_source(struct rig *rig, const char *endpoint, bool same_user, const char *expected)
{
    struct kvfi_transport_event event = {.status = KVF_OK};
    struct kvf_error error;

    alarm(LIFETIME_S);
    if (same_user && (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0)) _exit(2);
    rig->src = rig_open(rig, true, NULL);
    event.status = rig->ops->connect(rig->src, endpoint, &rig->dst_who, &rig->peer, &error);
    if (event.status == KVF_OK) event = rig_await_src(rig, KVFI_TEV_CONNECTED, rig->peer);
    else memcpy(event.text, error.text, sizeof event.text);
    if (event.status != KVF_ERR_NOT_SUPPORTED || !strstr(event.text, expected))
        fprintf(stderr, "%s: %s\n", kvf_status_name(event.status), event.text);
    _exit(event.status == KVF_ERR_NOT_SUPPORTED && strstr(event.text, expected) ? 0 : 1);
}

static void denials_are_told(void **state)
{
    static const struct { const char *name; bool same_user; const char *text;
    } rows[] = {
        {"no right to write across processes", true,
         "has no file descriptor to map, and writing across processes failed: "
         "Operation not permitted"},
        {"another user", false, "of user 65534, expected process"},
    };

    (void)state;
    if (geteuid() != 0) skip();
    subject = &without_fds;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char endpoint[KVFI_ENDPOINT_BYTES];
        struct kit kit;
        struct rig rig;
        int from_child[2], result = -1;
        pid_t destination, source;

        kit_init(&kit, &shape, false);
        name_rig(&rig, &kit);
        assert_int_equal(pipe(from_child), 0);
        destination = fork();
        if (destination == 0) be_foreign_destination(&rig, from_child[1]);
        assert_int_equal(read(from_child[0], endpoint, sizeof endpoint), sizeof endpoint);
        source = fork();
        if (source == 0) be_source(&rig, endpoint, rows[i].same_user, rows[i].text);
        assert_int_equal(waitpid(source, &result, 0), source);
        kill(destination, SIGKILL);
        waitpid(destination, NULL, 0);
        close(from_child[0]);
        close(from_child[1]);
        if (result != 0) fail_msg("%s", rows[i].name);
        kit_fini(&kit);
    }
}

/* A source that connects, then forks a child that keeps its socket open, and is killed. */
static void be_source_with_child(struct rig *rig, int from_parent, int to_parent)
{
    char endpoint[KVFI_ENDPOINT_BYTES];
    pid_t child;

    alarm(LIFETIME_S);
    rig->src = rig_open(rig, true, NULL);
    if (read(from_parent, endpoint, sizeof endpoint) != sizeof endpoint) _exit(3);
    if (rig->ops->connect(rig->src, endpoint, &rig->dst_who, &rig->peer, NULL) != KVF_OK) _exit(4);
    rig_await_src(rig, KVFI_TEV_CONNECTED, rig->peer);
    child = fork();
    if (child == 0) {
        alarm(LIFETIME_S);
        for (;;) pause();
    }
    if (write(to_parent, &child, sizeof child) != sizeof child) _exit(5);
    for (;;) pause();
}

static void a_child_does_not_hide_its_writers_death(void **state)
{
    char endpoint[KVFI_ENDPOINT_BYTES] = "";
    int to_child[2], from_child[2];
    pid_t source, grandchild = 0;
    struct kit kit;
    struct rig rig;

    (void)state;
    subject = &with_fds;
    kit_init(&kit, &shape, true);
    name_rig(&rig, &kit);
    assert_int_equal(pipe(to_child), 0);
    assert_int_equal(pipe(from_child), 0);
    source = fork();
    if (source == 0) be_source_with_child(&rig, to_child[0], from_child[1]);
    rig.dst = rig_open(&rig, false, NULL);
    rig.ops->endpoint(rig.dst, endpoint);
    assert_int_equal(write(to_child[1], endpoint, sizeof endpoint), sizeof endpoint);
    assert_int_equal(read(from_child[0], &grandchild, sizeof grandchild), sizeof grandchild);
    kill(source, SIGKILL);
    waitpid(source, NULL, 0);
    assert_string_equal(rig_await_dst(&rig, KVFI_TEV_WRITER_GONE, 0).who.name, rig.src_who.name);
    kill(grandchild, SIGKILL);
    rig_fini(&rig);
    for (int i = 0; i < 2; i++) {
        close(to_child[i]);
        close(from_child[i]);
    }
    kit_fini(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(denials_are_told),
        cmocka_unit_test(a_child_does_not_hide_its_writers_death),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
