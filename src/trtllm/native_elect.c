/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of all members -> holdings -> election -> the share of the pair, and its plan. */
#include "trtllm/native.h"

#include "base/array.h"
#include "base/error.h"
#include "plan/share.h"
#include "trtllm/elect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/** What an election of a pair needs, and what is kept of it. */
struct ballot {
    struct kvf_member *members[2];
    kvf_holdings **holdings[2];
    struct kvfi_trt_side src_side;  /**< of the picked source */
    kvf_layout *picked[2];
};

static struct kvf_rank grid_rank(const struct kvfi_trt_member *member)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(member->rank);

    return (struct kvf_rank){.dp = spec->dp_rank, .pp = spec->pp_rank, .cp = member->cp_rank,
                             .tp = member->tp_rank % kvfi_trt_group_tp(spec), .salt = spec->dp_rank};
}

/** Makes one member's layout and holdings; keeps the picked ones. */
static enum kvf_status add_member(const struct kvfi_trt_native *native, int side, size_t index, struct ballot *ballot,
                                  struct kvf_error *error)
{
    bool picked = index == native->picked[side];
    struct kvfi_trt_side own = {0};
    kvf_layout *layout = NULL;
    enum kvf_status status;
    char name[48];

    snprintf(name, sizeof name, "%s rank %" PRId64, side == 0 ? "source" : "destination",
             kvf_trtllm_rank_get_spec(native->members[side][index].rank)->instance_rank);
    status = kvfi_trt_native_side(native, side, index, name, &own, error);
    if (status == KVF_OK) status = kvfi_trt_side_layout(&own, &layout, error);
    if (status == KVF_OK) status = kvf_holdings_from_layout(layout, &ballot->holdings[side][index], error);
    if (status != KVF_OK) goto done;
    ballot->members[side][index] = (struct kvf_member){grid_rank(&native->members[side][index]),
                                                       ballot->holdings[side][index]};
    if (!picked) goto done;
    ballot->picked[side] = layout;
    layout = NULL;
    if (side == 0) {
        own.name = "source";
        ballot->src_side = own;
        own = (struct kvfi_trt_side){0};
    }
done:
    kvf_layout_release(layout);
    kvfi_trt_side_fini(&own);
    return status;
}

static enum kvf_status fill_ballot(const struct kvfi_trt_native *native, struct ballot *ballot,
                                   struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (int side = 0; side < 2 && status == KVF_OK; side++) {
        ballot->members[side] = kvfi_alloc_array(native->counts[side], sizeof *ballot->members[side]);
        ballot->holdings[side] = kvfi_alloc_zeroed(native->counts[side], sizeof *ballot->holdings[side]);
        if (!ballot->members[side] || !ballot->holdings[side]) status = kvfi_fail_memory(error, "an election");
        for (size_t i = 0; i < native->counts[side] && status == KVF_OK; i++)
            status = add_member(native, side, i, ballot, error);
    }
    return status;
}

static void free_ballot(const struct kvfi_trt_native *native, struct ballot *ballot)
{
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; ballot->holdings[side] && i < native->counts[side]; i++)
            kvf_holdings_release(ballot->holdings[side][i]);
        free(ballot->holdings[side]);
        free(ballot->members[side]);
        kvf_layout_release(ballot->picked[side]);
    }
    kvfi_trt_side_fini(&ballot->src_side);
}

/** Copies a share, which goes with its election. */
static enum kvf_status copy_share(const kvf_share *share, struct kvf_share **out, struct kvf_error *error)
{
    return kvfi_share_create(share->cells, share->count, out, error);
}

enum kvf_status kvfi_trt_native_plan(const struct kvfi_trt_native *native, kvf_trtllm_pair *pair,
                                     struct kvf_error *error)
{
    kvf_election *election = NULL;
    const kvf_share *share;
    struct ballot ballot = {0};
    enum kvf_status status = fill_ballot(native, &ballot, error);

    if (status == KVF_OK)
        status = kvf_elect(ballot.members[0], native->counts[0], ballot.members[1], native->counts[1],
                           native->picked[1], &election, error);
    if (status == KVF_OK) status = kvf_election_check_places(election, ballot.picked[1], error);
    if (status != KVF_OK) goto done;
    share = kvf_election_share(election, native->picked[0]);
    if (!share) goto done;
    status = copy_share(share, &pair->share, error);
    if (status == KVF_OK)
        status = kvfi_trt_pair_finish(pair, &ballot.src_side, ballot.picked[0], ballot.picked[1], error);
done:
    kvf_election_destroy(election);
    free_ballot(native, &ballot);
    return status;
}
