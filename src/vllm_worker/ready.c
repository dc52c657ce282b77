/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, and what a step tells of them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "vllm_worker/produce.h"

/* ---- transfers ------------------------------------------------------------------------------------------------ */

struct kvfi_vllm_transfer *kvfi_vllm_transfer_find(const struct kvfi_vllm_sender *sender, const char *transfer_id)
{
    struct kvfi_link *link = kvfi_table_find(&sender->transfers, transfer_id, strlen(transfer_id));
    return link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_vllm_transfer, link);
}

/* The transfer, its groups, their ids, its texts: one allocation. */
struct kvfi_vllm_transfer *kvfi_vllm_transfer_make(const char *transfer_id, const char *p_req_id,
                                                   const struct kvf_vllm_ids *groups, size_t group_count)
{
    size_t words = 0, bytes, text = strlen(transfer_id) + strlen(p_req_id) + 2;
    struct kvfi_vllm_transfer *transfer;
    char *at;

    for (size_t i = 0; i < group_count; i++)
        if (!kvfi_add_size(words, groups[i].count, &words))
            return NULL;
    if (!kvfi_mul_size(words, sizeof(int64_t), &bytes) ||
        !kvfi_add_size(bytes, sizeof *transfer + group_count * sizeof *groups + text, &bytes))
        return NULL;
    transfer = kvfi_alloc_zeroed(1, bytes);
    if (transfer == NULL)
        return NULL;
    transfer->groups = (struct kvf_vllm_ids *)(void *)(transfer + 1);
    transfer->group_count = group_count;
    at = (char *)(transfer->groups + group_count);
    for (size_t i = 0; i < group_count; i++) {
        transfer->groups[i] = (struct kvf_vllm_ids){(int64_t *)(void *)at, groups[i].count};
        if (groups[i].count > 0)
            memcpy(at, groups[i].ids, groups[i].count * sizeof(int64_t));
        at += groups[i].count * sizeof(int64_t);
    }
    transfer->transfer_id = at;
    memcpy(at, transfer_id, strlen(transfer_id) + 1);
    at += strlen(transfer_id) + 1;
    transfer->p_req_id = at;
    memcpy(at, p_req_id, strlen(p_req_id) + 1);
    kvfi_block_init(&transfer->block);
    return transfer;
}

static int64_t *counter(struct kvfi_vllm_sender *sender, int state)
{
    return state == KVFI_VLLM_UNKNOWN ? &sender->unknown : state == KVFI_VLLM_KNOWN ? &sender->known : &sender->ready;
}

void kvfi_vllm_transfer_put(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *transfer, int state)
{
    transfer->state = state;
    ++*counter(sender, state);
    kvfi_table_insert(&sender->transfers, &transfer->link, transfer->transfer_id, strlen(transfer->transfer_id));
}

void kvfi_vllm_transfer_free(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *transfer)
{
    kvfi_table_remove(&sender->transfers, &transfer->link);
    kvfi_timer_disarm(&sender->expiries, &transfer->expiry);
    if (transfer->state != KVFI_VLLM_OVER && transfer->link.key != NULL)
        --*counter(sender, transfer->state);
    for (size_t i = 0; i < transfer->taken_count; i++)
        kvfi_vllm_puller_release(sender, transfer->taken[i].puller);
    free(transfer->taken);
    free(transfer);
}

void kvfi_vllm_transfer_left(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *transfer)
{
    if (transfer->state == KVFI_VLLM_UNKNOWN && transfer->waiting == NULL)
        kvfi_vllm_transfer_free(sender, transfer);
}

void kvfi_vllm_entry_link(struct kvfi_vllm_entry **list, struct kvfi_vllm_entry *entry)
{
    entry->previous = NULL;
    entry->next = *list;
    if (*list != NULL)
        (*list)->previous = entry;
    *list = entry;
}

void kvfi_vllm_entry_unlink(struct kvfi_vllm_entry **list, struct kvfi_vllm_entry *entry)
{
    *(entry->previous != NULL ? &entry->previous->next : list) = entry->next;
    if (entry->next != NULL)
        entry->next->previous = entry->previous;
    entry->next = entry->previous = NULL;
}

/* ---- a step, first part: checks and memory ---------------------------------------------------------------------- */

struct kvfi_vllm_send_intake {
    size_t send_count, drop_count;
    struct kvfi_vllm_transfer **sends, **drops; /* in no table yet */
    struct kvfi_vllm_transfer *room[];
};

