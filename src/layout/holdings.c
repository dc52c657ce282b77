/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"
#include "layout/check.h"
#include "layout/layout.h"

/* All but the layers. Rows that are equal here become one. */
static int compare_heads(const struct kvf_holding *a, const struct kvf_holding *b)
{
    int order = strcmp(a->role, b->role);

    if (!order) order = kvfi_compare_i64(a->byte_first, b->byte_first);
    if (!order) order = kvfi_compare_i64(a->unit_first, b->unit_first);
    if (!order) order = kvfi_compare_i64(a->byte_count, b->byte_count);
    if (!order) order = kvfi_compare_i64(a->unit_count, b->unit_count);
    if (!order) order = kvfi_compare_i64(a->row_bytes, b->row_bytes);
    if (!order) order = kvfi_compare_i64(a->unit_total, b->unit_total);
    if (!order) order = kvfi_compare_i64(a->stripes, b->stripes);
    if (!order) order = kvfi_compare_i64(a->stripe, b->stripe);
    if (!order) order = kvfi_compare_i64(a->stripe_tokens, b->stripe_tokens);
    if (!order) order = kvfi_compare_i64(a->flags, b->flags);
    if (!order) order = strcmp(a->tag, b->tag);
    return order;
}

static int compare_rows(const void *left, const void *right)
{
    const struct kvf_holding *a = left, *b = right;
    int order = compare_heads(a, b);

    if (!order && a->layer_count && b->layer_count) order = kvfi_compare_i64(a->layers[0], b->layers[0]);
    return order;
}

static int compare_layers(const void *left, const void *right)
{
    return kvfi_compare_i64(*(const int64_t *)left, *(const int64_t *)right);
}

static enum kvf_status check_row(const struct kvf_holding *row, size_t number, struct kvf_error *error)
{
    const struct kvfi_ranges ranges = {"row", number, row->role, row->row_bytes, row->byte_first, row->byte_count,
                                       row->unit_total, row->unit_first, row->unit_count, row->flags, row->reserved};
    enum kvf_status status = kvfi_check_name(row->role, "row", number, "role", error);

    if (status == KVF_OK) status = kvfi_check_name(row->tag, "row", number, "tag", error);
    if (status == KVF_OK) status = kvfi_check_ranges(&ranges, error);
    if (status == KVF_OK) {
        status = kvfi_check_stripes("row", number, row->stripes, row->stripe, row->stripe_tokens, error);
    }
    if (status == KVF_OK && (row->layer_count == 0 || !row->layers)) {
        status = kvfi_fail(error, KVF_ERR_LAYOUT, "row %zu (%s): no layers", number, row->role);
    }
    return status;
}

/* Counts are bounded here, before anything is allocated for them. */
static enum kvf_status check_rows(const struct kvf_holding *rows, size_t row_count, size_t *layer_count,
                                  size_t *text_bytes, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    *layer_count = 0;
    *text_bytes = 1;
    if (row_count > KVF_LAYOUT_MAX_VIEWS) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "holdings have %zu rows, at most %d are allowed", row_count,
                           KVF_LAYOUT_MAX_VIEWS);
    }
    for (size_t i = 0; i < row_count && status == KVF_OK; i++) {
        status = check_row(&rows[i], i, error);
        if (status != KVF_OK) break;
        *text_bytes += strlen(rows[i].role) + strlen(rows[i].tag) + 2;
        if (rows[i].layer_count > KVF_LAYOUT_MAX_PLACES - *layer_count) {
            status = kvfi_fail(error, KVF_ERR_LIMIT, "holdings have more than %d layers in all", KVF_LAYOUT_MAX_PLACES);
            break;
        }
        *layer_count += rows[i].layer_count;
        for (size_t j = 0; j < rows[i].layer_count && status == KVF_OK; j++) {
            if (rows[i].layers[j] < 0) {
                status = kvfi_fail(error, KVF_ERR_LAYOUT, "row %zu (%s): layer %lld is negative", i, rows[i].role,
                                   (long long)rows[i].layers[j]);
            } else if (rows[i].layers[j] == INT64_MAX) {
                status = kvfi_fail(error, KVF_ERR_LAYOUT, "row %zu (%s): layer %lld has no end in 64 bits", i,
                                   rows[i].role, (long long)rows[i].layers[j]);
            }
        }
    }
    return status;
}

static enum kvf_status check_held_once(const struct kvf_holding *rows, size_t row_count, size_t layer_count,
                                       struct kvf_error *error)
{
    enum kvf_status status;
    struct kvfi_held *held = kvfi_alloc_array(layer_count, sizeof *held);
    size_t count = 0;

    if (!held) {
        status = kvfi_fail_memory(error, "holdings");
        goto done;
    }
    for (size_t i = 0; i < row_count; i++) {
        for (size_t j = 0; j < rows[i].layer_count; j++) {
            held[count++] = (struct kvfi_held){rows[i].role, rows[i].layers[j], rows[i].unit_first, rows[i].unit_count,
                                               rows[i].byte_first, rows[i].byte_count, i};
        }
    }
    status = kvfi_check_held(held, count, "rows", error);
done:
    free(held);
    return status;
}

