/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a stand-alone vLLM rank: from lines to steps, from the worker's events to lines. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_lines.h"
#include "cli/vllm_serve.h"

#define EVENTS_AT_ONCE 16

/** Says that a line was of no use. */
static void reject(struct vllm_serve *serve, const char *id, int status, const char *text)
{
    json_t *event = json_pack("{s:s, s:s, s:s}", "event", "rejected", "status", kvf_status_name(status), "text", text);
    if (id != NULL)
        json_object_set_new(event, "req_id", json_string(id));
    json_lines_tell(event);
    serve->line_failed = true;
}

/** The youngest request of an id; NULL when there is none. */
static struct vllm_job *find_job(const struct vllm_serve *serve, const char *req_id)
{
    for (size_t i = serve->job_count; i > 0 && req_id[0] != '\0'; i--) {
        if (strcmp(serve->jobs[i - 1].line.req_id, req_id) == 0)
            return &serve->jobs[i - 1];
    }
    return NULL;
}

size_t vllm_serve_unfinished(const struct vllm_serve *serve)
{
    size_t count = 0;
    for (size_t i = 0; i < serve->job_count; i++)
        count += !serve->jobs[i].over;
    return count;
}

int64_t vllm_serve_next_due(const struct vllm_serve *serve)
{
    int64_t due = INT64_MAX;
    for (size_t i = 0; i < serve->job_count; i++) {
        const struct vllm_job *job = &serve->jobs[i];
        if (!job->begun && !job->over && job->line.has_blocks && job->due_ns < due)
            due = job->due_ns;
    }
    return due;
}

/** Lists that a step borrows. */
struct batch {
    struct kvf_vllm_recv *recvs;
    struct kvf_vllm_send *sends;
    struct vllm_job **jobs;
    struct kvf_vllm_step step;
    size_t count;
};

static bool batch_init(struct batch *batch, size_t most)
{
    *batch = (struct batch){.step = {.struct_size = sizeof(batch->step)}};
    batch->recvs = calloc(most + 1, sizeof(*batch->recvs));
    batch->sends = calloc(most + 1, sizeof(*batch->sends));
    batch->jobs = calloc(most + 1, sizeof(*batch->jobs));
    batch->step.recvs = batch->recvs;
    batch->step.sends = batch->sends;
    return batch->recvs != NULL && batch->sends != NULL && batch->jobs != NULL;
}

static void batch_fini(struct batch *batch)
{
    free(batch->recvs);
    free(batch->sends);
    free(batch->jobs);
}

/** Adds a request as it stands now: known only, or with its blocks. */
static void batch_add(const struct vllm_serve *serve, struct batch *batch, struct vllm_job *job, bool is_due)
{
    const struct vllm_line *line = &job->line;
    const struct vllm_endpoint *endpoint = &serve->spec.endpoint;
    if (serve->options->role == KVF_VLLM_PRODUCER)
        batch->sends[batch->step.send_count++] =
            (struct kvf_vllm_send){.p_req_id = line->req_id,
                                   .transfer_id = line->transfer_id,
                                   .groups = is_due ? line->groups : NULL,
                                   .group_count = is_due ? line->group_count : 0};
    else
        batch->recvs[batch->step.recv_count++] = (struct kvf_vllm_recv){
            .d_req_id = line->req_id,
            .transfer_id = line->transfer_id,
            .remote_engine_id = line->engine_id != NULL ? line->engine_id : endpoint->remote_engine_id,
            .remote_bootstrap_addr = line->bootstrap != NULL ? line->bootstrap : endpoint->remote_bootstrap_addr,
            .groups = line->groups,
            .group_count = line->group_count};
    batch->jobs[batch->count++] = job;
}

static void settle_batch(struct batch *batch, bool taken)
{
    for (size_t i = 0; i < batch->count; i++) {
        struct vllm_job *job = batch->jobs[i];
        job->announced = taken;
        if (batch->step.recv_count > 0 || batch->sends[i].groups != NULL)
            job->begun = true;
        if (!taken)
            job->over = job->failed = true;
    }
}

/** Each request of a batch that was refused as a whole, alone. */
static void step_alone(struct vllm_serve *serve, const struct batch *all)
{
    for (size_t i = 0; i < all->count; i++) {
        struct kvf_error error = {.position = -1};
        struct batch one = *all;
        one.count = 1;
        one.jobs = &all->jobs[i];
        one.sends = &all->sends[i];
        one.step = (struct kvf_vllm_step){.struct_size = sizeof(one.step),
                                          .recvs = &all->recvs[i],
                                          .recv_count = all->step.recv_count > 0,
                                          .sends = &all->sends[i],
                                          .send_count = all->step.send_count > 0};
        enum kvf_status status = kvf_vllm_worker_step(serve->worker, &one.step, &error);
        settle_batch(&one, status == KVF_OK);
        if (status != KVF_OK)
            reject(serve, all->jobs[i]->line.req_id, (int)status, error.text);
    }
}

