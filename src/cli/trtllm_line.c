/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of `kvferry trtllm worker`: requests and the like, out of JSON. */
#include <stdlib.h>
#include <string.h>

#include "cli/trtllm_spec.h"

#define GROUPS_MAX ((size_t)KVF_TRTLLM_MAX_GROUPS)
#define IDS_MAX ((size_t)1 << 24)
#define PIECES_MAX 65536
#define TOKENS_MAX (INT64_C(1) << 40)

static const char *const schedules[] = {"context-first", "generation-first", NULL};

/** Takes a list of block ids. */
static bool take_ids(struct json_take *take, const char *key, size_t group, const json_t *list,
                     struct kvf_trtllm_blocks *out)
{
    char place[64];
    size_t count = json_array_size(list);
    snprintf(place, sizeof(place), "%s[%zu]", key, group);
    if (!json_is_array(list) || count > IDS_MAX)
        return json_take_wrong(take, place, "expected a list of block ids");
    int64_t *ids = calloc(count + 1, sizeof(*ids));
    out->ids = ids;
    if (ids == NULL)
        return json_take_wrong(take, place, "no memory for %zu block ids", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id)) {
            snprintf(place, sizeof(place), "%s[%zu][%zu]", key, group, i);
            return json_take_wrong(take, place, "expected a block id, or -1 for a hole");
        }
        ids[i] = json_integer_value(id);
    }
    out->count = count;
    return true;
}

static bool take_blocks(struct json_take *take, const json_t *object, const char *other, struct trtllm_line *out)
{
    const char *key = json_take_has(object, "blocks") ? "blocks" : other;
    const json_t *lists = json_object_get(object, key);
    if (!json_is_array(lists) || json_array_size(lists) > GROUPS_MAX)
        return json_take_wrong(take, json_take_has(object, key) ? key : "blocks",
                               "expected a list of block ids for each layer group");
    out->groups = calloc(json_array_size(lists) + 1, sizeof(*out->groups));
    if (out->groups == NULL)
        return json_take_wrong(take, key, "no memory");
    for (size_t g = 0; g < json_array_size(lists); g++) {
        out->group_count = g + 1;
        if (!take_ids(take, key, g, json_array_get(lists, g), &out->groups[g]))
            return false;
    }
    return true;
}

static bool take_pieces(struct json_take *take, const json_t *object, struct trtllm_line *out)
{
    const json_t *list = json_object_get(object, "pieces");
    bool given = json_take_has(object, "pieces");
    size_t count = given ? json_array_size(list) : 1;
    char place[64];
    if (given && (!json_is_array(list) || count < 1 || count > PIECES_MAX))
        return json_take_wrong(take, "pieces", "expected a list of [first token, end]");
    out->pieces = calloc(count, sizeof(*out->pieces));
    if (out->pieces == NULL)
        return json_take_wrong(take, "pieces", "no memory");
    out->piece_count = count;
    out->pieces[0] = (struct trtllm_span){0, out->prompt_tokens};
    for (size_t i = 0; given && i < count; i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *begin = json_array_get(pair, 0), *end = json_array_get(pair, 1);
        int64_t before = i > 0 ? out->pieces[i - 1].end : 0;
        snprintf(place, sizeof(place), "pieces[%zu]", i);
        if (json_array_size(pair) != 2 || !json_is_integer(begin) || !json_is_integer(end))
            return json_take_wrong(take, place, "expected [first token, end]");
        out->pieces[i] = (struct trtllm_span){json_integer_value(begin), json_integer_value(end)};
        if (out->pieces[i].begin != before || out->pieces[i].end < before || out->pieces[i].end > out->prompt_tokens)
            return json_take_wrong(take, place, "[%lld, %lld] does not begin at %lld and end within the prompt",
                                   (long long)out->pieces[i].begin, (long long)out->pieces[i].end, (long long)before);
    }
    return true;
}

