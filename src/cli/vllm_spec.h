/* SPDX-License-Identifier: Apache-2.0 */
/** @file vllm_spec.h  What `kvferry vllm worker` is told: the SPEC, and lines that ask for something. */
#ifndef KVFERRY_CLI_VLLM_SPEC_H
#define KVFERRY_CLI_VLLM_SPEC_H

#include "cli/vllm_terms.h"
#include "kvferry/vllm_config.h"

/** The member `endpoint`. Texts are borrowed from the SPEC; -1 = not said. */
struct vllm_endpoint {
    const char *host, *engine_id, *bootstrap, *remote_engine_id, *remote_bootstrap_addr;
    int64_t dp_rank, pp_rank, side_port, rpc_port, data_port, register_attempts;
    int64_t abort_timeout_ns, slack_ns, settle_timeout_ns, connector_timeout_ns, topology_refresh_ns, wait_ns;
    int64_t arrival_timeout_ns;
    bool serve_bootstrap, layout_ids, check_grants, check_arrivals;
    const json_t *extra_config; /* kv_connector_extra_config; NULL = none */
};

/** A SPEC. JSON values are borrowed from `root`. */
struct vllm_spec {
    json_t *root;
    struct vllm_keep keep;
    struct vllm_rank rank;       /* this one */
    kvf_vllm_regions *regions;   /* as written */
    struct vllm_endpoint endpoint;
    const json_t *memory;        /* NULL = derived */
    const json_t *requests;      /* those beside the rank's own; NULL = none */
    bool reads_input;            /* requests come from standard input */
    int64_t blocks;              /* logical blocks of every group, 0 = as many as the requests name */
    char *fill_path, *dump_path; /* NULL = none */
    bool paints, checks;
    uint32_t paint_seed, check_seed;
    json_t *check_root;          /* the file that check names; NULL = none */
};

/** Reads a SPEC for `role` (an enum kvf_vllm_role). `rank` picks one of a list by its place, -1 = there must be one.
 *  Returns an exit code, having printed what is wrong. */
int vllm_spec_read(const struct cli_command *command, const char *path, int role, int64_t rank, struct vllm_spec *out);
void vllm_spec_fini(struct vllm_spec *spec);

/** The producers that a consumer's SPEC tells of, or the file that its check names: a rank or a list; NULL = none. */
const json_t *vllm_spec_producers(const struct vllm_spec *spec);

/** What a line asks for. */
enum vllm_line_kind {
    VLLM_LINE_REQUEST,
    VLLM_LINE_NOT_PROCESSED,
    VLLM_LINE_QUIT,
    VLLM_LINE_DUMP,
    VLLM_LINE_SLEEP,
    VLLM_LINE_WAKE
};

/** A line, owned. */
struct vllm_line {
    int kind; /* enum vllm_line_kind */
    json_t *object;
    struct vllm_keep keep;
    const char *req_id, *transfer_id, *engine_id, *bootstrap, *file;
    struct kvf_vllm_ids *groups;
    size_t group_count;
    bool has_blocks; /* false on a producer: known, not ready */
    int64_t after_ns;
};

/** Takes a line apart. `where` names it in messages: "requests[3]", "line 3". False with `take->text` when it is wrong.
 *  Call vllm_line_fini in either case. */
bool vllm_line_take(json_t *object, const char *where, int role, struct vllm_line *out, struct json_take *take);
void vllm_line_fini(struct vllm_line *line);

#endif
