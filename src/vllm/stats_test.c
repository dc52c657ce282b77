/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics: the figures that upstream's class reduces the same numbers to, and the text of its Prometheus client. The
 * argument is the folder of golden files. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "vllm/stats.h"

static const char *folder;

enum { MOST = 5000 };

/* Transfers that any language can make again. */
static void make(struct kvf_vllm_transfer *out, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i].duration_ns = (int64_t)((seed >> 33) % 1000000000);
        out[i].bytes = (int64_t)((seed >> 20) % ((uint64_t)1 << 34));
        out[i].descriptors = (int64_t)((seed >> 40) % 100000);
    }
}

static void reduces_as_upstream(void **state)
{
    static const struct {
        size_t count;
        const char *values[KVF_VLLM_FIGURES];
    } rows[] = {
        {0, {"0", "0", "0", "0", "0", "0", "0", "0", "0"}},
        {1, {"1", "649.718", "649.718", "10595.85", "16308.389", "88419.0", "1", "1", "1"}},
        {2, {"2", "470.337", "652.112", "12679.997", "26959.414", "74503.5", "2", "2", "2"}},
        {3, {"3", "742.234", "921.12", "2451.599", "3302.998", "73704.3", "0", "3", "3"}},
        {7, {"7", "524.988", "833.976", "8241.128", "15697.756", "53250.9", "1", "3", "2"}},
        {8, {"8", "408.439", "686.232", "9055.533", "22171.053", "47183.0", "2", "0", "3"}},
        {9, {"9", "339.098", "814.83", "8078.613", "23823.811", "67260.4", "0", "1", "4"}},
        {10, {"10", "603.072", "929.926", "7956.983", "13194.088", "47748.4", "1", "2", "0"}},
        {11, {"11", "458.861", "796.755", "6489.749", "14143.163", "58716.2", "2", "3", "1"}},
        {100, {"100", "430.578", "910.248", "8213.831", "19076.294", "46889.6", "1", "0", "0"}},
        {128, {"128", "450.771", "881.679", "8744.539", "19399.072", "50456.5", "2", "0", "3"}},
        {129, {"129", "465.93", "847.508", "8048.578", "17274.237", "49473.7", "0", "1", "4"}},
        {300, {"300", "472.345", "892.167", "8191.668", "17342.548", "51237.5", "0", "0", "0"}},
        {1000, {"1000", "464.503", "890.216", "8202.619", "17658.906", "50481.0", "1", "0", "0"}},
        {5000, {"5000", "468.075", "890.328", "8115.942", "17338.961", "48783.9", "2", "0", "0"}},
    };
    static const char *const keys[KVF_VLLM_FIGURES] = {
        "Num successful transfers", "Avg xfer time (ms)", "P90 xfer time (ms)", "Avg MB per transfer",
        "Throughput (MB/s)", "Avg number of descriptors", "Num failed transfers", "Num failed recvs",
        "Num KV expired reqs"};
    struct kvf_vllm_transfer *transfers = calloc(MOST, sizeof *transfers);

    (void)state;
    assert_non_null(transfers);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvf_vllm_interval parts[2] = {{.struct_size = sizeof parts[0]}, {.struct_size = sizeof parts[0]}};
        struct kvf_vllm_figure figures[KVF_VLLM_FIGURES];
        char line[512], expected[512];
        size_t used = 0;

        /* Two workers: their transfers one after the other. */
        make(transfers, rows[i].count, rows[i].count + 1);
        parts[0].transfers = transfers;
        parts[0].transfer_count = rows[i].count / 3;
        parts[1].transfers = transfers + rows[i].count / 3;
        parts[1].transfer_count = rows[i].count - rows[i].count / 3;
        parts[1].failed_transfers = (int64_t)rows[i].count % 3;
        parts[0].failed_recvs = (int64_t)rows[i].count % 4;
        parts[1].expired_reqs = (int64_t)rows[i].count % 5;
        assert_int_equal(kvf_vllm_interval_reduce(parts, 2, figures, NULL), KVF_OK);
        for (int k = 0; k < KVF_VLLM_FIGURES; k++)
            used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%s=%s",
                                     k ? ", " : "KV Transfer metrics: ", keys[k], rows[i].values[k]);
        assert_int_equal(kvf_vllm_figures_text(figures, line, sizeof line), used);
        assert_string_equal(line, expected);
    }
    free(transfers);
}

