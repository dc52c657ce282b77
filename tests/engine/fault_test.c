/* SPDX-License-Identifier: Apache-2.0 */
/* Transports that fail on purpose: a transfer then fails with a reason, or succeeds whole; it never succeeds in part.
 * */
#include "kit.h"

#include <stdatomic.h>

enum { TOKENS = 100, BLOCKS = 7 };

static const char *source_fault, *destination_fault;
static uint64_t flags;
static atomic_int warnings;
static char warning[512];

static void note(void *context, int level, const char *text)
{
    (void)context;
    if (level == KVF_LOG_WARN && strstr(text, "cannot use transport") != NULL) {
        snprintf(warning, sizeof warning, "%s", text);
        atomic_fetch_add(&warnings, 1);
    }
}

static void common(struct kvf_engine_options *options)
{
    options->flags = flags;
    options->connect_timeout_ns = SECOND;
    options->peer_timeout_ns = SECOND;
    options->log = (struct kvf_log_sink){.write = note, .level = KVF_LOG_WARN};
}

static void tweak_source(struct kvf_engine_options *options, size_t rank)
{
    (void)rank;
    common(options);
    options->fault_policy = source_fault;
}

static void tweak_destination(struct kvf_engine_options *options, size_t rank)
{
    (void)rank;
    common(options);
    options->fault_policy = destination_fault;
}

struct pair {
    struct kit_side source, destination;
    int64_t sids[BLOCKS], dids[BLOCKS];
};

static void open_pair(struct pair *pair, const char *transports)
{
    struct kvf_instance_recipe recipe = kit_recipe();

    atomic_store(&warnings, 0);
    kit_open(&pair->source, "p", &recipe, NULL, transports, tweak_source);
    recipe.order = KVF_ORDER_TOKENS_FIRST;
    kit_open(&pair->destination, "d", &recipe, kit_directory(&pair->source), transports, tweak_destination);
    kit_ids(&pair->source, 1, BLOCKS, pair->sids);
    kit_ids(&pair->destination, 0, BLOCKS, pair->dids);
    kit_fill(&pair->source, 0, 1, pair->sids, BLOCKS);
}

static void transfer(struct pair *pair, const char *id, int64_t timeout_ns)
{
    kit_offer(&pair->source, 0, id, 0, TOKENS, TOKENS, pair->sids, BLOCKS, 0, KVF_OK);
    kit_pull(&pair->destination, 0, "p", id, 0, 0, TOKENS, pair->dids, BLOCKS, timeout_ns, KVF_OK);
}

static bool right(struct pair *pair)
{
    struct kit_moved moved = {1, BLOCKS, pair->dids, 0, TOKENS};
    return kit_check(&pair->destination, 0, &moved, 1);
}

static void close_pair(struct pair *pair)
{
    kit_close(&pair->destination);
    kit_close(&pair->source);
}

static const struct row {
    const char *name, *transports, *source_fault, *destination_fault;
    uint64_t flags;
    int64_t timeout_ms;
    enum kvf_status status; /* of the pull */
    int transport;          /* when it is done */
    const char *text;
    bool offer_ends;        /* whether the source's blocks come back by themselves */
    enum { RIGHT, WRONG, ANY } bytes;
} ROWS[] = {
    {"loop: a bit flips unseen", "loop", "corrupt=1", NULL, 0, 0, KVF_OK, 1, NULL, true, WRONG},
    {"shm: a bit flips unseen", "shm", "corrupt=1", NULL, 0, 0, KVF_OK, 2, NULL, true, WRONG},
    {"tcp: a bit flips unseen", "tcp", "corrupt=1", NULL, 0, 0, KVF_OK, 4, NULL, true, WRONG},
    {"tcp: a bit flips and is seen", "tcp", "corrupt=1", NULL, KVF_ENGINE_CHECKSUM, 0, KVF_ERR_CORRUPT, 4, "checksum",
     true,
     ANY},
    {"loop: a post fails", "loop", "fail_post=1", NULL, 0, 0, KVF_ERR_SYSTEM, 0, "p/pp0.cp0.tp0", true, ANY},
    {"shm: a post fails", "shm", "fail_post=1", NULL, 0, 0, KVF_ERR_SYSTEM, 0, "p/pp0.cp0.tp0", true, ANY},
    {"tcp: a post fails", "tcp", "fail_post=1", NULL, 0, 0, KVF_ERR_SYSTEM, 0, "p/pp0.cp0.tp0", true, ANY},
    {"shm cannot connect, tcp can", "shm,tcp", "shm:fail_connect=9", NULL, 0, 0, KVF_OK, 4, NULL, true, RIGHT},
    {"nothing can connect", "shm,tcp", "fail_connect=9", NULL, 0, 0, KVF_ERR_UNREACHABLE, 0, "cannot reach", true, ANY},
    {"loop: an end is lost at the source", "loop", "drop_posted=1", NULL, 0, 500, KVF_ERR_EXPIRED, 0, "expired",
     false, ANY},
    {"shm: an end is lost at the source", "shm", "drop_posted=1", NULL, 0, 500, KVF_ERR_EXPIRED, 0, "expired", false,
     ANY},
    {"tcp: an end is lost at the source", "tcp", "drop_posted=1", NULL, 0, 500, KVF_ERR_EXPIRED, 0, "expired", false,
     ANY},
    {"tcp: the end is lost at the destination", "tcp", NULL, "drop_received=9", 0, 500, KVF_ERR_EXPIRED, 0, "expired",
     true, ANY},
    {"tcp: the connection is cut, once", "tcp", "cut_after=20000", NULL, 0, 0, KVF_OK, 4, NULL, true, RIGHT},
    {"everything comes late", "shm,tcp", "delay_ms=30", "delay_ms=30", 0, 0, KVF_OK, 2, NULL, true, RIGHT},
};

