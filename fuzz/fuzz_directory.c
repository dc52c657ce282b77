/* SPDX-License-Identifier: Apache-2.0 */
/* What is posted to a directory, and what a directory answers. The first byte chooses; for requests it is one service,
 * new for each input, that gets the same body at several endpoints. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "directory/client_state.h"
#include "directory/service.h"
#include "sys/clock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(struct kvfi_service *service, const char *method, const char *path, const char *instance,
                const uint8_t *body, size_t size, int64_t now_ns)
{
    struct kvfi_service_request request = {.method = method, .path = path, .instance = instance,
                                           .body = (const char *)body, .body_bytes = size, .now_ns = now_ns};
    struct kvfi_service_answer answer;

    kvfi_service_answer(service, &request, &answer);
    if (answer.code == 200 && strcmp(path, "/v1/query") == 0) {
        struct kvfi_directory_instance *read = NULL;

        /* What the server says, the client understands. */
        if (kvfi_instance_read(&answer.body, &read, NULL) != KVF_OK) abort();
        kvfi_directory_instance_destroy(read);
    }
    kvfi_text_fini(&answer.body);
}

static void post_everywhere(const uint8_t *body, size_t size)
{
    struct kvfi_service service = {.opened_ns = 0};

    kvfi_registry_init(&service.registry, KVFI_SECOND, 4, 1);
    kvfi_bootstrap_init(&service.bootstrap, 4);
    service.with_bootstrap = true;
    ask(&service, "POST", "/register", NULL, body, size, 0);
    ask(&service, "POST", "/register", NULL, body, size, 0);
    ask(&service, "GET", "/query", NULL, NULL, 0, 0);
    ask(&service, "POST", "/v1/register", NULL, body, size, 0);
    ask(&service, "POST", "/v1/register", NULL, body, size, 1);
    ask(&service, "POST", "/v1/renew", NULL, body, size, 2);
    for (size_t i = 0; i < service.registry.instance_count; i++)
        ask(&service, "GET", "/v1/query", service.registry.instances[i]->name, NULL, 0, 3);
    ask(&service, "GET", "/v1/list", NULL, NULL, 0, 3);
    ask(&service, "GET", "/metrics", NULL, NULL, 0, 3);
    ask(&service, "POST", "/v1/withdraw", NULL, body, size, 4);
    ask(&service, "POST", "/v1/register", NULL, body, size, 5);
    ask(&service, "GET", "/v1/health", NULL, NULL, 0, 10 * KVFI_SECOND);
    if (service.registry.rank_count != 0 || service.registry.text_bytes != 0) abort();
    kvfi_registry_fini(&service.registry);
    kvfi_bootstrap_fini(&service.bootstrap);
}

static void read_answers(const uint8_t *body, size_t size)
{
    struct kvfi_text answer = {0};
    struct kvfi_directory_instance *instance = NULL;
    int64_t epoch, lease_ns;

    kvfi_text_append_bytes(&answer, body, size);
    kvfi_registered_read(&answer, &epoch, &lease_ns, NULL);
    if (kvfi_instance_read(&answer, &instance, NULL) == KVF_OK) kvfi_directory_instance_destroy(instance);
    kvfi_text_fini(&answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] & 1) read_answers(data + 1, size - 1);
    else post_everywhere(data + 1, size - 1);
    return 0;
}
