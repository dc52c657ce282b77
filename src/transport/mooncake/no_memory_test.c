/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of an engine is refused once, in turn. What its caller asked for fails with KVF_ERR_NO_MEMORY and
 * nothing has changed, or was done without it; what a peer asked for is answered, or its connection ends. The engine
 * goes on in either case. The peer that is asked is another process: the allocations counted are of this side. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "kvferry/mooncake.h"
#include "sys/clock.h"
#include "transport/mooncake/engine.h"
#include "transport/mooncake/mooncake.h"

#define LONG_NS (120 * KVFI_SECOND)
#define PROMPT_NS (20 * KVFI_SECOND)

/* More than one connection takes at a time. */
enum { RANGES = 100, RANGE_BYTES = 120000, MEMORY_BYTES = RANGES * RANGE_BYTES, EXTRA = 300 };

static unsigned char *far_memory; /* of the other process, seen here, too */
static char far_name[KVF_MOONCAKE_NAME_BYTES];
static unsigned char memory[MEMORY_BYTES], arena[4096 * 64];

static kvf_mooncake *open_engine(int32_t initiator_only, int32_t max_version)
{
    struct kvf_mooncake_options options;
    struct kvf_error error;
    kvf_mooncake *engine = NULL;

    kvf_mooncake_options_init(&options, sizeof options);
    options.initiator_only = initiator_only;
    options.max_version = max_version;
    options.max_lanes = 4;
    if (kvf_mooncake_open(&options, &engine, &error) != KVF_OK) fail_msg("%s", error.text);
    return engine;
}

static void enroll(kvf_mooncake *engine, const void *address, uint64_t bytes)
{
    const struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)address, bytes};
    struct kvf_error error;

    if (kvf_mooncake_register(engine, &buffer, 1, &error) != KVF_OK) fail_msg("%s", error.text);
}

/* ---- the peer ---------------------------------------------------------------------------------------------------- */

static pid_t far_process;
static int far_end; /* closed when it is to end */

static void play_peer(int to_here, int until)
{
    kvf_mooncake *engine = open_engine(0, 2);
    char byte;

    enroll(engine, far_memory, MEMORY_BYTES);
    if (write(to_here, kvf_mooncake_segment_name(engine), KVF_MOONCAKE_NAME_BYTES) != KVF_MOONCAKE_NAME_BYTES) _exit(1);
    while (read(until, &byte, 1) > 0) {}
    kvf_mooncake_close(engine);
}

/* Before this process has any thread. */
static void begin_peer(void)
{
    int names[2], ends[2];

    far_memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(far_memory != MAP_FAILED && pipe(names) == 0 && pipe(ends) == 0);
    far_process = fork();
    assert_true(far_process >= 0);
    if (far_process == 0) {
        close(ends[1]);
        play_peer(names[1], ends[0]);
        exit(0); /* looks for leaks where something does */
    }
    close(ends[0]);
    close(names[1]);
    assert_int_equal(read(names[0], far_name, sizeof far_name), sizeof far_name);
    close(names[0]);
    far_end = ends[1];
}

