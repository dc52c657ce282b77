/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a cache back by the address formula of the layout model, one row at a time. It shares nothing with the planner
 * or the copy kernels, so that a mistake in those cannot hide here. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/demo.h"

static char *row_address(const struct demo_reader *reader, const struct kvf_view *view, const struct kvf_place *place,
                         int64_t request, int64_t unit, int64_t token)
{
    const struct kvf_layout_spec *spec = reader->spec;
    const struct kvf_pool *pool = &spec->pools[place->pool];
    int64_t block_tokens = spec->groups[view->group].tokens_per_block;
    int64_t slot = reader->ids->ids[request * reader->ids->per_request + token / block_tokens];
    return (char *)reader->bases[pool->memory] + pool->base_offset_bytes + slot * pool->slot_stride_bytes +
           place->offset_bytes + (unit - view->unit_first) * view->unit_stride_bytes +
           token % block_tokens * view->entry_stride_bytes;
}

static bool all_bytes_are(const char *bytes, size_t count, unsigned char value)
{
    return count == 0 || ((unsigned char)bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/** Reads one head of one layer. */
static void gather_unit(const struct demo_reader *reader, const struct kvf_view *view, const struct kvf_place *place,
                        int64_t request, int64_t unit, char *out, char *fault, size_t fault_bytes)
{
    int64_t part = strcmp(view->role, "v") == 0;
    char *tensor = out + (place->layer * DEMO_PARTS + part) * reader->tokens * reader->heads * reader->row_bytes;
    for (int64_t token = 0; token < reader->written_tokens; token++) {
        char *row = row_address(reader, view, place, request, unit, token);
        if (token < reader->tokens)
            memcpy(tensor + (token * reader->heads + unit) * reader->row_bytes, row, (size_t)reader->row_bytes);
        else if (!all_bytes_are(row, (size_t)reader->row_bytes, DEMO_SOURCE_FILL) && fault[0] == '\0')
            snprintf(fault, fault_bytes,
                     "request %" PRId64 ": %s layer %" PRId64 " head %" PRId64 ": row %" PRId64
                     " behind the last token is not the source's",
                     request, view->role, place->layer, unit, token);
        memset(row, DEMO_UNTOUCHED, (size_t)reader->row_bytes);
    }
}

void demo_reader_gather(const struct demo_reader *reader, int64_t request, char *out, char *fault, size_t fault_bytes)
{
    for (size_t v = 0; v < reader->spec->view_count; v++) {
        const struct kvf_view *view = &reader->spec->views[v];
        for (size_t p = 0; p < view->place_count; p++) {
            for (int64_t unit = view->unit_first; unit < view->unit_first + view->unit_count; unit++)
                gather_unit(reader, view, &view->places[p], request, unit, out, fault, fault_bytes);
        }
    }
}

/** Says in whose slot a byte lies. */
static void name_byte(const struct demo_reader *reader, size_t memory, int64_t offset, unsigned char found, char *fault,
                      size_t fault_bytes)
{
    for (size_t p = 0; p < reader->spec->pool_count; p++) {
        const struct kvf_pool *pool = &reader->spec->pools[p];
        int64_t inside = offset - pool->base_offset_bytes;
        if ((size_t)pool->memory != memory || inside < 0 || inside >= pool->slots * pool->slot_stride_bytes)
            continue;
        snprintf(fault, fault_bytes,
                 "pool %zu slot %" PRId64 ": byte %" PRId64 " of %" PRId64 " was written (0x%02x), and "
                 "nothing of the requests lies there",
                 p, inside / pool->slot_stride_bytes, inside % pool->slot_stride_bytes, pool->slot_stride_bytes, found);
        return;
    }
    snprintf(fault, fault_bytes, "memory %zu: byte %" PRId64 " was written (0x%02x), outside of every pool", memory,
             offset, found);
}

bool demo_reader_scan(const struct demo_reader *reader, const int64_t *memory_bytes, char *fault, size_t fault_bytes)
{
    for (size_t m = 0; m < reader->spec->memory_count; m++) {
        const char *bytes = reader->bases[m];
        if (all_bytes_are(bytes, (size_t)memory_bytes[m], DEMO_UNTOUCHED))
            continue;
        int64_t at = 0;
        while (at < memory_bytes[m] && (unsigned char)bytes[at] == DEMO_UNTOUCHED)
            at++;
        name_byte(reader, m, at, (unsigned char)bytes[at], fault, fault_bytes);
        return false;
    }
    return true;
}
