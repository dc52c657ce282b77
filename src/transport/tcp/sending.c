/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "transport/tcp/inside.h"

enum { TURN_FRAMES = 16 }; /* of one connection, before others have their turn */

enum sent { SENT_ALL, SENT_BLOCKED, SENT_BROKEN };

/* ---- frames of chunks ------------------------------------------------------------------------------------------- */

static bool is_taken(const struct kvfi_post *post)
{
    return post->ended || (post->chunk.bytes > 0 ? post->next_offset >= post->chunk.bytes : post->sent_empty);
}

/* Takes the next piece of the session's chunks for this connection. */
static bool take_piece(struct kvfi_conn *conn, struct kvfi_frame_data *data)
{
    struct kvfi_session *session = conn->session;
    struct kvfi_post *post = NULL;

    pthread_mutex_lock(&conn->owner->lock);
    if (!session || session->state != KVFI_SESSION_READY || conn->generation != session->generation) goto done;
    while (session->sending && is_taken(session->sending)) session->sending = session->sending->next;
    post = session->sending;
    if (!post) goto done;
    data->chunk = kvfi_chunk_head_of(&post->chunk);
    data->generation = conn->generation;
    data->offset_bytes = post->next_offset;
    data->bytes = post->chunk.bytes - post->next_offset;
    if (data->bytes > post->frame_bytes) data->bytes = post->frame_bytes;
    post->next_offset += data->bytes;
    post->sent_empty = true;
    post->in_flight++;
    conn->sending.post = post;
done:
    pthread_mutex_unlock(&conn->owner->lock);
    return post != NULL;
}

/* Lists or packs the payload into iovecs 1 and up. */
static enum kvf_status fill_payload(struct kvfi_conn *conn, const struct kvfi_frame_data *data, struct kvf_error *error)
{
    struct kvfi_transport *transport = conn->owner;
    struct kvfi_sending *sending = &conn->sending;
    kvf_packer *packer = NULL;
    int64_t listed = 0;
    enum kvf_status status = kvf_packer_create(sending->post->chunk.binding, KVF_PACK, transport->own_address,
                                               transport->config.memory_count, &packer, error);

    if (status != KVF_OK) goto done;
    kvf_packer_seek(packer, data->offset_bytes);
    if (sending->post->direct) {
        sending->count = 1 + kvfi_packer_iovecs(packer, sending->iovecs + 1, KVFI_TCP_IOVECS, data->bytes, 1, &listed);
        sending->from_memory = true;
        if (listed == data->bytes) goto done;
        kvf_packer_seek(packer, data->offset_bytes);
    }
    sending->from_memory = false;
    sending->count = 2;
    sending->stage = kvfi_stage_take(transport);
    sending->iovecs[1] = (struct iovec){.iov_base = sending->stage, .iov_len = (size_t)data->bytes};
    if (!sending->stage) status = kvfi_fail_memory(error, "a staging buffer");
    else if (kvf_packer_run(packer, sending->stage, data->bytes) != data->bytes)
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "a chunk moves from a memory that is not registered");
done:
    kvf_packer_destroy(packer);
    return status;
}

static uint64_t sum_payload(const struct kvfi_sending *sending)
{
    XXH3_state_t state;

    XXH3_64bits_reset(&state);
    for (size_t i = 1; i < sending->count; i++)
        XXH3_64bits_update(&state, sending->iovecs[i].iov_base, sending->iovecs[i].iov_len);
    return XXH3_64bits_digest(&state);
}

/* The frame under way is over: its memory is the chunk's owner's again. */
static void end_frame(struct kvfi_conn *conn)
{
    struct kvfi_sending *sending = &conn->sending;
    struct kvfi_post *post = sending->post;

    kvfi_stage_give(conn->owner, sending->stage);
    sending->stage = NULL;
    sending->busy = false;
    sending->post = NULL;
    if (post) {
        post->in_flight--;
        kvfi_post_settle(post);
    }
}

void kvfi_sending_fini(struct kvfi_conn *conn)
{
    end_frame(conn);
}

/* Makes the next frame ready to be sent. False when there is none now. */
static bool next_frame(struct kvfi_conn *conn)
{
    struct kvfi_transport *transport = conn->owner;
    struct kvfi_sending *sending = &conn->sending;
    struct kvfi_frame_data data = {0};
    struct kvf_error error;
    bool checksum = transport->config.checksum;

    while (!sending->busy && take_piece(conn, &data)) {
        sending->count = 1;
        sending->from_memory = false;
        sending->busy = data.bytes == 0 || fill_payload(conn, &data, &error) == KVF_OK;
        if (sending->busy) break;
        pthread_mutex_lock(&transport->lock);
        kvfi_post_end(sending->post, (enum kvf_status)error.status, error.text);
        end_frame(conn);
        pthread_mutex_unlock(&transport->lock);
    }
    if (!sending->busy) return false;
    data.checksum = checksum ? sum_payload(sending) : 0;
    sending->first = 0;
    sending->iovecs[0].iov_base = sending->head;
    sending->iovecs[0].iov_len = kvfi_frame_pack_data(&data, checksum, sending->head);
    if (sending->stage && data.bytes > 0 && kvfi_wire_corrupts(transport->config.wire)) sending->stage[0] ^= 1;
    return true;
}

