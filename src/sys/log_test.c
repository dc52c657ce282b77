/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "sys/clock.h"
#include "sys/log.h"

struct kept {
    int lines, level;
    char text[2048];
};

static void keep(void *context, int level, const char *text)
{
    struct kept *kept = context;
    kept->lines++;
    kept->level = level;
    strncpy(kept->text, text, sizeof(kept->text) - 1);
}

static void test_sink_gets_what_its_level_lets_through(void **state)
{
    struct kept kept = {0};
    struct kvf_log_sink sink = {.write = keep, .context = &kept, .level = KVF_LOG_WARN};
    struct kvfi_log log;

    (void)state;
    kvfi_log_init(&log, &sink);
    kvfi_logf(&log, KVF_LOG_INFO, "too quiet");
    assert_int_equal(kept.lines, 0);
    kvfi_logf(&log, KVF_LOG_WARN, "peer \"%s\": %d bytes", "d/pp0", 7);
    assert_int_equal(kept.lines, 1);
    assert_int_equal(kept.level, KVF_LOG_WARN);
    assert_string_equal(kept.text, "peer \"d/pp0\": 7 bytes");
    kvfi_logf(NULL, KVF_LOG_ERROR, "nobody listens");
    kvfi_log_fini(&log);
}

static void test_descriptor_gets_whole_lines(void **state)
{
    int ends[2];
    char text[4096] = "", longer[3000];
    struct kvf_log_sink sink = {.level = KVF_LOG_TRACE};
    struct kvfi_log log;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    sink.fd = ends[1];
    kvfi_log_init(&log, &sink);
    kvfi_logf(&log, KVF_LOG_ERROR, "a port is in use");
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_string_equal(text, "kvferry error: a port is in use\n");
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    kvfi_logf(&log, KVF_LOG_INFO, "%s", longer);
    ssize_t bytes = read(ends[0], text, sizeof(text) - 1);
    assert_in_range(bytes, 1000, 1200);
    assert_int_equal(text[bytes - 1], '\n');
    kvfi_log_fini(&log);
    close(ends[0]);
    close(ends[1]);
}

static void test_no_sink_logs_nothing(void **state)
{
    struct kvf_log_sink sink = {.level = KVF_LOG_TRACE};
    struct kvfi_log log;

    (void)state;
    kvfi_log_init(&log, &sink);
    kvfi_logf(&log, KVF_LOG_ERROR, "to nobody");
    kvfi_log_fini(&log);
}

static void test_clock_and_random_numbers(void **state)
{
    int64_t before = kvfi_now_ns();
    uint64_t first = kvfi_random_u64(), second = kvfi_random_u64();

    (void)state;
    assert_true(kvfi_now_ns() >= before);
    assert_true(first != 0 && second != 0 && first != second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sink_gets_what_its_level_lets_through),
        cmocka_unit_test(test_descriptor_gets_whole_lines),
        cmocka_unit_test(test_no_sink_logs_nothing),
        cmocka_unit_test(test_clock_and_random_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
