/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of one case over one transport: starts the workers, lets them move, checks what came. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/demo.h"

/** The workers of a run and what they agree on. */
struct crew {
    struct demo_run *run;
    kvf_directory *directory;
    char *layouts[2]; /* prefill, decode */
    kvf_instance *instances[2];
    struct demo_process *processes; /* prefill first */
    json_t **answers;
    size_t counts[2], started;
    int64_t requests; /* one more than are timed: the first contact */
    int64_t shown_ns, timed_from_ns;
    int64_t *progress_bytes, *progress_done;
    int64_t first_bytes;
};

static struct demo_process *decode_side(struct crew *crew)
{
    return crew->processes + crew->counts[0];
}

static int crew_init(struct demo_run *run, struct crew *out)
{
    const struct kvf_instance_recipe *recipes[2] = {&run->shape->src, &run->shape->dst};
    struct kvf_error error = {.position = -1};
    int code = CLI_OK;
    *out = (struct crew){.run = run, .requests = run->settings->requests + 1};
    for (int side = 0; code == CLI_OK && side < 2; side++) {
        code = demo_case_layout(run->command, recipes[side], &out->layouts[side]);
        if (code == CLI_OK &&
            kvf_instance_parse(out->layouts[side], strlen(out->layouts[side]), &out->instances[side], &error) != KVF_OK)
            code = cli_library_error(run->command, "layout of the demo", &error);
        if (code == CLI_OK)
            out->counts[side] = kvf_instance_rank_count(out->instances[side]);
    }
    if (code == CLI_OK && kvf_directory_open(NULL, &out->directory, &error) != KVF_OK)
        code = cli_library_error(run->command, NULL, &error);
    size_t all = out->counts[0] + out->counts[1];
    out->processes = calloc(all + 1, sizeof(*out->processes));
    out->answers = calloc(all + 1, sizeof(*out->answers));
    out->progress_bytes = calloc(all + 1, sizeof(int64_t));
    out->progress_done = calloc(all + 1, sizeof(int64_t));
    if (code == CLI_OK &&
        (out->processes == NULL || out->answers == NULL || out->progress_bytes == NULL || out->progress_done == NULL)) {
        cli_error(run->command, "no memory for %zu workers", all);
        code = CLI_FAILED;
    }
    return code;
}

static void crew_fini(struct crew *crew, bool kill_now)
{
    if (crew->processes != NULL)
        demo_processes_end(crew->processes, crew->started, kill_now);
    kvf_directory_close(crew->directory);
    for (int side = 0; side < 2; side++) {
        kvf_instance_destroy(crew->instances[side]);
        kvf_text_free(crew->layouts[side]);
    }
    free(crew->processes);
    free(crew->answers);
    free(crew->progress_bytes);
    free(crew->progress_done);
}

/** What a worker is told first. */
static json_t *first_orders(const struct crew *crew, int side, size_t rank_number)
{
    const struct demo_run *run = crew->run;
    struct kvf_rank rank = kvf_instance_rank(crew->instances[side], rank_number);
    char prefix[64];
    snprintf(prefix, sizeof(prefix), "%s-%s", run->shape->name, run->transport);
    json_t *orders =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:[I,I,I], s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "side",
                  side == 0 ? "prefill" : "decode", "instance", side == 0 ? "prefill" : "decode", "peer",
                  side == 0 ? "decode" : "prefill", "layout", crew->layouts[side], "directory",
                  kvf_directory_url(crew->directory), "transport", run->transport, "cache", run->data->path, "prefix",
                  prefix, "rank", (json_int_t)rank.pp, (json_int_t)rank.cp, (json_int_t)rank.tp, "requests",
                  (json_int_t)crew->requests, "tokens", (json_int_t)run->data->tokens, "written_tokens",
                  (json_int_t)demo_written_tokens(run->shape, run->data->tokens), "timeout_ns",
                  (json_int_t)run->settings->timeout_ns, "layers", (json_int_t)run->data->layers, "heads",
                  (json_int_t)run->data->heads, "row_bytes", (json_int_t)run->data->row_bytes, "progress",
                  (int)run->settings->progress);
    if (run->settings->corrupt && side == 0 && rank_number == 0)
        json_object_set_new(orders, "fault_policy", json_string(DEMO_FAULT_POLICY));
    return orders;
}

