/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that a peer should not send, each with the sentence that refuses it.
 *
 * Rows are written as JSON with ' for ", packed to MessagePack key by key, so that a message is readable here. A base
 * message is given where only one key differs: {'key': value} is laid over the sample of that type, null removes it. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <jansson.h>
#include <msgpack.h>

#include "samples.h"
#include "wire/scan.h"

static void pack_json(msgpack_packer *packer, json_t *value)
{
    const char *key;
    json_t *item;
    size_t index;

    switch (json_typeof(value)) {
    case JSON_OBJECT:
        msgpack_pack_map(packer, json_object_size(value));
        json_object_foreach(value, key, item) {
            msgpack_pack_str_with_body(packer, key, strlen(key));
            pack_json(packer, item);
        }
        break;
    case JSON_ARRAY:
        msgpack_pack_array(packer, json_array_size(value));
        json_array_foreach(value, index, item) pack_json(packer, item);
        break;
    case JSON_STRING: msgpack_pack_str_with_body(packer, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: msgpack_pack_int64(packer, json_integer_value(value)); break;
    case JSON_REAL: msgpack_pack_double(packer, json_real_value(value)); break;
    case JSON_TRUE: msgpack_pack_true(packer); break;
    case JSON_FALSE: msgpack_pack_false(packer); break;
    default: msgpack_pack_nil(packer); break;
    }
}

static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    json_error_t where;
    json_t *json;

    for (char *at = copy; *at; at++)
        if (*at == '\'') *at = '"';
    json = json_loads(copy, 0, &where);
    if (!json) fail_msg("row does not parse: %s: %s", where.text, text);
    free(copy);
    return json;
}

static json_t *base_message(const char *type)
{
    static const struct {
        const char *type, *text;
    } bases[] = {
        {"hello", "{'v':1,'t':'hello','planner':1,'instance':'d','incarnation':1,'rank':[0,0,0,0,0],'host':'h',"
                  "'model':'','peer':'p','peer_incarnation':0,'epoch':0,'peer_epoch':0,"
                  "'layout':{'memories':[4096],'pools':[[0,0,256,16]],'groups':[[16,0,1,0,0]],"
                  "'views':[['k','f16',0,8,0,8,2,0,2,128,8,16,1,0,[[0,0,0]]]]}}"},
        {"hello_ack", "{'v':1,'t':'hello_ack','planner':1,'instance':'d','incarnation':1,'rank':[0,0,0,0,0],'host':'h',"
                      "'model':'','peer':'p','peer_incarnation':0,'epoch':0,'peer_epoch':0,'status':20,'text':'no'}"},
        {"pull", "{'v':1,'t':'pull','transfer':'x','attempt':0,'from':'p','begin':0,'end':16,'tokens':16,'grant':5,"
                 "'timeout_ms':1000,'transports':[{'name':'tcp','endpoint':'e'}],'groups':[{'first':0,'ids':[1]}]}"},
        {"progress", "{'v':1,'t':'progress','transfer':'x','attempt':0,'writer':0,'layer_first':0,'layer_end':1,"
                     "'token_end':1,'bytes':0}"},
        {"ping", "{'v':1,'t':'ping','sequence':1,'incarnation':2}"},
    };

    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++)
        if (strcmp(bases[i].type, type) == 0) return parse(bases[i].text);
    return json_object();
}

struct row {
    const char *base, *change;
    enum kvf_status status;
    const char *text; /* NULL = accepted */
};

