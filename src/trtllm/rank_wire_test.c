/* SPDX-License-Identifier: Apache-2.0 */
/* Rank infos as bytes: two that upstream's encoder made, and what becomes of them when they are changed. The argument
 * is the folder of golden files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "trtllm/rank.h"
#include "trtllm/rank_kit.h"

enum { MAX_GOLDEN = 2048 };

struct bytes {
    unsigned char data[MAX_GOLDEN];
    size_t count;
};

static struct bytes old_rank, new_rank; /* eighteen and twenty-two keys */

static size_t from_hex(const char *text, unsigned char *out, size_t capacity)
{
    size_t count = 0;
    unsigned byte;

    while (*text && count < capacity) {
        if (*text == '\n') {
            text++;
            continue;
        }
        if (sscanf(text, "%2x", &byte) != 1) abort();
        out[count++] = (unsigned char)byte;
        text += 2;
    }
    return count;
}

static void load(const char *folder, const char *name, struct bytes *out)
{
    static char text[3 * MAX_GOLDEN];
    char path[1024];
    FILE *file;
    size_t count;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "r");
    if (!file) {
        perror(path);
        exit(1);
    }
    count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[count] = '\0';
    out->count = from_hex(text, out->data, sizeof out->data);
}

static kvf_trtllm_rank *decode(const void *data, size_t count)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error = {0};

    if (kvf_trtllm_rank_decode(data, count, &rank, &error) != KVF_OK) fail_msg("%s", error.text);
    return rank;
}

static void expect_bytes(const kvf_trtllm_rank *rank, const void *data, size_t count)
{
    unsigned char *buffer = malloc(count);
    size_t found = 0;

    assert_non_null(buffer);
    assert_int_equal(kvf_trtllm_rank_encode(rank, NULL, 0, &found, NULL), KVF_OK);
    assert_int_equal(found, count);
    assert_int_equal(kvf_trtllm_rank_encode(rank, buffer, count, &found, NULL), KVF_OK);
    assert_memory_equal(buffer, data, count);
    free(buffer);
}

/* ---- bytes changed in one place ----------------------------------------------------------------------------- */

enum change { SET, DROP, TWICE, ADD_BEFORE, BACKWARDS };

/** What to change: the value at `path`, or the pairs of the map there. */
struct edit {
    const char *path;
    enum change change;
    const char *hex;
    size_t hits;
};

static void put_hex(msgpack_packer *out, const char *hex)
{
    unsigned char bytes[256];

    msgpack_sbuffer_write(out->data, (const char *)bytes, from_hex(hex, bytes, sizeof bytes));
}

static void repack(msgpack_packer *out, const msgpack_object *object, const char *path, struct edit *edits);

static struct edit *edit_at(struct edit *edits, const char *path, enum change change)
{
    for (; edits->path; edits++)
        if (edits->change == change && strcmp(edits->path, path) == 0) return edits;
    return NULL;
}

static void repack_pair(msgpack_packer *out, const msgpack_object_kv *pair, const char *path, struct edit *edits,
                        size_t *count)
{
    char inside[256];
    struct edit *twice;

    snprintf(inside, sizeof inside, "%s%s%.*s", path, path[0] ? "." : "", (int)pair->key.via.str.size,
             pair->key.via.str.ptr);
    if (edit_at(edits, inside, DROP)) {
        edit_at(edits, inside, DROP)->hits++;
        return;
    }
    twice = edit_at(edits, inside, TWICE);
    for (int i = 0; i < (twice ? 2 : 1); i++) {
        if (out) msgpack_pack_object(out, pair->key);
        if (out) repack(out, &pair->val, inside, edits);
        (*count)++;
    }
    if (twice) twice->hits++;
}

static void repack_map(msgpack_packer *out, const msgpack_object *object, const char *path, struct edit *edits)
{
    struct edit *added = edit_at(edits, path, ADD_BEFORE), *backwards = edit_at(edits, path, BACKWARDS);
    uint32_t size = object->via.map.size;
    size_t count = added != NULL;

    for (uint32_t i = 0; i < size; i++) repack_pair(NULL, &object->via.map.ptr[i], path, edits, &count);
    msgpack_pack_map(out, count);
    if (added) put_hex(out, added->hex);
    for (uint32_t i = 0; i < size; i++)
        repack_pair(out, &object->via.map.ptr[backwards ? size - 1 - i : i], path, edits, &count);
    if (added) added->hits++;
    if (backwards) backwards->hits++;
}

