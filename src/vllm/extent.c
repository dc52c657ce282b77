/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/extent.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "vllm/regions.h"

/* Ends of regions, where no sum can overflow. */
typedef __int128 address;

/* ---- pieces: payloads of one set --------------------------------------------------------------------------------- */

/* A region's payload of block 0. */
struct piece {
    uint64_t first;
    int64_t bytes, stride;
    int64_t blocks;     /* that lie whole in the region's memory */
    bool begins_row;
};

static address end_of(const struct piece *piece) { return (address)piece->first + piece->bytes; }

static int compare_pieces(const void *a, const void *b)
{
    const struct piece *one = a, *other = b;

    if (one->stride != other->stride) return one->stride < other->stride ? -1 : 1;
    if (one->first != other->first) return one->first < other->first ? -1 : 1;
    return (one->bytes > other->bytes) - (one->bytes < other->bytes);
}

/* How many blocks of a region lie whole in the memory where it begins. */
static int64_t count_blocks(const struct kvf_vllm_region *region, const struct kvf_vllm_storage *memory, size_t count)
{
    size_t low = 0, high = count;
    address end;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (memory[middle].base_addr <= region->base_addr) low = middle + 1;
        else high = middle;
    }
    if (low == 0) return 0;
    end = (address)memory[low - 1].base_addr + memory[low - 1].bytes;
    if ((address)region->base_addr + region->kv_block_len > end) return 0;
    end = (end - region->base_addr - region->kv_block_len) / region->block_len + 1;
    return end > INT32_MAX ? INT32_MAX : (int64_t)end;
}

/* A set while it is made. */
struct draft {
    struct kvfi_vllm_set *set;
    struct piece *pieces;
    size_t count, capacity;
};

static enum kvf_status add_piece(struct draft *draft, const struct kvf_vllm_region *region,
                                 const struct kvf_vllm_storage *memory, size_t memory_count, struct kvf_error *error)
{
    void *pieces = draft->pieces;
    int64_t blocks;

    if (region->kv_block_len == 0) return KVF_OK;
    if (region->kv_block_len > region->block_len)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "regions: %s has %" PRId64 " bytes a block, every %" PRId64
                         " bytes: its blocks overlap", region->layer_name, region->kv_block_len, region->block_len);
    blocks = count_blocks(region, memory, memory_count);
    if (blocks == 0) return KVF_OK;
    if (!kvfi_array_grow(&pieces, draft->count, &draft->capacity, sizeof *draft->pieces))
        return kvfi_fail_memory(error, "the payloads of a list of regions");
    draft->pieces = pieces;
    draft->pieces[draft->count++] = (struct piece){.first = region->base_addr, .bytes = region->kv_block_len,
                                                   .stride = region->block_len, .blocks = blocks,
                                                   .begins_row = region->row_offset == 0};
    return KVF_OK;
}

/* ---- rows: pieces that lie within one stride --------------------------------------------------------------------- */

/* Pieces [begin, end), one row of blocks. */
struct row {
    size_t begin, end;
    uint64_t first;
    int64_t stride;
    int64_t bytes;     /* that may be written */
    address payloads_end;
};

static struct row take_row(const struct piece *pieces, size_t begin, size_t count)
{
    const struct piece *head = &pieces[begin];
    struct row row = {.begin = begin, .end = begin + 1, .first = head->first, .stride = head->stride,
                      .payloads_end = end_of(head)};
    address limit = (address)head->first + head->stride;

    while (row.end < count && pieces[row.end].stride == head->stride && end_of(&pieces[row.end]) <= limit) {
        if (end_of(&pieces[row.end]) > row.payloads_end) row.payloads_end = end_of(&pieces[row.end]);
        row.end++;
    }
    row.bytes = head->begins_row ? head->stride : (int64_t)(row.payloads_end - head->first);
    return row;
}

