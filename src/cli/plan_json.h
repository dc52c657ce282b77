/* SPDX-License-Identifier: Apache-2.0 */
/** @file plan_json.h  Parts of plans as JSON. */
#ifndef KVFERRY_CLI_PLAN_JSON_H
#define KVFERRY_CLI_PLAN_JSON_H

#include <jansson.h>
#include <stdio.h>

#include "cli/cli.h"

/** Every track, shape and box of a plan. */
json_t *plan_tracks_json(const kvf_plan *plan);

/** Prints what a whole plan came to, NULL when there was no memory for it; takes it over. Returns an exit code. */
int plan_print_root(const struct cli_command *command, json_t *root, FILE *out);

#endif
