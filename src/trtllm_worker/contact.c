/* SPDX-License-Identifier: Apache-2.0 */
/* First contact: asking an info endpoint who is there, judging the answer, and keeping it for a while. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "trtllm_worker/receive.h"

#define ASK_AGAIN_NS (2 * KVFI_SECOND)        /* while nothing comes: the question may have been lost */
#define ASK_INCOMPLETE_NS (200 * KVFI_MS)     /* an instance that is still being brought up */
#define FORGET_NS (600 * KVFI_SECOND)         /* contacts that nobody needs */

static void feed(kvf_trtllm_worker *worker, struct kvfi_contact *contact, int kind, enum kvf_status status);

/* ---- asking ------------------------------------------------------------------------------------------------- */

static void stop_asking(kvf_trtllm_worker *worker, struct kvfi_contact *contact)
{
    struct kvfi_contact **at = &worker->receivers->asking;

    if (!contact->is_asking)
        return;
    contact->is_asking = false;
    while (*at != contact)
        at = &(*at)->next_asking;
    *at = contact->next_asking;
    kvfi_timer_disarm(&worker->loop.timers, &contact->timer);
    kvfi_channel_disconnect(worker->receiver.channel, &contact->asking);
}

static void arm(kvf_trtllm_worker *worker, struct kvfi_contact *contact)
{
    kvfi_timer_arm(&worker->loop.timers, &contact->timer,
                   contact->again_ns < contact->deadline_ns ? contact->again_ns : contact->deadline_ns);
}

static enum kvf_status ask(kvf_trtllm_worker *worker, struct kvfi_contact *contact, struct kvf_error *error)
{
    struct kvfi_trtllm_packed message;
    enum kvf_status status;

    kvfi_trtllm_pack_tag(&message, KVFI_TRTLLM_REQUEST_INSTANCE_INFO);
    status = kvfi_worker_send(&worker->receiver, &contact->asking, &message, error);
    if (status == KVF_OK)
        worker->stats.info_asked++;
    contact->again_ns = kvfi_now_ns() + ASK_AGAIN_NS;
    return status;
}

static void cannot_ask(kvf_trtllm_worker *worker, struct kvfi_contact *contact, enum kvf_status status,
                       const char *cause)
{
    kvfi_fail(&contact->error, status, "context peer at '%s' cannot be asked: %s", contact->endpoint, cause);
    stop_asking(worker, contact);
    feed(worker, contact, KVFI_PEER_ON_FAIL, status);
}

static void greet(kvf_trtllm_worker *worker, struct kvfi_contact *contact)
{
    struct kvf_error error;
    enum kvf_status status = kvfi_channel_connect(worker->receiver.channel, contact->endpoint, &contact->asking,
                                                  &error);

    if (status == KVF_OK) {
        contact->is_asking = true;
        contact->next_asking = worker->receivers->asking;
        worker->receivers->asking = contact;
        contact->deadline_ns = kvfi_deadline_after(worker->options.first_contact_timeout_ns);
        status = ask(worker, contact, &error);
    }
    if (status == KVF_OK)
        arm(worker, contact);
    else
        cannot_ask(worker, contact, status, error.text);
}

static void on_timer(void *owner, struct kvfi_timer *timer)
{
    kvf_trtllm_worker *worker = owner;
    struct kvfi_contact *contact = KVFI_HOLDER(timer, struct kvfi_contact, timer);
    struct kvf_error error;
    enum kvf_status status = KVF_OK;

    if (kvfi_now_ns() >= contact->deadline_ns) {
        kvfi_fail(&contact->error, KVF_ERR_UNREACHABLE, "context peer at '%s' has not said who it is within %" PRId64
                  " ms", contact->endpoint, worker->options.first_contact_timeout_ns / KVFI_MS);
        stop_asking(worker, contact);
        feed(worker, contact, KVFI_PEER_ON_FAIL, KVF_ERR_UNREACHABLE);
        return;
    }
    status = ask(worker, contact, &error);
    if (status == KVF_OK || status == KVF_ERR_AGAIN)
        arm(worker, contact);
    else
        cannot_ask(worker, contact, status, error.text);
}

