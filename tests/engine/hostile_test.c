/* SPDX-License-Identifier: Apache-2.0 */
/* A live engine against a peer that breaks the rules: it speaks the wire by hand, as a destination or as a source. */
#include "kit.h"

#include "channel/channel.h"
#include "directory/client.h"
#include "wire/messages.h"

static const char *transport = "tcp";

enum { TOKENS = 100, BLOCKS = 7 };

/* ---- a peer by hand ---- */

struct hand {
    struct kvfi_channel *channel;
    struct kvfi_directory_client *client;
    struct kvfi_route route; /* where it answers, or where it connected */
    struct kvfi_message inbox[16];
    size_t count;
};

static void take(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count)
{
    struct hand *hand = context;
    struct kvfi_message message;

    if (kvfi_wire_unpack(bytes, byte_count, &message, NULL) != KVF_OK || hand->count == 16)
        return;
    hand->route = *from;
    if (message.type == KVFI_MSG_PING || message.type == KVFI_MSG_PONG)
        kvfi_message_fini(&message);
    else
        hand->inbox[hand->count++] = message;
}

static void hand_open(struct hand *hand, const char *directory)
{
    struct kvfi_directory_client_options options = {.url = directory};

    memset(hand, 0, sizeof *hand);
    assert_int_equal(kvfi_channel_open(NULL, &hand->channel, NULL), KVF_OK);
    assert_int_equal(kvfi_directory_client_open(&options, &hand->client, NULL), KVF_OK);
}

static void hand_close(struct hand *hand)
{
    for (size_t i = 0; i < hand->count; i++)
        kvfi_message_fini(&hand->inbox[i]);
    kvfi_directory_client_close(hand->client);
    kvfi_channel_close(hand->channel, 0);
}

static void hand_drop(struct hand *hand)
{
    kvfi_message_fini(&hand->inbox[0]);
    memmove(&hand->inbox[0], &hand->inbox[1], --hand->count * sizeof hand->inbox[0]);
}

/* The next message of a type; others before it are dropped. */
static struct kvfi_message *hand_hear(struct hand *hand, enum kvfi_message_type type)
{
    static const struct kvfi_dialect dialect = {.name = "kvferry/1", .recognise = kvfi_wire_recognise, .handle = take};
    int64_t end = kit_now_ns() + 10 * SECOND;

    for (;;) {
        while (hand->count > 0 && hand->inbox[0].type != type)
            hand_drop(hand);
        if (hand->count > 0)
            return &hand->inbox[0];
        if (kit_now_ns() > end)
            fail_msg("no %s within 10 s", kvfi_message_name(type));
        kvfi_channel_dispatch(hand->channel, &dialect, hand);
    }
}

