/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls that wait until their requests are ready: what each costs one producer's worker, beside as many idle
 * connections at a bare ROUTER of the same run; whether a pull whose request is ready is delayed by them; and how long
 * it takes until all are answered once all are ready.
 *
 *   vllm-waiting [--pulls N] [--peers N] [--samples N] [--descriptors N] [--generation 32|33]
 *
 * Processes: the bare ROUTER, the worker, and consumers, each with a Mooncake engine of its own and one layout. As
 * stock consumers do, they open a connection for each pull. The worker may have so many descriptors: with fewer than
 * pulls, one sees what happens then. Pulls are 0.32.0's, with all arrays, or 0.33.0's, with a layout id instead. */
#include "waiting.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"

enum { MOST_PEERS = 128, ALL_DESCRIPTORS = 1 << 20 };

/* ---- all of it ------------------------------------------------------------------------------------------------- */

struct scene {
    struct child worker, consumers[MOST_PEERS];
    char worker_endpoint[256];
    int64_t peers, pulls, samples, descriptors, named;
};

static int64_t first_number(const char *line) { return strtoll(line, NULL, 10); }

static void tell_all(struct scene *scene, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void tell_all(struct scene *scene, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (int64_t i = 0; i < scene->peers; i++)
        say(&scene->consumers[i].lines, "%s", line);
}

static int64_t hear_all(struct scene *scene)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < scene->peers; i++)
        sum += first_number(answer_of(&scene->consumers[i]));
    return sum;
}

static void pull_all(struct scene *scene, const char *prefix, int64_t each)
{
    for (int64_t i = 0; i < scene->peers; i++)
        say(&scene->consumers[i].lines, "pull %" PRId64 " %" PRId64 " %s %s", each, i * each, prefix,
            scene->worker_endpoint);
    hear_all(scene);
}

struct latency {
    double p50_us, p99_us, worst_us;
};

static struct latency latency_of(struct scene *scene, const char *prefix)
{
    struct latency found;
    char line[LINE_BYTES];

    snprintf(line, sizeof line, "ready %s %" PRId64, prefix, scene->samples);
    ask(&scene->worker, line);
    snprintf(line, sizeof line, "latency %" PRId64 " 0 %s %s", scene->samples, prefix, scene->worker_endpoint);
    if (sscanf(ask(&scene->consumers[0], line), "%lf %lf %lf", &found.p50_us, &found.p99_us, &found.worst_us) != 3)
        bench_fail("no latency");
    snprintf(line, sizeof line, "finished %" PRId64, scene->samples);
    ask(&scene->worker, line);
    return found;
}

static void open_scene(struct scene *scene)
{
    scene->worker = start(run_worker, scene->descriptors == ALL_DESCRIPTORS ? 0 : scene->descriptors);
    sscanf(answer_of(&scene->worker), "%255s", scene->worker_endpoint);
    for (int64_t i = 0; i < scene->peers; i++)
        scene->consumers[i] = start(run_consumer, scene->named ? i + 1 : 0);
    hear_all(scene);
}

static void close_scene(struct scene *scene)
{
    for (int64_t i = 0; i < scene->peers; i++)
        end(&scene->consumers[i]);
    end(&scene->worker);
}

/* Every peer's layout has come, and everything has been used once. */
static void warm_up(struct scene *scene)
{
    char line[LINE_BYTES];

    snprintf(line, sizeof line, "ready warm- %" PRId64, scene->peers * 4);
    ask(&scene->worker, line);
    pull_all(scene, "warm-", 4);
    tell_all(scene, "answers");
    hear_all(scene);
    snprintf(line, sizeof line, "finished %" PRId64, scene->peers * 4);
    ask(&scene->worker, line);
}

/* What connections cost at a bare ROUTER that has used everything once. */
static int64_t bare_bytes(struct scene *scene, int64_t each, int64_t bytes)
{
    struct child bare = start(run_bare, 0);
    char line[LINE_BYTES], endpoint[256];
    int64_t memory[2];

    sscanf(answer_of(&bare), "%255s", endpoint);
    for (int i = 0; i < 2; i++) {
        tell_all(scene, "greet %" PRId64 " %" PRId64 " %s", i == 0 ? 4 : each, bytes, endpoint);
        hear_all(scene);
        snprintf(line, sizeof line, "memory %" PRId64, scene->peers * (i == 0 ? 4 : 4 + each));
        memory[i] = first_number(ask(&bare, line));
        tell_all(scene, "close");
        hear_all(scene);
    }
    end(&bare);
    return memory[1] - memory[0];
}

/** What was found of them. */
struct found {
    int64_t pulls, waiting, sent, threads;
    int64_t bytes, idle_bytes, used_bytes; /* of all together: the worker's, and those of connections */
    double pulled_s, answered_s;
    struct latency alone, among, afterwards;
};

