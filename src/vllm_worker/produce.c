/* SPDX-License-Identifier: Apache-2.0 */
/* The producer half as a whole. */
#include "vllm_worker/produce.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

/* ---- consumer ranks -------------------------------------------------------------------------------------------- */

void kvfi_vllm_session_format(const char *host, int64_t port, char out[KVF_VLLM_ADDRESS_BYTES])
{
    bool bare_v6 = host[0] != '[' && strchr(host, ':') != NULL;

    snprintf(out, KVF_VLLM_ADDRESS_BYTES, bare_v6 ? "[%s]:%" PRId64 : "%s:%" PRId64, host, port);
}

struct kvfi_vllm_puller *kvfi_vllm_puller_get(struct kvfi_vllm_sender *sender, const struct kvf_vllm_peer *peer)
{
    size_t host_bytes = strlen(peer->hostname), key_bytes = 2 * sizeof(int64_t) + host_bytes;
    struct kvfi_vllm_puller *puller = kvfi_alloc_zeroed(1, sizeof *puller + key_bytes);
    struct kvfi_link *link;

    if (puller == NULL)
        return NULL;
    memcpy(puller->key, &peer->port, sizeof(int64_t));
    memcpy(puller->key + sizeof(int64_t), &peer->tp_rank, sizeof(int64_t));
    memcpy(puller->key + 2 * sizeof(int64_t), peer->hostname, host_bytes);
    link = kvfi_table_find(&sender->pullers, puller->key, key_bytes);
    if (link != NULL) {
        free(puller);
        return kvfi_vllm_puller_acquire(KVFI_HOLDER(link, struct kvfi_vllm_puller, link));
    }
    puller->references = 1;
    puller->key_bytes = key_bytes;
    kvfi_vllm_session_format(peer->hostname, peer->port, puller->session);
    kvfi_table_insert(&sender->pullers, &puller->link, puller->key, key_bytes);
    return puller;
}

struct kvfi_vllm_puller *kvfi_vllm_puller_acquire(struct kvfi_vllm_puller *puller)
{
    puller->references++;
    return puller;
}

void kvfi_vllm_puller_release(struct kvfi_vllm_sender *sender, struct kvfi_vllm_puller *puller)
{
    if (--puller->references > 0)
        return;
    kvfi_table_remove(&sender->pullers, &puller->link);
    free(puller);
}

/* ---- replies --------------------------------------------------------------------------------------------------- */

void kvfi_vllm_sender_reply(kvf_vllm_worker *worker, const struct kvfi_route *to, const struct kvfi_vllm_reply *reply)
{
    struct kvfi_channel *channel = worker->sender->channel;
    struct kvf_error error;
    unsigned char *bytes;
    size_t byte_count;
    enum kvf_status status;

    if (channel == NULL)
        return;
    status = kvfi_vllm_reply_encode(reply, &bytes, &byte_count, &error);
    if (status == KVF_OK) {
        status = kvfi_channel_send(channel, to, bytes, byte_count, &error);
        free(bytes);
    }
    if (status != KVF_OK)
        kvfi_logf(&worker->log, status == KVF_ERR_UNREACHABLE ? KVF_LOG_DEBUG : KVF_LOG_WARN,
                  "vllm producer: a reply (%s, %zu ok, %zu failed) did not go out: %s",
                  kvfi_vllm_verdict_text(reply->verdict), reply->ok_count, reply->err_count, error.text);
}

/* ---- beginning and end ----------------------------------------------------------------------------------------- */

static void clock_fires(void *owner, struct kvfi_timer *timer)
{
    (void)timer;
    kvfi_vllm_expire_due(owner, kvfi_now_ns());
    kvfi_vllm_rounds_run(owner);
}

enum kvf_status kvfi_vllm_sender_create(kvf_vllm_worker *worker, struct kvfi_vllm_sender **out,
                                        struct kvf_error *error)
{
    const struct kvfi_vllm_writer over_engine = {kvfi_vllm_engine_write, worker->engine};
    struct kvfi_vllm_sender *sender = kvfi_alloc_zeroed(1, sizeof *sender);
    enum kvf_status status;

