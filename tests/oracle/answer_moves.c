/* SPDX-License-Identifier: Apache-2.0 */
/* What one sending rank writes: upstream's list of fragments, ring moves, auxiliary copies. */
#include "moves.h"

#include "trtllm/pair.h" /* a view pair alone, elected or not: the cases ask for rings whoever sends them */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LISTED = 1024 };

static json_t *error_json(const struct kvf_error *error)
{
    return json_pack("{s:o}", "error", answer_text(error->text));
}

static const json_t *asked(const struct answer_case *pair, const char *name)
{
    return json_object_get(json_object_get(pair->input, "request"), name);
}

static bool read_request(const struct answer_case *pair, struct moves_request *out)
{
    const json_t *start = asked(pair, "dst_start_token");
    bool good = moves_request_init(out, json_integer_value(asked(pair, "prompt")), asked(pair, "src_blocks"),
                                   asked(pair, "dst_blocks"));

    if (json_is_integer(start)) out->request.dst_start_token = json_integer_value(start);
    return good;
}

static int is_ring(const kvf_trtllm_pair *pair, size_t index, struct kvf_trtllm_pair_view *view)
{
    return kvf_trtllm_pair_view(pair, index, view) == KVF_OK && view->mapper == KVF_TRTLLM_MAP_RING;
}

/** Sums a list up, and shows its beginning. */
static json_t *describe(const struct kvf_trtllm_fragment *fragments, size_t count)
{
    unsigned char *triples = calloc(count + 1, 24);
    json_t *list = json_array(), *out;
    int64_t bytes = 0;
    char text[65] = "";

    for (size_t i = 0; i < count && triples; i++) {
        const uint64_t words[3] = {fragments[i].src_address, fragments[i].dst_address, (uint64_t)fragments[i].bytes};

        for (size_t j = 0; j < 24; j++) triples[24 * i + j] = (unsigned char)(words[j / 8] >> 8 * (j % 8));
        bytes += fragments[i].bytes;
        if (i < MOST_LISTED) json_array_append_new(list, moves_json(&fragments[i]));
    }
    if (triples) moves_sha256(triples, 24 * count, text);
    free(triples);
    out = json_pack("{s:I, s:I, s:s, s:o}", "count", (json_int_t)count, "bytes", (json_int_t)bytes, "sha256", text,
                    "list", list);
    return out;
}

/** The fragments of a write, after a look at whether a transfer of it would move the same bytes. */
static json_t *list_fragments(const kvf_trtllm_write *write)
{
    struct moves_list fragments = {NULL, 0, 0}, copies = {NULL, 0, 0};
    struct kvf_error error = {0};
    json_t *out = NULL;

    if (kvf_trtllm_write_fragments(write, NULL, 0, &fragments.count, &error) != KVF_OK) goto failed;
    fragments.items = calloc(fragments.count + 1, sizeof *fragments.items);
    if (!fragments.items || !moves_collect(&copies, write) ||
        kvf_trtllm_write_fragments(write, fragments.items, fragments.count, &fragments.count, &error) != KVF_OK)
        goto failed;
    out = describe(fragments.items, fragments.count);
    if (moves_equal(&fragments, &copies)) goto done;
    json_decref(out);
    snprintf(error.text, sizeof error.text, "the copies move other bytes than the fragments");
failed:
    out = error_json(&error);
done:
    free(copies.items);
    free(fragments.items);
    return out;
}

static json_t *answer_fragments(const kvf_trtllm_pair *pair, const struct moves_request *asked_for)
{
    struct kvf_trtllm_request request = asked_for->request;
    size_t views = kvf_trtllm_pair_view_count(pair);
    struct kvf_trtllm_view_key *rings = calloc(views + 1, sizeof *rings);
    struct kvf_error error = {0};
    kvf_trtllm_write *write = NULL;
    struct kvf_trtllm_pair_view view;
    json_t *out;

    request.excluded = rings;
    for (size_t i = 0; rings && i < views; i++)
        if (is_ring(pair, i, &view)) rings[request.excluded_count++] = view.key.self;
    if (rings && kvf_trtllm_pair_bind(pair, &request, &write, &error) == KVF_OK) out = list_fragments(write);
    else out = error_json(&error);
    kvf_trtllm_write_destroy(write);
    free(rings);
    return out;
}

static bool no_last(const struct kvf_trtllm_blocks *blocks)
{
    return blocks->count == 0 || blocks->ids[blocks->count - 1] < 0;
}

static int by_addresses(const void *left, const void *right)
{
    const struct kvf_trtllm_fragment *a = left, *b = right;

    if (a->src_address != b->src_address) return a->src_address > b->src_address ? 1 : -1;
    return (a->dst_address > b->dst_address) - (a->dst_address < b->dst_address);
}