/* ---- the answer --------------------------------------------------------------------------------------------- */

static void refuse(kvf_trtllm_worker *worker, struct kvfi_contact *contact, const struct kvf_error *cause)
{
    kvfi_fail(&contact->error, (enum kvf_status)cause->status, "context peer at '%s' is incompatible: %s (cached: all "
              "further requests to this context peer fail fast; it is asked again after %" PRId64 " ms)",
              contact->endpoint, cause->text, worker->options.peer_refresh_ns / KVFI_MS);
    kvfi_logf(&worker->log, KVF_LOG_WARN, "%s", contact->error.text);
    feed(worker, contact, KVFI_PEER_ON_REFUSE, (enum kvf_status)cause->status);
}

/* The sizes that finding the ranks to ask relies on. */
static enum kvf_status check_grid(const struct kvf_trtllm_rank_spec *spec, struct kvf_error *error)
{
    int64_t ranks;

    if (!kvfi_mul_i64(spec->pp_size, spec->tp_size, &ranks) || !kvfi_mul_i64(ranks, spec->cp_size, &ranks) ||
        ranks < 1 || ranks > KVF_TRTLLM_MAX_RANKS)
        return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "it has pp %" PRId64 ", tp %" PRId64 ", cp %" PRId64 " ranks",
                         spec->pp_size, spec->tp_size, spec->cp_size);
    if (spec->sender_endpoint_count != 0 && (uint64_t)ranks > spec->sender_endpoint_count)
        return kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "it names %zu sender endpoints for %" PRId64 " ranks",
                         spec->sender_endpoint_count, ranks);
    return KVF_OK;
}

static bool is_complete(const struct kvf_trtllm_rank_spec *spec)
{
    for (size_t i = 0; i < spec->sender_endpoint_count; i++)
        if (spec->sender_endpoints[i][0] == '\0')
            return false;
    return spec->sender_endpoint_count > 0;
}

static void accept(kvf_trtllm_worker *worker, struct kvfi_contact *contact, kvf_trtllm_rank *rank)
{
    struct kvfi_instance *instance = NULL;
    struct kvf_error error;
    enum kvf_status status = kvfi_instance_create(worker, contact, rank, &instance, &error);

    if (status != KVF_OK) {
        cannot_ask(worker, contact, status, error.text);
        return;
    }
    contact->instance = instance;
    kvfi_logf(&worker->log, KVF_LOG_INFO, "context instance \"%s\" at %s: %zu ranks",
              kvf_trtllm_rank_get_spec(rank)->instance_name, contact->endpoint, instance->count);
    feed(worker, contact, KVFI_PEER_ON_ACCEPT, KVF_OK);
}

/* Who answers otherwise than before is another one. */
static void drop_instance(kvf_trtllm_worker *worker, struct kvfi_contact *contact)
{
    struct kvfi_instance *old = contact->instance;

    contact->instance = NULL;
    if (old != NULL)
        kvfi_instance_replace(worker, old);
}

static bool is_same(const struct kvfi_contact *contact, const void *bytes, size_t byte_count)
{
    return contact->answer != NULL && contact->answer_bytes == byte_count &&
           memcmp(contact->answer, bytes, byte_count) == 0;
}

static void keep_answer(struct kvfi_contact *contact, const void *bytes, size_t byte_count)
{
    free(contact->answer);
    contact->answer = malloc(byte_count + 1);
    contact->answer_bytes = byte_count;
    if (contact->answer != NULL)
        memcpy(contact->answer, bytes, byte_count);
}

static void judge(kvf_trtllm_worker *worker, struct kvfi_contact *contact, kvf_trtllm_rank *rank)
{
    struct kvf_error error;
    enum kvf_status status = check_grid(kvf_trtllm_rank_get_spec(rank), &error);

    if (status == KVF_OK)
        status = kvf_trtllm_registrar_check_sender(worker->registrar, rank, 1, &error);
    if (status == KVF_ERR_INCOMPATIBLE || status == KVF_ERR_VERSION)
        refuse(worker, contact, &error);
    else if (status != KVF_OK)
        cannot_ask(worker, contact, status, error.text);
    else
        accept(worker, contact, rank);
}

