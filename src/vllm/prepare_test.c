/* SPDX-License-Identifier: Apache-2.0 */
/* Who can be prepared, what is remembered, and in which order refusals come. */
#include "vllm/pair_kit.h"

#include <stdlib.h>
#include <string.h>

#include "vllm/memo.h"
#include "vllm/producer.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { P = 0x100000, D = 0x800000 };

static enum kvf_status prepare(struct pair_kit *kit, kvf_vllm_producer *producer, kvf_vllm_prepared **out,
                               struct kvf_error *error)
{
    *out = NULL;
    *error = (struct kvf_error){.text = ""};
    pair_kit_arrays(kit);
    return kvf_vllm_prepare(producer, &kit->peer, out, error);
}

static void expect_refused(struct pair_kit *kit, kvf_vllm_producer *producer, enum kvf_status status, const char *text)
{
    struct kvf_error error;
    kvf_vllm_prepared *prepared;

    assert_int_equal(prepare(kit, producer, &prepared, &error), status);
    assert_null(prepared);
    assert_int_equal(error.status, status);
    assert_string_equal(error.text, text);
}

/* prepare_transfer_regions_reuses_success_and_error: two MLA layers in a row; a peer like this; one with another layer;
 * then the producer is registered anew, which is another producer here. */
static void test_prepare_transfer_regions_reuses_success_and_error(void **state)
{
    static const char missing[] = "Mooncake producer registered layer has no matching consumer occurrence: "
                                  "model.layers.0.self_attn occurrence 0.";
    kvf_vllm_producer *producer;
    kvf_vllm_prepared *first, *again;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.is_mla = 1;
    for (int64_t i = 0; i < 2; i++) {
        for (int side = 0; side < 2; side++) {
            struct pair_kit_side *to = side ? &kit.remote : &kit.local;

            pair_kit_region(to, i, 0x1000 + (uint64_t)i * 1024, 2048, 1024);
            pair_kit_row(to, i * 1024);
        }
    }
    kit.peer.hostname = "peer";
    kit.peer.port = 1;
    producer = pair_kit_producer(&kit);
    first = pair_kit_prepare(&kit, producer);
    again = pair_kit_prepare(&kit, producer);
    assert_ptr_equal(first, again);
    assert_int_equal(producer->by_layout.count, 1);

    kit.remote.count = 0;
    pair_kit_region(&kit.remote, 9, 0x2000, 1024, 1024);
    pair_kit_row(&kit.remote, 0);
    kit.peer.port = 2;
    expect_refused(&kit, producer, KVF_ERR_INCOMPATIBLE, missing);
    assert_int_equal(producer->by_layout.count, 2);
    expect_refused(&kit, producer, KVF_ERR_INCOMPATIBLE, missing);
    assert_int_equal(producer->by_layout.count, 2);

    kvf_vllm_prepared_release(again);
    kvf_vllm_producer_destroy(producer);
    producer = pair_kit_producer(&kit);
    assert_int_equal(producer->by_layout.count, 0);
    expect_refused(&kit, producer, KVF_ERR_INCOMPATIBLE, missing);
    assert_int_equal(producer->by_layout.count, 1);
    kvf_vllm_producer_destroy(producer);
    kvf_vllm_prepared_release(first); /* outlives its producer */
}

/** One padded layer on TP 2, a consumer on TP 4: nothing but what a row changes is wrong. */
static void build(struct pair_kit *kit, const struct kvf_vllm_layer *layer)
{
    pair_kit_init(kit);
    kit->spec.tp_size = 2;
    kit->spec.layers = layer;
    kit->spec.layer_count = 1;
    kit->peer.tp_size = 4;
    pair_kit_region(&kit->local, 0, P, 1024, 1024);
    pair_kit_region(&kit->remote, 0, D, 512, 512);
}

static void opaque_own(struct pair_kit *kit)
{
    kit->spec.has_opaque_row = 1;
    kit->peer.pp_size = 2;
}

static void opaque_peer(struct pair_kit *kit)
{
    pair_kit_row(&kit->remote, 0);
    kit->peer.pp_size = 2;
}

static void unpaired(struct pair_kit *kit)
{
    opaque_own(kit);
    kit->peer.tp_rank = 2;
}

static void indivisible(struct pair_kit *kit)
{
    unpaired(kit);
    kit->peer.tp_size = 3;
}

