/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_config.h  vLLM's configuration of its MooncakeConnector, made a worker's options.
 *
 *  Names, defaults and meanings are upstream's: `kv_connector_extra_config` of `--kv-transfer-config`, and the
 *  environment. Who runs the bootstrap registry, and where it is, follows from these and from the engine's place in its
 *  deployment. Nothing here keeps state or reads the environment by itself: the caller hands it in, and what is read
 *  holds for that moment. Any thread; nothing blocks.
 */
#ifndef KVFERRY_VLLM_CONFIG_H
#define KVFERRY_VLLM_CONFIG_H

#include "kvferry/vllm_worker.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What was configured. Filled by kvf_vllm_config_read. */
struct kvf_vllm_config {
    size_t struct_size;               /**< set by the caller to sizeof(struct kvf_vllm_config) */
    int64_t num_workers;              /**< `num_workers`, 10. Upstream: threads that write, and half the pulls that may
                                           wait for readiness. Here it changes nothing: one thread serves every pull,
                                           and one that waits takes none */
    int64_t bootstrap_port;           /**< VLLM_MOONCAKE_BOOTSTRAP_PORT, 8998 */
    int64_t connector_timeout_ns;     /**< VLLM_MOONCAKE_CONNECTOR_TIMEOUT, seconds, 30.0 */
    int64_t abort_request_timeout_ns; /**< VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, whole seconds, 480 */
    int32_t has_bootstrap_server_address;
    char bootstrap_server_address[KVF_VLLM_ADDRESS_BYTES]; /**< `bootstrap_server_address`, "HOST:PORT" or
                                                                "[IPV6]:PORT": a registry of somebody else's */
    char mooncake_protocol[64];       /**< `mooncake_protocol`, "rdma". Bytes go over "tcp" here, whatever it says */
    char device_name[256];            /**< `device_name`, "": RDMA devices. Without effect here */
    char host[256];                   /**< VLLM_HOST_IP; else this machine's address towards other networks; else
                                           "127.0.0.1" */
    char bootstrap_url[KVF_VLLM_ADDRESS_BYTES];    /**< of kvf_vllm_config_options */
    char bootstrap_listen[KVF_VLLM_ADDRESS_BYTES]; /**< of kvf_vllm_config_options */
    char notes[1024];                 /**< remarks for a log, a line each ('\n' between): keys that are not known,
                                           settings without effect here. "" = none */
};

/** Value of an environment variable; NULL = not set. `getenv` fits, but for the context. */
typedef const char *kvf_vllm_environment(void *context, const char *name);

/** Reads a configuration.
 *  @param extra_config  JSON object of kv_connector_extra_config; NULL or "" = none
 *  @param environment   asked for the variables above; NULL = none is set. VLLM_MOONCAKE_BOOTSTRAP_PORT is not read
 *                       when bootstrap_server_address is given, as upstream does not
 *  @return KVF_OK; KVF_ERR_PARSE (not JSON, with the position); KVF_ERR_INVALID_ARGUMENT naming key or variable, what
 *          is expected and found, or struct_size; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_vllm_config_read(const char *extra_config, kvf_vllm_environment *environment,
                                             void *context, struct kvf_vllm_config *out, struct kvf_error *error);

/** Where a rank stands. Texts are borrowed for the call. */
struct kvf_vllm_deployment {
    size_t struct_size;               /**< set by kvf_vllm_deployment_init */
    int64_t tp_rank, tp_size;         /**< default 0 of 1 */
    int64_t pp_rank, pp_size;         /**< default 0 of 1 */
    int64_t dp_rank_local, dp_index;  /**< `data_parallel_rank_local`, `data_parallel_index`; default 0 */
    int32_t local_engines_only;       /**< external or hybrid load balancing: each instance has its own registry */
    int64_t nodes_within_dp;          /**< `nnodes_within_dp`; default 1 */
    const char *master_addr;          /**< of model parallelism over several nodes */
    const char *dp_master_ip;         /**< `data_parallel_master_ip`; default "127.0.0.1" */
};

/** Fills `deployment` with the defaults. `size` is sizeof(struct kvf_vllm_deployment) as the caller compiled it. */
KVF_API void kvf_vllm_deployment_init(struct kvf_vllm_deployment *deployment, size_t size);

/** Whether this rank runs the registry; to be asked of producers only. None does with a bootstrap_server_address; else
 *  it is the one with TP and PP rank 0, of the first local engine (local_engines_only) or of the first engine.
 *  @param config  NULL = nothing configured */
KVF_API int32_t kvf_vllm_launches_bootstrap(const struct kvf_vllm_config *config,
                                            const struct kvf_vllm_deployment *deployment);

/** Where a producer registers: bootstrap_server_address; or else the port of the environment at "127.0.0.1"
 *  (local_engines_only), at master_addr (several nodes), or at dp_master_ip.
 *  @param config    NULL = nothing configured
 *  @param host      written: a name or address, IPv6 without brackets; `host_bytes` is its room
 *  @param port      written
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT "bootstrap_server_address must specify a host and port" and what is wrong
 *          with it; or naming the master that is not given or too long */
KVF_API enum kvf_status kvf_vllm_bootstrap_address(const struct kvf_vllm_config *config,
                                                   const struct kvf_vllm_deployment *deployment, char *host,
                                                   size_t host_bytes, int32_t *port, struct kvf_error *error);

/** Makes options of a worker: ranks and sizes, dp_rank as it is registered, host, both timeouts, and (unless its role
 *  is KVF_VLLM_CONSUMER) bootstrap_url. Also writes config->bootstrap_url, where its registry is, and
 *  config->bootstrap_listen, what kvf_directory_options.listen is when it runs that registry: all addresses, of IPv6
 *  too when the registry's is one.
 *  @param options  of kvf_vllm_worker_options_init, with `role` set; texts in it point into `config` afterwards
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT as above; nothing has changed then */
KVF_API enum kvf_status kvf_vllm_config_options(struct kvf_vllm_config *config,
                                                const struct kvf_vllm_deployment *deployment,
                                                struct kvf_vllm_worker_options *options, struct kvf_error *error);

#ifdef __cplusplus
}
#endif

#endif
