/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "case.h"

/** What spoils an expectation, to see that it is noticed. */
enum { SPOIL_VALUE = 1, SPOIL_COUNT = 2, SPOIL_OUTSIDE = 3 };

static bool complain(const struct prop_case *c, const struct rank *rank, const char *what)
{
    (void)c;
    fprintf(stderr, "stage %" PRId64 " rank %" PRId64 ": %s\n", rank->pp, rank->tp, what);
    return false;
}

/** The rank's counts of the bytes at an address. */
static uint8_t *counts_at(const struct rank *rank, uint64_t address, int64_t bytes)
{
    for (size_t i = 0; i < rank->storage_count; i++) {
        const struct kvf_vllm_storage *storage = &rank->storages[i];

        if (address >= storage->base_addr && address + (uint64_t)bytes <= storage->base_addr + (uint64_t)storage->bytes)
            return &rank->written[i][address - storage->base_addr];
    }
    return NULL;
}

/** Does what the descriptors say. */
static bool carry_out(struct prop_case *c, kvf_vllm_write *write, const struct rank *from, struct rank *to)
{
    struct kvf_vllm_descriptor some[7];
    int64_t count = 0, bytes = 0;
    const struct kvf_vllm_storage *memory;
    struct kvf_error error = {.text = ""};
    size_t given, memories;

    for (int side = 0; side < 2; side++) {
        memory = kvf_vllm_registration_memory((side ? to : from)->registration, &memories);
        if (kvf_vllm_write_check(write, side, memory, memories, &error) != KVF_OK) return complain(c, to, error.text);
    }
    while ((given = kvf_vllm_write_next(write, some, 7)) > 0) {
        for (size_t i = 0; i < given; i++) {
            uint8_t *counts = counts_at(to, some[i].dst_address, some[i].bytes);

            if (!counts || !counts_at(from, some[i].src_address, some[i].bytes))
                return complain(c, to, "a descriptor leaves the memory");
            memcpy((void *)(uintptr_t)some[i].dst_address, (const void *)(uintptr_t)some[i].src_address,
                   (size_t)some[i].bytes);
            for (int64_t b = 0; b < some[i].bytes; b++) counts[b] += counts[b] < 255;
            bytes += some[i].bytes;
            count++;
        }
    }
    if (count != kvf_vllm_write_count(write) || bytes != kvf_vllm_write_bytes(write))
        return complain(c, to, "the write's count or bytes are wrong");
    c->bytes += bytes;
    return true;
}

/** A group's ids as an engine gives them: null blocks of recurrent groups anywhere in between. */
static struct kvf_vllm_ids with_nulls(struct prop_case *c, const struct engine *engine, int64_t group,
                                      int64_t out[2 * MOST_IDS])
{
    size_t count = 0;

    for (size_t i = 0; i < engine->id_count[group]; i++) {
        if (c->model.recurrent[group] && draw_one_in(&c->draw, 3)) out[count++] = 0;
        out[count++] = engine->ids[group][i];
    }
    return (struct kvf_vllm_ids){out, count};
}

/** One pull: what consumer rank `to` asks of producer rank `from`. */
static bool pull(struct prop_case *c, struct rank *from, struct rank *to, bool *refused)
{
    int64_t src_ids[MOST_GROUPS][2 * MOST_IDS], dst_ids[MOST_GROUPS][2 * MOST_IDS];
    struct kvf_vllm_ids src[MOST_GROUPS], dst[MOST_GROUPS];
    struct kvf_vllm_prepared_info info = {.struct_size = sizeof info};
    kvf_vllm_prepared *prepared = NULL;
    kvf_vllm_write *write = NULL;
    struct kvf_error error = {.text = ""};
    struct kvf_vllm_peer peer;
    size_t own, groups = (size_t)c->model.groups;
    bool ok = true;

    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = "consumer";
    peer.port = 1000 + to->pp * MOST_TP + to->tp;
    peer.tp_size = c->dst.tp;
    peer.tp_rank = to->tp;
    peer.pp_size = c->dst.pp;
    kvf_vllm_regions_arrays(kvf_vllm_registration_regions(to->registration), &peer.regions);
    if (kvf_vllm_prepare(from->producer, &peer, &prepared, &error) != KVF_OK) {
        *refused = strstr(error.text, "non-page-contiguous packed regions") != NULL;
        /* ranks that do not meet need not pull */
        return strncmp(error.text, "This D tp_rank", 14) == 0 || *refused || complain(c, to, error.text);
    }
    kvf_vllm_prepared_get_info(prepared, &info, NULL);
    from->pulls++;
    from->pulls_expected = info.pulls_expected;
    kvf_vllm_regions_get(kvf_vllm_registration_regions(from->registration), &own);
    c->merged += info.pairs > 0 && (size_t)info.pairs < own;
    c->cut += info.src_offset_bytes > 0 || info.dst_offset_bytes > 0;
    c->idle += !info.sends;
    for (size_t g = 0; g < groups; g++) {
        src[g] = with_nulls(c, &c->src, (int64_t)g, src_ids[g]);
        dst[g] = with_nulls(c, &c->dst, (int64_t)g, dst_ids[g]);
    }
    if (kvf_vllm_write_create(prepared, src, groups, dst, groups, &write, &error) != KVF_OK)
        ok = complain(c, to, error.text);
    if (ok && write) ok = carry_out(c, write, from, to);
    kvf_vllm_write_destroy(write);
    kvf_vllm_prepared_release(prepared);
    return ok;
}

