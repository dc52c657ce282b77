/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/stats.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/struct_size.h"

/* ---- intervals ---------------------------------------------------------------------------------------------- */

enum kvf_status kvfi_vllm_interval_read(const struct kvf_vllm_interval *given, struct kvf_vllm_interval *out,
                                        struct kvf_error *error)
{
    struct kvf_vllm_interval own = {.struct_size = sizeof own};
    enum kvf_status status = kvfi_options_copy(&own, sizeof own, given, "interval", error);

    if (status != KVF_OK) return status;
    if (own.failed_transfers < 0 || own.failed_recvs < 0 || own.expired_reqs < 0)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "interval: %" PRId64 " failed transfers, %" PRId64
                         " failed requests, %" PRId64 " expired ones, expected at least 0", own.failed_transfers,
                         own.failed_recvs, own.expired_reqs);
    for (size_t i = 0; i < own.transfer_count; i++) {
        const struct kvf_vllm_transfer *transfer = &own.transfers[i];

        if (transfer->duration_ns < 0 || transfer->bytes < 0 || transfer->descriptors < 0)
            return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "interval: transfers[%zu] has %" PRId64 " ns, %" PRId64
                             " bytes, %" PRId64 " descriptors, expected at least 0", i, transfer->duration_ns,
                             transfer->bytes, transfer->descriptors);
    }
    *out = own;
    return KVF_OK;
}

/* ---- records ------------------------------------------------------------------------------------------------ */

void kvfi_vllm_record_transfer(struct kvfi_vllm_record *record, int64_t duration_ns, int64_t bytes,
                               int64_t descriptors)
{
    if (record->count == KVFI_VLLM_MAX_RECORDED) {
        record->count /= 2;
        memmove(record->transfers, record->transfers + record->count, record->count * sizeof *record->transfers);
    }
    if (!kvfi_array_grow((void **)&record->transfers, record->count, &record->capacity, sizeof *record->transfers))
        return;
    record->transfers[record->count++] = (struct kvf_vllm_transfer){duration_ns, bytes, descriptors};
}

void kvfi_vllm_record_take(struct kvfi_vllm_record *record, const struct kvf_vllm_worker_stats *now,
                           struct kvf_vllm_interval *out)
{
    *out = (struct kvf_vllm_interval){.struct_size = sizeof *out,
                                      .transfers = record->transfers,
                                      .transfer_count = record->count,
                                      .failed_transfers = now->failed_transfers - record->failed_transfers,
                                      .failed_recvs = now->failed_recvs - record->failed_recvs,
                                      .expired_reqs = now->expired_reqs - record->expired_reqs,
                                      .memory = record->transfers};
    *record = (struct kvfi_vllm_record){.failed_transfers = now->failed_transfers,
                                        .failed_recvs = now->failed_recvs,
                                        .expired_reqs = now->expired_reqs};
}

void kvf_vllm_interval_release(struct kvf_vllm_interval *interval)
{
    free(interval->memory);
    interval->memory = NULL;
    interval->transfers = NULL;
    interval->transfer_count = 0;
}

void kvfi_vllm_record_fini(struct kvfi_vllm_record *record)
{
    free(record->transfers);
    *record = (struct kvfi_vllm_record){0};
}

/* ---- numbers ------------------------------------------------------------------------------------------------ */

/* The shortest digits and the exponent of the first of them. */
static int shortest(double number, char digits[24], int *exponent)
{
    char text[KVFI_VLLM_NUMBER_BYTES];
    int count = 0;

    for (int precision = 0; precision < 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision, number);
        if (strtod(text, NULL) == number) break;
    }
    /* The point between the digits is the locale's. */
    for (const char *at = text; *at != 'e'; at++)
        if (isdigit((unsigned char)*at)) digits[count++] = *at;
    *exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    while (count > 1 && digits[count - 1] == '0') count--;
    return count;
}

static void put_exponent(char *out, const char *digits, int count, int exponent)
{
    (void)snprintf(out, KVFI_VLLM_NUMBER_BYTES, "%c%s%.*se%c%02d", digits[0], count > 1 ? "." : "", count - 1,
                   digits + 1, exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
}

const char *kvfi_vllm_number_text(double number, bool is_metric, char out[KVFI_VLLM_NUMBER_BYTES])
{
    char digits[24];
    int exponent, count = shortest(number, digits, &exponent), used = 0;

    if (exponent < -4 || exponent >= 16 || (is_metric && exponent >= 6)) {
        put_exponent(out, digits, count, exponent);
        return out;
    }
    if (exponent < 0) used = snprintf(out, KVFI_VLLM_NUMBER_BYTES, "0.%.*s", -exponent - 1, "000");
    for (int i = 0; i < count || i <= exponent; i++) {
        if (i == exponent + 1 && exponent >= 0) out[used++] = '.';
        out[used++] = i < count ? digits[i] : '0';
    }
    (void)snprintf(out + used, (size_t)(KVFI_VLLM_NUMBER_BYTES - used), "%s", count <= exponent + 1 ? ".0" : "");
    return out;
}