    if (sender == NULL)
        return kvfi_fail_memory(error, "a producer");
    sender->seed = kvfi_random_u64();
    sender->clock.fire = clock_fires;
    sender->watch.fd = -1;
    *out = sender; /* destroy frees what there is */
    if (!kvfi_table_init(&sender->transfers) || !kvfi_table_init(&sender->pullers))
        return kvfi_fail_memory(error, "a producer's tables");
    status = kvfi_vllm_writers_create(&worker->loop, worker->writer.write != NULL ? &worker->writer : &over_engine,
                                      &sender->writers, error);
    return status;
}

static void free_transfers(struct kvfi_vllm_sender *sender)
{
    struct kvfi_link *link;

    while (sender->oldest != NULL) { /* those that were replaced are in no table */
        struct kvfi_vllm_transfer *transfer = sender->oldest;

        sender->oldest = transfer->newer;
        kvfi_vllm_transfer_free(sender, transfer);
    }
    while (sender->transfers.buckets != NULL && (link = kvfi_table_any(&sender->transfers)) != NULL)
        kvfi_vllm_transfer_free(sender, KVFI_HOLDER(link, struct kvfi_vllm_transfer, link));
}

void kvfi_vllm_sender_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_sender *sender)
{
    if (sender == NULL)
        return;
    kvfi_vllm_writers_destroy(sender->writers);
    kvfi_loop_drop_commands(&worker->loop); /* batches that came back */
    while (sender->answers != NULL) {
        free(sender->answers->out);
        sender->answers->out = NULL;
        kvfi_vllm_answer_free(worker, sender->answers);
    }
    free_transfers(sender);
    kvfi_timer_disarm(&worker->loop.timers, &sender->clock);
    kvf_vllm_producer_destroy(sender->producer);
    kvfi_channel_close(sender->channel, 300);
    kvfi_table_fini(&sender->transfers);
    kvfi_table_fini(&sender->pullers);
    free(sender);
    worker->sender = NULL;
}

/* ---- the worker's memory --------------------------------------------------------------------------------------- */

void kvfi_vllm_sender_on_registered(kvf_vllm_worker *worker, struct kvf_vllm_producer *producer)
{
    struct kvfi_vllm_sender *sender = worker->sender;

    while (sender->answers != NULL)
        kvfi_vllm_answer_give_up(worker, sender->answers, KVF_ERR_SUPERSEDED,
                                 "The P side registered its memory anew.");
    kvf_vllm_producer_destroy(sender->producer);
    sender->producer = producer;
}

void kvfi_vllm_sender_resume(kvf_vllm_worker *worker) { kvfi_vllm_rounds_run(worker); }

void kvfi_vllm_sender_refuse_all(kvf_vllm_worker *worker)
{
    struct kvfi_vllm_sender *sender = worker->sender;
    struct kvfi_vllm_answer *next;

    for (struct kvfi_vllm_answer *answer = sender->answers; answer != NULL; answer = next) {
        next = answer->next;
        if (answer->out == NULL) {
            kvfi_vllm_answer_give_up(worker, answer, KVF_ERR_CLOSED, "The P side shuts down.");
            continue;
        }
        for (size_t i = 0; i < answer->entry_count; i++) {
            struct kvfi_vllm_entry *entry = &answer->entries[i];
            struct kvfi_vllm_transfer *transfer = entry->transfer;

            if (transfer == NULL || (entry->state != KVFI_VLLM_WAITING && entry->state != KVFI_VLLM_DUE))
                continue;
            kvfi_vllm_entry_due(sender, entry, KVFI_VLLM_CLOSING);
            kvfi_vllm_transfer_left(sender, transfer);
        }
    }
}

/* ---- how much there is ----------------------------------------------------------------------------------------- */

int64_t kvfi_vllm_sender_offered(const kvf_vllm_worker *worker) { return worker->sender->ready; }

int64_t kvfi_vllm_sender_busy(const kvf_vllm_worker *worker) { return worker->sender->rounds_out; }

void kvfi_vllm_sender_gauge(const kvf_vllm_worker *worker, struct kvf_vllm_worker_stats *stats)
{
    const struct kvfi_vllm_sender *sender = worker->sender;

    stats->pulls_waiting = sender->answer_count - sender->rounds_out;
    stats->transfers_tracked = sender->unknown + sender->known + sender->ready;
    stats->placeholders = sender->unknown + sender->known;
}
