/* SPDX-License-Identifier: Apache-2.0 */
/* Holdings as ranks publish them. What is read must be written and read again as the same. */
#include <stdint.h>
#include <stdlib.h>

#include "layout_json/holdings_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const kvf_holdings *holdings)
{
    kvf_holdings *copy = NULL;
    json_t *json = NULL, *again = NULL;

    if (kvfi_holdings_to_json(holdings, &json, NULL) != KVF_OK) abort();
    if (kvfi_holdings_from_json(json, "holdings", &copy, NULL) != KVF_OK) abort();
    if (kvfi_holdings_to_json(copy, &again, NULL) != KVF_OK || !json_equal(json, again)) abort();
    kvf_holdings_release(copy);
    json_decref(json);
    json_decref(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_holdings *holdings;
    json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);

    if (kvfi_holdings_from_json(json, "holdings", &holdings, NULL) == KVF_OK) {
        round_trip(holdings);
        kvf_holdings_release(holdings);
    }
    json_decref(json);
    return 0;
}
