/* SPDX-License-Identifier: Apache-2.0 */
#include "life/writer.h"

void kvfi_writer_init(struct kvfi_writer *writer) { *writer = (struct kvfi_writer){.state = KVFI_WRITER_IDLE}; }

bool kvfi_writer_quiet(const struct kvfi_writer *writer)
{
    return writer->state == KVFI_WRITER_IDLE || writer->state == KVFI_WRITER_DONE ||
           writer->state == KVFI_WRITER_FAILED;
}

static enum kvfi_verdict finish(struct kvfi_writer *writer, struct kvfi_actions *actions)
{
    writer->state = KVFI_WRITER_DONE;
    kvfi_act(actions, KVFI_WRITER_DO_DISARM);
    kvfi_act(actions, KVFI_WRITER_DO_QUIET);
    kvfi_act(actions, KVFI_WRITER_DO_WORD_DONE);
    return KVFI_TAKEN;
}

/* The word is failed and its writes are over. */
static enum kvfi_verdict fail_quiet(struct kvfi_writer *writer, enum kvf_status status, struct kvfi_actions *actions)
{
    writer->state = KVFI_WRITER_FAILED;
    writer->reason = status == KVF_OK ? KVF_ERR_INTERNAL : status;
    kvfi_act(actions, KVFI_WRITER_DO_DISARM);
    kvfi_act(actions, KVFI_WRITER_DO_QUIET);
    kvfi_act(actions, KVFI_WRITER_DO_WORD_FAILED);
    return KVFI_TAKEN;
}

/* The word is failed; whether it still writes is settled by DISARMED, by its own words, or by its end. */
static enum kvfi_verdict fail_doubt(struct kvfi_writer *writer, enum kvf_status status, bool tell,
                                    struct kvfi_actions *actions)
{
    writer->state = KVFI_WRITER_IN_DOUBT;
    writer->reason = status == KVF_OK ? KVF_ERR_INTERNAL : status;
    if (tell)
        kvfi_act(actions, KVFI_WRITER_DO_SEND_CANCEL);
    kvfi_act(actions, KVFI_WRITER_DO_WORD_FAILED);
    kvfi_act(actions, KVFI_WRITER_DO_DISARM);
    return KVFI_TAKEN;
}

static enum kvfi_verdict step_idle(struct kvfi_writer *writer, const struct kvfi_life_event *event,
                                   struct kvfi_actions *actions)
{
    switch (event->kind) {
    case KVFI_WRITER_ON_ASK:
        writer->state = KVFI_WRITER_ASKED;
        writer->expected_bytes = event->value;
        return KVFI_TAKEN;
    case KVFI_WRITER_ON_STOP:
    case KVFI_WRITER_ON_LOST:
        writer->state = KVFI_WRITER_FAILED;
        writer->reason = event->kind == KVFI_WRITER_ON_LOST ? KVF_ERR_PEER_LOST : event->status;
        kvfi_act(actions, KVFI_WRITER_DO_WORD_FAILED);
        return KVFI_TAKEN;
    case KVFI_WRITER_ON_DISARMED:
    case KVFI_WRITER_ON_GONE:
        return KVFI_IGNORED;
    default:
        return KVFI_VIOLATION;
    }
}

static enum kvfi_verdict on_done(struct kvfi_writer *writer, int64_t bytes, struct kvfi_actions *actions)
{
    enum kvfi_verdict verdict = KVFI_TAKEN;

    if (writer->state == KVFI_WRITER_SAID_DONE)
        return KVFI_IGNORED;
    writer->said = KVFI_WRITER_SAYS_DONE;
    if (bytes != writer->expected_bytes) {
        fail_quiet(writer, KVF_ERR_INCOMPLETE_TRANSFER, actions);
        verdict = KVFI_VIOLATION;
    } else if (writer->state == KVFI_WRITER_ASKED && bytes > 0) {
        /* without "started" nobody knows who vouches for the bytes */
        fail_quiet(writer, KVF_ERR_PROTOCOL, actions);
        verdict = KVFI_VIOLATION;
    } else if (bytes > 0 && writer->must_arrive && !writer->arrived) {
        writer->state = KVFI_WRITER_SAID_DONE;
    } else {
        finish(writer, actions);
    }
    return verdict;
}

