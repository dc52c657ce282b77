/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/elect.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/compare.h"
#include "base/error.h"
#include "layout/members.h"
#include "plan/share.h"

enum { LISTS_REMEMBERED = 64 };

/* The call's inputs in rank order, and the rows of the role in hand. */
struct job {
    const struct kvf_member *src, *dst;
    size_t src_count, dst_count, destination, rank;
    size_t *src_order, *dst_order;
    struct kvfi_holder *src_rows, *dst_rows; /* of one role, in rank order */
    size_t src_row_count, dst_row_count;
    struct kvfi_holder *holders, *rivals; /* those of one class */
    struct kvfi_elected_list found;
};

/* Layers of one row of the destination, grouped by who holds them. */
struct classes {
    size_t *of, *renamed, *first; /* class of each layer; scratch; first layer of each class */
    size_t count;
    int64_t *layers;
};

static size_t count_rows(const struct kvf_member *members, size_t count)
{
    size_t rows = 0;

    for (size_t i = 0; i < count; i++) rows += members[i].holdings->row_count;
    return rows;
}

/* Rows are sorted by role: finds the first one not before `role`. */
static size_t find_role(const struct kvf_holdings *holdings, const char *role)
{
    size_t low = 0, high = holdings->row_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(holdings->rows[middle].role, role) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static size_t gather_role(const struct kvf_member *members, const size_t *order, size_t count, const char *role,
                          struct kvfi_holder *out)
{
    size_t found = 0;

    for (size_t rank = 0; rank < count; rank++) {
        const struct kvf_holdings *holdings = members[order[rank]].holdings;

        for (size_t i = find_role(holdings, role); i < holdings->row_count; i++) {
            if (strcmp(holdings->rows[i].role, role) != 0) break;
            out[found++] = (struct kvfi_holder){rank, order[rank], &holdings->rows[i]};
        }
    }
    return found;
}

static int compare_layers(const void *left, const void *right)
{
    return kvfi_compare_i64(*(const int64_t *)left, *(const int64_t *)right);
}

static bool has_layer(const struct kvf_holding *row, int64_t layer)
{
    return bsearch(&layer, row->layers, row->layer_count, sizeof layer, compare_layers) != NULL;
}

/* Splits every class into layers that `other` has and those it has not. */
static void split(struct classes *classes, const struct kvf_holding *row, const struct kvf_holding *other)
{
    size_t count = 0, at = 0;

    memset(classes->renamed, 0xff, 2 * classes->count * sizeof *classes->renamed);
    for (size_t i = 0; i < row->layer_count; i++) {
        size_t *renamed;

        while (at < other->layer_count && other->layers[at] < row->layers[i]) at++;
        renamed = &classes->renamed[2 * classes->of[i] + (at < other->layer_count &&
                                                          other->layers[at] == row->layers[i])];
        if (*renamed == SIZE_MAX) *renamed = count++;
        classes->of[i] = *renamed;
    }
    classes->count = count;
}

enum kvf_status kvfi_elect_spend(struct kvfi_elected_list *list, size_t steps, const char *role,
                                 struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    if (steps > (uint64_t)list->steps_left) {
        status = kvfi_fail(error, KVF_ERR_LIMIT, "election of %s takes more than %" PRId64 " steps", role,
                           KVFI_ELECT_MAX_STEPS);
    } else {
        list->steps_left -= (int64_t)steps;
    }
    return status;
}

/* Ranks of one pipeline stage have equal layer lists, and splitting by a list again changes nothing. */
static enum kvf_status split_by_all(struct job *job, struct classes *classes, const struct kvf_holding *row,
                                    const struct kvfi_holder *others, size_t count, struct kvf_error *error)
{
    const struct kvf_holding *seen[LISTS_REMEMBERED];
    size_t seen_count = 0, j;
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        const struct kvf_holding *other = others[i].row;

        for (j = 0; j < seen_count; j++) {
            if (seen[j]->layer_count == other->layer_count &&
                memcmp(seen[j]->layers, other->layers, other->layer_count * sizeof *other->layers) == 0) break;
        }
        status = kvfi_elect_spend(&job->found, j + 1, row->role, error);
        if (j < seen_count || status != KVF_OK) continue;
        if (seen_count < LISTS_REMEMBERED) seen[seen_count++] = other;
        status = kvfi_elect_spend(&job->found, row->layer_count + other->layer_count, row->role, error);
        if (status == KVF_OK) split(classes, row, other);
    }
    return status;
}

