/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/layout.h"
#include "layout/worked_examples.h"

static const struct golden {
    const char *name;
    void (*make)(struct worked_example *, int);
    int destination;
    size_t bytes;
    const char *fingerprint;
} goldens[] = {
    {"first, source", worked_example_first, 0, 426, "30daea4d52890584546eb0592e2c0f83"},
    {"first, destination", worked_example_first, 1, 426, "4c91cc3a64624bf787e3eeb5a5dcb415"},
    {"second, source", worked_example_second, 0, 923, "69273852d0872af70f0d0953ea7d5279"},
    {"second, destination", worked_example_second, 1, 923, "93f943577194c27c625b2ed938611d4d"},
};

static kvf_layout *create(const struct kvf_layout_spec *spec)
{
    struct kvf_error error = {0};
    kvf_layout *layout = NULL;

    if (kvf_layout_create(spec, &layout, &error) != KVF_OK) fail_msg("%s", error.text);
    return layout;
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        struct worked_example example;
        char text[KVF_FINGERPRINT_TEXT_BYTES];
        unsigned char *bytes;
        kvf_layout *layout;
        size_t count;

        goldens[i].make(&example, goldens[i].destination);
        layout = create(&example.spec);
        assert_int_equal(kvfi_layout_canonical(layout, &bytes, &count), KVF_OK);
        if (count != goldens[i].bytes) fail_msg("%s: %zu bytes", goldens[i].name, count);
        assert_memory_equal(bytes, "KVFL\x01\0\0\0", 8);
        assert_int_equal(kvf_layout_fingerprint(layout, text), KVF_OK);
        if (strcmp(text, goldens[i].fingerprint) != 0) fail_msg("%s: %s", goldens[i].name, text);
        free(bytes);
        kvf_layout_release(layout);
    }
}

/* What changes a fingerprint and what does not. */
enum change { NOTHING, MEMORY, BASE, SLOTS, VIEW_ORDER, PLACE_ORDER, STRIDE, TAG, FLAGS, STRIPE, OFFSET, RING };

static void apply(struct worked_example *example, enum change change)
{
    struct kvf_view view = example->views[0];
    struct kvf_place place = example->places[0][0];

    switch (change) {
    case NOTHING: break;
    case MEMORY: example->memory_bytes[0] = 1 << 30; break;
    case BASE: example->pools[0].base_offset_bytes = 4096; break;
    case SLOTS: example->pools[0].slots = 7; break;
    case VIEW_ORDER: example->views[0] = example->views[1]; example->views[1] = view; break;
    case PLACE_ORDER: example->places[0][0] = example->places[0][1]; example->places[0][1] = place; break;
    case STRIDE: example->pools[0].slot_stride_bytes += 64; break;
    case TAG: example->views[0].tag = "f16"; break;
    case FLAGS: example->views[0].flags = KVF_VIEW_OPTIONAL; break;
    case STRIPE: example->groups[0].stripes = 2; break;
    case OFFSET: example->places[1][1].offset_bytes += 64 * 1024 * 1024; break;
    case RING: example->groups[0].ring_tokens = 64; break;
    }
}

static void test_what_it_covers(void **state)
{
    static const struct { const char *name; enum change change; bool same; } rows[] = {
        {"nothing", NOTHING, true}, {"memory size", MEMORY, true}, {"base offset", BASE, true},
        {"capacity", SLOTS, true}, {"order of views", VIEW_ORDER, true}, {"order of places", PLACE_ORDER, true},
        {"slot stride", STRIDE, false}, {"tag", TAG, false}, {"flags", FLAGS, false}, {"stripes", STRIPE, false},
        {"an offset", OFFSET, false}, {"ring", RING, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct worked_example example;
        char text[KVF_FINGERPRINT_TEXT_BYTES];
        kvf_layout *layout;

        worked_example_first(&example, 0);
        apply(&example, rows[i].change);
        layout = create(&example.spec);
        assert_int_equal(kvf_layout_fingerprint(layout, text), KVF_OK);
        if ((strcmp(text, goldens[0].fingerprint) == 0) != rows[i].same) fail_msg("%s: %s", rows[i].name, text);
        kvf_layout_release(layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_what_it_covers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
