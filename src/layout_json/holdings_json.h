/* SPDX-License-Identifier: Apache-2.0 */
/** @file holdings_json.h  What a rank holds, from and to JSON: the form in which ranks publish it.
 *
 *  An array of rows `{"role": "k", "tag": "f16", "row": [row_bytes, byte_first, byte_count], "units": [total, first,
 *  count], "layers": [[0, 15], [20, 22]]}`, layers as ascending [first, end) pairs; `"stripe": [stripes, stripe,
 *  stripe_tokens]` when striped, `"flags"` when not 0.
 */
#ifndef KVFI_LAYOUT_JSON_HOLDINGS_H
#define KVFI_LAYOUT_JSON_HOLDINGS_H

#include <jansson.h>

#include "kvferry/layout.h"

/** Makes the JSON of holdings. @param out  a new reference (json_decref). @return KVF_OK;
 *  KVF_ERR_INVALID_ARGUMENT when a role or tag is not UTF-8, or a layer is 2^63 - 1; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_holdings_to_json(const kvf_holdings *holdings, json_t **out, struct kvf_error *error);

/** Reads them back. The value may come from a peer: rows, layers and texts are bounded before anything is allocated.
 *  Unknown keys of rows are refused. Errors name the path below `name` ("holdings[2].units: ...").
 *  @param value  borrowed for the call; NULL counts as missing
 *  @param out    returned to the caller (free with kvf_holdings_release)
 *  @return KVF_OK, KVF_ERR_PARSE, KVF_ERR_LIMIT, KVF_ERR_LAYOUT (reads well, is not valid), KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_holdings_from_json(json_t *value, const char *name, kvf_holdings **out, struct kvf_error *error);

#endif
