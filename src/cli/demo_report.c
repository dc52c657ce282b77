/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's results as a table and as JSON. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/demo.h"

void demo_print_table(const struct demo_result *results, size_t count)
{
    char bytes[24], pieces[32], runs[32], first[24], wall[24];
    printf("%-7s %-9s %8s %10s %7s %10s %11s %9s %6s %10s %6s  %s\n", "case", "transport", "requests", "moved",
           "pieces", "runs", "1st contact", "wall time", "GB/s", "bare loop", "ratio", "verdict");
    for (size_t i = 0; i < count; i++) {
        const struct demo_result *r = &results[i];
        printf("%-7s %-9s %8" PRId64 " %10s %7s %10s %11s %9s %6.2f %10.2f %6.2f  %s\n", r->shape, r->transport,
               r->requests, cli_format_bytes(r->bytes, bytes), cli_format_count(r->pieces, pieces),
               cli_format_count(r->runs, runs), cli_format_ns(r->first_contact_ns, first),
               cli_format_ns(r->wall_ns, wall), r->gb_per_s, r->bare_gb_per_s,
               r->bare_gb_per_s > 0 ? r->gb_per_s / r->bare_gb_per_s : 0, r->right ? "every byte right" : "WRONG");
    }
    for (size_t i = 0; i < count; i++) {
        if (!results[i].right)
            printf("%s over %s: %s\n", results[i].shape, results[i].transport, results[i].verdict);
    }
}

void demo_print_json(const struct demo_settings *settings, const struct demo_data *data,
                     const struct demo_result *results, size_t count)
{
    json_t *rows = json_array();
    bool right = true;
    for (size_t i = 0; i < count; i++) {
        const struct demo_result *r = &results[i];
        right = right && r->right;
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "case", r->shape,
                            "transport", r->transport, "right", (int)r->right, "verdict", r->verdict, "requests",
                            (json_int_t)r->requests, "bytes", (json_int_t)r->bytes, "pieces", (json_int_t)r->pieces,
                            "runs", (json_int_t)r->runs, "first_contact_ns", (json_int_t)r->first_contact_ns, "wall_ns",
                            (json_int_t)r->wall_ns, "gb_per_s", r->gb_per_s, "bare_loop_gb_per_s", r->bare_gb_per_s,
                            "ratio", r->bare_gb_per_s > 0 ? r->gb_per_s / r->bare_gb_per_s : 0.0));
    }
    json_t *root = json_pack("{s:b, s:I, s:I, s:I, s:I, s:o}", "right", (int)right, "requests",
                             (json_int_t)settings->requests, "tokens", (json_int_t)data->tokens, "layers",
                             (json_int_t)data->layers, "kv_heads", (json_int_t)data->heads, "runs", rows);
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}