static void other_layer(struct pair_kit *kit)
{
    kit->remote.count = 0;
    pair_kit_region(&kit->remote, 1, D, 512, 512);
}

static void other_index(struct pair_kit *kit)
{
    kit->remote.layer_indices[0] = 7;
    kit->remote.kv_block_lens[0] = 1;
}

static void lengths(struct pair_kit *kit)
{
    kit->remote.kv_block_lens[0] = 256;
}

static void nothing(struct pair_kit *kit)
{
    kit->peer.tp_size = 2;
    kit->local.kv_block_lens[0] = kit->remote.kv_block_lens[0] = 0;
}

static void no_stride(struct pair_kit *kit)
{
    kit->remote.block_lens[0] = 0;
}

static void huge_stages(struct pair_kit *kit)
{
    kit->peer.pp_size = INT64_MAX;
}

static const struct kvf_vllm_layer plain = {.name = "model.layers.0.self_attn", .kind = KVF_VLLM_ATTENTION,
                                            .page_bytes = 64, .unpadded_page_bytes = 64};
static const struct kvf_vllm_layer padded = {.name = "model.layers.0.self_attn", .kind = KVF_VLLM_ATTENTION,
                                             .page_bytes = 64, .unpadded_page_bytes = 60};

static void test_order_of_refusals(void **state)
{
    static const struct {
        const char *name;
        void (*change)(struct pair_kit *kit);
        const struct kvf_vllm_layer *layer;
        enum kvf_status status;
        const char *text;
    } rows[] = {
        {"sizes before ranks", indivisible, &padded, KVF_ERR_INCOMPATIBLE,
         "Remote tensor parallel size 3 is not divisible by local tensor parallel size 2."},
        {"ranks before opaque rows", unpaired, &padded, KVF_ERR_INCOMPATIBLE,
         "This D tp_rank 2 is not paired with P tp_rank 0; expected one of [0, 1]."},
        {"own opaque rows before regions", opaque_own, &padded, KVF_ERR_INCOMPATIBLE,
         "Mooncake non-page-contiguous packed regions keep only the first layer name, so they cannot be aligned across "
         "PP sizes 1 and 2."},
        {"the peer's opaque rows", opaque_peer, &padded, KVF_ERR_INCOMPATIBLE,
         "Mooncake non-page-contiguous packed regions keep only the first layer name, so they cannot be aligned across "
         "PP sizes 1 and 2."},
        {"layers before heads", other_layer, &padded, KVF_ERR_INCOMPATIBLE,
         "Mooncake producer registered layer has no matching consumer occurrence: model.layers.0.self_attn occurrence "
         "0."},
        {"indices before heads", other_index, &padded, KVF_ERR_INCOMPATIBLE,
         "Mooncake registered layer index mismatch for model.layers.0.self_attn: producer=0, consumer=7."},
        {"heads before lengths", lengths, &padded, KVF_ERR_INCOMPATIBLE,
         "Mooncake KV-head re-sharding is not supported for padded KV pages (layer model.layers.0.self_attn)."},
        {"lengths", lengths, &plain, KVF_ERR_INCOMPATIBLE,
         "Mooncake source KV region length does not match the consumer TP ratio at region 0: local=1024, remote=256, "
         "tp_ratio=-2."},
        {"no bytes", nothing, &plain, KVF_ERR_INCOMPATIBLE,
         "layer model.layers.0.self_attn: 0 bytes in blocks of 1024 (producer) and 512 (consumer) bytes, expected "
         "above 0"},
        {"no stride", no_stride, &plain, KVF_ERR_INCOMPATIBLE,
         "layer model.layers.0.self_attn: 512 bytes in blocks of 1024 (producer) and 0 (consumer) bytes, expected "
         "above 0"},
        {"stages without number", huge_stages, &plain, KVF_ERR_OVERFLOW,
         "2 ranks in each of 9223372036854775807 pipeline stages do not fit"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_vllm_producer *producer;
        struct pair_kit kit;

        build(&kit, rows[i].layer);
        rows[i].change(&kit);
        producer = pair_kit_producer(&kit);
        /* twice: made, and remembered */
        expect_refused(&kit, producer, rows[i].status, rows[i].text);
        expect_refused(&kit, producer, rows[i].status, rows[i].text);
        kvf_vllm_producer_destroy(producer);
    }
}

/* The producer's own arrays: what is missing, and what cannot be. */
static void test_own_arrays(void **state)
{
    static const int64_t both[] = {0, 1};
    kvf_vllm_producer *producer = NULL;
    kvf_vllm_prepared *prepared;
    struct pair_kit kit;

    (void)state;
    pair_kit_init(&kit);
    kit.spec.group_count = 2;
    pair_kit_region(&kit.local, 0, P, 64, 64);
    pair_kit_group(&kit.local, KVF_VLLM_SHARED_GROUP, 2, both);
    pair_kit_region(&kit.remote, 0, D, 64, 64);
    pair_kit_group(&kit.remote, KVF_VLLM_SHARED_GROUP, 2, both);
    pair_kit_arrays(&kit);
    kit.spec.regions.shared_group_count = 0;
    assert_int_equal(kvf_vllm_producer_create(&kit.spec, &producer, NULL), KVF_OK);
    expect_refused(&kit, producer, KVF_ERR_INCOMPATIBLE, "Mooncake shared-group metadata does not match registered "
                   "layers, so a shared packed region cannot be transferred.");
    kvf_vllm_producer_destroy(producer);

    pair_kit_arrays(&kit);
    kit.spec.regions.kv_block_len_count = 0;
    assert_int_equal(kvf_vllm_producer_create(&kit.spec, &producer, NULL), KVF_OK);
    expect_refused(&kit, producer, KVF_ERR_INCOMPATIBLE, "Mooncake transfer regions require matching metadata lengths, "
                   "got base_addrs=1, block_lens=1, kv_block_lens=0, layer_names=1, layer_indices=1.");
    kvf_vllm_producer_destroy(producer);

    /* no groups: found by name among the layers; no rows: never promoted */
    kit.spec.layers = (const struct kvf_vllm_layer[]){{.name = "model.layers.0.self_attn", .group = 1,
                                                       .kind = KVF_VLLM_ATTENTION}};
    kit.spec.layer_count = 1;
    pair_kit_arrays(&kit);
    kit.spec.regions.group_index_count = kit.spec.regions.shared_group_count = kit.spec.regions.row_offset_count = 0;
    assert_int_equal(kvf_vllm_producer_create(&kit.spec, &producer, NULL), KVF_OK);
    pair_kit_group(&kit.remote, 1, 1, both + 1);
    prepared = pair_kit_prepare(&kit, producer);
    kvf_vllm_prepared_release(prepared);
    kvf_vllm_producer_destroy(producer);
}

static void test_layout_ids(void **state)
{
    static const char unknown[] = "Mooncake KV layout 0xab12 from consumer-host:54321 is not cached.";
    struct kvf_vllm_arrays none = {.base_addr_count = 0};
    kvf_vllm_prepared *full, *short_;
    kvf_vllm_producer *producer;
    struct kvf_error error;
    struct pair_kit kit;

    (void)state;
    build(&kit, &plain);
    producer = pair_kit_producer(&kit);
    full = pair_kit_prepare(&kit, producer); /* without an id: not known by one */
    kit.peer.layout_id = 0xab12;
    kit.peer.regions = none;
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_ERR_NOT_FOUND);
    assert_string_equal(error.text, unknown);
    kvf_vllm_prepared_release(full);

    full = NULL;
    assert_int_equal(prepare(&kit, producer, &full, &error), KVF_OK); /* remembered before, named now */
    kit.peer.regions = none;
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_OK);
    assert_ptr_equal(full, short_);
    kvf_vllm_prepared_release(short_);
    kit.peer.layout_id = 0xab13;
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_ERR_NOT_FOUND);
    kit.peer.layout_id = 0xab12;
    kit.peer.tp_rank = 1; /* an id is one rank's */
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_ERR_NOT_FOUND);
    kit.peer.tp_rank = 3; /* pairing is looked at first */
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_ERR_INCOMPATIBLE);
    kvf_vllm_prepared_release(full);

    /* a refusal by lengths is one of the pair, so the id is known; one by layers is not */
    kit.peer.tp_rank = 0;
    kit.peer.layout_id = 0xab14;
    kit.remote.kv_block_lens[0] = 256;
    assert_int_equal(prepare(&kit, producer, &full, &error), KVF_ERR_INCOMPATIBLE);
    kit.peer.regions = none;
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_ERR_INCOMPATIBLE);
    kit.peer.layout_id = 0xab15;
    kit.remote.layer_indices[0] = 3;
    assert_int_equal(prepare(&kit, producer, &full, &error), KVF_ERR_INCOMPATIBLE);
    kit.peer.regions = none;
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_ERR_NOT_FOUND);

    /* no id and no arrays: a consumer without regions, which lacks the producer's layer */
    kit.peer.layout_id = 0;
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &short_, &error), KVF_ERR_INCOMPATIBLE);
    kvf_vllm_producer_destroy(producer);
}

