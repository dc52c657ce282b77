/* SPDX-License-Identifier: Apache-2.0 */
/* Messages out. What the channel cannot take yet waits here, in order, so that a last word is not lost to a full
 * queue. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

#define TRY_AGAIN_NS (5 * KVFI_MS)

struct kvfi_unsent {
    struct kvfi_unsent *next;
    struct kvfi_route to;
    size_t byte_count;
    unsigned char bytes[];
};

static bool waits(const kvf_engine *engine, const struct kvfi_route *to)
{
    const struct kvfi_unsent *unsent = engine->unsent_head;

    while (unsent != NULL && !kvfi_route_equal(&unsent->to, to))
        unsent = unsent->next;
    return unsent != NULL;
}

static void flush(kvf_engine *engine, struct kvfi_timer *timer)
{
    struct kvfi_unsent **at = &engine->unsent_head;

    engine->unsent_tail = NULL;
    while (*at != NULL) {
        struct kvfi_unsent *unsent = *at;
        bool held = false;
        for (struct kvfi_unsent *before = engine->unsent_head; before != unsent && !held; before = before->next)
            held = kvfi_route_equal(&before->to, &unsent->to);
        if (!held)
            held = kvfi_channel_send(engine->channel, &unsent->to, unsent->bytes, unsent->byte_count, NULL) ==
                   KVF_ERR_AGAIN;
        if (held) {
            engine->unsent_tail = unsent;
            at = &unsent->next;
        } else {
            *at = unsent->next;
            engine->unsent_count--;
            free(unsent);
        }
    }
    if (engine->unsent_head != NULL)
        kvfi_timer_arm(&engine->timers, timer, kvfi_now_ns() + TRY_AGAIN_NS);
}

static enum kvf_status keep(kvf_engine *engine, const struct kvfi_route *to, struct kvf_error *error)
{
    struct kvfi_unsent *unsent = NULL;

    if (engine->unsent_count < KVFI_MAX_UNSENT)
        unsent = malloc(sizeof *unsent + engine->buffer.count);
    if (unsent == NULL)
        return kvfi_fail(error, KVF_ERR_AGAIN, "too many messages wait to be sent");
    *unsent = (struct kvfi_unsent){.to = *to, .byte_count = engine->buffer.count};
    memcpy(unsent->bytes, engine->buffer.bytes, engine->buffer.count);
    *(engine->unsent_head == NULL ? &engine->unsent_head : &engine->unsent_tail->next) = unsent;
    engine->unsent_tail = unsent;
    engine->unsent_count++;
    engine->unsent_timer.fire = flush;
    if (!engine->unsent_timer.armed)
        kvfi_timer_arm(&engine->timers, &engine->unsent_timer, kvfi_now_ns() + TRY_AGAIN_NS);
    return KVF_OK;
}

enum kvf_status kvfi_send(kvf_engine *engine, const struct kvfi_route *to, const struct kvfi_message *message,
                          struct kvf_error *error)
{
    struct kvf_error own = {.position = -1};
    enum kvf_status status = kvfi_wire_pack(message, &engine->buffer, &own);

    kvfi_logf(&engine->log, KVF_LOG_TRACE, "%s sends %s", engine->self, kvfi_message_name(message->type));
    if (status == KVF_OK && waits(engine, to))
        status = keep(engine, to, &own);
    else if (status == KVF_OK)
        status = kvfi_channel_send(engine->channel, to, engine->buffer.bytes, engine->buffer.count, &own);
    if (status == KVF_ERR_AGAIN && !waits(engine, to))
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
    while (engine->unsent_head != NULL) {
        struct kvfi_unsent *unsent = engine->unsent_head;
        engine->unsent_head = unsent->next;
        free(unsent);
    }
}
