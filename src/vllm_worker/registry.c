/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "directory/http.h"
#include "kvferry/vllm_worker.h"
#include "sys/clock.h"
#include "vllm_worker/registry_read.h"
#include "wire/text.h"

#define FIRST_BACKOFF_NS KVFI_SECOND
#define LONGEST_BACKOFF_NS (10 * KVFI_SECOND)
#define QUERY_PAUSE_NS (100 * KVFI_MS)
#define START_SLACK_NS (30 * KVFI_SECOND)
#define MOST_OF_OK_BYTES 65536 /* of the answer to a registration */
#define LABEL_BYTES 400

/** Somebody who waits for a query. */
struct waiter {
    struct waiter *next;
    kvfi_vllm_answered *answered;
    void *context;
};

/** A registration or a query, through all its attempts. */
struct task {
    struct task *next;
    struct kvfi_vllm_registry *registry;
    struct kvfi_timer pause;      /* before the next attempt */
    struct kvfi_http_call *call;  /* between attempts; the HTTP thread's during one */
    bool is_out, is_over;
    int32_t attempt, attempts;
    int64_t pause_ns;
    kvfi_vllm_registered *registered; /* NULL for a query, and for a registration that was forgotten */
    void *context;
    bool is_query;
    struct waiter *waiters;       /* in order */
    char label[LABEL_BYTES];      /* of a registration: what is registered */
};

struct kvfi_vllm_registry {
    struct kvfi_loop *loop;
    struct kvfi_http *http;
    struct kvfi_watch watch;
    struct kvfi_log *log;
    struct task *tasks;
    int32_t register_attempts;
    int64_t connector_timeout_ns, first_pause_ns;
    int64_t registrations, queries;
};

int64_t kvfi_vllm_start_deadline_ns(int32_t register_attempts, int64_t connector_timeout_ns)
{
    int64_t sum = START_SLACK_NS, pause_ns = FIRST_BACKOFF_NS, tries_ns;

    for (int32_t i = 1; i < register_attempts; i++) {
        sum += pause_ns;
        pause_ns = pause_ns * 2 > LONGEST_BACKOFF_NS ? LONGEST_BACKOFF_NS : pause_ns * 2;
    }
    if (__builtin_mul_overflow(connector_timeout_ns, 4 * (int64_t)register_attempts, &tries_ns) ||
        __builtin_add_overflow(sum, tries_ns, &sum))
        return INT64_MAX;
    return sum;
}

/* ---- tasks ---- */

static void free_task(struct task *task)
{
    struct task **at = &task->registry->tasks;

    while (*at != task) at = &(*at)->next;
    *at = task->next;
    while (task->waiters) {
        struct waiter *next = task->waiters->next;

        free(task->waiters);
        task->waiters = next;
    }
    kvfi_timer_disarm(&task->registry->loop->timers, &task->pause);
    if (!task->is_out) kvfi_http_call_destroy(task->call);
    free(task);
}

static void send(struct task *task)
{
    task->attempt++;
    task->is_out = true;
    kvfi_http_post(task->registry->http, task->call);
}

static void on_pause(void *owner, struct kvfi_timer *timer)
{
    (void)owner;
    send((struct task *)(void *)((char *)timer - offsetof(struct task, pause)));
}

static struct task *create_task(struct kvfi_vllm_registry *registry, const char *base, const char *path,
                                struct kvf_error *error)
{
    struct task *task = calloc(1, sizeof *task);

    if (!task) {
        kvfi_fail_memory(error, "a registry request");
        return NULL;
    }
    task->registry = registry;
    task->pause.fire = on_pause;
    if (kvfi_http_call_create(base, path, &task->call, error) != KVF_OK) {
        free(task);
        return NULL;
    }
    task->call->context = task;
    task->call->phase_timeout_ns = registry->connector_timeout_ns;
    task->next = registry->tasks;
    registry->tasks = task;
    return task;
}

/** Tells whoever waits, and frees the task. Callbacks may forget each other and ask anew meanwhile. */
static void end_task(struct task *task, enum kvf_status status, const struct kvfi_vllm_topology *topology,
                     const char *text)
{
    task->is_over = true;
    if (task->registered) task->registered(task->context, status, text);
    while (task->waiters) {
        struct waiter waiter = *task->waiters;

        free(task->waiters);
        task->waiters = waiter.next;
        waiter.answered(waiter.context, status, topology, text);
    }
    free_task(task);
}