static enum kvf_status check_id(const char *field, size_t index, const char *id, struct kvf_error *error)
{
    size_t bytes = id == NULL ? 0 : strnlen(id, KVF_VLLM_ID_BYTES);

    if (bytes == 0 || bytes >= KVF_VLLM_ID_BYTES)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "step: %s %zu has %s%zu bytes, expected 1 to %d", field,
                         index, bytes == 0 ? "" : "at least ", bytes, KVF_VLLM_ID_BYTES - 1);
    return KVF_OK;
}

static enum kvf_status check_send(const kvf_vllm_worker *worker, const struct kvf_vllm_send *send, size_t index,
                                  struct kvf_error *error)
{
    enum kvf_status status = check_id("p_req_id of send", index, send->p_req_id, error);

    if (status == KVF_OK)
        status = check_id("transfer_id of send", index, send->transfer_id, error);
    if (status != KVF_OK)
        return status;
    if (send->group_count > 0 && send->groups == NULL)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "step: send %s: groups are NULL, but their count is %zu",
                         send->p_req_id, send->group_count);
    if (send->group_count > 0 && worker->options.group_count > 0 && send->group_count != worker->options.group_count)
        return kvfi_fail(error, KVF_ERR_IDS, "step: send %s has %zu groups of block ids, the worker has %zu",
                         send->p_req_id, send->group_count, worker->options.group_count);
    for (size_t i = 0; i < send->group_count; i++)
        for (size_t k = 0; k < send->groups[i].count; k++)
            if (send->groups[i].ids == NULL || send->groups[i].ids[k] < 0)
                return kvfi_fail(error, KVF_ERR_IDS, "step: send %s: block id %zu of group %zu is %s", send->p_req_id,
                                 k, i, send->groups[i].ids == NULL ? "not given" : "below 0");
    return KVF_OK;
}

static enum kvf_status make_sends(kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                  struct kvfi_vllm_send_intake *intake, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; status == KVF_OK && i < step->send_count; i++) {
        const struct kvf_vllm_send *send = &step->sends[i];

        status = check_send(worker, send, i, error);
        if (status != KVF_OK)
            continue;
        intake->sends[i] =
            kvfi_vllm_transfer_make(send->transfer_id, send->p_req_id, send->groups, send->group_count);
        if (intake->sends[i] == NULL)
            status = kvfi_fail_memory(error, "a transfer");
    }
    for (size_t i = 0; status == KVF_OK && i < step->not_processed_count; i++) {
        status = check_id("transfer id of not_processed", i, step->not_processed[i], error);
        if (status != KVF_OK)
            continue;
        intake->drops[i] = kvfi_vllm_transfer_make(step->not_processed[i], "", NULL, 0);
        if (intake->drops[i] == NULL)
            status = kvfi_fail_memory(error, "a transfer");
    }
    return status;
}

/* Those of which steps have told already are no more by this one; and those that only peers named take no room from
 * what the scheduler decides. */
static enum kvf_status check_room(const kvf_vllm_worker *worker, const struct kvfi_vllm_send_intake *intake,
                                  struct kvf_error *error)
{
    const struct kvfi_vllm_sender *sender = worker->sender;
    int64_t told = sender->known + sender->ready, more = 0;

    for (size_t i = 0; i < intake->send_count; i++) {
        const struct kvfi_vllm_transfer *old = kvfi_vllm_transfer_find(sender, intake->sends[i]->transfer_id);
        more += old == NULL || (old->state != KVFI_VLLM_KNOWN && old->state != KVFI_VLLM_READY);
    }
    if (more > 0 && told + more > worker->options.max_transfers)
        return kvfi_fail(error, KVF_ERR_LIMIT, "step: %" PRId64 " transfers are tracked and %" PRId64 " more come, at "
                         "most %" PRId64, told, more, worker->options.max_transfers);
    return KVF_OK;
}

static void abandon(struct kvfi_vllm_send_intake *intake)
{
    for (size_t i = 0; i < intake->send_count + intake->drop_count; i++)
        free(intake->room[i]);
    free(intake);
}

enum kvf_status kvfi_vllm_sender_prepare(kvf_vllm_worker *worker, const struct kvf_vllm_step *step,
                                         struct kvfi_vllm_send_intake **out, struct kvf_error *error)
{
    struct kvfi_vllm_send_intake *intake;
    enum kvf_status status;
    size_t all;

