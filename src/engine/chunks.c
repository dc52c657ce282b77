/* SPDX-License-Identifier: Apache-2.0 */
/* What is ready flows: cuts an offer into chunks (layers times tokens) and posts them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/jobs.h"

/* A chunk to be: layers [first, end) by index into engine->layers, tokens [begin, token_end). State and rings go with
 * the end of the range. Rings retain the last positions of the whole range, which a chunk of its last part does not
 * have: then they have a chunk of their own, their tail. */
struct cut {
    size_t first, end;
    int64_t token_begin, token_end;
    uint64_t flags; /* KVF_BIND_NO_STATE, KVF_BIND_ONLY_STATE for a tail, or 0 */
};

/* How far layer number `index` may go, with what is ready of it. Ends inside the range are rounded down to the grain.
 * */
static int64_t target_of(const struct kvfi_sink_job *sink, int64_t ready)
{
    const struct kvfi_msg_pull *pull = &sink->message.pull;
    int64_t grain = sink->plans->info.grain_tokens, end = ready;

    if (ready >= (sink->has_state ? pull->request_tokens : pull->token_end))
        return pull->token_end;
    if (end >= pull->token_end) /* all positions, but not the state */
        end = pull->token_end - 1;
    if (grain > 1)
        end -= end % grain;
    return end < pull->token_begin ? pull->token_begin : end;
}

/* How much of layer number `layer` is ready. Where two layers share one place, all layers go together. */
static int64_t ready_of(const kvf_engine *engine, const struct kvfi_sink_job *sink, size_t layer)
{
    const struct kvf_plan_info *info = &sink->plans->info;
    int64_t least = INT64_MAX;

    if (!engine->layout_aliases)
        return sink->offer->ready[layer];
    for (size_t i = 0; i < engine->layer_count; i++)
        if (engine->layers[i] >= info->layer_min && engine->layers[i] < info->layer_end &&
            sink->offer->ready[i] < least)
            least = sink->offer->ready[i];
    return least;
}

/* Bytes per token are taken as even: it is only a size to aim at. */
static void shorten(const kvf_engine *engine, const struct kvfi_sink_job *sink, struct cut *cut)
{
    const struct kvfi_msg_pull *pull = &sink->message.pull;
    int64_t grain = sink->plans->info.grain_tokens, whole = pull->token_end - pull->token_begin, tokens;
    double layers = (double)(cut->end - cut->first) / (double)engine->layer_count, bytes;

    if (grain < 1)
        grain = 1;
    if (whole <= 0)
        return;
    bytes = (double)sink->expected_bytes * layers * (double)(cut->token_end - cut->token_begin) / (double)whole;
    if (bytes <= (double)KVFI_CHUNK_BYTES * 1.25)
        return;
    tokens = (int64_t)((double)(cut->token_end - cut->token_begin) * (double)KVFI_CHUNK_BYTES / bytes);
    tokens -= tokens % grain;
    if (tokens < grain)
        tokens = grain;
    if (cut->token_begin + tokens < cut->token_end)
        cut->token_end = cut->token_begin + tokens;
}

static uint64_t flags_of(const struct kvfi_sink_job *sink, const struct cut *cut)
{
    const struct kvfi_msg_pull *pull = &sink->message.pull;
    bool ends = cut->token_end == pull->token_end, begins = cut->token_begin == pull->token_begin;

    return ends && (begins || !sink->has_tails) ? 0 : KVF_BIND_NO_STATE;
}

/* The tail of neighbouring layers whose positions are all sent. */
static bool next_tail(const kvf_engine *engine, const struct kvfi_sink_job *sink, struct cut *cut)
{
    const struct kvfi_msg_pull *pull = &sink->message.pull;
    size_t i = 0;

    *cut = (struct cut){.token_begin = pull->token_begin, .token_end = pull->token_end, .flags = KVF_BIND_ONLY_STATE};
    for (; sink->has_tails && i < engine->layer_count; i++) {
        bool due = !sink->tail_sent[i] && sink->sent[i] == pull->token_end &&
                   ready_of(engine, sink, i) >= pull->request_tokens;
        if (due && cut->end == 0)
            cut->first = i;
        if (due)
            cut->end = i + 1;
        else if (cut->end > 0)
            break;
    }
    return cut->end > 0;
}

