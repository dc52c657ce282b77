/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a message that was walked, copied into one allocation: reading them again cannot fail. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "vllm/message_walk.h"

static bool add_part(size_t *total, size_t count, size_t bytes)
{
    size_t part;

    return kvfi_mul_size(count, bytes, &part) && kvfi_add_size(*total, part, total);
}

enum kvf_status kvfi_vllm_store_init(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found, size_t count,
                                     struct kvf_error *error)
{
    struct kvfi_vllm_need sum = {0};
    size_t total = 1; /* never nothing, which malloc may answer by NULL */
    unsigned char *memory;
    bool fits;

    for (size_t i = 0; i < count; i++) {
        sum.requests += found[i].need.requests;
        sum.lists += found[i].need.lists;
        sum.strs += found[i].need.strs;
        sum.numbers += found[i].need.numbers;
        sum.chars += found[i].need.chars;
    }
    fits = add_part(&total, sum.requests, sizeof *store->requests) &&
           add_part(&total, sum.lists, sizeof *store->lists) && add_part(&total, sum.strs, sizeof *store->strs) &&
           add_part(&total, sum.numbers, sizeof *store->numbers) && add_part(&total, sum.chars, 1);
    if (!fits) return kvfi_fail(error, KVF_ERR_LIMIT, "a message of the side channel is too large for this machine");
    memory = malloc(total);
    if (memory == NULL) return kvfi_fail_memory(error, "a message of the side channel");
    store->memory = memory;
    store->requests = (struct kvfi_vllm_wanted *)memory;
    store->lists = (struct kvf_vllm_ids *)(store->requests + sum.requests);
    store->strs = (const char **)(store->lists + sum.lists);
    store->numbers = (int64_t *)(store->strs + sum.strs);
    store->chars = (char *)(store->numbers + sum.numbers);
    return KVF_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------- */

/* A message that was walked holds what is read here: a value that does not come is a nil one. */
static struct kvfi_value next(struct kvfi_value_reader *reader)
{
    struct kvfi_value value = {.type = KVFI_VALUE_NIL};

    (void)kvfi_value_next(reader, &value);
    return value;
}

/* The items of the array that comes next; 0 for a nil. */
static size_t next_count(struct kvfi_value_reader *reader)
{
    struct kvfi_value value = next(reader);

    return value.type == KVFI_VALUE_ARRAY || value.type == KVFI_VALUE_DICT ? value.count : 0;
}

static const char *next_str(struct kvfi_value_reader *reader, struct kvfi_vllm_store *store)
{
    struct kvfi_value value = next(reader);
    char *text = store->chars;

    if (value.type != KVFI_VALUE_STR) return NULL;
    memcpy(text, value.data, value.count);
    text[value.count] = '\0';
    store->chars += value.count + 1;
    return text;
}

static const int64_t *next_ints(struct kvfi_value_reader *reader, struct kvfi_vllm_store *store, size_t *count)
{
    int64_t *numbers = store->numbers;

    *count = next_count(reader);
    for (size_t i = 0; i < *count; i++) {
        size_t plain = kvfi_value_plain_int(reader->bytes + reader->at, reader->count - reader->at, &numbers[i]);

        reader->at += plain;
        if (plain == 0) numbers[i] = (int64_t)next(reader).number;
    }
    store->numbers += *count;
    return numbers;
}

static const struct kvf_vllm_ids *next_lists(struct kvfi_value_reader *reader, struct kvfi_vllm_store *store,
                                             size_t *count)
{
    struct kvf_vllm_ids *lists = store->lists;

    *count = next_count(reader);
    store->lists += *count;
    for (size_t i = 0; i < *count; i++) lists[i].ids = next_ints(reader, store, &lists[i].count);
    return lists;
}

int64_t kvfi_vllm_get_int(const struct kvfi_vllm_found *found, int64_t absent)
{
    struct kvfi_value_reader reader = found->start;

    return reader.bytes == NULL ? absent : (int64_t)next(&reader).number;
}

const char *kvfi_vllm_get_str(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found)
{
    struct kvfi_value_reader reader = found->start;

    return reader.bytes == NULL ? NULL : next_str(&reader, store);
}

const int64_t *kvfi_vllm_get_ints(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found, size_t *count)
{
    struct kvfi_value_reader reader = found->start;

    *count = 0;
    return reader.bytes == NULL ? NULL : next_ints(&reader, store, count);
}

const char *const *kvfi_vllm_get_strs(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found,
                                      size_t *count)
{
    struct kvfi_value_reader reader = found->start;
    const char **strs = store->strs;

    *count = 0;
    if (reader.bytes == NULL) return NULL;
    *count = next_count(&reader);
    store->strs += *count;
    for (size_t i = 0; i < *count; i++) strs[i] = next_str(&reader, store);
    return strs;
}

const struct kvf_vllm_ids *kvfi_vllm_get_lists(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found,
                                               size_t *count)
{
    struct kvfi_value_reader reader = found->start;

    *count = 0;
    return reader.bytes == NULL ? NULL : next_lists(&reader, store, count);
}

/* ---- requests ----------------------------------------------------------------------------------------------- */

static int compare_requests(const void *left, const void *right)
{
    const struct kvfi_vllm_wanted *a = *(struct kvfi_vllm_wanted *const *)left;
    const struct kvfi_vllm_wanted *b = *(struct kvfi_vllm_wanted *const *)right;
    int order = strcmp(a->d_req_id, b->d_req_id);

    return order ? order : (a > b) - (a < b);
}

/* Sorted, not hashed: no choice of keys makes it slow. */
static enum kvf_status drop_repeated(struct kvfi_vllm_wanted *requests, size_t *count, struct kvf_error *error)
{
    struct kvfi_vllm_wanted **order;
    size_t kept = 0;

    if (*count < 2) return KVF_OK;
    order = malloc(*count * sizeof *order);
    if (order == NULL) return kvfi_fail_memory(error, "a message of the side channel");
    for (size_t i = 0; i < *count; i++) order[i] = &requests[i];
    qsort(order, *count, sizeof *order, compare_requests);
    for (size_t i = 0, end; i < *count; i = end) {
        for (end = i + 1; end < *count && strcmp(order[i]->d_req_id, order[end]->d_req_id) == 0; end++)
            ;
        if (end - i > 1) *order[i] = *order[end - 1];
        for (size_t k = i + 1; k < end; k++) order[k]->transfer_id = NULL;
    }
    for (size_t i = 0; i < *count; i++)
        if (requests[i].transfer_id != NULL) requests[kept++] = requests[i];
    *count = kept;
    free(order);
    return KVF_OK;
}

enum kvf_status kvfi_vllm_get_requests(struct kvfi_vllm_store *store, const struct kvfi_vllm_found *found,
                                       const struct kvfi_vllm_wanted **out, size_t *count, struct kvf_error *error)
{
    struct kvfi_value_reader reader = found->start;
    struct kvfi_vllm_wanted *requests = store->requests;

    *count = next_count(&reader);
    for (size_t i = 0; i < *count; i++) {
        requests[i].d_req_id = next_str(&reader, store);
        (void)next(&reader); /* the pair's head */
        requests[i].transfer_id = next_str(&reader, store);
        requests[i].groups = next_lists(&reader, store, &requests[i].group_count);
    }
    *out = requests;
    return drop_repeated(requests, count, error);
}