static void run_row(const struct row *row)
{
    struct pair pair;
    struct kvf_event event;

    print_message("%s\n", row->name);
    source_fault = row->source_fault;
    destination_fault = row->destination_fault;
    flags = row->flags;
    open_pair(&pair, row->transports);
    transfer(&pair, "t", row->timeout_ms * MS);
    event = kit_terminal(&pair.destination, 0, "t");
    if (event.status != (int)row->status || (row->text != NULL && strstr(event.text, row->text) == NULL))
        fail_msg("%s: %s: \"%s\", expected %s: \"%s\"", row->name, kvf_status_name(event.status), event.text,
                 kvf_status_name((int)row->status), row->text);
    assert_int_equal(event.kind, row->status == KVF_OK ? KVF_EVENT_PULL_DONE : KVF_EVENT_PULL_FAILED);
    if (row->status == KVF_OK)
        assert_int_equal(event.transport, row->transport);
    kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
    if (row->bytes != ANY)
        assert_int_equal(right(&pair), row->bytes == RIGHT);
    if (row->offer_ends) {
        assert_int_equal(kit_terminal(&pair.source, 0, "t").kind,
                         row->status == KVF_OK || row->destination_fault != NULL ? KVF_EVENT_OFFER_DONE
                                                                                : KVF_EVENT_OFFER_FAILED);
        kit_wait(&pair.source, 0, KVF_EVENT_BLOCKS_REUSABLE);
    }
    close_pair(&pair);
}

static void test_rows(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++)
        run_row(&ROWS[i]);
}

/* Fallback is told once per peer, with its cause. */
static void test_one_warning(void **unused)
{
    struct pair pair;
    (void)unused;
    source_fault = "shm:fail_connect=9";
    destination_fault = NULL;
    flags = 0;
    open_pair(&pair, "shm,tcp");
    for (int i = 0; i < 3; i++) {
        char id[8] = {(char)('a' + i), 0};
        transfer(&pair, id, 0);
        assert_int_equal(kit_terminal(&pair.destination, 0, id).transport, 4);
    }
    assert_int_equal(atomic_load(&warnings), 1);
    assert_non_null(strstr(warning, "p/pp0.cp0.tp0 cannot use transport shm to d/pp0.cp0.tp0: "));
    close_pair(&pair);
}

/* A transfer that stands still in mid-bytes is cancelled: both sides get their blocks back, and go on. */
static void test_cancel_while_stalled(void **unused)
{
    static const char *const transports[] = {"loop", "shm", "tcp"};
    (void)unused;
    for (size_t t = 0; t < 3; t++) {
        struct pair pair;
        struct kvf_event event;
        source_fault = "stall";
        destination_fault = NULL;
        flags = 0;
        open_pair(&pair, transports[t]);
        transfer(&pair, "t", 0);
        assert_int_equal(kvf_engine_wait(pair.destination.ranks[0].engine, &event, 1, 100 * MS), 0);
        assert_int_equal(kvf_engine_cancel(pair.destination.ranks[0].engine, "t", 0, NULL), KVF_OK);
        assert_int_equal(kit_terminal(&pair.destination, 0, "t").status, KVF_ERR_CANCELLED);
        kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
        assert_int_equal(kit_terminal(&pair.source, 0, "t").status, KVF_ERR_CANCELLED);
        kit_wait(&pair.source, 0, KVF_EVENT_BLOCKS_REUSABLE);
        transfer(&pair, "u", 0);
        assert_int_equal(kvf_engine_wait(pair.source.ranks[0].engine, &event, 1, 50 * MS), 0);
        assert_int_equal(kvf_engine_cancel(pair.source.ranks[0].engine, "u", 0, NULL), KVF_OK);
        assert_int_equal(kit_terminal(&pair.source, 0, "u").status, KVF_ERR_CANCELLED);
        kit_wait(&pair.source, 0, KVF_EVENT_BLOCKS_REUSABLE);
        assert_int_equal(kit_terminal(&pair.destination, 0, "u").status, KVF_ERR_CANCELLED);
        kit_wait(&pair.destination, 0, KVF_EVENT_BLOCKS_REUSABLE);
        close_pair(&pair);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_one_warning),
                                       cmocka_unit_test(test_cancel_while_stalled)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
