/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry mooncake: either role of the Mooncake transfer engine, by hand. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cmd_mooncake.h"

static const struct cli_command *const commands[] = {
    &cli_mooncake_probe_command,
    &cli_mooncake_serve_command,
    &cli_mooncake_write_command,
    &cli_mooncake_read_command,
    NULL,
};

static const struct cli_option options[] = {{0, NULL, NULL, NULL}};

void *mooncake_memory(const struct cli_command *command, int64_t bytes)
{
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED)
        return memory;
    char text[24];
    cli_error(command, "no memory of %s: %s", cli_format_bytes(bytes, text), strerror(errno));
    return NULL;
}

int64_t mooncake_file_bytes(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 ? (int64_t)found.st_size : -1;
}

int mooncake_load(const struct cli_command *command, const char *path, void *memory, int64_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int64_t done = 0;
    ssize_t got = 1;
    while (fd >= 0 && got != 0 && done < bytes) {
        got = read(fd, (char *)memory + done, (size_t)(bytes - done));
        if (got < 0 && errno != EINTR)
            break;
        done += got > 0 ? got : 0;
    }
    int code = fd >= 0 && got >= 0 ? CLI_OK : CLI_INPUT;
    if (code != CLI_OK)
        cli_error(command, "%s: cannot be read: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return code;
}

bool mooncake_number(const char *text, uint64_t *out)
{
    char *end = NULL;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, hex ? 16 : 10);
    if (errno != 0 || *end != '\0')
        return false;
    *out = number;
    return true;
}

json_t *mooncake_json(uint64_t number)
{
    char text[24];
    if (number <= INT64_MAX)
        return json_integer((json_int_t)number);
    snprintf(text, sizeof(text), "0x%" PRIx64, number);
    return json_string(text);
}

bool mooncake_json_number(const json_t *value, uint64_t *out)
{
    if (json_is_string(value))
        return mooncake_number(json_string_value(value), out);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

int mooncake_print_json(const struct cli_command *command, json_t *root)
{
    char *text = root != NULL ? json_dumps(root, 0) : NULL;
    int code = text != NULL ? CLI_OK : CLI_FAILED;
    if (text != NULL)
        printf("%s\n", text);
    else
        cli_error(command, "no memory for the answer");
    free(text);
    json_decref(root);
    return cli_finish_output(command, code);
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    return cli_run_below(command, commands, "probe, serve, write or read", argc, argv);
}

const struct cli_command cli_mooncake_command = {
    .name = "mooncake",
    .summary = "speak to Mooncake transfer engines: ask one, be one, write and read",
    .operands = "probe|serve|write|read ...",
    .about = "  probe   show what a live engine publishes, and check that data can flow\n"
             "  serve   be an engine: register memory that peers write and read\n"
             "  write   write ranges to an engine's memory\n"
             "  read    read ranges from an engine's memory\n"
             "\n"
             "'kvferry mooncake COMMAND --help' tells more; docs/mooncake.md has the whole. The protocol has no\n"
             "authentication: whoever reaches an engine reads and writes all that it registered.",
    .options = options,
    .examples = "  kvferry mooncake serve --bytes 64MiB\n"
                "  kvferry mooncake probe 127.0.0.1:15321\n"
                "  kvferry mooncake write 127.0.0.1:15321 --file cache.bin",
    .run = run,
};
