/* SPDX-License-Identifier: Apache-2.0 */
/* Worker processes of the demo, and the lines of JSON between them and the coordinator. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/demo.h"

#define LINE_LIMIT ((size_t)1 << 20)

extern char **environ;

int demo_process_start(const struct cli_command *command, const char *name, int gather_fd, struct demo_process *out)
{
    int down[2] = {-1, -1}, up[2] = {-1, -1}, failed = 0;
    char parent[24];
    posix_spawn_file_actions_t actions;
    struct demo_process process = {.in = -1, .out = -1, .pid = -1};
    snprintf(process.name, sizeof(process.name), "%s", name);
    snprintf(parent, sizeof(parent), "%ld", (long)getpid());
    char *arguments[] = {"kvferry", "demo-worker", parent, NULL};
    posix_spawn_file_actions_init(&actions);
    if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0)
        failed = errno;
    if (failed == 0) {
        posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&actions, gather_fd, DEMO_GATHER_FD);
        failed = posix_spawn(&process.pid, "/proc/self/exe", &actions, NULL, arguments, environ);
    }
    posix_spawn_file_actions_destroy(&actions);
    if (down[0] >= 0)
        close(down[0]);
    if (up[1] >= 0)
        close(up[1]);
    process.in = down[1];
    process.out = up[0];
    *out = process;
    if (failed == 0)
        return CLI_OK;
    out->pid = -1;
    cli_error(command, "worker %s cannot be started: %s", name, strerror(failed));
    return CLI_FAILED;
}

static void say_how_it_ended(const struct cli_command *command, struct demo_process *process)
{
    int status = 0;
    pid_t ended = 0;
    for (int i = 0; i < 200 && ended == 0; i++) { /* its pipe is closed: the end is near */
        ended = waitpid(process->pid, &status, WNOHANG);
        if (ended == 0)
            poll(NULL, 0, 10);
    }
    if (ended != process->pid)
        cli_error(command, "worker %s closed its output", process->name);
    else if (WIFSIGNALED(status))
        cli_error(command, "worker %s was killed by signal %d (%s)", process->name, WTERMSIG(status),
                  strsignal(WTERMSIG(status)));
    else
        cli_error(command, "worker %s ended early with exit code %d", process->name, WEXITSTATUS(status));
    if (ended == process->pid)
        process->pid = -1;
}

int demo_process_send(const struct cli_command *command, struct demo_process *process, json_t *message)
{
    char *text = message != NULL ? json_dumps(message, JSON_COMPACT) : NULL;
    size_t bytes = text != NULL ? strlen(text) : 0, sent = 0;
    json_decref(message);
    if (text == NULL) {
        cli_error(command, "no memory for a message to worker %s", process->name);
        return CLI_FAILED;
    }
    text[bytes++] = '\n'; /* takes the place of the closing zero */
    while (sent < bytes) {
        ssize_t put = write(process->in, text + sent, bytes - sent);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            break;
        sent += (size_t)put;
    }
    free(text);
    if (sent == bytes)
        return CLI_OK;
    say_how_it_ended(command, process);
    return CLI_FAILED;
}

/** Reads what a worker has written. Returns false at its end. */
static bool read_more(struct demo_process *process)
{
    if (process->room - process->used < 4096) {
        size_t room = process->room + 65536;
        char *larger = room <= LINE_LIMIT ? realloc(process->line, room) : NULL;
        if (larger == NULL)
            return false;
        process->line = larger;
        process->room = room;
    }
    ssize_t got = read(process->out, process->line + process->used, process->room - process->used);
    if (got < 0 && errno == EINTR)
        return true;
    if (got <= 0)
        return false;
    process->used += (size_t)got;
    return true;
}