/* The next chunk: neighbouring layers that stand at the same token and may go equally far. */
static bool next_cut(const kvf_engine *engine, const struct kvfi_sink_job *sink, struct cut *cut)
{
    size_t i = 0;

    for (; i < engine->layer_count; i++) {
        cut->token_end = target_of(sink, ready_of(engine, sink, i));
        if (cut->token_end > sink->sent[i])
            break;
    }
    if (i == engine->layer_count)
        return next_tail(engine, sink, cut);
    cut->first = i;
    cut->token_begin = sink->sent[i];
    while (i < engine->layer_count && sink->sent[i] == cut->token_begin &&
           target_of(sink, ready_of(engine, sink, i)) == cut->token_end)
        i++;
    cut->end = i;
    shorten(engine, sink, cut);
    cut->flags = flags_of(sink, cut);
    return true;
}

static bool all_sent(const kvf_engine *engine, const struct kvfi_sink_job *sink)
{
    for (size_t i = 0; i < engine->layer_count; i++)
        if (sink->sent[i] < sink->message.pull.token_end || (sink->has_tails && !sink->tail_sent[i]))
            return false;
    return true;
}

/* ---- posting ----------------------------------------------------------------------------------------------- */

static enum kvf_status bind_cut(kvf_engine *engine, struct kvfi_sink_job *sink, const struct cut *cut,
                                kvf_binding **out, struct kvf_error *error)
{
    const struct kvfi_msg_pull *pull = &sink->message.pull;
    struct kvf_bind_request request;
    kvf_plan *plan = NULL;
    enum kvf_status status;

    if (cut->first == 0 && cut->end == engine->layer_count && cut->token_begin == pull->token_begin &&
        cut->token_end == pull->token_end && cut->flags == 0 && sink->whole != NULL) {
        *out = sink->whole;
        sink->whole = NULL;
        return KVF_OK;
    }
    kvf_binding_destroy(sink->whole);
    sink->whole = NULL;
    status = kvfi_plans_restrict(sink->plans, engine->layers[cut->first], engine->layers[cut->end - 1] + 1, &plan,
                                 error);
    if (status != KVF_OK)
        return status;
    kvf_bind_request_init(&request, sizeof request);
    request.flags = cut->flags | KVF_BIND_RING_TAIL;
    request.token_begin = cut->token_begin;
    request.token_end = cut->token_end;
    request.request_tokens = pull->request_tokens;
    request.src = sink->offer->groups;
    request.src_count = sink->offer->group_count;
    request.dst = pull->groups;
    request.dst_count = pull->group_count;
    status = kvf_bind(plan, &request, out, error);
    kvf_plan_release(plan);
    return status;
}

static void drop_post(struct kvfi_post *post)
{
    struct kvfi_sink_job *sink = post->sink;

    *(post->previous == NULL ? &sink->posts : &post->previous->next) = post->next;
    if (post->next != NULL)
        post->next->previous = post->previous;
    kvf_binding_destroy(post->binding);
    free(post);
}

/* Takes the binding. */
static struct kvfi_post *make_post(struct kvfi_sink_job *sink, kvf_binding *binding)
{
    struct kvf_binding_info info;
    struct kvfi_post *post = calloc(1, sizeof *post);

    if (post == NULL) {
        kvf_binding_destroy(binding);
        return NULL;
    }
    kvf_binding_get_info(binding, &info);
    post->sink = sink;
    post->binding = binding;
    post->bytes = info.bytes;
    post->runs = info.runs;
    post->next = sink->posts;
    if (sink->posts != NULL)
        sink->posts->previous = post;
    sink->posts = post;
    return post;
}

static enum kvf_status post_chunk(kvf_engine *engine, struct kvfi_sink_job *sink, struct kvfi_post *post,
                                  const struct cut *cut, struct kvf_error *error)
{
    const struct kvfi_carrier *carrier = &engine->carriers[sink->carrier];
    bool last = sink->posted_bytes + post->bytes == sink->expected_bytes;
    struct kvfi_chunk chunk = {.grant = sink->message.pull.grant, .index = sink->chunks, .last = last,
                               .layer_first = engine->layers[cut->first],
                               .layer_end = engine->layers[cut->end - 1] + 1, .token_begin = cut->token_begin,
                               .token_end = cut->token_end, .bind_flags = cut->flags,
                               .binding = post->binding, .bytes = post->bytes, .cookie = (uint64_t)(uintptr_t)post};
    enum kvf_status status;

    if (sink->posted_bytes + post->bytes > sink->expected_bytes || sink->chunks >= KVFI_CHUNK_LIMIT)
        return kvfi_fail(error, KVF_ERR_INTERNAL, "chunk %" PRIu32 " would make %" PRId64 " bytes of %" PRId64,
                         sink->chunks, sink->posted_bytes + post->bytes, sink->expected_bytes);
    post->layer_first = chunk.layer_first;
    post->layer_end = chunk.layer_end;
    post->token_end = chunk.token_end;
    status = carrier->ops->post_chunk(carrier->transport, sink->link_number, &chunk, error);
    if (status != KVF_OK)
        return status;
    sink->chunks++;
    sink->posted_bytes += post->bytes;
    kvfi_sink_feed(engine, sink, KVFI_SINK_ON_POST, KVF_OK, last);
    return KVF_OK;
}