static bool is_wanted(const struct task *task)
{
    return task->registered || task->waiters;
}

/* ---- what an attempt came to ---- */

/** Upstream tries a registration again for want of a connection or of time. A connection that is lost while the
 *  registry restarts is such a want too: registering twice does no harm. */
static bool is_worth_another(const struct task *task)
{
    switch (task->call->outcome) {
    case KVFI_HTTP_UNREACHABLE:
    case KVFI_HTTP_TIMED_OUT:
    case KVFI_HTTP_CUT_OFF: return true;
    case KVFI_HTTP_MALFORMED: return task->is_query;
    default: return false;
    }
}

static void try_again(struct task *task)
{
    struct kvfi_vllm_registry *registry = task->registry;
    const char *what = task->call->text;

    if (task->is_query)
        kvfi_logf(registry->log, KVF_LOG_WARN,
                  "Bootstrap query to %.200s failed on attempt %d/%d (%.200s); retrying in %.1f seconds",
                  task->call->base, task->attempt, task->attempts, what, (double)task->pause_ns / 1e9);
    else
        kvfi_logf(registry->log, KVF_LOG_WARN,
                  "Bootstrap registration attempt %d/%d for %.400s failed with %.200s. Retrying in %.1fs.",
                  task->attempt, task->attempts, task->label, what, (double)task->pause_ns / 1e9);
    kvfi_timer_arm(&registry->loop->timers, &task->pause, kvfi_deadline_after(task->pause_ns));
    if (!task->is_query)
        task->pause_ns = 2 * task->pause_ns > LONGEST_BACKOFF_NS ? LONGEST_BACKOFF_NS : 2 * task->pause_ns;
}

/** All attempts are used up. */
static void give_up(struct task *task)
{
    struct kvf_error error;

    if (task->is_query) {
        kvfi_fail(&error, KVF_ERR_UNREACHABLE, "Failed to connect to bootstrap server %.200s: %.200s",
                  task->call->base, task->call->text);
        kvfi_logf(task->registry->log, KVF_LOG_ERROR, "%s", error.text);
    } else {
        kvfi_logf(task->registry->log, KVF_LOG_WARN,
                  "Bootstrap registration attempt %d/%d for %.400s failed with %.200s.", task->attempt,
                  task->attempts, task->label, task->call->text);
        kvfi_fail(&error, KVF_ERR_UNREACHABLE,
                  "Failed to register %.280s with the Mooncake bootstrap server at %.120s/register after %d attempts.",
                  task->label, task->call->base, task->attempts);
    }
    end_task(task, KVF_ERR_UNREACHABLE, NULL, error.text);
}

/** Ends with a failure that another attempt would not cure. */
static void refuse(struct task *task, enum kvf_status status, const char *what)
{
    struct kvf_error error;

    if (task->is_query)
        kvfi_fail(&error, status, "Failed to connect to bootstrap server %.150s: %.300s", task->call->base, what);
    else
        kvfi_fail(&error, status, "Error registering %.200s with bootstrap server: %.250s", task->label, what);
    kvfi_logf(task->registry->log, KVF_LOG_ERROR, "%s", error.text);
    end_task(task, status, NULL, error.text);
}

/** Says what code came and how the answer begins. */
static void refuse_code(struct task *task)
{
    const struct kvfi_text *answer = &task->call->answer;
    char quoted[300], what[340];

    kvfi_text_clean(answer->count ? answer->bytes : "", quoted, sizeof quoted);
    snprintf(what, sizeof what, "answered %ld%s%s", task->call->code, quoted[0] ? ": " : "", quoted);
    refuse(task, KVF_ERR_REFUSED, what);
}

static void take_answer(struct task *task)
{
    const struct kvfi_text *answer = &task->call->answer;
    struct kvfi_vllm_topology_own own;
    struct kvfi_vllm_topology topology;
    struct kvf_error error;
    enum kvf_status status = kvfi_vllm_topology_read(answer->bytes, answer->count, &own, &error);

    if (status != KVF_OK) {
        refuse(task, status, error.text);
        return;
    }
    if (own.left_out > 0)
        kvfi_logf(task->registry->log, KVF_LOG_WARN,
                  "bootstrap server %.200s told %zu workers or engines that cannot be used", task->call->base,
                  own.left_out);
    topology = (struct kvfi_vllm_topology){.engines = own.engines, .engine_count = own.engine_count};
    end_task(task, KVF_OK, &topology, "");
    kvfi_vllm_topology_fini(&own);
}

