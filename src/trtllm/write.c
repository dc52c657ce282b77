/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/write.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "trtllm/translate.h"

#include <inttypes.h>
#include <stdlib.h>

void kvf_trtllm_request_init(struct kvf_trtllm_request *request, size_t size)
{
    const struct kvf_trtllm_request defaults = {.token_end = KVF_TRTLLM_NONE,
                                                .dst_start_token = KVF_TRTLLM_NONE};

    kvfi_struct_init(request, size, &defaults, sizeof defaults);
}

static size_t group_count(const kvf_trtllm_rank *rank)
{
    const struct kvf_trtllm_page_table *table = kvf_trtllm_rank_get_spec(rank)->page_table;

    return table ? table->group_count : 0;
}

/** Checks one side's lists of a request: as many as layer groups, none of them without its ids. */
static enum kvf_status check_blocks(const struct kvf_trtllm_blocks *blocks, size_t count, size_t groups,
                                    const char *side, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (count != groups || (groups && !blocks)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                           "%zu block lists of the %s, expected one for each of its %zu layer groups", count, side,
                           groups);
        goto done;
    }
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        if ((blocks[i].count && !blocks[i].ids) || blocks[i].count > INT64_MAX / 2)
            status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%s group %zu: %zu block ids are no list", side, i,
                               blocks[i].count);
    }
done:
    return status;
}

static bool is_excluded(const struct kvf_trtllm_request *request, const struct kvf_trtllm_view_key *key)
{
    bool excluded = false;

    for (size_t i = 0; i < request->excluded_count && !excluded; i++)
        excluded = request->excluded[i].group == key->group && request->excluded[i].view == key->view;
    return excluded;
}

/** Fills the write's mask. */
static void mark_views(struct kvf_trtllm_write *write, struct kvfi_trt_asked *asked)
{
    const struct kvf_trtllm_request *request = &asked->request;
    const kvf_trtllm_pair *pair = write->pair;

    asked->mask = write->mask;
    asked->as_planned = true;
    for (size_t i = 0; i < pair->view_count; i++) {
        bool excluded = is_excluded(request, &pair->views[i].key.self);

        write->mask[i] = pair->views[i].elected && !excluded;
        asked->as_planned = asked->as_planned && !(excluded && pair->views[i].planned);
    }
}

static enum kvf_status check_request(struct kvfi_trt_asked *asked, const kvf_trtllm_pair *pair,
                                     const struct kvf_trtllm_request *given, struct kvf_error *error)
{
    struct kvf_trtllm_request *own = &asked->request;
    enum kvf_status status;

    kvf_trtllm_request_init(own, sizeof *own);
    status = kvfi_options_copy(own, sizeof *own, given, "request", error);
    if (status != KVF_OK) goto done;
    if (own->token_end == KVF_TRTLLM_NONE) own->token_end = own->prompt_tokens;
    if (own->prompt_tokens < 0 || own->token_begin < 0 || own->token_end < own->token_begin ||
        own->token_end > own->prompt_tokens) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE,
                           "chunk [%" PRId64 ",%" PRId64 ") of a prompt of %" PRId64 " tokens is not valid",
                           own->token_begin, own->token_end, own->prompt_tokens);
        goto done;
    }
    if (own->dst_start_token < 0 && own->dst_start_token != KVF_TRTLLM_NONE) {
        status = kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "start token %" PRId64 " is negative", own->dst_start_token);
        goto done;
    }
    if (own->excluded_count && !own->excluded) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "%zu excluded views without a list", own->excluded_count);
        goto done;
    }
    asked->last = own->token_end == own->prompt_tokens;
    asked->partial = own->token_begin > 0 || !asked->last;
    status = check_blocks(own->src, own->src_count, group_count(pair->self), "source", error);
    if (status == KVF_OK)
        status = check_blocks(own->dst, own->dst_count, group_count(pair->peer), "destination", error);
done:
    return status;
}

struct kvf_id_list kvfi_trt_no_ids(bool is_state)
{
    static const int64_t hole = -1;

    return is_state ? (struct kvf_id_list){&hole, 1, 0} : (struct kvf_id_list){NULL, 0, INT64_MAX / 2};
}

/** Makes one side's lists. NULL when there is no memory. */
static struct kvf_id_list *make_lists(const kvf_trtllm_rank *rank, size_t count)
{
    const struct kvf_trtllm_page_table *table = kvf_trtllm_rank_get_spec(rank)->page_table;
    struct kvf_id_list *lists = kvfi_alloc_array(count, sizeof *lists);

