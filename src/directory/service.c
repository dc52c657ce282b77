/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/service.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "directory/claim.h"
#include "directory/metrics.h"
#include "sys/clock.h"

static void write_error(struct kvfi_service_answer *answer, unsigned code, const char *sentence)
{
    answer->code = code;
    answer->content_type = "application/json";
    answer->body.count = 0;
    kvfi_text_append(&answer->body, "{\"error\":");
    kvfi_text_append_json(&answer->body, sentence);
    kvfi_text_append(&answer->body, "}");
}

static unsigned code_of(enum kvf_status status)
{
    switch (status) {
    case KVF_OK: return 200;
    case KVF_ERR_NOT_FOUND: return 404;
    case KVF_ERR_EXISTS:
    case KVF_ERR_STALE: return 409;
    case KVF_ERR_NO_MEMORY: return 503;
    default: return 400;
    }
}

/* ---- register, renew, withdraw ---- */

static void write_registered(const struct kvfi_service *service, const struct kvfi_registry_instance *instance,
                             struct kvfi_text *out)
{
    int64_t registered = (int64_t)instance->rank_count;

    kvfi_text_appendf(out, "{\"status\":\"ok\",\"epoch\":%" PRId64 ",\"registered\":%" PRId64 ",\"expected\":%" PRId64
                      ",\"complete\":%s,\"lease_ms\":%" PRId64 "}", instance->epoch, registered,
                      instance->ranks_expected, registered == instance->ranks_expected ? "true" : "false",
                      service->registry.lease_ns / KVFI_MS);
}

static void answer_register(struct kvfi_service *service, const struct kvfi_service_request *request,
                            struct kvfi_service_answer *answer)
{
    const struct kvfi_registry_instance *instance;
    struct kvfi_claim_body body;
    struct kvf_error error;
    enum kvf_status status = kvfi_claim_read(request->body, request->body_bytes, &body, &error);

    if (status != KVF_OK) {
        write_error(answer, code_of(status), error.text);
        return;
    }
    status = kvfi_registry_register(&service->registry, &body.claim, request->now_ns, &instance, &error);
    if (status == KVF_OK) write_registered(service, instance, &answer->body);
    else write_error(answer, status == KVF_ERR_LIMIT ? 503 : code_of(status), error.text);
    kvfi_claim_body_fini(&body);
}

static void answer_key(struct kvfi_service *service, const struct kvfi_service_request *request, bool withdraw,
                       struct kvfi_service_answer *answer)
{
    const struct kvfi_registry_instance *instance = NULL;
    struct kvfi_claim_body body;
    struct kvfi_registry_key key;
    struct kvf_error error;
    enum kvf_status status = kvfi_claim_read_key(request->body, request->body_bytes, &body, &error);

    if (status != KVF_OK) {
        write_error(answer, code_of(status), error.text);
        return;
    }
    key = (struct kvfi_registry_key){body.claim.instance, body.claim.incarnation, body.claim.rank};
    if (withdraw) status = kvfi_registry_withdraw(&service->registry, &key, &error);
    else status = kvfi_registry_renew(&service->registry, &key, request->now_ns, &instance, &error);
    if (status != KVF_OK) write_error(answer, code_of(status), error.text);
    else if (withdraw) kvfi_text_append(&answer->body, "{\"status\":\"ok\"}");
    else write_registered(service, instance, &answer->body);
    kvfi_claim_body_fini(&body);
}

static void answer_renew(struct kvfi_service *service, const struct kvfi_service_request *request,
                         struct kvfi_service_answer *answer)
{
    answer_key(service, request, false, answer);
}

static void answer_withdraw(struct kvfi_service *service, const struct kvfi_service_request *request,
                            struct kvfi_service_answer *answer)
{
    answer_key(service, request, true, answer);
}

/* ---- query, list, health, metrics ---- */

static void write_instance_head(const struct kvfi_registry_instance *instance, struct kvfi_text *out)
{
    int64_t registered = (int64_t)instance->rank_count;

    kvfi_text_append(out, "{\"instance\":");
    kvfi_text_append_json(out, instance->name);
    kvfi_text_append(out, ",\"model\":");
    kvfi_text_append_json(out, instance->model);
    kvfi_text_appendf(out, ",\"complete\":%s,\"registered\":%" PRId64 ",\"expected\":%" PRId64 ",\"epoch\":%" PRId64,
                      registered == instance->ranks_expected ? "true" : "false", registered, instance->ranks_expected,
                      instance->epoch);
}

