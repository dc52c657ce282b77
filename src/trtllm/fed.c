/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/fed.h"

#include "trtllm/elect.h"
#include "trtllm/geometry.h"
#include "trtllm/mapper_kinds.h"
#include "trtllm/mapping.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The views of a pair, and the grids that they are cut over. */
struct feed {
    const struct kvf_trtllm_rank_spec *sender, *receiver;
    const struct kvfi_trt_view *src, *dst;
    int64_t duplicates;
    struct kvfi_trt_run tp, cp; /* of the sender's DP group: who is asked */
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool divides(int64_t a, int64_t b)
{
    return a < b ? b % a == 0 : a % b == 0;
}

/* The rank beside the sender that is number `tp` of its DP group and number `cp` of its context. */
static struct kvf_trtllm_rank_spec beside(const struct feed *feed, int64_t tp, int64_t cp)
{
    struct kvf_trtllm_rank_spec rank = *feed->sender;

    rank.tp_rank += tp - rank.tp_rank % kvfi_trt_group_tp(&rank);
    rank.cp_rank = cp;
    return rank;
}

/* How many of the ranks that are asked send a view whole or their shard of it. */
static int64_t count_senders(const struct feed *feed)
{
    int64_t cache = feed->src->group->cache, count = 0;

    for (int64_t t = feed->tp.start; t < feed->tp.start + feed->tp.count; t++) {
        for (int64_t c = feed->cp.start; c < feed->cp.start + feed->cp.count; c++) {
            struct kvf_trtllm_rank_spec rank = beside(feed, t, c);

            count += kvfi_trt_sends(&rank, feed->receiver, cache, feed->src->spec->mapper, feed->duplicates)
                     && (cache != KVF_TRTLLM_STATE || kvfi_trt_state_paired(&rank, feed->receiver));
        }
    }
    return count;
}

/* Each shard of the receiver's state has to come from a rank of its own. */
static bool is_state_fed(const struct feed *feed)
{
    int64_t senders, receivers, number;

    kvfi_trt_state_tp(feed->sender, &senders, &number);
    kvfi_trt_state_tp(feed->receiver, &receivers, &number);
    return divides(senders, receivers) && count_senders(feed) >= (senders > receivers ? senders / receivers : 1);
}

/* The heads that the asked ranks write, in their order, have to reach from the first to the last. */
static bool are_heads_fed(const struct feed *feed)
{
    int64_t senders = kvfi_trt_group_tp(feed->sender), receivers = kvfi_trt_group_tp(feed->receiver), end = 0;
    int64_t heads = feed->dst->spec->num_kv_heads, copied = smaller(feed->src->spec->num_kv_heads, heads);

    for (int64_t t = feed->tp.start; t < feed->tp.start + feed->tp.count; t++) {
        struct kvf_trtllm_rank_spec rank = beside(feed, t, feed->cp.start);
        int64_t first = senders > receivers ? kvfi_trt_inner_head(heads, receivers, rank.tp_rank, senders) : 0;

        if (kvfi_trt_sends(&rank, feed->receiver, KVF_TRTLLM_PAGED, feed->src->spec->mapper, feed->duplicates)
            && first <= end && first + copied > end) end = first + copied;
    }
    return divides(senders, receivers) && end >= heads;
}

static bool is_fed(const struct feed *feed)
{
    int64_t heads = feed->src->spec->num_kv_heads;
    bool fed;

    if (feed->src->spec->mapper == KVF_TRTLLM_REPLICATED) {
        fed = count_senders(feed) > 0;
    } else if (feed->src->group->cache == KVF_TRTLLM_STATE) {
        fed = is_state_fed(feed);
    } else if (kvfi_trt_key_only(feed->sender) || heads == feed->dst->spec->num_kv_heads) {
        fed = divides(kvfi_trt_group_tp(feed->sender), kvfi_trt_group_tp(feed->receiver)) && count_senders(feed) > 0;
    } else {
        fed = are_heads_fed(feed);
    }
    return fed;
}

static void tell(struct kvfi_trt_warn *warn, const struct feed *feed)
{
    const struct kvf_trtllm_rank_spec *src = feed->sender, *dst = feed->receiver;
    char text[KVF_ERROR_TEXT_BYTES], key[128], roles[160];

    snprintf(key, sizeof key, "not-whole-%" PRId64 "-%" PRId64 "-%" PRId64 "-%" PRId64 "-%" PRId64 "-%" PRId64 "-%"
             PRId64 "-%" PRId64, feed->dst->key.group, feed->dst->key.view, src->tp_size, src->cp_size, dst->tp_size,
             dst->tp_rank, dst->cp_size, dst->cp_rank);
    snprintf(text, sizeof text, "%.100s rank %" PRId64 " view (layer_group=%" PRId64 ", view=%" PRId64 ") %s is not"
             " written in whole: of the ranks of %.100s (tp_size=%" PRId64 ", cp_size=%" PRId64 ") that upstream's"
             " overlap names for it (tp_size=%" PRId64 ", tp_rank=%" PRId64 ", cp_size=%" PRId64 ", cp_rank=%" PRId64
             ", dp_size=%" PRId64 "), too few send it; transfers report success all the same", dst->instance_name,
             dst->instance_rank, feed->dst->key.group, feed->dst->key.view,
             kvfi_trt_view_role_text(feed->dst, roles, sizeof roles), src->instance_name, src->tp_size, src->cp_size,
             dst->tp_size, dst->tp_rank, dst->cp_size, dst->cp_rank, dst->dp_size);
    kvfi_trt_warn_once(warn, key, text);
}

void kvfi_trt_warn_of_unfed(struct kvfi_trt_warn *warn, const kvf_trtllm_rank *sender,
                            const kvf_trtllm_rank *receiver)
{
    struct feed feed = {.sender = kvf_trtllm_rank_get_spec(sender), .receiver = kvf_trtllm_rank_get_spec(receiver)};
    struct kvf_trtllm_view_pair *pairs = NULL;
    int64_t receivers = kvfi_trt_group_tp(feed.receiver), peer_duplicates;
    size_t count = 0;

    if (kvfi_trt_map_views(sender, receiver, false, &pairs, &count, NULL) != KVF_OK) goto done;
    feed.tp = kvfi_trt_meet(receivers, kvfi_trt_group_tp(feed.sender), feed.receiver->tp_rank % receivers);
    feed.cp = kvfi_trt_meet(feed.receiver->cp_size, feed.sender->cp_size, feed.receiver->cp_rank);
    for (size_t i = 0; i < count; i++) {
        feed.src = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(sender), &pairs[i].self);
        feed.dst = kvfi_trt_geometry_view(kvfi_trt_rank_geometry(receiver), &pairs[i].peer);
        kvf_trtllm_view_head_factors(sender, receiver, &pairs[i], &feed.duplicates, &peer_duplicates);
        if (!is_fed(&feed)) tell(warn, &feed);
    }
done:
    free(pairs);
}
