/* SPDX-License-Identifier: Apache-2.0 */
/* Registration: upstream's tests by their names. */
#include "trtllm/rank_kit.h"
#include "trtllm/rules.h"

#include <stdio.h>
#include <string.h>

/* What was logged. */
struct lines {
    int count;
    char last[600];
};

static void keep_line(void *context, int level, const char *text)
{
    struct lines *lines = context;

    assert_int_equal(level, KVF_LOG_WARN);
    lines->count++;
    snprintf(lines->last, sizeof lines->last, "%s", text);
}

static kvf_trtllm_registrar *make_registrar(struct rank_kit *self, struct lines *lines)
{
    kvf_trtllm_rank *rank = rank_kit_make(self);
    kvf_trtllm_registrar *registrar = NULL;
    struct kvf_trtllm_options options;

    kvf_trtllm_options_init(&options, sizeof options);
    if (lines) options.log = (struct kvf_log_sink){keep_line, lines, 0, KVF_LOG_WARN};
    assert_int_equal(kvf_trtllm_registrar_create(rank, &options, &registrar, NULL), KVF_OK);
    kvf_trtllm_rank_release(rank);
    return registrar;
}

/* Text with "..." between pieces that must come in order. */
static void check_text(const char *text, const char *pattern)
{
    const char *at = text;
    char pieces[200];

    snprintf(pieces, sizeof pieces, "%s", pattern);
    for (char *piece = pieces, *end; piece; piece = end ? end + 3 : NULL) {
        end = strstr(piece, "...");
        if (end) *end = 0;
        at = strstr(at, piece);
        if (!at) fail_msg("expected \"%s\", found \"%s\"", pattern, text);
        at += strlen(piece);
    }
}

/* Registers the peer as (name, 1): stored when `pattern` is NULL; refused with the text, and not stored, otherwise. */
static void check(kvf_trtllm_registrar *registrar, struct rank_kit *peer, const char *pattern)
{
    struct kvf_trtllm_verdict verdict = {.struct_size = sizeof verdict};
    const kvf_trtllm_rank *found = NULL;
    struct kvf_error error = {0};
    kvf_trtllm_rank *rank;
    enum kvf_status status;

    peer->spec.instance_rank = 1;
    rank = rank_kit_make(peer);
    status = kvf_trtllm_registrar_register(registrar, rank, &verdict, &error);
    if (pattern) {
        assert_int_not_equal(status, KVF_OK);
        check_text(verdict.text, pattern);
        assert_string_equal(error.text, verdict.text);
        assert_int_equal(kvf_trtllm_registrar_find(registrar, peer->spec.instance_name, 1, &found, &error),
                         KVF_ERR_NOT_FOUND);
        assert_int_equal(kvf_trtllm_registrar_count(registrar), 0);
    } else {
        if (status != KVF_OK) fail_msg("%s (%s)", error.text, verdict.reason);
        assert_int_equal(verdict.style, KVF_TRTLLM_ACCEPTED);
        assert_int_equal(kvf_trtllm_registrar_find(registrar, peer->spec.instance_name, 1, &found, &error), KVF_OK);
        assert_ptr_equal(found, rank);
    }
    kvf_trtllm_rank_release(rank);
}

/* The same with a registrar that knows no other peer. */
static void check_pair(struct rank_kit *self, struct rank_kit *peer, const char *pattern)
{
    kvf_trtllm_registrar *registrar = make_registrar(self, NULL);

    check(registrar, peer, pattern);
    kvf_trtllm_registrar_destroy(registrar);
}

static void pt(struct rank_kit *kit, const char *name)
{
    rank_kit_init(kit, name);
    rank_kit_pt(kit, 1024, 2, 2, 2, 0, 1);
}

/* The peer that has all four heads on one rank. */
static void pt_whole(struct rank_kit *kit, const char *name)
{
    rank_kit_init(kit, name);
    kit->spec.tp_size = 1;
    kit->attention.kv_heads_per_rank = 4;
    rank_kit_pt(kit, 2048, 1, 4, 2, 0, 1);
}

