/* SPDX-License-Identifier: Apache-2.0 */
/* The nine figures that upstream logs, computed in the order in which NumPy computes them: rounded, they are equal. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "vllm/stats.h"

/* NumPy's sum: eight sums beside each other, halves of long lists apart. */
static double sum(const double *values, size_t count)
{
    double sums[8], total = 0;
    size_t half, i;

    if (count > 128) {
        half = count / 2;
        half -= half % 8;
        return sum(values, half) + sum(values + half, count - half);
    }
    if (count < 8) {
        for (i = 0; i < count; i++) total += values[i];
        return total;
    }
    memcpy(sums, values, sizeof sums);
    for (i = 8; i + 8 <= count; i += 8)
        for (size_t k = 0; k < 8; k++) sums[k] += values[i + k];
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < count; i++) total += values[i];
    return total;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

/* Between the two nearest, in a straight line. Sorts. */
static double percentile_90(double *values, size_t count)
{
    double place = (double)(count - 1) * 0.9, part, step;
    size_t below = (size_t)place, above = below + 1 < count ? below + 1 : below;

    qsort(values, count, sizeof *values, compare);
    part = place - (double)below;
    step = values[above] - values[below];
    return part >= 0.5 ? values[above] - step * (1 - part) : values[below] + step * part;
}

/* To so many digits, halves to even, as decimal text rounds. */
static double rounded(double value, int digits)
{
    char text[400];

    (void)snprintf(text, sizeof text, "%.*f", digits, value);
    return strtod(text, NULL);
}

struct totals {
    size_t count;
    int64_t failed_transfers, failed_recvs, expired_reqs;
    double *seconds, *megabytes;
    double descriptors;
};

static enum kvf_status gather(const struct kvf_vllm_interval *intervals, size_t interval_count, struct totals *totals,
                              struct kvf_error *error)
{
    struct kvf_vllm_interval own;
    enum kvf_status status = KVF_OK;
    size_t at = 0;

    for (size_t i = 0; status == KVF_OK && i < interval_count; i++) {
        status = kvfi_vllm_interval_read(&intervals[i], &own, error);
        if (status == KVF_OK) totals->count += own.transfer_count;
    }
    if (status != KVF_OK) return status;
    totals->seconds = kvfi_alloc_array(totals->count, sizeof *totals->seconds);
    totals->megabytes = kvfi_alloc_array(totals->count, sizeof *totals->megabytes);
    if (totals->seconds == NULL || totals->megabytes == NULL) return kvfi_fail_memory(error, "figures of transfers");
    for (size_t i = 0; i < interval_count; i++) {
        (void)kvfi_vllm_interval_read(&intervals[i], &own, NULL);
        totals->failed_transfers += own.failed_transfers;
        totals->failed_recvs += own.failed_recvs;
        totals->expired_reqs += own.expired_reqs;
        for (size_t k = 0; k < own.transfer_count; k++, at++) {
            totals->seconds[at] = (double)own.transfers[k].duration_ns / 1e9;
            totals->megabytes[at] = (double)own.transfers[k].bytes / 1048576;
            totals->descriptors += (double)own.transfers[k].descriptors;
        }
    }
    return KVF_OK;
}

static void set_transfers(const struct totals *totals, struct kvf_vllm_figure *figures)
{
    double seconds = sum(totals->seconds, totals->count), megabytes = sum(totals->megabytes, totals->count);
    double count = (double)totals->count;

    figures[1].value = rounded(seconds / count * 1e3, 3);
    figures[2].value = rounded(percentile_90(totals->seconds, totals->count) * 1e3, 3);
    figures[3].value = rounded(megabytes / count, 3);
    figures[4].value = seconds > 0 ? rounded(megabytes / seconds, 3) : 0;
    figures[5].value = rounded(totals->descriptors / count, 1);
    for (int i = 1; i <= 5; i++) figures[i].is_fraction = 1;
}

enum kvf_status kvf_vllm_interval_reduce(const struct kvf_vllm_interval *intervals, size_t interval_count,
                                         struct kvf_vllm_figure *figures, struct kvf_error *error)
{
    static const char *const keys[KVF_VLLM_FIGURES] = {
        "Num successful transfers", "Avg xfer time (ms)", "P90 xfer time (ms)", "Avg MB per transfer",
        "Throughput (MB/s)", "Avg number of descriptors", "Num failed transfers", "Num failed recvs",
        "Num KV expired reqs"};
    struct totals totals = {0};
    enum kvf_status status = gather(intervals, interval_count, &totals, error);

    if (status != KVF_OK) goto done;
    for (int i = 0; i < KVF_VLLM_FIGURES; i++) figures[i] = (struct kvf_vllm_figure){.key = keys[i]};
    figures[0].value = (double)totals.count;
    figures[6].value = (double)totals.failed_transfers;
    figures[7].value = (double)totals.failed_recvs;
    figures[8].value = (double)totals.expired_reqs;
    if (totals.count) set_transfers(&totals, figures);
done:
    free(totals.seconds);
    free(totals.megabytes);
    return status;
}

size_t kvf_vllm_figures_text(const struct kvf_vllm_figure *figures, char *out, size_t capacity)
{
    char line[1024], number[KVFI_VLLM_NUMBER_BYTES];
    size_t used = 0;

    for (int i = 0; i < KVF_VLLM_FIGURES; i++) {
        if (figures[i].is_fraction) kvfi_vllm_number_text(figures[i].value, false, number);
        else (void)snprintf(number, sizeof number, "%" PRId64, (int64_t)figures[i].value);
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s=%s", i ? ", " : "KV Transfer metrics: ",
                                 figures[i].key, number);
    }
    if (capacity) (void)snprintf(out, capacity, "%s", line);
    return used;
}