static void reduces_transfers_of_no_time(void **state)
{
    static const struct kvf_vllm_transfer transfer = {0, 5, 1};
    const struct kvf_vllm_interval interval = {.struct_size = sizeof interval, .transfers = &transfer,
                                               .transfer_count = 1};
    struct kvf_vllm_figure figures[KVF_VLLM_FIGURES];
    char line[64];

    (void)state;
    assert_int_equal(kvf_vllm_interval_reduce(&interval, 1, figures, NULL), KVF_OK);
    assert_true(figures[4].value == 0 && figures[4].is_fraction);
    assert_true(kvf_vllm_figures_text(figures, line, 30) > 200); /* cut */
    assert_string_equal(line, "KV Transfer metrics: Num succ");
    assert_true(kvf_vllm_figures_text(figures, NULL, 0) > 200);
    assert_int_equal(kvf_vllm_interval_reduce(NULL, 0, figures, NULL), KVF_OK);
    assert_string_equal(figures[0].key, "Num successful transfers");
}

static void refuses_numbers_below_0(void **state)
{
    kvf_vllm_metrics *metrics = NULL;

    (void)state;
    assert_int_equal(kvf_vllm_metrics_create("m", "0", &metrics, NULL), KVF_OK);
    for (int i = 0; i < 7; i++) {
        struct kvf_vllm_transfer transfer = {1, 1, 1};
        struct kvf_vllm_interval interval = {.struct_size = sizeof interval, .transfers = &transfer,
                                             .transfer_count = 1};
        struct kvf_vllm_figure figures[KVF_VLLM_FIGURES];
        size_t before, after;

        if (i == 0) transfer.duration_ns = -1;
        if (i == 1) transfer.bytes = -1;
        if (i == 2) transfer.descriptors = -1;
        if (i == 3) interval.failed_transfers = -1;
        if (i == 4) interval.failed_recvs = -1;
        if (i == 5) interval.expired_reqs = -1;
        if (i == 6) interval.struct_size = 1;
        assert_int_equal(kvf_vllm_interval_reduce(&interval, 1, figures, NULL), KVF_ERR_INVALID_ARGUMENT);
        assert_int_equal(kvf_vllm_metrics_text(metrics, NULL, 0, &before, NULL), KVF_OK);
        assert_int_equal(kvf_vllm_metrics_observe(metrics, &interval, NULL), KVF_ERR_INVALID_ARGUMENT);
        assert_int_equal(kvf_vllm_metrics_text(metrics, NULL, 0, &after, NULL), KVF_OK);
        assert_int_equal(before, after);
    }
    kvf_vllm_metrics_destroy(metrics);
}

/* ---- Prometheus --------------------------------------------------------------------------------------------- */

static void exports_as_the_python_client(void **state)
{
    static const struct kvf_vllm_transfer first[] = {{4000000, 2048, 1}, {5000000, 2049, 10}};
    static const struct kvf_vllm_transfer second[] = {
        {123456789, 1 << 30, 254000}, {6000000000, 17179869184, 60000}, {333, 1, 11}};
    const struct kvf_vllm_interval intervals[] = {
        {.struct_size = sizeof *intervals, .transfers = first, .transfer_count = 2, .failed_transfers = 1},
        {.struct_size = sizeof *intervals, .transfers = second, .transfer_count = 3, .failed_transfers = 1,
         .expired_reqs = 3}};
    char path[1024], golden[16384], text[16384];
    kvf_vllm_metrics *metrics = NULL;
    size_t golden_bytes, count = 0;
    FILE *file;

    (void)state;
    (void)snprintf(path, sizeof path, "%s/metrics.txt", folder);
    file = fopen(path, "r");
    assert_non_null(file);
    golden_bytes = fread(golden, 1, sizeof golden - 1, file);
    golden[golden_bytes] = '\0';
    (void)fclose(file);
    assert_int_equal(kvf_vllm_metrics_create("org/mo\"del\\x", "0", &metrics, NULL), KVF_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kvf_vllm_metrics_observe(metrics, &intervals[i], NULL), KVF_OK);
    assert_int_equal(kvf_vllm_metrics_text(metrics, NULL, 0, &count, NULL), KVF_OK);
    assert_int_equal(count, golden_bytes);
    assert_int_equal(kvf_vllm_metrics_text(metrics, text, count, &count, NULL), KVF_ERR_LIMIT);
    assert_int_equal(kvf_vllm_metrics_text(metrics, text, count + 1, &count, NULL), KVF_OK);
    assert_string_equal(text, golden);
    kvf_vllm_metrics_destroy(metrics);
}

