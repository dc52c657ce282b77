/* SPDX-License-Identifier: Apache-2.0 */
/* Shareable memory: claimed, zeroed, mapped a second time; and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvferry/memory.h"

static void claimed_zeroed_and_shared(void **state)
{
    static const struct { const char *name; int64_t bytes; uint32_t flags; } rows[] = {
        {"one byte", 1, 0},
        {"a page and a bit", 4097, 0},
        {"8 MiB", 8 << 20, 0},
        {"8 MiB, huge pages asked", 8 << 20, KVF_MEMORY_HUGE_PAGES},
        {"odd, huge pages asked", 123457, KVF_MEMORY_HUGE_PAGES},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvf_memory *memory = NULL;
        struct kvf_error error;
        struct stat file;
        char *other;
        char *own;

        if (kvf_memory_create(rows[i].bytes, rows[i].flags, &memory, &error) != KVF_OK)
            fail_msg("%s: %s", rows[i].name, error.text);
        own = kvf_memory_address(memory);
        assert_int_equal(kvf_memory_bytes(memory), rows[i].bytes);
        assert_int_equal(fstat(kvf_memory_fd(memory), &file), 0);
        assert_true(file.st_blocks * 512 >= rows[i].bytes);
        other = mmap(NULL, (size_t)rows[i].bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kvf_memory_fd(memory), 0);
        assert_ptr_not_equal(other, MAP_FAILED);
        for (int64_t at = 0; at < rows[i].bytes; at += 997) assert_int_equal(own[at], 0);
        other[rows[i].bytes - 1] = 'x';
        assert_int_equal(own[rows[i].bytes - 1], 'x');
        assert_int_equal(ftruncate(kvf_memory_fd(memory), rows[i].bytes + 1), -1);
        munmap(other, (size_t)rows[i].bytes);
        kvf_memory_destroy(memory);
    }
    kvf_memory_destroy(NULL);
}

static void refused(void **state)
{
    static const struct { const char *name; int64_t bytes; uint32_t flags; int status; const char *text; } rows[] = {
        {"nothing", 0, 0, KVF_ERR_INVALID_ARGUMENT, "memory of 0 bytes, flags 0x0: expected above 0 bytes"},
        {"negative", -5, 0, KVF_ERR_INVALID_ARGUMENT, "memory of -5 bytes"},
        {"unknown flag", 4096, 6, KVF_ERR_INVALID_ARGUMENT, "flags 0x6: expected"},
        {"a petabyte", INT64_C(1) << 50, 0, KVF_ERR_NO_MEMORY, "memory of 1125899906842624 bytes: only "},
        {"the largest number", INT64_MAX, 0, KVF_ERR_NO_MEMORY, "memory of 9223372036854775807 bytes: "},
        {"a petabyte of huge pages", INT64_C(1) << 50, 1, KVF_ERR_NO_MEMORY, "memory of 1125899906842624 bytes: only "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvf_memory *memory = NULL;
        struct kvf_error error = {0};

        assert_int_equal(kvf_memory_create(rows[i].bytes, rows[i].flags, &memory, &error), rows[i].status);
        assert_null(memory);
        if (!strstr(error.text, rows[i].text)) fail_msg("%s: \"%s\"", rows[i].name, error.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(claimed_zeroed_and_shared),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