    for (size_t i = 0; lists && i < count; i++)
        lists[i] = kvfi_trt_no_ids(table && i < table->group_count && table->groups[i].cache == KVF_TRTLLM_STATE);
    return lists;
}

enum kvf_status kvfi_trt_lists_init(struct kvfi_trt_lists *lists, const kvf_trtllm_pair *pair,
                                    struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    lists->src_count = group_count(pair->self) + pair->ring_count;
    lists->dst_count = group_count(pair->peer) + pair->ring_count;
    lists->src = make_lists(pair->self, lists->src_count);
    lists->dst = make_lists(pair->peer, lists->dst_count);
    if (!lists->src || !lists->dst) status = kvfi_fail_memory(error, "the block lists of a write");
    return status;
}

void kvfi_trt_lists_fini(struct kvfi_trt_lists *lists)
{
    free(lists->src);
    free(lists->dst);
}

enum kvf_status kvfi_trt_write_subplan(const struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                       kvf_plan **out, struct kvf_error *error)
{
    const kvf_trtllm_pair *pair = write->pair;
    bool *parts = kvfi_alloc_zeroed(pair->part_count, sizeof *parts);
    enum kvf_status status = KVF_OK;

    if (!parts) {
        status = kvfi_fail_memory(error, "the views of a write");
        goto done;
    }
    for (size_t i = 0; i < pair->part_count; i++) parts[i] = !is_excluded(&asked->request, &pair->part_keys[i]);
    status = kvfi_trt_subplan(pair, parts, out, error);
done:
    free(parts);
    return status;
}

enum kvf_status kvfi_trt_write_add(struct kvf_trtllm_write *write, const kvf_plan *plan,
                                   const struct kvfi_trt_lists *lists, uint64_t flags, int64_t token_begin,
                                   int64_t token_end, int64_t request_tokens, struct kvf_error *error)
{
    struct kvf_bind_request request;
    kvf_binding *binding = NULL;
    enum kvf_status status;

    kvf_bind_request_init(&request, sizeof request);
    request.flags = flags;
    request.token_begin = token_begin;
    request.token_end = token_end;
    request.request_tokens = request_tokens;
    request.src = lists->src;
    request.src_count = lists->src_count;
    request.dst = lists->dst;
    request.dst_count = lists->dst_count;
    status = kvf_bind(plan, &request, &binding, error);
    if (status != KVF_OK) goto done;
    if (kvf_binding_bytes(binding) == 0) goto done;
    if (!kvfi_array_grow((void **)&write->bindings, write->binding_count, &write->binding_capacity,
                         sizeof *write->bindings)) {
        status = kvfi_fail_memory(error, "the bindings of a write");
        goto done;
    }
    if (!kvfi_add_i64(write->bytes, kvf_binding_bytes(binding), &write->bytes)) {
        status = kvfi_fail(error, KVF_ERR_OVERFLOW, "the bytes of a write do not fit");
        goto done;
    }
    write->bindings[write->binding_count++] = binding;
    binding = NULL;
done:
    kvf_binding_destroy(binding);
    return status;
}

enum kvf_status kvf_trtllm_pair_bind(const kvf_trtllm_pair *pair, const struct kvf_trtllm_request *request,
                                     kvf_trtllm_write **out, struct kvf_error *error)
{
    struct kvfi_trt_asked asked = {.mask = NULL};
    kvf_trtllm_write *write = NULL;
    enum kvf_status status;

    if (!pair || !request || !out)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "bind: the pair, the request or the result is NULL");
    status = check_request(&asked, pair, request, error);
    if (status != KVF_OK) goto done;
    write = kvfi_alloc_zeroed(1, sizeof *write);
    if (write) write->mask = kvfi_alloc_zeroed(pair->view_count, sizeof *write->mask);
    if (!write || !write->mask) {
        status = kvfi_fail_memory(error, "a write");
        goto done;
    }
    write->pair = kvf_trtllm_pair_acquire(pair);
    mark_views(write, &asked);
    status = pair->strict ? kvfi_trt_bind_strict(write, &asked, error) : kvfi_trt_bind_native(write, &asked, error);
    if (status != KVF_OK) goto done;
    *out = write;
    write = NULL;
done:
    kvf_trtllm_write_destroy(write);
    return status;
}

void kvf_trtllm_write_destroy(kvf_trtllm_write *write)
{
    if (!write) return;
    for (size_t i = 0; i < write->binding_count; i++) kvf_binding_destroy(write->bindings[i]);
    free(write->bindings);
    free(write->mask);
    kvf_trtllm_pair_release(write->pair);
    free(write);
}

int64_t kvf_trtllm_write_bytes(const kvf_trtllm_write *write)
{
    return write->bytes;
}