/* The object is one allocation: head, rows, layers, texts. */
static struct kvf_holdings *allocate(size_t row_count, size_t layer_count, size_t text_bytes, int64_t **layers,
                                     char **text)
{
    size_t head = (sizeof(struct kvf_holdings) + 15) / 16 * 16;
    size_t row_bytes = row_count * sizeof(struct kvf_holding), layer_bytes = layer_count * sizeof(int64_t);
    struct kvf_holdings *holdings = malloc(head + row_bytes + layer_bytes + text_bytes);

    if (holdings) {
        char *bytes = (char *)holdings;

        holdings->rows = (struct kvf_holding *)(void *)(bytes + head);
        *layers = (int64_t *)(void *)(bytes + head + row_bytes);
        *text = bytes + head + row_bytes + layer_bytes;
    }
    return holdings;
}

static const char *store_text(char **at, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *own = memcpy(*at, text, bytes);

    *at += bytes;
    return own;
}

/* Copies sorted rows, those with equal heads as one with all their layers. */
static void fill(struct kvf_holdings *holdings, const struct kvf_holding *sorted, size_t row_count, int64_t *layers,
                 char *text)
{
    holdings->row_count = 0;
    for (size_t i = 0; i < row_count; i++) {
        struct kvf_holding *row = &holdings->rows[holdings->row_count];

        if (i && compare_heads(row - 1, &sorted[i]) == 0) {
            row--;
        } else {
            *row = sorted[i];
            row->role = store_text(&text, sorted[i].role);
            row->tag = store_text(&text, sorted[i].tag);
            row->layers = layers;
            row->layer_count = 0;
            holdings->row_count++;
        }
        memcpy(layers, sorted[i].layers, sorted[i].layer_count * sizeof *layers);
        layers += sorted[i].layer_count;
        row->layer_count += sorted[i].layer_count;
    }
    for (size_t i = 0; i < holdings->row_count; i++) {
        qsort((int64_t *)holdings->rows[i].layers, holdings->rows[i].layer_count, sizeof *layers, compare_layers);
    }
}

enum kvf_status kvf_holdings_create(const struct kvf_holding *rows, size_t row_count, kvf_holdings **out,
                                    struct kvf_error *error)
{
    enum kvf_status status;
    struct kvf_holding *sorted = NULL;
    struct kvf_holdings *holdings;
    size_t layer_count, text_bytes;
    int64_t *layers;
    char *text;

    if (!out || (row_count && !rows)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "holdings: %s is missing", out ? "rows" : "out");
        goto done;
    }
    status = check_rows(rows, row_count, &layer_count, &text_bytes, error);
    if (status == KVF_OK) status = check_held_once(rows, row_count, layer_count, error);
    if (status != KVF_OK) goto done;
    sorted = kvfi_alloc_array(row_count, sizeof *sorted);
    holdings = sorted ? allocate(row_count, layer_count, text_bytes, &layers, &text) : NULL;
    if (!holdings) {
        status = kvfi_fail_memory(error, "holdings");
        goto done;
    }
    for (size_t i = 0; i < row_count; i++) {
        sorted[i] = rows[i];
        if (sorted[i].stripes == 1) sorted[i].stripe_tokens = 0;
    }
    if (row_count) qsort(sorted, row_count, sizeof *sorted, compare_rows);
    atomic_init(&holdings->references, 1);
    fill(holdings, sorted, row_count, layers, text);
    *out = holdings;
done:
    free(sorted);
    return status;
}

static struct kvf_holding row_of_view(const struct kvf_layout *layout, const struct kvf_view *view, int64_t *layers)
{
    const struct kvf_group *group = kvfi_view_group(layout, view);
    struct kvf_holding row = {.role = view->role, .tag = view->tag, .row_bytes = view->row_bytes,
                              .byte_first = view->byte_first, .byte_count = view->byte_count,
                              .unit_total = view->unit_total, .unit_first = view->unit_first,
                              .unit_count = view->unit_count, .stripes = group->stripes, .stripe = group->stripe,
                              .stripe_tokens = group->stripe_tokens, .flags = view->flags, .layers = layers,
                              .layer_count = view->place_count};

    for (size_t i = 0; i < view->place_count; i++) layers[i] = view->places[i].layer;
    return row;
}

enum kvf_status kvf_holdings_from_layout(const kvf_layout *layout, kvf_holdings **out, struct kvf_error *error)
{
    enum kvf_status status;
    size_t count = layout->spec.view_count, place_count = 0;
    struct kvf_holding *rows = kvfi_alloc_array(count, sizeof *rows);
    int64_t *layers = NULL;

    for (size_t i = 0; i < count; i++) place_count += layout->spec.views[i].place_count;
    layers = kvfi_alloc_array(place_count, sizeof *layers);
    if (!rows || !layers) {
        status = kvfi_fail_memory(error, "holdings");
        goto done;
    }
    place_count = 0;
    for (size_t i = 0; i < count; i++) {
        rows[i] = row_of_view(layout, &layout->spec.views[i], layers + place_count);
        place_count += rows[i].layer_count;
    }
    status = kvf_holdings_create(rows, count, out, error);
done:
    free(layers);
    free(rows);
    return status;
}

kvf_holdings *kvf_holdings_acquire(const kvf_holdings *holdings)
{
    struct kvf_holdings *own = (struct kvf_holdings *)holdings;

    atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

void kvf_holdings_release(kvf_holdings *holdings)
{
    if (holdings && atomic_fetch_sub_explicit(&holdings->references, 1, memory_order_acq_rel) == 1) free(holdings);
}

const struct kvf_holding *kvf_holdings_rows(const kvf_holdings *holdings, size_t *row_count)
{
    *row_count = holdings->row_count;
    return holdings->rows;
}
