/* SPDX-License-Identifier: Apache-2.0 */
/* vLLM's configuration: keys, variables, who runs the registry and where it is, and the options that follow. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "kvferry/vllm_config.h"
#include "sys/clock.h"

/** "NAME=VALUE" texts, closed by NULL. */
static const char *lookup(void *context, const char *name)
{
    size_t bytes = strlen(name);

    for (const char *const *at = context; *at; at++)
        if (strncmp(*at, name, bytes) == 0 && (*at)[bytes] == '=') return *at + bytes + 1;
    return NULL;
}

static struct kvf_vllm_config read_config(const char *extra, const char *const *environment)
{
    struct kvf_vllm_config config = {.struct_size = sizeof config};
    struct kvf_error error;

    if (kvf_vllm_config_read(extra, environment ? lookup : NULL, (void *)environment, &config, &error) != KVF_OK)
        fail_msg("%s: %s", extra ? extra : "", error.text);
    return config;
}

static struct kvf_vllm_config external(const char *address)
{
    struct kvf_vllm_config config = read_config(NULL, NULL);

    config.has_bootstrap_server_address = 1;
    snprintf(config.bootstrap_server_address, sizeof config.bootstrap_server_address, "%s", address);
    return config;
}

static struct kvf_vllm_deployment alone(void)
{
    struct kvf_vllm_deployment deployment;

    kvf_vllm_deployment_init(&deployment, sizeof deployment);
    return deployment;
}

/* ---- the seed's tests ---- */

static void should_launch_bootstrap_server_selects_single_owner(void **state)
{
    static const struct {
        int64_t tp, pp;
        int32_t local_only;
        int64_t dp_local, dp_index;
        int32_t launches;
    } rows[] = {{1, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0}, {0, 0, 1, 0, 1, 1},
                {0, 0, 1, 1, 0, 0}, {0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 1, 0}};
    struct kvf_vllm_config config = read_config("{}", NULL), other = external("h:1");

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_deployment deployment = alone();

        deployment.tp_rank = rows[i].tp;
        deployment.pp_rank = rows[i].pp;
        deployment.local_engines_only = rows[i].local_only;
        deployment.dp_rank_local = rows[i].dp_local;
        deployment.dp_index = rows[i].dp_index;
        if (kvf_vllm_launches_bootstrap(&config, &deployment) != rows[i].launches) fail_msg("row %zu", i);
        assert_int_equal(kvf_vllm_launches_bootstrap(NULL, &deployment), rows[i].launches);
        assert_int_equal(kvf_vllm_launches_bootstrap(&other, &deployment), 0);
    }
}

static void get_mooncake_bootstrap_addr_selects_expected_host(void **state)
{
    static const struct {
        int32_t local_only;
        int64_t nodes;
        const char *host;
    } rows[] = {{1, 2, "127.0.0.1"}, {0, 2, "model-parallel-master"}, {0, 1, "data-parallel-master"}};
    static const char *const environment[] = {"VLLM_MOONCAKE_BOOTSTRAP_PORT=18998", NULL};
    struct kvf_vllm_config config = read_config(NULL, environment);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_deployment deployment = alone();
        char host[64];
        int32_t port;

        deployment.local_engines_only = rows[i].local_only;
        deployment.nodes_within_dp = rows[i].nodes;
        deployment.master_addr = "model-parallel-master";
        deployment.dp_master_ip = "data-parallel-master";
        assert_int_equal(kvf_vllm_bootstrap_address(NULL, &deployment, host, sizeof host, &port, NULL), KVF_OK);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, 8998);
        assert_int_equal(kvf_vllm_bootstrap_address(&config, &deployment, host, sizeof host, &port, NULL), KVF_OK);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, 18998);
    }
}

static void get_mooncake_bootstrap_addr_uses_external_endpoint(void **state)
{
    static const struct {
        const char *address, *host;
        int32_t port;
    } rows[] = {{"external:12345", "external", 12345}, {"[::1]:12345", "::1", 12345}, {"h:1", "h", 1},
                {"10.0.0.1:65535", "10.0.0.1", 65535}, {"[fe80::1%eth0]:08998", "fe80::1%eth0", 8998},
                {"[name]:5", "name", 5}};
    struct kvf_vllm_deployment deployment = alone();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_config config = external(rows[i].address);
        struct kvf_error error;
        char host[64];
        int32_t port;

        if (kvf_vllm_bootstrap_address(&config, &deployment, host, sizeof host, &port, &error) != KVF_OK)
            fail_msg("%s", error.text);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
}