static int end_peer(void)
{
    int status = -1;

    close(far_end);
    waitpid(far_process, &status, 0);
    munmap(far_memory, MEMORY_BYTES);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- what is asked of this side ---------------------------------------------------------------------------------- */

struct scene {
    kvf_mooncake *engine;
    int64_t segment;
    struct kvf_error error;
};

static enum kvf_status run_open(struct scene *scene)
{
    kvf_mooncake *engine = NULL;
    enum kvf_status status = kvf_mooncake_open(NULL, &engine, &scene->error);

    assert_true((status == KVF_OK) == (engine != NULL));
    kvf_mooncake_close(engine);
    return status;
}

static enum kvf_status run_open_initiator(struct scene *scene)
{
    struct kvf_mooncake_options options;
    kvf_mooncake *engine = NULL;
    enum kvf_status status;

    kvf_mooncake_options_init(&options, sizeof options);
    options.initiator_only = 1;
    status = kvf_mooncake_open(&options, &engine, &scene->error);
    kvf_mooncake_close(engine);
    return status;
}

/* Enough of them to make lists grow. */
static enum kvf_status run_register(struct scene *scene)
{
    struct kvf_mooncake_buffer buffers[EXTRA];
    uint64_t addresses[EXTRA];
    size_t before = scene->engine->regions.count;
    enum kvf_status status;

    for (size_t i = 0; i < EXTRA; i++) {
        addresses[i] = (uint64_t)(uintptr_t)arena + 64 * i;
        buffers[i] = (struct kvf_mooncake_buffer){addresses[i], 32};
    }
    status = kvf_mooncake_register(scene->engine, buffers, EXTRA, &scene->error);
    assert_int_equal(scene->engine->regions.count, before + (status == KVF_OK ? EXTRA : 0));
    if (status != KVF_OK) return status;
    status = kvf_mooncake_unregister(scene->engine, addresses, EXTRA, LONG_NS, &scene->error);
    assert_int_equal(scene->engine->regions.count, before + (status == KVF_OK ? 0 : EXTRA));
    if (status != KVF_OK)
        assert_int_equal(kvf_mooncake_unregister(scene->engine, addresses, EXTRA, LONG_NS, NULL), KVF_OK);
    return status;
}

static enum kvf_status run_segment(struct scene *scene)
{
    int64_t count = scene->engine->segments.count, segment = -1;
    enum kvf_status status;
    char name[KVF_MOONCAKE_NAME_BYTES];

    snprintf(name, sizeof name, "localhost%s", strrchr(far_name, ':')); /* known by another name already */
    status = kvf_mooncake_open_segment(scene->engine, name, LONG_NS, &segment, &scene->error);
    assert_int_equal(scene->engine->segments.count, count + (status == KVF_OK));
    assert_true((status == KVF_OK) == (segment >= 0));
    if (status == KVF_OK) assert_int_equal(kvf_mooncake_close_segment(scene->engine, segment, NULL), KVF_OK);
    return status;
}

static enum kvf_status run_refresh(struct scene *scene)
{
    struct kvf_mooncake_segment_info info = {.struct_size = sizeof info}, after = info;
    enum kvf_status status;

    kvf_mooncake_get_segment_info(scene->engine, scene->segment, &info, NULL);
    status = kvf_mooncake_refresh_segment(scene->engine, scene->segment, LONG_NS, &scene->error);
    assert_int_equal(kvf_mooncake_get_segment_info(scene->engine, scene->segment, &after, NULL), KVF_OK);
    assert_int_equal(after.fetches, info.fetches + (status == KVF_OK));
    assert_int_equal(after.buffer_count, 1);
    return status;
}

static enum kvf_status run_probe(struct scene *scene)
{
    return kvf_mooncake_probe(scene->engine, far_name, LONG_NS, &scene->error);
}

static enum kvf_status run_notify(struct scene *scene)
{
    return kvf_mooncake_notify(scene->engine, scene->segment, "who", "what", LONG_NS, &scene->error);
}

/* On connections of its own: what is idle was made by an earlier one. */
static void drop_idle(struct scene *scene)
{
    struct kvfi_moon_segment *segment = kvfi_moon_acquire_segment(scene->engine, scene->segment, NULL);
    const struct kvfi_moon_limit limit = {.deadline_ns = kvfi_now_ns() + LONG_NS, .wake_fd = -1};

    while (segment->idle) {
        struct kvfi_moon_lane *lane;

        assert_int_equal(kvfi_moon_lane_take(scene->engine, segment, false, false, &limit, &lane, NULL), KVF_OK);
        if (lane) kvfi_moon_lane_drop(scene->engine, segment, lane);
    }
    segment->suspect = false;
    kvfi_moon_release_segment(scene->engine, segment);
}

static enum kvf_status transfer(struct scene *scene, bool is_write, unsigned char seed)
{
    struct kvf_mooncake_range ranges[RANGES];
    uint8_t outcomes[RANGES];
    unsigned char *from = is_write ? memory : far_memory, *to = is_write ? far_memory : memory;
    enum kvf_status status;

    for (size_t i = 0; i < MEMORY_BYTES; i++) from[i] = (unsigned char)(i * 5 + (i >> 8) + seed);
    memset(to, 0x11, MEMORY_BYTES);
    for (size_t i = 0; i < RANGES; i++)
        ranges[i] = (struct kvf_mooncake_range){(uint64_t)(uintptr_t)memory + i * RANGE_BYTES,
                                                (uint64_t)(uintptr_t)far_memory + i * RANGE_BYTES, RANGE_BYTES};
    status = (is_write ? kvf_mooncake_write : kvf_mooncake_read)(scene->engine, scene->segment, ranges, RANGES, 0,
                                                                 LONG_NS, outcomes, &scene->error);
    for (size_t i = 0; i < RANGES; i++) {
        if (status == KVF_OK) assert_int_equal(outcomes[i], KVF_MOONCAKE_DONE);
        if (outcomes[i] == KVF_MOONCAKE_DONE)
            assert_memory_equal(from + i * RANGE_BYTES, to + i * RANGE_BYTES, RANGE_BYTES);
    }
    return status;
}

static enum kvf_status run_write(struct scene *scene)
{
    return transfer(scene, true, 1);
}

static enum kvf_status run_read(struct scene *scene)
{
    return transfer(scene, false, 2);
}

/* One range among others that the peer refuses: those behind it are sent again. */
static enum kvf_status run_refused(struct scene *scene)
{
    struct kvf_mooncake_range ranges[RANGES];
    uint8_t outcomes[RANGES];
    enum kvf_status status;
    size_t done = 0;

    for (size_t i = 0; i < RANGES; i++)
        ranges[i] = (struct kvf_mooncake_range){(uint64_t)(uintptr_t)memory,
                                                (uint64_t)(uintptr_t)far_memory + i * 64, 64};
    ranges[5].remote = (uint64_t)(uintptr_t)far_memory + MEMORY_BYTES - 32;
    status = kvf_mooncake_write(scene->engine, scene->segment, ranges, RANGES, 0, LONG_NS, outcomes, &scene->error);
    if (status != KVF_ERR_REFUSED) return status;
    assert_int_equal(outcomes[5], KVF_MOONCAKE_FAILED);
    for (size_t i = 0; i < RANGES; i++) done += outcomes[i] == KVF_MOONCAKE_DONE;
    if (done == RANGES - 1) return KVF_OK;
    /* Of several that failed the first one is told. */
    scene->error = (struct kvf_error){.status = KVF_ERR_NO_MEMORY, .text = "no memory for others"};
    return KVF_ERR_NO_MEMORY;
}

/* With an engine of its own, since threads stay once they are there. */
static enum kvf_status run_batch(struct scene *scene)
{
    const struct kvf_mooncake_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)far_memory, RANGE_BYTES};
    const struct kvf_mooncake_buffer buffer = {(uint64_t)(uintptr_t)memory, MEMORY_BYTES};
    struct kvf_mooncake_options options;
    struct kvf_mooncake_batch_spec spec;
    kvf_mooncake_batch *batch = NULL;
    kvf_mooncake *engine = NULL;
    enum kvf_status status;
    uint8_t outcome = 9;

    memset(far_memory, 0x11, RANGE_BYTES);
    kvf_mooncake_options_init(&options, sizeof options);
    kvf_mooncake_batch_spec_init(&spec, sizeof spec);
    options.initiator_only = 1;
    spec.ranges = &range;
    spec.range_count = 1;
    spec.notify_name = spec.notify_message = "batch";
    status = kvf_mooncake_open(&options, &engine, &scene->error);
    if (status == KVF_OK) status = kvf_mooncake_register(engine, &buffer, 1, &scene->error);
    if (status == KVF_OK)
        status = kvf_mooncake_open_segment(engine, far_name, LONG_NS, &spec.segment, &scene->error);
    if (status == KVF_OK) status = kvf_mooncake_submit(engine, &spec, &batch, &scene->error);
    assert_true((status == KVF_OK) == (batch != NULL));
    if (batch) status = kvf_mooncake_batch_wait(batch, LONG_NS, &outcome, &scene->error);
    if (batch && status == KVF_OK) assert_int_equal(outcome, KVF_MOONCAKE_DONE);
    if (outcome == KVF_MOONCAKE_DONE) assert_memory_equal(memory, far_memory, RANGE_BYTES);
    kvf_mooncake_batch_free(batch);
    kvf_mooncake_close(engine);
    return status;
}

