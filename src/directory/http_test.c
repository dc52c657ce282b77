/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP calls against servers that answer, stall, trickle, cut off, flood, and speak something else. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <poll.h>

#include "directory/http.h"
#include "directory/http_kit.h"
#include "sys/clock.h"

#define WAIT_MS 20000
#define PHASE_MS 300

static void answer_well(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    (void)kit;
    (void)context;
    (void)number;
    (void)bytes;
    http_kit_answer(fd, 200, strstr(request, "POST /a/register HTTP/1.1\r\n") && strstr(request, "\r\n\r\n{}") &&
                    strstr(request, "Content-Type: application/json\r\n") ? "posted" : "got");
}

static void answer_404(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    (void)kit;
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_answer(fd, 404, "{\"detail\":\"Not Found\"}");
}

static void redirect(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    static const char text[] = "HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n";

    (void)kit;
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_send(fd, text, sizeof text - 1);
}

static void say_nothing(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    (void)context;
    (void)fd;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_stall(kit, WAIT_MS);
}

/** A byte now and then: never silent for a phase, never done. */
static void trickle(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";

    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_send(fd, head, sizeof head - 1);
    while (http_kit_send(fd, " ", 1)) http_kit_stall(kit, PHASE_MS / 10);
}

/** Slow, but never for long: the whole takes more than a phase. */
static void dawdle(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n";

    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_send(fd, head, sizeof head - 1);
    for (int i = 0; i < 6; i++) {
        http_kit_stall(kit, PHASE_MS / 4);
        http_kit_send(fd, "x", 1);
    }
}

static void hang_up(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    (void)kit;
    (void)context;
    (void)fd;
    (void)number;
    (void)request;
    (void)bytes;
}

static void cut_off(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    static const char text[] = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"0\":";

    (void)kit;
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_send(fd, text, sizeof text - 1);
}

static void speak_smtp(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    static const char text[] = "220 mail ready\r\n\r\n";

    (void)kit;
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_send(fd, text, sizeof text - 1);
}

static void endless_headers(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    static const char head[] = "HTTP/1.1 200 OK\r\n", line[] = "x-header: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n";

    (void)kit;
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_send(fd, head, sizeof head - 1);
    while (http_kit_send(fd, line, sizeof line - 1)) continue;
}

static void ten_megabytes(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-length: 10485760\r\n\r\n";
    static const char block[65536];

    (void)kit;
    (void)context;
    (void)number;
    (void)request;
    (void)bytes;
    http_kit_send(fd, head, sizeof head - 1);
    for (int i = 0; i < 160 && http_kit_send(fd, block, sizeof block); i++) continue;
}

static struct kvfi_http_call *make_call(const char *base, const char *path, const char *body)
{
    struct kvfi_http_call *call = NULL;
    struct kvf_error error;

    if (kvfi_http_call_create(base, path, &call, &error) != KVF_OK) fail_msg("%s", error.text);
    if (body) kvfi_text_append(&call->body, body);
    call->phase_timeout_ns = PHASE_MS * KVFI_MS;
    call->most_answer_bytes = 1024 * 1024;
    return call;
}

static struct kvfi_http_call *next_call(struct kvfi_http *http)
{
    struct pollfd ready = {.fd = kvfi_http_fd(http), .events = POLLIN};
    struct kvfi_http_call *call;

    assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
    call = kvfi_http_take(http);
    assert_non_null(call);
    return call;
}

static struct kvfi_http *open_http(void)
{
    struct kvfi_http *http = NULL;
    struct kvf_error error;

    if (kvfi_http_open(&http, &error) != KVF_OK) fail_msg("%s", error.text);
    return http;
}

static void tells_what_became_of_a_call(void **state)
{
    static const struct {
        const char *name;
        http_kit_serve *serve;
        enum kvfi_http_outcome outcome;
        long code;
        const char *answer;
        int least_ms, most_ms;
    } rows[] = {
        {"an answer", answer_well, KVFI_HTTP_ANSWERED, 200, "got", 0, WAIT_MS},
        {"an error's answer", answer_404, KVFI_HTTP_ANSWERED, 404, "{\"detail\":\"Not Found\"}", 0, WAIT_MS},
        {"a redirect is not followed", redirect, KVFI_HTTP_ANSWERED, 307, "", 0, WAIT_MS},
        {"silence", say_nothing, KVFI_HTTP_TIMED_OUT, 0, NULL, PHASE_MS - 50, WAIT_MS},
        {"a trickle ends after four phases", trickle, KVFI_HTTP_TIMED_OUT, 0, NULL, 4 * PHASE_MS - 50, WAIT_MS},
        {"slow, but within each phase", dawdle, KVFI_HTTP_ANSWERED, 200, "xxxxxx", PHASE_MS, WAIT_MS},
        {"no answer", hang_up, KVFI_HTTP_CUT_OFF, 0, NULL, 0, WAIT_MS},
        {"half an answer", cut_off, KVFI_HTTP_CUT_OFF, 0, NULL, 0, WAIT_MS},
        {"something else", speak_smtp, KVFI_HTTP_MALFORMED, 0, NULL, 0, WAIT_MS},
        {"endless headers", endless_headers, KVFI_HTTP_TOO_LONG, 0, NULL, 0, WAIT_MS},
        {"too long an answer", ten_megabytes, KVFI_HTTP_TOO_LONG, 0, NULL, 0, WAIT_MS},
    };
    struct kvfi_http *http = open_http();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct http_kit *kit = http_kit_open(rows[i].serve, NULL);
        struct kvfi_http_call *call = make_call(http_kit_url(kit), "/query", NULL);
        int64_t started_ns = kvfi_now_ns(), ms;

        kvfi_http_post(http, call);
        assert_ptr_equal(next_call(http), call);
        ms = (kvfi_now_ns() - started_ns) / KVFI_MS;
        if (call->outcome != rows[i].outcome || call->code != rows[i].code || ms < rows[i].least_ms)
            fail_msg("%s: outcome %d, code %ld, after %d ms: %s", rows[i].name, call->outcome, call->code, (int)ms,
                     call->text);
        assert_int_equal(call->text[0] == '\0', call->outcome == KVFI_HTTP_ANSWERED);
        if (rows[i].answer) assert_string_equal(call->answer.count ? call->answer.bytes : "", rows[i].answer);
        kvfi_http_call_destroy(call);
        http_kit_close(kit);
    }
    kvfi_http_close(http);
}

