/* SPDX-License-Identifier: Apache-2.0 */
/* Ends: withdrawn grants, aborts, closed and killed sides, restarts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "sys/clock.h"

/* Big enough that a side can be met while it moves. */
static const struct kit_shape big_shape = {.layers = 8, .heads = 4, .row_bytes = 128, .tokens = 4000,
                                           .src_block_tokens = 16, .dst_block_tokens = 64};
static const struct kit_shape small_shape = {.layers = 2, .heads = 2, .row_bytes = 128, .tokens = 100,
                                             .src_block_tokens = 16, .dst_block_tokens = 64};

enum { CHUNKS = 8 };

/* One chunk per layer, all posted. */
static void post_layers(struct rig *rig, uint64_t grant, struct kvfi_chunk *chunks)
{
    for (uint32_t i = 0; i < CHUNKS; i++) {
        chunks[i] = rig_chunk(rig, grant, i, i + 1 == CHUNKS, i, i + 1, 0, rig->kit->shape.tokens);
        rig_post(rig, &chunks[i]);
    }
}

/* Each post has ended exactly once; returns how many ended well. */
static int await_posts(struct rig *rig, struct kvfi_chunk *chunks, enum kvf_status other)
{
    int well = 0;

    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct kvfi_transport_event event = rig_await_src(rig, KVFI_TEV_POSTED, chunks[i].cookie);

        well += event.status == KVF_OK;
        if (event.status != KVF_OK && event.status != other)
            fail_msg("posted: %s (%s)", kvf_status_name(event.status), event.text);
        kvf_binding_destroy((kvf_binding *)chunks[i].binding);
    }
    for (size_t i = 0; i < rig->src_count; i++) assert_int_not_equal(rig->src_events[i].kind, KVFI_TEV_POSTED);
    return well;
}

/* After quiet nothing changes any more: what the test writes stays. */
static void assert_stays_quiet(struct rig *rig)
{
    kit_wipe(rig->kit);
    while (rig_pump(rig, kvfi_now_ns() + 50 * KVFI_MS)) continue;
    assert_true(kit_is_untouched(rig->kit));
}

void case_disarmed_in_mid_bytes(void **state)
{
    struct kvfi_chunk chunks[CHUNKS];
    struct kit kit;
    struct rig rig;

    (void)state;
    rig_begin(&rig, &kit, &big_shape);
    rig_arm(&rig, 6);
    post_layers(&rig, 6, chunks);
    rig_await_dst(&rig, KVFI_TEV_RECEIVED, 6);
    if (!rig.ops->disarm(rig.dst, 6)) {
        assert_false(rig.ops->caps & KVFI_CAP_LOCAL_QUIET);
        rig_await_dst(&rig, KVFI_TEV_QUIET, 6);
    }
    kit_wipe(&kit);
    assert_true(await_posts(&rig, chunks, KVF_ERR_REFUSED) >= 1);
    assert_stays_quiet(&rig);
    /* The connection is good for another grant. */
    rig_arm(&rig, 7);
    chunks[0] = rig_whole_chunk(&rig, 7);
    rig_post_and_await(&rig, &chunks[0], KVF_OK);
    assert_int_equal(rig_await_complete(&rig, 7), kit.bytes);
    kit_check(&kit, 0, big_shape.layers, big_shape.tokens);
    rig_end(&rig, &kit);
}

void case_aborted(void **state)
{
    struct kvfi_chunk chunks[CHUNKS], other;
    struct kit kit;
    struct rig rig;

    (void)state;
    rig_begin(&rig, &kit, &big_shape);
    rig_arm(&rig, 6);
    post_layers(&rig, 6, chunks);
    rig_await_dst(&rig, KVFI_TEV_RECEIVED, 6);
    rig.ops->abort(rig.src, rig.peer, 6);
    await_posts(&rig, chunks, KVF_ERR_CANCELLED);
    if (!rig.ops->disarm(rig.dst, 6)) rig_await_dst(&rig, KVFI_TEV_QUIET, 6);
    assert_stays_quiet(&rig);
    rig.ops->abort(rig.src, rig.peer, 6);
    rig.ops->abort(rig.src, 12345, 6);
    rig_arm(&rig, 8);
    other = rig_whole_chunk(&rig, 8);
    rig_post_and_await(&rig, &other, KVF_OK);
    assert_int_equal(rig_await_complete(&rig, 8), kit.bytes);
    rig_end(&rig, &kit);
}

