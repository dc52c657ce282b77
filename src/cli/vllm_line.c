/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of `kvferry vllm worker`: requests, and what concerns them. */
#include <string.h>

#include "cli/vllm_spec.h"

#define MOST_MS (INT64_C(86400) * 1000)

static bool take_after(struct json_take *take, const json_t *object, struct vllm_line *out)
{
    int64_t after_ms = 0;
    bool fits = json_take_int(take, object, "after_ms", 0, MOST_MS, &after_ms);
    out->after_ns = after_ms * 1000000;
    return fits;
}

/** Both ids of a request. */
static bool take_ids(struct json_take *take, const json_t *object, const char *own, struct vllm_line *out)
{
    if (!json_take_text(take, object, own, &out->req_id) ||
        !json_take_text(take, object, "transfer_id", &out->transfer_id))
        return false;
    if (out->req_id == NULL)
        return json_take_wrong(take, own, "expected the request's id on this side");
    return out->transfer_id != NULL ||
           json_take_wrong(take, "transfer_id", "expected the id that both sides know the request by");
}

static bool take_request(struct json_take *take, const json_t *object, int role, struct vllm_line *out)
{
    static const char *const ready[] = {"transfer_id", "p_req_id", "block_ids", "after_ms", "comment", NULL};
    static const char *const pull[] = {"d_req_id", "transfer_id", "block_ids", "remote_engine_id",
                                       "remote_bootstrap_addr", "after_ms", "comment", NULL};
    out->has_blocks = json_take_has(object, "block_ids");
    if (role == KVF_VLLM_PRODUCER)
        return json_take_known(take, object, ready) && take_ids(take, object, "p_req_id", out) &&
               take_after(take, object, out) &&
               vllm_take_groups(take, object, "block_ids", &out->keep, &out->groups, &out->group_count);
    return json_take_known(take, object, pull) && take_ids(take, object, "d_req_id", out) &&
           take_after(take, object, out) && json_take_text(take, object, "remote_engine_id", &out->engine_id) &&
           json_take_text(take, object, "remote_bootstrap_addr", &out->bootstrap) &&
           vllm_take_groups(take, object, "block_ids", &out->keep, &out->groups, &out->group_count);
}

bool vllm_line_take(json_t *object, const char *where, int role, struct vllm_line *out, struct json_take *take)
{
    static const struct {
        const char *key;
        int kind;
    } words[] = {{"quit", VLLM_LINE_QUIT}, {"sleep", VLLM_LINE_SLEEP}, {"wake", VLLM_LINE_WAKE}};
    static const char *const not_processed[] = {"not_processed", NULL}, *const dump[] = {"dump", NULL};
    *take = json_take_below("%s", where);
    *out = (struct vllm_line){.object = json_incref(object)};
    if (!json_is_object(object))
        return json_take_wrong(take, "", "expected an object");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *const known[] = {words[i].key, NULL};
        if (json_object_get(object, words[i].key) == NULL)
            continue;
        out->kind = words[i].kind;
        return json_take_known(take, object, known) &&
               (json_is_true(json_object_get(object, words[i].key)) ||
                json_take_wrong(take, words[i].key, "expected true"));
    }
    if (json_object_get(object, "dump") != NULL) {
        out->kind = VLLM_LINE_DUMP;
        return json_take_known(take, object, dump) && json_take_text(take, object, "dump", &out->file) &&
               (out->file != NULL || json_take_wrong(take, "dump", "expected a file's name"));
    }
    if (json_object_get(object, "not_processed") != NULL) {
        out->kind = VLLM_LINE_NOT_PROCESSED;
        if (role != KVF_VLLM_PRODUCER)
            return json_take_wrong(take, "not_processed", "only a producer drops transfers");
        return json_take_known(take, object, not_processed) &&
               json_take_text(take, object, "not_processed", &out->transfer_id) &&
               (out->transfer_id != NULL || json_take_wrong(take, "not_processed", "expected a transfer's id"));
    }
    return take_request(take, object, role, out);
}

void vllm_line_fini(struct vllm_line *line)
{
    vllm_keep_free(&line->keep);
    json_decref(line->object);
    *line = (struct vllm_line){0};
}
