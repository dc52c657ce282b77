/* SPDX-License-Identifier: Apache-2.0 */
/** @file cmd_trtllm.h  The commands below `kvferry trtllm`. */
#ifndef KVFERRY_CLI_CMD_TRTLLM_H
#define KVFERRY_CLI_CMD_TRTLLM_H

#include "cli/cli.h"

extern const struct cli_command cli_trtllm_plan_command, cli_trtllm_worker_command, cli_trtllm_info_command;

#endif
