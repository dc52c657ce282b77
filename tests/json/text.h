/* SPDX-License-Identifier: Apache-2.0 */
/** @file text.h  Helpers of the JSON tests: texts with a part replaced, whole files. */
#ifndef KVFERRY_TESTS_JSON_TEXT_H
#define KVFERRY_TESTS_JSON_TEXT_H

#include <stddef.h>

/** A copy of `text` with the first `find` replaced (free with free). Ends the test when `find` is not in it. */
char *text_replace(const char *text, const char *find, const char *replace);

/** `count` times `unit`, not zero terminated (free with free). */
char *text_repeat(const char *unit, size_t count);

/** A whole file, zero terminated (free with free). Ends the test when it cannot be read. */
char *text_of_file(const char *path, size_t *bytes);

#endif