static void test_peer_registrar_register_and_get(void **state)
{
    static const struct {
        int64_t local, peer;
        const char *text;
    } rows[] = {{0, 0, NULL},
                {1, 1, NULL},
                {0, 1, "bounded_replay_on_generation...local=False, peer=True"},
                {1, 0, "bounded_replay_on_generation...local=True, peer=False"}};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct rank_kit self, peer;

        pt(&self, "local");
        self.spec.bounded_replay_on_generation = rows[i].local;
        pt(&peer, "peer");
        peer.spec.bounded_replay_on_generation = rows[i].peer;
        check_pair(&self, &peer, rows[i].text);
    }
}

static void test_peer_registrar_unregister(void **state)
{
    const kvf_trtllm_rank *found = NULL;
    struct rank_kit self, peer;
    kvf_trtllm_registrar *registrar;

    (void)state;
    pt(&self, "local");
    registrar = make_registrar(&self, NULL);
    pt(&peer, "peer");
    check(registrar, &peer, NULL);
    assert_int_equal(kvf_trtllm_registrar_unregister(registrar, "peer", 1, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 1, &found, NULL), KVF_ERR_NOT_FOUND);
    assert_int_equal(kvf_trtllm_registrar_unregister(registrar, "peer", 1, NULL), KVF_ERR_NOT_FOUND);
    assert_null(found);
    kvf_trtllm_registrar_destroy(registrar);
}

static void test_peer_registrar_self_rank_info_property(void **state)
{
    kvf_trtllm_registrar *registrar = NULL;
    struct rank_kit self;
    kvf_trtllm_rank *rank;

    (void)state;
    pt(&self, "local");
    rank = rank_kit_make(&self);
    assert_int_equal(kvf_trtllm_registrar_create(rank, NULL, &registrar, NULL), KVF_OK);
    assert_ptr_equal(kvf_trtllm_registrar_self(registrar), rank);
    kvf_trtllm_rank_release(rank);
    kvf_trtllm_registrar_destroy(registrar);
}

static void test_peer_registrar_incompatible_peer_raises(void **state)
{
    struct lines lines = {0};
    struct rank_kit self, peer;
    kvf_trtllm_registrar *registrar;

    (void)state;
    pt(&self, "local");
    registrar = make_registrar(&self, &lines);
    pt(&peer, "peer");
    peer.attention.is_mla = 1;
    check(registrar, &peer, "PeerRegistrar.register: peer peer (rank=1) is incompatible with local rank.");
    assert_int_equal(lines.count, 1);
    check_text(lines.last, "AttentionPolicy: incompatible: is_mla mismatch; field='is_mla', local=False, peer=True");
    kvf_trtllm_registrar_destroy(registrar);
}

static void test_peer_registrar_rejects_mismatched_protocol_version(void **state)
{
    struct rank_kit self, peer;

    (void)state;
    pt(&self, "local");
    pt(&peer, "peer");
    peer.spec.protocol_version = KVF_TRTLLM_PROTOCOL_VERSION + 1;
    peer.spec.bounded_replay_on_generation = 1;
    check_pair(&self, &peer, "protocol version");
}

static void test_peer_registrar_requires_matching_unified_draft_layers(void **state)
{
    static const struct {
        int64_t local, peer;
        const char *text;
    } rows[] = {{0, 0, NULL},
                {1, 1, NULL},
                {1, 0, "draft KV layer count differs...local=1, peer=0"},
                {0, 1, "draft KV layer count differs...local=0, peer=1"}};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct rank_kit self, peer;

        pt(&self, "local");
        self.spec.num_draft_layers = rows[i].local;
        pt(&peer, "peer");
        peer.spec.num_draft_layers = rows[i].peer;
        check_pair(&self, &peer, rows[i].text);
    }
}

static void test_peer_registrar_requires_matching_unified_draft_kv_dtype(void **state)
{
    static const struct {
        const char *peer, *text;
    } rows[] = {{"FP8", NULL}, {"BF16", "draft KV dtype differs...local=FP8, peer=BF16"}};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rank_kit self, peer;

        pt(&self, "local");
        self.spec.num_draft_layers = 1;
        self.spec.draft_kv_dtype = "FP8";
        pt(&peer, "peer");
        peer.spec.num_draft_layers = 1;
        peer.spec.draft_kv_dtype = rows[i].peer;
        check_pair(&self, &peer, rows[i].text);
    }
}

