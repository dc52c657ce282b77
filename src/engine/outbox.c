/* SPDX-License-Identifier: Apache-2.0 */
/* Messages out. What the channel cannot take yet waits here, in order, so that a last word is not lost to a full
 * queue. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

#define TRY_AGAIN_NS (5 * KVFI_MS)

struct unsent {
    struct unsent *next;
    size_t byte_count;
    unsigned char bytes[];
};

/* What waits for one peer: never empty. */
struct kvfi_outbox {
    struct kvfi_outbox *next;
    struct kvfi_route to;
    struct unsent *head, *tail;
    size_t count;
    int64_t bytes;
};

static struct kvfi_outbox *find(const kvf_engine *engine, const struct kvfi_route *to)
{
    struct kvfi_outbox *outbox = engine->outboxes;

    while (outbox != NULL && !kvfi_route_equal(&outbox->to, to))
        outbox = outbox->next;
    return outbox;
}

static void drop_first(kvf_engine *engine, struct kvfi_outbox *outbox)
{
    struct unsent *unsent = outbox->head;

    outbox->head = unsent->next;
    outbox->count--;
    outbox->bytes -= (int64_t)unsent->byte_count;
    engine->unsent_bytes -= (int64_t)unsent->byte_count;
    free(unsent);
}

/* Sends until the channel takes no more for this peer. */
static void flush_one(kvf_engine *engine, struct kvfi_outbox *outbox)
{
    while (outbox->head != NULL && kvfi_channel_send(engine->channel, &outbox->to, outbox->head->bytes,
                                                     outbox->head->byte_count, NULL) != KVF_ERR_AGAIN)
        drop_first(engine, outbox);
}

static void flush(void *owner, struct kvfi_timer *timer)
{
    kvf_engine *engine = owner;
    struct kvfi_outbox **at = &engine->outboxes;

    while (*at != NULL) {
        struct kvfi_outbox *outbox = *at;
        flush_one(engine, outbox);
        if (outbox->head != NULL) {
            at = &outbox->next;
        } else {
            *at = outbox->next;
            free(outbox);
        }
    }
    if (engine->outboxes != NULL)
        kvfi_timer_arm(&engine->loop.timers, timer, kvfi_now_ns() + TRY_AGAIN_NS);
}

/* The peer's outbox, made where there is none; NULL when it or all of them are full. */
static struct kvfi_outbox *open_outbox(kvf_engine *engine, const struct kvfi_route *to)
{
    struct kvfi_outbox *outbox = find(engine, to);

    if (engine->unsent_bytes + (int64_t)engine->buffer.count > KVFI_MAX_ALL_UNSENT_BYTES)
        return NULL;
    if (outbox != NULL && (outbox->count >= KVFI_MAX_UNSENT || outbox->bytes >= KVFI_MAX_UNSENT_BYTES))
        return NULL;
    if (outbox == NULL && (outbox = calloc(1, sizeof *outbox)) != NULL) {
        outbox->to = *to;
        outbox->next = engine->outboxes;
        engine->outboxes = outbox;
    }
    return outbox;
}

static enum kvf_status keep(kvf_engine *engine, const struct kvfi_route *to, struct kvf_error *error)
{
    struct unsent *unsent = malloc(sizeof *unsent + engine->buffer.count);
    struct kvfi_outbox *outbox = unsent == NULL ? NULL : open_outbox(engine, to);

    if (outbox == NULL) {
        free(unsent);
        return kvfi_fail(error, KVF_ERR_AGAIN, "too many messages wait to be sent");
    }
    unsent->next = NULL;
    unsent->byte_count = engine->buffer.count;
    memcpy(unsent->bytes, engine->buffer.bytes, engine->buffer.count);
    *(outbox->head == NULL ? &outbox->head : &outbox->tail->next) = unsent;
    outbox->tail = unsent;
    outbox->count++;
    outbox->bytes += (int64_t)engine->buffer.count;
    engine->unsent_bytes += (int64_t)engine->buffer.count;
    engine->unsent_timer.fire = flush;
    if (!engine->unsent_timer.armed)
        kvfi_timer_arm(&engine->loop.timers, &engine->unsent_timer, kvfi_now_ns() + TRY_AGAIN_NS);
    return KVF_OK;
}

enum kvf_status kvfi_send(kvf_engine *engine, const struct kvfi_route *to, const struct kvfi_message *message,
                          struct kvf_error *error)
{
    struct kvf_error own = {.position = -1};
    enum kvf_status status = kvfi_wire_pack(message, &engine->buffer, &own);

    kvfi_logf(&engine->log, KVF_LOG_TRACE, "%s sends %s", engine->self, kvfi_message_name(message->type));
    if (status == KVF_OK && find(engine, to) == NULL)
        status = kvfi_channel_send(engine->channel, to, engine->buffer.bytes, engine->buffer.count, &own);
    else if (status == KVF_OK)
        status = KVF_ERR_AGAIN;
    if (status == KVF_ERR_AGAIN)
        status = keep(engine, to, &own);
    if (status != KVF_OK) {
        kvfi_logf(&engine->log, KVF_LOG_DEBUG, "%s cannot send %s: %s", engine->self, kvfi_message_name(message->type),
                  own.text);
        if (error != NULL)
            *error = own;
    }
    return status;
}

void kvfi_send_nack(kvf_engine *engine, const struct kvfi_route *to, const char *of, const char *transfer,
                    int64_t attempt, enum kvf_status status, const char *text)
{
    struct kvfi_message message = {.type = KVFI_MSG_NACK,
                                   .nack = {.of = of, .transfer = transfer, .attempt = attempt, .status = status,
                                            .text = text}};

    (void)kvfi_send(engine, to, &message, NULL);
}

void kvfi_unsent_fini(kvf_engine *engine)
{
    while (engine->outboxes != NULL) {
        struct kvfi_outbox *outbox = engine->outboxes;
        engine->outboxes = outbox->next;
        while (outbox->head != NULL)
            drop_first(engine, outbox);
        free(outbox);
    }
}