static void escapes_labels(void **state)
{
    kvf_vllm_metrics *metrics = NULL;
    char text[16384];
    size_t count;

    (void)state;
    assert_int_equal(kvf_vllm_metrics_create(NULL, "0", &metrics, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_int_equal(kvf_vllm_metrics_create("m", "\xff", &metrics, NULL), KVF_ERR_INVALID_ARGUMENT);
    assert_null(metrics);
    assert_int_equal(kvf_vllm_metrics_create("a\nb", "\\\"", &metrics, NULL), KVF_OK);
    assert_int_equal(kvf_vllm_metrics_text(metrics, text, sizeof text, &count, NULL), KVF_OK);
    assert_non_null(strstr(text, "{engine=\"\\\\\\\"\",model_name=\"a\\nb\"} 0.0\n"));
    kvf_vllm_metrics_destroy(metrics);
    kvf_vllm_metrics_destroy(NULL);
}

static void writes_numbers_as_python(void **state)
{
    static const struct {
        double number;
        bool is_metric;
        const char *text;
    } rows[] = {
        {0, false, "0.0"}, {1, false, "1.0"}, {0.1, false, "0.1"}, {0.1 + 0.2, false, "0.30000000000000004"},
        {0.0001, false, "0.0001"}, {0.00001, false, "1e-05"}, {1.5e-7, false, "1.5e-07"}, {120, false, "120.0"},
        {1234567.25, false, "1234567.25"}, {1234567.25, true, "1.23456725e+06"}, {999999, true, "999999.0"},
        {1e6, true, "1e+06"}, {8589934592, true, "8.589934592e+09"}, {1e15, false, "1000000000000000.0"},
        {1e16, false, "1e+16"}, {1.5e16, true, "1.5e+16"}, {1e100, false, "1e+100"},
        {123456789012345.6, false, "123456789012345.6"}, {5e-324, false, "5e-324"}};
    char text[KVFI_VLLM_NUMBER_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(kvfi_vllm_number_text(rows[i].number, rows[i].is_metric, text), rows[i].text);
}

/* ---- records ------------------------------------------------------------------------------------------------ */

static void records_and_forgets_the_oldest(void **state)
{
    struct kvf_vllm_worker_stats now = {.failed_recvs = 2, .expired_reqs = 3, .failed_transfers = 1};
    struct kvfi_vllm_record record = {0};
    struct kvf_vllm_interval interval;

    (void)state;
    for (int64_t i = 0; i <= KVFI_VLLM_MAX_RECORDED; i++) kvfi_vllm_record_transfer(&record, i, 2 * i, 1);
    kvfi_vllm_record_take(&record, &now, &interval);
    assert_int_equal(interval.struct_size, sizeof interval);
    assert_int_equal(interval.transfer_count, KVFI_VLLM_MAX_RECORDED / 2 + 1);
    assert_int_equal(interval.transfers[0].duration_ns, KVFI_VLLM_MAX_RECORDED / 2);
    assert_int_equal(interval.transfers[interval.transfer_count - 1].bytes, 2 * KVFI_VLLM_MAX_RECORDED);
    assert_int_equal(interval.failed_transfers, 1);
    assert_int_equal(interval.failed_recvs, 2);
    assert_int_equal(interval.expired_reqs, 3);
    kvf_vllm_interval_release(&interval);
    assert_int_equal(interval.transfer_count, 0);
    now.expired_reqs = 5;
    kvfi_vllm_record_take(&record, &now, &interval);
    assert_int_equal(interval.transfer_count + (size_t)interval.failed_recvs, 0);
    assert_int_equal(interval.expired_reqs, 2);
    assert_null(interval.memory);
    kvf_vllm_interval_release(&interval);
    kvfi_vllm_record_transfer(&record, 1, 1, 1);
    kvfi_vllm_record_fini(&record);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduces_as_upstream),
        cmocka_unit_test(reduces_transfers_of_no_time),
        cmocka_unit_test(refuses_numbers_below_0),
        cmocka_unit_test(exports_as_the_python_client),
        cmocka_unit_test(escapes_labels),
        cmocka_unit_test(writes_numbers_as_python),
        cmocka_unit_test(records_and_forgets_the_oldest),
    };

    if (count != 2) return 2;
    folder = arguments[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