static const struct row rows[] = {
    /* heads */
    {"", "[1]", KVF_ERR_PROTOCOL, "message is an array, expected a map"},
    {"", "{}", KVF_ERR_PROTOCOL, "message does not begin with its version"},
    {"", "{'t':'ping','v':1}", KVF_ERR_PROTOCOL, "message does not begin with its version"},
    {"", "{'v':'1','t':'ping'}", KVF_ERR_PROTOCOL, "message does not begin with its version"},
    {"", "{'v':2,'t':'ping'}", KVF_ERR_VERSION, "message has protocol version 2, this side speaks 1"},
    {"", "{'v':0,'new':[{'a':1}]}", KVF_ERR_VERSION, "message has protocol version 0, this side speaks 1"},
    {"", "{'v':1}", KVF_ERR_PROTOCOL, "message has no type name under \"t\""},
    {"", "{'v':1,'t':3}", KVF_ERR_PROTOCOL, "message has no type name under \"t\""},
    {"", "{'v':1,'t':'pong\\nx'}", KVF_ERR_PROTOCOL, "message type \"pong?x\" is not known"},
    {"", "{'v':1,'t':'none'}", KVF_ERR_PROTOCOL, "message type \"none\" is not known"},
    /* keys */
    {"ping", "{}", KVF_OK, NULL},
    {"ping", "{'later':[1,{'a':'b'}],'and':null,'more':1.5}", KVF_OK, NULL},
    {"ping", "{'sequence':null}", KVF_ERR_PROTOCOL, "ping: sequence is missing"},
    {"ping", "{'sequence':-1}", KVF_ERR_PROTOCOL,
     "ping: sequence is a negative integer, expected an integer of 0 or more"},
    {"ping", "{'sequence':1.0}", KVF_ERR_PROTOCOL, "ping: sequence is a float, expected an integer of 0 or more"},
    {"ping", "{'sequence':true}", KVF_ERR_PROTOCOL, "ping: sequence is a boolean, expected an integer of 0 or more"},
    /* texts */
    {"pull", "{'transfer':''}", KVF_ERR_PROTOCOL, "pull: transfer has 0 bytes, expected 1 to 127"},
    {"pull", "{'transfer':7}", KVF_ERR_PROTOCOL, "pull: transfer is an integer, expected a text"},
    {"pull", "{'transfer':'a\\u001b[2J'}", KVF_ERR_PROTOCOL, "pull: transfer has control characters or is not UTF-8"},
    {"pull", "{'transfer':'a\\u0085'}", KVF_ERR_PROTOCOL, "pull: transfer has control characters or is not UTF-8"},
    {"pull", "{'plan':'0123456789ABCDEF0123456789abcdef'}", KVF_ERR_PROTOCOL,
     "pull: plan is not 32 lower-case hex digits"},
    {"pull", "{'plan':'0123'}", KVF_ERR_PROTOCOL, "pull: plan is not 32 lower-case hex digits"},
    {"pull", "{'plan':''}", KVF_OK, NULL},
    /* pull */
    {"pull", "{'attempt':-1}", KVF_ERR_PROTOCOL, "pull: attempt is -1, expected 0 to 9223372036854775807"},
    {"pull", "{'begin':17}", KVF_ERR_PROTOCOL, "pull: range [17, 16) does not lie in the 16 tokens of the request"},
    {"pull", "{'tokens':15}", KVF_ERR_PROTOCOL, "pull: range [0, 16) does not lie in the 15 tokens of the request"},
    {"pull", "{'grant':0}", KVF_ERR_PROTOCOL, "pull: grant is 0, expected 1 or more"},
    {"pull", "{'timeout_ms':0}", KVF_ERR_PROTOCOL, "pull: timeout_ms is 0, expected 1 to 86400000"},
    {"pull", "{'transports':[]}", KVF_ERR_PROTOCOL, "pull: transports has 0 entries, expected 1 to 16"},
    {"pull", "{'transports':'tcp'}", KVF_ERR_PROTOCOL, "pull: transports is a text, expected an array"},
    {"pull", "{'transports':[1]}", KVF_ERR_PROTOCOL, "pull: transport 0 is an integer, expected a map"},
    {"pull", "{'transports':[{'name':'tcp'}]}", KVF_ERR_PROTOCOL, "pull: transport 0 has no endpoint"},
    {"pull", "{'transports':[{'name':'','endpoint':''}]}", KVF_ERR_PROTOCOL,
     "pull: transport name has 0 bytes, expected 1 to 127"},
    {"pull", "{'transports':[{'name':'tcp','endpoint':'e','weight':1}]}", KVF_OK, NULL},
    {"pull", "{'groups':[]}", KVF_ERR_PROTOCOL, "pull: groups has 0 entries, expected 1 to 1024"},
    {"pull", "{'groups':[[1]]}", KVF_ERR_PROTOCOL, "pull: group 0 is an array, expected a map"},
    {"pull", "{'groups':[{'first':-1,'ids':[]}]}", KVF_ERR_PROTOCOL,
     "pull: group 0: first is not an integer of 0 or more"},
    {"pull", "{'groups':[{'first':0}]}", KVF_ERR_PROTOCOL, "pull: group 0: ids is not an array"},
    {"pull", "{'groups':[{'first':0,'ids':[1,'2']}]}", KVF_ERR_PROTOCOL,
     "pull: group 0 id 1 is a text, expected an integer"},
    {"pull", "{'groups':[{'first':0,'ids':[1,-3]}]}", KVF_ERR_PROTOCOL, "pull: group 0 id 1 is not in -1 to 2^63 - 2"},
    {"pull", "{'groups':[{'first':0,'ids':[9223372036854775806,5]}]}", KVF_ERR_PROTOCOL,
     "pull: group 0 id 1 is not in -1 to 2^63 - 2"},
    {"pull", "{'groups':[{'first':0,'ids':[-1,1]},{'first':9,'ids':[]}]}", KVF_OK, NULL},
    /* progress, hello */
    {"progress", "{'layer_first':2}", KVF_ERR_PROTOCOL, "progress: layers [2, 1) end before they begin"},
    {"hello", "{}", KVF_OK, NULL},
    {"hello", "{'planner':0}", KVF_ERR_PROTOCOL, "hello: planner is 0, expected 1 to 4294967295"},
    {"hello", "{'incarnation':0}", KVF_ERR_PROTOCOL, "hello: incarnation is 0, expected 1 or more"},
    {"hello", "{'rank':[0,0,0,0]}", KVF_ERR_PROTOCOL, "hello: rank is not an array of dp, pp, cp, tp, salt"},
    {"hello", "{'rank':[0,0,-1,0,0]}", KVF_ERR_PROTOCOL, "hello: rank number 2 is not an integer of 0 or more"},
    {"hello_ack", "{}", KVF_OK, NULL},
    {"hello_ack", "{'status':0}", KVF_ERR_PROTOCOL, "hello_ack: layout is missing from an accepting answer"},
    /* layouts */
    {"hello", "{'layout':[]}", KVF_ERR_PROTOCOL, "layout is an array, expected a map"},
    {"hello", "{'layout':{}}", KVF_ERR_PROTOCOL, "layout: memories is missing, expected an array"},
    {"hello", "{'layout':{'memories':[1.5]}}", KVF_ERR_PROTOCOL, "layout: memory 0 is a float, expected an integer"},
    {"hello", "{'layout':{'memories':[1],'pools':[[0,0,1]]}}", KVF_ERR_PROTOCOL,
     "layout: pool 0 is not an array of 4 integers"},
    {"hello", "{'layout':{'memories':[1],'pools':[],'groups':[[16,0,1,0,'0']]}}", KVF_ERR_PROTOCOL,
     "layout: group 0: number 4 is a text, expected an integer"},
    {"hello", "{'layout':{'memories':[1],'pools':[],'groups':[],'views':[['k']]}}", KVF_ERR_PROTOCOL,
     "layout: view 0 is not an array of 15"},
    {"hello", "{'layout':{'memories':[1],'pools':[],'groups':[],'views':[['k','f',0,8,0,8,2,0,2,128,8,16,1,-1,[]]]}}",
     KVF_ERR_PROTOCOL, "layout: view 0: flags are -1, expected 32 bits"},
    {"hello", "{'layout':{'memories':[1],'pools':[],'groups':[],'views':[['k','f',0,8,0,8,2,0,2,128,8,16,1,0,"
              "[[0,0,0,0,1,1,1]]]]}}",
     KVF_ERR_LIMIT, "layout: view 0: a run of 0 places after 0, at most 131072 are taken"},
    {"hello", "{'layout':{'memories':[1],'pools':[],'groups':[],'views':[['k','f',0,8,0,8,2,0,2,128,8,16,1,0,"
              "[[0,0,0,131072,1,0,0],[0,0,0]]]]}}",
     KVF_ERR_LIMIT, "layout: view 0: a run of 1 places after 131072, at most 131072 are taken"},
    {"hello", "{'layout':{'memories':[1],'pools':[],'groups':[],'views':[['k','f',0,8,0,8,2,0,2,128,8,16,1,0,"
              "[[0,0,0,4,9000000000000000000,0,0]]]]}}",
     KVF_ERR_OVERFLOW, "layout: a run of places of view 0 leaves 64 bits"},
};

