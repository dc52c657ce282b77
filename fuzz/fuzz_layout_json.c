/* SPDX-License-Identifier: Apache-2.0 */
/* Layout files, and single layouts. What parses must survive the way to JSON and back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/instance.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const kvf_layout *layout)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(layout);
    char before[KVF_FINGERPRINT_TEXT_BYTES], after[KVF_FINGERPRINT_TEXT_BYTES];
    size_t places = 0;
    kvf_layout *copy = NULL;
    char *text = NULL;

    for (size_t i = 0; i < spec->view_count; i++) places += spec->views[i].place_count;
    if (places > 4096) goto done; /* seconds of printing, for nothing new */
    if (kvf_layout_to_json(layout, &text, NULL) != KVF_OK) abort();
    if (kvf_layout_from_json(text, strlen(text), &copy, NULL) != KVF_OK) abort();
    kvf_layout_fingerprint(layout, before);
    kvf_layout_fingerprint(copy, after);
    if (strcmp(before, after) != 0) abort();
done:
    kvf_layout_release(copy);
    kvf_text_free(text);
}

/* An error must be a line that can be shown. */
static void check_error(const struct kvf_error *error, size_t size)
{
    if (error->text[0] == '\0' || strchr(error->text, '\n')) abort();
    if (error->position < -1 || error->position > (int64_t)size) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvf_error error;
    kvf_instance *instance;
    kvf_layout *layout;

    if (kvf_instance_parse((const char *)data, size, &instance, &error) == KVF_OK) {
        round_trip(kvf_instance_layout(instance, kvf_instance_rank_count(instance) - 1));
        kvf_instance_destroy(instance);
    } else {
        check_error(&error, size);
    }
    if (kvf_layout_from_json((const char *)data, size, &layout, &error) == KVF_OK) {
        round_trip(layout);
        kvf_layout_release(layout);
    } else {
        check_error(&error, size);
    }
    return 0;
}