static void repack(msgpack_packer *out, const msgpack_object *object, const char *path, struct edit *edits)
{
    struct edit *set = edit_at(edits, path, SET);
    char inside[256];

    if (set) {
        put_hex(out, set->hex);
        set->hits++;
    } else if (object->type == MSGPACK_OBJECT_MAP) {
        repack_map(out, object, path, edits);
    } else if (object->type == MSGPACK_OBJECT_ARRAY) {
        msgpack_pack_array(out, object->via.array.size);
        for (uint32_t i = 0; i < object->via.array.size; i++) {
            snprintf(inside, sizeof inside, "%s[%" PRIu32 "]", path, i);
            repack(out, &object->via.array.ptr[i], inside, edits);
        }
    } else {
        msgpack_pack_object(out, *object);
    }
}

/* The bytes with these edits; the list ends with a path of NULL, and each must have hit something. */
static void change(const struct bytes *from, struct edit *edits, msgpack_sbuffer *out)
{
    msgpack_unpacked unpacked;
    msgpack_packer packer;
    size_t at = 0;

    msgpack_unpacked_init(&unpacked);
    msgpack_sbuffer_init(out);
    msgpack_packer_init(&packer, out, msgpack_sbuffer_write);
    assert_int_equal(msgpack_unpack_next(&unpacked, (const char *)from->data, from->count, &at),
                     MSGPACK_UNPACK_SUCCESS);
    repack(&packer, &unpacked.data, "", edits);
    for (; edits->path; edits++)
        if (!edits->hits) fail_msg("nothing at %s", edits->path);
    msgpack_unpacked_destroy(&unpacked);
}

/* ---- tests -------------------------------------------------------------------------------------------------- */

static void test_golden(void **state)
{
    const struct bytes *all[] = {&old_rank, &new_rank};

    (void)state;
    assert_int_equal(old_rank.count, 442);
    assert_int_equal(new_rank.count, 1441);
    for (int i = 0; i < 2; i++) {
        kvf_trtllm_rank *rank = decode(all[i]->data, all[i]->count), *copy = NULL;

        assert_null(rank->bytes);
        expect_bytes(rank, all[i]->data, all[i]->count);
        assert_int_equal(kvf_trtllm_rank_create(kvf_trtllm_rank_get_spec(rank), &copy, NULL), KVF_OK);
        expect_bytes(copy, all[i]->data, all[i]->count);
        kvf_trtllm_rank_release(copy);
        kvf_trtllm_rank_release(rank);
    }
}

static void test_old_values(void **state)
{
    kvf_trtllm_rank *rank = decode(old_rank.data, old_rank.count);
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);

    (void)state;
    assert_string_equal(spec->instance_name, "ctx");
    assert_int_equal(spec->instance_rank, 3);
    assert_int_equal(spec->tp_size * 10 + spec->tp_rank, 41);
    assert_int_equal(spec->layer_num_per_pp[1], 3);
    assert_string_equal(spec->sender_endpoints[1], "tcp://127.0.0.1:5002");
    assert_memory_equal(spec->transfer_engine_info, "\x00\xff\x10", 3);
    assert_int_equal(spec->attention->element_eighths, 4);
    assert_int_equal(spec->aux->ptrs[0], 4096);
    assert_int_equal(spec->aux->item_sizes[0], 8);
    assert_string_equal(spec->aux->device, "cpu");
    assert_null(spec->page_table);
    assert_int_equal(spec->keys, 0);
    assert_int_equal(spec->protocol_version, KVF_TRTLLM_PROTOCOL_VERSION);
    kvf_trtllm_rank_release(rank);
}