static void write_rank(const struct kvfi_registry_rank *rank, struct kvfi_text *out)
{
    kvfi_text_append(out, "{\"rank\":");
    kvfi_rank_write(&rank->rank, out);
    kvfi_text_appendf(out, ",\"incarnation\":\"%016" PRIx64 "\",\"endpoints\":{\"channel\":", rank->incarnation);
    kvfi_text_append_json(out, rank->channel);
    kvfi_text_append(out, "},\"holdings\":");
    kvfi_text_append(out, rank->holdings);
    kvfi_text_append(out, "}");
}

static void answer_query(struct kvfi_service *service, const struct kvfi_service_request *request,
                         struct kvfi_service_answer *answer)
{
    const struct kvfi_registry_instance *instance =
        request->instance ? kvfi_registry_find(&service->registry, request->instance) : NULL;
    struct kvf_error error;

    if (!request->instance || request->instance[0] == '\0') {
        write_error(answer, 400, "query names no instance: expected /v1/query?instance=NAME");
        return;
    }
    if (!instance) {
        kvfi_fail(&error, KVF_ERR_NOT_FOUND, "instance \"%.127s\" is not registered", request->instance);
        write_error(answer, 404, error.text);
        return;
    }
    write_instance_head(instance, &answer->body);
    kvfi_text_append(&answer->body, ",\"ranks\":[");
    for (size_t i = 0; i < instance->rank_count; i++) {
        if (i > 0) kvfi_text_append(&answer->body, ",");
        write_rank(&instance->ranks[i], &answer->body);
    }
    kvfi_text_append(&answer->body, "]}");
}

static void answer_list(struct kvfi_service *service, const struct kvfi_service_request *request,
                        struct kvfi_service_answer *answer)
{
    (void)request;
    kvfi_text_append(&answer->body, "{\"instances\":[");
    for (size_t i = 0; i < service->registry.instance_count; i++) {
        if (i > 0) kvfi_text_append(&answer->body, ",");
        write_instance_head(service->registry.instances[i], &answer->body);
        kvfi_text_append(&answer->body, "}");
    }
    kvfi_text_append(&answer->body, "]}");
}

static void answer_health(struct kvfi_service *service, const struct kvfi_service_request *request,
                          struct kvfi_service_answer *answer)
{
    kvfi_text_appendf(&answer->body, "{\"status\":\"ok\",\"version\":\"%d.%d.%d\",\"instances\":%zu,\"ranks\":%" PRId64
                      ",\"lease_ms\":%" PRId64 ",\"uptime_ms\":%" PRId64 "}", KVF_VERSION_MAJOR, KVF_VERSION_MINOR,
                      KVF_VERSION_PATCH, service->registry.instance_count, service->registry.rank_count,
                      service->registry.lease_ns / KVFI_MS, (request->now_ns - service->opened_ns) / KVFI_MS);
}

static void answer_metrics(struct kvfi_service *service, const struct kvfi_service_request *request,
                           struct kvfi_service_answer *answer)
{
    (void)request;
    answer->content_type = "text/plain; version=0.0.4";
    kvfi_metrics_write(service, &answer->body);
}

/* ---- vLLM's bootstrap ---- */

/** application/json, or application/...+json. */
static bool is_json_type(const char *content_type)
{
    static const char application[] = "application/";
    size_t media_bytes = content_type ? strcspn(content_type, "; ") : 0;
    const char *subtype;
    size_t subtype_bytes;

    if (media_bytes < sizeof application || strncasecmp(content_type, application, sizeof application - 1) != 0)
        return false;
    subtype = content_type + sizeof application - 1;
    subtype_bytes = media_bytes - (sizeof application - 1);
    return (subtype_bytes == 4 && strncasecmp(subtype, "json", 4) == 0) ||
           (subtype_bytes >= 5 && strncasecmp(subtype + subtype_bytes - 5, "+json", 5) == 0);
}

static void answer_bootstrap_register(struct kvfi_service *service, const struct kvfi_service_request *request,
                                      struct kvfi_service_answer *answer)
{
    bool is_json = is_json_type(request->content_type);

    answer->code = kvfi_bootstrap_register(&service->bootstrap, is_json ? request->body : NULL,
                                           is_json ? request->body_bytes : 0, &answer->body);
}

static void answer_bootstrap_query(struct kvfi_service *service, const struct kvfi_service_request *request,
                                   struct kvfi_service_answer *answer)
{
    (void)request;
    kvfi_bootstrap_query(&service->bootstrap, &answer->body);
}

/* ---- routing ---- */