/* A rank with five draft layers; under attention DP its recurrent state is whole. */
static void drafted(struct rank_kit *kit, const char *name, int64_t tp, int64_t dp, int64_t heads, int64_t is_mla,
                    int64_t attention_dp)
{
    rank_kit_init(kit, name);
    kit->spec.tp_size = tp;
    kit->spec.dp_size = dp;
    kit->spec.num_draft_layers = 5;
    kit->attention.kv_heads_per_rank = heads;
    kit->attention.is_mla = is_mla;
    kit->attention.enable_attention_dp = attention_dp;
    rank_kit_pt(kit, 1024, attention_dp ? 1 : tp, 2, 2, 0, 1);
}

static void test_peer_registrar_shares_draft_layers_when_heads_per_rank_agree(void **state)
{
    static const struct {
        int64_t heads, peer_tp, peer_dp, peer_heads, is_mla, attention_dp;
        const char *text;
    } rows[] = {{2, 2, 1, 1, 0, 0, "same attention TP size"}, {2, 4, 4, 2, 0, 1, NULL}, {1, 4, 1, 1, 1, 0, NULL}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct rank_kit self, peer;

        drafted(&self, "local", 1, 1, rows[i].heads, rows[i].is_mla, rows[i].attention_dp);
        drafted(&peer, "peer", rows[i].peer_tp, rows[i].peer_dp, rows[i].peer_heads, rows[i].is_mla,
                rows[i].attention_dp);
        check_pair(&self, &peer, rows[i].text);
    }
}

static void test_peer_registrar_tpb_divisible_warns_but_compatible(void **state)
{
    struct lines lines = {0};
    struct rank_kit self, peer;
    kvf_trtllm_registrar *registrar;

    (void)state;
    pt(&self, "local");
    registrar = make_registrar(&self, &lines);
    pt(&peer, "peer");
    peer.attention.tokens_per_block = 32;
    check(registrar, &peer, NULL);
    assert_int_equal(lines.count, 1);
    check_text(lines.last, "AttentionPolicy: tokens_per_block mismatch (local=16, peer=32); KV transfer proceeds");
    kvf_trtllm_registrar_destroy(registrar);
}

static void test_peer_registrar_tpb_not_divisible_raises(void **state)
{
    struct rank_kit self, peer;

    (void)state;
    pt(&self, "local");
    pt(&peer, "peer");
    peer.attention.tokens_per_block = 24;
    check_pair(&self, &peer, "is incompatible with local rank");
}

static void test_peer_registrar_exact_tpb_mapper_rejects_divisible_mismatch(void **state)
{
    static const int64_t kinds[2] = {KVF_TRTLLM_NHD, KVF_TRTLLM_REPLICATED};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct lines lines = {0};
        struct rank_kit self, peer;
        kvf_trtllm_registrar *registrar;

        pt(&self, "local");
        self.views[0][0].mapper = kinds[i];
        registrar = make_registrar(&self, &lines);
        pt(&peer, "peer");
        peer.views[0][0].mapper = kinds[i];
        peer.attention.tokens_per_block = 32;
        check(registrar, &peer, "is incompatible with local rank");
        check_text(lines.last, "tokens_per_block mismatch for NHD/replicated pools; local=16 peer=32");
        kvf_trtllm_registrar_destroy(registrar);
    }
}