static void report(const struct scene *scene, const struct found *found)
{
    int64_t pulls = found->pulls;

    if (found->waiting < pulls)
        printf("{\"bench\": \"vllm\", \"what\": \"waiting, short of descriptors\", \"pulls\": %" PRId64
               ", \"descriptors\": %" PRId64 ", \"waiting\": %" PRId64 "}\n", pulls, scene->descriptors,
               found->waiting);
    else
        printf("{\"bench\": \"vllm\", \"what\": \"waiting\", \"pulls\": %" PRId64 ", \"layout_ids\": %s"
               ", \"peers\": %" PRId64 ", \"ids\": %d, \"bytes_per_pull\": %" PRId64
               ", \"idle_connection_bytes\": %" PRId64
               ", \"used_connection_bytes\": %" PRId64 ", \"beyond_idle\": %" PRId64 ", \"beyond_used\": %" PRId64
               ", \"aim_bytes\": 4096, \"threads\": %" PRId64 ", \"pulled_s\": %.2f}\n", pulls,
               scene->named ? "true" : "false", scene->peers,
               WAITING_IDS, found->bytes / pulls, found->idle_bytes / pulls, found->used_bytes / pulls,
               (found->bytes - found->idle_bytes) / pulls, (found->bytes - found->used_bytes) / pulls, found->threads,
               found->pulled_s);
    printf("{\"bench\": \"vllm\", \"what\": \"all made ready\", \"pulls\": %" PRId64
           ", \"answered\": %" PRId64 ", \"sent\": %" PRId64 ", \"seconds\": %.2f}\n", pulls, pulls, found->sent,
           found->answered_s);
    if (found->waiting == pulls)
        printf("{\"bench\": \"vllm\", \"what\": \"a ready pull\", \"samples\": %" PRId64 ", \"alone_p50_us\": %.0f, "
               "\"alone_p99_us\": %.0f, \"among_p50_us\": %.0f, \"among_p99_us\": %.0f, \"afterwards_p50_us\": %.0f, "
               "\"afterwards_p99_us\": %.0f, \"among_against_alone\": %.2f}\n", scene->samples,
               found->alone.p50_us, found->alone.p99_us, found->among.p50_us, found->among.p99_us,
               found->afterwards.p50_us, found->afterwards.p99_us, found->among.p50_us / found->alone.p50_us);
}

static void run(struct scene *scene)
{
    int64_t each = scene->pulls / scene->peers, before, after, began_ns;
    struct found found = {.pulls = each * scene->peers};
    char line[LINE_BYTES];

    warm_up(scene);
    found.idle_bytes = bare_bytes(scene, each, 1);
    found.used_bytes = bare_bytes(scene, each, 0);
    found.alone = latency_of(scene, "alone-");
    before = first_number(ask(&scene->worker, "memory 0"));
    began_ns = bench_now_ns();
    pull_all(scene, "wait-", each);
    snprintf(line, sizeof line, "memory %" PRId64, found.pulls);
    if (sscanf(ask(&scene->worker, line), "%" SCNd64 " %" SCNd64 " %" SCNd64, &after, &found.threads,
               &found.waiting) != 3)
        bench_fail("no memory told");
    found.bytes = after - before;
    found.pulled_s = (double)(bench_now_ns() - began_ns) / 1e9;
    if (found.waiting == found.pulls)
        found.among = latency_of(scene, "among-");
    tell_all(scene, "answers");
    began_ns = bench_now_ns();
    snprintf(line, sizeof line, "ready wait- %" PRId64, found.pulls);
    ask(&scene->worker, line);
    found.sent = hear_all(scene);
    found.answered_s = (double)(bench_now_ns() - began_ns) / 1e9;
    if (found.waiting == found.pulls && found.sent < found.pulls)
        bench_fail("%" PRId64 " pulls were answered with an error", found.pulls - found.sent);
    snprintf(line, sizeof line, "finished %" PRId64, found.sent);
    ask(&scene->worker, line);
    found.afterwards = latency_of(scene, "after-");
    report(scene, &found);
}

/* The most descriptors that one of the processes needs: libzmq takes one per connection, and a DEALER one more. */
static void raise_limit(int64_t pulls, int64_t peers)
{
    rlim_t wanted = (rlim_t)(pulls + 512);
    struct rlimit limit;

    if (wanted < (rlim_t)(pulls / peers * 2 + 512))
        wanted = (rlim_t)(pulls / peers * 2 + 512);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    if (limit.rlim_max < wanted)
        bench_fail("%" PRId64 " pulls need %llu descriptors, this process may have %llu (ulimit -Hn)", pulls,
                   (unsigned long long)wanted, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        bench_fail("setrlimit: %s", strerror(errno));
}

int main(int argc, char **argv)
{
    static struct scene scene;

    scene.pulls = bench_option(argc, argv, "pulls", 10000);
    scene.peers = bench_option(argc, argv, "peers", 8);
    scene.samples = bench_option(argc, argv, "samples", 300);
    scene.named = bench_option(argc, argv, "generation", 32) == 33;
    scene.descriptors = bench_option(argc, argv, "descriptors", ALL_DESCRIPTORS);
    if (scene.peers > MOST_PEERS || scene.pulls < scene.peers)
        bench_fail("%" PRId64 " peers, expected 1 to %d, and not more than pulls", scene.peers, MOST_PEERS);
    raise_limit(scene.pulls, scene.peers);
    open_scene(&scene);
    run(&scene);
    close_scene(&scene);
    return 0;
}
