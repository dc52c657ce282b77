/* SPDX-License-Identifier: Apache-2.0 */
/** @file scheduler_kit.h  For tests: a scheduler half with few groups, requests, and the lines that were logged. */
#ifndef KVFI_VLLM_SCHEDULER_KIT_H
#define KVFI_VLLM_SCHEDULER_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "kvferry/vllm_scheduler.h"

struct scheduler_kit {
    struct kvf_vllm_scheduler_options options;
    struct kvf_vllm_group groups[4];
    char lines[4][1024]; /* that were logged */
    size_t line_count;
    kvf_vllm_scheduler *scheduler;
};

/** Options for one full attention group of 16 tokens a block, which is transferred. Lines go to `kit`. */
void scheduler_kit_init(struct scheduler_kit *kit, int32_t role);

/** Makes the scheduler half of the options, and ends it. */
void scheduler_kit_open(struct scheduler_kit *kit);
void scheduler_kit_close(struct scheduler_kit *kit);

/** A request "id-1" with transfer id "id-1" and 40 prompt tokens. One to be fetched from "my-engine-id" at "54321", or
 *  one to be sent. */
struct kvf_vllm_request scheduler_kit_fetch(void);
struct kvf_vllm_request scheduler_kit_send(void);

/** The next step; it must succeed. */
struct kvf_vllm_step scheduler_kit_step(struct scheduler_kit *kit);

/** Fails unless the groups read so: "1 2|7" is two groups, "" none, "|" two empty ones; "-" is one empty one. */
void scheduler_kit_expect_groups(const char *name, const struct kvf_vllm_ids *groups, size_t count, const char *text);

#endif