static void test_new_values(void **state)
{
    kvf_trtllm_rank *rank = decode(new_rank.data, new_rank.count);
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(rank);
    const struct kvf_trtllm_page_table *table = spec->page_table;

    (void)state;
    assert_int_equal(spec->keys, KVF_TRTLLM_HAS_ALL);
    assert_null(spec->draft_kv_dtype);
    assert_int_equal(table->group_count, 2);
    assert_int_equal(table->groups[0].cache, KVF_TRTLLM_PAGED);
    assert_true(table->groups[0].sliding_window_size == KVF_TRTLLM_NONE);
    assert_int_equal(table->groups[0].views[0].role_count, 2);
    assert_int_equal(table->groups[0].views[0].entries[1].offset_bytes, 256);
    assert_int_equal(table->groups[1].slot_major_layout, 1);
    assert_int_equal(table->groups[1].views[0].section_bytes[2], 32);
    assert_int_equal(table->groups[1].views[1].bytes_per_head, 32);
    assert_true(table->groups[1].views[1].num_kv_heads == KVF_TRTLLM_NONE);
    assert_true(table->pool_groups[1].pools[1].base_address == UINT64_C(0xffffffff00000000));
    assert_true(table->pool_groups[1].pools[1].layer_stride_bytes == KVF_TRTLLM_NONE);
    kvf_trtllm_rank_release(rank);
}

/* Every subset of the four newest keys is remembered. */
static void test_subsets(void **state)
{
    static const char *const keys[] = {"protocol_version", "bounded_replay_on_generation", "num_draft_layers",
                                       "draft_kv_dtype"};

    (void)state;
    for (unsigned present = 0; present < 16; present++) {
        struct edit edits[5] = {{0}};
        msgpack_sbuffer changed;
        kvf_trtllm_rank *rank;
        size_t count = 0;

        for (unsigned i = 0; i < 4; i++)
            if (!(present >> i & 1)) edits[count++] = (struct edit){keys[i], DROP, NULL, 0};
        change(&new_rank, edits, &changed);
        rank = decode(changed.data, changed.size);
        assert_int_equal(kvf_trtllm_rank_get_spec(rank)->keys, present);
        assert_null(rank->bytes);
        expect_bytes(rank, changed.data, changed.size);
        kvf_trtllm_rank_release(rank);
        msgpack_sbuffer_destroy(&changed);
    }
}

/* Cut anywhere, it is refused and nothing is written. Exactly the bytes are given, so that a read past them shows. */
static void test_cuts(void **state)
{
    (void)state;
    for (size_t count = 0; count < new_rank.count; count++) {
        unsigned char *cut = malloc(count ? count : 1);
        kvf_trtllm_rank *rank = NULL;
        struct kvf_error error = {0};

        assert_non_null(cut);
        memcpy(cut, new_rank.data, count);
        assert_int_equal(kvf_trtllm_rank_decode(cut, count, &rank, &error), KVF_ERR_PARSE);
        assert_null(rank);
        assert_true(error.position >= 0 && error.position <= (int64_t)count);
        free(cut);
    }
}

static const char table[] = "page_table", group[] = "page_table.layer_groups[0]",
                  state[] = "page_table.layer_groups[1]", view[] = "page_table.layer_groups[0].pool_views[0]",
                  conv[] = "page_table.layer_groups[1].pool_views[0]",
                  pool[] = "page_table.pool_groups[0].pools[0]", attention[] = "attention";

#define AT(place, member) place, member