static void test_least_recently_used_goes(void **state)
{
    enum { MOST = 3, PEERS = 40 };
    kvf_vllm_prepared *kept, *prepared;
    kvf_vllm_producer *producer;
    struct pair_kit kit;

    (void)state;
    build(&kit, &plain);
    kit.spec.max_prepared = MOST;
    producer = pair_kit_producer(&kit);
    kit.peer.layout_id = 1;
    kept = pair_kit_prepare(&kit, producer);
    for (int i = 1; i < PEERS; i++) {
        kit.peer.port = i;
        kvf_vllm_prepared_release(pair_kit_prepare(&kit, producer));
        assert_int_equal(producer->by_layout.count, i < MOST ? i + 1 : MOST);
        assert_int_equal(producer->by_id.count, producer->by_layout.count);
        kit.peer.port = 54321; /* asked for in between: stays */
        prepared = pair_kit_prepare(&kit, producer);
        assert_ptr_equal(prepared, kept);
        kvf_vllm_prepared_release(prepared);
    }
    for (int i = 1; i <= MOST; i++) {
        kit.peer.port = PEERS + i;
        kvf_vllm_prepared_release(pair_kit_prepare(&kit, producer));
    }
    kit.peer.port = 54321;
    prepared = pair_kit_prepare(&kit, producer);
    assert_ptr_not_equal(prepared, kept);
    kvf_vllm_prepared_release(prepared);
    kvf_vllm_prepared_release(kept);
    kvf_vllm_producer_destroy(producer);
}

