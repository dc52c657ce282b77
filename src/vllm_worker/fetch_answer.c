/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker answers to a pull: by the rules of 0.33.0, which hold for older ones, too. */
#include "vllm_worker/consume.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* Texts of peers go into events and logs as one line. */
static const char *said(const struct kvfi_vllm_reply *reply, const char *otherwise, char *text)
{
    size_t length;

    snprintf(text, KVF_ERROR_TEXT_BYTES, "%s", reply->err_msg != NULL && reply->err_msg[0] != '\0' ? reply->err_msg
                                                                                                    : otherwise);
    length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = ' ';
    return text;
}

/* One entry. An id of another order is as unknown as any; one that was settled before stays so. */
static void settle(struct kvfi_vllm_fetch *fetch, const char *id, int kind, const char *text)
{
    struct kvfi_vllm_consumer *consumer = fetch->order->worker->consumer;
    struct kvfi_link *link = kvfi_table_find(&consumer->wants, id, strlen(id));
    struct kvfi_vllm_want *want = link == NULL ? NULL : KVFI_HOLDER(link, struct kvfi_vllm_want, link);

    if (want == NULL || want->order != fetch->order || kvfi_vllm_writer_over(kvfi_vllm_want_writer(want, fetch))) {
        consumer->ignored_ids++;
        return;
    }
    kvfi_vllm_want_feed(want, fetch, kind, kind == KVFI_WRITER_ON_DONE ? KVF_OK : KVF_ERR_REFUSED, text);
}

/* Errors first: an id in both lists has failed. */
static void settle_all(struct kvfi_vllm_fetch *fetch, const struct kvfi_vllm_reply *reply)
{
    char text[KVF_ERROR_TEXT_BYTES];

    said(reply, "unknown error", text);
    for (size_t i = 0; i < reply->err_count; i++)
        settle(fetch, reply->err_reqs[i], KVFI_WRITER_ON_FAILED, text);
    for (size_t i = 0; i < reply->ok_count; i++)
        settle(fetch, reply->ok_reqs[i], KVFI_WRITER_ON_DONE, "");
}

/* What has failed meanwhile is not asked for again: a miss says that it was left alone. */
static void settle_failed(struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_order *order = fetch->order;

    for (size_t i = 0; i < order->want_count; i++)
        if (order->wants[i] != NULL && kvfi_transfer_ended(&order->wants[i]->life))
            kvfi_vllm_want_feed(order->wants[i], fetch, KVFI_WRITER_ON_FAILED, KVF_ERR_REFUSED, "");
}

static void ask_again(struct kvfi_vllm_fetch *fetch)
{
    fetch->place->acknowledged = 0;
    fetch->must_have_arrays = true;
    kvfi_vllm_fetch_leave(fetch, false);
    fetch->state = KVFI_VLLM_FETCH_WAITS;
    settle_failed(fetch);
    if (fetch->state == KVFI_VLLM_FETCH_WAITS)
        kvfi_vllm_fetch_connect(fetch);
}

static void take(struct kvfi_vllm_fetch *fetch, const struct kvfi_vllm_reply *reply)
{
    kvf_vllm_worker *worker = fetch->order->worker;
    char text[KVF_ERROR_TEXT_BYTES];

    if (worker->layout_id != 0 && reply->layout_id == worker->layout_id)
        fetch->place->acknowledged = reply->layout_id;
    switch (reply->verdict) {
    case KVFI_VLLM_LAYOUT_MISS:
        worker->stats.layout_misses++;
        if (!fetch->with_arrays) {
            ask_again(fetch);
            break;
        }
        /* fall through */
    case KVFI_VLLM_ERROR:
        kvfi_vllm_fetch_feed(fetch, KVFI_WRITER_ON_FAILED, KVF_ERR_REFUSED, said(reply, "transfer error", text));
        break;
    case KVFI_VLLM_FINISH:
        settle_all(fetch, reply);
        kvfi_vllm_fetch_feed(fetch, KVFI_WRITER_ON_FAILED, KVF_ERR_PROTOCOL,
                             "peer finished without reporting a transfer result");
        break;
    default:
        settle_all(fetch, reply);
        if (fetch->state == KVFI_VLLM_FETCH_ASKED)
            kvfi_vllm_fetch_wait(fetch);
        break;
    }
}

void kvfi_vllm_fetch_answer(struct kvfi_vllm_fetch *fetch, const void *bytes, size_t byte_count)
{
    struct kvfi_vllm_reply reply;
    struct kvf_error error;

    if (fetch->state != KVFI_VLLM_FETCH_ASKED && fetch->state != KVFI_VLLM_FETCH_LATE) {
        fetch->order->worker->stats.malformed++; /* it was not asked yet */
        return;
    }
    if (kvfi_vllm_reply_decode(bytes, byte_count, fetch->order->worker->options.layout_ids != 0, &reply, &error) !=
        KVF_OK) {
        kvfi_vllm_fetch_garbage(fetch, error.text);
        return;
    }
    take(fetch, &reply);
    kvfi_vllm_reply_fini(&reply);
}

/* Upstream fails them, too. What the worker does is not known: only an answer settles them. */
void kvfi_vllm_fetch_garbage(struct kvfi_vllm_fetch *fetch, const char *why)
{
    char text[KVF_ERROR_TEXT_BYTES];

    fetch->order->worker->stats.malformed++;
    if (fetch->state != KVFI_VLLM_FETCH_ASKED)
        return;
    fetch->state = KVFI_VLLM_FETCH_LATE;
    kvfi_timer_disarm(&fetch->order->worker->loop.timers, &fetch->timer);
    snprintf(text, sizeof text, "transfer failed: %.200s: %.200s", fetch->address, why);
    kvfi_vllm_fetch_feed(fetch, KVFI_WRITER_ON_STOP, KVF_ERR_PROTOCOL, text);
}
