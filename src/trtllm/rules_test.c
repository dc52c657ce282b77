/* SPDX-License-Identifier: Apache-2.0 */
/* The rules in their order: what breaks each, what upstream says then, and what kvferry takes when it need not be
 * strict. */
#include "trtllm/rank_kit.h"

#include <string.h>

/* Changes one of two ranks that go together: two heads of four on TP 2 each, a K/V view and recurrent state. */
typedef void (*change)(struct rank_kit *self, struct rank_kit *peer);

static void none(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    (void)peer;
}

static void key_only(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->attention.is_mla = 1;
}

static void cp_both(struct rank_kit *self, struct rank_kit *peer)
{
    self->spec.cp_size = 2;
    peer->spec.cp_size = 2;
}

static void cp_tokens(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->spec.cp_size = 2;
    peer->attention.tokens_per_block = 32;
    for (int view = 0; view < 2; view++) peer->views[1][view].bytes_per_layer /= 2;
    for (int i = 0; i < 3; i++) peer->sections[1][0][i] /= 2;
}

static void element(struct rank_kit *self, struct rank_kit *peer)
{
    self->attention.element_eighths = 4;
    peer->attention.element_eighths = 8;
}

/* Four heads on TP 1 against two on TP 2. */
static void whole(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    rank_kit_init(peer, "peer");
    peer->spec.tp_size = 1;
    peer->attention.kv_heads_per_rank = 4;
    rank_kit_pt(peer, 2048, 1, 4, 2, 0, 1);
}

/* A product of three that is no whole number, with heads that are whole bytes. */
static void sub_byte(struct rank_kit *self, struct rank_kit *peer)
{
    whole(self, peer);
    self->attention.element_eighths = peer->attention.element_eighths = 4;
    self->attention.tokens_per_block = peer->attention.tokens_per_block = 1;
    self->attention.dims_per_head = peer->attention.dims_per_head = 1;
}

/* The same, with buffers that two heads cannot share. */
static void sub_byte_cut(struct rank_kit *self, struct rank_kit *peer)
{
    sub_byte(self, peer);
    self->views[0][0].entry_count = peer->views[0][0].entry_count = 0;
    rank_kit_entry(self, 0, 0, 0, 0, 1);
    rank_kit_entry(peer, 0, 0, 0, 0, 2);
}

static void tokens_odd(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->attention.tokens_per_block = 24;
}

static void tokens_side(struct rank_kit *self, struct rank_kit *peer)
{
    rank_kit_side(self, 8);
    rank_kit_side(peer, 8);
    peer->attention.tokens_per_block = 32;
}

static void dims(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->attention.dims_per_head = 64;
}

/* Key-only, and the peer's stage has no attention. */
static void latent_free(struct rank_kit *self, struct rank_kit *peer)
{
    self->attention.is_mla = peer->attention.is_mla = 1;
    self->attention.kv_heads_per_rank = 1;
    peer->attention.kv_heads_per_rank = 0;
}

static void latent_heads(struct rank_kit *self, struct rank_kit *peer)
{
    latent_free(self, peer);
    peer->attention.kv_heads_per_rank = 2;
}

static void no_attention(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->spec.attention = NULL;
}

static void kinds(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->views[0][0].mapper = KVF_TRTLLM_NHD;
}

static void kinds_replicated(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    rank_kit_role(self, 0, 0, "");
    peer->views[0][0].mapper = KVF_TRTLLM_REPLICATED;
}

static void roles(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    rank_kit_role(peer, 0, 0, "other");
}

static void no_heads(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->views[0][0].num_kv_heads = KVF_TRTLLM_NONE;
}

static void state_heads(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->views[1][1].bytes_per_head = 128;
}

static void state_size(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->views[1][1].bytes_per_layer = 8192;
}

static void conv_size(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->views[1][0].bytes_per_layer = 1024;
}

static void section_count(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->views[1][0].section_count = 2;
}

static void section_size(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->sections[1][0][1] = 128;
}

static void side_missing(struct rank_kit *self, struct rank_kit *peer)
{
    rank_kit_side(self, 8);
    (void)peer;
}

static void side_size(struct rank_kit *self, struct rank_kit *peer)
{
    rank_kit_side(self, 8);
    rank_kit_side(peer, 16);
}

