/* SPDX-License-Identifier: Apache-2.0 */
/* Answers cases of TensorRT-LLM's planning: one JSON object a line on standard input, one line
 * {"id": ..., "answer": ...} each on standard output. See README.md.
 */
#include "answer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvf_trtllm_rank *answer_rank(const json_t *object, struct kvf_error *error)
{
    char *text = json_dumps(object, JSON_COMPACT);
    kvf_trtllm_rank *rank = NULL;

    memset(error, 0, sizeof *error);
    if (!text) {
        snprintf(error->text, sizeof error->text, "a rank is missing");
    } else if (kvf_trtllm_rank_from_json(text, strlen(text), &rank, error) != KVF_OK) {
        rank = NULL;
    }
    free(text);
    return rank;
}

json_t *answer_text(const char *text)
{
    size_t length = strlen(text);
    json_t *out = json_stringn(text, length);

    for (int cut = 0; !out && cut < 4 && length > 0; cut++) out = json_stringn(text, --length);
    return out ? out : json_string("a text that is not UTF-8");
}

json_t *answer_key(const struct kvf_trtllm_view_key *key)
{
    return json_pack("[I, I]", (json_int_t)key->group, (json_int_t)key->view);
}

static void add_error(json_t *answer, const char *what, const struct kvf_error *error)
{
    char text[KVF_ERROR_TEXT_BYTES + 64];

    snprintf(text, sizeof text, "%s: %s", what, error->text);
    json_object_set_new(answer, "error", answer_text(text));
}

/* Which ranks the sender meets in the receiver's own DP group. */
static bool add_overlap(const struct answer_case *pair, json_t *answer)
{
    const struct kvf_trtllm_rank_spec *dst = kvf_trtllm_rank_get_spec(pair->dst);
    int64_t *ranks = calloc(KVF_TRTLLM_MAX_RANKS, sizeof *ranks);
    struct kvf_trtllm_overlap overlap;
    struct kvf_error error;
    json_t *list;
    bool known = ranks && kvf_trtllm_get_overlap(pair->src, pair->dst, dst->dp_rank, &overlap, ranks,
                                                 KVF_TRTLLM_MAX_RANKS, &error) == KVF_OK;

    if (!known) {
        if (ranks) add_error(answer, "overlap", &error);
        free(ranks);
        return false;
    }
    list = json_array();
    for (size_t i = 0; i < overlap.rank_count; i++) json_array_append_new(list, json_integer(ranks[i]));
    json_object_set_new(answer, "overlap",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "pp", (json_int_t)overlap.overlap_pp_size, "tp",
                                  (json_int_t)overlap.overlap_tp_size, "cp", (json_int_t)overlap.overlap_cp_size,
                                  "dup", (json_int_t)overlap.duplicate_head_factor, "peer_dup",
                                  (json_int_t)overlap.peer_duplicate_head_factor, "ranks", list));
    json_object_set_new(answer, "expected_transfers", json_integer((json_int_t)overlap.rank_count));
    free(ranks);
    return true;
}

/* Registers the receiver at the sender. */
static void add_verdict(struct answer_case *pair, json_t *answer)
{
    struct kvf_trtllm_verdict verdict = {.struct_size = sizeof verdict};
    struct kvf_error error = {0};
    enum kvf_status status = kvf_trtllm_registrar_register(pair->registrar, pair->dst, &verdict, &error);
    json_t *out = json_object();

    pair->accepted = status == KVF_OK;
    json_object_set_new(out, "ok", json_boolean(pair->accepted));
    if (pair->accepted) {
        json_t *warnings = json_array();

        for (int32_t i = 0; i < verdict.warning_count; i++) {
            json_array_append_new(warnings, answer_text(verdict.warnings[i]));
        }
        json_object_set_new(out, "warnings", warnings);
    } else {
        bool soft = verdict.style == KVF_TRTLLM_SOFT;

        json_object_set_new(out, "text", answer_text(verdict.text[0] ? verdict.text : error.text));
        json_object_set_new(out, "style", json_string(soft ? "soft" : "hard"));
        json_object_set_new(out, "reason", soft ? answer_text(verdict.reason) : json_null());
    }
    json_object_set_new(answer, "verdict", out);
}

