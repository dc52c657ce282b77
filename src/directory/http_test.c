/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP calls against servers that answer, stall, trickle, cut off, flood, and speak something else. */
#include <limits.h>
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
    if (strstr(request, "POST /a/register HTTP/1.1\r\n") && strstr(request, "\r\n\r\n{}") &&
        strstr(request, "Content-Type: application/json\r\n"))
        http_kit_answer(fd, 200, "posted");
    else
        http_kit_answer(fd, 200, strstr(request, "GET /a/register HTTP/1.1\r\n") ? "got" : "neither");
}

/** What a server says that does as it likes: a text, then another over and over, each time after a pause. */
struct script {
    const char *text, *again;
    size_t again_bytes;
    int times, pause_ms;
};

static void follow_script(struct http_kit *kit, void *context, int fd, int number, const char *request, size_t bytes)
{
    const struct script *script = context;
    bool listens;

    (void)number;
    (void)request;
    (void)bytes;
    listens = !script->text || http_kit_send(fd, script->text, strlen(script->text));
    for (int i = 0; listens && i < script->times; i++) {
        if (script->pause_ms > 0) http_kit_stall(kit, script->pause_ms);
        listens = !script->again || http_kit_send(fd, script->again, script->again_bytes);
    }
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
    static const char header[] = "x-header: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n", block[65536];
    static const struct {
        const char *name;
        struct script script;
        enum kvfi_http_outcome outcome;
        long code;
        const char *answer;
        int least_ms;
    } rows[] = {
        {"an answer", {"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ngot", NULL, 0, 0, 0},
         KVFI_HTTP_ANSWERED, 200, "got", 0},
        {"an error's answer", {"HTTP/1.1 404 X\r\ncontent-length: 22\r\n\r\n{\"detail\":\"Not Found\"}", NULL, 0, 0, 0},
         KVFI_HTTP_ANSWERED, 404, "{\"detail\":\"Not Found\"}", 0},
        {"a redirect is not followed",
         {"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n", NULL, 0, 0, 0},
         KVFI_HTTP_ANSWERED, 307, "", 0},
        {"silence", {NULL, NULL, 0, 1, WAIT_MS}, KVFI_HTTP_TIMED_OUT, 0, NULL, PHASE_MS - 50},
        /* a byte now and then: never silent for a phase, never done */
        {"a trickle ends after four phases",
         {"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", " ", 1, INT_MAX, PHASE_MS / 10},
         KVFI_HTTP_TIMED_OUT, 0, NULL, 4 * PHASE_MS - 50},
        /* slow, but never for long: the whole takes more than a phase */
        {"slow, but within each phase", {"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n", "x", 1, 6, PHASE_MS / 4},
         KVFI_HTTP_ANSWERED, 200, "xxxxxx", PHASE_MS},
        {"no answer", {NULL, NULL, 0, 0, 0}, KVFI_HTTP_CUT_OFF, 0, NULL, 0},
        {"half an answer", {"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"0\":", NULL, 0, 0, 0},
         KVFI_HTTP_CUT_OFF, 0, NULL, 0},
        {"something else", {"220 mail ready\r\n\r\n", NULL, 0, 0, 0}, KVFI_HTTP_MALFORMED, 0, NULL, 0},
        {"endless headers", {"HTTP/1.1 200 OK\r\n", header, sizeof header - 1, INT_MAX, 0},
         KVFI_HTTP_TOO_LONG, 0, NULL, 0},
        {"too long an answer",
         {"HTTP/1.1 200 OK\r\ncontent-length: 10485760\r\n\r\n", block, sizeof block, 160, 0},
         KVFI_HTTP_TOO_LONG, 0, NULL, 0},
    };
    struct kvfi_http *http = open_http();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct script script = rows[i].script;
        struct http_kit *kit = http_kit_open(follow_script, &script);
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

static void gets_and_posts_json_at_the_path_of_the_base(void **state)
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
    kvfi_http_call_destroy(call);
    call = make_call(base, "/register", NULL);
    kvfi_http_post(http, call);
    assert_ptr_equal(next_call(http), call);
    assert_string_equal(call->answer.bytes, "got");
    kvfi_http_call_destroy(call);
    assert_int_equal(http_kit_requests(kit), 3);
    http_kit_close(kit);
    kvfi_http_close(http);
}

static void nobody_there(void **state)
{
    struct kvfi_http *http = open_http();
    struct script nothing = {0};
    struct http_kit *kit = http_kit_open(follow_script, &nothing);
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
        cmocka_unit_test(gets_and_posts_json_at_the_path_of_the_base),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(refuses_what_is_no_url),
        cmocka_unit_test(many_calls_and_an_early_close),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
