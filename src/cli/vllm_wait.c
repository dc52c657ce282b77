/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer that is started before its producer. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

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