static const struct {
    const char *name, *place, *member;
    enum change change;
    const char *hex;
    int status;
    const char *text;
} refusals[] = {
    {"no map", "", "", SET, "93010203", KVF_ERR_PARSE, "rank info: expected a map, found an array"},
    {"empty map", "", "", SET, "80", KVF_ERR_PARSE, "instance_name: the key is missing"},
    {"version 2", AT("", "protocol_version"), SET, "02", KVF_ERR_VERSION, "protocol version 2, this library speaks"},
    {"version -1", AT("", "protocol_version"), SET, "ff", KVF_ERR_VERSION, "protocol version -1"},
    {"version text", AT("", "protocol_version"), SET, "a131", KVF_ERR_PARSE, "protocol_version: expected an integer"},
    {"version nil", AT("", "protocol_version"), SET, "c0", KVF_ERR_PARSE, "protocol_version: expected an integer"},
    {"version 2^64-1", AT("", "protocol_version"), SET, "cfffffffffffffffff", KVF_ERR_PARSE, "does not fit"},
    {"version twice", AT("", "protocol_version"), TWICE, "", KVF_ERR_PARSE, "protocol_version: the key is there"},
    {"name number", AT("", "instance_name"), SET, "07", KVF_ERR_PARSE, "instance_name: expected a text"},
    {"name nil", AT("", "instance_name"), SET, "c0", KVF_ERR_PARSE, "expected a text, found nil"},
    {"name bytes", AT("", "instance_name"), SET, "c40141", KVF_ERR_PARSE, "expected a text, found bytes"},
    {"name zero byte", AT("", "instance_name"), SET, "a3410042", KVF_ERR_PARSE, "a text has a zero byte"},
    {"name not UTF-8", AT("", "instance_name"), SET, "a2c328", KVF_ERR_LAYOUT, "not UTF-8"},
    {"name missing", AT("", "instance_name"), DROP, "", KVF_ERR_PARSE, "instance_name: the key is missing"},
    {"name twice", AT("", "instance_name"), TWICE, "", KVF_ERR_PARSE, "instance_name: the key is there twice"},
    {"rank fraction", AT("", "instance_rank"), SET, "cb3ff0000000000000", KVF_ERR_PARSE, "found a fraction"},
    {"rank true", AT("", "tp_rank"), SET, "c3", KVF_ERR_PARSE, "tp_rank: expected an integer, found true or false"},
    {"rank outside", AT("", "tp_rank"), SET, "01", KVF_ERR_LAYOUT, "tp rank 1 of 1"},
    {"rank -2^63", AT("", "device_id"), SET, "d38000000000000000", KVF_ERR_PARSE, "device_id: an integer does not fit"},
    {"stages map", AT("", "layer_num_per_pp"), SET, "80", KVF_ERR_PARSE, "expected an array, found a map"},
    {"stages text", AT("", "layer_num_per_pp"), SET, "91a132", KVF_ERR_PARSE, "layer_num_per_pp[0]: expected an int"},
    {"stages nil", AT("", "layer_num_per_pp"), SET, "c0", KVF_ERR_PARSE, "expected an array, found nil"},
    {"endpoint nil", AT("", "sender_endpoints"), SET, "91c0", KVF_ERR_PARSE, "sender_endpoints[0]: expected a text"},
    {"engine info text", AT("", "transfer_engine_info"), SET, "a0", KVF_ERR_PARSE, "expected bytes, found a text"},
    {"attention array", AT("", "attention"), SET, "90", KVF_ERR_PARSE, "attention: expected a map, found an array"},
    {"element nil", AT(attention, "element_bytes"), SET, "c0", KVF_ERR_PARSE, "element_bytes: expected a size"},
    {"element 0.3", AT(attention, "element_bytes"), SET, "cb3fd3333333333333", KVF_ERR_PARSE, "number of eighths"},
    {"element -1", AT(attention, "element_bytes"), SET, "ff", KVF_ERR_PARSE, "expected a size in bytes"},
    {"element -0.5", AT(attention, "element_bytes"), SET, "cbbfe0000000000000", KVF_ERR_PARSE, "number of eighths"},
    {"element 0", AT(attention, "element_bytes"), SET, "00", KVF_ERR_PARSE, "number of eighths"},
    {"element NaN", AT(attention, "element_bytes"), SET, "cb7ff8000000000000", KVF_ERR_PARSE, "number of eighths"},
    {"element infinite", AT(attention, "element_bytes"), SET, "cb7ff0000000000000", KVF_ERR_PARSE, "eighths"},
    {"element 2^60", AT(attention, "element_bytes"), SET, "cf1000000000000000", KVF_ERR_PARSE, "eighths"},
    {"flag 1", AT(attention, "is_mla"), SET, "01", KVF_ERR_PARSE, "is_mla: expected true or false, found an integer"},
    {"dims missing", AT(attention, "dims_per_head"), DROP, "", KVF_ERR_PARSE, "attention.dims_per_head: the key is"},
    {"aux text", AT("", "aux_meta"), SET, "a0", KVF_ERR_PARSE, "aux_meta: expected a map"},
    {"table tokens 0", AT(table, "tokens_per_block"), SET, "00", KVF_ERR_LAYOUT, "page table: tokens_per_block is 0"},
    {"groups nil", AT(table, "layer_groups"), SET, "c0", KVF_ERR_PARSE, "page_table.layer_groups: expected an array"},
    {"group nil", AT(table, "layer_groups"), SET, "91c0", KVF_ERR_PARSE, "page_table.layer_groups[0]: expected a map"},
    {"kind 2", AT(group, "kind"), SET, "02", KVF_ERR_LAYOUT, "layer group 0: cache kind 2"},
    {"kind word", AT(group, "kind"), SET, "a470616765", KVF_ERR_PARSE, "layer_groups[0].kind: a text that is no kind"},
    {"kind nil", AT(group, "kind"), SET, "c0", KVF_ERR_PARSE, "kind: expected an integer, found nil"},
    {"layers text", AT(group, "local_layers"), SET, "91a0", KVF_ERR_PARSE, "local_layers[0]: expected a map"},
    {"layer twice", AT(state, "local_layers"), SET,
     "9282ae6c6f63616c5f6c617965725f696400af676c6f62616c5f6c617965725f696405"
     "82ae6c6f63616c5f6c617965725f696401af676c6f62616c5f6c617965725f696405", KVF_ERR_LAYOUT,
     "global_layer_id 5 appears in layer groups 1 and 1"},
    {"window text", AT(group, "sliding_window_size"), SET, "a0", KVF_ERR_PARSE, "sliding_window_size: expected an"},
    {"slot major 1", AT(state, "slot_major_layout"), SET, "01", KVF_ERR_PARSE, "slot_major_layout: expected true"},
    {"pool outside", AT(view, "pool_idx"), SET, "01", KVF_ERR_LAYOUT, "layer group 0 view 0: pool 1 of 1"},
    {"entries pairs", AT(view, "buffer_entries"), SET, "91920000", KVF_ERR_PARSE, "[0]: expected an array of layer"},
    {"entry text", AT(view, "buffer_entries"), SET, "91930000a0", KVF_ERR_PARSE, "buffer_entries[0]: expected an int"},
    {"entry layer", AT(view, "buffer_entries"), SET, "9193050001", KVF_ERR_LAYOUT, "local layer 5"},
    {"roles text", AT(view, "pool_role"), SET, "a36b6579", KVF_ERR_PARSE, "pool_role: expected an array"},
    {"roles twice", AT(view, "pool_role"), SET, "92a16ba16b", KVF_ERR_LAYOUT, "role \"k\" is there twice"},
    {"mapper 3", AT(view, "mapper_kind"), SET, "03", KVF_ERR_LAYOUT, "a paged group allows mapper kinds 0, 1 and 2"},
    {"mapper 2", AT(conv, "mapper_kind"), SET, "02", KVF_ERR_LAYOUT, "a state group allows mapper kinds 0, 1 and 3"},
    {"heads true", AT(view, "num_kv_heads"), SET, "c3", KVF_ERR_PARSE, "num_kv_heads: expected an integer"},
    {"sections int", AT(conv, "section_bytes"), SET, "05", KVF_ERR_PARSE, "section_bytes: expected an array"},
    {"base negative", AT(pool, "base_address"), SET, "ff", KVF_ERR_PARSE, "base_address: expected an address"},
    {"base wraps", AT(pool, "base_address"), SET, "cfffffffffffffff00", KVF_ERR_OVERFLOW, "pool group 0 pool 0"},
    {"slots missing", AT(pool, "num_slots"), DROP, "", KVF_ERR_PARSE, "pools[0].num_slots: the key is missing"},
    {"stride short", AT(pool, "slot_stride_bytes"), SET, "01", KVF_ERR_LAYOUT, "greater than or equal to slot_bytes"},
    {"replay 0", AT("", "bounded_replay_on_generation"), SET, "00", KVF_ERR_PARSE, "expected true or false"},
    {"draft text", AT("", "num_draft_layers"), SET, "a0", KVF_ERR_PARSE, "num_draft_layers: expected an integer"},
    {"dtype 1", AT("", "draft_kv_dtype"), SET, "01", KVF_ERR_PARSE, "draft_kv_dtype: expected a text"},
    {"huge array", AT("", "sender_endpoints"), SET, "ddffffffff", KVF_ERR_PARSE, "starts nothing that fits"},
    {"huge map", AT("", "attention"), SET, "dfffffffff", KVF_ERR_PARSE, "starts nothing that fits"},
    {"huge text", AT("", "instance_name"), SET, "dbffffffff", KVF_ERR_PARSE, "starts nothing that fits"},
    {"no type", AT("", "attention"), SET, "c1", KVF_ERR_PARSE, "starts nothing that fits"},
    {"unknown cut", "", "", ADD_BEFORE, "01ddffffffff", KVF_ERR_PARSE, "starts nothing that fits"},
    {"unknown deep", "", "", ADD_BEFORE,
     "01919191919191919191919191919191919191919191919191919191919191919191c0", KVF_ERR_LIMIT, "more than 32 arrays"},
};