static void get_mooncake_bootstrap_addr_rejects_invalid_external_address(void **state)
{
    static const struct {
        const char *address, *why;
    } rows[] = {
        {":12345", "has no host"},
        {"host:0", "has no port of 1 to 65535 in digits"},
        {"host:65536", "has no port of 1 to 65535 in digits"},
        {"host:http", "has no port of 1 to 65535 in digits"},
        {"host:-1", "has no port of 1 to 65535 in digits"},
        {"host:1.5", "has no port of 1 to 65535 in digits"},
        {"host:99999999999999999999", "has no port of 1 to 65535 in digits"},
        {"host:", "has no port of 1 to 65535 in digits"},
        {"host", "has no port"},
        {"", "has no port"},
        {"::1:12345", "an IPv6 address needs brackets"},
        {"http://host:1", "an IPv6 address needs brackets"},
        {"[::1]", "has no port after the bracket"},
        {"[::1]12345", "has no port after the bracket"},
        {"[::1:12345", "has no closing bracket"},
        {"[]:12345", "has no host"},
        {"a b:1", "has no name or address of a host"},
        {"[[::1]]:1", "has no name or address of a host"},
        {"a/b:1", "has no name or address of a host"},
        {"a123456789b123456789c123456789d123456789e123456789f123456789g123:1", "has no name or address of a host"},
    };
    struct kvf_vllm_deployment deployment = alone();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_config config = external(rows[i].address);
        char host[64] = "untouched";
        struct kvf_error error;
        int32_t port = 7;

        if (kvf_vllm_bootstrap_address(&config, &deployment, host, sizeof host, &port, &error) !=
                KVF_ERR_INVALID_ARGUMENT ||
            !strstr(error.text, "bootstrap_server_address must specify a host and port") ||
            !strstr(error.text, rows[i].why))
            fail_msg("%s: %s", rows[i].address, error.text);
        assert_string_equal(host, "untouched");
        assert_int_equal(port, 7);
    }
}

/* ---- reading ---- */

static void reads_keys_and_variables(void **state)
{
    static const char *const environment[] = {
        "VLLM_MOONCAKE_BOOTSTRAP_PORT= 9000 ", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=0.25",
        "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=5", "VLLM_HOST_IP=fd00::7", NULL};
    struct kvf_vllm_config config = read_config(NULL, NULL);

    (void)state;
    assert_int_equal(config.num_workers, 10);
    assert_int_equal(config.bootstrap_port, 8998);
    assert_int_equal(config.connector_timeout_ns, 30 * KVFI_SECOND);
    assert_int_equal(config.abort_request_timeout_ns, 480 * KVFI_SECOND);
    assert_int_equal(config.has_bootstrap_server_address, 0);
    assert_string_equal(config.mooncake_protocol, "rdma");
    assert_string_equal(config.device_name, "");
    assert_string_not_equal(config.host, "");
    assert_string_equal(config.notes, "");
    config = read_config("{\"num_workers\": 4, \"mooncake_protocol\": \"tcp\", \"device_name\": \"mlx5_0,mlx5_1\","
                         " \"bootstrap_server_address\": null, \"prefill_side_swa_replay\": true,"
                         " \"connectors\": [{}]}", environment);
    assert_int_equal(config.num_workers, 4);
    assert_int_equal(config.bootstrap_port, 9000);
    assert_int_equal(config.connector_timeout_ns, 250 * KVFI_MS);
    assert_int_equal(config.abort_request_timeout_ns, 5 * KVFI_SECOND);
    assert_int_equal(config.has_bootstrap_server_address, 0);
    assert_string_equal(config.mooncake_protocol, "tcp");
    assert_string_equal(config.device_name, "mlx5_0,mlx5_1");
    assert_string_equal(config.host, "fd00::7");
    assert_string_equal(config.notes,
                        "num_workers has no effect: one thread serves every pull, and one that waits takes none\n"
                        "device_name has no effect: bytes go over the transfer engine's TCP transport\n"
                        "kv_connector_extra_config: key \"prefill_side_swa_replay\" is not known\n"
                        "kv_connector_extra_config: key \"connectors\" is not known");
}

static void reads_what_is_set_at_that_moment(void **state)
{
    const char *environment[] = {"VLLM_MOONCAKE_CONNECTOR_TIMEOUT=1", "HOST_IP=1.2.3.4", NULL};
    struct kvf_vllm_config config = read_config("", environment);

    (void)state;
    assert_int_equal(config.connector_timeout_ns, KVFI_SECOND);
    assert_string_equal(config.notes, "HOST_IP is ignored: VLLM_HOST_IP sets the address");
    environment[0] = "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=2";
    config = read_config("", environment);
    assert_int_equal(config.connector_timeout_ns, 2 * KVFI_SECOND);
}

