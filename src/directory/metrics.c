/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/metrics.h"

#include <inttypes.h>

static const char *const endpoint_names[KVFI_ENDPOINTS] = {
    [KVFI_ENDPOINT_REGISTER] = "register", [KVFI_ENDPOINT_RENEW] = "renew", [KVFI_ENDPOINT_WITHDRAW] = "withdraw",
    [KVFI_ENDPOINT_QUERY] = "query", [KVFI_ENDPOINT_LIST] = "list", [KVFI_ENDPOINT_HEALTH] = "health",
    [KVFI_ENDPOINT_METRICS] = "metrics",
    [KVFI_ENDPOINT_BOOTSTRAP_REGISTER] = "bootstrap_register", [KVFI_ENDPOINT_BOOTSTRAP_QUERY] = "bootstrap_query",
    [KVFI_ENDPOINT_OTHER] = "other",
};

static void write_per_endpoint(struct kvfi_text *out, const char *name, const char *help,
                               const int64_t values[KVFI_ENDPOINTS])
{
    kvfi_text_appendf(out, "# HELP %s %s\n# TYPE %s counter\n", name, help, name);
    for (size_t i = 0; i < KVFI_ENDPOINTS; i++)
        kvfi_text_appendf(out, "%s{endpoint=\"%s\"} %" PRId64 "\n", name, endpoint_names[i], values[i]);
}

static void write_one(struct kvfi_text *out, const char *name, const char *help, const char *type, int64_t value)
{
    kvfi_text_appendf(out, "# HELP %s %s\n# TYPE %s %s\n%s %" PRId64 "\n", name, help, name, type, name, value);
}

void kvfi_metrics_write(const struct kvfi_service *service, struct kvfi_text *out)
{
    const struct kvfi_registry *registry = &service->registry;

    write_per_endpoint(out, "kvferry_directory_requests_total", "Requests answered.", service->counters.requests);
    write_per_endpoint(out, "kvferry_directory_refused_total", "Requests answered with an error.",
                       service->counters.refused);
    write_one(out, "kvferry_directory_leases_expired_total", "Registrations that were not renewed in time.", "counter",
              registry->expired);
    write_one(out, "kvferry_directory_instances", "Instances registered.", "gauge", (int64_t)registry->instance_count);
    write_one(out, "kvferry_directory_ranks", "Ranks registered.", "gauge", registry->rank_count);
    write_one(out, "kvferry_directory_text_bytes", "Bytes of endpoints and holdings held.", "gauge",
              registry->text_bytes);
}
