/* SPDX-License-Identifier: Apache-2.0 */
/** @file instance.h  Inside of an instance. */
#ifndef KVFI_LAYOUT_JSON_INSTANCE_H
#define KVFI_LAYOUT_JSON_INSTANCE_H

#include "kvferry/instance.h"
#include "layout_json/template.h"

/** Most ranks of one instance, and most places in the layouts of all of them. */
enum { KVFI_MAX_RANKS = 4096, KVFI_MAX_INSTANCE_PLACES = 1048576 };

struct kvfi_instance_rank {
    struct kvf_rank rank;
    kvf_layout *layout;
    kvf_holdings *holdings;
};

struct kvf_instance {
    char *model_name, *model_fingerprint;
    struct kvfi_grid grid;
    struct kvfi_instance_rank *ranks; /* pp, then cp, then tp */
    size_t rank_count;
};

/** Checks what the ranks hold together: for each role and layer every unit and every stripe is on some rank, and units
 *  on several ranks are whole copies.
 *  @return KVF_OK; KVF_ERR_LAYOUT naming role, layer and ranks; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_instance_check(const struct kvf_instance *instance, struct kvf_error *error);

/** Writes "rank pp 0 cp 0 tp 1". */
#define KVFI_RANK_TEXT_BYTES 96
const char *kvfi_rank_text(const struct kvf_rank *rank, char text[KVFI_RANK_TEXT_BYTES]);

#endif