static void reads_seconds(void **state)
{
    static const struct {
        const char *text;
        int64_t ms;
    } rows[] = {{"30", 30000}, {"30.", 30000}, {"30.0", 30000}, {".5", 500}, {" +1.25\n", 1250}, {"3e1", 30000},
                {"25E-2", 250}, {"1e+2", 100000}, {"0.001", 1}, {"604800", 604800000}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char variable[80];
        const char *environment[] = {variable, NULL};

        snprintf(variable, sizeof variable, "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=%s", rows[i].text);
        if (read_config(NULL, environment).connector_timeout_ns != rows[i].ms * KVFI_MS) fail_msg("%s", rows[i].text);
    }
}

static void refuses_what_it_cannot_use(void **state)
{
    static const struct {
        const char *extra, *variable, *text;
        enum kvf_status status;
    } rows[] = {
        {"{", "", "kv_connector_extra_config", KVF_ERR_PARSE},
        {"{\"a\":1,\"a\":2}", "", "duplicate", KVF_ERR_PARSE},
        {"[]", "", "kv_connector_extra_config is not a JSON object", KVF_ERR_INVALID_ARGUMENT},
        {"{\"num_workers\":0}", "", "num_workers is not a whole number above 0", KVF_ERR_INVALID_ARGUMENT},
        {"{\"num_workers\":\"4\"}", "", "num_workers is not a whole number above 0", KVF_ERR_INVALID_ARGUMENT},
        {"{\"num_workers\":4.0}", "", "num_workers is not a whole number above 0", KVF_ERR_INVALID_ARGUMENT},
        {"{\"num_workers\":null}", "", "num_workers is not a whole number above 0", KVF_ERR_INVALID_ARGUMENT},
        {"{\"mooncake_protocol\":7}", "", "mooncake_protocol is not a text of at most 63 bytes",
         KVF_ERR_INVALID_ARGUMENT},
        {"{\"device_name\":null}", "", "device_name is not a text of at most 255 bytes", KVF_ERR_INVALID_ARGUMENT},
        {"{\"bootstrap_server_address\":8998}", "", "bootstrap_server_address is not a text of at most 511 bytes",
         KVF_ERR_INVALID_ARGUMENT},
        {"{\"bootstrap_server_address\":\"a\\nb\"}", "", "bootstrap_server_address is not a text",
         KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_BOOTSTRAP_PORT=http", "VLLM_MOONCAKE_BOOTSTRAP_PORT is \"http\", expected a whole number "
         "from 1 to 65535", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_BOOTSTRAP_PORT=0", "is \"0\", expected", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_BOOTSTRAP_PORT=65536", "is \"65536\", expected", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_BOOTSTRAP_PORT=", "is \"\", expected", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_BOOTSTRAP_PORT=-1", "is \"-1\", expected", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_BOOTSTRAP_PORT=1 2", "is \"1 2\", expected", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=0", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT is \"0\", expected seconds from "
         "0.001 to 604800", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=-1", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=nan", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=inf", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=1e", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=1e+", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=1e99999999", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=1.2.3", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=.", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=30s", "expected seconds", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=480.0", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT is \"480.0\", expected "
         "whole seconds from 1 to 604800", KVF_ERR_INVALID_ARGUMENT},
        {"", "VLLM_HOST_IP=a\nb", "VLLM_HOST_IP is \"a?b\"", KVF_ERR_INVALID_ARGUMENT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *environment[] = {rows[i].variable, NULL};
        struct kvf_vllm_config config = {.struct_size = sizeof config, .num_workers = 77};
        struct kvf_error error;

        if (kvf_vllm_config_read(rows[i].extra, lookup, (void *)environment, &config, &error) != rows[i].status ||
            !strstr(error.text, rows[i].text))
            fail_msg("row %zu: %s", i, error.text);
        assert_int_equal(config.num_workers, 77);
    }
}

static void a_port_variable_is_not_read_with_an_external_registry(void **state)
{
    static const char *const environment[] = {"VLLM_MOONCAKE_BOOTSTRAP_PORT=http", NULL};
    struct kvf_vllm_config config = read_config("{\"bootstrap_server_address\":\"external:12345\"}", environment);

    (void)state;
    assert_int_equal(config.has_bootstrap_server_address, 1);
    assert_string_equal(config.bootstrap_server_address, "external:12345");
}

static void notes_that_do_not_fit_are_left_out(void **state)
{
    char extra[4000] = "{";
    size_t at = 1;
    struct kvf_vllm_config config;

    (void)state;
    for (int i = 0; i < 60; i++) at += (size_t)snprintf(extra + at, sizeof extra - at, "%s\"k%d\":1", i ? "," : "", i);
    snprintf(extra + at, sizeof extra - at, "}");
    config = read_config(extra, NULL);
    assert_true(strlen(config.notes) > sizeof config.notes - 60);
    assert_string_equal(config.notes + strlen(config.notes) - 6, " known");
}

/* ---- options ---- */

static void makes_options(void **state)
{
    static const char *const environment[] = {"VLLM_HOST_IP=10.0.0.7", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT=2",
                                              "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=7", NULL};
    static const struct {
        const char *extra;
        int32_t role, local_only;
        const char *master, *url, *listen;
        int64_t dp_rank;
    } rows[] = {
        {"{}", KVF_VLLM_PRODUCER, 0, "10.0.0.1", "http://10.0.0.1:8998", "0.0.0.0:8998", 5},
        {"{}", KVF_VLLM_PRODUCER, 1, "10.0.0.1", "http://127.0.0.1:8998", "0.0.0.0:8998", 2},
        {"{}", KVF_VLLM_BOTH, 0, "fd00::1", "http://[fd00::1]:8998", "[::]:8998", 5},
        {"{\"bootstrap_server_address\":\"[::1]:12345\"}", KVF_VLLM_PRODUCER, 0, "x", "http://[::1]:12345",
         "[::]:12345", 5},
        {"{}", KVF_VLLM_CONSUMER, 0, "10.0.0.1", NULL, "0.0.0.0:8998", 5},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_config config = read_config(rows[i].extra, environment);
        struct kvf_vllm_deployment deployment = alone();
        struct kvf_vllm_worker_options options;
        struct kvf_error error;

        deployment.tp_rank = 3;
        deployment.tp_size = 4;
        deployment.pp_rank = 1;
        deployment.pp_size = 2;
        deployment.dp_rank_local = 2;
        deployment.dp_index = 5;
        deployment.local_engines_only = rows[i].local_only;
        deployment.dp_master_ip = rows[i].master;
        kvf_vllm_worker_options_init(&options, sizeof options);
        options.role = rows[i].role;
        if (kvf_vllm_config_options(&config, &deployment, &options, &error) != KVF_OK) fail_msg("%s", error.text);
        assert_int_equal(options.tp_rank, 3);
        assert_int_equal(options.tp_size, 4);
        assert_int_equal(options.pp_rank, 1);
        assert_int_equal(options.pp_size, 2);
        assert_int_equal(options.dp_rank, rows[i].dp_rank);
        assert_string_equal(options.host, "10.0.0.7");
        assert_int_equal(options.connector_timeout_ns, 2 * KVFI_SECOND);
        assert_int_equal(options.abort_request_timeout_ns, 7 * KVFI_SECOND);
        if (rows[i].url) assert_string_equal(options.bootstrap_url, rows[i].url);
        else assert_null(options.bootstrap_url);
        assert_string_equal(config.bootstrap_listen, rows[i].listen);
    }
}

static void options_need_a_place_for_the_registry(void **state)
{
    struct kvf_vllm_config config = read_config(NULL, NULL), small = {.struct_size = 8};
    struct kvf_vllm_deployment deployment = alone();
    struct kvf_vllm_worker_options options;
    struct kvf_error error;

    (void)state;
    kvf_vllm_worker_options_init(&options, sizeof options);
    deployment.nodes_within_dp = 2;
    assert_int_equal(kvf_vllm_config_options(&config, &deployment, &options, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.text, "deployment: master_addr has 0 bytes, expected 1 to 255");
    assert_string_equal(config.bootstrap_url, "");
    assert_int_equal(kvf_vllm_config_options(&small, &deployment, &options, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_config_read(NULL, NULL, NULL, &small, &error), KVF_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "struct_size is 8"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(should_launch_bootstrap_server_selects_single_owner),
        cmocka_unit_test(get_mooncake_bootstrap_addr_selects_expected_host),
        cmocka_unit_test(get_mooncake_bootstrap_addr_uses_external_endpoint),
        cmocka_unit_test(get_mooncake_bootstrap_addr_rejects_invalid_external_address),
        cmocka_unit_test(reads_keys_and_variables),
        cmocka_unit_test(reads_what_is_set_at_that_moment),
        cmocka_unit_test(reads_seconds),
        cmocka_unit_test(refuses_what_it_cannot_use),
        cmocka_unit_test(a_port_variable_is_not_read_with_an_external_registry),
        cmocka_unit_test(notes_that_do_not_fit_are_left_out),
        cmocka_unit_test(makes_options),
        cmocka_unit_test(options_need_a_place_for_the_registry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