static int start_workers(struct crew *crew)
{
    char name[160], rank[96];
    int code = CLI_OK;
    for (int side = 0; side < 2; side++) {
        for (size_t r = 0; code == CLI_OK && r < crew->counts[side]; r++) {
            snprintf(name, sizeof(name), "%s/%s", side == 0 ? "prefill" : "decode",
                     cli_format_rank(kvf_instance_rank(crew->instances[side], r), rank));
            struct demo_process *process = &crew->processes[crew->started];
            code = demo_process_start(crew->run->command, name, crew->run->gather_fd, process);
            crew->started++;
            if (code == CLI_OK)
                code = demo_process_send(crew->run->command, process, first_orders(crew, side, r));
        }
    }
    return code;
}

static void drop_answers(struct crew *crew, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        json_decref(crew->answers[i]);
        crew->answers[i] = NULL;
    }
}

static int order_all(struct crew *crew, struct demo_process *processes, size_t count, const char *what, int64_t first,
                     int64_t requests)
{
    int code = CLI_OK;
    for (size_t i = 0; code == CLI_OK && i < count; i++)
        code = demo_process_send(
            crew->run->command, &processes[i],
            json_pack("{s:s, s:I, s:I}", "do", what, "first", (json_int_t)first, "count", (json_int_t)requests));
    return code;
}

/** Draws the progress line: all bytes, the rate, requests that all decode ranks have. */
static void show_progress(void *context, size_t process, const json_t *message)
{
    struct crew *crew = context;
    const char *event = json_string_value(json_object_get(message, "event"));
    char bytes[24];
    if (event == NULL || strcmp(event, "progress") != 0 || crew->timed_from_ns == 0)
        return;
    crew->progress_bytes[process] = json_integer_value(json_object_get(message, "bytes"));
    crew->progress_done[process] = json_integer_value(json_object_get(message, "done"));
    int64_t all = -crew->first_bytes, done = INT64_MAX, now = cli_now_ns();
    for (size_t i = 0; i < crew->counts[1]; i++) {
        all += crew->progress_bytes[i];
        done = crew->progress_done[i] < done ? crew->progress_done[i] : done;
    }
    if (all < 0 || now <= crew->timed_from_ns)
        return;
    crew->shown_ns = now;
    fprintf(stderr, "\r%s over %s: %s, %.2f GB/s, %" PRId64 " of %" PRId64 " requests \033[K", crew->run->shape->name,
            crew->run->transport, cli_format_bytes(all, bytes), (double)all / (double)(now - crew->timed_from_ns), done,
            crew->run->settings->requests);
}

static void clear_progress(struct crew *crew)
{
    if (crew->shown_ns != 0)
        fputs("\r\033[K", stderr);
    crew->shown_ns = 0;
}

/** Adds up what the decode ranks said; the first failure becomes the verdict. */
static void add_answers(struct crew *crew, size_t count, struct demo_result *out)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *answer = crew->answers[i];
        out->bytes += json_integer_value(json_object_get(answer, "bytes"));
        out->pieces += json_integer_value(json_object_get(answer, "pieces"));
        out->runs += json_integer_value(json_object_get(answer, "runs"));
        const char *used = json_string_value(json_object_get(answer, "transport"));
        if (json_integer_value(json_object_get(answer, "failed")) > 0 && out->right) {
            out->right = false;
            snprintf(out->verdict, sizeof(out->verdict), "%.400s", json_string_value(json_object_get(answer, "text")));
        } else if (out->right && used != NULL && strcmp(used, crew->run->transport) != 0) {
            out->right = false;
            snprintf(out->verdict, sizeof(out->verdict), "went over \"%.30s\" instead", used);
        }
    }
}

/** Lets the decode side pull some requests; the time is from the first order to the last answer. */
static int pull(struct crew *crew, int64_t first, int64_t count, struct demo_result *out, double *ns)
{
    struct demo_process *processes = decode_side(crew);
    int64_t timeout_ns = crew->run->settings->timeout_ns + 15 * INT64_C(1000000000);
    int64_t started = cli_now_ns();
    int code = order_all(crew, processes, crew->counts[1], "transfer", first, count);
    if (code == CLI_OK)
        code = demo_processes_collect(crew->run->command, processes, crew->counts[1], "pulled", timeout_ns,
                                      crew->answers, show_progress, crew);
    *ns = (double)(cli_now_ns() - started);
    clear_progress(crew);
    if (code == CLI_OK)
        add_answers(crew, crew->counts[1], out);
    drop_answers(crew, crew->counts[1]);
    return code;
}

/** Waits until every worker (or the prefill ones, the decode ones) has said something. */
static int collect(struct crew *crew, struct demo_process *processes, size_t count, const char *event)
{
    int64_t timeout_ns = crew->run->settings->timeout_ns + 15 * INT64_C(1000000000);
    return demo_processes_collect(crew->run->command, processes, count, event, timeout_ns, crew->answers, NULL, NULL);
}

