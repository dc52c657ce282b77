/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a stand-alone TensorRT-LLM rank: from lines to sessions, from the worker's events to lines. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_lines.h"
#include "cli/trtllm_serve.h"

#define EVENTS_AT_ONCE 16

static bool refuse(struct trtllm_serve *serve, int64_t rid, int status, const char *text)
{
    json_t *event = json_pack("{s:s, s:s, s:s}", "event", "refused", "status", kvf_status_name(status), "text", text);
    if (rid >= 0)
        json_object_set_new(event, "rid", json_integer(rid));
    json_lines_tell(event);
    serve->line_failed = true;
    return false;
}

/** The youngest job of a rid; NULL when there is none. */
static struct trtllm_job *find_job(const struct trtllm_serve *serve, int64_t rid)
{
    for (size_t i = serve->job_count; i > 0; i--) {
        if (serve->jobs[i - 1].line.rid == rid)
            return &serve->jobs[i - 1];
    }
    return NULL;
}

/** Hands over the next piece. The library takes of the tables what the piece completes. */
static enum kvf_status send_piece(struct trtllm_serve *serve, struct trtllm_job *job, struct kvf_error *error)
{
    const struct trtllm_line *line = &job->line;
    struct kvf_trtllm_piece piece;
    kvf_trtllm_piece_init(&piece, sizeof(piece));
    piece.rid = line->rid;
    piece.is_last = job->next_piece + 1 == line->piece_count;
    piece.token_begin = line->pieces[job->next_piece].begin;
    piece.token_end = line->pieces[job->next_piece].end;
    piece.groups = line->groups;
    piece.group_count = line->group_count;
    enum kvf_status status = kvf_trtllm_worker_send_piece(serve->worker, &piece, error);
    if (status == KVF_OK && piece.is_last && line->schedule == KVF_TRTLLM_GENERATION_FIRST &&
        line->aux_slot != KVF_TRTLLM_NONE)
        status = kvf_trtllm_worker_send_aux(serve->worker, line->rid, line->aux_slot, error);
    job->next_piece += status == KVF_OK;
    return status;
}

static uint8_t hex_byte(const char *text)
{
    char pair[3] = {text[0], text[1], '\0'};
    return (uint8_t)strtoul(pair, NULL, 16);
}

/** Puts what a line says into its auxiliary slot, zeros behind. */
static void write_aux(struct trtllm_serve *serve, const struct trtllm_line *line)
{
    for (size_t i = serve->memory.pool_count; i < serve->memory.count; i++) {
        const struct trtllm_region *region = &serve->memory.regions[i];
        int64_t item = trtllm_aux_item(kvf_trtllm_rank_get_spec(serve->rank), region->pool);
        const char *text = json_string_value(json_array_get(line->aux, (size_t)region->pool));
        if (item <= 0 || line->aux_slot < 0 || line->aux_slot >= region->bytes / item)
            continue;
        uint8_t *at = region->base + line->aux_slot * item;
        memset(at, 0, (size_t)item);
        for (int64_t b = 0; text != NULL && b < item && text[2 * b] != '\0'; b++)
            at[b] = hex_byte(text + 2 * b);
    }
}

static struct trtllm_painting painting_of(const struct trtllm_line *line)
{
    return (struct trtllm_painting){.rid = line->rid,
                                    .prompt_tokens = line->prompt_tokens,
                                    .start_token = line->start_token == KVF_TRTLLM_NONE ? 0 : line->start_token,
                                    .groups = line->groups,
                                    .group_count = line->group_count,
                                    .aux_slot = line->schedule == KVF_TRTLLM_GENERATION_FIRST ? line->aux_slot
                                                                                              : KVF_TRTLLM_NONE};
}

static enum kvf_status start_send(struct trtllm_serve *serve, struct trtllm_job *job, struct kvf_error *error)
{
    const struct trtllm_line *line = &job->line;
    struct trtllm_painting painting = painting_of(line);
    struct kvf_trtllm_send send;
    if (serve->spec.paints)
        trtllm_paint(serve->rank, &serve->memory, serve->spec.kv_heads, &painting, serve->images);
    if (line->aux != NULL)
        write_aux(serve, line);
    kvf_trtllm_send_init(&send, sizeof(send));
    send.rid = line->rid;
    send.schedule = line->schedule;
    send.prompt_tokens = line->prompt_tokens;
    send.timeout_ns = line->timeout_ns;
    enum kvf_status status = kvf_trtllm_worker_send_open(serve->worker, &send, error);
    job->started = status == KVF_OK;
    while (status == KVF_OK && !line->hold && job->next_piece < line->piece_count)
        status = send_piece(serve, job, error);
    return status;
}