static void test_refusals(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char path[128];
        struct edit edits[2] = {{path, refusals[i].change, refusals[i].hex, 0}, {NULL, SET, NULL, 0}};
        kvf_trtllm_rank *rank = NULL;
        struct kvf_error error = {0};
        msgpack_sbuffer changed;
        int status;

        snprintf(path, sizeof path, "%s%s%s", refusals[i].place, refusals[i].place[0] ? "." : "", refusals[i].member);
        change(&new_rank, edits, &changed);
        status = kvf_trtllm_rank_decode(changed.data, changed.size, &rank, &error);
        if (status != refusals[i].status || !strstr(error.text, refusals[i].text))
            fail_msg("%s: found status %d, \"%s\"", refusals[i].name, status, error.text);
        assert_null(rank);
        msgpack_sbuffer_destroy(&changed);
    }
}

/* What is understood all the same. Without unknown keys the bytes come back; with them, those that were known. */
static void test_variants(void **unused)
{
    static const struct {
        const char *name;
        struct edit edits[4];
        bool unknown;
    } rows[] = {
        {"keys backwards", {{"", BACKWARDS, "", 0}}, false},
        {"a group's keys backwards", {{group, BACKWARDS, "", 0}, {pool, BACKWARDS, "", 0}}, false},
        {"nil left out", {{"page_table.layer_groups[0].pool_views[0].section_bytes", DROP, "", 0},
                          {"page_table.layer_groups[0].sliding_window_size", DROP, "", 0},
                          {"page_table.pool_groups[0].pools[0].layer_stride_bytes", DROP, "", 0}}, false},
        {"stride left out", {{"page_table.pool_groups[0].pools[0].slot_stride_bytes", DROP, "", 0}}, false},
        {"roles left out", {{"page_table.layer_groups[0].pool_views[0].pool_role", DROP, "", 0}}, false},
        {"roles unsorted", {{"page_table.layer_groups[0].pool_views[0].pool_role", SET, "92a576616c7565a36b6579", 0}},
         false},
        {"attention nil", {{"attention", SET, "c0", 0}}, false},
        {"sizes left out", {{"dp_size", DROP, "", 0}, {"cp_rank", DROP, "", 0}, {"aux_meta", DROP, "", 0}}, false},
        {"long integers", {{"tp_size", SET, "cf0000000000000001", 0}, {"tp_rank", SET, "d000", 0},
                           {"device_id", SET, "d20000007f", 0}}, false},
        {"kind left out", {{"page_table.layer_groups[0].kind", DROP, "", 0},
                           {"page_table.layer_groups[1].kind", DROP, "", 0}}, false},
        {"only views tell", {{"page_table.layer_groups[1].kind", DROP, "", 0},
                             {"page_table.layer_groups[1].slot_major_layout", DROP, "", 0}}, false},
        {"kind in words", {{"page_table.layer_groups[0].kind", SET, "a55041474544", 0},
                           {"page_table.layer_groups[0].pool_views[0].mapper_kind", SET, "a34e4844", 0}}, false},
        {"single precision", {{"attention.element_bytes", SET, "ca3f000000", 0}}, false},
        {"unknown text key", {{"", ADD_BEFORE, "a3666f6fc3", 0}}, true},
        {"unknown integer key", {{"", ADD_BEFORE, "0581a161929301c0a162c0", 0}}, true},
        {"unknown array key", {{"", ADD_BEFORE, "920102d6ff00000000", 0}}, true},
        {"unknown nil key", {{"", ADD_BEFORE, "c0c70301010203", 0}}, true},
        {"unknown keys inside", {{group, ADD_BEFORE, "07c0", 0}, {view, ADD_BEFORE, "a178a0", 0},
                                 {pool, ADD_BEFORE, "c290", 0}}, true},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct edit edits[5] = {{0}};
        msgpack_sbuffer changed;
        kvf_trtllm_rank *rank;

        memcpy(edits, rows[i].edits, sizeof rows[i].edits);
        change(&new_rank, edits, &changed);
        print_message("%s\n", rows[i].name);
        rank = decode(changed.data, changed.size);
        if (rows[i].unknown) expect_bytes(rank, new_rank.data, new_rank.count);
        else expect_bytes(rank, changed.data, changed.size);
        assert_int_equal(kvf_trtllm_rank_get_spec(rank)->page_table->groups[1].cache, KVF_TRTLLM_STATE);
        kvf_trtllm_rank_release(rank);
        msgpack_sbuffer_destroy(&changed);
    }
}

