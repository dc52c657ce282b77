/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting at the start: for a registry, and for a producer that comes later than its consumer. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cli/vllm_query.h"
#include "cli/vllm_serve.h"

#define SECOND INT64_C(1000000000)
#define AGAIN_MS 100

/** Keeps an engine's id. */
static bool keep_id(struct vllm_spec *spec, const char *id)
{
    char *copy = vllm_keep_add(&spec->keep, strlen(id) + 1, 1);
    if (copy != NULL)
        memcpy(copy, id, strlen(id));
    spec->endpoint.remote_engine_id = copy;
    return copy != NULL;
}

/** What ends the process on a signal while a call blocks. */
struct watch {
    int signal_fd, done_fd;
};

static void *watch_signals(void *context)
{
    const struct watch *watch = context;
    struct pollfd waits[2] = {{.fd = watch->signal_fd, .events = POLLIN}, {.fd = watch->done_fd, .events = POLLIN}};
    while (poll(waits, 2, -1) < 0) {
    }
    if ((waits[1].revents & POLLIN) == 0)
        _exit(CLI_FAILED);
    return NULL;
}

int vllm_serve_interruptible(struct vllm_serve *serve, int signal_fd, int (*call)(struct vllm_serve *serve))
{
    struct watch watch = {.signal_fd = signal_fd, .done_fd = eventfd(0, EFD_CLOEXEC)};
    uint64_t one = 1;
    pthread_t thread;
    bool watches = signal_fd >= 0 && watch.done_fd >= 0 && pthread_create(&thread, NULL, watch_signals, &watch) == 0;
    int code = call(serve);
    if (watches) {
        while (write(watch.done_fd, &one, sizeof(one)) != (ssize_t)sizeof(one)) {
        }
        pthread_join(thread, NULL);
    }
    if (watch.done_fd >= 0)
        close(watch.done_fd);
    return code;
}

int vllm_serve_await(struct vllm_serve *serve, int signal_fd)
{
    struct vllm_endpoint *endpoint = &serve->spec.endpoint;
    const json_t *producers = vllm_spec_producers(&serve->spec);
    const char *url = endpoint->remote_bootstrap_addr, *id = NULL;
    size_t wanted = json_is_array(producers) ? json_array_size(producers) : 1;
    char text[KVF_ERROR_TEXT_BYTES] = "";
    bool is_told = false;
    if (serve->options->role != KVF_VLLM_CONSUMER || url == NULL ||
        (endpoint->wait_ns == 0 && endpoint->remote_engine_id != NULL))
        return CLI_OK;
    int64_t deadline = cli_now_ns() + (endpoint->wait_ns > 0 ? endpoint->wait_ns : 5 * SECOND);
    for (;;) {
        struct pollfd wait = {.fd = signal_fd, .events = POLLIN};
        json_t *answer = vllm_query(url, 5 * SECOND, text);
        is_told = answer == NULL;
        const json_t *engine =
            answer != NULL ? vllm_query_engine(answer, endpoint->remote_engine_id, &id, text) : NULL;
        size_t found = engine != NULL ? vllm_query_workers(engine) : 0;
        bool kept = found >= wanted && keep_id(&serve->spec, id);
        json_decref(answer);
        if (kept)
            return CLI_OK;
        if (engine != NULL)
            snprintf(text, sizeof(text), "%zu of %zu workers have registered", found, wanted);
        if (cli_now_ns() > deadline || endpoint->wait_ns == 0)
            break;
        if (poll(&wait, 1, AGAIN_MS) == 1) {
            serve->stopping = true;
            return CLI_FAILED;
        }
    }
    cli_error(serve->command, "%s %s%s", url, is_told ? "" : "answers, but ", text);
    return CLI_PEER;
}
