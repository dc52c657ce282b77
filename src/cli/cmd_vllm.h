/* SPDX-License-Identifier: Apache-2.0 */
/** @file cmd_vllm.h  The commands below `kvferry vllm`. */
#ifndef KVFERRY_CLI_CMD_VLLM_H
#define KVFERRY_CLI_CMD_VLLM_H

#include "cli/cli.h"

extern const struct cli_command cli_vllm_plan_command, cli_vllm_worker_command, cli_vllm_info_command;

#endif
