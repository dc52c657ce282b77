/* SPDX-License-Identifier: Apache-2.0 */
/* Agents of the caller's own: one that copies within this process and has no descriptor, ones that are no agents, and
 * one that knows when others are gone. */
#include "meeting_kit.h"
#include "receiver_scene.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "sys/clock.h"

/* ---- an agent ----------------------------------------------------------------------------------------------- */

enum { CAPACITY = 256 };

struct own_agent {
    struct kvf_trtllm_agent table;
    const char *info;
    size_t grow, grown; /* how much longer it describes itself each time */
    int describe_status;
    pthread_mutex_t lock; /* the test hands in events */
    struct kvf_trtllm_agent_event events[CAPACITY];
    size_t count;
    _Atomic int loads, invalidates, watches;
    int descriptor;   /* an eventfd, where it has one */
};

static enum kvf_status describe(void *context, void *buffer, size_t capacity, size_t *byte_count,
                                struct kvf_error *error)
{
    struct own_agent *agent = context;

    if (agent->describe_status != KVF_OK) {
        memset(error, 0, sizeof *error);
        error->status = agent->describe_status;
        snprintf(error->text, sizeof error->text, "no memory is registered");
        return (enum kvf_status)agent->describe_status;
    }
    *byte_count = strlen(agent->info) + agent->grown;
    agent->grown += agent->grow;
    if (capacity > 0)
        memcpy(buffer, agent->info, strlen(agent->info) < capacity ? strlen(agent->info) : capacity);
    return KVF_OK;
}

static enum kvf_status load(void *context, const char *name, const void *info, size_t info_bytes,
                            struct kvf_error *error)
{
    struct own_agent *agent = context;
    (void)name;
    (void)error;
    assert_int_equal(info_bytes, strlen(agent->info));
    assert_memory_equal(info, agent->info, info_bytes);
    agent->loads++;
    return KVF_OK;
}

static void invalidate(void *context, const char *name)
{
    (void)name;
    ((struct own_agent *)context)->invalidates++;
}

static void tell(struct own_agent *agent, const struct kvf_trtllm_agent_event *event)
{
    pthread_mutex_lock(&agent->lock);
    assert_true(agent->count < CAPACITY);
    agent->events[agent->count++] = *event;
    if (agent->table.fd != NULL)
        assert_int_equal(eventfd_write(agent->descriptor, 1), 0);
    pthread_mutex_unlock(&agent->lock);
}

static enum kvf_status submit(void *context, const struct kvf_trtllm_agent_write *write, struct kvf_error *error)
{
    struct kvf_trtllm_agent_event done = {.kind = KVF_TRTLLM_AGENT_DONE, .cookie = write->cookie};
    struct kvf_trtllm_fragment copies[7];
    int64_t bytes = 0;
    size_t count;

    (void)error;
    while ((count = write->next(write->source, copies, 7)) > 0)
        for (size_t i = 0; i < count; i++) {
            memcpy((void *)(uintptr_t)copies[i].dst_address, (const void *)(uintptr_t)copies[i].src_address,
                   (size_t)copies[i].bytes);
            bytes += copies[i].bytes;
        }
    assert_int_equal(bytes, write->bytes);
    tell(context, &done);
    return KVF_OK;
}

static size_t take(void *context, struct kvf_trtllm_agent_event *events, size_t capacity)
{
    struct own_agent *agent = context;
    eventfd_t value;
    size_t count;

    pthread_mutex_lock(&agent->lock);
    if (agent->table.fd != NULL && agent->count <= capacity)
        eventfd_read(agent->descriptor, &value);
    count = agent->count < capacity ? agent->count : capacity;
    memcpy(events, agent->events, count * sizeof *events);
    agent->count -= count;
    memmove(agent->events, agent->events + count, agent->count * sizeof *events);
    pthread_mutex_unlock(&agent->lock);
    return count;
}

static enum kvf_status watch(void *context, const char *name, const void *info, size_t info_bytes,
                             struct kvf_error *error)
{
    (void)info;
    (void)info_bytes;
    (void)error;
    assert_string_equal(name, "ctx0");
    ((struct own_agent *)context)->watches++;
    return KVF_OK;
}

static int descriptor(void *context) { return ((struct own_agent *)context)->descriptor; }

static void init(struct own_agent *agent, const char *info)
{
    memset(agent, 0, sizeof *agent);
    pthread_mutex_init(&agent->lock, NULL);
    agent->info = info;
    agent->table = (struct kvf_trtllm_agent){.struct_size = sizeof agent->table, .context = agent,
                                             .describe = describe, .load = load, .invalidate = invalidate,
                                             .submit = submit, .poll = take};
}

/* ---- tests -------------------------------------------------------------------------------------------------- */

static void test_agent_without_descriptor(void **unused)
{
    static const int64_t src[3] = {4, 0, 9}, dst[3] = {1, 60, 2};
    struct own_agent own, other; /* one for each worker */
    struct meeting_side ctx, gen;
    (void)unused;
    init(&own, "my own kind");
    init(&other, "my own kind");
    meeting_init(&ctx, "ctx", 1, 1, false);
    meeting_init(&gen, "gen", 1, 1, false);
    ctx.options.agent = &own.table;
    gen.options.agent = &other.table;
    meeting_open(&ctx);
    meeting_open(&gen);
    for (int64_t i = 0; i < 3; i++)
        meeting_fill(&ctx, 1, i, src[i]);
    meeting_send_open(&ctx, 0, 1, 1, 3, KVF_TRTLLM_CONTEXT_FIRST);
    meeting_send(&ctx, 0, 1, 1, src, 3, 0, 3, 1);
    meeting_receive(&gen, 1, ctx.ranks[0].ends.info, dst, 3, 0, KVF_TRTLLM_NONE);
    meeting_done(&gen, 0, 1, KVF_TRTLLM_RECEIVE, 1);
    meeting_done(&ctx, 0, 1, KVF_TRTLLM_SEND, 1);
    for (int64_t i = 0; i < 3; i++)
        meeting_check(&gen, 1, i, dst[i]);
    assert_int_equal(own.loads, 1);
    meeting_close(&gen);
    meeting_close(&ctx);
    assert_int_equal(own.invalidates, 1);
}

