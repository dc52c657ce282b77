/* SPDX-License-Identifier: Apache-2.0 */
/* Packs the sample of each message type to exactly the bytes in tests/golden/wire/NAME.hex, and reads them back.
 *
 *     golden_test FOLDER [--write]     --write makes the files anew */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samples.h"

#define LINE_BYTES 32

static void path_of(const char *folder, enum kvfi_message_type type, char *path, size_t path_bytes)
{
    snprintf(path, path_bytes, "%s/%s.hex", folder, kvfi_message_name(type));
}

static bool write_golden(const char *path, const struct kvfi_buffer *buffer)
{
    FILE *file = fopen(path, "w");

    if (!file) return false;
    for (size_t i = 0; i < buffer->count; i++)
        fprintf(file, "%02x%s", buffer->bytes[i], (i + 1) % LINE_BYTES == 0 || i + 1 == buffer->count ? "\n" : "");
    return fclose(file) == 0;
}

static size_t read_golden(const char *path, unsigned char *bytes, size_t capacity)
{
    FILE *file = fopen(path, "r");
    size_t count = 0;
    unsigned value;

    if (!file) return 0;
    while (count < capacity && fscanf(file, "%2x", &value) == 1) bytes[count++] = (unsigned char)value;
    fclose(file);
    return count;
}

static bool same_layout(const kvf_layout *a, const kvf_layout *b)
{
    const struct kvf_layout_spec *s = kvf_layout_get_spec(a), *t = kvf_layout_get_spec(b);
    bool same = s->memory_count == t->memory_count && s->pool_count == t->pool_count &&
                s->group_count == t->group_count && s->view_count == t->view_count &&
                memcmp(s->memory_bytes, t->memory_bytes, s->memory_count * sizeof *s->memory_bytes) == 0 &&
                memcmp(s->pools, t->pools, s->pool_count * sizeof *s->pools) == 0 &&
                memcmp(s->groups, t->groups, s->group_count * sizeof *s->groups) == 0;

    for (size_t i = 0; same && i < s->view_count; i++) {
        struct kvf_view v = s->views[i], w = t->views[i];

        same = strcmp(v.role, w.role) == 0 && strcmp(v.tag, w.tag) == 0 && v.place_count == w.place_count &&
               memcmp(v.places, w.places, v.place_count * sizeof *v.places) == 0;
        v.role = w.role;
        v.tag = w.tag;
        v.places = w.places;
        same = same && memcmp(&v, &w, sizeof v) == 0;
    }
    return same;
}

/** Reads the bytes, and packs what was read: it must give the same bytes, and hello the same layout. */
static bool reads_back(const unsigned char *bytes, size_t count, kvf_layout *layout)
{
    struct kvfi_message message = {.type = KVFI_MSG_NONE};
    struct kvfi_buffer again = {0};
    struct kvf_error error = {.text = "bytes differ"};
    bool ok = kvfi_wire_unpack(bytes, count, &message, &error) == KVF_OK &&
              kvfi_wire_pack(&message, &again, &error) == KVF_OK && again.count == count &&
              memcmp(again.bytes, bytes, count) == 0 && kvfi_wire_recognise(bytes, count);

    if (ok && message.type == KVFI_MSG_HELLO) ok = same_layout(message.hello.layout, layout);
    if (!ok) printf("  reading back: %s\n", error.text);
    kvfi_message_fini(&message);
    kvfi_buffer_fini(&again);
    return ok;
}

/** Every shorter piece of a message is refused. */
static bool refuses_pieces(const unsigned char *bytes, size_t count)
{
    bool ok = true;

    for (size_t length = 0; length < count && ok; length++) {
        struct kvfi_message message = {.type = KVFI_MSG_NONE};
        unsigned char *piece = malloc(length ? length : 1);

        memcpy(piece, bytes, length);
        ok = kvfi_wire_unpack(piece, length, &message, NULL) == KVF_ERR_PROTOCOL;
        if (!ok) printf("  the first %zu bytes were not refused\n", length);
        kvfi_message_fini(&message);
        free(piece);
    }
    return ok;
}

static bool check_type(const char *folder, enum kvfi_message_type type, kvf_layout *layout, bool write)
{
    unsigned char golden[4096];
    struct kvfi_buffer buffer = {0};
    struct kvfi_message message;
    struct kvf_error error;
    char path[512];
    size_t count;
    bool ok = false;

    path_of(folder, type, path, sizeof path);
    sample_message(type, layout, &message);
    if (kvfi_wire_pack(&message, &buffer, &error) != KVF_OK) {
        printf("  packing: %s\n", error.text);
        goto done;
    }
    if (write && !write_golden(path, &buffer)) goto done;
    count = read_golden(path, golden, sizeof golden);
    ok = count == buffer.count && memcmp(golden, buffer.bytes, count) == 0;
    if (!ok) printf("  %zu bytes differ from the %zu of %s\n", buffer.count, count, path);
    ok = ok && reads_back(golden, count, layout) && refuses_pieces(golden, count);
done:
    printf("%s %s\n", ok ? "ok" : "FAILED", kvfi_message_name(type));
    kvfi_buffer_fini(&buffer);
    return ok;
}

int main(int argc, char **argv)
{
    bool write = argc > 2 && strcmp(argv[2], "--write") == 0;
    kvf_layout *layout = sample_layout();
    bool ok = argc > 1 && layout;

    for (int type = KVFI_MSG_HELLO; argc > 1 && layout && type < KVFI_MSG_TYPES; type++)
        ok = check_type(argv[1], (enum kvfi_message_type)type, layout, write) && ok;
    kvf_layout_release(layout);
    return ok ? 0 : 1;
}
