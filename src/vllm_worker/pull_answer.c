/* SPDX-License-Identifier: Apache-2.0 */
/* Answers as a whole: waiting, giving up, freeing. */
#include <stdlib.h>

#include "vllm_worker/produce.h"

void kvfi_vllm_answer_wait(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer)
{
    kvfi_timer_arm(&worker->loop.timers, &answer->patience,
                   kvfi_deadline_after(worker->options.abort_request_timeout_ns));
}

/* Takes it out of the list of those that have something due: seldom, so the list may be walked. */
static void unlist_due(struct kvfi_vllm_sender *sender, struct kvfi_vllm_answer *answer)
{
    struct kvfi_vllm_answer **at = &sender->due, *before = NULL;

    if (!answer->listed_due)
        return;
    while (*at != answer) {
        before = *at;
        at = &before->next_due;
    }
    *at = answer->next_due;
    if (sender->last_due == answer)
        sender->last_due = before;
    answer->listed_due = false;
}

void kvfi_vllm_answer_free(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer)
{
    struct kvfi_vllm_sender *sender = worker->sender;

    kvfi_timer_disarm(&worker->loop.timers, &answer->patience);
    unlist_due(sender, answer);
    for (size_t i = 0; i < answer->entry_count; i++) {
        struct kvfi_vllm_entry *entry = &answer->entries[i];
        struct kvfi_vllm_transfer *transfer = entry->transfer;

        kvf_vllm_write_destroy(entry->write);
        if (transfer == NULL)
            continue;
        kvfi_vllm_entry_unlink(entry->state == KVFI_VLLM_WRITING ? &transfer->active : &transfer->waiting, entry);
        kvfi_vllm_transfer_left(sender, transfer);
    }
    *(answer->previous != NULL ? &answer->previous->next : &sender->answers) = answer->next;
    if (answer->next != NULL)
        answer->next->previous = answer->previous;
    sender->answer_count--;
    sender->answer_bytes -= answer->bytes;
    kvfi_vllm_puller_release(sender, answer->puller);
    kvf_vllm_prepared_release(answer->prepared);
    free(answer->problem);
    free(answer);
}

void kvfi_vllm_answer_give_up(kvf_vllm_worker *worker, struct kvfi_vllm_answer *answer, enum kvf_status status,
                              const char *text)
{
    struct kvfi_vllm_entry **last = &answer->round;

    answer->due = answer->last_due = NULL;
    for (size_t i = 0; i < answer->entry_count; i++) {
        struct kvfi_vllm_entry *entry = &answer->entries[i];

        if (entry->state == KVFI_VLLM_ANSWERED)
            continue;
        if (kvfi_vllm_entry_has_twin(entry)) {
            entry->state = KVFI_VLLM_WAITING;
            kvfi_vllm_answer_wait(worker, answer);
            continue;
        }
        kvfi_vllm_entry_fail(worker, entry, status, text);
        if (entry->transfer != NULL) {
            struct kvfi_vllm_transfer *transfer = entry->transfer;

            kvfi_vllm_entry_unlink(&transfer->waiting, entry);
            entry->transfer = NULL;
            kvfi_vllm_transfer_left(worker->sender, transfer);
        }
        entry->next_due = NULL;
        *last = entry;
        last = &entry->next_due;
    }
    kvfi_vllm_round_reply(worker, answer);
}
