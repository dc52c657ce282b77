/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds: what is due for one pull is bound, written as one batch, and answered by one reply. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "vllm_worker/produce.h"

/* ---- what is due ----------------------------------------------------------------------------------------------- */

static bool was_taken(const struct kvfi_vllm_transfer *transfer, const struct kvfi_vllm_puller *puller, uint64_t copy)
{
    for (size_t i = 0; i < transfer->taken_count; i++)
        if (transfer->taken[i].puller == puller && transfer->taken[i].copy == copy)
            return true;
    return false;
}

static void list_due(struct kvfi_vllm_sender *sender, struct kvfi_vllm_answer *answer)
{
    if (answer->listed_due || answer->out != NULL)
        return;
    answer->listed_due = true;
    answer->next_due = NULL;
    *(sender->due == NULL ? &sender->due : &sender->last_due->next_due) = answer;
    sender->last_due = answer;
}

bool kvfi_vllm_entry_has_twin(const struct kvfi_vllm_entry *entry)
{
    const struct kvfi_vllm_entry *other = entry->transfer == NULL ? NULL : entry->transfer->active;

    while (other != NULL && !(other->answer->puller == entry->answer->puller &&
                              strcmp(other->d_req_id, entry->d_req_id) == 0))
        other = other->next;
    return other != NULL;
}

void kvfi_vllm_entry_due(struct kvfi_vllm_sender *sender, struct kvfi_vllm_entry *entry, int cause)
{
    struct kvfi_vllm_answer *answer = entry->answer;

    if (cause != KVFI_VLLM_NO_CAUSE && kvfi_vllm_entry_has_twin(entry))
        return;
    if (cause != KVFI_VLLM_NO_CAUSE && entry->transfer != NULL) {
        entry->placed = was_taken(entry->transfer, answer->puller, entry->copy);
        kvfi_vllm_entry_unlink(&entry->transfer->waiting, entry);
        entry->transfer = NULL;
        entry->cause = cause;
    }
    if (entry->state != KVFI_VLLM_WAITING)
        return;
    entry->state = KVFI_VLLM_DUE;
    entry->next_due = NULL;
    *(answer->due == NULL ? &answer->due : &answer->last_due->next_due) = entry;
    answer->last_due = entry;
    list_due(sender, answer);
}

/* ---- binding --------------------------------------------------------------------------------------------------- */

static void note_problem(struct kvfi_vllm_answer *answer, const char *text)
{
    if (answer->problem == NULL)
        answer->problem = kvfi_text_copy(text);
}

void kvfi_vllm_entry_fail(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry, enum kvf_status status,
                          const char *text)
{
    const struct kvfi_vllm_told told = {.kind = KVF_VLLM_EVENT_SEND_FAILED, .status = status,
                                        .req_id = entry->transfer == NULL ? NULL : entry->transfer->p_req_id,
                                        .transfer_id = entry->transfer_id, .peer = entry->answer->puller->session,
                                        .text = text};

    entry->state = KVFI_VLLM_BAD;
    note_problem(entry->answer, text);
    kvfi_vllm_worker_tell(worker, &told);
}

static void fail_for_cause(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry)
{
    static const struct {
        enum kvf_status status;
        const char *text;
    } causes[] = {
        [KVFI_VLLM_ABORTED] = {KVF_ERR_CANCELLED, "was aborted on the P side."},
        [KVFI_VLLM_EXPIRED] = {KVF_ERR_EXPIRED, "expired on the P side."},
        [KVFI_VLLM_SENT_ALL] = {KVF_ERR_SUPERSEDED, "was sent already, to all that were expected."},
        [KVFI_VLLM_REPLACED] = {KVF_ERR_SUPERSEDED, "belongs to another request by now."},
        [KVFI_VLLM_CLOSING] = {KVF_ERR_CLOSED, "is not sent any more: the P side shuts down."},
    };
    char text[KVF_ERROR_TEXT_BYTES];

    snprintf(text, sizeof text, "Transfer %.300s %s", entry->transfer_id, causes[entry->cause].text);
    kvfi_vllm_entry_fail(worker, entry, causes[entry->cause].status, text);
}

/* Room to note that it was taken, for all that are being written: their success cannot fail. */
static bool make_room(struct kvfi_vllm_transfer *transfer)
{
    size_t wanted = transfer->taken_count + 1;

    for (const struct kvfi_vllm_entry *other = transfer->active; other != NULL; other = other->next)
        wanted++;
    while (transfer->taken_capacity < wanted)
        if (!kvfi_array_grow((void **)&transfer->taken, transfer->taken_capacity, &transfer->taken_capacity,
                             sizeof *transfer->taken))
            return false;
    return true;
}

static void feed_sink(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry, int kind, enum kvf_status status);