static void on_answer(kvf_trtllm_worker *worker, struct kvfi_contact *contact, const void *bytes, size_t byte_count)
{
    kvf_trtllm_rank *rank = NULL;
    struct kvf_error error;
    enum kvf_status status = kvf_trtllm_rank_decode(bytes, byte_count, &rank, &error);

    if (status == KVF_OK && !is_complete(kvf_trtllm_rank_get_spec(rank))) {
        contact->again_ns = kvfi_now_ns() + ASK_INCOMPLETE_NS;
        arm(worker, contact);
        kvf_trtllm_rank_release(rank);
        return;
    }
    stop_asking(worker, contact);
    contact->known_ns = kvfi_now_ns();
    contact->is_suspect = false;
    if (contact->instance != NULL && is_same(contact, bytes, byte_count)) {
        feed(worker, contact, KVFI_PEER_ON_ACCEPT, KVF_OK);
    } else {
        drop_instance(worker, contact);
        keep_answer(contact, bytes, byte_count);
        if (status == KVF_OK)
            judge(worker, contact, rank);
        else if (status == KVF_ERR_VERSION)
            refuse(worker, contact, &error);
        else
            cannot_ask(worker, contact, status, error.text);
    }
    kvf_trtllm_rank_release(rank);
}

bool kvfi_contact_answer(kvf_trtllm_worker *worker, const struct kvfi_route *from, const struct kvfi_frame *frames,
                         size_t count)
{
    struct kvfi_contact *contact = worker->receivers->asking;

    while (contact != NULL && contact->asking.peer != from->peer)
        contact = contact->next_asking;
    if (contact == NULL)
        return false;
    if (count == 1)
        on_answer(worker, contact, frames[0].bytes, frames[0].byte_count);
    else
        worker->stats.malformed++;
    return true;
}

/* ---- asking again ------------------------------------------------------------------------------------------- */

static bool is_busy(const struct kvfi_instance *instance)
{
    for (const struct kvfi_receive *job = instance->active.head; job != NULL; job = job->next)
        if (!kvfi_transfer_ended(&job->life))
            return true;
    return false;
}

static void arm_refresh(kvf_trtllm_worker *worker, struct kvfi_contact *contact)
{
    if (!contact->refresh.armed)
        kvfi_timer_arm(&worker->loop.timers, &contact->refresh,
                       kvfi_deadline_after(worker->options.peer_refresh_ns));
}

/* Those that wait for an instance which was replaced would wait in vain. */
static void on_refresh(void *owner, struct kvfi_timer *timer)
{
    kvf_trtllm_worker *worker = owner;
    struct kvfi_contact *contact = KVFI_HOLDER(timer, struct kvfi_contact, refresh);

    if (contact->instance == NULL || !is_busy(contact->instance))
        return;
    arm_refresh(worker, contact);
    feed(worker, contact, KVFI_PEER_ON_EPOCH, KVF_OK);
    feed(worker, contact, KVFI_PEER_ON_NEED, KVF_OK);
}

/* ---- those that wait ---------------------------------------------------------------------------------------- */

static void wake(kvf_trtllm_worker *worker, struct kvfi_contact *contact)
{
    if (contact->waiting.head != NULL)
        arm_refresh(worker, contact);
    while (contact->waiting.head != NULL && contact->instance != NULL)
        kvfi_receive_publish(contact->waiting.head, contact->instance);
}

static void fail_waiting(struct kvfi_contact *contact)
{
    while (contact->waiting.head != NULL) {
        struct kvfi_receive *job = contact->waiting.head;
        kvfi_receive_unlink(job);
        kvfi_logf(&job->worker->log, KVF_LOG_DEBUG, "failing request unique_rid=%" PRId64 ": %s", job->rid,
                  contact->error.text);
        kvfi_receive_fail(job, NULL, (enum kvf_status)contact->error.status, "%s", contact->error.text);
    }
}

