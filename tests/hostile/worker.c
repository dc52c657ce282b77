/* SPDX-License-Identifier: Apache-2.0 */
/* An honest worker for peers that are not: one rank, public headers only, driven by lines on its standard input.
 *
 *   worker NAME DIRECTORY-URL|- [KEY=VALUE ...]
 *     order=heads|tokens  transports=NAMES  peer_ms= connect_ms= directory_ms= incomplete_ms=  checksum=1
 *     host=  listen=HOST:PORT (of an embedded directory)  tp=RANKS rank=NUMBER  layers=N  dtype=NAME
 *     quiet=1 (no announce)
 *
 * Answers are lines "reply ...", events are lines "event KIND STATUS TRANSFER BYTES | TEXT" as they come:
 *   offer ID REQUEST TOKENS READY TIMEOUT_MS | pull FROM ID REQUEST TOKENS TIMEOUT_MS | ids FROM ID TOKENS N,N,...
 *   ready ID TOKENS | cancel ID | check REQUEST TOKENS | untouched | guard | count | sent |
 *   memory BYTES | announce | url
 * It ends in good order with its input.
 */
#include "kit.h"

#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { BLOCKS = 64, MAX_IDS = 64 };

static struct kit_side side;
static int64_t layers;
static bool filled[MAX_IDS]; /* per request: blocks on offer are not written to again */

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

/* ---- calls --------------------------------------------------------------------------------------------------- */

static void call_offer(const char *id, int64_t request, int64_t tokens, int64_t ready, int64_t timeout_ms)
{
    int64_t ids[MAX_IDS];
    struct kvf_id_list list = {ids, (size_t)kit_blocks(&side, tokens), 0};
    struct kvf_offer offer;
    struct kvf_error error = {.text = "ok"};

    kit_ids(&side, request, kit_blocks(&side, tokens), ids);
    if (!filled[request])
        kit_fill(&side, 0, request, ids, kit_blocks(&side, tokens));
    filled[request] = true;
    kvf_offer_init(&offer, sizeof offer);
    offer.transfer = id;
    offer.request_tokens = tokens;
    offer.ready_tokens = ready;
    offer.groups = &list;
    offer.group_count = 1;
    offer.timeout_ns = timeout_ms * MS;
    (void)kvf_engine_offer(side.ranks[0].engine, &offer, &error);
    say("reply %s", error.text);
}

static void call_pull(const char *from, const char *id, const int64_t *ids, size_t count, int64_t tokens,
                      int64_t timeout_ms)
{
    struct kvf_id_list list = {ids, count, 0};
    struct kvf_pull pull;
    struct kvf_error error = {.text = "ok"};

    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = id;
    pull.from = from;
    pull.request_tokens = pull.token_end = tokens;
    pull.groups = &list;
    pull.group_count = 1;
    pull.timeout_ns = timeout_ms * MS;
    (void)kvf_engine_pull(side.ranks[0].engine, &pull, &error);
    say("reply %s", error.text);
}

static void pull_request(const char *from, const char *id, int64_t request, int64_t tokens, int64_t timeout_ms)
{
    int64_t ids[MAX_IDS];

    kit_ids(&side, request, kit_blocks(&side, tokens), ids);
    call_pull(from, id, ids, (size_t)kit_blocks(&side, tokens), tokens, timeout_ms);
}

static void pull_ids(const char *from, const char *id, int64_t tokens, const char *text)
{
    int64_t ids[MAX_IDS];
    size_t count = 0;
    char *end = (char *)text;

    while (*end != '\0' && *end != '\n' && count < MAX_IDS) {
        ids[count++] = strtoll(end, &end, 10);
        end += *end == ',';
    }
    call_pull(from, id, ids, count, tokens, 1000);
}

static void check(int64_t request, int64_t tokens)
{
    int64_t ids[MAX_IDS];
    struct kit_moved moved = {request, kit_blocks(&side, tokens), ids, 0, tokens};

    kit_ids(&side, request, kit_blocks(&side, tokens), ids);
    say("reply %s", kit_check(&side, 0, &moved, 1) ? "right" : "wrong");
}