static enum kvf_status bind_write(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry, struct kvf_error *error)
{
    const struct kvfi_vllm_transfer *transfer = entry->transfer;
    enum kvf_status status = kvf_vllm_write_create(entry->answer->prepared, transfer->groups, transfer->group_count,
                                                   entry->groups, entry->group_count, &entry->write, error);

    if (status != KVF_OK) {
        entry->write = NULL;
        return status;
    }
    if (entry->write == NULL)
        return KVF_OK;
    entry->bytes = kvf_vllm_write_bytes(entry->write);
    entry->descriptors = kvf_vllm_write_count(entry->write);
    status = kvf_vllm_write_check(entry->write, 0, worker->memory, worker->memory_count, error);
    if (status != KVF_OK) {
        kvf_vllm_write_destroy(entry->write);
        entry->write = NULL;
    }
    return status;
}

static void bind_entry(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry)
{
    struct kvfi_vllm_transfer *transfer = entry->transfer;
    struct kvf_vllm_prepared_info info = {.struct_size = sizeof info};
    struct kvf_error error;
    enum kvf_status status = KVF_OK;

    if (!make_room(transfer))
        status = kvfi_fail_memory(&error, "what was taken of a transfer");
    if (status == KVF_OK)
        status = bind_write(worker, entry, &error);
    if (status == KVF_OK && transfer->offer.state == KVFI_OFFER_WAITING)
        status = kvf_vllm_prepared_get_info(entry->answer->prepared, &info, &error);
    if (status != KVF_OK) {
        kvfi_vllm_entry_fail(worker, entry, status, error.text);
        return;
    }
    if (transfer->offer.state == KVFI_OFFER_WAITING)
        kvfi_vllm_offer_feed(worker, transfer, KVFI_OFFER_ON_SINKS, KVF_OK, info.pulls_expected);
    kvfi_vllm_entry_link(&transfer->active, entry);
    entry->state = KVFI_VLLM_WRITING;
    kvfi_sink_init(&entry->sink);
    feed_sink(worker, entry, KVFI_SINK_ON_PULL, KVF_OK);
    feed_sink(worker, entry, KVFI_SINK_ON_CONNECTED, KVF_OK);
    feed_sink(worker, entry, KVFI_SINK_ON_POST, KVF_OK);
}

/* Takes one entry that was due. False: it waits for its twin, and is in no round. */
static bool take_entry(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry)
{
    struct kvfi_vllm_transfer *transfer = entry->transfer;

    if (entry->cause != KVFI_VLLM_NO_CAUSE && entry->placed) {
        entry->state = KVFI_VLLM_OK;
        worker->stats.pulls_repeated++;
        return true;
    }
    if (entry->cause != KVFI_VLLM_NO_CAUSE) {
        fail_for_cause(worker, entry);
        return true;
    }
    if (kvfi_vllm_entry_has_twin(entry)) {
        entry->state = KVFI_VLLM_WAITING; /* it is still in the list */
        return false;
    }
    kvfi_vllm_entry_unlink(&transfer->waiting, entry);
    if (was_taken(transfer, entry->answer->puller, entry->copy)) {
        entry->state = KVFI_VLLM_OK;
        worker->stats.pulls_repeated++;
    } else {
        bind_entry(worker, entry);
    }
    if (entry->state != KVFI_VLLM_WRITING)
        entry->transfer = NULL;
    return true;
}

/* ---- the end of one entry -------------------------------------------------------------------------------------- */

/* It is placed: counted once for each consumer rank, however often that pulls. */
static void count_taken(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry)
{
    struct kvfi_vllm_transfer *transfer = entry->transfer;
    struct kvfi_vllm_puller *puller = entry->answer->puller;
    bool first = true;

    for (size_t i = 0; i < transfer->taken_count; i++)
        first = first && transfer->taken[i].puller != puller;
    transfer->taken[transfer->taken_count++] =
        (struct kvfi_vllm_taken){kvfi_vllm_puller_acquire(puller), entry->copy};
    if (!first)
        return;
    transfer->pulled++;
    kvfi_vllm_offer_feed(worker, transfer, KVFI_OFFER_ON_SINK_DONE, KVF_OK, 0);
}

static void feed_sink(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry, int kind, enum kvf_status status)
{
    /* A pull always posts once, of no bytes perhaps; and that is its last. */
    const struct kvfi_life_event event = {.kind = kind, .status = status, .value = 1};
    struct kvfi_actions actions;

    kvfi_sink_step(&entry->sink, &event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        switch (actions.items[i]) {
        case KVFI_SINK_DO_READ_BEGIN:
            kvfi_vllm_block_feed(worker, entry->transfer, KVFI_BLOCK_ON_ACCESS_BEGIN);
            break;
        case KVFI_SINK_DO_READ_END:
            kvfi_vllm_block_feed(worker, entry->transfer, KVFI_BLOCK_ON_ACCESS_END);
            break;
        case KVFI_SINK_DO_END_DONE:
            count_taken(worker, entry);
            break;
        default: /* what it says to the peer is said by the round; a sink that failed may be asked again */
            break;
        }
    }
}

