/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms and counters, and their text as Prometheus' Python client writes it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "vllm/stats.h"
#include "wire/text.h"

enum { HISTOGRAMS = 3, COUNTERS = 3, MAX_BUCKETS = 16 };

static const struct {
    const char *name, *help;
    size_t count;
    double bounds[MAX_BUCKETS];
} histograms[HISTOGRAMS] = {
    {"vllm:mooncake_xfer_time_seconds", "Seconds that one batch write of a Mooncake producer took.", 12,
     {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5}},
    {"vllm:mooncake_bytes_transferred", "Bytes that one batch write of a Mooncake producer moved.", 12,
     {0x1p11, 0x1p13, 0x1p15, 0x1p17, 0x1p19, 0x1p21, 0x1p23, 0x1p25, 0x1p27, 0x1p29, 0x1p31, 0x1p33}},
    {"vllm:mooncake_num_descriptors", "Descriptors of one batch write of a Mooncake producer.", 14,
     {10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000}},
};

static const struct {
    const char *name, *help;
} counters[COUNTERS] = {
    {"vllm:mooncake_num_failed_transfers_total", "Batch writes of a Mooncake producer that failed."},
    {"vllm:mooncake_num_failed_recvs_total", "Requests that a Mooncake consumer could not receive."},
    {"vllm:mooncake_num_kv_expired_reqs_total",
     "Requests whose blocks a Mooncake producer freed because nobody fetched them in time."},
};

struct kvf_vllm_metrics {
    double counts[HISTOGRAMS][MAX_BUCKETS + 1]; /* above the last bound too; not yet summed up */
    double sums[HISTOGRAMS];
    double counters[COUNTERS];
    char *model_name, *engine;                  /* escaped; both behind the struct */
};

/* ---- making ------------------------------------------------------------------------------------------------- */

static enum kvf_status check_label(const char *name, const char *text, struct kvf_error *error)
{
    if (text == NULL || !kvfi_text_is_utf8(text, strlen(text)))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "metrics: %s is %s", name,
                         text == NULL ? "missing" : "not UTF-8");
    return KVF_OK;
}

/* Writes a label's value, with its closing zero, at `room`, which has twice its bytes. Returns what follows. */
static char *put_label(char *room, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') *room++ = '\\';
        *room++ = *text == '\n' ? 'n' : *text;
    }
    *room = '\0';
    return room + 1;
}

enum kvf_status kvf_vllm_metrics_create(const char *model_name, const char *engine, kvf_vllm_metrics **out,
                                        struct kvf_error *error)
{
    kvf_vllm_metrics *metrics;
    enum kvf_status status = check_label("model_name", model_name, error);

    if (status == KVF_OK) status = check_label("engine", engine, error);
    if (status != KVF_OK) return status;
    metrics = calloc(1, sizeof *metrics + 2 * (strlen(model_name) + strlen(engine)) + 2);
    if (metrics == NULL) return kvfi_fail_memory(error, "metrics");
    metrics->model_name = (char *)(metrics + 1);
    metrics->engine = put_label(metrics->model_name, model_name);
    put_label(metrics->engine, engine);
    *out = metrics;
    return KVF_OK;
}

void kvf_vllm_metrics_destroy(kvf_vllm_metrics *metrics)
{
    free(metrics);
}

/* ---- observing ---------------------------------------------------------------------------------------------- */

static void observe(kvf_vllm_metrics *metrics, int histogram, double value)
{
    size_t bucket = 0;

    while (bucket < histograms[histogram].count && value > histograms[histogram].bounds[bucket]) bucket++;
    metrics->counts[histogram][bucket]++;
    metrics->sums[histogram] += value;
}

enum kvf_status kvf_vllm_metrics_observe(kvf_vllm_metrics *metrics, const struct kvf_vllm_interval *interval,
                                         struct kvf_error *error)
{
    struct kvf_vllm_interval own;
    enum kvf_status status = kvfi_vllm_interval_read(interval, &own, error);

    if (status != KVF_OK) return status;
    for (size_t i = 0; i < own.transfer_count; i++) {
        observe(metrics, 0, (double)own.transfers[i].duration_ns / 1e9);
        observe(metrics, 1, (double)own.transfers[i].bytes);
        observe(metrics, 2, (double)own.transfers[i].descriptors);
    }
    metrics->counters[0] += (double)own.failed_transfers;
    metrics->counters[1] += (double)own.failed_recvs;
    metrics->counters[2] += (double)own.expired_reqs;
    return KVF_OK;
}

/* ---- text --------------------------------------------------------------------------------------------------- */

struct text {
    char *out;
    size_t used, capacity;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...)
{
    bool fits = text->used < text->capacity;
    va_list arguments;
    int count;

    va_start(arguments, format);
    count = vsnprintf(fits ? text->out + text->used : NULL, fits ? text->capacity - text->used : 0, format, arguments);
    va_end(arguments);
    if (count > 0) text->used += (size_t)count;
}

/* One sample. `bound` NULL: without the label. */
static void add_sample(struct text *text, const kvf_vllm_metrics *metrics, const char *name, const char *suffix,
                       const char *bound, double value)
{
    char number[KVFI_VLLM_NUMBER_BYTES];

    add(text, "%s%s{engine=\"%s\",%s%s%smodel_name=\"%s\"} %s\n", name, suffix, metrics->engine, bound ? "le=\"" : "",
        bound ? bound : "", bound ? "\"," : "", metrics->model_name, kvfi_vllm_number_text(value, true, number));
}

static void add_histogram(struct text *text, const kvf_vllm_metrics *metrics, int histogram)
{
    const char *name = histograms[histogram].name;
    char bound[KVFI_VLLM_NUMBER_BYTES];
    double so_far = 0;

    add(text, "# HELP %s %s\n# TYPE %s histogram\n", name, histograms[histogram].help, name);
    for (size_t i = 0; i < histograms[histogram].count; i++) {
        so_far += metrics->counts[histogram][i];
        kvfi_vllm_number_text(histograms[histogram].bounds[i], true, bound);
        add_sample(text, metrics, name, "_bucket", bound, so_far);
    }
    so_far += metrics->counts[histogram][histograms[histogram].count];
    add_sample(text, metrics, name, "_bucket", "+Inf", so_far);
    add_sample(text, metrics, name, "_count", NULL, so_far);
    add_sample(text, metrics, name, "_sum", NULL, metrics->sums[histogram]);
}

enum kvf_status kvf_vllm_metrics_text(const kvf_vllm_metrics *metrics, char *out, size_t capacity, size_t *byte_count,
                                      struct kvf_error *error)
{
    struct text text = {.out = out, .capacity = capacity};

    for (int i = 0; i < HISTOGRAMS; i++) add_histogram(&text, metrics, i);
    for (int i = 0; i < COUNTERS; i++) {
        add(&text, "# HELP %s %s\n# TYPE %s counter\n", counters[i].name, counters[i].help, counters[i].name);
        add_sample(&text, metrics, counters[i].name, "", NULL, metrics->counters[i]);
    }
    *byte_count = text.used;
    if (capacity > 0 && text.used >= capacity)
        return kvfi_fail(error, KVF_ERR_LIMIT, "metrics take %zu bytes and a closing zero, there is room for %zu",
                         text.used, capacity);
    return KVF_OK;
}