static enum kvf_status start_receive(struct trtllm_serve *serve, struct trtllm_job *job, struct kvf_error *error)
{
    const struct trtllm_line *line = &job->line;
    struct kvf_trtllm_receive receive;
    kvf_trtllm_receive_init(&receive, sizeof(receive));
    receive.rid = line->rid;
    receive.sender_req_id = line->sender_req_id;
    receive.info_endpoint = line->info;
    receive.ctx_dp_rank = line->ctx_dp_rank;
    receive.schedule = line->schedule;
    receive.prompt_tokens = line->prompt_tokens;
    receive.groups = line->groups;
    receive.group_count = line->group_count;
    receive.aux_slot = line->schedule == KVF_TRTLLM_GENERATION_FIRST ? line->aux_slot : KVF_TRTLLM_NONE;
    receive.dst_start_token = line->start_token;
    receive.timeout_ns = line->timeout_ns;
    enum kvf_status status = kvf_trtllm_worker_receive(serve->worker, &receive, error);
    job->started = status == KVF_OK;
    return status;
}

/** Ends a job that has no session. */
static void end_unstarted(struct trtllm_job *job, int state, int status)
{
    job->ended = job->settled = true;
    job->waits = false;
    job->state = state;
    job->status = status;
}

static bool start(struct trtllm_serve *serve, struct trtllm_job *job)
{
    struct kvf_error error = {.position = -1};
    int64_t rid = job->line.rid;
    enum kvf_status status =
        serve->options->role == 0 ? start_send(serve, job, &error) : start_receive(serve, job, &error);
    if (status == KVF_OK) {
        json_lines_tell(json_pack("{s:s, s:I}", "event", "accepted", "rid", (json_int_t)rid));
        return true;
    }
    if (job->started) { /* a piece was refused: the session is of no use */
        struct kvf_error ignored = {.position = -1};
        job->cancelled_here = true;
        kvf_trtllm_worker_cancel(serve->worker, KVF_TRTLLM_SEND, rid, &ignored);
    } else {
        end_unstarted(job, KVF_TRTLLM_STATE_ERROR, (int)status);
    }
    return refuse(serve, rid, (int)status, error.text[0] != '\0' ? error.text : kvf_strerror((int)status));
}

/** Adds a job; the line is the job's from now on. NULL without memory. */
static struct trtllm_job *add_job(struct trtllm_serve *serve, struct trtllm_line *line)
{
    struct trtllm_job *larger = realloc(serve->jobs, (serve->job_count + 1) * sizeof(*larger));
    if (larger == NULL)
        return NULL;
    serve->jobs = larger;
    struct trtllm_job *job = &serve->jobs[serve->job_count++];
    *job = (struct trtllm_job){.line = *line, .since_ns = cli_now_ns()};
    *line = (struct trtllm_line){.rid = -1};
    return job;
}

static bool take_request(struct trtllm_serve *serve, struct trtllm_line *line)
{
    int64_t rid = line->rid;
    const struct trtllm_job *before = find_job(serve, rid);
    if (before != NULL && !(before->ended && before->settled))
        return refuse(serve, rid, KVF_ERR_EXISTS, "a request of this rid is not over");
    if (serve->options->role == 1 && line->info == NULL && line->from == NULL)
        return refuse(serve, rid, KVF_ERR_INVALID_ARGUMENT, "neither info nor from says where the context is");
    if (line->from != NULL && serve->meet.folder == NULL)
        return refuse(serve, rid, KVF_ERR_INVALID_ARGUMENT, "from needs --meet: the folder to look into");
    struct trtllm_job *job = add_job(serve, line);
    if (job == NULL)
        return refuse(serve, rid, KVF_ERR_NO_MEMORY, "no memory for a request");
    job->waits = job->line.from != NULL || !serve->is_complete;
    if (job->waits) {
        trtllm_serve_resolve(serve);
        return true;
    }
    return start(serve, job);
}