static void tell_sent(kvf_vllm_worker *worker, const struct kvfi_vllm_entry *entry, const struct kvfi_vllm_batch *batch)
{
    const struct kvfi_vllm_told told = {
        .kind = KVF_VLLM_EVENT_SENT, .bytes = entry->bytes, .descriptors = entry->descriptors,
        .started_ns = batch == NULL ? kvfi_now_ns() : batch->started_ns,
        .ended_ns = batch == NULL ? kvfi_now_ns() : batch->ended_ns, .req_id = entry->transfer->p_req_id,
        .transfer_id = entry->transfer_id, .peer = entry->answer->puller->session};

    kvfi_vllm_worker_tell(worker, &told);
}

static void end_entry(kvf_vllm_worker *worker, struct kvfi_vllm_entry *entry, const struct kvfi_vllm_batch *batch,
                      const struct kvf_error *failure)
{
    struct kvfi_vllm_transfer *transfer = entry->transfer;
    bool over = transfer->state == KVFI_VLLM_OVER && transfer->cause != KVFI_VLLM_SENT_ALL;

    kvfi_vllm_entry_unlink(&transfer->active, entry);
    kvf_vllm_write_destroy(entry->write);
    entry->write = NULL;
    if (failure == NULL && !over) {
        entry->state = KVFI_VLLM_OK;
        tell_sent(worker, entry, batch);
    } else if (failure != NULL) {
        kvfi_vllm_entry_fail(worker, entry, failure->status, failure->text);
    } else {
        entry->cause = transfer->cause;
        fail_for_cause(worker, entry);
    }
    feed_sink(worker, entry, KVFI_SINK_ON_POSTED,
              entry->state == KVFI_VLLM_OK ? KVF_OK : failure != NULL ? failure->status : KVF_ERR_CANCELLED);
    entry->transfer = NULL;
    for (struct kvfi_vllm_entry *twin = transfer->waiting, *next; twin != NULL; twin = next) {
        next = twin->next;
        kvfi_vllm_entry_due(worker->sender, twin,
                            transfer->state == KVFI_VLLM_OVER ? transfer->cause : KVFI_VLLM_NO_CAUSE);
    }
    if (transfer->state == KVFI_VLLM_READY && transfer->active == NULL && !transfer->expiry.armed)
        kvfi_vllm_expiry_arm(worker, transfer, transfer->offer.deadline_ns);
}

/* ---- the reply ------------------------------------------------------------------------------------------------- */

void kvfi_vllm_round_reply(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer)
{
    size_t ok = 0, bad = 0;
    struct kvfi_vllm_reply reply = {.layout_id = answer->layout_id};

    for (struct kvfi_vllm_entry *entry = answer->round; entry != NULL; entry = entry->next_due)
        if (entry->state == KVFI_VLLM_OK)
            answer->names[ok++] = entry->d_req_id;
    for (struct kvfi_vllm_entry *entry = answer->round; entry != NULL; entry = entry->next_due) {
        if (entry->state != KVFI_VLLM_OK)
            answer->names[ok + bad++] = entry->d_req_id;
        entry->state = KVFI_VLLM_ANSWERED;
    }
    answer->round = NULL;
    if (ok + bad == 0)
        return;
    answer->left -= ok + bad;
    reply.verdict = answer->left > 0 ? KVFI_VLLM_CONTINUE : KVFI_VLLM_FINISH;
    reply.ok_reqs = answer->names;
    reply.ok_count = ok;
    reply.err_reqs = answer->names + ok;
    reply.err_count = bad;
    reply.err_msg = bad == 0 ? NULL : answer->problem != NULL ? answer->problem : "out of memory";
    kvfi_vllm_sender_reply(worker, &answer->from, &reply);
    free(answer->problem);
    answer->problem = NULL;
    if (answer->left == 0)
        kvfi_vllm_answer_free(worker, answer);
}

/* ---- rounds ---------------------------------------------------------------------------------------------------- */

/* As upstream: what the engine returned follows what failed before; the reason is for this side. */
static void note_failed_write(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer,
                              const struct kvfi_vllm_batch *batch, struct kvf_error *failure)
{
    size_t room = 128 + (answer->problem == NULL ? 0 : strlen(answer->problem));
    char *text = malloc(room);

    worker->stats.failed_transfers++;
    kvfi_logf(&worker->log, KVF_LOG_WARN, "vllm producer: a write of %" PRId64 " bytes in %" PRId64
              " descriptors to %s failed: %s", batch->bytes, batch->descriptors, answer->puller->session,
              batch->reason.text);
    if (text != NULL) {
        snprintf(text, room, "%s%sMooncake transfer engine returned %d",
                 answer->problem == NULL ? "" : answer->problem, answer->problem == NULL ? "" : "; ", batch->code);
        free(answer->problem);
        answer->problem = text;
    }
    *failure = batch->reason;
    if (failure->status == KVF_OK)
        kvfi_fail(failure, KVF_ERR_INTERNAL, "the transfer engine returned %d", batch->code);
}

