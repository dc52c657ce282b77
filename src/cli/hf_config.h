/* SPDX-License-Identifier: Apache-2.0 */
/** @file hf_config.h  The shape of a model from a Hugging Face `config.json`. */
#ifndef KVFERRY_CLI_HF_CONFIG_H
#define KVFERRY_CLI_HF_CONFIG_H

#include "cli/cli.h"

struct hf_shape {
    char name[128]; /* model_type, "" when not given */
    char dtype[16]; /* as a layout writes it: "f16", ...; "" when not given */
    int64_t layers, kv_heads, head_dim;
    int64_t latent_width; /* MLA: elements of the latent row; 0 otherwise */
};

/** Reads a config file. Returns an exit code, having printed what is wrong: every field that is there must have the
 * right type and a sane value, and nothing is guessed beyond what the transformers library documents as defaults. */
int hf_config_read(const struct cli_command *command, const char *path, struct hf_shape *out);

#endif
