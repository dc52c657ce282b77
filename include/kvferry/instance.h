/* SPDX-License-Identifier: Apache-2.0 */
/** @file instance.h  A whole instance (model, grid, ranks) from and to JSON text. `docs/layout.md` is the schema. */
#ifndef KVFERRY_INSTANCE_H
#define KVFERRY_INSTANCE_H

#include "kvferry/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A parsed layout file: the layouts of all ranks of one instance, in rank order. Immutable; any thread. */
typedef struct kvf_instance kvf_instance;

/** Parses a layout file. The text is borrowed for the call, need not end in zero, and may be hostile: size, nesting and
 *  counts are bounded.
 *  @param out  returned to the caller (free with kvf_instance_destroy)
 *  @return KVF_OK; KVF_ERR_PARSE (with error->position where known) naming the field, what was expected and found;
 *          KVF_ERR_LAYOUT when it reads well but is not a valid layout; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_instance_parse(const char *text, size_t text_bytes, kvf_instance **out,
                                           struct kvf_error *error);

/** Frees an instance and the layouts it lent. NULL is fine. */
KVF_API void kvf_instance_destroy(kvf_instance *instance);

/** Number of ranks; rank number `index` in the order pp, cp, tp; its layout (borrowed until destroy); its holdings
 *  (borrowed until destroy). Out of range: rank -1,-1,-1,-1 and NULL. */
KVF_API size_t kvf_instance_rank_count(const kvf_instance *instance);
KVF_API struct kvf_rank kvf_instance_rank(const kvf_instance *instance, size_t index);
KVF_API const kvf_layout *kvf_instance_layout(const kvf_instance *instance, size_t index);
KVF_API const kvf_holdings *kvf_instance_holdings(const kvf_instance *instance, size_t index);

/** Finds the number of a rank. @return KVF_OK, or KVF_ERR_NOT_FOUND with the grid's sizes in the text */
KVF_API enum kvf_status kvf_instance_find(const kvf_instance *instance, int64_t pp, int64_t cp, int64_t tp,
                                          size_t *index, struct kvf_error *error);

/** Name of the model and its fingerprint (text compared between peers; "" when the file gives none): borrowed. */
KVF_API const char *kvf_instance_model_name(const kvf_instance *instance);
KVF_API const char *kvf_instance_model_fingerprint(const kvf_instance *instance);

/** Grid sizes. */
KVF_API void kvf_instance_grid(const kvf_instance *instance, int64_t *pp, int64_t *cp, int64_t *tp);

/** Writes one layout, fully spelled out, as JSON text. Parsing it again gives an equal layout.
 *  @param out_text  returned to the caller (free with kvf_text_free), zero terminated
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT when a role or tag is not UTF-8; KVF_ERR_LIMIT when the text is larger than
 *          what would be read again (64 MiB); KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_layout_to_json(const kvf_layout *layout, char **out_text, struct kvf_error *error);

/** Parses what kvf_layout_to_json writes (the `layout` object of the schema, shorthands allowed). Statuses as
 *  kvf_instance_parse.
 *  @param out  returned to the caller (free with kvf_layout_release) */
KVF_API enum kvf_status kvf_layout_from_json(const char *text, size_t text_bytes, kvf_layout **out,
                                             struct kvf_error *error);

/** Frees text that the library returned. NULL is fine. */
KVF_API void kvf_text_free(char *text);

/* ---- making a layout file from a few words -------------------------------------------------------------------- */

/** Which axis of a block is outside. */
enum kvf_order {
    KVF_ORDER_HEADS_FIRST = 0, /**< [block][head][token]: HND */
    KVF_ORDER_TOKENS_FIRST = 1 /**< [block][token][head]: NHD */
};

/** How K and V are spread over pools. */
enum kvf_kv_pools {
    KVF_KV_ONE_POOL = 0,     /**< one pool: a slot holds all layers, K then V each */
    KVF_KV_SEPARATE_POOLS = 1, /**< one pool for K and one for V, a slot holds all layers */
    KVF_KV_POOL_PER_LAYER = 2 /**< one pool per layer, K then V in a slot (layer-first memories) */
};

/** Few words about a plain attention instance. */
struct kvf_instance_recipe {
    size_t struct_size; /**< set by kvf_instance_recipe_init */
    const char *model_name;
    const char *model_fingerprint;
    const char *dtype;   /**< "f16", "bf16", "f32", "fp8_e4m3", "fp8_e5m2", "i8", "u8": element bytes and tag */
    int64_t layers, kv_heads, head_dim;
    int64_t latent_bytes; /**< above 0: MLA; one unit per layer of so many bytes instead of K and V */
    int64_t tp, pp, cp;   /**< grid; default 1 each */
    int64_t cp_stripe_tokens; /**< round-robin stripe under CP; 0 = contiguous */
    int64_t tokens_per_block;
    int64_t blocks;       /**< slots per pool */
    int64_t value_blocks; /**< slots of the V pool when apart; 0 = blocks */
    int64_t slot_padding_bytes; /**< bytes added to each slot stride */
    int32_t order;    /**< enum kvf_order */
    int32_t kv_pools; /**< enum kvf_kv_pools */
};

/** Fills `recipe` with the defaults. `size` is sizeof(struct kvf_instance_recipe) as the caller compiled it. */
KVF_API void kvf_instance_recipe_init(struct kvf_instance_recipe *recipe, size_t size);

/** Makes a layout file's text from a recipe. The text is what kvf_instance_parse reads.
 *  @param out_text  returned to the caller (free with kvf_text_free)
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the field and its bounds; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_instance_recipe_to_json(const struct kvf_instance_recipe *recipe, char **out_text,
                                                    struct kvf_error *error);

#ifdef __cplusplus
}
#endif

#endif