    *out = NULL;
    if (step->send_count == 0 && step->not_processed_count == 0)
        return KVF_OK;
    if (!kvfi_add_size(step->send_count, step->not_processed_count, &all) || all > SIZE_MAX / 2 / sizeof(void *))
        return kvfi_fail_memory(error, "a step");
    intake = kvfi_alloc_zeroed(1, sizeof *intake + all * sizeof(void *));
    if (intake == NULL)
        return kvfi_fail_memory(error, "a step");
    intake->send_count = step->send_count;
    intake->drop_count = step->not_processed_count;
    intake->sends = intake->room;
    intake->drops = intake->room + step->send_count;
    status = make_sends(worker, step, intake, error);
    if (status == KVF_OK)
        status = check_room(worker, intake, error);
    if (status == KVF_OK)
        *out = intake;
    else
        abandon(intake);
    return status;
}

/* ---- a step, second part --------------------------------------------------------------------------------------- */

/* The new one stands in the old one's place: what waits for it, is written, was written, and its machines. */
static void take_place(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *new,
                       struct kvfi_vllm_transfer *old)
{
    for (struct kvfi_vllm_entry *entry = old->waiting; entry != NULL; entry = entry->next)
        entry->transfer = new;
    for (struct kvfi_vllm_entry *entry = old->active; entry != NULL; entry = entry->next)
        entry->transfer = new;
    new->waiting = old->waiting;
    new->active = old->active;
    new->taken = old->taken;
    new->taken_count = old->taken_count;
    new->taken_capacity = old->taken_capacity;
    new->pulled = old->pulled;
    new->offer = old->offer;
    new->block = old->block;
    old->waiting = old->active = NULL;
    old->taken = NULL;
    old->taken_count = 0;
    kvfi_vllm_transfer_free(sender, old);
}

static void make_ready(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, bool was_ready)
{
    int64_t deadline_ns = kvfi_deadline_after(worker->options.abort_request_timeout_ns);

    if (!was_ready)
        kvfi_offer_init(&transfer->offer, deadline_ns);
    transfer->offer.deadline_ns = deadline_ns;
    kvfi_vllm_expiry_arm(worker, transfer, deadline_ns);
    for (struct kvfi_vllm_entry *entry = was_ready ? NULL : transfer->waiting; entry != NULL; entry = entry->next)
        kvfi_vllm_entry_due(worker->sender, entry, KVFI_VLLM_NO_CAUSE);
}

static void begin_send(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *new)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    struct kvfi_vllm_transfer *old = kvfi_vllm_transfer_find(sender, new->transfer_id);
    bool ready = new->group_count > 0, was_ready = old != NULL && old->state == KVFI_VLLM_READY;

    if (was_ready && !ready) {
        free(new); /* said already, and more */
        return;
    }
    if (was_ready && strcmp(old->p_req_id, new->p_req_id) != 0) {
        kvfi_logf(&worker->log, KVF_LOG_WARN, "vllm producer: transfer %s: request %s takes the place of %s",
                  new->transfer_id, new->p_req_id, old->p_req_id);
        kvfi_vllm_offer_feed(worker, old, KVFI_OFFER_ON_SUPERSEDE, KVF_OK, 0);
        was_ready = false;
    }
    if (old != NULL && old->state == KVFI_VLLM_OVER) {
        kvfi_table_remove(&sender->transfers, &old->link); /* still to be forgotten */
        old = NULL;
    }
    if (old != NULL)
        take_place(sender, new, old);
    kvfi_vllm_transfer_put(sender, new, ready ? KVFI_VLLM_READY : KVFI_VLLM_KNOWN);
    if (ready)
        make_ready(worker, new, was_ready);
}

static void begin_drop(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *spare)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    struct kvfi_vllm_transfer *old = kvfi_vllm_transfer_find(sender, spare->transfer_id);

    if (old == NULL) {
        kvfi_vllm_transfer_put(sender, spare, KVFI_VLLM_KNOWN);
        kvfi_vllm_transfer_abort(worker, spare);
        return;
    }
    free(spare);
    if (old->state == KVFI_VLLM_READY)
        kvfi_vllm_offer_feed(worker, old, KVFI_OFFER_ON_CANCEL, KVF_OK, 0);
    else if (old->state != KVFI_VLLM_OVER)
        kvfi_vllm_transfer_abort(worker, old);
}

void kvfi_vllm_sender_begin(kvf_vllm_worker *worker, struct kvfi_vllm_send_intake *intake)
{
    if (intake == NULL)
        return;
    for (size_t i = 0; i < intake->send_count; i++)
        begin_send(worker, intake->sends[i]);
    for (size_t i = 0; i < intake->drop_count; i++)
        begin_drop(worker, intake->drops[i]);
    free(intake);
    kvfi_vllm_rounds_run(worker);
}