void case_disconnected(void **state)
{
    struct kvfi_chunk chunks[CHUNKS];
    struct kit kit;
    struct rig rig;
    uint64_t peer;
    struct kvf_error error;

    (void)state;
    rig_begin(&rig, &kit, &big_shape);
    peer = rig.peer;
    rig_arm(&rig, 6);
    post_layers(&rig, 6, chunks);
    rig.ops->disconnect(rig.src, peer);
    await_posts(&rig, chunks, KVF_ERR_CANCELLED);
    chunks[0] = rig_whole_chunk(&rig, 6);
    assert_int_not_equal(rig.ops->post_chunk(rig.src, peer, &chunks[0], &error), KVF_OK);
    kvf_binding_destroy((kvf_binding *)chunks[0].binding);
    if (rig.ops->caps & KVFI_CAP_REMOTE_WRITES)
        assert_string_equal(rig_await_dst(&rig, KVFI_TEV_WRITER_GONE, 0).who.name, rig.src_who.name);
    if (!rig.ops->disarm(rig.dst, 6)) rig_await_dst(&rig, KVFI_TEV_QUIET, 6);
    rig_connect(&rig);
    assert_true(rig.peer > peer);
    rig_arm(&rig, 8);
    chunks[0] = rig_whole_chunk(&rig, 8);
    rig_post_and_await(&rig, &chunks[0], KVF_OK);
    rig_end(&rig, &kit);
}

void case_source_closes(void **state)
{
    struct kvfi_chunk chunks[CHUNKS];
    struct kit kit;
    struct rig rig;

    (void)state;
    rig_begin(&rig, &kit, &big_shape);
    rig_arm(&rig, 6);
    post_layers(&rig, 6, chunks);
    rig_await_dst(&rig, KVFI_TEV_RECEIVED, 6);
    rig.ops->close(rig.src);
    rig.src = NULL;
    if (rig.ops->caps & KVFI_CAP_REMOTE_WRITES) {
        struct kvfi_transport_event event = rig_await_dst(&rig, KVFI_TEV_WRITER_GONE, 0);

        assert_string_equal(event.who.name, rig.src_who.name);
        assert_true(event.who.incarnation == rig.src_who.incarnation);
    }
    assert_true(rig.ops->disarm(rig.dst, 6));
    assert_stays_quiet(&rig);
    for (uint32_t i = 0; i < CHUNKS; i++) kvf_binding_destroy((kvf_binding *)chunks[i].binding);
    rig_end(&rig, &kit);
}

void case_destination_closes(void **state)
{
    struct kvfi_chunk chunks[CHUNKS];
    struct kit kit;
    struct rig rig;

    (void)state;
    rig_begin(&rig, &kit, &big_shape);
    rig_arm(&rig, 6);
    post_layers(&rig, 6, chunks);
    rig_await_dst(&rig, KVFI_TEV_RECEIVED, 6);
    rig.ops->close(rig.dst);
    rig.dst = NULL;
    await_posts(&rig, chunks, KVF_ERR_PEER_LOST);
    rig_await_src(&rig, KVFI_TEV_PEER_DOWN, rig.peer);
    rig_end(&rig, &kit);
}

/* ---- other processes -------------------------------------------------------------------------------------------- */

/* The child is the source: connects to the endpoint it reads, posts the whole over and over until it is killed. */
static void be_source(struct rig *rig, int from_parent)
{
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kvfi_chunk chunks[CHUNKS];

    alarm(60); /* should the test fail before it kills this process */
    rig->src = rig_open(rig, true, NULL);
    if (read(from_parent, endpoint, sizeof endpoint) != sizeof endpoint) _exit(3);
    if (rig->ops->connect(rig->src, endpoint, &rig->dst_who, &rig->peer, NULL) != KVF_OK) _exit(4);
    rig_await_src(rig, KVFI_TEV_CONNECTED, rig->peer);
    post_layers(rig, 6, chunks);
    for (;;) pause();
}

