/* SPDX-License-Identifier: Apache-2.0 */
/* What to change when a pair of vLLM ranks is refused. docs/vllm.md has the same table. */
#include <string.h>

#include "cli/vllm_pairs.h"

static const struct {
    const char *part, *advice;
} rows[] = {
    {"is not paired with P tp_rank",
     "This rank must ask other producer ranks. With vLLM it means that one side took a wrong TP size of the "
     "other, as when the registry was asked before all workers had registered."},
    {"tensor parallel size",
     "Choose TP sizes of which one divides the other."},
    {"only the first layer name, so they cannot be aligned across PP sizes",
     "Use the same PP size on both sides, or a KV layout with layers apart (LBHNC, vLLM's \"HND\"). A cache that "
     "fills its allocation's whole row is taken for such a region too."},
    {"matching metadata lengths",
     "The arrays of one side do not have the same length: send all of them, one entry per region."},
    {"matching group metadata lengths",
     "Send a group index for every region, or none at all."},
    {"Mooncake shared-group metadata does not match",
     "Send the shared groups of every region of the producer."},
    {"registered layer index mismatch",
     "The two sides number a layer differently: serve the same model, revision and speculative decoding settings "
     "on both."},
    {"registered group index mismatch",
     "The two sides sort the layers into other cache groups: use the same model, block size and hybrid cache "
     "settings on both."},
    {"shared-group set mismatch",
     "A region is shared by other cache groups on the two sides: use the same model and hybrid cache settings on "
     "both."},
    {"has no matching consumer occurrence",
     "The consumer lacks a layer that the producer has: the same model, or, with other PP sizes, regions whose "
     "layers have names (no opaque rows)."},
    {"nothing is known of its pages",
     "Say in layer_specs what pages the producer's layers have: padded ones, or those of a 4-bit cache, cannot be "
     "cut."},
    {"this producer transfers",
     "Give one list of block ids per transferred cache group, and in group_kinds one kind for each."},
    {"not supported for padded KV pages",
     "Use equal TP sizes, or a block size at which pages need no padding (hybrid models align attention pages to "
     "state pages)."},
    {"not supported for NVFP4 KV cache",
     "Use equal TP sizes, or another KV cache dtype."},
    {"matching KV region counts",
     "The sides register other numbers of regions: use the same KV layout, and the same packing, on both."},
    {"KV region length mismatch for homogeneous TP",
     "A block has another size on the two sides: use the same block size, KV cache dtype and layout on both."},
    {"does not match the producer TP ratio",
     "The consumer's blocks are not as many times larger as its TP size is smaller: use the same block size and "
     "KV cache dtype on both. A model with a cache that TP does not split beside one that it does cannot have "
     "unlike TP sizes."},
    {"does not match the consumer TP ratio",
     "The producer's blocks are not as many times larger as its TP size is smaller: use the same block size and "
     "KV cache dtype on both. A model with a cache that TP does not split beside one that it does cannot have "
     "unlike TP sizes."},
    {"transfer region exceeds",
     "A block of one side is too short for the heads that the TP sizes ask for: block size, dtype or number of "
     "heads differ."},
    {"missing KV group",
     "The request has fewer lists of block ids than there are cache groups: give one per transferred group on "
     "both sides."},
    {"Shared packed region is missing its group ids",
     "The producer's shared region does not say whose it is: send the shared groups."},
    {"KV group count mismatch",
     "Both sides must give one list of block ids per transferred cache group."},
    {"P num blocks less than D",
     "The consumer wants more blocks than the producer has: the prompts differ, or the block sizes do."},
    {"no blocks ready for this transfer_id",
     "Both sides must know the request by one transfer_id."},
    {"is not cached",
     "The consumer leaves its regions out and the producer does not remember them: it has to send them again."},
};

const char *vllm_advice(const char *text)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strstr(text, rows[i].part) != NULL)
            return rows[i].advice;
    }
    return "";
}

const char *vllm_warning(const struct vllm_pair_row *row)
{
    if (row->falls_short)
        return "Blocks are longer at the consumer than at the producer, whose cache is taken to be the same on every "
               "rank, so that nobody checks it: the rest of each block is not written, without an error. Use the same "
               "block size and KV cache dtype on both sides, and equal TP sizes if heads are cut.";
    if (row->misplaces)
        return "vLLM's producer merges the layers of a row, as shown, and places each head by the merged length: the "
               "consumer's cache would be wrong, without an error. kvferry's producer keeps the layers apart. With "
               "vLLM, use a KV layout with layers apart (LBHNC, vLLM's \"HND\"), or no more producer ranks than "
               "heads.";
    return "";
}
