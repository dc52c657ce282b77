/* SPDX-License-Identifier: Apache-2.0 */
/** @file kvferry.h  All of kvferry's public headers. */
#ifndef KVFERRY_KVFERRY_H
#define KVFERRY_KVFERRY_H

#include "kvferry/copy.h"
#include "kvferry/directory.h"
#include "kvferry/engine.h"
#include "kvferry/instance.h"
#include "kvferry/layout.h"
#include "kvferry/log.h"
#include "kvferry/memory.h"
#include "kvferry/mooncake.h"
#include "kvferry/plan.h"
#include "kvferry/safetensors.h"
#include "kvferry/status.h"
#include "kvferry/trtllm.h"
#include "kvferry/trtllm_worker.h"
#include "kvferry/version.h"
#include "kvferry/vllm.h"
#include "kvferry/vllm_config.h"
#include "kvferry/vllm_scheduler.h"
#include "kvferry/vllm_worker.h"

#endif
