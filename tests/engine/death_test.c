/* SPDX-License-Identifier: Apache-2.0 */
/* Workers in processes of their own, killed while waiting, in the middle, and after the end. What the other side must
 * do:
 * notice within the peer timeout, end its transfers with a reason, and give its blocks back once nobody can write
 * there.
 *
 *   death_test WORKER TRANSPORTS
 */
#include "kit.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *worker_path, *transports;
static kvf_directory *directory;

enum { TOKENS = 1024 };                   /* all 64 blocks of a worker */
enum { LAYER_BYTES = 64 * 16 * 4 * 512 * 2 }; /* blocks, tokens, heads, row, K and V */

struct worker {
    pid_t pid;
    FILE *in, *out;
};

/* ---- processes ---- */

static struct worker start(const char *role, const char *fault)
{
    struct worker worker = {0};
    int down[2], up[2];

    assert_int_equal(pipe(down), 0);
    assert_int_equal(pipe(up), 0);
    worker.pid = fork();
    if (worker.pid == 0) {
        dup2(down[0], 0);
        dup2(up[1], 1);
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        if (fault != NULL)
            setenv("WORKER_FAULT", fault, 1);
        execl(worker_path, worker_path, role, transports, kvf_directory_url(directory), (char *)NULL);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    worker.in = fdopen(down[1], "w");
    worker.out = fdopen(up[0], "r");
    return worker;
}

/* One line, or the test fails after 30 s. */
static void hear(struct worker *worker, char *line, size_t bytes)
{
    struct pollfd poller = {.fd = fileno(worker->out), .events = POLLIN};

    assert_int_equal(poll(&poller, 1, 30000), 1);
    if (fgets(line, (int)bytes, worker->out) == NULL)
        fail_msg("the worker ended");
    line[strcspn(line, "\n")] = '\0';
}

static void expect(struct worker *worker, const char *part)
{
    char line[1024];
    hear(worker, line, sizeof line);
    if (strstr(line, part) == NULL)
        fail_msg("\"%s\", expected \"%s\"", line, part);
}

static void say(struct worker *worker, const char *command)
{
    fprintf(worker->in, "%s\n", command);
    fflush(worker->in);
}

static void ask(struct worker *worker, const char *command, const char *part)
{
    say(worker, command);
    expect(worker, part);
}

static void end(struct worker *worker, int signal_number)
{
    if (worker->pid == 0)
        return;
    if (signal_number != 0)
        kill(worker->pid, signal_number);
    fclose(worker->in);
    fclose(worker->out);
    waitpid(worker->pid, NULL, 0);
    worker->pid = 0;
}

static struct worker up(const char *role, const char *fault)
{
    struct worker worker = start(role, fault);
    expect(&worker, "up");
    return worker;
}

/* The terminal event with PEER_LOST comes within the timeout (2 s, and some slack for a busy machine). The line
 * about the lost peer may come first. */
static void expect_lost(struct worker *worker, int kind, const char *text)
{
    int64_t began = kit_now_ns();
    char line[1024], wanted[64];

    snprintf(wanted, sizeof wanted, "1 %d KVF_ERR_PEER_LOST t:", kind);
    do {
        say(worker, "event");
        hear(worker, line, sizeof line);
    } while (strncmp(line, "1 6 ", 4) == 0);
    if (strncmp(line, wanted, strlen(wanted)) != 0 || strstr(line, text) == NULL)
        fail_msg("\"%s\", expected \"%s ... %s\"", line, wanted, text);
    if (kit_now_ns() - began > 4 * SECOND)
        fail_msg("noticed after %lld ms", (long long)((kit_now_ns() - began) / MS));
}

static void expect_reusable(struct worker *worker)
{
    char line[1024];
    do {
        say(worker, "event");
        hear(worker, line, sizeof line);
    } while (strncmp(line, "1 6 ", 4) == 0);
    if (strncmp(line, "1 5 KVF_OK t:", 13) != 0)
        fail_msg("\"%s\", expected the blocks back", line);
}

/* ---- cases ---- */

static void test_prefill_dies_while_waited_for(void **unused)
{
    struct worker p = up("p", NULL), d = up("d", NULL);
    (void)unused;
    ask(&d, "pull t 1024 60000", "ok");
    ask(&p, "offer t 1024 0 60000", "ok"); /* nothing is ready; the hello has passed once bytes could flow */
    ask(&p, "ready t 1 16", "KVF_OK");
    ask(&p, "sent 1", "sent");
    end(&p, SIGKILL);
    expect_lost(&d, KVF_EVENT_PULL_FAILED, "p/pp0.cp0.tp0");
    expect_reusable(&d);
    end(&d, 0);
}

static void test_prefill_dies_in_the_middle(void **unused)
{
    struct worker p = up("p", NULL), d = up("d", NULL);
    (void)unused;
    ask(&p, "offer t 1024 0 60000", "ok");
    ask(&p, "ready t 2 1024", "KVF_OK");
    ask(&d, "pull t 1024 60000", "ok");
    ask(&p, "sent 8388608", "sent");
    end(&p, SIGKILL);
    expect_lost(&d, KVF_EVENT_PULL_FAILED, "p/pp0.cp0.tp0");
    expect_reusable(&d);
    /* and comes back: the same decode worker pulls from its successor */
    p = up("p", NULL);
    ask(&p, "offer u 1024 1024 60000", "ok");
    ask(&d, "pull u 1024 60000", "ok");
    ask(&d, "event", "1 1 KVF_OK u:");
    ask(&d, "check 1024", "right");
    end(&p, 0);
    end(&d, 0);
}

static void test_decode_dies_in_the_middle(void **unused)
{
    struct worker p = up("p", NULL), d = up("d", NULL);
    (void)unused;
    ask(&p, "offer t 1024 512 60000", "ok");
    ask(&d, "pull t 1024 60000", "ok");
    ask(&p, "sent 8388608", "sent");
    end(&d, SIGKILL);
    expect_lost(&p, KVF_EVENT_OFFER_FAILED, "d/pp0.cp0.tp0");
    expect_reusable(&p);
    end(&p, 0);
}

static void test_decode_dies_while_it_waits(void **unused)
{
    struct worker p = up("p", NULL), d = up("d", NULL);
    (void)unused;
    ask(&p, "offer t 1024 0 60000", "ok");
    ask(&d, "pull t 1024 60000", "ok");
    ask(&p, "ready t 4 16", "KVF_OK");
    ask(&p, "sent 1", "sent");
    end(&d, SIGKILL);
    expect_lost(&p, KVF_EVENT_OFFER_FAILED, "d/pp0.cp0.tp0");
    expect_reusable(&p);
    end(&p, 0);
}

static void test_deaths_after_the_end(void **unused)
{
    struct worker p = up("p", NULL), d = up("d", NULL);
    (void)unused;
    ask(&p, "offer t 1024 1024 60000", "ok");
    ask(&d, "pull t 1024 60000", "ok");
    ask(&d, "event", "1 1 KVF_OK t:");
    ask(&p, "event", "1 3 KVF_OK t:");
    end(&p, SIGKILL);
    expect_reusable(&d);
    ask(&d, "check 1024", "right");
    p = up("p", NULL);
    end(&d, SIGKILL);
    d = up("d", NULL);
    ask(&p, "offer t 1024 1024 60000", "ok"); /* both are new: the same id is a new one to them */
    ask(&d, "pull t 1024 60000", "ok");
    ask(&d, "event", "1 1 KVF_OK t:");
    ask(&p, "event", "1 3 KVF_OK t:");
    end(&p, 0);
    end(&d, 0);
}

/* Chunks are posted and their bytes stand still half way. */
static void test_deaths_in_mid_bytes(void **unused)
{
    (void)unused;
    for (int who = 0; who < 2; who++) {
        struct worker p = up("p", "stall"), d = up("d", NULL);
        ask(&p, "offer t 1024 1024 60000", "ok");
        ask(&d, "pull t 1024 60000", "ok");
        ask(&d, "quiet", "0");
        end(who == 0 ? &p : &d, SIGKILL);
        expect_lost(who == 0 ? &d : &p, who == 0 ? KVF_EVENT_PULL_FAILED : KVF_EVENT_OFFER_FAILED, "pp0.cp0.tp0");
        expect_reusable(who == 0 ? &d : &p);
        end(&p, 0);
        end(&d, 0);
    }
}

/* Stopped is as silent as dead; when it goes on, nobody is harmed. */
static void test_prefill_stands_still(void **unused)
{
    struct worker p = up("p", NULL), d = up("d", NULL);
    (void)unused;
    ask(&p, "offer t 1024 0 60000", "ok");
    ask(&d, "pull t 1024 60000", "ok");
    ask(&p, "ready t 1 1024", "KVF_OK");
    ask(&p, "sent 4194304", "sent");
    kill(p.pid, SIGSTOP);
    expect_lost(&d, KVF_EVENT_PULL_FAILED, "p/pp0.cp0.tp0");
    expect_reusable(&d);
    kill(p.pid, SIGCONT);
    expect_lost(&p, KVF_EVENT_OFFER_FAILED, "d/pp0.cp0.tp0");
    expect_reusable(&p);
    ask(&p, "offer u 1024 1024 60000", "ok");
    ask(&d, "pull u 1024 60000", "ok");
    ask(&d, "event", "1 1 KVF_OK u:");
    ask(&d, "check 1024", "right");
    end(&p, 0);
    end(&d, 0);
}

static int open_directory(void **unused)
{
    (void)unused;
    signal(SIGPIPE, SIG_IGN);
    return kvf_directory_open(NULL, &directory, NULL) == KVF_OK ? 0 : -1;
}

static int close_directory(void **unused)
{
    (void)unused;
    kvf_directory_close(directory);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill_dies_while_waited_for),
        cmocka_unit_test(test_prefill_dies_in_the_middle),
        cmocka_unit_test(test_decode_dies_in_the_middle),
        cmocka_unit_test(test_decode_dies_while_it_waits),
        cmocka_unit_test(test_deaths_after_the_end),
        cmocka_unit_test(test_deaths_in_mid_bytes),
        cmocka_unit_test(test_prefill_stands_still),
    };
    if (argc < 3)
        return 2;
    worker_path = argv[1];
    transports = argv[2];
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
