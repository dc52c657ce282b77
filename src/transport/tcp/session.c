/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "sys/clock.h"
#include "transport/tcp/inside.h"

/* ---- addresses -------------------------------------------------------------------------------------------------- */

/* Endpoints carry numbers, so nothing is ever looked up here. */
static enum kvf_status read_address(const char *endpoint, struct sockaddr_storage *address, socklen_t *bytes,
                                    struct kvf_error *error)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[256], port_text[8];
    uint16_t port;
    enum kvf_status status = kvfi_tcp_endpoint_parse(endpoint, host, &port, error);

    if (status != KVF_OK) goto done;
    snprintf(port_text, sizeof port_text, "%u", port);
    if (getaddrinfo(host, port_text, &hints, &found) != 0) {
        status = kvfi_fail(error, KVF_ERR_PARSE, "\"%.200s\" is no numeric address", host);
        goto done;
    }
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
done:
    return status;
}

enum kvf_status kvfi_tcp_probe(struct kvfi_transport *transport, const char *endpoint, struct kvf_error *error)
{
    struct sockaddr_storage address;
    socklen_t bytes;

    (void)transport;
    return read_address(endpoint, &address, &bytes, error);
}

/* ---- posts ------------------------------------------------------------------------------------------------------ */

static void unlink_post(struct kvfi_session *session, struct kvfi_post *post)
{
    struct kvfi_post *previous = NULL;

    for (struct kvfi_post *at = session->posts; at != post; at = at->next) previous = at;
    if (previous) previous->next = post->next;
    else session->posts = post->next;
    if (session->last_post == post) session->last_post = previous;
    if (session->sending == post) session->sending = post->next;
}

void kvfi_post_settle(struct kvfi_post *post)
{
    struct kvfi_session *session = post->session;

    if (!post->ended || post->in_flight > 0) return;
    unlink_post(session, post);
    kvfi_tell_posted(&session->owner->queue, &post->chunk, session->peer, post->end_status,
                     post->end_status == KVF_OK ? NULL : post->end_text);
    free(post);
}

/* Connections that are sending a frame of it are asked to let go of the memory. */
void kvfi_post_end(struct kvfi_post *post, enum kvf_status status, const char *text)
{
    struct kvfi_session *session = post->session;

    if (!post->ended) {
        post->ended = true;
        post->end_status = status;
        snprintf(post->end_text, sizeof post->end_text, "%s", text ? text : "");
    }
    for (uint32_t i = 0; post->in_flight > 0 && i < session->streams; i++) {
        if (!session->conns[i]) continue;
        session->conns[i]->wants_send = true;
        session->conns[i]->detach = true;
        kvfi_tcp_wake(session->conns[i]->thread);
    }
    kvfi_post_settle(post);
}

static void end_posts(struct kvfi_session *session, enum kvf_status status, const char *text)
{
    struct kvfi_post *next;

    for (struct kvfi_post *post = session->posts; post; post = next) {
        next = post->next;
        kvfi_post_end(post, status, text);
    }
}

static struct kvfi_post *find_post(struct kvfi_session *session, uint64_t grant, uint32_t index)
{
    struct kvfi_post *post = session->posts;

    while (post && (post->ended || post->chunk.grant != grant || post->chunk.index != index)) post = post->next;
    return post;
}

static struct kvfi_session *find_session(struct kvfi_transport *transport, uint64_t peer)
{
    struct kvfi_session *session = transport->sessions;

    while (session && (session->peer != peer || session->state == KVFI_SESSION_DYING)) session = session->next;
    return session;
}

/* Says to every connection that there is something to send. */
static void kick(struct kvfi_session *session)
{
    for (uint32_t i = 0; i < session->streams; i++) {
        struct kvfi_conn *conn = session->conns[i];

        if (!conn || conn->wants_send) continue;
        conn->wants_send = true;
        kvfi_tcp_wake(conn->thread);
    }
}

/* Long runs are sent from where they lie, short ones are packed into frames that stay in the caches. */
static void choose_frames(struct kvfi_transport *transport, struct kvfi_post *post, kvf_packer *packer)
{
    struct kvf_binding_info info;

    kvf_binding_get_info(post->chunk.binding, &info);
    post->direct = info.runs > 0 && info.bytes / info.runs >= KVFI_LONG_RUN_BYTES &&
                   kvfi_packer_run_bytes(packer) >= KVFI_LONG_RUN_BYTES &&
                   !kvfi_wire_may_corrupt(transport->config.wire);
    post->frame_bytes = post->direct ? KVFI_FRAME_MAX_PAYLOAD : KVFI_STAGE_BYTES;
}

