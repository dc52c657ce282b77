/* SPDX-License-Identifier: Apache-2.0 */
/* How transfers end: sent, expired, aborted, replaced; and what is remembered of them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vllm_worker/produce.h"

/* Transfers that are over and remembered, at most. */
enum { MAX_REMEMBERED = 65536 };

/* ---- remembering ------------------------------------------------------------------------------------------------ */

static void forget(struct kvfi_vllm_sender *sender, struct kvfi_vllm_transfer *transfer)
{
    *(transfer->newer != NULL ? &transfer->newer->older : &sender->newest) = transfer->older;
    *(transfer->older != NULL ? &transfer->older->newer : &sender->oldest) = transfer->newer;
    sender->over_count--;
    kvfi_vllm_transfer_free(sender, transfer);
}

/* The user has yet to hear of it, or its blocks are being read. */
static bool is_needed(const struct kvfi_vllm_transfer *transfer)
{
    return transfer->told || transfer->active != NULL;
}

static void forget_old(struct kvfi_vllm_sender *sender, int64_t now_ns)
{
    struct kvfi_vllm_transfer *transfer = sender->oldest;

    while (transfer != NULL && (transfer->forget_ns <= now_ns || sender->over_count > MAX_REMEMBERED)) {
        struct kvfi_vllm_transfer *next = transfer->newer;

        if (!is_needed(transfer))
            forget(sender, transfer);
        transfer = next;
    }
}

/* ---- ends ------------------------------------------------------------------------------------------------------ */

/* It is over: those that wait for it are due, but for twins of what is being written; and nobody else will wait for it
 * again. */
static void end(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, int cause)
{
    struct kvfi_vllm_sender *sender = worker->sender;

    if (transfer->state == KVFI_VLLM_UNKNOWN)
        sender->unknown--;
    else if (transfer->state == KVFI_VLLM_KNOWN)
        sender->known--;
    else
        sender->ready--;
    transfer->state = KVFI_VLLM_OVER;
    transfer->cause = cause;
    kvfi_timer_disarm(&sender->expiries, &transfer->expiry);
    transfer->forget_ns = kvfi_deadline_after(worker->options.abort_request_timeout_ns);
    transfer->older = sender->newest;
    transfer->newer = NULL;
    *(sender->newest != NULL ? &sender->newest->newer : &sender->oldest) = transfer;
    sender->newest = transfer;
    sender->over_count++;
    for (struct kvfi_vllm_entry *entry = transfer->waiting, *next; entry != NULL; entry = next) {
        next = entry->next;
        kvfi_vllm_entry_due(sender, entry, cause);
    }
    if (sender->over_count > MAX_REMEMBERED && !is_needed(sender->oldest) && sender->oldest != transfer)
        forget(sender, sender->oldest);
    kvfi_loop_changed(&worker->loop); /* one less is offered */
}

void kvfi_vllm_transfer_abort(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer)
{
    end(worker, transfer, KVFI_VLLM_ABORTED);
}

void kvfi_vllm_block_feed(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, int kind)
{
    const struct kvfi_life_event event = {.kind = kind};
    struct kvfi_actions actions;
    struct kvfi_vllm_sender *sender = worker->sender;

    kvfi_block_step(&transfer->block, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        if (actions.items[i] != KVFI_BLOCK_DO_REPORT_REUSABLE || transfer->p_req_id[0] == '\0')
            continue;
        transfer->told = true;
        transfer->next_finished = sender->finished;
        sender->finished = transfer;
    }
}

static void tell_end(kvf_vllm_worker *worker, const struct kvfi_vllm_transfer *transfer)
{
    enum kvf_status reason = transfer->offer.state == KVFI_OFFER_DONE ? KVF_OK : transfer->offer.reason;
    const struct kvfi_vllm_told told = {.kind = reason == KVF_OK ? KVF_VLLM_EVENT_RELEASED : KVF_VLLM_EVENT_EXPIRED,
                                        .status = reason, .requests = transfer->pulled, .req_id = transfer->p_req_id,
                                        .transfer_id = transfer->transfer_id};

    if (reason == KVF_ERR_EXPIRED) {
        worker->stats.expired_reqs++;
        kvfi_logf(&worker->log, KVF_LOG_WARN, "vllm producer: request %s (transfer %s) was not fetched by all within %"
                  PRId64 " s: %" PRId64 " of %" PRId64 " consumer ranks came", transfer->p_req_id,
                  transfer->transfer_id, worker->options.abort_request_timeout_ns / KVFI_SECOND, transfer->pulled,
                  transfer->offer.sinks);
    }
    if (reason == KVF_OK || reason == KVF_ERR_EXPIRED)
        kvfi_vllm_worker_tell(worker, &told);
}