static void claim(int64_t bytes)
{
    kvf_memory *memory = NULL;
    struct kvf_error error = {.text = "ok"};

    (void)kvf_memory_create(bytes, 0, &memory, &error);
    kvf_memory_destroy(memory);
    say("reply %s %s", kvf_status_name(error.status), error.text);
}

static int entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;

    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count - 3; /* ".", "..", the folder itself */
}

static bool obey_plain(const char *line)
{
    struct kvf_error error = {.text = "ok"};
    struct kvf_engine_stats stats = {.struct_size = sizeof stats};

    if (strncmp(line, "untouched", 9) == 0) {
        say("reply %s", kit_check(&side, 0, NULL, 0) ? "untouched" : "touched");
    } else if (strncmp(line, "guard", 5) == 0) {
        kit_guard(&side, 0);
        memset(filled, 0, sizeof filled);
        say("reply ok");
    } else if (strncmp(line, "count", 5) == 0) {
        int fds = entries("/proc/self/fd");
        say("reply %d %d", fds, entries("/proc/self/task") + 1);
    } else if (strncmp(line, "sent", 4) == 0) {
        (void)kvf_engine_get_stats(side.ranks[0].engine, &stats);
        say("reply %" PRId64, stats.bytes_sent);
    } else if (strncmp(line, "announce", 8) == 0) {
        (void)kvf_engine_announce(side.ranks[0].engine, &error);
        say("reply %s", error.text);
    } else if (strncmp(line, "url", 3) == 0) {
        say("reply %s", kvf_engine_directory_url(side.ranks[0].engine));
    } else {
        return false;
    }
    return true;
}