/* Bounded in bytes as well: a peer with a large layout drives out others, one that is too large is not kept. */
static void test_bytes_are_bounded(void **state)
{
    kvf_vllm_prepared *prepared, *large;
    struct kvfi_vllm_memo memo;
    struct kvfi_vllm_key key;
    struct pair_kit kit;
    size_t one;

    (void)state;
    build(&kit, &plain);
    prepared = pair_kit_pair(&kit);
    assert_int_equal(kvfi_vllm_memo_init(&memo, 100, SIZE_MAX, NULL), KVF_OK);
    kvfi_vllm_key_init(&key, &kit.peer, false);
    kvfi_vllm_memo_put(&memo, &key, prepared);
    one = memo.bytes;
    assert_true(one > key.bytes);
    kvfi_vllm_memo_put(&memo, &key, prepared); /* in place of itself */
    assert_int_equal(memo.count, 1);
    assert_int_equal(memo.bytes, one);
    kvfi_vllm_memo_fini(&memo);

    assert_int_equal(kvfi_vllm_memo_init(&memo, 100, 5 * one, NULL), KVF_OK);
    for (int64_t i = 0; i < 50; i++) {
        kit.peer.port = i;
        kvfi_vllm_key_init(&key, &kit.peer, false);
        kvfi_vllm_memo_put(&memo, &key, prepared);
        assert_int_equal(memo.count, i < 5 ? i + 1 : 5);
        assert_int_equal(memo.bytes, memo.count * one);
        assert_ptr_equal(kvfi_vllm_memo_find(&memo, &key), prepared);
    }
    kit.peer.port = 44; /* driven out */
    kvfi_vllm_key_init(&key, &kit.peer, false);
    assert_null(kvfi_vllm_memo_find(&memo, &key));
    kvfi_vllm_memo_fini(&memo);

    assert_int_equal(kvfi_vllm_memo_init(&memo, 100, 4 * one - 1, NULL), KVF_OK);
    kvfi_vllm_memo_put(&memo, &key, prepared);
    assert_int_equal(memo.count, 0);
    kvfi_vllm_memo_fini(&memo);

    /* nor is what it came in place of */
    kvfi_vllm_key_init(&key, &kit.peer, true);
    assert_int_equal(kvfi_vllm_memo_init(&memo, 100, 4 * one, NULL), KVF_OK);
    kvfi_vllm_memo_put(&memo, &key, prepared);
    assert_ptr_equal(kvfi_vllm_memo_find(&memo, &key), prepared);
    pair_kit_region(&kit.local, 1, P, 64, 64);
    pair_kit_region(&kit.remote, 1, D, 64, 64);
    kit.spec.is_mla = 1; /* nothing is cut */
    large = pair_kit_pair(&kit);
    memo.most_bytes = 4 * memo.bytes; /* one more region is too much */
    kvfi_vllm_memo_put(&memo, &key, large);
    assert_null(kvfi_vllm_memo_find(&memo, &key));
    assert_int_equal(memo.count, 0);
    assert_int_equal(memo.bytes, 0);
    kvfi_vllm_memo_fini(&memo);
    kvf_vllm_prepared_release(large);
    kvf_vllm_prepared_release(prepared);
}