/* Both sides' names, before either is open: the child must not inherit threads. */
static void name_rig(struct rig *rig, struct kit *kit)
{
    memset(rig, 0, sizeof *rig);
    rig->kit = kit;
    rig->ops = kvfi_transport_find(subject->transport);
    snprintf(rig->src_who.name, sizeof rig->src_who.name, "p/pp0.cp0.tp0");
    snprintf(rig->dst_who.name, sizeof rig->dst_who.name, "d/pp0.cp0.tp0");
    rig->src_who.incarnation = 11;
    rig->dst_who.incarnation = 12;
}

void case_source_killed(void **state)
{
    char endpoint[KVFI_ENDPOINT_BYTES] = "";
    struct kit kit;
    struct rig rig;
    int to_child[2];
    pid_t child;

    (void)state;
    if (!subject->other_process) skip();
    kit_init(&kit, &big_shape, subject->with_fd);
    name_rig(&rig, &kit);
    assert_int_equal(pipe(to_child), 0);
    child = fork();
    if (child == 0) be_source(&rig, to_child[0]);
    rig.dst = rig_open(&rig, false, NULL);
    rig_arm(&rig, 6);
    rig.ops->endpoint(rig.dst, endpoint);
    assert_int_equal(write(to_child[1], endpoint, sizeof endpoint), sizeof endpoint);
    rig_await_dst(&rig, KVFI_TEV_RECEIVED, 6);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (rig.ops->caps & KVFI_CAP_REMOTE_WRITES)
        assert_string_equal(rig_await_dst(&rig, KVFI_TEV_WRITER_GONE, 0).who.name, rig.src_who.name);
    assert_true(rig.ops->disarm(rig.dst, 6));
    assert_stays_quiet(&rig);
    close(to_child[0]);
    close(to_child[1]);
    rig_end(&rig, &kit);
}

/* The child is the destination: tells its endpoint, arms, waits to be killed. */
static void be_destination(struct rig *rig, int to_parent)
{
    char endpoint[KVFI_ENDPOINT_BYTES] = "";

    alarm(60);
    rig->dst = rig_open(rig, false, NULL);
    rig_arm(rig, 6);
    rig->ops->endpoint(rig->dst, endpoint);
    if (write(to_parent, endpoint, sizeof endpoint) != sizeof endpoint) _exit(3);
    for (;;) pause();
}

void case_destination_killed(void **state)
{
    char endpoint[KVFI_ENDPOINT_BYTES] = "";
    struct kvfi_chunk chunks[CHUNKS];
    struct kvfi_transport_event event;
    struct kit kit;
    struct rig rig;
    int from_child[2];
    pid_t child;

    (void)state;
    if (!subject->other_process) skip();
    kit_init(&kit, &big_shape, subject->with_fd);
    name_rig(&rig, &kit);
    assert_int_equal(pipe(from_child), 0);
    child = fork();
    if (child == 0) be_destination(&rig, from_child[1]);
    rig.src = rig_open(&rig, true, NULL);
    assert_int_equal(read(from_child[0], endpoint, sizeof endpoint), sizeof endpoint);
    assert_int_equal(rig.ops->connect(rig.src, endpoint, &rig.dst_who, &rig.peer, NULL), KVF_OK);
    event = rig_await_src(&rig, KVFI_TEV_CONNECTED, rig.peer);
    if (event.status != KVF_OK) fail_msg("%s", event.text);
    post_layers(&rig, 6, chunks);
    event = rig_await_src(&rig, KVFI_TEV_POSTED, chunks[0].cookie);
    assert_int_equal(event.status, KVF_OK);
    kvf_binding_destroy((kvf_binding *)chunks[0].binding);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (uint32_t i = 1; i < CHUNKS; i++) {
        event = rig_await_src(&rig, KVFI_TEV_POSTED, chunks[i].cookie);
        if (event.status != KVF_OK) assert_int_equal(event.status, KVF_ERR_PEER_LOST);
        kvf_binding_destroy((kvf_binding *)chunks[i].binding);
    }
    rig_await_src(&rig, KVFI_TEV_PEER_DOWN, rig.peer);
    close(from_child[0]);
    close(from_child[1]);
    rig_end(&rig, &kit);
}

