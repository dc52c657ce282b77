/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one host that find each other by files. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/trtllm_meet.h"

/** When a process began, in the kernel's ticks; -1 when there is none. Pid and start name a process for good. */
static int64_t process_start(int64_t pid)
{
    char path[64], text[1024];
    int64_t start = -1;
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
    FILE *file = fopen(path, "re");
    size_t got = file != NULL ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    text[got] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may have blanks */
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at != NULL)
        start = strtoll(at + 1, NULL, 10);
    return start;
}

/** Name of a rank's file: for free(). */
static char *file_name(const struct trtllm_meet *meet, const char *instance, int64_t rank)
{
    size_t room = strlen(meet->folder) + strlen(instance) + 40;
    char *path = malloc(room);
    if (path == NULL)
        return NULL;
    size_t used = (size_t)snprintf(path, room, "%s/", meet->folder);
    for (const char *c = instance; *c != '\0'; c++)
        path[used++] = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-'
                           ? *c
                           : '_';
    snprintf(path + used, room - used, ".%" PRId64 ".json", rank);
    return path;
}

/** What a rank's file says: for json_decref(). NULL when there is none, or its process is gone. */
static json_t *read_peer(const struct trtllm_meet *meet, const char *instance, int64_t rank)
{
    char *path = file_name(meet, instance, rank);
    json_t *root = path != NULL ? json_load_file(path, 0, NULL) : NULL;
    int64_t start = json_integer_value(json_object_get(root, "start"));
    const char *name = json_string_value(json_object_get(root, "instance"));
    free(path);
    if (root != NULL && name != NULL && strcmp(name, instance) == 0 && start > 0 &&
        process_start(json_integer_value(json_object_get(root, "pid"))) == start)
        return root;
    json_decref(root);
    return NULL;
}

/** The process that is this rank already, as long as it lives; 0 = none. */
static int64_t find_double(const struct trtllm_meet *meet)
{
    json_t *root = read_peer(meet, meet->instance, meet->rank);
    int64_t pid = json_integer_value(json_object_get(root, "pid"));
    json_decref(root);
    return pid != (int64_t)getpid() ? pid : 0;
}

int trtllm_meet_write(const struct cli_command *command, const struct trtllm_meet *meet,
                      const struct kvf_trtllm_endpoints *endpoints, bool is_done)
{
    if (meet->folder == NULL)
        return CLI_OK;
    int64_t other = is_done ? 0 : find_double(meet);
    if (other != 0) {
        cli_error(command, "rank %" PRId64 " of \"%s\" is in %s already, as process %" PRId64
                  ": end that one, or take another folder", meet->rank, meet->instance, meet->folder, other);
        return CLI_INPUT;
    }
    char *path = file_name(meet, meet->instance, meet->rank);
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:s, s:s, s:b}", "instance", meet->instance, "rank",
                             (json_int_t)meet->rank, "pid", (json_int_t)getpid(), "start",
                             (json_int_t)process_start(getpid()), "sender", endpoints->sender, "info", endpoints->info,
                             "done", is_done);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    int code = CLI_FAILED;
    if (path != NULL && text != NULL)
        code = cli_write_file(command, path, text, strlen(text));
    else
        cli_error(command, "no memory for a file in %s", meet->folder);
    free(text);
    json_decref(root);
    free(path);
    return code;
}

void trtllm_meet_leave(const struct trtllm_meet *meet)
{
    char *path = meet->folder != NULL ? file_name(meet, meet->instance, meet->rank) : NULL;
    if (path != NULL)
        unlink(path);
    free(path);
}

/** A member of a file as text: for free(). */
static char *text_of(const json_t *root, const char *key)
{
    const char *text = json_string_value(json_object_get(root, key));
    return text != NULL && text[0] != '\0' ? strdup(text) : NULL;
}

bool trtllm_meet_gather(const struct trtllm_meet *meet, char **senders)
{
    bool all = true;
    for (int64_t r = 0; r < meet->size && all; r++) {
        json_t *root = read_peer(meet, meet->instance, r);
        free(senders[r]);
        senders[r] = text_of(root, "sender");
        all = senders[r] != NULL;
        json_decref(root);
    }
    return all;
}

char *trtllm_meet_info(const struct trtllm_meet *meet, const char *instance)
{
    json_t *root = read_peer(meet, instance, 0);
    char *info = text_of(root, "info");
    json_decref(root);
    return info;
}

bool trtllm_meet_all_done(const struct trtllm_meet *meet)
{
    bool all = true;
    for (int64_t r = 0; meet->folder != NULL && r < meet->size && all; r++) {
        json_t *root = r != meet->rank ? read_peer(meet, meet->instance, r) : NULL;
        all = root == NULL || json_is_true(json_object_get(root, "done"));
        json_decref(root);
    }
    return all;
}