/* Two layers in a row, four heads on eight ranks: merged only where the peer has one head in each of its rows, too. */
static void test_heads_keep_layers_apart(void **state)
{
    static const struct kvf_vllm_layer layers[] = {{.name = "model.layers.0.self_attn", .kind = KVF_VLLM_ATTENTION},
                                                   {.name = "model.layers.1.self_attn", .kind = KVF_VLLM_ATTENTION}};
    static const struct {
        int64_t tp_size;
        int32_t apart;
        int64_t pairs;
    } rows[] = {{1, 0, 1}, {1, 1, 2}, {2, 0, 1}, {2, 1, 2}, {4, 0, 1}, {4, 1, 1}, {8, 1, 1}, {16, 1, 1}};

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t heads = rows[i].tp_size < 4 ? 4 / rows[i].tp_size : 1;
        struct kvf_vllm_prepared_info info = {.struct_size = sizeof info};
        kvf_vllm_prepared *prepared;
        struct pair_kit kit;

        pair_kit_init(&kit);
        kit.spec.tp_size = 8;
        kit.spec.total_kv_heads = 4;
        kit.spec.keeps_layers_apart = rows[i].apart;
        kit.spec.layers = layers;
        kit.spec.layer_count = COUNT(layers);
        kit.peer.tp_size = rows[i].tp_size;
        for (int64_t layer = 0; layer < 2; layer++) {
            pair_kit_region(&kit.local, layer, P + (uint64_t)layer * 64, 128, 64);
            pair_kit_region(&kit.remote, layer, D + (uint64_t)(layer * heads) * 64, 128 * heads, 64 * heads);
        }
        prepared = pair_kit_pair(&kit);
        assert_int_equal(kvf_vllm_prepared_get_info(prepared, &info, NULL), KVF_OK);
        if (info.pairs != rows[i].pairs) fail_msg("row %zu: %d pairs", i, (int)info.pairs);
        kvf_vllm_prepared_release(prepared);
    }
}

/* Every part of a peer is part of its key. */
static void test_keys_tell_all_apart(void **state)
{
    struct pair_kit kit;
    struct kvfi_vllm_key base, other;
    unsigned char *bytes;

    (void)state;
    build(&kit, &plain);
    pair_kit_region(&kit.remote, 1, D + 1, 3, 2);
    pair_kit_arrays(&kit);
    kvfi_vllm_key_init(&base, &kit.peer, false);
    bytes = malloc(base.bytes);
    assert_non_null(bytes);
    kvfi_vllm_key_write(&base, bytes);
    assert_true(kvfi_vllm_key_equal(&base, bytes));
    for (int part = 0; part < 14; part++) {
        struct pair_kit changed = kit;

        pair_kit_arrays(&changed);
        if (part == 0) changed.peer.hostname = "consumer-hosu";
        if (part == 1) changed.peer.port++;
        if (part == 2) changed.peer.tp_size++;
        if (part == 3) changed.peer.tp_rank++;
        if (part == 4) changed.peer.pp_size++;
        if (part == 5) changed.remote.base_addrs[1]++;
        if (part == 6) changed.remote.block_lens[1]++;
        if (part == 7) changed.remote.kv_block_lens[1]++;
        if (part == 8) changed.remote.layer_names[1] = "model.layers.2.self_attn";
        if (part == 9) changed.remote.layer_indices[1]++;
        if (part == 10) changed.remote.group_indices[1]++;
        if (part == 11) changed.remote.groups[1][0]++;
        if (part == 12) changed.remote.row_offsets[1]++;
        if (part == 13) changed.remote.shared_groups[1].count++;
        for (size_t i = 0; i < 2; i++) changed.remote.shared_groups[i].ids = changed.remote.groups[i];
        kvfi_vllm_key_init(&other, &changed.peer, false);
        if (other.hash == base.hash) fail_msg("part %d: equal hashes", part);
        if (other.bytes == base.bytes && kvfi_vllm_key_equal(&other, bytes)) fail_msg("part %d: equal keys", part);
    }
    free(bytes);
}