/* Blocks that all rows of a set have: before the end of their memory, and before the next array. */
static int64_t common_blocks(const struct piece *pieces, size_t count)
{
    int64_t blocks = INT32_MAX;

    for (size_t at = 0; at < count;) {
        struct row row = take_row(pieces, at, count);

        for (size_t i = row.begin; i < row.end; i++) blocks = pieces[i].blocks < blocks ? pieces[i].blocks : blocks;
        at = row.end;
        if (at < count && pieces[at].stride == row.stride && pieces[at].first - row.first >= (uint64_t)row.stride) {
            address room = (address)pieces[at].first - row.payloads_end;
            address most = room < 0 ? 1 : room / row.stride + 1;

            if (most < blocks) blocks = (int64_t)most;
        }
    }
    return blocks;
}

/* ---- sheets ------------------------------------------------------------------------------------------------------ */

static address last_of(const struct row *row, int64_t block_count)
{
    return (address)row->first + (address)(block_count - 1) * row->stride + row->bytes - 1;
}

static int compare_rows(const void *a, const void *b)
{
    const struct row *one = a, *other = b;

    if (one->first != other->first) return one->first < other->first ? -1 : 1;
    return (one->stride > other->stride) - (one->stride < other->stride);
}

/* Spreads rows, by address, over sheets in which their extents lie apart; writes the number of each row's sheet. */
static enum kvf_status spread(const struct kvfi_vllm_set *set, const struct row *rows, size_t count, size_t *sheet_of,
                              size_t *sheet_count, struct kvf_error *error)
{
    address ends[KVFI_VLLM_MAX_SHEETS - 1];

    *sheet_count = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;

        while (at < *sheet_count && ends[at] >= (address)rows[i].first) at++;
        if (at == KVFI_VLLM_MAX_SHEETS - 1)
            return kvfi_fail(error, KVF_ERR_LIMIT, "regions: those that go with %s overlap each other more than %d "
                             "times", set->layer_name, KVFI_VLLM_MAX_SHEETS - 1);
        if (at == *sheet_count) (*sheet_count)++;
        ends[at] = last_of(&rows[i], set->block_count);
        sheet_of[i] = at;
    }
    return KVF_OK;
}

/* Writes a row's payloads as grids, those that touch or overlap as one. Returns how many; NULL only counts. */
static size_t put_payloads(const struct piece *pieces, const struct row *row, struct kvfi_vllm_grid *grids,
                           int64_t *bytes)
{
    size_t count = 0;

    for (size_t i = row->begin; i < row->end;) {
        uint64_t first = pieces[i].first;
        address end = end_of(&pieces[i]);

        for (i++; i < row->end && (address)pieces[i].first <= end; i++)
            if (end_of(&pieces[i]) > end) end = end_of(&pieces[i]);
        if (grids)
            grids[count] = (struct kvfi_vllm_grid){.address = first, .stride_bytes = row->stride,
                                                   .block_bytes = (int64_t)(end - first)};
        *bytes += (int64_t)(end - first);
        count++;
    }
    return count;
}

/* The sheet of payloads of the rows in sheet 0, or sheet 0 itself where it has nothing else. */
static enum kvf_status add_counting(struct kvfi_vllm_set *set, const struct piece *pieces, const struct row *rows,
                                    const size_t *sheet_of, size_t row_count, struct kvf_error *error)
{
    struct kvfi_vllm_sheet *sheet = &set->sheets[set->sheet_count];
    int64_t may = 0, must = 0;
    size_t grids = 0;

    for (size_t i = 0; i < row_count; i++) {
        if (sheet_of[i] != 0) continue;
        may += rows[i].bytes;
        grids += put_payloads(pieces, &rows[i], NULL, &must);
    }
    set->payload_bytes = must;
    set->counting = 0;
    if (may == must) return KVF_OK;
    sheet->grids = kvfi_alloc_array(grids, sizeof *sheet->grids);
    if (!sheet->grids) return kvfi_fail_memory(error, "the payloads of a list of regions");
    set->counting = set->sheet_count++;
    must = 0;
    for (size_t i = 0; i < row_count; i++)
        if (sheet_of[i] == 0)
            sheet->grid_count += put_payloads(pieces, &rows[i], sheet->grids + sheet->grid_count, &must);
    return KVF_OK;
}

