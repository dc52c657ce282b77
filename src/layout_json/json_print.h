/* SPDX-License-Identifier: Apache-2.0 */
/** @file json_print.h  JSON as a person would write it: what fits on a line stands on one. */
#ifndef KVFI_LAYOUT_JSON_PRINT_H
#define KVFI_LAYOUT_JSON_PRINT_H

#include <jansson.h>
#include <stdbool.h>

#include "kvferry/status.h"

/** Prints a value that this library made, with a newline at its end.
 *  @param value     taken, also on failure; NULL counts as out of memory
 *  @param out_text  returned to the caller (free with kvf_text_free)
 *  @return KVF_OK or KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_json_print(json_t *value, const char *object, char **out_text, struct kvf_error *error);

/** True for text that JSON can hold. */
bool kvfi_is_utf8(const char *text);

#endif