static void hand_say(struct hand *hand, const struct kvfi_message *message)
{
    struct kvfi_buffer buffer = {0};
    struct kvf_error error;

    if (kvfi_wire_pack(message, &buffer, &error) != KVF_OK ||
        kvfi_channel_send(hand->channel, &hand->route, buffer.bytes, buffer.count, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvfi_buffer_fini(&buffer);
}

static void hand_say_bytes(struct hand *hand, const void *bytes, size_t count)
{
    assert_int_equal(kvfi_channel_send(hand->channel, &hand->route, bytes, count, NULL), KVF_OK);
}

/* Registers as an instance of one rank, and waits until it is. */
static void hand_register(struct hand *hand, const char *name, const kvf_layout *layout)
{
    struct kvfi_directory_result result;
    kvf_holdings *holdings;
    struct kvfi_registration registration = {.instance = name, .incarnation = 77, .ranks_expected = 1, .model = "",
                                             .channel = kvfi_channel_endpoint(hand->channel)};
    int64_t end = kit_now_ns() + 10 * SECOND;

    assert_int_equal(kvf_holdings_from_layout(layout, &holdings, NULL), KVF_OK);
    registration.holdings = holdings;
    assert_int_equal(kvfi_directory_client_register(hand->client, &registration, 1, SECOND, NULL), KVF_OK);
    while (!kvfi_directory_client_take(hand->client, &result))
        assert_true(kit_now_ns() < end);
    assert_int_equal(result.status, KVF_OK);
    kvfi_directory_result_fini(&result);
    kvf_holdings_release(holdings);
}

static struct kvfi_directory_instance *hand_ask(struct hand *hand, const char *name,
                                                struct kvfi_directory_result *result)
{
    int64_t end = kit_now_ns() + 10 * SECOND;

    assert_int_equal(kvfi_directory_client_query(hand->client, name, 2, SECOND, NULL), KVF_OK);
    while (!kvfi_directory_client_take(hand->client, result))
        assert_true(kit_now_ns() < end);
    assert_int_equal(result->status, KVF_OK);
    return result->instance;
}

static void digest_of(struct hand *hand, const char *name, char digest[KVF_FINGERPRINT_TEXT_BYTES])
{
    struct kvfi_directory_result result;
    struct kvfi_directory_instance *instance = hand_ask(hand, name, &result);
    struct kvf_member member = {instance->ranks[0].rank, instance->ranks[0].holdings};

    assert_int_equal(kvf_members_digest(&member, 1, digest), KVF_OK);
    kvfi_directory_result_fini(&result);
}

static void connect_to(struct hand *hand, const char *name)
{
    struct kvfi_directory_result result;
    struct kvfi_directory_instance *instance = hand_ask(hand, name, &result);

    assert_int_equal(kvfi_channel_connect(hand->channel, instance->ranks[0].channel, &hand->route, NULL), KVF_OK);
    kvfi_directory_result_fini(&result);
}

/* ---- against a prefill engine ---- */

struct rig {
    struct kit_side side;
    struct hand hand;
    const kvf_layout *layout;
    int64_t ids[BLOCKS];
};

static void impatient(struct kvf_engine_options *options, size_t rank)
{
    (void)rank;
    options->connect_timeout_ns = 500 * MS;
    options->peer_timeout_ns = SECOND;
}

static void rig_open(struct rig *rig, const char *name, const char *own)
{
    struct kvf_instance_recipe recipe = kit_recipe();

    kit_open(&rig->side, name, &recipe, NULL, transport, impatient);
    rig->layout = rig->side.ranks[0].layout;
    kit_ids(&rig->side, 0, BLOCKS, rig->ids);
    hand_open(&rig->hand, kit_directory(&rig->side));
    if (own != NULL)
        hand_register(&rig->hand, own, rig->layout);
}

static void rig_close(struct rig *rig)
{
    hand_close(&rig->hand);
    kit_close(&rig->side);
}

static struct kvfi_message hello_of(struct rig *rig, enum kvfi_message_type type, const char *own, const char *other)
{
    struct kvfi_message message = {
        .type = type,
        .hello = {.planner_version = KVF_PLANNER_VERSION, .instance = own, .incarnation = 77, .host = "h", .model = "",
                  .peer_instance = other, .layout = (kvf_layout *)rig->layout}};
    digest_of(&rig->hand, own, message.hello.digest_own);
    digest_of(&rig->hand, other, message.hello.digest_peer);
    return message;
}

static void expect_nack(struct hand *hand, enum kvf_status status, const char *text)
{
    struct kvfi_message *nack = hand_hear(hand, KVFI_MSG_NACK);
    if (nack->nack.status != (int64_t)status || strstr(nack->nack.text, text) == NULL)
        fail_msg("nack %s: \"%s\", expected %s: \"%s\"", kvf_status_name((int)nack->nack.status), nack->nack.text,
                 kvf_status_name((int)status), text);
    hand_drop(hand);
}

static void expect_ack(struct hand *hand, enum kvf_status status, const char *text)
{
    struct kvfi_message *ack = hand_hear(hand, KVFI_MSG_HELLO_ACK);
    if (ack->hello.status != (int64_t)status || strstr(ack->hello.text, text) == NULL)
        fail_msg("ack %s: \"%s\", expected %s: \"%s\"", kvf_status_name((int)ack->hello.status), ack->hello.text,
                 kvf_status_name((int)status), text);
}

static void test_what_is_no_message(void **unused)
{
    static const unsigned char newer[] = {0x82, 0xa1, 'v', 0x07, 0xa1, 't', 0xa4, 'p', 'i', 'n', 'g'};
    unsigned char junk[64];
    struct rig rig;
    (void)unused;
    rig_open(&rig, "p", NULL);
    connect_to(&rig.hand, "p");
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (unsigned char)(i * 37 + 11);
    hand_say_bytes(&rig.hand, junk, sizeof junk);
    hand_hear(&rig.hand, KVFI_MSG_NACK);
    hand_drop(&rig.hand);
    hand_say_bytes(&rig.hand, newer, sizeof newer);
    expect_nack(&rig.hand, KVF_ERR_VERSION, "7");
    hand_say_bytes(&rig.hand, newer, 5); /* half a message */
    hand_hear(&rig.hand, KVFI_MSG_NACK);
    hand_drop(&rig.hand);
    rig_close(&rig);
}

static void test_hello_that_is_refused(void **unused)
{
    struct rig rig;
    struct kvfi_message hello;
    (void)unused;
    rig_open(&rig, "p", "d");
    connect_to(&rig.hand, "p");

    hello = hello_of(&rig, KVFI_MSG_HELLO, "d", "p");
    hello.hello.planner_version = 99;
    hand_say(&rig.hand, &hello);
    expect_ack(&rig.hand, KVF_ERR_VERSION, "d/pp0.cp0.tp0 has planner version 99, p/pp0.cp0.tp0 has 1");
    hand_drop(&rig.hand);

    hello = hello_of(&rig, KVFI_MSG_HELLO, "d", "p");
    hello.hello.peer_incarnation = 5;
    hand_say(&rig.hand, &hello);
    expect_ack(&rig.hand, KVF_ERR_STALE, "hello is meant for \"p\" incarnation 0000000000000005");
    hand_drop(&rig.hand);

    hello = hello_of(&rig, KVFI_MSG_HELLO, "d", "p");
    memset(hello.hello.digest_own, 'a', 32);
    hand_say(&rig.hand, &hello);
    expect_ack(&rig.hand, KVF_ERR_STALE, "holdings of instance \"d\" have digest aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    hand_drop(&rig.hand);

    hello = hello_of(&rig, KVFI_MSG_HELLO, "d", "p");
    hello.hello.incarnation = 78; /* not the one that is registered */
    hand_say(&rig.hand, &hello);
    expect_ack(&rig.hand, KVF_ERR_STALE, "registered by another process");
    hand_drop(&rig.hand);

    hello = hello_of(&rig, KVFI_MSG_HELLO, "d", "p");
    hello.hello.instance = "nobody";
    hand_say(&rig.hand, &hello);
    expect_ack(&rig.hand, KVF_ERR_NOT_FOUND, "instance \"nobody\" is not known");
    rig_close(&rig);
}

static struct kvfi_message pull_of(struct rig *rig, const char *transfer, const char *plan,
                                   const struct kvf_id_list *list, const struct kvfi_wire_transport *wish)
{
    struct kvfi_message pull = {
        .type = KVFI_MSG_PULL,
        .pull = {.transfer = transfer, .from = "p", .token_end = TOKENS, .request_tokens = TOKENS, .groups = list,
                 .group_count = 1, .grant = 9, .timeout_ms = 5000, .transports = wish, .transport_count = 1}};
    (void)rig;
    memcpy(pull.pull.plan, plan, KVF_FINGERPRINT_TEXT_BYTES);
    return pull;
}

static void expect_failed(struct hand *hand, enum kvf_status status, const char *text)
{
    struct kvfi_message *failed = hand_hear(hand, KVFI_MSG_FAILED);
    if (failed->end.status != (int64_t)status || strstr(failed->end.text, text) == NULL)
        fail_msg("failed %s: \"%s\", expected %s: \"%s\"", kvf_status_name((int)failed->end.status), failed->end.text,
                 kvf_status_name((int)status), text);
    hand_drop(hand);
}

static void test_pulls_that_are_refused(void **unused)
{
    char plan[KVF_FINGERPRINT_TEXT_BYTES] = "00000000000000000000000000000000";
    static const int64_t high[BLOCKS] = {0, 1, 2, 3, 4, 5, 1000};
    struct kvfi_wire_transport wish = {"tcp", "tcp://127.0.0.1:1"};
    struct kvf_id_list list = {NULL, BLOCKS, 0};
    struct kvfi_message message;
    struct rig rig;
    (void)unused;
    rig_open(&rig, "p", "d");
    list.ids = rig.ids;
    connect_to(&rig.hand, "p");
    message = pull_of(&rig, "t", plan, &list, &wish);
    hand_say(&rig.hand, &message);
    expect_nack(&rig.hand, KVF_ERR_PROTOCOL, "say hello first");
    message = hello_of(&rig, KVFI_MSG_HELLO, "d", "p");
    hand_say(&rig.hand, &message);
    memcpy(plan, hand_hear(&rig.hand, KVFI_MSG_HELLO_ACK)->hello.plan, sizeof plan);
    hand_drop(&rig.hand);

    message = pull_of(&rig, "t", "00000000000000000000000000000000", &list, &wish);
    hand_say(&rig.hand, &message);
    expect_nack(&rig.hand, KVF_ERR_PLAN_MISMATCH, "plan 00000000000000000000000000000000 at d/pp0.cp0.tp0");
    message = pull_of(&rig, "t", plan, &list, &wish);
    message.pull.from = "q";
    hand_say(&rig.hand, &message);
    expect_nack(&rig.hand, KVF_ERR_REFUSED, "the pull is meant for instance \"q\", this is p/pp0.cp0.tp0");

    for (int i = 0; i < 2; i++) { /* the second one while the first waits for its offer */
        message = pull_of(&rig, "t", plan, &list, &wish);
        hand_say(&rig.hand, &message);
    }
    expect_nack(&rig.hand, KVF_ERR_EXISTS, "transfer \"t\" attempt 0 is asked for by d/pp0.cp0.tp0 already");
    message = (struct kvfi_message){.type = KVFI_MSG_CANCEL, .note = {.transfer = "t", .writer = -1}};
    hand_say(&rig.hand, &message);
    hand_hear(&rig.hand, KVFI_MSG_QUIESCED);
    message.note.transfer = "never heard of";
    hand_say(&rig.hand, &message);
    hand_hear(&rig.hand, KVFI_MSG_QUIESCED);
    hand_drop(&rig.hand);

    list.ids = high;
    kit_offer(&rig.side, 0, "u", 0, TOKENS, TOKENS, rig.ids, BLOCKS, 0, KVF_OK);
    message = pull_of(&rig, "u", plan, &list, &wish);
    hand_say(&rig.hand, &message);
    expect_failed(&rig.hand, KVF_ERR_IDS, "1000");
    list.ids = rig.ids;
    kit_offer(&rig.side, 0, "v", 0, TOKENS, TOKENS, rig.ids, BLOCKS, 0, KVF_OK);
    message = pull_of(&rig, "v", plan, &list, &wish);
    hand_say(&rig.hand, &message);
    expect_failed(&rig.hand, KVF_ERR_UNREACHABLE, "cannot reach d/pp0.cp0.tp0");
    assert_int_equal(kit_terminal(&rig.side, 0, "v").kind, KVF_EVENT_OFFER_FAILED);
    rig_close(&rig);
}

/* ---- against a decode engine ---- */

static void expect_pull_failed(struct rig *rig, const char *transfer, enum kvf_status status, const char *text)
{
    struct kvf_event event = kit_terminal(&rig->side, 0, transfer);
    if (event.kind != KVF_EVENT_PULL_FAILED || event.status != (int)status || strstr(event.text, text) == NULL)
        fail_msg("event %d %s: \"%s\", expected %s: \"%s\"", event.kind, kvf_status_name(event.status), event.text,
                 kvf_status_name((int)status), text);
    kit_wait(&rig->side, 0, KVF_EVENT_BLOCKS_REUSABLE);
}

static void begin_pull(struct rig *rig, const char *transfer, int64_t timeout_ns)
{
    kit_pull(&rig->side, 0, "p", transfer, 0, 0, TOKENS, rig->ids, BLOCKS, timeout_ns, KVF_OK);
}

static void test_answers_that_are_refused(void **unused)
{
    static const struct {
        const char *name;
        int what;
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"another planner version", 0, KVF_ERR_VERSION, "p/pp0.cp0.tp0 has planner version 99, this side has 1"},
        {"another plan", 1, KVF_ERR_PLAN_MISMATCH, "plan bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb there, "},
        {"another incarnation", 3, KVF_ERR_STALE, "expected 000000000000004d"},
        {"a refusal", 4, KVF_ERR_LIMIT, "p/pp0.cp0.tp0 refuses: full"},
        {"nothing at all", 5, KVF_ERR_UNREACHABLE, "p/pp0.cp0.tp0 does not answer at tcp://127.0.0.1:"},
        {"junk", 6, KVF_ERR_PROTOCOL, "p/pp0.cp0.tp0"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rig rig;
        struct kvfi_message ack;
        print_message("%s\n", rows[i].name);
        rig_open(&rig, "d", "p");
        begin_pull(&rig, "t", 0);
        for (int round = 0; round < (rows[i].what == 3 ? 2 : 1); round++) { /* stale is asked twice */
            hand_hear(&rig.hand, KVFI_MSG_HELLO);
            hand_drop(&rig.hand);
            ack = hello_of(&rig, KVFI_MSG_HELLO_ACK, "p", "d");
            if (rows[i].what == 0)
                ack.hello.planner_version = 99;
            if (rows[i].what == 1)
                memset(ack.hello.plan, 'b', 32);
            if (rows[i].what == 3)
                ack.hello.incarnation = 78;
            if (rows[i].what == 4) {
                ack.hello.status = KVF_ERR_LIMIT;
                ack.hello.text = "full";
            }
            if (rows[i].what < 5)
                hand_say(&rig.hand, &ack);
            if (rows[i].what == 6)
                hand_say_bytes(&rig.hand, "junk", 4);
        }
        expect_pull_failed(&rig, "t", rows[i].status, rows[i].text);
        assert_true(kit_check(&rig.side, 0, NULL, 0));
        rig_close(&rig);
    }
}

/* Agrees with the engine as an honest source would; the pull that follows is left in the inbox. */
static void agree(struct rig *rig)
{
    struct kvfi_message ack;
    kvf_plan *plan;

    hand_hear(&rig->hand, KVFI_MSG_HELLO);
    hand_drop(&rig->hand);
    ack = hello_of(rig, KVFI_MSG_HELLO_ACK, "p", "d");
    assert_int_equal(kvf_plan_create(rig->layout, rig->layout, NULL, NULL, &plan, NULL), KVF_OK);
    assert_int_equal(kvf_plan_fingerprint(plan, ack.hello.plan), KVF_OK);
    kvf_plan_release(plan);
    hand_say(&rig->hand, &ack);
    hand_hear(&rig->hand, KVFI_MSG_PULL);
}

enum { BYTES = BLOCKS * 16 * 4 * 16 * 2 * 4 };

/* Says it is done in ways that are not to be believed. */
static void test_words_that_are_not_believed(void **unused)
{
    static const struct {
        const char *name;
        const char *transport; /* of started, NULL: not said */
        int64_t started_bytes, done_bytes, writer;
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"done without started", NULL, 0, BYTES, 0, KVF_ERR_PROTOCOL, "says it is done, but never started"},
        {"done with too few bytes", "tcp", BYTES, BYTES - 1, 0, KVF_ERR_INCOMPLETE_TRANSFER,
         "57343 bytes, expected 57344"},
        {"done, and not one byte came", "tcp", BYTES, BYTES, 0, KVF_ERR_EXPIRED, "0 of 57344 bytes"},
        {"started with other bytes", "tcp", 5, BYTES, 0, KVF_ERR_PROTOCOL,
         "will send 5 bytes over \"tcp\", expected 57344"},
        {"started over what was not wished", "rdma", BYTES, BYTES, 0, KVF_ERR_PROTOCOL, "over \"rdma\""},
        {"done as another writer", "tcp", BYTES, BYTES, 3, KVF_ERR_EXPIRED, "expired"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rig rig;
        struct kvfi_message started = {.type = KVFI_MSG_STARTED, .started = {.transfer = "t"}};
        struct kvfi_message done = {.type = KVFI_MSG_DONE, .end = {.transfer = "t", .text = ""}};
        print_message("%s\n", rows[i].name);
        rig_open(&rig, "d", "p");
        begin_pull(&rig, "t", rows[i].status == KVF_ERR_EXPIRED ? 500 * MS : 0);
        agree(&rig);
        started.started.transport = rows[i].transport;
        started.started.expected_bytes = rows[i].started_bytes;
        if (rows[i].transport != NULL)
            hand_say(&rig.hand, &started);
        done.end.bytes = rows[i].done_bytes;
        done.end.writer = rows[i].writer;
        hand_say(&rig.hand, &done);
        expect_pull_failed(&rig, "t", rows[i].status, rows[i].text);
        rig_close(&rig);
    }
}

static void test_refusal_is_remembered(void **unused)
{
    struct kvfi_message ack;
    struct rig rig;
    (void)unused;
    rig_open(&rig, "d", "p");
    begin_pull(&rig, "a", 0);
    hand_hear(&rig.hand, KVFI_MSG_HELLO);
    hand_drop(&rig.hand);
    ack = hello_of(&rig, KVFI_MSG_HELLO_ACK, "p", "d");
    ack.hello.status = KVF_ERR_INCOMPATIBLE;
    ack.hello.text = "no";
    hand_say(&rig.hand, &ack);
    expect_pull_failed(&rig, "a", KVF_ERR_INCOMPATIBLE, "refuses: no");
    begin_pull(&rig, "b", 0); /* no second hello: this would wait for its answer */
    expect_pull_failed(&rig, "b", KVF_ERR_INCOMPATIBLE, "refuses: no");
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_no_message),        cmocka_unit_test(test_hello_that_is_refused),
        cmocka_unit_test(test_pulls_that_are_refused),    cmocka_unit_test(test_answers_that_are_refused),
        cmocka_unit_test(test_words_that_are_not_believed), cmocka_unit_test(test_refusal_is_remembered),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