static void test_refuses_what_no_producer_is(void **state)
{
    static const struct {
        const char *name, *text;
        int64_t tp_rank, tp_size, pp_size, heads, blocks, most;
        int32_t kind;
    } rows[] = {
        {"tp_size", "producer: tp_size is 0, expected 1 to 1048576", 0, 0, 1, 8, 1, 1, 1},
        {"tp_rank", "producer: tp_rank is 2, expected 0 or more, and below tp_size", 2, 2, 1, 8, 1, 1, 1},
        {"pp_size", "producer: pp_size is 0, expected 1 or more", 0, 1, 0, 8, 1, 1, 1},
        {"heads", "producer: total_kv_heads is 0, expected 1 or more", 0, 1, 1, 0, 1, 1, 1},
        {"kernel blocks", "producer: kernel_blocks_per_block is -1, expected 1 or more", 0, 1, 1, 8, -1, 1, 1},
        {"memory", "producer: max_prepared is 0, expected 1 or more", 0, 1, 1, 8, 1, 0, 1},
        {"kind", "producer: a group's kind is 0, expected an enum kvf_vllm_kind above 0", 0, 1, 1, 8, 1, 1, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        kvf_vllm_producer *producer = NULL;
        struct kvf_error error;
        struct pair_kit kit;

        pair_kit_init(&kit);
        kit.spec.tp_rank = rows[i].tp_rank;
        kit.spec.tp_size = rows[i].tp_size;
        kit.spec.pp_size = rows[i].pp_size;
        kit.spec.total_kv_heads = rows[i].heads;
        kit.spec.kernel_blocks_per_block = rows[i].blocks;
        kit.spec.max_prepared = rows[i].most;
        kit.kinds[0] = rows[i].kind;
        assert_int_equal(kvf_vllm_producer_create(&kit.spec, &producer, &error), KVF_ERR_INVALID_ARGUMENT);
        assert_null(producer);
        if (strcmp(error.text, rows[i].text) != 0) fail_msg("%s: %s", rows[i].name, error.text);
    }
}

static void test_refuses_missing_arguments(void **state)
{
    kvf_vllm_prepared *prepared = NULL;
    kvf_vllm_producer *producer, *other = NULL;
    struct kvf_error error;
    struct pair_kit kit;

    (void)state;
    build(&kit, &plain);
    producer = pair_kit_producer(&kit);
    kit.peer.regions.block_lens = NULL;
    assert_int_equal(kvf_vllm_prepare(producer, &kit.peer, &prepared, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "peer: its host name or an array is NULL");
    assert_int_equal(kvf_vllm_prepare(producer, NULL, &prepared, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_producer_create(NULL, &producer, &error), KVF_ERR_INVALID_ARGUMENT);
    kit.spec.regions.group_indices = NULL;
    assert_int_equal(kvf_vllm_producer_create(&kit.spec, &other, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "producer: an array of its regions is NULL");
    kit.peer.struct_size = sizeof kit.peer + 8;
    kvf_vllm_prepared_release(NULL);
    kvf_vllm_producer_destroy(producer);
    kvf_vllm_producer_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prepare_transfer_regions_reuses_success_and_error),
        cmocka_unit_test(test_order_of_refusals),
        cmocka_unit_test(test_own_arrays),
        cmocka_unit_test(test_layout_ids),
        cmocka_unit_test(test_least_recently_used_goes),
        cmocka_unit_test(test_bytes_are_bounded),
        cmocka_unit_test(test_heads_keep_layers_apart),
        cmocka_unit_test(test_keys_tell_all_apart),
        cmocka_unit_test(test_refuses_what_no_producer_is),
        cmocka_unit_test(test_refuses_missing_arguments),
    };

    return cmocka_run_group_tests_name("prepare", tests, NULL, NULL);
}