static size_t pick(const struct kvfi_holder *rows, size_t count, int64_t layer, struct kvfi_holder *out)
{
    size_t picked = 0;

    for (size_t i = 0; i < count; i++) {
        if (has_layer(rows[i].row, layer)) out[picked++] = rows[i];
    }
    return picked;
}

/* Units and bytes of the two sides can be compared only when they are counted alike. */
static enum kvf_status check_totals(const struct kvf_holding *row, int64_t layer, const struct kvfi_holder *holders,
                                    size_t count, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        const struct kvf_holding *other = holders[i].row;

        if (other->unit_total != row->unit_total) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer %" PRId64 ": unit_total is %" PRId64
                               " at source rank %zu and %" PRId64 " at the destination", row->role, layer,
                               other->unit_total, holders[i].member, row->unit_total);
        } else if (other->row_bytes != row->row_bytes) {
            status = kvfi_fail(error, KVF_ERR_INCOMPATIBLE, "%s layer %" PRId64 ": row_bytes is %" PRId64
                               " at source rank %zu and %" PRId64 " at the destination", row->role, layer,
                               other->row_bytes, holders[i].member, row->row_bytes);
        }
    }
    return status;
}

static enum kvf_status elect_one(struct job *job, const struct kvf_holding *row, const int64_t *layers,
                                 size_t layer_count, struct kvf_error *error)
{
    struct kvfi_elect_class class = {.row = row, .rank = job->rank, .salt = job->dst[job->destination].rank.salt,
                                     .layers = layers, .layer_count = layer_count, .holders = job->holders,
                                     .rivals = job->rivals};
    enum kvf_status status;

    status = kvfi_elect_spend(&job->found, job->src_row_count + job->dst_row_count, row->role, error);
    if (status != KVF_OK) goto done;
    class.holder_count = pick(job->src_rows, job->src_row_count, layers[0], job->holders);
    class.rival_count = pick(job->dst_rows, job->dst_row_count, layers[0], job->rivals);
    status = check_totals(row, layers[0], job->holders, class.holder_count, error);
    if (status == KVF_OK) status = kvfi_elect_class(&class, &job->found, error);
done:
    return status;
}

static enum kvf_status elect_classes(struct job *job, struct classes *classes, const struct kvf_holding *row,
                                     struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;

    memset(classes->first, 0, (classes->count + 1) * sizeof *classes->first);
    for (size_t i = 0; i < row->layer_count; i++) classes->first[classes->of[i] + 1]++;
    for (size_t i = 0; i < classes->count; i++) classes->first[i + 1] += classes->first[i];
    for (size_t i = 0; i < row->layer_count; i++) classes->layers[classes->first[classes->of[i]]++] = row->layers[i];
    /* Every start has moved to the start of the next class. */
    for (size_t i = 0; i < classes->count && status == KVF_OK; i++) {
        size_t first = i ? classes->first[i - 1] : 0;

        status = elect_one(job, row, classes->layers + first, classes->first[i] - first, error);
    }
    return status;
}

static enum kvf_status elect_row(struct job *job, const struct kvf_holding *row, struct kvf_error *error)
{
    enum kvf_status status;
    struct classes classes = {.count = 1};

    classes.of = kvfi_alloc_zeroed(row->layer_count, sizeof *classes.of);
    classes.renamed = kvfi_alloc_array(2 * row->layer_count, sizeof *classes.renamed);
    classes.first = kvfi_alloc_array(row->layer_count + 1, sizeof *classes.first);
    classes.layers = kvfi_alloc_array(row->layer_count, sizeof *classes.layers);
    if (!classes.of || !classes.renamed || !classes.first || !classes.layers) {
        status = kvfi_fail_memory(error, "election");
        goto done;
    }
    status = split_by_all(job, &classes, row, job->src_rows, job->src_row_count, error);
    if (status == KVF_OK) status = split_by_all(job, &classes, row, job->dst_rows, job->dst_row_count, error);
    if (status == KVF_OK) status = elect_classes(job, &classes, row, error);
done:
    free(classes.layers);
    free(classes.first);
    free(classes.renamed);
    free(classes.of);
    return status;
}

