/* SPDX-License-Identifier: Apache-2.0 */
#include "waiting.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "bench.h"

static struct lines lines_of(int fd)
{
    struct lines lines = {fdopen(dup(fd), "r"), fdopen(fd, "w")};

    if (lines.in == NULL || lines.out == NULL)
        bench_fail("no stream: %s", strerror(errno));
    return lines;
}

void say(struct lines *lines, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(lines->out, format, arguments);
    va_end(arguments);
    fputc('\n', lines->out);
    fflush(lines->out);
}

bool hear(struct lines *lines, char line[LINE_BYTES]) { return fgets(line, LINE_BYTES, lines->in) != NULL; }

/* The end of the parent ends its children. */
struct child start(void (*run)(struct lines *lines, int64_t number), int64_t number)
{
    struct child child;
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        bench_fail("socketpair: %s", strerror(errno));
    fflush(stdout);
    child.pid = fork();
    if (child.pid < 0)
        bench_fail("fork: %s", strerror(errno));
    if (child.pid == 0) {
        struct lines lines = lines_of(ends[1]);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        run(&lines, number);
        _exit(0);
    }
    close(ends[1]);
    child.lines = lines_of(ends[0]);
    return child;
}

const char *answer_of(struct child *child)
{
    static char line[LINE_BYTES];

    if (!hear(&child->lines, line))
        bench_fail("process %d ended before it answered", (int)child->pid);
    return line;
}

const char *ask(struct child *child, const char *line)
{
    say(&child->lines, "%s", line);
    return answer_of(child);
}

void end(struct child *child)
{
    shutdown(fileno(child->lines.out), SHUT_RDWR);
    waitpid(child->pid, NULL, 0);
}

void *open_socket(void *context, int type)
{
    void *socket = zmq_socket(context, type);
    int none = 0, backlog = 1024;

    if (socket == NULL)
        bench_fail("a socket of libzmq: %s", zmq_strerror(errno));
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_BACKLOG, &backlog, sizeof backlog);
    return socket;
}

void run_bare(struct lines *lines, int64_t number)
{
    void *context = zmq_ctx_new(), *router = open_socket(context, ZMQ_ROUTER);
    char endpoint[256], line[LINE_BYTES];
    size_t endpoint_bytes = sizeof endpoint;
    int64_t greeted = 0;

    (void)number;
    if (zmq_bind(router, "tcp://127.0.0.1:*") != 0 ||
        zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &endpoint_bytes) != 0)
        bench_fail("a bare ROUTER: %s", zmq_strerror(errno));
    say(lines, "%s", endpoint);
    while (hear(lines, line)) {
        int64_t wanted = strtoll(line + strlen("memory "), NULL, 10);

        while (greeted < wanted) {
            char bytes[64];

            if (zmq_recv(router, bytes, sizeof bytes, 0) < 0 || zmq_recv(router, bytes, sizeof bytes, 0) < 0)
                bench_fail("a bare ROUTER: %s", zmq_strerror(errno));
            greeted++;
        }
        say(lines, "%" PRId64, bench_resident_bytes());
    }
}
