/* SPDX-License-Identifier: Apache-2.0 */
/* A directory for tests in other languages: directory_host LISTEN LEASE_MS MAX_RANKS FLAGS. Prints its URL, or why not;
 * serves until its standard input ends. */
#include <stdio.h>
#include <stdlib.h>

#include "kvferry/directory.h"

int main(int argc, char **argv)
{
    struct kvf_directory_options options;
    kvf_directory *directory = NULL;
    struct kvf_error error;

    kvf_directory_options_init(&options, sizeof options);
    if (argc > 1) options.listen = argv[1];
    if (argc > 2) options.lease_ns = strtoll(argv[2], NULL, 10) * 1000000;
    if (argc > 3) options.max_ranks = strtoll(argv[3], NULL, 10);
    if (argc > 4) options.flags = strtoull(argv[4], NULL, 10);
    if (kvf_directory_open(&options, &directory, &error) != KVF_OK) {
        printf("%s %s\n", kvf_status_name(error.status), error.text);
        return 1;
    }
    printf("%s\n", kvf_directory_url(directory));
    fflush(stdout);
    while (getchar() != EOF) continue;
    kvf_directory_close(directory);
    return 0;
}
