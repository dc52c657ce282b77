/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { URL_BYTES = 128 };
static const int64_t PATIENCE_NS = INT64_C(60000000000);

/* What the parent asks the child for; each is answered with one number. */
enum request { REQUEST_OFFER = 1, REQUEST_CPU = 2, REQUEST_RESIDENT = 3, REQUEST_QUIT = 4 };

struct bench_pair {
    struct bench_pair_options options;
    kvf_engine *engine;
    pid_t child;
    int to_child, from_child;
    int64_t transfers;
};

kvf_layout *bench_pair_layout(int64_t slots, int64_t tokens_per_block, int64_t row_bytes, int64_t stride_bytes)
{
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout = NULL;
    int64_t slot_bytes = tokens_per_block * stride_bytes, memory_bytes = slots * slot_bytes;
    struct kvf_pool pool = {.slot_stride_bytes = slot_bytes, .slots = slots};
    struct kvf_group group = {.tokens_per_block = tokens_per_block, .stripes = 1};
    struct kvf_place place = {0};
    struct kvf_view view = {.role = "k", .tag = "f16", .row_bytes = row_bytes, .byte_count = row_bytes, .unit_total = 1,
                            .unit_count = 1, .unit_stride_bytes = stride_bytes, .entry_stride_bytes = stride_bytes,
                            .entries = tokens_per_block, .slots_per_block = 1, .places = &place, .place_count = 1};

    kvf_layout_spec_init(&spec, sizeof(spec));
    spec.memory_bytes = &memory_bytes;
    spec.pools = &pool;
    spec.groups = &group;
    spec.views = &view;
    spec.memory_count = spec.pool_count = spec.group_count = spec.view_count = 1;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) {
        bench_fail("layout: %s", error.text);
    }
    return layout;
}

static kvf_engine *open_engine(const struct bench_pair_options *pair, const char *name, const char *directory)
{
    struct kvf_engine_options options;
    struct kvf_error error;
    kvf_engine *engine = NULL;
    bool is_source = directory == NULL;
    const struct bench_memory *memory = is_source ? pair->src : pair->dst;

    kvf_engine_options_init(&options, sizeof(options));
    options.instance = name;
    options.layout = is_source ? pair->src_layout : pair->dst_layout;
    options.directory_url = directory;
    options.transports = pair->transports;
    options.log.fd = 2;
    options.log.level = KVF_LOG_WARN;
    if (kvf_engine_open(&options, &engine, &error) != KVF_OK ||
        kvf_engine_register_memory(engine, 0, memory->address, memory->bytes, memory->fd, &error) != KVF_OK ||
        kvf_engine_announce(engine, &error) != KVF_OK) {
        bench_fail("engine \"%s\": %s", name, error.text);
    }
    return engine;
}

/* Waits for an event of this kind (of an offer or not, where it is BLOCKS_REUSABLE); fails on a failed transfer. */
static struct kvf_event wait_for(kvf_engine *engine, int kind)
{
    struct kvf_event event;
    int64_t deadline_ns = bench_now_ns() + PATIENCE_NS;

    for (;;) {
        if (kvf_engine_wait(engine, &event, 1, deadline_ns - bench_now_ns()) == 0) {
            bench_fail("no event %d within %lld s", kind, (long long)(PATIENCE_NS / 1000000000));
        }
        if (event.kind == KVF_EVENT_PULL_FAILED || event.kind == KVF_EVENT_OFFER_FAILED) {
            bench_fail("transfer \"%s\" failed: %s", event.transfer, event.text);
        }
        if (event.kind == kind) {
            return event;
        }
    }
}

static void name_transfer(char name[32], int64_t number)
{
    snprintf(name, 32, "bench-%lld", (long long)number);
}

static void make_offer(kvf_engine *engine, const struct bench_pair_options *pair, int64_t number)
{
    struct kvf_offer offer;
    struct kvf_error error;
    char name[32];

    name_transfer(name, number);
    kvf_offer_init(&offer, sizeof(offer));
    offer.transfer = name;
    offer.request_tokens = pair->request_tokens;
    offer.ready_tokens = pair->request_tokens;
    offer.groups = &pair->src_ids;
    offer.group_count = 1;
    if (kvf_engine_offer(engine, &offer, &error) != KVF_OK) {
        bench_fail("offer: %s", error.text);
    }
}