/* All of the round has ended. */
static void finish_round(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer, struct kvfi_vllm_round *out)
{
    const struct kvfi_vllm_batch *batch = out == NULL ? NULL : &out->batch;
    struct kvf_error failure;
    bool failed = batch != NULL && batch->code != 0;

    if (failed)
        note_failed_write(worker, answer, batch, &failure);
    if (batch != NULL && !failed) {
        worker->stats.transfers++;
        worker->stats.bytes_transferred += batch->bytes;
        worker->stats.descriptors += batch->descriptors;
        kvfi_vllm_record_transfer(&worker->record, batch->ended_ns - batch->started_ns, batch->bytes,
                                  batch->descriptors);
    }
    answer->out = NULL;
    for (struct kvfi_vllm_entry *entry = answer->round; entry != NULL; entry = entry->next_due)
        if (entry->state == KVFI_VLLM_WRITING)
            end_entry(worker, entry, batch, failed ? &failure : NULL);
    if (answer->left > 0)
        kvfi_vllm_answer_wait(worker, answer);
    if (answer->due != NULL)
        list_due(worker->sender, answer);
    kvfi_vllm_round_reply(worker, answer);
}

static void batch_ended(void *owner, struct kvfi_vllm_batch *batch)
{
    kvf_vllm_worker *worker = owner;
    struct kvfi_vllm_round *out = batch->context;

    worker->sender->rounds_out--;
    finish_round(worker, out->answer, out);
    free(out);
    kvfi_vllm_rounds_run(worker);
    kvfi_loop_changed(&worker->loop);
}

static bool has_bytes(const struct kvfi_vllm_entry *entry)
{
    return entry->state == KVFI_VLLM_WRITING && entry->write != NULL && entry->descriptors > 0;
}

static enum kvf_status submit(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer, size_t writing,
                              struct kvf_error *error)
{
    struct kvfi_vllm_round *out = kvfi_alloc_zeroed(1, sizeof *out + writing * sizeof out->writes[0]);
    struct kvfi_vllm_batch *batch;
    enum kvf_status status;

    if (out == NULL)
        return kvfi_fail_memory(error, "a batch of writes");
    batch = &out->batch;
    for (struct kvfi_vllm_entry *entry = answer->round; entry != NULL; entry = entry->next_due) {
        if (!has_bytes(entry))
            continue;
        out->writes[batch->write_count++] = entry->write;
        batch->bytes += entry->bytes;
        batch->descriptors += entry->descriptors;
    }
    out->answer = answer;
    batch->session = answer->puller->session;
    batch->writes = out->writes;
    batch->timeout_ns = worker->options.abort_request_timeout_ns;
    batch->ended = batch_ended;
    batch->context = out;
    status = kvfi_vllm_writers_submit(worker->sender->writers, batch, error);
    if (status != KVF_OK) {
        free(out);
        return status;
    }
    answer->out = out;
    worker->sender->rounds_out++;
    kvfi_timer_disarm(&worker->loop.timers, &answer->patience);
    return KVF_OK;
}

static void run_round(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer)
{
    struct kvfi_vllm_entry *due = answer->due, **last = &answer->round;
    struct kvf_error error;
    size_t writing = 0;

    answer->due = answer->last_due = NULL;
    while (due != NULL) {
        struct kvfi_vllm_entry *entry = due;

        due = entry->next_due;
        entry->next_due = NULL;
        if (!take_entry(worker, entry))
            continue;
        *last = entry;
        last = &entry->next_due;
        writing += has_bytes(entry);
    }
    if (writing > 0 && submit(worker, answer, writing, &error) == KVF_OK)
        return;
    for (struct kvfi_vllm_entry *entry = answer->round; writing > 0 && entry != NULL; entry = entry->next_due)
        if (entry->state == KVFI_VLLM_WRITING)
            end_entry(worker, entry, NULL, &error);
    finish_round(worker, answer, NULL);
}

void kvfi_vllm_rounds_run(kvf_vllm_worker *worker)
{
    struct kvfi_vllm_sender *sender = worker->sender;

    while (sender->due != NULL && worker->registered && !worker->asleep) {
        struct kvfi_vllm_answer *answer = sender->due;

        sender->due = answer->next_due;
        if (sender->due == NULL)
            sender->last_due = NULL;
        answer->next_due = NULL;
        answer->listed_due = false;
        run_round(worker, answer);
    }
}