/* Posts one chunk; one without a byte is only noted. */
static enum kvf_status send_cut(kvf_engine *engine, struct kvfi_sink_job *sink, const struct cut *cut,
                                struct kvf_error *error)
{
    kvf_binding *binding = NULL;
    struct kvfi_post *post;
    enum kvf_status status = bind_cut(engine, sink, cut, &binding, error);

    if (status != KVF_OK)
        return status;
    post = make_post(sink, binding);
    if (post == NULL)
        return kvfi_fail_memory(error, "a chunk");
    if (post->bytes > 0)
        status = post_chunk(engine, sink, post, cut, error);
    if (post->bytes == 0 || status != KVF_OK)
        drop_post(post);
    for (size_t i = cut->first; status == KVF_OK && i < cut->end; i++) {
        sink->sent[i] = cut->token_end;
        sink->tail_sent[i] = cut->flags != KVF_BIND_NO_STATE;
    }
    return status;
}

void kvfi_sink_pump(kvf_engine *engine, struct kvfi_sink_job *sink)
{
    struct kvf_error error = {.position = -1};
    enum kvf_status status = KVF_OK;
    struct cut cut;

    while (status == KVF_OK && sink->life.state == KVFI_SINK_SENDING && sink->life.posts_out < KVFI_MAX_POSTS_OUT &&
           next_cut(engine, sink, &cut))
        status = send_cut(engine, sink, &cut, &error);
    if (status == KVF_OK && sink->life.state == KVFI_SINK_SENDING && sink->life.posts_out == 0 &&
        all_sent(engine, sink))
        status = kvfi_fail(&error, KVF_ERR_INTERNAL, "all chunks make %" PRId64 " bytes of %" PRId64,
                           sink->posted_bytes, sink->expected_bytes);
    if (status != KVF_OK)
        kvfi_sink_fail(engine, sink, &error);
}

/* ---- what came of it --------------------------------------------------------------------------------------- */

static void send_progress(kvf_engine *engine, const struct kvfi_sink_job *sink, const struct kvfi_post *post)
{
    struct kvfi_message message = {
        .type = KVFI_MSG_PROGRESS,
        .progress = {.transfer = sink->offer->transfer, .attempt = sink->offer->attempt,
                     .writer = kvfi_own_number(engine, sink->peer), .layer_first = post->layer_first,
                     .layer_end = post->layer_end, .token_end = post->token_end, .bytes = sink->placed_bytes}};

    if (sink->peer->routed)
        (void)kvfi_send(engine, &sink->peer->route, &message, NULL);
}

void kvfi_post_ended(kvf_engine *engine, const struct kvfi_transport_event *event)
{
    struct kvfi_post *post = (struct kvfi_post *)(uintptr_t)event->cookie;
    struct kvfi_sink_job *sink = post->sink;

    if (event->status == KVF_OK) {
        sink->placed_bytes += post->bytes;
        sink->placed_runs += post->runs;
        pthread_mutex_lock(&engine->loop.lock);
        engine->counters.bytes_sent += post->bytes;
        pthread_mutex_unlock(&engine->loop.lock);
        if (sink->placed_bytes < sink->expected_bytes && sink->peer != NULL && sink->life.state != KVFI_SINK_DRAINING)
            send_progress(engine, sink, post);
    } else if (sink->life.state != KVFI_SINK_DRAINING && sink->peer != NULL) {
        snprintf(sink->text, sizeof sink->text, "%s over %s: %.300s", sink->peer->name,
                 engine->carriers[sink->carrier].name,
                 event->text[0] == '\0' ? kvf_strerror(event->status) : event->text);
    }
    drop_post(post);
    kvfi_sink_feed(engine, sink, KVFI_SINK_ON_POSTED, event->status, 0);
    kvfi_sink_pump(engine, sink);
}