static void advance(struct kvfi_sending *sending, size_t bytes)
{
    while (sending->first < sending->count && bytes >= sending->iovecs[sending->first].iov_len)
        bytes -= sending->iovecs[sending->first++].iov_len;
    if (sending->first < sending->count) {
        struct iovec *iovec = &sending->iovecs[sending->first];

        iovec->iov_base = (char *)iovec->iov_base + bytes;
        iovec->iov_len -= bytes;
    }
}

static enum sent send_frame(struct kvfi_conn *conn)
{
    struct kvfi_sending *sending = &conn->sending;
    enum sent result = SENT_ALL;

    while (sending->first < sending->count && result == SENT_ALL) {
        struct msghdr message = {.msg_iov = sending->iovecs + sending->first,
                                 .msg_iovlen = sending->count - sending->first};
        ssize_t bytes = sendmsg(conn->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (bytes >= 0) {
            advance(sending, (size_t)bytes);
            if (kvfi_wire_cuts(conn->owner->config.wire, bytes)) {
                errno = ECONNABORTED;
                result = SENT_BROKEN;
            }
        } else if (errno != EINTR) {
            result = errno == EAGAIN || errno == EWOULDBLOCK ? SENT_BLOCKED : SENT_BROKEN;
        }
    }
    if (result == SENT_ALL) {
        pthread_mutex_lock(&conn->owner->lock);
        end_frame(conn);
        pthread_mutex_unlock(&conn->owner->lock);
    }
    return result;
}

/* A chunk has ended while a frame of it is under way. The rest must still go out, or the stream would be out of step;
 * but not from its memory. */
static bool detach(struct kvfi_conn *conn)
{
    struct kvfi_sending *sending = &conn->sending;
    struct kvfi_post *post = sending->post;
    bool kept = true;
    size_t at = 0;

    conn->detach = false;
    if (!sending->busy || !post || !post->ended) goto done;
    if (sending->from_memory) {
        sending->stage = malloc(KVFI_FRAME_MAX_PAYLOAD + sizeof sending->head);
        kept = sending->stage != NULL;
        for (size_t i = sending->first; kept && i < sending->count; i++) {
            memcpy(sending->stage + at, sending->iovecs[i].iov_base, sending->iovecs[i].iov_len);
            at += sending->iovecs[i].iov_len;
        }
        sending->first = 0;
        sending->count = 1;
        sending->iovecs[0] = (struct iovec){.iov_base = sending->stage, .iov_len = at};
        sending->from_memory = false;
    }
    sending->post = NULL;
    post->in_flight--;
    kvfi_post_settle(post);
done:
    return kept;
}

/* ---- control frames --------------------------------------------------------------------------------------------- */

static enum sent send_notice(struct kvfi_conn *conn, struct kvfi_notice *notice)
{
    enum sent result = SENT_ALL;

    while (notice->sent < notice->bytes && result == SENT_ALL) {
        ssize_t bytes = send(conn->fd, notice->data + notice->sent, notice->bytes - notice->sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);

        if (bytes >= 0) notice->sent += (size_t)bytes;
        else if (errno != EINTR) result = errno == EAGAIN || errno == EWOULDBLOCK ? SENT_BLOCKED : SENT_BROKEN;
    }
    if (result == SENT_ALL) {
        pthread_mutex_lock(&conn->owner->lock);
        conn->notices = notice->next;
        conn->notice_count--;
        pthread_mutex_unlock(&conn->owner->lock);
        free(notice);
    }
    return result;
}

static struct kvfi_notice *first_notice(struct kvfi_conn *conn, bool *kept)
{
    struct kvfi_notice *notice;

    pthread_mutex_lock(&conn->owner->lock);
    *kept = !conn->detach || detach(conn);
    notice = conn->notices;
    pthread_mutex_unlock(&conn->owner->lock);
    return notice;
}

bool kvfi_conn_send(struct kvfi_conn *conn)
{
    enum sent result = SENT_ALL;
    bool more = true, kept = true;

    for (int i = 0; i < TURN_FRAMES && more && result == SENT_ALL; i++) {
        struct kvfi_notice *notice = first_notice(conn, &kept);

        if (!kept) {
            errno = ENOMEM;
            result = SENT_BROKEN;
        } else if (notice && !conn->sending.busy) {
            result = send_notice(conn, notice);
        } else {
            more = conn->sending.busy || (conn->state == KVFI_CONN_READY && conn->outgoing && next_frame(conn));
            if (more) result = send_frame(conn);
        }
    }
    if (result == SENT_BROKEN || (conn->close_after_send && !more)) {
        kvfi_conn_close(conn, result == SENT_BROKEN ? KVF_ERR_PEER_LOST : KVF_OK, strerror(errno));
        return false;
    }
    if (conn->blocked != (result == SENT_BLOCKED)) {
        conn->blocked = result == SENT_BLOCKED;
        kvfi_conn_watch(conn, conn->blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
    if (more) {
        pthread_mutex_lock(&conn->owner->lock);
        conn->wants_send = true;
        pthread_mutex_unlock(&conn->owner->lock);
    }
    return true;
}