/** Takes `key`, or else number `index` of the two in `both`. */
static bool take_slot(struct json_take *take, const json_t *object, size_t index, struct trtllm_line *out)
{
    const json_t *pair = json_object_get(object, "aux_slots");
    if (json_take_has(object, "aux_slots") && !json_take_has(object, "aux_slot")) {
        if (json_array_size(pair) != 2 || !json_is_integer(json_array_get(pair, index)))
            return json_take_wrong(take, "aux_slots", "expected two slots, the context's and the generation's");
        out->aux_slot = json_integer_value(json_array_get(pair, index));
    }
    return json_take_int(take, object, "aux_slot", 0, INT64_MAX - 1, &out->aux_slot);
}

static bool take_aux(struct json_take *take, const json_t *object, struct trtllm_line *out)
{
    const json_t *list = json_object_get(object, "aux");
    char place[64];
    if (!json_take_has(object, "aux"))
        return true;
    if (!json_is_array(list) || json_array_size(list) > KVF_TRTLLM_MAX_AUX)
        return json_take_wrong(take, "aux", "expected a list of hexadecimal texts, one for each buffer");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text != NULL && strspn(text, "0123456789abcdefABCDEF") == strlen(text) && strlen(text) % 2 == 0)
            continue;
        snprintf(place, sizeof(place), "aux[%zu]", i);
        return json_take_wrong(take, place, "expected pairs of hexadecimal digits");
    }
    out->aux = json_deep_copy(list);
    return out->aux != NULL || json_take_wrong(take, "aux", "no memory");
}

static bool take_copy(struct json_take *take, const json_t *object, const char *key, char **out)
{
    const char *text = NULL;
    if (!json_take_text(take, object, key, &text))
        return false;
    if (text == NULL)
        return true;
    *out = strdup(text);
    return *out != NULL || json_take_wrong(take, key, "no memory");
}

static bool take_common(struct json_take *take, const json_t *object, struct trtllm_line *out)
{
    if (!json_take_has(object, "prompt"))
        return json_take_wrong(take, "prompt", "expected the tokens of the prompt");
    return json_take_int(take, object, "prompt", 1, TOKENS_MAX, &out->prompt_tokens) &&
           json_take_word(take, object, "schedule", schedules, &out->schedule) &&
           json_take_seconds(take, object, "timeout", &out->timeout_ns);
}

static bool take_context(struct json_take *take, const json_t *object, struct trtllm_line *out)
{
    static const char *const known[] = {"rid", "schedule", "prompt", "timeout", "blocks", "src_blocks", "dst_blocks",
                                        "pieces", "hold", "aux_slot", "aux_slots", "aux", "dst_start_token", NULL};
    return json_take_known(take, object, known) && take_common(take, object, out) &&
           take_blocks(take, object, "src_blocks", out) && take_pieces(take, object, out) &&
           json_take_bool(take, object, "hold", &out->hold) && take_slot(take, object, 0, out) &&
           take_aux(take, object, out);
}

static bool take_generation(struct json_take *take, const json_t *object, struct trtllm_line *out)
{
    static const char *const known[] = {"rid", "schedule", "prompt", "timeout", "blocks", "src_blocks", "dst_blocks",
                                        "info", "from", "ctx_dp_rank", "aux_slot", "aux_slots", "start_token",
                                        "dst_start_token", "sender_req_id", NULL};
    if (!json_take_known(take, object, known) || !take_common(take, object, out) ||
        !take_blocks(take, object, "dst_blocks", out) || !take_slot(take, object, 1, out) ||
        !json_take_int(take, object, "ctx_dp_rank", 0, KVF_TRTLLM_MAX_RANKS, &out->ctx_dp_rank) ||
        !json_take_int(take, object, "dst_start_token", 0, TOKENS_MAX, &out->start_token) ||
        !json_take_int(take, object, "start_token", 0, TOKENS_MAX, &out->start_token) ||
        !json_take_int(take, object, "sender_req_id", 0, INT64_MAX - 1, &out->sender_req_id) ||
        !take_copy(take, object, "info", &out->info) || !take_copy(take, object, "from", &out->from))
        return false;
    if (out->info != NULL && out->from != NULL)
        return json_take_wrong(take, "from", "info is given as well; one of the two is enough");
    return true;
}