enum kvf_status kvfi_tcp_post_chunk(struct kvfi_transport *transport, uint64_t peer, const struct kvfi_chunk *chunk,
                                    struct kvf_error *error)
{
    struct kvfi_post *post = kvfi_alloc_zeroed(1, sizeof *post);
    enum kvf_status status = KVF_OK;
    struct kvfi_session *session;
    kvf_packer *packer = NULL;

    if (!post) return kvfi_fail_memory(error, "a posted chunk");
    pthread_mutex_lock(&transport->lock);
    session = find_session(transport, peer);
    if (!session || !session->was_ready) {
        status = kvfi_fail(error, KVF_ERR_CLOSED, "tcp: peer %" PRIu64 " is not connected", peer);
        goto done;
    }
    kvfi_tcp_know_memories(transport);
    post->session = session;
    post->chunk = *chunk;
    status = kvf_packer_create(chunk->binding, KVF_PACK, transport->own_address, transport->config.memory_count,
                               &packer, error);
    if (status != KVF_OK) goto done;
    choose_frames(transport, post, packer);
    if (session->last_post) session->last_post->next = post;
    else session->posts = post;
    session->last_post = post;
    if (!session->sending) session->sending = post;
    post = NULL;
    if (session->state == KVFI_SESSION_READY) kick(session);
done:
    pthread_mutex_unlock(&transport->lock);
    kvf_packer_destroy(packer);
    free(post);
    return status;
}

void kvfi_tcp_abort(struct kvfi_transport *transport, uint64_t peer, uint64_t grant)
{
    struct kvfi_session *session;
    struct kvfi_post *next;

    pthread_mutex_lock(&transport->lock);
    session = find_session(transport, peer);
    for (struct kvfi_post *post = session ? session->posts : NULL; post; post = next) {
        next = post->next;
        if (post->chunk.grant == grant) kvfi_post_end(post, KVF_ERR_CANCELLED, "aborted");
    }
    pthread_mutex_unlock(&transport->lock);
}

/* ---- connecting ------------------------------------------------------------------------------------------------- */

static void free_session(struct kvfi_session *session)
{
    struct kvfi_session **slot = &session->owner->sessions;

    while (*slot != session) slot = &(*slot)->next;
    *slot = session->next;
    free(session);
}

static bool has_conns(const struct kvfi_session *session)
{
    bool found = false;

    for (uint32_t i = 0; i < session->streams; i++) found = found || session->conns[i] != NULL;
    return found;
}

static void kill_conns(struct kvfi_session *session)
{
    for (uint32_t i = 0; i < session->streams; i++) {
        if (!session->conns[i]) continue;
        session->conns[i]->kill = true;
        kvfi_tcp_wake(session->conns[i]->thread);
    }
}

static bool start_stream(struct kvfi_session *session, uint32_t stream)
{
    struct kvfi_transport *transport = session->owner;
    struct kvfi_conn *conn = NULL;
    int fd = socket(session->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) goto done;
    if (connect(fd, (struct sockaddr *)&session->address, session->address_bytes) != 0 && errno != EINPROGRESS) {
        close(fd);
        goto done;
    }
    conn = kvfi_conn_create(transport, fd, true, EPOLLOUT | EPOLLIN);
    if (!conn) {
        errno = ENOMEM;
        goto done;
    }
    conn->session = session;
    conn->stream = stream;
    conn->generation = session->generation;
    conn->who = session->expected;
    snprintf(conn->name, sizeof conn->name, "%.60s", session->endpoint);
    session->conns[stream] = conn;
done:
    return conn != NULL;
}

/* Starts all streams of the next generation. */
static void start_streams(struct kvfi_session *session)
{
    char text[KVF_ERROR_TEXT_BYTES];

    session->state = KVFI_SESSION_CONNECTING;
    session->generation = ++session->owner->next_generation;
    session->welcomed = 0;
    for (uint32_t i = 0; i < session->streams; i++) {
        if (start_stream(session, i)) continue;
        snprintf(text, sizeof text, "tcp: connection to %s at %.100s: %s", session->expected.name, session->endpoint,
                 strerror(errno));
        kvfi_session_end(session, KVF_ERR_UNREACHABLE, text);
        break;
    }
}