static void undeclared(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    peer->views[1][1].bytes_per_layer = KVF_TRTLLM_NONE;
    peer->views[1][1].bytes_per_head = KVF_TRTLLM_NONE;
}

static void layer_totals(struct rank_kit *self, struct rank_kit *peer)
{
    (void)self;
    rank_kit_stages(peer, 1, (int64_t)3);
}

struct row {
    const char *name;
    change make;
    int style;
    const char *text;   /* in the text of a hard refusal, in the reason of a soft one, in the warning; NULL = none */
    int native_style;   /* when not strict */
};

static const struct row rows[] = {
    {"alike", none, KVF_TRTLLM_ACCEPTED, NULL, KVF_TRTLLM_ACCEPTED},
    {"key-only", key_only, KVF_TRTLLM_SOFT, "is_mla mismatch; field='is_mla', local=False, peer=True", KVF_TRTLLM_SOFT},
    {"CP against CP", cp_both, KVF_TRTLLM_SOFT,
     "cp_size must be 1 on at least one side (helix pairs a cp=1 context instance with a cp=N generation instance);"
     " local=2, peer=2", KVF_TRTLLM_ACCEPTED},
    {"CP with other blocks", cp_tokens, KVF_TRTLLM_SOFT,
     "helix block-interleaved transfer requires equal tokens_per_block on both sides (block boundaries must coincide"
     " for [cp_rank::cp_size] ownership); local=16, peer=32", KVF_TRTLLM_ACCEPTED},
    {"element", element, KVF_TRTLLM_SOFT, "element_bytes mismatch; field='element_bytes', local=0.5, peer=1",
     KVF_TRTLLM_SOFT},
    {"sub-byte product", sub_byte, KVF_TRTLLM_SOFT, "sub-byte head slicing is not byte-aligned", KVF_TRTLLM_ACCEPTED},
    {"sub-byte cut", sub_byte_cut, KVF_TRTLLM_SOFT, "sub-byte head slicing is not byte-aligned", KVF_TRTLLM_SOFT},
    {"tokens per block, odd", tokens_odd, KVF_TRTLLM_SOFT,
     "AttentionPolicy: incompatible: tokens_per_block not divisible; local=16 peer=24", KVF_TRTLLM_ACCEPTED},
    {"tokens per block, side view", tokens_side, KVF_TRTLLM_SOFT,
     "tokens_per_block mismatch for NHD/replicated pools; local=16 peer=32", KVF_TRTLLM_ACCEPTED},
    {"head size", dims, KVF_TRTLLM_SOFT, "dims_per_head mismatch; field='dims_per_head', local=8, peer=64",
     KVF_TRTLLM_SOFT},
    {"latent, no attention here", latent_free, KVF_TRTLLM_SOFT,
     "MLA requires kv_heads_per_rank == 1 for both ranks; local=1, peer=0", KVF_TRTLLM_ACCEPTED},
    {"latent heads", latent_heads, KVF_TRTLLM_SOFT,
     "MLA requires kv_heads_per_rank == 1 for both ranks; local=1, peer=2", KVF_TRTLLM_SOFT},
    {"no attention", no_attention, KVF_TRTLLM_SOFT, "attention mismatch", KVF_TRTLLM_SOFT},
    {"HND and NHD", kinds, KVF_TRTLLM_HARD,
     "PeerRegistrar.get_pool_mapping: incompatible mapper kinds for pool role [] (local=INDEXED, peer=NHD,"
     " peer_pool=0)", KVF_TRTLLM_ACCEPTED},
    {"HND and replicated", kinds_replicated, KVF_TRTLLM_HARD,
     "incompatible mapper kinds for pool role [] (local=INDEXED, peer=REPLICATED, peer_pool=0)", KVF_TRTLLM_HARD},
    {"roles", roles, KVF_TRTLLM_HARD, "view (layer_group=0, view=0) [] has no peer view with the same roles",
     KVF_TRTLLM_HARD},
    {"heads of a view", no_heads, KVF_TRTLLM_HARD,
     "peer view (layer_group=0, view=0) must publish a positive num_kv_heads, got None", KVF_TRTLLM_HARD},
    {"state bytes per head", state_heads, KVF_TRTLLM_HARD,
     "MambaPolicy.validate_peer_compatible: ssm_bytes_per_head differs (local=64, peer=128); check head_dim / d_state /"
     " mamba_ssm_cache_dtype", KVF_TRTLLM_HARD},
    {"state size", state_size, KVF_TRTLLM_HARD,
     "MambaPolicy.validate_peer_compatible: global (TP-aggregated) ssm slot_bytes differs: local 4096 bytes/rank x"
     " mamba_tp=2 vs peer 8192 bytes/rank x mamba_tp=2. ", KVF_TRTLLM_HARD},
    {"conv size", conv_size, KVF_TRTLLM_HARD, "conv slot_bytes differs: local 2048 bytes/rank x mamba_tp=2",
     KVF_TRTLLM_HARD},
    {"section count", section_count, KVF_TRTLLM_HARD, "conv section count differs (local=3, peer=2)",
     KVF_TRTLLM_HARD},
    {"section size", section_size, KVF_TRTLLM_HARD, "conv_section_bytes[1] differs: local 256 bytes/rank",
     KVF_TRTLLM_HARD},
    {"side view missing", side_missing, KVF_TRTLLM_HARD,
     "MambaPolicy.validate_peer_compatible: replicated role(s) ['ple_ngram_context'] differ on overlapping layers"
     " [100, 101]", KVF_TRTLLM_HARD},
    {"side view size", side_size, KVF_TRTLLM_HARD,
     "replicated recurrent side-state role ['ple_ngram_context'] slot_bytes differs (local=8, peer=16)",
     KVF_TRTLLM_HARD},
    {"nothing declared", undeclared, KVF_TRTLLM_ACCEPTED, NULL, KVF_TRTLLM_ACCEPTED},
    {"layer totals", layer_totals, KVF_TRTLLM_ACCEPTED,
     "PeerRegistrar: layer count differs (local=2, peer=3), allowing partial layer transfer.", KVF_TRTLLM_ACCEPTED},
};