static enum kvfi_verdict on_started(struct kvfi_writer *writer, const struct kvfi_life_event *event)
{
    if (writer->state != KVFI_WRITER_ASKED)
        return KVFI_IGNORED;
    writer->state = KVFI_WRITER_STARTED;
    writer->must_arrive = (event->value & KVFI_WRITER_SEEN) != 0;
    writer->remote = (event->value & KVFI_WRITER_REMOTE) != 0;
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_arrived(struct kvfi_writer *writer, struct kvfi_actions *actions)
{
    writer->arrived = true;
    return writer->state == KVFI_WRITER_SAID_DONE ? finish(writer, actions) : KVFI_TAKEN;
}

/* Quiet without a word: nobody waits for one. */
static enum kvfi_verdict spare(struct kvfi_writer *writer, enum kvfi_writer_state state, struct kvfi_actions *actions)
{
    writer->state = (uint8_t)state;
    writer->said = KVFI_WRITER_SAYS_NEVER;
    kvfi_act(actions, KVFI_WRITER_DO_DISARM);
    kvfi_act(actions, KVFI_WRITER_DO_QUIET);
    return KVFI_TAKEN;
}

/* ASKED, STARTED, SAID_DONE */
static enum kvfi_verdict step_open(struct kvfi_writer *writer, const struct kvfi_life_event *event,
                                   struct kvfi_actions *actions)
{
    switch (event->kind) {
    case KVFI_WRITER_ON_STARTED:
        return on_started(writer, event);
    case KVFI_WRITER_ON_DONE:
        return on_done(writer, event->value, actions);
    case KVFI_WRITER_ON_ARRIVED:
        return on_arrived(writer, actions);
    case KVFI_WRITER_ON_FAILED:
        writer->said = KVFI_WRITER_SAYS_FAILED;
        return fail_quiet(writer, event->status, actions);
    case KVFI_WRITER_ON_QUIESCED: /* the answer to a cancel that this side did not send: it ended */
        writer->said = KVFI_WRITER_SAYS_FAILED;
        return fail_quiet(writer, KVF_ERR_CANCELLED, actions);
    case KVFI_WRITER_ON_SPARED:
        return writer->state == KVFI_WRITER_SAID_DONE ? KVFI_IGNORED : spare(writer, KVFI_WRITER_DONE, actions);
    case KVFI_WRITER_ON_DOUBT:
        writer->said = KVFI_WRITER_SAYS_DOUBT;
        return fail_doubt(writer, event->status, false, actions);
    case KVFI_WRITER_ON_BAD_GRANT:
    case KVFI_WRITER_ON_STOP:
        return fail_doubt(writer, event->status, true, actions);
    case KVFI_WRITER_ON_LOST:
        return fail_doubt(writer, KVF_ERR_PEER_LOST, true, actions);
    case KVFI_WRITER_ON_GONE:
        /* of one that has not started, or does not write here itself, it says nothing */
        if (writer->state == KVFI_WRITER_ASKED || !writer->remote)
            return KVFI_IGNORED;
        return fail_quiet(writer, KVF_ERR_PEER_LOST, actions);
    default:
        return KVFI_IGNORED;
    }
}

/* A word that was said while the doubt was this side's own settles it; after the writer's own doubt it does not. */
static enum kvfi_verdict doubt_word(struct kvfi_writer *writer, enum kvfi_writer_said word,
                                    struct kvfi_actions *actions)
{
    if (writer->said == KVFI_WRITER_SAYS_DOUBT)
        return word == KVFI_WRITER_SAYS_DONE ? KVFI_VIOLATION : KVFI_IGNORED;
    if (word == KVFI_WRITER_SAYS_DOUBT) {
        /* it had said done, or failed: then it does not know what it says */
        if (writer->said != KVFI_WRITER_NOTHING)
            return KVFI_VIOLATION;
        writer->said = KVFI_WRITER_SAYS_DOUBT;
        return KVFI_TAKEN;
    }
    writer->said = (uint8_t)word;
    writer->state = KVFI_WRITER_FAILED;
    kvfi_act(actions, KVFI_WRITER_DO_QUIET);
    return KVFI_TAKEN;
}

static enum kvfi_verdict step_doubt(struct kvfi_writer *writer, const struct kvfi_life_event *event,
                                    struct kvfi_actions *actions)
{
    switch (event->kind) {
    case KVFI_WRITER_ON_DISARMED:
        if (event->value == 0)
            return KVFI_TAKEN;
        break;
    case KVFI_WRITER_ON_DONE:
        return doubt_word(writer, KVFI_WRITER_SAYS_DONE, actions);
    case KVFI_WRITER_ON_FAILED:
        return doubt_word(writer, KVFI_WRITER_SAYS_FAILED, actions);
    case KVFI_WRITER_ON_DOUBT:
        return doubt_word(writer, KVFI_WRITER_SAYS_DOUBT, actions);
    case KVFI_WRITER_ON_NEVER:
    case KVFI_WRITER_ON_SPARED:
        if (writer->said == KVFI_WRITER_SAYS_DOUBT)
            return KVFI_IGNORED;
        writer->said = KVFI_WRITER_SAYS_NEVER;
        break;
    case KVFI_WRITER_ON_QUIESCED:
        writer->said = KVFI_WRITER_SAYS_FAILED;
        break;
    case KVFI_WRITER_ON_GONE:
        break;
    default:
        return KVFI_IGNORED;
    }
    writer->state = KVFI_WRITER_FAILED;
    kvfi_act(actions, KVFI_WRITER_DO_QUIET);
    return KVFI_TAKEN;
}

/* Doubled words are harmless; one that denies the first says that nothing of it can be believed. */
static enum kvfi_verdict step_ended(const struct kvfi_writer *writer, int kind)
{
    bool denies = false;

    if (kind == KVFI_WRITER_ON_DONE)
        denies = writer->said != KVFI_WRITER_NOTHING && writer->said != KVFI_WRITER_SAYS_DONE;
    else if (kind == KVFI_WRITER_ON_FAILED)
        denies = writer->said == KVFI_WRITER_SAYS_DONE;
    else if (kind == KVFI_WRITER_ON_DOUBT)
        denies = writer->said != KVFI_WRITER_NOTHING;
    return denies ? KVFI_VIOLATION : KVFI_IGNORED;
}

enum kvfi_verdict kvfi_writer_step(struct kvfi_writer *writer, const struct kvfi_life_event *event,
                                   struct kvfi_actions *actions)
{
    actions->count = 0;
    switch (writer->state) {
    case KVFI_WRITER_IDLE:
        return step_idle(writer, event, actions);
    case KVFI_WRITER_ASKED:
    case KVFI_WRITER_STARTED:
    case KVFI_WRITER_SAID_DONE:
        return step_open(writer, event, actions);
    case KVFI_WRITER_IN_DOUBT:
        return step_doubt(writer, event, actions);
    default:
        return step_ended(writer, event->kind);
    }
}