enum kvf_status kvfi_tcp_connect(struct kvfi_transport *transport, const char *endpoint,
                                 const struct kvfi_peer_identity *expected, uint64_t *peer, struct kvf_error *error)
{
    struct kvfi_session *session = kvfi_alloc_zeroed(1, sizeof *session);
    int64_t streams = transport->config.streams;
    enum kvf_status status;

    if (!session) return kvfi_fail_memory(error, "a connection");
    status = read_address(endpoint, &session->address, &session->address_bytes, error);
    if (status != KVF_OK) {
        free(session);
        goto done;
    }
    session->owner = transport;
    session->expected = *expected;
    session->number = kvfi_random_u64();
    session->streams = streams < 1 ? 1 : streams > KVFI_MAX_STREAMS ? KVFI_MAX_STREAMS : (uint32_t)streams;
    snprintf(session->endpoint, sizeof session->endpoint, "%s", endpoint);
    pthread_mutex_lock(&transport->lock);
    session->peer = ++transport->next_peer;
    *peer = session->peer;
    session->next = transport->sessions;
    transport->sessions = session;
    start_streams(session);
    pthread_mutex_unlock(&transport->lock);
    kvfi_tcp_wake(&transport->threads[0]);
done:
    return status;
}

void kvfi_tcp_disconnect(struct kvfi_transport *transport, uint64_t peer)
{
    struct kvfi_session *session;

    pthread_mutex_lock(&transport->lock);
    session = find_session(transport, peer);
    if (session) {
        session->disconnected = true;
        kvfi_session_end(session, KVF_ERR_CANCELLED, "disconnected");
    }
    pthread_mutex_unlock(&transport->lock);
}

static void say_hello(struct kvfi_conn *conn)
{
    struct kvfi_session *session = conn->session;
    struct kvfi_frame_hello hello = {.version = KVFI_FRAME_VERSION, .expected = session->expected,
                                     .session = session->number, .generation = conn->generation, .stream = conn->stream,
                                     .streams = session->streams};
    uint8_t buffer[KVFI_FRAME_HEAD_BYTES + KVFI_FRAME_MAX_CONTROL];

    snprintf(hello.self.name, sizeof hello.self.name, "%s", conn->owner->self);
    hello.self.incarnation = conn->owner->config.incarnation;
    kvfi_conn_notice(conn, buffer, kvfi_frame_pack_hello(&hello, buffer));
}

void kvfi_session_connected(struct kvfi_conn *conn)
{
    struct kvfi_transport *transport = conn->owner;
    int failure = 0;
    socklen_t bytes = sizeof failure;

    getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &failure, &bytes);
    if (failure != 0) {
        kvfi_conn_close(conn, KVF_ERR_UNREACHABLE, strerror(failure));
        return;
    }
    conn->state = KVFI_CONN_GREETING;
    kvfi_conn_watch(conn, EPOLLIN);
    pthread_mutex_lock(&transport->lock);
    say_hello(conn);
    pthread_mutex_unlock(&transport->lock);
    kvfi_conn_send(conn);
}

/* ---- ends ------------------------------------------------------------------------------------------------------- */

/* Frees a dying session that has no connection and no post any more, after telling its end. */
static void settle(struct kvfi_session *session)
{
    if (session->state != KVFI_SESSION_DYING || has_conns(session) || session->posts) return;
    if (!session->disconnected) {
        if (session->was_ready)
            kvfi_tell_peer_down(&session->owner->queue, session->peer, session->end_status, session->end_text);
        else
            kvfi_tell_connected(&session->owner->queue, session->peer, session->end_status, session->end_text);
    }
    free_session(session);
}

void kvfi_session_end(struct kvfi_session *session, enum kvf_status status, const char *text)
{
    if (session->state == KVFI_SESSION_DYING) return;
    session->state = KVFI_SESSION_DYING;
    session->end_status = status;
    snprintf(session->end_text, sizeof session->end_text, "%s", text);
    kill_conns(session);
    end_posts(session, status, text);
    kvfi_tcp_wake(&session->owner->threads[0]); /* settles it */
}

/* Everything that is not acknowledged goes again, from its first byte: what came of it before counts no more there. */
static void rewind_posts(struct kvfi_session *session)
{
    for (struct kvfi_post *post = session->posts; post; post = post->next) {
        post->next_offset = 0;
        post->sent_empty = false;
    }
    session->sending = session->posts;
}