static void settle(struct task *task)
{
    const struct kvfi_http_call *call = task->call;

    task->is_out = false;
    if (call->outcome == KVFI_HTTP_ANSWERED) ++*(task->is_query ? &task->registry->queries
                                                                : &task->registry->registrations);
    if (!is_wanted(task)) {
        free_task(task);
    } else if (is_worth_another(task)) {
        if (task->attempt < task->attempts) try_again(task);
        else give_up(task);
    } else if (call->outcome != KVFI_HTTP_ANSWERED) {
        refuse(task, call->outcome == KVFI_HTTP_NO_MEMORY ? KVF_ERR_NO_MEMORY : KVF_ERR_PROTOCOL, call->text);
    } else if (call->code < 200 || call->code > 299) {
        refuse_code(task);
    } else if (task->is_query) {
        take_answer(task);
    } else {
        kvfi_logf(task->registry->log, KVF_LOG_DEBUG, "registered with bootstrap server at %.200s", call->base);
        end_task(task, KVF_OK, NULL, "");
    }
}

static void on_calls(void *owner, struct kvfi_watch *watch)
{
    struct kvfi_vllm_registry *registry =
        (struct kvfi_vllm_registry *)(void *)((char *)watch - offsetof(struct kvfi_vllm_registry, watch));
    struct kvfi_http_call *call;

    (void)owner;
    while ((call = kvfi_http_take(registry->http)) != NULL) settle(call->context);
}

/* ---- what the worker calls ---- */

static enum kvf_status check_claim(const struct kvfi_vllm_claim *claim, struct kvf_error *error)
{
    size_t id_bytes = claim->engine_id ? strlen(claim->engine_id) : 0;
    size_t address_bytes = claim->address ? strlen(claim->address) : 0;

    if (id_bytes == 0 || id_bytes >= KVF_VLLM_ID_BYTES || !kvfi_text_is_clean(claim->engine_id, id_bytes))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "registration: engine_id has %zu bytes, expected 1 to %d of UTF-8 without control characters",
                         id_bytes, KVF_VLLM_ID_BYTES - 1);
    if (address_bytes == 0 || address_bytes >= KVF_VLLM_ADDRESS_BYTES ||
        !kvfi_text_is_clean(claim->address, address_bytes))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "registration: address has %zu bytes, expected 1 to %d of UTF-8 without control characters",
                         address_bytes, KVF_VLLM_ADDRESS_BYTES - 1);
    return KVF_OK;
}

static void write_claim(struct task *task, const struct kvfi_vllm_claim *claim)
{
    struct kvfi_text *body = &task->call->body;
    char engine_id[101], address[101];

    kvfi_text_append(body, "{\"engine_id\":");
    kvfi_text_append_json(body, claim->engine_id);
    kvfi_text_appendf(body, ",\"dp_rank\":%" PRId64 ",\"tp_rank\":%" PRId64 ",\"pp_rank\":%" PRId64 ",\"addr\":",
                      claim->dp_rank, claim->tp_rank, claim->pp_rank);
    kvfi_text_append_json(body, claim->address);
    kvfi_text_append(body, "}");
    kvfi_text_clean(claim->engine_id, engine_id, sizeof engine_id);
    kvfi_text_clean(claim->address, address, sizeof address);
    snprintf(task->label, sizeof task->label,
             "engine_id='%s' dp_rank=%" PRId64 " tp_rank=%" PRId64 " pp_rank=%" PRId64 " addr='%s'", engine_id,
             claim->dp_rank, claim->tp_rank, claim->pp_rank, address);
}

enum kvf_status kvfi_vllm_registry_register(struct kvfi_vllm_registry *registry, const char *url,
                                            const struct kvfi_vllm_claim *claim, kvfi_vllm_registered *registered,
                                            void *context, struct kvf_error *error)
{
    struct kvf_error own;
    struct task *task;
    enum kvf_status status = check_claim(claim, error);

    if (status != KVF_OK) return status;
    if (!error) error = &own;
    task = create_task(registry, url, "/register", error);
    if (!task) return (enum kvf_status)error->status;
    write_claim(task, claim);
    task->call->most_answer_bytes = MOST_OF_OK_BYTES;
    task->attempts = registry->register_attempts;
    task->pause_ns = registry->first_pause_ns;
    task->registered = registered;
    task->context = context;
    if (task->call->body.failed) {
        free_task(task);
        return kvfi_fail_memory(error, "a registry request");
    }
    send(task);
    return KVF_OK;
}

