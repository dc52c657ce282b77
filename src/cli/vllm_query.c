/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP request to a bootstrap registry. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/vllm_query.h"

#define ANSWER_LIMIT ((size_t)64 << 20)

/** Takes "http://HOST:PORT" or "http://[V6]:PORT" apart. */
static bool split_url(const char *url, char *host, size_t room, char *port, size_t port_room)
{
    const char *from = strncmp(url, "http://", 7) == 0 ? url + 7 : NULL, *colon = from ? strrchr(from, ':') : NULL;
    if (colon == NULL || colon == from)
        return false;
    size_t digits = strcspn(colon + 1, "/"), bytes = (size_t)(colon - from);
    if (from[0] == '[' && colon[-1] == ']') {
        from++;
        bytes -= 2;
    }
    if (digits == 0 || digits >= port_room || strspn(colon + 1, "0123456789") != digits || bytes == 0 ||
        bytes >= room || strtol(colon + 1, NULL, 10) > 65535)
        return false;
    snprintf(port, port_room, "%.*s", (int)digits, colon + 1);
    snprintf(host, room, "%.*s", (int)bytes, from);
    return true;
}

bool vllm_query_takes(const char *url)
{
    char host[256], port[8];
    return split_url(url, host, sizeof(host), port, sizeof(port));
}

static bool wait_for(int fd, short events, int64_t deadline)
{
    struct pollfd wait = {.fd = fd, .events = events};
    int64_t left = (deadline - cli_now_ns()) / 1000000;
    return left > 0 && poll(&wait, 1, (int)(left < 60000 ? left : 60000)) == 1;
}

/** A connected socket, or -1 with why. */
static int connect_to(const char *host, const char *port, int64_t deadline, const char **why)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int fd = -1, unknown = getaddrinfo(host, port, &hints, &found);
    if (unknown != 0) {
        *why = gai_strerror(unknown);
        return -1;
    }
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        int failed = 0;
        socklen_t bytes = sizeof(failed);
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, at->ai_addr, at->ai_addrlen) == 0)
            continue;
        failed = errno;
        if (failed == EINPROGRESS && !wait_for(fd, POLLOUT, deadline))
            failed = ETIMEDOUT;
        else if (failed == EINPROGRESS)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes);
        if (failed != 0) {
            close(fd);
            fd = -1;
            errno = failed;
        }
    }
    *why = strerror(errno);
    freeaddrinfo(found);
    return fd;
}

/** Sends the question and reads the answer to its end. For free(); NULL with errno. */
static char *talk(int fd, const char *host, const char *port, int64_t deadline)
{
    char question[768];
    size_t used = 0, room = 65536;
    bool brackets = strchr(host, ':') != NULL;
    int bytes = snprintf(question, sizeof(question), "GET /query HTTP/1.0\r\nHost: %s%s%s:%s\r\n\r\n",
                         brackets ? "[" : "", host, brackets ? "]" : "", port);
    char *text = malloc(room);
    if (text == NULL || send(fd, question, (size_t)bytes, MSG_NOSIGNAL) != bytes)
        goto fail;
    for (;;) {
        if (!wait_for(fd, POLLIN, deadline)) {
            errno = ETIMEDOUT;
            goto fail;
        }
        ssize_t got = recv(fd, text + used, room - used - 1, 0);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            goto fail;
        if (got == 0)
            break;
        used += got > 0 ? (size_t)got : 0;
        if (room - used > 1)
            continue;
        char *larger = room < ANSWER_LIMIT ? realloc(text, room * 2) : NULL;
        if (larger == NULL) {
            errno = EMSGSIZE;
            goto fail;
        }
        text = larger;
        room *= 2;
    }
    text[used] = '\0';
    return text;
fail:
    free(text);
    return NULL;
}

json_t *vllm_query(const char *url, int64_t timeout_ns, char *text)
{
    char host[256], port[8];
    const char *why = "";
    char *answer = NULL;
    json_t *root = NULL;
    int64_t deadline = cli_now_ns() + timeout_ns;
    if (!split_url(url, host, sizeof(host), port, sizeof(port))) {
        snprintf(text, KVF_ERROR_TEXT_BYTES, "is no http://HOST:PORT");
        return NULL;
    }
    int fd = connect_to(host, port, deadline, &why);
    if (fd >= 0 && (answer = talk(fd, host, port, deadline)) == NULL)
        why = strerror(errno);
    const char *body = answer != NULL ? strstr(answer, "\r\n\r\n") : NULL;
    if (answer == NULL)
        snprintf(text, KVF_ERROR_TEXT_BYTES, "does not answer: %s", why);
    else if (strncmp(answer, "HTTP/1.", 7) == 0 && strncmp(answer + 8, " 200", 4) == 0 && body != NULL)
        root = json_loads(body + 4, JSON_REJECT_DUPLICATES, NULL);
    if (answer != NULL && !json_is_object(root)) {
        snprintf(text, KVF_ERROR_TEXT_BYTES, "is no registry: it answers /query with \"%.*s\"",
                 (int)strcspn(answer, "\r\n"), answer);
        json_decref(root);
        root = NULL;
    }
    free(answer);
    if (fd >= 0)
        close(fd);
    return root;
}

size_t vllm_query_workers(const json_t *engine)
{
    const char *rank;
    json_t *stages;
    size_t count = 0;
    json_object_foreach(json_object_get(engine, "worker_addr"), rank, stages) count += json_object_size(stages);
    return count;
}

const json_t *vllm_query_engine(const json_t *answer, const char *engine_id, const char **id, char *text)
{
    const char *rank;
    json_t *entry;
    const json_t *found = NULL;
    size_t count = 0;
    json_object_foreach((json_t *)answer, rank, entry)
    {
        const char *its = json_string_value(json_object_get(entry, "engine_id"));
        if (its == NULL || (engine_id != NULL && strcmp(its, engine_id) != 0))
            continue;
        found = entry;
        *id = its;
        count++;
    }
    if (count == 1 || (count > 0 && engine_id != NULL))
        return found;
    if (engine_id != NULL)
        snprintf(text, KVF_ERROR_TEXT_BYTES, "no engine \"%.100s\" has registered", engine_id);
    else if (count == 0)
        snprintf(text, KVF_ERROR_TEXT_BYTES, "no engine has registered");
    else
        snprintf(text, KVF_ERROR_TEXT_BYTES, "%zu engines have registered: remote_engine_id has to say which", count);
    return NULL;
}