void vllm_serve_step(struct vllm_serve *serve)
{
    struct batch batch;
    struct kvf_error error = {.position = -1};
    int64_t now = cli_now_ns();
    if (!batch_init(&batch, serve->job_count)) {
        cli_error(serve->command, "no memory for a step");
        serve->line_failed = serve->stopping = true;
        goto done;
    }
    for (size_t i = 0; i < serve->job_count; i++) {
        struct vllm_job *job = &serve->jobs[i];
        bool is_due = job->line.has_blocks && job->due_ns <= now;
        if (job->over || job->begun)
            continue;
        if (serve->options->role == KVF_VLLM_PRODUCER ? is_due || !job->announced : job->due_ns <= now)
            batch_add(serve, &batch, job, is_due);
    }
    if (batch.count == 0)
        goto done;
    if (kvf_vllm_worker_step(serve->worker, &batch.step, &error) == KVF_OK)
        settle_batch(&batch, true);
    else
        step_alone(serve, &batch);
done:
    batch_fini(&batch);
}

/** A producer's request that is known gets its blocks. False when it is another, new one. */
static bool complete_known(struct vllm_serve *serve, struct vllm_line *line)
{
    struct vllm_job *job = serve->options->role == KVF_VLLM_PRODUCER ? find_job(serve, line->req_id) : NULL;
    if (job == NULL || job->over || job->begun || job->line.has_blocks || !line->has_blocks ||
        strcmp(job->line.transfer_id, line->transfer_id) != 0)
        return false;
    struct vllm_line before = job->line;
    job->line = *line;
    job->due_ns = cli_now_ns() + line->after_ns;
    *line = before;
    return true;
}

static void take_request(struct vllm_serve *serve, struct vllm_line *line)
{
    const struct vllm_endpoint *endpoint = &serve->spec.endpoint;
    const struct vllm_job *before = find_job(serve, line->req_id);
    if (complete_known(serve, line))
        return;
    if (before != NULL && !before->over) {
        reject(serve, line->req_id, KVF_ERR_EXISTS, "a request of this id is not over");
        return;
    }
    if (serve->options->role == KVF_VLLM_CONSUMER &&
        ((line->engine_id == NULL && endpoint->remote_engine_id == NULL) ||
         (line->bootstrap == NULL && endpoint->remote_bootstrap_addr == NULL))) {
        reject(serve, line->req_id, KVF_ERR_INVALID_ARGUMENT,
               "neither the request nor endpoint has remote_engine_id and remote_bootstrap_addr");
        return;
    }
    struct vllm_job *larger = realloc(serve->jobs, (serve->job_count + 1) * sizeof(*larger));
    if (larger == NULL) {
        reject(serve, line->req_id, KVF_ERR_NO_MEMORY, "no memory for a request");
        return;
    }
    serve->jobs = larger;
    serve->jobs[serve->job_count++] = (struct vllm_job){.line = *line, .due_ns = cli_now_ns() + line->after_ns};
    *line = (struct vllm_line){0};
}

/** Drops a transfer, as a scheduler does whose request was aborted. */
static void take_not_processed(struct vllm_serve *serve, const char *transfer_id)
{
    struct kvf_error error = {.position = -1};
    struct kvf_vllm_step step = {
        .struct_size = sizeof(step), .not_processed = &transfer_id, .not_processed_count = 1};
    enum kvf_status status = kvf_vllm_worker_step(serve->worker, &step, &error);
    if (status != KVF_OK)
        reject(serve, NULL, (int)status, error.text);
    for (size_t i = 0; status == KVF_OK && i < serve->job_count; i++) {
        if (strcmp(serve->jobs[i].line.transfer_id, transfer_id) == 0)
            serve->jobs[i].over = true;
    }
}

static void take_dump(struct vllm_serve *serve, const char *file)
{
    if (vllm_memory_dump(serve->command, &serve->memory, file) == CLI_OK)
        json_lines_tell(json_pack("{s:s, s:s, s:I}", "event", "dumped", "file", file, "bytes",
                                  (json_int_t)serve->memory.bytes));
    else
        reject(serve, NULL, KVF_ERR_SYSTEM, "the file cannot be written");
}

static void take_sleep(struct vllm_serve *serve, bool sleeps)
{
    struct kvf_error error = {.position = -1};
    enum kvf_status status = sleeps ? kvf_vllm_worker_sleep(serve->worker, INT64_C(1000000000), &error)
                                    : kvf_vllm_worker_wake(serve->worker, &error);
    if (status == KVF_OK)
        json_lines_tell(json_pack("{s:s}", "event", sleeps ? "asleep" : "awake"));
    else
        reject(serve, NULL, (int)status, error.text);
}

