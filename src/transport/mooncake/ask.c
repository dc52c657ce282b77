/* SPDX-License-Identifier: Apache-2.0 */
/* The asking side of a handshake. The frame is sent at once and the connection closed as soon as the answer is read:
 * the reference answers one client after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/mooncake/address.h"
#include "transport/mooncake/desk.h"
#include "transport/mooncake/frame.h"

enum { FIRST_BYTES = 65536 };

static enum kvf_status explain(const struct kvfi_moon_question *question, enum kvf_status status, const char *what,
                               struct kvf_error *error)
{
    return kvfi_fail(error, status, "handshake with %s port %d: %s", question->host, (int)question->port, what);
}

static enum kvf_status send_question(const struct kvfi_moon_question *question, int fd,
                                     const struct kvfi_moon_limit *limit, struct kvf_error *error)
{
    char *frame = malloc(KVFI_MOON_PREFIX_BYTES + question->bytes);
    enum kvf_status status;
    size_t done;

    if (!frame) return kvfi_fail_memory(error, "a handshake frame");
    kvfi_moon_pack_prefix(question->type, question->bytes, (uint8_t *)frame);
    memcpy(frame + KVFI_MOON_PREFIX_BYTES, question->text, question->bytes);
    status = kvfi_moon_send_all(fd, frame, KVFI_MOON_PREFIX_BYTES + question->bytes, limit, &done);
    free(frame);
    if (status != KVF_OK) explain(question, status, "the question was not taken", error);
    return status;
}

/* Reads as much as the frame says, in memory that grows with what came: a length alone costs nothing. */
static enum kvf_status read_body(const struct kvfi_moon_question *question, int fd, size_t length,
                                 const struct kvfi_moon_limit *limit, char **out, struct kvf_error *error)
{
    size_t capacity = length < FIRST_BYTES ? length : FIRST_BYTES, at = 0;
    char *body = malloc(capacity);
    enum kvf_status status = body ? KVF_OK : kvfi_fail_memory(error, "a handshake reply");

    while (status == KVF_OK && at < length) {
        size_t done;
        char *more;

        status = kvfi_moon_recv_all(fd, body + at, capacity - at, limit, &done);
        at += done;
        if (status != KVF_OK) {
            char what[64];

            snprintf(what, sizeof what, "%zu of %zu bytes came", at, length);
            explain(question, status, what, error);
        } else if (at < length) {
            capacity = capacity < length / 4 ? capacity * 4 : length;
            more = realloc(body, capacity);
            if (more) body = more;
            else status = kvfi_fail_memory(error, "a handshake reply");
        }
    }
    if (status == KVF_OK) *out = body;
    else free(body);
    return status;
}

static enum kvf_status read_reply(const struct kvfi_moon_question *question, int fd,
                                  const struct kvfi_moon_limit *limit, char **reply, size_t *reply_bytes,
                                  struct kvf_error *error)
{
    uint8_t prefix[KVFI_MOON_LENGTH_BYTES];
    enum kvf_status status;
    size_t done, length;
    char *body = NULL;

    status = kvfi_moon_recv_all(fd, prefix, sizeof prefix, limit, &done);
    if (status == KVF_ERR_PEER_LOST && done == 0)
        return explain(question, KVF_ERR_NOT_SUPPORTED, "closed without an answer", error);
    if (status != KVF_OK) return explain(question, status, "no answer came", error);
    length = kvfi_moon_parse_length(prefix, (size_t)question->max_bytes);
    if (length == 0) {
        char what[80];

        snprintf(what, sizeof what, "an answer of no bytes, or more than %lld", (long long)question->max_bytes);
        return explain(question, KVF_ERR_LIMIT, what, error);
    }
    status = read_body(question, fd, length, limit, &body, error);
    if (status != KVF_OK) return status;
    if ((uint8_t)body[0] != question->type) {
        char what[80];

        snprintf(what, sizeof what, "expected an answer of type %d, found type %d", question->type, (uint8_t)body[0]);
        free(body);
        return explain(question, KVF_ERR_PROTOCOL, what, error);
    }
    memmove(body, body + 1, length - 1);
    *reply = body;
    *reply_bytes = length - 1;
    return KVF_OK;
}

enum kvf_status kvfi_moon_ask(const struct kvfi_moon_question *question, const struct kvfi_moon_limit *limit,
                              char **reply, size_t *reply_bytes, struct kvf_error *error)
{
    const struct kvfi_moon_limit connecting = kvfi_moon_within(limit, question->connect_timeout_ns);
    struct kvfi_moon_limit answering;
    enum kvf_status status;
    int fd = -1;

    status = kvfi_moon_connect(question->resolver, question->host, question->port, &connecting, &fd, error);
    answering = kvfi_moon_within(limit, question->answer_timeout_ns);
    if (status == KVF_OK) status = send_question(question, fd, &answering, error);
    if (status == KVF_OK) status = read_reply(question, fd, &answering, reply, reply_bytes, error);
    if (fd >= 0) close(fd);
    return status;
}
