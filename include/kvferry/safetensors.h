/* SPDX-License-Identifier: Apache-2.0 */
/** @file safetensors.h  KV caches in safetensors files: `layers.N.k` and `layers.N.v`, [tokens, kv_heads, head_dim].
 *
 *  A cache file is a layout like any other: one memory (the file), blocks of consecutive tokens, tokens first. So
 *  loading a shard is a plan from the file's layout to the worker's, and saving is the reverse.
 */
#ifndef KVFERRY_SAFETENSORS_H
#define KVFERRY_SAFETENSORS_H

#include "kvferry/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A parsed header: tensor names, dtypes, shapes and where each lies. Immutable; any thread. */
typedef struct kvf_safetensors kvf_safetensors;

/** One tensor of a file. */
struct kvf_tensor {
    const char *name;  /**< borrowed until the header is destroyed */
    const char *dtype; /**< as the file writes it: "F16", "BF16", ... */
    int64_t shape[8];
    int64_t dimensions;
    int64_t offset_bytes; /**< from the start of the file */
    int64_t bytes;
};

/** Parses the header of a safetensors file whose first `bytes` bytes are at `file` (the whole file, or at least its
 *  header). Hostile input is bounded: header at most 100 MiB, ranges inside `file_bytes`, no overlaps, shape times
 *  dtype equal to the range.
 *  @param file_bytes  size of the whole file
 *  @param out         returned to the caller (free with kvf_safetensors_destroy)
 *  @return KVF_OK; KVF_ERR_PARSE; KVF_ERR_LIMIT; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_safetensors_parse(const void *file, size_t bytes, int64_t file_bytes,
                                              kvf_safetensors **out, struct kvf_error *error);
KVF_API void kvf_safetensors_destroy(kvf_safetensors *file);

/** Number of tensors; tensor number `index`, in the order of their offsets; a tensor by name. Any thread.
 *  @return KVF_OK, or KVF_ERR_NOT_FOUND with `out` unwritten */
KVF_API size_t kvf_safetensors_count(const kvf_safetensors *file);
KVF_API enum kvf_status kvf_safetensors_tensor(const kvf_safetensors *file, size_t index, struct kvf_tensor *out);
KVF_API enum kvf_status kvf_safetensors_find(const kvf_safetensors *file, const char *name, struct kvf_tensor *out);

/** Makes the layout of a KV cache file: memory 0 is the whole file, one pool, one group, a view per K and V with a
 *  place per tensor. Up to 2,048 tokens lie in one block, whose id is 0. More are cut into blocks of equal length (the
 *  longest that divides the tokens), ids 0, 1, ... tokens / tokens_per_block - 1 of the layout's group, in order.
 *  Layers may start anywhere, but none between the first and the last may be missing; each must have k and v of one
 *  shape and dtype. Tensors of other names are left aside.
 *  @param out     returned to the caller (free with kvf_layout_release)
 *  @param tokens  written with the tokens the file holds
 *  @return KVF_OK; KVF_ERR_PARSE naming the tensor, expected and found ("layers.3.v: shape [353, 3, 32], expected
 *          [353, 3, 64]"), or the missing layer */
KVF_API enum kvf_status kvf_safetensors_layout(const kvf_safetensors *file, kvf_layout **out, int64_t *tokens,
                                               struct kvf_error *error);

/** Makes a header for a KV cache of these shapes, tensors in the order layers.0.k, layers.0.v, layers.1.k, ... for
 *  layers [layer_first, layer_end), and says how long the whole file is. Write the header at offset 0; the data
 *  follows it.
 *  @param dtype       "F16", "BF16", "F32", "F8_E4M3", "F8_E5M2", "I8", "U8"
 *  @param out_header  returned to the caller (free with kvf_text_free); not text: `*header_bytes` bytes
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming the number and its bounds; KVF_ERR_OVERFLOW; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_safetensors_header(const char *dtype, int64_t layer_first, int64_t layer_end,
                                               int64_t tokens, int64_t kv_heads, int64_t head_dim, char **out_header,
                                               size_t *header_bytes, int64_t *file_bytes, struct kvf_error *error);

#ifdef __cplusplus
}
#endif

#endif