static void test_peer_registrar_allows_byte_aligned_subbyte_head_mismatch(void **state)
{
    struct kvf_trtllm_pair_view view;
    struct rank_kit self, peer;
    kvf_trtllm_registrar *registrar;
    kvf_trtllm_pair *pair = NULL;

    (void)state;
    pt(&self, "local");
    self.attention.element_eighths = 4;
    registrar = make_registrar(&self, NULL);
    pt_whole(&peer, "peer");
    peer.attention.element_eighths = 4;
    check(registrar, &peer, NULL);
    assert_int_equal(kvf_trtllm_registrar_pair(registrar, "peer", 1, &pair, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_pair_view(pair, 0, &view), KVF_OK);
    assert_int_equal(view.mapper, KVF_TRTLLM_MAP_HND);
    kvf_trtllm_pair_release(pair);
    kvf_trtllm_registrar_destroy(registrar);
}

static void test_peer_registrar_rejects_misaligned_subbyte_head_mismatch(void **state)
{
    struct lines lines = {0};
    struct rank_kit self, peer;
    kvf_trtllm_registrar *registrar;

    (void)state;
    pt(&self, "local");
    pt_whole(&peer, "peer");
    self.attention.element_eighths = peer.attention.element_eighths = 4;
    self.attention.tokens_per_block = peer.attention.tokens_per_block = 1;
    self.attention.dims_per_head = peer.attention.dims_per_head = 1;
    registrar = make_registrar(&self, &lines);
    check(registrar, &peer, "is incompatible with local rank");
    check_text(lines.last, "sub-byte head slicing is not byte-aligned; tokens_per_block=1, dims_per_head=1,"
               " element_bytes=0.5");
    kvf_trtllm_registrar_destroy(registrar);
}

static void test_peer_registrar_warns_for_nhd_head_mismatch(void **state)
{
    struct kvf_trtllm_verdict verdict = {.struct_size = sizeof verdict};
    struct lines lines = {0};
    struct rank_kit self, peer;
    kvf_trtllm_registrar *registrar;
    kvf_trtllm_rank *rank;

    (void)state;
    pt(&self, "local");
    self.views[0][0].mapper = KVF_TRTLLM_NHD;
    registrar = make_registrar(&self, &lines);
    for (int64_t i = 0; i < 3; i++) {
        pt_whole(&peer, "peer");
        peer.spec.instance_rank = i;
        peer.views[0][0].mapper = KVF_TRTLLM_NHD;
        rank = rank_kit_make(&peer);
        assert_int_equal(kvf_trtllm_registrar_register(registrar, rank, &verdict, NULL), KVF_OK);
        assert_int_equal(verdict.warning_count, 1);
        check_text(verdict.warnings[0], "4 NIXL descriptors per transferred token per peer");
        check_text(verdict.warnings[0], "local_kv_heads=2, peer_kv_heads=4");
        assert_string_equal(verdict.warning_keys[0], "native-nhd-head-mismatch-2-4-4");
        assert_int_equal(lines.count, 1);
        kvf_trtllm_rank_release(rank);
    }
    kvf_trtllm_registrar_destroy(registrar);
}

/* A rank whose two layers have views of their own. */
static void per_view(struct rank_kit *kit, const char *name)
{
    rank_kit_init(kit, name);
    kit->spec.tp_size = 1;
    kit->attention.tokens_per_block = 2;
    kit->attention.dims_per_head = 2;
    rank_kit_pv(kit, KVF_TRTLLM_INDEXED, 2, 2, 1);
}

static void test_per_view_rejects_missing_or_invalid_head_counts(void **state)
{
    static const int64_t kinds[2] = {KVF_TRTLLM_INDEXED, KVF_TRTLLM_NHD}, heads[3] = {KVF_TRTLLM_NONE, 0, -1};

    (void)state;
    for (size_t i = 0; i < 18; i++) {
        bool on_self = i % 3 != 1, on_peer = i % 3 != 0;
        struct rank_kit self, peer;

        per_view(&self, "local");
        per_view(&peer, "peer");
        for (int view = 0; view < 2; view++) self.views[0][view].mapper = peer.views[0][view].mapper = kinds[i / 9];
        if (on_self) self.views[0][0].num_kv_heads = heads[i / 3 % 3];
        if (on_peer) peer.views[0][0].num_kv_heads = heads[i / 3 % 3];
        check_pair(&self, &peer, "must publish a positive num_kv_heads");
    }
}

static void test_view_validation_allows_nonoverlapping_pp_stage(void **state)
{
    const kvf_trtllm_rank *found = NULL;
    struct rank_kit self, peer;
    kvf_trtllm_registrar *registrar;
    kvf_trtllm_rank *own, *other;
    size_t count = 7;

    (void)state;
    per_view(&self, "local");
    self.spec.pp_size = 2;
    self.spec.pp_rank = self.spec.instance_rank = 1;
    self.layers[0][0].global_layer = 2;
    self.layers[0][1].global_layer = 3;
    per_view(&peer, "peer");
    peer.spec.pp_size = 2;
    own = rank_kit_make(&self);
    other = rank_kit_make(&peer);
    registrar = make_registrar(&self, NULL);
    assert_int_equal(kvfi_trt_rule_views(own, other, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_check(registrar, other, NULL, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_get_pool_mapping(own, other, NULL, 0, &count, NULL), KVF_OK);
    assert_int_equal(count, 0);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, "peer", 0, &found, NULL), KVF_ERR_NOT_FOUND);
    kvf_trtllm_registrar_destroy(registrar);
    kvf_trtllm_rank_release(other);
    kvf_trtllm_rank_release(own);
}

static void test_attention_replicated_validation_ignores_state_groups(void **state)
{
    struct kvf_error error = {0};
    struct rank_kit self, peer;
    kvf_trtllm_rank *own, *other;

    (void)state;
    pt(&self, "local");
    rank_kit_side(&self, 8);
    pt(&peer, "peer");
    own = rank_kit_make(&self);
    other = rank_kit_make(&peer);
    assert_int_equal(kvfi_trt_rule_coverage(own, other, KVF_TRTLLM_PAGED, &error), KVF_OK);
    assert_int_equal(kvfi_trt_rule_state(own, other, &error), KVF_ERR_INCOMPATIBLE);
    check_text(error.text, "MambaPolicy...differ on overlapping layers");
    kvf_trtllm_rank_release(other);
    kvf_trtllm_rank_release(own);
}

static void test_attention_replicated_validation_rejects_missing_index_key_view(void **state)
{
    struct kvf_error error = {0};
    struct rank_kit self, peer;
    kvf_trtllm_rank *own, *other;

    (void)state;
    rank_kit_init(&self, "local");
    rank_kit_pt(&self, 1024, 2, 2, 1, 0);
    self.views[0][0].mapper = KVF_TRTLLM_REPLICATED;
    rank_kit_role(&self, 0, 0, "index_key");
    rank_kit_init(&peer, "peer");
    rank_kit_pt(&peer, 1024, 2, 2, 1, 0);
    own = rank_kit_make(&self);
    other = rank_kit_make(&peer);
    assert_int_equal(kvfi_trt_rule_coverage(own, other, KVF_TRTLLM_PAGED, &error), KVF_ERR_INCOMPATIBLE);
    check_text(error.text, "AttentionPolicy...differ on overlapping layers");
    kvf_trtllm_rank_release(other);
    kvf_trtllm_rank_release(own);
}

static void test_non_uniform_view_geometry_rejected_for_all_kinds(void **state)
{
    struct rank_kit self, peer;

    (void)state;
    pt(&self, "local");
    pt(&peer, "peer");
    for (int side = 0; side < 2; side++) {
        struct rank_kit *kit = side == 0 ? &self : &peer;

        kit->views[0][0].entry_count = 0;
        for (int64_t i = 0; i < 3; i++) rank_kit_entry(kit, 0, 0, i / 2, 16 * i, 16);
    }
    check_pair(&self, &peer, "not evenly distributed");
}

/* The rank info that a receiver fetches is judged without a trace; a good one after it is fine. */
static void test_receiver_rejects_view_mismatch_before_registration(void **state)
{
    static const char *const texts[3] = {"must publish a positive num_kv_heads", "has no peer view with the same roles",
                                         "unified draft KV layer count differs"};

    (void)state;
    for (int i = 0; i < 6; i++) {
        struct rank_kit self, bad, good;
        struct kvf_trtllm_view_pair pairs[3];
        struct kvf_error error = {0};
        kvf_trtllm_registrar *registrar;
        kvf_trtllm_rank *bad_rank, *good_rank;
        size_t count = 0;

        per_view(&self, "receiver");
        per_view(&bad, "bad-sender");
        per_view(&good, "good-sender");
        if (i / 2 == 0) bad.views[0][1].num_kv_heads = KVF_TRTLLM_NONE;
        if (i / 2 == 1) rank_kit_role(&bad, 0, 1, "other_kv");
        if (i / 2 == 2) bad.spec.num_draft_layers = 2;
        registrar = make_registrar(&self, NULL);
        bad_rank = rank_kit_make(&bad);
        good_rank = rank_kit_make(&good);
        assert_int_equal(kvf_trtllm_registrar_check_sender(registrar, bad_rank, i % 2, &error), KVF_ERR_INCOMPATIBLE);
        check_text(error.text, texts[i / 2]);
        assert_int_equal(kvf_trtllm_registrar_check_sender(registrar, good_rank, i % 2, &error), KVF_OK);
        assert_int_equal(kvf_trtllm_get_pool_mapping(kvf_trtllm_registrar_self(registrar), good_rank, pairs, 3, &count,
                                                     &error), KVF_OK);
        assert_int_equal(count, 2);
        for (int64_t view = 0; view < 2; view++) {
            assert_int_equal(pairs[view].self.group + pairs[view].peer.group, 0);
            assert_int_equal(pairs[view].self.view, view);
            assert_int_equal(pairs[view].peer.view, view);
        }
        assert_int_equal(kvf_trtllm_registrar_count(registrar), 0);
        kvf_trtllm_rank_release(good_rank);
        kvf_trtllm_rank_release(bad_rank);
        kvf_trtllm_registrar_destroy(registrar);
    }
}

static void test_missing_arguments(void **state)
{
    kvf_trtllm_registrar *registrar;
    struct kvf_error error = {0};
    struct rank_kit self;

    (void)state;
    pt(&self, "local");
    registrar = make_registrar(&self, NULL);
    assert_int_equal(kvf_trtllm_registrar_create(NULL, NULL, &registrar, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_registrar_check(registrar, NULL, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_registrar_check_sender(registrar, NULL, 1, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_registrar_register(registrar, NULL, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_registrar_find(registrar, NULL, 0, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_registrar_unregister(NULL, "peer", 0, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_trtllm_registrar_pair(registrar, "peer", 0, NULL, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "registrar: an argument is NULL");
    assert_null(kvf_trtllm_rank_acquire(NULL));
    kvf_trtllm_registrar_destroy(registrar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_arguments),
        cmocka_unit_test(test_peer_registrar_register_and_get),
        cmocka_unit_test(test_peer_registrar_unregister),
        cmocka_unit_test(test_peer_registrar_self_rank_info_property),
        cmocka_unit_test(test_peer_registrar_incompatible_peer_raises),
        cmocka_unit_test(test_peer_registrar_rejects_mismatched_protocol_version),
        cmocka_unit_test(test_peer_registrar_requires_matching_unified_draft_layers),
        cmocka_unit_test(test_peer_registrar_requires_matching_unified_draft_kv_dtype),
        cmocka_unit_test(test_peer_registrar_shares_draft_layers_when_heads_per_rank_agree),
        cmocka_unit_test(test_peer_registrar_tpb_divisible_warns_but_compatible),
        cmocka_unit_test(test_peer_registrar_tpb_not_divisible_raises),
        cmocka_unit_test(test_peer_registrar_exact_tpb_mapper_rejects_divisible_mismatch),
        cmocka_unit_test(test_peer_registrar_allows_byte_aligned_subbyte_head_mismatch),
        cmocka_unit_test(test_peer_registrar_rejects_misaligned_subbyte_head_mismatch),
        cmocka_unit_test(test_peer_registrar_warns_for_nhd_head_mismatch),
        cmocka_unit_test(test_per_view_rejects_missing_or_invalid_head_counts),
        cmocka_unit_test(test_view_validation_allows_nonoverlapping_pp_stage),
        cmocka_unit_test(test_attention_replicated_validation_ignores_state_groups),
        cmocka_unit_test(test_attention_replicated_validation_rejects_missing_index_key_view),
        cmocka_unit_test(test_non_uniform_view_geometry_rejected_for_all_kinds),
        cmocka_unit_test(test_receiver_rejects_view_mismatch_before_registration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