static void lay_over(json_t *base, json_t *change)
{
    const char *key;
    json_t *value;

    json_object_foreach(change, key, value) {
        if (json_is_null(value)) json_object_del(base, key);
        else json_object_set(base, key, value);
    }
}

static void refuses_each_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *change = parse(rows[i].change), *base = base_message(rows[i].base);
        struct kvfi_message message = {.type = KVFI_MSG_NONE};
        struct kvf_error error = {0};
        msgpack_sbuffer buffer;
        msgpack_packer packer;
        enum kvf_status status;

        if (json_is_object(change)) lay_over(base, change);
        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
        pack_json(&packer, json_is_object(change) ? base : change);
        status = kvfi_wire_unpack(buffer.data, buffer.size, &message, &error);
        if (status != rows[i].status || (rows[i].text && strcmp(error.text, rows[i].text) != 0))
            fail_msg("row %zu %s: status %d, text %s", i, rows[i].change, (int)status, error.text);
        assert_true((status == KVF_OK) == (message.type != KVFI_MSG_NONE));
        kvfi_message_fini(&message);
        msgpack_sbuffer_destroy(&buffer);
        json_decref(change);
        json_decref(base);
    }
}

/** Bytes that JSON cannot say. */
static void refuses_raw_bytes(void **state)
{
    static const struct {
        const char *name, *bytes;
        size_t count;
        const char *text;
    } raw[] = {
        {"nothing", "", 0, "message ends after 0 bytes, in the middle"},
        {"no such type", "\xc1", 1, "message byte 0 (0xc1) starts nothing that fits in the 1 bytes left"},
        {"array of 2^32-1", "\xdd\xff\xff\xff\xff", 5,
         "message byte 0 (0xdd) starts nothing that fits in the 5 bytes left"},
        {"map of 2^31", "\xdf\x80\x00\x00\x00", 5,
         "message byte 0 (0xdf) starts nothing that fits in the 5 bytes left"},
        {"text of 2^32-1", "\x81\xdb\xff\xff\xff\xff", 6,
         "message byte 1 (0xdb) starts nothing that fits in the 5 bytes left"},
        {"binary of 256", "\xc5\x01\x00", 3, "message byte 0 (0xc5) starts nothing that fits in the 3 bytes left"},
        {"extension of 2^32-1", "\xc9\xff\xff\xff\xff\x01", 6,
         "message byte 0 (0xc9) starts nothing that fits in the 6 bytes left"},
        {"half a length", "\xdd\xff", 2, "message byte 0 (0xdd) starts nothing that fits in the 2 bytes left"},
        {"half a number", "\xcf\x01\x02", 3, "message byte 0 (0xcf) starts nothing that fits in the 3 bytes left"},
        {"nine deep", "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01", 10, "message is nested more than 8 deep"},
        {"two messages", "\x80\x80", 2, "message has 1 bytes after its end"},
        {"a key twice", "\x84\xa1v\x01\xa1t\xa4ping\xa8sequence\x01\xa8sequence\x02", 31, "ping: sequence comes twice"},
        {"above 2^63", "\x82\xa1v\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa1t\xa4ping", 19,
         "message does not begin with its version"},
        {"a name as binary", "\x82\xa1v\x01\xa1t\xc4\x04ping", 12, "message has no type name under \"t\""},
        {"a key as binary", "\x81\xc4\x01v\x01", 5, "message does not begin with its version"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof raw / sizeof raw[0]; i++) {
        struct kvfi_message message = {.type = KVFI_MSG_NONE};
        struct kvf_error error = {0};
        unsigned char *exact = malloc(raw[i].count ? raw[i].count : 1);

        memcpy(exact, raw[i].bytes, raw[i].count);
        assert_int_equal(kvfi_wire_unpack(exact, raw[i].count, &message, &error), KVF_ERR_PROTOCOL);
        if (strcmp(error.text, raw[i].text) != 0) fail_msg("%s: %s", raw[i].name, error.text);
        free(exact);
    }
}

static void takes_eight_levels_and_no_more_bytes_than_a_mebibyte(void **state)
{
    static const unsigned char eight[] = {0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x90};
    unsigned char *large = calloc(1, KVFI_WIRE_MAX_BYTES + 1);
    struct kvf_error error;

    (void)state;
    assert_int_equal(kvfi_wire_scan(eight, sizeof eight, &error), KVF_OK);
    assert_int_equal(kvfi_wire_scan(large, KVFI_WIRE_MAX_BYTES + 1, &error), KVF_ERR_PROTOCOL);
    assert_string_equal(error.text, "message has 1048577 bytes, at most 1048576 are taken");
    free(large);
}

/* ---- what our own side may not say ---- */

static void refuses_to_pack(void **state)
{
    static const int64_t low[] = {3, -2}, high[] = {INT64_MAX};
    static const struct kvf_id_list low_ids = {low, 2, 0}, high_ids = {high, 1, 0}, below = {low, 1, -1};
    char long_name[200];
    struct kvfi_buffer buffer = {0};
    struct kvf_error error;
    const struct {
        const char *transfer;
        int64_t attempt, timeout_ms;
        const struct kvf_id_list *groups;
        const char *plan, *text;
    } cases[] = {
        {"", 0, 1, NULL, "", "pull: transfer has 0 bytes, expected 1 to 127"},
        {long_name, 0, 1, NULL, "", "pull: transfer has 199 bytes, expected 1 to 127"},
        {"a\nb", 0, 1, NULL, "", "pull: transfer has control characters or is not UTF-8"},
        {"a\xff", 0, 1, NULL, "", "pull: transfer has control characters or is not UTF-8"},
        {"a", -1, 1, NULL, "", "pull: attempt is -1, expected 0 to 9223372036854775807"},
        {"a", 0, 86400001, NULL, "", "pull: timeout_ms is 86400001, expected 1 to 86400000"},
        {"a", 0, 1, &low_ids, "", "pull: group 0 id 1 is -2, expected -1 or more, and less than 2^63 - 1"},
        {"a", 0, 1, &high_ids, "",
         "pull: group 0 id 0 is 9223372036854775807, expected -1 or more, and less than 2^63 - 1"},
        {"a", 0, 1, &below, "", "pull: group 0 begins at block -1, expected 0 or more"},
        {"a", 0, 1, NULL, "xyz", "pull: plan is not 32 lower-case hex digits"},
    };

    (void)state;
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvfi_message message;

        sample_message(KVFI_MSG_PULL, NULL, &message);
        message.pull.transfer = cases[i].transfer;
        message.pull.attempt = cases[i].attempt;
        message.pull.timeout_ms = cases[i].timeout_ms;
        if (cases[i].groups) message.pull.groups = cases[i].groups;
        if (cases[i].groups) message.pull.group_count = 1;
        memset(message.pull.plan, 0, sizeof message.pull.plan);
        memcpy(message.pull.plan, cases[i].plan, strlen(cases[i].plan));
        assert_int_equal(kvfi_wire_pack(&message, &buffer, &error), KVF_ERR_INVALID_ARGUMENT);
        if (strcmp(error.text, cases[i].text) != 0) fail_msg("case %zu: %s", i, error.text);
        assert_int_equal(buffer.count, 0);
    }
    kvfi_buffer_fini(&buffer);
}