/* The prefill process: answers the parent until it says that it is over. */
static void serve(const struct bench_pair_options *pair, int requests, int answers)
{
    char url[URL_BYTES] = "";
    int64_t request, offers = 0;
    kvf_engine *engine = open_engine(pair, "p", NULL);

    snprintf(url, sizeof(url), "%s", kvf_engine_directory_url(engine));
    if (write(answers, url, sizeof(url)) != (ssize_t)sizeof(url)) {
        bench_fail("the parent is gone");
    }
    while (read(requests, &request, sizeof(request)) == (ssize_t)sizeof(request) && request != REQUEST_QUIT) {
        int64_t answer = 0;
        if (request == REQUEST_OFFER) {
            if (offers > 0) {
                wait_for(engine, KVF_EVENT_BLOCKS_REUSABLE);
            }
            make_offer(engine, pair, offers++);
        } else if (request == REQUEST_CPU) {
            answer = bench_cpu_ns();
        } else {
            answer = bench_resident_bytes();
        }
        if (write(answers, &answer, sizeof(answer)) != (ssize_t)sizeof(answer)) {
            break;
        }
    }
    kvf_engine_close(engine);
}

static int64_t ask(struct bench_pair *pair, int64_t request)
{
    int64_t answer = 0;
    if (write(pair->to_child, &request, sizeof(request)) != (ssize_t)sizeof(request) ||
        read(pair->from_child, &answer, sizeof(answer)) != (ssize_t)sizeof(answer)) {
        bench_fail("the prefill process is gone");
    }
    return answer;
}

struct bench_pair *bench_pair_fork(const struct bench_pair_options *options)
{
    int to_child[2], from_child[2];
    struct bench_pair *pair = calloc(1, sizeof(*pair));

    if (pair == NULL || pipe(to_child) != 0 || pipe(from_child) != 0) {
        bench_fail("no memory or no pipe");
    }
    pair->options = *options;
    fflush(NULL);
    pair->child = fork();
    if (pair->child < 0) {
        bench_fail("no second process");
    }
    if (pair->child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to_child[1]);
        close(from_child[0]);
        serve(options, to_child[0], from_child[1]);
        _exit(0);
    }
    close(to_child[0]);
    close(from_child[1]);
    pair->to_child = to_child[1];
    pair->from_child = from_child[0];
    return pair;
}

void bench_pair_start(struct bench_pair *pair)
{
    char url[URL_BYTES] = "";

    if (read(pair->from_child, url, sizeof(url)) != (ssize_t)sizeof(url)) {
        bench_fail("the prefill process did not start");
    }
    pair->engine = open_engine(&pair->options, "d", url);
}

void bench_pair_close(struct bench_pair *pair)
{
    int64_t request = REQUEST_QUIT;

    kvf_engine_close(pair->engine);
    if (write(pair->to_child, &request, sizeof(request)) != (ssize_t)sizeof(request)) {
        bench_fail("the prefill process is gone");
    }
    close(pair->to_child);
    close(pair->from_child);
    waitpid(pair->child, NULL, 0);
    free(pair);
}

double bench_pair_pull(struct bench_pair *pair, struct kvf_event *event)
{
    struct kvf_pull pull;
    struct kvf_error error;
    struct kvf_event done;
    char name[32];

    ask(pair, REQUEST_OFFER);
    name_transfer(name, pair->transfers++);
    kvf_pull_init(&pull, sizeof(pull));
    pull.transfer = name;
    pull.from = "p";
    pull.request_tokens = pair->options.request_tokens;
    pull.token_end = pair->options.request_tokens;
    pull.groups = &pair->options.dst_ids;
    pull.group_count = 1;
    int64_t started_ns = bench_now_ns();
    if (kvf_engine_pull(pair->engine, &pull, &error) != KVF_OK) {
        bench_fail("pull: %s", error.text);
    }
    done = wait_for(pair->engine, KVF_EVENT_PULL_DONE);
    double seconds = (double)(bench_now_ns() - started_ns) / 1e9;
    if (done.transport != (strcmp(pair->options.transports, "shm") == 0 ? 2 : 4)) {
        bench_fail("%s was asked for, transport bits %d were used", pair->options.transports, done.transport);
    }
    wait_for(pair->engine, KVF_EVENT_BLOCKS_REUSABLE);
    if (event != NULL) {
        *event = done;
    }
    return seconds;
}

int64_t bench_pair_child_cpu_ns(struct bench_pair *pair)
{
    return ask(pair, REQUEST_CPU);
}

int64_t bench_pair_child_resident_bytes(struct bench_pair *pair)
{
    return ask(pair, REQUEST_RESIDENT);
}