static enum kvf_status fill_sheets(struct kvfi_vllm_set *set, const struct row *rows, const size_t *sheet_of,
                                   size_t row_count, struct kvf_error *error)
{
    for (size_t at = 0; at < set->sheet_count; at++) {
        set->sheets[at].grids = kvfi_alloc_array(row_count, sizeof *set->sheets[at].grids);
        if (!set->sheets[at].grids) return kvfi_fail_memory(error, "the blocks of a list of regions");
    }
    for (size_t i = 0; i < row_count; i++) {
        struct kvfi_vllm_sheet *sheet = &set->sheets[sheet_of[i]];

        sheet->grids[sheet->grid_count++] = (struct kvfi_vllm_grid){.address = rows[i].first,
                                                                    .stride_bytes = rows[i].stride,
                                                                    .block_bytes = rows[i].bytes};
    }
    return KVF_OK;
}

static enum kvf_status finish(struct draft *draft, struct kvf_error *error)
{
    struct row *rows = kvfi_alloc_array(draft->count, sizeof *rows);
    size_t *sheet_of = kvfi_alloc_array(draft->count, sizeof *sheet_of), row_count = 0;
    enum kvf_status status = KVF_OK;

    if (!rows || !sheet_of) {
        status = kvfi_fail_memory(error, "the blocks of a list of regions");
        goto done;
    }
    if (draft->count == 0) goto done; /* nothing of it is here */
    qsort(draft->pieces, draft->count, sizeof *draft->pieces, compare_pieces);
    draft->set->block_count = common_blocks(draft->pieces, draft->count);
    for (size_t at = 0; at < draft->count; at = rows[row_count++].end)
        rows[row_count] = take_row(draft->pieces, at, draft->count);
    qsort(rows, row_count, sizeof *rows, compare_rows);
    status = spread(draft->set, rows, row_count, sheet_of, &draft->set->sheet_count, error);
    if (!status) status = fill_sheets(draft->set, rows, sheet_of, row_count, error);
    if (!status) status = add_counting(draft->set, draft->pieces, rows, sheet_of, row_count, error);
done:
    free(sheet_of);
    free(rows);
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* Shared groups count for shared regions only. */
static bool goes_with(const struct kvfi_vllm_set *set, const struct kvf_vllm_region *region)
{
    return set->group == region->group_index &&
           (set->group != KVF_VLLM_SHARED_GROUP || kvfi_vllm_ids_equal(&set->groups, &region->shared_groups));
}

static enum kvf_status draft_of(struct kvfi_vllm_extent *extent, struct draft *drafts,
                                const struct kvf_vllm_region *region, struct draft **out, struct kvf_error *error)
{
    size_t at = 0;

    while (at < extent->set_count && !goes_with(&extent->sets[at], region)) at++;
    if (at == KVFI_VLLM_MAX_SETS)
        return kvfi_fail(error, KVF_ERR_LIMIT, "regions: %s: more than %d lists of groups", region->layer_name,
                         KVFI_VLLM_MAX_SETS);
    if (at == extent->set_count) {
        struct kvfi_vllm_set *set = &extent->sets[extent->set_count++];

        *set = (struct kvfi_vllm_set){.group = region->group_index, .layer_name = region->layer_name};
        if (set->group == KVF_VLLM_SHARED_GROUP) set->groups = region->shared_groups;
        drafts[at].set = set;
    }
    *out = &drafts[at];
    return KVF_OK;
}

enum kvf_status kvfi_vllm_extent_init(struct kvfi_vllm_extent *out, const kvf_vllm_regions *regions,
                                      const struct kvf_vllm_storage *memory, size_t memory_count,
                                      struct kvf_error *error)
{
    struct kvfi_vllm_extent extent = {.regions = kvf_vllm_regions_acquire(regions)};
    struct draft *drafts = kvfi_alloc_zeroed(KVFI_VLLM_MAX_SETS, sizeof *drafts), *draft = NULL;
    const struct kvf_vllm_region *items;
    enum kvf_status status = KVF_OK;
    size_t count;