static void check(const struct row *row, bool strict)
{
    struct kvf_trtllm_verdict verdict = {.struct_size = sizeof verdict};
    int style = strict ? row->style : row->native_style;
    struct kvf_trtllm_options options;
    kvf_trtllm_registrar *registrar;
    struct rank_kit kits[2];
    kvf_trtllm_rank *ranks[2];
    struct kvf_error error = {0};
    enum kvf_status status;

    for (int i = 0; i < 2; i++) {
        rank_kit_init(&kits[i], i == 0 ? "self" : "peer");
        rank_kit_pt(&kits[i], 1024, 2, 2, 2, 0, 1);
    }
    row->make(&kits[0], &kits[1]);
    for (int i = 0; i < 2; i++) ranks[i] = rank_kit_make(&kits[i]);
    kvf_trtllm_options_init(&options, sizeof options);
    if (!strict) options.flags = 0;
    assert_int_equal(kvf_trtllm_registrar_create(ranks[0], &options, &registrar, &error), KVF_OK);
    status = kvf_trtllm_registrar_check(registrar, ranks[1], &verdict, &error);
    if (verdict.style != style) fail_msg("%s: style %d, expected %d: %s", row->name, verdict.style, style, error.text);
    assert_int_equal(status, style == KVF_TRTLLM_ACCEPTED ? KVF_OK : KVF_ERR_INCOMPATIBLE);
    if (row->text && style == row->style) {
        const char *said = style == KVF_TRTLLM_SOFT ? verdict.reason
                           : style == KVF_TRTLLM_HARD ? verdict.text : verdict.warnings[0];

        if (!strstr(said, row->text)) fail_msg("%s: expected \"%s\", found \"%s\"", row->name, row->text, said);
        assert_int_equal(verdict.warning_count, style == KVF_TRTLLM_ACCEPTED);
    }
    kvf_trtllm_registrar_destroy(registrar);
    for (int i = 0; i < 2; i++) kvf_trtllm_rank_release(ranks[i]);
}

static void test_strict(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check(&rows[i], true);
}

static void test_native(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check(&rows[i], false);
}