void trtllm_serve_resolve(struct trtllm_serve *serve)
{
    for (size_t i = 0; i < serve->job_count; i++) {
        struct trtllm_job *job = &serve->jobs[i];
        char text[KVF_ERROR_TEXT_BYTES];
        if (!job->waits || !serve->is_complete)
            continue;
        if (job->line.from != NULL)
            job->line.info = trtllm_meet_info(&serve->meet, job->line.from);
        if (job->line.from == NULL || job->line.info != NULL) {
            job->waits = false;
            start(serve, job);
        } else if (cli_now_ns() - job->since_ns > serve->options->timeout_ns) {
            end_unstarted(job, KVF_TRTLLM_STATE_ERROR, KVF_ERR_TIMEOUT);
            snprintf(text, sizeof(text), "no rank 0 of \"%.80s\" has come to %.100s within %g s", job->line.from,
                     serve->meet.folder, (double)serve->options->timeout_ns / 1e9);
            refuse(serve, job->line.rid, KVF_ERR_TIMEOUT, text);
        }
    }
}

bool trtllm_serve_cancel(struct trtllm_serve *serve, int64_t rid, bool by_line, struct kvf_error *error)
{
    struct trtllm_job *job = find_job(serve, rid);
    if (job == NULL) {
        snprintf(error->text, sizeof(error->text), "no request %" PRId64 " was taken", rid);
        error->status = KVF_ERR_NOT_FOUND;
        return false;
    }
    job->cancelled_here = job->cancelled_here || by_line;
    if (job->waits)
        end_unstarted(job, KVF_TRTLLM_STATE_CANCELLED, KVF_ERR_CANCELLED);
    if (!job->started || (job->ended && job->settled))
        return true;
    return kvf_trtllm_worker_cancel(serve->worker, serve->options->role == 0 ? KVF_TRTLLM_SEND : KVF_TRTLLM_RECEIVE,
                                    rid, error) == KVF_OK;
}

static bool take_send(struct trtllm_serve *serve, int64_t rid)
{
    struct trtllm_job *job = find_job(serve, rid);
    struct kvf_error error = {.position = -1};
    if (serve->options->role != 0 || job == NULL || !job->started)
        return refuse(serve, rid, KVF_ERR_NOT_FOUND, "no request of this rid is being sent");
    if (job->next_piece >= job->line.piece_count)
        return refuse(serve, rid, KVF_ERR_INVALID_ARGUMENT, "all its pieces were sent");
    enum kvf_status status = send_piece(serve, job, &error);
    return status == KVF_OK || refuse(serve, rid, (int)status, error.text);
}

static bool take_dump(struct trtllm_serve *serve, const char *file)
{
    if (trtllm_memory_dump(serve->command, &serve->memory, file) != CLI_OK)
        return refuse(serve, -1, KVF_ERR_SYSTEM, "the file cannot be written");
    json_lines_tell(
        json_pack("{s:s, s:s, s:I}", "event", "dumped", "file", file, "bytes", (json_int_t)serve->memory.bytes));
    return true;
}

bool trtllm_serve_complete(struct trtllm_serve *serve, char *const *senders, size_t count, struct kvf_error *error)
{
    if (kvf_trtllm_worker_complete(serve->worker, NULL, 0, (const char *const *)senders, count, error) != KVF_OK)
        return false;
    serve->is_complete = true;
    json_lines_tell(json_pack("{s:s}", "event", "complete"));
    return true;
}

bool trtllm_serve_line(struct trtllm_serve *serve, const json_t *object, const char *where)
{
    struct trtllm_line line;
    struct json_take take;
    struct kvf_error error = {.position = -1};
    bool taken = false;
    if (!trtllm_line_take(object, where, serve->options->role, &line, &take)) {
        refuse(serve, line.rid, KVF_ERR_PARSE, take.text);
        goto done;
    }
    switch (line.kind) {
    case TRTLLM_LINE_CANCEL:
        taken = trtllm_serve_cancel(serve, line.rid, true, &error) || refuse(serve, line.rid, error.status, error.text);
        break;
    case TRTLLM_LINE_SEND: taken = take_send(serve, line.rid); break;
    case TRTLLM_LINE_DUMP: taken = take_dump(serve, line.file); break;
    case TRTLLM_LINE_COMPLETE:
        taken = trtllm_serve_complete(serve, line.endpoints, line.endpoint_count, &error) ||
                refuse(serve, -1, error.status, error.text);
        break;
    default: taken = take_request(serve, &line); break;
    }
done:
    trtllm_line_fini(&line);
    return taken;
}