static enum kvf_status elect_rows(struct job *job, struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    const struct kvf_holdings *own = job->dst[job->destination].holdings;
    const char *role = NULL;

    for (size_t i = 0; i < own->row_count && status == KVF_OK; i++) {
        if (!role || strcmp(role, own->rows[i].role) != 0) {
            role = own->rows[i].role;
            job->src_row_count = gather_role(job->src, job->src_order, job->src_count, role, job->src_rows);
            job->dst_row_count = gather_role(job->dst, job->dst_order, job->dst_count, role, job->dst_rows);
        }
        status = elect_row(job, &own->rows[i], error);
    }
    return status;
}

static int compare_source_layer(const struct kvfi_elected *a, const struct kvfi_elected *b)
{
    int order = kvfi_compare_size(a->source, b->source);

    if (!order) order = a->cell.role == b->cell.role ? 0 : strcmp(a->cell.role, b->cell.role);
    return order ? order : kvfi_compare_i64(a->cell.layer, b->cell.layer);
}

static int compare_along_units(const void *left, const void *right)
{
    const struct kvfi_elected *a = left, *b = right;
    int order = compare_source_layer(a, b);

    if (!order) order = kvfi_compare_i64(a->cell.byte_first, b->cell.byte_first);
    if (!order) order = kvfi_compare_i64(a->cell.byte_count, b->cell.byte_count);
    return order ? order : kvfi_compare_i64(a->cell.unit_first, b->cell.unit_first);
}

static int compare_along_bytes(const void *left, const void *right)
{
    const struct kvfi_elected *a = left, *b = right;
    int order = compare_source_layer(a, b);

    if (!order) order = kvfi_compare_i64(a->cell.unit_first, b->cell.unit_first);
    if (!order) order = kvfi_compare_i64(a->cell.unit_count, b->cell.unit_count);
    return order ? order : kvfi_compare_i64(a->cell.byte_first, b->cell.byte_first);
}

/* Joins cells of one source, role and layer that touch: along units where bytes are equal, then along bytes where units
 * are equal. */
static void merge(struct kvfi_elected_list *list)
{
    for (int pass = 0; pass < 2 && list->count; pass++) {
        size_t kept = 0;

        qsort(list->items, list->count, sizeof *list->items, pass ? compare_along_bytes : compare_along_units);
        for (size_t i = 1; i < list->count; i++) {
            struct kvf_cell *a = &list->items[kept].cell;
            const struct kvf_cell *b = &list->items[i].cell;
            bool same = compare_source_layer(&list->items[kept], &list->items[i]) == 0;

            if (!pass && same && a->byte_first == b->byte_first && a->byte_count == b->byte_count &&
                a->unit_first + a->unit_count == b->unit_first) {
                a->unit_count += b->unit_count;
            } else if (pass && same && a->unit_first == b->unit_first && a->unit_count == b->unit_count &&
                       a->byte_first + a->byte_count == b->byte_first) {
                a->byte_count += b->byte_count;
            } else {
                list->items[++kept] = list->items[i];
            }
        }
        list->count = kept + 1;
    }
}

/* The cells that nobody has, their roles copied. */
static enum kvf_status take_skipped(struct kvf_election *election, const struct kvfi_elected *items, size_t count)
{
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    size_t text_bytes = 1;
    char *text;

    for (size_t i = 0; i < count; i++) text_bytes += strlen(items[i].cell.role) + 1;
    election->skipped = kvfi_alloc_array(count, sizeof *election->skipped);
    election->skipped_text = text = malloc(text_bytes);
    if (!election->skipped || !text) goto done;
    for (size_t i = 0; i < count; i++) {
        const struct kvf_cell *cell = &items[i].cell;
        size_t bytes = strlen(cell->role) + 1;

        election->skipped[i] = (struct kvf_skipped){memcpy(text, cell->role, bytes), cell->layer, cell->unit_first,
                                                    cell->unit_count};
        text += bytes;
    }
    election->skipped_count = count;
    status = KVF_OK;
done:
    return status;
}

/* Turns merged answers, sorted by source, into shares. Skipped ones are last. */
static enum kvf_status take_answers(struct kvf_election *election, const struct kvfi_elected_list *list,
                                    struct kvf_error *error)
{
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    struct kvf_cell *cells = kvfi_alloc_array(list->count, sizeof *cells);
    size_t end, first;