/* Of several broken rules the first is told; what only a sender's own rank breaks is not held against its instance. */
static void test_sender(void **state)
{
    static const struct {
        change first, second;
        int64_t peer_stage; /* of two; self is the first */
        const char *mild, *strict;
    } rules[] = {
        {none, none, 0, NULL, NULL},
        {key_only, none, 0, NULL, "is_mla mismatch"},
        {kinds, none, 0, NULL, "incompatible mapper kinds"},
        {roles, state_size, 0, "ssm slot_bytes differs", "ssm slot_bytes differs"},
        {latent_free, none, 0, NULL, "MLA requires kv_heads_per_rank == 1"},
        {latent_free, none, 1, NULL, NULL},
        {latent_heads, dims, 1, NULL, "dims_per_head mismatch"},
    };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof rules / sizeof rules[0]; i++) {
        const char *text = i % 2 ? rules[i / 2].strict : rules[i / 2].mild;
        kvf_trtllm_registrar *registrar;
        struct rank_kit kits[2];
        kvf_trtllm_rank *ranks[2];
        struct kvf_error error = {0};

        for (int k = 0; k < 2; k++) {
            rank_kit_init(&kits[k], k == 0 ? "self" : "peer");
            rank_kit_pt(&kits[k], 1024, 2, 2, 2, 0, 1);
            kits[k].spec.pp_size = 2;
        }
        kits[1].spec.pp_rank = rules[i / 2].peer_stage;
        rules[i / 2].first(&kits[0], &kits[1]);
        rules[i / 2].second(&kits[0], &kits[1]);
        for (int k = 0; k < 2; k++) ranks[k] = rank_kit_make(&kits[k]);
        assert_int_equal(kvf_trtllm_registrar_create(ranks[0], NULL, &registrar, &error), KVF_OK);
        assert_int_equal(kvf_trtllm_registrar_check_sender(registrar, ranks[1], i % 2, &error),
                         text ? KVF_ERR_INCOMPATIBLE : KVF_OK);
        if (text && !strstr(error.text, text)) fail_msg("expected \"%s\", found \"%s\"", text, error.text);
        kvf_trtllm_registrar_destroy(registrar);
        for (int k = 0; k < 2; k++) kvf_trtllm_rank_release(ranks[k]);
    }
}

/* Roles that are cut into views differently on the two sides cover the same layers all the same. */
static void test_coverage_by_role(void **state)
{
    kvf_trtllm_rank *ranks[2];
    struct kvf_trtllm_verdict verdict = {.struct_size = sizeof verdict};
    kvf_trtllm_registrar *registrar;
    struct rank_kit kits[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        rank_kit_init(&kits[i], i == 0 ? "self" : "peer");
        kits[i].table.tokens_per_block = 16;
        rank_kit_group(&kits[i], KVF_TRTLLM_PAGED, 0);
        rank_kit_pool(&kits[i], 0, 0x1000, 64, 4);
        rank_kit_layer(&kits[i], 0, 0, 5);
        for (int view = 0; view < 2 - i; view++) {
            rank_kit_view(&kits[i], 0, KVF_TRTLLM_REPLICATED, 0);
            rank_kit_entry(&kits[i], 0, (size_t)view, 0, 32 * view, 32);
            rank_kit_role(&kits[i], 0, (size_t)view, view == 0 ? "index_key" : "index_scale");
        }
    }
    kits[1].roles[0][0][1] = "index_scale";
    kits[1].views[0][0].role_count = 2;
    ranks[0] = rank_kit_make(&kits[0]);
    ranks[1] = rank_kit_make(&kits[1]);
    assert_int_equal(kvf_trtllm_registrar_create(ranks[0], NULL, &registrar, NULL), KVF_OK);
    assert_int_equal(kvf_trtllm_registrar_check(registrar, ranks[1], &verdict, NULL), KVF_OK);
    kvf_trtllm_rank_release(ranks[1]);
    kits[1].roles[0][0][1] = "other";
    ranks[1] = rank_kit_make(&kits[1]);
    assert_int_equal(kvf_trtllm_registrar_check(registrar, ranks[1], &verdict, NULL), KVF_ERR_INCOMPATIBLE);
    assert_non_null(strstr(verdict.text, "role(s) ['index_scale', 'other'] differ on overlapping layers [5]"));
    kvf_trtllm_registrar_destroy(registrar);
    for (int i = 0; i < 2; i++) kvf_trtllm_rank_release(ranks[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_native),
        cmocka_unit_test(test_sender),
        cmocka_unit_test(test_coverage_by_role),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