static void posts_json_to_the_path_of_the_base(void **state)
{
    struct kvfi_http *http = open_http();
    struct http_kit *kit = http_kit_open(answer_well, NULL);
    struct kvfi_http_call *call;
    char base[100];

    (void)state;
    snprintf(base, sizeof base, "%s/a//", http_kit_url(kit));
    call = make_call(base, "/register", "{}");
    for (int i = 0; i < 2; i++) { /* a call may be made again */
        kvfi_http_post(http, call);
        assert_ptr_equal(next_call(http), call);
        assert_int_equal(call->outcome, KVFI_HTTP_ANSWERED);
        assert_string_equal(call->answer.bytes, "posted");
    }
    assert_int_equal(http_kit_requests(kit), 2);
    kvfi_http_call_destroy(call);
    http_kit_close(kit);
    kvfi_http_close(http);
}

static void nobody_there(void **state)
{
    struct kvfi_http *http = open_http();
    struct http_kit *kit = http_kit_open(hang_up, NULL);
    struct kvfi_http_call *call = make_call(http_kit_url(kit), "/query", NULL);

    (void)state;
    http_kit_close(kit);
    kvfi_http_post(http, call);
    assert_ptr_equal(next_call(http), call);
    assert_int_equal(call->outcome, KVFI_HTTP_UNREACHABLE);
    assert_non_null(strstr(call->text, "connect"));
    kvfi_http_call_destroy(call);
    kvfi_http_close(http);
}

static void refuses_what_is_no_url(void **state)
{
    static const char *const rows[] = {
        "", "/", "http://", "https://h:1", "ftp://h:1", "h:1", "http:///x", "http://:80", "http://h:1?x=1",
        "http://h:1/#a", "http://u:p@h:1", "http://h :1", "http://h:1\r\nx: y", "file:///etc/passwd", "http://h\\x"};
    char longest[KVFI_HTTP_URL_BYTES + 1];
    struct kvfi_http_call *call = NULL;
    struct kvf_error error;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (kvfi_http_call_create(rows[i], "/query", &call, &error) != KVF_ERR_INVALID_ARGUMENT)
            fail_msg("\"%s\" passed", rows[i]);
    assert_int_equal(kvfi_http_call_create(NULL, "/query", &call, &error), KVF_ERR_INVALID_ARGUMENT);
    memset(longest, 'x', sizeof longest);
    memcpy(longest, "http://", 7);
    longest[KVFI_HTTP_URL_BYTES] = '\0';
    assert_int_equal(kvfi_http_call_create(longest, "/query", &call, &error), KVF_ERR_INVALID_ARGUMENT);
    longest[KVFI_HTTP_URL_BYTES - 1] = '\0';
    assert_int_equal(kvfi_http_call_create(longest, "/query", &call, &error), KVF_OK);
    kvfi_http_call_destroy(call);
}

/** More calls than may run at a time, half of them never answered: the others are, and close leaves nothing. */
static void serve_every_second(struct http_kit *kit, void *context, int fd, int number, const char *request,
                               size_t bytes)
{
    (void)context;
    (void)number;
    (void)bytes;
    if (strstr(request, "/stall")) http_kit_stall(kit, WAIT_MS);
    else http_kit_answer(fd, 200, "{}");
}

static void many_calls_and_an_early_close(void **state)
{
    struct kvfi_http *http = open_http();
    struct http_kit *kit = http_kit_open(serve_every_second, NULL);
    const int count = KVFI_HTTP_MAX_RUNNING + 20;

    (void)state;
    for (int i = 0; i < count; i++) {
        struct kvfi_http_call *call = make_call(http_kit_url(kit), i % 2 ? "/stall" : "/query", NULL);

        call->phase_timeout_ns = WAIT_MS * KVFI_MS;
        kvfi_http_post(http, call);
    }
    for (int i = 0; i < count / 2; i++) {
        struct kvfi_http_call *call = next_call(http);

        assert_int_equal(call->outcome, KVFI_HTTP_ANSWERED);
        kvfi_http_call_destroy(call);
    }
    kvfi_http_close(http);
    http_kit_close(kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_what_became_of_a_call),
        cmocka_unit_test(posts_json_to_the_path_of_the_base),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(refuses_what_is_no_url),
        cmocka_unit_test(many_calls_and_an_early_close),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