/** A million ids in a row take a byte each; scattered ones that do not fit are refused. */
static void bounds_what_it_packs(void **state)
{
    enum { COUNT = 400000 };
    int64_t *ids = malloc(COUNT * sizeof *ids);
    struct kvf_id_list group = {ids, COUNT, 0};
    struct kvfi_buffer buffer = {0};
    struct kvfi_message message, back = {.type = KVFI_MSG_NONE};
    struct kvf_error error;

    (void)state;
    sample_message(KVFI_MSG_PULL, NULL, &message);
    message.pull.groups = &group;
    message.pull.group_count = 1;
    for (int64_t i = 0; i < COUNT; i++) ids[i] = 5000000000 + i;
    assert_int_equal(kvfi_wire_pack(&message, &buffer, &error), KVF_OK);
    assert_in_range(buffer.count, COUNT, COUNT + 1000);
    assert_int_equal(kvfi_wire_unpack(buffer.bytes, buffer.count, &back, &error), KVF_OK);
    assert_memory_equal(back.pull.groups[0].ids, ids, COUNT * sizeof *ids);
    kvfi_message_fini(&back);
    for (int64_t i = 0; i < COUNT; i++) ids[i] = i % 2 * 100000;
    assert_int_equal(kvfi_wire_pack(&message, &buffer, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, "pull: message is longer than 1048576 bytes");
    kvfi_buffer_fini(&buffer);
    free(ids);
}

static void cleans_sentences(void **state)
{
    char long_text[1000], sent[600];
    struct kvfi_buffer buffer = {0};
    struct kvfi_message message, back = {.type = KVFI_MSG_NONE};
    struct kvf_error error;

    (void)state;
    sample_message(KVFI_MSG_NACK, NULL, &message);
    message.nack.text = "two\nlines \xff and \xc3\xa9";
    assert_int_equal(kvfi_wire_pack(&message, &buffer, &error), KVF_OK);
    assert_int_equal(kvfi_wire_unpack(buffer.bytes, buffer.count, &back, &error), KVF_OK);
    assert_string_equal(back.nack.text, "two?lines ? and \xc3\xa9");
    kvfi_message_fini(&back);
    memset(long_text, 'x', sizeof long_text - 1);
    memcpy(long_text + 494, "\xc3\xa9", 2);
    long_text[sizeof long_text - 1] = '\0';
    message.nack.text = long_text;
    assert_int_equal(kvfi_wire_pack(&message, &buffer, &error), KVF_OK);
    assert_int_equal(kvfi_wire_unpack(buffer.bytes, buffer.count, &back, &error), KVF_OK);
    memset(sent, 'x', 494);
    sent[494] = '\0';
    assert_string_equal(back.nack.text, sent);
    kvfi_message_fini(&back);
    kvfi_message_fini(NULL);
    kvfi_buffer_fini(&buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_each_row), cmocka_unit_test(refuses_raw_bytes),
        cmocka_unit_test(takes_eight_levels_and_no_more_bytes_than_a_mebibyte), cmocka_unit_test(refuses_to_pack),
        cmocka_unit_test(bounds_what_it_packs), cmocka_unit_test(cleans_sentences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