/* The table's: a peer that is connected or is not, and is told so. */
static enum kvf_status run_transport(struct scene *scene)
{
    const struct kvfi_transport_config config = {.host = "127.0.0.1", .streams = 1, .connect_timeout_ns = LONG_NS};
    const struct kvfi_transport_ops *ops = &kvfi_mooncake_ops;
    struct kvfi_transport_event event = {.status = KVF_OK};
    struct kvfi_transport *transport = NULL;
    enum kvf_status status = ops->open(&config, &transport, &scene->error);
    struct pollfd wait = {.events = POLLIN};
    uint64_t peer;

    if (status != KVF_OK) return status;
    status = ops->connect(transport, far_name, NULL, &peer, &scene->error);
    if (status == KVF_OK) {
        wait.fd = ops->event_fd(transport);
        assert_int_equal(poll(&wait, 1, 20000), 1);
        assert_int_equal(ops->events(transport, &event, 1), 1);
        assert_int_equal(event.kind, KVFI_TEV_CONNECTED);
        status = event.status;
        scene->error.status = (int32_t)status;
        snprintf(scene->error.text, sizeof scene->error.text, "%s", event.text);
    }
    ops->close(transport);
    return status;
}

static const struct act {
    const char *name;
    enum kvf_status (*run)(struct scene *scene);
    bool transfers; /* drops its idle connections before it */
    long least;     /* allocations that it makes */
} acts[] = {{"open", run_open, false, 8},           {"open, initiator", run_open_initiator, false, 5},
            {"register", run_register, false, 300}, {"segment", run_segment, false, 4},
            {"refresh", run_refresh, false, 3},     {"probe", run_probe, false, 2},
            {"notify", run_notify, false, 4},       {"transport", run_transport, false, 15},
            {"batch", run_batch, false, 18},        {"write", run_write, true, 1},
            {"read", run_read, true, 0},            {"refused", run_refused, true, 1}};

