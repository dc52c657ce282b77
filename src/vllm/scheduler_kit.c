/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/scheduler_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void keep_line(void *context, int level, const char *text)
{
    struct scheduler_kit *kit = context;

    assert_int_equal(level, KVF_LOG_WARN);
    if (kit->line_count < sizeof kit->lines / sizeof kit->lines[0])
        (void)snprintf(kit->lines[kit->line_count], sizeof kit->lines[0], "%s", text);
    kit->line_count++;
}

void scheduler_kit_init(struct scheduler_kit *kit, int32_t role)
{
    memset(kit, 0, sizeof *kit);
    kvf_vllm_scheduler_options_init(&kit->options, sizeof kit->options);
    kit->groups[0] = (struct kvf_vllm_group){KVF_VLLM_ATTENTION, 1, 16, 0};
    kit->options.role = role;
    kit->options.groups = kit->groups;
    kit->options.group_count = 1;
    kit->options.log = (struct kvf_log_sink){keep_line, kit, 0, KVF_LOG_WARN};
}

void scheduler_kit_open(struct scheduler_kit *kit)
{
    struct kvf_error error = {0};

    if (kvf_vllm_scheduler_create(&kit->options, &kit->scheduler, &error) != KVF_OK) fail_msg("%s", error.text);
}

void scheduler_kit_close(struct scheduler_kit *kit)
{
    kvf_vllm_scheduler_destroy(kit->scheduler);
    kit->scheduler = NULL;
}

struct kvf_vllm_request scheduler_kit_fetch(void)
{
    struct kvf_vllm_request request;

    kvf_vllm_request_init(&request, sizeof request);
    request.req_id = "id-1";
    request.has_params = 1;
    request.do_remote_prefill = 1;
    request.transfer_id = "id-1";
    request.remote_engine_id = "my-engine-id";
    request.remote_bootstrap_addr = "54321";
    request.prompt_tokens = 40;
    request.max_tokens = 16;
    return request;
}

struct kvf_vllm_request scheduler_kit_send(void)
{
    struct kvf_vllm_request request = scheduler_kit_fetch();

    request.do_remote_prefill = 0;
    request.do_remote_decode = 1;
    request.remote_engine_id = request.remote_bootstrap_addr = NULL;
    request.max_tokens = 1;
    return request;
}

struct kvf_vllm_step scheduler_kit_step(struct scheduler_kit *kit)
{
    struct kvf_vllm_step step = {.struct_size = sizeof step};

    assert_int_equal(kvf_vllm_scheduler_step(kit->scheduler, &step, NULL), KVF_OK);
    assert_int_equal(step.struct_size, sizeof step);
    return step;
}

void scheduler_kit_expect_groups(const char *name, const struct kvf_vllm_ids *groups, size_t count, const char *text)
{
    char found[512] = "";
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(found + used, sizeof found - used, "%s", i ? "|" : "");
        for (size_t k = 0; k < groups[i].count; k++)
            used += (size_t)snprintf(found + used, sizeof found - used, "%s%" PRId64, k ? " " : "", groups[i].ids[k]);
    }
    if (count == 1 && groups[0].count == 0) (void)snprintf(found, sizeof found, "-");
    if (strcmp(found, text) != 0) fail_msg("%s: \"%s\", expected \"%s\"", name, found, text);
}
