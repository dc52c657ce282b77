/* SPDX-License-Identifier: Apache-2.0 */
/* A worker in a process of its own, driven by lines on its standard input and answering on its standard output. The
 * death tests start it, and kill it.
 *
 *   worker p|d TRANSPORTS DIRECTORY-URL   one rank; then lines:
 *   offer ID TOKENS READY TIMEOUT_MS | ready ID LAYER_END TOKENS | pull ID TOKENS TIMEOUT_MS | event | check TOKENS |
 *   sent BYTES (waits until so many are sent) | quiet (200 ms long no event comes) | quit
 */
#include "kit.h"

#include <inttypes.h>
#include <signal.h>
#include <sys/prctl.h>

enum { MAX_BLOCKS = 64, MAX_SEEN = 16 };

static struct kit_side side;
static int64_t ids[MAX_BLOCKS];
static struct kvf_event seen[MAX_SEEN]; /* while something else was waited for */
static size_t seen_count;

static void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void answer(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

static void call_offer(const char *id, int64_t tokens, int64_t ready, int64_t timeout_ms)
{
    struct kvf_id_list list = {ids, (size_t)kit_blocks(&side, tokens), 0};
    struct kvf_offer offer;
    struct kvf_error error = {.text = "ok"};

    kvf_offer_init(&offer, sizeof offer);
    offer.transfer = id;
    offer.request_tokens = tokens;
    offer.ready_tokens = ready;
    offer.groups = &list;
    offer.group_count = 1;
    offer.timeout_ns = timeout_ms * MS;
    (void)kvf_engine_offer(side.ranks[0].engine, &offer, &error);
    answer("%s", error.text);
}

static void call_pull(const char *id, int64_t tokens, int64_t timeout_ms)
{
    struct kvf_id_list list = {ids, (size_t)kit_blocks(&side, tokens), 0};
    struct kvf_pull pull;
    struct kvf_error error = {.text = "ok"};

    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = id;
    pull.from = "p";
    pull.request_tokens = tokens;
    pull.token_end = tokens;
    pull.groups = &list;
    pull.group_count = 1;
    pull.timeout_ns = timeout_ms * MS;
    (void)kvf_engine_pull(side.ranks[0].engine, &pull, &error);
    answer("%s", error.text);
}

static void wait_sent(int64_t bytes)
{
    struct kvf_engine_stats stats = {.struct_size = sizeof stats};

    do {
        if (seen_count < MAX_SEEN)
            seen_count += kvf_engine_wait(side.ranks[0].engine, &seen[seen_count], 1, MS);
        kvf_engine_get_stats(side.ranks[0].engine, &stats);
    } while (stats.bytes_sent < bytes);
    answer("sent %" PRId64, stats.bytes_sent);
}

static void next_event(void)
{
    struct kvf_event event = {0};
    size_t count = 1;

    if (seen_count > 0) {
        event = seen[0];
        memmove(seen, seen + 1, --seen_count * sizeof event);
    } else {
        count = kvf_engine_wait(side.ranks[0].engine, &event, 1, 20 * SECOND);
    }
    answer("%zu %d %s %s: %s", count, event.kind, kvf_status_name(event.status), event.transfer, event.text);
}

static void check(int64_t tokens)
{
    struct kit_moved moved = {0, kit_blocks(&side, tokens), ids, 0, tokens};
    answer("%s", kit_check(&side, 0, &moved, 1) ? "right" : "wrong");
}

static bool obey(const char *line)
{
    char id[64];
    int64_t a, b, c;

    if (sscanf(line, "offer %63s %" SCNd64 " %" SCNd64 " %" SCNd64, id, &a, &b, &c) == 4)
        call_offer(id, a, b, c);
    else if (sscanf(line, "pull %63s %" SCNd64 " %" SCNd64, id, &a, &b) == 3)
        call_pull(id, a, b);
    else if (sscanf(line, "ready %63s %" SCNd64 " %" SCNd64, id, &a, &b) == 3)
        answer("%s", kvf_status_name((int)kvf_engine_offer_ready(side.ranks[0].engine, id, 0, 0, a, b, NULL)));
    else if (sscanf(line, "check %" SCNd64, &a) == 1)
        check(a);
    else if (sscanf(line, "sent %" SCNd64, &a) == 1)
        wait_sent(a);
    else if (strncmp(line, "event", 5) == 0)
        next_event();
    else if (strncmp(line, "quiet", 5) == 0)
        answer("%zu", kvf_engine_wait(side.ranks[0].engine, seen, 1, 200 * MS));
    else
        return false;
    return true;
}

static void tweak(struct kvf_engine_options *options, size_t rank)
{
    (void)rank;
    options->fault_policy = getenv("WORKER_FAULT");
}

int main(int argc, char **argv)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    char line[256];

    if (argc != 4)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    recipe.blocks = MAX_BLOCKS;
    recipe.head_dim = 256;
    if (argv[1][0] == 'd')
        recipe.order = KVF_ORDER_TOKENS_FIRST;
    kit_layouts(&side, argv[1], &recipe);
    kit_ids(&side, 0, MAX_BLOCKS, ids);
    if (argv[1][0] == 'p')
        kit_fill(&side, 0, 0, ids, MAX_BLOCKS);
    kit_engine(&side, 0, argv[3], argv[2], tweak);
    answer("up");
    while (fgets(line, sizeof line, stdin) != NULL && obey(line))
        ;
    kit_close(&side);
    return 0;
}