/* Until nothing was refused, over and over: the engine did what it could, and then does all of it. */
static void refuse_each(struct scene *scene, const struct act *act)
{
    bool refused = true;
    long allowed = 0, failures = 0;

    for (; refused; allowed++) {
        enum kvf_status status;
        int64_t began_ns = kvfi_now_ns();

        if (act->transfers) drop_idle(scene);
        scene->error = (struct kvf_error){.text = ""};
        no_memory_once(allowed);
        status = act->run(scene);
        refused = no_memory_end();
        if (status != KVF_OK && status != KVF_ERR_NO_MEMORY)
            fail_msg("%s, allocation %ld: status %d: %s", act->name, allowed, status, scene->error.text);
        if (status != KVF_OK && !strstr(scene->error.text, "memory"))
            fail_msg("%s, allocation %ld: \"%s\"", act->name, allowed, scene->error.text);
        assert_true(status == KVF_OK || (refused && scene->error.status == (int32_t)status));
        assert_true(kvfi_now_ns() - began_ns < PROMPT_NS);
        failures += status != KVF_OK;
        if (status != KVF_OK && act->run(scene) != KVF_OK)
            fail_msg("%s after allocation %ld: %s", act->name, allowed, scene->error.text);
    }
    print_message("%s: %ld allocations, %ld failures\n", act->name, allowed - 1, failures);
    assert_true(failures > 0 && allowed > act->least);
}

static void what_is_asked_of_this_side(void **state)
{
    (void)state;
    for (int32_t version = 2; version >= 1; version--) {
        struct scene scene = {.engine = open_engine(1, version)};

        print_message("version %d\n", (int)version);
        enroll(scene.engine, memory, MEMORY_BYTES);
        assert_int_equal(kvf_mooncake_open_segment(scene.engine, far_name, LONG_NS, &scene.segment, NULL), KVF_OK);
        /* Version 1 has its own reads and writes; it cannot say that a range is refused. */
        for (size_t i = version == 2 ? 0 : 9; i < sizeof acts / sizeof acts[0] - (version == 1); i++)
            refuse_each(&scene, &acts[i]);
        kvf_mooncake_close(scene.engine);
    }
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static enum kvf_status read_descriptor(struct scene *scene)
{
    struct kvfi_moon_descriptor descriptor;
    char text[4096];
    size_t bytes = (size_t)snprintf(text, sizeof text, "{\"name\":\"a:1\",\"protocol\":\"tcp\",\"buffers\":[");
    enum kvf_status status;

    for (int i = 0; i < 40; i++)
        bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "%s{\"addr\":%d,\"length\":10,\"name\":\"cpu:0\"}",
                                  i ? "," : "", 1000 * (i + 1));
    bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "]}\n");
    status = kvfi_moon_descriptor_parse(text, bytes, &descriptor, &scene->error);
    if (status == KVF_OK) assert_int_equal(descriptor.buffer_count, 40);
    kvfi_moon_descriptor_fini(&descriptor); /* also after a failure */
    return status;
}

static enum kvf_status print_descriptor(struct scene *scene)
{
    struct kvf_mooncake_buffer buffers[200];
    struct kvfi_moon_descriptor descriptor = {.name = "a:1", .protocol = "tcp", .buffers = buffers,
                                              .buffer_count = 200};
    char *text = NULL;
    size_t bytes;
    enum kvf_status status;

    for (size_t i = 0; i < 200; i++) buffers[i] = (struct kvf_mooncake_buffer){(i + 1) << 40, 1 << 20};
    status = kvfi_moon_descriptor_print(&descriptor, &text, &bytes, &scene->error);
    assert_true((status == KVF_OK) == (text != NULL));
    free(text);
    return status;
}

