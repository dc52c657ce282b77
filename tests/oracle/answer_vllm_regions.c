/* SPDX-License-Identifier: Apache-2.0 */
/* Two lists of regions: which goes to which, and which merge. */
#include "answer_vllm.h"

#include "vllm/align.h"
#include "vllm/coalesce.h"

/* A list as the library keeps it; NULL with the problem remembered. */
static kvf_vllm_regions *make_list(struct answer_reader *reader, const json_t *input, const char *side)
{
    size_t count;
    const struct kvf_vllm_region *items = answer_regions(reader, input, side, &count);
    kvf_vllm_regions *regions = NULL;
    struct kvf_error error;

    if (!reader->failed && kvf_vllm_regions_create(items, count, &regions, &error) != KVF_OK) {
        answer_wrong(reader, "%s: %s", side, error.text);
    }
    return regions;
}

void answer_align(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    kvf_vllm_regions *local = make_list(reader, input, "local"), *remote = make_list(reader, input, "remote");
    bool allow_partial = answer_bool(reader, input, "allow_partial_layers");
    struct kvfi_vllm_pairs pairs = {0};
    struct kvf_error error = {0};
    enum kvf_status status = KVF_OK;

    if (!reader->failed) status = kvfi_vllm_align(local, remote, allow_partial, &pairs, &error);
    json_object_set_new(answer, "local", answer_from_regions(pairs.local, pairs.count));
    json_object_set_new(answer, "remote", answer_from_regions(pairs.remote, pairs.count));
    json_object_set_new(answer, "error", status == KVF_OK ? json_null() : answer_string(error.text));
    kvfi_vllm_pairs_fini(&pairs);
    kvf_vllm_regions_release(remote);
    kvf_vllm_regions_release(local);
}

void answer_coalesce(struct answer_reader *reader, const json_t *input, json_t *answer)
{
    size_t local_count, remote_count;
    struct kvfi_vllm_pairs pairs = {answer_regions(reader, input, "local", &local_count),
                                    answer_regions(reader, input, "remote", &remote_count), 0};
    bool promote = answer_bool(reader, input, "promote_full_row");

    if (local_count == remote_count && !reader->failed) {
        pairs.count = local_count;
        kvfi_vllm_coalesce(&pairs, promote);
        local_count = remote_count = pairs.count;
    }
    json_object_set_new(answer, "local", answer_from_regions(pairs.local, local_count));
    json_object_set_new(answer, "remote", answer_from_regions(pairs.remote, remote_count));
}
