/* SPDX-License-Identifier: Apache-2.0 */
/** @file json_names.h  Lists of known names (ending in NULL), and the one that was probably meant. */
#ifndef KVFI_LAYOUT_JSON_NAMES_H
#define KVFI_LAYOUT_JSON_NAMES_H

#include <stdbool.h>
#include <stddef.h>

bool kvfi_name_listed(const char *name, const char *const *known);

/** The known name that differs in the fewest letters, or NULL when none is near. */
const char *kvfi_name_nearest(const char *name, const char *const *known);

/** Writes `"a", "b" or "c"`, cut where it does not fit. */
void kvfi_names_join(const char *const *known, char *text, size_t bytes);

#endif