/** All pulls: of all stages, or, with equally many on both sides, of the same stage. */
static bool pull_all(struct prop_case *c, bool *refused)
{
    bool ok = true;

    *refused = false;
    for (size_t d = 0; d < c->dst.rank_count && ok && !*refused; d++) {
        for (size_t p = 0; p < c->src.rank_count && ok && !*refused; p++) {
            if (c->src.pp != c->dst.pp || c->src.ranks[p].pp == c->dst.ranks[d].pp)
                ok = pull(c, &c->src.ranks[p], &c->dst.ranks[d], refused);
        }
    }
    for (size_t p = 0; p < c->src.rank_count && ok && !*refused; p++) {
        if (c->src.ranks[p].pulls != c->src.ranks[p].pulls_expected)
            ok = complain(c, &c->src.ranks[p], "not so many pulls as expected");
    }
    return ok;
}

/** A wanted byte: right, and written once. It is marked as looked at. */
static bool expect_byte(void *context, uint8_t *byte, uint8_t *written, uint8_t value)
{
    struct prop_case *c = context;
    bool ok;

    if (c->spoil == SPOIL_VALUE) value++;
    ok = *byte == value && (c->spoil == SPOIL_COUNT ? *written == 9 : *written == 1 || (*written && c->repeats));
    *written = 0;
    return ok;
}

/** Forgets what was written to blocks of a group, padding included: those are the request's own. */
static void forget_blocks(const struct prop_case *c, const struct rank *rank, int64_t group)
{
    int64_t steps = c->model.recurrent[group] ? 1 : c->model.kernel_blocks_per_block;
    size_t count;
    const struct kvf_vllm_region *regions =
        kvf_vllm_regions_get(kvf_vllm_registration_regions(rank->registration), &count);

    for (size_t i = 0; i < count; i++) {
        bool shares = regions[i].group_index == group;

        for (size_t s = 0; s < regions[i].shared_groups.count; s++)
            shares = shares || regions[i].shared_groups.ids[s] == group;
        for (size_t n = 0; shares && n < c->dst.id_count[group] * (size_t)steps; n++) {
            int64_t id = c->dst.ids[group][n / (size_t)steps] * steps + (int64_t)n % steps;
            uint64_t address = regions[i].base_addr + (uint64_t)(id * regions[i].block_len);
            int64_t bytes = regions[i].block_len;
            uint8_t *counts;

            /* in the last row, a view that begins within it */
            while (!(counts = counts_at(rank, address, bytes))) bytes--;
            memset(counts, 0, (size_t)bytes);
        }
    }
}

static bool check_rank(struct prop_case *c, struct rank *rank)
{
    bool ok = true;

    for (int64_t i = 0; i < c->model.layers && ok; i++) {
        int64_t group = c->model.group_of[i];
        size_t surplus = c->src.id_count[group] - c->dst.id_count[group];

        for (size_t n = 0; rank->pieces[i].here && n < c->dst.id_count[group] && ok; n++) {
            ok = visit_block(c, &c->dst, rank, i, c->dst.ids[group][n], (int64_t)(surplus + n), expect_byte, c);
            if (!ok)
                fprintf(stderr, "layer %" PRId64 " block %zu (id %" PRId64 ") is wrong, or not written once\n", i, n,
                        c->dst.ids[group][n]);
        }
    }
    if (!ok) return complain(c, rank, "a wanted byte");
    for (int64_t g = 0; g < c->model.groups; g++) forget_blocks(c, rank, g);
    if (c->spoil == SPOIL_OUTSIDE) rank->written[0][0] = 1;
    for (size_t s = 0; s < rank->storage_count && ok; s++) {
        for (int64_t b = 0; b < rank->storages[s].bytes && ok; b++) ok = rank->written[s][b] == 0;
    }
    return ok || complain(c, rank, "a byte outside of the request's blocks was written");
}

bool check_case(struct prop_case *c)
{
    bool refused = false, ok = engine_init(c, &c->src) && engine_init(c, &c->dst) && pull_all(c, &refused);

    c->refused = refused;
    for (size_t i = 0; i < c->dst.rank_count && ok && !refused; i++) ok = check_rank(c, &c->dst.ranks[i]);
    engine_fini(&c->src);
    engine_fini(&c->dst);
    return ok;
}