    items = kvf_vllm_regions_get(regions, &count);
    extent.sets = kvfi_alloc_zeroed(KVFI_VLLM_MAX_SETS, sizeof *extent.sets);
    if (!drafts || !extent.sets) status = kvfi_fail_memory(error, "the blocks of a list of regions");
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        status = draft_of(&extent, drafts, &items[i], &draft, error);
        if (!status) status = add_piece(draft, &items[i], memory, memory_count, error);
    }
    for (size_t i = 0; status == KVF_OK && i < extent.set_count; i++) status = finish(&drafts[i], error);
    for (size_t i = 0; drafts && i < extent.set_count; i++) free(drafts[i].pieces);
    free(drafts);
    if (status) kvfi_vllm_extent_fini(&extent);
    else *out = extent;
    return status;
}

void kvfi_vllm_extent_fini(struct kvfi_vllm_extent *extent)
{
    for (size_t i = 0; extent->sets && i < extent->set_count; i++)
        for (size_t k = 0; k < KVFI_VLLM_MAX_SHEETS; k++) free(extent->sets[i].sheets[k].grids);
    free(extent->sets);
    kvf_vllm_regions_release(extent->regions);
    *extent = (struct kvfi_vllm_extent){.set_count = 0};
}

/* ---- a request's blocks ------------------------------------------------------------------------------------------ */

static enum kvf_status add_group(const struct kvfi_vllm_set *set, const struct kvfi_vllm_id_facts *facts, size_t group,
                                 const struct kvf_vllm_ids *ids, int64_t *blocks, size_t *count,
                                 struct kvf_error *error)
{
    bool recurrent = group < facts->group_count && facts->group_kinds[group] == KVF_VLLM_MAMBA;
    int64_t steps = recurrent ? 1 : facts->kernel_blocks_per_block;

    for (size_t i = 0; i < ids->count; i++) {
        int64_t id = ids->ids[i];

        if (recurrent && id == 0) continue;
        if (id < 0 || id >= set->block_count / steps)
            return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "group %zu: block id %" PRId64 ", expected 0 to %" PRId64
                             ": layer %s has %" PRId64 " blocks in the memory that is registered", group, id,
                             set->block_count / steps - 1, set->layer_name, set->block_count / steps);
        if (*count > SIZE_MAX / sizeof *blocks - (size_t)steps)
            return kvfi_fail(error, KVF_ERR_OVERFLOW, "group %zu: too many block ids", group);
        for (int64_t step = 0; blocks && step < steps; step++) blocks[*count + (size_t)step] = id * steps + step;
        *count += (size_t)steps;
    }
    return KVF_OK;
}

enum kvf_status kvfi_vllm_extent_blocks(const struct kvfi_vllm_set *set, const struct kvfi_vllm_id_facts *facts,
                                        const struct kvf_vllm_ids *groups, size_t group_count, int64_t *blocks,
                                        size_t *count, struct kvf_error *error)
{
    bool all = set->group == KVF_VLLM_SHARED_GROUP && set->groups.count == 0;
    size_t named = all ? group_count : set->group == KVF_VLLM_SHARED_GROUP ? set->groups.count : 1;
    enum kvf_status status = KVF_OK;

    *count = 0;
    for (size_t i = 0; status == KVF_OK && set->sheet_count > 0 && i < named; i++) {
        int64_t group = all ? (int64_t)i : set->group == KVF_VLLM_SHARED_GROUP ? set->groups.ids[i] : set->group;

        if (group >= 0 && (uint64_t)group < group_count)
            status = add_group(set, facts, (size_t)group, &groups[group], blocks, count, error);
    }
    return status;
}
