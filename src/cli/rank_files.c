/* SPDX-License-Identifier: Apache-2.0 */
/* Files of ranks: one or a folder of them, JSON, names with the rank in them. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/rank_files.h"

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int each_of_folder(const struct cli_command *command, const char *path, rank_files_take *take, void *context)
{
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, is_visible, alphasort), code = CLI_OK;
    for (int i = 0; i < count; i++) {
        size_t room = strlen(path) + strlen(entries[i]->d_name) + 2;
        char *file = malloc(room);
        if (file != NULL && code == CLI_OK) {
            snprintf(file, room, "%s/%s", path, entries[i]->d_name);
            code = take(command, file, context);
        }
        code = file == NULL ? CLI_FAILED : code;
        free(file);
        free(entries[i]);
    }
    free(entries);
    return code;
}

int rank_files_each(const struct cli_command *command, const char *path, rank_files_take *take, void *context)
{
    struct stat status;
    bool is_folder = strcmp(path, "-") != 0 && stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    return is_folder ? each_of_folder(command, path, take, context) : take(command, path, context);
}

int rank_file_parse(const struct cli_command *command, const char *path, const char *text, size_t bytes, json_t **out)
{
    json_error_t parse;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &parse);
    if (*out != NULL)
        return CLI_OK;
    cli_error(command, "%s: byte %d: %s", path, parse.position, parse.text);
    return CLI_INPUT;
}

int rank_file_read(const struct cli_command *command, const char *path, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    int code = cli_read_file(command, path, RANK_FILE_LIMIT, &text, &bytes);
    if (code == CLI_OK)
        code = rank_file_parse(command, path, text, bytes, out);
    free(text);
    return code;
}

char *rank_file_name(const char *name, int64_t rank, int64_t pp_rank)
{
    size_t room = strlen(name) * 12 + 1, used = 0;
    char *path = malloc(room);
    for (const char *c = name; path != NULL && *c != '\0'; c++) {
        if (c[0] == '%' && (c[1] == 'r' || (c[1] == 'p' && pp_rank >= 0))) {
            used += (size_t)snprintf(path + used, room - used, "%" PRId64, c[1] == 'r' ? rank : pp_rank);
            c++;
        } else {
            path[used++] = *c;
        }
    }
    if (path != NULL)
        path[used] = '\0';
    return path;
}

int rank_file_look_ahead(const struct cli_command *command, const char *path)
{
    char *folder = path != NULL ? strdup(path) : NULL;
    char *slash = folder != NULL ? strrchr(folder, '/') : NULL;
    int code = CLI_OK;
    if (slash != NULL)
        slash[slash == folder ? 1 : 0] = '\0';
    if (path != NULL && folder == NULL) {
        cli_error(command, "no memory for the name of a file");
        code = CLI_FAILED;
    } else if (folder != NULL && access(slash != NULL ? folder : ".", W_OK | X_OK) != 0) {
        cli_error(command, "%s: cannot be written: %s", path, strerror(errno));
        code = CLI_INPUT;
    }
    free(folder);
    return code;
}