void kvfi_session_lost(struct kvfi_session *session, struct kvfi_conn *conn, enum kvf_status status, const char *why)
{
    char text[KVF_ERROR_TEXT_BYTES];
    bool final = status == KVF_ERR_VERSION || status == KVF_ERR_STALE || status == KVF_ERR_UNREACHABLE ||
                 status == KVF_ERR_PROTOCOL || status == KVF_ERR_TIMEOUT;

    session->conns[conn->stream] = NULL;
    if (session->state == KVFI_SESSION_READY || session->state == KVFI_SESSION_CONNECTING) {
        snprintf(text, sizeof text, "tcp: connection to %s at %.100s: %s", session->expected.name, session->endpoint,
                 why);
        if (session->was_ready && !final && session->reconnects < KVFI_MAX_RECONNECTS) {
            kvfi_logf(session->owner->config.log, KVF_LOG_INFO, "%s; connecting again", text);
            session->state = KVFI_SESSION_CUT;
            session->reconnects++;
            kill_conns(session);
        } else if (session->was_ready) {
            kvfi_session_end(session, status == KVF_ERR_STALE ? KVF_ERR_STALE : KVF_ERR_PEER_LOST, text);
        } else {
            kvfi_session_end(session, status == KVF_OK ? KVF_ERR_PEER_LOST : status, text);
        }
    }
    kvfi_tcp_wake(&session->owner->threads[0]);
}

int64_t kvfi_sessions_tick(struct kvfi_transport *transport, int64_t now_ns)
{
    int64_t next_ns = transport->accept_again_ns;
    struct kvfi_session *next;

    if (transport->accept_again_ns != 0 && transport->accept_again_ns <= now_ns) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &transport->listener};

        epoll_ctl(transport->threads[0].epoll, EPOLL_CTL_MOD, transport->listener, &event);
        transport->accept_again_ns = next_ns = 0;
    }
    for (struct kvfi_session *session = transport->sessions; session; session = next) {
        next = session->next;
        if (session->state == KVFI_SESSION_CUT && !has_conns(session)) {
            rewind_posts(session);
            start_streams(session);
        }
        settle(session);
    }
    return next_ns;
}

/* ---- what the destination says ---------------------------------------------------------------------------------- */

static void welcomed(struct kvfi_conn *conn)
{
    struct kvfi_session *session = conn->session;

    conn->state = KVFI_CONN_READY;
    conn->deadline_ns = 0;
    if (session->state != KVFI_SESSION_CONNECTING || ++session->welcomed < session->streams) return;
    session->state = KVFI_SESSION_READY;
    if (!session->was_ready) kvfi_tell_connected(&session->owner->queue, session->peer, KVF_OK, NULL);
    session->was_ready = true;
    kick(session);
}

static void acknowledged(struct kvfi_conn *conn, const struct kvfi_frame_ack *ack)
{
    struct kvfi_post *post = find_post(conn->session, ack->grant, ack->index);

    conn->session->reconnects = 0;
    if (post && ack->status == KVF_OK) kvfi_post_end(post, KVF_OK, NULL);
    else if (post) kvfi_post_end(post, ack->status == KVF_ERR_CORRUPT ? KVF_ERR_CORRUPT : KVF_ERR_REFUSED, ack->text);
}

bool kvfi_session_frame(struct kvfi_conn *conn, const struct kvfi_frame_head *head, const uint8_t *body)
{
    struct kvfi_transport *transport = conn->owner;
    enum kvf_status status = KVF_ERR_PROTOCOL;
    struct kvf_error error = {.text = "unexpected frame"};
    struct kvfi_frame_welcome welcome;
    struct kvfi_frame_ack ack;

    if (head->kind == KVFI_FRAME_WELCOME && conn->state == KVFI_CONN_GREETING) {
        status = kvfi_frame_parse_welcome(body, (size_t)head->body_bytes, &welcome, &error);
        if (status == KVF_OK && welcome.status != KVF_OK) {
            status = (enum kvf_status)welcome.status;
            snprintf(error.text, sizeof error.text, "%s", welcome.text);
        }
        pthread_mutex_lock(&transport->lock);
        if (status == KVF_OK) welcomed(conn);
        pthread_mutex_unlock(&transport->lock);
    } else if (head->kind == KVFI_FRAME_ACK && conn->state == KVFI_CONN_READY) {
        status = kvfi_frame_parse_ack(body, (size_t)head->body_bytes, &ack, &error);
        pthread_mutex_lock(&transport->lock);
        if (status == KVF_OK) acknowledged(conn, &ack);
        pthread_mutex_unlock(&transport->lock);
    }
    if (status != KVF_OK) kvfi_conn_close(conn, status, error.text);
    return status == KVF_OK;
}
