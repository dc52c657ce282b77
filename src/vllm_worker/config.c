/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/vllm_config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "layout_json/json_source.h"
#include "sys/clock.h"
#include "vllm_worker/address.h"
#include "wire/text.h"

#define LONGEST_SECONDS 604800

static const struct kvfi_json_limits limits = {.max_bytes = 1048576, .max_depth = 32, .max_containers = 4096,
                                               .max_values = 65536};

static const struct kvf_vllm_config DEFAULTS = {
    .num_workers = 10,
    .bootstrap_port = 8998,
    .connector_timeout_ns = 30 * KVFI_SECOND,
    .abort_request_timeout_ns = 480 * KVFI_SECOND,
    .mooncake_protocol = "rdma",
};

/** Adds a line; one that does not fit is left out. */
static void note(struct kvf_vllm_config *config, const char *line)
{
    size_t used = strlen(config->notes), bytes = strlen(line);

    if (used + bytes + 2 > sizeof config->notes) return;
    snprintf(config->notes + used, sizeof config->notes - used, "%s%s", used ? "\n" : "", line);
}

/* ---- kv_connector_extra_config ---- */

static enum kvf_status refuse_key(const char *key, const char *expected, struct kvf_error *error)
{
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "kv_connector_extra_config: %s is not %s", key, expected);
}

static enum kvf_status read_text(const json_t *value, const char *key, char *out, size_t out_bytes,
                                 struct kvf_error *error)
{
    const char *text = json_string_value(value);
    size_t bytes = json_string_length(value);
    char expected[80];

    snprintf(expected, sizeof expected, "a text of at most %zu bytes without control characters", out_bytes - 1);
    if (!text || bytes >= out_bytes || !kvfi_text_is_clean(text, bytes)) return refuse_key(key, expected, error);
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return KVF_OK;
}

static enum kvf_status read_workers(const json_t *value, struct kvf_vllm_config *config, struct kvf_error *error)
{
    if (!json_is_integer(value) || json_integer_value(value) < 1)
        return refuse_key("num_workers", "a whole number above 0", error);
    config->num_workers = json_integer_value(value);
    note(config, "num_workers has no effect: one thread serves every pull, and one that waits takes none");
    return KVF_OK;
}

static enum kvf_status read_member(const char *key, const json_t *value, struct kvf_vllm_config *config,
                                   struct kvf_error *error)
{
    char line[120], quoted[61];
    enum kvf_status status = KVF_OK;

    if (strcmp(key, "num_workers") == 0) {
        status = read_workers(value, config, error);
    } else if (strcmp(key, "mooncake_protocol") == 0) {
        status = read_text(value, key, config->mooncake_protocol, sizeof config->mooncake_protocol, error);
        if (status == KVF_OK && strcmp(config->mooncake_protocol, "tcp") != 0)
            note(config, "mooncake_protocol has no effect: bytes go over the transfer engine's TCP transport");
    } else if (strcmp(key, "device_name") == 0) {
        status = read_text(value, key, config->device_name, sizeof config->device_name, error);
        if (status == KVF_OK && config->device_name[0])
            note(config, "device_name has no effect: bytes go over the transfer engine's TCP transport");
    } else if (strcmp(key, "bootstrap_server_address") == 0) {
        if (json_is_null(value)) return KVF_OK;
        status = read_text(value, key, config->bootstrap_server_address, sizeof config->bootstrap_server_address,
                           error);
        config->has_bootstrap_server_address = status == KVF_OK;
    } else {
        kvfi_text_clean(key, quoted, sizeof quoted);
        snprintf(line, sizeof line, "kv_connector_extra_config: key \"%s\" is not known", quoted);
        note(config, line);
    }
    return status;
}

