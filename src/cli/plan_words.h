/* SPDX-License-Identifier: Apache-2.0 */
/** @file plan_words.h  Short descriptions of an instance, for the faces of a plan. */
#ifndef KVFERRY_CLI_PLAN_WORDS_H
#define KVFERRY_CLI_PLAN_WORDS_H

#include "cli/cli.h"

/** "6 ranks (PP 2, CP 1, TP 3), blocks of 16 tokens, heads first" */
void plan_describe_side(const kvf_instance *instance, char *text, size_t bytes);

/** "heads first", "tokens first", "one head each", or "" where there is nothing to say. */
const char *plan_order_words(const struct kvf_layout_spec *spec);

#endif