static bool obey(const char *line)
{
    char id[128], from[128], list[1024];
    int64_t a, b, c, d;

    if (sscanf(line, "offer %127s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, id, &a, &b, &c, &d) == 5)
        call_offer(id, a, b, c, d);
    else if (sscanf(line, "pull %127s %127s %" SCNd64 " %" SCNd64 " %" SCNd64, from, id, &a, &b, &c) == 5)
        pull_request(from, id, a, b, c);
    else if (sscanf(line, "ids %127s %127s %" SCNd64 " %1023s", from, id, &a, list) == 4)
        pull_ids(from, id, a, list);
    else if (sscanf(line, "ready %127s %" SCNd64, id, &a) == 2)
        say("reply %s", kvf_status_name((int)kvf_engine_offer_ready(side.ranks[0].engine, id, 0, 0, layers, a,
                                                                      NULL)));
    else if (sscanf(line, "memory %" SCNd64, &a) == 1)
        claim(a);
    else if (sscanf(line, "cancel %127s", id) == 1)
        say("reply %s", kvf_status_name((int)kvf_engine_cancel(side.ranks[0].engine, id, 0, NULL)));
    else if (sscanf(line, "check %" SCNd64 " %" SCNd64, &a, &b) == 2)
        check(a, b);
    else
        return obey_plain(line);
    return true;
}

/* ---- events -------------------------------------------------------------------------------------------------- */

static void tell_events(void)
{
    static const char *const names[] = {"none",         "pull-done", "pull-failed", "offer-done",
                                        "offer-failed", "reusable",  "peer-lost"};
    struct kvf_event event;

    while (kvf_engine_poll(side.ranks[0].engine, &event, 1) == 1)
        say("event %s %s %s %" PRId64 " | %s", names[event.kind], kvf_status_name(event.status),
            event.transfer[0] == '\0' ? "-" : event.transfer, event.bytes, event.text);
}

/* Lines are read without buffering ahead, so that poll tells the truth. False at the end of the input. */
static bool read_line(char *line, size_t bytes)
{
    size_t used = 0;

    while (used + 1 < bytes && read(0, line + used, 1) == 1 && line[used] != '\n')
        used++;
    line[used] = '\0';
    return used > 0;
}

static void serve(void)
{
    struct pollfd ready[2] = {{.fd = 0, .events = POLLIN},
                              {.fd = kvf_engine_event_fd(side.ranks[0].engine), .events = POLLIN}};
    char line[2048];
    bool more = true;

    while (more && poll(ready, 2, -1) > 0) {
        if (ready[1].revents != 0)
            tell_events();
        if (ready[0].revents != 0)
            more = read_line(line, sizeof line) && obey(line);
    }
}

/* ---- start --------------------------------------------------------------------------------------------------- */

static const char *option(char **argv, const char *key, const char *value)
{
    for (size_t bytes = strlen(key); *argv != NULL; argv++)
        if (strncmp(*argv, key, bytes) == 0 && (*argv)[bytes] == '=')
            value = *argv + bytes + 1;
    return value;
}

static int64_t number(char **argv, const char *key, int64_t value)
{
    const char *text = option(argv, key, NULL);

    return text == NULL ? value : strtoll(text, NULL, 10);
}

/* "ok", or the first sentence that says why not. */
static struct kvf_error open_engine(char **argv, const char *directory)
{
    struct kvf_engine_options options;
    struct kit_rank *rank = &side.ranks[number(argv, "rank", 0)];
    struct kvf_error error = {.text = "ok"};

    kvf_engine_options_init(&options, sizeof options);
    options.instance = side.name;
    options.rank = kvf_instance_rank(side.instance, (size_t)number(argv, "rank", 0));
    options.ranks_expected = (int64_t)side.rank_count;
    options.layout = rank->layout;
    options.directory_url = strcmp(directory, "-") == 0 ? NULL : directory;
    options.directory_listen = option(argv, "listen", NULL);
    options.transports = option(argv, "transports", "tcp");
    options.host = option(argv, "host", NULL);
    options.peer_timeout_ns = number(argv, "peer_ms", 0) * MS;
    options.connect_timeout_ns = number(argv, "connect_ms", 0) * MS;
    options.directory_timeout_ns = number(argv, "directory_ms", 0) * MS;
    options.incomplete_timeout_ns = number(argv, "incomplete_ms", 0) * MS;
    options.flags = number(argv, "checksum", 0) ? KVF_ENGINE_CHECKSUM : 0;
    options.log.fd = 2;
    options.log.level = KVF_LOG_TRACE;
    if (kvf_engine_open(&options, &rank->engine, &error) == KVF_OK)
        (void)kvf_engine_register_memory(rank->engine, 0, kvf_memory_address(rank->memories[0]),
                                         kvf_memory_bytes(rank->memories[0]), kvf_memory_fd(rank->memories[0]),
                                         &error);
    if (rank != &side.ranks[0] && rank->engine != NULL)
        side.ranks[0].engine = rank->engine;
    return error;
}

int main(int argc, char **argv)
{
    struct kvf_instance_recipe recipe = kit_recipe();
    struct kvf_error error;

    if (argc < 3)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    recipe.blocks = BLOCKS;
    recipe.tp = number(argv + 3, "tp", 1);
    recipe.layers = number(argv + 3, "layers", recipe.layers);
    recipe.dtype = option(argv + 3, "dtype", recipe.dtype);
    layers = recipe.layers;
    if (strcmp(option(argv + 3, "order", "heads"), "tokens") == 0)
        recipe.order = KVF_ORDER_TOKENS_FIRST;
    kit_layouts(&side, argv[1], &recipe);
    error = open_engine(argv + 3, argv[2]);
    if (strcmp(error.text, "ok") == 0 && number(argv + 3, "quiet", 0) == 0)
        (void)kvf_engine_announce(side.ranks[0].engine, &error);
    say("up %s", error.text);
    if (side.ranks[0].engine != NULL) {
        serve();
        kvf_engine_close(side.ranks[0].engine);
    }
    side.ranks[0].engine = NULL;
    if (number(argv + 3, "rank", 0) != 0)
        side.ranks[number(argv + 3, "rank", 0)].engine = NULL;
    kit_close(&side);
    say("closed");
    return 0;
}