static enum kvf_status read_extra(const char *text, struct kvf_vllm_config *config, struct kvf_error *error)
{
    const struct kvfi_json_source source = {.name = "kv_connector_extra_config", .text = text,
                                            .text_bytes = strlen(text), .error = error};
    json_t *json = NULL, *value;
    const char *key;
    enum kvf_status status = kvfi_json_load(&source, &limits, &json);

    if (status == KVF_OK && !json_is_object(json))
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "kv_connector_extra_config is not a JSON object");
    if (status != KVF_OK) goto done;
    json_object_foreach(json, key, value) {
        status = read_member(key, value, config, error);
        if (status != KVF_OK) break;
    }
done:
    json_decref(json);
    return status;
}

/* ---- the environment ---- */

/** The text without white space around it; its length goes to *bytes. */
static const char *trim(const char *text, size_t *bytes)
{
    const char *start = text + strspn(text, " \t\r\n");
    size_t left = strlen(start);

    while (left > 0 && strchr(" \t\r\n", start[left - 1])) left--;
    *bytes = left;
    return start;
}

static enum kvf_status refuse_variable(const char *name, const char *value, const char *expected,
                                       struct kvf_error *error)
{
    char quoted[61];

    kvfi_text_clean(value, quoted, sizeof quoted);
    return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s is \"%s\", expected %s", name, quoted, expected);
}

/** A whole number of `low` to `high` in decimal digits. */
static bool read_whole(const char *value, int64_t low, int64_t high, int64_t *out)
{
    size_t bytes, digits;
    const char *text = trim(value, &bytes);
    int64_t number;

    if (bytes > 0 && *text == '+') {
        text++;
        bytes--;
    }
    digits = strspn(text, "0123456789");
    if (digits == 0 || digits != bytes || digits > 18) return false;
    number = strtoll(text, NULL, 10);
    if (number < low || number > high) return false;
    *out = number;
    return true;
}

/** Seconds with a point and an exponent perhaps, whatever the locale, to nanoseconds; above 0 and at most a week. */
static bool read_seconds(const char *value, int64_t *out)
{
    size_t bytes, digits = 0;
    const char *at = trim(value, &bytes), *end = at + bytes;
    double number = 0, exponent_of_ten = 0;
    int64_t exponent = 0;
    bool is_fraction = false;

    if (at < end && *at == '+') at++;
    for (; at < end && ((*at >= '0' && *at <= '9') || (*at == '.' && !is_fraction)); at++) {
        if (*at == '.') {
            is_fraction = true;
            continue;
        }
        number = number * 10 + (*at - '0');
        exponent_of_ten -= is_fraction;
        digits++;
    }
    if (at < end && (*at == 'e' || *at == 'E') && digits > 0) {
        bool is_negative = at + 1 < end && at[1] == '-';

        at += 1 + (at + 1 < end && strchr("+-", at[1]) != NULL);
        if (at == end) return false;
        for (; at < end && *at >= '0' && *at <= '9' && exponent < 1000; at++) exponent = exponent * 10 + (*at - '0');
        exponent_of_ten += (double)(is_negative ? -exponent : exponent);
    }
    if (at != end || digits == 0 || digits > 300) return false;
    for (; exponent_of_ten > 0 && number < 1e30; exponent_of_ten--) number *= 10;
    for (; exponent_of_ten < 0 && number > 0; exponent_of_ten++) number /= 10;
    if (!(number >= 0.001 && number <= LONGEST_SECONDS)) return false;
    *out = (int64_t)(number * (double)KVFI_SECOND + 0.5);
    return true;
}

static enum kvf_status read_environment(kvf_vllm_environment *environment, void *context,
                                        struct kvf_vllm_config *config, struct kvf_error *error)
{
    static const char port_name[] = "VLLM_MOONCAKE_BOOTSTRAP_PORT", timeout_name[] = "VLLM_MOONCAKE_CONNECTOR_TIMEOUT",
                      abort_name[] = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", host_name[] = "VLLM_HOST_IP";
    const char *port = config->has_bootstrap_server_address ? NULL : environment(context, port_name);
    const char *timeout = environment(context, timeout_name), *abort_text = environment(context, abort_name);
    const char *host = environment(context, host_name);
    int64_t seconds;

