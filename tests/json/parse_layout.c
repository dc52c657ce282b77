/* SPDX-License-Identifier: Apache-2.0 */
/* Parses a layout file that comes on standard input: prints "ok", or the error. Exit status 0, or 1 when refused. */
#include <stdio.h>
#include <stdlib.h>

#include "kvferry/instance.h"

int main(void)
{
    size_t capacity = (size_t)4 << 20;
    char *text = malloc(capacity);
    size_t bytes = text ? fread(text, 1, capacity, stdin) : 0;
    kvf_instance *instance = NULL;
    struct kvf_error error;
    enum kvf_status status = kvf_instance_parse(text, bytes, &instance, &error);

    puts(status == KVF_OK ? "ok" : error.text);
    kvf_instance_destroy(instance);
    free(text);
    return status == KVF_OK ? 0 : 1;
}