static bool take_complete(struct json_take *take, const json_t *object, struct trtllm_line *out)
{
    static const char *const known[] = {"complete", NULL}, *const inner[] = {"sender_endpoints", NULL};
    const json_t *value = json_object_get(object, "complete");
    const json_t *list = json_object_get(value, "sender_endpoints");
    struct json_take below = json_take_below("%s%scomplete", take->path, take->path[0] != '\0' ? ": " : "");
    if (!json_take_known(take, object, known))
        return false;
    bool fits = json_take_known(&below, value, inner);
    if (fits && !json_is_array(list))
        fits = json_take_wrong(&below, "sender_endpoints", "expected a list of endpoints, by rank");
    out->endpoints = fits ? calloc(json_array_size(list) + 1, sizeof(char *)) : NULL;
    for (size_t i = 0; out->endpoints != NULL && fits && i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        out->endpoints[i] = text != NULL ? strdup(text) : NULL;
        out->endpoint_count = i + 1;
        if (out->endpoints[i] == NULL)
            fits = json_take_wrong(&below, "sender_endpoints", "number %zu is not a text", i);
    }
    if (!fits)
        memcpy(take->text, below.text, sizeof(take->text));
    return fits && out->endpoints != NULL;
}

bool trtllm_line_take(const json_t *object, const char *where, int role, struct trtllm_line *out,
                      struct json_take *take)
{
    static const char *const cancel[] = {"cancel", NULL}, *const send[] = {"send", NULL},
                      *const dump[] = {"dump", NULL};
    *take = json_take_below("%s", where);
    *out = (struct trtllm_line){.rid = -1,
                                .aux_slot = KVF_TRTLLM_NONE,
                                .ctx_dp_rank = KVF_TRTLLM_NONE,
                                .start_token = KVF_TRTLLM_NONE,
                                .sender_req_id = KVF_TRTLLM_NONE};
    if (json_object_get(object, "cancel") != NULL) {
        out->kind = TRTLLM_LINE_CANCEL;
        return json_take_known(take, object, cancel) &&
               json_take_int(take, object, "cancel", 0, INT64_MAX - 1, &out->rid);
    }
    if (json_object_get(object, "send") != NULL) {
        out->kind = TRTLLM_LINE_SEND;
        return json_take_known(take, object, send) && json_take_int(take, object, "send", 0, INT64_MAX - 1, &out->rid);
    }
    if (json_object_get(object, "dump") != NULL) {
        out->kind = TRTLLM_LINE_DUMP;
        return json_take_known(take, object, dump) && take_copy(take, object, "dump", &out->file) &&
               (out->file != NULL || json_take_wrong(take, "dump", "expected a file's name"));
    }
    if (json_object_get(object, "complete") != NULL) {
        out->kind = TRTLLM_LINE_COMPLETE;
        return take_complete(take, object, out);
    }
    if (!json_is_object(object))
        return json_take_wrong(take, "", "expected an object");
    if (!json_take_has(object, "rid"))
        return json_take_wrong(take, "rid", "expected the transfer key, the same on both sides");
    return json_take_int(take, object, "rid", 0, INT64_MAX - 1, &out->rid) &&
           (role == 0 ? take_context(take, object, out) : take_generation(take, object, out));
}

void trtllm_line_fini(struct trtllm_line *line)
{
    for (size_t g = 0; g < line->group_count; g++)
        free((int64_t *)line->groups[g].ids);
    for (size_t i = 0; i < line->endpoint_count; i++)
        free(line->endpoints[i]);
    free(line->endpoints);
    free(line->groups);
    free(line->pieces);
    free(line->file);
    free(line->info);
    free(line->from);
    json_decref(line->aux);
    *line = (struct trtllm_line){.rid = -1};
}