static enum kvf_status read_notify(struct scene *scene)
{
    static const char *const texts[] = {"{\"name\":\"a\",\"notify_msg\":\"b\"}", "{\"name\":\"a\"}", "{}"};
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < 3 && status == KVF_OK; i++) {
        char *name, *message;

        status = kvfi_moon_notify_parse(texts[i], strlen(texts[i]), &name, &message, &scene->error);
        if (status != KVF_OK) break;
        free(name);
        free(message);
    }
    return status;
}

static enum kvf_status print_notify(struct scene *scene)
{
    char *text = NULL;
    size_t bytes;
    enum kvf_status status = kvfi_moon_notify_print("who", "what", &text, &bytes, &scene->error);

    free(text);
    return status;
}

static void texts(void **state)
{
    static const struct act rows[] = {{"read a descriptor", read_descriptor, false, 2},
                                      {"print a descriptor", print_descriptor, false, 2},
                                      {"read a notify", read_notify, false, 3},
                                      {"print a notify", print_notify, false, 1}};
    struct scene scene = {.engine = NULL};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) refuse_each(&scene, &rows[i]);
}

/* ---- what peers ask ---------------------------------------------------------------------------------------------- */

/* An engine of this process that is asked by a thread whose own allocations do not count. */
struct visit {
    const char *name;
    int32_t version;
    enum kvf_status status;
    struct kvf_error error;
    unsigned char here[4 * 65536];
};

static unsigned char target[4 * 65536];

static enum kvf_status ask_all(struct visit *visit, kvf_mooncake *engine)
{
    const struct kvf_mooncake_range range = {(uint64_t)(uintptr_t)visit->here, (uint64_t)(uintptr_t)target,
                                             sizeof target};
    int64_t segment;
    enum kvf_status status = kvf_mooncake_open_segment(engine, visit->name, LONG_NS, &segment, &visit->error);

    if (status == KVF_OK) status = kvf_mooncake_probe(engine, visit->name, LONG_NS, &visit->error);
    if (status == KVF_OK) status = kvf_mooncake_notify(engine, segment, "who", "what", LONG_NS, &visit->error);
    if (status == KVF_OK) status = kvf_mooncake_write(engine, segment, &range, 1, 0, LONG_NS, NULL, &visit->error);
    if (status == KVF_OK) status = kvf_mooncake_read(engine, segment, &range, 1, 0, LONG_NS, NULL, &visit->error);
    return status;
}

static void *visit_once(void *context)
{
    struct visit *visit = context;
    kvf_mooncake *engine;

    no_memory_spare_thread();
    engine = open_engine(1, visit->version);
    enroll(engine, visit->here, sizeof visit->here);
    visit->status = ask_all(visit, engine);
    kvf_mooncake_close(engine);
    return NULL;
}

static enum kvf_status send_visitor(struct visit *visit)
{
    pthread_t thread;

    pthread_create(&thread, NULL, visit_once, visit);
    pthread_join(thread, NULL);
    return visit->status;
}

static void forget_notes(kvf_mooncake *engine)
{
    struct kvf_mooncake_notification *note;

    while (kvf_mooncake_take_notification(engine, 0, &note, NULL) == KVF_OK) {
        assert_string_equal(note->name, "who");
        assert_string_equal(note->message, "what");
        kvf_mooncake_free_notification(note);
    }
}

static void what_peers_ask(void **state)
{
    struct visit *visit = calloc(1, sizeof *visit);

    (void)state;
    for (int32_t version = 2; version >= 1; version--) {
        kvf_mooncake *engine = open_engine(0, 2);
        bool refused = true;
        long allowed = 0, failures = 0;

        enroll(engine, target, sizeof target);
        visit->name = kvf_mooncake_segment_name(engine);
        visit->version = version;
        for (; refused; allowed++) {
            int64_t began_ns = kvfi_now_ns();

            no_memory_once(allowed);
            failures += send_visitor(visit) != KVF_OK;
            refused = no_memory_end();
            if (visit->status == KVF_ERR_TIMEOUT || (visit->status != KVF_OK && !refused))
                fail_msg("version %d, allocation %ld: %s", (int)version, allowed, visit->error.text);
            assert_true(kvfi_now_ns() - began_ns < PROMPT_NS);
            if (send_visitor(visit) != KVF_OK)
                fail_msg("version %d, after allocation %ld: %s", (int)version, allowed, visit->error.text);
            forget_notes(engine);
        }
        print_message("version %d: %ld allocations, %ld failures\n", (int)version, allowed - 1, failures);
        assert_true(failures > 0 && allowed > 5);
        kvf_mooncake_close(engine);
    }
    free(visit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(what_is_asked_of_this_side),
                                       cmocka_unit_test(what_peers_ask)};
    int failed;

    begin_peer();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed != 0 ? failed : end_peer();
}