/** The query to that address that is on its way. */
static struct task *find_query(const struct kvfi_vllm_registry *registry, const char *address)
{
    size_t bytes = strlen(address);

    while (bytes > 0 && address[bytes - 1] == '/') bytes--;
    for (struct task *task = registry->tasks; task; task = task->next)
        if (task->is_query && !task->is_over && strlen(task->call->base) == bytes &&
            memcmp(task->call->base, address, bytes) == 0)
            return task;
    return NULL;
}

static struct task *create_query(struct kvfi_vllm_registry *registry, const char *address, struct kvf_error *error)
{
    struct task *task = create_task(registry, address, "/query", error);

    if (!task) return NULL;
    task->is_query = true;
    task->call->most_answer_bytes = KVFI_VLLM_MAX_ANSWER_BYTES;
    task->attempts = KVFI_VLLM_QUERY_ATTEMPTS;
    task->pause_ns = QUERY_PAUSE_NS;
    return task;
}

enum kvf_status kvfi_vllm_registry_query(struct kvfi_vllm_registry *registry, const char *address,
                                         kvfi_vllm_answered *answered, void *context, struct kvf_error *error)
{
    struct waiter **at, *waiter = calloc(1, sizeof *waiter);
    struct kvf_error own;
    struct task *task;
    bool is_new = false;

    if (!error) error = &own;
    if (!waiter) return kvfi_fail_memory(error, "a registry request");
    task = find_query(registry, address ? address : "");
    if (!task) {
        task = create_query(registry, address, error);
        is_new = task != NULL;
    }
    if (!task) {
        free(waiter);
        return (enum kvf_status)error->status;
    }
    *waiter = (struct waiter){.answered = answered, .context = context};
    for (at = &task->waiters; *at; at = &(*at)->next) continue;
    *at = waiter;
    if (is_new) send(task);
    return KVF_OK;
}

void kvfi_vllm_registry_forget(struct kvfi_vllm_registry *registry, const void *context)
{
    struct task *next;

    for (struct task *task = registry->tasks; task; task = next) {
        struct waiter **at = &task->waiters;

        next = task->next;
        if (task->registered && task->context == context) task->registered = NULL;
        while (*at) {
            struct waiter *waiter = *at;

            if (waiter->context == context) {
                *at = waiter->next;
                free(waiter);
            } else {
                at = &waiter->next;
            }
        }
        if (!is_wanted(task) && !task->is_out && !task->is_over) free_task(task);
    }
}

int64_t kvfi_vllm_registry_registrations(const struct kvfi_vllm_registry *registry)
{
    return registry->registrations;
}

int64_t kvfi_vllm_registry_queries(const struct kvfi_vllm_registry *registry)
{
    return registry->queries;
}

/* ---- create and destroy ---- */

enum kvf_status kvfi_vllm_registry_create(struct kvfi_loop *loop, const struct kvfi_vllm_registry_options *options,
                                          struct kvfi_vllm_registry **out, struct kvf_error *error)
{
    struct kvfi_vllm_registry *registry = calloc(1, sizeof *registry);
    enum kvf_status status;

    if (!registry) return kvfi_fail_memory(error, "a registry client");
    registry->loop = loop;
    registry->log = options->log;
    registry->register_attempts = options->register_attempts;
    registry->connector_timeout_ns = options->connector_timeout_ns;
    registry->first_pause_ns = options->first_pause_ns ? options->first_pause_ns : FIRST_BACKOFF_NS;
    status = kvfi_http_open(&registry->http, error);
    if (status != KVF_OK) goto done;
    registry->watch = (struct kvfi_watch){.fd = kvfi_http_fd(registry->http), .ready = on_calls};
    status = kvfi_loop_watch(loop, &registry->watch, error);
    if (status != KVF_OK) goto done;
    *out = registry;
    registry = NULL;
done:
    kvfi_vllm_registry_destroy(registry);
    return status;
}

void kvfi_vllm_registry_destroy(struct kvfi_vllm_registry *registry)
{
    if (!registry) return;
    if (registry->watch.ready) kvfi_loop_unwatch(registry->loop, &registry->watch);
    kvfi_http_close(registry->http);
    while (registry->tasks) free_task(registry->tasks);
    free(registry);
}