/** The moves of one ring view, sorted. */
static json_t *ring_moves(const kvf_trtllm_pair *pair, const struct kvf_trtllm_request *request)
{
    struct kvf_trtllm_fragment *moves = NULL;
    kvf_trtllm_write *write = NULL;
    json_t *out = json_array();
    size_t count = 0;

    if (kvf_trtllm_pair_bind(pair, request, &write, NULL) != KVF_OK ||
        kvf_trtllm_write_fragments(write, NULL, 0, &count, NULL) != KVF_OK)
        goto done;
    moves = calloc(count + 1, sizeof *moves);
    if (!moves || kvf_trtllm_write_fragments(write, moves, count, &count, NULL) != KVF_OK) goto done;
    qsort(moves, count, sizeof *moves, by_addresses);
    for (size_t i = 0; i < count; i++) json_array_append_new(out, moves_json(&moves[i]));
done:
    free(moves);
    kvf_trtllm_write_destroy(write);
    return out;
}

static json_t *ring_view(const struct answer_case *pair, size_t index, const struct kvf_trtllm_pair_view *view,
                         const struct kvf_trtllm_request *request)
{
    int64_t retained = view->ring_src_slots < view->ring_dst_slots ? view->ring_src_slots : view->ring_dst_slots;
    int64_t first = request->prompt_tokens > retained ? request->prompt_tokens - retained : 0;
    kvf_trtllm_pair *alone = NULL;
    json_t *out = NULL;

    if (kvfi_trt_pair_create_view(pair->src, pair->dst, index, &alone, NULL) == KVF_OK)
        out = json_pack("{s:[o, o], s:[I, I], s:I, s:[I, I], s:o}", "view", answer_key(&view->key.self),
                        answer_key(&view->key.peer), "slots", (json_int_t)view->ring_src_slots,
                        (json_int_t)view->ring_dst_slots, "retained", (json_int_t)retained, "range",
                        (json_int_t)first, (json_int_t)request->prompt_tokens, "moves", ring_moves(alone, request));
    kvf_trtllm_pair_release(alone);
    return out;
}

static void add_rings(const struct answer_case *pair, const kvf_trtllm_pair *planned,
                      const struct moves_request *asked_for, json_t *answer)
{
    bool striped = kvf_trtllm_rank_get_spec(pair->src)->cp_size > 1 ||
                   kvf_trtllm_rank_get_spec(pair->dst)->cp_size > 1;
    struct kvf_trtllm_request request = asked_for->request;
    struct kvf_trtllm_pair_view view;
    json_t *list = json_array();
    bool any = false;

    request.dst_start_token = KVF_TRTLLM_NONE;
    for (size_t i = 0; i < kvf_trtllm_pair_view_count(planned); i++) {
        if (!is_ring(planned, i, &view)) continue;
        any = true;
        if (striped || view.key.self.group >= (int64_t)request.src_count ||
            view.key.peer.group >= (int64_t)request.dst_count || no_last(&request.src[view.key.self.group]) ||
            no_last(&request.dst[view.key.peer.group]))
            continue;
        json_array_append_new(list, ring_view(pair, i, &view, &request));
    }
    if (any) json_object_set(answer, "ring", list);
    json_decref(list);
}

static json_t *answer_aux(const struct answer_case *pair)
{
    const json_t *slots = asked(pair, "aux_slots");
    struct kvf_trtllm_fragment found[KVF_TRTLLM_MAX_AUX];
    struct kvf_error error = {0};
    json_t *out = json_array();
    size_t count = 0;

    if (kvf_trtllm_aux_fragments(pair->src, pair->dst, json_integer_value(json_array_get(slots, 0)),
                                 json_integer_value(json_array_get(slots, 1)), found, KVF_TRTLLM_MAX_AUX, &count,
                                 &error) != KVF_OK) {
        json_decref(out);
        out = error_json(&error);
    }
    for (size_t i = 0; i < count; i++) json_array_append_new(out, moves_json(&found[i]));
    return out;
}

void answer_moves(const struct answer_case *pair, json_t *answer)
{
    const struct kvf_trtllm_rank_spec *src = kvf_trtllm_rank_get_spec(pair->src);
    const struct kvf_trtllm_rank_spec *dst = kvf_trtllm_rank_get_spec(pair->dst);
    kvf_trtllm_pair *planned = NULL;
    struct moves_request request;
    struct kvf_error error = {0};

    if (!read_request(pair, &request)) {
        json_object_set_new(answer, "error", json_string("a request is missing"));
    } else if (kvf_trtllm_registrar_pair(pair->registrar, dst->instance_name, dst->instance_rank, &planned,
                                         &error) != KVF_OK) {
        json_object_set_new(answer, "fragments", error_json(&error));
    } else {
        json_object_set_new(answer, "fragments", answer_fragments(planned, &request));
        add_rings(pair, planned, &request, answer);
    }
    if (src->aux && dst->aux) json_object_set_new(answer, "aux", answer_aux(pair));
    kvf_trtllm_pair_release(planned);
    moves_request_fini(&request);
}
