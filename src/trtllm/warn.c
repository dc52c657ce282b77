/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/warn.h"

#include "base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvfi_trt_warn_init(struct kvfi_trt_warn *warn, const struct kvf_log_sink *sink)
{
    memset(warn, 0, sizeof *warn);
    kvfi_log_init(&warn->log, sink);
}

void kvfi_trt_warn_fini(struct kvfi_trt_warn *warn)
{
    free(warn->keys);
    kvfi_log_fini(&warn->log);
}

static bool is_known(const struct kvfi_trt_warn *warn, const char *key)
{
    bool known = false;

    for (size_t i = 0; !known && i < warn->count; i++) known = strcmp(warn->keys[i], key) == 0;
    return known;
}

static void remember(struct kvfi_trt_warn *warn, const char *key)
{
    if (!warn->keys) warn->keys = kvfi_alloc_array(KVFI_TRT_WARN_KEYS, sizeof *warn->keys);
    if (!warn->keys) return;
    snprintf(warn->keys[warn->next], sizeof *warn->keys, "%s", key);
    warn->next = (warn->next + 1) % KVFI_TRT_WARN_KEYS;
    if (warn->count < KVFI_TRT_WARN_KEYS) warn->count++;
}

void kvfi_trt_warn_once(struct kvfi_trt_warn *warn, const char *key, const char *text)
{
    if (key[0] && is_known(warn, key)) return;
    kvfi_logf(&warn->log, KVF_LOG_WARN, "%s", text);
    if (key[0]) remember(warn, key);
}