static int cause_of(const struct kvfi_offer_life *offer)
{
    if (offer->state == KVFI_OFFER_DONE)
        return KVFI_VLLM_SENT_ALL;
    return offer->reason == KVF_ERR_EXPIRED      ? KVFI_VLLM_EXPIRED
           : offer->reason == KVF_ERR_SUPERSEDED ? KVFI_VLLM_REPLACED
                                                 : KVFI_VLLM_ABORTED;
}

void kvfi_vllm_offer_feed(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, int kind,
                          enum kvf_status status, int64_t value)
{
    const struct kvfi_life_event event = {.kind = kind, .status = status, .value = value, .now_ns = kvfi_now_ns()};
    struct kvfi_actions actions;

    kvfi_offer_step(&transfer->offer, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_OFFER_DO_REPORT_DONE:
        case KVFI_OFFER_DO_REPORT_FAILED:
            tell_end(worker, transfer);
            break;
        case KVFI_OFFER_DO_END_BLOCKS:
            end(worker, transfer, cause_of(&transfer->offer));
            kvfi_vllm_block_feed(worker, transfer, KVFI_BLOCK_ON_OWNER_ENDED);
            break;
        default: /* STOP_SINKS: what is being written ends by itself, what waits is due by `end` */
            break;
        }
    }
}

/* ---- the clock ------------------------------------------------------------------------------------------------- */

static void set_clock(kvf_vllm_worker *worker)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    int64_t due_ns = kvfi_timers_due(&sender->expiries);

    if (sender->oldest != NULL && !is_needed(sender->oldest) && sender->oldest->forget_ns < due_ns)
        due_ns = sender->oldest->forget_ns;
    if (due_ns == INT64_MAX)
        kvfi_timer_disarm(&worker->loop.timers, &sender->clock);
    else
        kvfi_timer_arm(&worker->loop.timers, &sender->clock, due_ns);
}

void kvfi_vllm_expiry_arm(kvf_vllm_worker *worker, struct kvfi_vllm_transfer *transfer, int64_t due_ns)
{
    kvfi_timer_arm(&worker->sender->expiries, &transfer->expiry, due_ns);
    set_clock(worker);
}

void kvfi_vllm_expire_due(kvf_vllm_worker *worker, int64_t now_ns)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    struct kvfi_timer *timer;

    while ((timer = kvfi_timers_take(&sender->expiries, now_ns)) != NULL) {
        struct kvfi_vllm_transfer *transfer = KVFI_HOLDER(timer, struct kvfi_vllm_transfer, expiry);

        /* While it is being written it does not expire: the end of the write arms this again. */
        if (transfer->active == NULL)
            kvfi_vllm_offer_feed(worker, transfer, KVFI_OFFER_ON_TIME, KVF_OK, 0);
    }
    forget_old(sender, now_ns);
    set_clock(worker);
}

/* ---- what the user is told ------------------------------------------------------------------------------------- */

void kvfi_vllm_sender_count_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_counts *counts)
{
    kvfi_vllm_expire_due(worker, kvfi_now_ns());
    kvfi_vllm_rounds_run(worker);
    for (const struct kvfi_vllm_transfer *transfer = worker->sender->finished; transfer != NULL;
         transfer = transfer->next_finished) {
        counts->ids[KVFI_VLLM_SENT]++;
        counts->text_bytes += strlen(transfer->p_req_id) + 1;
    }
}

void kvfi_vllm_sender_take_over(kvf_vllm_worker *worker, struct kvfi_vllm_over_lists *lists)
{
    struct kvfi_vllm_sender *sender = worker->sender;

    while (sender->finished != NULL) {
        struct kvfi_vllm_transfer *transfer = sender->finished;

        sender->finished = transfer->next_finished;
        transfer->next_finished = NULL;
        transfer->told = false;
        kvfi_vllm_over_put(lists, KVFI_VLLM_SENT, transfer->p_req_id);
    }
    set_clock(worker);
}
