/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm_worker/over.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"

struct kvfi_vllm_over_lists {
    const char **ids[KVFI_VLLM_OVERS];
    size_t id_counts[KVFI_VLLM_OVERS];
    int64_t *blocks;
    size_t block_count;
    char *text; /* where the next one goes */
};

struct kvfi_vllm_over_lists *kvfi_vllm_over_create(const struct kvfi_vllm_over_counts *counts)
{
    size_t words = counts->blocks, bytes;
    struct kvfi_vllm_over_lists *lists;
    int64_t *at;

    for (int i = 0; i < KVFI_VLLM_OVERS; i++)
        words += counts->ids[i];
    if (!kvfi_mul_size(words, sizeof *at, &bytes) || !kvfi_add_size(bytes, counts->text_bytes + sizeof *lists, &bytes))
        return NULL;
    lists = kvfi_alloc_zeroed(1, bytes);
    if (lists == NULL)
        return NULL;
    at = (int64_t *)(void *)(lists + 1);
    lists->blocks = at;
    at += counts->blocks;
    _Static_assert(sizeof(char *) <= sizeof(int64_t), "a pointer fits where a number does");
    for (int i = 0; i < KVFI_VLLM_OVERS; i++) {
        lists->ids[i] = (const char **)(void *)at;
        at += counts->ids[i];
    }
    lists->text = (char *)at;
    return lists;
}

void kvfi_vllm_over_put(struct kvfi_vllm_over_lists *lists, enum kvfi_vllm_over list, const char *id)
{
    size_t bytes = strlen(id) + 1;

    memcpy(lists->text, id, bytes);
    lists->ids[list][lists->id_counts[list]++] = lists->text;
    lists->text += bytes;
}

void kvfi_vllm_over_put_block(struct kvfi_vllm_over_lists *lists, int64_t block)
{
    lists->blocks[lists->block_count++] = block;
}

static int by_number(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

void kvfi_vllm_over_give(struct kvfi_vllm_over_lists *lists, struct kvf_vllm_done *done)
{
    size_t kept = 0;

    qsort(lists->blocks, lists->block_count, sizeof *lists->blocks, by_number);
    for (size_t i = 0; i < lists->block_count; i++)
        if (kept == 0 || lists->blocks[i] != lists->blocks[kept - 1])
            lists->blocks[kept++] = lists->blocks[i];
    done->finished_sending = lists->ids[KVFI_VLLM_SENT];
    done->finished_sending_count = lists->id_counts[KVFI_VLLM_SENT];
    done->finished_recving = lists->ids[KVFI_VLLM_RECEIVED];
    done->finished_recving_count = lists->id_counts[KVFI_VLLM_RECEIVED];
    done->failed_recving = lists->ids[KVFI_VLLM_FAILED];
    done->failed_recving_count = lists->id_counts[KVFI_VLLM_FAILED];
    done->invalid_blocks = lists->blocks;
    done->invalid_block_count = kept;
    done->memory = lists;
}

void kvf_vllm_done_release(struct kvf_vllm_done *done)
{
    size_t size;

    if (done == NULL)
        return;
    free(done->memory);
    size = done->struct_size;
    memset(done, 0, sizeof *done);
    done->struct_size = size;
}
