/* SPDX-License-Identifier: Apache-2.0 */
/* What a bootstrap registry answers, what is posted to one that lets engines be replaced, and what is configured. The
 * first byte chooses. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "directory/service.h"
#include "kvferry/vllm_config.h"
#include "vllm_worker/registry_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_answer(const char *text, size_t size)
{
    struct kvfi_vllm_topology_own topology;

    if (kvfi_vllm_topology_read(text, size, &topology, NULL) != KVF_OK) return;
    for (size_t e = 0; e < topology.engine_count; e++) {
        const struct kvfi_vllm_engine *engine = topology.engines[e];
        size_t counted = 0;

        for (size_t w = 0; w < engine->worker_count;) {
            const struct kvfi_vllm_engine_worker *worker = &engine->workers[w], *first;
            size_t count = kvfi_vllm_engine_of_tp(engine, worker->tp_rank, &first);

            if (first != worker || count == 0 || (int64_t)count > engine->pp_size) abort();
            if (kvfi_vllm_engine_address(engine, worker->tp_rank, worker->pp_rank) != worker->address) abort();
            counted += count;
            w += count;
        }
        if (counted != engine->worker_count || engine->tp_size < 1) abort();
        if (engine->is_complete && (int64_t)counted != engine->tp_size * engine->pp_size) abort();
    }
    kvfi_vllm_topology_fini(&topology);
}

/** One registration a line, at a registry with room for eight. What it tells then can be read. */
static void register_lines(const char *text, size_t size)
{
    struct kvfi_bootstrap bootstrap;
    struct kvfi_text answer = {0};
    struct kvfi_vllm_topology_own topology;
    struct kvf_error error;

    kvfi_bootstrap_init(&bootstrap, 8);
    bootstrap.replaces = true;
    while (size > 0) {
        const char *end = memchr(text, '\n', size);
        size_t bytes = end ? (size_t)(end - text) : size;

        answer.count = 0;
        kvfi_bootstrap_register(&bootstrap, text, bytes, &answer);
        if (bootstrap.worker_count < 0 || bootstrap.worker_count > 8) abort();
        text += bytes + (end != NULL);
        size -= bytes + (end != NULL);
    }
    answer.count = 0;
    kvfi_bootstrap_query(&bootstrap, &answer);
    if (kvfi_vllm_topology_read(answer.bytes, answer.count, &topology, &error) != KVF_OK) abort();
    kvfi_vllm_topology_fini(&topology);
    kvfi_text_fini(&answer);
    kvfi_bootstrap_fini(&bootstrap);
}

static const char *same_for_all(void *context, const char *name)
{
    (void)name;
    return context;
}

static void read_config(const char *text, size_t size)
{
    struct kvf_vllm_config config = {.struct_size = sizeof config};
    struct kvf_vllm_worker_options options;
    char *copy = malloc(size + 1);

    if (!copy) return;
    memcpy(copy, text, size);
    copy[size] = '\0';
    kvf_vllm_config_read(NULL, same_for_all, copy, &config, NULL);
    kvf_vllm_worker_options_init(&options, sizeof options);
    options.role = KVF_VLLM_PRODUCER;
    if (kvf_vllm_config_read(copy, NULL, NULL, &config, NULL) == KVF_OK &&
        kvf_vllm_config_options(&config, NULL, &options, NULL) == KVF_OK && strlen(config.bootstrap_url) < 8)
        abort();
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;

    if (size == 0) return 0;
    switch (data[0] % 3) {
    case 0: read_answer(text, size - 1); break;
    case 1: register_lines(text, size - 1); break;
    default: read_config(text, size - 1);
    }
    return 0;
}