static const struct route {
    const char *path, *method;
    void (*answer)(struct kvfi_service *service, const struct kvfi_service_request *request,
                   struct kvfi_service_answer *answer);
} routes[] = {
    [KVFI_ENDPOINT_REGISTER] = {"/v1/register", "POST", answer_register},
    [KVFI_ENDPOINT_RENEW] = {"/v1/renew", "POST", answer_renew},
    [KVFI_ENDPOINT_WITHDRAW] = {"/v1/withdraw", "POST", answer_withdraw},
    [KVFI_ENDPOINT_QUERY] = {"/v1/query", "GET", answer_query},
    [KVFI_ENDPOINT_LIST] = {"/v1/list", "GET", answer_list},
    [KVFI_ENDPOINT_HEALTH] = {"/v1/health", "GET", answer_health},
    [KVFI_ENDPOINT_METRICS] = {"/metrics", "GET", answer_metrics},
    [KVFI_ENDPOINT_BOOTSTRAP_REGISTER] = {"/register", "POST", answer_bootstrap_register},
    [KVFI_ENDPOINT_BOOTSTRAP_QUERY] = {"/query", "GET", answer_bootstrap_query},
};

static bool is_bootstrap(size_t endpoint)
{
    return endpoint == KVFI_ENDPOINT_BOOTSTRAP_REGISTER || endpoint == KVFI_ENDPOINT_BOOTSTRAP_QUERY;
}

static size_t find_route(const struct kvfi_service *service, const char *path)
{
    size_t found = KVFI_ENDPOINT_OTHER;

    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        if (strcmp(routes[i].path, path) == 0 && (service->with_bootstrap || !is_bootstrap(i))) found = i;
    return found;
}

/** With the bootstrap endpoints come that server's manners: its word for an error, and a way round stray slashes. */
static void answer_no_route(const struct kvfi_service *service, const struct kvfi_service_request *request,
                            struct kvfi_service_answer *answer)
{
    struct kvf_error error;

    kvfi_fail(&error, KVF_ERR_NOT_FOUND, "there is no \"%.100s\" here", request->path);
    write_error(answer, 404, error.text);
    if (!service->with_bootstrap) return;
    answer->body.count = 0;
    for (size_t i = KVFI_ENDPOINT_BOOTSTRAP_REGISTER; i <= KVFI_ENDPOINT_BOOTSTRAP_QUERY; i++) {
        size_t path_bytes = strlen(routes[i].path);
        const char *rest = request->path + path_bytes;

        if (strncmp(request->path, routes[i].path, path_bytes) != 0 || rest[0] != '/' || rest[strspn(rest, "/")])
            continue;
        answer->code = 307;
        answer->content_type = NULL;
        answer->location = routes[i].path;
        return;
    }
    kvfi_text_append(&answer->body, "{\"detail\":\"Not Found\"}");
}

static void answer_wrong_method(const struct kvfi_service_request *request, size_t endpoint,
                                struct kvfi_service_answer *answer)
{
    struct kvf_error error;

    kvfi_fail(&error, KVF_ERR_INVALID_ARGUMENT, "%s takes %s, not %.20s", routes[endpoint].path,
              routes[endpoint].method, request->method);
    write_error(answer, 405, error.text);
    answer->allow = routes[endpoint].method;
    if (!is_bootstrap(endpoint)) return;
    answer->body.count = 0;
    kvfi_text_append(&answer->body, "{\"detail\":\"Method Not Allowed\"}");
}

static void answer_routed(struct kvfi_service *service, const struct kvfi_service_request *request,
                          struct kvfi_service_answer *answer, size_t *endpoint)
{
    size_t found = find_route(service, request->path);

    *endpoint = found;
    if (found == KVFI_ENDPOINT_OTHER) {
        answer_no_route(service, request, answer);
    } else if (strcmp(request->method, routes[found].method) != 0) {
        answer_wrong_method(request, found, answer);
    } else {
        kvfi_registry_expire(&service->registry, request->now_ns);
        routes[found].answer(service, request, answer);
    }
}

void kvfi_service_answer(struct kvfi_service *service, const struct kvfi_service_request *request,
                         struct kvfi_service_answer *answer)
{
    size_t endpoint;

    *answer = (struct kvfi_service_answer){.code = 200, .content_type = "application/json"};
    answer_routed(service, request, answer, &endpoint);
    service->counters.requests[endpoint]++;
    if (answer->code >= 400) service->counters.refused[endpoint]++;
}

void kvfi_service_refuse(struct kvfi_service *service, unsigned code, const char *sentence,
                         struct kvfi_service_answer *answer)
{
    *answer = (struct kvfi_service_answer){0};
    write_error(answer, code, sentence);
    service->counters.requests[KVFI_ENDPOINT_OTHER]++;
    service->counters.refused[KVFI_ENDPOINT_OTHER]++;
}