/* Another version is all there is to say, whatever the rest looks like. */
static void test_version_first(void **unused)
{
    static const char *const texts[] = {
        "81b070726f746f636f6c5f76657273696f6e07",
        "82ad696e7374616e63655f6e616d65c0b070726f746f636f6c5f76657273696f6e07",
        "8305c00680b070726f746f636f6c5f76657273696f6e07",
        "82b070726f746f636f6c5f76657273696f6e07a16193", /* cut off behind it */
    };

    (void)unused;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        unsigned char bytes[128];
        size_t count = from_hex(texts[i], bytes, sizeof bytes);
        kvf_trtllm_rank *rank = NULL;
        struct kvf_error error;

        assert_int_equal(kvf_trtllm_rank_decode(bytes, count, &rank, &error), KVF_ERR_VERSION);
        assert_non_null(strstr(error.text, "protocol version 7"));
        assert_null(rank);
    }
}

/* Any value of any type in any place: refused with a sentence, or read so that it can be written. */
static void test_any_type_anywhere(void **unused)
{
    static const char *const values[] = {"c0", "c3", "00", "7f", "ff", "cfffffffffffffffff", "d38000000000000001",
                                         "cb3ff8000000000000", "ca7fc00000", "a0", "a3616263", "c400", "90", "9100",
                                         "93000000", "80", "810001", "d60100000000"};
    size_t refused = 0, taken = 0;

    (void)unused;
    for (size_t at = 3; at < new_rank.count; at++) {
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            unsigned char bytes[MAX_GOLDEN + 16];
            size_t added = from_hex(values[i], bytes + at, 16), count = at + added + new_rank.count - at - 1;
            kvf_trtllm_rank *rank = NULL;
            struct kvf_error error = {0};

            memcpy(bytes, new_rank.data, at);
            memcpy(bytes + at + added, new_rank.data + at + 1, new_rank.count - at - 1);
            if (kvf_trtllm_rank_decode(bytes, count, &rank, &error) == KVF_OK) {
                size_t again = 0;

                assert_int_equal(kvf_trtllm_rank_encode(rank, NULL, 0, &again, NULL), KVF_OK);
                taken++;
            } else {
                assert_true(error.text[0] && !strchr(error.text, '\n') && !rank);
                refused++;
            }
            kvf_trtllm_rank_release(rank);
        }
    }
    assert_true(refused > 10000 && taken > 100);
}