static void take_faults(struct crew *crew, size_t count, struct demo_result *out)
{
    for (size_t i = 0; i < count; i++) {
        const char *fault = json_string_value(json_object_get(crew->answers[i], "fault"));
        if (fault != NULL && fault[0] != '\0' && out->right) {
            out->right = false;
            snprintf(out->verdict, sizeof(out->verdict), "%s: %.300s", decode_side(crew)[i].name, fault);
        }
    }
    drop_answers(crew, count);
}

/** Gathers and hashes everything, then looks for bytes written where nothing belongs. */
static int check(struct crew *crew, struct demo_result *out)
{
    struct demo_run *run = crew->run;
    struct demo_process *processes = decode_side(crew);
    size_t count = crew->counts[1];
    size_t request_bytes = (size_t)(run->data->tensor_bytes * run->data->layers * DEMO_PARTS);
    char fault[400] = "", name[64];
    int code = CLI_OK;
    for (int64_t first = 0; code == CLI_OK && first < crew->requests; first += DEMO_BATCH) {
        int64_t batch = crew->requests - first < DEMO_BATCH ? crew->requests - first : DEMO_BATCH;
        memset(run->gather, 0xEE, request_bytes * DEMO_BATCH); /* nothing of an earlier batch can pass for this one */
        code = order_all(crew, processes, count, "gather", first, batch);
        if (code == CLI_OK)
            code = collect(crew, processes, count, "gathered");
        if (code != CLI_OK)
            break;
        if (first == 0 && run->settings->keep != NULL) {
            snprintf(name, sizeof(name), "moved-%s-%s.safetensors", run->shape->name, run->transport);
            code = demo_keep(run->command, run->data, run->gather, run->settings->keep, name);
            if (code == CLI_OK && run->is_first)
                code = demo_keep(run->command, run->data, run->gather, run->settings->keep, "moved.safetensors");
            if (code != CLI_OK)
                break;
        }
        take_faults(crew, count, out);
        if (out->right && !demo_check(run->data, run->gather, first, batch, fault, sizeof(fault))) {
            out->right = false;
            snprintf(out->verdict, sizeof(out->verdict), "%s", fault);
        }
    }
    if (code == CLI_OK)
        code = order_all(crew, processes, count, "scan", 0, 0);
    if (code == CLI_OK)
        code = collect(crew, processes, count, "scanned");
    if (code == CLI_OK)
        take_faults(crew, count, out);
    return code;
}

/** Offers everything, makes first contact with one request, then times the rest. */
static int move(struct crew *crew, struct demo_result *out)
{
    int64_t timed = crew->run->settings->requests;
    struct demo_result first = {.right = true};
    int code = order_all(crew, crew->processes, crew->counts[0], "transfer", 0, crew->requests);
    if (code == CLI_OK)
        code = collect(crew, crew->processes, crew->counts[0], "offered");
    drop_answers(crew, crew->counts[0]);
    if (code == CLI_OK)
        code = pull(crew, timed, 1, &first, &out->first_contact_ns);
    if (code == CLI_OK && !first.right) {
        out->right = false;
        memcpy(out->verdict, first.verdict, sizeof(out->verdict));
        return CLI_OK;
    }
    crew->first_bytes = first.bytes;
    crew->timed_from_ns = cli_now_ns();
    if (code == CLI_OK)
        code = pull(crew, 0, timed, out, &out->wall_ns);
    if (code == CLI_OK && out->right) {
        code = collect(crew, crew->processes, crew->counts[0], "sent");
        drop_answers(crew, crew->counts[0]);
    }
    return code;
}

int demo_run(struct demo_run *run, struct demo_result *out)
{
    struct crew crew;
    struct demo_result result = {
        .shape = run->shape->name, .transport = run->transport, .right = true, .requests = run->settings->requests};
    int code = crew_init(run, &crew);
    if (code == CLI_OK)
        code = start_workers(&crew);
    if (code == CLI_OK)
        code = collect(&crew, crew.processes, crew.started, "ready");
    if (code == CLI_OK) {
        drop_answers(&crew, crew.started);
        code = move(&crew, &result);
    }
    bool moved = code == CLI_OK && result.right;
    if (moved) {
        result.gb_per_s = result.wall_ns > 0 ? (double)result.bytes / result.wall_ns : 0;
        code = check(&crew, &result);
    }
    crew_fini(&crew, code != CLI_OK || !moved);
    if (code == CLI_OK) {
        if (result.right)
            snprintf(result.verdict, sizeof(result.verdict), "every byte right");
        *out = result;
    }
    return code;
}