static bool add_mapping(struct answer_case *pair, json_t *answer)
{
    struct kvf_error error;
    json_t *list;
    bool known = kvf_trtllm_get_pool_mapping(pair->src, pair->dst, NULL, 0, &pair->pair_count, &error) == KVF_OK;

    if (known) {
        pair->pairs = calloc(pair->pair_count + 1, sizeof *pair->pairs);
        known = pair->pairs && kvf_trtllm_get_pool_mapping(pair->src, pair->dst, pair->pairs, pair->pair_count,
                                                           &pair->pair_count, &error) == KVF_OK;
    }
    if (!known) {
        pair->pair_count = 0;
        add_error(answer, "mapping", &error);
        return false;
    }
    list = json_array();
    for (size_t i = 0; i < pair->pair_count; i++) {
        json_array_append_new(list, json_pack("[o, o]", answer_key(&pair->pairs[i].self),
                                              answer_key(&pair->pairs[i].peer)));
    }
    json_object_set_new(answer, "mapping", list);
    return true;
}

static json_t *describe_view(const struct kvf_trtllm_pair_view *view)
{
    json_t *out = json_pack("{s:b, s:[I, I]}", "elect", (int)view->elected, "dup",
                            (json_int_t)view->duplicate_head_factor, (json_int_t)view->peer_duplicate_head_factor);

    if (view->mapper == KVF_TRTLLM_MAP_ERROR) {
        json_object_set_new(out, "error", answer_text(view->error.text));
    } else {
        json_object_set_new(out, "mapper", json_string(kvf_trtllm_mapper_text(view->mapper)));
    }
    return out;
}

static void add_views(const struct answer_case *pair, json_t *answer)
{
    const struct kvf_trtllm_rank_spec *dst = kvf_trtllm_rank_get_spec(pair->dst);
    kvf_trtllm_pair *planned = NULL;
    json_t *list = json_array();
    struct kvf_error error;

    if (kvf_trtllm_registrar_pair(pair->registrar, dst->instance_name, dst->instance_rank, &planned, &error)
        != KVF_OK) {
        add_error(answer, "views", &error);
    }
    for (size_t i = 0; planned && i < kvf_trtllm_pair_view_count(planned); i++) {
        struct kvf_trtllm_pair_view view;

        if (kvf_trtllm_pair_view(planned, i, &view) == KVF_OK) json_array_append_new(list, describe_view(&view));
    }
    json_object_set_new(answer, "views", list);
    kvf_trtllm_pair_release(planned);
}

static void answer_pair(const json_t *input, json_t *answer)
{
    struct answer_case pair = {.input = input};
    struct kvf_error error;

    pair.src = answer_rank(json_object_get(input, "src"), &error);
    if (!pair.src) {
        add_error(answer, "src", &error);
        goto done;
    }
    pair.dst = answer_rank(json_object_get(input, "dst"), &error);
    if (!pair.dst) {
        add_error(answer, "dst", &error);
        goto done;
    }
    if (!add_overlap(&pair, answer)) goto done;
    if (kvf_trtllm_registrar_create(pair.src, NULL, &pair.registrar, &error) != KVF_OK) {
        add_error(answer, "registrar", &error);
        goto done;
    }
    add_verdict(&pair, answer);
    if (!pair.accepted || !add_mapping(&pair, answer)) goto done;
    add_views(&pair, answer);
    json_object_set_new(answer, "state_paired", json_boolean(kvf_trtllm_is_state_paired(pair.src, pair.dst)));
    json_object_set_new(answer, "elect_aux", json_boolean(kvf_trtllm_should_send_aux(pair.src, pair.dst)));
    answer_moves(&pair, answer);
done:
    free(pair.pairs);
    kvf_trtllm_registrar_destroy(pair.registrar);
    kvf_trtllm_rank_release(pair.dst);
    kvf_trtllm_rank_release(pair.src);
}

static void print(json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);

    if (text) {
        fputs(text, stdout);
        fputc('\n', stdout);
        fflush(stdout);
    }
    free(text);
}

/* Answers one line. A header, which is any object without ranks, gets no answer. */
static void answer_line(const char *text, size_t byte_count)
{
    json_error_t where;
    json_t *input = json_loadb(text, byte_count, 0, &where), *answer, *out;

    if (input && json_is_object(input) && !json_object_get(input, "src")) goto done;
    if (json_is_true(json_object_get(input, "instance"))) {
        answer = answer_instance(input);
    } else {
        answer = json_object();
        if (input) {
            answer_pair(input, answer);
        } else {
            json_object_set_new(answer, "error", answer_text(where.text));
        }
    }
    out = json_pack("{s:O?, s:o}", "id", json_object_get(input, "id"), "answer", answer);
    print(out);
    json_decref(out);
done:
    json_decref(input);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;

    while ((length = getline(&line, &capacity, stdin)) >= 0) {
        bool blank = true;

        for (ssize_t i = 0; i < length && blank; i++) blank = strchr(" \t\r\n", line[i]) && line[i];
        if (!blank) answer_line(line, (size_t)length);
    }
    free(line);
    return ferror(stdin) || fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