/** Frees the session of a job that is over, so that its rid may be used again. */
static void retire(struct trtllm_serve *serve, const struct kvf_trtllm_event *event)
{
    struct kvf_error ignored = {.position = -1};
    kvf_trtllm_worker_close_session(serve->worker, event->direction, event->rid, &ignored);
}

static void take_event(struct trtllm_serve *serve, const struct kvf_trtllm_event *event)
{
    struct trtllm_job *job = find_job(serve, event->rid);
    struct kvf_error ignored = {.position = -1};
    json_int_t rid = event->rid;
    json_t *told = NULL;
    if (job == NULL)
        return;
    switch (event->kind) {
    case KVF_TRTLLM_EVENT_ENDED:
        job->ended = true;
        job->state = event->state;
        job->status = event->status;
        told = json_pack("{s:s, s:I, s:s, s:b, s:s, s:s, s:s, s:I, s:I}", "event", "ended", "rid", rid, "state",
                         kvf_trtllm_state_text(event->state), "by_peer", event->by_peer != 0, "status",
                         kvf_status_name(event->status), "text", event->text, "peer", event->peer, "bytes",
                         (json_int_t)event->bytes, "peers", (json_int_t)event->peers);
        break;
    case KVF_TRTLLM_EVENT_SETTLED:
        job->settled = true;
        retire(serve, event);
        told = json_pack("{s:s, s:I}", "event", "settled", "rid", rid);
        break;
    case KVF_TRTLLM_EVENT_READY: told = json_pack("{s:s, s:I}", "event", "asked", "rid", rid); break;
    case KVF_TRTLLM_EVENT_PIECE:
        told = json_pack("{s:s, s:I, s:I, s:I}", "event", "piece", "rid", rid, "piece", (json_int_t)event->piece,
                         "tokens", (json_int_t)event->tokens);
        break;
    case KVF_TRTLLM_EVENT_TIMEOUT: /* the session would wait for ever; the command does not */
        job->timed_out = true;
        told = json_pack("{s:s, s:I, s:s}", "event", "timeout", "rid", rid, "text", event->text);
        kvf_trtllm_worker_cancel(serve->worker, event->direction, event->rid, &ignored);
        break;
    case KVF_TRTLLM_EVENT_QUARANTINED:
    case KVF_TRTLLM_EVENT_OVERDUE:
        job->lost = true;
        told = json_pack("{s:s, s:I, s:s}", "event",
                         event->kind == KVF_TRTLLM_EVENT_OVERDUE ? "overdue" : "quarantined", "rid", rid, "text",
                         event->text);
        break;
    default: return;
    }
    json_lines_tell(told);
}

void trtllm_serve_events(struct trtllm_serve *serve)
{
    struct kvf_trtllm_event events[EVENTS_AT_ONCE];
    size_t got;
    while ((got = kvf_trtllm_worker_poll(serve->worker, events, EVENTS_AT_ONCE)) > 0) {
        for (size_t i = 0; i < got; i++)
            take_event(serve, &events[i]);
    }
}

bool trtllm_serve_idle(const struct trtllm_serve *serve, bool logically)
{
    for (size_t i = 0; i < serve->job_count; i++) {
        const struct trtllm_job *job = &serve->jobs[i];
        if (job->waits || (job->started && !job->ended) ||
            (!logically && job->started && !job->settled && !job->lost))
            return false;
    }
    return true;
}

/** What one job makes of the exit code. */
static int job_outcome(const struct trtllm_job *job)
{
    if (job->timed_out && job->state != KVF_TRTLLM_STATE_TRANSFERRED)
        return CLI_PEER;
    if (!job->ended || !job->settled)
        return CLI_FAILED;
    if (job->state == KVF_TRTLLM_STATE_TRANSFERRED)
        return CLI_OK;
    if (job->state == KVF_TRTLLM_STATE_CANCELLED)
        return job->cancelled_here ? CLI_OK : CLI_FAILED;
    return cli_exit_code(job->status) == CLI_PEER ? CLI_PEER : CLI_FAILED;
}