void vllm_serve_line(struct vllm_serve *serve, json_t *object, const char *where)
{
    struct vllm_line line;
    struct json_take take;
    if (!vllm_line_take(object, where, serve->options->role, &line, &take)) {
        reject(serve, line.req_id, KVF_ERR_PARSE, take.text);
        vllm_line_fini(&line);
        return;
    }
    switch (line.kind) {
    case VLLM_LINE_QUIT: serve->stopping = serve->input_ended = true; break;
    case VLLM_LINE_NOT_PROCESSED: take_not_processed(serve, line.transfer_id); break;
    case VLLM_LINE_DUMP: take_dump(serve, line.file); break;
    case VLLM_LINE_SLEEP: take_sleep(serve, true); break;
    case VLLM_LINE_WAKE: take_sleep(serve, false); break;
    default: take_request(serve, &line); break;
    }
    vllm_line_fini(&line);
}

static void tell_event(const struct kvf_vllm_event *event)
{
    static const char *const kinds[] = {"none", "pull", "sent", "send_failed", "released", "expired", "asked",
                                        "received", "failed", "settled", "refused"};
    const struct {
        const char *name, *text;
    } texts[] = {{"req_id", event->req_id}, {"transfer_id", event->transfer_id}, {"peer", event->peer},
                 {"text", event->text}};
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {{"requests", event->requests}, {"bytes", event->bytes}, {"descriptors", event->descriptors},
                   {"started_ns", event->started_ns}, {"ended_ns", event->ended_ns}};
    if (event->kind < 0 || event->kind >= (int32_t)(sizeof(kinds) / sizeof(kinds[0])))
        return;
    json_t *told = json_pack("{s:s}", "event", kinds[event->kind]);
    if (event->status != KVF_OK)
        json_object_set_new(told, "status", json_string(kvf_status_name(event->status)));
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i].text[0] != '\0')
            json_object_set_new(told, texts[i].name, json_string(texts[i].text));
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].number != 0)
            json_object_set_new(told, numbers[i].name, json_integer(numbers[i].number));
    }
    json_lines_tell(told);
}

static void take_event(struct vllm_serve *serve, const struct kvf_vllm_event *event)
{
    struct vllm_job *job = find_job(serve, event->req_id);
    tell_event(event);
    if (job == NULL)
        return;
    switch (event->kind) {
    case KVF_VLLM_EVENT_EXPIRED: job->failed = true; job->over = true; break;
    case KVF_VLLM_EVENT_FAILED: job->failed = true; break;
    case KVF_VLLM_EVENT_RELEASED:
    case KVF_VLLM_EVENT_RECEIVED:
    case KVF_VLLM_EVENT_SETTLED: job->over = true; break;
    default: break;
    }
}

static json_t *texts_json(const char *const *texts, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_string(texts[i]));
    return list;
}

/** Tells what the host's scheduler would be told. */
static void tell_done(const struct kvf_vllm_done *done)
{
    json_t *told = json_pack("{s:s}", "event", "finished");
    if (done->finished_sending_count > 0)
        json_object_set_new(told, "finished_sending",
                            texts_json(done->finished_sending, done->finished_sending_count));
    if (done->finished_recving_count > 0)
        json_object_set_new(told, "finished_recving",
                            texts_json(done->finished_recving, done->finished_recving_count));
    if (done->failed_recving_count > 0)
        json_object_set_new(told, "failed_recving", texts_json(done->failed_recving, done->failed_recving_count));
    if (done->invalid_block_count > 0) {
        json_t *list = json_array();
        for (size_t i = 0; i < done->invalid_block_count; i++)
            json_array_append_new(list, json_integer(done->invalid_blocks[i]));
        json_object_set_new(told, "invalid_blocks", list);
    }
    if (json_object_size(told) > 1)
        json_lines_tell(told);
    else
        json_decref(told);
}

static void take_done(struct vllm_serve *serve, const char *const *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct vllm_job *job = find_job(serve, ids[i]);
        if (job != NULL)
            job->over = true;
    }
}

static void take_events(struct vllm_serve *serve)
{
    struct kvf_vllm_event events[EVENTS_AT_ONCE];
    size_t got;
    while ((got = kvf_vllm_worker_poll(serve->worker, events, EVENTS_AT_ONCE)) > 0) {
        for (size_t i = 0; i < got; i++)
            take_event(serve, &events[i]);
    }
}

void vllm_serve_events(struct vllm_serve *serve)
{
    struct kvf_vllm_done done = {.struct_size = sizeof(done)};
    struct kvf_error error = {.position = -1};
    if (kvf_vllm_worker_collect(serve->worker, &done, &error) != KVF_OK) {
        cli_error(serve->command, "%s", error.text);
        take_events(serve);
        return;
    }
    take_events(serve); /* what was collected has been told as events before */
    tell_done(&done);
    take_done(serve, done.finished_sending, done.finished_sending_count);
    take_done(serve, done.finished_recving, done.finished_recving_count);
    kvf_vllm_done_release(&done);
}