/* Lists that are there in full, one item longer than allowed. */
static void test_limits(void **unused)
{
    static const struct {
        const char *path;
        uint32_t count;
        unsigned char item;
        const char *text;
    } rows[] = {
        {"sender_endpoints", KVF_TRTLLM_MAX_RANKS + 1, 0xa0, "sender_endpoints: 65537 items, at most 65536"},
        {"layer_num_per_pp", KVF_TRTLLM_MAX_RANKS + 1, 0x00, "layer_num_per_pp: 65537 items"},
        {"page_table.layer_groups", KVF_TRTLLM_MAX_GROUPS + 1, 0x80, "layer_groups: 1025 items"},
        {"page_table.pool_groups", KVF_TRTLLM_MAX_GROUPS + 1, 0x80, "pool_groups: 1025 items"},
        {"page_table.layer_groups[0].local_layers", KVF_TRTLLM_MAX_ENTRIES + 1, 0x80, "local_layers: 262145 items"},
        {"page_table.layer_groups[1].pool_views", KVF_TRTLLM_MAX_VIEWS, 0x80, "pool_views: 8192 items, at most 8191"},
        {"page_table.layer_groups[0].pool_views[0].buffer_entries", KVF_TRTLLM_MAX_ENTRIES + 1, 0x90,
         "buffer_entries: 262145 items"},
        {"page_table.layer_groups[0].pool_views[0].pool_role", KVF_TRTLLM_MAX_ENTRIES + 1, 0xa0, "pool_role"},
        {"page_table.layer_groups[1].pool_views[0].section_bytes", KVF_TRTLLM_MAX_ENTRIES + 1, 0x00, "section_bytes"},
        {"page_table.pool_groups[1].pools", KVF_TRTLLM_MAX_POOLS, 0x80, "pools: 8192 items, at most 8191"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct edit edits[2] = {{rows[i].path, SET, "dd01020304", 0}, {NULL, SET, NULL, 0}};
        static const unsigned char mark[] = {0xdd, 1, 2, 3, 4};
        msgpack_sbuffer changed;
        unsigned char *bytes, *found;
        kvf_trtllm_rank *rank = NULL;
        struct kvf_error error;

        change(&new_rank, edits, &changed);
        bytes = malloc(changed.size + rows[i].count);
        found = memmem(changed.data, changed.size, mark, sizeof mark);
        assert_true(bytes && found);
        found += sizeof mark;
        memcpy(bytes, changed.data, (size_t)(found - (unsigned char *)changed.data));
        for (int b = 0; b < 4; b++)
            bytes[found - (unsigned char *)changed.data - 4 + b] = (unsigned char)(rows[i].count >> (24 - 8 * b));
        memset(bytes + (found - (unsigned char *)changed.data), rows[i].item, rows[i].count);
        memcpy(bytes + (found - (unsigned char *)changed.data) + rows[i].count, found,
               changed.size - (size_t)(found - (unsigned char *)changed.data));
        assert_int_equal(kvf_trtllm_rank_decode(bytes, changed.size + rows[i].count, &rank, &error), KVF_ERR_LIMIT);
        if (!strstr(error.text, rows[i].text)) fail_msg("%s: %s", rows[i].path, error.text);
        free(bytes);
        msgpack_sbuffer_destroy(&changed);
    }
}

static void test_sizes(void **unused)
{
    kvf_trtllm_rank *rank = decode(new_rank.data, new_rank.count), *none = NULL;
    unsigned char *large = calloc(1, (size_t)KVF_TRTLLM_MAX_RANK_BYTES + 1);
    unsigned char buffer[MAX_GOLDEN], before[MAX_GOLDEN];
    struct kvf_error error;
    size_t count = 0;

    (void)unused;
    memset(buffer, 0x5a, sizeof buffer);
    memcpy(before, buffer, sizeof buffer);
    assert_int_equal(kvf_trtllm_rank_encode(rank, buffer, new_rank.count - 1, &count, &error), KVF_ERR_LIMIT);
    assert_int_equal(count, new_rank.count);
    assert_memory_equal(buffer, before, sizeof buffer);
    assert_int_equal(kvf_trtllm_rank_encode(rank, NULL, 9, &count, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_rank_encode(NULL, NULL, 0, &count, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_rank_decode(NULL, 3, &none, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_rank_decode(NULL, 0, &none, &error), KVF_ERR_PARSE);
    assert_non_null(large);
    assert_int_equal(kvf_trtllm_rank_decode(large, (size_t)KVF_TRTLLM_MAX_RANK_BYTES + 1, &none, &error),
                     KVF_ERR_LIMIT);
    memcpy(large, new_rank.data, new_rank.count);
    assert_int_equal(kvf_trtllm_rank_decode(large, new_rank.count + 1, &none, &error), KVF_ERR_PARSE);
    assert_non_null(strstr(error.text, "bytes after its end"));
    assert_int_equal(error.position, new_rank.count);
    free(large);
    kvf_trtllm_rank_release(rank);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),         cmocka_unit_test(test_old_values),
        cmocka_unit_test(test_new_values),     cmocka_unit_test(test_subsets),
        cmocka_unit_test(test_cuts),           cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_variants),       cmocka_unit_test(test_version_first),
        cmocka_unit_test(test_any_type_anywhere), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_sizes),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    load(argv[1], "rank_18_keys.hex", &old_rank);
    load(argv[1], "rank_22_keys.hex", &new_rank);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