static void feed(kvf_trtllm_worker *worker, struct kvfi_contact *contact, int kind, enum kvf_status status)
{
    struct kvfi_life_event event = {.kind = kind, .status = status, .now_ns = kvfi_now_ns()};
    struct kvfi_actions actions;
    bool refused = contact->life.state == KVFI_PEER_REFUSED;

    kvfi_peer_step(&contact->life, &event, &actions);
    worker->receivers->incompatible += (contact->life.state == KVFI_PEER_REFUSED) - refused;
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_PEER_DO_GREET:
            greet(worker, contact);
            break;
        case KVFI_PEER_DO_WAKE:
            wake(worker, contact);
            break;
        case KVFI_PEER_DO_FAIL_WAITING:
            fail_waiting(contact);
            break;
        default: /* FORGET: what was known is compared with the next answer first */
            break;
        }
    }
}

void kvfi_contact_need(kvf_trtllm_worker *worker, struct kvfi_contact *contact, struct kvfi_receive *job)
{
    int64_t now = kvfi_now_ns();

    contact->used_ns = now;
    kvfi_receive_link(&contact->waiting, job);
    if (contact->is_suspect || now - contact->known_ns >= worker->options.peer_refresh_ns)
        feed(worker, contact, KVFI_PEER_ON_EPOCH, KVF_OK);
    feed(worker, contact, KVFI_PEER_ON_NEED, KVF_OK);
}

/* ---- keeping them ------------------------------------------------------------------------------------------- */

void kvfi_contact_destroy(kvf_trtllm_worker *worker, struct kvfi_contact *contact)
{
    struct kvfi_instance *instance = contact->instance;

    stop_asking(worker, contact);
    kvfi_timer_disarm(&worker->loop.timers, &contact->refresh);
    worker->receivers->incompatible -= contact->life.state == KVFI_PEER_REFUSED;
    kvfi_table_remove(&worker->receivers->contacts, &contact->link);
    if (instance != NULL) {
        instance->contact = NULL;
        kvfi_instance_bury(worker, instance);
    }
    free(contact->answer);
    free(contact);
}

/* Those that nobody has needed for long, and nobody needs now. */
static void forget_old(kvf_trtllm_worker *worker)
{
    struct kvfi_table *table = &worker->receivers->contacts;
    int64_t before = kvfi_now_ns() - FORGET_NS;

    for (size_t i = 0; i < table->bucket_count; i++) {
        struct kvfi_link *link = table->buckets[i];
        while (link != NULL) {
            struct kvfi_contact *contact = KVFI_HOLDER(link, struct kvfi_contact, link);
            link = link->next;
            if (contact->used_ns < before && !contact->is_asking && contact->waiting.head == NULL &&
                (contact->instance == NULL || contact->instance->active.head == NULL))
                kvfi_contact_destroy(worker, contact);
        }
    }
}

enum kvf_status kvfi_contact_get(kvf_trtllm_worker *worker, const char *endpoint, struct kvfi_contact **out,
                                 struct kvf_error *error)
{
    struct kvfi_table *table = &worker->receivers->contacts;
    struct kvfi_link *link = kvfi_table_find(table, endpoint, strlen(endpoint));
    struct kvfi_contact *contact;

    if (link != NULL) {
        *out = KVFI_HOLDER(link, struct kvfi_contact, link);
        return KVF_OK;
    }
    forget_old(worker);
    if (table->count >= (size_t)worker->options.max_peers)
        return kvfi_fail(error, KVF_ERR_LIMIT, "%zu info endpoints are known, at most max_peers %" PRId64,
                         table->count, worker->options.max_peers);
    contact = calloc(1, sizeof *contact);
    if (contact == NULL)
        return kvfi_fail_memory(error, "an info endpoint");
    memcpy(contact->endpoint, endpoint, strlen(endpoint) + 1);
    kvfi_peer_init(&contact->life);
    contact->timer.fire = on_timer;
    contact->refresh.fire = on_refresh;
    kvfi_table_insert(table, &contact->link, contact->endpoint, strlen(contact->endpoint));
    *out = contact;
    return KVF_OK;
}
