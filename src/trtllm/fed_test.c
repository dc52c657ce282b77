/* SPDX-License-Identifier: Apache-2.0 */
/* Views that upstream's senders leave in part unwritten: told, by both sides, once; verdicts stay upstream's. */
#include "trtllm/rank_kit.h"

#include <stdio.h>
#include <string.h>

/* What was logged of it, and the end of it. */
struct lines {
    int count;
    char last[600];
};

static void keep_line(void *context, int level, const char *text)
{
    struct lines *lines = context;

    if (level != KVF_LOG_WARN || !strstr(text, "is not written in whole")) return;
    lines->count++;
    snprintf(lines->last, sizeof lines->last, "%s", text);
}

struct grid {
    int64_t tp, tp_rank, cp, cp_rank, dp, dp_rank;
};

static const struct row {
    const char *name;
    int64_t heads[2]; /* 0 = a table of state too, cut over all ranks */
    struct grid sender, receiver;
    int told;
    const char *view;
} rows[] = {
    {"one to one", {0, 0}, {1, 0, 1, 0, 1, 0}, {1, 0, 1, 0, 1, 0}, 0, NULL},
    {"finer senders", {0, 0}, {4, 3, 1, 0, 1, 0}, {2, 1, 1, 0, 1, 0}, 0, NULL},
    {"coarser senders", {0, 0}, {2, 0, 1, 0, 1, 0}, {4, 1, 1, 0, 1, 0}, 0, NULL},
    {"a DP group per rank", {0, 0}, {4, 2, 1, 0, 1, 0}, {4, 3, 1, 0, 4, 3}, 0, NULL},
    {"context ranks of the receiver", {0, 0}, {2, 1, 1, 0, 1, 0}, {2, 1, 2, 1, 1, 0}, 0, NULL},
    {"finer senders, the context rank whose state rank owns nothing", {0, 0}, {4, 1, 1, 0, 1, 0},
     {2, 0, 2, 1, 1, 0}, 1, "view=2) ['ple_ngram_context']"},
    {"finer senders, the context rank whose state rank is the owner", {0, 0}, {4, 1, 1, 0, 1, 0},
     {2, 0, 2, 0, 1, 0}, 0, NULL},
    {"two ranks per DP group want all state and ask half of it", {0, 0}, {4, 0, 1, 0, 1, 0}, {4, 2, 1, 0, 2, 1}, 2,
     "view=1) ['ssm_state']"},
    {"heads from one side to the other", {2, 1}, {2, 0, 1, 0, 1, 0}, {4, 2, 1, 0, 1, 0}, 0, NULL},
    {"duplicated heads", {1, 2}, {8, 4, 1, 0, 1, 0}, {1, 0, 1, 0, 1, 0}, 0, NULL},
    {"heads of three ranks for two", {2, 3}, {3, 1, 1, 0, 1, 0}, {2, 1, 1, 0, 1, 0}, 1, "view=0) []"},
    {"fewer heads than the receiver has", {1, 2}, {2, 0, 1, 0, 1, 0}, {2, 0, 1, 0, 1, 0}, 1, "view=0) []"},
};

static kvf_trtllm_rank *make(const struct row *row, int side)
{
    const struct grid *grid = side ? &row->receiver : &row->sender;
    bool attention_dp = grid->dp > 1;
    struct rank_kit kit;

    rank_kit_init(&kit, side ? "gen" : "ctx");
    kit.spec.tp_size = grid->tp;
    kit.spec.tp_rank = grid->tp_rank;
    kit.spec.cp_size = grid->cp;
    kit.spec.cp_rank = grid->cp_rank;
    kit.spec.dp_size = grid->dp;
    kit.spec.dp_rank = grid->dp_rank;
    kit.attention.enable_attention_dp = attention_dp;
    if (row->heads[side]) {
        kit.attention.kv_heads_per_rank = row->heads[side];
        kit.attention.tokens_per_block = 2;
        rank_kit_pv(&kit, KVF_TRTLLM_INDEXED, 1, (int)row->heads[side]);
    } else {
        kit.attention.kv_heads_per_rank = 8 / (grid->tp / grid->dp);
        rank_kit_pt(&kit, 512 * kit.attention.kv_heads_per_rank, attention_dp ? 1 : grid->tp * grid->cp,
                    kit.attention.kv_heads_per_rank, 2, 0, 1);
        rank_kit_side(&kit, 8);
    }
    return rank_kit_make(&kit);
}

static kvf_trtllm_registrar *make_registrar(const kvf_trtllm_rank *self, struct lines *lines, uint64_t flags)
{
    kvf_trtllm_registrar *registrar = NULL;
    struct kvf_trtllm_options options;

    kvf_trtllm_options_init(&options, sizeof options);
    options.flags = flags;
    options.log = (struct kvf_log_sink){keep_line, lines, 0, KVF_LOG_WARN};
    assert_int_equal(kvf_trtllm_registrar_create(self, &options, &registrar, NULL), KVF_OK);
    return registrar;
}

static void check_lines(const struct row *row, const struct lines *lines, int told)
{
    if (lines->count != told || (told && !strstr(lines->last, row->view)))
        fail_msg("%s: told %d times, \"%s\"", row->name, lines->count, lines->last);
}

static void check(const struct row *row, uint64_t flags)
{
    kvf_trtllm_rank *sender = make(row, 0), *receiver = make(row, 1);
    struct lines lines[2] = {{0, ""}, {0, ""}};
    kvf_trtllm_registrar *at_sender = make_registrar(sender, &lines[0], flags);
    kvf_trtllm_registrar *at_receiver = make_registrar(receiver, &lines[1], flags);
    struct kvf_trtllm_verdict verdict = {.struct_size = sizeof verdict};
    struct kvf_error error = {0};

    for (int again = 0; again < 2; again++) {
        if (kvf_trtllm_registrar_register(at_sender, receiver, &verdict, &error) != KVF_OK ||
            kvf_trtllm_registrar_check_sender(at_receiver, sender, 1, &error) != KVF_OK)
            fail_msg("%s: %s", row->name, error.text);
        assert_int_equal(verdict.warning_count, 0);
        for (int i = 0; i < 2; i++) check_lines(row, &lines[i], flags ? row->told : 0);
    }
    kvf_trtllm_registrar_destroy(at_receiver);
    kvf_trtllm_registrar_destroy(at_sender);
    kvf_trtllm_rank_release(receiver);
    kvf_trtllm_rank_release(sender);
}

static void test_strict(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check(&rows[i], KVF_TRTLLM_STRICT_UPSTREAM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_strict)};

    return cmocka_run_group_tests_name("views that are not fed", tests, NULL, NULL);
}