/* ---- connecting ------------------------------------------------------------------------------------------------- */

void case_restarted_destination(void **state)
{
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kvfi_peer_identity before;
    struct kvfi_transport_event event;
    struct kvfi_chunk chunk;
    struct kit kit;
    struct rig rig;
    uint64_t peer;

    (void)state;
    rig_begin(&rig, &kit, &small_shape);
    before = rig.dst_who;
    rig.ops->close(rig.dst);
    rig.dst = NULL;
    rig_await_src(&rig, KVFI_TEV_PEER_DOWN, rig.peer);
    rig.dst_who.incarnation++;
    rig.dst = rig_open(&rig, false, NULL);
    rig.ops->endpoint(rig.dst, endpoint);
    assert_int_equal(rig.ops->connect(rig.src, endpoint, &before, &peer, NULL), KVF_OK);
    event = rig_await_src(&rig, KVFI_TEV_CONNECTED, peer);
    assert_int_equal(event.status, KVF_ERR_STALE);
    assert_non_null(strstr(event.text, "expected d/pp0.cp0.tp0 incarnation"));
    rig_connect(&rig);
    rig_arm(&rig, 1);
    chunk = rig_whole_chunk(&rig, 1);
    rig_post_and_await(&rig, &chunk, KVF_OK);
    assert_int_equal(rig_await_complete(&rig, 1), kit.bytes);
    kit_check(&kit, 0, 2, 100);
    rig_end(&rig, &kit);
}

void case_nobody_listens(void **state)
{
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kvf_error error;
    enum kvf_status status;
    struct kit kit;
    struct rig rig;

    (void)state;
    kit_init(&kit, &small_shape, subject->with_fd);
    rig_init(&rig, &kit);
    rig.ops->endpoint(rig.dst, endpoint);
    rig.ops->close(rig.dst);
    rig.dst = NULL;
    status = rig.ops->connect(rig.src, endpoint, &rig.dst_who, &rig.peer, &error);
    if (status == KVF_OK) status = rig_await_src(&rig, KVFI_TEV_CONNECTED, rig.peer).status;
    assert_int_equal(status, KVF_ERR_UNREACHABLE);
    rig_end(&rig, &kit);
}

void case_bad_endpoints(void **state)
{
    static const char *const texts[] = {"", "x", "shm:", "loop:boot=", "tcp:", "tcp:127.0.0.1", "tcp:127.0.0.1:99999",
                                        "shm:boot=a;netns=1;pid=2", "shm:boot=a;netns=x;pid=2;name=b",
                                        "shm:boot=a;netns=1;pid=99999999999999999999;name=b", "nonsense:a=b",
                                        "kvferry-cma/1 pid=", "kvferry-cma/1 pid=0", "kvferry-cma/2 pid=1"};
    struct kvf_error error;
    struct kit kit;
    struct rig rig;
    uint64_t peer;

    (void)state;
    kit_init(&kit, &small_shape, subject->with_fd);
    rig_init(&rig, &kit);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        error.text[0] = '\0';
        assert_int_not_equal(rig.ops->probe(rig.src, texts[i], &error), KVF_OK);
        assert_true(error.text[0] != '\0');
        assert_int_not_equal(rig.ops->connect(rig.src, texts[i], &rig.dst_who, &peer, &error), KVF_OK);
    }
    rig_end(&rig, &kit);
}

void case_closed_while_connecting(void **state)
{
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kit kit;
    struct rig rig;

    (void)state;
    kit_init(&kit, &small_shape, subject->with_fd);
    for (int i = 0; i < 5; i++) {
        rig_init(&rig, &kit);
        rig.ops->endpoint(rig.dst, endpoint);
        assert_int_equal(rig.ops->connect(rig.src, endpoint, &rig.dst_who, &rig.peer, NULL), KVF_OK);
        if (i % 2) rig.ops->disconnect(rig.src, rig.peer);
        rig_fini(&rig);
    }
    kit_fini(&kit);
}