/** Takes the next whole line as a message; NULL when there is none. */
static json_t *take_message(struct demo_process *process)
{
    char *end = process->used > 0 ? memchr(process->line, '\n', process->used) : NULL;
    if (end == NULL)
        return NULL;
    size_t bytes = (size_t)(end - process->line);
    json_t *message = json_loadb(process->line, bytes, 0, NULL);
    memmove(process->line, end + 1, process->used - bytes - 1);
    process->used -= bytes + 1;
    return message != NULL ? message : json_object();
}

/** Hands out a process's messages; the awaited one becomes its answer. */
static void take_messages(struct demo_process *process, size_t index, const char *event, json_t **answer,
                          demo_message_fn other, void *context)
{
    json_t *message = NULL;
    while (!process->answered && (message = take_message(process)) != NULL) {
        const char *kind = json_string_value(json_object_get(message, "event"));
        if (kind != NULL && strcmp(kind, event) == 0) {
            process->answered = true;
            *answer = json_incref(message);
        } else if (other != NULL) {
            other(context, index, message);
        }
        json_decref(message);
    }
}

/** Waits for something to read. Returns the number of descriptors ready, 0 at the deadline. */
static int wait_for_output(struct demo_process *processes, size_t count, struct pollfd *waits, int64_t deadline)
{
    for (size_t i = 0; i < count; i++)
        waits[i] = (struct pollfd){.fd = processes[i].answered ? -1 : processes[i].out, .events = POLLIN};
    int64_t left = deadline - cli_now_ns();
    if (left <= 0)
        return 0;
    int ready = poll(waits, count, (int)(left / 1000000) + 1);
    return ready < 0 ? 1 : ready;
}

int demo_processes_collect(const struct cli_command *command, struct demo_process *processes, size_t count,
                           const char *event, int64_t timeout_ns, json_t **answers, demo_message_fn other,
                           void *context)
{
    struct pollfd *waits = calloc(count + 1, sizeof(*waits));
    int64_t deadline = cli_now_ns() + timeout_ns;
    size_t left = count;
    int code = waits != NULL ? CLI_OK : CLI_FAILED;
    for (size_t i = 0; i < count; i++) {
        processes[i].answered = false;
        answers[i] = NULL;
    }
    while (code == CLI_OK && left > 0) {
        left = 0;
        for (size_t i = 0; i < count; i++) {
            take_messages(&processes[i], i, event, &answers[i], other, context);
            left += !processes[i].answered;
        }
        if (left > 0 && wait_for_output(processes, count, waits, deadline) == 0) {
            for (size_t i = 0; i < count; i++) {
                if (!processes[i].answered)
                    cli_error(command, "worker %s did not say \"%s\" within %.0f s", processes[i].name, event,
                              (double)timeout_ns / 1e9);
            }
            code = CLI_PEER;
        }
        for (size_t i = 0; code == CLI_OK && left > 0 && i < count; i++) {
            if (waits[i].revents != 0 && !processes[i].answered && !read_more(&processes[i])) {
                say_how_it_ended(command, &processes[i]);
                code = CLI_FAILED;
            }
        }
    }
    for (size_t i = 0; code != CLI_OK && i < count; i++) {
        json_decref(answers[i]);
        answers[i] = NULL;
    }
    free(waits);
    return code;
}

void demo_processes_end(struct demo_process *processes, size_t count, bool kill_now)
{
    for (size_t i = 0; i < count; i++) {
        if (processes[i].in >= 0)
            close(processes[i].in);
        if (kill_now && processes[i].pid > 0)
            kill(processes[i].pid, SIGKILL);
    }
    int64_t deadline = cli_now_ns() + 5 * INT64_C(1000000000);
    for (size_t i = 0; i < count; i++) {
        while (processes[i].pid > 0 && waitpid(processes[i].pid, NULL, WNOHANG) == 0) {
            if (cli_now_ns() > deadline)
                kill(processes[i].pid, SIGKILL);
            poll(NULL, 0, 2);
        }
        if (processes[i].out >= 0)
            close(processes[i].out);
        free(processes[i].line);
        processes[i] = (struct demo_process){.pid = -1, .in = -1, .out = -1};
    }
}