    if (!cells) goto done;
    status = KVF_OK;
    for (first = 0; first < list->count && status == KVF_OK; first = end) {
        size_t source = list->items[first].source;

        for (end = first; end < list->count && list->items[end].source == source; end++) {
            cells[end - first] = list->items[end].cell;
        }
        if (source == SIZE_MAX) status = take_skipped(election, list->items + first, end - first);
        else status = kvfi_share_create(cells, end - first, &election->shares[source], error);
    }
done:
    free(cells);
    return status;
}

static enum kvf_status job_init(struct job *job)
{
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    size_t src_rows = count_rows(job->src, job->src_count), dst_rows = count_rows(job->dst, job->dst_count);

    job->src_order = kvfi_alloc_array(job->src_count, sizeof *job->src_order);
    job->dst_order = kvfi_alloc_array(job->dst_count, sizeof *job->dst_order);
    job->src_rows = kvfi_alloc_array(src_rows, sizeof *job->src_rows);
    job->dst_rows = kvfi_alloc_array(dst_rows, sizeof *job->dst_rows);
    job->holders = kvfi_alloc_array(src_rows, sizeof *job->holders);
    job->rivals = kvfi_alloc_array(dst_rows, sizeof *job->rivals);
    if (!job->src_order || !job->dst_order || !job->src_rows || !job->dst_rows || !job->holders || !job->rivals) {
        goto done;
    }
    status = kvfi_members_order(job->src, job->src_count, job->src_order);
    if (status == KVF_OK) status = kvfi_members_order(job->dst, job->dst_count, job->dst_order);
    if (status != KVF_OK) goto done;
    for (size_t i = 0; i < job->dst_count; i++) {
        if (job->dst_order[i] == job->destination) job->rank = i;
    }
done:
    return status;
}

static void job_fini(struct job *job)
{
    free(job->found.items);
    free(job->rivals);
    free(job->holders);
    free(job->dst_rows);
    free(job->src_rows);
    free(job->dst_order);
    free(job->src_order);
}

static struct kvf_election *allocate(size_t source_count)
{
    struct kvf_election *election = calloc(1, sizeof *election);

    if (election) {
        election->source_count = source_count;
        election->shares = kvfi_alloc_zeroed(source_count, sizeof *election->shares);
        if (!election->shares) {
            free(election);
            election = NULL;
        }
    }
    return election;
}

enum kvf_status kvf_elect(const struct kvf_member *src, size_t src_count, const struct kvf_member *dst,
                          size_t dst_count, size_t destination, kvf_election **out, struct kvf_error *error)
{
    enum kvf_status status;
    struct job job = {.src = src, .dst = dst, .src_count = src_count, .dst_count = dst_count,
                      .destination = destination, .found.steps_left = KVFI_ELECT_MAX_STEPS};
    struct kvf_election *election = NULL;

    if (!out || (src_count && !src) || (dst_count && !dst)) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "election: members or out are missing");
        goto done;
    }
    if (destination >= dst_count) {
        status = kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "election: destination rank %zu of %zu", destination,
                           dst_count);
        goto done;
    }
    election = allocate(src_count);
    status = election ? job_init(&job) : KVF_ERR_NO_MEMORY;
    if (status == KVF_OK) status = elect_rows(&job, error);
    if (status == KVF_OK) {
        merge(&job.found);
        status = take_answers(election, &job.found, error);
    }
    if (status == KVF_ERR_NO_MEMORY) kvfi_fail_memory(error, "election");
    if (status != KVF_OK) goto done;
    *out = election;
    election = NULL;
done:
    kvf_election_destroy(election);
    job_fini(&job);
    return status;
}

void kvf_election_destroy(kvf_election *election)
{
    if (election) {
        for (size_t i = 0; i < election->source_count; i++) kvfi_share_destroy(election->shares[i]);
        free(election->shares);
        free(election->skipped);
        free(election->skipped_text);
        free(election);
    }
}

const kvf_share *kvf_election_share(const kvf_election *election, size_t source)
{
    return source < election->source_count ? election->shares[source] : NULL;
}

const struct kvf_skipped *kvf_election_skipped(const kvf_election *election, size_t *count)
{
    *count = election->skipped_count;
    return election->skipped;
}
