/* SPDX-License-Identifier: Apache-2.0 */
/* Files in and out, standard output, the clock, signals. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

#define LAYOUT_FILE_LIMIT ((size_t)64 << 20)

/** Reads a descriptor to its end into `*out`, `limit` bytes at most. */
static int read_all(const struct cli_command *command, const char *path, int fd, size_t limit, char **out,
                    size_t *bytes)
{
    size_t used = 0, room = 65536;
    char *text = malloc(room);
    int code = CLI_FAILED;
    while (text != NULL) {
        ssize_t got = read(fd, text + used, room - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            cli_error(command, "%s: cannot be read: %s", path, strerror(errno));
            code = CLI_INPUT;
            goto done;
        }
        if (got == 0) {
            text[used] = '\0';
            *out = text;
            *bytes = used;
            text = NULL;
            code = CLI_OK;
            goto done;
        }
        used += (size_t)got;
        if (used > limit) {
            cli_error(command, "%s: longer than %zu bytes", path, limit);
            code = CLI_INPUT;
            goto done;
        }
        if (room - used < 2) {
            char *larger = realloc(text, room * 2);
            if (larger == NULL)
                break;
            text = larger;
            room *= 2;
        }
    }
    cli_error(command, "%s: no memory for its text", path);
done:
    free(text);
    return code;
}

int cli_read_file(const struct cli_command *command, const char *path, size_t limit, char **out, size_t *bytes)
{
    if (strcmp(path, "-") == 0)
        return read_all(command, "standard input", STDIN_FILENO, limit, out, bytes);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        cli_error(command, "%s: cannot be opened: %s", path, strerror(errno));
        return CLI_INPUT;
    }
    int code = read_all(command, path, fd, limit, out, bytes);
    close(fd);
    return code;
}

static bool write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t put = write(fd, text, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        text += put;
        bytes -= (size_t)put;
    }
    return true;
}

int cli_write_file(const struct cli_command *command, const char *path, const char *text, size_t bytes)
{
    if (path == NULL || strcmp(path, "-") == 0) {
        if (fwrite(text, 1, bytes, stdout) == bytes)
            return CLI_OK;
        cli_error(command, "standard output cannot be written: %s", strerror(errno));
        return CLI_FAILED;
    }
    size_t room = strlen(path) + 16;
    char *temporary = malloc(room);
    int fd = -1, code = CLI_FAILED;
    if (temporary == NULL)
        goto done;
    snprintf(temporary, room, "%s.XXXXXX", path);
    fd = mkstemp(temporary);
    if (fd < 0 || fchmod(fd, 0644) != 0 || !write_all(fd, text, bytes) || rename(temporary, path) != 0) {
        cli_error(command, "%s: cannot be written: %s", path, strerror(errno));
        if (fd >= 0)
            unlink(temporary);
        code = CLI_INPUT;
        goto done;
    }
    code = CLI_OK;
done:
    if (fd >= 0)
        close(fd);
    free(temporary);
    return code;
}

int cli_read_instance(const struct cli_command *command, const char *path, kvf_instance **out)
{
    char *text = NULL;
    size_t bytes = 0;
    struct kvf_error error = {.position = -1};
    int code = cli_read_file(command, path, LAYOUT_FILE_LIMIT, &text, &bytes);
    if (code == CLI_OK && kvf_instance_parse(text, bytes, out, &error) != KVF_OK)
        code = cli_library_error(command, path, &error);
    free(text);
    return code;
}

int cli_finish_output(const struct cli_command *command, int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    cli_error(command, "standard output cannot be written: %s", strerror(errno));
    return code == CLI_OK ? CLI_FAILED : code;
}

int64_t cli_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int cli_signal_fd(void)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &wanted, NULL) != 0)
        return -1;
    return signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
}
