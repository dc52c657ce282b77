/* SPDX-License-Identifier: Apache-2.0 */
/** @file channel_kit.h  For tests: what a channel has got, and turns of one or two channels until they have got enough.
 *  Each function fails the test when what it does goes wrong or lasts too long. */
#ifndef KVFI_CHANNEL_KIT_H
#define KVFI_CHANNEL_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "channel/channel.h"

/** What a side has got. */
struct inbox {
    struct kvfi_channel *channel;
    size_t messages, refusals, last_count, last_bytes;
    char last[256];
    char refusal[128];
    struct kvfi_route from;
    bool answers;      /* sends back what comes */
    bool asker_leaves; /* so that an answer may find nobody */
    bool disconnects;  /* ends the connection that a message came on */
};

/** Counts a refusal and keeps its text: the `refuse` of a dialect whose context is an inbox. */
void inbox_on_refusal(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                      const struct kvf_error *error);

/** Waits on the descriptors alone, so that a wake-up that never comes is a failure, until both got so many. `b` may be
 *  NULL. */
void inbox_run(const struct kvfi_dialect *dialect, struct inbox *a, size_t a_messages, struct inbox *b,
               size_t b_messages);

/** @param options  NULL = the usual ones */
struct kvfi_channel *open_channel(const struct kvfi_channel_options *options);
struct kvfi_route connect_to(struct kvfi_channel *channel, const char *endpoint);

#endif
