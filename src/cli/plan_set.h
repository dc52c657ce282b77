/* SPDX-License-Identifier: Apache-2.0 */
/** @file plan_set.h  The plans of all rank pairs of two instances, as `kvferry plan` and the demo show them. */
#ifndef KVFERRY_CLI_PLAN_SET_H
#define KVFERRY_CLI_PLAN_SET_H

#include <stdio.h>

#include "cli/block_ids.h"

/** One source rank's piece for one destination rank. */
struct plan_pair {
    size_t src, dst;        /* rank numbers */
    const kvf_share *share; /* borrowed from the election */
    kvf_plan *plan;
    kvf_binding *binding; /* block ids 0, 1, 2 ... on both sides */
    struct kvf_plan_info info;
    struct kvf_binding_info bound;
};

struct plan_set {
    const kvf_instance *src, *dst;   /* borrowed */
    const char *src_name, *dst_name; /* what to call them, such as their files */
    int64_t tokens;
    kvf_election **elections; /* by destination rank; NULL for ranks not asked for */
    size_t election_count;
    struct plan_pair *pairs; /* by destination, then source */
    size_t pair_count;
    int64_t boxes, runs, bytes, shortest_run_bytes; /* of all pairs */
};

/** Plans and binds. `dst_rank` < 0 takes all destination ranks; `tokens` 0 takes a default that both sides have room
 * for. Returns an exit code, having printed why the two cannot be joined. */
int plan_set_init(const struct cli_command *command, const kvf_instance *src, const kvf_instance *dst, int64_t dst_rank,
                  int64_t tokens, struct plan_set *out);
void plan_set_fini(struct plan_set *set);

/** What the costs are estimated with. They are round numbers for one core of a server, not measurements. */
struct plan_cost_model {
    const char *name;
    double bytes_per_s, ns_per_run;
};
extern const struct plan_cost_model plan_cost_models[2]; /* shm, tcp */

/** Estimated nanoseconds for so many bytes in so many runs. */
double plan_cost_ns(const struct plan_cost_model *model, int64_t bytes, int64_t runs);

/** "0-14", "0-3,7" ... of the layers (or units) of a share, into `text`. */
void plan_share_layers(const kvf_share *share, char *text, size_t bytes);
void plan_share_units(const kvf_share *share, char *text, size_t bytes);

/** The three faces of a set. */
void plan_print_text(const struct plan_set *set, FILE *out);
void plan_draw(const struct plan_set *set, FILE *out);
int plan_print_json(const struct cli_command *command, const struct plan_set *set, FILE *out);
int plan_print_fragments(const struct cli_command *command, const struct plan_set *set, FILE *out);

#endif