static void no_submit(struct own_agent *agent) { agent->table.submit = NULL; }
static void short_table(struct own_agent *agent) { agent->table.struct_size = sizeof(size_t); }
static void cannot_describe(struct own_agent *agent) { agent->describe_status = KVF_ERR_SYSTEM; }
static void watches_blindly(struct own_agent *agent) { agent->table.watch = watch; }
static void grows(struct own_agent *agent) { agent->grow = 1; }

static const struct {
    const char *name;
    void (*spoil)(struct own_agent *agent);
    int status;
    const char *text;
} REFUSED[] = {
    {"no submit", no_submit, KVF_ERR_INVALID_ARGUMENT, "submit and poll are required"},
    {"a short table", short_table, KVF_ERR_INVALID_ARGUMENT, "agent: struct_size is 8"},
    {"it cannot describe itself", cannot_describe, KVF_ERR_SYSTEM, "no memory is registered"},
    {"it watches, and cannot tell", watches_blindly, KVF_ERR_INVALID_ARGUMENT, "watches without a descriptor"},
    {"it describes itself in two ways", grows, KVF_ERR_INVALID_ARGUMENT, "the agent described itself in"},
};

static void test_agents_that_are_none(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        struct kvf_error error = {0};
        kvf_trtllm_worker *worker = NULL;
        struct own_agent own;
        struct gen gen;

        init(&own, "kind");
        REFUSED[i].spoil(&own);
        gen_init(&gen, "gen");
        gen.options.agent = &own.table;
        gen.options.rank = rank_kit_make(&gen.kit);
        if ((int)kvf_trtllm_worker_open(&gen.options, &worker, &error) != REFUSED[i].status)
            fail_msg("%s: status %d, \"%s\"", REFUSED[i].name, error.status, error.text);
        has_text(error.text, REFUSED[i].text);
        kvf_trtllm_rank_release((kvf_trtllm_rank *)(uintptr_t)gen.options.rank);
    }
}

/* A rank whose process ended can write no more: its word is not needed. The other rank's is. */
static void test_agent_knows_who_is_gone(void **unused)
{
    struct kvf_trtllm_agent_event gone = {.kind = KVF_TRTLLM_AGENT_GONE, .name = "ctx0"};
    struct own_agent own;
    struct scene scene;
    (void)unused;
    init(&own, "kind");
    own.table.watch = watch;
    own.table.fd = descriptor;
    own.descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gen_init(&scene.gen, "gen");
    scene.gen.options.agent = &own.table;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 2);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_requested(&scene.ctx, 2, 1);
    assert_int_equal(own.watches, 1);
    tell(&own, &gone);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_PEER_LOST, "the process of context rank 0 has ended");
    is_kept(&scene, 1);
    assert_int_equal(gen_status(&scene.gen, 1).pending, 1);
    script_result(&scene.ctx, 1, 1, true, FAILED);
    settled(&scene, 1);
    end(&scene);
    close(own.descriptor);
}

/* A context is restarted under its old name, and the first one's process may live on: the end of the second says
 * nothing of it. */
static void test_gone_is_one_process_and_no_name(void **unused)
{
    struct kvf_trtllm_agent_event gone = {.kind = KVF_TRTLLM_AGENT_GONE, .name = "ctx0"};
    struct own_agent own;
    struct scene scene;
    (void)unused;
    init(&own, "kind");
    own.table.watch = watch;
    own.table.fd = descriptor;
    own.descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gen_init(&scene.gen, "gen");
    scene.gen.options.agent = &own.table;
    scene.gen.options.peer_refresh_ns = KVFI_MS;
    gen_open(&scene.gen);
    script_init(&scene.ctx, "ctx", 1);
    script_open(&scene.ctx, &scene.gen);
    gen_receive(&scene.gen, 1, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 1);
    scene.ctx.kit.spec.transfer_engine_info = "another";
    scene.ctx.kit.spec.transfer_engine_info_bytes = strlen("another");
    script_describe(&scene.ctx);
    script_until(&scene.ctx, &scene.ctx.registered[0], 2);
    ended(&scene, 1, KVF_TRTLLM_STATE_ERROR, KVF_ERR_STALE, "instance \"ctx\" was replaced");
    gen_receive(&scene.gen, 2, scene.ctx.endpoint);
    script_requested(&scene.ctx, 1, 2);
    assert_int_equal(own.watches, 2);
    tell(&own, &gone);
    ended(&scene, 2, KVF_TRTLLM_STATE_ERROR, KVF_ERR_PEER_LOST, "the process of context rank 0 has ended");
    settled(&scene, 2);
    is_kept(&scene, 1);
    script_result(&scene.ctx, 0, 1, true, FAILED);
    settled(&scene, 1);
    end(&scene);
    close(own.descriptor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agent_without_descriptor),
        cmocka_unit_test(test_agents_that_are_none),
        cmocka_unit_test(test_agent_knows_who_is_gone),
        cmocka_unit_test(test_gone_is_one_process_and_no_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