int trtllm_serve_outcome(const struct trtllm_serve *serve)
{
    int code = CLI_OK;
    for (size_t i = 0; code == CLI_OK && i < serve->job_count; i++) {
        if (serve->jobs[i].started || serve->jobs[i].status == KVF_ERR_TIMEOUT)
            code = job_outcome(&serve->jobs[i]);
    }
    if (serve->damaged)
        code = CLI_FAILED;
    return code == CLI_OK && serve->line_failed ? CLI_INPUT : code;
}

/** Marks what requests that failed may have left in any state: it is not compared. */
static void forgive(struct trtllm_serve *serve, const struct trtllm_job *job, uint8_t *const *expected)
{
    struct trtllm_painting painting = painting_of(&job->line);
    const struct kvf_trtllm_page_table *table = kvf_trtllm_rank_get_spec(serve->rank)->page_table;
    for (size_t i = 0; i < serve->memory.pool_count; i++) {
        const struct trtllm_region *region = &serve->memory.regions[i];
        const struct kvf_trtllm_pool *pool = &table->pool_groups[region->group].pools[region->pool];
        for (size_t g = 0; g < table->group_count && g < painting.group_count; g++) {
            for (size_t b = 0; table->groups[g].pool_group == region->group && b < painting.groups[g].count; b++) {
                int64_t id = painting.groups[g].ids[b];
                if (id < 0 || id >= pool->num_slots)
                    continue;
                int64_t at = id * pool->slot_stride_bytes;
                int64_t bytes = pool->slot_stride_bytes < region->bytes - at ? pool->slot_stride_bytes
                                                                             : region->bytes - at;
                memcpy(expected[i] + at, region->base + at, (size_t)bytes);
            }
        }
    }
}

static int64_t count_wrong(const struct trtllm_serve *serve, uint8_t *const *expected, json_t *event)
{
    int64_t wrong = 0;
    char name[64], where[96];
    for (size_t i = 0; i < serve->memory.count; i++) {
        const struct trtllm_region *region = &serve->memory.regions[i];
        for (int64_t b = 0; b < region->bytes; b++) {
            if (region->base[b] == expected[i][b] || wrong++ > 0)
                continue;
            snprintf(where, sizeof(where), "%s +%" PRId64, trtllm_region_name(region, name, sizeof(name)), b);
            json_object_set_new(event, "where", json_string(where));
            json_object_set_new(event, "expected", json_integer(expected[i][b]));
            json_object_set_new(event, "found", json_integer(region->base[b]));
        }
    }
    json_object_set_new(event, "wrong", json_integer(wrong));
    return wrong;
}

void trtllm_serve_check(struct trtllm_serve *serve)
{
    uint8_t **expected = calloc(serve->memory.count + 1, sizeof(uint8_t *));
    json_t *event = json_pack("{s:s}", "event", "checked");
    bool fits = expected != NULL && event != NULL;
    for (size_t i = 0; fits && i < serve->memory.count; i++) {
        expected[i] = malloc((size_t)serve->memory.regions[i].bytes + 1);
        fits = expected[i] != NULL;
        if (fits)
            memset(expected[i], serve->memory.blank, (size_t)serve->memory.regions[i].bytes);
    }
    for (size_t j = 0; fits && j < serve->job_count; j++) {
        const struct trtllm_job *job = &serve->jobs[j];
        struct trtllm_painting painting = painting_of(&job->line);
        if (job->state == KVF_TRTLLM_STATE_TRANSFERRED)
            trtllm_paint(serve->rank, &serve->memory, serve->spec.kv_heads, &painting, expected);
        else if (job->started)
            forgive(serve, job, expected);
    }
    if (fits && count_wrong(serve, expected, event) > 0)
        serve->damaged = true;
    if (!fits)
        cli_error(serve->command, "no memory for the check");
    serve->damaged = serve->damaged || !fits;
    json_lines_tell(fits ? event : NULL);
    if (!fits)
        json_decref(event);
    for (size_t i = 0; expected != NULL && i < serve->memory.count; i++)
        free(expected[i]);
    free(expected);
}
