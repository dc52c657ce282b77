/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over every file of the folders and files named on the command line. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    int result = -1;
    uint8_t *bytes = NULL;
    struct stat status;
    FILE *file = fopen(path, "rb");

    if (file == NULL || fstat(fileno(file), &status) != 0) {
        perror(path);
        goto done;
    }
    size_t size = (size_t)status.st_size;
    /* Exactly as large as the input, so that a read past its end is seen; never NULL. */
    bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL || fread(bytes, 1, size, file) != size) {
        perror(path);
        goto done;
    }
    LLVMFuzzerTestOneInput(bytes, size);
    result = 1;
done:
    free(bytes);
    if (file != NULL) {
        fclose(file);
    }
    return result;
}

static int replay_folder(const char *path)
{
    int count = 0;
    struct dirent *entry;
    DIR *folder = opendir(path);

    if (folder == NULL) {
        perror(path);
        return -1;
    }
    while (count >= 0 && (entry = readdir(folder)) != NULL) {
        char name[4096];
        if (entry->d_name[0] == '.') {
            continue;
        }
        if ((size_t)snprintf(name, sizeof(name), "%s/%s", path, entry->d_name) >= sizeof(name)) {
            count = -1;
        } else {
            count = replay_file(name) < 0 ? -1 : count + 1;
        }
    }
    closedir(folder);
    return count;
}

int main(int argc, char **argv)
{
    int total = 0;

    for (int i = 1; i < argc; i++) {
        struct stat status;
        int count = -1;
        if (stat(argv[i], &status) != 0) {
            perror(argv[i]);
        } else {
            count = S_ISDIR(status.st_mode) ? replay_folder(argv[i]) : replay_file(argv[i]);
        }
        if (count < 0) {
            return 1;
        }
        total += count;
    }
    printf("%d inputs replayed\n", total);
    return total > 0 ? 0 : 1;
}