    if (port && !read_whole(port, 1, 65535, &config->bootstrap_port))
        return refuse_variable(port_name, port, "a whole number from 1 to 65535", error);
    if (timeout && !read_seconds(timeout, &config->connector_timeout_ns))
        return refuse_variable(timeout_name, timeout, "seconds from 0.001 to 604800", error);
    if (abort_text) {
        if (!read_whole(abort_text, 1, LONGEST_SECONDS, &seconds))
            return refuse_variable(abort_name, abort_text, "whole seconds from 1 to 604800", error);
        config->abort_request_timeout_ns = seconds * KVFI_SECOND;
    }
    if (host && (strlen(host) >= sizeof config->host || !kvfi_text_is_clean(host, strlen(host))))
        return refuse_variable(host_name, host, "a host of at most 255 bytes", error);
    if (host) snprintf(config->host, sizeof config->host, "%s", host);
    if (!host && environment(context, "HOST_IP")) note(config, "HOST_IP is ignored: VLLM_HOST_IP sets the address");
    return KVF_OK;
}

/* ---- what callers use ---- */

enum kvf_status kvf_vllm_config_read(const char *extra_config, kvf_vllm_environment *environment, void *context,
                                     struct kvf_vllm_config *out, struct kvf_error *error)
{
    struct kvf_vllm_config own = DEFAULTS;
    enum kvf_status status = kvfi_struct_check(out->struct_size, sizeof own, "vLLM configuration", error);

    own.struct_size = out->struct_size;
    if (status == KVF_OK && extra_config && extra_config[0]) status = read_extra(extra_config, &own, error);
    if (status == KVF_OK && environment) status = read_environment(environment, context, &own, error);
    if (status != KVF_OK) return status;
    if (!own.host[0]) kvfi_vllm_own_address(own.host, sizeof own.host);
    *out = own;
    return KVF_OK;
}

enum kvf_status kvf_vllm_config_options(struct kvf_vllm_config *config, const struct kvf_vllm_deployment *deployment,
                                        struct kvf_vllm_worker_options *options, struct kvf_error *error)
{
    struct kvf_vllm_deployment own;
    char host[256];
    int32_t port;
    enum kvf_status status = kvfi_struct_check(config->struct_size, sizeof *config, "vLLM configuration", error);

    kvf_vllm_deployment_init(&own, sizeof own);
    if (status == KVF_OK)
        status = kvfi_struct_check(options->struct_size, offsetof(struct kvf_vllm_worker_options, receive_slack_ns),
                            "worker options", error);
    if (status == KVF_OK) status = kvfi_options_copy(&own, sizeof own, deployment, "deployment", error);
    if (status == KVF_OK) status = kvf_vllm_bootstrap_address(config, &own, host, sizeof host, &port, error);
    if (status != KVF_OK) return status;
    kvfi_vllm_join_host_port("http", host, port, config->bootstrap_url, sizeof config->bootstrap_url);
    kvfi_vllm_join_host_port("", strchr(host, ':') ? "::" : "0.0.0.0", port, config->bootstrap_listen,
                             sizeof config->bootstrap_listen);
    options->tp_rank = own.tp_rank;
    options->tp_size = own.tp_size;
    options->pp_rank = own.pp_rank;
    options->pp_size = own.pp_size;
    options->dp_rank = own.local_engines_only ? own.dp_rank_local : own.dp_index;
    options->host = config->host;
    options->connector_timeout_ns = config->connector_timeout_ns;
    options->abort_request_timeout_ns = config->abort_request_timeout_ns;
    options->bootstrap_url = options->role == KVF_VLLM_CONSUMER ? NULL : config->bootstrap_url;
    return KVF_OK;
}
