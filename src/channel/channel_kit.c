/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/channel_kit.h"

#include <poll.h>
#include <stdio.h>

#include "sys/clock.h"

#define WAIT_NS (10 * KVFI_SECOND)

void inbox_on_refusal(void *context, const struct kvfi_route *from, const void *bytes, size_t byte_count,
                      const struct kvf_error *error)
{
    struct inbox *inbox = context;

    (void)bytes;
    (void)byte_count;
    inbox->refusals++;
    inbox->from = *from;
    snprintf(inbox->refusal, sizeof inbox->refusal, "%.120s", error->text);
}

static size_t taken(const struct inbox *inbox)
{
    return inbox->messages + inbox->refusals;
}

void inbox_run(const struct kvfi_dialect *dialect, struct inbox *a, size_t a_messages, struct inbox *b,
               size_t b_messages)
{
    int64_t end_ns = kvfi_now_ns() + WAIT_NS;

    while (taken(a) < a_messages || (b && taken(b) < b_messages)) {
        struct pollfd ready[2] = {{.fd = kvfi_channel_fd(a->channel), .events = POLLIN},
                                  {.fd = b ? kvfi_channel_fd(b->channel) : -1, .events = POLLIN}};

        if (kvfi_now_ns() > end_ns) fail_msg("waited for more than ten seconds");
        assert_true(poll(ready, 2, 10000) > 0);
        if (ready[0].revents) kvfi_channel_dispatch(a->channel, dialect, a);
        if (ready[1].revents) kvfi_channel_dispatch(b->channel, dialect, b);
    }
}

struct kvfi_channel *open_channel(const struct kvfi_channel_options *options)
{
    struct kvfi_channel *channel = NULL;
    struct kvf_error error;

    if (kvfi_channel_open(options, &channel, &error) != KVF_OK) fail_msg("%s", error.text);
    return channel;
}

struct kvfi_route connect_to(struct kvfi_channel *channel, const char *endpoint)
{
    struct kvfi_route route;
    struct kvf_error error;

    if (kvfi_channel_connect(channel, endpoint, &route, &error) != KVF_OK) fail_msg("%s", error.text);
    return route;
}
